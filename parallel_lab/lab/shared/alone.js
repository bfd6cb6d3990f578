// A lab on a page of its own: no kernel listens. What the lab itself computed beforehand (lab/shared/replay.py) is looked
// up, what is looked at is taken from the parts that lie next to each state, and everything else is off and says why.
//
// The settings stand in the address: #state=... is what lab.link() gives, and follows what the reader chooses.

const NEEDS = "needs a kernel: ";
const WHY = {
  ran: `${NEEDS}this page replays what was computed, and starts nothing`,
  chosen: `${NEEDS}this choice was not computed for the page`,
};
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

async function inflated(packed) {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// The table of `pack`: states by number, and which command leads from one to another.
function replayOf({ kind, looks, free, paths, parts, states, calls, moves }) {
  const placed = [], made = new Map(), leads = new Map(), place = paths.findIndex((p) => same(p, ["calls"]));
  for (const changes of states) {
    const now = new Map(placed.at(-1) ?? []);
    for (let i = 0; i < changes.length; i += 2) {
      if (changes[i + 1] < 0) now.delete(changes[i]); else now.set(changes[i], changes[i + 1]);
    }
    placed.push(now);
  }
  const settings = (n) => parts[placed[n].get(place)];
  const numbers = new Map(placed.map((_, n) => [JSON.stringify(settings(n)), n]));
  const build = (n) => {
    const root = {};
    for (const [path, part] of placed[n]) {
      let at = root;
      for (const name of paths[path].slice(0, -1)) at = at[name] ??= {};
      at[paths[path].at(-1)] = parts[part];
    }
    return root;
  };
  const from = (n) => {
    if (!leads.has(n)) {
      const found = moves[n] ?? [], pairs = [];
      for (let i = 0; i < found.length; i += 2) pairs.push([calls[found[i]], found[i + 1]]);
      leads.set(n, new Map(pairs));
    }
    return leads.get(n);
  };
  const commands = new Set([...calls.map((text) => JSON.parse(text)[0]), ...free]);
  // The number of the state that a call leads to, the words of its refusal, or undefined.
  const next = (n, call) => {
    const known = from(n).get(JSON.stringify(call));
    if (known !== undefined || !free.includes(call[0])) return known;
    return numbers.get(JSON.stringify(settings(n)?.map((one) => (one[0] === call[0] ? call : one))));
  };
  return {
    kind, looks, commands, settings, next,
    find: (wanted) => numbers.get(JSON.stringify(wanted)),
    state(n) { if (!made.has(n)) made.set(n, build(n)); return made.get(n); },
    // Whether a call leads somewhere; of one whose last arguments are left open, whether any of them does.
    leads(n, call) {
      const begin = `${JSON.stringify(call).slice(0, -1)},`, open = call.length === 1 && moves.length && free.includes(call[0]);
      return open || next(n, call) !== undefined || [...from(n).keys()].some((key) => key.startsWith(begin));
    },
  };
}

// A snapshot with what the reader looks at; null where the page does not know that.  fields: what can be looked at
function lookedAt(state, chosen, fields) {
  const s = { ...state };
  for (const [name, value] of Object.entries(chosen)) {
    const now = s[name];
    if (now?.choices && !now.choices.some((c) => valueOf(c) === value)) return null;
    s[name] = now?.choices ? { ...now, value } : value;
  }
  for (const [by, table] of Object.entries(state.looks ?? {})) {
    const found = table[by.split("|").map((name) => String(valueOf(s[name]))).join("|")] ?? table["*"];
    if (!found) return null;
    for (const [name, part] of Object.entries(found)) if (!fields.has(name)) s[name] = part;
  }
  return s;
}

// Why a control is off, where it is read: on the control.
function explain(root, replay) {
  for (const node of root.querySelectorAll("button:disabled, select:disabled, input:disabled")) {
    node.title = WHY[replay?.commands.has(node.dataset.command) ? "chosen" : "ran"];
  }
}

async function mountAlone(spec, root, base, packed) {
  let replay = null, at = 0, chosen = {}, own = {}, refused = null;
  let linked = []; // commands that the address hides, #controls=-preset,-search
  let asking = null; // whether it asks first, once the reader has said so
  const alone = spec.alone ?? {}, answers = new Map(), tried = new Map();
  if (packed) {
    try { replay = replayOf(await inflated(packed)); } catch (error) { console.info(`nothing can be replayed: ${error}`); }
  }
  const fields = new Set(Object.values(replay?.looks ?? {}));
  const state = () => (replay ? { ...replay.state(at), recording: at ? null : base.recording } : base);
  const now = () => {
    const s = { ...(lookedAt(state(), chosen, fields) ?? state()), ...own, last_error: refused ?? state().last_error };
    if (linked.length) s.hidden = [...(s.hidden ?? []), ...linked];
    if (s.predict && asking !== null) s.predict = { ...s.predict, on: asking };
    const q = openQuestion(s);
    return q && answers.has(q.key) ? { ...s, ...told(s, answers.get(q.key)) } : s;
  };
  const knows = (field, value) => lookedAt(state(), { ...chosen, [field]: value }, fields) !== null;
  // The questions that the page carries (predict.js) are asked here, too; what was answered stays so in every state.
  const asks = {
    set_predict: ([on]) => { asking = on; },
    answer: ([key, value]) => answers.set(key, value),
    skip: ([key]) => answers.set(key, null),
  };
  // The state with the settings that a call leads to, if the lab says which those are.
  const reached = (call) => {
    const settings = replay?.settings(at) && spec.leads?.(replay.settings(at), call);
    return settings ? replay.find(settings) : undefined;
  };
  const can = (command, ...args) => {
    if (command in asks) return Boolean(base.predict?.on); // off, the page carries no question
    if (command in alone) return spec.possible?.(now(), command, args[0], base) ?? true;
    const field = replay?.looks[command];
    if (field) return !args.length || knows(field, args[0]);
    return replay?.leads(at, [command, ...args]) || reached([command, ...args]) !== undefined;
  };
  // What a choice would lead to, if the page replays that; of what is looked at as much as there is then.
  const whatIf = (call, parts) => {
    const to = replay?.next(at, call) ?? reached(call);
    if (typeof to === "string") return { refused: to };
    if (to === undefined) return undefined;
    const key = JSON.stringify([to, parts, chosen]);
    if (!tried.has(key)) {
      const there = replay.state(to), known = (looks) => lookedAt(there, looks, fields);
      const looks = Object.entries({ ...chosen, ...spec.lookedAtIf?.(call, there) });
      const kept = Object.fromEntries(looks.filter(([field, value]) => known({ [field]: value })));
      tried.set(key, replayedIf(known(kept) ?? there, parts));
    }
    return tried.get(key);
  };
  const go = (to) => {
    at = to;
    own = {};
    for (const [field, value] of Object.entries(chosen)) {
      delete chosen[field];
      if (field === replay.looks.to) continue; // another story begins at its start
      if (knows(field, value)) chosen[field] = value;
    }
    gaps(state().loss);
  };
  // One command; whether the page knows what it does.
  const done = (command, args) => {
    const field = replay?.looks[command], call = [command, ...args];
    refused = null;
    if (command in asks) asks[command](args);
    else if (command in alone) own = { ...own, ...alone[command](now(), args, base) };
    else if (field) {
      if (!knows(field, args[0])) return false;
      const along = Object.entries(state().looks?.[field]?.[args[0]] ?? {}).filter(([name]) => fields.has(name));
      chosen = { ...chosen, ...spec.along?.[command], ...Object.fromEntries(along), [field]: args[0] };
    } else {
      const to = replay?.next(at, call) ?? reached(call);
      if (to === undefined) return false;
      if (typeof to === "string") refused = to; else go(to);
    }
    return true;
  };
  const send = (command, args) => {
    if (now().hidden?.includes(command)) refused = `${controlOf(command).replaceAll("_", " ")} is hidden here.`;
    else if (!done(command, args)) refused = `${command.replaceAll("_", " ")} ${args.join(" ")}: ${WHY.chosen}.`;
    view.show(now());
    view.answered();
    address();
  };
  const view = mount(root, spec, { live: false, send, can, whatIf });
  const gaps = (loss) => {
    const curve = (found) => Float32Array.from(found ?? [], (y) => y ?? NaN); // JSON has no NaN
    view.addLoss(0, { parallel: curve(loss?.parallel), single: curve(loss?.single) });
  };
  view.after = () => explain(root, replay);

  // ---- the settings in the address ----

  const key = `state${root.id.replace("lab", "")}`;
  const calls = () => {
    const looking = Object.entries(replay.looks).map(([command, field]) => [command, valueOf(now()[field])]);
    return [...(spec.settings?.(now()) ?? replay.settings(at)), ...looking.filter(([, value]) => value !== null)];
  };
  const address = () => {
    if (!replay?.settings(at) || location.protocol === "about:") return; // a frame of text has no address
    const fields = new URLSearchParams(location.hash.slice(1));
    fields.set(key, JSON.stringify({ kind: replay.kind, version: 1, calls: calls() }));
    try { history.replaceState(null, "", `#${fields}`); } catch { /* a frame that may not */ }
  };
  const restore = () => {
    const fields = new URLSearchParams(location.hash.slice(1)), text = fields.get(key);
    const controls = (fields.get(key.replace("state", "controls")) ?? "").split(",").filter(Boolean);
    const known = root.dataset.commands.split(" ").filter((command) => command !== "stop");
    const named = (control) => known.filter((command) => control === `-${controlOf(command)}`);
    const strange = controls.filter((control) => !named(control).length);
    linked = controls.flatMap(named);
    if (strange.length) refused = `This lab has no control ${strange.join(", ")}: ${known.map((one) => `-${controlOf(one)}`).join(", ")}.`;
    if (!replay?.settings(at) || text === null) return;
    let wanted = null;
    try { wanted = JSON.parse(text); } catch { /* said below */ }
    const fits = wanted?.kind === replay.kind && wanted.version === 1 && Array.isArray(wanted.calls)
      && wanted.calls.every((call) => Array.isArray(call) && typeof call[0] === "string");
    if (!fits) { refused = `The address of this page has no settings of a ${replay.kind}.`; return; }
    const settings = wanted.calls.filter(([command]) => !(command in replay.looks)), exact = replay.find(settings);
    if (exact !== undefined) go(exact);
    else if (spec.begin) done(spec.begin, []);
    let left = wanted.calls, before = Infinity;
    while (left.length && left.length < before) {
      before = left.length;
      left = left.filter((call) => {
        if (calls().some((known) => same(known, call))) return false;
        return !done(call[0], call.slice(1)) || refused !== null;
      });
    }
    const said = left.map(([command, ...args]) => `${command.replaceAll("_", " ")} ${args.join(" ")}`).join("; ");
    if (left.length) refused = `This page cannot show all of the link: ${said}. That ${NEEDS}it was not computed.`;
  };
  gaps(state().loss);
  restore();
  view.show(now());
  addEventListener("hashchange", () => { restore(); view.show(now()); view.forget(); });
}

// Every lab of a page.
function mountAll(kinds) {
  for (const root of document.querySelectorAll("[data-kind]")) {
    const n = root.id.replace("lab", ""), text = (name) => document.getElementById(`${name}${n}`).textContent;
    kinds[root.dataset.kind](root, JSON.parse(text("snapshot")), text("replay"));
  }
}
