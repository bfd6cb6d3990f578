// The Strategy Lab: operators with their strategies, a card per rank, the selected rank, messages, timeline. What all labs share
// is in page.js, the loss curve in loss.js, the graph above the picture in graph.js.
//
// Colour = slice (which part of the data), position = rank. Hatching and a sigma = the value is only an addend of a pending sum.

const KIND_OF_MEMORY = ["params", "grads", "optimizer", "activations"];

// ---- the picture: which dims are drawn, where a block lies ----

// [down, across, panels, how many panels]: the dims by which a tensor is drawn, as the snapshot has them; one of fewer gets dims of size 1 (null).
function plane({ drawn, shape }) {
  if (drawn) return [drawn.down, drawn.across, drawn.panels, drawn.parts];
  return [shape.length > 1 ? 0 : null, shape.length ? Math.min(1, shape.length - 1) : null, null, 1];
}

// Room for a tensor of `shape` in a square of `side`: true proportions, but never thinner than a third.
function frame(shape, dims, side) {
  const [rows, columns] = dims.slice(0, 2).map((d) => (d === null ? 1 : shape[d]));
  const ratio = Math.min(3, Math.max(1 / 3, rows / (columns * dims[3])));
  const [h, w] = ratio >= 1 ? [side, side / ratio] : [side * ratio, side];
  return { rows, columns, h, w, panel: dims[2], panels: dims[3], extent: dims[2] === null ? 1 : shape[dims[2]] };
}

function blockBox({ block }, dims, room) {
  const span = (d, n) => (d === null ? [0, 1] : block[d] ?? [0, n]), gap = room.panels > 1 ? 3 : 0;
  const [[r0, r1], [c0, c1]] = [span(dims[0], room.rows), span(dims[1], room.columns)];
  const w = (room.w - gap * (room.panels - 1)) / room.panels, number = room.panel === null ? 0 : Math.floor((block[room.panel][0] / room.extent) * room.panels);
  return { x: number * (w + gap) + (c0 / room.columns) * w, y: (r0 / room.rows) * room.h, w: ((c1 - c0) / room.columns) * w, h: ((r1 - r0) / room.rows) * room.h };
}

// What a rank reads of its neighbours' slices, in the colours of those, at least so thick that it can be seen.
function stripMarks(card, dims, room) {
  const own = blockBox(card, dims, room);
  return (card.strips ?? []).map((strip) => {
    const b = blockBox(strip, dims, room), h = Math.max(3, b.h), w = Math.max(3, b.w), y = b.y < own.y ? b.y + b.h - h : b.y, x = b.x < own.x ? b.x + b.w - w : b.x;
    return html`<rect class="pl-strip ${hue(strip.slice)}" data-key="s${strip.slice}" x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${round(h)}"/>`;
  });
}


function blockMark(box, slice, { partial, print = true, faint = false, id }) {
  const parts = [html`<rect class="pl-block ${hue(slice)}${faint ? " pl-faint" : ""}" x="${round(box.x)}" y="${round(box.y)}" width="${round(box.w)}" height="${round(box.h)}"/>`];
  if (slice >= HUES) parts.push(html`<rect class="pl-over" x="${round(box.x)}" y="${round(box.y)}" width="${round(box.w)}" height="${round(box.h)}" fill="url(#${id}-dots)"/>`);
  if (partial) parts.push(html`<rect class="pl-over" x="${round(box.x)}" y="${round(box.y)}" width="${round(box.w)}" height="${round(box.h)}" fill="url(#${id}-hatch)"/>`);
  if (print && Math.min(box.w, box.h) >= 9) {
    const cx = box.x + box.w / 2, cy = box.y + box.h / 2, size = Math.min(12, Math.max(8, Math.min(box.w, box.h) * 0.8));
    if (partial) parts.push(html`<rect class="pl-plate ${hue(slice)}" x="${round(cx - size * 0.62)}" y="${round(cy - size * 0.68)}" width="${round(size * 1.24)}" height="${round(size * 1.36)}" rx="2"/>`);
    parts.push(html`<text class="pl-index" x="${round(cx)}" y="${round(cy)}" font-size="${round(size)}">${slice}</text>`);
  }
  return parts;
}

function patterns(id) {
  return html`<svg class="pl-patterns" width="0" height="0" aria-hidden="true" focusable="false"><defs>
    <pattern id="${id}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="pl-hatch" width="2" height="6"/></pattern>
    <pattern id="${id}-dots" width="6" height="6" patternUnits="userSpaceOnUse"><circle class="pl-hatch" cx="3" cy="3" r="1.1"/></pattern>
    <pattern id="${id}-send" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)"><rect class="pl-send" width="2" height="5"/></pattern>
    <marker id="${id}-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto"><path class="pl-arrow" d="M0 .8 7.2 4 0 7.2z"/></marker>
  </defs></svg>`;
}

