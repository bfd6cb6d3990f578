// The story of the Hunt Lab, see shared/story.js.

const asked = (s) => s.sections.asked.rows.length;
const answered = (now) => `It says: ${now.sections.asked.rows.at(-1)[1]}.`;

const STORY = {
  name: "hunt",
  steps: [
    { text: "One of the suspects is in this training. Choose a value in the middle of the graph.",
      at: commandAt("set_tensor"), needs: "set_tensor", done: (now, then) => now.tensor.value !== then.tensor.value },
    { text: "Probe it: is it as it should be? If not, what makes it, or something before it, is to blame.",
      at: '[data-command="probe"]', needs: "probe", done: (now, then) => asked(now) > asked(then), said: answered },
    { text: "Compare two ranks: gradients of what both hold must be equal.",
      at: '[data-command="compare"]', needs: "compare", done: (now, then) => asked(now) > asked(then), said: answered },
    { text: "What is right in the first step may be wrong in the second: choose step 1 for the next probe.",
      at: commandAt("set_step"), needs: "set_step", done: (now) => now.step.value === 1 },
  ],
  end: "Name the operator, the kind and the mend; par is what surely suffices.",
};
