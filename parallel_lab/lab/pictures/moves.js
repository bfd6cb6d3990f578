// A redistribution that is stepped through (lab/pictures/moves.py): the cards of all ranks before a frame and after it,
// side by side. What stays is dimmed, what moves is bright and travels from card to card. Colour = slice, position =
// rank, hatching = only a partial sum.
//
//   moves(m, ui, {at, rank, width, select})   m: {shape, devices, frames}; `at` frames are done; select: a command
//   moveFlights(root, m, at)                  what flies when frame `at` is done

const tokenOf = ({ block, slice }, dims, room, options, look = "") => html`<g class="${look}">
  ${blockMark(blockBox({ block }, dims, room), slice, options)}</g>`;
const bare = (tokens, partial, dims, room, id) => tokens.map((t) => {
  const box = rectOf(blockBox(t, dims, room)), over = html`<rect class="pl-over" ${box} fill="url(#${id}-hatch)"/>`;
  return html`<rect class="pl-block ${hue(t.slice)}" ${box}/>${partial ? over : ""}`;
});
const byPlace = (tokens) => [...new Map(tokens.map((t) => [String([t.block, t.slice]), t])).values()];
const hopsTo = (step, rank) => step.hops.filter((h) => h.destination === rank);
const hopsFrom = (step, rank) => step.hops.filter((h) => h.source === rank);
const bytesIn = (hops) => hops.reduce((sum, h) => sum + h.bytes, 0);

// One side: the cards before the frame (which send) or after it (which get).
function moveCards(m, step, ui, { side, done, rank, width, select }) {
  const after = side === "after", dims = plane(m), columns = Math.min(4, m.devices);
  const room = frame(m.shape, dims, Math.max(30, Math.min(118, width / columns - 20)));
  const mark = (list, partial, look) => list.map((t) => tokenOf(t, dims, room, { partial, id: ui.id }, look));
  const [was, is] = step.pending;
  const content = (r) => {
    if (after) {
      const tokens = hopsTo(step, r).flatMap((hop) => hop.tokens);
      if (!done) return mark(step.after[r], false, "pl-mv-coming");
      return [mark(step.kept[r], is, "pl-mv-stays"), mark(byPlace(tokens), is, "pl-mv-goes")];
    }
    const sent = byPlace(hopsFrom(step, r).flatMap((hop) => hop.tokens));
    const places = new Set(sent.map((t) => String(t.block))), stays = (t) => !places.has(String(t.block));
    return [html`<g class="pl-mv-rest">${bare(step.before[r], was, dims, room, ui.id)}</g>`,
      mark(step.kept[r].filter(stays), was, "pl-mv-stays"), mark(sent, was, "pl-mv-goes")];
  };
  const team = new Set(hopsTo(step, rank).map((hop) => hop.source));
  const card = (r) => {
    const hops = after ? hopsTo(step, r) : hopsFrom(step, r), bytes = bytesText(bytesIn(hops));
    const does = after ? (hops[0]?.adds ? "adds" : "gets") : "sends", way = after ? (hops[0]?.adds ? "+" : "←") : "→";
    const said = hops.length ? `${way} ${bytes}` : after ? "keeps" : "";
    const name = `${side} it, rank ${r} ${does} ${hops.length ? bytes : "nothing"}; ${step.lines[r]}`;
    const ring = r === rank ? " pl-selected" : !after && team.has(r) ? " pl-team" : "";
    return html`<button type="button" class="pl-mv-card${ring}" role="radio" aria-checked="${r === rank}"
      tabindex="${r === rank ? 0 : -1}" data-key="${side}${r}" data-command="${select}" data-value="${r}"
      data-side="${side}-${r}" title="${step.lines[r]}"${disabledUnless(ui, select, r)}>
      <span class="pl-hidden">${name}</span><span aria-hidden="true"><b>${r}</b>${said ? html`<i>${said}</i>` : ""}</span>
      ${cardPicture(room, content(r))}</button>`;
  };
  const title = after ? (done ? "after it" : "after it, to come") : "before this step";
  return html`<div class="pl-mv-side"><h3>${title}</h3><div class="pl-mv-cards" role="radiogroup"
    aria-label="ranks ${side} the step" data-roving="${columns}" style="--columns:${columns}">
    ${Array.from({ length: m.devices }, (_, r) => card(r))}</div></div>`;
}

