// The Memory Lab's front-end: one pure function from snapshot to HTML per part, and one that moves the live page there. Joined behind page.js (text,
// HTML, morph) and memory_bars.js (drawings) by `memory_front_end()` in lab/memory_page.py.
//
//   anywidget     export default { render }           snapshot from a synced trait, commands as custom messages
//   static page   mountPage(element, snapshot)        the same picture with no kernel; rank, moment and source can be chosen

const SOURCES = { predicted: "formulas on the compiled plan, nothing runs", simulated: "counted on simulated ranks", measured: "counted by worker processes" };
const MODES = { data_parallel: "data parallel", semi_auto_parallel: "semi-auto parallel" };
const times = (text) => text.replaceAll(" x ", " × ");
const shape = (list) => shapeText(list);

// ---- controls ----

const field = (name, label, value, ui, after = "", options = "") => html`<label class="pl-field"><span>${label}</span><input data-key="${name}" data-field="${name}" type="text" autocomplete="off" spellcheck="false" value="${ui.draft[name] ?? value}" ${new Raw(options)}${flag("disabled", !ui.live)}>${after ? html`<span>${after}</span>` : ""}</label>`;

function select(name, label, value, choices, ui, text = (c) => c.label ?? c) {
  return html`<label class="pl-field"><span>${label}</span><select data-key="${name}" data-command="${name}"${flag("disabled", !ui.live)}>${choices.map((c) => html`<option value="${c.value ?? c}"${flag("selected", (c.value ?? c) === value)}>${text(c)}</option>`)}</select></label>`;
}

// One of few, as a row of buttons. `can`: also without a kernel.
function segments(command, label, value, choices, ui, { text = (c) => c.label ?? c, title = () => "", can = ui.live } = {}) {
  return html`<fieldset class="pl-field pl-segments" role="radiogroup" aria-label="${label}"><span aria-hidden="true">${label}</span><span class="pl-track pl-mm-track" data-roving="1">${choices.map((c) => {
    const own = c.value ?? c;
    return html`<button type="button" role="radio" aria-checked="${own === value}" tabindex="${own === value ? 0 : -1}" data-key="${command}-${own}" data-command="${command}" data-value="${own}"${flag("disabled", !can)} title="${title(c)}">${text(c)}</button>`;
  })}</span></fieldset>`;
}

function head(s, ui) {
  return html`<header class="pl-head"><h2 class="pl-title">${s.title}</h2>
    ${select("set_subject", "network", s.subject.value, s.subject.choices, ui)}
    ${s.width ? html`<label class="pl-field"><span>width</span><input class="pl-mm-number" data-key="width" data-field="width" type="number" min="${s.width.least}" max="${s.width.most}" step="${s.width.step}" value="${ui.draft.width ?? s.width.value}"${flag("disabled", !ui.live)}></label>` : ""}
    ${segments("set_devices", "ranks", s.devices.value, s.devices.choices, ui)}
    ${select("set_parallel_mode", "mode", s.parallel_mode.value, s.parallel_mode.choices, ui, (c) => MODES[c])}
    ${select("set_optimizer", "optimizer", s.optimizer.value, s.optimizer.choices, ui)}</header>
    <p class="pl-status" aria-live="polite">${s.status}</p>
    <div role="alert">${[s.last_error, s.run.error].filter(Boolean).map((text, i) => html`<p class="pl-notice" data-key="n${i}"><b aria-hidden="true">!</b> ${text}</p>`)}</div>`;
}

