// Sections of a snapshot (lab/shared/sections.py) as HTML: tables with bars in their cells, code to copy, notes. A lab
// draws the others itself, from `forChoices(section, s)`.

// The section as it is chosen.
function forChoices(section, s) {
  if (!section.by) return section;
  return { ...section, ...section.of[section.by.map((name) => valueOf(s[name])).join("|")] };
}

// Whose numbers are shown, in words: those of a file are recorded ones.
const sourceText = ({ source }) => source.choices.find((c) => valueOf(c) === source.value)?.label ?? source.value;

const times = (text) => text.replaceAll(" x ", " × ");
const verdictText = ([text, good]) => html`<span class="${good ? "pl-good" : "pl-wrong"}">${text}</span>`;

function countText(n) {
  for (const [of, sign] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]]) {
    if (n >= of) return `${Number((n / of).toPrecision(3))} ${sign}`;
  }
  return String(n);
}

// The type of a value along one axis of the ranks; hatching is the pending sum.
const TYPE_WORDS = { R: "replicated", S: "varying: slices of a dim", V: "varying", P: "partial: a pending sum" };
Object.assign(TYPE_WORDS, { C: "one number", "?": "not known", T: "varying: slices handed on round a ring" });
Object.assign(TYPE_WORDS, { A: "partial: a sum round a ring", B: "partial: a sum that goes round a ring" });
const typeOf = (code) => html`<i class="pl-type pl-type-${code[0]}" title="${TYPE_WORDS[code[0]] ?? code}">${code}</i>`;

// Types of a value or of its gradient along the axes of the ranks.  rows: [axis or none, type, its gradient's]
const chips = (rows, at) => rows.flatMap((row) => row.at(at).split(" ").filter(Boolean).map(typeOf));
function typesOf(rows) {
  if (!rows.length) return "";
  const grad = chips(rows, -1);
  return html`<span class="pl-types">${chips(rows, -2)}${grad.length ? html` <small title="type of the gradient">∂</small> ${grad}` : ""}</span>`;
}

// Cells by format; a lab may add its own. A text stands for itself in each of them.
const CELLS = {
  bytes: bytesText,
  time: timeText,
  late: (time) => (time > 0 ? html`<span class="pl-wrong">${timeText(time)}</span>` : timeText(time)),
  small: smallText,
  count: countText,
  number: (n) => n,
  shape: (list) => html`<code>${shapeText(list)}</code>`,
  verdict: verdictText,
  form: ([name, text, said], section, ui) => html`<span class="pl-form">${section.command && ui.live ? html`<input type="text"
    data-key="form-${name}" data-field="form-${name}" aria-label="${name}" placeholder="no form" autocomplete="off" spellcheck="false"
    value="${ui.drafts.get(`form-${name}`) ?? text ?? ""}"${disabledUnless(ui, section.command)}>` : html`<code>${text ?? "no form"}</code>`}
    <button type="button" class="pl-button" data-key="copy-${name}" data-copy="1" data-text="${text ?? ""}" aria-label="copy ${name}"
    ${flag("disabled", text === null)}>${text !== null && ui.copied?.text === text ? ui.copied.said : "Copy"}</button></span>
    <small class="pl-form-said${text === null ? " pl-wrong" : ""}">${said}</small>`,
  code: ([text, line], section, ui) => (line === null || !section.command ? html`<code>${text}</code>` : html`<button type="button"
    class="pl-code-line" data-key="line-${line}" data-command="${section.command}" data-value="${line}" data-number="1"
    aria-pressed="${section.on === String(line)}"${disabledUnless(ui, section.command, line)}>${text}</button>`),
  type: (codes) => (codes.length ? html`${codes.map(typeOf)}` : "–"),
  share: ([ways, text]) => html`<span class="pl-slice" aria-hidden="true">
    <i style="width:${round(100 / ways)}%"></i></span>${text}`,
};
const NUMBERS = ["bytes", "time", "late", "small", "count", "number", "shape"];

