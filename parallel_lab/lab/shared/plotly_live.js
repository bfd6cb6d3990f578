// Pictures that plotly draws in a live notebook, and not we: they zoom, and say what the pointer is over. Its script
// comes from the kernel, packed, once for all labs of a page, and needs no network. Until it is there, on a page of its own,
// and where plotly is missing, ours is shown.

const ASK_ANEW_MS = 20000; // the view that had asked may be gone

async function unpackedPlotly(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const text = await new Response(stream).text();
  // as a module: neither a page's AMD loader nor its global names are touched
  const parts = ["const module = { exports: {} };\n", text, "\nexport default module.exports;"];
  const url = URL.createObjectURL(new Blob(parts, { type: "text/javascript" }));
  try { return (await import(url)).default; } finally { URL.revokeObjectURL(url); }
}

// want: a picture could be plotly's; heard: the kernel's answer, with nothing in it where plotly is missing.
function plotlyFor(view, request) {
  const page = (globalThis.parallelLabPlotly ??= { found: null, waiting: new Set(), asked: -Infinity });
  const take = () => { view.ui.plotly = page.found; view.forget(); };
  return {
    want() {
      if (page.found) { take(); return; }
      page.waiting.add(take);
      if (performance.now() - page.asked < ASK_ANEW_MS) return;
      page.asked = performance.now();
      request();
    },
    async heard(buffers) {
      if (!buffers?.length) { page.asked = Infinity; return; }
      page.found ??= await unpackedPlotly(buffers[0]);
      for (const one of page.waiting) one();
      page.waiting.clear();
    },
    leave() { page.waiting.delete(take); },
  };
}
