// The lanes of the Pipeline Lab: a rank's actions as they are drawn, under them what ran, and the results it keeps. Hue is
// the micro-batch (its number is printed too), fill is the kind: F solid, B tint with a border, W dotted. Everything here
// is a function of the snapshot and of `ui`: what is selected, dragged, and how far the page was stepped.

const LABEL = 30, KEPT = 38; // pixels: names of lanes, what a rank keeps
const MUCH_LONGER = 1.3; // than the drawn step: then the drawn lanes keep the width
const NAMES = { F: "forward", B: "backward", W: "weight gradients" };
const WORD = /(\d+)([FBW])(\d+)/g;
const actionsOf = (name) => [...name.matchAll(WORD)].map(([, part, kind, n]) => ({ part: +part, kind, n: +n }));
const timeOf = (t) => String(Number(t.toFixed(3)));
const ranLanes = (s) => Object.entries(s.ran);

// ---- where things lie ----

// Heights of a lane's rows; few lanes are taller. Of what ran there is a thin row each.
function heights(s) {
  const { length } = s.lanes, ran = ranLanes(s).length;
  const cell = length > 6 ? (ran ? 18 : 25) : length > 4 ? 25 : length > 3 ? (ran ? 32 : 36) : 40;
  const thin = length > 6 ? 5 : 9, memory = length > 6 ? 7 : length > 4 ? 11 : 15, gap = length > 6 ? 3 : 7;
  return { cell, thin, memory, gap, lane: cell + ran * (thin + 1) + memory + 2 + gap, ran };
}

function geometry(s, ui) {
  const h = heights(s), left = LABEL, right = ui.width - KEPT;
  const ghosts = s.lanes.some((lane) => lane.left.length || lane.pending.length);
  const drawn = s.axis * (ghosts ? 1.12 : 1) || 1, all = Math.max(drawn, ...ranLanes(s).map(([, ran]) => ran.span));
  const axis = all <= MUCH_LONGER * drawn || ui.all ? all : drawn; // what ran beyond it is cut, until all is asked for
  const x = (t) => left + (t / axis) * (right - left);
  const most = Math.max(1, ...s.lanes.map((lane) => Math.max(lane.peak, lane.cap ?? 0)));
  return { h, left, right, axis, longer: all > MUCH_LONGER * drawn, x, most, per: (right - left) / axis, top: (rank) => 4 + rank * h.lane,
    bottom: 4 + s.lanes.length * h.lane };
}

// What stands in a lane, in order of time: cells, waits, cells that cannot run yet, and what is left to do.
function itemsOf(s, rank) {
  const lane = s.lanes[rank], items = [];
  const waits = new Map(s.waits.filter((w) => w[0] === rank).map((w) => [w[1], w]));
  const wait = (position) => {
    const w = waits.get(position);
    if (w && w[3] > w[2]) items.push({ key: `g${rank}-${position}`, rank, position, gap: true, start: w[2], end: w[3], text: w[4], links: w[5] });
  };
  lane.cells.forEach(([name, start, end], position) => {
    wait(position);
    items.push({ key: `c${rank}-${name}`, rank, position, name, start, end });
  });
  let at = lane.cells.at(-1)?.[2] ?? 0;
  const stuck = waits.get(lane.cells.length)?.[4];
  lane.pending.forEach((name, i) => {
    const took = widthOf(s, name);
    const position = lane.cells.length + i;
    items.push({ key: `c${rank}-${name}`, rank, position, name, start: at, end: at + took, pending: true, text: stuck });
    at += took;
  });
  const end = lane.cells.length + lane.pending.length;
  lane.left.forEach((name) => {
    const took = widthOf(s, name) * 0.8;
    items.push({ key: `n${rank}-${name}`, rank, position: end, name, start: at + 0.25 * s.nominal.F, end: at + 0.25 * s.nominal.F + took, ghost: true });
    at += took + 0.25 * s.nominal.F;
  });
  if (!lane.pending.length && !lane.left.length) wait(lane.cells.length);
  return items;
}

const widthOf = (s, name) => actionsOf(name).reduce((sum, a) => sum + s.nominal[a.kind], 0) || s.nominal.F;

// ---- marks ----

