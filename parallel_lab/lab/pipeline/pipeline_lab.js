// The Pipeline Lab: controls above, lanes in the middle, loss and numbers below, tables and code in tabs.

const NUMBERS_OF = ["set_stages", "set_micro_batches", "set_chunks", "set_rank", "set_cores", "toggle_recompute"];
const TABS = { // the titles of sections that are looked at one at a time
  actions: "Actions", messages: "Messages", memory: "Memory", equality: "Equality", earlier: "Earlier runs",
  recorded: "Recorded run", text: "Schedule as text", torch: "CSV", ours: "Code out",
};

// ---- what is selected, and how far the page was stepped ----

const findItem = (s, key) => {
  for (const lane of s.lanes) {
    const found = itemsOf(s, lane.rank).find((item) => item.key === key);
    if (found) return found;
  }
  return null;
};

function momentsOf(s) {
  const times = s.lanes.flatMap((lane) => lane.cells.flatMap(([, start, end]) => [start, end]));
  return [...new Set(times)].sort((a, b) => a - b);
}

// What follows from both: the moment, the item, and the cells that a wait waits for.
function prepare(s, ui) {
  const moments = momentsOf(s);
  if (ui.at !== null) ui.at = Math.max(0, Math.min(ui.at, moments.length - 1));
  ui.time = ui.at === null ? 0 : moments[ui.at] ?? 0;
  ui.item = ui.sel ? findItem(s, ui.sel) : null;
  if (!ui.item) ui.sel = null;
  const ran = ranLanes(s).length; // after a run all of it is shown, until the drawn step is asked for again
  if (ran !== (ui.ran ?? 0)) { ui.ran = ran; ui.all = ran > 0; }
  ui.first = itemsOf(s, 0)[0]?.key;
  ui.chain = new Set((ui.item?.links ?? []).map(([rank, position]) => `c${rank}-${s.lanes[rank].cells[position][0]}`));
  return moments;
}

function selectedText(s, ui) {
  if (ui.item) return sayItem(s, ui.item);
  if (s.past) return s.past.words;
  if (ui.at === null) return "";
  const does = s.lanes.map((lane) => {
    const cell = lane.cells.find(([, start, end]) => start <= ui.time && ui.time < end);
    return `rank ${lane.rank} ${cell ? cell[0] : "waits"}`;
  });
  return `From ${timeOf(ui.time)} on (predicted): ${does.join(", ")}.`;
}

// ---- parts ----

const RUN = "train with this schedule on worker processes, and on one device";
const SIMULATE = "this machine's numpy on the simulator's clock";

const SCHEDULES = {
  gpipe: "all forwards, then all backwards: a rank keeps every micro-batch",
  "1f1b": "a forward and a backward in turn: no longer than gpipe, and a rank keeps at most one micro-batch per stage",
  eager_1f1b: "1f1b with twice the forwards first, so that slow messages have time to travel",
  interleaved: "several parts on a rank in turn: shorter waits, more messages",
  breadth_first: "several parts on a rank, each for all micro-batches before the next part",
  zb_h1: "W apart from B and later, where a rank would wait",
  zb_h2: "W apart from B, and twice the forwards first: shorter waits, more memory",
  zero_bubble_v: "two parts on a rank, placed as a V, with W apart from B: the last part lies where the first does",
  v_half: "a V that keeps half of what 1f1b does",
  v_min: "a V that keeps a third of what 1f1b does",
  chimera: "two copies of the network: half of the micro-batches run down, half run up",
  dualpipe: "two copies of the network that run against each other",
  dualpipe_v: "dualpipe cut in half: one copy, placed as a V",
};
const CORES = { 0: "own: each simulated rank has a core of its own; shared: they share those of this machine" };

function top(s, ui) {
  const { can } = s.run, run = button("run_measured", "Run", ui, { on: can.run, kind: "pl-primary", title: RUN });
  const other = can.stop ? button("stop", "Stop", ui)
    : button("run_simulated", "Simulate", ui, { on: can.run, title: SIMULATE });
  return html`<div class="pl-head pl-pi-head"><h2 class="pl-title">${s.title}</h2>
    ${choice("net", "net", s.net, "set_net", ui)}${s.puzzle?.locked ? "" : [choice("stages", "stages", s.stages, "set_stages", ui),
    choice("micro", "micro-batches", s.micro_batches, "set_micro_batches", ui),
    choice("schedule", "schedule", s.schedule, "set_schedule", ui, { help: SCHEDULES })]}
    ${choice("cores", "cores", s.cores, "set_cores", ui, { help: CORES })}
    <span class="pl-pi-run">${run}${other}</span></div>`;
}

