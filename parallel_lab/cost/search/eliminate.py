"""Dynamic programming over a network: operators are taken out of it one by one, and put back in the other order.

Taking out an operator v leaves a table over its neighbours: for each of their candidates the least that v, and what
lies between it and them, can add; and which candidate of v that is. What is left in the end has one table over nothing:
the answer. Going back, every table says the candidate of the operator it was made of.

    Op          one producer, one consumer: an edge between these two is left
    Edge        several edges between two operators become one
    Merge       no producer, one consumer: joined to the consumer;      Contract: one producer, no consumer
    Triangle    no producer, two consumers that are connected
    Star        no producer, several consumers
    Source      what else there is: the operator with the smallest table

In each round the first of these that fits anywhere is done (MindSpore, dp_algo_costmodel). Tables over more than two
operators may arise of stars; they are exact, and refused when they grow beyond `MOST_CELLS`.

With a memory limit an entry of a table is a *front*: (cost, bytes) pairs, none both dearer and larger than
another. `approximate` keeps of those whose costs are within that ratio only one; the answer may be worse by as much for
every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np

from ...base.errors import StrategyError
from .problem import Problem

ANY_MEMORY = 2**62  # bytes: a limit that keeps fronts, and excludes nothing
MOST_CELLS = 40_000_000  # numbers in one table while it is made
KINDS = ("Op", "Edge", "Merge", "Contract", "Triangle", "Star", "Source")  # in the order in which they are done


@dataclass(frozen=True)
class Elimination:
    """One step.  kind: "Op", "Edge", ...;  operator: what was taken out, "" of an Edge;  neighbours: operators that the
    table it left is over;  cells: numbers compared.
    """

    kind: str
    operator: str
    neighbours: tuple[str, ...]
    cells: int

    def text(self) -> str:
        """In words."""
        over = " and ".join(map(repr, self.neighbours)) or "nothing"
        if self.kind == "Edge":
            return f"Edge: the edges between {over} become one"
        return f"{self.kind}: {self.operator!r} is taken out; its best candidate is known for every one of {over}"


@dataclass(frozen=True)
class Solution:
    """What a search found.

    chosen         candidate of every choice;  cost: the weighed sum;  memory_bytes: of a device
    steps          what was done, in order
    lower_bound    no plan of the problem costs less; equal to `cost`: it is proved to be the best
    """

    method: str
    chosen: tuple[int, ...]
    cost: float
    memory_bytes: int
    lower_bound: float
    steps: tuple[Any, ...] = ()

    @property
    def gap(self) -> float:
        """How much better another plan could be, as a part of this one's cost."""
        return 0.0 if self.cost <= 0 else max(0.0, (self.cost - self.lower_bound) / self.cost)

    @property
    def proved(self) -> bool:
        """Whether `chosen` is proved to cost the least."""
        return self.gap <= 1e-12


@dataclass
class _Table:
    """cost, memory: over the candidates of `over`, and last the entries of a front."""

    over: tuple[int, ...]
    cost: np.ndarray
    memory: np.ndarray


@dataclass
class _Made:
    """How a table was made: of `parts`, by taking out `out` (-1: nothing).

    back   for every entry the number of the combination it comes from: candidate of `out`, entry of each part
    sizes  of these numbers
    """

    table: _Table
    parts: list[_Table]
    out: int
    back: np.ndarray
    sizes: tuple[int, ...]


def eliminate(problem: Problem, memory_limit: int | None = None, *, approximate: float = 0.0) -> Solution:
    """The plan of least cost whose memory is within the limit.

    memory_limit  bytes of a device; None: any
    approximate   0: exact;  above: fronts keep one of those whose costs are within this ratio

    Raises StrategyError if no plan is within the limit, or a table would be too large.
    """
    free = _Elimination(problem, None, approximate).run()
    if memory_limit is None or free.memory_bytes <= memory_limit:
        return free
    return _Elimination(problem, memory_limit, approximate).run()


def pareto(problem: Problem, *, approximate: float = 0.0) -> tuple[Solution, ...]:
    """The plans that no other one beats in cost and size, the cheapest first. Raises as `eliminate` does.

    approximate   above 0: of those whose costs are within this ratio only one
    """
    search = _Elimination(problem, ANY_MEMORY, approximate)
    search.run()
    return tuple(map(search.solution, np.flatnonzero(np.isfinite(search.made[-1].table.cost))))


