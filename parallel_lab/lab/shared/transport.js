// Steps that are done one after the other: buttons, a slider and play, and the tokens that fly from where they lay to
// where they come. A control never waits for them: whatever is asked for next, they land first, all at once. None fly
// where motion is reduced.
//
//   transport(ui, place)             place: {at, last, text, noun, phases}: of `last` steps so many are done; {done, of}:
//                                    the same in words, where some steps are drawn in several
//   transportHandlers(view, place)   place: the same as a function; what is asked for is the command `to`
//   takeOff, land, waitsForLanding   hooks of a view whose tokens fly

const FLIGHT_MS = 400, PLAY_MS = 1500;
const still = matchMedia("(prefers-reduced-motion: reduce)");

function transport(ui, { at, last, text, noun, phases = [], done = at, of = last }) {
  // a disabled one would lose the focus, and with it the keys
  const button = (act, label, shown, on, kind = "") => html`<button type="button" class="pl-button ${kind}"
    data-key="${act}" data-act="${act}" title="${label}" aria-disabled="${!on}">${shown}<span class="pl-hidden">: ${label}</span></button>`;
  const { playing } = ui;
  const phase = (p) => html`<span style="flex:${p.rounds}" class="${p.on ? "pl-on" : ""}">${p.name}</span>`;
  const play = playing ? ["stop playing", "❚❚ Stop"] : [`play the ${noun}s`, "▶ Play"];
  return html`<div class="pl-transport" role="group" aria-label="${noun}s">
    <span class="pl-buttons">${button("reset", "to the start", "« Start", at > 0)}
      ${button("back", `one ${noun} back`, "‹ Back", at > 0)}
      ${button("next", `one ${noun} on`, "Next ›", at < last, "pl-primary")}
      ${button("play", ...play, at < last || playing)}</span>
    <div class="pl-rail"><input type="range" data-key="rail" min="0" max="${last}" step="1" value="${at}"
        aria-label="${noun}s done" aria-valuetext="${text}">
      <div class="pl-phases" aria-hidden="true">${phases.map(phase)}</div></div>
    <span class="pl-place"><b>${done}</b> of ${plural(of, noun)}</span>
  </div>`;
}

function stopPlaying(view) {
  clearInterval(view.ui.timer);
  view.ui.playing = false;
  view.ask();
}

function transportHandlers(view, place) {
  const { ui, send } = view, at = () => place().at, last = () => place().last;
  const go = (to) => { if (to >= 0 && to <= last() && to !== at()) send("to", [to]); };
  const play = () => {
    if (ui.playing) { stopPlaying(view); return; }
    ui.playing = true;
    go(at() + 1);
    ui.timer = setInterval(() => (at() < last() ? go(at() + 1) : stopPlaying(view)), PLAY_MS);
    view.ask();
  };
  const acts = { reset: () => go(0), back: () => go(at() - 1), next: () => go(at() + 1), play };
  return {
    click(event) {
      const act = event.target.closest("[data-act]");
      if (act && act.getAttribute("aria-disabled") !== "true") {
        if (act.dataset.act !== "play" && ui.playing) stopPlaying(view);
        if (act.dataset.act === "to") go(Number(act.dataset.value));
        else acts[act.dataset.act]();
      }
      return act;
    },
    input({ target }) {
      if (target.type !== "range") return;
      if (ui.playing) stopPlaying(view);
      go(Number(target.value));
    },
    change: ({ target }) => target.type === "range",
    keydown({ target, key }) {
      const to = { ArrowRight: at() + 1, ArrowLeft: at() - 1, Home: 0, End: last() }[key];
      // groups, lists and radios know the arrows themselves
      const own = target.closest?.("[data-roving], [role=tablist]") || target.nodeName === "SELECT"
        || target.type === "radio" || target.type === "text";
      if (to === undefined || own) return false;
      if (ui.playing) stopPlaying(view);
      go(to);
      return true;
    },
  };
}

// ---- flights ----

const sky = html`<div class="pl-sky" aria-hidden="true"></div>`;

// Whether tokens are to fly from what is shown to what comes: one step on, in a page that is looked at.
const flies = (before, now) => now === before + 1 && !still.matches && document.visibilityState === "visible";

// flights: [{ghost: a node, from, to: boxes in the lab (`boxIn`), by: points between, relative to the start}]
function takeOff(view, flights) {
  const { root, ui } = view, above = root.querySelector(".pl-sky");
  const going = flights.map(({ ghost, from, to, by = [] }) => {
    for (const [name, value] of Object.entries(from)) ghost.style[name] = `${value}px`;
    ghost.classList.add("pl-ghost");
    above.append(ghost);
    const way = [[0, 0], ...by, [to.left - from.left, to.top - from.top]], done = [0];
    for (let i = 1; i < way.length; i += 1) {
      done.push(done[i - 1] + Math.hypot(way[i][0] - way[i - 1][0], way[i][1] - way[i - 1][1]));
    }
    const frames = way.map(([x, y], i) => ({
      transform: `translate(${x}px, ${y}px)`, offset: done.at(-1) ? done[i] / done.at(-1) : i / (way.length - 1),
    }));
    return ghost.animate(frames, { duration: FLIGHT_MS, easing: "cubic-bezier(.45, 0, .3, 1)", fill: "forwards" });
  });
  if (!going.length) { land(view); return; }
  ui.landing = going;
  Promise.all(going.map((f) => f.finished)).then(() => { if (ui.landing === going) land(view); }, () => {});
}

function land(view) {
  const { root, ui } = view, flights = ui.landing;
  if (!flights) return;
  ui.landing = null;
  for (const flight of flights) flight.cancel();
  root.querySelector(".pl-sky").replaceChildren();
  view.draw();
}

// What a view with flights is made with.
//   place     (snapshot) => {at, last};  story: (snapshot) => a text: what is stepped through
//   flights   (view) => what flies, once the page shows the step, but for the parts named `waiting`
const flying = ({ place, story, flights, waiting }) => ({
  shown(view, before) {
    const { snapshot, ui } = view, now = place(snapshot), same = before && story(before) === story(snapshot);
    if (same && place(before).at === now.at) return; // the kernel's answer to the step that is under way
    land(view);
    if (same && flies(place(before).at, now.at)) ui.landing = [];
    if (now.at === now.last && ui.playing) stopPlaying(view);
  },
  drawn(view) {
    view.root.dataset.at = place(view.snapshot).at;
    if (view.ui.landing && !view.ui.landing.length) takeOff(view, flights(view));
  },
  resized: land, acts: land,
  waits: ({ ui }, name) => ui.landing && waiting.includes(name),
  leave(view) { stopPlaying(view); view.ui.landing = null; },
});
