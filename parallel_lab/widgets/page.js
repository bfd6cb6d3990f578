// Text as HTML, and the page that follows it: what every lab is made with. Joined with a lab's own scripts by `read_front_end`.

// ---- text ----

class Raw { constructor(text) { this.text = text; } }
const escape = (v) => String(v).replace(/[&<>"']/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]);
const put = (v) => (v instanceof Raw ? v.text : Array.isArray(v) ? v.map(put).join("") : v == null ? "" : escape(v));
const html = (parts, ...values) => new Raw(parts.map((part, i) => part + (i < values.length ? put(values[i]) : "")).join(""));
const flag = (name, on) => new Raw(on ? ` ${name}` : "");

const shapeText = (shape) => `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

function bytesText(n) {
  if (n == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i += 1; }
  return `${Number.isInteger(n) ? n : n.toFixed(1)} ${units[i]}`;
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
  return Math.abs(x) < 1e-3 || Math.abs(x) >= 1e5 ? x.toExponential(1).replace(".0e", "e") : String(Number(x.toPrecision(3)));
}

// ---- the page follows the HTML: keep what can be kept ----

const keyOf = (node) => (node.nodeType === 1 ? node.getAttribute("data-key") : null);
const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

function patch(live, next) {
  if (live.nodeType !== 1) {
    if (live.nodeValue !== next.nodeValue) live.nodeValue = next.nodeValue;
    return;
  }
  const sized = live.nodeName === "CANVAS" ? ["width", "height"] : []; // set by the painter; taking them away would wipe the picture
  for (const { name } of [...live.attributes]) if (!next.hasAttribute(name) && !sized.includes(name)) live.removeAttribute(name);
  for (const { name, value } of next.attributes) if (live.getAttribute(name) !== value) live.setAttribute(name, value);
  if (live.nodeName === "INPUT") {
    if (live.value !== (next.getAttribute("value") ?? "")) live.value = next.getAttribute("value") ?? "";
    live.checked = next.hasAttribute("checked");
  }
  if (live.nodeName === "CANVAS") return;
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

// ---- what every lab's view does ----

// Dark or light, as JupyterLab or the system has it; `changed` is called then, and at once. Returns what ends it.
function followTheme(root, changed = () => {}) {
  const media = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => {
    const jupyter = document.body.dataset.jpThemeLight;
    root.dataset.theme = (jupyter === undefined ? media.matches : jupyter === "false") ? "dark" : "light";
    changed();
  };
  const watch = new MutationObserver(theme);
  watch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  media.addEventListener("change", theme);
  theme();
  return () => { watch.disconnect(); media.removeEventListener("change", theme); };
}

// {event: handler} on an element; returns what takes them off.
function listenTo(root, handlers) {
  for (const [name, handler] of Object.entries(handlers)) root.addEventListener(name, handler);
  return () => { for (const [name, handler] of Object.entries(handlers)) root.removeEventListener(name, handler); };
}

// A lab that is drawn in parts, each when its text has changed. `parts`: {name: (snapshot, ui) => html}; `measure` is told the room there is.
function inParts(root, parts, ui, measure) {
  root.setAttribute("role", "region");
  const slots = Object.fromEntries(Object.keys(parts).map((name) => { const el = document.createElement("div"); el.className = "pl-slot"; root.append(el); return [name, el]; }));
  const drawn = new Map();
  let asked = 0;
  const draw = () => {
    asked = 0;
    if (!page.snapshot) return;
    root.setAttribute("aria-label", page.snapshot.title);
    measure(Math.floor(root.clientWidth || 940) - 8);
    for (const [name, part] of Object.entries(parts)) {
      const { text } = part(page.snapshot, ui);
      if (drawn.get(name) === text) continue;
      drawn.set(name, text);
      const next = document.createElement("template");
      next.innerHTML = text;
      morph(slots[name], next.content);
    }
    root.dataset.painted = String(Number(root.dataset.painted || 0) + 1);
  };
  const ask = () => { if (!asked) asked = requestAnimationFrame(draw); };
  const watchSize = new ResizeObserver(ask);
  watchSize.observe(root);
  const endTheme = followTheme(root);
  const page = {
    snapshot: null, slots, ask,
    forget(...names) { for (const name of names.length ? names : drawn.keys()) drawn.delete(name); ask(); }, // drawn anew, also where nothing has changed
    show(next) { page.snapshot = next; ask(); },
    dispose() { if (asked) cancelAnimationFrame(asked); watchSize.disconnect(); endTheme(); },
  };
  return page;
}

// How the run beside the notebook goes, and the button that ends it.
function runLine(run, name, live) {
  if (!run.text) return "";
  const going = run.state === "running";
  return html`<p class="${name}" role="status">${going ? "running – " : ""}${run.text}</p>${going ? html`<button type="button" class="pl-button" data-key="stop" data-command="stop"${flag("disabled", !live)} title="end it after the present step">Stop</button>` : ""}`;
}

const UNANSWERED = "Nobody answers: the kernel was restarted or has ended. Run the cell again.";

// `render` of a widget whose one trait `snapshot` is shown. pickOf(send): what to do with a choice that a page of its own makes by itself.
function inNotebook(mount, pickOf) {
  return ({ model, el }) => {
    let number = 0, lost = null;
    const root = document.createElement("div");
    el.append(root);
    const send = (command, args) => {
      number += 1;
      try { model.send({ command, arguments: args, number }); }
      catch { lost = UNANSWERED; refresh(); view.answered(); }
    };
    const view = mount(root, { live: true, send, pick: pickOf(send) });
    const refresh = () => {
      const whole = model.get("snapshot");
      if (whole && whole.version) view.show({ ...whole, last_error: lost ?? model.get("last_error") });
    };
    const heard = (message) => { if (message.kind === "answered") { refresh(); view.answered(); } };
    const heardOf = { "change:snapshot": refresh, "change:last_error": refresh, "msg:custom": heard };
    for (const [name, handler] of Object.entries(heardOf)) model.on(name, handler);
    refresh();
    return () => {
      for (const [name, handler] of Object.entries(heardOf)) model.off(name, handler);
      view.dispose();
    };
  };
}