const TYPED = {
  times: ["F:B:W", "time of forward, input gradients and weight gradients of a stage"],
  latency: ["latency", "time of a message between ranks: one number, or one for each border, 0, 2, 0"],
  cap: ["cap", "micro-batches x parts that a rank can keep; none: any number"],
};

function settings(s, ui) {
  const again = ({ rank }) => html`<button type="button" class="pl-pi-toggle" data-key="again${rank}"
    data-command="toggle_recompute" data-value="${rank}" aria-pressed="${s.recompute.includes(rank)}"
    ${flag("disabled", !ui.live)} title="rank ${rank} runs forward again in backward, and keeps less">${rank}</button>`;
  const field = ([name, [label, hint]]) => html`<span class="pl-pi-typed pl-pi-${name}" title="${hint}">
    ${typed(name, label, s.typed[name], ui)}</span>`;
  // what a puzzle gives stands there in words, and is set only when its par was reached
  const puzzle = s.puzzle ? html`<p class="pl-pi-puzzle" data-key="puzzle">${s.puzzle.text}</p>` : "";
  if (s.puzzle?.locked) return html`<div class="pl-pi-settings pl-pi-locked">${puzzle}</div>`;
  return html`<div class="pl-pi-settings">${puzzle}${choice("chunks", "parts each", s.chunks, "set_chunks", ui)}
    ${Object.entries(TYPED).map(field)}
    <span class="pl-field" role="group" aria-label="recompute on rank"><span>recompute</span>
    <span class="pl-pi-toggles">${s.lanes.map(again)}</span></span>
    ${choice("strategy", "stage", s.strategy, "set_strategy", ui)}</div>`;
}

function headline(s, ui) {
  prepare(s, ui);
  const bubble = ([source, , part]) => html`<span class="${part ? "" : "pl-muted"}" data-key="${source}">
    <b>${part ?? "–"}</b> ${source}</span>`;
  const going = s.run.text ? html`<p class="pl-pi-going" role="status">${s.run.text}${runBar(s.run)}</p>` : "";
  if (openQuestion(s)) return html`${asksOrTells(s, ui)}${predictSwitch(s, ui)}${notices({ n0: s.last_error })}`;
  return html`${asksOrTells(s, ui)}<div class="pl-pi-lead"><div class="pl-pi-said">${lead(s.past?.said ?? s.status, selectedText(s, ui))}
    ${going}</div>
    <p class="pl-pi-bubbles" aria-label="bubble"><span>bubble</span>${s.sections.bubble.rows.map(bubble)}${
      s.puzzle?.locked ? "" : predictSwitch(s, ui)}</p></div>
    ${notices({ n0: ui.tried || ui.told === s.last_error ? null : s.last_error, n1: s.run.error })}`;
}

const lanesPart = (s, ui) => {
  prepare(s, ui);
  return picture(s, ui);
};

const FIT = "the whole of what ran, or the drawn step over the full width";

function tools(s, ui) {
  const moments = prepare(s, ui), last = Math.max(0, moments.length - 1), at = ui.at ?? last, { live } = ui, { longer } = geometry(s, ui);
  const tool = (name, text, title, on = true) => html`<button type="button" class="pl-button" data-key="do-${name}"
    data-do="${name}" ${flag("disabled", !on)} title="${title}">${text}</button>`;
  const rank = ui.item?.rank ?? 0, can = (kind) => live && s.lanes[rank].left.some((name) => name.includes(kind));
  const behind = `of rank ${rank}, behind what is selected`;
  const put = (kind) => tool(kind, `+${kind}`, `the next ${kind} ${behind} (key ${kind})`, can(kind));
  const edit = html`<span class="pl-pi-group" role="group" aria-label="draw">${["F", "B", "W"].map(put)}
    ${tool("remove", "Remove", "the selected action (Delete)", Boolean(ui.item?.name) && !ui.item?.ghost)}
    ${tool("clear_rank", `Clear ${rank}`, `the lane of rank ${rank}, to draw it`)}
    ${tool("clear", "Clear all", "all lanes, to draw them")}
    ${button("undo", "Undo", ui, { on: s.can_undo, title: "key z" })}
    ${button("redo", "Redo", ui, { on: s.can_redo, title: "key y" })}
    ${s.puzzle?.locked ? "" : button("search", "Search", ui, { title: "a good schedule for these times and this cap, found fast" })}</span>`;
  return html`<div class="pl-pi-tools"><span class="pl-pi-group" role="group" aria-label="step">
    ${tool("whole", "Whole", "the whole step", ui.at !== null)}${tool("back", "◀", "one moment back", at > 0)}
    <input type="range" data-key="at" data-step="1" min="0" max="${last}" value="${at}"
    aria-label="moment of the step" aria-valuetext="${timeOf(moments[at] ?? 0)} ticks">
    ${tool("on", "▶", "one moment on", ui.at === null || at < last)}
    ${longer ? tool("all", ui.all ? "Fit drawn" : "Fit all", FIT) : ""}
    ${s.puzzle?.locked ? "" : html`<button type="button" class="pl-button" data-key="weigh" data-do="weigh"
    aria-expanded="${Boolean(ui.weighs)}" title="what each schedule would lead to">▤${longer ? html`<span class="pl-hidden"> Compare</span>` : " Compare"}</button>`}
    <output class="pl-pi-moment">${ui.at === null ? "" : timeOf(ui.time)}</output></span>${live ? edit : ""}</div>`;
}

