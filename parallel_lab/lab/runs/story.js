// The story of the Run Lab, see shared/story.js.

const said = (now) => now.status;

const STORY = {
  name: "runs",
  steps: [
    { text: "Choose another run. What was printed stands next to what is predicted, and the term that is most likely off.",
      at: commandAt("set_run_id"), needs: "set_run_id", done: (now, then) => now.run_id.value !== then.run_id.value, said },
    { text: "Make the links half as fast: which term decides?",
      at: commandAt("set_links"), needs: "set_links", done: (now, then) => now.links.value !== then.links.value, said },
    { text: "Change one thing more, such as a degree, and see which term decides.",
      at: commandAt("set_change"), needs: "set_change", done: (now, then) => now.change.value !== then.change.value, said },
    { text: "Open Number by number at the bottom: every term with its formula.",
      at: '[data-tab="numbers"]', done: (now) => now.tab === "numbers" },
  ],
  end: "A prediction is as good as its error bar: the median error of the runs of that chip.",
};
