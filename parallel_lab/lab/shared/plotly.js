// Pictures that plotly draws in a live notebook, and not we: they zoom, and say what the pointer is over. Its script
// comes from the kernel, packed, once for all labs of a page, and needs no network. Until it is there, on a page of its own,
// and where plotly is missing, ours is shown.

const ASK_ANEW_MS = 20000; // the view that had asked may be gone

async function unpackedPlotly(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const text = await new Response(stream).text();
  // as a module: neither a page's AMD loader nor its global names are touched
  const parts = ["const module = { exports: {} };\n", text, "\nexport default module.exports;"];
  const url = URL.createObjectURL(new Blob(parts, { type: "text/javascript" }));
  try { return (await import(url)).default; } finally { URL.revokeObjectURL(url); }
}

// want: a picture could be plotly's; heard: the kernel's answer, with nothing in it where plotly is missing.
function plotlyFor(view, request) {
  const page = (globalThis.parallelLabPlotly ??= { found: null, waiting: new Set(), asked: -Infinity });
  const take = () => { view.ui.plotly = page.found; view.forget(); };
  return {
    want() {
      if (page.found) { take(); return; }
      page.waiting.add(take);
      if (performance.now() - page.asked < ASK_ANEW_MS) return;
      page.asked = performance.now();
      request();
    },
    async heard(buffers) {
      if (!buffers?.length) { page.asked = Infinity; return; }
      page.found ??= await unpackedPlotly(buffers[0]);
      for (const one of page.waiting) one();
      page.waiting.clear();
    },
    leave() { page.waiting.delete(take); },
  };
}

// A picture with a key: `ours()` is the static one; made() -> {data, layout, pick: command that a click on a point sends,
// with its customdata}. Colours may be "var(--name)".
function figure(key, ui, { alt, height }, ours, made) {
  if (!ui.plotly) {
    if (ui.live) ui.wantPlotly?.();
    return ours();
  }
  (ui.figures ??= new Map()).set(key, made());
  return html`<div class="pl-plotly" data-key="${key}" data-plotly="${key}" role="img" aria-label="${alt}"
    style="height: ${height}px"></div>`;
}

const PLOTLY_AXIS = { gridcolor: "var(--pl-rule)", linecolor: "var(--pl-muted)", zeroline: false, automargin: false };
const PLOTLY_CONFIG = { displayModeBar: false, doubleClick: "reset" }; // drag to zoom

// Draw what has changed; called after the page follows the HTML.
function drawFigures({ root, ui, send }) {
  if (!ui.plotly) return;
  const style = getComputedStyle(root), clear = "rgba(0,0,0,0)";
  for (const node of root.querySelectorAll("[data-plotly]")) {
    const { data, layout, pick } = ui.figures.get(node.dataset.plotly);
    const font = { family: style.fontFamily, size: 11, color: "var(--pl-muted)" };
    const hoverlabel = { bgcolor: "var(--pl-bg)", bordercolor: "var(--pl-muted)", font: { ...font, size: 12.5, color: "var(--pl-fg)" } };
    const [xaxis, yaxis] = ["xaxis", "yaxis"].map((name) => ({ ...PLOTLY_AXIS, ...layout[name] }));
    const whole = { paper_bgcolor: clear, plot_bgcolor: clear, showlegend: false, hovermode: "closest", font, hoverlabel,
      width: node.clientWidth, height: node.clientHeight, uirevision: "kept", ...layout, xaxis, yaxis };
    const text = JSON.stringify([data, whole]).replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
    if (node.drawnFrom === text) continue;
    node.drawnFrom = text;
    const inner = node.firstChild ?? node.appendChild(document.createElement("div"));
    const fresh = !inner.data;
    ui.plotly.react(inner, ...JSON.parse(text), PLOTLY_CONFIG);
    if (!fresh || !pick) continue;
    inner.on("plotly_click", ({ points: [{ customdata }] }) => {
      if (customdata != null && ui.can(pick, customdata)) send(pick, [customdata]);
    });
  }
}
