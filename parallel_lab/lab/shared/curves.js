// The section "curves" (sections.py): times over sizes, both axes logarithmic. A curve is recognised by its dashes and by the
// name at its end as well as by its colour. The axes stay where they are ("within"); what a change has left behind is a ghost.

const CV = { left: 62, top: 22, bottom: 34, height: 252, names: 136, apart: 14 }; // pixels
const CV_DASHES = ["", "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2"], CV_PLOTLY = ["solid", "dash", "dot", "dashdot", "longdashdot"];

// The curves before the last change, if they are of the same axis; rendering again changes nothing.
function ghostOf(axis, found, ui) {
  const text = JSON.stringify([axis, found]), known = ui.curves;
  if (known?.text !== text) ui.curves = { text, axis, found, before: known?.axis === axis ? known.found : [] };
  return ui.curves.before;
}

BODIES.curves = ({ axis, x, curves: found, marks, within }, ui) => {
  const { width } = ui, right = width - CV.names, bottom = CV.height - CV.bottom, names = found.map(([name]) => name);
  const [low, high] = within.map(Math.log10), before = ghostOf(axis, found, ui);
  const [first, last] = [x[0], x.at(-1)].map(Math.log2);
  const atX = (size) => round(CV.left + ((Math.log2(size) - first) / (last - first)) * (right - CV.left));
  const atY = (time) => round(bottom - ((Math.log10(time) - low) / (high - low)) * (bottom - CV.top));
  const powers = Array.from({ length: Math.floor(high) - Math.ceil(low) + 1 }, (_, i) => 10 ** (Math.ceil(low) + i));
  const apart = width < 360 ? 16 : width < 560 ? 8 : 4; // powers of two between two labels
  const sizes = x.filter((size, i) => i % apart === 0);
  const drawn = (curve) => `M${curve.map((time, i) => `${atX(x[i])} ${atY(time)}`).join("L")}`;
  const line = ([name, curve], n) => html`<path class="pl-cv-line" data-key="${name}" stroke="${`var(--pl-cv-${n % HUES})`}"
    stroke-dasharray="${CV_DASHES[n % CV_DASHES.length]}" d="${drawn(curve)}"/>`;
  const ghost = ([name, curve]) => html`<path class="pl-cv-ghost" data-key="g${name}" d="${drawn(curve)}"/>`;
  const ends = found.map(([name, curve], n) => ({ name, n, y: atY(curve.at(-1)) })).sort((a, b) => a.y - b.y);
  ends.forEach((one, i) => { if (i) one.y = Math.max(one.y, ends[i - 1].y + CV.apart); });
  const timeAt = (size) => { // of the lowest line, between the sizes that were computed
    const i = Math.max(1, x.findIndex((one) => one >= size)), share = (size - x[i - 1]) / (x[i] - x[i - 1]);
    return Math.min(...found.map(([, curve]) => curve[i - 1] + share * (curve[i] - curve[i - 1])));
  };
  const mark = ([size, text]) => (size < x[0] || size > x.at(-1) ? "" : html`<g data-key="m${size}"><title>${text}</title>
    <path class="pl-cv-at" d="M${atX(size)} ${atY(timeAt(size))}V${bottom}"/>
    <circle class="pl-cv-dot" cx="${atX(size)}" cy="${atY(timeAt(size))}" r="4"/></g>`);
  const named = ({ name, n, y }) => html`<g data-key="n${name}"><path class="pl-cv-line" stroke="${`var(--pl-cv-${n % HUES})`}"
    stroke-dasharray="${CV_DASHES[n % CV_DASHES.length]}" d="M${right + 4} ${y}h22"/>
    <text class="pl-cv-name" x="${right + 30}" y="${round(y + 4)}">${name}</text></g>`;
  const alt = `time over ${axis} for ${names.join("; ")}. ${(marks ?? []).map(([, text]) => text).join("; ")}`;
  const ours = () => html`<svg width="${width}" height="${CV.height}" viewBox="0 0 ${width} ${CV.height}"
      role="img" aria-label="${alt}">
    ${powers.map((time) => html`<path class="pl-cv-grid" d="M${CV.left} ${atY(time)}H${right}"/>
      <text class="pl-cv-y" x="${CV.left - 6}" y="${atY(time) + 4}">${timeText(time)}</text>`)}
    ${sizes.map((size) => html`<text class="pl-cv-x" x="${atX(size)}" y="${bottom + 15}">${bytesText(size)}</text>`)}
    <path class="pl-cv-grid" d="M${CV.left} ${bottom}H${right}"/>
    <text class="pl-cv-x" x="${round((CV.left + right) / 2)}" y="${CV.height - 4}">${axis}, both axes logarithmic</text>
    <text class="pl-cv-title" x="0" y="11">time of a call</text>
    ${before.map(ghost)}${found.map(line)}${ends.map(named)}${(marks ?? []).map(mark)}</svg>`;
  const share = (y) => (bottom - y) / (bottom - CV.top);
  const made = () => ({
    data: [
      ...before.map(([name, curve]) => ({ type: "scatter", mode: "lines", x, y: curve, hoverinfo: "skip", name,
        line: { color: "var(--pl-muted)", width: 1.5 }, opacity: 0.35 })),
      ...found.map(([name, curve], n) => ({ type: "scatter", mode: "lines", x, y: curve, name, hoverinfo: "text",
        hovertext: curve.map((time, i) => `${name}<br>${bytesText(x[i])}: ${timeText(time)}`),
        line: { color: `var(--pl-cv-${n % HUES})`, width: 2, dash: CV_PLOTLY[n % CV_PLOTLY.length] } })),
      ...(marks ?? []).filter(([size]) => size >= x[0] && size <= x.at(-1)).map(([size, text]) => ({ type: "scatter",
        mode: "markers", x: [size], y: [timeAt(size)], hoverinfo: "text", hovertext: text, name: text,
        marker: { color: "var(--pl-fg)", size: 8 } })),
    ],
    layout: {
      margin: { l: CV.left, r: CV.names, t: CV.top, b: CV.bottom },
      xaxis: { type: "log", range: [Math.log10(x[0]), Math.log10(x.at(-1))], tickvals: sizes, ticktext: sizes.map(bytesText),
        showgrid: false, title: { text: `${axis}, both axes logarithmic`, standoff: 4, font: { size: 11 } } },
      yaxis: { type: "log", range: [low, high], tickvals: powers, ticktext: powers.map(timeText) },
      annotations: [{ text: "time of a call", xref: "paper", yref: "paper", x: 0, xshift: -CV.left, y: 1, yshift: 14,
        xanchor: "left", showarrow: false }, ...ends.map(({ name, n, y }) => ({ text: `${name}`, xref: "paper", yref: "paper",
        x: 1, xshift: 6, y: share(y), xanchor: "left", yanchor: "middle", showarrow: false, font: { color: `var(--pl-cv-${n % HUES})` } }))],
    },
  });
  return html`<figure class="pl-cv">${figure("curves", ui, { alt, height: CV.height }, ours, made)}</figure>`;
};
