// The story of the Cost Lab, see shared/story.js.

const crossing = (s) => { const [first] = s.sections.times.marks ?? []; return first ? `at ${bytesText(first[0])}` : "nowhere"; };
const fastestNow = (now) => `For ${bytesText(now.size.value)} on ${now.ranks.value} ranks ${forChoices(now.sections.table, now).on} is the fastest.`;

const STORY = {
  name: "costs",
  steps: [
    { text: "Choose another alpha, the time to start a message. The dot is where another algorithm becomes the fastest.",
      at: commandAt("set_alpha_us"), needs: "set_alpha_us", done: (now, then) => now.alpha_us.value !== then.alpha_us.value,
      said: (now, then) => `The first crossing lies ${crossing(now)}, before ${crossing(then)}.` },
    { text: "Choose another size S, and compare what the algorithms spend to start and to send.",
      at: commandAt("set_size"), needs: "set_size", done: (now, then) => now.size.value !== then.size.value, said: fastestNow },
    { text: "Choose other ranks: a ring starts more messages then, a tree hardly more.",
      at: commandAt("set_ranks"), needs: "set_ranks", done: (now, then) => now.ranks.value !== then.ranks.value, said: fastestNow },
    { text: "Open Formulas at the bottom: the lines follow from them.",
      at: '[data-tab="formulas"]', done: (now) => now.tab === "formulas" },
  ],
  end: "Few start-ups win where messages are small, few bytes where they are large.",
};
