"""Some forwards first, then forward and backward in turn: 1F1B, its eager form, and both interleaved forms.

A rank that holds several parts (chunks) takes micro-batches in rounds: a round goes through the first part, then
through the next. MindSpore and PyTorch differ in how many micro-batches a round has when stages do not divide them:

    4 stages, 10 micro-batches      MindSpore   rounds of 6 (4 + rest) and 4, any number from 4 on
                                    PyTorch     rounds of 5 and 5; the number of rounds (10 // 4) must divide 10

Where stages divide the micro-batches, or there is only one round, the two are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from ....graph.actions import Action
from ..naming import named
from ..order import do


def in_turn(
    rank: int, stages: int, chunks: int, rounds: Sequence[int], warm: int, weights_after: int | None = None
) -> Iterator[Action]:
    """`warm` forwards, then forward and backward in turn, then the other backwards; through parts round by round.

    weights_after  divide the backward: W of the oldest B after each of them, from this one on of those in turn; the
                   rest of the W last. None: not divided.
    """
    starts = [0, *accumulate(rounds)]
    spans = [range(a, b) for a, b in pairwise(starts)]
    ahead = [(rank + c * stages, n) for span in spans for c in range(chunks) for n in span]
    back = [(rank + c * stages, n) for span in spans for c in reversed(range(chunks)) for n in span]
    warm = min(warm, len(ahead))
    yield from (do(part, "F", n) for part, n in ahead[:warm])
    late = iter(back)
    for i, (part, n) in enumerate(back):
        if warm + i < len(ahead):
            following, number = ahead[warm + i]
            yield do(following, "F", number)
        yield do(part, "B", n)
        if weights_after is not None and i >= weights_after:
            oldest, number = next(late)
            yield do(oldest, "W", number)
    if weights_after is not None:
        yield from (do(part, "W", n) for part, n in late)


def pytorch_rounds(stages: int, micro_batches: int) -> list[int]:
    """Micro-batches of each round in PyTorch: as many rounds as hold a micro-batch per stage, of one size."""
    count = max(1, micro_batches // stages)
    return [micro_batches // count] * count


def even_rounds(stages: int, micro_batches: int, chunks: int) -> str:
    """What is wrong where PyTorch's rounds are not of one size."""
    count = max(1, micro_batches // stages)
    return f"{count} rounds must divide the micro-batches" if micro_batches % count else ""


@named("1f1b", chunks=None)
def one_forward_one_backward(stages: int, micro_batches: int, chunks: int):
    """PipeDream-Flush (Narayanan et al. 2021); with chunks MindSpore's form: the first round has the rest.

    rank 0 of 2   0F0 0F1 0B0 0F2 0B1 0B2
    """
    rest = micro_batches % stages if micro_batches >= stages else 0
    first = min(stages + rest, micro_batches)
    rounds = [first, *[stages] * ((micro_batches - first) // stages)]
    for rank in range(stages):
        to_last = stages - rank - 1
        yield in_turn(rank, stages, chunks, rounds, to_last if chunks == 1 else first * (chunks - 1) + 2 * to_last)


@named("eager_1f1b")
def eager_one_forward_one_backward(stages: int, micro_batches: int, chunks: int):
    """1F1B with twice the forwards first, so that messages have time to travel. (Zhuang et al. 2023.)

    rank 0 of 2   0F0 0F1 0F2 0B0 0B1 0B2
    """
    for rank in range(stages):
        yield in_turn(rank, stages, 1, [micro_batches], 2 * (stages - rank - 1))


@named("interleaved", chunks=None, allowed=even_rounds)
def interleaved(stages: int, micro_batches: int, chunks: int):
    """Interleaved 1F1B in the order of PyTorch's ScheduleInterleaved1F1B. (Narayanan et al. 2021, SC21.)

    rank 1 of 2, 2 chunks, 2 micro-batches   1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1
    """
    rounds = pytorch_rounds(stages, micro_batches)
    for rank in range(stages):
        yield in_turn(rank, stages, chunks, rounds, (chunks - 1) * rounds[0] + 2 * (stages - rank - 1))