// Ranks of the same addend group, and of the same data, read off the cards themselves.
const sameSlice = (cards, card) => cards.filter((c) => c.slice === card.slice && String(c.block) === String(card.block));
const replicasOf = (cards, card) => sameSlice(cards, card).filter((c) => c.addend === card.addend && c.rank !== card.rank).map((c) => c.rank);
const addendsOf = (cards, card) => (card.addend ? sameSlice(cards, card).filter((c) => c.rank === card.rank || c.addend !== card.addend).map((c) => c.rank) : []);

function coordinateText(s, card) {
  const { device_matrix: matrix, axis_names: names } = s.picture;
  const parts = card.coordinates.map((at, i) => [names[i] ?? `axis ${i}`, at, matrix[i]]).filter(([, , size]) => size > 1);
  return parts.map(([name, at]) => `${name.replace("dim ", "d")}${/\d$/.test(name) ? "=" : ""}${at}`).join(" ");
}

// ---- sections ----

function header(s, ui) {
  const { run } = s;
  const paused = run.state === "paused";
  const done = run.steps ? Math.min(1, run.step / run.steps) : 0;
  const run_button = (command, text, on, kind = "") => button(command, text, ui, { on, kind, key: text });
  return html`<header class="pl-head">
    <h2 class="pl-title">${s.title}</h2>
    ${choice("net", "net", s.net, "set_net", ui)}
    ${segments("d", "devices", s.devices, "set_devices", ui, { name: (n) => plural(n, "device") })}
    ${choice("data", "data", s.data, "set_data", ui)}
    <span class="pl-run" role="group" aria-label="training run">
      ${run_button("run", "Run", run.can.run, "pl-primary")}
      ${run_button(paused ? "resume" : "pause", paused ? "Resume" : "Pause", run.can.pause)}
      ${run_button("stop", "Stop", run.can.stop)}
      ${run_button("reset", "Reset", run.can.reset)}
      <span class="pl-progress" role="progressbar" aria-label="training steps" aria-valuemin="0" aria-valuemax="${run.steps}" aria-valuenow="${run.step}" aria-valuetext="${run.text}">
        <span class="pl-bar"><span class="pl-fill pl-${run.state}" style="width:${round(done * 100)}%"></span></span>
        <span class="pl-progress-text">${run.text}</span></span>
    </span>
  </header>`;
}

const layerOf = (s) => s.tensors.find((t) => t.id === s.tensor)?.layer ?? "";

function operators(s, ui) {
  const row = (o) => {
    const i = s.operators.indexOf(o), longest = Math.max(...o.choices.map((c) => c.length), 0);
    const box = `${ui.id}-op-${i}`, open = ui.open === o.name, draft = ui.drafts.get(o.name);
    const value = draft ?? (o.error ? o.typed : null) ?? o.strategy, bad = Boolean(o.error);
    const list = open ? shown(o, draft) : [];
    const own = o.source === "user" || o.source === "preset";
    return html`<li class="pl-operator${o.tensor === s.tensor ? " pl-on" : ""}" data-key="${o.name}">
      <div class="pl-op-head"><label class="pl-op-name" for="${box}">${breakable(!o.layer ? o.name : o.name === o.layer ? o.name.split(".").at(-1) : o.name.slice(o.layer.length + 1))}</label><span class="pl-muted">${o.op}</span>
        ${own ? html`<button type="button" class="pl-link" data-key="clear" data-command="set_strategy" data-operator="${o.name}" data-clear="1"${flag("disabled", !ui.live)} title="give up this strategy: back to the default" aria-label="${o.name}: back to the default strategy">${o.source === "preset" ? "preset" : "yours"} ×</button>` : html`<span class="pl-tag" data-key="tag">default</span>`}</div>
      <div class="pl-combo${bad ? " pl-bad" : ""}${open ? " pl-open" : ""}" style="--longest:${longest}ch">
        <input id="${box}" data-key="input" data-operator="${o.name}" type="text" role="combobox" autocomplete="off" autocapitalize="off" spellcheck="false" aria-expanded="${open}" aria-controls="${box}-list" aria-autocomplete="list"
          aria-invalid="${bad}" aria-describedby="${box}-about"${flag(`aria-activedescendant="${box}-${ui.active}"`, open && ui.active >= 0)} value="${value}" title="${value}"${flag("disabled", !ui.live)}>
        <button type="button" class="pl-drop" data-key="drop" data-drop="${o.name}" tabindex="-1" aria-hidden="true"${flag("disabled", !ui.live)}><svg viewBox="0 0 10 6" width="10" height="6"><path d="M1 1l4 4 4-4"/></svg></button>
        <ul id="${box}-list" data-key="list" class="pl-list" role="listbox" aria-label="legal strategies of ${o.name}"${flag("hidden", !open)}>${list.map(
          (c, n) => html`<li id="${box}-${n}" data-key="${c}" role="option" class="${n === ui.active ? "pl-active" : ""}" aria-selected="${c === o.strategy}" data-choose="${c}" data-operator="${o.name}">${c}</li>`)}</ul>
      </div>
      <div id="${box}-about">${bad ? html`<p class="pl-refused"><b aria-hidden="true">!</b> <span class="pl-hidden">refused: </span>${o.error} <span class="pl-muted">Still in force: <wbr><code class="${o.strategy.length > 22 ? "pl-wrap" : ""}">${o.strategy}</code></span></p>` : html`<p class="pl-formula">${o.formula.replaceAll(" x ", " × ").replaceAll("->", "→")}</p>`}</div>
    </li>`;
  };
  const changed = s.preset && !s.preset.value ? html`<option value="" selected disabled>changed by you</option>` : "";
  const preset = s.preset ? html`<div class="pl-preset">${choice("preset", "preset", s.preset, "set_preset", ui, { first: changed })}</div>` : "";
  const list = s.graph.layers ? html`<ul class="pl-folds">${[...new Set(s.operators.map((o) => o.layer))].map((layer) => fold(s, ui, layer, row))}</ul>` : html`<ul>${s.operators.map(row)}</ul>`;
  return html`<section class="pl-panel pl-operators" aria-label="operators and their strategies"><h3>Strategies <small>slices per dim</small></h3>${preset}${list}${key(s, ui)}</section>`;
}

