// The Redistribution Lab: what is chosen, the picture of what moves (pictures/moves.js), and its tables behind tabs.

const FIELDS = ["devices", "have", "want", "copies", "steps", "rank"];
const FEW = 3; // so many choices are buttons

function controls(s, ui) {
  const one = (name) => {
    const field = s[name], command = `set_${name}`;
    return field.choices.length > FEW ? choice(command, field.label, field, command, ui)
      : segments(`${command}-`, field.label, field, command, ui);
  };
  return html`${FIELDS.map(one)}`;
}

const placeOf = (s) => movePlace(s.moves, s.at);
const tables = (s, ui) => tabs(ui, {
  steps: ["Steps", null, () => section(s, "steps", ui)],
  compare: ["Three ways", null, () => section(s, "compare", ui)],
  slices: ["Slices", null, () => section(s, "slices", ui)],
  moves: ["Steps in words", null, () => section(s, "moves", ui)],
  python: ["In Python", null, () => section(s, "python", ui)],
});

const { render, mountPage } = lab({
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
