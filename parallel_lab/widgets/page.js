// Text as HTML, and the page that follows it: what every part of the Strategy Lab is made with. Joined with the other scripts by `front_end()`.

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
