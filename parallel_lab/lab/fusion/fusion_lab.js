// The Fusion Lab: backward above, messages below, between them the brackets; a cut between two brackets can be dragged.
// Colour = message (its number is printed too). What all labs share is in page.js and sections.js.

// pixels: margin, lane names, blocks of forward and update, least distance of cuts
const PAD = 2, LABEL = 104, SIDE = 72, GAP = 13;
const Y = { back: 24, backH: 34, mark: 64, markH: 26, line: 112, lineH: 34, tried: 154, triedH: 9, axis: 170, height: 196 };
const SOURCES = {
  predicted: "formula, nothing runs",
  simulated: "this machine's numpy, messages from the profile",
  measured: "worker processes",
};
const MB = 1024 * 1024;
const SHORT = { ".weight": ".w", ".bias": ".b", ".gamma": ".γ", ".beta": ".β" };

const lanesOf = (s) => forChoices(s.sections.lanes, s).lanes;
const hueOf = (number) => hue(number - 1);
const nameOf = (name) => name.replace(/\.(weight|bias|gamma|beta)$/, (m) => SHORT[m]).replace(/^layers\./, "");
const fits = (text, width, size = 6.6) => text.length * size + 6 <= width;
CELLS.hue = (number) => html`<span class="pl-dot ${hueOf(number)}"></span>${number}`;

// ---- where things lie ----

function geometry(s, width) {
  const lanes = lanesOf(s), n = lanes.boxes.length, last = lanes.messages.at(-1)?.end_s ?? 0;
  const begin = lanes.forward_s, ended = Math.max(lanes.backward_s, last), rest = Math.max(0, lanes.step_s - ended);
  const end = Math.max(ended, s.past || s.source.value === "predicted" ? begin + s.axis_s : 0); // the same for every try
  const left = LABEL + (begin > 0 ? SIDE : 0), right = width - PAD - (rest > 1e-9 ? SIDE : 0);
  const x = (t) => left + ((t - begin) / (end - begin || 1)) * (right - left);
  // borders of the brackets: where the gradients end, but never closer than a cut is wide
  const place = [left, ...lanes.boxes.map((b) => x(b.end_s))];
  for (let k = 1; k <= n; k += 1) place[k] = Math.max(place[k], place[k - 1] + GAP);
  if (place[n] > right) for (let k = n, most = right; k > 0 && place[k] > most; k -= 1, most -= GAP) place[k] = most;
  return { n, begin, end, ended, rest, left, right, x, place, unit: unitOfSizes(lanes.boxes) };
}

// The unit that all sizes in the boxes are given in: that of the largest.
function unitOfSizes(boxes) {
  const [, name] = bytesText(Math.max(0, ...boxes.map((b) => b.size_bytes))).split(" ");
  const scale = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].indexOf(name);
  return { name, text: (n) => String(Number((n / scale).toPrecision(3))) };
}

// The number of its message, per gradient.
function numbersOf(lanes) {
  const number = new Array(lanes.boxes.length).fill(1);
  for (const m of lanes.messages) for (const at of m.members) number[at] = m.number;
  return number;
}

// The brackets: runs of neighbours that travel together. While a cut is dragged, as they would be.
function brackets(s, drag) {
  const { boxes } = lanesOf(s), number = numbersOf(lanesOf(s));
  const moved = drag ? [...new Set(s.cuts.map((c) => (c === drag.cut ? drag.at : c)))].sort((a, b) => a - b) : s.cuts;
  const runs = [0, ...moved].map((from, i) => {
    const to = moved[i] ?? boxes.length, size = boxes.slice(from, to).reduce((sum, b) => sum + b.size_bytes, 0);
    return { from, to, size, number: drag ? i + 1 : number[from] };
  });
  return { cuts: moved, runs };
}

function ticks(span) {
  const [scale, unit] = span < 1e-3 ? [1e-6, "µs"] : span < 1 ? [1e-3, "ms"] : [1, "s"];
  return { found: roundTicks(0, span / scale, 8).map((t) => [t * scale, t]), unit };
}

