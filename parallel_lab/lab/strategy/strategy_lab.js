// The Strategy Lab: a card per rank, the selected rank, messages, timeline. What all labs share is in page.js, the loss
// curve in loss.js, the graph above the picture in graph.js, the operators in operators.js, how slices are drawn in
// pictures/slices.js.
//
// Colour = slice (which part of the data), position = rank. Hatching and a sigma = the value is only a partial sum.

const KIND_OF_MEMORY = ["params", "grads", "optimizer", "activations"];

// ---- sections ----

function header(s, ui) {
  const { run } = s;
  const paused = run.state === "paused";
  const done = run.steps ? Math.min(1, run.step / run.steps) : 0;
  const run_button = (command, text, on, kind = "") => button(command, text, ui, { on, kind, key: text });
  return html`<div class="pl-head pl-st-head">
    <h2 class="pl-title">${s.title}</h2>
    ${choice("net", "net", s.net, "set_net", ui)}
    ${segments("d", "devices", s.devices, "set_devices", ui, { name: (n) => plural(n, "device") })}
    ${s.simple ? "" : html`${choice("data", "data", s.data, "set_data", ui)}${predictSwitch(s, ui)}`}
    <span class="pl-run" role="group" aria-label="training run">
      ${run_button("run", "Run", run.can.run, "pl-primary")}
      ${run_button(paused ? "resume" : "pause", paused ? "Resume" : "Pause", run.can.pause)}
      ${run_button("stop", "Stop", run.can.stop)}
      ${run_button("reset", "Reset", run.can.reset)}
      ${choice("speed", "speed", s.speed, "set_speed", ui)}
      ${typed("steps", "steps", s.steps, ui, { options: 'inputmode="numeric" size="5"' })}
      ${scrubber(s, ui, html`<span class="pl-progress" role="progressbar" aria-label="training steps" aria-valuemin="0"
        aria-valuemax="${run.steps}" aria-valuenow="${run.step}" aria-valuetext="${run.text}">
        <span class="pl-bar"><span class="pl-fill pl-${run.state}" style="width:${round(done * 100)}%"></span></span>
        <span class="pl-progress-text">${run.text}</span></span>`)}${whereDiffers(s, ui)}
    </span>
  </div>`;
}

const layerOf = (s) => s.tensors.find((t) => t.id === s.tensor)?.layer ?? "";

const sigma = html`<i class="pl-sigma">Σ</i>`;

function wholeTensor(s, ui, dims) {
  const { shape, partial } = s.picture, room = frame(shape, dims, 52), slices = byOne(s.cards);
  const [down, across] = dims.slice(0, 2).map((d) => (d === null ? "" : String(shape[d])));
  const [w, h] = [round(room.w + 26), round(room.h + 22)];
  const mark = (c) => html`<g data-key="${c.slice}">
    ${blockMark(blockBox(c, dims, room), c.slice, { partial, id: ui.id })}</g>`;
  return html`<svg class="pl-whole" viewBox="-22 -18 ${w} ${h}" width="${w}" height="${h}" role="img"
      aria-label="the whole tensor, ${shapeText(shape)}, in ${plural(slices.length, "slice")}">
    <text class="pl-size" x="${round(room.w / 2)}" y="-8">${dims[3] > 1 ? `${dims[3]} × ${across}` : across}</text>
    <text class="pl-size" transform="translate(-9 ${round(room.h / 2)}) rotate(-90)">${down}</text>
    ${slices.map(mark)}${outline(room)}</svg>`;
}

// A card in words.
function cardName(s, c) {
  const where = coordinateText(s, c), copies = replicasOf(s.cards, c), several = copies.length > 1 ? "ranks" : "rank";
  return [
    `rank ${c.rank}${where ? `, at ${where}` : ""}: holds ${c.text}, slice ${c.slice}`,
    c.addend ? `, partial sum ${c.addend} of ${c.addends}` : "",
    copies.length ? `, same data as ${several} ${copies.join(", ")}` : ", no replica",
    ...(c.strips ?? []).map((t) => `; ${t.text} of it from rank ${t.rank}`),
  ].join("");
}

