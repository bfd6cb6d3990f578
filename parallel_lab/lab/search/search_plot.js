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
    return { at, to, log: true, range: [Math.log10(low / 1.12), Math.log10(high * 1.12)], ticks: inside.filter((_, i) => i % step === 0) };
  }
  const pad = (high - low || high || 1) * 0.12, a = Math.max(0, low - pad), b = high + pad;
  const unit = round1024 ? 1024 ** Math.floor(Math.log(Math.max(b, 1)) / Math.log(1024)) : 1;
  const ticks = roundTicks(a / unit, b / unit, most).map((v) => v * unit);
  return { at: (v) => from + ((v - a) / (b - a)) * (to - from), to, log: false, range: [a, b], ticks };
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
  const ours = () => html`<svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="radiogroup" data-roving="1"
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
    ${together ? "" : label(own, "yours", near && oy >= wy)}</svg>`;
  const said = { alt: `${points.length} plans by cost and memory; the buttons before it are the same plans`, height };
  const drawn = figure("plans", ui, said, ours, () => plansFigure(s, order, { x, y, cap, front, about, together }));
  return html`<div role="group" class="pl-se-plot" aria-label="cost against memory">
    <h3>Every plan <small>line: ${s.line}</small></h3>${ui.plotly ? plansInTurn(points, s, ui, about) : ""}${drawn}</div>`;
}

// For keys and screen readers: plotly's points take the mouse alone.
function plansInTurn(points, s, ui, about) {
  const reached = points.find((p) => p.id === s.point) ?? points[0];
  const one = (p) => html`<button type="button" role="radio" data-key="${p.id}" aria-checked="${p.id === s.point}"
    tabindex="${p === reached ? 0 : -1}" data-command="select_point" data-value="${p.id}"${flag("disabled", !ui.can("select_point", p.id))}
    >${about(p)}</button>`;
  return html`<div class="pl-se-turn" role="radiogroup" data-roving="1" aria-label="plans by cost and memory">${points.map(one)}</div>`;
}

const SE_MARKS = { winner: ["diamond", 15, "var(--pl-accent)"], yours: ["square", 12, "#ca772b"], front: ["circle", 8, "var(--pl-muted)"],
  other: ["circle-open", 7, "var(--pl-muted)"] };

function plansFigure(s, order, { x, y, cap, front, about, together }) {
  const on = order.find((p) => p.id === s.point), line = s.points.filter((p) => p.id.startsWith("front"));
  const column = (at) => order.map((p) => SE_MARKS[p.kind][at]);
  const names = order.filter((p) => p.kind === "winner" || (p.kind === "yours" && !together));
  const place = (p) => ({ x: x.log ? Math.log10(p.cost) : p.cost, y: y.log ? Math.log10(p.memory) : p.memory });
  const axis = (scale, text) => ({ type: scale.log ? "log" : "linear", range: scale.range, tickvals: scale.ticks, ticktext: scale.ticks.map(text) });
  const label = (p) => {
    const left = x.at(p.cost) > PLOT.left + (x.to - PLOT.left) * 0.7, text = p.kind === "winner" && together ? "winner = yours" : p.kind;
    return { ...place(p), text, showarrow: false, xanchor: left ? "right" : "left", xshift: left ? -11 : 11,
      yshift: p.kind === "winner" ? 9 : -9, font: { size: 12.5, color: "var(--pl-fg)" } };
  };
  return {
    pick: "select_point",
    data: [
      { type: "scatter", mode: "lines", x: line.map((p) => p.cost), y: line.map((p) => p.memory), hoverinfo: "skip",
        line: { color: "var(--pl-muted)", width: 1.5, shape: front.length > 1 ? "hv" : "linear" } },
      { type: "scatter", mode: "markers", x: on ? [on.cost] : [], y: on ? [on.memory] : [], hoverinfo: "skip",
        marker: { symbol: "circle-open", size: 24, color: "var(--pl-accent)", line: { width: 2 } } },
      { type: "scatter", mode: "markers", x: order.map((p) => p.cost), y: order.map((p) => p.memory), hoverinfo: "text",
        hovertext: order.map((p) => about(p).replace(": ", "<br>")), customdata: order.map((p) => p.id),
        marker: { symbol: column(0), size: column(1), color: column(2),
          opacity: order.map((p) => (cap && p.memory > cap ? 0.4 : 1)) } },
    ],
    layout: {
      margin: { l: PLOT.left, r: PLOT.right, t: PLOT.top, b: PLOT.bottom },
      xaxis: { ...axis(x, (v) => costText(v, s.unit)), showgrid: false, ticks: "outside", ticklen: 4,
        title: { text: `${s.unit === "s" ? "time of a step" : "cost"}, predicted`, standoff: 3, font: { size: 11 } } },
      yaxis: axis(y, bytesText),
      annotations: [{ text: "a device holds", xref: "paper", yref: "paper", x: 0, xshift: 2 - PLOT.left, y: 1, yshift: 14,
        xanchor: "left", showarrow: false }, ...names.map(label)],
      shapes: cap ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: cap, y1: cap, line: { color: "var(--pl-bad)", dash: "dash", width: 1.5 } }] : [],
    },
  };
}