// ---- the picture: each mark is a function of what it marks and of `g`, the geometry ----

const middle = (lane, height) => Y[lane] + Y[height] / 2;

// The blocks of forward and of the update, next to the lanes.
function sideBlock(name, x, time) {
  const cx = round(x + SIDE / 2 - 2);
  return html`<g class="pl-fu-side">
    <rect x="${round(x)}" y="${Y.back}" width="${SIDE - 4}" height="${Y.backH}"/>
    <text x="${cx}" y="${Y.back + 12}">${name}</text><text x="${cx}" y="${Y.back + 26}">${timeText(time)}</text></g>`;
}

// What backward computes for one gradient.
function boxMark(b, k, number, g) {
  const from = g.x(b.start_s), w = Math.max(0.5, g.x(b.end_s) - from - 1), cx = round(from + w / 2);
  const label = fits(nameOf(b.name), w) ? nameOf(b.name) : "", size = bytesText(b.size_bytes);
  // the size always, where only a number has room in the unit that stands before the lane
  const shown = fits(size, w, 5.9) ? size : g.unit.text(b.size_bytes);
  const room = w >= shown.length * 5.4;
  const sizeText = html`<text class="pl-fu-small" x="${cx}" y="${Y.back + (label ? 26 : 18)}">${shown}</text>`;
  const text = html`${label ? html`<text x="${cx}" y="${Y.back + (room ? 12 : 17)}">${label}</text>` : ""}`;
  return html`<g class="pl-fu-box ${hueOf(number)}" data-key="b${k}">
    <title>${`${b.name}, ${size}: computed until ${timeText(b.end_s - g.begin)}`}</title>
    <rect x="${round(from)}" y="${Y.back}" width="${round(w)}" height="${Y.backH}"/>
    ${text}${room ? sizeText : ""}</g>`;
}

// From the end of a gradient to its border between brackets, where the two are apart.
function leadMark(k, boxes, g) {
  const x = g.x(boxes[k - 1].end_s);
  if (Math.abs(g.place[k] - x) <= 1) return "";
  return html`<path class="pl-fu-lead" d="M${round(x)} ${Y.back + Y.backH}L${round(g.place[k])} ${Y.mark}"/>`;
}

function bracketMark(run, g) {
  const from = g.place[run.from] + 1, w = Math.max(2, g.place[run.to] - 1 - from), count = run.to - run.from;
  const long = `${run.number}: ${plural(count, "gradient")}, ${bytesText(run.size)}`;
  const texts = [long, `${run.number}: ${bytesText(run.size)}`], last = String(run.number);
  const text = texts.find((t) => fits(t, w - 8, 6.2)) ?? (w >= 7 * last.length ? last : "");
  const line = `v${Y.markH - 6}q0 6 6 6h${round(Math.max(0, w - 12))}q6 0 6 -6v-${Y.markH - 6}z`;
  return html`<g class="pl-fu-bracket ${hueOf(run.number)}" data-key="k${run.from}"><title>${`message ${long}`}</title>
    <path d="M${round(from)} ${Y.mark}${line}"/>
    <text x="${round(from + w / 2)}" y="${middle("mark", "markH") + 1}">${text}</text></g>`;
}

// From the brackets of a message to its place in the lane below.
function ribbonMark(m, runs, g) {
  const a = round(g.x(m.start_s)), b = round(Math.max(g.x(m.start_s) + 1, g.x(m.end_s))), top = Y.mark + Y.markH;
  const one = (run) => html`<path class="pl-fu-ribbon ${hueOf(m.number)}" data-key="r${run.from}"
    d="M${round(g.place[run.from] + 4)} ${top}L${round(g.place[run.to] - 4)} ${top}L${b} ${Y.line}L${a} ${Y.line}z"/>`;
  return runs.filter((run) => run.number === m.number).map(one);
}