function card(s, ui, c, dims, side, ring) {
  const { shape, partial } = s.picture, room = frame(shape, dims, side), selected = c.rank === s.rank;
  const copies = replicasOf(s.cards, c), strips = c.strips ?? [];
  const cut = (k) => html`<rect class="pl-cut" data-key="c${k.slice}" ${rectOf(blockBox(k, dims, room))}/>`;
  const sum = c.addend ? html`${sigma} ${c.addend} of ${c.addends}`
    : strips.length ? html`with ${strips.map((t) => t.rank).join(", ")}`
    : copies.length ? html`${copies.length + 1} copies` : html`only copy`;
  return html`<button type="button" class="pl-card${selected ? " pl-selected" : ""}${ring ? ` pl-${ring}` : ""}"
      role="radio" aria-checked="${selected}" tabindex="${selected ? 0 : -1}" data-key="r${c.rank}"
      data-command="select_rank" data-value="${c.rank}" data-slice="${c.slice}"
      title="${coordinateText(s, c)}"${disabledUnless(ui, "select_rank", c.rank)}><span class="pl-hidden">${cardName(s, c)}</span>
    <span class="pl-card-head" aria-hidden="true"><b>${c.rank}</b><span class="pl-card-sum${c.past ? " pl-does" : ""}">${
      c.past?.differs ? "✗ " : ""}${c.past?.does ? shortened(c.past.does, c.past.differs ? 7 : 10) : sum}</span></span>
    ${cardPicture(room, html`${byOne(s.cards).map(cut)}
      <g data-key="own">${blockMark(blockBox(c, dims, room), c.slice, { partial, id: ui.id })}</g>
      ${stripMarks(c, dims, room)}`)}
    <span class="pl-card-text" aria-hidden="true">${c.past?.text ?? c.text}</span>
  </button>`;
}

// The tensors of a long network stand under their layers.
function tensorOptions(s, ui) {
  const option = (t) => html`<option value="${t.id}" data-key="${t.id}"${flag("selected", t.id === s.tensor)}
    ${flag("disabled", !ui.can("select_tensor", t.id))} title="${t.label}">${t.layer ? shortLabel(s, t.label, t.layer)
    : t.label}</option>`;
  const group = (layer) => {
    const own = s.tensors.filter((t) => (t.layer ?? "") === layer).map(option);
    return layer ? html`<optgroup label="${layer}" data-key="g${layer}">${own}</optgroup>` : own;
  };
  return [...new Set(s.tensors.map((t) => t.layer ?? ""))].map(group);
}

// Device matrix, and which dims are drawn where the tensor has more than two.
function leadText(s, dims) {
  const p = s.picture, dimName = (d) => p.dim_names?.[d] ?? `dim ${d}`;
  const short = (d) => dimName(d).match(/\((.+)\)$/)?.[1] ?? dimName(d);
  const axis = (n, i) => [p.axis_names[i] ?? `axis ${i}`, n];
  const text = (axes) => axes.map(([name, n]) => `${name}${/\d$/.test(name) ? " =" : ""} ${n}`).join(" × ");
  const all = p.device_matrix.map(axis), axes = text(all).length > 40 ? text(all.filter(([, n]) => n > 1)) : text(all);
  const panels = dims[2] === null ? "" : `, ${dimName(dims[2])} in panels`;
  const drawn = html`<p class="pl-lead-fact" title="drawn: ${dimName(dims[0])} down, ${dimName(dims[1])} across${panels}">drawn:
    ${short(dims[0])} down, ${short(dims[1])} across${dims[2] === null ? "" : `, ${short(dims[2])} in panels`}</p>`;
  return html`<p class="pl-lead-fact" title="${text(all)}: the ranks as a matrix; its axes are named by the dims of the operator that
    gave the tensor this layout">device matrix ${axes}</p>${p.shape.length > 2 ? drawn : ""}${p.types?.length
    ? html`<p class="pl-lead-fact" title="along ${p.types.map(([name]) => name).join(", ")}">type ${typesOf(p.types)}</p>` : ""}`;
}

const COLUMNS = 4; // always four to a row: a rank keeps its place when the strategy changes

