// The Recompute Lab: a button for every layer, and a bar for every forward and backward of the step. What all labs
// share is in page.js and sections.js. On a page of its own layers and cap can be chosen: it has the numbers of all
// choices.

const RC = { left: 34, top: 22, bottom: 24, height: 182 }; // pixels

function top(s, ui) {
  return html`${head(s, segments("set_cap-", s.cap.label, s.cap, "set_cap", ui, { title: (c) => `${c} results` }), ui)}`;
}

// Pressed: the layer is recomputed.
function layers(s, ui) {
  const one = ({ inside, work, again }, n) => html`<button type="button" class="pl-rc-layer" data-key="layer${n}"
    data-command="toggle" data-value="${n}" aria-pressed="${again}"${disabledUnless(ui, "toggle")}>
    <span><span class="pl-hidden">layer </span><b>${n}</b> ${again ? "again" : "keep"}</span>
    <small>${plural(inside, "result")}</small><small>${plural(work, "product")}</small></button>`;
  return html`<div role="group" aria-label="layers"><div class="pl-rc-layers">${s.layers.map(one)}</div>
    <p class="pl-rc-hint">keep: a layer's results stay until its backward; again: only its input stays.</p>
    <div class="pl-rc-buttons">${button("keep_all", "Keep all", ui)}${button("recompute_all", "Recompute all", ui)}
    ${button("count", "Count", ui, { on: s.run.state !== "running", title: "count a step on a simulated rank" })}
    ${button("show_par", "Show par", ui, { title: "asks for a choice of your own under the cap first" })}
    ${runLine(s.run, "pl-rc-hint", ui)}</div></div>`;
}

function curve(s, ui) {
  const { width } = ui, { height } = RC, bottom = height - RC.bottom, cap = s.cap.value;
  const most = Math.max(s.peak, cap) * 1.08, y = (n) => bottom - (n / most) * (bottom - RC.top);
  const each = (width - RC.left - 6) / s.moments.length, wide = each * 0.82;
  const left = (i) => RC.left + i * each + (each - wide) / 2;
  const madeOf = ({ phase, layer }) => (phase === "backward" && s.layers[layer].again ? s.layers[layer].made : 0);
  const saidOf = (m) => `${m.name}: ${plural(m.live, "result")}${madeOf(m) ? `, ${madeOf(m)} of them recomputed` : ""}`;
  const bar = (m, i) => {
    const { name, phase, live } = m, made = madeOf(m);
    const rect = (kind, from, to) => html`<rect class="pl-rc-${kind}" x="${round(left(i))}" y="${round(y(to))}"
      width="${round(wide)}" height="${round(y(from) - y(to))}"/>`;
    return html`<g data-key="m${i}"><title>${saidOf(m)}</title>${rect(phase, 0, live - made)}
      ${made ? rect("made", live - made, live) : ""}
      ${i % Math.ceil(26 / each) ? "" : html`<text x="${round(left(i) + wide / 2)}" y="${bottom + 12}">${name}</text>`}</g>`;
  };
  // of the numbers, from the peak on both ways, so many that none covers its neighbour
  const some = Math.ceil(20 / each), peak = s.moments.findIndex((m) => m.live === s.peak);
  const bearsNumber = (i) => (i - peak) % some === 0;
  const number = ({ live }, i) => {
    if (!bearsNumber(i)) return "";
    const over = live > cap ? "pl-rc-over" : live === s.peak ? "pl-rc-peak" : "";
    return html`<text class="${over}" x="${round(left(i) + wide / 2)}" y="${round(y(live) - 8)}">${live}</text>`;
  };
  const lines = [0, 20, 40, 60].filter((n) => n < most && Math.abs(y(n) - y(cap)) > 10);
  const grid = (n) => html`<path class="pl-rc-grid" d="M${RC.left} ${round(y(n))}H${width}"/>
    <text class="pl-rc-axis" x="${RC.left - 6}" y="${round(y(n))}">${n}</text>`;
  const alt = `results in memory after each forward and during each backward: at most ${s.peak}, ${cap} fit`;
  const ours = () => html`<svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img"
      aria-label="${alt}"><g>${lines.map(grid)}</g>
    ${s.moments.map(bar)}<path class="pl-rc-cap" d="M${RC.left} ${round(y(cap))}H${width}"/>
    <text class="pl-rc-axis pl-rc-over" x="${RC.left - 6}" y="${round(y(cap))}">${cap}</text>
    ${s.moments.map(number)}</svg>`;
  const named = s.moments.flatMap((_, i) => (i % Math.ceil(26 / each) ? [] : [i]));
  const made = () => momentsFigure(s, { most, lines, named, madeOf, saidOf, bearsNumber });
  return html`<div role="group" class="pl-section" aria-label="memory over the step"><h3>Memory over the step
    <small>results, predicted; green: after a forward, blue: during a backward, open: recomputed for it</small></h3>
    <figure class="pl-rc-figure">${figure("moments", ui, { alt, height }, ours, made)}</figure></div>`;
}

