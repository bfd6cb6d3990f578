"""V-Half and V-Min: a V of parts with half, or a third, of the activations that 1F1B keeps, for some idle time.

Every micro-batch goes through the same pattern, six units of time after the one before it: forward down and up the V,
backward down and up. How long a micro-batch lives is how much memory is kept; the patterns differ in their slopes. (Qi
et al. 2024, "Pipeline Parallelism with Controllable Memory".) The order of F and B is the pattern's; each runs as early
as it can, and W fills the gaps. Bubble: about 1/2 and 2/3 of 1F1B's.
"""

from __future__ import annotations

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


def _order(stages: int, micro_batches: int, pattern):
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
