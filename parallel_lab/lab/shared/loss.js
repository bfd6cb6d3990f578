// The loss of a training: a section with both curves and their verdict, and the canvas that is drawn while they grow.

function earlierKey(s) {
  if (!s.earlier?.length) return "";
  const said = s.earlier.map((run) => `${run.label} (${plural(run.steps, "step")})`).join("\n");
  return html`<span title="${said}"><i class="pl-line-earlier"></i>${plural(s.earlier.length, "earlier run")}
    <span class="pl-hidden">: ${said}</span></span>`;
}

// What was changed while it trained: the last change in full, the others when it is pointed at.
function switchesText(s, within) {
  const list = s.loss.switches ?? [], last = list.at(-1);
  if (!last) return s.said ? html`<p class="pl-said">${s.said}</p>` : "";
  const line = (one) => `after step ${one.step}: ${one.change}; ${one.text}`;
  const more = list.length > 1 ? html` <span class="pl-muted">(${plural(list.length, "change")})</span>` : "";
  const bend = within && s.loss.steps > last.step ? " The curve does not bend." : "";
  return html`<p class="pl-said" role="status" title="${list.map(line).join("\n")}"><i class="pl-mark-switch"></i><b
    >after step ${last.step}</b> ${last.change}: ${last.text}.${bend}${more}</p>`;
}

function loss(s, ui) {
  const l = s.loss, none = !l.steps;
  const within = l.largest_difference != null && l.bound != null ? l.largest_difference <= l.bound : null;
  const largest = `largest difference ${smallText(l.largest_difference)} at step ${l.at_step}`;
  const words = none ? "no step has run yet" : l.past ?? largest, sign = within ? "✓ within" : "✗ beyond";
  const verdict = html` <span class="${within ? "pl-good" : "pl-wrong"}">${sign} the rounding bound
    ${smallText(l.bound)}</span>`;
  const live = "Press Run: the ranks train for real, and their loss is drawn over that of one device.";
  const empty = html`<p class="pl-empty">${ui.live ? live : "Nothing was trained here."}</p>`;
  return html`<div role="group" class="pl-panel pl-loss" aria-label="loss">
    <h3>Loss <small>${plural(l.steps, "step")}</small></h3>
    <div class="pl-canvas"><canvas data-key="loss" role="img"
      aria-label="loss over steps: ${l.label_parallel} and ${l.label_single}; ${words}"></canvas>
      ${none && !s.earlier?.length ? empty : ""}</div>
    <p class="pl-legend"><span><i class="pl-line-parallel"></i>${l.label_parallel}</span>
      <span><i class="pl-line-single"></i>${l.label_single}</span>${earlierKey(s)}</p>
    <p class="pl-verdict">${words}${within === null || l.past ? "" : verdict}</p>${switchesText(s, within)}</div>`;
}


// ---- the live curve ----

// earlier: runs with other settings, [{steps, losses (some of them, evenly)}]; switches: steps after which the plan was
// changed; marked: the step that is looked at
function drawLoss(canvas, curves, earlier = [], switches = [], marked = null) {
  const box = boxIn(canvas, canvas), ratio = (window.devicePixelRatio || 1) * zoomOf(canvas);
  if (!box.width || !box.height) return;
  const [w, h] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const c = canvas.getContext("2d"), style = getComputedStyle(canvas);
  const colour = (name) => style.getPropertyValue(name).trim();
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, box.width, box.height);
  let low = Infinity, high = -Infinity;
  for (const curve of [...Object.values(curves), ...earlier.map((run) => run.losses)]) {
    for (const y of curve) {
      if (y < low && Number.isFinite(y)) low = y;
      if (y > high && Number.isFinite(y)) high = y;
    }
  }
  const n = Math.max(curves.parallel.length, curves.single.length, ...earlier.map((run) => run.steps));
  if (!n || low > high) return;
  low = Math.min(low, 0) === 0 && low < high / 3 ? 0 : low;
  if (high === low) high = low + (Math.abs(low) || 1);
  const left = 44, right = box.width - 8, top = 8, bottom = box.height - 18;
  const x = (i) => left + (n === 1 ? 0 : (i / (n - 1)) * (right - left));
  const y = (v) => bottom - ((v - low) / (high - low)) * (bottom - top);
  c.font = `11px ${style.fontFamily}`;
  c.lineWidth = 1;
  c.textBaseline = "middle";
  // four digits have room; two lines never bear the same number
  const ticks = roundTicks(low, high, 4), three = ticks.map(smallText), told = new Set();
  const labels = new Set(three).size === ticks.length ? three : ticks.map((v) => String(Number(v.toPrecision(4))));
  for (const [i, v] of ticks.entries()) {
    const at = Math.round(y(v)) + 0.5;
    c.strokeStyle = colour("--pl-rule");
    c.beginPath(); c.moveTo(left, at); c.lineTo(right, at); c.stroke();
    c.fillStyle = colour("--pl-muted"); c.textAlign = "right";
    if (!told.has(labels[i])) c.fillText(labels[i], left - 6, at);
    told.add(labels[i]);
  }
  c.textBaseline = "alphabetic";
  c.textAlign = "left"; c.fillText("step 1", left, box.height - 4);
  c.textAlign = "right"; c.fillText(String(n), right, box.height - 4);
  const line = (curve, across, width, ink, dash = []) => {
    c.strokeStyle = colour(ink); c.lineWidth = width; c.lineJoin = "round"; c.lineCap = "round"; c.setLineDash(dash);
    c.beginPath();
    let pen = false;
    for (let i = 0; i < curve.length; i += 1) {
      if (!Number.isFinite(curve[i])) { pen = false; continue; }
      if (pen) c.lineTo(across(i), y(curve[i])); else c.moveTo(across(i), y(curve[i]));
      pen = true;
    }
    if (curve.length === 1) c.lineTo(across(0) + 0.01, y(curve[0]));
    c.stroke();
  };
  c.strokeStyle = colour("--pl-fg");
  if (marked) { c.setLineDash([]); c.beginPath(); c.moveTo(x(marked - 1), top); c.lineTo(x(marked - 1), bottom); c.stroke(); }
  c.setLineDash([2, 2]);
  for (const { step } of switches) {
    if (step < 1 || step > n) continue;
    const at = Math.round(x(step - 0.5)) + 0.5;
    c.beginPath(); c.moveTo(at, top); c.lineTo(at, bottom); c.stroke();
  }
  for (const { steps, losses } of earlier) {
    const scale = losses.length > 1 ? (steps - 1) / (losses.length - 1) : 1;
    line(losses, (i) => x(i * scale), 1, "--pl-muted", [3, 3]);
  }
  // One device: a broad pale band; the ranks: a thin line on it. Where they agree, the line runs inside the band.
  line(curves.single, x, 6, "--pl-single");
  line(curves.parallel, x, 1.75, "--pl-accent");
}