const RECORDS = "Run and Simulate record their steps: a slider over them stands here then.";
const COMPARED = "Run trains with this schedule; every tensor is compared with one device.";
const ALONE = "◀ and ▶ step through the drawn order; a gap that is selected says what it waits for. In a notebook, " +
  "Run trains with it.";

// Every schedule with its bars, in the room of the loss: the lanes above show the one that is pointed at.
function schedules(s, ui) {
  const weighed = consequencesOf(s, ui, s.schedule, "set_schedule");
  const one = (c, n) => {
    const value = valueOf(c), on = value === s.schedule.value;
    return html`<button type="button" role="radio" aria-checked="${on}" tabindex="${on || (n === 0 && !s.schedule.value) ? 0 : -1}"
      data-key="${value}" data-command="set_schedule" data-value="${value}" data-if="${JSON.stringify(["set_schedule", value])}"
      title="${[SCHEDULES[value], weighed.said(n)].filter(Boolean).join("; ")}"${disabledUnless(ui, "set_schedule", value)}
      ><span>${choiceText(c)}</span>${weighed.bars(n)}</button>`;
  };
  return html`<div class="pl-pi-schedules"><div role="radiogroup" aria-label="schedules" data-roving="5">
    ${s.schedule.choices.map(one)}</div>${weighed.key}</div>`;
}

function below(s, ui) {
  if (ui.weighs && !s.puzzle?.locked) return schedules(s, ui);
  const { equality } = s.sections;
  return html`<div class="pl-pi-below">${loss(s, ui)}<div class="pl-pi-numbers">${section(s, "bubble", ui)}
    <p class="pl-pi-verdict">${equality ? equality.notes.map((note) => html`${typeof note === "string" ? note : verdictText(note)} `) : ui.live ? COMPARED : ALONE}</p></div></div>`;
}

function loader(s, ui) {
  const { text } = s.sections.text;
  return html`<label class="pl-pi-load"><span>Edit it and load it, or paste another, as text or CSV:</span>
    <textarea data-key="load-${text}" data-load="1" rows="${Math.min(9, s.lanes.length + 1)}" spellcheck="false"
    wrap="off">${text}</textarea></label>
    <button type="button" class="pl-button" data-key="do-load" data-do="load">Load</button>${refusedHere(s, ui, "load")}`;
}

function tables(s, ui) {
  const known = sectionTabs(s, ui, Object.entries(TABS)), above = choice("rank", "rank", s.rank, "set_rank", ui);
  known.actions[2] = () => section(s, "actions", ui, { above });
  if (ui.live) known.text[2] = () => loader(s, ui);
  return tabs(ui, { ...known, ...codeTabs(s, ui) });
}

// ---- what can be done ----

