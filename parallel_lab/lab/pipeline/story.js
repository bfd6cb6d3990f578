// The story of the Pipeline Lab, see shared/story.js.

const bubbleOf = (s) => s.sections.bubble.rows[0][2];
const keptOf = (s) => Math.max(...s.sections.memory.rows.map((row) => Number(row[1]) || 0));

const STORY = {
  name: "pipeline",
  steps: [
    { text: (now, then) => `Choose the schedule ${then.schedule.value === "gpipe" ? "1f1b" : "gpipe"}: the same actions in another order.`,
      at: commandAt("set_schedule"), needs: "set_schedule", done: (now, then) => now.schedule.value !== then.schedule.value,
      said: (now, then) => `Ranks wait ${bubbleOf(now)} of the step (before ${bubbleOf(then)}) and keep at most ${plural(keptOf(now), "result")} (before ${keptOf(then)}).` },
    { text: "Choose more micro-batches: the wait at both ends is shared by more of them.",
      at: commandAt("set_micro_batches"), needs: "set_micro_batches",
      done: (now, then) => Number(now.micro_batches.value) > Number(then.micro_batches.value),
      said: (now, then) => `With ${now.micro_batches.value} micro-batches ranks wait ${bubbleOf(now)}, before ${bubbleOf(then)}.` },
    { text: "Click an action or a gap: below the result stands when it runs, or what it waits for.",
      at: ".pl-pi-lanes", done: (now, then) => Boolean(now.sel) && now.sel !== then.sel },
    { text: (now) => `Press Run: ${now.stages.value} processes train with this very schedule.`,
      at: '[data-command="run_measured"]', needs: "run_measured", done: (now) => now.run.state === "running",
      said: () => "Their lanes are measured, and their loss is compared with that of one device." },
  ],
  end: "A schedule decides how long ranks wait and how much they keep; what is learned stays the same.",
};
