// The Collective Stepper: cards of ranks, messages above them, and tokens that fly from card to card when a round is done. What
// all labs share is in page.js. A page of its own steps by the frames that the snapshot carries.
//
// Colour = chunk (which part of the data), position = rank. Hatching and a sigma = addends are missing; the little squares say
// whose are in it.

const FLIGHT_MS = 620, PLAY_MS = 1500;
const frameOf = (s) => s.frames[s.at];

const breakable = (name) => name.split("_").map((part, i) => html`${i ? html`_<wbr>` : ""}${part}`);

// ---- controls ----

function header(s, ui) {
  return html`<header class="pl-head">
    <h2 class="pl-title">${s.title}</h2>
    ${choice("kind", "collective", s.kind, "choose_kind", ui)}
    ${segments("n", "ranks", s.ranks, "choose_ranks", ui, { name: (n) => plural(n, "rank") })}
    ${choice("elements", "S", s.elements, "choose_elements", ui)}
    ${choice("cluster", "machine", s.cluster, "choose_cluster", ui)}
    ${choice("contention", "links", s.contention, "choose_contention", ui)}
  </header>`;
}

function transport(s, ui) {
  const button = (act, label, text, on, kind = "") => html`<button type="button" class="pl-button ${kind}" data-key="${act}" data-act="${act}" aria-label="${label}" title="${label}" aria-disabled="${!on}">${text}</button>`; // a disabled one would lose the focus, and with it the keys
  const frame = frameOf(s), last = s.at === s.rounds;
  return html`<div class="pl-transport" role="group" aria-label="rounds">
    <span class="pl-buttons">${button("reset", "to the start", "« Start", s.at > 0)}${button("back", "one round back", "‹ Back", s.at > 0)}${button("next", "one round on", "Next ›", !last, "pl-primary")}${button("play", ui.playing ? "stop playing" : "play the rounds", ui.playing ? "❚❚ Stop" : "▶ Play", !last || ui.playing)}</span>
    <div class="pl-rail"><input type="range" data-key="rail" min="0" max="${s.rounds}" step="1" value="${s.at}" aria-label="rounds done" aria-valuetext="${frame.text}">
      <div class="pl-phases" aria-hidden="true">${s.phases.map((p) => html`<span style="flex:${p.rounds}" class="${p.name && p.name === frame.phase ? "pl-on" : ""}">${p.name.replaceAll("_", " ")}</span>`)}</div></div>
    <span class="pl-place"><b>${s.at}</b> of ${s.rounds} rounds</span>
  </div>`;
}

function refused(s) {
  const article = s.kind.value.startsWith("all_") ? "an" : "a";
  return notices({ alert: s.last_error, fault: s.fault && `This list of sends is not ${article} ${s.kind.value}. ${s.fault}` });
}

// ---- messages: arcs above the cards ----

