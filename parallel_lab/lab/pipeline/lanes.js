// The lanes of the Pipeline Lab: a rank's actions as they are drawn, under them what ran, and the results it keeps.
// Hue is the micro-batch (its number is printed too), fill is the kind: F solid, B tint with a border, W dotted.
// Everything here is a function of the snapshot and of `ui`: what is selected, dragged, and how far it was stepped.

const LABEL = 40, KEPT = 38, RAN = 47; // pixels: names of lanes, what a rank keeps, how long it ran
const DIGIT = 4.2, NUMBER = 6; // pixels of a number, squeezed as far as it can be read: of a digit, and of all
const CELL = 11, MOST_WIDE = 4000; // where lanes scroll: of a cell, and of all of them
const EDGE = 8; // between what is brought in sight and the end of the box that scrolls
const MUCH_LONGER = 1.3; // than the drawn step: then the drawn lanes keep the width
const NAMES = { F: "forward", B: "backward", W: "weight gradients" };
const WORD = /(\d+)([FBW])(\d+)/g;
const actionsOf = (name) => [...name.matchAll(WORD)].map(([, part, kind, n]) => ({ part: +part, kind, n: +n }));
const timeOf = (t) => String(Number(t.toFixed(3)));
const ranLanes = (s) => Object.entries(s.ran);

// ---- where things lie ----

// Heights of a lane's rows: what ran has a thin row each, for which the cells make room; all stays where it is. They
// are lower below a story.
function heights(s, ui) {
  const { length } = s.lanes, ran = ranLanes(s).length, low = tellsNow(s, ui);
  const lane = length > 6 ? (low ? 28 : 30) : length > 4 ? (low ? 37 : 40) : length > 3 ? (low ? 56 : 60) : low ? 62 : 66;
  const thin = length > 6 ? 3 : length > 4 ? 5 : 9, memory = length > 6 ? (ran ? 4 : 7) : length > 4 ? 9 : ran ? 11 : 15;
  const gap = length > 6 ? 2 : length > 4 ? 3 : 5;
  return { cell: lane - ran * (thin + 1) - memory - 2 - gap, thin, memory, gap, lane, ran };
}

// Where the box leaves the cells no room for their numbers, the lanes are wider than it, and scroll.
function geometry(s, ui) {
  const h = heights(s, ui), left = LABEL, behind = h.ran && h.thin >= 9 ? RAN : KEPT;
  const ghosts = s.lanes.some((lane) => lane.left.length || lane.pending.length);
  const drawn = s.axis * (ghosts ? 1.12 : 1) || 1, all = Math.max(drawn, ...ranLanes(s).map(([, ran]) => ran.span));
  const axis = all <= MUCH_LONGER * drawn || ui.all ? all : drawn; // what ran beyond it is cut, until all is asked for
  const room = ui.width - behind - left, least = Math.min(axis, ...Object.values(s.nominal).filter((time) => time > 0));
  const digits = String(valueOf(s.micro_batches) - 1).length;
  const scrolls = (room / axis) * least < Math.max(NUMBER, DIGIT * digits);
  const right = left + (scrolls ? Math.max(room, Math.min(MOST_WIDE, (axis * CELL) / least)) : room);
  const x = (t) => left + (t / axis) * (right - left);
  const most = Math.max(1, ...s.lanes.map((lane) => Math.max(lane.peak, lane.cap ?? 0)));
  const top = (rank) => 4 + rank * h.lane, longer = all > MUCH_LONGER * drawn;
  const per = (right - left) / axis, bottom = top(s.lanes.length);
  return { h, left, right, width: round(right + behind), scrolls, axis, longer, x, most, per, top, bottom };
}

// Scroll lanes so far that x, a place in their picture, is in sight next to the names.
function bringInSight(root, x) {
  const box = root.querySelector(".pl-pi-scroll[data-scrolls]");
  if (!box) return;
  const first = x - LABEL - EDGE, last = x + EDGE - box.clientWidth;
  box.scrollLeft = Math.max(last, Math.min(first, box.scrollLeft));
}

