// The story of the Memory Lab, see shared/story.js.

const heldAt = (s, moment) => forChoices(s.sections.memory, { ...s, moment, source: "predicted" }).bars[1 + s.rank].total;
const stateSizes = (now, then) => `${bytesText(heldAt(now, "states"))} of model states on a rank, before ${bytesText(heldAt(then, "states"))}.`;

const STORY = {
  name: "memory",
  steps: [
    { text: "Choose another level of optimizer parallel: the higher it is, the more is sliced. Watch the bar of a rank.",
      at: commandAt("set_level"), needs: "set_level", done: (now, then) => now.level.value !== then.level.value, said: stateSizes },
    { text: "Choose the fullest moment: what a step needs for a while comes on top.",
      at: commandAt("show_moment"), done: (now) => now.moment.value === "peak",
      said: (now) => `${bytesText(heldAt(now, "peak"))} at the fullest moment, ${bytesText(heldAt(now, "states"))} of them model states.` },
    { text: "Choose another optimizer: SGD keeps no states, Adam keeps two per parameter.",
      at: commandAt("set_optimizer"), needs: "set_optimizer", done: (now, then) => now.optimizer.value !== then.optimizer.value,
      said: stateSizes },
    { text: "Open Messages at the bottom: what is sent for the memory that is saved?",
      at: '[data-tab="traffic"]', done: (now) => now.tab === "traffic" },
  ],
  end: "Slices save memory; what is needed whole is gathered for a moment, and that takes messages.",
};