class _Elimination:
    def __init__(self, problem: Problem, limit: int | None, approximate: float) -> None:
        self.problem, self.limit, self.approximate = problem, limit, approximate
        self.sizes = [len(choice.candidates) for choice in problem.choices]
        # equal layers have the same arrays: what was made of them, by their ids
        self.known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        tables = []
        for number, (own, choice) in enumerate(zip(problem.own, problem.choices, strict=True)):
            memory = choice.memory_bytes if limit is not None else np.zeros(len(own))
            made = self.known.setdefault((id(own), id(choice.memory_bytes)), (own[:, None], 1.0 * memory[:, None]))
            tables.append(_Table((number,), *made))
        for pair, cost in zip(problem.pairs, problem.between, strict=True):
            made = self.known.setdefault((id(cost),), (cost[..., None], np.zeros((*cost.shape, 1))))
            tables.append(_Table((pair.source, pair.target), *made))
        self.around: list[list[_Table]] = [[] for _ in self.sizes]  # of every operator the tables over it
        for table in tables:
            for number in table.over:
                self.around[number].append(table)
        self.answers: list[_Table] = []  # over nothing, one for each part of the network that hangs together
        self.made: list[_Made] = []
        self.steps: list[Elimination] = []
        self.waiting: list[tuple[Any, ...]] = []  # a heap of (rank, cells, operator or pair, version)
        self.version = [0] * len(self.sizes)

    def run(self) -> Solution:
        left = len(self.sizes)
        self.look(range(left))
        while left:
            kind, out, tables = self.next()
            left -= out >= 0
            self.join(kind, out, tables)
        self.join("Source", -1, list(self.answers))
        return self.solution(0)

    def solution(self, entry: int) -> Solution:
        """What an entry of the last table's front stands for."""
        chosen, answer = self.recover(entry)
        cost = self.problem.cost(chosen)
        if not math.isfinite(cost):
            what = "no choice of strategies fits together"
            allowed = "Operators that read one Parameter must split it equally"
            raise StrategyError(what, where="search of strategies", allowed=allowed)
        bound = answer if not self.approximate else -math.inf if self.limit is not None else answer
        memory_bytes = self.problem.memory_bytes(chosen)
        return Solution("dynamic_programming", chosen, cost, memory_bytes, bound, tuple(self.steps))

    # ---- which step ----

    def look(self, numbers: Iterable[int]) -> None:
        """Say anew which step fits each of these operators, and their edges: something around them has changed."""
        for number in numbers:
            self.version[number] += 1
            rank, cells = self.rank(number)
            heappush(self.waiting, (rank, cells, number, self.version[number]))
            for pair, tables in self.edges(number).items():
                if len(tables) > 1:
                    heappush(self.waiting, (KINDS.index("Edge"), 0, *pair))

    def edges(self, number: int) -> dict[tuple[int, ...], list[_Table]]:
        """The tables over this operator and another, by pair."""
        tables: dict[tuple[int, ...], list[_Table]] = {}
        for table in self.around[number]:
            if len(table.over) == 2:
                tables.setdefault(tuple(sorted(table.over)), []).append(table)
        return tables

    def rank(self, number: int) -> tuple[int, int]:
        """(which of KINDS fits an operator, numbers in the table it would leave where nothing better fits)."""
        before, after = set(), set()
        for table in self.around[number]:
            at = table.over.index(number)
            before.update(table.over[:at])
            after.update(table.over[at + 1 :])
        kind, ends = "", tuple(sorted(after))
        if any(len(table.over) > 2 for table in self.around[number]):
            pass
        elif len(before) == 1 == len(after) and before != after:
            kind = "Op"
        elif not before and len(after) == 1:
            kind = "Merge"
        elif len(before) == 1 and not after:
            kind = "Contract"
        elif not before and len(after) == 2:
            kind = "Triangle" if ends in self.edges(ends[0]) else "Star"
        if kind:
            return KINDS.index(kind), 0
        cells = math.prod(self.sizes[n] for n in before | after) * self.sizes[number]
        return len(KINDS) - 1, cells

    def next(self) -> tuple[str, int, list[_Table]]:
        """(kind, what is taken out, the tables that are joined): the first of KINDS that fits anywhere."""
        while True:
            rank, _, number, other = heappop(self.waiting)
            if KINDS[rank] == "Edge":
                tables = self.edges(number).get((number, other), [])
                if len(tables) > 1:
                    return "Edge", -1, tables
            elif other == self.version[number]:
                self.version[number] += 1
                return KINDS[rank], number, self.around[number]

    # ---- one step ----

    def join(self, kind: str, out: int, tables: Sequence[_Table]) -> None:
        """Make one table of `tables` without `out`."""
        over = tuple(dict.fromkeys(n for table in tables for n in table.over if n != out))
        over = self.ordered(over, tables, out)
        axes = (*over, out) if out >= 0 else over
        shape = tuple(self.sizes[n] for n in axes)
        fronts = tuple(table.cost.shape[-1] for table in tables)
        cells = math.prod(shape) * math.prod(fronts)
        names = [self.problem.choices[n].name or "the dataset" for n in (*over, *((out,) if out >= 0 else ()))]
        if cells > MOST_CELLS:
            what = f"the table over {', '.join(map(repr, names))} would have {cells:,} numbers"
            hint = "Give some of them a strategy with shard, or set fully_use_devices to True"
            allowed = f"At most {MOST_CELLS:,}"
            raise StrategyError(what, where="search of strategies", allowed=allowed, hint=hint)
        kept = len(over)
        key = (kept, *((id(t.cost), id(t.memory), tuple(map(axes.index, t.over))) for t in tables))
        if key not in self.known:
            cost, memory = np.zeros((*shape, *fronts)), np.zeros((*shape, *fronts))
            for at, table in enumerate(tables):
                cost = cost + self.aligned(table.cost, table.over, axes, at, len(tables))
                memory = memory + self.aligned(table.memory, table.over, axes, at, len(tables))
            flat = (*cost.shape[:kept], -1)
            self.known[key] = (*self.front(cost.reshape(flat), memory.reshape(flat)), cost.shape[kept:])
        cost, memory, back, sizes = self.known[key]
        joined = _Table(over, cost, memory)
        self.made.append(_Made(joined, list(tables), out, back, sizes))
        self.replace(tables, joined)
        if out >= 0 or kind == "Edge":
            name = self.problem.choices[out].name if out >= 0 else ""
            label = (name or "the dataset") if out >= 0 else ""
            self.steps.append(Elimination(kind, label, tuple(names[:kept]), cells))

    def replace(self, tables: Sequence[_Table], made: _Table) -> None:
        """Replace the tables by the one that was made of them."""
        joined = {id(table) for table in tables}
        for number in {n for table in tables for n in table.over}:
            self.around[number] = [table for table in self.around[number] if id(table) not in joined]
        for number in made.over:
            self.around[number].append(made)
        if not made.over:
            self.answers.append(made)
        close = {n for number in made.over for table in self.around[number] for n in table.over}
        self.look(sorted(close))

    def ordered(self, over: tuple[int, ...], tables: Sequence[_Table], out: int) -> tuple[int, ...]:
        """Producers first: those before `out` in a table, then the others."""
        early = {n for table in tables if out in table.over for n in table.over[: table.over.index(out)]}
        return (*(n for n in over if n in early), *(n for n in over if n not in early))

    @staticmethod
    def aligned(array: np.ndarray, over: tuple[int, ...], axes: tuple[int, ...], at: int, count: int) -> np.ndarray:
        """A table's numbers with one axis per operator of `axes`, and the front as one of `count` more."""
        order = sorted(range(len(over)), key=lambda i: axes.index(over[i]))
        array = array.transpose(*order, array.ndim - 1)
        shape = [1] * (len(axes) + count)
        for place, i in enumerate(order):
            shape[axes.index(over[i])] = array.shape[place]
        shape[len(axes) + at] = array.shape[-1]
        return array.reshape(shape)

    def front(self, cost: np.ndarray, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The last axis' entries worth keeping, cheapest first, and where they stood."""
        if self.limit is None:
            best = cost.argmin(axis=-1)[..., None]
            return np.take_along_axis(cost, best, -1), np.take_along_axis(memory, best, -1), best
        cost = np.where(memory > self.limit, np.inf, cost)
        order = np.lexsort((memory, cost), axis=-1)
        cost, memory = np.take_along_axis(cost, order, -1), np.take_along_axis(memory, order, -1)
        least = np.minimum.accumulate(memory, axis=-1)
        kept = np.isfinite(cost)
        kept[..., 1:] &= memory[..., 1:] < least[..., :-1]
        if self.approximate:
            kept &= self.apart(cost, kept)
        most = max(1, int(kept.sum(axis=-1).max(initial=1)))
        # kept ones to the front, in their order
        place = np.argsort(~kept, axis=-1, kind="stable")[..., :most]
        cost, memory, back = (np.take_along_axis(array, place, -1) for array in (cost, memory, order))
        return np.where(np.take_along_axis(kept, place, -1), cost, np.inf), memory, back

    def apart(self, cost: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """The last (smallest) of entries whose costs lie in one step of the ratio."""
        least = np.where(np.isfinite(cost), cost, np.inf).min(axis=-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(kept & (least > 0), cost / least, 1.0)
        step = np.floor(np.log(ratio) / math.log1p(self.approximate))
        step = np.where(kept, step, -1.0)
        behind = np.full_like(step, -2.0)
        for at in range(step.shape[-1] - 2, -1, -1):
            behind[..., at] = np.where(kept[..., at + 1], step[..., at + 1], behind[..., at + 1])
        first = np.cumsum(kept, axis=-1) == 1
        return (step != behind) | first

    # ---- and back ----

    def recover(self, answer_entry: int) -> tuple[tuple[int, ...], float]:
        """(candidate of every choice, the answer's cost): every table says what it was made of."""
        chosen: dict[int, Any] = {}
        entry: dict[int, int] = {id(self.made[-1].table): answer_entry}
        answer = float(self.made[-1].table.cost[answer_entry])
        if not math.isfinite(answer) and self.limit is not None:
            what = f"no choice of strategies needs at most {self.limit:,} bytes of a device"
            hint = "More devices, the optimizer parallel, or recomputing need less"
            raise StrategyError(what, where="search of strategies", allowed="A larger memory limit", hint=hint)
        for step in reversed(self.made):
            at = tuple(chosen[n] for n in step.table.over)
            found = int(step.back[(*at, entry[id(step.table)])])
            places = np.unravel_index(found, step.sizes)
            if step.out >= 0:
                chosen[step.out], *places = places
            for table, place in zip(step.parts, places, strict=True):
                entry[id(table)] = int(place)
        return tuple(int(chosen[n]) for n in range(len(self.sizes))), answer
