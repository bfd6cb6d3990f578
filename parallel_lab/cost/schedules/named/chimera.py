"""Chimera: two copies of the network, one from rank 0 to the last, one the other way around, each in 1F1B order."""

from __future__ import annotations

from ..merging import merge
from ..naming import named
from ..order import do
from .one_forward_one_backward import in_turn


@named(
    "chimera",
    place="two-way",
    allowed=lambda s, m, c: "" if s % 2 == 0 and m % 2 == 0 else "Stages and micro-batches are even",
)
def chimera(stages: int, micro_batches: int, chunks: int):
    """The first half of the micro-batches goes down, the second half up; what meets on a rank is merged by a clock of
    equal times. (Li and Hoefler 2021.)

    rank 0 of 2   0F0 1F1 1B1 0B0
    """
    half = micro_batches // 2
    streams = []
    for rank in range(stages):
        down = list(in_turn(rank, stages, 1, [half], stages - rank - 1))
        up = in_turn(stages - 1 - rank, stages, 1, [half], rank)
        streams.append([down, [do(a.stage, a.kind, a.micro_batch + half) for a in up]])
    yield from merge(streams, stages)
