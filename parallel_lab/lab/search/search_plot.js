// The Search Lab's picture of costs: every plan is a point, its cost across and a device's bytes up; the line joins those
// that no other beats in both. A point is chosen with the mouse, or with arrows and Enter.

const PLOT = { left: 63, right: 12, top: 20, bottom: 34, height: 236 };
const FAR = 4; // times as large: then an axis is logarithmic

const costText = (value, unit) => (unit === "s" ? timeText(value) : bytesText(value));

// A function from value to place, and round values to write: linear, or logarithmic where the values lie far apart.
function scaleOf(values, from, to, most, round1024) {
  const low = Math.min(...values), high = Math.max(...values);
  if (low > 0 && high / low > FAR) {
    const [a, b] = [Math.log(low / 1.12), Math.log(high * 1.12)];
    const base = round1024 ? 2 : 10, every = round1024 ? [1] : [1, 2, 5], found = [];
    const first = Math.floor(a / Math.log(base));
    for (let p = first; p <= Math.ceil(b / Math.log(base)); p += 1) for (const f of every) found.push(f * base ** p);
    let inside = found.filter((v) => Math.log(v) >= a && Math.log(v) <= b);
    if (inside.length < 2) inside = roundTicks(low, high, most).filter((v) => v >= low);
    const step = Math.ceil(inside.length / most);
    const at = (v) => from + ((Math.log(Math.max(v, low / 1.12)) - a) / (b - a)) * (to - from);
    return { at, ticks: inside.filter((_, i) => i % step === 0) };
  }
  const pad = (high - low || high || 1) * 0.12, a = Math.max(0, low - pad), b = high + pad;
  const unit = round1024 ? 1024 ** Math.floor(Math.log(Math.max(b, 1)) / Math.log(1024)) : 1;
  const ticks = roundTicks(a / unit, b / unit, most).map((v) => v * unit);
  return { at: (v) => from + ((v - a) / (b - a)) * (to - from), ticks };
}

const samePlace = (a, b) => a.cost === b.cost && a.memory === b.memory;

// All that can be chosen, each place once: winner and own choice, the front, then the best plans with each candidate.
function plotted(s) {
  const kind = (p) => (["winner", "yours"].includes(p.id) ? p.id : "front");
  const found = [];
  const points = [...s.points.map((p) => ({ ...p, kind: kind(p) })), ...s.candidates.map((c) => ({ ...c, kind: "other" })),
    { ...s.shown, kind: "other" }];
  for (const p of points) if (!found.some((q) => q.id === p.id || (samePlace(p, q) && p.kind !== "yours"))) found.push(p);
  return found;
}

// What a point looks like: form and colour, and words for the two that have a name.
function mark(p, x, y) {
  if (p.kind === "winner") return html`<path class="pl-se-dot" d="M${x} ${y - 8}l7.5 8l-7.5 8l-7.5 -8z"/>`;
  if (p.kind === "yours") return html`<rect class="pl-se-dot" x="${x - 6}" y="${y - 6}" width="12" height="12"/>`;
  return html`<circle class="pl-se-dot" cx="${x}" cy="${y}" r="${p.kind === "front" ? 4 : 3.2}"/>`;
}

