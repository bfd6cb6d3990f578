// The Search Lab: what can be argued, the net with the slices of the plan that is looked at, the picture of costs
// (search_plot.js), the candidates of an operator, and the steps of the search. Slices are drawn as in the Strategy Lab
// (pictures/slices.js).

// ---- what can be set ----

function top(s, ui) {
  const going = s.run.state === "running";
  return html`<div class="pl-head"><h2 class="pl-title">${s.title}</h2>
    ${choice("net", "net", s.net, "set_net", ui)}
    ${segments("d", "devices", s.devices, "set_devices", ui, { name: (n) => plural(n, "device") })}
    ${choice("cluster", "on", s.cluster, "set_cluster", ui)}
    ${choice("costs", "costs", s.costs, "set_costs", ui)}
    <span class="pl-se-run">${going ? button("stop", "Stop", ui, { title: "end it after the present step" })
    : button("run", "Run both", ui, { on: s.run.can, kind: "pl-primary", title: "train the winner and your choice on worker processes" })}</span></div>${arguments_(s, ui)}
    ${asksOrTells(s, ui)}${openQuestion(s) ? "" : lead(s.status)}
    ${notices({ n0: s.last_error, n1: s.run.error })}`;
}

const MODE_WORDS = { dynamic_programming: "dynamic", recursive_programming: "recursive", sharding_propagation: "propagation" };

// Folded until it is asked for, or something is argued; then it stays.
function argues(s, ui) {
  if (s.arguments > 0) ui.argue ??= true;
  return Boolean(ui.argue);
}

function arguments_(s, ui) {
  const changed = s.own.value ? "" : html`<option value="" selected disabled>changed</option>`;
  const weight = (t) => {
    const can = t.choices.map((v) => ui.can("set_weight", t.name, v));
    const option = (v, i) => html`<option value="${v}" data-key="${v}"${flag("selected", v === t.value)}
      ${flag("disabled", !can[i])}>× ${v}</option>`;
    return html`<label class="pl-field${t.value === "1" ? "" : " pl-se-argued"}"><span>${t.name}</span>
      <select data-key="w-${t.name}" data-weight="${t.name}"${flag("disabled", !can.some(Boolean))}>
      ${t.choices.map(option)}</select></label>`;
  };
  const argued = (field, plain, inner) => html`<span class="${String(s[field].value) === plain ? "" : "pl-se-argued"}">${inner}</span>`;
  return html`<div class="pl-se-set">
      ${segments("m", "search", s.mode, "set_mode", ui, { text: (c) => MODE_WORDS[valueOf(c)] ?? c.label, title: (c) => c.label })}
      ${choice("own", "yours", s.own, "set_own", ui, { first: changed })}
      <p class="pl-se-hint" role="status" title="${s.run.text}">${runWords(s.run)}${runBar(s.run)}</p>
      ${predictSwitch(s, ui)}<button type="button" class="pl-button" data-key="argue" data-argue="1" aria-expanded="${argues(s, ui)}"
      title="another memory, other links, other weights: what would the search take then?">Argue ${argues(s, ui) ? "▾" : "▸"}</button></div>
    ${argues(s, ui) ? html`<div class="pl-se-set">
      ${argued("capacity", "", choice("capacity", "a device has", s.capacity, "set_capacity", ui))}
      ${argued("bandwidth", "1", choice("bandwidth", "bandwidth", s.bandwidth, "set_bandwidth", ui))}
      ${argued("latency", "1", choice("latency", "latency", s.latency, "set_latency", ui))}
      ${s.terms.map(weight)}
      ${button("clear_arguments", "clear", ui, { on: s.arguments > 0, title: "no pins, no cap, all terms and links as they are" })}</div>` : ""}`;
}

// ---- the net, and how one result lies ----

const tail = (name) => name.split(".").slice(-2).join(".").replace("loss_fn.", "loss ");