// A tensor's label where its layer is known: "out of fc.matmul, addends" is "matmul, addends".
function shortLabel(s, label, layer) {
  const around = layer.includes(".") ? [`${layer.slice(0, layer.lastIndexOf("."))}.`] : [], operators = s.operators.filter((o) => o.layer === layer);
  const known = [...operators.map((o) => `${o.name}.`), `${layer}.`, ...around];
  return known.reduce((text, prefix) => text.replaceAll(prefix, ""), label.replace("out of ", ""));
}

// A layer of a long network: one line, and its operators and tensors where one looks at it. Choosing a layer is looking at its result.
function fold(s, ui, layer, row) {
  const own = s.operators.filter((o) => o.layer === layer), node = s.graph.nodes.find((n) => n.id === layer);
  const chosen = layer === layerOf(s), open = chosen || own.some((o) => o.error || ui.open === o.name || ui.drafts.has(o.name));
  const tensor = node?.tensor ?? own.at(-1).tensor, tensors = s.tensors.filter((t) => t.layer === layer);
  const chips = html`<p class="pl-chips">look at ${tensors.map((t) => html`<button type="button" class="pl-chip" data-key="${t.id}" data-command="select_tensor" data-value="${t.id}" aria-pressed="${t.id === s.tensor}"${flag("disabled", !ui.can("select_tensor", t.id))} aria-label="look at ${t.label}">${breakable(shortLabel(s, t.label, layer))}</button>`)}</p>`;
  return html`<li class="pl-fold${chosen ? " pl-on" : ""}" data-key="${layer}">
    <button type="button" class="pl-fold-head" data-key="head" aria-expanded="${open}" data-command="select_tensor" data-value="${tensor}"${flag("disabled", !ui.can("select_tensor", tensor))}><span class="pl-fold-name" title="${layer}">${node?.label ?? layer}</span><code>${node?.cuts ? shapeText(node.cuts) : ""}</code></button>
    ${open ? html`<ul>${own.map(row)}</ul>${chips}` : ""}</li>`;
}

// The legal strategies that match what is typed; all of them if nothing does.
function shown(operator, draft) {
  const bare = (text) => text.replace(/\s/g, "");
  if (draft === undefined || bare(draft) === bare(operator.strategy)) return operator.choices;
  const some = operator.choices.filter((c) => bare(c).includes(bare(draft)));
  return some.length ? some : operator.choices;
}

function wholeTensor(s, ui, dims) {
  const { shape } = s.picture, room = frame(shape, dims, 84), partial = s.picture.partial;
  const slices = [...new Map(s.cards.map((c) => [c.slice, c])).values()];
  const text = dims.slice(0, 2).map((d) => (d === null ? "" : String(shape[d])));
  if (dims[3] > 1) text[1] = `${dims[3]} × ${text[1]}`;
  return html`<svg class="pl-whole" viewBox="-22 -18 ${round(room.w + 26)} ${round(room.h + 22)}" width="${round(room.w + 26)}" height="${round(room.h + 22)}" role="img" aria-label="the whole tensor, ${shapeText(shape)}, in ${plural(slices.length, "slice")}">
    <text class="pl-size" x="${round(room.w / 2)}" y="-8">${text[1]}</text><text class="pl-size" transform="translate(-9 ${round(room.h / 2)}) rotate(-90)">${text[0]}</text>
    ${slices.map((c) => html`<g data-key="${c.slice}">${blockMark(blockBox(c, dims, room), c.slice, { partial, id: ui.id })}</g>`)}
    <rect class="pl-outline" width="${round(room.w)}" height="${round(room.h)}"/></svg>`;
}

