// The Memory Lab: controls, the key next to the bars, and its sections. The drawings are in memory_bars.js; what all
// labs share is in page.js and sections.js.

const SOURCES = {
  predicted: "formulas on the compiled plan, nothing runs",
  simulated: "counted on simulated ranks",
  measured: "counted by worker processes",
};
const MODES = { data_parallel: "data parallel", semi_auto_parallel: "semi-auto parallel" };
const NUMBER = 'class="pl-mm-number" inputmode="decimal"';

// ---- controls ----

function top(s, ui) {
  const bounds = s.width && `min="${s.width.least}" max="${s.width.most}" step="${s.width.step}"`;
  const width = { type: "number", options: `class="pl-mm-number" ${bounds}` };
  return head(s, html`${choice("set_subject", "network", s.subject, "set_subject", ui)}
    ${s.width ? typed("width", "width", s.width.value, ui, width) : ""}
    ${segments("set_devices-", "ranks", s.devices, "set_devices", ui)}
    ${choice("set_parallel_mode", "mode", s.parallel_mode, "set_parallel_mode", ui, { text: (c) => MODES[c] })}
    ${choice("set_optimizer", "optimizer", s.optimizer, "set_optimizer", ui)}`, ui);
}

function controls(s, ui) {
  const semi = s.parallel_mode.value === "semi_auto_parallel";
  const shared = (n) => (n < 0 ? "all with the same slice" : plural(n, "rank"));
  const weighed = consequencesOf(s, ui, s.level, "set_level");
  const level = { text: valueOf, title: (c) => c.label ?? "", weighed };
  const size = { options: 'class="pl-mm-size-field" placeholder="no line"' };
  const run = (command, text, title) => button(command, text, ui, { on: s.run.can, title });
  return html`<div class="pl-mm-controls">
    ${segments("set_level-", "optimizer parallel", s.level, "set_level", ui, level)}
    ${typed("capacity", "a device has", s.capacity.text, ui, size)}
    <span class="pl-mm-buttons">
    ${run("run_simulated", "Simulate", "count one step on simulated ranks, and compare 20 with those without")}
    ${run("run_measured", "Measure", "the same on worker processes")}</span></div>
    <div class="pl-mm-controls pl-mm-fine">${semi ? html`
    ${typed("threshold", "threshold", s.threshold_kb, ui, { unit: "KiB", options: NUMBER })}
    ${choice("set_shard_size", "shared by", s.shard_size, "set_shard_size", ui, { text: shared })}` : ""}
    ${segments("set_accumulation-", "micro-batches", s.accumulation, "set_accumulation", ui)}
    ${s.split.choices.length > 1 ? segments("set_split-", "split", s.split, "set_split", ui, level) : ""}
    ${semi ? html`<label class="pl-field" title="keep added-up gradients in slices"><input type="checkbox" data-key="acc" data-command="set_accumulation_shard"
      ${flag("checked", s.accumulation_shard)}${disabledUnless(ui, "set_accumulation_shard")}>
      <span>sums in slices</span></label>` : ""}</div>
    <div class="pl-mm-runs">${equalities(s).length && s.run.can ? equalities(s).map((name) => html`<p class="pl-mm-run" title="${s.run.text}">
      ${s.sections[name].title.split(":")[0]}: ${s.sections[name].notes.map(verdictText)}</p>`) : runLine(s.run, "pl-mm-run", ui) || weighed.key}</div>`;
}

const equalities = (s) => Object.keys(s.sections).filter((name) => name.startsWith("equality_"));

// ---- memory ----