const EDGE = 5; // pixels of a message's lower edge that say how much of it is exposed

function messageMark(m, tailX, g) {
  const from = g.x(m.start_s), to = Math.max(from + 2, g.x(m.end_s)), w = to - from - 1, cx = from + w / 2;
  const ready = g.x(m.ready_s), size = bytesText(m.size_bytes), bare = Math.max(from, tailX);
  const texts = [`${m.number}: ${size}, ${timeText(m.end_s - m.start_s)}`, `${m.number}: ${size}`, String(m.number)];
  const text = texts.find((t) => fits(t, w)) ?? "", at = (t) => timeText(t - g.begin);
  const about = [
    `message ${m.number}, ${size}: ready ${at(m.ready_s)}`, `travels ${at(m.start_s)} to ${at(m.end_s)}`,
    `${timeText(m.hidden_s)} hidden`, `${timeText(m.exposed_s)} exposed`,
  ];
  const wait = html`<path class="pl-fu-wait" d="M${round(ready)} ${Y.line + Y.lineH + 5}H${round(from)}"/>`;
  const edge = html`<rect class="pl-fu-bare" x="${round(bare)}" y="${Y.line + Y.lineH - EDGE}"
    width="${round(Math.max(1, to - bare - 1))}" height="${EDGE}"/>`;
  return html`<g class="pl-fu-message ${hueOf(m.number)}" data-key="m${m.number}"><title>${about.join(", ")}</title>
    ${from - ready > 3 ? wait : ""}
    <rect x="${round(from)}" y="${Y.line}" width="${round(w)}" height="${Y.lineH}"/>
    ${m.exposed_s > 0 && to > bare ? edge : ""}
    <text x="${round(cx)}" y="${middle("line", "lineH") + 1}">${text}</text></g>`;
}

// The messages of the grouping before this one, pale: what the last change did.
function triedMarks(s, g) {
  if (!s.tried || s.source.value !== "predicted") return "";
  const one = (m) => html`<rect class="pl-fu-tried ${hueOf(m.number)}" x="${round(g.x(m.start_s))}" y="${Y.tried}"
    width="${round(Math.max(2, g.x(m.end_s) - g.x(m.start_s) - 1))}" height="${Y.triedH}"/>`;
  return html`<text class="pl-fu-unit" x="0" y="${Y.tried + 8}">before: ${timeText(s.tried.step_s)}</text>
    <g><title>the grouping before: a step of ${timeText(s.tried.step_s)}</title>${s.tried.messages.map(one)}</g>`;
}

function cutMark(k, i, cuts, boxes, g, ui) {
  const at = round(g.place[k]), between = `between ${boxes[k - 1].name} and ${boxes[k].name}`;
  const how = ui.live ? ": drag it or use the arrow keys; Delete or a second click removes it" : "";
  return html`<g class="pl-fu-cut${ui.drag && ui.drag.at === k ? " pl-on" : ""}" data-key="cut${i}" data-cut="${k}"
      ${flag('tabindex="0"', ui.live)} role="slider" aria-label="cut ${i + 1} of ${cuts.length}" aria-valuemin="1"
      aria-valuemax="${g.n - 1}" aria-valuenow="${k}" aria-valuetext="${between}"
      ${flag('aria-disabled="true"', !ui.live)}>
    <title>${`cut ${between}${how}`}</title>
    <rect class="pl-fu-reach" x="${at - 8}" y="${Y.mark - 8}" width="16" height="${Y.markH + 14}"/>
    <rect class="pl-fu-knob" x="${at - 3.5}" y="${Y.mark - 5}" width="7" height="${Y.markH + 10}" rx="3.5"/></g>`;
}

function addMark(k, g) {
  return html`<g class="pl-fu-add" data-key="add${k}" data-add="${k}"><title>cut here</title>
    <rect class="pl-fu-reach" x="${round(g.place[k] - 6)}" y="${Y.mark}" width="12" height="${Y.markH}"/>
    <path d="M${round(g.place[k])} ${Y.mark + 3}v${Y.markH - 6}"/></g>`;
}