function card(s, ui, c, dims, side, mine, ring) {
  const { shape, partial } = s.picture, room = frame(shape, dims, side);
  const selected = c.rank === s.rank, isAddend = Boolean(c.addend), copies = replicasOf(s.cards, c);
  const where = coordinateText(s, c), strips = c.strips ?? [];
  const name = `rank ${c.rank}${where ? `, at ${where}` : ""}: holds ${c.text}, slice ${c.slice}${isAddend ? `, partial: addend ${c.addend} of ${c.addends}` : ""}${copies.length ? `, same data as ${copies.length > 1 ? "ranks" : "rank"} ${copies.join(", ")}` : ", no replica"}${strips.map((t) => `; ${t.text} of it from rank ${t.rank}`).join("")}`;
  const cuts = [...new Map(s.cards.map((k) => [k.slice, k])).values()];
  return html`<button type="button" class="pl-card${selected ? " pl-selected" : ""}${ring ? ` pl-${ring}` : ""}" role="radio" aria-checked="${selected}" tabindex="${selected ? 0 : -1}" data-key="r${c.rank}" data-command="select_rank" data-value="${c.rank}" data-slice="${c.slice}" aria-label="${name}">
    <span class="pl-card-head"><b>${c.rank}</b><span class="pl-where">${where}</span></span>
    <svg viewBox="-1 -1 ${round(room.w + 2)} ${round(room.h + 2)}" width="${round(room.w + 2)}" height="${round(room.h + 2)}" aria-hidden="true">
      <rect class="pl-ground" width="${round(room.w)}" height="${round(room.h)}"/>
      ${cuts.map((k) => { const b = blockBox(k, dims, room); return html`<rect class="pl-cut" data-key="c${k.slice}" x="${round(b.x)}" y="${round(b.y)}" width="${round(b.w)}" height="${round(b.h)}"/>`; })}
      <g data-key="own">${blockMark(blockBox(c, dims, room), c.slice, { partial, id: ui.id })}</g>${stripMarks(c, dims, room)}
      <rect class="pl-outline" width="${round(room.w)}" height="${round(room.h)}"/></svg>
    <span class="pl-card-text">${c.text}</span>
    <span class="pl-card-sum">${isAddend ? html`<i class="pl-sigma">Σ</i> <span class="pl-wide">addend </span>${c.addend} of ${c.addends}` : strips.length ? html`with strips of ${strips.map((t) => t.rank).join(", ")}` : copies.length ? html`${copies.length + 1} copies` : html`only copy`}</span>
  </button>`;
}

// Width of the middle column; the style sheet's container queries draw the same lines.
const centreWidth = (ui) => (ui.width > 920 ? ui.width - 488 : ui.width > 800 ? ui.width - 438 : ui.width > 560 ? ui.width - 222 : ui.width);

// The tensors of a long network stand under their layers.
function tensorOptions(s, ui) {
  const option = (t) => html`<option value="${t.id}" data-key="${t.id}"${flag("selected", t.id === s.tensor)}${flag("disabled", !ui.can("select_tensor", t.id))}>${t.label}</option>`;
  const layers = [...new Set(s.tensors.map((t) => t.layer ?? ""))];
  return layers.map((layer) => { const own = s.tensors.filter((t) => (t.layer ?? "") === layer).map(option); return layer ? html`<optgroup label="${layer}" data-key="g${layer}">${own}</optgroup>` : own; });
}

function picture(s, ui) {
  const p = s.picture, dims = plane(p), mine = s.cards.find((c) => c.rank === s.rank) ?? s.cards[0];
  const columns = 4, centre = centreWidth(ui); // always four to a row: a rank keeps its place when the strategy changes
  const side = Math.max(48, Math.min(s.cards.length > 8 ? 56 : 84, centre / columns - 40));
  const team = mine ? addendsOf(s.cards, mine) : [], copies = mine ? replicasOf(s.cards, mine) : [];
  const ring = (rank) => (rank === s.rank ? "" : team.includes(rank) ? "team" : copies.includes(rank) ? "copy" : "");
  const axes = p.device_matrix.map((n, i) => [p.axis_names[i] ?? `axis ${i}`, n]).map(([name, n]) => `${name}${/\d$/.test(name) ? " =" : ""} ${n}`).join(" × ");
  const dimName = (d) => p.dim_names?.[d] ?? `dim ${d}`;
  const drawn = p.shape.length > 2 ? html` <span class="pl-muted">(drawn: ${dimName(dims[0])} down, ${dimName(dims[1])} across${dims[2] === null ? "" : `, ${dimName(dims[2])} in panels`})</span>` : "";
  const beyond = (p.halo ?? []).map((h) => html`; along ${dimName(h.dim)} a rank reads <b>${[h.before && `${h.before} before`, h.after && `${h.after} after`].filter(Boolean).join(" and ") || "nothing beside"}</b> its own`);
  const phase = (name) => html`<option value="${name}" data-key="${name}"${flag("selected", name === s.phase)}${disabledUnless(ui, "select_phase", name)}>${name}</option>`;
  return html`<section class="pl-panel pl-picture" aria-label="slices of the selected tensor">
    <div class="pl-pick"><label class="pl-field"><span>tensor</span><select data-key="tensor" data-command="select_tensor">${tensorOptions(s, ui)}</select></label>
      <label class="pl-field"><span>phase</span><select data-key="phase" data-command="select_phase">${s.phases.map(phase)}</select></label></div>
    <div class="pl-lead">${wholeTensor(s, ui, dims)}
      <div><p class="pl-lead-name">${breakable(p.label)}</p>
        <p class="pl-lead-fact"><b>${shapeText(p.shape)}</b> in <b>${plural(new Set(s.cards.map((c) => c.slice)).size, "slice")}</b>${p.partial ? html`, each a pending <b><i class="pl-sigma">Σ</i> ${p.partial.reduce} of ${plural(p.partial.count, "addend")}</b> over ${p.partial.axes.join(", ")}` : ""}${beyond}${drawn}</p>
        <p class="pl-lead-fact pl-muted">device matrix ${axes}${p.note ? ` · ${p.note}` : ""}</p></div></div>
    <p class="pl-caption">${s.cards.length === 1 ? "one rank: it holds everything" : html`what each of the <b>${s.cards.length} ranks</b> holds, in device-matrix order`}</p>
    <div class="pl-cards" role="radiogroup" aria-label="ranks, in device-matrix order" data-roving="${columns}" style="--columns:${columns}">${s.cards.map((c) => card(s, ui, c, dims, side, mine, ring(c.rank)))}</div>
  </section>`;
}