function picture(s, ui) {
  const dims = plane(s.picture), mine = s.cards.find((c) => c.rank === s.rank) ?? s.cards[0];
  const long = s.cards.some((c) => c.text.length > 14); // two lines below the picture
  const side = Math.max(26, Math.min(s.cards.length > COLUMNS ? (long ? 26 : 40) : 86, ui.centre / COLUMNS - 40));
  const team = addendsOf(s.cards, mine), copies = replicasOf(s.cards, mine);
  const ring = (rank) => (rank === s.rank ? "" : team.includes(rank) ? "team" : copies.includes(rank) ? "copy" : "");
  const phase = (name) => html`<option value="${name}" data-key="${name}"${flag("selected", name === s.phase)}
    ${disabledUnless(ui, "select_phase", name)}>${name}</option>`;
  return html`<div role="group" class="pl-panel pl-picture" aria-label="slices of the selected tensor">
    <div class="pl-pick"><label class="pl-field"><span>tensor</span>
        <select data-key="tensor" data-command="select_tensor"
          ${disabledUnless(ui, "select_tensor")}>${tensorOptions(s, ui)}</select></label>
      <label class="pl-field"><span class="pl-hidden">phase</span>
        <select data-key="phase" data-command="select_phase"
          ${disabledUnless(ui, "select_phase")}>${s.phases.map(phase)}</select></label></div>
    <div class="pl-cards" role="radiogroup" aria-label="ranks, in device-matrix order" data-roving="${COLUMNS}"
      style="--columns:${COLUMNS}">${s.cards.map((c) => card(s, ui, c, dims, side, ring(c.rank)))}</div>
  </div>`;
}

function key(s, ui) {
  const rect = (look, x, y, w, h) => html`<rect class="${look}" x="${x}" y="${y}" width="${w}" height="${h}"/>`;
  const chip = (inner) => html`<svg width="22" height="14" viewBox="0 0 22 14" aria-hidden="true">${inner}</svg>`;
  const row = (inner, text) => html`<dt>${chip(inner)}</dt><dd>${text}</dd>`;
  const hatch = html`<rect x=".5" y=".5" width="21" height="13" fill="url(#${ui.id}-hatch)"/>`;
  const strips = [
    rect("pl-block pl-hue-0", 0.5, 3, 21, 8), rect("pl-strip pl-hue-1", 0.5, 0.5, 21, 3),
    rect("pl-strip pl-hue-2", 0.5, 10.5, 21, 3),
  ];
  const halves = [rect("pl-block pl-hue-0", 0.5, 0.5, 10.5, 13), rect("pl-block pl-hue-1", 11, 0.5, 10.5, 13)];
  const layered = html`<dt><b>→1</b></dt><dd>messages of a layer, → forward and ← backward; under its name the
    slices per dim of its result</dd>`;
  const { label, note } = s.picture;
  return html`<p class="pl-key-title">${note ? `${label}: ${note}.` : ""}</p><dl class="pl-key">
    ${row(halves, "colour and number: which slice of the data")}
    ${row([rect("pl-block pl-hue-0", 0.5, 0.5, 21, 13), hatch],
      html`hatched ${sigma}: a partial sum, the others are still to be added`)}
    ${coordinateText(s, s.cards[0]) ? html`<dt><b>${coordinateText(s, s.cards.at(-1)).split(" ")[0]}</b></dt><dd>a rank's
      place along an axis of the device matrix, from 0; axes are named by the dims of the operator</dd>` : ""}
    ${s.picture.halo?.length ? row(strips, "strips in other colours: read from the neighbours (halo)") : ""}
    <dt>${typeOf("P")}</dt><dd>type along each axis: R replicated, S varying, P a pending sum; after ∂ that of its
      gradient</dd>
    <dt><i class="pl-ring pl-team"></i></dt><dd>adds up with rank ${s.rank}</dd>
    <dt><i class="pl-ring pl-copy"></i></dt><dd>holds the same data as rank ${s.rank}</dd>
    ${s.graph.layers ? layered : ""}</dl>`;
}

