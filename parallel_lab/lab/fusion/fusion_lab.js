// The Fusion Lab: backward above, messages below, between them the brackets; a cut between two brackets can be dragged.
// Colour = message (its number is printed too). What all labs share is in page.js.

const PAD = 2, LABEL = 104, SIDE = 72, GAP = 13; // pixels: margin, lane names, blocks of forward and update, least distance of cuts
const Y = { back: 24, backH: 34, mark: 66, markH: 26, line: 128, lineH: 34, axis: 176, height: 204 };
const SOURCES = { predicted: "formula, nothing runs", simulated: "this machine's numpy, messages from the profile", measured: "worker processes" };
const MB = 1024 * 1024;

const hueOf = (number) => hue(number - 1);
const nameOf = (name) => name.replace(/\.(weight|bias|gamma|beta)$/, (m) => ({ ".weight": ".w", ".bias": ".b", ".gamma": ".γ", ".beta": ".β" })[m]).replace(/^layers\./, "");
const fits = (text, width, size = 6.6) => text.length * size + 6 <= width;

// ---- where things lie ----

function geometry(s, width) {
  const lanes = s.lanes, n = lanes.boxes.length, last = lanes.messages.at(-1)?.end_s ?? 0;
  const begin = lanes.forward_s, end = Math.max(lanes.backward_s, last), rest = Math.max(0, lanes.step_s - end);
  const left = LABEL + (begin > 0 ? SIDE : 0), right = width - PAD - (rest > 1e-9 ? SIDE : 0);
  const x = (t) => left + ((t - begin) / (end - begin || 1)) * (right - left);
  // borders of the brackets: where the gradients end, but never closer than a cut is wide
  const borders = lanes.boxes.map((b) => x(b.end_s));
  const place = [left, ...borders];
  for (let k = 1; k <= n; k += 1) place[k] = Math.max(place[k], place[k - 1] + GAP);
  const over = place[n] - right;
  if (over > 0) for (let k = n, most = right; k > 0 && place[k] > most; k -= 1, most -= GAP) place[k] = most;
  return { n, begin, end, rest, left, right, x, place };
}

// The brackets: runs of neighbours that travel together. While a cut is dragged, as they would be.
function brackets(s, n, drag) {
  const number = new Array(n).fill(1);
  for (const m of s.lanes.messages) for (const at of m.members) number[at] = m.number;
  const cuts = drag ? [...new Set(s.cuts.map((c) => (c === drag.cut ? drag.at : c)))].sort((a, b) => a - b) : s.cuts;
  const starts = [0, ...cuts], found = starts.map((from, i) => ({ from, to: cuts[i] ?? n }));
  return { cuts, runs: found.map((run, i) => ({ ...run, number: drag ? i + 1 : number[run.from], size: s.lanes.boxes.slice(run.from, run.to).reduce((sum, b) => sum + b.size_bytes, 0) })) };
}

function ticks(span) {
  const unit = span < 1e-3 ? [1e-6, "µs"] : span < 1 ? [1e-3, "ms"] : [1, "s"];
  const rough = span / unit[0] / 8, power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((f) => f * power).find((f) => f >= rough) ?? power;
  const found = [];
  for (let t = 0; t * unit[0] <= span * 1.0001; t += step) found.push([t * unit[0], Number(t.toPrecision(6))]);
  return { found, unit: unit[1] };
}

// ---- the picture ----

// Its parts are groups that are always there, in this order: a group that moves in the document would take the focus from the cut in it.

