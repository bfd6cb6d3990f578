"""Judging a ring collective that a learner wrote from sends and recvs: its values, its neighbours, its steps and its
bytes.

The programs run on simulated ranks; messages are counted in the engine's log (`running.py`). What the ranks are given
is marked: a wrong result tells which addends it lacks, and which chunk it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...base.errors import shorten
from .running import ProgramRun, run_programs
from .verdict import Part

RING = (("values", 2), ("neighbours", 1), ("steps", 1), ("bytes", 1))  # parts and their points
RANKS = (
    4,
    2,
    3,
    8,
)  # four first, because those are the ones the lesson draws; an answer for four ranks only must not pass
WIDTH = 6  # elements of a chunk
BASE = 4  # rank r adds BASE**r: the digits of a sum say whose addends are in it, and how often up to three times


def _chunk(rank: int, chunk: int) -> np.ndarray:
    """What rank `rank` holds of chunk `chunk`: whole numbers, so that sums are exact in any order. Element 0 tells the
    rank, 0 and 1 the chunk.
    """
    mark = float(BASE**rank)
    return np.array([mark, mark * (chunk + 1), *((7 * rank + 3 * chunk + i) % 11 - 5.0 for i in range(WIDTH - 2))])


def _whose(value: np.ndarray, ranks: int) -> str:
    """In words, what a wrong chunk is: which chunk, and whose addends are in it."""
    total = value[0]
    if not np.isfinite(value[:2]).all() or total <= 0 or total != int(total) or total >= BASE**ranks:
        return f"an array that begins with {value[0]:g}, {value[1]:g}"
    counts = [int(total) // BASE**r % BASE for r in range(ranks)]
    chunk = value[1] / total - 1
    which = f"chunk {int(chunk)}" if chunk == int(chunk) and 0 <= chunk < ranks else "a mixture of chunks"
    once = [str(r) for r, n in enumerate(counts) if n == 1]
    twice = [str(r) for r, n in enumerate(counts) if n > 1]
    missing = [str(r) for r, n in enumerate(counts) if n == 0]
    words = [
        f"{which} with the addends of ranks {', '.join(once)}"
        if len(once) > 1
        else f"{which} with the addend of rank {''.join(once) or '-'}"
    ]
    words += [f"those of {', '.join(twice)} more than once"] if twice else []
    words += [f"missing: {', '.join(missing)}"] if missing else []
    return "; ".join(words)


def _array(value: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """A result as floats of that shape; None if it is none."""
    try:
        array = np.asarray(value, np.float64)
    except Exception:  # whatever a learner's object does
        return None
    return array if array.shape == shape else None


def _faulty(run: ProgramRun, name: str) -> Part:
    hint = "A send never waits; a recv waits until its message is there. In each step: first send, then recv."
    waits = "waits in its call" in run.fault.text
    return run.fault.part(name, f"Every rank finishes, on {run.ranks} ranks", hint if waits else "")


def _scattered(run: ProgramRun, want: Callable[[int], np.ndarray]) -> Part | None:
    """The failed part of the first rank whose chunk is not the sum, or None."""
    ranks = run.ranks
    rule = "rank r returns chunk r, added up over all ranks"
    for rank, value in enumerate(run.results):
        array = _array(value, (WIDTH,))
        if array is None:
            return Part(
                "values",
                False,
                f"{shorten(value)} on {ranks} ranks",
                f"One chunk: {rule}",
                _no_result(value, run),
                rank,
            )
        if np.array_equal(array, want(rank)):
            continue
        found, note = f"on {ranks} ranks: {_whose(array, ranks)}", ""
        for step in (1, -1):
            if ranks > 2 and all(
                _same(_array(v, (WIDTH,)), want((r + step) % ranks)) for r, v in enumerate(run.results)
            ):
                note = (
                    "Every sum is complete, but lies on the wrong rank: rank r has chunk r "
                    f"{'+' if step > 0 else '-'} 1. "
                    f"Let each rank begin with the chunk {'before' if step > 0 else 'after'} the one it "
                    "begins with now."
                )
        if np.array_equal(array * ranks, want(rank)):
            note = "That is the mean. A reduce_scatter adds; nothing is divided unless requested."
        elif np.array_equal(array, _chunk(rank, rank)):
            note = (
                "Nothing was added to the chunk that is returned."
                if run.messages
                else "No message was sent: every rank has only its own addend."
            )
        return Part(
            "values",
            False,
            found,
            f"chunk {rank} with the addends of all {ranks} ranks: {rule}",
            note,
            rank,
            _last_op(run, rank),
        )
    return None


def _gathered(run: ProgramRun, want: Callable[[int], np.ndarray]) -> Part | None:
    """The failed part of the first rank that does not return all chunks in order, or None."""
    ranks = run.ranks
    rule = "every rank returns the chunks of all ranks, chunk r at place r"
    for rank, value in enumerate(run.results):
        array = _array(value, (ranks, WIDTH))
        if array is None:
            return Part(
                "values",
                False,
                f"{shorten(value)} on {ranks} ranks",
                f"{ranks} chunks: {rule}",
                _no_result(value, run),
                rank,
            )
        for place in range(ranks):
            if np.array_equal(array[place], want(place)):
                continue
            holds = next((r for r in range(ranks) if np.array_equal(array[place], want(r))), None)
            found = f"on {ranks} ranks: at place {place} " + (
                f"the chunk of rank {holds}" if holds is not None else _nothing(array[place])
            )
            note = "No message was sent." if not run.messages else ""
            if holds is not None and not note:
                note = (
                    "All places hold chunks, in another order: which rank's chunk arrives in step s?"
                    if _permuted(array, want)
                    else ""
                )
            return Part("values", False, found, f"the chunk of rank {place}: {rule}", note, rank, _last_op(run, rank))
    return None


def _permuted(array: np.ndarray, want: Callable[[int], np.ndarray]) -> bool:
    return sorted(map(tuple, array)) == sorted(tuple(want(r)) for r in range(len(array)))


def _nothing(value: np.ndarray) -> str:
    return "zeros: nothing has arrived there" if not value.any() else f"an array that begins with {value[0]:g}"


def _same(a: np.ndarray | None, b: np.ndarray) -> bool:
    return a is not None and np.array_equal(a, b)


def _no_result(value: Any, run: ProgramRun) -> str:
    if value is None:
        return "The program ends without a return." if run.messages else "Nothing is returned yet."
    return ""


def _last_op(run: ProgramRun, rank: int) -> str:
    """The last message that came to a rank: what is wrong there came with it, or is missing after it."""
    into = [m for m in run.messages if m.destination == rank]
    return f"last message in: {into[-1].op}" if into else "no message in"


def ring_parts(answer: Any, kind: str) -> Iterator[Part]:
    """The parts of a ring collective, each over all of RANKS; what goes wrong first is shown.

    answer  reduce_scatter: answer(rank, ranks, chunks) gets its addends of all chunks and returns chunk `rank` of the
            sum; all_gather:
            answer(rank, ranks, chunk) returns all chunks in order. Generators that yield send and recv Requests
    """
    runs: list[ProgramRun] = []
    for ranks in RANKS:
        if kind == "reduce_scatter":
            values: list[Any] = [[_chunk(r, c) for c in range(ranks)] for r in range(ranks)]
        else:
            values = [_chunk(r, r) for r in range(ranks)]
        run = run_programs(answer, ranks, values)
        if run.fault is not None:
            yield _faulty(run, "values")
            return
        if run.collectives:
            rank, name, origin = run.collectives[0]
            what = f'Request("{shorten(name)[1:-1]}", ...)'
            yield Part(
                "values",
                False,
                what,
                "Sends and recvs only: the collective is what you build",
                "",
                rank,
                f"{name} at {origin}",
            )
            return
        runs.append(run)
    judge, sums = (_scattered, _total) if kind == "reduce_scatter" else (_gathered, _of_rank)
    wrong = next(filter(None, (judge(run, sums(run.ranks)) for run in runs)), None)
    yield wrong or Part("values", True, f"right on {_numbers(RANKS)} ranks")
    if not any(run.messages for run in runs):
        return  # without a message there is nothing to count
    yield _neighbours(runs)
    yield _steps(runs)
    yield _bytes(runs, kind)


def _total(ranks: int) -> Callable[[int], np.ndarray]:
    return lambda chunk: sum(_chunk(r, chunk) for r in range(ranks))


def _of_rank(ranks: int) -> Callable[[int], np.ndarray]:
    return lambda rank: _chunk(rank, rank)


def _neighbours(runs: list[ProgramRun]) -> Part:
    rule = "In a ring every rank sends to one neighbour, all in the same direction: rank r to r + 1 (or all to r - 1)"
    for run in runs:
        ways = {m: (m.destination - m.source) % run.ranks for m in run.messages}
        first = ways[run.messages[0]] if run.messages else 1
        direction = first if first in (1, run.ranks - 1) else 1
        other = next((m for m, way in ways.items() if way != direction), None)
        if other is not None:
            return Part(
                "neighbours",
                False,
                f"on {run.ranks} ranks: {other.source} sends to {other.destination}",
                rule,
                "",
                other.source,
                other.op,
            )
    return Part("neighbours", True, "every message went to the next rank of the ring")


def _steps(runs: list[ProgramRun]) -> Part:
    rule = "n - 1 steps on n ranks"
    for run in runs:
        n, found = run.ranks, run.steps
        if found == n - 1:
            continue
        notes = {
            n: "One step too many: the last one brings every rank what it already has.",
            2 * (n - 1): "2 (n - 1) is a whole all_reduce: reduce_scatter, then all_gather.",
            0: "No message was sent.",
        }
        note = notes.get(found, "")
        if found == n * (n - 1) // 2 and n > 3:
            note = "The ranks wait for each other in turn: let every rank send before it receives."
        return Part(
            "steps",
            False,
            f"{found} on {n} ranks",
            f"{n - 1}: {rule}",
            note,
            None,
            max(run.messages, key=lambda m: m.step).op,
        )
    return Part("steps", True, f"n - 1 on {_numbers(RANKS)} ranks")


def _bytes(runs: list[ProgramRun], kind: str) -> Part:
    what = "what one rank gives" if kind == "reduce_scatter" else "the gathered result"
    rule = f"(n - 1)/n S on n ranks, S = bytes of {what}"
    for run in runs:
        n, size_bytes = run.ranks, run.ranks * WIDTH * 8
        for rank in range(n):
            found = run.sent_bytes(rank)
            if found * n == (n - 1) * size_bytes:
                continue
            notes = {
                (n - 1) * size_bytes: "(n - 1) S: everything is sent in every step. One chunk is enough.",
                2 * (n - 1) * size_bytes // n: "2 (n - 1)/n S is a whole all_reduce.",
                size_bytes: "S: one chunk too many.",
                n * size_bytes: "n S: everything is sent in every step, one time too many.",
            }
            sent = run.sent_by(rank)
            large = max(sent, key=lambda m: m.size_bytes).op if sent else ""
            expected = f"{(n - 1) * size_bytes // n} on {n} ranks: {rule}; here {n - 1}/{n} x {size_bytes}"
            return Part(
                "bytes", False, f"{found} bytes sent by rank {rank}", expected, notes.get(found, ""), rank, large
            )
    return Part("bytes", True, f"exactly {rule}, on every rank")


def _numbers(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, sorted(ranks)))
