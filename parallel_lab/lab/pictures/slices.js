// How slices are drawn: where a block lies in the picture of its tensor, how it is marked, and which cards are alike.

// [down, across, panels, how many panels]: the dims by which a tensor is drawn, as the snapshot has them; one of fewer
// gets dims of size 1 (null).
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
  const w = (room.w - gap * (room.panels - 1)) / room.panels;
  const number = room.panel === null ? 0 : Math.floor((block[room.panel][0] / room.extent) * room.panels);
  const x = number * (w + gap) + (c0 / room.columns) * w, y = (r0 / room.rows) * room.h;
  return { x, y, w: ((c1 - c0) / room.columns) * w, h: ((r1 - r0) / room.rows) * room.h };
}

const rectOf = ({ x, y, w, h }) =>
  new Raw(`x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${round(h)}"`);

// The frame of a whole tensor on a rank's card, and in it what the rank has.
const outline = (room) => html`<rect class="pl-outline" width="${round(room.w)}" height="${round(room.h)}"/>`;
function cardPicture(room, content) {
  const [w, h] = [round(room.w + 2), round(room.h + 2)];
  return html`<svg viewBox="-1 -1 ${w} ${h}" width="${w}" height="${h}" aria-hidden="true">
    <rect class="pl-ground" width="${round(room.w)}" height="${round(room.h)}"/>${content}${outline(room)}</svg>`;
}

// What a rank reads of its neighbours' slices, in the colours of those, at least so thick that it can be seen.
function stripMarks(card, dims, room) {
  const own = blockBox(card, dims, room);
  return (card.strips ?? []).map((strip) => {
    const b = blockBox(strip, dims, room), h = Math.max(3, b.h), w = Math.max(3, b.w);
    const y = b.y < own.y ? b.y + b.h - h : b.y, x = b.x < own.x ? b.x + b.w - w : b.x;
    return html`<rect class="pl-strip ${hue(strip.slice)}" data-key="s${strip.slice}" ${rectOf({ x, y, w, h })}/>`;
  });
}

function blockMark(box, slice, { partial, id }) {
  const over = (pattern) => html`<rect class="pl-over" ${rectOf(box)} fill="url(#${id}-${pattern})"/>`;
  const parts = [html`<rect class="pl-block ${hue(slice)}" ${rectOf(box)}/>`];
  if (slice >= HUES) parts.push(over("dots"));
  if (partial) parts.push(over("hatch"));
  if (box.h < 9 || box.w < 7 * String(slice).length + 2) return parts;
  const cx = box.x + box.w / 2, cy = box.y + box.h / 2, size = Math.min(box.w, box.h) < 16 ? 11 : 12.5;
  const plate = { x: cx - size * 0.62, y: cy - size * 0.68, w: size * 1.24, h: size * 1.36 };
  if (partial) parts.push(html`<rect class="pl-plate ${hue(slice)}" ${rectOf(plate)} rx="2"/>`);
  parts.push(html`<text class="pl-index" x="${round(cx)}" y="${round(cy)}" font-size="${round(size)}">${slice}</text>`);
  return parts;
}

function patterns(id) {
  const tile = (name, size, content, turn = 0) => html`<pattern id="${id}-${name}" width="${size}" height="${size}"
    patternUnits="userSpaceOnUse"${flag(`patternTransform="rotate(${turn})"`, turn !== 0)}>${content}</pattern>`;
  return html`<svg class="pl-patterns" width="0" height="0" aria-hidden="true" focusable="false"><defs>
    ${tile("hatch", 6, html`<rect class="pl-hatch" width="2" height="6"/>`, 45)}
    ${tile("dots", 6, html`<circle class="pl-hatch" cx="3" cy="3" r="1.1"/>`)}
    <marker id="${id}-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">
      <path class="pl-arrow" d="M0 .8 7.2 4 0 7.2z"/></marker>
  </defs></svg>`;
}

// Ranks of the same addend group, and of the same data, read off the cards themselves.
const alikeTo = (cards, card) => cards.filter((c) => c.slice === card.slice && String(c.block) === String(card.block));
const ranksOf = (cards) => cards.map((c) => c.rank);
const byOne = (cards) => [...new Map(cards.map((c) => [c.slice, c])).values()]; // one card per slice

function replicasOf(cards, card) {
  return ranksOf(alikeTo(cards, card).filter((c) => c.addend === card.addend && c.rank !== card.rank));
}

function addendsOf(cards, card) {
  if (!card.addend) return [];
  return ranksOf(alikeTo(cards, card).filter((c) => c.rank === card.rank || c.addend !== card.addend));
}

function coordinateText(s, card) {
  const { device_matrix: matrix, axis_names: names } = s.picture;
  const parts = card.coordinates.map((at, i) => [names[i] ?? `axis ${i}`, at, matrix[i]]);
  const text = ([name, at]) => `${name.replace("dim ", "d")}${/\d$/.test(name) ? "=" : ""}${at}`;
  return parts.filter(([, , size]) => size > 1).map(text).join(" ");
}