function picture(s, ui) {
  const g = geometry(s, ui.width), { lanes } = s, { runs, cuts } = brackets(s, g.n, ui.drag);
  const number = new Array(g.n).fill(1);
  for (const m of lanes.messages) for (const at of m.members) number[at] = m.number;
  const tailX = g.x(lanes.backward_s), tail = lanes.exposed_s > 0;
  const side = (name, x, time) => html`<g class="pl-fu-side"><rect x="${round(x)}" y="${Y.back}" width="${SIDE - 4}" height="${Y.backH}"/><text x="${round(x + SIDE / 2 - 2)}" y="${Y.back + 12}">${name}</text><text x="${round(x + SIDE / 2 - 2)}" y="${Y.back + 26}">${timeText(time)}</text></g>`;
  const box = (b, k) => {
    const from = g.x(b.start_s), to = g.x(b.end_s), w = Math.max(0.5, to - from - 1), label = nameOf(b.name), size = bytesText(b.size_bytes);
    return html`<g class="pl-fu-box ${hueOf(number[k])}" data-key="b${k}"><title>${`${b.name}, ${size}: computed until ${timeText(b.end_s - g.begin)}`}</title><rect x="${round(from)}" y="${Y.back}" width="${round(w)}" height="${Y.backH}"/>
      ${fits(label, w) ? html`<text x="${round(from + w / 2)}" y="${Y.back + (fits(size, w, 5.9) ? 12 : 17)}">${label}</text>${fits(size, w, 5.9) ? html`<text class="pl-fu-small" x="${round(from + w / 2)}" y="${Y.back + 26}">${size}</text>` : ""}` : ""}</g>`;
  };
  const lead = (k) => (Math.abs(g.place[k] - g.x(lanes.boxes[k - 1].end_s)) > 1 ? html`<path class="pl-fu-lead" d="M${round(g.x(lanes.boxes[k - 1].end_s))} ${Y.back + Y.backH}L${round(g.place[k])} ${Y.mark}"/>` : "");
  const bracket = (run) => {
    const from = g.place[run.from] + 1, to = g.place[run.to] - 1, w = Math.max(2, to - from), count = run.to - run.from;
    const long = `${run.number}: ${plural(count, "gradient")}, ${bytesText(run.size)}`, short = `${run.number}: ${bytesText(run.size)}`;
    const text = [long, short].find((t) => fits(t, w - 8, 6.2)) ?? (w >= 7 * String(run.number).length ? String(run.number) : "");
    return html`<g class="pl-fu-bracket ${hueOf(run.number)}" data-key="k${run.from}"><title>${`message ${long}`}</title><path d="M${round(from)} ${Y.mark}v${Y.markH - 6}q0 6 6 6h${round(Math.max(0, w - 12))}q6 0 6 -6v-${Y.markH - 6}z"/>
      <text x="${round(from + w / 2)}" y="${Y.mark + Y.markH / 2 + 1}">${text}</text></g>`;
  };
  const ribbon = (m) => {
    const mine = runs.filter((run) => run.number === m.number), a = g.x(m.start_s), b = Math.max(a + 1, g.x(m.end_s));
    return mine.map((run) => html`<path class="pl-fu-ribbon ${hueOf(m.number)}" data-key="r${run.from}" d="M${round(g.place[run.from] + 4)} ${Y.mark + Y.markH}L${round(g.place[run.to] - 4)} ${Y.mark + Y.markH}L${round(b)} ${Y.line}L${round(a)} ${Y.line}z"/>`);
  };
  const message = (m) => {
    const from = g.x(m.start_s), to = Math.max(from + 2, g.x(m.end_s)), w = to - from - 1, ready = g.x(m.ready_s), size = bytesText(m.size_bytes), text = [`${m.number}: ${size}, ${timeText(m.end_s - m.start_s)}`, `${m.number}: ${size}`, String(m.number)].find((t) => fits(t, w)) ?? "";
    const about = `message ${m.number}, ${size}: ready ${timeText(m.ready_s - g.begin)}, travels ${timeText(m.start_s - g.begin)} to ${timeText(m.end_s - g.begin)}, ${timeText(m.hidden_s)} hidden, ${timeText(m.exposed_s)} exposed`;
    const bare = Math.max(from, tailX);
    return html`<g class="pl-fu-message ${hueOf(m.number)}" data-key="m${m.number}"><title>${about}</title>${from - ready > 3 ? html`<path class="pl-fu-wait" d="M${round(ready)} ${Y.line + Y.lineH + 5}H${round(from)}"/>` : ""}
      <rect x="${round(from)}" y="${Y.line}" width="${round(w)}" height="${Y.lineH}"/>${m.exposed_s > 0 && to > bare ? html`<rect class="pl-fu-bare" x="${round(bare)}" y="${Y.line}" width="${round(Math.max(1, to - bare - 1))}" height="${Y.lineH}" fill="url(#${ui.id}-bare)"/>` : ""}
      ${text ? html`<rect class="pl-fu-plate" x="${round(from + w / 2 - text.length * 3.3 - 3)}" y="${Y.line + Y.lineH / 2 - 8}" width="${round(text.length * 6.6 + 6)}" height="16" rx="3"/>` : ""}<text x="${round(from + w / 2)}" y="${Y.line + Y.lineH / 2 + 1}">${text}</text></g>`;
  };
  const cut = (k, i) => {
    const at = round(g.place[k]), before = lanes.boxes[k - 1].name, after = lanes.boxes[k].name;
    return html`<g class="pl-fu-cut${ui.drag && ui.drag.at === k ? " pl-on" : ""}" data-key="cut${i}" data-cut="${k}"${flag('tabindex="0"', ui.live)} role="slider" aria-label="cut ${i + 1} of ${cuts.length}" aria-valuemin="1" aria-valuemax="${g.n - 1}" aria-valuenow="${k}" aria-valuetext="between ${before} and ${after}"${flag('aria-disabled="true"', !ui.live)}>
      <title>${`cut between ${before} and ${after}${ui.live ? ": drag it or use the arrow keys; Delete removes it" : ""}`}</title><rect class="pl-fu-reach" x="${at - 8}" y="${Y.mark - 8}" width="16" height="${Y.markH + 14}"/><rect class="pl-fu-knob" x="${at - 3.5}" y="${Y.mark - 5}" width="7" height="${Y.markH + 10}" rx="3.5"/></g>`;
  };
  const tick = (k) => (ui.live && !cuts.includes(k) ? html`<g class="pl-fu-add" data-key="add${k}" data-add="${k}"><title>cut here</title><rect class="pl-fu-reach" x="${round(g.place[k] - 6)}" y="${Y.mark}" width="12" height="${Y.markH}"/><path d="M${round(g.place[k])} ${Y.mark + 3}v${Y.markH - 6}"/></g>` : "");
  const axis = ticks(g.end - g.begin), inner = [...Array(Math.max(0, g.n - 1)).keys()].map((k) => k + 1);
  const exposed = `exposed ${timeText(lanes.exposed_s)}`, tailEnd = g.x(g.end), roomy = tailEnd - tailX > exposed.length * 7;
  return html`<figure class="pl-fu-figure"><svg width="${ui.width}" height="${Y.height}" viewBox="0 0 ${ui.width} ${Y.height}" role="group" aria-label="backward and its messages, ${s.source}; the table below has the same numbers">
    <defs><pattern id="${ui.id}-bare" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="pl-fu-hatch" width="2.2" height="7"/></pattern></defs>
    <g data-key="under">${tail ? html`<rect class="pl-fu-tail" x="${round(tailX)}" y="${Y.back - 20}" width="${round(tailEnd - tailX)}" height="${Y.axis - Y.back + 20}"/>` : ""}
    <text class="pl-fu-name" x="0" y="${Y.back + Y.backH / 2}">backward</text><text class="pl-fu-name" x="0" y="${Y.mark + Y.markH / 2}">buckets</text><text class="pl-fu-name" x="0" y="${Y.line + Y.lineH / 2}">messages</text>
    ${g.begin > 0 ? side("forward", LABEL, g.begin) : ""}${g.rest > 1e-9 ? side("update", g.right + 4, g.rest) : ""}
    <rect class="pl-fu-lane" x="${g.left}" y="${Y.line}" width="${round(g.right - g.left)}" height="${Y.lineH}"/></g>
    <g data-key="ribbons">${lanes.messages.map(ribbon)}</g><g data-key="boxes">${lanes.boxes.map(box)}</g>
    <g data-key="rest">${lanes.backward_s > (lanes.boxes.at(-1)?.end_s ?? 0) + 1e-9 ? html`<rect class="pl-fu-rest" x="${round(g.x(lanes.boxes.at(-1).end_s))}" y="${Y.back}" width="${round(Math.max(1, tailX - g.x(lanes.boxes.at(-1).end_s) - 1))}" height="${Y.backH}"/>` : ""}
    ${inner.map(lead)}</g><g data-key="brackets">${runs.map(bracket)}</g><g data-key="messages">${lanes.messages.map(message)}</g>
    <g data-key="end"><path class="pl-fu-end" d="M${round(tailX)} ${Y.back - 8}V${Y.axis}"/>
    ${tail ? html`<text class="pl-fu-exposed" x="${round(roomy ? (tailX + tailEnd) / 2 : tailX - 6)}" y="${Y.back - 9}" text-anchor="${roomy ? "middle" : "end"}">${exposed}</text>` : html`<text class="pl-fu-fine" x="${round(tailX - 6)}" y="${Y.back - 9}" text-anchor="end">nothing exposed</text>`}</g>
    <g data-key="adds">${inner.map(tick)}</g><g data-key="cuts">${cuts.map(cut)}</g>
    <g data-key="axis"><path class="pl-fu-axis" d="M${g.left} ${Y.axis}H${round(g.right)}"/>${axis.found.map(([t, text]) => html`<g class="pl-fu-tick"><path d="M${round(g.x(g.begin + t))} ${Y.axis}v4"/><text x="${round(Math.min(g.x(g.begin + t), g.right - String(text).length * 3.5))}" y="${Y.axis + 15}">${text}</text></g>`)}
    <text class="pl-fu-unit" x="0" y="${Y.axis + 15}">${axis.unit} of backward</text></g>
  </svg><figcaption class="pl-fu-key"><span>A colour and a number are a message.</span><span><svg width="22" height="11" aria-hidden="true"><rect class="pl-block pl-hue-0" width="22" height="11"/><rect width="22" height="11" fill="url(#${ui.id}-bare)"/></svg>exposed: backward is over, the rank only waits</span><span><svg width="22" height="11" aria-hidden="true"><path class="pl-fu-wait" d="M0 6H22"/></svg>ready: being packed, or the line is busy</span>${ui.live ? html`<span>Drag a cut, or move it with the arrow keys; Delete removes it, and a click between gradients adds one.</span>` : ""}</figcaption></figure>`;
}

