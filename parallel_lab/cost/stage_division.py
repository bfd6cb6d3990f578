"""Layers divided into pipeline stages: evenly, or so that the slowest stage is as fast as can be, exactly.

    found, plan = divide_stages(net.blocks, 4, lambda: compile(net, x, y, loss=loss, optimizer=opt, pipeline_stages=4,
                                                               grad_accumulation_step=8, device_num=8))
    found.stages        (0, 0, 1, 1, 1, 2, 3, 3): the stage of every Cell, which now is its `pipeline_stage`
    found.times_s       seconds of a step that each stage computes, predicted;  found.slowest_s: the most of them
    balance((4, 1, 1, 1, 1), 2)                 (1, 4): how many layers each stage gets, from costs alone

A pipeline is as fast as its slowest stage: with M micro-batches on S stages a step takes about (M + S - 1) times as
long as that one takes for a micro-batch. `balance` finds the least by dynamic programming over the chain: the first n
layers on k stages are the first m on k - 1 of them, and the others on the last.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..base.checks import choice, function, integer, number, sequence_of
from ..base.cluster import Cluster, get_cluster
from ..base.errors import ArgumentError, ArgumentTypeError, shorten
from ..graph.plan import Plan
from ..nn import Cell, CellList, SequentialCell
from .time import instr_time_s, is_border

_MOST = 1e12  # cost of a layer: sums of costs stay finite


@dataclass(frozen=True)
class StageDivision:
    """A chain of Cells on stages.

    stages   stage of every Cell, in the order in which they are called
    costs_s  seconds of a step of every Cell: forward, backward and update, and what follows it outside of these Cells
    """

    stages: tuple[int, ...]
    costs_s: tuple[float, ...]

    @property
    def times_s(self) -> tuple[float, ...]:
        """Seconds of each stage."""
        return tuple(
            sum(cost for cost, at in zip(self.costs_s, self.stages, strict=True) if at == stage)
            for stage in range(max(self.stages) + 1)
        )

    @property
    def slowest_s(self) -> float:
        """Seconds of the slowest stage."""
        return max(self.times_s)


def balance(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """How many of these layers each stage gets, in order, so that the largest sum of a stage is the least there is.

    Every stage gets at least one layer. Among equal divisions the one whose last stage has the most layers; the layers
    before it are divided by the same rule. Raises ArgumentError for fewer layers than stages, and costs that are no
    finite numbers of at least 0.

    >>> balance((4, 1, 1, 1, 1), 2), balance((1, 1, 1, 1, 4, 4), 3)
    ((1, 4), (4, 1, 1))
    """
    costs = _COSTS("balance", "costs", costs)
    _check(len(costs), stages, "balance")
    before = [0.0, *itertools.accumulate(costs)]
    # best[n]: (slowest stage, sizes of the stages) of the first n layers on the stages so far
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for _ in range(stages):
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for end in range(1, len(costs) + 1):
            ways = ((max(best[m][0], before[end] - before[m]), m) for m in range(end) if m in best)
            slowest, start = min(ways, default=(math.inf, 0))
            if slowest < math.inf:
                found[end] = slowest, (*best[start][1], end - start)
        best = found
    return best[len(costs)][1]


def even(layers: int, stages: int) -> tuple[int, ...]:
    """How many of so many layers each stage gets: equally many, the first ones one more where it does not divide.

    >>> even(8, 3)
    (3, 3, 2)
    """
    _check(integer(1)("even", "layers", layers), stages, "even")
    return tuple(layers // stages + (at < layers % stages) for at in range(stages))


_COSTS = sequence_of(number(0, _MOST), f"Numbers from 0 to {_MOST:g} in a list or tuple")


def _check(layers: int, stages: int, where: str) -> None:
    if layers < integer(1)(where, "stages", stages):
        raise ArgumentError(f"{layers} layers on {stages} stages", where=where, allowed="At least one per stage")


def divide_stages(
    cells: Sequence[Cell],
    stages: int,
    compile_plan: Callable[[], Plan],
    by: str = "cost",
    cluster: Cluster | str = "laptop",
) -> tuple[StageDivision, Plan]:
    """Divide Cells among pipeline stages; the division and the plan compiled with it.

    cells         Cells that the network calls one after the other; afterwards each has its `pipeline_stage`
    compile_plan  compiles the network as it is now, with `pipeline_stages=stages`
    by            "even": equally many Cells;  "cost": the slowest stage takes as little time as possible, by what
                  `cost.time` predicts for the instructions of each Cell in a plan that is divided evenly. Exact for
                  these costs; messages between stages travel meanwhile and are not counted
    cluster       what the seconds are predicted for

    What the network computes before the first Cell counts as its, what it computes behind a Cell as that one's. Raises
    ArgumentError for fewer Cells than stages, another number of stages in the plan, and Cells that are not called in
    this order; then the Cells are as they were.
    """
    where = "divide_stages"
    if not isinstance(cells, (list, tuple, CellList, SequentialCell)) or not all(isinstance(c, Cell) for c in cells):
        raise ArgumentTypeError(f"cells={shorten(cells)}", where=where, allowed="Cells in a list or CellList")
    function("A function that compiles")(where, "compile_plan", compile_plan)
    choice("even", "cost")(where, "by", by)
    cells = tuple(cells)
    _check(len(cells), stages, where)
    before = [(cell.pipeline_stage, cell.cell_name) for cell in cells]

    def divided(sizes: Sequence[int]) -> tuple[int, ...]:
        stages_of = tuple(stage for stage, size in enumerate(sizes) for _ in range(size))
        for cell, stage in zip(cells, stages_of, strict=True):
            cell.pipeline_stage = stage
        return stages_of

    try:
        stages_of = divided(even(len(cells), stages))
        for number, cell in enumerate(cells):
            cell.cell_name = f"{_MARK}{number}"  # by which operators are known to be its
        plan = compile_plan()
        costs = cell_costs(plan, len(cells), get_cluster(cluster))
        if len(plan.stages) != stages:
            what = f"the plan has {len(plan.stages)} stages"
            raise ArgumentError(what, where=where, allowed=f"{stages}", hint="Compile with pipeline_stages=stages")
        for cell, (_, name) in zip(cells, before, strict=True):
            cell.cell_name = name
        if by == "cost":
            stages_of = divided(balance(costs, stages))
        return StageDivision(stages_of, costs), compile_plan()
    except BaseException:
        for cell, (stage, name) in zip(cells, before, strict=True):
            cell.pipeline_stage, cell.cell_name = stage, name
        raise


_MARK = "divided-cell-"


def cell_costs(plan: Plan, count: int, cluster: Cluster) -> tuple[float, ...]:
    """Seconds of a step of each of `count` marked Cells, on the first rank of their stage."""
    forward = [n for n in plan.graph.nodes if n.phase == "forward"]
    owner: dict[str, int] = {}  # operator -> Cell
    owner_of: dict[str, int] = {}  # value -> Cell
    for node in forward:
        marks = [part for part in node.origin.scope.split("/") if part.startswith(_MARK)]
        own = int(marks[-1].removeprefix(_MARK).partition("-")[0]) if marks else None
        read = [owner_of[name] for name in node.ins if name in owner_of]
        if own is not None and read and max(read) > own:
            what = f"Cell {own} reads what Cell {max(read)} has made"
            raise ArgumentError(what, where="divide_stages", allowed="Cells in the order in which they are called")
        if own is not None or read:
            owner[node.name] = max(read) if own is None else own
            owner_of.update(dict.fromkeys(node.outs, owner[node.name]))
    missing = sorted(set(range(count)) - set(owner.values()))
    if missing:
        what = f"the network does not call Cell {missing[0]}"
        raise ArgumentError(what, where="divide_stages", allowed="Cells that it calls, each in a place of its own")
    for node in forward:  # a Parameter is its first reader's
        for name in node.ins:
            owner.setdefault(name, owner.get(node.name, 0))
    costs = [0.0] * count
    for stage in plan.stages:
        for action in stage.actions:
            for _, instr in stage.part(action):
                if instr.runs_on(stage.first) and not is_border(instr):
                    costs[owner.get(instr.name, 0)] += instr_time_s(plan, instr, cluster)
    return tuple(costs)
