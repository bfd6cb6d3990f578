"""Lesson 15: context parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...graph.instr import Instr
from ...layout.placements import Placement, attention_work
from ...run.rank_programs import ring_results
from ..context.run import attention_bytes, compiled
from ..context.ways import WAYS, way_of
from ..exercises import check, hint, par
from ..exercises.lesson_15 import packed_ring
from ..museum import PIECES
from ..shared.equality import Equality, compare_plans
from ..shared.mistakes import with_mistake
from ..shared.prediction import Comparison
from .predictions import Answers

__all__ = ["WAYS", "Placement", "attention_bytes", "attention_work", "check", "compare", "compiled", "hint"]
__all__ += ["packed_ring", "par", "prove", "ring_results", "way_of"]


def prove(way: str, mistake: Callable[[Instr], Instr] = lambda instr: instr) -> Equality:
    """Three steps of a small GPT on four processes, its 32 tokens on them in this way, next to one device."""
    (plan, net, optimizer, inputs), alone = (compiled((way, 4, "causal", 4), on_ranks) for on_ranks in (True, False))
    executors = "processes", "simulator"
    return compare_plans(with_mistake(plan, mistake), alone[0], net, optimizer, [inputs], 3, executors=executors)


def compare(prediction: dict[str, Any], *, show: bool = False) -> Comparison:
    """The answers next to formulas, and next to what is counted in placements and plans."""
    pairs, c, p = attention_work(Placement("contiguous", 32, 4)), 8, 4

    def less(ranks: int, counted: bool) -> str:
        ways = {"a ring": "contiguous", "Ulysses": "ulysses"}
        sent = {
            name: attention_bytes(compiled((way, ranks, "causal", 4), True)[0], "forward")
            if counted
            else way_of(way, ranks, 32, "causal", 4).forward_bytes
            for name, way in ways.items()
        }
        return min(sent, key=sent.__getitem__)

    shares = {
        50: "half of the pairs are hidden, but no rank computes those: what costs time is waiting for the longest rank",
        25: "the last rank is the busiest, and the others work, too",
        100: "rank 3 has 228 pairs, rank 0 has 36, and every step of the ring waits for its longest rank",
    }
    crossover = (
        "a ring sends keys to everybody, Ulysses a share of everything: it sends less from P > 1 + h_q / h_kv = 3"
    )
    return Answers("15", prediction, show).next_to(
        share=(
            *(round(100 * (p * c + 1) / ((2 * p - 1) * c + 1), 1), round(100 * float(pairs.useful_share), 1)),
            shares | {None: "33/57: (P c + 1) / ((2 P - 1) c + 1)"},
        ),
        waits=(0, pairs.per_rank.index(min(pairs.per_rank)), "its tokens are the first ones, which see few keys"),
        two=(less(2, False), lambda: less(2, True), crossover),
        four=(less(4, False), lambda: less(4, True), crossover),
    )