// The bars at the chosen moment of the recorded run: what each rank was counted to hold in the instruction it is at.
function memoryPast(s, { r, at, lanes, rank, said, when, now: nowOf }, ui) {
  const counted = s.steps_of[r.source], ranks = [...lanes.keys()];
  const steps = ranks.map((one) => counted?.steps[counted.of[one]]);
  const [off] = s.sections.memory.of[`peak|${s.source.value}`].bars, memory = { ...s.sections.memory, by: null };
  const bars = ranks.map((one) => {
    const { e, i } = nowOf(one), live = steps[one]?.live[i] ?? kindsOf(s).map(({ name }) => e.live[r.kinds.indexOf(name)] ?? 0);
    return { name: `rank ${one}`, live, total: add(live), where: `${e.phase}: ${e.name}`, grown_bytes: null };
  });
  const totals = bars.map((bar) => bar.total), most = Math.max(...totals, ...steps.flatMap((step) => step?.live.map(add) ?? []));
  const one = tellsNow(s, ui) && !s.selected; // line: below an answer there is room for the present's
  const ends = [Math.min(...totals), Math.max(...totals)].map(bytesText), { does, e } = nowOf(rank);
  const hold = ends[0] === ends[1] ? `every rank holds ${ends[0]}` : `ranks hold ${ends[0]} to ${ends[1]}`;
  return {
    ...s, source: { ...s.source, value: r.source }, past: { most },
    status: `${capital(said)}. At ${when} ${hold} (${r.source}).`,
    selected: one ? "" : `Rank ${rank}: ${does} (${e.name}); it sends ${bytesText(r.sent[at * ranks.length + rank])} a step. ${s.selected}`,
    moment: { ...s.moment, value: null }, sections: { ...s.sections, memory: { ...memory, bars: [off, ...bars] } },
  };
}

function memory(s, ui) {
  return html`${patterns(ui.id)}<div class="pl-mm-main"><div role="group" aria-label="memory per rank"><div class="pl-mm-title">
      <h3>${ranksAlike(s, ui) ? `A rank, and rank ${s.rank} over one step` : "Memory per rank"}</h3>
      ${segments("show_source-", "source", s.source, "show_source", ui, { title: (c) => SOURCES[valueOf(c)] })}
      ${segments("show_moment-", "moment", s.moment, "show_moment", ui)}</div>
    <figure class="pl-mm-figure">${bars(s, ui)}</figure></div>${key(s, ui)}</div>`;
}

// The bytes of the chosen rank next to those without optimizer parallel.
function key(s, ui) {
  const { bars: [off, ...ranks], kinds } = forChoices(s.sections.memory, s), held = ranks[s.rank];
  const number = (size) => html`<td class="pl-number">${size ? bytesText(size) : "–"}</td>`;
  const row = (kind, i) => html`<tr data-key="${kind.name}" class="${off.live[i] || held.live[i] ? "" : "pl-mm-none"}">
    <th scope="row" title="${kind.note}">${swatch(kind.name, ui.id)}${kind.label}</th>
    ${number(off.live[i])}${number(held.live[i])}</tr>`;
  const line = html`<tr class="pl-mm-line"><th scope="row"><svg width="18" height="12" aria-hidden="true">
    <path class="pl-mm-cap" d="M0 6H18"/></svg>a device has</th><td></td>
    <td class="pl-number">${s.capacity.text}</td></tr>`;
  const grown = held.grown_bytes;
  return html`<div role="group" class="pl-mm-key" aria-label="key, with the bytes">
    <h3>Rank ${s.rank} <small>${sourceText(s)}</small></h3>
    <table><thead><tr><td></td><th scope="col" class="pl-number">${s.past ? "off, fullest" : "off"}</th>
      <th scope="col" class="pl-number">${s.level.value === "off" ? "rank" : s.level.value}</th></tr></thead>
    <tbody>${kinds.map(row).reverse()}</tbody>
    <tfoot><tr><th scope="row">together</th>${number(off.total)}${number(held.total)}</tr>
      ${s.capacity.bytes ? line : ""}</tfoot></table>
    ${held.where ? html`<p class="pl-mm-hint pl-mm-where" title="${held.where}">in <code>${held.where}</code></p>` : ""}
    ${grown == null ? "" : html`<p class="pl-mm-hint">its process grew by ${bytesText(grown)} (resident set; what it had
      freed before is used again)</p>`}</div>`;
}

function step(s, ui) {
  return html`<div role="group" class="pl-section" aria-label="memory over one step">
    <h3>Rank ${s.rank} over one step <small>${sourceText(s)}; one column per instruction</small></h3>
    <figure class="pl-mm-figure">${overTheStep(s, ui)}</figure></div>`;
}

// ---- equality, puzzle, paper ----

function equality(s, ui) {
  const names = equalities(s);
  if (names.length) return html`${names.map((name) => section(s, name, ui))}`;
  return html`<div role="group" class="pl-section" aria-label="equality"><h3>The same numbers? <small>not run yet</small></h3>
    <p class="pl-mm-hint">Simulate or Measure trains 20 steps with these settings and 20 without optimizer parallel, and
    compares losses, gradients and parameters.</p></div>`;
}

