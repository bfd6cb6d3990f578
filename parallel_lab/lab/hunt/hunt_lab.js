// The Hunt Lab: what is hunted, what is asked, and who it is.

const FIELDS = ["net", "suspects", "level", "seed"], ASKS = ["tensor", "rank", "step"];
const fields = (s, ui, names, most = 4) => names.map((name) => control(`set_${name}`, s[name], ui, most));

// The graph: a value that is chosen is the one to probe.
function valueRows(s, ui) {
  const now = forChoices(s.sections.graph, s);
  const row = ([name, type, gradient, said]) => html`<tr data-key="${name}" class="${now.on === name ? "pl-on" : ""}">
    <th scope="row"><button type="button" class="pl-hunt-value" data-key="value-${name}" data-command="set_tensor"
    data-value="${name}"${disabledUnless(ui, "set_tensor", name)}>${breakable(name)}</button></th>
    <td class="pl-hunt-type">${CELLS.type(type)}</td><td class="pl-hunt-type">${CELLS.type(gradient)}</td><td>${said}</td></tr>`;
  return html`<div class="pl-scroll pl-long"><table>${tableHead(now)}<tbody>${now.rows.map(row)}</tbody></table></div>`;
}

const { render, mountPage } = lab({
  classes: ["pl-hunt"],
  story: STORY,
  parts: {
    head: (s, ui) => head(played(s), html`${fields(s, ui, FIELDS, 2)}`, ui),
    asks: (s, ui) => html`<div class="pl-hunt-row">${fields(s, ui, ASKS)}${button("probe", "Probe: 1 point", ui)}
      ${fields(s, ui, ["other"])}${button("compare", "Compare: 2 points", ui)}${button("forget", "From the start", ui)}</div>
      <div class="pl-hunt-row">${fields(s, ui, ["suspect", "mend"])}${button("tell", "Name it", ui)}</div>${sealedNote(s)}`,
    graph: (s, ui) => section(s, "graph", ui, { body: valueRows(played(s), ui) }),
    rest: (s, ui) => html`${section(played(s), "asked", ui)}${section(s, "loss", ui)}`,
    tables: (s, ui) => tabs(ui, sectionTabs(s, ui, [["suspects", "Suspects"]])),
  },
  skeleton: html`<div class="pl-top">${slot("head")}${slot("asks")}</div>
    <div class="pl-hunt-sides"><div>${slot("graph")}</div><div class="pl-hunt-rest">${slot("rest")}</div></div>${slot("tables")}`,
  measure: measureWidth,
  alone: ALONE,
  possible: askable,
  numbers: ["set_suspects", "set_seed", "set_rank", "set_step", "set_other", "set_suspect"],
});
