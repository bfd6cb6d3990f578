// The section "curves" (sections.py): times over sizes, both axes logarithmic. A curve is recognised by its dashes and by the
// name at its end as well as by its colour.

const CV = { left: 62, right: 10, top: 16, bottom: 34, height: 252 }; // pixels
const CV_DASHES = ["", "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2"];

BODIES.curves = ({ axis, x, curves: found, marks }, ui) => {
  const { width } = ui, right = width - CV.right, bottom = CV.height - CV.bottom, names = found.map(([name]) => name);
  const times = found.flatMap(([, curve]) => curve), low = Math.log10(Math.min(...times)), high = Math.log10(Math.max(...times));
  const [first, last] = [x[0], x.at(-1)].map(Math.log2);
  const atX = (size) => round(CV.left + ((Math.log2(size) - first) / (last - first)) * (right - CV.left));
  const atY = (time) => round(bottom - ((Math.log10(time) - low) / (high - low)) * (bottom - CV.top));
  const powers = Array.from({ length: Math.floor(high) - Math.ceil(low) + 1 }, (_, i) => 10 ** (Math.ceil(low) + i));
  const apart = width < 560 ? 8 : 4; // powers of two between two labels
  const sizes = x.filter((size, i) => i % apart === 0 && atX(size) < right - 20);
  const line = ([name, curve], n) => html`<path class="pl-cv-line" data-key="${name}" stroke="${`var(--pl-cv-${n % HUES})`}"
    stroke-dasharray="${CV_DASHES[n % CV_DASHES.length]}"
    d="M${curve.map((time, i) => `${atX(x[i])} ${atY(time)}`).join("L")}"/>`;
  const timeAt = (size) => { // of the lowest line, between the sizes that were computed
    const i = Math.max(1, x.findIndex((one) => one >= size)), share = (size - x[i - 1]) / (x[i] - x[i - 1]);
    return Math.min(...found.map(([, curve]) => curve[i - 1] + share * (curve[i] - curve[i - 1])));
  };
  const mark = ([size, text]) => (size < x[0] || size > x.at(-1) ? "" : html`<g data-key="m${size}"><title>${text}</title>
    <path class="pl-cv-at" d="M${atX(size)} ${atY(timeAt(size))}V${bottom}"/>
    <circle class="pl-cv-dot" cx="${atX(size)}" cy="${atY(timeAt(size))}" r="4"/></g>`);
  const entry = (name, n) => html`<span><svg width="26" height="8" aria-hidden="true"><path class="pl-cv-line"
    stroke="${`var(--pl-cv-${n % HUES})`}" stroke-dasharray="${CV_DASHES[n % CV_DASHES.length]}" d="M1 4H25"/></svg>${name}</span>`;
  return html`<figure class="pl-cv"><svg width="${width}" height="${CV.height}" viewBox="0 0 ${width} ${CV.height}"
      role="img" aria-label="time over ${axis} for ${names.join("; ")}. ${(marks ?? []).map(([, text]) => text).join("; ")}">
    ${powers.map((time) => html`<path class="pl-cv-grid" d="M${CV.left} ${atY(time)}H${right}"/>
      <text class="pl-cv-y" x="${CV.left - 6}" y="${atY(time) + 4}">${timeText(time)}</text>`)}
    ${sizes.map((size) => html`<text class="pl-cv-x" x="${atX(size)}" y="${bottom + 15}">${bytesText(size)}</text>`)}
    <path class="pl-cv-grid" d="M${CV.left} ${bottom}H${right}"/>
    <text class="pl-cv-x" x="${round((CV.left + right) / 2)}" y="${CV.height - 4}">${axis}, both axes logarithmic</text>
    ${found.map(line)}${(marks ?? []).map(mark)}</svg><p class="pl-legend">${names.map(entry)}</p></figure>`;
};