function handlers(view) {
  const { root, ui, send } = view;
  const select = (key) => { if (ui.sel !== key) { ui.sel = key; view.ask(); } };
  // what was refused at a place was read there: once somebody goes on it is not told again
  const goOn = () => { if (ui.tried) ui.told = view.snapshot.last_error; ui.tried = null; };
  const focus = (key) => { select(key); view.draw(); root.querySelector(`[data-item="${CSS.escape(key)}"]`)?.focus(); };
  // a command at a place: a refusal is shown there, and what is made gets the focus
  const ask = (command, given, rank, position, time) => {
    ui.tried = { rank, time };
    ui.then = { rank, position };
    send(command, given);
  };
  const putNext = (kind) => {
    const item = ui.item, s = view.snapshot, rank = item?.rank ?? 0, lane = s.lanes[rank];
    const end = lane.cells.length + lane.pending.length;
    const at = !item || item.ghost ? end : item.gap ? item.position : item.position + 1;
    ask("put_next", [rank, kind, at], rank, at, item && !item.ghost ? item.end : lane.cells.at(-1)?.[2] ?? 0);
  };
  const doIt = {
    F: () => putNext("F"), B: () => putNext("B"), W: () => putNext("W"),
    remove() {
      const { rank, position, start, name, ghost: made } = ui.item ?? {};
      if (name && !made) ask("remove", [rank, position], rank, Math.max(0, position - 1), start);
    },
    clear_rank() { const rank = ui.item?.rank ?? 0; ui.sel = null; ask("clear_rank", [rank], rank, 0, 0); },
    clear() { ui.sel = null; ask("clear", [], 0, 0, 0); },
    all() { ui.all = !ui.all; view.ask(); },
    weigh() { ui.weighs = !ui.weighs; view.preview(null); },
    whole() { ui.at = null; view.ask(); },
    back() { ui.at = (ui.at ?? momentsOf(view.snapshot).length - 1) - 1; ui.sel = null; view.ask(); },
    on() { ui.at = ui.at === null ? 0 : ui.at + 1; ui.sel = null; view.ask(); },
    load() { ui.tried = ui.told = null; send("load", [root.querySelector("[data-load]").value]); },
  };
  const ghost = (item) => ask("put", [item.rank, item.name, -1], item.rank, item.position, item.start);
  const move = (item, to) => {
    const { rank, position, start } = item, lane = view.snapshot.lanes[rank];
    const count = lane.cells.length + lane.pending.length;
    if (to >= 0 && to < count && to !== position) ask("move", [rank, position, to], rank, to, start);
  };
  // the place that a dragged cell would have at a time in a lane, and its edge
  const placeIn = (onto, time, item) => {
    const from = item.ghost || onto !== item.rank ? -1 : item.position;
    const cells = itemsOf(view.snapshot, onto).filter((one) => one.name && !one.ghost && one.position !== from);
    const before = cells.filter((one) => (one.start + one.end) / 2 < time);
    return { onto, to: before.length, edge: before.at(-1)?.end ?? cells[0]?.start ?? 0 };
  };
  const placeAt = (event, item) => {
    const s = view.snapshot, g = geometry(s, ui), { x, y } = pointIn(view.slots.lanes.querySelector(".pl-pi-lanes"), event);
    const lane = Math.floor((y - g.top(0)) / g.h.lane);
    const onto = Math.max(0, Math.min(s.lanes.length - 1, lane));
    return placeIn(onto, (x - g.left) / g.per, item);
  };
  // to another lane: refused, with the reason, where the part of the network does not lie on that rank too
  const moveOnto = (item, { onto, to, edge }) => ask("move_onto", [item.rank, item.position, onto, to], onto, to, edge);
  const neighbour = (item, key) => {
    const s = view.snapshot, items = itemsOf(s, item.rank), at = items.findIndex((one) => one.key === item.key);
    if (key === "ArrowLeft") return items[at - 1];
    if (key === "ArrowRight") return items[at + 1];
    if (key === "Home") return items[0];
    if (key === "End") return items.at(-1);
    const rank = item.rank + (key === "ArrowDown" ? 1 : -1), middle = (item.start + item.end) / 2;
    if (!s.lanes[rank]) return null;
    const away = (one) => Math.max(one.start - middle, middle - one.end, 0);
    return itemsOf(s, rank).reduce((best, one) => (!best || away(one) < away(best) ? one : best), null);
  };
  root.addEventListener("scroll", ({ target }) => { // it does not bubble
    if (!target.matches?.(".pl-pi-scroll")) return;
    ui.scrolled = target.scrollLeft;
    if (ui.tried) view.ask();
  }, true);
  return {
    focusin({ target }) {
      const node = target.closest("[data-item]");
      if (!node) return;
      goOn();
      select(node.dataset.item);
    },
    pointerdown(event) {
      const node = event.target.closest("[data-item]");
      if (!node || event.button !== 0) return;
      event.preventDefault();
      node.focus();
      const item = findItem(view.snapshot, node.dataset.item);
      if (!ui.live || !item?.name) return;
      ui.drag = { key: item.key, item, onto: item.rank, to: null, edge: 0, x: event.clientX, y: event.clientY };
      root.setPointerCapture(event.pointerId);
    },
    pointermove(event) {
      const { drag } = ui;
      if (!drag || Math.hypot(event.clientX - drag.x, event.clientY - drag.y) < 4) return;
      bringInSight(root, pointIn(view.slots.lanes.querySelector(".pl-pi-lanes"), event).x);
      Object.assign(drag, placeAt(event, drag.item));
      view.ask();
    },
    pointerup() {
      const { drag } = ui;
      ui.drag = null;
      if (!drag) return;
      view.ask();
      if (drag.item.ghost) {
        if (drag.to === null) ghost(drag.item);
        else ask("put", [drag.onto, drag.item.name, drag.to], drag.onto, drag.to, drag.edge);
      } else if (drag.onto !== drag.item.rank) moveOnto(drag.item, drag);
      else if (drag.to !== null) move(drag.item, drag.to);
    },
    pointercancel() { ui.drag = null; view.ask(); },
    click(event) {
      const node = event.target.closest("[data-do]");
      if (node && !node.hasAttribute("disabled")) doIt[node.dataset.do]();
      if (event.target.closest("[data-command]")) ui.tried = ui.told = ui.then = null;
      return node;
    },
    input({ target }) {
      if (!target.dataset.step) return false;
      ui.at = Number(target.value);
      ui.sel = null;
      view.ask();
      return true;
    },
    keydown({ target, key, shiftKey }) {
      const node = target.closest?.("[data-item]");
      if (!node) return false;
      const item = findItem(view.snapshot, node.dataset.item), letter = key.toUpperCase();
      if (!item) return false;
      if (key === "Escape") { goOn(); ui.sel = null; view.ask(); return true; }
      if (["ArrowLeft", "ArrowRight"].includes(key) && shiftKey) {
        if (ui.live && item.name && !item.ghost) move(item, item.position + (key === "ArrowLeft" ? -1 : 1));
        return true;
      }
      if (["ArrowUp", "ArrowDown"].includes(key) && shiftKey) {
        const onto = item.rank + (key === "ArrowUp" ? -1 : 1), middle = (item.start + item.end) / 2;
        if (ui.live && item.name && !item.ghost && view.snapshot.lanes[onto]) {
          moveOnto(item, placeIn(onto, middle, item));
        }
        return true;
      }
      if (key.startsWith("Arrow") || key === "Home" || key === "End") {
        const next = neighbour(item, key);
        if (next) focus(next.key);
        return true;
      }
      if (!ui.live) return false;
      if ("FBW".includes(letter) && letter.length === 1) doIt[letter]();
      else if (key === "Delete" || key === "Backspace") doIt.remove();
      else if (letter === "Z") send("undo", []);
      else if (letter === "Y") send("redo", []);
      else if ((key === "Enter" || key === " ") && item.ghost) ghost(item);
      else return ["Enter", " "].includes(key);
      return true;
    },
  };
}

