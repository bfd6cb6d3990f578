"""Zero bubble: backward in two, so that weight gradients, for which nobody waits, fill what would be idle.

H1 keeps as many activations as 1F1B; H2 twice as many, and no rank is idle between its first and last action when F, B
and W take the same time. (Qi et al. 2024, "Zero Bubble Pipeline Parallelism".)
"""

from __future__ import annotations

from typing import Any

from ..naming import named
from ..order import do
from .one_forward_one_backward import even_rounds, in_turn, pytorch_rounds


def _h1_rounds(stages: int, micro_batches: int, chunks: int) -> str:
    """What is wrong with the rounds: they matter only where a rank holds several parts."""
    return even_rounds(stages, micro_batches, chunks) if chunks > 1 else ""


@named("zb_h1", chunks=None, allowed=_h1_rounds)
def zero_bubble_h1(stages: int, micro_batches: int, chunks: int):
    """1F1B whose W are late by a micro-batch per rank before; with chunks PyTorch's ScheduleInterleavedZeroBubble.

    With one part on a rank any number of micro-batches, also those that PyTorch's class refuses.

    rank 1 of 2   1F0 1B0 1F1 1B1 1W0 1F2 1B2 1W1 1W2
    """
    rounds = pytorch_rounds(stages, micro_batches) if chunks > 1 else [micro_batches]
    for rank in range(stages):
        warm = (chunks - 1) * rounds[0] + stages - rank - 1
        yield in_turn(rank, stages, chunks, rounds, warm, weights_after=rank)


@named("zb_h2")
def zero_bubble_h2(stages: int, micro_batches: int, chunks: int):
    """Twice the forwards first; W from the backward on that follows 2 (stages - 1) forwards.

    rank 0 of 2   0F0 0F1 0F2 0B0 0W0 0F3 0B1 0W1 0B2 0B3 0W2 0W3
    """
    for rank in range(stages):
        yield in_turn(rank, stages, 1, [micro_batches], 2 * (stages - rank - 1), weights_after=2 * rank)


@named("zero_bubble_v", place="v", chunks=2)
def zero_bubble_v(stages: int, micro_batches: int, chunks: int):
    """Two parts on a rank, placed as a V: the last part lies where the first does, so its backward begins early.
    (Qi et al. 2024, section 6; the order is that of PyTorch's ScheduleZBVZeroBubble. MindSpore's name.)

    Made for at least 2 stages - 1 micro-batches; those that there are not are left out.
    """
    full = max(micro_batches, 2 * stages - 1)
    for rank in range(stages):
        near, far = rank, 2 * stages - 1 - rank
        order, counts = [], dict.fromkeys([(part, kind) for part in (near, far) for kind in "FBW"], 0)

        def add(part: int, kinds: str, order: list[Any] = order, counts: Any = counts) -> None:
            for kind in kinds:
                order.append(do(part, kind, counts[part, kind]))
                counts[part, kind] += 1

        add(near, "F" * (2 * (stages - rank) - 1))
        for _ in range(rank):
            add(far, "F")
            add(near, "F")
        for _ in range(stages - rank):
            add(far, "FBW")
        while counts[far, "F"] < full:
            add(near, "FBW" if counts[near, "F"] < full else "BW")
            add(far, "FBW")
        for _ in range(rank):
            add(near, "B")
            add(far, "B")
        for _ in range(stages - rank):
            add(near, "BW")
        for part in (far, near):
            add(part, "W" * (counts[part, "B"] - counts[part, "W"]))
        yield [action for action in order if action.micro_batch < micro_batches]