// What stands in a lane, in order of time: cells, waits, cells that cannot run yet, and what is left to do.
function itemsOf(s, rank) {
  const lane = s.lanes[rank], items = [];
  const waits = new Map(s.waits.filter((w) => w[0] === rank).map((w) => [w[1], w]));
  const wait = (position) => {
    const [, , start, end, text, links] = waits.get(position) ?? [0, 0, 0, 0];
    if (end > start) items.push({ key: `g${rank}-${position}`, rank, position, gap: true, start, end, text, links });
  };
  lane.cells.forEach(([name, start, end], position) => {
    wait(position);
    items.push({ key: `c${rank}-${name}`, rank, position, name, start, end });
  });
  let at = lane.cells.at(-1)?.[2] ?? 0;
  const apart = 0.25 * s.nominal.F;
  const stuck = waits.get(lane.cells.length)?.[4];
  lane.pending.forEach((name, i) => {
    const start = at, position = lane.cells.length + i;
    at += widthOf(s, name);
    items.push({ key: `c${rank}-${name}`, rank, position, name, start, end: at, pending: true, text: stuck });
  });
  const end = lane.cells.length + lane.pending.length;
  lane.left.forEach((name) => {
    const start = at + apart;
    at = start + 0.8 * widthOf(s, name);
    items.push({ key: `n${rank}-${name}`, rank, position: end, name, start, end: at, ghost: true });
  });
  if (!lane.pending.length && !lane.left.length) wait(lane.cells.length);
  return items;
}

const widthOf = (s, name) => actionsOf(name).reduce((sum, a) => sum + s.nominal[a.kind], 0) || s.nominal.F;

// ---- marks ----

const LINE = 9; // px that a number needs

// The largest text that fits: kind and number, the number, the number squeezed a little.
function labelOf({ kind, n }, w, h) {
  const long = `${kind}${n}`, short = String(n);
  if (h < LINE) return null;
  if (long.length * 6.3 + 4 <= w) return { text: long };
  if (short.length * 6.3 + 2 <= w) return { text: short };
  return w >= 2.5 * short.length + 0.5 ? { text: short, squeeze: round(w - 1.2) } : null;
}

// One dash at the foot of a cell of its lane's second part, two of its third: numbers are of micro-batches.
function dashes(count, x, y, w) {
  const step = Math.min(6, (w - 4) / count), at = (k) => round(x + 2 + k * step);
  const line = [...Array(Math.max(0, count)).keys()].map((k) => `M${at(k)} ${round(y)}h${round(step * 0.7)}`).join("");
  return line && step > 1 ? html`<path class="pl-pi-part" d="${line}"/>` : "";
}

function box(action, x, y, w, h, ui, again = 0, later = 0) {
  const label = labelOf(action, w, h), inset = action.kind === "F" ? 0 : 0.6;
  const fill = action.kind === "W" ? html`fill="url(#${ui.id}-w${action.n % HUES})"` : "";
  const squeeze = label?.squeeze ? html`textLength="${label.squeeze}" lengthAdjust="spacingAndGlyphs"` : "";
  const text = label ? html`<text x="${round(x + w / 2)}" y="${round(y + h / 2 + 0.5)}" font-size="11"
    ${squeeze}>${label.text}</text>` : "";
  const split = html`<path class="pl-pi-again" d="M${round(x + again)} ${round(y + 1)}v${round(h - 2)}"/>`;
  return html`<g class="pl-pi-${action.kind} ${hue(action.n)}"><rect x="${round(x + inset)}" y="${round(y + inset)}"
    width="${round(Math.max(0.6, w - 0.7 - 2 * inset))}" height="${round(h - 2 * inset)}" rx="1.5" ${fill}/>
    ${again > 2 ? split : ""}${text}${dashes(later, x, y + h - 2.6, w)}</g>`;
}