function mosaic(o, ui) {
  if (!o.picture) return html`<svg class="pl-se-mini" width="30" height="30" aria-hidden="true"></svg>`;
  const dims = plane(o.picture), room = frame(o.picture.shape, dims, 26);
  const [x, y] = [(30 - room.w) / 2, (30 - room.h) / 2];
  return html`<svg class="pl-se-mini" width="30" height="30" viewBox="${-round(x)} ${-round(y)} 30 30" aria-hidden="true">
    ${byOne(o.cards).map((c) => html`<g data-key="${c.slice}">${blockMark(blockBox(c, dims, room), c.slice, { partial: o.picture.partial, id: ui.id })}</g>`)}</svg>`;
}

const liesText = ({ picture }) => (picture ? `${shapeText(picture.shape)} in ${plural(picture.slices, "slice")}${picture.partial
  ? `, each a pending ${picture.partial.reduce} of ${picture.partial.count}` : ""}` : "a number, on every device");

function net(s, ui) {
  const step = s.steps[s.at], early = s.at < s.steps.length - 1, kept = step?.done ?? [];
  const row = (o) => {
    const on = o.name === s.operator, pin = s.pins[o.name];
    const state = early ? `${o.name === step.operator ? " pl-se-now" : ""}${kept.includes(o.name) ? " pl-se-done" : ""}` : "";
    const name = `${o.name}: ${o.strategy}; its result ${liesText(o)}${pin ? "; pinned" : ""}`;
    return html`<button type="button" class="pl-se-op${on ? " pl-on" : ""}${state}" role="radio" aria-checked="${on}"
      tabindex="${on ? 0 : -1}" data-key="${o.name}" data-command="select_operator" data-value="${o.name}"
      title="${name}"${flag("disabled", !ui.can("select_operator", o.name))}><span class="pl-hidden">${name}</span>${mosaic(o, ui)}
      <span aria-hidden="true"><b>${tail(o.name)}</b>${pin ? html` <i class="pl-se-pinned">pinned</i>` : ""}<code>${o.strategy}</code></span></button>`;
  };
  return html`<div role="group" class="pl-se-net" aria-label="the net and its slices"><h3>The net <small>of ${pointName(s)}</small></h3>
    <div role="radiogroup" aria-label="operators" data-roving="1">${s.net_of.map(row)}</div></div>`;
}

const pointName = (s) => (s.shown.id.includes("((") ? "the best plan with a candidate" : s.shown.id);

function cards(s, ui) {
  const o = s.net_of.find((one) => one.name === s.operator) ?? s.net_of[0];
  const own = s.shown.id !== "yours";
  const take = html`<button type="button" class="pl-link" data-key="take" data-command="take" data-value="${s.shown.id}"
    ${flag("disabled", !ui.can("take", s.shown.id) || !own)} title="this plan becomes your choice">make it yours</button>`;
  const lies = o.picture ? `${shapeText(o.picture.shape)}, ${plural(o.picture.slices, "slice")}${o.picture.partial
    ? `, ${o.picture.partial.count} partial sums each` : ""}` : "a number";
  const head = html`<h3>${tail(o.name)} <small>${lies}</small></h3>`;
  const told = html`<p class="pl-se-hint">${costText(s.shown.cost, s.unit)},
    ${bytesText(s.shown.memory)}, predicted ${own ? take : ""}</p>`;
  if (!o.picture) return html`<div role="group" class="pl-se-lie" aria-label="slices">${head}<p class="pl-muted">Every device has the number.</p>${told}</div>`;
  const dims = plane(o.picture), count = Math.min(4, o.cards.length), long = Math.max(...o.cards.map((c) => c.text.length)) > 20;
  const side = o.cards.length > 4 ? (long ? 32 : 44) : count > 2 ? 50 : 76; // a card of four has room for 54
  const room = frame(o.picture.shape, dims, side);
  const copies = (c) => o.cards.filter((d) => d.slice === c.slice && d.addend === c.addend).length;
  const sum = (c) => (c.addend ? html`<i class="pl-sigma">Σ</i> ${c.addend} of ${c.addends}` : copies(c) > 1 ? `× ${copies(c)}` : "");
  const card = (c) => html`<div class="pl-se-card" role="img" data-key="r${c.rank}" aria-label="rank ${c.rank} holds ${c.text}, slice ${c.slice}${c.addend
    ? `, partial sum ${c.addend} of ${c.addends}` : ""}"><span class="pl-se-card-head"><b>${c.rank}</b><span>${sum(c)}</span></span>
    ${cardPicture(room, blockMark(blockBox(c, dims, room), c.slice, { partial: o.picture.partial, id: ui.id }))}
    <span class="pl-se-text">${c.text}</span></div>`;
  return html`<div role="group" class="pl-se-lie" aria-label="slices of ${o.name}">${head}
    <div class="pl-se-cards" style="--columns:${count}">${o.cards.map(card)}</div>${told}</div>`;
}