function keyAt(s, { rank, position }) {
  const lane = s.lanes[rank], name = lane?.cells[position]?.[0] ?? lane?.pending[position - lane.cells.length];
  return name === undefined ? (lane?.left.length ? `n${rank}-${lane.left[0]}` : null) : `c${rank}-${name}`;
}

const { render, mountPage } = lab({
  classes: ["pl-pi"],
  story: STORY,
  parts: { head: top, settings, ...inPast(pipelinePast, { lead: headline, lanes: lanesPart, caption }), tools,
    run: (s, ui) => scrubBar(s, ui, { ranks: true, without: RECORDS }), ...inPast(pipelinePast, { below }), tables },
  measure(ui, root) {
    ui.width = Math.max(200, Math.floor(root.clientWidth || 940) - 8);
    ui.at ??= null;
    ui.sel ??= null;
    ui.all ??= false;
  },
  previews: ["status", "complete", "lanes", "waits", "span", "axis", "nominal", "again", "parts", "twice", "ran", "sections"],
  numbers: NUMBERS_OF,
  commit(name, text, { snapshot, send, ui, forget }) {
    ui.tried = ui.told = null;
    if (text.trim() !== snapshot.typed[name]) send("set_typed", [name, text]);
    forget("settings");
  },
  handlers: (view) => withScrub(view, withPaste(view, handlers(view))),
  // what was made by a key or a click gets the focus, so that the next key goes on there
  answered(view) {
    const { ui } = view, { then } = ui;
    ui.then = null;
    if (!then || view.snapshot.last_error) return;
    const key = keyAt(view.snapshot, then);
    if (key) { ui.sel = key; ui.wanted = key; }
  },
  drawn({ ui, root, snapshot }) {
    if (ui.at !== null && ui.at !== ui.shown) bringInSight(root, geometry(snapshot, ui).x(ui.time));
    ui.shown = ui.at;
    if (!ui.wanted) return;
    root.querySelector(`[data-item="${CSS.escape(ui.wanted)}"]`)?.focus();
    ui.wanted = null;
  },
});
