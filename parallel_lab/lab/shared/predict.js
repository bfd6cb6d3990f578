// Predict first (lab/shared/questions.py): the open question with a field or "click ...", a switch, and what was said of
// the last answer. What shows the answer is covered until it is given.

const openQuestion = (s) => (s?.predict?.on && s.predict.open) || null;
const covers = (s, part) => openQuestion(s)?.hides.includes(part);
const cover = html`<p class="pl-cover">Shown when you have answered.</p>`;

// The question that a click on something with this command answers.
const answeredBy = (s, command) => (openQuestion(s)?.by === command ? openQuestion(s) : null);

const predictSwitch = (s, ui) => (s.predict ? html`<label class="pl-field pl-predict-switch"><input type="checkbox"
  data-key="predict" data-command="set_predict"${flag("checked", s.predict.on)}${disabledUnless(ui, "set_predict")}>
  <span>predict first</span></label>` : "");

// What was said of the last answer: where nothing is open, or where the next question of a lesson is (`then`).
function lastSaid(s, ui) {
  const last = s.predict?.on && (!s.predict.open || s.predict.then) ? s.predict.last : null;
  if (!last) return "";
  const amount = (v) => (typeof v === "number" ? `${Number(v.toPrecision(6))}${last.unit ? ` ${last.unit}` : ""}` : last.names[v] ?? v);
  const text = html`<span class="${last.verdict === "right" ? "pl-good" : "pl-wrong"}">${last.yours === null ? ""
    : html`You: ${amount(last.yours)}, ${last.verdict}. `}</span>
    <b>${last.right.map(amount).join(" or ")}</b>: ${micro(last.why)}. ${s.predict.more
    ? html`<button type="button" class="pl-link pl-skip" data-key="ask" data-command="ask"${disabledUnless(ui, "ask")}>
    another question</button>` : ""}`;
  return html`<p class="pl-predict pl-told" role="group" aria-label="${s.predict.open ? "the last answer" : "predict first"}">${text}</p>`;
}

function asks(s, ui) {
  const q = openQuestion(s);
  if (!q) return lastSaid(s, ui);
  const field = () => html`<input type="text" data-key="answer" data-field="answer" data-answer="${q.key}" size="9"
    inputmode="${q.listed ? "text" : "decimal"}" data-listed="${q.listed ? "1" : ""}" autocomplete="off" aria-label="your answer" value="${ui.drafts.get("answer") ?? ""}"
    ${flag("disabled", !ui.can("answer"))}> ${q.unit} <button type="button" class="pl-button" data-key="keep">Keep</button>`;
  const pick = (choice) => html`<button type="button" class="pl-button" data-key="pick-${choice}" data-command="answer"
    data-answer="${q.key}" data-value="${choice}"${flag("disabled", !ui.can("answer"))}>${choice}</button> `;
  return html`<p class="pl-predict" role="group" aria-label="predict first"><b>Predict:</b> ${micro(q.text)} ${q.choices.length ? q.choices.map(pick) : q.by ? "" : field()}
    <button type="button" class="pl-link pl-skip" data-key="skip" data-command="skip" data-value="${q.key}"
    ${flag("disabled", !ui.can("skip"))}>show me</button></p>`;
}

// On a page of its own (alone.js): the same, with the answers that the page carries.
function verdictOf({ right, within, by, choices, listed }, yours) {
  if (yours === null) return "no answer";
  const near = (r) => (by || listed || choices.length ? r === yours : Math.abs(r - yours) <= within * Math.max(Math.abs(r), Math.abs(yours)));
  return right.some(near) ? "right" : "not yet";
}
const told = (s, given) => {
  const q = openQuestion(s), yours = q.listed && given !== null ? `(${(String(given).match(/-?\d+/g) ?? []).join(", ")})` : given;
  const last = { ...q, yours, verdict: verdictOf(q, yours) };
  return { predict: { ...s.predict, open: null, last } };
};