// An action, or several that run as one: a forward above, a backward below; left and right where the lane is too low for
// two numbers.
function cellBoxes({ name, rank }, x, y, w, h, ui, s) {
  const actions = actionsOf(name), shown = actions.filter((a) => a.kind !== "W" || actions.length === 1);
  const part = s.nominal.F / (s.nominal.F + s.nominal.B); // of a backward that runs its forward again first
  const again = (a) => (a.kind === "B" && s.again.includes(a.part) ? part * wide : 0);
  const low = h / shown.length < LINE, [wide, high] = low ? [w / shown.length, h] : [w, h / shown.length];
  const at = (i) => (low ? [x + i * wide, y] : [x, y + i * high]), { parts } = s.lanes[rank];
  return shown.map((a, i) => box(a, ...at(i), wide, high, ui, again(a), parts.indexOf(a.part)));
}

const severalParts = (s) => s.parts > s.lanes.length || s.twice;

function sayItem(s, item) {
  if (item.gap) return item.text;
  const where = (a) => (severalParts(s) ? ` in part ${a.part}` : "");
  const said = actionsOf(item.name).map((a) => `${NAMES[a.kind]} of micro-batch ${a.n}${where(a)}`);
  const what = `Rank ${item.rank}, ${item.name}: ${said.join(" with ")}`;
  if (item.ghost) return `${what}, still to do. Enter puts it at the end.`;
  if (item.pending) return item.text ?? `${what} cannot run yet.`;
  return `${what}, from ${timeOf(item.start)} to ${timeOf(item.end)} (predicted).`;
}