// The largest text that fits: kind and number, the number, the number squeezed a little.
function labelOf({ kind, n }, w, h) {
  const long = `${kind}${n}`, short = String(n);
  if (long.length * 6.3 + 4 <= w) return { text: long, size: h > 15 ? 11 : 9 };
  if (short.length * 5.8 + 2 <= w) return { text: short, size: h > 15 ? 10.5 : 9 };
  return w >= 2.5 * short.length + 0.5 ? { text: short, size: w < 8 ? 8 : 9, squeeze: round(w - 1.2) } : null;
}

function box(action, x, y, w, h, ui, again = 0) {
  const label = labelOf(action, w, h), inset = action.kind === "F" ? 0 : 0.6;
  const fill = action.kind === "W" ? html`fill="url(#${ui.id}-w${action.n % HUES})"` : "";
  const squeeze = label?.squeeze ? html`textLength="${label.squeeze}" lengthAdjust="spacingAndGlyphs"` : "";
  const text = label ? html`<text x="${round(x + w / 2)}" y="${round(y + h / 2 + 0.5)}" font-size="${label.size}"
    ${squeeze}>${label.text}</text>` : "";
  const forward = again > 2 ? html`<path class="pl-pi-again" d="M${round(x + again)} ${round(y + 1)}v${round(h - 2)}"/>` : "";
  return html`<g class="pl-pi-${action.kind} ${hue(action.n)}"><rect x="${round(x + inset)}" y="${round(y + inset)}"
    width="${round(Math.max(0.6, w - 0.7 - 2 * inset))}" height="${round(h - 2 * inset)}" rx="1.5" ${fill}/>${forward}${text}</g>`;
}

// An action, or several that run as one: a forward above, a backward below.
function cellBoxes(name, x, y, w, h, ui, s) {
  const actions = actionsOf(name), shown = actions.filter((a) => a.kind !== "W" || actions.length === 1);
  const again = (a) => (a.kind === "B" && s.again.includes(a.part) ? (s.nominal.F / (s.nominal.F + s.nominal.B)) * w : 0);
  return shown.map((a, i) => box(a, x, y + (i * h) / shown.length, w, h / shown.length, ui, again(a)));
}

const sayItem = (s, item) => {
  if (item.gap) return item.text;
  const said = actionsOf(item.name).map((a) => `${NAMES[a.kind]} of micro-batch ${a.n}${s.parts > s.lanes.length || s.twice ? ` in part ${a.part}` : ""}`);
  const what = `Rank ${item.rank}, ${item.name}: ${said.join(" with ")}`;
  if (item.ghost) return `${what}, still to do. Enter puts it at the end.`;
  if (item.pending) return item.text ?? `${what} cannot run yet.`;
  return `${what}, from ${timeOf(item.start)} to ${timeOf(item.end)} (predicted).`;
};

function itemMark(s, item, g, ui) {
  const { h } = g, y = g.top(item.rank), x = g.x(item.start), w = g.x(item.end) - x;
  const on = ui.sel === item.key, first = ui.sel ? on : item.key === ui.first;
  const fault = s.lanes[item.rank].faults.find(([at]) => !item.gap && !item.ghost && at === item.position);
  const later = ui.at !== null && item.end > ui.time && !item.ghost, now = later && item.start <= ui.time && ui.time < item.end;
  const kinds = ["pl-pi-item", item.gap && "pl-pi-gap", item.pending && "pl-pi-pending", item.ghost && "pl-pi-ghost"];
  kinds.push(on && "pl-on", fault && "pl-pi-fault", later && !now && "pl-pi-later", now && "pl-pi-now");
  kinds.push(ui.chain.has(item.key) && "pl-pi-chain", ui.drag?.key === item.key && "pl-pi-drag");
  const body = item.gap ? html`<rect class="pl-pi-empty" x="${round(x + 0.5)}" y="${y + 0.5}" width="${round(Math.max(1, w - 1))}" height="${h.cell - 1}"/>`
    : cellBoxes(item.name, x, y, w, h.cell, ui, s);
  const ring = html`<rect class="pl-pi-ring" x="${round(x - 0.3)}" y="${y - 0.6}" width="${round(Math.max(2, w - 0.1))}" height="${h.cell + 1.2}" rx="2"/>`;
  return html`<g class="${kinds.filter(Boolean).join(" ")}" data-key="${item.key}" data-item="${item.key}" data-rank="${item.rank}" data-position="${item.position}"
    role="button" tabindex="${first ? 0 : -1}" aria-label="${fault ? `${sayItem(s, item)} ${fault[1]}` : sayItem(s, item)}">
    <title>${fault ? fault[1] : sayItem(s, item)}</title>${body}${ring}</g>`;
}

