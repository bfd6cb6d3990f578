// The story of the Context Lab, see shared/story.js.

const wayRow = (s, label) => s.sections.ways.rows.find(([name]) => name === label);
const usefulOf = (s) => wayRow(s, s.sections.ways.on)[4];
const ringSends = (s) => bytesText(wayRow(s, "zigzag ring")[1]);

const STORY = {
  name: "context",
  steps: [
    { text: "Choose the next step of the ring: bright pairs are computed with the keys that have just arrived.",
      at: ".pl-cx-step", needs: (s) => ["set_step", s.step.choices.at(-1).value],
      done: (now, then) => now.step.value !== then.step.value || now.step.choices.length < 2,
      said: (now) => (now.step.choices.length < 2 ? "" : `In step ${now.step.value + 1} a rank works on the keys of the rank ${now.step.value} before it.`) },
    { text: "Choose another way, such as the zigzag ring: every rank then has early tokens and late ones.",
      at: commandAt("set_way"), needs: "set_way", done: (now, then) => now.way.value !== then.way.value,
      said: (now, then) => `${usefulOf(now)} of the time is useful, before ${usefulOf(then)}.` },
    { text: "Choose other heads of keys: a ring sends these alone, Ulysses sends queries and results, too.",
      at: commandAt("set_kv_heads"), needs: "set_kv_heads", done: (now, then) => now.kv_heads.value !== then.kv_heads.value,
      said: (now, then) => `A ring sends ${ringSends(now)} forward, before ${ringSends(then)}.` },
    { text: "Open Hidden or exposed at the bottom: does a message hide where sequences are long?",
      at: '[data-tab="hides"]', done: (now) => now.tab === "hides" },
  ],
  end: "The order of the tokens decides which ranks wait, the way decides what travels; the result is always that of one device.",
};
