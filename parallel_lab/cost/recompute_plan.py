"""Which Cells of a network to recompute under a memory cap: its plan is measured, the choice made, and compiled again.

    best, plan = recompute_cells(net.blocks, lambda: compile(net, x, y, loss=loss, optimizer=opt), cap_bytes=50_000_000)
    best.recompute     (True, True, False, ...): the Cells that now are recomputed;   best.peak_bytes: that of `plan`

The network is compiled twice to measure it: once with every Cell kept, once with every Cell recomputed. Of a Cell, a
`Layer` of the chain, that tells

    inside_bytes, input_bytes   what forward makes and backward reads (`memory.kept_blocks`), kept and recomputed
    most_bytes                  the fullest moment while it runs, gradients and parameters and all
    forward_s                   seconds of the instructions that are run again;  backward_s: all its others

What one Cell keeps does not depend on what others do, as long as Cells follow each other and each reads the result of
the one before it alone: then the choice is exact for the plan, and not only for the model (`choose_recompute`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from ..base.checks import function, integer
from ..base.cluster import Cluster, get_cluster
from ..base.errors import ArgumentError, ArgumentTypeError, shorten
from ..graph.ir import Instr
from ..graph.plan import Plan
from ..graph.recomputed import asks_to_recompute
from ..nn import Cell, CellList, SequentialCell
from .memory import kept_blocks, predict_memory
from .recompute import Choice, Layer, choose_recompute
from .time import instr_time_s


def recompute_cells(
    cells: Sequence[Cell], compile_plan: Callable[[], Plan], cap_bytes: int, cluster: Cluster | str = "laptop"
) -> tuple[Choice, Plan]:
    """Recompute those Cells with which a step takes the least additional time within the cap; the choice and its plan.

    cells         Cells that the network calls once each, in this order; afterwards those of the choice have
                  `recompute()`, with the options that they had, and the others have not
    compile_plan  compiles the network as it is now
    cap_bytes     of a rank's device, for everything that it holds
    cluster       what the seconds are predicted for

    Raises ArgumentError for a cap that cannot be kept, which names the smallest, and for Cells that are no chain: then
    the Cells are as they were.
    """
    where = "recompute_cells"
    listed = isinstance(cells, list | tuple | CellList | SequentialCell)
    if not listed or not len(cells) or not all(isinstance(cell, Cell) for cell in cells):
        raise ArgumentTypeError(f"cells={shorten(cells)}", where=where, allowed="Cells in a list or CellList")
    cells = tuple(cells)
    function("A function that compiles")(where, "compile_plan", compile_plan)
    integer(1)(where, "cap_bytes", cap_bytes)
    before = [cell.recompute_options for cell in cells]

    def plan_with(chosen: Sequence[bool]) -> Plan:
        for cell, options, again in zip(cells, before, chosen, strict=True):
            cell.recompute_options = None
            if again:
                cell.recompute(**(options or {}))
        return compile_plan()

    try:
        kept, again = (plan_with([every] * len(cells)) for every in (False, True))
        layers = plan_layers(kept, again, get_cluster(cluster))
        if len(layers) != len(cells):
            what, allowed = f"{len(cells)} Cells are called {len(layers)} times", "Cells that are called once each"
            raise ArgumentError(what, where=where, allowed=allowed)
        best = choose_recompute(layers, cap_bytes)
        return best, plan_with(best.recompute)
    except BaseException:
        for cell, options in zip(cells, before, strict=True):
            cell.recompute_options = options
        raise


def plan_layers(kept: Plan, again: Plan, cluster: Cluster) -> tuple[Layer, ...]:
    """The chain of recomputed Cells of a plan, in the order in which they are called.

    kept, again  plans of the same network, without and with recomputing its Cells

    Raises ArgumentError where several micro-batches or stages are on their way at a time: what is in memory depends on
    the schedule then.
    """
    stage = kept.stages[0]
    order = [a.kind for a in stage.actions if a.kind in "FB"]
    if len(kept.stages) > 1 or any(a == b for a, b in itertools.pairwise(order)):
        what = f"{len(kept.stages)} stages and {kept.micro_batches} micro-batches"
        allowed = "One stage, and a micro-batch at a time"
        raise ArgumentError(what, where="plan_layers", allowed=allowed, hint="Choose for a stage that stands alone")
    regions: dict[int, int] = {}
    layer_of: dict[str, int] = {}  # operator -> its layer
    for node in again.graph.nodes:
        region = dict(node.recompute).get("region")
        if region is not None and asks_to_recompute(node.recompute) and node.phase == "forward":
            layer_of[node.name] = regions.setdefault(region, len(regions))
    both = [_Measured(plan, layer_of, len(regions)) for plan in (kept, again)]
    seconds, made_again = [0.0] * len(regions), [0.0] * len(regions)
    for _, instr in _steps(kept):
        if instr.name in layer_of:
            seconds[layer_of[instr.name]] += instr_time_s(kept, instr, cluster)
    for _, instr in _steps(again):
        if instr.name in layer_of and instr.origin.made_by == "recompute":
            made_again[layer_of[instr.name]] += instr_time_s(again, instr, cluster)
    return tuple(
        Layer(made_again[n], seconds[n] - made_again[n], both[0].keeps[n], both[1].keeps[n], _pair(both, n))
        for n in range(len(regions))
    )


def _pair(both: list[_Measured], n: int) -> tuple[int, int]:
    return both[0].most[n], both[1].most[n]


def _steps(plan: Plan) -> Iterator[tuple[str, Instr]]:
    """(phase, instruction) of rank 0, in the order of its step."""
    stage = plan.stage_of(0)
    return ((a.program, i) for a in stage.actions for _, i in stage.part(a) if i.runs_on(0))


class _Measured:
    """Bytes of every layer in one plan.  keeps: from forward to backward;  most: see `Layer.most_bytes`."""

    def __init__(self, plan: Plan, layer_of: dict[str, int], count: int) -> None:
        self.keeps, self.most = [0] * count, [0] * count
        maker: dict[str, int | None] = {}
        readers: dict[str, set[int]] = {}
        for instr in plan.stages[0].program("forward"):
            layer = layer_of.get(instr.name)
            maker.update(dict.fromkeys(instr.kept, layer))
            for name in instr.ins if layer is not None else ():
                readers.setdefault(name, set()).add(layer)
        for size, names in kept_blocks(plan).values():
            made = maker.get(names[0])
            others = {n for name in names for n in readers.get(name, ())} - {made}
            home = min(others) if others else made  # the input of a layer is kept by it
            if home is not None:
                self.keeps[home] += size
        now = 0
        for point, (_, instr) in zip(predict_memory(plan).timeline, _steps(plan), strict=True):
            now = layer_of.get(instr.name, now)
            self.most[now] = max(self.most[now], point.total_bytes - sum(self.keeps[:now]))