// What ran, thin, under the drawn lane; on the same axis.
function ranMarks(s, lane, g) {
  const until = (time) => Math.min(g.x(time), g.right);
  return ranLanes(s).map(([source, ran], row) => {
    const y = g.top(lane.rank) + g.h.cell + 1 + row * (g.h.thin + 1), middle = round(y + g.h.thin / 2);
    const shown = ran.lanes[lane.rank].filter(([, start]) => start < g.axis);
    const bar = ([name, start, end]) => actionsOf(name).slice(0, 1).map((a) => html`<rect
      class="pl-pi-${a.kind} ${hue(a.n)}" x="${round(g.x(start))}" y="${y}"
      width="${round(Math.max(0.7, until(end) - g.x(start) - 0.4))}" height="${g.h.thin}"
      ><title>${`${source}: ${name}, ${timeText((end - start) * ran.tick_s)}`}</title></rect>`);
    const whole = lane.rank || g.h.thin < 9 ? "" : html`<text class="pl-pi-whole" x="${g.right + 5}" y="${middle}"
      >${ran.span > g.axis + 1e-9 ? "›" : ""}${timeText(ran.span * ran.tick_s)}</text>`;
    return html`<g class="pl-pi-ran" data-key="${source}"><rect class="pl-pi-line" x="${g.left}" y="${y}"
      width="${round(until(ran.span) - g.left)}" height="${g.h.thin}"/>
      <text class="pl-pi-source" x="${g.left - 4}" y="${middle}">${source[0]}</text>${shown.map(bar)}${whole}</g>`;
  });
}

// The results that a rank keeps, over time, with the cap as a line; what is over it is marked.
function keptMarks(s, lane, g, ui) {
  const top = g.top(lane.rank) + g.h.cell + 1 + g.h.ran * (g.h.thin + 1), { memory } = g.h, bottom = top + memory;
  const y = (value) => bottom - (value / g.most) * memory, points = [...lane.kept, [s.span, 0]];
  let line = `M${g.left} ${bottom}`, over = "";
  for (let i = 0; i + 1 < points.length; i += 1) {
    const [from, value] = points[i], a = round(g.x(from)), b = round(g.x(Math.max(from, points[i + 1][0])));
    line += `L${a} ${round(y(value))}L${b} ${round(y(value))}`;
    if (lane.cap !== null && value > lane.cap + 1e-9) over += `M${a} ${round(y(lane.cap))}H${b}V${round(y(value))}H${a}z`;
  }
  const value = ui.at === null ? lane.peak : lane.kept.filter(([t]) => t <= ui.time).at(-1)?.[1] ?? 0;
  const cap = lane.cap === null ? "" : html`<path class="pl-pi-cap" d="M${g.left} ${round(y(lane.cap))}H${round(g.right)}"/>`;
  const text = `${timeOf(value)}${lane.cap === null ? "" : `/${lane.cap}`}`, full = lane.cap !== null && value > lane.cap;
  return html`<g data-key="kept"><title>${`rank ${lane.rank} keeps at most ${timeOf(lane.peak)} (predicted)${lane.cap === null ? "" : `, ${lane.cap} fit`}`}</title>
    <rect class="pl-pi-line" x="${g.left}" y="${top}" width="${round(g.right - g.left)}" height="${memory}"/>
    <path class="pl-pi-kept" d="${line}L${round(g.x(s.span))} ${bottom}z"/>${over ? html`<path class="pl-pi-over" d="${over}"/>` : ""}${cap}
    <text class="pl-pi-number${full ? " pl-wrong" : ""}" x="${round(g.right + 5)}" y="${round(top + memory / 2)}">${text}</text></g>`;
}

function axisMarks(s, g) {
  const rough = g.axis / 12, power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((f) => f * power).find((f) => f >= rough) ?? power, marks = [];
  for (let t = 0; t <= g.axis + 1e-9; t += step) marks.push(t);
  const y = g.bottom;
  return html`<g class="pl-pi-axis" data-key="axis"><path d="M${g.left} ${y}H${round(g.right)}"/>${marks.map((t) => html`<path d="M${round(g.x(t))} ${y}v3"/>
    <text x="${round(g.x(t))}" y="${y + 10}">${timeOf(t)}</text>`)}
    <text class="pl-pi-unit" x="${round(g.right + KEPT)}" y="${y + 10}">ticks</text></g>`;
}

