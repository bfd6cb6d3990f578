"""One fault in a training on real ranks: which rank waits for which, what the error says, or that nobody says anything.

    print(inject("other order", rank=2))        # CollectiveMismatch, with both calls and both lines
    print(inject("bit flip"))                   # no error at all: only a comparison shows it
    table(inject(fault) for fault in FAULTS)

Four ranks fit three weights to their own rows, six steps; in each step they add up the gradient and the loss. The fault
happens in step 3 on one rank. A fault that is noticed ends the run on every rank; otherwise the weights are compared,
between the ranks and with one device on all rows.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap
from typing import Any

import numpy as np

from ...base.checks import integer
from ...base.errors import ArgumentError, CollectiveMismatch, CollectiveTimeout, RankDied, escape, shorten
from ...base.units import table_lines, time_text
from ...processes.shm import WorkerPool

WIDEST = 36, 48  # letters in a line of a table, what happens and what is said: a notebook shows about 100 in all
FAULTS = {
    "none": "nothing is wrong",
    "skipped step": "one rank leaves out step 3 and its two messages",
    "other order": "one rank adds up the loss before the gradient",
    "wrong reduce": "one rank asks for the maximum where the others add up",
    "hang": "one rank sleeps and does not come",
    "death": "one rank is killed",
    "straggler": "one rank is 0.1 s late in every step",
    "sum for mean": "all ranks forget to divide the sum",
    "own seed": "one rank begins with other weights",
    "bit flip": "one bit of one rank's gradient is wrong after it was added up",
}
STEPS, AT, RATE, ROWS = 6, 3, 0.2, 8
LATE_S, ASLEEP_S, LIMIT_S = 0.1, 60.0, 2.0  # of a straggler; of a rank that hangs; until a wait is a hang
ROUNDING = 1e-12  # of float64 sums in another order


@dataclass(frozen=True)
class Diagnosis:
    """What came of a fault.

    told      name of the error that every rank got; "" where the run went through;  text: what it says
    after_s   until an error came, or the run was over
    blamed    ranks that the error names: one that did not come, or two whose calls do not match
    waiting   those that waited for one that did not come
    apart     largest difference between the weights of two ranks;  off: from those of one device; None without weights
    waited_s  of each rank: in messages; () where the run did not go through
    """

    fault: str
    rank: int
    told: str
    text: str
    after_s: float
    blamed: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    apart: float | None = None
    off: float | None = None
    waited_s: tuple[float, ...] = ()

    @property
    def silent(self) -> bool:
        """Whether the weights are wrong and no error came."""
        return not self.told and max(self.apart or 0.0, self.off or 0.0) > ROUNDING

    @property
    def verdict(self) -> str:
        """In a sentence."""
        if self.told:
            return f"{self.told} on every rank after {time_text(self.after_s)}"
        if self.silent:
            who = "all ranks agree, and are wrong" if self.apart == 0 else "the ranks have different weights"
            return f"no error: {who}; a comparison with one device shows it ({self.off:.2g} off)"
        late = max(self.waited_s) - min(self.waited_s) > STEPS * LATE_S / 2
        slow = f"; the others waited for rank {np.argmin(self.waited_s)}" if late else ""
        return f"no error, and the weights of one device{slow}"

    def __str__(self) -> str:
        lines = [f"{self.fault} (rank {self.rank} of 4): {FAULTS[self.fault]}", f"  {self.verdict}"]
        lines += [f"  {line}" for line in self._waits()]
        lines += [f"  {line}" for line in self.text.splitlines()]
        if self.waited_s:
            lines.append("  in messages: " + ", ".join(f"rank {n} {time_text(s)}" for n, s in enumerate(self.waited_s)))
        return "\n".join(lines)

    __repr__ = __str__

    def _waits(self) -> list[str]:
        if self.told and not self.waiting:
            return [f"the calls of ranks {' and '.join(map(str, self.blamed))} do not match"]
        return [f"rank {one} waits for rank {other}" for one in self.waiting for other in self.blamed]

    def _repr_html_(self) -> str:
        drawn = _wait_graph(self) if self.told else ""
        return f"{drawn}<pre style='white-space:pre-wrap'>{escape(self)}</pre>"


def inject(fault: str, rank: int = 2, *, limit_s: float = LIMIT_S) -> Diagnosis:
    """Train on four worker processes with one of FAULTS.

    rank     on which it happens, 0 to 3;  limit_s: how long a rank may wait for the others

    Raises ArgumentError for another fault or rank.
    """
    if fault not in FAULTS:
        raise ArgumentError(f"fault {shorten(fault)}", where="inject", allowed=f"One of {', '.join(FAULTS)}")
    rank = integer(0, 3)("inject", "rank", rank)
    with WorkerPool(4, timeout_s=limit_s) as pool:
        begin = time.monotonic()
        try:
            outcomes = pool.run(train, fault, rank)
        except (CollectiveMismatch, CollectiveTimeout, RankDied) as error:
            return _told(fault, rank, error, time.monotonic() - begin)
        after_s = time.monotonic() - begin
    weights = [w for w, _ in outcomes]
    apart = max(float(np.abs(w - weights[0]).max()) for w in weights)
    off = max(float(np.abs(w - one_device()).max()) for w in weights)
    return Diagnosis(fault, rank, "", "", after_s, apart=apart, off=off, waited_s=tuple(s for _, s in outcomes))


def table(diagnoses: Iterable[Diagnosis]) -> str:
    """Faults side by side."""
    rows = [("fault", "what happens", "what is told")]
    for d in diagnoses:
        cells = [d.fault], wrap(FAULTS[d.fault], WIDEST[0]), wrap(d.verdict, WIDEST[1])
        rows += zip_longest(*cells, fillvalue="")
    return "\n".join(table_lines(rows))


def rows_of(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a rank: points near a plane."""
    rng = np.random.default_rng(rank)
    x = rng.normal(size=(ROWS, 3))
    return x, x @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=ROWS)


