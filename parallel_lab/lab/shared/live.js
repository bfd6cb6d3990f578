// A page that computes: the lab's own Python in a worker, and its view as in a notebook (lab/live.py). The page
// replays until a reader wants more and has seen how much is downloaded; then it goes on with the settings that it shows.

const LIVE = JSON.parse(document.getElementById("live").textContent);
const TENS_OF_MB = "about 30 MB"; // where the site does not say

// What runs in the worker, which sees nothing of the page.
function inWorker() {
  let lab = null;
  const post = (text) => self.postMessage(text);
  const begin = async ({ address, state }) => {
    const folder = `${address}static/pyodide/`;
    post('{"kind":"stage","text":"loading Python"}');
    const { loadPyodide } = await import(`${folder}pyodide.mjs`);
    const python = await loadPyodide({ indexURL: folder, lockFileURL: `${folder}pyodide-lock.json` });
    post('{"kind":"stage","text":"loading packages"}');
    await python.loadPackage(["parallel-lab", "ipython"]);
    python.globals.set("post", post);
    python.globals.set("state", JSON.stringify(state));
    lab = await python.runPythonAsync("from parallel_lab.lab.live import Live\nLive(post, state)");
  };
  self.onmessage = async ({ data }) => {
    try { if (lab) lab.receive(data); else await begin(JSON.parse(data)); }
    catch (error) { post(JSON.stringify({ kind: "lost", text: String(error.message ?? error).trim().split("\n").at(-1) })); }
  };
}

const bytesOf = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);

// What a notebook's front end calls a model: traits by name, messages both ways.
function modelOf(worker) {
  const traits = new Map(), handlers = new Map();
  const tell = (name, ...what) => { for (const handler of handlers.get(name) ?? []) handler(...what); };
  return {
    get: (name) => traits.get(name),
    send: (message) => worker.postMessage(JSON.stringify(message)),
    on(name, handler) { handlers.set(name, [...(handlers.get(name) ?? []), handler]); },
    off(name, handler) { handlers.set(name, (handlers.get(name) ?? []).filter((one) => one !== handler)); },
    take({ traits: now, message, buffers }) {
      for (const [name, value] of Object.entries(now ?? {})) {
        traits.set(name, name.startsWith("loss_") ? bytesOf(value) : value);
        tell(`change:${name}`);
      }
      if (message) tell("msg:custom", message, (buffers ?? []).map(bytesOf));
    },
  };
}

// The settings that the page shows: its own, and those of its address.
function stateNow(root) {
  const state = LIVE.states[root.id], key = `state${root.id.replace("lab", "")}`;
  try {
    const found = JSON.parse(new URLSearchParams(location.hash.slice(1)).get(key));
    return found?.kind === state.kind ? { ...state, calls: found.calls } : state;
  } catch { return state; }
}

function offerLive(root, render, size) {
  const line = document.createElement("p"), button = document.createElement("button"), said = document.createElement("span");
  line.className = "pl-alone pl-live";
  button.textContent = `Compute here (downloads ${size}, once)`;
  said.setAttribute("role", "status");
  line.append(button, " ", said);
  root.before(line);
  button.addEventListener("click", () => {
    button.disabled = true;
    const url = URL.createObjectURL(new Blob([`(${inWorker})();`], { type: "text/javascript" }));
    const worker = new Worker(url, { type: "module" }), model = modelOf(worker);
    let shown = false;
    const lost = (text) => { said.textContent = `Python could not be started: ${text.replace(/\.$/, "")}. The page replays as before.`; };
    worker.onerror = (event) => lost(event.message);
    worker.onmessage = ({ data }) => {
      const heard = JSON.parse(data);
      if (heard.kind === "stage") said.textContent = heard.text;
      else if (heard.kind === "lost") { if (shown) said.textContent = heard.text; else { lost(heard.text); worker.terminate(); } }
      else {
        model.take(heard);
        if (shown) return;
        shown = true;
        said.textContent = "Python computes here; ranks are simulated.";
        const live = document.createElement("div");
        root.replaceWith(live); // what has replayed is gone, with its listeners' effects
        render({ model, el: live });
      }
    };
    worker.postMessage(JSON.stringify({ address: new URL(LIVE.address, location.href).href, state: stateNow(root) }));
  });
}

const sizeOf = async () => {
  try {
    const { bytes } = await (await fetch(`${LIVE.address}static/pyodide/size.json`)).json();
    return `${Math.ceil(bytes / 2 ** 20)} MiB`;
  } catch { return TENS_OF_MB; }
};
const shownSize = await sizeOf();
for (const root of document.querySelectorAll("[data-kind]")) offerLive(root, kinds[root.dataset.kind].render, shownSize);