// ---- around it ----

function top(s, ui) {
  const spaced = { text: (c) => c.replaceAll("_", " ") };
  return head(s, html`${choice("subject", "gradients of", s.subject, "set_subject", ui)}
    ${segments("d", "devices", s.devices, "set_devices", ui, { name: (n) => plural(n, "device") })}
    ${choice("parallel", "parallel mode", s.parallel_mode, "set_parallel_mode", ui, spaced)}
    ${s.line.per === "hop" ? choice("cluster", "profile", s.cluster, "set_cluster", ui) : ""}`);
}

function controls(s, ui) {
  const config = ["size", "index", "ids"].includes(s.mode.value);
  const label = { size: "MB", index: "positions", ids: "ids" }[s.mode.value];
  const several = s.lanes.boxes.length > s.cuts.length + 1;
  const wordings = { inclusive: "ends a message", first_n: "counts what comes before" };
  return html`<div class="pl-fu-controls">
    ${segments("m", "fusion", s.mode, "set_mode", ui, { text: (c) => c.value, title: (c) => c.label })}
    ${config ? html`<span class="pl-fu-config">${typed(`config-${s.mode.value}`, label, s.config.text, ui)}</span>` : ""}
    ${s.mode.value === "index" ? choice("wording", "an index", s.wording, "set_wording", ui, { text: (c) => wordings[c] }) : ""}
    <span class="pl-fu-buttons"><button type="button" data-key="split" class="pl-button" data-split="1"
      ${flag("disabled", !ui.live || !several)} title="cut the largest bucket in two">Split</button>
    ${button("show_best", "Show par", ui, { title: "the grouping that an exact search finds" })}</span></div>
    <p class="pl-fu-hint">${s.config.hint}</p>`;
}

