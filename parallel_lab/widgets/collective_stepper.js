// The Collective Stepper's front-end: one pure function from snapshot to HTML and SVG, and tokens that fly from card to card when a round is done.
// No library, no network. `front_end()` (lab/collective_stepper.py) joins page.js (text, HTML, the page that follows it) and this script to one module.
//
//   anywidget     export default { render }           snapshot from synced traits, commands as custom messages
//   static page   mountPage(element, snapshot)        the same picture with no kernel; it steps by the frames that the snapshot carries
//
// Colour = chunk (which part of the data), position = rank. Hatching and a sigma = addends are missing; the little squares say whose are in it.

const HUES = 8;
const FLIGHT_MS = 620, PLAY_MS = 1500;
const hue = (n) => `pl-hue-${n % HUES}`;
const round = (x) => Math.round(x * 100) / 100;
const frameOf = (s) => s.frames[s.at];

const breakable = (name) => name.split("_").map((part, i) => html`${i ? html`_<wbr>` : ""}${part}`);

// ---- controls ----

function choice(ui, name, label, value, choices, command) {
  const list = choices.map((c) => (typeof c === "object" ? c : { value: c, label: c }));
  return html`<label class="pl-field" data-key="${name}"><span>${label}</span><select data-command="${command}"${flag("disabled", !ui.live)}>${list.map(
    (c) => html`<option value="${c.value}" data-key="${c.value}"${flag("selected", String(c.value) === String(value))}>${c.label}</option>`)}</select></label>`;
}

