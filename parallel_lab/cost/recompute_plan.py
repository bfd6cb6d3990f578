"""Which Cells of a network to recompute under a memory cap: its plan is measured, the choice made, and compiled again.

    best, plan = recompute_cells(net.blocks, lambda: compile(net, x, y, loss=loss, optimizer=opt), cap_bytes=50_000_000)
    best.recompute     (True, True, False, ...): the Cells that now are recomputed;   best.peak_bytes: that of `plan`

The network is compiled twice to measure it: once with every Cell kept, once with every Cell recomputed. Both plans are
walked, and at each moment of a step every block of memory belongs to a Cell or to none (`plan_moments`): so whatever is
on its way at a time, micro-batches, chunks of a stage or weight gradients that wait, it is counted.

What one Cell holds does not depend on what others do, as long as Cells follow each other and each reads the result of
the one before it alone: then the choice is exact for the plan, and not only for the model (`recompute.Moments`). Of
pipeline stages each keeps the cap, and what they do twice is added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ..base.checks import function, integer
from ..base.cluster import Cluster, get_cluster
from ..base.errors import ArgumentError, ArgumentTypeError, shorten
from ..graph.actions import Action
from ..graph.instr import Instr
from ..graph.plan import Plan
from ..graph.recomputed import asks_to_recompute
from ..nn import Cell, CellList, SequentialCell
from .memory import held_blocks, kept_blocks
from .recompute import Choice, Moments
from .time import instr_time_s


def recompute_cells(
    cells: Sequence[Cell], compile_plan: Callable[[], Plan], cap_bytes: int, cluster: Cluster | str = "laptop"
) -> tuple[Choice, Plan]:
    """Recompute those Cells with which a step takes the least additional time within the cap; the choice and its plan.

    cells         Cells that the network calls once each, in this order; afterwards those of the choice have
                  `recompute()`, with the options that they had, and the others have not
    compile_plan  compiles the network as it is now
    cap_bytes     of a rank's device, for everything that it holds, in each pipeline stage
    cluster       what the seconds are predicted for

    Raises ArgumentError for a cap that cannot be kept, which names the smallest, and for Cells that are no chain: then
    the Cells are as they were.
    """
    where = "recompute_cells"
    listed = isinstance(cells, (list, tuple, CellList, SequentialCell))
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
        moments = plan_moments(kept, again, get_cluster(cluster))
        if len(moments.extra_s) != len(cells):
            what, allowed = f"{len(cells)} Cells are called {len(moments.extra_s)} times", "Cells that are called once"
            raise ArgumentError(what, where=where, allowed=allowed)
        best = moments.choose(cap_bytes)
        return best, plan_with(best.recompute)
    except BaseException:
        for cell, options in zip(cells, before, strict=True):
            cell.recompute_options = options
        raise


def plan_moments(kept: Plan, again: Plan, cluster: Cluster) -> Moments:
    """What the stages of a plan hold, moment by moment, with its Cells (in the order of calls) kept and recomputed.

    kept, again  plans of the same network, without and with recomputing its Cells
    """
    regions: dict[int, int] = {}
    layer_of: dict[str, int] = {}  # operator -> its layer
    for node in again.graph.nodes:
        region = dict(node.recompute).get("region")
        if region is not None and asks_to_recompute(node.recompute) and node.phase == "forward":
            layer_of[node.name] = regions.setdefault(region, len(regions))
    rows: list[tuple[int, int, np.ndarray, np.ndarray]] = []
    work, extra = 0.0, np.zeros(len(regions))
    for rank in (stage.first for stage in kept.stages):
        home = _homes((kept, again), rank, layer_of)
        before = {key: held for key, _, held in _holdings(kept, rank, home, len(regions))}
        now = np.zeros(len(regions) + 1, np.int64)
        for key, instr, held in reversed(list(_holdings(again, rank, home, len(regions)))):
            only = -1 if key in before else layer_of.get(instr.name, -1)
            now = before.get(key, now)
            rows.append((max(now[-1], held[-1]), only, now[:-1], held[:-1]))
        for plan in (kept, again):
            for instr in (i for a in plan.stage_of(rank).actions for _, i in plan.stage_of(rank).part(a)):
                layer = layer_of.get(instr.name) if instr.runs_on(rank) else None
                if layer is not None and plan is kept:
                    work += instr_time_s(kept, instr, cluster, rank=rank)
                elif layer is not None and instr.origin.made_by == "recompute":
                    extra[layer] += instr_time_s(again, instr, cluster, rank=rank)
    base, only, *held = (np.array(column) for column in zip(*rows, strict=True))
    return Moments(base, np.stack(held), only, extra, work)


def _homes(plans: tuple[Plan, Plan], rank: int, layer_of: Mapping[str, int]) -> dict[str, int]:
    """The layer to which a block of memory belongs: the one that reads what another one made, else its maker."""
    homes: dict[str, int] = {}
    for plan in plans:
        maker = {n: layer_of[i.name] for _, i in _steps(plan, rank) if i.name in layer_of for n in i.kept}
        readers: dict[str, set[int]] = {}
        for phase, instr in _steps(plan, rank):
            if phase == "forward" and instr.name in layer_of:
                for name in instr.ins:
                    readers.setdefault(name, set()).add(layer_of[instr.name])
        homes = maker | homes
        for block, names in kept_blocks(plan, rank=rank).items():
            others = {n for name in names for n in readers.get(name, ())} - {maker.get(block)}
            if others:  # the input of a layer is kept by it
                homes[block] = min(others)
    return homes


def _steps(plan: Plan, rank: int) -> Iterator[tuple[str, Instr]]:
    """(phase, instruction) of a rank's programs."""
    return ((phase, i) for phase, program in plan.stage_of(rank).programs for i in program if i.runs_on(rank))


def _holdings(
    plan: Plan, rank: int, home: Mapping[str, int], layers: int
) -> Iterator[tuple[tuple[Action, str], Instr, np.ndarray]]:
    """((action, value made), instruction, bytes of every layer and, last, of none) of a rank's moments."""
    for action, instr, blocks in held_blocks(plan, rank=rank):
        held = np.zeros(layers + 1, np.int64)
        for block, size_bytes in blocks.items():
            held[home.get(block, -1)] += size_bytes
        yield (action, instr.out), instr, held