function axisMarks(g) {
  const { found, unit } = ticks(g.end - g.begin);
  const one = ([t, text]) => {
    const x = g.x(g.begin + t);
    return html`<g class="pl-fu-tick"><path d="M${round(x)} ${Y.axis}v4"/>
      <text x="${round(Math.min(x, g.right - String(text).length * 3.5))}" y="${Y.axis + 15}">${text}</text></g>`;
  };
  return html`<g data-key="axis"><path class="pl-fu-axis" d="M${g.left} ${Y.axis}H${round(g.right)}"/>${found.map(one)}
    <text class="pl-fu-unit" x="0" y="${Y.axis + 15}">${unit} since start</text></g>`;
}

// Where backward ends, and how much is exposed after it.
function endMark(lanes, g) {
  const x = g.x(lanes.backward_s), end = g.x(g.ended), text = `exposed ${timeText(lanes.exposed_s)}`;
  const roomy = end - x > text.length * 7, at = round(roomy ? (x + end) / 2 : x - 6), y = Y.back - 9;
  const exposed = html`<text class="pl-fu-exposed" x="${at}" y="${y}"
    text-anchor="${roomy ? "middle" : "end"}">${text}</text>`;
  const nothing = html`<text class="pl-fu-fine" x="${round(x - 6)}" y="${y}" text-anchor="end">nothing exposed</text>`;
  return html`<g data-key="end"><path class="pl-fu-end" d="M${round(x)} ${Y.back - 8}V${Y.axis}"/>
    ${lanes.exposed_s > 0 ? exposed : nothing}</g>`;
}

// The moment of a recorded step: in the lanes, or in the blocks before and behind them.
function nowMark(s, g) {
  const at = s.past?.at;
  if (at == null) return "";
  const before = g.begin && at / g.begin, behind = g.rest && (at - g.ended) / g.rest, wide = SIDE - 4;
  const x = at < g.begin ? LABEL + before * wide : at > g.ended ? g.right + 4 + Math.min(1, behind) * wide : g.x(at);
  return html`<path class="pl-cursor" data-key="now" d="M${round(x)} ${Y.back - 12}V${Y.axis}"/>`;
}

function key(ui) {
  const chip = (content) => html`<svg width="22" height="11" aria-hidden="true">${content}</svg>`;
  const bare = html`<rect class="pl-block pl-hue-0" width="22" height="11"/>
    <rect class="pl-fu-bare" y="${11 - EDGE}" width="22" height="${EDGE}"/>`;
  return html`<figcaption class="pl-fu-key"><span>colour and number: a message</span>
    <span>${chip(bare)}exposed: the rank only waits</span>
    <span>${chip(html`<path class="pl-fu-wait" d="M0 6H22"/>`)}packed, or waiting for the link</span>
    ${ui.live ? html`<span title="arrow keys move a cut, Delete or a second click removes it; a click between two gradients adds one">Drag
    cuts, or click to add.</span>` : ""}</figcaption>`;
}