function momentsFigure(s, { most, lines, named, madeOf, saidOf, bearsNumber }) {
  const cap = s.cap.value, moments = s.moments, x = moments.map((_, i) => i);
  const colour = ({ phase }) => (phase === "forward" ? "#4ac8a1" : "#628de1");
  const bars = (y, marker) => ({ type: "bar", x, y, width: 0.82, marker, hoverinfo: "text", hovertext: moments.map(saidOf),
    textposition: "none" });
  const number = ({ live }, i) => ({ text: live === s.peak ? `<b>${live}</b>` : `${live}`, x: i, y: live, yshift: 8, showarrow: false,
    font: { color: live > cap ? "var(--pl-bad)" : "var(--pl-fg)" } });
  return {
    data: [
      bars(moments.map((m) => m.live - madeOf(m)), { color: moments.map(colour) }),
      bars(moments.map(madeOf), { color: "var(--pl-bg)", line: { color: "var(--pl-muted)", width: 1 } }),
    ],
    layout: {
      barmode: "stack", margin: { l: RC.left, r: 6, t: RC.top, b: RC.bottom },
      xaxis: { range: [-0.5, moments.length - 0.5], tickvals: named, ticktext: named.map((i) => moments[i].name), showgrid: false },
      yaxis: { range: [0, most], tickvals: lines },
      shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: cap, y1: cap, line: { color: "var(--pl-bad)", dash: "dash", width: 1.5 } }],
      annotations: [...moments.map(number).filter((_, i) => bearsNumber(i)), { text: `<b>${cap}</b>`, xref: "paper", x: 0, xanchor: "right",
        xshift: -3, y: cap, showarrow: false, font: { color: "var(--pl-bad)" } }],
    },
  };
}

// ---- without a kernel: what the model has found out about every choice (every_choice of model.py) is looked up ----

function chosen(s, layers, cap, base) {
  const { signs, numbers, status, fit, line, no_line } = s.every, size = s.moments.length + 2;
  const at = size * layers.reduce((row, { again }, n) => row + (again ? 2 ** n : 0), 0);
  const found = [...numbers.slice(at, at + size)].map((sign) => signs.indexOf(sign)), [peak, extra] = found.slice(-2);
  const fits = peak <= cap, products = layers.reduce((sum, { work }) => sum + work, 0);
  const told = (text, given) => text.replace(/\{(\w+)\}/g, (_, name) => given[name]);
  const [can, note] = fit[Number(fits)].map((text) => told(text, { cap }));
  const text = layers.map(({ again }, layer) => (again ? told(line, { layer }) : "")).filter(Boolean).join("\n");
  const sections = {
    ...s.sections, puzzle: { ...s.sections.puzzle, rows: [["by formula", peak, extra]], notes: [[note, fits]] },
    python: { ...s.sections.python, text: text || no_line },
  };
  return {
    // what was asked is asked of the choice that the page was made with
    predict: layers.every(({ again }, n) => again === base.layers[n].again) ? base.predict : { ...base.predict, open: null, last: null },
    layers, peak, sections, cap: { ...s.cap, value: cap }, status: told(status, { peak, fit: can, extra, products }),
    moments: s.moments.map((moment, n) => ({ ...moment, live: found[n] })),
    run: { ...s.run, text: "" }, // it counted another choice
  };
}

const each = (change) => (s, given, base) => chosen(
  s, s.layers.map((one, n) => ({ ...one, again: change(one, n, given) })), s.cap.value, base,
);

const { render, mountPage } = lab({
  classes: ["pl-rc"],
  story: STORY,
  parts: { head: top, layers, curve, ...sectionParts(["puzzle", "python"]) },
  skeleton: html`<div class="pl-top">${slot("head")}</div>${["layers", "curve"].map(slot)}<div class="pl-rc-below">${["puzzle", "python"].map(slot)}</div>`,
  numbers: ["set_cap", "toggle"],
  alone: {
    keep_all: each(() => false),
    recompute_all: each(() => true),
    toggle: each(({ again }, n, [at]) => again !== (n === at)),
    set_cap: (s, [cap], base) => chosen(s, s.layers, cap, base),
  },
  settings: (s) => [["set_cap", s.cap.value], ...s.layers.flatMap(({ again }, n) => (again ? [["toggle", n]] : []))],
  begin: "keep_all",
});
