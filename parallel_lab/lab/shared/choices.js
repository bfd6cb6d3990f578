// A list of choices with what each would lead to (lab/shared/what_if.py): bars next to it, numbers of the one that is
// pointed at, and the picture as it would be, until one is chosen or the list is left. `ui.whatIf(call, parts)` gives
// what is known of a call: {weight, ...parts of the snapshot}, {refused}, or nothing yet.

// What a page without a kernel knows: the settings it replays.
const replayedIf = ({ weight, ...state }, parts) => (weight
  ? { weight, ...Object.fromEntries((parts ?? []).map((name) => [name, state[name]])) } : undefined);

// What the kernel is asked, one call after the other; what it said is kept until anything changes.
function askIf(model, live, changed) {
  let stands = null, asked = null, found = new Map(), queue = new Map();
  const next = () => {
    const [text, parts] = queue.entries().next().value ?? [];
    if (asked || !text || !live()) return;
    queue.delete(text);
    asked = text;
    try { model.send({ what_if: JSON.parse(text), parts }); } catch { queue.clear(); }
  };
  const whatIf = (call, parts) => {
    const text = JSON.stringify(call), now = model.get("snapshot").stands;
    if (now !== stands) [stands, asked, found, queue] = [now, null, new Map(), new Map()];
    const known = found.get(text), enough = known && (known.refused || !parts || parts.every((name) => name in known));
    if (!enough && asked !== text && now) {
      const rest = [...queue].filter(([other]) => other !== text);
      queue = new Map(parts ? [[text, parts], ...rest] : [...rest, [text, queue.get(text) ?? []]]);
      next();
    }
    return known;
  };
  const heard = ({ call, stands: then, found: said }) => {
    if (then !== stands) return;
    asked = null;
    found.set(JSON.stringify(call), said);
    next();
    changed();
  };
  return { whatIf, heard };
}

// The same for all values of a setting.
const consequencesOf = (s, ui, field, command) => consequences(s, ui, field.choices.map((c) => [command, valueOf(c)]));

// The bars of a list of calls, each as long as its share of the largest in the list, and what the one that is pointed
// at would lead to, compared with what is in force.
function consequences(s, ui, calls) {
  const found = openQuestion(s) ? [] : calls.map((call) => ui.whatIf(call)?.weight);
  const at = calls.findIndex((call) => JSON.stringify(call) === JSON.stringify(ui.preview));
  const names = calls.length && !openQuestion(s) ? Object.keys(found.find(Boolean) ?? s.weight ?? {}) : [];
  const most = names.map((name) => Math.max(...found.map((w) => w?.[name][0] ?? 0)) || 1);
  const text = ([value, how]) => micro(String(CELLS[how](value)));
  // what is not known yet, or refused, keeps the place: nothing moves when it comes
  const long = (w, name, i) => (w ? `width:${round((100 * w[name][0]) / most[i])}%` : "width:0;visibility:hidden");
  const bar = (w) => (name, i) => html`<i class="pl-weight-${i}" style="${long(w, name, i)}"></i>`;
  const line = (w) => (name, i) => html`<span><i class="pl-weight-${i}"></i>${name} <b>${text(w[name])}</b>
    ${s.weight && text(s.weight[name]) !== text(w[name]) ? html`<small>now ${text(s.weight[name])}</small>` : ""}</span>`;
  return {
    bars: (n) => html`<span class="pl-weights" aria-hidden="true">${names.map(bar(found[n]))}</span>`,
    said: (n) => (found[n] ? `predicted: ${names.map((name) => `${name} ${text(found[n][name])}`).join(", ")}` : ""),
    key: names.length ? html`<p class="pl-weighed"><span>predicted</span>${names.map(line(found[at] ?? s.weight))}</p>` : "",
  };
}
