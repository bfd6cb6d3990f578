// Pictures of a live notebook that plotly draws once its script is there (plotly_live.js), and we until then.

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
