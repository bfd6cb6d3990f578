"""The Redistribution Lab: a producer leaves a tensor in one layout, a consumer wants another; what every rank does in
between, what it receives, and the least that any steps would need.

    lab = RedistributionLab(devices=8, have="8 x 1", want="1 x 8")
    print(lab.to_text())
    lab.next()                      # the first message is done: who holds what now
    lab.set_steps("all_to_all")     # the same with an eighth of the bytes
    lab.set_steps("exact")          # one exchange in which nobody receives what it has or does not need

A layout is written as a strategy, slices per dim: "2 x 4". Ranks that are left hold copies, or the partial sums of a
sum that is still pending. What moves is drawn frame by frame (`pictures/moves.py`); `at` frames are done. A table sets
the three ways to plan steps next to the least that any would need.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product
from typing import Any, ClassVar

import numpy as np

from ...base.units import bytes_text, plural
from ...layout.redistribution import plan_redistribution
from ...layout.redistribution_steps import Exchange, Step, move, received_elements
from ...layout.tensor_layout import TensorLayout, slice_text
from ...run.calls import Calls
from ..pictures.moves import move_lines, moves_view
from ..rosetta.section import mesh_layout_of, notation_table
from ..shared.lab import Stepped, offered, setting
from ..shared.questions import COMMANDS, Question
from ..shared.sections import code, table

SHAPE, DTYPE = (16, 32), np.dtype(np.float32)
DEVICES = (2, 4, 8)
COPIES = {"copies": "copies", "addends": "partial sums"}
STEPS = {"gather": "all_gather, then slice", "all_to_all": "all_to_all where it fits", "exact": "exact pieces"}
MANNERS: dict[str, dict[str, bool]] = {"gather": {}, "all_to_all": {"alltoall": True}, "exact": {"exact": True}}


def strategies(devices: int) -> list[str]:
    """Every strategy of a matrix on so many ranks, whole dims first.

    >>> strategies(2)
    ['1 x 1', '1 x 2', '2 x 1']
    """
    ways = [n for n in (1, *DEVICES) if n <= devices]
    return [f"{rows} x {columns}" for rows in ways for columns in ways if rows * columns <= devices]


class RedistributionLab(Stepped):
    """A (16, 32) float32 tensor between two layouts.

    devices  2, 4 or 8 ranks
    have     the strategy it has, such as "2 x 4"; want: the one that is needed
    copies   what ranks with the same slice hold: "copies", or "addends" (partial sums)
    steps    "gather" (MindSpore's default), "all_to_all" (its enable_alltoall) or "exact" (pieces that are lacked)

    Raises ArgumentError for other values.
    """

    title = "Redistribution Lab"
    scripts: ClassVar[tuple[str, ...]] = (
        *("shared/transport.js", "pictures/slices.js", "pictures/moves.js"),
        *("redistribution/story.js", "redistribution/redistribution_lab.js"),
    )
    styles: ClassVar[tuple[str, ...]] = ("shared/transport.css", "pictures/moves.css")
    free = ("have", "want", "copies", "steps")
    step = "frame"
    commands = (*Stepped.commands, *COMMANDS)

    def __init__(
        self,
        devices: int = 8,
        have: str = "8 x 1",
        want: str = "1 x 8",
        copies: str = "copies",
        steps: str = "gather",
        *,
        controls: str = "",
        story: bool = False,
    ) -> None:
        super().__init__(controls=controls, story=story)
        self._begin(devices=devices, have=have, want=want, copies=copies, steps=steps)
        self._rank = 0
        self._update()

    @setting("ranks", DEVICES)
    def set_devices(self, devices: int) -> dict[str, Any]:
        """So many ranks; strategies that they cannot have become the widest split of the rows."""
        known, widest = strategies(devices), f"{devices} x 1"
        have, want = (each if each in known else widest for each in (self._have, self._want))
        return {"have": have, "want": want, "rank": min(self._rank, devices - 1)}

    @setting("from", lambda lab: strategies(lab._devices))
    def set_have(self, have: str) -> None:
        """The layout that the tensor has, as a strategy."""

    set_want = offered("to", lambda lab: strategies(lab._devices), "The layout that is needed.", want=str)

    @setting("equal slices are", COPIES)
    def set_copies(self, copies: str) -> None:
        """What ranks with the same slice hold: "copies" or "addends"."""

    set_steps = offered("way", STEPS, 'How to move: "gather", "all_to_all" or "exact".', steps=str)
    set_rank = offered("rank", lambda lab: range(lab._devices), "The rank whose groups are shown.", look=True, rank=int)

    @property
    def last(self) -> int:
        return len(self.moves["frames"])

    # ---- what follows ----

    def _update(self) -> None:
        source, self.target = (self._layout(each) for each in (self._have, self._want))
        partial = source.replica_axes if self._copies == "addends" else ()
        self.source = TensorLayout(source.device_matrix, source.tensor_map, partial)
        pair = self.source, self.target, SHAPE
        self.plans = {name: plan_redistribution(*pair, **manner) for name, manner in MANNERS.items()}
        self.plan: tuple[Step, ...] = self.plans[self._steps]
        self.moves: dict[str, Any] = moves_view(self.plan, self.source, self.target, SHAPE, DTYPE.itemsize)
        self._at = 0

    def _layout(self, strategy: str) -> TensorLayout:
        return TensorLayout.from_strategy(tuple(map(int, strategy.split(" x "))), self._devices)

    def parts(self) -> dict[str, Any]:
        """Everything shown: steps of the chosen rank, slices of all ranks, and the same in Python."""
        sections = {"steps": self._step_table(), "compare": self._compare_table(), "slices": self._slice_table()}
        both = {"has": self.source, "needs": self.target}
        named = {head: mesh_layout_of(one, ("rows", "columns", "copies")) for head, one in both.items()}
        sections["forms"] = notation_table("In five notations", named, SHAPE)
        sections["python"] = self._python()
        small = "drawn as direct exchange; a ring passes the same bytes from neighbour to neighbour"
        notes = move_lines(self.moves) or ["Nothing moves."]
        sections["moves"] = {"kind": "lines", "title": "Steps in words", "small": small, "notes": notes}
        alone = self._copies == "addends" and not self.source.is_partial
        why = f"No two ranks hold the same slice of {self._have}, so there are no partial sums."
        shown = {"status": self._status(), "selected": why if alone else "", "at": self._at, "moves": self.moves}
        return {**shown, "sections": sections}

    def questions(self) -> list[Question]:
        """What a rank receives; which rank has something that rank 0 lacks."""
        if not self.plan:
            return []
        ways = self._devices, self._have, self._want, self._copies
        received = DTYPE.itemsize * received_elements(self.plan)
        text = f"How many bytes does the rank that receives most get, from {self._have} to {self._want} by {{}}?"
        least = "" if self.least_bytes is None else f"; {bytes_text(self.least_bytes)} is the least that it lacks"
        asks = [
            Question(
                f"bytes of {ways}, {self._steps}",
                text.format(STEPS[self._steps]),
                (received,),
                f"in {plural(len(self.plan), 'step')}{least}",
                unit="bytes",
                hides=("transport", "moves", "tables"),
            )
        ]
        wanted = self.target.slice_index(SHAPE, 0)
        lacks = set(_places(wanted)) - set(_places(self.source.slice_index(SHAPE, 0)))
        has = [r for r in range(1, self._devices) if lacks & set(_places(self.source.slice_index(SHAPE, r)))]
        if has and not self.source.is_partial:
            text = f"Rank 0 needs {slice_text(wanted, SHAPE)}. Click a rank that has some of it which rank 0 lacks."
            why = f"of that, ranks {' '.join(map(str, has))} hold what rank 0 lacks"
            asks.append(
                Question(f"giver of {ways}", text, tuple(has), why, by="set_rank", hides=("transport", "tables"))
            )
        return asks

    def _status(self) -> str:
        if not self.plan:
            return "The tensor is where it is needed: nothing is sent."
        received = DTYPE.itemsize * received_elements(self.plan)
        count, sends = len(self.plan), sum(step.communicates for step in self.plan)
        which = f", {sends} with communication" if count > 1 else "" if sends else ", without communication"
        head = f"{plural(count, 'step')}{which}"
        least = "" if self.least_bytes is None else f"; no way needs less than {bytes_text(self.least_bytes)}"
        return f"{head}; every rank receives {bytes_text(received)} (predicted){least}."

    @property
    def least_bytes(self) -> int | None:
        """The largest part of its slice that a rank lacks: a bound for all steps; None while a sum is pending."""
        if self.source.is_partial:
            return None

        def new(rank: int) -> int:
            pairs = zip(*(layout.slice_index(SHAPE, rank) for layout in (self.source, self.target)), strict=True)
            held = math.prod(max(0, min(a.stop, b.stop) - max(a.start, b.start)) for a, b in pairs)
            return math.prod(self.target.slice_shape(SHAPE)) - held

        return DTYPE.itemsize * max(map(new, range(self._devices)))

    def _step_table(self) -> dict[str, Any]:
        def rows(rank: int) -> list[list[Any]]:
            rows = []
            for number, step in enumerate(self.plan, 1):
                group = " ".join(map(str, step.group(rank))) if step.communicates else "alone"
                size = DTYPE.itemsize * received_elements([step], rank)
                moved = step.kind != "reshape"  # which redescribes what is there
                held = DTYPE.itemsize * (math.prod(step.in_shape) + moved * math.prod(step.out_shape))
                rows.append([f"{number} {step.kind}", group, step.in_shape, step.out_shape, held, size])
            return rows

        heads = {"step": "name", "together with": "text", "slice": "shape", "then": "shape", "held at once": "bytes"}
        heads["received"] = "bytes bar"
        of = {str(rank): {"rows": rows(rank)} for rank in range(self._devices)}
        return table("Steps", heads, small="groups of the chosen rank", by=["rank"], of=of)

    def _compare_table(self) -> dict[str, Any]:
        """The three ways to plan, for the rank that receives most."""
        heads = {"way": "name", "steps": "count", "messages": "count", "elements": "count", "received": "bytes bar"}
        heads["held at once"] = "bytes"
        rows = []
        for name, plan in self.plans.items():
            elements = received_elements(plan)
            held = [math.prod(step.in_shape) + math.prod(step.out_shape) for step in plan if step.kind != "reshape"]
            peak = DTYPE.itemsize * max(held, default=math.prod(self.source.slice_shape(SHAPE)))
            arriving = sum(map(messages_received, plan))
            rows.append([STEPS[name], len(plan), arriving, elements, DTYPE.itemsize * elements, peak])
        notes = []
        if self.least_bytes is not None:
            least, best = self.least_bytes // DTYPE.itemsize, rows[-1][3]
            text = (
                f"a rank lacks at most {least} elements of its slice and must receive those; exact pieces bring {best}"
            )
            notes.append([text, least == best])
        small = "of the rank that receives most"
        return table("Three ways", heads, rows, small=small, notes=notes)

    def _slice_table(self) -> dict[str, Any]:
        def held(layout: TensorLayout, rank: int) -> tuple[str, str]:
            others = " ".join(str(r) for r in layout.replicas(rank) if r != rank)
            return slice_text(layout.slice_index(SHAPE, rank), SHAPE), others or "-"

        columns = {"rank": "name", "has": "text", "also on": "text", "needs": "text", "also on ": "text"}
        rows, pending = [], " (a partial sum)" if self.source.is_partial else ""
        for rank in range(self._devices):
            had, wanted = held(self.source, rank), held(self.target, rank)
            rows.append([str(rank), had[0] + pending, had[1], *wanted])
        right = self._moved_right()
        verdict = f"moved on {self._devices} simulated ranks: {sum(right)} of {len(right)} have the slice they need"
        return table(f"Slices of a {SHAPE} tensor", columns, rows, notes=[[verdict, all(right)]])

    def _moved_right(self) -> list[bool]:
        """Per rank whether the steps, done with numbers, give it the slice it needs."""
        whole = np.arange(np.prod(SHAPE), dtype=DTYPE).reshape(SHAPE)
        arrays = [
            # of partial sums, the first rank of a group has the value and the others zeros
            whole[self.source.slice_index(SHAPE, rank)] * (self.source.partial_group(rank)[0] == rank)
            for rank in range(self._devices)
        ]
        for step in self.plan:
            arrays = move(step, arrays)
        wanted = [whole[self.target.slice_index(SHAPE, rank)] for rank in range(self._devices)]
        return [np.array_equal(*pair) for pair in zip(arrays, wanted, strict=True)]

    def _python(self) -> dict[str, Any]:
        def written(layout: TensorLayout) -> str:
            partial = f", {layout.partial}" if layout.is_partial else ""
            return f"pl.TensorLayout({layout.device_matrix}, {layout.tensor_map}{partial})"

        manner = "".join(f", {name}=True" for name in MANNERS[self._steps])
        text = f"have = {written(self.source)}\nwant = {written(self.target)}\n"
        text += f"print(*pl.plan_redistribution(have, want, {SHAPE}{manner}), sep='\\n')"
        return code("In Python", text)


def _places(index: tuple[slice, ...]) -> Iterable[tuple[int, ...]]:
    return product(*(range(one.start, one.stop) for one in index))


def messages_received(step: Step) -> int:
    """Messages that the rank which gets most receives in a step, drawn as direct exchange."""
    if isinstance(step, Exchange):
        return max(sum(giver != rank for giver in mine) for rank, mine in enumerate(step.way.taken))
    return step.communicates * (step.group_size - 1) * (2 if step.kind == "all_reduce" else 1)


def run_steps(comm: Calls, steps: Iterable[Step], value: np.ndarray) -> np.ndarray:
    """This rank's part in a redistribution, with messages to the other ranks: its slice before -> its slice after."""
    calls = {
        "all_gather": lambda step, x, group: comm.all_gather(x, step.dim, group),
        "all_reduce": lambda step, x, group: comm.all_reduce(x, group=group),
        "reduce_scatter": lambda step, x, group: comm.reduce_scatter(x, dim=step.dim, group=group),
        "all_to_all": lambda step, x, group: comm.all_to_all(x, step.split_dim, step.concat_dim, group),
        "exchange": lambda step, x, group: comm.exchange(x, step.route, group),
        "slice": lambda step, x, group: x[step.index(comm.rank)],
        "reshape": lambda step, x, group: x.reshape(step.out_shape),
    }
    for step in steps:
        value = calls[step.kind](step, value, step.group(comm.rank))
    return value