def gradient_of(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gradient of the mean of squares."""
    return 2 * x.T @ (x @ w - y) / len(y)


def one_device() -> np.ndarray:
    """The weights after the same steps on all rows, undivided."""
    x, y = (np.concatenate(part) for part in zip(*map(rows_of, range(4)), strict=True))
    w = np.zeros(3)
    for _ in range(STEPS):
        w = w - RATE * gradient_of(w, x, y)
    return w


def train(comm: Any, fault: str, rank: int) -> tuple[np.ndarray, float]:
    """A rank's program: the weights, and seconds in messages."""
    mine = comm.rank == rank
    x, y = rows_of(comm.rank)
    w, waited_s = np.ones(3) if mine and fault == "own seed" else np.zeros(3), 0.0
    for step in range(STEPS):
        now = fault if mine and step == AT else ""
        if now == "skipped step":
            continue
        if now == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        if now == "hang" or (mine and fault == "straggler"):
            time.sleep(ASLEEP_S if now == "hang" else LATE_S)
        gradient, loss = gradient_of(w, x, y), np.array([((x @ w - y) ** 2).mean()])
        begin = time.monotonic()
        if now == "other order":
            comm.all_reduce(loss)
        total = comm.all_reduce(gradient, reduce="max" if now == "wrong reduce" else "sum")
        if now != "other order":
            comm.all_reduce(loss)
        waited_s += time.monotonic() - begin
        if now == "bit flip":
            total = _flipped(total)
        w = w - RATE * (total if fault == "sum for mean" else total / comm.world_size)
    return w, waited_s


def _flipped(values: np.ndarray) -> np.ndarray:
    """The lowest bit of the exponent of the first number: it doubles or halves."""
    bits = values.copy().view(np.uint64)
    bits[0] ^= np.uint64(1 << 52)
    return bits.view(np.float64)


def _told(fault: str, rank: int, error: Any, after_s: float) -> Diagnosis:
    """For a rank that is late or dead the others wait; calls that do not match are two, and either may be wrong."""
    blamed = tuple(sorted(set(error.ranks if hasattr(error, "ranks") else (error.rank,))))
    waiting = () if isinstance(error, CollectiveMismatch) else tuple(n for n in range(4) if n not in blamed)
    return Diagnosis(fault, rank, type(error).__name__, str(error), after_s, blamed, waiting)


def _wait_graph(told: Diagnosis) -> str:
    """Ranks in a row, those that the error names with a heavy border: an arc from each that waits to the one that did
    not come, or both ways between two that do not match.
    """
    x = [60 + 110 * n for n in range(4)]
    pairs = [(a, b) for a in told.waiting or told.blamed for b in told.blamed if a != b]
    parts = ['<defs><marker id="pl-wait" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" ']
    parts += ['orient="auto"><path d="M0 0L8 4L0 8z" fill="currentColor"/></marker></defs>']
    line = 'fill="none" stroke="currentColor"'
    for a, b in pairs:
        bend = f"Q{(x[a] + x[b]) // 2} {54 - 16 * abs(a - b)} {x[b]} 62"
        parts.append(f'<path d="M{x[a]} 62{bend}" {line} marker-end="url(#pl-wait)"/>')
    for n, at in enumerate(x):
        heavy = 3 if n in told.blamed else 1
        parts.append(f'<rect x="{at - 36}" y="64" width="72" height="28" rx="4" {line} stroke-width="{heavy}"/>')
        parts.append(f'<text x="{at}" y="82" text-anchor="middle">rank {n}</text>')
    alt = escape(f"{told.fault}: {', '.join(told._waits())}")
    font = 'fill="currentColor" font-family="system-ui, sans-serif" font-size="12"'
    head = f'<svg viewBox="0 0 450 100" width="450" height="100" role="img" aria-label="{alt}" {font}>'
    return f"{head}{''.join(parts)}</svg>"
