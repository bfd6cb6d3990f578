// The Memory Lab: controls, the key beside the bars, and tables. The drawings are in memory_bars.js; what all labs share is in
// page.js. On a page of its own rank, moment and source can be chosen.

const SOURCES = { predicted: "formulas on the compiled plan, nothing runs", simulated: "counted on simulated ranks", measured: "counted by worker processes" };
const MODES = { data_parallel: "data parallel", semi_auto_parallel: "semi-auto parallel" };
const NUMBER = 'class="pl-mm-number" inputmode="decimal"';
const times = (text) => text.replaceAll(" x ", " × ");
const shape = (list) => shapeText(list);

// ---- controls ----

function top(s, ui) {
  const width = s.width && { type: "number", options: `class="pl-mm-number" min="${s.width.least}" max="${s.width.most}" step="${s.width.step}"` };
  return head(s, html`${choice("set_subject", "network", s.subject, "set_subject", ui)}
    ${width ? typed("width", "width", s.width.value, ui, width) : ""}
    ${segments("set_devices-", "ranks", s.devices, "set_devices", ui)}
    ${choice("set_parallel_mode", "mode", s.parallel_mode, "set_parallel_mode", ui, { text: (c) => MODES[c] })}
    ${choice("set_optimizer", "optimizer", s.optimizer, "set_optimizer", ui)}`);
}

function controls(s, ui) {
  const cuts = s.parallel_mode.value === "semi_auto_parallel";
  const shared = (n) => (n < 0 ? "all with the same slice" : plural(n, "rank"));
  const run = (command, text, title) => button(command, text, ui, { on: s.run.can, title });
  return html`<div class="pl-mm-controls">
    ${segments("set_level-", "optimizer parallel", s.level, "set_level", ui, { text: (c) => c.value, title: (c) => c.label })}
    ${typed("capacity", "a device has", s.capacity.text, ui, { options: 'class="pl-mm-size-field" placeholder="no line"' })}
    <span class="pl-mm-buttons">
    ${run("run_simulated", "Simulate", "count one step on simulated ranks, and compare 20 with those without")}
    ${run("run_measured", "Measure", "the same on worker processes")}</span></div>
    <div class="pl-mm-controls pl-mm-fine">${cuts ? html`${typed("threshold", "threshold", s.threshold_kb, ui, { unit: "KB", options: NUMBER })}
    ${choice("set_shard_size", "shared by", s.shard_size, "set_shard_size", ui, { text: shared })}` : ""}
    ${segments("set_accumulation-", "micro-batches", s.accumulation, "set_accumulation", ui)}
    ${cuts ? html`<label class="pl-field"><input type="checkbox" data-key="acc" data-command="set_accumulation_shard"
      ${flag("checked", s.accumulation_shard)}${disabledUnless(ui, "set_accumulation_shard")}>
      <span>keep added-up gradients in slices</span></label>` : ""}</div>
    ${runLine(s.run, "pl-mm-run", ui)}`;
}

// ---- memory ----

function memory(s, ui) {
  const moment = s.moment.value, held = s.ranks_of[s.source.value][s.rank][moment], grown = s.ranks_of[s.source.value][s.rank].grown_bytes;
  const row = (k) => { const off = s.off[moment].live[k.name], now = held.live[k.name]; return html`<tr data-key="${k.name}" class="${off || now ? "" : "pl-mm-none"}"><th scope="row" title="${k.note}">${swatch(k.name, ui.id)}${k.label}</th><td class="pl-number">${off ? bytesText(off) : "–"}</td><td class="pl-number">${now ? bytesText(now) : "–"}</td></tr>`; };
  return html`${patterns(ui.id)}<div class="pl-mm-main"><section aria-label="memory per rank"><div class="pl-mm-title"><h3>Memory per rank</h3>
      ${segments("show_moment-", "moment", s.moment, "show_moment", ui)}
      ${segments("show_source-", "source", s.source, "show_source", ui, { title: (c) => SOURCES[c] })}</div>
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
  const told = s.level.value === "off" ? "nothing is sharded" : owned ? `${owned} of ${s.parameters.length} have an owner` : `${cut} of ${s.parameters.length} are sharded`;
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
    <span class="pl-mm-buttons">${button("find_par", "Find par", ui, { on: s.run.can, title: "search all levels, shard sizes and ways to accumulate" })}${button("show_best", "Show par", ui, { on: Boolean(p.par) })}</span></section>`;
}