// Bytes on one rank while each frame runs: the largest is the peak.
function heldBars(m, at) {
  const most = Math.max(...m.frames.map((f) => f.held_bytes));
  const row = (f, i) => html`<li data-key="f${i}" class="${i + 1 === Math.max(1, at) ? "pl-on" : ""}">
    <button type="button" class="pl-link" data-act="to" data-value="${i + 1}"
      title="${f.text}">${f.step} ${f.title}</button>
    <span class="pl-mv-bar" aria-hidden="true"><i style="width:${round((100 * f.held_bytes) / most)}%"></i></span>
    <span class="pl-number">${bytesText(f.held_bytes)}${f.held_bytes === most ? " peak" : ""}</span></li>`;
  return html`<div class="pl-mv-held"><h3>held at once on one rank <small>predicted: slice before and slice
    after</small></h3><ol>${m.frames.map(row)}</ol></div>`;
}

// An all_reduce is a step of two frames: between them a half of it is done.
function movePlace(m, at) {
  const last = m.frames.length, now = m.frames[at - 1], half = at < last && now?.step === m.frames[at].step;
  const done = !at ? "0" : half ? `${now.step - 1 || ""}½` : now.step;
  const text = at ? `step ${now.step}: ${now.text}` : "no step is done yet";
  return { at, last, text, noun: "step", done, of: last && m.frames[last - 1].step };
}

function moves(m, ui, { at, rank, width, select }) {
  if (!m.frames.length) return html`<p class="pl-muted">Nothing moves: every rank has what it needs.</p>`;
  const step = m.frames[Math.max(0, at - 1)], done = at > 0, half = width > 620 ? Math.floor((width - 28) / 2) : width;
  const shown = { done, rank, width: half, select };
  const caption = html`<b>step ${step.step}</b>${done ? "" : ", to come"}: ${micro(step.text)}`;
  return html`<div role="group" class="pl-moves" aria-label="what moves">
    <p class="pl-mv-text" role="status">${new Raw(times(caption.text))}</p>
    <div class="pl-mv-sides">${moveCards(m, step, ui, { ...shown, side: "before" })}
      <span class="pl-mv-arrow" aria-hidden="true">→</span>
      ${moveCards(m, step, ui, { ...shown, side: "after" })}</div>
    <div class="pl-mv-below">${heldBars(m, at)}<p class="pl-mv-rank"><b>rank ${rank}</b>
      ${step.lines[rank].replace(`rank ${rank} `, "")}</p></div></div>`;
}

function moveFlights(root, m, at) {
  const found = m.frames[at - 1], dims = plane(m);
  const boxOf = (side, rank, token) => {
    const svg = root.querySelector(`[data-side="${side}-${rank}"] svg`);
    if (!svg) return null;
    const { left, top, width } = boxIn(root, svg), scale = width / svg.viewBox.baseVal.width;
    const room = frame(m.shape, dims, Math.max(svg.viewBox.baseVal.width, svg.viewBox.baseVal.height) - 2);
    const b = blockBox(token, dims, room);
    return {
      left: left + (b.x + 1) * scale, top: top + (b.y + 1) * scale, width: b.w * scale, height: b.h * scale,
    };
  };
  return found.hops.flatMap((hop) => hop.tokens.flatMap((token) => {
    const from = boxOf("before", hop.source, token), to = boxOf("after", hop.destination, token);
    if (!from || !to) return [];
    const ghost = document.createElement("i");
    ghost.className = `pl-mv-ghost ${hue(token.slice)}${found.pending[0] ? " pl-mv-sum" : ""}`;
    ghost.textContent = Math.min(from.width, from.height) < 9 ? "" : token.slice;
    return [{ ghost, from, to }];
  }));
}