function below(s, ui) {
  const card = (row) => {
    const there = row.step_s !== null, chosen = row.source === s.source, can = there && ui.can("show_source", row.source);
    const run = { simulated: ["run_simulated", "Simulate"], measured: ["run_measured", "Measure"] }[row.source];
    return html`<div class="pl-fu-time${chosen ? " pl-on" : ""}" data-key="${row.source}">
      <button type="button" role="radio" class="pl-fu-source" data-key="pick" aria-checked="${chosen}" tabindex="${chosen ? 0 : -1}" data-command="show_source" data-value="${row.source}"${flag("disabled", !can)} title="${SOURCES[row.source]}">${row.source}</button>
      <b class="pl-fu-big">${there ? timeText(row.step_s) : "–"}</b>
      <span class="pl-muted">${there ? `without fusion ${timeText(row.unfused_s)}` : row.note}</span>
      <span class="pl-muted">${there ? `${plural(row.sent, "message")}; ${row.note}` : ""}</span>
      ${run && s.run.can !== undefined && s.times[0].note !== "formula" ? button(...run, ui, { on: s.run.can }) : ""}</div>`;
  };
  const bars = [["nothing set", s.golf.off_s], ["each alone", s.golf.each_s], [`best size, ${s.golf.best_size_mb} MB`, s.golf.best_size_s], ["yours", s.golf.step_s], ["par", s.golf.par_s]];
  const most = Math.max(...bars.map(([, t]) => t)), atPar = s.golf.ratio <= 1 + 1e-9;
  const verdicts = s.equality.map((r) => html`<p class="pl-verdict" data-key="${r.source}">${r.source}: <span class="${r.equal ? "pl-good" : "pl-wrong"}">${r.equal ? "equal bit for bit" : `${r.differs} differs`}</span> with and without fusion, losses and ${plural(r.compared - 1, "parameter")} after ${plural(r.steps, "step")}</p>`);
  return html`<div class="pl-fu-below"><section aria-label="step times"><h3>Step time <small>of the whole step, three ways</small></h3><div class="pl-fu-times" role="radiogroup" aria-label="whose lanes are shown" data-roving="1">${s.times.map(card)}</div>
      ${runLine(s.run, "pl-fu-run", ui)}${verdicts}</section>
    <section aria-label="fusion golf"><h3>Fusion golf <small>${atPar ? html`<b class="pl-good">par</b>` : `${s.golf.ratio.toFixed(3)} × par`}</small></h3><table class="pl-fu-golf"><tbody>${bars.map(([name, t]) => html`<tr class="${name === "yours" ? "pl-on" : ""}"><th scope="row">${name}</th><td class="pl-number">${timeText(t)}</td><td class="pl-fu-bar"><i style="width:${round((100 * t) / most)}%"></i></td></tr>`)}</tbody></table></section></div>`;
}

