"""All forwards, then all backwards: GPipe, and breadth-first for parts that go around."""

from __future__ import annotations

from ..naming import named
from ..order import do


@named("gpipe", chunks=None)
def gpipe(stages: int, micro_batches: int, chunks: int):
    """All forwards, chunk by chunk, then all backwards, chunks descending. (Huang et al. 2019.)

    rank 0 of 2   0F0 0F1 0F2 0B0 0B1 0B2
    """
    for rank in range(stages):
        parts = range(rank, stages * chunks, stages)
        ahead = [do(part, "F", n) for part in parts for n in range(micro_batches)]
        yield ahead + [do(part, "B", n) for part in reversed(parts) for n in range(micro_batches)]


@named("breadth_first", chunks=None)
def breadth_first(stages: int, micro_batches: int, chunks: int):
    """As gpipe, with the last micro-batch first in backward. (Lamy-Poirier 2023; the order is that of PyTorch's
    ScheduleLoopedBFS.)

    rank 0 of 2, 2 chunks   0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0
    """
    for rank in range(stages):
        parts, batches = range(rank, stages * chunks, stages), range(micro_batches)
        ahead = [do(part, "F", n) for part in parts for n in batches]
        yield ahead + [do(part, "B", n) for part in reversed(parts) for n in reversed(batches)]