// The tensor that is looked at, what the selected rank has of it, and how full that rank is.
function rankDetail(s, ui) {
  const mine = s.cards.find((c) => c.rank === s.rank), d = s.rank_detail, dims = plane(s.picture);
  if (!mine) return html`<div role="group" class="pl-panel pl-rank" aria-label="selected rank"></div>`;
  const team = addendsOf(s.cards, mine), copies = replicasOf(s.cards, mine);
  const value = mine.addend ? html`${sigma} partial sum ${mine.addend} of ${mine.addends}` : "complete values";
  const sum = team.length > 1 ? html`<p>adds up with ${team.filter((r) => r !== s.rank).join(", ")}</p>` : "";
  return html`<div role="group" class="pl-panel pl-rank" aria-label="rank ${s.rank}">
    <div class="pl-lead">${wholeTensor(s, ui, dims)}<div>${leadText(s, dims)}</div></div>
    <h3>Rank <b class="pl-big">${s.rank}</b> of ${s.cards.length} <small
      title="its place along each axis of the device matrix, from 0">${placeText(s, mine)}</small></h3>
    <p class="pl-now"><i class="pl-dot ${hue(mine.slice)}"></i><code
      class="${mine.text.length > 22 ? "pl-wrap" : ""}">${mine.text}</code> ${value}</p>${sum}
    <p>${copies.length ? html`replicas: ${copies.join(", ")}` : "replicas: none"}</p>
    ${d ? memoryBar(s, d) : ""}
  </div>`;
}

const placeText = (s, card) => {
  const at = coordinateText(s, card);
  return at ? `at ${at}` : "";
};

function groupsOf(s, d) {
  const chip = (r) => html`<span class="${r === s.rank ? "pl-me" : ""}">${r}</span>`;
  const group = (g) => html`<dt>${g.label}</dt><dd><span class="pl-ranks">${g.ranks.map(chip)}</span>
    <span class="pl-muted">${breakable(g.use)}</span></dd>`;
  return html`<h4>Groups</h4>${d.groups.length ? html`<dl class="pl-groups">${d.groups.map(group)}</dl>`
    : html`<p class="pl-muted">in no group</p>`}`;
}

// What the rank holds; of a long network, what belongs to the layer one looks at.
function holdsOf(s, d) {
  const current = s.tensors.find((t) => t.id === s.tensor)?.label, layer = layerOf(s);
  const layered = Boolean(s.graph.layers);
  const home = Object.fromEntries(s.tensors.map((t) => [t.label, t.layer ?? ""]));
  const holds = d.holds.filter((h) => !layered || home[h.tensor] === layer);
  const row = (h) => html`<tr class="${h.tensor === current ? "pl-on" : ""}">
    <th scope="row">${breakable(layer ? shortLabel(s, h.tensor, layer) : h.tensor)}</th>
    <td><code class="${h.text.length > 14 ? "pl-wrap" : ""}">${h.text}</code>
      ${h.note ? html`<span class="pl-note">${h.note}</span>` : ""}</td>
    <td class="pl-number">${bytesText(h.bytes)}</td></tr>`;
  const part = html` <small>${layer ? `in ${layer}` : "of the data"}: ${holds.length} of
    ${plural(d.holds.length, "tensor")}</small>`;
  return html`<h4>Holds${layered ? part : ""}</h4><table class="pl-holds"><tbody>${holds.map(row)}</tbody></table>`;
}

const place = (m) => KIND_OF_MEMORY.indexOf(m.kind);
const byKind = ({ memory }) => [...memory].sort((a, b) => place(a) - place(b));

function memoryBar(s, d) {
  const now = KIND_OF_MEMORY.map((kind) => ({ kind, bytes: s.moment?.held[kind] ?? 0 }));
  const all = now.reduce((sum, one) => sum + one.bytes, 0); // at a moment of a recorded run
  if (all) return memoryBars(s, now, ` ${bytesText(all)}`, Math.max(0, d.memory_total - all));
  return memoryBars(s, byKind(d), `, ≤ ${bytesText(d.memory_total)}`, 0);
}

function memoryBars(s, kinds, total, free) {
  const said = kinds.map((m) => `${m.kind} ${bytesText(m.bytes)}`).join(", ");
  const bar = (m) => html`<span class="pl-mem pl-mem-${m.kind}" style="flex-grow:${m.bytes}"></span>`;
  return html`<h4>Memory <small>predicted${total}</small></h4>
    <div class="pl-memory" role="img" title="${said}"
      aria-label="memory of rank ${s.rank}, predicted: ${said}">${kinds.map(bar)}<i style="flex-grow:${free}"></i></div>`;
}

