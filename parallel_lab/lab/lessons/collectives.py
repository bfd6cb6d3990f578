"""Lesson 02: messages cost alpha + beta."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from ...base.cluster import Link
from ...base.errors import shorten
from ...base.system import cores
from ...base.units import plural, table_lines, time_text
from ...processes.measure import fit_link, median_s
from ...processes.shm import WorkerPool
from ...train.program import drive
from ..collectives.algorithms.algorithm import algorithm, check_algorithm, run_algorithm
from ..collectives.all_reduce_menu import AllReduceMenu
from ..exercises import check, hint, par
from ..exercises.running import run_programs
from ..shared.prediction import Comparison
from .predictions import Answers

NAMES = ("ring", "recursive_doubling", "direct")
RANKS, SIZE_BYTES = 4, 4096


@cache
def _sent() -> dict[str, tuple[int, int]]:
    """{algorithm: messages and bytes that rank 0 of four processes sends} of an all_reduce of 4096 bytes."""

    def counted(comm: Any, name: str, x: np.ndarray) -> tuple[int, int]:
        comm.recording = True
        run_algorithm(comm, "all_reduce", name, x)
        sent = comm.sent()
        return len(sent), sum(message.size_bytes for message in sent)

    x = np.ones(SIZE_BYTES // 4, np.float32)
    with WorkerPool(RANKS) as pool:
        return {name: pool.run(counted, name, x)[0] for name in NAMES}


def react(program: Any) -> str:
    """What three simulated ranks, which hold 1, 10 and 100, do with a learner's first program; what is missing."""
    run = run_programs(program, 3, [1, 10, 100])
    lines = [f"rank {sent.rank} sends one number to rank {sent.destination}" for sent in run.messages]
    lines += [f"rank {rank} returns {shorten(value)}" for rank, value in enumerate(run.results)]
    if run.fault is not None:
        lines += ["", f"No result: {run.fault.text}"]
    elif run.results == (1, 11, 100):
        lines += [
            "",
            "That is it: one message, sent once and received once. Rank 2 took no part, and waited for nobody.",
        ]
    elif not run.messages:
        lines += ["", "No message yet: rank 0 must send its number."]
    else:
        lines += ["", "Rank 1 should return 11, its own 10 and the 1 of rank 0; ranks 0 and 2 keep what they have."]
    return "\n".join(lines)


def count_messages() -> None:
    """Print what rank 0 sends with three algorithms, counted on four processes, next to the formulas."""
    for name, (messages, size_bytes) in _sent().items():
        formula = algorithm("all_reduce", name, ranks=RANKS).formula
        print(f"{name:20} {messages} messages, {size_bytes} bytes counted on rank 0;", end=" ")
        print(f"formula: {formula.messages_text}, {formula.sent_text}")


