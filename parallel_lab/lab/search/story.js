// The story of the Search Lab, see shared/story.js.

const lostOf = (s) => s.candidates.find((c) => !c.chosen && c.cost !== null) ?? s.candidates.at(-1);
const winnerCost = (s) => costText(s.points.find((p) => p.id === "winner").cost, s.unit);

const STORY = {
  name: "search",
  steps: [
    { text: "Click a point: the net and the cards show the slices of that plan.",
      at: ".pl-se-plot", needs: "select_point", done: (now, then) => now.point !== then.point,
      said: (now) => `This plan takes ${costText(now.shown.cost, now.unit)} and ${bytesText(now.shown.memory)} per device.` },
    { text: "Click another operator of the net: below stand all strategies that it could have.",
      at: ".pl-se-net", needs: "select_operator", done: (now, then) => now.operator !== then.operator,
      said: (now) => `${tail(now.operator)} has ${plural(now.candidates.length, "candidate")}.` },
    { text: "Pin one that was not chosen: the search must take it.",
      at: ".pl-se-candidates", needs: (s) => ["set_pin", s.operator, lostOf(s).strategy],
      done: (now, then) => Object.keys(now.pins).length > Object.keys(then.pins).length,
      said: (now, then) => `With the pin the best plan takes ${winnerCost(now)}, before ${winnerCost(then)}.` },
    { text: "Open What would flip it at the bottom: which change makes another plan win?",
      at: '[data-tab="flips"]', done: (now) => now.tab === "flips" },
  ],
  end: "A search compares sums of terms: change a term, and another plan wins.",
};