// ---- candidates, and the steps of the search ----

function why(c, unit) {
  const amount = c.more ? `${costText(Math.abs(c.more), unit)} ${c.more > 0 ? "more" : "less"} of ${c.term}${c.elsewhere ? " elsewhere" : ""}` : "";
  if (c.chosen) return html`<b>chosen</b>${amount ? `; with others next to it ${amount}` : ""}`;
  return amount || "as good";
}

function candidates(s, ui) {
  const pinned = s.candidates.some((c) => c.pinned);
  const pin = (c) => {
    const call = c.pinned ? null : c.strategy, said = c.pinned ? "unpin: the search is free again" : `pin ${s.operator} to it: the search must take it`;
    return html`<button type="button" class="pl-link" data-key="pin" data-pin="${c.pinned ? "" : c.strategy}" aria-pressed="${c.pinned}"
      title="${said}" aria-label="${c.strategy}: ${said}"${flag("disabled", !ui.can("set_pin", s.operator, call))}>${c.pinned ? "unpin" : "pin"}</button>`;
  };
  const cell = (c, i) => {
    const lost = !c.chosen && c.more > 0 && !c.elsewhere && s.terms[i].name === c.term, text = costText(c.own[i], s.unit);
    return html`<td class="pl-number">${lost ? html`<b>${text}</b>` : text}</td>`;
  };
  const row = (c) => html`<tr data-key="${c.strategy}" class="${c.chosen ? "pl-on" : ""}">
    <th scope="row"><button type="button" class="pl-link" data-key="look" data-command="select_point" data-value="${c.id}"
      aria-pressed="${c.id === s.point}" title="draw the best plan with it"${flag("disabled", !ui.can("select_point", c.id))}><code>${c.strategy}</code></button></th>
    ${c.own.map((_, i) => cell(c, i))}<td class="pl-number">${costText(c.cost, s.unit)}</td>
    <td class="pl-cell-why">${why(c, s.unit)}</td><td>${pin(c)}</td></tr>`;
  return html`<div role="group" class="pl-section pl-se-candidates" aria-label="candidates">
    <h3>Candidates of ${tail(s.operator)} <small>${s.candidates.length}${pinned ? ", pinned" : ""}; its own terms in the best plan with it, predicted; bold: the term that lost</small></h3>
    <div class="pl-scroll pl-se-rows"><table><thead><tr><th scope="col">strategy</th>
      ${s.terms.map((t) => html`<th scope="col" class="pl-number">${t.name}</th>`)}<th scope="col" class="pl-number">best plan</th>
      <th scope="col">decided by</th><th scope="col"><span class="pl-hidden">pin</span></th></tr></thead>
      <tbody>${s.candidates.map(row)}</tbody></table></div></div>`;
}

