// The teacher's page of a live class (server.py): asks once a second what there is, and shows it as the server wrote it,
// escaped there. The token came in the address; it is taken out of sight, and kept for a reload of this tab.
const wall = document.getElementById("wall"), from = location.hash.slice(1);
const token = from || sessionStorage.getItem("token") || "";
if (from) {
  sessionStorage.setItem("token", from);
  history.replaceState(null, "", "/");
}
let since = -1, asked = {}, failed = false;

const post = (path, told) => fetch(path, {
  method: "POST", headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` }, body: JSON.stringify(told),
});

function tell(text) {
  let line = document.getElementById("wall-told");
  if (!line) {
    wall.before(Object.assign(document.createElement("p"), { id: "wall-told", role: "alert" }));
    line = document.getElementById("wall-told");
  }
  line.textContent = text;
}

function show(html) {
  const focus = document.activeElement?.dataset?.key, open = new Set([...wall.querySelectorAll("details[open]")].map((d) => d.dataset.key));
  wall.innerHTML = html;
  for (const one of wall.querySelectorAll("details")) one.open = open.has(one.dataset.key);
  if (focus) wall.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus();
}

async function look() {
  const wanted = asked;
  asked = {};
  try {
    const reply = await post("/class", { since, ...wanted });
    if (reply.status === 429) return;
    if (!reply.ok) { tell("Open the teacher's address as the terminal shows it, with all that stands behind the #."); return; }
    const now = await reply.json();
    if (now.html !== undefined) show(now.html);
    since = now.version;
    const here = document.getElementById("wall-here");
    if (here) here.textContent = now.here;
    if (failed || now.fault) tell(now.fault);
    failed = false;
  } catch {
    failed = true;
    tell("The class has ended, or its process does not answer. What is shown is the last that was said.");
  }
}

async function save() {
  const reply = await post("/csv", {});
  if (!reply.ok) return;
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(await reply.blob()), download: "class.csv" });
  link.click();
  URL.revokeObjectURL(link.href);
}

wall.addEventListener("click", ({ target }) => {
  const { do: what, on } = target.dataset;
  if (!what) return;
  if (what === "csv") { save(); return; }
  asked = { [what]: what === "names" ? on === "1" : what === "remove" ? Number(on) : on };
  look();
});
look();
setInterval(look, 1000);
