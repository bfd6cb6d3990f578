// The Explain Lab: a program is pasted, its lines with what they send, and what happens at the chosen one.

const EX_FIELDS = ["example", "devices", "lines"];
const EX_TABS = [["messages", "Messages"], ["unread", "Not read"], ["python", "Code"]];

// The chosen line is marked, whichever lines are shown.
const lines = (s, ui) => BODIES.table({ ...forChoices(s.sections.program, s), on: String(s.line.value) }, ui);

const happening = (s, ui) => html`<div class="pl-ex-what" tabindex="0" role="region" aria-label="what happens there">
  ${BODIES.table(forChoices(s.sections.line, s), ui)}</div>`;

const { render, mountPage } = lab({
  classes: ["pl-ex"],
  story: STORY,
  parts: {
    head: (s, ui) => head(s, html`${EX_FIELDS.map((name) => control(`set_${name}`, s[name], ui))}`, ui),
    paste: (s, ui) => pasteField(ui, "set_program", {
      label: "Yours:", button: "Read it", rows: 2,
      example: "Paste a program of PyTorch, JAX, HyperParallel or MindSpore, or a log of PyTorch's DebugMode: it is read, never run." }),
    program: (s, ui) => section(s, "program", ui, { body: lines(s, ui) }),
    line: (s, ui) => section(s, "line", ui, { body: happening(s, ui) }),
    tables: (s, ui) => tabs(ui, sectionTabs(s, ui, EX_TABS)),
  },
  measure: measureWidth,
  // another line, or other lines: the chosen one is in sight
  drawn({ root, ui, snapshot: s }) {
    const row = root.querySelector(".pl-section-program tr.pl-on"), now = `${s.line.value} ${s.lines.value} ${s.status}`;
    if (!row || ui.inSight === now) return;
    const box = row.closest(".pl-scroll"), at = row.offsetTop - box.scrollTop;
    ui.inSight = now;
    if (at < 40 || at + row.offsetHeight > box.clientHeight) box.scrollTop = row.offsetTop - box.clientHeight / 3;
  },
  handlers: (view) => withPaste(view),
});
