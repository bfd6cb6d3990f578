// The Context Lab: a square of pairs, a row for each query and a column for each key. A pair has the colour of the rank that
// computes it, which the row names; pairs of the chosen step are bright, those before it half, those after it pale. What all
// labs share is in page.js and sections.js.

const CX = { left: 34, top: 30, cell: 10 }; // pixels

// Positions in a row that have the same owner: [first, count, owner].
const cxRuns = (owners, first, stop) => {
  const runs = [];
  for (let k = first; k < stop; k += 1) {
    const last = runs.at(-1);
    if (last?.[2] === owners[k]) last[1] += 1;
    else runs.push([k, 1, owners[k]]);
  }
  return runs;
};

function cxPicture(now, status) {
  const { owners, names, first, stop, steps, at } = now, n = owners.length, { left, top, cell } = CX, groups = names.length;
  const together = now.ranks / groups, look = (g) => hue(g * together), size = n * cell;
  const when = (q, owner) => (steps === 1 ? 0 : (owners[q] - owner + groups) % groups);
  const run = (q) => ([k, count, owner]) => {
    const step = when(q, owner), state = step === at ? "now" : step < at ? "past" : "later";
    const keys = count > 1 ? `keys ${k} to ${k + count - 1}` : `key ${k}`;
    return html`<rect class="pl-cx-${state} ${look(owners[q])}" x="${left + k * cell}" y="${top + q * cell}"
      width="${count * cell - 1}" height="${cell - 1}"><title>query ${q}, ${keys}: rank ${names[owners[q]]}, step ${step + 1}</title></rect>`;
  };
  const labels = cxRuns(owners, 0, n); // one for each run of rows, and of columns
  const row = ([q, count, g]) => html`<rect class="pl-cx-now ${look(g)}" x="${left - 26}" y="${top + q * cell}" width="22"
      height="${count * cell - 1}"/><text x="${left - 15}" y="${top + (q + count / 2) * cell + 4}">${names[g]}</text>`;
  const column = ([k, count, g]) => html`<rect class="pl-cx-now ${look(g)}" x="${left + k * cell}" y="${top - 15}"
      width="${count * cell - 1}" height="12"/>${count * cell < 9 * names[g].length ? ""
      : html`<text x="${left + (k + count / 2) * cell}" y="${top - 6}">${names[g]}</text>`}`;
  return html`<svg class="pl-cx" width="${left + size}" height="${top + size}" viewBox="0 0 ${left + size} ${top + size}"
      role="img" aria-label="square of ${n} queries and ${n} keys, step ${at + 1} of ${steps}. ${status}">
    <rect class="pl-cx-hidden" x="${left}" y="${top}" width="${size - 1}" height="${size - 1}"/>
    <text class="pl-cx-axis" x="${left}" y="10">keys, by the rank that holds them</text>
    ${labels.map(row)}${labels.map(column)}
    ${owners.map((_, q) => cxRuns(owners, first[q], stop[q]).map(run(q)))}</svg>`;
}

function cxSquare(s, ui) {
  const now = forChoices(s.sections.square, s);
  return html`<div role="group" class="pl-section" data-key="square" aria-label="${now.title}">
    <h3>${now.title} <small>row: query, column: key</small></h3>
    <div class="pl-cx-step">${s.step.choices.length > 1 ? segments("set_step-", s.step.label, s.step, "set_step", ui) : html`<span class="pl-muted">one step</span>`}</div>
    <figure class="pl-cx-figure">${cxPicture(now, s.status)}</figure></div>`;
}

const cxHead = (s, ui) => head(s, html`${["way", "ranks", "mask", "kv_heads", "link"]
  .map((name) => control(`set_${name}`, s[name], ui))}${button("run_measured", "Run on ranks", ui,
    { on: s.run.state !== "running", title: "train a small GPT this way on worker processes, and on one device" })}`, ui);

// Where a kernel listens the line of the run is always there, so that nothing moves.
const cxLine = (s, ui) => (s.run.text ? runLine(s.run, "pl-muted", ui)
  : html`<p class="pl-muted">All numbers are predicted until they are run.</p>`);
const cxMore = (s, ui) => html`${tabs(ui, sectionTabs(s, ui, ["hides", "steps", "holds", "ran", "python"]
  .map((name) => [name, s.sections[name]?.title]), false))}
  ${ui.live || s.run.text ? html`<div class="pl-cx-run">${cxLine(s, ui)}</div>` : ""}`;

const { render, mountPage } = lab({
  classes: ["pl-cx-lab"],
  story: STORY,
  parts: {
    head: cxHead,
    square: cxSquare,
    ...sectionParts(["ways", "work"]),
    more: cxMore,
  },
  skeleton: html`<div class="pl-top">${slot("head")}</div><div class="pl-cx-two">${slot("square")}
    <div>${["ways", "work"].map(slot)}</div></div>${slot("more")}`,
});