// Where a dragged cell would go, and how far the page was stepped.
function overMarks(s, g, ui) {
  const { drag } = ui, cursor = ui.at === null ? "" : html`<path class="pl-pi-cursor" data-key="cursor" d="M${round(g.x(ui.time))} 0V${g.bottom}"/>`;
  if (!drag || drag.to === null) return cursor;
  const x = g.x(drag.edge), y = g.top(drag.rank);
  return html`${cursor}<path class="pl-pi-drop" data-key="drop" d="M${round(x)} ${y - 3}v${g.h.cell + 6}"/>`;
}

const dots = (ui) => [...Array(HUES).keys()].map((n) => html`<pattern id="${ui.id}-w${n}" class="${hue(n)}" width="4" height="4"
  patternUnits="userSpaceOnUse"><rect class="pl-pi-ground" width="4" height="4"/><circle class="pl-pi-dot" cx="2" cy="2" r="1.15"/></pattern>`);

// The whole picture. Cells stand in the document by name, not by time: a node that moves would lose the focus.
function picture(s, ui) {
  const g = geometry(s, ui), byName = (a, b) => (a.key < b.key ? -1 : 1);
  const lane = (one) => {
    const y = g.top(one.rank), items = itemsOf(s, one.rank).sort(byName);
    const parts = one.parts.length > 1 ? html`<text class="pl-pi-parts" x="0" y="${round(y + g.h.cell + 6)}">${one.parts.join(" ")}</text>` : "";
    return html`<g data-key="lane${one.rank}"><rect class="pl-pi-line" x="${g.left}" y="${y}" width="${round(g.x(s.span) - g.left)}" height="${g.h.cell}"/>
      <text class="pl-pi-rank" x="0" y="${round(y + g.h.cell / 2)}">${one.rank}${s.recompute.includes(one.rank) ? "↻" : ""}</text>${parts}
      ${ranMarks(s, one, g)}${keptMarks(s, one, g, ui)}${items.map((item) => itemMark(s, item, g, ui))}</g>`;
  };
  const words = `${s.schedule.value}: ${plural(s.lanes.length, "rank")}, predicted${ranLanes(s).map(([source]) => ` and ${source}`).join("")}`;
  return html`<figure class="pl-pi-figure" data-key="figure"><svg width="${ui.width}" height="${g.bottom + 16}" viewBox="0 0 ${ui.width} ${g.bottom + 16}" role="group"
    aria-label="${words}; arrow keys go from action to action, the sentence above says what is selected"><defs>${dots(ui)}</defs>
    ${s.lanes.map(lane)}${axisMarks(s, g)}<g data-key="over">${overMarks(s, g, ui)}</g></svg>${refusal(s, ui, g)}</figure>`;
}

// What was refused, where it was tried.
function refusal(s, ui, g) {
  if (!s.last_error || !ui.tried) return "";
  const left = Math.max(0, Math.min(ui.width - 330, g.x(ui.tried.time) - 40)), top = g.top(ui.tried.rank) + g.h.cell + 4;
  return html`<p class="pl-pi-refused" data-key="refused" role="alert" style="left:${round(left)}px;top:${top}px"><b aria-hidden="true">!</b>
    ${s.last_error.replace(/^PipelineLab\.\w+: /, "")}</p>`;
}

function caption(s, ui) {
  const chip = (kind, text) => html`<span><svg width="17" height="12" aria-hidden="true">${box({ kind, n: 2 }, 0, 0, 17, 12, ui)}</svg>${text}</span>`;
  const ran = ranLanes(s).map(([source, one]) => `${source[0]} ${source}: a tick is ${timeText(one.tick_s)}`);
  return html`<p class="pl-pi-caption">${chip("F", "forward")}${chip("B", "backward")}${s.lanes.some((lane) => lane.cells.some(([name]) => name.includes("W"))) ? chip("W", "weight gradients") : ""}
    <span>hue, number: micro-batch</span><span>strip: results kept${s.lanes[0].cap === null ? "" : ", line: cap"}</span>
    ${ran.map((text) => html`<span>${text}</span>`)}</p>`;
}