function arcs(s, ui) {
  const coming = s.at === 0 && s.rounds > 0, frame = s.frames[coming ? 1 : s.at], n = s.ranks.value;
  const width = ui.width, pitch = width / n, x = (r) => (r + 0.5) * pitch;
  const furthest = Math.max(1, ...s.frames.flatMap((f) => f.messages.map((m) => Math.abs(m.source - m.destination))));
  const height = 22 + Math.min(46, 12 * furthest), base = height - 3;
  const most = Math.max(1, ...s.frames.flatMap((f) => f.messages.map((m) => m.chunks.length)));
  const lines = frame.messages.map((m) => {
    const right = m.destination > m.source, apart = Math.abs(m.source - m.destination), lean = (right ? 0.05 : -0.15) * Math.min(pitch, 140);
    // two messages between the same ranks keep apart: those to the right run higher, and each starts and ends beside the middle of the card;
    // a cubic reaches 3/4 of the way to its controls
    const peak = 6 + (apart / furthest) * (height - 18) + (right ? 5 : 0), top = base - peak / 0.75, a = x(m.source) + lean, b = x(m.destination) - lean;
    const dim = s.follow !== null && !m.chunks.includes(s.follow), one = m.chunks.length === 1 ? hue(s.chunks[m.chunks[0]].hue) : "";
    const thick = 1.5 + 2.5 * (m.chunks.length / most);
    return html`<g class="pl-arc${m.add ? " pl-adds" : ""}${dim ? " pl-faded" : ""} ${one}" data-key="${m.source}-${m.destination}"><path class="pl-under" d="M${round(a)} ${base}C${round(a)} ${round(top)} ${round(b)} ${round(top)} ${round(b)} ${base - 5}" stroke-width="${round(thick + 2)}"/><path class="pl-stroke" d="M${round(a)} ${base}C${round(a)} ${round(top)} ${round(b)} ${round(top)} ${round(b)} ${base - 5}" stroke-width="${round(thick)}"/><path class="pl-tip" d="M${round(b - 4.5)} ${base - 7}h9l-4.5 7z"/></g>`;
  });
  const sizes = [...new Set(frame.messages.map((m) => m.bytes))], shown = sizes.length > 1 ? `${bytesText(Math.min(...sizes))} to ${bytesText(Math.max(...sizes))}` : bytesText(sizes[0]);
  const what = frame.messages.length ? `${plural(frame.messages.length, "message")} of ${shown}` : "no messages";
  return html`<figure class="pl-band"><figcaption>${coming ? html`<b>round 1</b>, to come: ` : html`<b>round ${s.at}</b>: `}${what}${frame.messages.some((m) => m.add) ? html`, <i class="pl-sigma">Σ</i> added on arrival` : frame.messages.length ? ", stored on arrival" : ""}</figcaption>
    <svg class="${coming ? "pl-coming" : ""}" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" aria-label="messages: ${frame.messages.map((m) => `${m.source} to ${m.destination}`).join(", ") || "none"}">${lines}</svg></figure>`;
}

// ---- rank cards ----

function token(s, cell, chunk, dim) {
  const c = s.chunks[chunk], n = s.ranks.value, label = html`<b>${c.label}</b>`;
  const fresh = cell.from.length ? " pl-fresh" : "";
  const names = `pl-token ${hue(c.hue)} pl-${cell.state}${fresh}${dim ? " pl-faded" : ""}`;
  const about = s.reducing ? `${c.label}: ${cell.sum}` : `${c.label}${cell.from.length ? `, came from rank ${cell.from.join(", ")}` : ""}`;
  if (!s.reducing) return html`<span class="${names}" data-chunk="${chunk}" title="${about}">${label}</span>`;
  const full = cell.who.length === n;
  return html`<span class="${names}" data-chunk="${chunk}" title="${about}">${label}<span class="pl-who">${Array.from({ length: n }, (_, r) => html`<i class="${cell.who.includes(r) ? "pl-in" : ""}"></i>`)}</span><span class="pl-sum">${full ? "Σ all" : `Σ ${cell.who.length}/${n}`}</span></span>`;
}

function cards(s, ui) {
  const frame = frameOf(s), n = s.ranks.value, limit = s.limit_bytes || 1;
  const place = (card, row) => Array.from({ length: s.slots }, (_, slot) => {
    const chunk = s.chunks.findIndex((c) => c.row === row && c.slot === slot), cell = card.cells[chunk];
    const dim = s.follow !== null && s.follow !== chunk;
    return html`<span class="pl-cell${cell ? "" : " pl-none"}" data-key="c${chunk}" data-cell="${card.rank}-${chunk}">${cell ? token(s, cell, chunk, dim) : ""}</span>`;
  });
  return html`<div class="pl-team-cards${s.slots > 1 ? " pl-grid" : ""}${s.reducing ? " pl-sums" : ""}" role="list" aria-label="ranks, in order" style="--ranks:${n};--slots:${s.slots}">${frame.cards.map((card) => {
    const sent = frame.sent[card.rank], share = Math.min(1, sent / limit);
    return html`<div class="pl-rank-card" role="listitem" tabindex="-1" data-key="r${card.rank}" aria-label="rank ${card.rank}${s.root === card.rank ? ", the root" : ""}: ${card.text}; has sent ${bytesText(sent)}">
      <div class="pl-rank-head" aria-hidden="true"><span>rank <b>${card.rank}</b></span>${s.root === card.rank ? html`<i>root</i>` : ""}</div>
      <div class="pl-places" aria-hidden="true">${Array.from({ length: s.rows }, (_, row) => html`<div class="pl-place-row">${place(card, row)}</div>`)}</div>
      <div class="pl-meter" aria-hidden="true"><span class="pl-meter-bar"><span class="pl-meter-fill" style="width:${round(share * 100)}%"></span></span><span class="pl-meter-text">sent ${bytesText(sent)}</span></div>
    </div>`;
  })}</div>
  <p class="pl-limit" aria-hidden="true">bars: bytes sent so far; right end = ${s.counters[2].formula === null ? "what the busiest rank sends" : html`the formula, ${s.counters[2].formula_text} = ${bytesText(s.limit_bytes)}`}</p>`;
}