function paper(s, ui) {
  const z = s.zero, most = Math.max(...z.stages.map((r) => r.total_gb)), gb = (x) => (x >= 100 ? x.toFixed(0) : Number(x.toPrecision(3)));
  const wide = ui.width > 900 ? 300 : 180, scale = Math.max(most, z.device_gb * 1.05), part = (kind, amount) => html`<svg class="pl-mm-part" width="${round((wide * amount) / scale)}" height="16" preserveAspectRatio="none" aria-hidden="true">${block(kind, 0, 0, wide, 16, ui.id)}</svg>`;
  const stage = (r) => html`<tr data-key="${r.stage}"><th scope="row">${r.stage} <span class="pl-muted">${r.cut}</span></th><td class="pl-number"><b>${gb(r.total_gb)} GB</b></td><td class="pl-mm-zbar"><span style="width:${wide + 4}px">${part("params", r.params_gb)}${part("grads", r.grads_gb)}${part("optimizer", r.optimizer_gb)}<i class="pl-mm-zcap" style="left:${round((wide * z.device_gb) / scale)}px"></i></span></td><td class="pl-number">${Number((r.sent_elements / z.parameters).toPrecision(3))} P</td><td class="pl-number">${r.largest_text}</td></tr>`;
  return html`<section class="pl-mm-paper" aria-label="the ZeRO paper's table"><h3>Your model in the ZeRO paper's table <small>bytes per parameter: 2 + 2 + K; mixed precision with Adam K = 12</small></h3>
    <div class="pl-mm-controls pl-mm-fine">${typed("zero_parameters", "parameters P", z.parameters_text, ui, { options: NUMBER })}
    ${typed("zero_degree", "ranks", z.degree, ui, { options: NUMBER })}
    ${typed("zero_k", "K", z.optimizer_bytes, ui, { unit: "bytes", options: NUMBER })}</div>
    <div class="pl-scroll"><p class="pl-mm-zkey">${["params", "grads", "optimizer"].map((k) => html`<span>${swatch(k, ui.id)} ${labelOf(s, k)}</span>`)}<span><i></i> ${z.device_gb} GB</span></p><table class="pl-mm-stages"><thead><tr><th scope="col">cut</th><th scope="col" class="pl-number">a rank holds</th><th></th><th scope="col" class="pl-number">sends</th><th scope="col" class="pl-number">parameters in ${z.device_gb} GB</th></tr></thead><tbody>${z.stages.map(stage)}</tbody></table></div>
    <div class="pl-scroll"><table class="pl-mm-degrees"><thead><tr><th scope="col">GB per rank on ranks:</th>${z.rows.map((r) => html`<th scope="col" class="pl-number${r.chosen ? " pl-on" : ""}">${r.ranks}</th>`)}</tr></thead><tbody>${z.stages.map((r) => html`<tr><th scope="row">${["nothing cut", "states", "+ gradients", "+ parameters"][r.stage]}</th>${z.rows.map((x) => html`<td class="pl-number${x.chosen ? " pl-on" : ""}">${gb(x.gb[r.stage])}</td>`)}</tr>`)}</tbody></table></div></section>`;
}

const last = (s) => html`<section class="pl-mm-export" aria-label="the same in MindSpore"><h3>The same in MindSpore</h3><pre>${s.export}</pre></section>`;

// ---- what can be done ----

function commit(name, text, { snapshot, send }) {
  const z = snapshot.zero, given = text.trim() === "" ? NaN : Number(text.trim().replace(",", "."));
  const number = Number.isFinite(given) ? given : text; // the model says what is wrong with a text
  const zero = { zero_parameters: String(z.parameters), zero_degree: z.degree, zero_k: z.optimizer_bytes };
  if (name === "capacity") send("set_capacity", [text]);
  else if (name in zero) send("set_zero", Object.values({ ...zero, [name]: name === "zero_parameters" ? text : number }));
  else send(`set_${name}`, [number]);
}

const chosen = (part) => (s, [value]) => ({ [part]: { ...s[part], value } });

const { render, mountPage } = lab({
  classes: ["pl-mm"],
  parts: { head: top, controls, memory, levels, traffic, step, puzzle, parameters, equality, paper, last },
  measure(ui, root) {
    ui.width = Math.max(420, Math.floor(root.clientWidth || 940) - 8);
    ui.bars = ui.width > 740 ? ui.width - 304 : ui.width;
  },
  numbers: ["set_devices", "set_accumulation", "set_shard_size", "select_rank"],
  commit,
  alone: { select_rank: (s, [rank]) => ({ rank }), show_moment: chosen("moment"), show_source: chosen("source") },
});

export { mountPage };
export default { render };
