// A story in a few steps: each frames a control, waits for the reader's own action, and says what that has changed. One
// click ends it for ever: the browser keeps that, where it may. It stands where a lab asks, and waits while it does.
//
//   spec.story   {name, steps, end}: what the browser keeps it under; the sentence after the last step
//   a step       {text, at, needs, done, said}
//     text   what to do, or what makes it of (now, then): the snapshot, and the one with which the step began, both with
//            `tab`, the one that is open, and `sel`, what is selected in the picture
//     at     a selector of what is framed
//     needs  a command without which the step is left out (a page without a kernel cannot run), with arguments: a function
//     done   (now, then): whether it has happened;  said: the same, what it has changed

const storyKey = (name) => `parallel-lab-${name}-story-off`;
const keptOff = (name) => { try { return localStorage.getItem(storyKey(name)) === "1"; } catch { return false; } };
const keepOff = (name) => { try { localStorage.setItem(storyKey(name), "1"); } catch { /* a page from a file may keep nothing */ } };

function story(s, ui) {
  if (ui.story) ui.story.framed = "";
  if (!s.story || !ui.tells || openQuestion(s)) return "";
  const { name, steps: all, end } = ui.tells, now = { ...s, tab: ui.tab, sel: ui.sel };
  const here = ui.story ??= { off: keptOff(name), at: 0, then: now, said: "" };
  if (here.off) return "";
  here.steps ??= all.filter(({ needs }) => !needs || ui.can(...[typeof needs === "string" ? needs : needs(s)].flat()));
  const { steps } = here;
  while (!ui.preview && here.at < steps.length && steps[here.at].done(now, here.then)) {
    here.said = steps[here.at].said?.(now, here.then) ?? "";
    here.at += 1;
    here.then = now;
  }
  const step = steps[here.at], text = typeof step?.text === "function" ? step.text(now, here.then) : step?.text;
  if (!step) keepOff(name);
  here.framed = step?.at ?? "";
  return html`<p class="pl-predict pl-story" role="status">${here.said ? html`<span class="pl-good">${micro(here.said)}</span> ` : ""}<b
    >${step ? `${here.at + 1} of ${steps.length}:` : "Done."}</b> ${text ?? end} <button type="button" class="pl-link pl-skip"
    data-key="story-off" data-story-off="1">${step ? "skip the story" : "close"}</button></p>`;
}

// What a lab asks, or else the story.
function asksOrTells(s, ui) {
  const told = story(s, ui), asked = asks(s, ui);
  if (asked && ui.story) ui.story.framed = "";
  return asked || told;
}

// Whether it, or what was said of an answer, takes its two lines.
const tellsNow = (s, ui) => Boolean((s.story && ui.tells && !ui.story?.off) || (s.predict?.on && s.predict.last));

function endStory(view) {
  keepOff(view.ui.tells.name);
  view.ui.story = { off: true };
  view.forget();
}

// The frame around what a step is about.
const framing = (id, ui) => (ui.story?.framed ? `[data-view="${id}"] :is(${ui.story.framed}):not(:focus-visible) {
  outline: 2px dashed var(--pl-accent); outline-offset: 1px; }` : "");
const commandAt = (command) => `.pl-field:has([data-command="${command}"])`;