// ---- counters, algorithms, key ----

function counters(s) {
  const show = { count: String, bytes: bytesText, seconds: timeText };
  const verdict = (c) => (!c.met ? html`<b class="pl-verdict pl-unmet">✗ not met</b>` : s.at === s.rounds ? html`<b class="pl-verdict pl-met">✓ met</b>` : html`<span class="pl-verdict pl-muted" title="the count at the end is equal to it">at the end ✓</span>`);
  const row = (c) => html`<tr data-key="${c.label}"><th scope="row">${c.label}</th><td class="pl-number"><b>${show[c.unit](c.now)}</b></td><td class="pl-number">${show[c.unit](c.end)}</td>
    <td>${c.formula === null ? html`<span class="pl-muted">${c.unit === "seconds" && s.contention.value !== "none" ? "no closed form with contention" : "none: your own list"}</span>` : html`<span class="pl-formula-text">${c.formula_text}</span> = ${show[c.unit](c.formula)} ${verdict(c)}`}</td></tr>`;
  const frame = frameOf(s);
  return html`<section class="pl-panel" aria-label="counted, and by formula"><h3>Counted, and by formula</h3>
    <div class="pl-scroll"><table class="pl-counters"><thead><tr><td></td><th scope="col" class="pl-number">so far</th><th scope="col" class="pl-number">at the end</th><th scope="col">formula</th></tr></thead><tbody>${s.counters.map(row)}</tbody></table></div>
    <p class="pl-muted pl-small">${frame.met} of ${frame.wanted} places have what they must have at the end. Times: ${s.machine}${s.elements.padded === s.elements.value ? "" : `; S is padded to ${s.elements.padded} elements, so that chunks are equal`}.</p></section>`;
}

function compare(s, ui) {
  const slowest = Math.max(...s.compare.map((c) => c.time_s)) || 1;
  const row = (c) => html`<tr data-key="${c.name}" class="${c.shown ? "pl-on" : ""}"><th scope="row"><label><input type="radio" name="${ui.id}-algorithm" data-command="choose_algorithm" value="${c.name}"${flag("checked", c.shown)}${flag("disabled", !ui.live)}> <span>${breakable(c.name)}</span></label></th>
    <td class="pl-number">${c.rounds}</td><td class="pl-number">${bytesText(c.sent)}</td><td class="pl-number">${timeText(c.time_s)}</td><td class="pl-bars"><span class="pl-time-bar" style="width:${round((c.time_s / slowest) * 60)}%"></span>${c.wrong ? html` <b class="pl-unmet">wrong</b>` : c.fastest ? html` <b class="pl-met">fastest</b>` : ""}</td></tr>`;
  return html`<section class="pl-panel" aria-label="algorithms"><h3>Algorithms <small>for ${s.kind.value} of ${bytesText(s.size_bytes)}</small></h3>
    <div class="pl-scroll"><table class="pl-compare"><thead><tr><th scope="col">algorithm</th><th scope="col" class="pl-number">rounds</th><th scope="col" class="pl-number">sent</th><th scope="col" class="pl-number">time</th><th scope="col">predicted</th></tr></thead><tbody>${s.compare.map(row)}</tbody></table></div>
    ${s.algorithm.words ? html`<p class="pl-idea">${s.algorithm.words}.</p>` : ""}</section>`;
}