function key(s, ui) {
  const chip = (inner) => html`<dt><svg width="22" height="14" viewBox="0 0 22 14" aria-hidden="true">${inner}</svg></dt>`;
  return html`<h4 class="pl-key-title">How to read the picture</h4><dl class="pl-key">
    ${chip(html`<rect class="pl-block pl-hue-0" x=".5" y=".5" width="10.5" height="13"/><rect class="pl-block pl-hue-1" x="11" y=".5" width="10.5" height="13"/>`)}<dd>colour and number: which slice of the data</dd>
    ${chip(html`<rect class="pl-block pl-hue-0" x=".5" y=".5" width="21" height="13"/><rect x=".5" y=".5" width="21" height="13" fill="url(#${ui.id}-hatch)"/>`)}<dd>hatched <i class="pl-sigma">Σ</i>: only an addend, the sum is still pending</dd>
    ${s.picture.halo?.length ? html`${chip(html`<rect class="pl-block pl-hue-0" x=".5" y="3" width="21" height="8"/><rect class="pl-strip pl-hue-1" x=".5" y=".5" width="21" height="3"/><rect class="pl-strip pl-hue-2" x=".5" y="10.5" width="21" height="3"/>`)}<dd>strips in other colours: read from the neighbours (halo)</dd>` : ""}<dt><i class="pl-ring pl-team"></i></dt><dd>adds up with rank ${s.rank}</dd><dt><i class="pl-ring pl-copy"></i></dt><dd>holds the same data as rank ${s.rank}</dd></dl>`;
}

function rankDetail(s, ui) {
  const mine = s.cards.find((c) => c.rank === s.rank), d = s.rank_detail;
  if (!mine) return html`<section class="pl-panel pl-rank" aria-label="selected rank"></section>`;
  const team = addendsOf(s.cards, mine), copies = replicasOf(s.cards, mine), where = coordinateText(s, mine);
  const chips = (ranks) => html`<span class="pl-ranks">${ranks.map((r) => html`<span class="${r === s.rank ? "pl-me" : ""}">${r}</span>`)}</span>`;
  const groups = d ? d.groups : team.length ? [{ label: "addends", ranks: team, use: "add up to the value" }] : [];
  const total = d ? d.memory_total || d.memory.reduce((sum, m) => sum + m.bytes, 0) : 0;
  const kinds = d ? [...d.memory].sort((a, b) => KIND_OF_MEMORY.indexOf(a.kind) - KIND_OF_MEMORY.indexOf(b.kind)) : [];
  const current = s.tensors.find((t) => t.id === s.tensor)?.label, layer = layerOf(s), layered = Boolean(s.graph.layers);
  const home = Object.fromEntries(s.tensors.map((t) => [t.label, t.layer ?? ""]));
  const holds = d ? d.holds.filter((h) => !layered || home[h.tensor] === layer) : []; // of a long network: those of the layer one looks at
  return html`<section class="pl-panel pl-rank" aria-label="rank ${s.rank}"><h3>Rank <b class="pl-big">${s.rank}</b> of ${s.cards.length} <small>${where}</small></h3>
    <p class="pl-now"><i class="pl-dot ${hue(mine.slice)}"></i>${breakable(s.picture.label)} <code class="${mine.text.length > 26 ? "pl-wrap" : ""}">${mine.text}</code></p><p>${mine.addend ? html`<i class="pl-sigma">Σ</i> partial: addend ${mine.addend} of ${mine.addends}` : "complete values"}<br>${copies.length ? html`replicas: ${copies.join(", ")}` : "replicas: none"}</p>
    ${groups.length ? html`<h4>Groups</h4><dl class="pl-groups">${groups.map((g) => html`<dt>${g.label}</dt><dd>${chips(g.ranks)} <span class="pl-muted">${breakable(g.use)}</span></dd>`)}</dl>` : html`<p class="pl-muted">in no group for this tensor</p>`}
    ${d ? html`<h4>Holds${layered ? html` <small>${layer ? `in ${layer}` : "of the data"}: ${holds.length} of ${plural(d.holds.length, "tensor")}</small>` : ""}</h4><table class="pl-holds"><tbody>${holds.map((h) => html`<tr class="${h.tensor === current ? "pl-on" : ""}"><th scope="row">${breakable(layer ? shortLabel(s, h.tensor, layer) : h.tensor)}</th><td><code class="${h.text.length > 14 ? "pl-wrap" : ""}">${h.text}</code>${h.note ? html`<span class="pl-note">${h.note}</span>` : ""}</td><td class="pl-number">${bytesText(h.bytes)}</td></tr>`)}</tbody></table>
      <h4>Memory <small>predicted, ≤ ${bytesText(total)}</small></h4><div class="pl-memory" role="img" aria-label="memory of rank ${s.rank}, predicted: ${kinds.map((m) => `${m.kind} ${bytesText(m.bytes)}`).join(", ")}">${kinds.map(
        (m) => html`<span class="pl-mem pl-mem-${m.kind}" style="flex-grow:${m.bytes}"></span>`)}</div>
      <ul class="pl-memory-key" aria-hidden="true">${kinds.map((m) => html`<li><i class="pl-mem-${m.kind}"></i>${m.kind}<span>${bytesText(m.bytes)}</span></li>`)}</ul>` : html`<p class="pl-muted">Groups and memory of this rank need the running lab.</p>`}
  </section>`;
}

