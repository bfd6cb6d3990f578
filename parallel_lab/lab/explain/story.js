// The story of the Explain Lab, see shared/story.js.

const STORY = {
  name: "explain",
  steps: [
    { text: "These are a program's own lines. Choose another one that sends something: why does it, below?",
      at: ".pl-section-program", needs: "set_line", done: (now, then) => now.line.value !== then.line.value },
    { text: "Choose another program: fully_shard gathers parameters before they are used, and again for the gradients.",
      at: commandAt("set_example"), needs: "set_example", done: (now, then) => now.example.value !== then.example.value,
      said: (now) => `${now.status.split(". ")[0]}.` },
    { text: "Start it with other ranks.",
      at: commandAt("set_devices"), needs: "set_devices", done: (now, then) => now.devices.value !== then.devices.value,
      said: (now) => `${now.status.split(". ")[0]}.` },
    { text: "Open the messages: all that rank 0 sends, in order.",
      at: '[data-tab="messages"]', done: (now) => now.tab === "messages" },
  ],
  end: "Now paste your own. Lines that are not understood are marked, each with the reason.",
};