function tableRows(section, ui) {
  const columns = Object.values(section.columns).map((text) => text.split(" "));
  const size = (value) => (Number.isFinite(value) ? value : 0);
  const most = columns.map((_, i) => Math.max(...section.rows.map((row) => size(row[i]))) || 1);
  const cell = (value, i, span) => {
    const [how, bar] = columns[i], number = NUMBERS.includes(how);
    const shown = value === null ? "–" : typeof value === "string" ? micro(times(value)) : CELLS[how](value, section, ui);
    const kind = number ? "pl-number" : `pl-cell-${how}`;
    const share = typeof value === "number" ? round((100 * value) / most[i]) : 0;
    return html`${how === "name" ? html`<th scope="row">${shown}</th>`
      : html`<td class="${kind}"${span > 1 ? new Raw(` colspan="${span}"`) : ""}>${shown}</td>`}
      ${bar && span === 1 ? html`<td class="pl-share-bar" aria-hidden="true">
      <i style="width:${share}%"></i></td>` : ""}`;
  };
  const width = columns.reduce((sum, [, bar]) => sum + (bar ? 2 : 1), 0);
  return section.rows.map((row) => {
    const taken = row.slice(0, -1).reduce((sum, _, i) => sum + (columns[i][1] ? 2 : 1), 0);
    const span = (i) => (row.length < columns.length && i === row.length - 1 ? width - taken : 1);
    const on = section.on !== undefined && section.on === row[0];
    const cells = row.map((value, i) => cell(value, i, span(i)));
    return html`<tr data-key="${row[0]}" class="${on ? "pl-on" : ""}">${cells}</tr>`;
  });
}

function tableHead(section) {
  const heads = Object.entries(section.columns);
  if (heads.every(([head]) => !head.trim())) return "";
  const one = ([head, format]) => {
    const [how, bar] = format.split(" "), wide = bar ? new Raw(' colspan="2"') : "";
    if (!head.trim()) return html`<td${wide}></td>`;
    return html`<th scope="col" class="${NUMBERS.includes(how) ? "pl-number" : ""}"${wide}>${head.trim()}</th>`;
  };
  return html`<thead><tr>${heads.map(one)}</tr></thead>`;
}

// A kernel sends programs once one is to be looked at.
function missingCode(ui) {
  if (ui.live) ui.wantCode();
  return html`<p class="pl-muted">${ui.live ? "…" : `${NEEDS}it was not looked at while there was one`}</p>`;
}

const MANY_ROWS = 9; // more of them scroll

const BODIES = {
  table: (section, ui) => html`<div class="pl-scroll${section.rows.length > MANY_ROWS ? " pl-long" : ""}"><table>
    ${tableHead(section)}<tbody>${tableRows(section, ui)}</tbody></table></div>`,
  code: (section, ui) => (section.text === null ? missingCode(ui) : html`<p class="pl-copy-line"><button type="button" class="pl-button" data-copy="1"
    aria-live="polite">${ui.copied?.text === section.text ? ui.copied.said : "Copy"}</button></p>
    <pre tabindex="0">${section.text}</pre>`),
  lines: () => "",
};

const notesOf = (section) => (section.notes ?? []).map((note) => html`<p class="pl-verdict">
  ${typeof note === "string" ? note : verdictText(note)}</p>`);

// One section by its name, with something of the lab's own above and below its body; nothing where the snapshot has
// none.
function section(s, name, ui, { above = "", below = "", body } = {}) {
  if (!s.sections[name]) return html``;
  const now = forChoices(s.sections[name], s), small = now.small ? html` <small>${now.small}</small>` : "";
  return html`<div role="group" class="pl-section pl-section-${name}" data-key="${name}" aria-label="${now.title}">
    <h3>${now.title}${small}</h3>${above}${body ?? BODIES[now.kind](now, ui)}${notesOf(now)}${below}</div>`;
}

// Parts of a lab, each one section.
const sectionParts = (names) => Object.fromEntries(names.map((name) => [name, (s, ui) => section(s, name, ui)]));

// What was refused, at the field that asked for it: the head may be out of sight.
const refusedHere = (s, ui, command) => (ui.asked === command && s.last_error
  ? html`<p class="pl-refused-here" data-key="refused-${command}"><b aria-hidden="true">!</b> ${plainly(s.last_error)}</p>` : "");
// A field for something that is pasted, taken by its button, by Ctrl+Enter, or when the field is left (withPaste).
const pasteField = (ui, command, { label, button, example, rows = 2 }) => html`<div class="pl-field pl-paste">
  <label for="${ui.id}-paste">${label}</label>
  <textarea id="${ui.id}-paste" rows="${rows}" data-key="paste" data-command="${command}" spellcheck="false"
  title="taken with Ctrl+Enter, by the button, or when the field is left"
  placeholder="${example}"${flag("disabled", !ui.live)}></textarea>
  <button type="button" class="pl-button" data-key="take" data-take="1"${flag("disabled", !ui.live)}
  >${button}</button></div>`;

