// The story of the Expert Lab, see shared/story.js.

const busiestOf = (s) => /(?:[\d.]+ x )?as long as balanced/.exec(s.leads[s.step.value])?.[0];

const STORY = {
  name: "experts",
  steps: [
    { text: "Choose after step 0: before any training the router's choices are those of chance.",
      at: ".pl-ex-step:has([data-command=set_step])", needs: (s) => ["set_step", s.step.choices[0].value],
      done: (now, then) => now.step.value !== then.step.value,
      said: (now, then) => `It takes ${busiestOf(now)}, and ${busiestOf(then)} after ${then.step.value} steps: nobody has asked for balance.` },
    { text: "Choose a loss factor: the net is then trained with a loss that is least where all experts have the same.",
      at: commandAt("set_balance_factor"), needs: "set_balance_factor", done: (now, then) => now.balance_factor.value !== then.balance_factor.value,
      said: (now, then) => `It takes ${busiestOf(now)}, before ${busiestOf(then)}.` },
    { text: "Choose a capacity, such as 1: every expert has then so many slots, and no rank waits for another.",
      at: commandAt("set_factor"), needs: "set_factor", done: (now, then) => now.factor.value !== then.factor.value,
      said: (now) => `${/\S+ of \d+ choices/.exec(now.leads[now.step.value])?.[0]} are dropped: no expert sees them.` },
    { text: "Open Messages: what leaves each rank, there and back?",
      at: '[data-tab="messages"]', done: (now) => now.tab === "messages" },
  ],
  end: "A layer of experts takes as long as its busiest rank; a loss, a bias, slots or another placement make ranks alike, each at a price.",
};
