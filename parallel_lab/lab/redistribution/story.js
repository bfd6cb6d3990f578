// The story of the Redistribution Lab, see shared/story.js.

const receivedOf = (s) => s.sections.compare.rows[s.steps.choices.findIndex((c) => valueOf(c) === s.steps.value)][4];

const STORY = {
  name: "redistribution",
  steps: [
    { text: "Press Next: the pieces fly to the ranks that need them.",
      at: '[data-act="next"]', done: (now, then) => now.at > then.at, said: () => "They have landed: the cards on the right hold them." },
    { text: "Click another rank: below the cards stands what it keeps, and from whom it gets the rest.",
      at: ".pl-mv-cards", done: (now, then) => now.rank.value !== then.rank.value },
    { text: (now, then) => `Choose another way: ${then.steps.value === "exact" ? "all_gather is simple, and sends the most"
      : "exact pieces send only what a rank lacks"}.`,
      at: commandAt("set_steps"), needs: "set_steps", done: (now, then) => now.steps.value !== then.steps.value,
      said: (now, then) => `A rank receives at most ${bytesText(receivedOf(now))}, before ${bytesText(receivedOf(then))}.` },
    { text: "Open Three ways at the bottom, and compare what they send and what a rank holds at once.",
      at: '[data-tab="compare"]', done: (now) => now.tab === "compare" },
  ],
  end: "All ways end at the same slices; they differ in steps, in bytes, and in what a rank holds meanwhile.",
};