function plot(s, ui) {
  const { plot: width } = ui, { height } = PLOT, points = plotted(s), cap = s.capacity_bytes;
  const right = width - PLOT.right, bottom = height - PLOT.bottom;
  const x = scaleOf(points.map((p) => p.cost), PLOT.left, right, Math.max(2, Math.floor((right - PLOT.left) / 64)), s.unit !== "s");
  const y = scaleOf([...points.map((p) => p.memory), ...(cap ? [cap] : [])], bottom, PLOT.top, 5, true);
  const place = (p) => [round(x.at(p.cost)), round(y.at(p.memory))];
  const front = s.points.filter((p) => p.id.startsWith("front")).map(place);
  const line = front.map(([a, b], i) => (i ? `V${b}H${a}` : `M${a} ${b}`)); // what is between two of them costs the dearer
  const steps = front.map(([a, b], i) => (i ? `H${a}V${b}` : `M${a} ${b}`)).join("");
  const about = (p) => `${p.id}: ${costText(p.cost, s.unit)}, ${bytesText(p.memory)} of a device`;
  const reached = points.find((p) => p.id === s.point) ?? points[0];
  const one = (p) => {
    const [a, b] = place(p), on = p.id === s.point, over = cap && p.memory > cap ? " pl-se-over" : "";
    return html`<g class="pl-se-point pl-se-${p.kind}${over}${on ? " pl-on" : ""}" role="radio" data-key="${p.id}"
        aria-checked="${on}" tabindex="${p === reached ? 0 : -1}" data-command="select_point" data-value="${p.id}"
        aria-label="${about(p)}"${flag("disabled", !ui.can("select_point", p.id))}><title>${about(p)}</title>
      <circle class="pl-se-ring" cx="${a}" cy="${b}" r="11"/>${mark(p, a, b)}</g>`;
  };
  // the two that matter on top
  const order = [...points].sort((p, q) => ["other", "front", "yours", "winner"].indexOf(p.kind)
    - ["other", "front", "yours", "winner"].indexOf(q.kind));
  const [winner, own] = ["winner", "yours"].map((id) => points.find((p) => p.id === id));
  const together = samePlace(winner, own);
  const label = (p, text, below) => {
    const [a, b] = place(p), left = a > PLOT.left + (right - PLOT.left) * 0.7;
    return html`<text class="pl-se-name" data-key="l${p.id}" x="${left ? a - 12 : a + 12}" y="${below ? b + 15 : b - 9}"
      text-anchor="${left ? "end" : "start"}">${text}</text>`;
  };
  const [wx, wy] = place(winner), [ox, oy] = place(own), near = Math.abs(wx - ox) < 90 && Math.abs(wy - oy) < 26;
  const capLine = cap ? html`<g data-key="cap"><path class="pl-se-cap" d="M${PLOT.left} ${round(y.at(cap))}H${right}"/>
    <title>a device has ${bytesText(cap)}</title>
    <text class="pl-se-captext" x="${PLOT.left - 6}" y="${round(y.at(cap)) + 4}" text-anchor="end">${bytesText(cap)}</text></g>` : "";
  const free = (v) => !cap || Math.abs(y.at(v) - y.at(cap)) > 13;
  return html`<div role="group" class="pl-se-plot" aria-label="cost against memory">
    <h3>Every plan <small>line: ${s.line}</small></h3>
    <svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="radiogroup" data-roving="1"
      aria-label="plans by cost and memory">
    ${y.ticks.filter(free).map((v) => html`<path class="pl-se-grid" d="M${PLOT.left} ${round(y.at(v))}H${right}"/>
      <text class="pl-se-tick" x="${PLOT.left - 6}" y="${round(y.at(v)) + 4}" text-anchor="end">${bytesText(v)}</text>`)}
    ${x.ticks.map((v) => html`<path class="pl-se-grid" d="M${round(x.at(v))} ${bottom}v4"/>
      <text class="pl-se-tick" x="${round(x.at(v))}" y="${bottom + 16}" text-anchor="${x.at(v) > right - 16 ? "end" : "middle"}">${costText(v, s.unit)}</text>`)}
    <path class="pl-se-axis" d="M${PLOT.left} ${PLOT.top}V${bottom}H${right}"/>
    <text class="pl-se-tick" x="${right}" y="${height - 4}" text-anchor="end">${s.unit === "s" ? "time of a step" : "cost"}, predicted</text>
    <text class="pl-se-tick" x="2" y="10">a device holds</text>
    <path class="pl-se-line" d="${front.length > 1 ? steps : line.join("")}"/>${capLine}
    ${order.map(one)}
    ${label(winner, together ? "winner = yours" : "winner", near && wy > oy)}
    ${together ? "" : label(own, "yours", near && oy >= wy)}</svg></div>`;
}
