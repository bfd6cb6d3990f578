"""Schedule: an order of work that can be printed, saved, loaded, timed and checked.

s = make_schedule("1f1b", stages=2, micro_batches=3)
s.text()                  "0F0 0F1 0B0 0F2 0B1 0B2" and a line for rank 1
s.clock(latency=0.5)      when each action runs
s.check(cap=2)            what is wrong with it: nothing, or a sentence for each fault

Schedule.from_text("0F0 0B0\\n1F0 1B0").check()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ...base.errors import ArgumentError
from ...graph.actions import Action
from .checker import Fault, find_faults
from .clock import Latency, Times, Timing, run_clock
from .naming import find
from .order import Lane, Order, lanes, loop, shape_v, two_way
from .text import placed, read_text, write_text
from .torch_csv import read_csv, write_csv


class Schedule(Order):
    """The actions of each rank, in order (fields: see Order). It is a sequence: the actions of each rank."""

    def __iter__(self) -> Iterator[Lane]:
        return iter(self.ranks)

    def __getitem__(self, rank: int) -> Lane:
        return self.ranks[rank]

    def __len__(self) -> int:
        return len(self.ranks)

    def __repr__(self) -> str:
        """Its name, and the text: what a cell shows that ends with it."""
        return f"schedule {self.name!r}, {self.parts} parts, {self.micro_batches} micro-batches\n{self.text()}"

    def text(self) -> str:
        """A line per rank: "0F0 0F1 0B0"."""
        return write_text(self)

    def to_csv(self, lowered: bool = False) -> str:
        """The CSV that PyTorch's pipeline runtime loads: the actions ("compute_only"), or with messages too."""
        return write_csv(self, lowered)

    def clock(
        self,
        forward: Times = 1.0,
        backward: Times = 1.0,
        weights: Times = 1.0,
        latency: Latency = 0.0,
        *,
        together: Times | None = None,
        cores: int | None = None,
    ) -> Timing:
        """When each action runs (`clock.run_clock`). A whole backward takes backward + weights."""
        return run_clock(self, forward, backward, weights, latency, together=together, cores=cores)

    def check(self, cap: int | Sequence[int] | None = None, *, rendezvous: bool = False) -> list[Fault]:
        """What is wrong, in order; nothing if it can run (`checker.find_faults`). cap None: the schedule's own."""
        return find_faults(self, self.cap if cap is None else cap, rendezvous=rendezvous)

    @staticmethod
    def of(
        cells: Iterable[Iterable[Action | tuple[Action, ...]]],
        *,
        name: str = "drawn",
        parts: int | None = None,
        micro_batches: int | None = None,
        holds: str | Sequence[Sequence[int]] | None = None,
        cap: int | Sequence[int] | None = None,
    ) -> Schedule:
        """A schedule from the actions of each rank, a tuple of them where they run as one.

        parts, micro_batches  how many there are; None: as many as the actions name
        holds                 parts on each rank: "loop", "v", "two-way", or a list; None: those that it runs
        cap                   micro-batches x parts whose activations a rank can keep: what the check allows
        """
        rows = [[(c,) if isinstance(c, Action) else c for c in cell_list] for cell_list in cells]
        every = [a for row in rows for cell in row for a in cell]
        parts = parts or 1 + max((a.stage for a in every), default=0)
        micro_batches = micro_batches or 1 + max((a.micro_batch for a in every), default=0)
        if isinstance(holds, str):
            places: dict[str, Callable[[int, int], Any]] = {
                "loop": loop,
                "v": shape_v,
                "two-way": lambda ranks, chunks: two_way(ranks),
            }
            if holds not in places:
                raise ArgumentError(f"holds={holds!r}", where="schedule", allowed=", ".join(places))
            holds = places[holds](len(rows), -(-parts // len(rows)))
        found = placed(rows) if holds is None else tuple(tuple(p) for p in holds)
        if len(found) != len(rows):
            raise ArgumentError(
                f"holds names {len(found)} ranks", where="schedule", allowed=f"{len(rows)}, one per line"
            )
        caps = cap if cap is None or isinstance(cap, int) else tuple(cap)
        return Schedule(name, parts, micro_batches, found, *lanes(rows), caps)

    @staticmethod
    def from_text(text: str, **what: Any) -> Schedule:
        """A schedule from its text; keywords as in `of`. Raises ArgumentError that says where it is wrong."""
        return Schedule.of(read_text(text), **what)

    @staticmethod
    def from_csv(text: str, **what: Any) -> Schedule:
        """A schedule from PyTorch's CSV, either form; keywords as in `of`. Raises ArgumentError that says where."""
        return Schedule.of(read_csv(text), **what)


def make_schedule(name: str, stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """A schedule by name. Raises ArgumentError: no such name, or numbers that it is not defined for.

    stages  ranks of the pipeline; chunks: parts on each (zero_bubble_v, v_half, v_min, dualpipe_v have 2)

    >>> make_schedule("1f1b", 2, 3).text().splitlines()[0]
    '0F0 0F1 0B0 0F2 0B1 0B2'
    """
    order = find(name).order(stages, micro_batches, chunks)
    return Schedule(order.name, order.parts, order.micro_batches, order.holds, order.ranks, order.together)