function controls(s, ui) {
  const cuts = s.parallel_mode.value === "semi_auto_parallel";
  return html`<div class="pl-mm-controls">${segments("set_level", "optimizer parallel", s.level.value, s.level.choices, ui, { text: (c) => c.value, title: (c) => c.label })}
    ${field("capacity", "a device has", s.capacity.text, ui, "", 'class="pl-mm-size-field" placeholder="no line"')}
    <span class="pl-mm-buttons"><button type="button" class="pl-button" data-key="sim" data-command="run_simulated"${flag("disabled", !ui.live || !s.run.can)} title="count one step on simulated ranks, and compare 20 with those without">Simulate</button>
    <button type="button" class="pl-button" data-key="mea" data-command="run_measured"${flag("disabled", !ui.live || !s.run.can)} title="the same on worker processes">Measure</button></span></div>
    <div class="pl-mm-controls pl-mm-fine">${cuts ? field("threshold", "threshold", s.threshold_kb, ui, "KB", 'class="pl-mm-number" inputmode="numeric"') : ""}
    ${cuts ? select("set_shard_size", "shared by", s.shard_size.value, s.shard_size.choices, ui, (n) => (n < 0 ? "all with the same slice" : plural(n, "rank"))) : ""}
    ${segments("set_accumulation", "micro-batches", s.accumulation.value, s.accumulation.choices, ui)}
    ${cuts ? html`<label class="pl-field"><input type="checkbox" data-key="acc" data-check="set_accumulation_shard"${flag("checked", s.accumulation_shard)}${flag("disabled", !ui.live)}><span>keep added-up gradients in slices</span></label>` : ""}</div>
    ${runLine(s.run, "pl-mm-run", ui.live)}`;
}

// ---- memory ----

function memory(s, ui) {
  const moment = s.moment.value, held = s.ranks_of[s.source.value][s.rank][moment], grown = s.ranks_of[s.source.value][s.rank].grown_bytes;
  const row = (k) => { const off = s.off[moment].live[k.name], now = held.live[k.name]; return html`<tr data-key="${k.name}" class="${off || now ? "" : "pl-mm-none"}"><th scope="row" title="${k.note}">${swatch(k.name, ui.id)}${k.label}</th><td class="pl-number">${off ? bytesText(off) : "–"}</td><td class="pl-number">${now ? bytesText(now) : "–"}</td></tr>`; };
  return html`${patterns(ui.id)}<div class="pl-mm-main"><section aria-label="memory per rank"><div class="pl-mm-title"><h3>Memory per rank</h3>
      ${segments("show_moment", "moment", moment, s.moment.choices, ui, { can: true })}
      ${segments("show_source", "source", s.source.value, ["predicted", "simulated", "measured"].filter((x) => s.source.choices.includes(x)), ui, { can: true, title: (c) => SOURCES[c] })}</div>
    <figure class="pl-mm-figure">${bars(s, ui)}</figure></section>
  <section class="pl-mm-key" aria-label="key, with the bytes"><h3>Rank ${s.rank} <small>${s.source.value}</small></h3><table><thead><tr><th></th><th scope="col" class="pl-number">off</th><th scope="col" class="pl-number">${s.level.value === "off" ? "rank" : s.level.value}</th></tr></thead>
    <tbody>${[...s.kinds].reverse().map(row)}</tbody><tfoot><tr><th scope="row">together</th><td class="pl-number">${bytesText(s.off[moment].total)}</td><td class="pl-number">${bytesText(held.total)}</td></tr>${s.capacity.bytes ? html`<tr class="pl-mm-line"><th scope="row"><svg width="18" height="12" aria-hidden="true"><path class="pl-mm-cap" d="M0 6H18"/></svg>a device has</th><td></td><td class="pl-number">${s.capacity.text}</td></tr>` : ""}</tfoot></table>
    ${held.where ? html`<p class="pl-mm-hint">there in <code>${held.where}</code></p>` : ""}
    ${grown != null ? html`<p class="pl-mm-hint">its process grew by ${bytesText(grown)} (resident set; what it had freed before is used again)</p>` : ""}</section></div>`;
}

