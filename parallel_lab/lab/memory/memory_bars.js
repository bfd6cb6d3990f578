// The drawings of the Memory Lab: stacked bars per rank with the capacity line, and memory over one step. Pure
// functions from snapshot to SVG.
//
// A kind of memory has a colour and a pattern of its own, and stands in the key with its bytes; the order from below is
// always the same.

const PATTERNED = ["grads", "optimizer", "activations", "gathered", "workspace"];
// pixels: axis labels, totals above the bars, names below, between "off" and the ranks
const M = { left: 62, top: 26, bottom: 26, gap: 22 };

const kindsOf = (s) => s.sections.memory.kinds;
const add = (values) => values.reduce((a, b) => a + b, 0);

// Once per page: what the fills refer to. No hatching: in every lab that is a sum still to be made.
function patterns(id) {
  const tile = (name, size, content) => html`<pattern id="${id}-${name}" width="${size}" height="${size}"
    patternUnits="userSpaceOnUse">${content}</pattern>`;
  return html`<svg class="pl-patterns" width="0" height="0" aria-hidden="true"><defs>
    ${tile("grads", 8, html`<path class="pl-mm-plus" d="M4 1.5V6.5M1.5 4H6.5"/>`)}
    ${tile("optimizer", 6, html`<rect class="pl-mm-stroke" width="6" height="1.3"/>`)}
    ${tile("activations", 6, html`<circle class="pl-mm-stroke" cx="3" cy="3" r="1.2"/>`)}
    ${tile("gathered", 6, html`<rect class="pl-mm-light" width="2.4" height="6"/>`)}
    ${tile("workspace", 8, html`<rect class="pl-mm-thin" x="2.5" y="2.5" width="3" height="3"/>`)}
  </defs></svg>`;
}

function block(kind, x, y, w, h, id) {
  const at = new Raw(`x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${round(h)}"`);
  const over = PATTERNED.includes(kind) ? html`<rect class="pl-over" ${at} fill="url(#${id}-${kind})"/>` : "";
  return html`<rect class="pl-mm-${kind}" ${at}/>${over}`;
}

const swatch = (kind, id) => html`<svg width="18" height="12" aria-hidden="true">
  ${block(kind, 0.5, 0.5, 17, 11, id)}</svg>`;

// Lines across, at sizes that are few and round in KiB, MiB, GiB; no number where the capacity has its own.
function sizesUpTo(most) {
  let unit = 1;
  while (unit * 1024 <= most) unit *= 1024;
  const steps = [0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256].map((f) => f * unit);
  const step = steps.find((size) => most / size <= 5) ?? steps.at(-1);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
}

function grid(most, y, width, cap) {
  const found = [];
  for (const at of sizesUpTo(most)) {
    const free = !cap || Math.abs(y(at) - y(cap)) >= 13;
    const text = html`<text class="pl-mm-axis" x="${M.left - 6}" y="${round(y(at))}">${bytesText(at)}</text>`;
    found.push(html`<path class="pl-mm-grid" d="M${M.left} ${round(y(at))}H${width}"/>${free ? text : ""}`);
  }
  return html`<g>${found}</g>`;
}

// Whether every rank holds as much of each kind: then one bar says it, and the step has the room, if there is any.
function ranksAlike(s, ui) {
  const [, first, ...others] = forChoices(s.sections.memory, s).bars;
  return !s.past && ui.bars >= 440 && others.every((bar) => bar.live.join() === first.live.join());
}