function key(s) {
  const n = s.ranks.value, who = (k) => html`<span class="pl-who">${Array.from({ length: n }, (_, r) => html`<i class="${r < k ? "pl-in" : ""}"></i>`)}</span>`;
  const chip = (state, body) => html`<dt><span class="pl-token pl-hue-2 pl-${state}">${body}</span></dt>`;
  const unit = s.chunks.length && ["all_reduce", "reduce", "broadcast"].includes(s.kind.value) ? "chunk" : "piece";
  const grid = s.slots > 1, spent = ["scatter", "gather", "all_to_all"].includes(s.kind.value);
  const rows = s.reducing
    ? [[chip("partial", html`<b>2</b>${who(Math.max(1, n - 1))}`), html`hatched <i class="pl-sigma">Σ</i>: addends are missing; bar r is tall when rank r's is in`], [chip("done", html`<b>2</b>${who(n)}`), "plain: the complete sum"], [chip("spent", html`<b>2</b>${who(1)}`), "pale: passed on, part of another sum"]]
    : [[chip("done", html`<b>2</b>`), grid ? "colour and place in the line: from which rank; line r is for rank r" : `colour and number: which ${unit} of the data`], ...(spent ? [[chip("spent", html`<b>2</b>`), "pale: passed on"]] : [])];
  const fresh = html`<dt><span class="pl-token pl-hue-2 pl-done pl-fresh"><b>2</b></span></dt>`;
  return html`<dl class="pl-key">${[...rows, [fresh, "ringed: came in this round"]].map(([mark, text]) => html`<div>${mark}<dd>${text}</dd></div>`)}</dl>
    <label class="pl-field pl-follow"><span>follow</span><select data-command="follow"><option value=""${flag("selected", s.follow === null)}>all</option>${s.chunks.map((c, i) => html`<option value="${i}" data-key="f${i}"${flag("selected", s.follow === i)}>${unit} ${c.label}</option>`)}</select></label>`;
}

function listing(s) {
  return html`<details class="pl-rounds"><summary>All rounds in words</summary><ol start="0">${s.frames.map((f) => html`<li data-key="${f.round}"${flag(`aria-current="step"`, f.round === s.at)}><button type="button" class="pl-link" data-act="to" data-value="${f.round}">${f.text}</button></li>`)}</ol></details>`;
}

// ---- the tokens of a round leave from where they lay; the cards change when they land ----

function fly(view) {
  const { root, ui } = view, around = root.getBoundingClientRect(), flights = [], sky = root.querySelector(".pl-sky");
  const box = (rank, chunk) => root.querySelector(`[data-cell="${rank}-${chunk}"]`)?.getBoundingClientRect();
  for (const m of frameOf(view.snapshot).messages) {
    for (const chunk of m.chunks) {
      const from = box(m.source, chunk), to = box(m.destination, chunk);
      const mark = root.querySelector(`[data-cell="${m.source}-${chunk}"] .pl-token`);
      if (!from || !to || !mark) continue;
      const ghost = mark.cloneNode(true), x = to.left - from.left, y = to.top - from.top;
      ghost.classList.remove("pl-fresh", "pl-spent");
      // what has no room on the cards
      [...mark.children].forEach((part, i) => { if (getComputedStyle(part).display === "none") ghost.children[i].dataset.hidden = ""; });
      ghost.querySelectorAll("[data-hidden]").forEach((part) => part.remove());
      ghost.classList.add("pl-ghost");
      const place = { left: from.left - around.left, top: from.top - around.top, width: from.width, height: from.height };
      for (const [name, value] of Object.entries(place)) ghost.style[name] = `${value}px`;
      sky.append(ghost);
      const lift = -6 - 3 * Math.abs(m.source - m.destination);
      const way = ["none", `translate(${x / 2}px, ${y / 2 + lift}px)`, `translate(${x}px, ${y}px)`].map((transform) => ({ transform }));
      flights.push(ghost.animate(way, { duration: FLIGHT_MS, easing: "cubic-bezier(.45, 0, .3, 1)", fill: "forwards" }));
    }
  }
  if (!flights.length) return;
  ui.landing = flights;
  Promise.all(flights.map((f) => f.finished)).then(() => { if (ui.landing === flights) land(view); }, () => {});
}

