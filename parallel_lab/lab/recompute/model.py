"""`RecomputeLab`: the headless model behind the Recompute Lab widget, and its puzzle.

    lab = RecomputeLab()
    lab.set_cap(40)
    lab.toggle(4)                   # layer 4 is recomputed instead of kept
    lab.count(); lab.wait()
    print(lab.to_text())            # memory over the step, layer by layer; by formula, and counted

The puzzle: the least work done twice with which a step stays under the cap. Commands, `snapshot()`; every control of
the widget is one of these calls. `show_par` asks for an own choice under the cap first.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

from ...base.errors import ArgumentError
from ...cost.recompute import Choice as Predicted, choose_recompute, predict_choice
from ..shared.lab import LabRun, offered
from ..shared.questions import COMMANDS, Question
from ..shared.running import RunsOneThing
from ..shared.sections import code, table
from .chain import LAYERS, Counted, count, moments

CAPS = (20, 24, 28, 30, 32, 36, 40, 44, 48, 50, 52, 56, 60, 72)
STATUS = "The fullest moment keeps {peak} results (predicted), and {fit}; {extra} of {products} products recomputed."
FIT = {True: ("{cap} fit", "fits under {cap}"), False: ("only {cap} fit", "does not fit under {cap}")}
LINE, NO_LINE = "net.layers[{layer}].recompute()", "# every layer is kept"
SIGNS = "".join(sign for sign in map(chr, range(35, 127)) if sign not in "&<>\\")  # of 0, 1, 2, ... in `every_choice`


class RecomputeLab(RunsOneThing):
    """Which of the twelve layers of a chain are recomputed, and what that costs.

    cap   results that fit into memory: 20, 30, 40, 50, 60 or 72
    """

    title = "Recompute Lab"
    scripts, styles = ("recompute/story.js", "recompute/recompute_lab.js"), ("recompute/recompute_lab.css",)
    commands = ("toggle", "keep_all", "recompute_all", "count", "show_par", "stop", *COMMANDS)
    also_kept, runs = ("toggle",), "count"
    frame_height_px = 760

    def __init__(self, cap: int = 40, *, controls: str = "", story: bool = False) -> None:
        super().__init__(controls=controls, story=story)
        self._begin(cap=cap)
        self._again = (False,) * len(LAYERS)
        self._own: dict[int, float] = {}  # cap -> the least work of an own choice that fits
        self._shown = False  # whether the present choice is one that was shown
        self._counted: dict[tuple[bool, ...], Counted] = {}

    set_cap = offered("memory for", CAPS, "Another cap, in results.", cap=int)

    def calls(self) -> list[list[Any]]:
        """The cap, and the layers that are recomputed."""
        return [*super().calls(), *(["toggle", layer] for layer in self.recomputed)]

    def replays(self) -> list[list[Any]]:
        """None: a page has the numbers of all choices (`every_choice`)."""
        return []

    def page_snapshot(self) -> dict[str, Any]:
        """The snapshot, and what is shown of any other choice: its numbers, and the texts that they go into."""
        texts = {"status": STATUS, "fit": [FIT[False], FIT[True]], "line": LINE, "no_line": NO_LINE}
        return {**self.snapshot(), "every": {"signs": SIGNS, "numbers": every_choice(), **texts}}

    # ---- commands ----

    def toggle(self, layer: int) -> None:
        """Recompute a layer that is kept, or keep one that is recomputed."""
        self.one_of(layer, range(len(LAYERS)), "layer")
        self._change(again=tuple(on != (n == layer) for n, on in enumerate(self._again)), shown=False)

    def keep_all(self) -> None:
        """Recompute nothing."""
        self._change(again=(False,) * len(LAYERS), shown=False)

    def recompute_all(self) -> None:
        """Recompute every layer."""
        self._change(again=(True,) * len(LAYERS), shown=False)

    def count(self) -> None:
        """Count a step of the real chain on a simulated rank, and compare its training. Returns at once."""
        again = self._again

        def work() -> str:
            counted = count(again)
            with self._lock:
                self._counted[again] = counted
                if again != self._again:
                    return "that count was for another choice: count again"
            return f"counted: {counted.peak} results at the fullest moment, {counted.extra} products recomputed"

        self._start("counting a step on a simulated rank", work)

    def show_par(self) -> None:
        """Take a choice with the least work. Raises ArgumentError before an own choice was under this cap."""
        if self._cap not in self._own:
            what = f"there is no choice of your own under the cap {self._cap} yet"
            hint = "Recompute layers until the step fits; the least work is shown then"
            raise ArgumentError(what, where="RecomputeLab.show_par", hint=hint)
        self._change(again=choose_recompute(LAYERS, self._cap).recompute, shown=True)

    def _update(self) -> None:
        now = self.predicted
        if not self._run.goes_on:  # what it said was about another choice
            self._run = LabRun()
        if not self._shown and now.peak_bytes <= self._cap:
            self._own[self._cap] = min(self._own.get(self._cap, now.extra_s), now.extra_s)

    # ---- what there is ----

    @property
    def again(self) -> tuple[bool, ...]:
        """Which layers are recomputed."""
        return self._again

    @property
    def recomputed(self) -> list[int]:
        """Their numbers: what exercise 10.1 takes."""
        return [n for n, on in enumerate(self._again) if on]

    @property
    def predicted(self) -> Predicted:
        """Results at the peak (`peak_bytes`) and products recomputed (`extra_s`), by formula."""
        return predict_choice(LAYERS, self._again)

    @property
    def counted(self) -> Counted | None:
        """The same, counted on a simulated rank; None before `count`."""
        return self._counted.get(self._again)

    # ---- forms ----

    def parts(self) -> dict[str, Any]:
        """What the views show, as plain data."""
        names = [f"layer {n}" for n in range(len(LAYERS))]
        layers = [
            {
                "name": name,
                "inside": layer.inside_bytes,
                "made": layer.inside_bytes - layer.input_bytes,
                "work": int(layer.forward_s),
                "again": again,
            }
            for name, layer, again in zip(names, LAYERS, self._again, strict=True)
        ]
        over = [{"name": m.name, "phase": m.phase, "layer": m.layer, "live": m.live} for m in moments(self._again)]
        return {
            "status": self._status(),
            "layers": layers,
            "moments": over,
            "peak": self.predicted.peak_bytes,
            "own": self._cap in self._own,
            "sections": self._sections(layers, over),
        }

    def questions(self) -> list[Question]:
        """Which layer relieves the fullest moment most; then, once, what the fullest moment of an own choice holds."""
        peak, hides = self.predicted.peak_bytes, ("curve", "puzzle")
        if any(self._again):
            most = max(moments(self._again), key=lambda moment: moment.live)
            text = "How many results are in memory at the fullest moment, with the layers that you recompute now?"
            return [Question("own choice", text, (peak,), f"at {most.name}", unit="results", hides=hides)]
        alone = [tuple(n == layer for n in range(len(LAYERS))) for layer in range(len(LAYERS))]
        peaks = [predict_choice(LAYERS, one).peak_bytes for one in alone]
        right = tuple(layer for layer, left in enumerate(peaks) if left == min(peaks))
        text = "Every layer is kept now. Click the layer that frees most of the fullest moment if it is recomputed."
        why = f"the fullest moment falls from {peak} to {min(peaks)} results"
        return [Question("layer that frees most", text, right, why, by="toggle", hides=hides)]

    def _status(self) -> str:
        now = self.predicted
        fit = FIT[now.peak_bytes <= self._cap][0].format(cap=self._cap)
        products = sum(layer.forward_s for layer in LAYERS)
        return STATUS.format(peak=now.peak_bytes, fit=fit, extra=f"{now.extra_s:g}", products=f"{products:g}")

    def _sections(self, layers: list[dict[str, Any]], over: list[dict[str, Any]]) -> dict[str, Any]:
        kept = {True: "recomputed: its input", False: "kept"}
        rows = [(one["name"], one["inside"], one["work"], kept[one["again"]]) for one in layers]
        columns = {"": "name", "results inside": "count bar", "products": "count bar", "choice": "text"}
        steps = [(one["name"], one["live"]) for one in over]
        sections = {
            "layers": table("Layers", columns, rows),
            "step": table("Memory over the step", {"action": "name", "results": "count bar"}, steps, small="predicted"),
            "puzzle": self._puzzle(),
        }
        lines = [LINE.format(layer=n) for n in self.recomputed]
        sections["python"] = code("In MindSpore, and here", "\n".join(lines) or NO_LINE)
        return sections

    def _puzzle(self) -> dict[str, Any]:
        now, counted = self.predicted, self.counted
        columns = {"": "name", "results at the peak": "count", "products recomputed": "count"}
        rows: list[tuple[Any, ...]] = [("by formula", now.peak_bytes, int(now.extra_s))]
        fits = now.peak_bytes <= self._cap
        notes: list[Any] = [[FIT[fits][1].format(cap=self._cap), fits]]
        if counted is not None:
            rows.append(("counted on a simulated rank", counted.peak, counted.extra))
            same = "losses and parameters are bit for bit those of a training that keeps everything"
            notes.append([same if counted.equal else "the numbers are different", counted.equal])
        if self._cap in self._own:
            least, mine = choose_recompute(LAYERS, self._cap).extra_s, self._own[self._cap]
            ratio = f", {mine / least:.3f} x par" if least else ""
            notes.append(f"Par under this cap: {least:g} products, by exact search. Your best choice: {mine:g}{ratio}.")
        else:
            notes.append("Par is shown once a choice of your own fits.")
        return table("The least work under the cap", columns, rows, notes=notes)


@cache
def every_choice() -> str:
    """For every choice (in the order in which layer 0 changes fastest) 2 x 12 + 2 numbers, a sign of SIGNS for each:
    results at every moment, results at the peak, products recomputed.
    """
    numbers = []
    for again in product((False, True), repeat=len(LAYERS)):
        choice = again[::-1]
        predicted = predict_choice(LAYERS, choice)
        numbers += [*(moment.live for moment in moments(choice)), predicted.peak_bytes, int(predicted.extra_s)]
    return "".join(SIGNS[number] for number in numbers)