function memoryKey(s, d) {
  const line = (m) => html`<li><i class="pl-mem-${m.kind}"></i>${m.kind}<span>${bytesText(m.bytes)}</span></li>`;
  return html`<h4>Memory <small>predicted, ≤ ${bytesText(d.memory_total)}</small></h4>
    <ul class="pl-memory-key">${byKind(d).map(line)}</ul>`;
}

function rankTab(s) {
  const d = s.rank_detail;
  if (!d) return html`<p class="pl-muted">Groups and memory of this rank need the running lab.</p>`;
  return html`<div class="pl-rank-tab"><div>${holdsOf(s, d)}</div><div>${groupsOf(s, d)}${memoryKey(s, d)}</div></div>`;
}

const AMOUNTS = [["bytes_predicted", bytesText], ["bytes_counted", bytesText]];
AMOUNTS.push(["time_predicted_s", timeText], ["time_measured_s", timeText]);

// A long group by its first ranks and its size.
function groupText({ group }) {
  if (group.length > 8) return `${group.slice(0, 7).join(" ")} … (${group.length})`;
  return group.length ? group.join(" ") : "none: local";
}

function messages(s, ui) {
  const total = s.message_totals ?? {}, narrow = ui.width <= 920; // then the reason stands below its message
  const amounts = (m) => AMOUNTS.map(([name, text]) => html`<td class="pl-number">${text(m[name])}</td>`);
  const why = (m) => html`${breakable(m.reason)}${m.origin ? html` <span class="pl-origin">${m.origin}</span>` : ""}`;
  const row = (m) => {
    const look = `${m.tensor === s.tensor || m.number === s.moment?.message ? "pl-on" : ""}${m.group.length ? "" : " pl-local"}${pairLook(s, m)}`;
    const long = m.collective.length > 16;
    const below = html`<tr data-key="${m.number}w" class="pl-because ${look}"><td></td>
      <td colspan="8" class="pl-why">${why(m)}</td></tr>`;
    return html`<tr data-key="${m.number}" class="${look}">
      <td>${messageButton(s, m, ui)}</td>
      <td>${m.phase}</td><td class="pl-name">${breakable(m.operator)}</td>
      <td class="${long ? "pl-name" : ""}"><b>${long ? breakable(m.collective) : m.collective}</b></td>
      <td><code>${groupText(m)}</code></td>${amounts(m)}
      ${narrow ? "" : html`<td class="pl-why">${why(m)}</td>`}</tr>${narrow ? below : ""}`;
  };
  const tall = (text, look = "") => html`<th rowspan="2" scope="col" class="${look}">${text}</th>`;
  const pair = (text) => html`<th colspan="2" scope="colgroup" class="pl-pair">${text}</th>`;
  const ran = s.timeline?.source.startsWith("simulated") ? "simulated" : "measured";
  const under = ["predicted", "counted", "predicted", ran];
  const recorded = s.timeline?.source.endsWith("(recorded)") ? `; counted and ${ran}: recorded` : "";
  const waits = total.time_measured_s == null ? "" : `; a ${ran} time includes the wait for the others${recorded}`;
  const small = `${plural(s.messages.length, "row")}, as rank ${s.rank} sees them; bytes and time per rank${waits}`;
  const table = () => html`<div class="pl-scroll${s.messages.length > 14 ? " pl-long" : ""}"><table>
    <thead><tr>${["#", "phase", "operator", "collective", "group"].map((text) => tall(text))}
      ${pair("bytes")}${pair("time")}
      ${narrow ? "" : tall("why it is here", "pl-why")}</tr>
    <tr>${under.map((text) => html`<th scope="col" class="pl-number">${text}</th>`)}</tr></thead>
    <tbody>${s.messages.map(row)}</tbody>
    <tfoot><tr><th colspan="5" scope="row">total of one step</th>${amounts(total)}
      ${narrow ? "" : html`<td></td>`}</tr></tfoot></table></div>`;
  return html`<div role="group" class="pl-panel pl-messages" aria-label="messages">
    <h3>Messages and slices of one step <small>${s.messages.length ? small : ""}</small></h3>
    ${pairOf(s, ui)}
    ${s.messages.length ? table() : html`<p class="pl-muted">No message: every rank already holds what it needs.</p>`}
  </div>`;
}