// A long name may break after its dots and underscores, and before its capitals.
const breakable = (name) => html`${name.split(/(?<=[._])|(?<=[a-z0-9])(?=[A-Z])/).map((part) => html`${part}<wbr>`)}`;

function messages(s, ui) {
  const t = s.message_totals ?? {}, narrow = ui.width <= 920; // then the reason stands below its message
  const why = (m) => html`${breakable(m.reason)}${m.origin ? html` <span class="pl-origin">${m.origin}</span>` : ""}`;
  const group = (m) => (m.group.length > 8 ? `${m.group.slice(0, 7).join(" ")} … (${m.group.length})` : m.group.length ? m.group.join(" ") : "none: local");
  const look = (m) => `${m.tensor === s.tensor ? "pl-on" : ""}${m.group.length ? "" : " pl-local"}`;
  const row = (m) => html`<tr data-key="${m.number}" class="${look(m)}">
    <td><button type="button" class="pl-hash" data-command="select_tensor" data-value="${m.tensor}" aria-label="message ${m.number}: show its tensor ${m.tensor}"${flag("disabled", !ui.can("select_tensor", m.tensor))}>#${m.number}</button></td>
    <td>${m.phase}</td><td class="pl-name">${breakable(m.operator)}</td><td class="${m.collective.length > 16 ? "pl-name" : ""}"><b>${m.collective.length > 16 ? breakable(m.collective) : m.collective}</b></td><td><code>${group(m)}</code></td>
    <td class="pl-number">${bytesText(m.bytes_predicted)}</td><td class="pl-number">${bytesText(m.bytes_counted)}</td><td class="pl-number">${timeText(m.time_predicted_s)}</td><td class="pl-number">${timeText(m.time_measured_s)}</td>
    ${narrow ? "" : html`<td class="pl-why">${why(m)}</td>`}</tr>${narrow ? html`<tr data-key="${m.number}w" class="pl-because ${look(m)}"><td></td><td colspan="8" class="pl-why">${why(m)}</td></tr>` : ""}`;
  return html`<section class="pl-panel pl-messages" aria-label="messages"><h3>Messages and slices of one step <small>${s.messages.length ? `${plural(s.messages.length, "row")}, as rank ${s.rank} sees them; bytes and time per rank${t.time_measured_s == null ? "" : "; a measured time includes the wait for the others"}` : ""}</small></h3>
    ${s.messages.length ? html`<div class="pl-scroll${s.messages.length > 14 ? " pl-long" : ""}"><table><thead><tr><th rowspan="2" scope="col">#</th><th rowspan="2" scope="col">phase</th><th rowspan="2" scope="col">operator</th><th rowspan="2" scope="col">collective</th><th rowspan="2" scope="col">group</th><th colspan="2" scope="colgroup" class="pl-pair">bytes</th><th colspan="2" scope="colgroup" class="pl-pair">time</th>${narrow ? "" : html`<th rowspan="2" scope="col" class="pl-why">why it is here</th>`}</tr>
      <tr><th scope="col" class="pl-number">predicted</th><th scope="col" class="pl-number">counted</th><th scope="col" class="pl-number">predicted</th><th scope="col" class="pl-number">measured</th></tr></thead>
      <tbody>${s.messages.map(row)}</tbody>
      <tfoot><tr><th colspan="5" scope="row">total of one step</th><td class="pl-number">${bytesText(t.bytes_predicted)}</td><td class="pl-number">${bytesText(t.bytes_counted)}</td><td class="pl-number">${timeText(t.time_predicted_s)}</td><td class="pl-number">${timeText(t.time_measured_s)}</td>${narrow ? "" : html`<td></td>`}</tr></tfoot></table></div>` : html`<p class="pl-muted">No message: every rank already holds what it needs.</p>`}</section>`;
}

