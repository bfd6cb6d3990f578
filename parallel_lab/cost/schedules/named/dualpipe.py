"""DualPipe: two copies of the network run against each other, and a forward of one runs together with a backward of the
other, so that the messages of the one travel while the other computes. (DeepSeek-V3 report, 2024.)

The first half of the micro-batches goes from rank 0 to the last, the other half from the last to rank 0. A backward
that is not divided is a B and a W that run as one.
"""

from __future__ import annotations

from typing import Any

from ..naming import named
from ..order import do


class _Lane:
    """The actions of a rank as they are added: forward or backward of its near part (0) or its far part (1)."""

    def __init__(self, parts: tuple[int, int], firsts: tuple[int, int]) -> None:
        self.parts = parts
        self.cells: list[Any] = []
        self.late: list[Any] = []
        self.next: dict[tuple[int, str], int] = {(side, kind): firsts[side] for side in (0, 1) for kind in "FB"}

    def _take(self, side: int, kind: str):
        self.next[side, kind] += 1
        return do(self.parts[side], kind, self.next[side, kind] - 1)

    def forward(self, side: int) -> None:
        self.cells.append(self._take(side, "F"))

    def backward(self, side: int, divided: bool = False) -> None:
        action = self._take(side, "B")
        weights = do(action.stage, "W", action.micro_batch)
        if divided:
            self.cells.append(action)
            self.late.append(weights)
        else:
            self.cells.append((action, weights))

    def both(self, ahead: int, back: int) -> None:
        forward, action = self._take(ahead, "F"), self._take(back, "B")
        self.cells.append((forward, action, do(action.stage, "W", action.micro_batch)))

    def weights(self) -> None:
        if self.late:
            self.cells.append(self.late.pop(0))


def _rank(lane: _Lane, depth: int, half: int, rounds: int) -> list[Any]:
    """What a rank does whose near part is `depth` parts away from where its micro-batches come in."""
    to_middle = half - depth - 1
    for _ in range(2 * to_middle):
        lane.forward(0)
    for _ in range(depth + 1):
        lane.forward(0)
        lane.forward(1)
    for _ in range(to_middle):
        lane.backward(1, divided=True)
        lane.weights()
        lane.forward(1)
    for i in range(rounds - 2 * half + depth + 1):
        if i == 0 and depth == half - 1:  # apart: the neighbour waits for the forward
            lane.forward(0)
            lane.backward(1)
        else:
            lane.both(0, 1)
        lane.both(1, 0)
    for _ in range(to_middle):
        lane.backward(1)
        lane.both(1, 0)
    steps = [side for _ in range(depth + 1) for side in (1, 0)]
    for i, side in enumerate(steps):  # the second half of these leaves its weight gradients for later
        lane.backward(side, divided=i >= (depth + 1) // 2 * 2 + (depth + 1) % 2)
    for _ in range(to_middle):
        lane.weights()
        lane.backward(0, divided=True)
    while lane.late:
        lane.weights()
    return lane.cells


def _even(stages: int, micro_batches: int, chunks: int) -> str:
    fits = stages % 2 == 0 and micro_batches % 2 == 0 and micro_batches >= 2 * stages
    return "" if fits else "Stages and micro-batches are even, with at least 2 micro-batches per stage"


@named("dualpipe", place="two-way", allowed=_even)
def dualpipe(stages: int, micro_batches: int, chunks: int):
    """Two copies: rank r has parts r and stages - 1 - r."""
    half = micro_batches // 2
    for rank in range(stages):
        down = rank < stages // 2
        near, far = (rank, stages - 1 - rank) if down else (stages - 1 - rank, rank)
        # a rank of the upper half calls near what comes from the last rank: the second half of the micro-batches
        firsts = (0, half) if down else (half, 0)
        yield _rank(_Lane((near, far), firsts), near, stages // 2, half)


@named(
    "dualpipe_v",
    place="v",
    chunks=2,
    allowed=lambda s, m, c: f"At least {2 * s} micro-batches, one per part" if m < 2 * s else "",
)
def dualpipe_v(stages: int, micro_batches: int, chunks: int):
    """DualPipe cut in half: one copy, placed as a V. (Order of PyTorch's ScheduleDualPipeV.)"""
    for rank in range(stages):
        yield _rank(_Lane((rank, 2 * stages - 1 - rank), (0, 0)), rank, stages, micro_batches)