// ---- timeline ----

// How long one rank is in messages and waits, in words.
function spentText(s, t, amount, unit) {
  const lane = t.lanes.find((l) => l.rank === s.rank) ?? t.lanes[0];
  const share = (kind) => lane.bars.filter((b) => b.kind === kind).reduce((sum, b) => sum + b.end - b.start, 0);
  const part = (v) => `${amount(v)} ${unit}`, percent = (v) => `${Math.round((100 * v) / (t.end || 1))} %`;
  const moving = share("communication"), waiting = share("wait");
  if (t.whole) return `rank ${s.rank}: ${percent(moving)} in messages, ${percent(waiting)} waiting`;
  if (waiting) return `rank ${s.rank}: ${percent(moving)} of ${part(t.end)} in messages, ${percent(waiting)} waiting`;
  return `rank ${s.rank}: ${amount(moving)} of ${part(t.end || 1)} in messages (${percent(moving)})`;
}

function timeline(s, ui) {
  const t = s.timeline, lanes = t?.lanes ?? [];
  const panel = (small, content) => html`<div role="group" class="pl-panel pl-timeline" aria-label="timeline">
    <h3>${s.loss.past ? `Step ${ui.marked}` : "One step"} <small>${small}</small>${t?.whole === undefined ? "" : momentSlider(ui, timeText((t.cursor ?? 0) * 1e-6))}${fitButton(s, ui)}</h3>${content}</div>`;
  if (!lanes.length) return panel("", html`<p class="pl-muted">Nothing to show yet.</p>`);
  const width = ui.half, end = t.end || 1;
  const left = 26, laneH = Math.max(7, Math.min(17, 72 / lanes.length - 2)), gap = 2;
  const height = lanes.length * (laneH + gap) + 16;
  const x = (v) => left + (v / end) * (width - left - 4);
  const [scale, unit] = t.unit !== "us" ? [1, t.unit] : end >= 1e3 ? [1e-3, "ms"] : [1, "µs"];
  const amount = (v) => smallText(v * scale), spent = spentText(s, t, amount, unit);
  const bar = (b, n, lane, y) => {
    // a message fills the lane, what is computed half of it: colour is not the only sign
    const h = b.kind === "communication" ? laneH : laneH / 2, w = Math.max(0.8, x(b.end) - x(b.start) - 0.6);
    const box = rectOf({ x: x(b.start), y: y + (laneH - h) / 2, w, h });
    const when = `${amount(b.start)} to ${amount(b.end)} ${unit} (${t.source})`;
    const about = `rank ${lane.rank}: ${b.label}, ${b.kind}, ${when}`;
    return html`<g data-key="b${n}"><title>${about}</title><rect class="pl-bar-${b.kind}" ${box} rx="1"/></g>`;
  };
  // All bars of a kind are one path where a recorded step is drawn anew thirty times a second.
  const bars = (one, y) => ["compute", "communication", "wait"].map((kind) => {
    const h = kind === "communication" ? laneH : laneH / 2, top = round(y + (laneH - h) / 2);
    const d = one.bars.filter((b) => b.kind === kind).map((b) => `M${round(x(b.start))} ${top}h${
      round(Math.max(0.8, x(b.end) - x(b.start) - 0.6))}v${h}H${round(x(b.start))}z`);
    return html`<path class="pl-bar-${kind}" data-key="${kind}" d="${d.join("")}"/>`;
  });
  const lane = (one, i) => {
    const y = i * (laneH + gap);
    return html`<g data-key="l${one.rank}" class="${one.rank === s.rank ? "pl-on" : ""}">
      <rect class="pl-lane" x="${left}" y="${y}" width="${width - left - 4}" height="${laneH}"/>
      <text class="pl-lane-name" x="${left - 7}" y="${y + laneH / 2}">${one.rank}</text>
      ${t.whole ? bars(one, y) : one.bars.map((b, n) => bar(b, n, one, y))}</g>`;
  };
  const marks = roundTicks(0, end * scale, 5);
  const tick = (v, i) => html`<text class="pl-tick" x="${round(x(v / scale))}" y="${height - 4}"
    text-anchor="${i === 0 ? "start" : x(v / scale) > width - 34 ? "end" : "middle"}">${v}${i === marks.length - 1
    ? ` ${unit}` : ""}</text>`;
  return panel(t.source, html`<svg viewBox="0 0 ${width} ${height}" role="img"
      aria-label="timeline, ${t.source}: ${lanes.length} lanes; ${spent}">
      ${lanes.map(lane)}${marks.map(tick)}${t.cursor == null ? "" : html`<path class="pl-cursor"
        d="M${round(x(t.cursor))} 0V${height - 16}"/>`}</svg>
    <p class="pl-legend"><span><i class="pl-swatch pl-swatch-half pl-bar-compute"></i>compute</span>
      <span><i class="pl-swatch pl-bar-communication"></i>communication</span>
      <span><i class="pl-swatch pl-bar-wait"></i>wait</span></p>
    <p class="pl-verdict">${spent}</p>${whyFar(s)}`);
}