function timeline(s, ui) {
  const t = s.timeline, lanes = t?.lanes ?? [];
  if (!lanes.length) return html`<section class="pl-panel pl-timeline" aria-label="timeline"><h3>Timeline</h3><p class="pl-muted">Nothing to show yet.</p></section>`;
  const left = 26, width = ui.width > 920 ? Math.floor((centreWidth(ui) - 24) / 2) : Math.floor(centreWidth(ui)), laneH = lanes.length > 8 ? 11 : 17, gap = 3, end = t.end || 1, x = (v) => left + (v / end) * (width - left - 4), height = lanes.length * (laneH + gap) + 18;
  const [scale, unit] = t.unit !== "us" ? [1, t.unit] : end >= 1e3 ? [1e-3, "ms"] : [1, "µs"], amount = (v) => smallText(v * scale);
  const share = (kind) => { const lane = lanes.find((l) => l.rank === s.rank) ?? lanes[0]; return lane.bars.filter((b) => b.kind === kind).reduce((sum, b) => sum + b.end - b.start, 0); };
  const communication = share("communication"), waiting = share("wait"), percent = (v) => Math.round((100 * v) / end);
  const spent = `rank ${s.rank}: of ${amount(end)} ${unit}, ${amount(communication)} ${unit} in messages (${percent(communication)} %)${waiting ? ` and ${amount(waiting)} ${unit} waiting for other ranks (${percent(waiting)} %)` : ""}`;
  return html`<section class="pl-panel pl-timeline" aria-label="timeline"><h3>Timeline of one step <small>${t.source}</small></h3>
    <svg viewBox="0 0 ${width} ${height}" role="img" aria-label="timeline, ${t.source}: ${lanes.length} lanes; ${spent}">
      ${lanes.map((lane, i) => { const y = i * (laneH + gap); return html`<g data-key="l${lane.rank}" class="${lane.rank === s.rank ? "pl-on" : ""}"><rect class="pl-lane" x="${left}" y="${y}" width="${width - left - 4}" height="${laneH}"/><text class="pl-lane-name" x="${left - 7}" y="${y + laneH / 2}">${lane.rank}</text>
        ${lane.bars.map((b, n) => html`<g data-key="b${n}"><title>rank ${lane.rank}: ${b.label}, ${b.kind}, ${amount(b.start)} to ${amount(b.end)} ${unit} (${t.source})</title><rect class="pl-bar-${b.kind}" x="${round(x(b.start))}" y="${y + 0.5}" width="${round(Math.max(0.8, x(b.end) - x(b.start) - 0.6))}" height="${laneH - 1}" rx="1.5"/>${b.kind === "communication" ? html`<rect class="pl-over" x="${round(x(b.start))}" y="${y + 0.5}" width="${round(Math.max(0.8, x(b.end) - x(b.start) - 0.6))}" height="${laneH - 1}" fill="url(#${ui.id}-send)"/>` : ""}</g>`)}</g>`; })}
      ${[0, 0.25, 0.5, 0.75, 1].map((q) => html`<text class="pl-tick" x="${round(x(q * end))}" y="${height - 4}" text-anchor="${q === 0 ? "start" : q === 1 ? "end" : "middle"}">${amount(q * end)}${q === 1 ? ` ${unit}` : ""}</text>`)}
    </svg>
    <p class="pl-legend"><span><i class="pl-swatch pl-bar-compute"></i>compute</span><span><i class="pl-swatch pl-swatch-send"></i>communication</span><span><i class="pl-swatch pl-bar-wait"></i>wait</span></p>
    <p class="pl-verdict">${spent}</p></section>`;
}

// ---- what can be done ----

const operatorOf = (s, name) => s.operators.find((o) => o.name === name);