def compare(prediction: dict[str, Any], fit: Any, *, show: bool = False) -> Comparison:
    """The answers next to formulas and the count. fit: of this machine's links, for the two that are about time."""
    n, ring, doubling = RANKS, *(algorithm("all_reduce", name, ranks=RANKS) for name in NAMES[:2])

    def faster(size_bytes: float) -> str:
        quick = min((ring, doubling), key=lambda each: each.time_s(size_bytes, fit.link()))
        return "ring" if quick is ring else "fewest rounds"

    return Answers("02", prediction, show).next_to(
        rounds=(2 * (n - 1), lambda: _sent()["ring"][0], "n - 1 to add up, n - 1 to hand out"),
        bytes=(2 * (n - 1) * SIZE_BYTES // n, lambda: _sent()["ring"][1], "2 (n - 1)/n S: chunks, not whole arrays"),
        fewest_rounds=(
            *(len(doubling.rounds), lambda: _sent()["recursive_doubling"][0]),
            "log2 n: pairs, then pairs of pairs",
        ),
        small=(faster(1e3), None, "few rounds: start-up times are all that counts"),
        large=(faster(16e6), None, "few bytes: a ring sends chunks, the other whole arrays"),
    )


def algorithm_times(fit: Any) -> Iterator[tuple[int, str, float, float, float]]:
    """(bytes, algorithm, seconds predicted for a core each, for the cores that there are, measured) of all_reduce on
    four processes. On shared cores a message starts when all four have had their turns: that takes what it takes here
    in the same algorithm with 64 bytes. Bytes take as often as long as ranks come on a core.
    """

    def seconds(comm: Any, name: str, size_bytes: int) -> float:
        x = np.ones(size_bytes // 4, np.float32)
        return median_s(comm, lambda: run_algorithm(comm, "all_reduce", name, x))

    with WorkerPool(RANKS) as pool:
        known = {name: algorithm("all_reduce", name, RANKS) for name in NAMES}
        beta = fit.link().beta_s_per_byte * max(1.0, RANKS / cores())
        starts = {name: one.time_s(0, Link(1.0, 0.0)) for name, one in known.items()}  # one after the other
        here = {name: Link(max(pool.run(seconds, name, 64)) / starts[name], beta) for name in NAMES}
        for size_bytes in (1 << 10, 1 << 16, 1 << 20):
            for name, one in known.items():
                predicted = [one.time_s(size_bytes, link) for link in (fit.link(), here[name])]
                yield size_bytes, name, *predicted, max(pool.run(seconds, name, size_bytes))


def time_algorithms(fit: Any) -> None:
    """Print the times of three algorithms and sizes on four processes, next to those that alpha and beta predict."""
    rows = [("all_reduce", "", "a core each", f"on {plural(cores(), 'core')}", "measured")]
    for size_bytes, name, *times in algorithm_times(fit):
        rows.append((f"{size_bytes >> 10} KiB", name, *map(time_text, times)))
    print("\n".join(table_lines(rows, right=(2, 3, 4))))


def _addends() -> tuple[list[np.ndarray], np.ndarray]:
    """An array of each rank, and their exact sum."""
    arrays = [np.random.default_rng(rank).normal(size=1000).astype(np.float32) for rank in range(RANKS)]
    return arrays, np.sum(arrays, axis=0, dtype=np.float64)


def prove_own(ring_reduce_scatter: Any) -> str:
    """A learner's rank program on four processes: whether each rank ends with its chunk of the sum."""
    arrays, exact = _addends()

    def mine(comm: Any, arrays: list[np.ndarray]) -> np.ndarray:
        return drive(ring_reduce_scatter(comm.rank, RANKS, np.split(arrays[comm.rank], RANKS)), comm)

    with WorkerPool(RANKS) as pool:
        parts = pool.run(mine, arrays)
    equal = [np.allclose(part, right, atol=1e-5) for part, right in zip(parts, np.split(exact, RANKS), strict=True)]
    words = {True: "EQUAL to rounding", False: "not the sum of all four yet"}
    return "\n".join(f"rank {rank}: {words[bool(each)]}" for rank, each in enumerate(equal))


def prove() -> str:
    """For each algorithm: whether processes give the simulator's bits, and how far both are from the exact sum."""
    arrays, exact = _addends()

    def reduced(comm: Any, name: str, arrays: list[np.ndarray]) -> np.ndarray:
        return run_algorithm(comm, "all_reduce", name, arrays[comm.rank])

    magnitudes, lines = np.abs(arrays).sum(axis=0), []
    with WorkerPool(RANKS) as pool:
        for name in NAMES:
            results, simulated = pool.run(reduced, name, arrays), algorithm("all_reduce", name, RANKS).run(arrays)
            same_bits = all(np.array_equal(a, b) for a, b in zip(results, simulated, strict=True))
            off = np.max(np.abs(results[0] - exact) / magnitudes)
            within = f"off the exact sum by {off:.1e}, within 3 x 6e-8: {bool(off <= 3 * 6e-8)}"
            lines.append(f"{name:20} processes = simulator: {same_bits}; {within}")
    return "\n".join(lines)
