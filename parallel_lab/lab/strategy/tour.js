// The first minute: a sentence that waits for the reader's own action, then the next one. One click ends it for ever:
// the browser keeps that, where it may.

const TOUR_OFF = "parallel-lab-tour-off";
const keptOff = () => { try { return localStorage.getItem(TOUR_OFF) === "1"; } catch { return false; } };
const keepOff = () => { try { localStorage.setItem(TOUR_OFF, "1"); } catch { /* a page from a file may keep nothing */ } };

const strategiesOf = (s) => s.operators.map((o) => o.strategy).join(" ");
const hasPartial = (s) => Boolean(s.picture.partial) || s.tensors.some((t) => t.label.endsWith("partial sums"));
// Whether the message that is looked at adds up partial sums: to look at it is to look at its tensor.
const addsUp = (s) => Boolean(s.picture.partial) && s.messages[s.message - 1].group.length > 0;
// needs: a command without which the step is left out (a page without a kernel cannot run);  done(now, then): then is
// how the lab was when the step began;  text: or what makes it of the two
const TOUR = [
  { text: "Give an operator another strategy: open its list on the left. Watch the slices change.",
    done: (now, then) => strategiesOf(now) !== then.strategies, needs: "set_strategy" },
  { text: "Press Run: eight processes train with it.", needs: "run",
    done: (now, then) => now.run.state === "running" || now.run.step > then.step },
  { text: (now) => (hasPartial(now)
    ? "Hatched slices are partial sums. Choose a tensor labelled “partial sums”, then click another rank."
    : "No operator makes partial sums now. Give one a strategy that splits what it sums over, such as ((2, 4), (4, 1))."),
    done: (now, then) => Boolean(now.picture.partial) && now.rank !== then.rank },
  { text: (now, then) => `${now.message === null || now.message === then.message ? "Partial sums have to be added up."
    : `Message ${now.message} adds up nothing.`} Open Messages at the bottom, find one that does it, and click its number.`,
    done: (now, then) => now.message !== null && now.message !== then.message && addsUp(now) },
];

const textOf = ({ text }, now, then) => (typeof text === "string" ? text : text(now, then));

function tour(s, ui) {
  if (!s.tour || ui.tour?.off || openQuestion(s)) return "";
  const then = () => ({ strategies: strategiesOf(s), step: s.run.step, rank: s.rank, message: s.message });
  ui.tour ??= { off: keptOff(), at: 0, then: then() };
  const here = ui.tour;
  if (here.off) return "";
  // a control that rests while a training runs does not make its step fall out
  const possible = ({ needs }) => !needs || ui.can(...(needs === "run" ? [needs] : [needs, s.operators[0].name]));
  here.steps ??= TOUR.filter(possible);
  const { steps } = here;
  while (here.at < steps.length && steps[here.at].done(s, here.then)) {
    here.at += 1;
    here.then = then();
  }
  const over = here.at >= steps.length;
  if (over) keepOff();
  const text = over ? "That is the whole chain: strategies make slices, slices leave partial sums, partial sums need messages."
    : textOf(steps[here.at], s, here.then);
  return html`<p class="pl-predict pl-tour" role="status"><b>${over ? "Done." : `First steps, ${here.at + 1} of ${steps.length}:`}</b>
    ${text} <button type="button" class="pl-link pl-skip" data-key="tour-off" data-tour-off="1">${over ? "close"
    : "skip the tour"}</button></p>`;
}

const withTour = (view, handlers) => ({
  ...handlers,
  click(event) {
    if (!event.target.closest("[data-tour-off]")) return handlers.click?.(event);
    keepOff();
    view.ui.tour = { off: true };
    view.forget("tour");
    return true;
  },
});