function handlers(view) {
  const { root, ui, send } = view;
  ui.sent = new Set(); // operators whose strategy the kernel has not answered yet
  const openList = (name) => {
    const o = operatorOf(view.snapshot, name);
    ui.open = name;
    ui.active = shown(o, ui.drafts.get(name)).indexOf(o.strategy);
    view.ask();
  };
  const closeList = () => { ui.open = null; ui.active = -1; view.ask(); };
  const commit = (name, text) => {
    closeList();
    const o = operatorOf(view.snapshot, name);
    if (text === (o.error ? o.typed : o.strategy)) { ui.drafts.delete(name); return; }
    ui.drafts.set(name, text);
    ui.sent.add(name);
    send("set_strategy", [name, text]);
  };
  return {
    click(event) {
      const option = event.target.closest("[data-choose]"), drop = event.target.closest("[data-drop]");
      const clear = event.target.closest("[data-clear]");
      if (option) commit(option.dataset.operator, option.dataset.choose);
      else if (drop) {
        const name = drop.dataset.drop;
        if (ui.open === name) closeList(); else { ui.drafts.delete(name); openList(name); }
        root.querySelector(`input[data-operator="${CSS.escape(name)}"]`)?.focus();
      } else if (clear && ui.live) { ui.drafts.delete(clear.dataset.operator); send("set_strategy", [clear.dataset.operator, null]); }
      return option || drop || clear;
    },
    mousedown(event) { if (event.target.closest(".pl-list, .pl-drop")) event.preventDefault(); }, // the input keeps the focus
    input({ target }) {
      if (!target.dataset.operator) return;
      ui.drafts.set(target.dataset.operator, target.value);
      ui.open = target.dataset.operator;
      ui.active = -1;
      view.ask();
    },
    focusout({ target }) {
      const name = target.dataset?.operator;
      if (target.nodeName !== "INPUT" || !name) return;
      if (ui.drafts.has(name) && !ui.sent.has(name)) commit(name, target.value);
      else if (ui.open === name) closeList();
    },
    keydown({ target, key }) {
      if (target.getAttribute?.("role") !== "combobox") return false;
      const name = target.dataset.operator, list = shown(operatorOf(view.snapshot, name), ui.drafts.get(name));
      const open = ui.open === name, step = { ArrowDown: 1, ArrowUp: -1 }[key];
      if (step && !open) openList(name);
      else if (step) {
        ui.active = ui.active < 0 ? (step > 0 ? 0 : list.length - 1) : (ui.active + step + list.length) % list.length;
        view.ask();
      } else if (key === "Enter") commit(name, open && ui.active >= 0 ? list[ui.active] : target.value);
      else if (key === "Escape") { ui.drafts.delete(name); closeList(); view.forget(); }
      else return false;
      return true;
    },
  };
}

// ---- on a page of its own ----

// Selections without a kernel: `frames` maps "tensor|phase", "*|*|rank" (any tensor and phase) or "tensor|phase|rank" to the
// parts of the snapshot that differ there; `status_tensor` and `status_rank` together are the status of a choice.
const AT_HOME = (s, base) => s.tensor === base.tensor && s.phase === base.phase;
const PICKED = { select_tensor: "tensor", select_phase: "phase", select_rank: "rank" };

function possible(s, command, value, base) {
  const want = { ...s, [PICKED[command]]: value }, both = `${want.tensor}|${want.phase}`;
  return AT_HOME(want, base) || Object.keys(base.frames ?? {}).some((k) => k === both || k.startsWith(`${both}|`));
}

const picked = (command) => (s, [value], base) => {
  if (!possible(s, command, value, base)) return null;
  const frames = base.frames ?? {}, { tensor, phase, rank } = { ...s, [PICKED[command]]: value }, want = { tensor, phase, rank };
  const found = Object.assign({}, ...[`${tensor}|${phase}`, `*|*|${rank}`, `${tensor}|${phase}|${rank}`].map((k) => frames[k]));
  const home = AT_HOME(want, base), same = rank === base.rank;
  const now = { ...(home ? base : s), rank_detail: same ? base.rank_detail : null, ...found, ...want };
  const card = now.cards.find((c) => c.rank === rank), label = now.tensors.find((t) => t.id === tensor)?.label ?? tensor;
  if (found.status_tensor && found.status_rank) now.status = `${found.status_tensor} ${found.status_rank}`;
  else if (!found.status && !(home && same) && card) {
    const addend = card.addend ? `, addend ${card.addend} of ${card.addends}` : "";
    now.status = `Rank ${card.rank} holds ${label} ${card.text}${addend}.`;
  }
  return now;
};

// ---- the lab ----

const { render, mountPage } = lab({
  parts: {
    patterns: (s, ui) => patterns(ui.id),
    head: header,
    status: (s) => html`<p class="pl-status" role="status">${s.status}</p>`,
    notices: (s) => notices({ alert: s.last_error, run: s.run.error }),
    graph, operators, picture, rank: rankDetail, messages, loss, timeline,
  },
  skeleton: html`${["patterns", "head", "status", "notices", "graph"].map(slot)}<div class="pl-main">${slot("operators")}
    <div class="pl-centre">${slot("picture")}<div class="pl-below">${["loss", "timeline"].map(slot)}</div></div>
    ${slot("rank")}</div>${slot("messages")}`,
  measure(ui, root) {
    ui.width = Math.max(560, Math.floor(root.clientWidth || 940) - 8);
  },
  numbers: ["set_devices", "select_rank"],
  handlers,
  drawn: ({ root }) => root.querySelector(".pl-list:not([hidden]) .pl-active")?.scrollIntoView({ block: "nearest" }),
  // The kernel has dealt with a command: what it says now replaces what was typed.
  answered({ ui }) { for (const name of ui.sent) ui.drafts.delete(name); ui.sent.clear(); },
  alone: Object.fromEntries(Object.keys(PICKED).map((command) => [command, picked(command)])),
  possible,
});

export { mountPage };
export default { render };
