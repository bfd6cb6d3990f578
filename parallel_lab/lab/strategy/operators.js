// The operators of the Strategy Lab with their strategies, each to choose from a list or to type, and why one was
// refused.

// What an operator is called in its layer.
function nameIn(o) {
  if (!o.layer) return o.name;
  return o.name === o.layer ? o.name.split(".").at(-1) : o.name.slice(o.layer.length + 1);
}

// A strategy to choose from a list or to type, and why it was refused.
function combo(s, o, ui) {
  const i = s.operators.indexOf(o), bad = Boolean(o.error);
  const box = `${ui.id}-op-${i}`, open = ui.open === o.name, draft = ui.drafts.get(o.name);
  const value = draft ?? (o.error ? o.typed : null) ?? o.strategy;
  const active = flag(`aria-activedescendant="${box}-${ui.active}"`, open && ui.active >= 0);
  const list = open ? shown(o, draft) : [], calls = list.map((c) => ["set_strategy", o.name, c]);
  const weighed = consequences(s, ui, calls);
  const option = (c, n) => html`<li id="${box}-${n}" data-key="${c}" role="option" data-choose="${c}"
    data-if="${JSON.stringify(calls[n])}" title="${weighed.said(n)}" data-operator="${o.name}" class="${n === ui.active ? "pl-active" : ""}"
    ${flag('aria-disabled="true"', !ui.can("set_strategy", o.name, c))} aria-selected="${c === o.strategy}">${c}${weighed.bars(n)}</li>`;
  const off = flag("disabled", !ui.can("set_strategy", o.name));
  const refused = () => html`<p class="pl-refused"><b aria-hidden="true">!</b> <span class="pl-hidden">refused: </span>
    ${o.error} <span class="pl-muted">Still in force: <wbr><code
    class="${o.strategy.length > 22 ? "pl-wrap" : ""}">${o.strategy}</code></span></p>`;
  const formula = () => html`<p class="pl-formula">${times(o.formula).replaceAll("->", "→")} ${typesOf(o.types)}</p>`;
  return html`<div class="pl-combo${bad ? " pl-bad" : ""}">
      <div class="pl-box"><input id="${box}" data-key="input" data-operator="${o.name}" type="text" role="combobox"
        autocomplete="off" autocapitalize="off" spellcheck="false" aria-expanded="${open}" aria-controls="${box}-list"
        aria-autocomplete="list" aria-invalid="${bad}" aria-describedby="${box}-about"${active} value="${value}"
        title="${value}"${off}>
      <button type="button" class="pl-drop" data-key="drop" data-drop="${o.name}" tabindex="-1" aria-hidden="true"
        ${off}>
        <svg viewBox="0 0 10 6" width="10" height="6"><path d="M1 1l4 4 4-4"/></svg></button></div>
      <div class="pl-list" data-key="list"${flag("hidden", !open)}><ul id="${box}-list" role="listbox"
        aria-label="legal strategies of ${o.name}">${list.map(option)}</ul>${weighed.key}</div>
    </div>
    <div id="${box}-about">${bad ? refused() : formula()}</div>`;
}

// Whose result is looked at, or the first.
const operatorInView = (s) => s.operators.find((o) => o.tensor === s.tensor) ?? s.operators[0];

function operators(s, ui) {
  const own = (o) => html`<button type="button" class="pl-link" data-key="clear" data-command="set_strategy"
    data-operator="${o.name}" data-clear="1"${flag("disabled", !ui.can("set_strategy", o.name, null))}
    title="give up this strategy: back to the default">${o.source === "preset" ? "preset" : "yours"} ×<span
    class="pl-hidden">: ${o.name} back to the default strategy</span></button>`;
  const row = (o) => html`<li class="pl-operator${o.tensor === s.tensor ? " pl-on" : ""}" data-key="${o.name}">
    <div class="pl-op-head">
      <label class="pl-op-name" for="${ui.id}-op-${s.operators.indexOf(o)}">${breakable(nameIn(o))}</label>
      <span class="pl-muted">${o.op}</span>${o.unchecked ? html`<span class="pl-tag" data-key="unchecked"
        title="it may do as it likes: its types are not checked">not checked</span>` : ""}
      ${o.source === "default" ? html`<span class="pl-tag" data-key="tag">default</span>` : own(o)}</div>
    ${combo(s, o, ui)}</li>`;
  const changed = s.preset.value ? "" : html`<option value="" selected disabled>changed by you</option>`;
  const layers = [...new Set(s.operators.map((o) => o.layer))];
  const folds = () => layers.map((layer) => fold(s, ui, layer, row));
  const list = s.graph.layers && !s.simple ? html`<ul class="pl-folds">${folds()}</ul>`
    : html`<ul>${(s.simple ? [operatorInView(s)] : s.operators).map(row)}</ul>`;
  // it scrolls, and where no control of it works, keys need a place of their own
  const [role, stop] = ui.live ? ["group", ""] : ["region", new Raw(' tabindex="0"')];
  return html`<div role="${role}" class="pl-panel pl-operators" aria-label="operators and their strategies"${stop}>
    <h3>Strategies <small>slices per dim</small></h3>
    ${s.simple ? "" : html`<div class="pl-preset">
      ${choice("preset", "preset", s.preset, "set_preset", ui, { first: changed })}
      ${choice("fusion", "gradient sums", s.fusion, "set_fusion", ui)}
      ${choice("optimizer", "optimizer states", s.optimizer, "set_optimizer", ui)}</div>`}
    ${list}</div>`;
}