// The picture's parts are groups that always exist, in this order: a group that moves in the document would take the
// focus from the cut in it.
function picture(s, ui) {
  const g = geometry(s, ui.width), lanes = lanesOf(s), { boxes, messages } = lanes;
  const { runs, cuts } = brackets(s, ui.drag);
  const number = numbersOf(lanes), inner = [...Array(Math.max(0, g.n - 1)).keys()].map((k) => k + 1);
  const tailX = g.x(lanes.backward_s), lastX = g.x(boxes.at(-1)?.end_s ?? 0);
  const tail = html`<rect class="pl-fu-tail" x="${round(tailX)}" y="${Y.back - 20}" width="${round(g.x(g.ended) - tailX)}"
    height="${Y.axis - Y.back + 20}"/>`;
  const rest = html`<rect class="pl-fu-rest" x="${round(lastX)}" y="${Y.back}"
    width="${round(Math.max(1, tailX - lastX - 1))}"
    height="${Y.backH}"/>`;
  const name = (text, y) => html`<text class="pl-fu-name" x="0" y="${y}">${text}</text>`;
  const named = Math.min(...g.place) >= 58; // many gradients on a narrow page begin where the name is: brackets say what they are
  const more = lanes.backward_s > (boxes.at(-1)?.end_s ?? 0) + 1e-9;
  return html`<figure class="pl-fu-figure"><svg width="${ui.width}" height="${Y.height}"
      viewBox="0 0 ${ui.width} ${Y.height}" role="group"
      aria-label="backward and its messages, ${sourceText(s)}; the table of messages has the same numbers">
    <g data-key="under">${lanes.exposed_s > 0 ? tail : ""}${name("backward", middle("back", "backH"))}
      ${named ? name("buckets", middle("mark", "markH")) : ""}${name("messages", middle("line", "lineH"))}
      <text class="pl-fu-unit" x="0" y="${middle("back", "backH") + 13}">sizes in ${g.unit.name}</text>${triedMarks(s, g)}
      ${g.begin > 0 ? sideBlock("forward", LABEL, g.begin) : ""}
      ${g.rest > 1e-9 ? sideBlock("update", g.right + 4, g.rest) : ""}
      <rect class="pl-fu-lane" x="${g.left}" y="${Y.line}" width="${round(g.right - g.left)}" height="${Y.lineH}"/></g>
    <g data-key="ribbons">${messages.map((m) => ribbonMark(m, runs, g))}</g>
    <g data-key="boxes">${boxes.map((b, k) => boxMark(b, k, number[k], g))}</g>
    <g data-key="rest">${more ? rest : ""}${inner.map((k) => leadMark(k, boxes, g))}</g>
    <g data-key="brackets">${runs.map((run) => bracketMark(run, g))}</g>
    <g data-key="messages">${messages.map((m) => messageMark(m, tailX, g))}</g>
    ${endMark(lanes, g)}<g data-key="moment">${nowMark(s, g)}</g>
    <g data-key="adds">${inner.map((k) => (ui.live && !cuts.includes(k) ? addMark(k, g) : ""))}</g>
    <g data-key="cuts">${cuts.map((k, i) => cutMark(k, i, cuts, boxes, g, ui))}</g>${axisMarks(g)}
  </svg>${key(ui)}</figure>`;
}

// ---- around it ----

function top(s, ui) {
  const spaced = { text: (c) => c.replaceAll("_", " ") };
  return head(s, html`${choice("subject", "gradients of", s.subject, "set_subject", ui)}
    ${segments("d", "devices", s.devices, "set_devices", ui, { name: (n) => plural(n, "device") })}
    ${choice("parallel", "parallel mode", s.parallel_mode, "set_parallel_mode", ui, spaced)}
    ${s.line.per === "hop" ? choice("cluster", "profile", s.cluster, "set_cluster", ui) : ""}`, ui);
}

function controls(s, ui) {
  const mode = s.mode.value, label = { size: "MiB", index: "positions", ids: "ids" }[mode];
  const several = lanesOf(s).boxes.length > s.cuts.length + 1;
  const wordings = { inclusive: "ends a message", first_n: "counts what comes before" };
  const wording = () => choice("wording", "an index", s.wording, "set_wording", ui, { text: (c) => wordings[c] });
  const weighed = consequencesOf(s, ui, s.mode, "set_mode"), pointed = ui.preview && weighed.key;
  const roomy = s.config.hint.length * 6.4 + 360 < ui.width; // for the hint and the numbers, in pixels
  return html`<div class="pl-fu-controls">
    ${segments("m", "fusion", s.mode, "set_mode", ui, { text: (c) => c.value, title: (c) => c.label, weighed })}
    ${label ? html`<span class="pl-fu-config">${typed(`config-${mode}`, label, s.config.text, ui)}</span>` : ""}
    ${mode === "index" ? wording() : ""}
    <span class="pl-fu-buttons"><button type="button" data-key="split" class="pl-button" data-split="1"
      ${flag("disabled", !ui.live || !several)} title="cut the largest bucket in two">Split</button>
    ${button("show_best", "Show par", ui, { title: "the grouping that an exact search finds, after a try of your own" })}</span></div>
    <div class="pl-fu-hint"><p>${pointed ? "" : s.config.hint}</p>${pointed || roomy ? weighed.key : ""}</div>`;
}

