// The Redistribution Lab: what is chosen, the picture of what moves (pictures/moves.js), and its tables behind tabs.

const FIELDS = ["devices", "have", "want", "copies", "steps", "rank"];
const TABS = { steps: "Steps", compare: "Three ways", slices: "Slices", moves: "Steps in words", forms: "Notations", python: "In Python" };

const controls = (s, ui) => html`${FIELDS.map((name) => control(`set_${name}`, s[name], ui, 3))}`;
const placeOf = (s) => movePlace(s.moves, s.at);
const tables = (s, ui) => tabs(ui, sectionTabs(s, ui, Object.entries(TABS), false));

const { render, mountPage } = lab({
  story: STORY,
  tab: still.matches ? "moves" : "steps", // where nothing may move, the moves are a list
  parts: {
    patterns: (s, ui) => patterns(ui.id),
    head: (s, ui) => head(s, controls(s, ui), ui),
    transport: (s, ui) => (s.moves.frames.length ? transport(ui, placeOf(s)) : html``),
    moves: (s, ui) => moves(s.moves, ui, { at: s.at, rank: s.rank.value, width: ui.width, select: "set_rank" }),
    tables,
  },
  skeleton: html`${slot("patterns")}<div class="pl-top">${slot("head")}</div>
    ${["transport", "moves", "tables"].map(slot)}${sky}`,
  measure(ui, root) { ui.width = Math.floor(root.clientWidth || 940) - 8; },
  numbers: ["set_devices", "set_rank"],
  handlers: (view) => transportHandlers(view, () => placeOf(view.snapshot)),
  ...flying({
    place: placeOf, waiting: ["moves"], flights: ({ root, snapshot: s }) => moveFlights(root, s.moves, s.at),
    story: (s) => FIELDS.slice(0, -1).map((name) => s[name].value).join(),
  }),
  ahead: (command, [at]) => (command === "to" ? { at } : null),
});