function details(s, ui) {
  const names = s.lanes.boxes.map((b) => b.name), line = s.line;
  const row = (m) => html`<tr data-key="${m.number}"><td><span class="pl-dot ${hueOf(m.number)}"></span>${m.number}</td><td class="pl-number">${bytesText(m.size_bytes)}</td>${[m.ready_s, m.start_s, m.end_s].map((t) => html`<td class="pl-number">${timeText(t - s.lanes.forward_s)}</td>`)}<td class="pl-number">${timeText(m.hidden_s)}</td><td class="pl-number${m.exposed_s > 0 ? " pl-fu-red" : ""}">${timeText(m.exposed_s)}</td><td class="pl-why">${m.members.map((k) => names[k]).join(", ")}</td></tr>`;
  const field = (name, label, value, unit) => typed(name, label, Number(value.toPrecision(4)), ui, { unit, options: `data-line="${name}" inputmode="decimal"` });
  return html`<section class="pl-messages" aria-label="messages"><h3>Messages <small>${s.source}; times since backward began</small></h3><div class="pl-scroll pl-long"><table><thead><tr><th scope="col">no.</th>${["size", "ready", "starts", "ends", "hidden", "exposed"].map((t) => html`<th scope="col" class="pl-number">${t}</th>`)}<th scope="col">gradients</th></tr></thead><tbody>${s.lanes.messages.map(row)}</tbody></table></div></section>
    <section class="pl-fu-cost" aria-label="cost of a message"><h3>Cost of a message <small>t = α + β m</small></h3><p class="pl-fu-hint">${micro(line.text)}</p>
    <div class="pl-fu-line">${field("alpha", `α of a ${line.per}`, line.given_alpha_s * 1e3, "ms")}${field("beta", `β of a ${line.per}`, line.given_beta_s_per_byte * 1e3 * MB, "ms per MB")}${button("reset_line", "Reset", ui, { on: line.own })}</div></section>
    <section class="pl-fu-export" aria-label="the same in MindSpore"><h3>The same in MindSpore</h3><pre>${s.export}</pre></section>`;
}