const RUNS = { simulated: ["run_simulated", "Simulate"], measured: ["run_measured", "Measure"] };

// One step time with its source, to choose whose lanes are shown.
function timeCard([source, step_s, unfused_s, sent, note], s, ui) {
  const known = step_s !== null, on = source === s.source.value, can = known && ui.can("show_source", source);
  const run = RUNS[source] && s.line.per === "hop" ? button(...RUNS[source], ui, { on: s.run.can }) : "";
  return html`<div class="pl-fu-time${on ? " pl-on" : ""}" data-key="${source}">
    <button type="button" role="radio" class="pl-fu-source" data-key="pick" aria-checked="${on}"
      tabindex="${on ? 0 : -1}"
      data-command="show_source" data-value="${source}"${flag("disabled", !can)}
      title="${SOURCES[source]}">${source}</button>
    <b class="pl-fu-big">${known ? timeText(step_s) : "–"}</b>
    <span class="pl-muted">${known ? `unfused ${timeText(unfused_s)}` : note}</span>
    <span class="pl-muted">${known ? `${plural(sent, "message")}; ${note}` : ""}</span>${run}</div>`;
}

function below(s, ui) {
  const cards = html`<div class="pl-fu-times" role="radiogroup" aria-label="whose lanes are shown" data-roving="1">
    ${s.sections.times.rows.map((row) => timeCard(row, s, ui))}</div>`;
  // how a run goes, then what it has proved, stands where nothing has to move for it
  const { title, notes = [] } = s.sections.times, going = s.run.state === "running", told = notes.at(-1);
  const said = going || !told ? runWords(s.run) : verdictText([told[0].split(" (")[0], told[1]]);
  const stop = going ? button("stop", "Stop", ui, { title: "end it after the present step" }) : "";
  return html`<div class="pl-fu-below"><section class="pl-section pl-section-times" aria-label="${title}">
    <h3>${title} <small class="pl-verdict" role="status" title="${notes.map(([text]) => text).join("\n")}">${said}${going ? runBar(s.run) : ""}</small>${stop}</h3>${cards}</section>
    ${section(s, "golf", ui)}</div>`;
}

function cost(s, ui) {
  const { per, own } = s.line, options = (name) => `data-line="${name}" inputmode="decimal"`;
  const field = (name, label, value, unit) => typed(name, label, Number(value.toPrecision(4)), ui, {
    unit, options: options(name),
  });
  return section(s, "cost", ui, { below: html`<div class="pl-fu-line">
    ${field("alpha", `α of a ${per}`, s.line.alpha_s * 1e3, "ms")}
    ${field("beta", `β of a ${per}`, s.line.beta_s_per_byte * 1e3 * MB, "ms per MiB")}
    ${button("reset_line", "Reset", ui, { on: own })}</div>` });
}

function tables(s, ui) {
  return tabs(ui, {
    ...sectionTabs(s, ui, [["messages", "Messages"]]),
    cost: ["Cost of a message", null, () => cost(s, ui)],
    ...earlierTab(s, ui),
    ...sectionTabs(s, ui, [["recorded", "Recorded run"]], false),
    ...codeTabs(s, ui),
  });
}

// Where a network can run, its recorded run has a line.
const run = (s, ui) => (s.line.per === "hop" ? scrubBar(s, ui, { ranks: true }) : html``);

