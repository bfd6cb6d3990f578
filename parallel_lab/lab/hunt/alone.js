// A hunt on a page without a kernel. The page has what every suspect would answer, and who it is: scrambled, so that
// nobody reads it by accident, and not locked.

const opened = new Map(), records = new Map(); // by the sealed text

function unsealed({ sealed }) {
  if (!opened.has(sealed)) {
    const bytes = Uint8Array.from(atob(sealed), (c, at) => c.charCodeAt(0) ^ ((31 + 7 * at) & 255));
    const hunt = JSON.parse(new TextDecoder().decode(bytes));
    const place = new Map(hunt.looks.map((look, n) => [JSON.stringify(look), n]));
    opened.set(sealed, { ...hunt, place: (look) => place.get(JSON.stringify(look)) });
    records.set(sealed, { asked: hunt.asked, before: hunt.before, tries: hunt.tries, verdict: hunt.verdict });
  }
  return opened.get(sealed);
}

const NAMED = ["operator", "kind", "mend"], YES = "yes";
const rightOf = (hunt, n, name) => NAMED.map((_, at) => hunt.names[n][at] === name[at]);
const saysOf = (hunt, n, [kind, ...what], look) => (kind === "name" ? rightOf(hunt, n, what).join() : hunt.patterns[hunt.place(look)][n]);
const foundBy = ({ asked }) => asked.some(([look, said]) => look[0] === "name" && said === YES);
const spentBy = ({ asked, before }) => asked.reduce((sum, [, , cost]) => sum + cost, before);

const LOOKS = {
  probe: ([tensor, rank, step]) => `probe ${tensor} on rank ${rank}, step ${step}`,
  compare: ([one, other]) => `compare ranks ${one} and ${other}`,
  name: ([operator, kind, mend]) => `name ${operator}, ${kind}, mended by ${mend}`,
};

// The snapshot of a page, after what was asked there; that of a kernel as it is.
function played(s) {
  if (!s.sealed) return s;
  const hunt = unsealed(s), record = records.get(s.sealed), { asked, tries, verdict } = record;
  const fits = (n) => asked.every(([look]) => saysOf(hunt, n, look, look) === saysOf(hunt, hunt.culprit, look, look));
  const left = hunt.start.filter(fits).length, looks = asked.filter(([look]) => look[0] !== "name").length;
  const par = tries === 1 ? `par ${hunt.par}` : "tried before";
  const said = verdict || `${left} of ${hunt.names.length} suspects fit the loss and all answers.`;
  const probed = Object.fromEntries(asked.filter(([look]) => look[0] === "probe").map(([look, answer]) => [look[1], answer]));
  const rows = asked.map(([[kind, ...what], answer, cost]) => [LOOKS[kind](what), answer, cost]);
  const graph = s.sections.graph.rows.map(([name, ...row]) => [name, ...row.slice(0, -1), probed[name] ?? ""]);
  return {
    ...s, status: `${plural(looks, "look")}, ${plural(spentBy(record), "point")}; ${par}. ${said}`,
    sections: { ...s.sections, asked: { ...s.sections.asked, rows }, graph: { ...s.sections.graph, rows: graph } },
  };
}

const shownAfter = (s) => { const { status, sections } = played(s); return { status, sections }; };

function looksAt(s, look, cost) {
  const hunt = unsealed(s), record = records.get(s.sealed);
  record.asked = [...record.asked, [look, hunt.words[hunt.said[hunt.place(look)]], foundBy(record) ? 0 : cost]];
  return shownAfter(s);
}

function tells(s) {
  const hunt = unsealed(s), record = records.get(s.sealed);
  if (foundBy(record)) return shownAfter(s);
  const name = [...hunt.names[s.suspect.value].slice(0, 2), s.mend.value], right = rightOf(hunt, hunt.culprit, name);
  const parts = NAMED.map((part, at) => `the ${part} is ${right[at] ? "right" : "another"}`).join(", ");
  const all = right.every(Boolean);
  record.asked = [...record.asked, [["name", ...name], all ? YES : parts, all ? 0 : hunt.costs[1]]];
  const points = plural(spentBy(record), "point");
  const end = record.tries === 1 ? `${points}, par ${hunt.par}` : `${points} in ${record.tries} tries: tried before`;
  record.verdict = all ? `${hunt.found} ${end}.` : `Not yet: ${parts}. ${hunt.costs[1]} points more.`;
  return shownAfter(s);
}

function again(s) {
  const record = records.get(s.sealed);
  if (record.asked.length) Object.assign(record, { before: spentBy(record), tries: record.tries + 1 });
  Object.assign(record, { asked: [], verdict: "" });
  return shownAfter(s);
}

const probeOf = (s) => ["probe", s.tensor.value, s.rank.value, s.step.value];
const compareOf = (s) => ["compare", ...[s.rank.value, s.other.value].sort((a, b) => a - b)];
const ALONE = {
  probe: (s) => looksAt(s, probeOf(s), unsealed(s).costs[0]),
  compare: (s) => looksAt(s, compareOf(s), unsealed(s).costs[1]),
  tell: tells,
  forget: again,
};

// Whether there is such a look.
function askable(s, command) {
  const look = { probe: probeOf, compare: compareOf }[command]?.(s);
  return Boolean(s.sealed) && (!look || unsealed(s).place(look) !== undefined);
}

const sealedNote = (s) => (s.sealed ? html`<p class="pl-muted pl-hunt-note">No kernel judges here: all answers are in this page,
  scrambled, not locked. Who takes its source apart finds the bug, and who loads it again begins anew.</p>` : "");
