// The story of the Rosetta Lab, see shared/story.js.

const formOf = (s, name) => s.sections.forms.rows.map(([, cell]) => cell).find((cell) => cell[0] === name)[1];

const STORY = {
  name: "rosetta",
  steps: [
    { text: "Let tp split dim 1, too: choose dim 1 behind tp, and read the five notations.",
      at: commandAt("set_tp"), needs: () => ["set_tp", "S1"], done: (now, then) => now.tp?.value !== then.tp?.value,
      said: (now) => `JAX writes ${formOf(now, "jax.PartitionSpec")}.` },
    { text: "Let tp hold addends: what a sum over a split dim leaves on the ranks.",
      at: commandAt("set_tp"), needs: () => ["set_tp", "P"], done: (now) => now.tp?.value === "P",
      said: () => "MindSpore's two have no form of it: they reduce at once." },
    { text: "Type P(('tp', 'dp'), None) as PartitionSpec, then press Enter: fully sharded data parallel over tensor parallel.",
      at: '[data-field="form-jax.PartitionSpec"]', needs: "set_form", done: (now) => now.outer?.value === "right",
      said: (now) => `In PyTorch this is ${formOf(now, "torch")}; no strategy says it.` },
    { text: "Open More notations: what compilers and other libraries write.",
      at: '[data-tab="more"]', done: (now) => now.tab === "more" },
  ],
  end: "One layout, many brackets: they differ in the order of several axes, in what is pending, and in what they refuse.",
};
