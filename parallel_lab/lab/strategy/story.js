// The first minute with the Strategy Lab, see shared/story.js.

const strategiesOf = (s) => s.operators.map((o) => o.strategy).join(" ");
const hasPartial = (s) => Boolean(s.picture.partial) || s.tensors.some((t) => t.label.endsWith("partial sums"));
// Whether the message that is looked at adds up partial sums: to look at it is to look at its tensor.
const addsUp = (s) => Boolean(s.picture.partial) && s.messages[s.message - 1].group.length > 0;

const STORY = {
  name: "strategy",
  steps: [
    { text: "Give an operator another strategy: open its list on the left. Watch the slices change.",
      at: ".pl-box", needs: (s) => ["set_strategy", s.operators[0].name],
      done: (now, then) => strategiesOf(now) !== strategiesOf(then) },
    // a control that rests while a training runs does not make its step fall out
    { text: "Press Run: eight processes train with it.", at: '[data-command="run"]', needs: "run",
      done: (now, then) => now.run.state === "running" || now.run.step > then.run.step },
    { text: (now) => (hasPartial(now)
      ? "Hatched slices are partial sums. Choose a tensor labelled “partial sums”, then click another rank."
      : "No operator makes partial sums now. Give one a strategy that splits what it sums over, such as ((2, 4), (4, 1))."),
      at: '.pl-field:has([data-key="tensor"])', done: (now, then) => Boolean(now.picture.partial) && now.rank !== then.rank },
    { text: (now, then) => `${now.message === null || now.message === then.message ? "Partial sums have to be added up."
      : `Message ${now.message} adds up nothing.`} Open Messages at the bottom, find one that does it, and click its number.`,
      at: '[data-tab="messages"]',
      done: (now, then) => now.message !== null && now.message !== then.message && addsUp(now) },
  ],
  end: "That is the whole chain: strategies make slices, slices leave partial sums, partial sums need messages.",
};
