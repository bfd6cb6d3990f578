"""Lesson 16: expert parallel."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np

from ...cost.planner.expert_messages import different_places
from ...graph.instr import Instr
from ...ops.collectives.block_exchange import rows_route
from ...ops.expert_rows import bytes_leaving, exchange_splits
from ...processes.shm import WorkerPool
from ...train.session import Session
from ..exercises import check, hint, par
from ..experts.net import ROW_BYTES, Routing, Shape, compiled, tokens, trained
from ..museum import PIECES
from ..shared.equality import Equality, compare_plans
from ..shared.mistakes import with_mistake
from ..shared.prediction import Comparison
from .predictions import Answers

__all__ = ["Shape", "check", "compare", "compiled", "exchanged", "factors", "hint", "par", "prove", "tokens"]


def routings(shape: Shape) -> tuple[Routing, ...]:
    """What the router says before each of 24 steps of a training, and after the last."""
    return trained(shape)[1]


def prove(ep: int) -> Equality:
    """Three steps of the Expert Lab's net on four processes, the experts on `ep` of them, next to one device."""
    (plan, net, optimizer), alone = compiled(Shape(), ep), compiled(Shape(), 0)[0]
    executors = "processes", "simulator"
    return compare_plans(plan, alone, net, optimizer, [tokens(1)], 3, executors=executors)


def factors(ep: int, mistake: Callable[[Instr], Instr] = lambda instr: instr) -> dict[str, float]:
    """By parameter, its gradient on four simulated ranks as a multiple of one device's."""

    def gradients(ep: int) -> dict[str, np.ndarray]:
        plan, net, optimizer = compiled(Shape(), ep)
        with Session(with_mistake(plan, mistake), net, optimizer, unchecked=None) as session:
            session.train([tokens(1)], 1)
            return session.gradients()

    one = gradients(0)
    return {name: float(np.vdot(g, one[name]) / np.vdot(one[name], one[name])) for name, g in gradients(ep).items()}


def exchanged(splits: Callable[..., Any], counts: np.ndarray, owners: np.ndarray) -> list[list[int]]:
    """The experts whose rows each of four processes gets, sent by these splits.

    counts: (4, experts), rows of each rank for each expert; owners: (experts,), the rank of each
    """

    def on_rank(comm: Any, counts: np.ndarray, owners: np.ndarray) -> list[int]:
        given, taken = (np.asarray(each, int) for each in splits(comm.rank, counts, owners))
        everybody = comm.all_gather(given[None])
        route = rows_route(max(1, everybody.sum(1).max()), max(1, everybody.sum(0).max()), everybody)
        order = np.argsort(owners, kind="stable")  # rows go to rank 0 first
        rows, mine = np.zeros((route[0], 1)), np.repeat(order, counts[comm.rank][order])
        rows[: len(mine), 0] = mine[: route[0]]
        return comm.all_to_all_v(rows, route)[: taken.sum(), 0].astype(int).tolist()

    with WorkerPool(4) as pool:
        return pool.run(on_rank, counts, owners)


def compare(prediction: dict[str, Any], *, show: bool = False) -> Comparison:
    """The answers next to formulas, and next to what is counted: rows, pairs of experts, what a router chooses."""
    untrained, slots = routings(Shape())[0], routings(Shape(factor=1.0))[0]
    balanced = exchange_splits(np.full((4, 8), 2))[0]
    pairs = [len({a // 2, b // 2}) for a, b in combinations(range(8), 2)]
    sent = {
        2048: "a quarter of the rows is for the rank's own experts, and stays",
        768: "that is the way there; the results come back",
        3072: "that is with backward, which sends the same again",
    }
    places = {2: "two experts may lie on one rank", 1.75: "drawn with replacement: no expert is chosen twice"}
    return Answers("16", prediction, show).next_to(
        sent=(
            *(8 * 2 * 16 * 4 * 2 * 3 // 4, 2 * bytes_leaving(balanced, ROW_BYTES)[0]),
            sent | {None: "T k (1 - 1/EP) rows of h numbers, there and back"},
        ),
        places=(
            *(round(different_places(8, 2, 4), 3), round(sum(pairs) / len(pairs), 3)),
            places | {None: "4 (1 - C(6,2) / C(8,2)), counted over all 28 pairs"},
        ),
        dropped=(
            *(int(np.maximum(untrained.counts - 2, 0).sum()), int((~slots.kept).sum())),
            {0: "64 slots for 64 choices, but the choices are not alike", None: "what is above 2 rows, added up"},
        ),
    )