// A tensor's label where its layer is known: "out of fc.matmul, partial sums" is "matmul, partial sums".
function shortLabel(s, label, layer) {
  const around = layer.includes(".") ? [`${layer.slice(0, layer.lastIndexOf("."))}.`] : [];
  const operators = s.operators.filter((o) => o.layer === layer);
  const known = [...operators.map((o) => `${o.name}.`), `${layer}.`, ...around];
  return known.reduce((text, prefix) => text.replaceAll(prefix, ""), label.replace("out of ", ""));
}

// A layer of a long network: one line, and its operators and tensors where one looks at it. Choosing a layer is looking
// at its result.
function fold(s, ui, layer, row) {
  const own = s.operators.filter((o) => o.layer === layer), node = s.graph.nodes.find((n) => n.id === layer);
  const chosen = layer === layerOf(s), busy = (o) => o.error || ui.open === o.name || ui.drafts.has(o.name);
  const open = chosen || own.some(busy), tensor = node?.tensor ?? own.at(-1).tensor;
  const chip = (t) => html`<button type="button" class="pl-chip" data-key="${t.id}" data-command="select_tensor"
    data-value="${t.id}" aria-pressed="${t.id === s.tensor}"${flag("disabled", !ui.can("select_tensor", t.id))}
    aria-label="look at ${t.label}">${breakable(shortLabel(s, t.label, layer))}</button>`;
  const chips = html`<p class="pl-chips">look at ${s.tensors.filter((t) => t.layer === layer).map(chip)}</p>`;
  return html`<li class="pl-fold${chosen ? " pl-on" : ""}" data-key="${layer}">
    <button type="button" class="pl-fold-head" data-key="head" aria-expanded="${open}" data-command="select_tensor"
      data-value="${tensor}"${flag("disabled", !ui.can("select_tensor", tensor))}>
      <span class="pl-fold-name" title="${layer}">${node?.label ?? layer}</span>
      <code>${node?.cuts ? shapeText(node.cuts) : ""}</code></button>
    ${open ? html`<ul>${own.map(row)}</ul>${chips}` : ""}</li>`;
}

// The legal strategies that match what is typed; all of them if nothing does.
function shown(operator, draft) {
  const bare = (text) => text.replace(/\s/g, "");
  if (draft === undefined || bare(draft) === bare(operator.strategy)) return operator.choices;
  const some = operator.choices.filter((c) => bare(c).includes(bare(draft)));
  return some.length ? some : operator.choices;
}

// ---- what can be done ----

const operatorOf = (s, name) => s.operators.find((o) => o.name === name);

function strategyHandlers(view) {
  const { root, ui, send } = view;
  ui.sent = new Set(); // operators whose strategy the kernel has not answered yet
  const openList = (name) => {
    const o = operatorOf(view.snapshot, name);
    ui.open = name;
    ui.active = shown(o, ui.drafts.get(name)).indexOf(o.strategy);
    view.ask();
  };
  const closeList = () => { ui.open = null; ui.active = -1; view.preview(null); };
  const commit = (name, text) => {
    closeList();
    const o = operatorOf(view.snapshot, name);
    if (text === (o.error ? o.typed : o.strategy)) { ui.drafts.delete(name); return; }
    ui.drafts.set(name, text);
    ui.sent.add(name);
    view.preview(["set_strategy", name, text]); // until it is answered
    send("set_strategy", [name, text]);
  };
  return {
    click(event) {
      const option = event.target.closest("[data-choose]"), drop = event.target.closest("[data-drop]");
      const clear = event.target.closest("[data-clear]");
      if (option?.getAttribute("aria-disabled")) return true;
      if (option) commit(option.dataset.operator, option.dataset.choose);
      else if (drop) {
        const name = drop.dataset.drop;
        if (ui.open === name) closeList(); else { ui.drafts.delete(name); openList(name); }
        root.querySelector(`input[data-operator="${CSS.escape(name)}"]`)?.focus();
      } else if (clear && !clear.disabled) {
        ui.drafts.delete(clear.dataset.operator);
        send("set_strategy", [clear.dataset.operator, null]);
      }
      return option || drop || clear;
    },
    mousedown(event) {
      if (event.target.closest(".pl-list, .pl-drop")) event.preventDefault(); // the input keeps the focus
    },
    input({ target }) {
      if (!target.dataset.operator) return;
      ui.drafts.set(target.dataset.operator, target.value);
      ui.open = target.dataset.operator;
      ui.active = -1;
      view.ask();
    },
    focusout({ target }) {
      const name = target.dataset?.operator;
      if (target.nodeName !== "INPUT" || !name) return;
      if (ui.drafts.has(name) && !ui.sent.has(name)) commit(name, target.value);
      else if (ui.open === name) closeList();
    },
    keydown({ target, key }) {
      if (target.getAttribute?.("role") !== "combobox") return false;
      const name = target.dataset.operator, list = shown(operatorOf(view.snapshot, name), ui.drafts.get(name));
      const open = ui.open === name, step = { ArrowDown: 1, ArrowUp: -1 }[key];
      if (step && !open) openList(name);
      else if (step) {
        ui.active = ui.active < 0 ? (step > 0 ? 0 : list.length - 1) : (ui.active + step + list.length) % list.length;
        view.preview(["set_strategy", name, list[ui.active]]);
      } else if (key === "Enter") commit(name, open && ui.active >= 0 ? list[ui.active] : target.value);
      else if (key === "Escape") { ui.drafts.delete(name); closeList(); view.forget(); }
      else return false;
      return true;
    },
  };
}