// Why measured is far from predicted, and a button that measures the machine that predictions are made for.
function whyFar(s) {
  const words = [s.gap?.text, s.fit?.text, s.fit?.error].filter(Boolean).join("; ");
  return words ? html`<p class="pl-said">${micro(words)}${s.fit ? runBar(s.fit) : ""}</p>` : "";
}
function fitButton(s, ui) {
  const busy = s.fit?.state === "running", on = !busy && !s.run.can.stop;
  return busy || s.gap?.text ? button("fit_machine", busy ? "measuring …" : "fit this machine", ui, { on, key: "fit" }) : "";
}

// The graph of a long network scrolls: to the layer that is looked at, with whole rows in sight, and says how many
// rows are above and below.
function showNode(root) {
  const graph = root.querySelector(".pl-graph"), node = graph?.querySelector(".pl-node.pl-on");
  if (!node) return;
  const { top, height } = boxIn(graph, node), room = graph.clientHeight;
  if (top < 0 || top + height > room) graph.scrollTop += top - room + height + 8;
}
function tellRows(root) {
  const graph = root.querySelector(".pl-graph"), said = graph?.querySelector(".pl-more");
  if (!said) return;
  const rows = new Map([...graph.querySelectorAll(".pl-node")].map((node) => boxIn(graph, node)).map((box) => [Math.round(box.top), box]));
  const tops = [...rows.values()], above = tops.filter((b) => b.top < -4).length;
  const below = tops.filter((b) => b.top + b.height > graph.clientHeight + 12).length;
  said.textContent = [above && `↑ ${above}`, below && `↓ ${below}`].filter(Boolean).join("  ");
  said.title = `${above} rows of layers above, ${below} below: scroll`;
}

// ---- the lab ----

// The snapshot as it was at the chosen step and moment of the recorded run.
function strategyPast(s, { r, at, lanes, whole, cursor, losses, said, source, now: nowOf }) {
  const t = r.tensors.indexOf(s.tensor), place = (rank) => (at * lanes.length + rank) * r.tensors.length + t;
  const late = new Map(r.differs.map(([rank, step]) => [rank, step]));
  const cards = s.cards.map((c) => {
    const own = t >= 0 && r.holders[t][c.rank], value = own ? r.sizes[place(c.rank)] : losses(c.rank);
    const differs = late.get(c.rank) <= r.steps[at], does = cursor === null ? null : nowOf(c.rank).does;
    return { ...c, past: { text: `${own ? "rms" : "loss"} ${smallText(value)}`, differs, does } };
  });
  const now = nowOf(s.rank), live = cursor === null ? [] : now.e.live;
  const held = Object.fromEntries(live.map((bytes, i) => [r.kinds[i], bytes]));
  return {
    ...s, cards, gap: null, fit: null, moment: cursor === null ? null : { held, message: now.does === now.e.op ? now.e.message : 0 },
    timeline: { source, unit: "us", end: Math.max(whole, r.usual), lanes, cursor, whole },
    loss: { ...s.loss, past: said },
    status_rank: `${capital(said)}${cursor === null ? "" : `; rank ${s.rank}: ${now.does} (${now.e.name})`}.`,
  };
}