function puzzle(s, ui) {
  const above = html`<p class="pl-mm-hint">The widest stack whose fullest rank stays under ${s.capacity.text}, with
    ${s.optimizer.value} on ${s.devices.value} ranks.</p>`;
  const title = "search all levels, shard sizes and ways to accumulate";
  const below = html`<span class="pl-mm-buttons">${button("find_par", "Find par", ui, { on: s.run.can, title })}
    ${button("show_best", "Show par", ui, { on: s.par })}</span>`;
  return section(s, "puzzle", ui, { above, below });
}

function paper(s, ui) {
  const z = s.zero, name = (kind) => kindsOf(s).find((k) => k.name === kind).label;
  const above = html`<div class="pl-mm-controls pl-mm-fine">
    ${typed("zero_parameters", "parameters P", z.parameters_text, ui, { options: NUMBER })}
    ${typed("zero_degree", "ranks", z.degree, ui, { options: NUMBER })}
    ${typed("zero_k", "K", z.optimizer_bytes, ui, { unit: "bytes", options: NUMBER })}</div>
    <p class="pl-mm-zkey">${STACKED.map((kind) => html`<span>${swatch(kind, ui.id)} ${name(kind)}</span>`)}
    <span><i></i> ${z.device_gb} GB</span></p>`;
  return html`${section(s, "zero", ui, { above })}${section(s, "degrees", ui)}`;
}

// GB of parameters, gradients and optimizer states as one bar, with a line where a device ends.
const STACKED = ["params", "grads", "optimizer"];
const DEVICE_GB = 32;
CELLS.stack = (parts, { rows }, ui) => {
  const wide = ui.width > 900 ? 300 : 180;
  const scale = Math.max(DEVICE_GB * 1.05, ...rows.map((row) => Math.max(...row.filter(Array.isArray).map(add))));
  const part = (gb, i) => html`<svg class="pl-mm-part" width="${round((wide * gb) / scale)}" height="16"
    preserveAspectRatio="none" aria-hidden="true">${block(STACKED[i], 0, 0, wide, 16, ui.id)}</svg>`;
  return html`<span class="pl-mm-zbar" style="width:${wide + 4}px">${parts.map(part)}
    <i class="pl-mm-zcap" style="left:${round((wide * DEVICE_GB) / scale)}px"></i></span>`;
};

// ---- what is looked at one at a time ----

function tables(s, ui) {
  return tabs(ui, {
    ...sectionTabs(s, ui, [["levels", "Every level"], ["splits", "Every split"], ["traffic", "Messages"],
      ["rooms", "Rows of experts"]]),
    ...(ranksAlike(s, ui) ? {} : { step: ["One step", null, () => step(s, ui)] }),
    ...sectionTabs(s, ui, [["parameters", "Parameters"]]), equality: ["Same numbers?", null, () => equality(s, ui)],
    ...(s.sections.puzzle ? { puzzle: ["Puzzle", null, () => puzzle(s, ui)] } : {}),
    ...earlierTab(s, ui), ...sectionTabs(s, ui, [["recorded", "Recorded run"]], false), paper: ["ZeRO paper", null, () => paper(s, ui)], ...codeTabs(s, ui),
  });
}

// ---- what can be done ----

function commit(name, text, { snapshot, send }) {
  const z = snapshot.zero, number = numberOf(text); // the model says what is wrong with a text
  const zero = { zero_parameters: String(z.parameters), zero_degree: z.degree, zero_k: z.optimizer_bytes };
  if (name === "capacity") send("set_capacity", [text]);
  else if (name in zero) {
    send("set_zero", Object.values({ ...zero, [name]: name === "zero_parameters" ? text : number }));
  } else send(`set_${name}`, [number]);
}

const { render, mountPage } = lab({
  classes: ["pl-mm"],
  story: STORY,
  parts: { ...inPast(memoryPast, { head: top }), controls, run: scrubBar, ...inPast(memoryPast, { memory }), tables },
  measure(ui, root) {
    measureWidth(ui, root);
    ui.bars = ui.width > 740 ? ui.width - 304 : ui.width;
  },
  previews: ["status", "selected", "sections", "steps_of", "source"],
  numbers: ["set_devices", "set_accumulation", "set_shard_size", "select_rank"],
  commit,
  handlers: (view) => withScrub(view, withPaste(view)),
});