// Bars of the fullest rank without optimizer parallel, and of every rank with it, at one moment; where all are alike, one
// of them, and what it holds over the step.
function bars(s, ui) {
  const { bars: [off, ...ranks], kinds, line: cap } = forChoices(s.sections.memory, s), width = ui.bars, height = 246;
  const one = ranksAlike(s, ui), step = stepOf(s), peak = Math.max(...step.live.map(add));
  const most = Math.max(cap, off.total, ...ranks.map((bar) => bar.total), one ? peak : 0, s.past?.most ?? 0) * 1.04 || 1;
  const bottom = height - M.bottom, y = (bytes) => bottom - (bytes / most) * (bottom - M.top);
  const each = one ? 14 : (width - M.left - M.gap - 8) / (ranks.length + 1.25), offW = one ? 60 : Math.min(110, each);
  const first = M.left + M.gap + (one ? 72 : each * 1.25), w = one ? Math.max(64, ranks.length * each) : Math.min(92, each * 0.8);
  const begin = first + w + 2 * M.gap;
  const stack = (held, x, wide) => {
    let at = 0;
    return kinds.map(({ name }, k) => {
      const size = held.live[k], from = at;
      at += size;
      if (!size) return "";
      const h = y(from) - y(at), text = bytesText(size), cx = round(x + wide / 2), cy = (y(from) + y(at)) / 2;
      const half = text.length * 3.1 + 3, roomy = h >= 15 && 2 * half + 2 <= wide;
      return html`<g>${block(name, x, y(at), wide, Math.max(0.75, h), ui.id)}${roomy ? html`
        <rect class="pl-mm-plate" x="${round(cx - half)}" y="${round(cy - 7)}" width="${round(2 * half)}" height="14"
          rx="3"/>
        <text class="pl-mm-size" x="${cx}" y="${round(cy + 0.5)}">${text}</text>` : ""}</g>`;
    });
  };
  const total = (held, x, wide) => {
    const over = cap && held.total > cap ? " pl-mm-over" : "", text = bytesText(held.total);
    const room = Math.max(each, wide) - 4, number = text.split(" ")[0], shown = text.length * 6.8 <= room ? text : number;
    const tight = shown.length * 6.8 > room ? " pl-mm-tight" : ""; // the number alone: the axis has the unit
    return html`<text class="pl-mm-total${over}${tight}" x="${round(x + wide / 2)}"
      y="${round(Math.max(11, y(held.total) - 9))}">${shown}</text>`;
  };
  const said = (held) => {
    const parts = kinds.map((k, i) => held.live[i] && `${k.label} ${bytesText(held.live[i])}`).filter(Boolean);
    return `${held.name}, ${bytesText(held.total)}: ${parts.join(", ") || "nothing"}`;
  };
  const bar = (held, i) => {
    const x = one ? first : first + i * each + (each - w) / 2, on = i === s.rank, drawn = !one || !i;
    const reach = one ? first + (w - ranks.length * each) / 2 + i * each : first + i * each;
    return html`<g class="pl-mm-bar${on ? " pl-on" : ""}" role="radio" data-key="r${i}" data-rank="${i}"
        data-command="select_rank" data-value="${i}" tabindex="${on ? 0 : -1}"
        aria-checked="${on}"><title>${said(held)}</title>
      <rect class="pl-mm-reach" x="${round(reach)}" y="${one ? bottom + 2 : M.top - 20}" width="${round(each)}"
        height="${one ? 24 : bottom - M.top + 44}"/>${drawn ? stack(held, x, w) : ""}${drawn ? total(held, x, w) : ""}
      <text class="pl-mm-name" x="${round(reach + each / 2)}" y="${bottom + 15}">${one || w < 46 ? i : held.name}</text></g>`;
  };
  const offX = M.left + 6;
  const moment = s.moment.choices.find((c) => c.value === s.moment.value);
  const apart = one && ui.plotly, across = apart ? begin - M.gap : width; // the step is then a picture of its own
  const capLine = html`<g data-key="cap"><title>a device has ${bytesText(cap)}</title>
    <path class="pl-mm-cap" d="M${M.left} ${round(y(cap))}H${across}"/>
    <text class="pl-mm-axis pl-mm-over" x="${M.left - 6}" y="${round(y(cap))}">${bytesText(cap)}</text></g>`;
  const place = { left: 0, right: 4, top: M.top, bottom: M.bottom, height, most, cap };
  return html`<svg width="${across}" height="${height}" viewBox="0 0 ${across} ${height}" role="group"
    aria-label="bytes per rank, ${moment?.label ?? "at a moment of the recorded run"}, ${sourceText(s)}; the key has the same numbers">
    ${grid(most, y, across, cap)}${cap ? capLine : ""}
    <g data-key="off"><title>${said(off)}</title>${stack(off, offX, offW)}${total(off, offX, offW)}
      <text class="pl-mm-name" x="${round(offX + offW / 2)}" y="${bottom + 15}">${s.past ? "off, fullest" : "off"}</text></g>
    <path class="pl-mm-divide" d="M${round(first - M.gap / 2)} ${M.top - 8}V${bottom + 20}"/>
    ${one ? html`<text class="pl-mm-group" x="${round(first + w / 2)}" y="6">${plural(ranks.length, "rank")} alike</text>` : ""}
    ${one && !apart ? html`<g data-key="step">${stepMarks(s, ui, { x0: begin, x1: width - 4, top: M.top, bottom, y })}</g>` : ""}
    <g data-key="ranks" role="radiogroup" aria-label="the rank whose step and traffic are shown"
      data-roving="1">${ranks.map(bar)}</g>
    ${cap ? html`<path class="pl-mm-cap pl-mm-above" d="M${M.left} ${round(y(cap))}H${across}"/>` : ""}
  </svg>${one ? stepDrawn(s, ui, place, () => "") : ""}`;
}

