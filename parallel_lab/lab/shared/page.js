// What every lab is made with: text as HTML, the page that follows it, controls, and `lab`, which binds them to a
// kernel or to a page of its own. `read_front_end` (lab/shared/page.py) joins the shared scripts and a lab's own to one
// module.
//
//   anywidget     export default { render }              snapshot from synced traits, commands as custom messages
//   static page   mountPage(element, snapshot, replay)   the same picture with no kernel, see alone.js

// ---- text ----

class Raw { constructor(text) { this.text = text; } }
const SIGNS = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escape = (v) => String(v).replace(/[&<>"']/g, (c) => SIGNS[c]);
const put = (v) => (v instanceof Raw ? v.text : Array.isArray(v) ? v.map(put).join("") : v == null ? "" : escape(v));
const html = (parts, ...values) => new Raw(parts.map((part, i) => part + put(values[i])).join(""));
const flag = (name, on) => new Raw(on ? ` ${name}` : "");

const round = (x) => Math.round(x * 100) / 100;
const HUES = 8;
const hue = (n) => `pl-hue-${n % HUES}`;
const shapeText = (shape) => `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

function bytesText(n) {
  if (n == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= (i ? 1023.5 : 1024) && i < units.length - 1) { n /= 1024; i += 1; }
  return `${n >= 100 ? n.toFixed(0) : Number(n.toPrecision(3))} ${units[i]}`; // as bytes_text of base/units.py
}

function timeText(s) {
  if (s == null) return "–";
  if (s === 0) return "0 s";
  const [scale, unit] = s < 1e-3 ? [1e6, "µs"] : s < 1 ? [1e3, "ms"] : [1, "s"];
  return `${Number((s * scale).toPrecision(3))} ${unit}`;
}

function smallText(x) {
  if (x == null) return "–";
  if (x === 0) return "0";
  if (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e5) return x.toExponential(1).replace(".0e", "e");
  return String(Number(x.toPrecision(3)));
}

// Round values for an axis, in steps of 1, 2 or 5 times a power of ten: at most about `most` steps.
function roundTicks(low, high, most) {
  const rough = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((f) => f >= rough * 0.9999), first = Math.ceil(low / step - 1e-9);
  const count = Math.floor((high / step) * (1 + 1e-9) - first + 1e-9) + 1;
  return Array.from({ length: Math.max(0, count) }, (_, i) => Number(((first + i) * step).toPrecision(10)));
}

// ---- the page follows the HTML: keep what can be kept ----

const keyOf = (node) => (node.nodeType === 1 ? node.getAttribute("data-key") : null);
const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

function patch(live, next) {
  if (live.nodeType !== 1) {
    if (live.nodeValue !== next.nodeValue) live.nodeValue = next.nodeValue;
    return;
  }
  if (live.nodeName === "g" && live.isEqualNode(next)) return; // most marks of a large picture: the browser sees it faster
  // set by the painter; taking them away would wipe the picture
  const sized = live.nodeName === "CANVAS" ? ["width", "height"] : [];
  for (const { name } of [...live.attributes]) {
    if (!next.hasAttribute(name) && !sized.includes(name)) live.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) if (live.getAttribute(name) !== value) live.setAttribute(name, value);
  if (live.nodeName === "INPUT") {
    if (live.value !== (next.getAttribute("value") ?? "")) live.value = next.getAttribute("value") ?? "";
    live.checked = next.hasAttribute("checked");
  }
  if (live.nodeName === "CANVAS" || live.dataset?.plotly) return; // painted by others
  morph(live, next);
  if (live.nodeName === "SELECT") {
    const chosen = live.querySelector("option[selected]");
    if (chosen && live.value !== chosen.value) live.value = chosen.value;
  }
}

function morph(live, next) {
  let at = live.firstChild;
  for (const want of [...next.childNodes]) {
    let found = at;
    while (found && !alike(found, want)) found = keyOf(want) || want.nodeType !== 1 ? found.nextSibling : null;
    if (!found) { live.insertBefore(want, at); continue; }
    patch(found, want);
    if (found === at) at = at.nextSibling;
    else live.insertBefore(found, at);
  }
  while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
}

// ---- controls ----

// A control is on where a kernel listens, and on a page of its own where the page can do the command by itself.
const disabledUnless = (ui, command, ...given) => flag("disabled", !ui.can(command, ...given));
const valueOf = (choice) => choice?.value ?? choice;
const choiceText = (choice) => micro(String(choice.label ?? choice));
const numeric = (field) => flag('data-number="1"', typeof field.value === "number");

// One of many, as a drop-down.  field: {value, choices}, a choice is a value or {value, label}
function choice(key, label, field, command, ui, { text = choiceText, first = "", help = {} } = {}) {
  const option = (c) => {
    const value = valueOf(c);
    const on = flag("selected", String(value) === String(field.value));
    const off = disabledUnless(ui, command, value);
    return html`<option value="${value}" data-key="${value}" title="${help[value] ?? ""}"${on}${off}>${text(c)}</option>`;
  };
  return html`<label class="pl-field" title="${help[field.value] ?? ""}"><span>${label}</span>
    <select data-key="${key}" data-command="${command}"${numeric(field)}${disabledUnless(ui, command)}>
    ${first}${field.choices.map(option)}</select></label>`;
}

// One of few, as a row of buttons.  name: for a screen reader
function segments(key, label, field, command, ui, options = {}) {
  const { text = choiceText, name = () => "", title = () => "", weighed } = options;
  const button = (c, n) => {
    const value = valueOf(c), on = value === field.value, said = name(c), about = [title(c), weighed?.said(n)];
    return html`<button type="button" role="radio" aria-checked="${on}" tabindex="${on || (n === 0 && field.value === null) ? 0 : -1}"
      data-key="${key}${value}" data-command="${command}" data-value="${value}"${numeric(field)}${disabledUnless(ui, command, value)}
      ${said ? html`aria-label="${said}"` : ""} title="${about.filter(Boolean).join("; ")}"
      ${weighed ? html`data-if="${JSON.stringify([command, value])}"` : ""}>${text(c)}${weighed?.bars(n)}</button>`;
  };
  return html`<fieldset class="pl-field pl-segments" role="radiogroup" aria-label="${label}">
    <span aria-hidden="true">${label}</span>
    <span class="pl-track" data-roving="1">${field.choices.map(button)}</span></fieldset>`;
}

// One of few as buttons, of more than `most` as a drop-down, with the setting's own label.
const control = (command, field, ui, most = 4) => (field.choices.length > most
  ? choice(command, field.label, field, command, ui) : segments(`${command}-`, field.label, field, command, ui));

// Something typed; what is half typed survives every change of the page. `options`: further attributes.
function typed(name, label, value, ui, { unit = "", options = "", type = "text" } = {}) {
  return html`<label class="pl-field"><span>${label}</span><input data-key="${name}" data-field="${name}" type="${type}"
    autocomplete="off" spellcheck="false" value="${ui.drafts.get(name) ?? value}" ${new Raw(options)}
    ${flag("disabled", !ui.live)}>${unit ? html`<span>${unit}</span>` : ""}</label>`;
}

function button(command, text, ui, { on = true, title = "", kind = "", key = command } = {}) {
  return html`<button type="button" class="pl-button${kind ? ` ${kind}` : ""}" data-key="${key}"
    data-command="${command}"
    ${flag("disabled", !on || !ui.can(command))} title="${title}">${text}</button>`;
}

// What was refused and what failed; the command's name is for those who call it.  found: {key: text or nothing}
const plainly = (text) => text.replace(/^\w+(?:Lab|Stepper)(?:Widget)?(?:\.\w+)?: /, "");
function notices(found) {
  const one = ([key, text]) => html`<p class="pl-notice" data-key="${key}"><b aria-hidden="true">!</b> ${plainly(text)}</p>`;
  return html`<div class="pl-notices" role="alert">${Object.entries(found).filter(([, text]) => text).map(one)}</div>`;
}

// How far the run in the background is, where that is counted: in the line of its words.
const runBar = (run) => (run.share === null || run.share === undefined ? "" : html`<span class="pl-bar pl-of-run"
  role="progressbar" aria-label="run" aria-valuemin="0" aria-valuemax="100" aria-valuenow="${round(run.share * 100)}"
  ><span class="pl-fill" style="width:${round(run.share * 100)}%"></span></span>`);

// How the run in the background goes, and the button that ends it.
const runWords = (run) => (run.text ? `${run.state === "running" ? "running – " : ""}${run.text}` : "");
function runLine(run, name, ui) {
  if (!run.text) return "";
  const going = run.state === "running";
  return html`<p class="${name}" role="status">${runWords(run)}${runBar(run)}</p>
    ${going ? button("stop", "Stop", ui, { title: "end it after the present step" }) : ""}`;
}

// The result, always; below it what is selected, or what is wrong: `notices` stand there, in a line that is kept free.
const lead = (result, selected = "") => html`<p class="pl-status" role="status">${micro(result)} <span
  class="pl-second">${micro(selected)}</span></p>`;

// The head of a lab with runs: name, controls, what the picture says, what was refused.
function head(s, controls, ui) {
  return html`<div class="pl-head"><h2 class="pl-title">${s.title}</h2>${controls}${predictSwitch(s, ui)}</div>
    ${asksOrTells(s, ui)}${openQuestion(s) ? "" : lead(s.status, s.selected)}${notices({ n0: s.last_error, n1: s.run.error })}`;
}

// A number as people type it; any other text stays one: the model says what is wrong with it.
const numberOf = (text) => {
  const plain = text.trim().replace(",", ".");
  return plain !== "" && Number.isFinite(Number(plain)) ? Number(plain) : text;
};
const micro = (text) => text.replace(/(\d) us\b/g, "$1 µs"); // texts made for terminals

// What an open tab shows scrolls where the lab would leave the screen: a notebook's, of a laptop at least. Where too
// little room is left below, it lies over the lower part of the picture until it is closed, by its tab or by Escape. A
// tab that is open at first has its place, and covers nothing.
const LAPTOP_PX = 655, LEAST_PX = 120, LEAST_OPEN_PX = 72, OVER_PX = 320;
function fitPanel(root, openAtFirst) {
  const panel = root.querySelector(".pl-tab-panel:not([hidden])"), above = root.querySelector(".pl-status, .pl-head");
  const shown = panel && root.clientWidth >= LAPTOP_PX, covered = root.classList.contains("pl-tab-over");
  const most = Math.max(LAPTOP_PX, (root.closest(".jp-WindowedPanel-outer")?.clientHeight ?? innerHeight) - 24) - 1;
  let room = shown && Math.floor(most / zoomOf(root) - (root.offsetHeight - (covered ? 0 : panel.offsetHeight)));
  const over = shown && !openAtFirst && room < LEAST_PX && panel.scrollHeight > room;
  if (over) room = Math.min(OVER_PX, boxIn(root, panel.parentElement).top - (above ? boxIn(root, above).top + above.offsetHeight : 0));
  root.classList.toggle("pl-tab-over", over);
  const scrolls = shown && room >= LEAST_OPEN_PX && panel.scrollHeight > room;
  if (shown) root.style.setProperty("--pl-panel", scrolls ? `${room}px` : "none");
  else root.style.removeProperty("--pl-panel");
  if (scrolls) panel.tabIndex = 0; // for those who scroll by keys
  else panel?.removeAttribute("tabindex");
}
// What is covered until a question is answered keeps about its room: what stands below in the notebook would jump.
const COVERED_PX = 600; // of a lab that was never seen whole
function keepRoom(root, ui) {
  const covered = [...root.querySelectorAll(".pl-cover")];
  for (const one of covered) one.style.removeProperty("min-height");
  if (root.clientWidth < LAPTOP_PX) return;
  if (!covered.length) ui.whole = Math.min(root.offsetHeight, LAPTOP_PX - 1);
  const seen = covered.reverse().filter((each) => each.offsetHeight);
  for (const one of [...seen, ...seen, ...seen]) { // where columns have room of their own, once does not do
    const left = (ui.whole ?? COVERED_PX) - root.offsetHeight;
    if (left > 0) one.style.minHeight = `${left + one.offsetHeight}px`;
  }
}
function measureWidth(ui, root) { ui.width = Math.max(240, Math.floor(root.clientWidth || 940) - 8); }
const slot = (name) => html`<div class="pl-slot" data-slot="${name}"></div>`;

// Controls that a teacher has hidden are out of sight, whichever way they are made; pictures stay, and do nothing.
const controlOf = (command) => command.replace(/^(?:set|choose|select|show)_/, "");
function hiding(id, commands) {
  const one = (command) => {
    const name = controlOf(command), more = { typed: "[data-field]", to: '[data-key="rail"], [data-act="play"]' }[name];
    const field = `${more ? `${more}, ` : ""}[data-field="${name}"]`;
    const by = `:is([data-command="${command}"], [data-act="${name}"], ${field}, [data-field^="${name}-"], [data-field^="${name}_"])`;
    return `:is(select, input, textarea, .pl-button, .pl-link)${by}, .pl-field:has(> ${by}, > .pl-track > ${by})`;
  };
  return commands.length ? `[data-view="${id}"] :is(${commands.map(one).join(", ")}) { display: none !important; }` : "";
}

// Copies the text of a button, or of the lines above it; the button then says so.
async function copied(button, view) {
  const code = button.dataset.text === undefined ? button.closest("[role=group]").querySelector("pre") : button.previousElementSibling;
  const text = button.dataset.text ?? code.textContent;
  try {
    await navigator.clipboard.writeText(text);
    view.ui.copied = { text, said: "Copied" };
  } catch { // where a page may not use the clipboard
    if (code.select) code.select();
    else getSelection().selectAllChildren(code);
    view.ui.copied = { text, said: code.select ? "Ctrl+C" : "Selected: press Ctrl+C" };
  }
  view.ask();
}

// ---- one view of a lab ----

const TEXT_PX = 13; // JupyterLab's own size of texts, and ours: where the reader sets another, a lab grows with it

// How much larger than the style sheets say all is drawn. Events and boxes are in pixels of the screen; `pointIn` and
// `boxIn` say where they are inside a node, in those of the style sheets.
const zoomOf = (node) => Number(node.closest(".pl-lab").style.zoom) || 1;
function pointIn(node, { clientX, clientY }) {
  const { left, top } = node.getBoundingClientRect(), zoom = zoomOf(node);
  return { x: (clientX - left) / zoom, y: (clientY - top) / zoom };
}
function boxIn(node, inner) {
  const box = inner.getBoundingClientRect(), { x, y } = pointIn(node, { clientX: box.left, clientY: box.top });
  return { left: x, top: y, width: box.width / zoomOf(node), height: box.height / zoomOf(node) };
}

// Dark or light, and as large as JupyterLab or the system has it; `changed` is called then, and at once. Returns what
// ends it.
function followTheme(root, scale, changed) {
  const media = matchMedia("(prefers-color-scheme: dark)"), page = document.documentElement;
  const theme = () => {
    const jupyter = document.body.dataset.jpThemeLight;
    root.dataset.theme = (jupyter === undefined ? media.matches : jupyter === "false") ? "dark" : "light";
    const size = parseFloat(getComputedStyle(page).getPropertyValue("--jp-ui-font-size1")) || TEXT_PX;
    root.style.zoom = round((scale() * size) / TEXT_PX);
    changed();
  };
  const watch = new MutationObserver(theme);
  watch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  watch.observe(page, { attributes: true, attributeFilter: ["style"] }); // JupyterLab writes its sizes there
  media.addEventListener("change", theme);
  theme();
  const end = () => {
    watch.disconnect();
    media.removeEventListener("change", theme);
  };
  return { theme, end };
}

// A lab in parts, each drawn when its text has changed: a step of training costs the parts that show it.
//   parts       {name: (snapshot, ui) => html};  skeleton: html with a slot for each, default one below the other
//   measure     (ui, root): the room there is, at first its width
//   previews    parts of a snapshot that a choice shows before it is made, see choices.js;  lookedAtIf: (call, snapshot
//               that it leads to) => what is looked at there
//   numbers     commands that take a number, besides those of `choice` and `segments`
//   tab         which of the tabs is open at first
//   story       {name, steps, end}, see story.js
//   commit      (name, text, view): what was typed into the field `name`
//   handlers    (view) => {event: handler}; one that returns true has dealt with the event
//   acts        (view): called before a command is sent, or a tab opened
//   waits, drawn, shown, answered, leave    hooks of a view, see where they are called
function mount(root, spec, { live, send: tell, can, whatIf = () => undefined }) {
  mounted += 1;
  const id = `pl${mounted}-${Math.random().toString(36).slice(2, 7)}`;
  const hides = (command) => view.snapshot?.hidden?.includes(command);
  const free = (command, ...given) => !hides(command) && ui.able(command, ...given);
  const ui = { live, able: can, can: free, whatIf, id, width: 940, drafts: new Map(), tab: spec.tab ?? null, tells: spec.story };
  const curves = { parallel: new Float32Array(0), single: new Float32Array(0) };
  const drawn = new Map();
  let asked = 0, dirty = false, seen = root.clientWidth;
  root.classList.add("pl-lab", ...(spec.classes ?? []));
  root.setAttribute("role", "region");
  const placed = (name) => (name === "head" ? html`<div class="pl-top">${slot(name)}</div>` : slot(name));
  root.innerHTML = (spec.skeleton ?? html`${Object.keys(spec.parts).map(placed)}`).text;
  root.dataset.view = id;
  const style = root.appendChild(document.createElement("style"));
  const slots = Object.fromEntries([...root.querySelectorAll("[data-slot]")].map((node) => [node.dataset.slot, node]));

  const draw = () => {
    asked = 0;
    if (!view.snapshot) return;
    if (dirty) {
      dirty = false;
      root.setAttribute("aria-label", view.snapshot.title);
      if (root.clientWidth || !ui.measured) (spec.measure ?? measureWidth)(ui, root); // out of sight: the old one stays
      ui.measured = true;
      const tried = ui.preview && ui.whatIf(ui.preview, spec.previews);
      const s = tried?.weight ? { ...view.snapshot, ...tried, weight: view.snapshot.weight } : view.snapshot;
      root.classList.toggle("pl-previewing", s !== view.snapshot);
      for (const [name, part] of Object.entries(spec.parts)) {
        if (spec.waits?.(view, name)) continue;
        const { text } = covers(s, name) ? cover : part(s, ui);
        if (drawn.get(name) === text) continue;
        drawn.set(name, text);
        const next = document.createElement("template");
        next.innerHTML = text;
        morph(slots[name], next.content);
      }
      style.textContent = `${hiding(id, view.snapshot.hidden ?? [])}${framing(id, ui)}`;
      keepRoom(root, ui);
      fitPanel(root, spec.tab);
      spec.drawn?.(view);
    }
    drawFigures(view);
    view.after?.();
    const canvas = root.querySelector("canvas");
    if (canvas) drawLoss(canvas, curves, view.snapshot.earlier, view.snapshot.loss?.switches, ui.marked);
    root.dataset.painted = String(Number(root.dataset.painted || 0) + 1);
  };

  const send = (command, args) => { ui.asked = command; spec.acts?.(view); tell(command, args); };
  // Everything is delegated to the root, so redrawing never loses a listener.
  const given = ({ dataset }, value) => ((dataset.number || spec.numbers?.includes(dataset.command)) ? Number(value) : value);
  const act = (node, moved) => {
    const { command, value } = node.dataset, asked = answeredBy(view.snapshot, command);
    if (node.hasAttribute("disabled")) return;
    if (asked) { if (!moved) send("answer", [asked.key, typeof asked.right[0] === "number" ? Number(value) : value]); return; }
    if (command === "answer") { send("answer", [node.dataset.answer, value]); return; }
    send(command, value === undefined ? [] : [given(node, value)]);
  };
  const commit = (node) => {
    const { field } = node.dataset;
    if (!ui.drafts.has(field)) return;
    ui.drafts.delete(field);
    if (field === "answer") { send("answer", [node.dataset.answer, node.dataset.listed ? node.value : numberOf(node.value)]); return; }
    spec.commit(field, node.value, view);
  };
  // The choice that is pointed at, with the mouse or by focus.
  const point = (node) => {
    const call = node?.dataset.if;
    if (call !== ui.pointed) view.preview(call && JSON.parse(call));
    ui.pointed = call;
  };
  const usual = {
    mousemove({ target }) { point(target.closest("[data-if]")); }, // not where a list scrolls below a mouse at rest
    focusin({ target }) { point(target.closest("[data-if]")); },
    mouseleave() { point(null); },
    click(event) {
      const tab = event.target.closest("[data-tab]");
      if (tab) {
        spec.acts?.(view);
        ui.tab = ui.tab === tab.dataset.tab ? null : tab.dataset.tab;
        view.ask();
        return;
      }
      const copy = event.target.closest("[data-copy]");
      if (copy) { copied(copy, view); return; }
      if (event.target.closest("[data-story-off]")) { endStory(view); return; }
      const node = event.target.closest("[data-command]");
      if (!node || ["SELECT", "INPUT", "TEXTAREA"].includes(node.nodeName)) return;
      if (node.nodeName === "g") node.focus();
      act(node);
    },
    change({ target }) {
      const { command } = target.dataset;
      if (target.type === "checkbox") send(command, [target.checked]);
      else if (command) send(command, [given(target, target.value)]);
      else if (target.dataset.field) commit(target);
    },
    input({ target }) { if (target.dataset.field) ui.drafts.set(target.dataset.field, target.value); },
    keydown(event) {
      const { target, key } = event, group = target.closest?.("[data-roving]"), columns = Number(group?.dataset.roving);
      const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
      Object.assign(moves, { Home: -Infinity, End: Infinity });
      if (target.dataset?.field && (key === "Enter" || key === "Escape")) {
        if (key === "Enter") commit(target);
        else { ui.drafts.clear(); view.forget(); }
        return true;
      }
      if (key === "Escape" && ui.tab && root.classList.contains("pl-tab-over")) {
        if (target.closest(".pl-tab-panel")) root.querySelector(`[role=tab][aria-selected=true]`).focus();
        ui.tab = null;
        view.ask();
        return true;
      }
      if (target.nodeName === "INPUT" || target.nodeName === "SELECT") return false;
      if (group && moves[key] !== undefined) {
        const items = [...group.querySelectorAll('[role="radio"]:not([disabled])')];
        const at = items.indexOf(target.closest('[role="radio"]'));
        const to = Math.abs(moves[key]) === Infinity ? (moves[key] < 0 ? 0 : items.length - 1) : at + moves[key];
        if (items[to] && to !== at) { items[to].focus(); act(items[to], true); }
        return true;
      }
      if (!["Enter", " "].includes(key) || target.nodeName !== "g" || !target.dataset.command) return false;
      act(target);
      return true;
    },
  };
  const view = {
    root, slots, ui, curves, send, act, draw() { dirty = true; draw(); }, snapshot: null,
    ask(all = true) { dirty = dirty || all; if (!asked) asked = requestAnimationFrame(draw); },
    // Drawn again, also where the text is the same: a refused choice goes back to what is in force.
    forget(...names) { for (const name of names.length ? names : [...drawn.keys()]) drawn.delete(name); view.ask(); },
    preview(call) { ui.preview = call; view.ask(); },
    show(next) {
      const before = view.snapshot;
      if (before?.stands !== next.stands) ui.preview = null;
      view.snapshot = next;
      if (before?.scale !== next.scale) look.theme();
      spec.shown?.(view, before);
      view.ask();
    },
    answered() { ui.preview = null; spec.answered?.(view); view.forget(); },
    // Losses from step `since` on; returns false if some before them are missing.
    addLoss(since, found) {
      for (const [name, part] of Object.entries(found)) {
        if (!(name in curves)) continue;
        if (since > curves[name].length) return false;
        const joined = new Float32Array(since + part.length);
        joined.set(curves[name].subarray(0, since));
        joined.set(part, since);
        curves[name] = joined;
      }
      view.ask(false);
      return true;
    },
    dispose() {
      spec.leave?.(view);
      if (asked) cancelAnimationFrame(asked);
      view.snapshot = null;
      watchSize.disconnect();
      look.end();
      for (const [name, handler] of heard) root.removeEventListener(name, handler);
    },
  };
  const own = spec.handlers?.(view) ?? {}, heard = [];
  for (const name of new Set([...Object.keys(usual), ...Object.keys(own)])) {
    const handler = (event) => {
      if (name === "keydown" && (event.ctrlKey || event.metaKey || event.altKey)) return;
      const used = own[name]?.(event) || usual[name]?.(event);
      if (name !== "keydown") return;
      // Keys that are used here must not reach the notebook (its command mode knows arrows, Enter and single letters).
      if (used) event.preventDefault();
      if (used || ["INPUT", "SELECT", "BUTTON"].includes(event.target.nodeName)) event.stopPropagation();
    };
    root.addEventListener(name, handler);
    heard.push([name, handler]);
  }
  const look = followTheme(root, () => view.snapshot?.scale ?? 1, () => view.ask(false));
  const watchSize = new ResizeObserver(() => {
    const width = root.clientWidth;
    if (width === seen) return; // the height changes whenever something unfolds
    seen = width;
    spec.resized?.(view);
    view.ask();
  });
  watchSize.observe(root);
  return view;
}

let mounted = 0;

// ---- in a notebook, and on a page of its own ----

const BUSY_MS = 700; // until a kernel that has not answered yet is said to compute: what is shown is the last state
const UNANSWERED = "No kernel here: nobody answers, the kernel was restarted or has ended. Run the cell again.";

// A buffer from the kernel may start at any byte: copy it before reading floats.
function floats(view) {
  if (!view?.byteLength) return new Float32Array(0);
  return new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

// `render` and `mountPage` of a lab. Besides what `mount` takes:
//   alone       {command: (snapshot, arguments, base) => what then differs}: what a page of its own works out by itself
//   possible    (snapshot, command, value, base): whether it can;  along: {command: what else is looked at then}
//   leads       (settings, call): those that a command leads to, where the replay itself does not say
//   settings    (snapshot): the commands that lead there, in the address; begin: the command that takes them all back
//   ahead: what is shown before the kernel answers
function lab(spec) {
  const render = ({ model, el }) => {
    let number = 0, lost = null, ahead = {}, late = 0;
    const root = document.createElement("div");
    el.append(root);
    const apart = model.get("apart") ?? [];
    const now = () => ({
      ...model.get("snapshot"), ...Object.fromEntries(apart.map((name) => [name, model.get(`part_${name}`)])),
      ...model.get("progress"), last_error: lost ?? model.get("last_error"),
    });
    const refresh = () => { if (model.get("snapshot")?.version) view.show({ ...now(), ...ahead }); };
    const busy = (on) => {
      clearTimeout(late);
      if (on) late = setTimeout(() => root.setAttribute("aria-busy", "true"), BUSY_MS);
      else root.removeAttribute("aria-busy");
    };
    const send = (command, args) => {
      number += 1;
      busy(true);
      try { model.send({ command, arguments: args, number }); }
      catch { lost = UNANSWERED; busy(false); refresh(); view.answered(); return; }
      const next = spec.ahead?.(command, args);
      if (next) { ahead = next; refresh(); }
    };
    const asking = askIf(model, () => view.ui.live, () => view.ask());
    const view = mount(root, spec, { live: true, send, can: () => true, whatIf: asking.whatIf });
    const plotly = plotlyFor(view, () => model.send({ want_plotly: true }));
    view.ui.wantPlotly = plotly.want;
    let wanted = false;
    view.ui.wantCode = () => { // a program is to be shown that was not sent yet
      if (!wanted) model.send({ want_code: true });
      wanted = true;
    };
    const heard = (message, buffers) => {
      if (message.kind === "answered") {
        if (message.number === number) { ahead = {}; busy(false); }
        refresh();
        if (!spec.ahead || message.refused) view.answered();
      } else if (message.kind === "plotly") plotly.heard(buffers);
      else if (message.kind === "what_if") asking.heard(message);
      else if (message.kind === "loss") {
        const found = Object.fromEntries(message.names.map((name, i) => [name, floats(buffers[i])]));
        const known = Math.min(view.curves.parallel.length, view.curves.single.length);
        if (!view.addLoss(message.since, found)) model.send({ want_loss_since: known });
      }
    };
    const other = () => { ahead = {}; refresh(); };
    // Nothing is on that would do nothing: Jupyter marks views of a saved notebook that never had a kernel. One that
    // ends under a view JupyterLab tells its own listeners alone (anywidget 0.11 takes the mark's away).
    const { widget_manager: manager } = model, process = manager?.kernel;
    let ended = manager !== undefined && "kernel" in manager && !process;
    const kernel = () => {
      const gone = ended || root.closest(".jupyter-widgets-disconnected") !== null;
      if (gone === !view.ui.live) return;
      Object.assign(view.ui, { live: !gone, able: () => !gone });
      lost = gone ? UNANSWERED : null;
      busy(false);
      refresh();
      view.forget();
    };
    const over = () => { ended = true; kernel(); };
    const status = (_, now) => { if (["restarting", "autorestarting", "dead"].includes(now)) over(); };
    process?.statusChanged?.connect(status);
    process?.disposed?.connect(over);
    const heardOf = { "change:snapshot": other, "msg:custom": heard, comm_live_update: kernel };
    for (const name of apart) heardOf[`change:part_${name}`] = refresh;
    Object.assign(heardOf, { "change:progress": refresh, "change:last_error": refresh });
    for (const [name, handler] of Object.entries(heardOf)) model.on(name, handler);
    view.addLoss(0, { parallel: floats(model.get("loss_parallel")), single: floats(model.get("loss_single")) });
    refresh();
    kernel();
    const { length } = view.curves.parallel;
    if (length < (model.get("progress")?.loss?.steps ?? 0)) model.send({ want_loss_since: length });
    return () => {
      for (const [name, handler] of Object.entries(heardOf)) model.off(name, handler);
      process?.statusChanged?.disconnect(status);
      process?.disposed?.disconnect(over);
      plotly.leave();
      busy(false);
      view.dispose();
    };
  };
  const mountPage = (root, base, packed) => mountAlone(spec, root, base, packed);
  return { render, mountPage };
}