// ---- what can be done ----

// The largest bucket in two, where half of its bytes are.
function splitAt(s) {
  const { boxes } = lanesOf(s), several = brackets(s, null).runs.filter((run) => run.to - run.from > 1);
  if (!several.length) return null;
  const run = several.reduce((a, b) => (b.size > a.size ? b : a)), half = run.size / 2;
  let sum = 0, at = run.from;
  while (at < run.to - 1 && sum + boxes[at].size_bytes / 2 < half) { sum += boxes[at].size_bytes; at += 1; }
  return Math.max(run.from + 1, at);
}

function commit(name, text, { snapshot, send, forget }) {
  if (name !== "alpha" && name !== "beta") {
    if (text !== snapshot.config.text) send("set_config", [text]);
    else forget("controls");
    return;
  }
  const line = { alpha: snapshot.line.alpha_s, beta: snapshot.line.beta_s_per_byte };
  const scale = name === "alpha" ? 1e3 : 1e3 * MB, shown = Number((line[name] * scale).toPrecision(4));
  const time = numberOf(text);
  if (typeof time !== "number" || time < 0) send("set_line", Object.values({ ...line, [name]: text }));
  else if (time !== shown) send("set_line", Object.values({ ...line, [name]: time / scale }));
  forget("tables");
}

function handlers(view) {
  const { root, ui, send } = view, { live } = ui;
  const nearest = (event) => {
    const svg = view.slots.picture.querySelector("svg"), g = geometry(view.snapshot, ui.width);
    const { x } = pointIn(svg, event);
    let best = 1;
    for (let k = 1; k < g.n; k += 1) if (Math.abs(g.place[k] - x) < Math.abs(g.place[best] - x)) best = k;
    return best;
  };
  return {
    pointerdown(event) {
      const node = event.target.closest("[data-cut]");
      if (!node || !live || event.button !== 0) return;
      event.preventDefault();
      const chosen = node.matches(":focus"); // by the click before
      node.focus();
      ui.drag = { cut: Number(node.dataset.cut), at: Number(node.dataset.cut), chosen };
      root.setPointerCapture(event.pointerId);
      view.ask();
    },
    pointermove(event) { if (ui.drag) { ui.drag.at = nearest(event); view.ask(); } },
    pointerup() {
      const { drag } = ui;
      ui.drag = null;
      if (!drag) return;
      if (drag.at !== drag.cut) send("move_cut", [drag.cut, drag.at]);
      else if (drag.chosen) send("remove_cut", [drag.cut]); // a second click: no drag is needed to move a cut
      view.ask();
    },
    pointercancel() { ui.drag = null; view.ask(); },
    click(event) {
      const add = event.target.closest("[data-add]");
      const at = event.target.closest("[data-split]") && splitAt(view.snapshot);
      if (add && live) send("add_cut", [Number(add.dataset.add)]);
      else if (at && live) send("add_cut", [at]);
      return add || at;
    },
    keydown({ target, key }) {
      const cut = target.closest?.("[data-cut]");
      if (!cut || !live) return false;
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: 1, ArrowDown: -1 }[key], { cuts } = view.snapshot;
      const at = Number(cut.dataset.cut), to = at + (step ?? 0), free = !cuts.includes(to);
      if (step) { if (to > 0 && to < lanesOf(view.snapshot).boxes.length && free) send("move_cut", [at, to]); }
      else if (key === "Delete" || key === "Backspace") send("remove_cut", [at]);
      else return false;
      return true;
    },
  };
}

const { render, mountPage } = lab({
  classes: ["pl-fu"],
  story: STORY,
  parts: { ...inPast(fusionPast, { head: top }), controls, ...inPast(fusionPast, { picture }), run, ...inPast(fusionPast, { below }), tables },
  previews: ["status", "sections", "cuts", "tried", "source"],
  numbers: ["set_devices"],
  commit,
  handlers: (view) => withScrub(view, withPaste(view, handlers(view))),
});