// ---- what can be done ----

// The largest bucket in two, where half of its bytes are.
function splitAt(s) {
  const { runs } = brackets(s, s.lanes.boxes.length, null), several = runs.filter((run) => run.to - run.from > 1);
  if (!several.length) return null;
  const run = several.reduce((a, b) => (b.size > a.size ? b : a)), half = run.size / 2;
  let sum = 0, at = run.from;
  while (at < run.to - 1 && sum + s.lanes.boxes[at].size_bytes / 2 < half) { sum += s.lanes.boxes[at].size_bytes; at += 1; }
  return Math.max(run.from + 1, at);
}

function commit(name, text, { snapshot, send, forget }) {
  if (name !== "alpha" && name !== "beta") {
    if (text !== snapshot.config.text) send("set_config", [text]);
    else forget("controls");
    return;
  }
  const line = { alpha: snapshot.line.given_alpha_s, beta: snapshot.line.given_beta_s_per_byte };
  const scale = name === "alpha" ? 1e3 : 1e3 * MB, shown = Number((line[name] * scale).toPrecision(4));
  const given = text.trim() === "" ? NaN : Number(text.trim().replace(",", "."));
  if (!Number.isFinite(given) || given < 0) send("set_line", Object.values({ ...line, [name]: text }));
  else if (given !== shown) send("set_line", Object.values({ ...line, [name]: given / scale }));
  forget("details");
}

function handlers(view) {
  const { root, ui, send } = view, { live } = ui;
  const nearest = (event) => {
    const svg = view.slots.picture.querySelector("svg"), g = geometry(view.snapshot, ui.width);
    const x = event.clientX - svg.getBoundingClientRect().left;
    let best = 1;
    for (let k = 1; k < g.n; k += 1) if (Math.abs(g.place[k] - x) < Math.abs(g.place[best] - x)) best = k;
    return best;
  };
  return {
    pointerdown(event) {
      const node = event.target.closest("[data-cut]");
      if (!node || !live || event.button !== 0) return;
      event.preventDefault();
      node.focus();
      ui.drag = { cut: Number(node.dataset.cut), at: Number(node.dataset.cut) };
      root.setPointerCapture(event.pointerId);
      view.ask();
    },
    pointermove(event) { if (ui.drag) { ui.drag.at = nearest(event); view.ask(); } },
    pointerup() {
      const { drag } = ui;
      ui.drag = null;
      if (!drag) return;
      if (drag.at !== drag.cut) send("move_cut", [drag.cut, drag.at]);
      view.ask();
    },
    pointercancel() { ui.drag = null; view.ask(); },
    click(event) {
      const add = event.target.closest("[data-add]"), at = event.target.closest("[data-split]") && splitAt(view.snapshot);
      if (add && live) send("add_cut", [Number(add.dataset.add)]);
      else if (at && live) send("add_cut", [at]);
      return add || at;
    },
    keydown({ target, key }) {
      const cut = target.closest?.("[data-cut]"), step = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: 1, ArrowDown: -1 }[key];
      if (!cut || !live) return false;
      const at = Number(cut.dataset.cut), to = at + (step ?? 0), { boxes } = view.snapshot.lanes;
      if (step) { if (to > 0 && to < boxes.length && !view.snapshot.cuts.includes(to)) send("move_cut", [at, to]); }
      else if (key === "Delete" || key === "Backspace") send("remove_cut", [at]);
      else return false;
      return true;
    },
  };
}

const { render, mountPage } = lab({
  classes: ["pl-fu"],
  parts: { head: top, controls, picture, below, details },
  measure(ui, root) { ui.width = Math.max(480, Math.floor(root.clientWidth || 940) - 8); },
  numbers: ["set_devices"],
  commit,
  handlers,
  alone: { show_source: (s, [source], base) => ({ source, lanes: base.lanes_of[source] }) },
  possible: (s, command, source) => source in s.lanes_of,
});

export { mountPage };
export default { render };
