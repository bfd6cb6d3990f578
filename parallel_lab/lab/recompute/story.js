// The story of the Recompute Lab, see shared/story.js.

const againOf = (s) => s.layers.map((layer) => Number(layer.again)).join("");
const extraOf = (s) => s.layers.reduce((sum, { again, work }) => sum + (again ? work : 0), 0);

const STORY = {
  name: "recompute",
  steps: [
    { text: "Click a layer: only its input stays, and backward computes the rest again.",
      at: ".pl-rc-layers", done: (now, then) => againOf(now) !== againOf(then),
      said: (now, then) => `At most ${plural(now.peak, "result")} in memory, before ${then.peak}.` },
    { text: "Bring all bars under the red line.", at: ".pl-rc-layers", done: (now) => now.peak <= now.cap.value,
      said: (now) => `That costs ${plural(extraOf(now), "product")} that are computed twice.` },
    { text: "Move the line down: choose a smaller memory. Does it still fit?",
      at: commandAt("set_cap"), done: (now, then) => now.cap.value < then.cap.value,
      said: (now) => (now.peak <= now.cap.value ? "It still fits." : `${now.peak} are too many for ${now.cap.value}.`) },
    { text: "Press Count: a simulated rank runs the step, and its results are counted.",
      at: '[data-command="count"]', needs: "count", done: (now) => now.sections.puzzle.rows.length > 1 },
  ],
  end: "Memory is bought with work. Which layers to take is the puzzle: much memory for few products.",
};
