"""Cases of timed collectives. Every library gets equal values and checks: a fast wrong answer does not count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parallel_lab.base.errors import ArgumentError, ParallelLabError

# messages of pairs of ranks, all pairs at the same time: there and back; there, one after the other
POINT_TO_POINT = ("ping_pong", "stream")
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", *POINT_TO_POINT)
# of training.py, pipeline.py and live.py, which a command that only prints its help does not import
TRAINING_CASES = ("mlp", "transformer", "conv", "tiny")
PIPELINE_SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb_h1")
LIVE_LABS = (
    *("strategy", "fusion", "memory", "stepper", "pipeline", "redistribution", "recompute"),
    *("costs", "search", "context", "experts", "rosetta", "explain", "hunt", "runs"),
)
PERIOD = 251  # elements after which the values repeat: a prime, so that pieces of 2^k elements differ


class WrongResult(ParallelLabError, ArithmeticError):
    """A collective under test that returned wrong values."""


@dataclass(frozen=True)
class Case:
    """One collective on `size_bytes` (the full tensor of a rank, float32) by `ranks` ranks. Raises ArgumentError."""

    op: str
    size_bytes: int
    ranks: int

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise ArgumentError(f"op={self.op!r}", where="bench collectives", allowed=f"One of {OPS}")
        if self.ranks < 2 or self.size_bytes < 4 * self.ranks or self.size_bytes % (4 * self.ranks):
            what = f"{self.size_bytes} bytes among {self.ranks} ranks"
            allowed = "Two ranks or more, and float32 elements that divide among them"
            raise ArgumentError(what, where="bench collectives", allowed=allowed)

    @property
    def elements(self) -> int:
        """Elements of the full tensor."""
        return self.size_bytes // 4

    @property
    def given_elements(self) -> int:
        """Elements that one rank gives."""
        return self.elements // self.ranks if self.op == "all_gather" else self.elements

    @property
    def result_elements(self) -> int:
        """Elements that one rank gets."""
        return self.elements // self.ranks if self.op == "reduce_scatter" else self.elements


def partner(case: Case, rank: int) -> int | None:
    """With whom a rank exchanges messages: 0 with 1, 2 with 3, ...; None: the last one of an odd number."""
    return None if rank == case.ranks - 1 and case.ranks % 2 else rank ^ 1


def given(case: Case, rank: int) -> np.ndarray:
    """What `rank` gives: small whole numbers, so that their sums are exact in any order. (given_elements,) float32."""
    return _values(0, case.given_elements, 1, 1000 * (rank + 1))


def expected(case: Case, rank: int) -> np.ndarray:
    """What `rank` must get. (result_elements,) float32."""
    n = case.ranks
    if case.op == "broadcast":
        return given(case, 0)
    if case.op in POINT_TO_POINT:  # who only sends keeps what it has
        other = partner(case, rank)
        return given(case, rank if other is None or (case.op == "stream" and rank < other) else other)
    if case.op == "all_gather":
        return np.concatenate([given(case, r) for r in range(n)])
    start, stop = rank * (case.elements // n), (rank + 1) * (case.elements // n)
    if case.op == "all_to_all":
        return np.concatenate([_values(start, stop, 1, 1000 * (r + 1)) for r in range(n)])
    # 0 ... 250 repeating, added n times, and 1000 (1 + 2 + ... + n)
    if case.op == "all_reduce":
        start, stop = 0, case.elements
    return _values(start, stop, n, 1000 * n * (n + 1) // 2)


def _values(start: int, stop: int, factor: int, offset: int) -> np.ndarray:
    """factor * (i % PERIOD) + offset, float32; by repeating: 64 MiB of remainders would take half a second."""
    period = (factor * ((np.arange(PERIOD) + start) % PERIOD) + offset).astype(np.float32)
    return np.resize(period, stop - start)


def check_results(case: Case, rank: int, result: np.ndarray) -> None:
    """Raise WrongResult unless `result` holds exactly what `rank` must get."""
    wanted = expected(case, rank)
    if result.shape != wanted.shape or result.dtype != wanted.dtype or not np.array_equal(result, wanted):
        wrong = int(np.sum(result != wanted)) if result.shape == wanted.shape else wanted.size
        what = f"rank {rank} got {wrong} wrong elements of {wanted.size}"
        raise WrongResult(what, where=f"{case.op} of {case.size_bytes} bytes")