function levels(s, ui) {
  const rows = s.levels.filter((r) => !r.refused), most = Math.max(...rows.map((r) => r.peak_bytes), 1), sent = Math.max(...rows.map((r) => r.sent_bytes), 1);
  const bar = (share, kind) => html`<td class="pl-mm-hbar"><i class="${kind}" style="width:${round(100 * share)}%"></i></td>`;
  const row = (r) => r.refused ? html`<tr data-key="${r.value}"><th scope="row" title="${r.label}">${r.value}</th><td colspan="7" class="pl-mm-hint">${r.refused}</td></tr>`
    : html`<tr data-key="${r.value}" class="${r.chosen ? "pl-on" : ""}"><th scope="row" title="${r.label}">${r.value}</th><td class="pl-number">${bytesText(r.resident_bytes)}</td><td class="pl-number">${bytesText(r.peak_bytes)}</td>${bar(r.peak_bytes / most, "pl-mm-b-memory")}<td class="pl-number">${bytesText(r.sent_bytes)}</td>${bar(r.sent_bytes / sent, "pl-mm-b-sent")}<td class="pl-number">${r.messages}</td><td>${r.fits === null ? "" : r.fits ? html`<span class="pl-good">fits</span>` : html`<span class="pl-wrong">too much</span>`}</td></tr>`;
  return html`<section class="pl-mm-levels" aria-label="every level"><h3>Every level <small>fullest rank, predicted</small></h3><div class="pl-scroll"><table><thead><tr><th scope="col">level</th><th scope="col" class="pl-number">between steps</th><th scope="col" class="pl-number">fullest moment</th><th></th><th scope="col" class="pl-number">sent per step</th><th></th><th scope="col" class="pl-number">messages</th><th></th></tr></thead><tbody>${s.levels.map(row)}</tbody></table></div></section>`;
}

function step(s, ui) {
  return html`<section class="pl-mm-step" aria-label="memory over one step"><h3>Rank ${s.rank} over one step <small>${s.source.value}; one column per instruction</small></h3><figure class="pl-mm-figure">${overTheStep(s, ui)}</figure></section>`;
}

function traffic(s, ui) {
  const rows = s.traffic_of[s.source.value][s.rank], sum = (key) => rows.reduce((a, r) => a + r[key], 0);
  const most = Math.max(...rows.flatMap((r) => [r.sent_bytes, r.off_sent_bytes]), 1);
  const agrees = (r) => Math.abs(r.formula_bytes - r.sent_bytes) <= r.messages; // whole bytes per message
  const row = (r) => html`<tr data-key="${r.purpose}-${r.kind}"><th scope="row"><code>${r.kind}</code> <span class="pl-muted">${{ gradients: "of gradients", parameters: "of parameters", network: "of the network itself" }[r.purpose]}</span></th>
    <td class="pl-number">${r.messages}</td><td class="pl-number">${bytesText(r.sent_bytes)}</td><td class="pl-mm-hbar">${r.sent_bytes ? html`<i class="pl-mm-b-sent" style="width:${round((100 * r.sent_bytes) / most)}%"></i>` : ""}${r.off_sent_bytes ? html`<i class="pl-mm-b-off" style="width:${round((100 * r.off_sent_bytes) / most)}%"></i>` : ""}</td><td class="pl-number pl-muted">${r.off_messages ? `${r.off_messages}, ${bytesText(r.off_sent_bytes)}` : "–"}</td>
    <td class="pl-mm-formula">${r.formula ? html`${times(r.formula)} = ${bytesText(Math.round(r.formula_bytes))} ${agrees(r) ? html`<span class="pl-good">as counted</span>` : html`<span class="pl-wrong">counted ${bytesText(r.sent_bytes)}</span>`}` : html`<span class="pl-muted">–</span>`}</td></tr>`;
  return html`<section class="pl-mm-traffic" aria-label="traffic"><h3>Traffic of rank ${s.rank} <small>${s.source.value}; one step</small></h3>
    <div class="pl-mm-counters"><p><b class="pl-big">${bytesText(sum("sent_bytes"))}</b> sent <span class="pl-muted">off: ${bytesText(sum("off_sent_bytes"))}</span></p><p><b class="pl-big">${sum("messages")}</b> messages <span class="pl-muted">off: ${sum("off_messages")}</span></p></div>
    <div class="pl-scroll"><table><thead><tr><th scope="col">message</th><th scope="col" class="pl-number">count</th><th scope="col" class="pl-number">sent</th><th></th><th scope="col" class="pl-number">off</th><th scope="col">formula</th></tr></thead><tbody>${rows.map(row)}</tbody></table></div></section>`;
}

// ---- what is cut, what is equal ----

