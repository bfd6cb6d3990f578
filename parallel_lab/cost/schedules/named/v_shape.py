"""V-Half and V-Min: a V of parts with half, or a third, of the activations that 1F1B keeps, for some idle time.

Every micro-batch goes through the same pattern, six units of time after the one before it: forward down and up the V,
backward down and up. How long a micro-batch lives is how much memory is kept; the patterns differ in their slopes. (Qi
et al. 2024, "Pipeline Parallelism with Controllable Memory".) The order of F and B is the pattern's; each runs as early
as it can, and W fills the gaps. Bubble: about 1/2 and 2/3 of 1F1B's.

Results kept, of the 2 x stages that 1F1B keeps in parts of this size: the fraction and a constant. They are the
authors' own counts: their playground (huggingface.co/spaces/sail/pipeline-parallelism-with-controllable-memory,
description1.md) gives (p + 2) // 2 and (p + 4) // 3 micro-batches of two parts each.

    v_half   p + 2, p + 1 for an odd p     within 10 % of 1/2 for odd p from 11 on, for every p from 19 on
    v_min    2 ceil((p + 2) / 3)           within 10 % of 1/3 for some p from 22 on, for every p from 39 on

Fewer cost pace. A micro-batch stays on a rank for 4 p + 4 units at least, in its two parts together, and a rank that is
never idle gets one every 6: nobody keeps fewer than (4 p + 4) / 6. With a cap K below that (10 % over a third of 1F1B's
is, up to 10 stages) a micro-batch takes (4 p + 4) / K instead of 6, so the bubble grows with their number. Among
patterns that repeat every 6 units, with up to 4 units of pause, none keeps fewer than v_min (all tried, 2 to 33
stages). For v_half the shortest steps under a cap of p are known to be 59, 77 and 89 units for p = 4, 5, 6 and m = 2 p
(proved by constraint programming): 0.61, 0.71 and 0.57 of 1F1B's bubble, so both fractions within 10 % cannot be had
there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..merging import merge
from ..naming import named
from ..order import do, shape_v

_PERIOD = 6  # units of time from a micro-batch to the next: two parts on each rank, each with F, B and W


def _half(stages: int, rank: int) -> tuple[int, ...]:
    """When a micro-batch is on a rank: forward going down, forward going up, backward down, backward up."""
    pause = 3 if stages % 2 == 0 else 0  # so that no two actions fall on the same slot of the period
    top = 3 * stages + pause
    return 2 * rank, 3 * stages - rank - 2, top + 2 * rank - 1, top + 3 * stages - rank - 2


def _min(stages: int, rank: int) -> tuple[int, ...]:
    pause = 2 if stages % 3 == 0 else 0
    top = 2 * stages + pause
    return rank, 2 * stages - rank - 1, top + rank, top + 2 * stages - rank - 1


def _kept(pattern: tuple[int, ...]) -> int:
    """Parts x micro-batches kept on a rank when the pattern repeats for ever: from F to W, in a free slot."""
    busy = {time % _PERIOD for time in pattern}
    free = sorted(set(range(_PERIOD)) - busy)
    forward, backward = sorted(pattern[:2]), pattern[2:]
    ends, taken = [], set()
    for time in sorted(backward):
        slot = next(t for t in range(time + 1, time + 4 * _PERIOD) if t % _PERIOD in free and t % _PERIOD not in taken)
        taken.add(slot % _PERIOD)
        ends.append(slot)
    now = 8 * max(ends)  # far enough from the first micro-batch
    return max(
        sum((t - f) // _PERIOD for f in forward) - sum((t - 1 - e) // _PERIOD for e in ends)
        for t in range(now - now % _PERIOD, now - now % _PERIOD + _PERIOD)
    )


def _order(stages: int, micro_batches: int, pattern: Callable[[int, int], Any]):
    streams = []
    for rank, (near, far) in enumerate(shape_v(stages)):
        whens = zip(pattern(stages, rank), ((near, "F"), (far, "F"), (far, "B"), (near, "B")), strict=True)
        slots = [(when + _PERIOD * n, do(part, kind, n)) for when, (part, kind) in whens for n in range(micro_batches)]
        streams.append([[action for _, action in sorted(slots, key=lambda slot: slot[0])]])
    cap = max(_kept(pattern(stages, rank)) for rank in range(stages))
    return merge(streams, 2 * stages, cap)


@named("v_half", place="v", chunks=2)
def v_half(stages: int, micro_batches: int, chunks: int):
    """Half of the activations of 1F1B (stages + 2 parts of 2 x stages), half of its bubble."""
    yield from _order(stages, micro_batches, _half)


@named("v_min", place="v", chunks=2)
def v_min(stages: int, micro_batches: int, chunks: int):
    """A third of the activations of 1F1B, two thirds of its bubble."""
    yield from _order(stages, micro_batches, _min)
