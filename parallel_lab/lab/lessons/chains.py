"""Lesson 06: chains and redistribution."""

from __future__ import annotations

from functools import cache
from textwrap import wrap
from typing import Any

import numpy as np

from ...processes.shm import WorkerPool
from ...run.communicator import Request
from ..exercises import check, hint, par
from ..exercises.two_products import Chain
from ..redistribution.model import SHAPE, RedistributionLab, run_steps
from ..shared.prediction import Comparison
from .predictions import Answers

__all__ = ["Chain", "RedistributionLab", "Request", "check", "compare", "hint", "messages", "par", "prove"]
WAYS = ("gather", "all_to_all", "exact")


def messages(strategies: dict[str, Any], redistribution: str = "gather") -> str:
    """Each message of a step of x @ w, relu, @ w2 on eight ranks with its reason, and what a rank sends in all."""
    chain = Chain(strategies, redistribution)
    lines = []
    for phase in ("forward", "backward"):
        for i in chain.messages(phase):
            lines += wrap(f"{phase:8}  {i.kind:14}  {i.reason}", 100, subsequent_indent=" " * 26)
    return "\n".join([*lines, f"{chain.sent_elements} elements sent by a rank"])


@cache
def _moved() -> dict[str, list[tuple[np.ndarray, int]]]:
    """{way: (what it has in the end, bytes that it sent) of every rank}, from 8 x 1 to 1 x 8 on real processes."""

    def on_ranks(comm: Any, steps: Any, whole: np.ndarray, rows: int) -> tuple[np.ndarray, int]:
        comm.recording = True
        part = run_steps(comm, steps, np.ascontiguousarray(whole[comm.rank * rows : (comm.rank + 1) * rows]))
        return part, sum(message.size_bytes for message in comm.sent())

    whole, rows = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE), SHAPE[0] // 8
    plans = {name: RedistributionLab(8, "8 x 1", "1 x 8", steps=name).plan for name in WAYS}
    with WorkerPool(8) as pool:
        return {name: pool.run(on_ranks, steps, whole, rows) for name, steps in plans.items()}


def compare(prediction: dict[str, Any], *, show: bool = False) -> Comparison:
    """The answers next to formulas, and next to what eight processes hold and send."""
    lab = RedistributionLab(8, "8 x 1", "1 x 8")
    return Answers("06", prediction, show).next_to(
        slice_bytes=(16 * 32 * 4 // 8, lambda: _moved()["gather"][0][0].nbytes, "512 elements / 8"),
        gathered=(7 * 256, lambda: _moved()["gather"][0][1], "7 slices of 256 bytes"),
        least=(
            *(7 * 32, lambda: lab.least_bytes),
            "from each of 7 other ranks an eighth of its slice; the exact exchange sends just that",
        ),
    )


def prove() -> str:
    """Whether each of the three ways brings every rank its columns, element by element."""
    whole, lines = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE), []
    for name, replies in _moved().items():
        parts = np.split(whole, 8, axis=1)
        equal = sum(np.array_equal(part, right) for (part, _), right in zip(replies, parts, strict=True))
        lines.append(f"{name:10}  {equal} of 8 ranks hold their columns; each sent {replies[0][1]} bytes (counted)")
    return "\n".join(lines)