function itemMark(s, item, g, ui) {
  const { h } = g, y = g.top(item.rank), x = g.x(item.start), w = g.x(item.end) - x;
  const on = ui.sel === item.key, first = ui.sel ? on : item.key === ui.first, stands = !item.gap && !item.ghost;
  const fault = s.lanes[item.rank].faults.find(([at]) => stands && at === item.position)?.[1];
  const past = s.past?.doing.get(item.rank), later = !s.past && ui.at !== null && item.end > ui.time && stands;
  const now = stands && past ? item.name.includes(past) : later && item.start <= ui.time;
  const kinds = ["pl-pi-item", item.gap && "pl-pi-gap", item.pending && "pl-pi-pending", item.ghost && "pl-pi-ghost"];
  kinds.push(on && "pl-on", fault && "pl-pi-fault", later && !now && "pl-pi-later", now && "pl-pi-now");
  kinds.push(ui.chain.has(item.key) && "pl-pi-chain", ui.drag?.key === item.key && "pl-pi-drag");
  const empty = html`<rect class="pl-pi-empty" x="${round(x + 0.5)}" y="${y + 0.5}" width="${round(Math.max(1, w - 1))}"
    height="${h.cell - 1}"/>`;
  const body = item.gap ? empty : cellBoxes(item, x, y, w, h.cell, ui, s);
  const said = sayItem(s, item);
  return html`<g class="${kinds.filter(Boolean).join(" ")}" data-key="${item.key}" data-item="${item.key}"
    role="button" tabindex="${first ? 0 : -1}"><title>${fault ? `${said} ${fault}` : said}</title>
    ${body}<rect class="pl-pi-ring" x="${round(x - 0.3)}" y="${y - 0.6}" width="${round(Math.max(2, w - 0.1))}"
    height="${h.cell + 1.2}" rx="2"/></g>`;
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
      >${(ran.whole ?? ran.span) > g.axis + 1e-9 ? "›" : ""}${timeText((ran.whole ?? ran.span) * ran.tick_s)}</text>`;
    return html`<g class="pl-pi-ran" data-key="${source}"><rect class="pl-pi-line" x="${g.left}" y="${y}"
      width="${round(until(ran.span) - g.left)}" height="${g.h.thin}"/>
      ${shown.map(bar)}${whole}</g>`;
  });
}

// The results that a rank keeps, over time, with the cap as a line; what is over it is marked.
function keptMarks(s, lane, g, ui) {
  const top = g.top(lane.rank) + g.h.cell + 1 + g.h.ran * (g.h.thin + 1), { memory } = g.h, bottom = top + memory;
  const { cap } = lane, y = (value) => round(bottom - (value / g.most) * memory), points = [...lane.kept, [s.span, 0]];
  let line = `M${g.left} ${bottom}`, over = "";
  for (let i = 0; i + 1 < points.length; i += 1) {
    const [from, value] = points[i], a = round(g.x(from)), b = round(g.x(Math.max(from, points[i + 1][0])));
    line += `L${a} ${y(value)}L${b} ${y(value)}`;
    if (cap !== null && value > cap + 1e-9) over += `M${a} ${y(cap)}H${b}V${y(value)}H${a}z`;
  }
  const value = ui.at === null ? lane.peak : lane.kept.filter(([t]) => t <= ui.time).at(-1)?.[1] ?? 0;
  const then = s.past?.at == null ? null : s.past.holds[lane.rank];
  const most = `rank ${lane.rank} keeps at most ${timeOf(lane.peak)} (predicted)`;
  const [title, text, full] = then !== null ? [`rank ${lane.rank} keeps ${bytesText(then)} of activations then`, s.past.unit.text(then), false] : cap === null ? [most, timeOf(value), false]
    : [`${most}, ${cap} fit`, `${timeOf(value)}/${cap}`, value > cap];
  return html`<g data-key="kept"><title>${title}</title>
    <rect class="pl-pi-line" x="${g.left}" y="${top}" width="${round(g.right - g.left)}" height="${memory}"/>
    <path class="pl-pi-kept" d="${line}L${round(g.x(s.span))} ${bottom}z"/>
    ${over ? html`<path class="pl-pi-over" d="${over}"/>` : ""}
    ${cap === null ? "" : html`<path class="pl-pi-cap" d="M${g.left} ${y(cap)}H${round(g.right)}"/>`}
    <text class="pl-pi-number${full ? " pl-wrong" : ""}" x="${round(g.right + 5)}"
      y="${round(top + memory / 2)}">${text}</text></g>`;
}

function axisMarks(g) {
  const y = g.bottom;
  const mark = (t) => html`<path d="M${round(g.x(t))} ${y}v3"/>
    <text x="${round(g.x(t))}" y="${y + 10}">${timeOf(t)}</text>`;
  return html`<g class="pl-pi-axis" data-key="axis"><path d="M${g.left} ${y}H${round(g.right)}"/>${roundTicks(0, g.axis, 12).map(mark)}
    <text class="pl-pi-unit" x="${g.width}" y="${y + 10}">ticks</text></g>`;
}

// Where a dragged cell would go, and how far the page was stepped.
function overMarks(s, g, ui) {
  const { drag } = ui, line = (name, x, y, to) => html`<path class="pl-pi-${name}" data-key="${name}"
    d="M${round(x)} ${y}V${to}"/>`;
  const time = s.past ? s.past.at : ui.at === null ? null : ui.time;
  const cursor = time === null ? "" : line("cursor", Math.min(g.x(time), g.right), 0, g.bottom);
  if (!drag || drag.to === null) return cursor;
  const y = g.top(drag.onto);
  return [cursor, line("drop", g.x(drag.edge), y - 3, y + g.h.cell + 3)];
}

const dots = (ui) => [...Array(HUES).keys()].map((n) => html`<pattern id="${ui.id}-w${n}" class="${hue(n)}" width="4"
  height="4" patternUnits="userSpaceOnUse"><rect class="pl-pi-ground" width="4" height="4"/>
  <circle class="pl-pi-dot" cx="2" cy="2" r="1.15"/></pattern>`);

// One lane. Cells stand in the document by name, not by time: a node that moves would lose the focus.
function laneMarks(s, lane, g, ui) {
  const { rank } = lane, y = g.top(rank), items = itemsOf(s, rank).sort((a, b) => (a.key < b.key ? -1 : 1));
  return html`<g data-key="lane${rank}"><rect class="pl-pi-line" x="${g.left}" y="${y}"
      width="${round(g.x(s.span) - g.left)}" height="${g.h.cell}"/>${ranMarks(s, lane, g)}${keptMarks(s, lane, g, ui)}
    ${items.map((item) => itemMark(s, item, g, ui))}</g>`;
}

// What stands before a lane, and stays there when the lanes scroll: its rank, the parts it holds, whose times ran.
function laneNames(s, { rank, parts }, g) {
  const y = g.top(rank), again = s.recompute.includes(rank) ? "↻" : "", below = y + g.h.cell + 1;
  const rows = ranLanes(s).map(([name]) => name[0]), letters = g.h.thin < 9 && rows.length ? [rows.join(" ")] : rows;
  const apart = (rows.length / (letters.length || 1)) * (g.h.thin + 1); // thin rows have a letter each in one line
  const source = (text, row) => html`<text class="pl-pi-source" x="${g.left - 4}"
    y="${round(below + (row + 0.5) * apart - 0.5)}">${text}</text>`;
  // above the line of an "s": "5 13" next to it would be read as 13 seconds; behind the rank where two lines do not fit
  const higher = parts.length > 1 && g.h.ran, oneLine = higher && g.h.cell < 20, name = `${rank}${again}`;
  const middle = y + g.h.cell / 2, at = oneLine ? middle : higher ? below - 4 : below + 5;
  const held = html`<text class="pl-pi-parts" x="${oneLine ? 4 + 8 * name.length : 0}" y="${round(at)}">${parts.join(" ")}</text>`;
  return html`<g data-key="names${rank}"><text class="pl-pi-rank" x="0" y="${round(higher && !oneLine ? middle - 4 : middle)}"
    >${name}</text>${parts.length > 1 ? held : ""}${letters.map(source)}</g>`;
}

// The whole picture.
function picture(s, ui) {
  const g = geometry(s, ui), height = g.bottom + 16, shown = ["predicted", ...ranLanes(s).map(([source]) => source)];
  const words = `${s.schedule.value}, ${plural(s.lanes.length, "rank")}, ${shown.join(" and ")}`;
  return html`<figure class="pl-pi-figure" data-key="figure"><div class="pl-pi-scroll" data-key="scroll"
    ${flag("data-scrolls", g.scrolls)}><svg class="pl-pi-names" width="${g.left}" height="${g.bottom}"
      viewBox="0 0 ${g.left} ${g.bottom}" aria-hidden="true">${s.lanes.map((lane) => laneNames(s, lane, g))}</svg>
    <svg class="pl-pi-lanes" width="${g.width}" height="${height}" viewBox="0 0 ${g.width} ${height}" role="group"
      aria-label="${words}; arrow keys go from action to action, the sentence above says what is selected">
    <defs>${dots(ui)}</defs>${s.lanes.map((lane) => laneMarks(s, lane, g, ui))}${axisMarks(g)}
    <g data-key="over">${overMarks(s, g, ui)}</g></svg></div>${refusal(s, ui, g)}</figure>`;
}

// What was refused, where it was tried.
function refusal(s, ui, g) {
  if (!s.last_error || !ui.tried) return "";
  const left = Math.max(0, Math.min(ui.width - 330, g.x(ui.tried.time) - 40 - (ui.scrolled ?? 0)));
  return html`<p class="pl-pi-refused" data-key="refused" role="alert"
    style="left:${round(left)}px;top:${g.top(ui.tried.rank) + g.h.cell + 4}px"><b aria-hidden="true">!</b>
    ${plainly(s.last_error)}</p>`;
}

function caption(s, ui) {
  const chip = (kind) => html`<span><svg width="17" height="12" aria-hidden="true">
    ${box({ kind, n: 2 }, 0, 0, 17, 12, ui)}</svg>${NAMES[kind]}</span>`;
  const divided = s.lanes.some((lane) => lane.cells.some(([name]) => name.includes("W")));
  const how = s.run.state === "recorded" ? " (recorded)" : "";
  const ran = ranLanes(s).map(([source, one]) => `${source[0]} ${source}${how}, a tick ${timeText(one.tick_s)}`);
  const strip = `strip: results kept${s.lanes[0].cap === null ? "" : ", line: cap"}`;
  const parts = severalParts(s) ? ["dash: second part"] : [];
  const now = s.past?.at == null ? [] : [`right: ${s.past.unit.name} of activations then`];
  const said = ["hue: micro-batch", ...parts, ...(now.length ? now : [strip]), ...ran];
  if (geometry(s, ui).scrolls) said.push("the lanes scroll sideways");
  return html`<p class="pl-pi-caption">${["F", "B", ...(divided ? ["W"] : [])].map(chip)}
    ${said.map((text) => html`<span>${text}</span>`)}</p>`;
}