function stepOf(s) {
  const found = s.steps_of[s.source.value];
  return found.steps[found.of[s.rank]];
}

// What a rank holds during each instruction of a step, stacked in the same order, between x0 and x1.
function stepMarks(s, ui, { x0, x1, top, bottom, y }) {
  const step = stepOf(s), n = step.live.length, peak = Math.max(...step.live.map(add), 1);
  const x = (i) => x0 + (i / Math.max(1, n)) * (x1 - x0);
  const area = (kind, k) => {
    const low = step.live.map((live) => add(live.slice(0, k))), high = step.live.map((live, i) => low[i] + live[k]);
    if (high.every((h, i) => h === low[i])) return "";
    const to = (i, value) => `L${round(x(i))} ${round(y(value))}`;
    const upper = high.map((value, i) => to(i, value) + to(i + 1, value)).join("");
    const lower = low.map((value, i) => to(i + 1, value) + to(i, value)).reverse().join("");
    const d = `M${upper.slice(1)}${lower}Z`;
    const over = html`<path class="pl-over" d="${d}" fill="url(#${ui.id}-${kind.name})"/>`;
    return html`<g><title>${kind.label}</title><path class="pl-mm-${kind.name} pl-mm-area" d="${d}"/>
      ${PATTERNED.includes(kind.name) ? over : ""}</g>`;
  };
  const phase = (p, i) => {
    const from = x(p.first), to = x(p.first + p.count), wide = p.phase.length * 6.3 + 6 <= to - from;
    return html`<g data-key="p${i}"><path class="pl-mm-phase" d="M${round(from)} ${top - 6}V${bottom + 4}"/>
      <rect class="pl-mm-band" x="${round(from + 1)}" y="${bottom + 4}" width="${round(Math.max(1, to - from - 2))}"
        height="14"/>
      <text class="pl-mm-band-text" x="${round((from + to) / 2)}"
        y="${bottom + 11.5}">${wide ? p.phase : to - from >= 10 ? p.phase[0] : ""}</text></g>`;
  };
  const px = (x(step.peak) + x(step.peak + 1)) / 2, said = `fullest: ${bytesText(peak)}`;
  return html`<title>rank ${s.rank} over one step, ${sourceText(s)}: at most ${bytesText(peak)} in instruction
    ${step.peak + 1} of ${n}</title><g>${kindsOf(s).map(area)}</g><g>${step.phases.map(phase)}</g>
    <path class="pl-mm-pin" d="M${round(px)} ${top - 4}V${bottom}"/>
    <text class="pl-mm-pin-text" x="${round(Math.min(px + 5, x1 - 6.6 * said.length))}" y="${top - 9}">${said}</text>`;
}

const stepAlt = (s) => `memory of rank ${s.rank} over one step`;

// The step as plotly draws it: the pointer reads the kinds of an instruction.
const stepDrawn = (s, ui, place, ours) => figure("step", ui, { alt: stepAlt(s), height: place.height }, ours, () => stepFigure(s, place));

