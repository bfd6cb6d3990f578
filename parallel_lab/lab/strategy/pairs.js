// Messages in pairs: a forward message and the one that brings its gradient back, drawn between the two values that
// they lead from and to; and what moves in the redistribution of the selected message (pictures/moves.js).

const messageAt = (s, number) => s.messages.find((m) => m.number === number);
const selectedMessage = (s) => messageAt(s, s.message);

// How a row of the table, or a number on the graph, looks next to the selected message.
function pairLook(s, m) {
  if (m.number === s.message) return " pl-picked";
  return m.dual !== null && m.dual === s.message ? " pl-dual" : "";
}

const messageButton = (s, m, ui) => html`<button type="button" class="pl-hash" data-key="#${m.number}"
  data-command="select_message" data-value="${m.number}" aria-pressed="${m.number === s.message}"
  aria-label="message ${m.number}: select it; ${m.dual_text}"${disabledUnless(ui, "select_message", m.number)}>
  #${m.number}</button>`;

// The numbers of an edge's messages.
const numbersOf = (s, numbers) => numbers.map((n, i) => {
  const m = messageAt(s, n);
  return html`<tspan class="${m ? pairLook(s, m).trim() : ""}">${i ? " " : ""}#${n}</tspan>`;
});

// Forward above, backward below; where one is missing, why.
function pairOf(s, ui) {
  const m = selectedMessage(s);
  if (!m) return html`<p class="pl-muted pl-pair-hint">Select a message by its number: its partner is marked, the one that
    brings its gradient back.</p>`;
  const other = messageAt(s, m.dual), forward = m.phase === "forward" ? m : other;
  const backward = m.phase === "forward" ? other : m;
  const labels = Object.fromEntries(s.tensors.map((t) => [t.id, t.label]));
  const parameter = forward ? null : backward.source;
  const values = forward ? [forward.reads, forward.makes] : [parameter, `copies of ${parameter}`];
  const [from, to] = values.map((name) => labels[name] ?? name);
  const width = Math.min(620, ui.width - 24), box = Math.min(190, width * 0.28), x0 = box + 6, x1 = width - box - 6;
  const fit = (text, room) => shortened(text, Math.floor(room / 6.6));
  const arrow = (one, y, start, end, none) => html`<g class="pl-pair-way${one ? pairLook(s, one) : " pl-pair-none"}">
    <path class="pl-line" d="M${round(start)} ${y}H${round(end)}" marker-end="url(#${ui.id}-arrow)"/>
    <text x="${round((x0 + x1) / 2)}" y="${y - 5}">${one
    ? fit(`#${one.number} ${one.collective}, ${bytesText(one.bytes_predicted)}`, x1 - x0) : fit(none, x1 - x0)}</text></g>`;
  const node = (x, text) => html`<rect x="${round(x)}" y="10" width="${round(box)}" height="52" rx="5"/>
    <text class="pl-pair-node" x="${round(x + box / 2)}" y="36">${fit(text, box - 8)}</text>`;
  const said = `Message ${m.number}, ${m.phase}: ${m.dual_text}.`;
  return html`<figure class="pl-pair"><svg viewBox="0 0 ${width} 72" width="${width}" height="72" role="img"
      aria-label="${said}">${node(0, from)}${node(width - box, to)}
      ${arrow(forward, 24, x0, x1 - 3, "no message forward")}
      ${arrow(backward, 56, x1, x0 + 3, "no message backward")}</svg>
    <figcaption><b>#${m.number}</b> ${m.dual_text}</figcaption></figure>`;
}

const movesPlace = (s) => movePlace(s.moves, s.at);
const movesTab = (s, ui) => (s.moves ? {
  moves: [`What moves: ${s.moves.label}`, null, () => html`${s.moves.frames.length ? transport(ui, movesPlace(s)) : ""}
    ${moves(s.moves, ui, { at: s.at, rank: s.rank, width: ui.width, select: "select_rank" })}`],
} : {});

// What moves is stepped through as in the Redistribution Lab.
const movesAir = flying({
  place: (s) => (s.moves ? movesPlace(s) : { at: 0, last: 0 }), story: (s) => `${s.message}`, waiting: ["tables"],
  flights: ({ root, snapshot: s }) => (root.querySelector(".pl-moves") ? moveFlights(root, s.moves, s.at) : []),
});

function withMoves(view, own) {
  const steps = transportHandlers(view, () => (view.snapshot.moves ? movesPlace(view.snapshot) : { at: 0, last: 0 }));
  const within = ({ target }) => target.closest?.(".pl-transport");
  return {
    ...own,
    click: (event) => steps.click(event) || own.click(event),
    input: (event) => { steps.input(event); return own.input(event); },
    change: steps.change,
    keydown: (event) => own.keydown(event) || (within(event) && steps.keydown(event)),
  };
}