function parameters(s, ui) {
  const cut = s.parameters.filter((p) => p.ways > 1).length, owned = s.parameters.filter((p) => p.owner !== null).length;
  const row = (p) => html`<tr data-key="${p.name}"><td><code>${p.name}</code></td><td class="pl-number"><code>${shape(p.shape)}</code></td><td class="pl-number">${bytesText(p.size_bytes)}</td><td class="pl-number"><code>${shape(p.kept_shape)}</code></td><td class="pl-mm-share"><span class="pl-mm-slice" aria-hidden="true"><i style="width:${round(100 / p.ways)}%"></i></span>${p.ways > 1 ? html`${p.ways} share it` : p.owner !== null ? html`rank ${p.owner} updates it` : html`<span class="pl-muted">whole</span>`}</td><td class="pl-why">${p.why}</td></tr>`;
  const told = s.level.value === "off" ? "nothing is cut" : owned ? `${owned} of ${s.parameters.length} have an owner` : `${cut} of ${s.parameters.length} are cut`;
  return html`<section class="pl-messages" aria-label="parameters"><h3>Parameters <small>${told}</small></h3><div class="pl-scroll pl-long pl-mm-long"><table><thead><tr><th scope="col">parameter</th><th scope="col" class="pl-number">slice</th><th scope="col" class="pl-number">size</th><th scope="col" class="pl-number">a rank keeps</th><th scope="col">share</th><th scope="col">why not</th></tr></thead><tbody>${s.parameters.map(row)}</tbody></table></div></section>`;
}

function equality(s, ui) {
  if (!s.equality.length) return html`<section class="pl-mm-equality" aria-label="equality"><h3>The same numbers? <small>not run yet</small></h3><p class="pl-mm-hint">Simulate or Measure trains 20 steps with these settings and 20 without optimizer parallel, and compares losses, gradients and parameters.</p></section>`;
  const one = (r) => html`<div data-key="${r.source}"><p class="pl-verdict">${r.source}: <span class="${r.equal ? "pl-good" : "pl-wrong"}">${r.equal ? "equal" : "different"}</span>, ${r.rows.filter((x) => x.equal).length} of ${plural(r.rows.length, "tensor")} after ${plural(r.steps, "step")}; ${r.title}</p>
    <div class="pl-scroll pl-long pl-mm-long"><table><thead><tr><th scope="col">tensor</th><th scope="col" class="pl-number">largest difference</th><th scope="col" class="pl-number">rounding bound</th><th scope="col">verdict</th></tr></thead><tbody>${r.rows.map((x) => html`<tr data-key="${x.tensor}"><td><code>${x.tensor}</code></td><td class="pl-number">${smallText(x.largest_difference)}</td><td class="pl-number">${smallText(x.bound)}</td><td><span class="${x.equal ? "" : "pl-wrong"}">${x.verdict}</span></td></tr>`)}</tbody></table></div></div>`;
  return html`<section class="pl-messages pl-mm-equality" aria-label="equality"><h3>The same numbers? <small>against the same ranks without optimizer parallel</small></h3>${s.equality.map(one)}</section>`;
}

// ---- puzzle, paper, export ----

const countText = (n) => { for (const [of, sign] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]]) if (n >= of) return `${Number((n / of).toPrecision(3))} ${sign}`; return String(n); };