function steps(s) {
  const last = s.steps.length - 1, now = s.steps[s.at]?.text ?? "";
  return html`<div role="group" class="pl-se-steps" aria-label="steps of the search"><label class="pl-field"><span>step ${s.at + 1} of ${last + 1} of the search</span>
    <input type="range" data-key="rail" data-rail="1" min="0" max="${last}" step="1" value="${s.at}" aria-label="step of the search"
      aria-valuetext="${now}"></label><p aria-live="polite">${micro(now)}</p></div>`;
}

// What both runs have shown takes the room of the candidates, until another operator or another tab is looked at.
const unlessRan = (part) => (s, ui) => (ui.tab === "runs" && s.sections.runs ? html`` : part(s, ui));

// ---- what is looked at one at a time ----

// Texts made for terminals, in the cells of a table.
function tables(s, ui) {
  return tabs(ui, {
    ...sectionTabs(s, ui, [["runs", "Both trained"], ["equality", "Same numbers?"], ["flips", "What would flip it"]]), ...earlierTab(s, ui),
    ...sectionTabs(s, ui, [["terms", "Terms"]], false), ...codeTabs(s, ui),
  });
}

// On a page of its own: the settings that a pin, a weight, or taking all arguments back lead to.
function leads(settings, [command, name, value]) {
  const of = (...names) => settings.filter(([one]) => names.includes(one)), own = of("set_own_strategy");
  const without = (found) => found.filter(([, one]) => one !== name);
  let rest = settings.filter(([one]) => !["set_weight", "set_pin", "set_capacity", "set_own_strategy"].includes(one));
  let [weights, pins, cap] = [of("set_weight"), of("set_pin"), of("set_capacity")];
  if (command === "set_pin") pins = [...without(pins), ...(value === null ? [] : [[command, name, value]])];
  else if (command === "set_weight") weights = [...without(weights), ...(value === "1" ? [] : [[command, name, value]])];
  else if (command === "clear_arguments") {
    [weights, pins, cap] = [[], [], [["set_capacity", ""]]];
    rest = rest.map(([one, ...given]) => (["set_bandwidth", "set_latency"].includes(one) ? [one, "1"] : [one, ...given]));
  } else return null;
  return [...rest, ...weights, ...pins, ...cap, ...own];
}

// ---- the lab ----

const { render, mountPage } = lab({
  classes: ["pl-se"],
  story: STORY,
  parts: { patterns: (s, ui) => patterns(ui.id), head: top, net, cards, plot, candidates: unlessRan(candidates), steps: unlessRan(steps), tables },
  skeleton: html`${slot("patterns")}<div class="pl-se-body"><div class="pl-top">${slot("head")}</div>
    <div class="pl-se-main">${["net", "cards", "plot"].map(slot)}</div>${["candidates", "steps"].map(slot)}</div>${slot("tables")}`,
  measure(ui, root) {
    measureWidth(ui, root);
    ui.plot = ui.width > 760 ? ui.width - 196 - 244 - 24 : ui.width;
  },
  numbers: ["set_devices"],
  leads,
  // A run that has ended is shown.
  shown({ ui, snapshot }, before) {
    if (before && !before.sections.runs && snapshot.sections.runs) ui.tab = "runs";
    else if (ui.tab === "runs" && before?.operator !== snapshot.operator) ui.tab = null;
  },
  handlers: (view) => withPaste(view, {
    click({ target }) {
      if (target.closest("[data-argue]")) {
        view.ui.argue = !argues(view.snapshot, view.ui);
        view.ask();
        return true;
      }
      const node = target.closest("[data-pin]");
      if (!node || node.disabled) return false;
      view.send("set_pin", [view.snapshot.operator, node.dataset.pin || null]);
      return true;
    },
    input({ target }) {
      if (target.dataset.rail) view.send("to", [Number(target.value)]);
      return Boolean(target.dataset.rail);
    },
    change({ target }) {
      const { weight, rail } = target.dataset;
      if (weight) view.send("set_weight", [weight, target.value]);
      return weight || rail;
    },
  }),
});