const tables = (s, ui) => tabs(ui, {
  messages: ["Messages", s.messages.length, () => messages(s, ui)],
  ...movesTab(s, ui),
  rank: [`Rank ${s.rank} holds`, s.rank_detail?.holds.length ?? null, () => rankTab(s)],
  numbers: [`Numbers of rank ${s.rank}`, null, () => numbers(s, ui)],
  key: ["How to read the picture", null, () => key(s, ui)],
  ...codeTabs(s, ui),
});

// What the style sheet's columns leave: for the graph and the tables, for the cards, and for two side by side.
function measure(ui, root) {
  ui.width = Math.floor(root.clientWidth || 940) - 8;
  const main = ui.width > 760 ? ui.width - 214 : ui.width;
  ui.half = Math.floor(ui.width > 560 ? (main - 20) / 2 : main);
  ui.centre = ui.width > 560 ? main - 218 : main;
}

// The open list stands over its column, which scrolls. It is placed once for what is typed: a preview may make the lab
// shorter or a line of the head longer, and a list that moves under the pointer has another strategy there.
function placeList({ root, ui }) {
  const list = root.querySelector(".pl-list:not([hidden])");
  if (!list) { ui.placed = null; return; }
  const { left, top, width, height } = boxIn(root, list.previousElementSibling);
  Object.assign(list.style, { left: `${left}px`, minWidth: `${width}px` }); // lines break by the width: before its height
  const key = JSON.stringify([ui.open, ui.drafts.get(ui.open), root.clientWidth, root.style.zoom]);
  if (ui.placed?.key !== key) {
    const high = list.offsetHeight + 2, above = top + height + high > root.clientHeight && top > high;
    ui.placed = { key, top: above ? top - high : top + height + 2 };
  }
  list.style.top = `${ui.placed.top}px`;
  list.querySelector(".pl-active")?.scrollIntoView({ block: "nearest" });
}

const { render, mountPage } = lab({
  story: STORY,
  parts: {
    patterns: (s, ui) => patterns(ui.id),
    head: header,
    story: (s, ui) => html`${openQuestion(s) ? lastSaid(s, ui) : asksOrTells(s, ui)}`,
    ...inPast(strategyPast, { status: (s, ui) => html`${openQuestion(s) ? asks(s, ui) : lead(s.status_rank, s.status_message || s.status_tensor)}` }),
    notices: (s) => notices({ alert: s.last_error, run: s.run.error }),
    operators, ...inPast(strategyPast, { picture, loss, ...Object.fromEntries(Object.entries({ graph, rank: rankDetail, timeline, tables })
      .map(([name, part]) => [name, (s, ui) => (s.simple ? html`` : part(s, ui))])) }),
  },
  skeleton: html`${slot("patterns")}<div class="pl-top">${["head", "status", "notices"].map(slot)}</div>${slot("graph")}
    <div class="pl-main">${slot("operators")}<div class="pl-centre">
    <div class="pl-shown">${["picture", "rank"].map(slot)}</div>
    <div class="pl-live">${["loss", "timeline"].map(slot)}</div>${slot("story")}</div></div>${slot("tables")}${sky}`,
  measure,
  ...movesAir,
  previews: ["picture", "cards", "rank_detail", "status_tensor", "status_rank", "status_message"],
  lookedAtIf: ([, name], s) => ({ tensor: s.operators.find((o) => o.name === name).tensor, message: null }),
  numbers: ["set_devices", "select_rank", "select_message"],
  commit(name, text, { snapshot, send, forget }) {
    if (numberOf(text) !== snapshot.steps) send("set_steps", [numberOf(text)]);
    forget("head");
  },
  handlers: (view) => withScrub(view, withPaste(view, withNumbers(view, withMoves(view, strategyHandlers(view))))),
  drawn(view) {
    const { root } = view;
    movesAir.drawn(view);
    if (view.ui.seen !== view.snapshot.tensor) showNode(root);
    tellRows(root);
    root.querySelector(".pl-graph")?.addEventListener("scroll", () => tellRows(root), { passive: true });
    view.ui.seen = view.snapshot.tensor;
    placeList(view);
  },
  // The kernel has dealt with a command: what it says now replaces what was typed.
  answered({ ui }) { for (const name of ui.sent) ui.drafts.delete(name); ui.sent.clear(); },
  along: { select_tensor: { message: null, at: 0 } },
});
