// The story of the Fusion Lab, see shared/story.js.

const stepNow = (s) => s.sections.times.rows[0];
const stepSaid = (now, then) => `${plural(stepNow(now)[3], "message")}: a step of ${timeText(stepNow(now)[1])}, before ${timeText(stepNow(then)[1])}.`;

const STORY = {
  name: "fusion",
  steps: [
    { text: "Press Split, or click between two gradients: the first of them leave while backward computes the others.",
      at: "[data-split]", needs: "add_cut", done: (now, then) => now.cuts.length > then.cuts.length, said: stepSaid },
    { text: (now, then) => `Choose ${then.mode.value === "each" ? "off" : "each"}: ${then.mode.value === "each"
      ? "nothing is fused by hand" : "every gradient travels alone, as soon as it is computed"}.`,
      at: commandAt("set_mode"), needs: "set_mode", done: (now, then) => now.mode.value !== then.mode.value, said: stepSaid },
    { text: "Open Cost of a message at the bottom: each one takes α to start, and β for its bytes.",
      at: '[data-tab="cost"]', done: (now) => now.tab === "cost" },
    { text: "Give α a tenth, and press Enter: do many small messages pay now?",
      at: ".pl-fu-line", needs: "set_line", done: (now, then) => now.line.alpha_s !== then.line.alpha_s, said: stepSaid },
  ],
  end: "Few messages start late, many start often: the best grouping hides all but the last behind backward.",
};
