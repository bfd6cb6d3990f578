// The story of the Collective Stepper, see shared/story.js.

const takenBy = (s) => s.compare.find((c) => c.shown);

const STORY = {
  name: "stepper",
  steps: [
    { text: "Press Next: the messages of a round travel along the arcs.",
      at: '[data-act="next"]', done: (now, then) => now.at > then.at },
    { text: "Click a chunk on a card: it stays bright wherever it goes.",
      at: ".pl-team-cards", needs: "follow", done: (now) => now.follow !== null },
    { text: "Go to the end, with Play or the slider.", at: '[data-act="play"], .pl-rail', done: (now) => now.at === now.rounds,
      said: (now) => `All ${plural(now.rounds, "round")} are done: what was counted equals the formula.` },
    { text: "Open Algorithms at the bottom, and choose another one.",
      at: '[data-tab="compare"]', needs: (s) => ["choose_algorithm", s.compare.find((c) => !c.shown)?.name],
      done: (now, then) => now.algorithm.value !== then.algorithm.value,
      said: (now, then) => `${plural(now.rounds, "round")} and ${timeText(takenBy(now)?.time_s)}, before ${then.rounds} and ${timeText(takenBy(then)?.time_s)}.` },
  ],
  end: "All end at the same sums; rounds and bytes differ, and so does which one is the fastest.",
};