// Handlers of a lab with such a field.
function withPaste(view, own = {}) {
  const { root, ui } = view, field = () => root.querySelector("textarea[data-key=paste]");
  const take = () => {
    const text = field()?.value ?? "";
    if (text.trim()) view.send(field().dataset.command, [text]);
    ui.taken = text;
  };
  // Listened to here: with Ctrl held no handler of a lab hears a key, and JupyterLab would run the cell.
  root.addEventListener("keydown", (event) => {
    if (event.target !== field() || event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    event.stopPropagation();
    take();
  }, true);
  return {
    ...own,
    click(event) {
      if (!event.target.closest("[data-take]")) return own.click?.(event);
      take();
      return true;
    },
    // the button takes the text itself
    mousedown(event) {
      if (!event.target.closest("[data-take]")) return own.mousedown?.(event);
      event.preventDefault();
      return true;
    },
    change(event) {
      const { target } = event, pasted = target === field();
      if (pasted && target.value === ui.taken) return true;
      if (pasted) ui.taken = target.value;
      return own.change?.(event);
    },
  };
}

// The tabs with the setting as programs; lines of MindSpore that are pasted into the first set the lab.
const paste = (s, ui) => html`${pasteField(ui, "set_code", { label: "Lines of MindSpore set the lab:", button: "Set the lab",
    example: s.sections.code_mindspore.paste_example })}${refusedHere(s, ui, "set_code")}`;
const TARGETS = { code_mindspore: "MindSpore", code_torch: "PyTorch", code_jax: "JAX" };
function codeTabs(s, ui) {
  const known = Object.keys(TARGETS).filter((name) => s.sections[name]);
  const one = (name) => html`<button type="button" class="pl-button" data-key="of-${name}" data-tab="${name}"
    aria-pressed="${ui.tab === name}"${flag("disabled", ui.tab === name)}>${TARGETS[name]}</button>`;
  const content = (name) => html`<p class="pl-targets" role="group" aria-label="library">${known.map(one)}</p>
    ${section(s, name, ui, { below: name === "code_mindspore" ? paste(s, ui) : "" })}`;
  return Object.fromEntries(known.map((name, n) => [name, [n ? null : "Code", null, () => content(name)]]));
}

// A tab for each of these sections that the snapshot has, in pairs of its name and the tab's title.  counted: with the
// number of its rows
const rowsOf = (s, name) => forChoices(s.sections[name], s).rows?.length ?? null;
const sectionTabs = (s, ui, titles, counted = true) => Object.fromEntries(titles.filter(([name]) => s.sections[name])
  .map(([name, title]) => [name, [title, counted ? rowsOf(s, name) : null, () => section(s, name, ui)]]));
const earlierTab = (s, ui) => sectionTabs(s, ui, [["earlier", "Earlier runs"]]);

// A long name may break after its dots and underscores, and before its capitals.
const breakable = (name) => html`${name.split(/(?<=[._])|(?<=[a-z0-9])(?=[A-Z])/).map((part) => html`${part}<wbr>`)}`;

// What is looked at one at a time: a row of tabs, and below it what the chosen one shows; a second click closes it.
//   known   {name: [title, rows that its table has or null, () => html]}; title null: it belongs to the tab before it
function tabs(ui, known) {
  const names = Object.keys(known), of = {};
  for (const name of names) of[name] = known[name][0] === null ? of[names[names.indexOf(name) - 1]] : name;
  const tab = ([name, [title, rows]]) => title === null ? "" : html`<button type="button" role="tab"
    data-key="tab-${name}" data-tab="${name}" aria-selected="${of[ui.tab] === name}"
    aria-controls="${ui.id}-panel">${title}${rows === null ? "" : html` <small>${rows}</small>`}</button>`;
  const [title, , content] = known[ui.tab] ?? ["closed", null, () => ""];
  return html`<div class="pl-tabbed"><div class="pl-tabs" role="tablist" aria-label="tables and code">${Object.entries(known).map(tab)}</div>
    <div class="pl-tab-panel" id="${ui.id}-panel" role="tabpanel" aria-label="${title ?? "Code"}"
    ${flag("hidden", !known[ui.tab])}>${content()}</div></div>`;
}
