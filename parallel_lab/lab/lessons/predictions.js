// The questions of a lesson before it begins: a field or buttons for each, kept at once; what was compared stays.

const choicesOf = ({ name, choices, yours, seen }, ui) => choices.map((choice) => html`<button type="button" class="pl-button"
  data-key="${name}-${choice}" data-choose="${name}" data-value="${choice}" aria-pressed="${choice === yours}"
  ${flag("disabled", seen || !ui.live)}>${choice}</button>`);

const fieldOf = ({ name, yours, seen, text }, ui) => html`<input type="text" data-key="${name}" data-field="${name}" size="12"
  autocomplete="off" spellcheck="false" aria-label="${text}" value="${ui.drafts.get(name) ?? yours}"
  ${flag("disabled", seen || !ui.live)}>`;

const question = (row, n, ui) => html`<li data-key="${row.name}"><span>${row.text}</span>
  <span class="pl-ask-answer" role="group" aria-label="answer ${n + 1}">${row.choices.length ? choicesOf(row, ui) : fieldOf(row, ui)}
  <small>${row.seen ? "compared" : row.yours ? "kept" : ""}</small></span></li>`;

const { render, mountPage } = lab({
  classes: ["pl-ask"],
  parts: {
    head: (s, ui) => head(s, "", ui),
    form: (s, ui) => html`<ol>${s.rows.map((row, n) => question(row, n, ui))}</ol>`,
  },
  commit: (name, text, { snapshot, send }) => {
    if (text.trim() && text !== snapshot.rows.find((row) => row.name === name).yours) send("answer", [name, text]);
  },
  handlers: (view) => ({
    click({ target }) {
      const node = target.closest("[data-choose]");
      if (!node || node.disabled) return false;
      view.send("answer", [node.dataset.choose, node.dataset.value]);
      return true;
    },
  }),
});