function puzzle(s, ui) {
  const p = s.puzzle;
  if (!p) return html``;
  const most = Math.max(p.parameters, p.par?.parameters ?? 0), fits = p.fits ? html`<span class="pl-good">fits</span>` : html`<span class="pl-wrong">does not fit</span>`;
  const verdict = p.ratio === null ? "" : p.ratio >= 1 ? html`<b class="pl-good">par</b>` : html`${p.ratio.toFixed(3)} of par`;
  const bar = (name, n, on) => html`<tr class="${on ? "pl-on" : ""}"><th scope="row">${name}</th><td class="pl-number">${countText(n)}</td><td class="pl-mm-hbar"><i class="${on ? "pl-mm-b-sent" : "pl-mm-b-off"}" style="width:${round((100 * n) / most)}%"></i></td></tr>`;
  return html`<section class="pl-mm-puzzle" aria-label="puzzle: largest model under the cap"><h3>Largest model under the cap <small>${verdict}</small></h3><p class="pl-mm-hint">The widest stack whose fullest rank stays under ${s.capacity.text}, with ${s.optimizer.value} on ${s.devices.value} ranks.</p>
    <table><tbody>${bar("yours", p.parameters, true)}${p.par ? bar("par", p.par.parameters, false) : ""}</tbody></table><p class="pl-mm-verdict">${countText(p.parameters)} parameters: ${fits} – ${bytesText(p.peak_bytes)}, ${p.source}</p>
    <span class="pl-mm-buttons"><button type="button" class="pl-button" data-key="find" data-command="find_par"${flag("disabled", !ui.live || !s.run.can)} title="search all levels, shard sizes and ways to accumulate">Find par</button><button type="button" class="pl-button" data-key="best" data-command="show_best"${flag("disabled", !ui.live || !p.par)}>Show par</button></span></section>`;
}

function paper(s, ui) {
  const z = s.zero, most = Math.max(...z.stages.map((r) => r.total_gb)), gb = (x) => (x >= 100 ? x.toFixed(0) : Number(x.toPrecision(3)));
  const wide = ui.width > 900 ? 300 : 180, scale = Math.max(most, z.device_gb * 1.05), part = (kind, amount) => html`<svg class="pl-mm-part" width="${round((wide * amount) / scale)}" height="16" preserveAspectRatio="none" aria-hidden="true">${block(kind, 0, 0, wide, 16, ui.id)}</svg>`;
  const stage = (r) => html`<tr data-key="${r.stage}"><th scope="row">${r.stage} <span class="pl-muted">${r.cut}</span></th><td class="pl-number"><b>${gb(r.total_gb)} GB</b></td><td class="pl-mm-zbar"><span style="width:${wide + 4}px">${part("params", r.params_gb)}${part("grads", r.grads_gb)}${part("optimizer", r.optimizer_gb)}<i class="pl-mm-zcap" style="left:${round((wide * z.device_gb) / scale)}px"></i></span></td><td class="pl-number">${Number((r.sent_elements / z.parameters).toPrecision(3))} P</td><td class="pl-number">${r.largest_text}</td></tr>`;
  return html`<section class="pl-mm-paper" aria-label="the ZeRO paper's table"><h3>Your model in the ZeRO paper's table <small>bytes per parameter: 2 + 2 + K; mixed precision with Adam K = 12</small></h3>
    <div class="pl-mm-controls pl-mm-fine">${field("zero_parameters", "parameters P", z.parameters_text, ui, "", 'class="pl-mm-number"')}${field("zero_degree", "ranks", z.degree, ui, "", 'class="pl-mm-number" inputmode="numeric"')}${field("zero_k", "K", z.optimizer_bytes, ui, "bytes", 'class="pl-mm-number" inputmode="decimal"')}</div>
    <div class="pl-scroll"><p class="pl-mm-zkey">${["params", "grads", "optimizer"].map((k) => html`<span>${swatch(k, ui.id)} ${labelOf(s, k)}</span>`)}<span><i></i> ${z.device_gb} GB</span></p><table class="pl-mm-stages"><thead><tr><th scope="col">cut</th><th scope="col" class="pl-number">a rank holds</th><th></th><th scope="col" class="pl-number">sends</th><th scope="col" class="pl-number">parameters in ${z.device_gb} GB</th></tr></thead><tbody>${z.stages.map(stage)}</tbody></table></div>
    <div class="pl-scroll"><table class="pl-mm-degrees"><thead><tr><th scope="col">GB per rank on ranks:</th>${z.rows.map((r) => html`<th scope="col" class="pl-number${r.chosen ? " pl-on" : ""}">${r.ranks}</th>`)}</tr></thead><tbody>${z.stages.map((r) => html`<tr><th scope="row">${["nothing cut", "states", "+ gradients", "+ parameters"][r.stage]}</th>${z.rows.map((x) => html`<td class="pl-number${x.chosen ? " pl-on" : ""}">${gb(x.gb[r.stage])}</td>`)}</tr>`)}</tbody></table></div></section>`;
}