function header(s, ui) {
  return html`<header class="pl-head">
    <h2 class="pl-title">${s.title}</h2>
    ${choice(ui, "kind", "collective", s.kind.value, s.kind.choices, "choose_kind")}
    <fieldset class="pl-field" role="radiogroup" aria-label="ranks"><span aria-hidden="true">ranks</span><span class="pl-track" data-roving="1">${s.ranks.choices.map(
      (n) => html`<button type="button" role="radio" data-key="n${n}" aria-checked="${n === s.ranks.value}" tabindex="${n === s.ranks.value ? 0 : -1}" data-command="choose_ranks" data-value="${n}"${flag("disabled", !ui.live)} aria-label="${plural(n, "rank")}">${n}</button>`)}</span></fieldset>
    ${choice(ui, "elements", "S", s.elements.value, s.elements.choices, "choose_elements")}
    ${choice(ui, "cluster", "machine", s.cluster.value, s.cluster.choices, "choose_cluster")}
    ${choice(ui, "contention", "links", s.contention.value, s.contention.choices, "choose_contention")}
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

function notices(s) {
  const found = [["alert", s.last_error], ["fault", s.fault && `This list of sends is not ${s.kind.value === "all_reduce" || s.kind.value.startsWith("all_") ? "an" : "a"} ${s.kind.value}. ${s.fault}`]].filter(([, text]) => text);
  return html`<div role="alert">${found.map(([key, text]) => html`<p class="pl-notice" data-key="${key}"><b aria-hidden="true">!</b> ${text}</p>`)}</div>`;
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

const PARTS = {
  head: header, notices, status: (s) => html`<p class="pl-status" role="status">${frameOf(s).text}</p>`, transport, arcs, cards, key: (s) => html`<div class="pl-keys${s.reducing ? " pl-sums" : ""}">${key(s)}</div>`, counters, compare, listing,
};
const slot = (name) => html`<div class="pl-slot" data-slot="${name}"></div>`;
const SKELETON = html`${["head", "notices", "transport", "status"].map(slot)}<div class="pl-stage">${slot("arcs")}${slot("cards")}</div>${slot("key")}<div class="pl-tables">${slot("counters")}${slot("compare")}</div>${slot("listing")}<div class="pl-sky" aria-hidden="true"></div>`;

// ---- one view ----

let views = 0;

export function mount(root, { send, live }) {
  views += 1;
  const ui = { id: `plc${views}`, live, width: 0, playing: false };
  let snapshot = null, landing = null, frameAsked = 0, timer = 0;
  root.classList.add("pl-lab", "pl-stepper");
  root.setAttribute("role", "region");
  root.innerHTML = SKELETON.text;
  const slots = Object.fromEntries([...root.querySelectorAll("[data-slot]")].map((node) => [node.dataset.slot, node]));
  const sky = root.querySelector(".pl-sky"), stage = root.querySelector(".pl-stage");
  const drawn = new Map();
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  const drawPart = (name) => {
    const { text } = PARTS[name](snapshot, ui);
    if (drawn.get(name) === text) return;
    drawn.set(name, text);
    const next = document.createElement("template");
    next.innerHTML = text;
    morph(slots[name], next.content);
  };
  const draw = () => {
    frameAsked = 0;
    if (!snapshot) return;
    root.setAttribute("aria-label", snapshot.title);
    ui.width = Math.max(300, Math.floor(stage.clientWidth || 900));
    for (const name of Object.keys(PARTS)) if (!(landing && name === "cards")) drawPart(name);
    root.dataset.at = snapshot.at;
    root.dataset.painted = String(Number(root.dataset.painted || 0) + 1);
  };
  const ask = () => { if (!frameAsked) frameAsked = requestAnimationFrame(draw); };
  const land = () => {
    if (!landing) return;
    const flights = landing;
    landing = null;
    for (const flight of flights) flight.cancel();
    sky.replaceChildren();
    draw();
  };

  // The tokens of a round leave from where they lay; the cards change when they land.
  const fly = (frame) => {
    const around = root.getBoundingClientRect(), flights = [];
    const box = (rank, chunk) => root.querySelector(`[data-cell="${rank}-${chunk}"]`)?.getBoundingClientRect();
    for (const m of frame.messages) {
      for (const chunk of m.chunks) {
        const from = box(m.source, chunk), to = box(m.destination, chunk), mark = root.querySelector(`[data-cell="${m.source}-${chunk}"] .pl-token`);
        if (!from || !to || !mark) continue;
        const ghost = mark.cloneNode(true);
        ghost.classList.remove("pl-fresh", "pl-spent");
        [...mark.children].forEach((part, i) => { if (getComputedStyle(part).display === "none") ghost.children[i].dataset.hidden = ""; }); // no room on the cards
        ghost.querySelectorAll("[data-hidden]").forEach((part) => part.remove());
        ghost.classList.add("pl-ghost");
        Object.assign(ghost.style, { left: `${from.left - around.left}px`, top: `${from.top - around.top}px`, width: `${from.width}px`, height: `${from.height}px` });
        sky.append(ghost);
        const lift = -6 - 3 * Math.abs(m.source - m.destination);
        flights.push(ghost.animate(
          [{ transform: "none" }, { transform: `translate(${(to.left - from.left) / 2}px, ${(to.top - from.top) / 2 + lift}px)` }, { transform: `translate(${to.left - from.left}px, ${to.top - from.top}px)` }],
          { duration: FLIGHT_MS, easing: "cubic-bezier(.45, 0, .3, 1)", fill: "forwards" }));
      }
    }
    if (!flights.length) return;
    landing = flights;
    Promise.all(flights.map((f) => f.finished)).then(() => { if (landing === flights) land(); }, () => {});
  };

  const show = (next) => {
    land();
    const before = snapshot;
    snapshot = next;
    const forward = before && before.frames === next.frames && next.at === before.at + 1;
    if (forward && !still.matches && document.visibilityState === "visible") fly(frameOf(next));
    if (next.at === next.rounds && ui.playing) stop();
    ask();
  };
  const stop = () => { clearInterval(timer); timer = 0; ui.playing = false; ask(); };
  const go = (to) => { if (snapshot && to >= 0 && to <= snapshot.rounds && to !== snapshot.at) send("to", [to]); };
  const play = () => {
    if (ui.playing) { stop(); return; }
    ui.playing = true;
    go(snapshot.at + 1);
    timer = setInterval(() => (snapshot.at < snapshot.rounds ? go(snapshot.at + 1) : stop()), PLAY_MS);
    ask();
  };
  const acts = { reset: () => go(0), back: () => go(snapshot.at - 1), next: () => go(snapshot.at + 1), play };
  const NUMBERS = ["choose_ranks", "choose_elements", "follow"];
  const command = (name, value) => send(name, [NUMBERS.includes(name) ? (value === "" ? null : Number(value)) : value]);

  const watchSize = new ResizeObserver(() => { if (Math.abs(ui.width - stage.clientWidth) > 1) { land(); ask(); } });
  watchSize.observe(root);
  const endTheme = followTheme(root);

  const on = {
    click(event) {
      const act = event.target.closest("[data-act]");
      if (act) {
        if (act.getAttribute("aria-disabled") === "true") return;
        if (act.dataset.act !== "play" && ui.playing) stop();
        if (act.dataset.act === "to") go(Number(act.dataset.value));
        else acts[act.dataset.act]();
        return;
      }
      const mark = event.target.closest("[data-chunk]");
      if (mark) { const chunk = Number(mark.dataset.chunk); send("follow", [snapshot.follow === chunk ? null : chunk]); return; }
      const node = event.target.closest("button[data-command]");
      if (node && !node.hasAttribute("disabled")) command(node.dataset.command, node.dataset.value);
    },
    input(event) { if (event.target.type === "range") { if (ui.playing) stop(); go(Number(event.target.value)); } },
    change(event) { const { target } = event; if (target.dataset.command) command(target.dataset.command, target.value); },
    keydown(event) {
      const { target, key: pressed } = event;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const group = target.closest?.("[data-roving]"), step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[pressed];
      let used = true;
      if (group && step) {
        const items = [...group.querySelectorAll('[role="radio"]:not([disabled])')], to = items[items.indexOf(target) + step];
        if (to) { to.focus(); to.click(); }
      } else if (target.nodeName === "SELECT" || target.type === "radio") used = false; // they know the arrows themselves
      else if (pressed === "ArrowRight" || pressed === "ArrowLeft" || pressed === "Home" || pressed === "End") {
        if (ui.playing) stop();
        go({ ArrowRight: snapshot.at + 1, ArrowLeft: snapshot.at - 1, Home: 0, End: snapshot.rounds }[pressed]);
      } else used = false;
      // Keys that are used here must not reach the notebook (its command mode knows arrows, Enter and single letters).
      if (used) event.preventDefault();
      if (used || target.nodeName === "SELECT" || target.nodeName === "INPUT" || target.nodeName === "BUTTON") event.stopPropagation();
    },
  };
  const endEvents = listenTo(root, on);

  return {
    show,
    // A command was refused: controls go back to what is in force.
    redraw() { drawn.clear(); ask(); },
    dispose() {
      stop();
      if (frameAsked) cancelAnimationFrame(frameAsked);
      frameAsked = 0;
      snapshot = null;
      landing = null;
      watchSize.disconnect();
      endTheme();
      endEvents();
    },
  };
}

// ---- in a notebook ----

function render({ model, el }) {
  let number = 0, lost = null, ahead = null; // `ahead`: the round shown here while the kernel has not answered yet
  const root = document.createElement("div");
  el.append(root);
  let story = null;
  const whole = () => ({ ...story, ...model.get("place"), last_error: lost ?? model.get("last_error") });
  const refresh = () => {
    if (!story || !story.version) return;
    const now = whole();
    view.show(ahead === null || ahead > story.rounds ? now : { ...now, at: ahead });
  };
  const view = mount(root, {
    live: true,
    send(command, args) {
      number += 1;
      try { model.send({ command, arguments: args, number }); }
      catch { lost = UNANSWERED; refresh(); view.redraw(); return; }
      if (command === "to") { ahead = args[0]; refresh(); }
    },
  });
  const told = () => { story = model.get("story"); refresh(); };
  const heard = (message) => {
    if (message.kind !== "answered" || message.number !== number) return;
    ahead = null;
    refresh();
    if (message.refused) view.redraw();
  };
  model.on("change:story", told);
  model.on("change:place", refresh);
  model.on("change:last_error", refresh);
  model.on("msg:custom", heard);
  told();
  return () => {
    model.off("change:story", told);
    model.off("change:place", refresh);
    model.off("change:last_error", refresh);
    model.off("msg:custom", heard);
    view.dispose();
  };
}

// ---- on a page of its own ----

export function mountPage(root, base) {
  let now = base;
  const view = mount(root, {
    live: false,
    send(command, [value]) {
      if (command === "to") now = { ...now, at: value, counters: base.counters_by_round?.[value] ?? now.counters };
      else if (command === "follow") now = { ...now, follow: value };
      view.show(now);
    },
  });
  view.show(now);
  return view;
}

export default { render };