const MM_FILLS = { params: ["#628de1", ""], gathered: ["#628de1", "|"], grads: ["#ca772b", "+"], optimizer: ["#adacff", "-"],
  activations: ["#4ac8a1", "."], workspace: ["var(--pl-ground)", "x"], inputs: ["var(--pl-bg)", ""] };

function stepFigure(s, { left, right, top, bottom, most, cap }) {
  const step = stepOf(s), kinds = kindsOf(s), n = step.live.length, ticks = sizesUpTo(most);
  const x = step.live.map((_, i) => i + 0.5);
  const ended = (values) => [values[0], ...values, values.at(-1)], across = [0, ...x, n]; // columns from edge to edge
  const area = ({ name }, k) => {
    const [colour, shape] = MM_FILLS[name];
    return { type: "scatter", mode: "lines", stackgroup: "step", x: across, y: ended(step.live.map((live) => live[k])), hoverinfo: "skip",
      line: { width: 0, shape: "hvh" }, fillcolor: colour, fillpattern: { shape, fillmode: "overlay", fgcolor: "#11151a", fgopacity: 0.45, size: 6 } };
  };
  const phaseOf = (i) => step.phases.find((p) => i >= p.first && i < p.first + p.count)?.phase ?? "";
  const said = (live, i) => [`${i + 1} of ${n}, ${phaseOf(i)}: <b>${bytesText(add(live))}</b>`,
    ...kinds.flatMap((kind, k) => (live[k] ? [`${kind.label} ${bytesText(live[k])}`] : [])).reverse()].join("<br>");
  const up = (at, colour, more) => ({ type: "line", yref: "paper", x0: at, x1: at, y0: 0, y1: 1, line: { color: colour, width: 1, ...more } });
  const word = (text, more) => ({ text, showarrow: false, yref: "paper", ...more });
  const line = cap ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: cap, y1: cap, line: { color: "var(--pl-bad)", dash: "dash", width: 1.5 } }] : [];
  const late = step.peak > n / 2, fullest = `<b>fullest: ${bytesText(Math.max(...step.live.map(add)))}</b>`;
  return {
    // what the pointer reads stands above the areas, and does not cover them
    data: [...kinds.map(area), { type: "scatter", mode: "lines", x, y: x.map(() => 0.9 * most), line: { width: 0 }, hoverinfo: "text",
      hovertext: step.live.map(said), hoverlabel: { align: "left" } }],
    layout: {
      hovermode: "x", margin: { l: left, r: right, t: top, b: bottom },
      xaxis: { range: [0, n], showticklabels: false, showgrid: false, fixedrange: false },
      yaxis: { range: [0, most], tickvals: ticks, ticktext: ticks.map(bytesText), showticklabels: left > 0 },
      shapes: [...line, ...step.phases.slice(1).map((p) => up(p.first, "var(--pl-muted)", { dash: "dot" })), up(step.peak + 0.5, "var(--pl-fg)")],
      annotations: [word(fullest, { x: step.peak + 0.5, y: 1, yshift: 9, xanchor: late ? "right" : "left", font: { color: "var(--pl-fg)" } }),
        ...step.phases.filter((p) => p.count > n / 12).map((p) => word(p.phase, { x: p.first + p.count / 2, y: 0, yanchor: "middle", yshift: -12 }))],
    },
  };
}

// The same as a picture of its own, where ranks differ.
function overTheStep(s, ui) {
  const { width } = ui, height = 190, top = 22, bottom = height - 30, peak = Math.max(...stepOf(s).live.map(add), 1);
  const cap = s.capacity.bytes <= peak * 1.6 ? s.capacity.bytes : 0, most = Math.max(peak, cap) * 1.05;
  const y = (bytes) => bottom - (bytes / most) * (bottom - top);
  const ours = () => html`<svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img"
    aria-label="${stepAlt(s)}">${grid(most, y, width, 0)}
    ${stepMarks(s, ui, { x0: M.left, x1: width - 4, top, bottom, y })}
    ${cap ? html`<path class="pl-mm-cap" d="M${M.left} ${round(y(cap))}H${width}"/>` : ""}</svg>`;
  return stepDrawn(s, ui, { left: M.left, right: 4, top, bottom: 30, height, most, cap }, ours);
}