const last = (s) => html`<section class="pl-mm-export" aria-label="the same in MindSpore"><h3>The same in MindSpore</h3><pre>${s.export}</pre></section>`;

const PARTS = { head, controls, memory, levels, traffic, step, puzzle, parameters, equality, paper, last };

// ---- the live page ----

const NUMBERS = ["set_devices", "set_accumulation", "set_shard_size"]; // commands that take one
let mounted = 0;

function mount(root, { live, send, pick }) {
  mounted += 1;
  const ui = { live, width: 900, bars: 600, draft: {}, id: `plmm${mounted}-${Math.random().toString(36).slice(2, 7)}` };
  root.classList.add("pl-lab", "pl-mm");
  const page = inParts(root, PARTS, ui, (width) => { ui.width = Math.max(420, width); ui.bars = ui.width > 740 ? ui.width - 304 : ui.width; });

  const act = (node) => {
    if (node.hasAttribute("disabled")) return;
    const { command, value, rank } = node.dataset;
    if (rank !== undefined) pick("select_rank", Number(rank));
    else if (command === "show_moment" || command === "show_source") pick(command, value);
    else send(command, value === undefined ? [] : [NUMBERS.includes(command) ? Number(value) : value]);
  };
  const commit = (name, text) => {
    delete ui.draft[name];
    const z = page.snapshot.zero, typed = text.trim() === "" ? NaN : Number(text.trim().replace(",", "."));
    const number = Number.isFinite(typed) ? typed : text; // the model says what is wrong with a text
    if (name === "capacity") send("set_capacity", [text]);
    else if (name === "width") send("set_width", [number]);
    else if (name === "threshold") send("set_threshold", [number]);
    else if (name === "zero_parameters") send("set_zero", [text, z.degree, z.optimizer_bytes]);
    else if (name === "zero_degree") send("set_zero", [String(z.parameters), number, z.optimizer_bytes]);
    else send("set_zero", [String(z.parameters), z.degree, number]);
  };

  const on = {
    click(event) {
      const node = event.target.closest("[data-rank], [data-command]");
      if (!node || node.nodeName === "SELECT") return;
      if (node.dataset.rank !== undefined) node.focus();
      act(node);
    },
    change(event) {
      const { target } = event;
      if (target.nodeName === "SELECT") send(target.dataset.command, [NUMBERS.includes(target.dataset.command) ? Number(target.value) : target.value]);
      else if (target.dataset.check) send(target.dataset.check, [target.checked]);
      else if (target.dataset.field) commit(target.dataset.field, target.value);
    },
    input(event) { if (event.target.dataset.field) ui.draft[event.target.dataset.field] = event.target.value; },
    keydown(event) {
      const { target, key } = event;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      let used = true;
      const group = target.closest?.("[data-roving]"), move = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: -1, ArrowDown: 1 }[key];
      if (target.nodeName === "INPUT" && key === "Escape") { ui.draft = {}; page.forget(); }
      else if (target.nodeName !== "INPUT" && group && (move || key === " " || key === "Enter")) {
        const items = [...group.querySelectorAll('[role="radio"]:not([disabled])')], next = items[items.indexOf(target.closest('[role="radio"]')) + (move ?? 0)];
        if (next) { next.focus(); act(next); }
      } else used = false;
      if (used) event.preventDefault();
      if (used || target.nodeName === "INPUT") event.stopPropagation();
    },
  };
  const endEvents = listenTo(root, on);
  return {
    show: page.show,
    answered() { page.forget(); },
    dispose() { page.dispose(); endEvents(); },
  };
}

// ---- in a notebook ----

const render = inNotebook(mount, (send) => (command, value) => send(command, [value]));

// ---- on a page of its own ----

export function mountPage(root, base) {
  let now = base;
  const pick = (command, value) => {
    if (command === "select_rank") now = { ...now, rank: value };
    else { const part = command === "show_moment" ? "moment" : "source"; now = { ...now, [part]: { ...now[part], value } }; }
    view.show(now);
  };
  const view = mount(root, { live: false, send: () => {}, pick });
  view.show(now);
  return view;
}

export default { render };