function land(view) {
  const { root, ui } = view, flights = ui.landing;
  if (!flights) return;
  ui.landing = null;
  for (const flight of flights) flight.cancel();
  root.querySelector(".pl-sky").replaceChildren();
  view.draw();
}

// ---- what can be done ----

const still = matchMedia("(prefers-reduced-motion: reduce)");

function shown(view, before) {
  const { snapshot } = view;
  land(view);
  const forward = before && before.frames === snapshot.frames && snapshot.at === before.at + 1;
  if (forward && !still.matches && document.visibilityState === "visible") fly(view);
  if (snapshot.at === snapshot.rounds && view.ui.playing) stopPlaying(view);
}

function stopPlaying(view) {
  clearInterval(view.ui.timer);
  view.ui.playing = false;
  view.ask();
}

function handlers(view) {
  const { ui, send } = view, at = () => view.snapshot.at;
  const go = (to) => { if (to >= 0 && to <= view.snapshot.rounds && to !== at()) send("to", [to]); };
  const play = () => {
    if (ui.playing) { stopPlaying(view); return; }
    ui.playing = true;
    go(at() + 1);
    ui.timer = setInterval(() => (at() < view.snapshot.rounds ? go(at() + 1) : stopPlaying(view)), PLAY_MS);
    view.ask();
  };
  const acts = { reset: () => go(0), back: () => go(at() - 1), next: () => go(at() + 1), play };
  return {
    click(event) {
      const act = event.target.closest("[data-act]"), mark = event.target.closest("[data-chunk]");
      if (act && act.getAttribute("aria-disabled") !== "true") {
        if (act.dataset.act !== "play" && ui.playing) stopPlaying(view);
        if (act.dataset.act === "to") go(Number(act.dataset.value));
        else acts[act.dataset.act]();
      } else if (mark) {
        const chunk = Number(mark.dataset.chunk);
        send("follow", [view.snapshot.follow === chunk ? null : chunk]);
      }
      return act || mark;
    },
    input({ target }) {
      if (target.type !== "range") return;
      if (ui.playing) stopPlaying(view);
      go(Number(target.value));
    },
    change({ target }) {
      if (target.dataset.command === "follow") send("follow", [target.value === "" ? null : Number(target.value)]);
      return target.dataset.command === "follow" || target.type === "range";
    },
    keydown({ target, key }) {
      const to = { ArrowRight: at() + 1, ArrowLeft: at() - 1, Home: 0, End: view.snapshot.rounds }[key];
      // groups, lists and radios know the arrows themselves
      if (to === undefined || target.closest?.("[data-roving]") || target.nodeName === "SELECT" || target.type === "radio") return false;
      if (ui.playing) stopPlaying(view);
      go(to);
      return true;
    },
  };
}

const { render, mountPage } = lab({
  classes: ["pl-stepper"],
  parts: {
    head: header,
    notices: refused,
    status: (s) => html`<p class="pl-status" role="status">${frameOf(s).text}</p>`,
    transport, arcs, cards,
    key: (s) => html`<div class="pl-keys${s.reducing ? " pl-sums" : ""}">${key(s)}</div>`,
    counters, compare, listing,
  },
  skeleton: html`${["head", "notices", "transport", "status"].map(slot)}
    <div class="pl-stage">${slot("arcs")}${slot("cards")}</div>${slot("key")}
    <div class="pl-tables">${slot("counters")}${slot("compare")}</div>${slot("listing")}<div class="pl-sky" aria-hidden="true"></div>`,
  measure(ui, root) { ui.width = Math.max(300, Math.floor(root.querySelector(".pl-stage").clientWidth || 900)); },
  numbers: ["choose_ranks", "choose_elements"],
  handlers,
  shown,
  resized: land,
  waits: ({ ui }, name) => ui.landing && name === "cards",
  drawn: ({ root, snapshot }) => { root.dataset.at = snapshot.at; },
  leave(view) { stopPlaying(view); view.ui.landing = null; },
  ahead: (command, [at]) => (command === "to" ? { at } : null), // a step is shown before the kernel has answered
  alone: {
    to: (s, [at], base) => ({ at, counters: base.counters_by_round?.[at] ?? s.counters }),
    follow: (s, [follow]) => ({ follow }),
  },
});

export { mountPage };
export default { render };
