"""Judging a ring collective that a learner wrote from sends and recvs: values, neighbours, steps and bytes.

The programs run on simulated ranks; messages are counted in the engine's log (`running.py`). What the ranks are given
is marked: a wrong result tells which addends it lacks, and which chunk it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...base.errors import shorten
from .reading import floats
from .running import ProgramRun, ask_programs
from .verdict import Part, Wrong, judged

RING = (("values", 2), ("neighbours", 1), ("steps", 1), ("bytes", 1))  # parts and their points
RANKS = (4, 2, 3, 8)  # four first: those are the ones the lesson draws. An answer for four ranks only must not pass
WIDTH = 6  # elements of a chunk
BASE = 4  # rank r adds BASE**r: the digits of a sum say whose addends are in it, and how often up to three times


def _chunk(rank: int, chunk: int) -> np.ndarray:
    """What a rank holds of a chunk: whole numbers, with exact sums. Element 0 tells the rank, 0 and 1 the chunk."""
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
    addends = f"addends of ranks {', '.join(once)}" if len(once) > 1 else f"addend of rank {''.join(once) or '-'}"
    words = [f"{which} with the {addends}"]
    words += [f"those of {', '.join(twice)} more than once"] if twice else []
    words += [f"missing: {', '.join(missing)}"] if missing else []
    return "; ".join(words)


def _arrays(run: ProgramRun, shape: tuple[int, ...], expected: str) -> Iterator[tuple[int, np.ndarray]]:
    """(rank, result). Raises Wrong for the first that has another shape."""
    for rank, value in enumerate(run.results):
        array = floats(value, shape)
        if array is None:
            note = "The program ends without a return." if run.messages else "Nothing is returned yet."
            text = f"{shorten(value)} on {run.ranks} ranks"
            raise Wrong(text, "", note if value is None else "", rank, form=expected)
        yield rank, array


def _last_op(run: ProgramRun, rank: int) -> str:
    """The last message that came to a rank: what is wrong there came with it, or is missing after it."""
    into = [m for m in run.messages if m.destination == rank]
    return f"last message in: {into[-1].op}" if into else "no message in"


def _scattered(run: ProgramRun) -> None:
    """Raises Wrong for the first rank whose chunk is not the sum."""
    ranks, rule = run.ranks, "rank r returns chunk r, added up over all ranks"
    sums = [sum(_chunk(r, chunk) for r in range(ranks)) for chunk in range(ranks)]
    for rank, array in _arrays(run, (WIDTH,), f"One chunk: {rule}"):
        if not np.array_equal(array, sums[rank]):
            expected = f"chunk {rank} with the addends of all {ranks} ranks: {rule}"
            note = _scatter_note(run, rank, array, sums)
            raise Wrong(f"on {ranks} ranks: {_whose(array, ranks)}", expected, note, rank, _last_op(run, rank))


def _scatter_note(run: ProgramRun, rank: int, array: np.ndarray, sums: list[np.ndarray]) -> str:
    """What a wrong chunk is an answer to."""
    ranks = run.ranks
    if np.array_equal(array * ranks, sums[rank]):
        return "That is the mean. A reduce_scatter adds; nothing is divided unless requested."
    if np.array_equal(array, _chunk(rank, rank)):
        if run.messages:
            return "Nothing was added to the chunk that is returned."
        return "No message was sent: every rank has only its own addend."
    arrays = [floats(value, (WIDTH,)) for value in run.results]
    for step, sign, begin in ((1, "+", "before"), (-1, "-", "after")):
        others = (a is not None and np.array_equal(a, sums[(r + step) % ranks]) for r, a in enumerate(arrays))
        if ranks > 2 and all(others):
            text = f"Every sum is complete, but lies on the wrong rank: rank r has chunk r {sign} 1. "
            return text + f"Let each rank begin with the chunk {begin} the one it begins with now."
    return ""


def _gathered(run: ProgramRun) -> None:
    """Raises Wrong for the first rank that does not return all chunks in order."""
    ranks, rule = run.ranks, "every rank returns the chunks of all ranks, chunk r at place r"
    chunks = [_chunk(r, r) for r in range(ranks)]
    for rank, array in _arrays(run, (ranks, WIDTH), f"{ranks} chunks: {rule}"):
        for place in range(ranks):
            if np.array_equal(array[place], chunks[place]):
                continue
            text = f"an array that begins with {array[place][0]:g}"
            if not array[place].any():
                text = "zeros: nothing has arrived there"
            came = {tuple(chunk) for at, chunk in enumerate(array) if at != rank and chunk.any()}
            holds = next((r for r in range(ranks) if np.array_equal(array[place], chunks[r])), None)
            note = "" if run.messages else "No message was sent."
            if run.steps > 1 and came in ({tuple(chunks[rank - 1])}, {tuple(chunks[(rank + 1) % ranks])}):
                note = "Every rank sends its own chunk in each step. After the first one, pass on what came last."
            if holds is not None:
                text = f"the chunk of rank {holds}"
                if not note and sorted(map(tuple, array)) == sorted(map(tuple, chunks)):
                    note = "All places hold chunks, in another order: which rank's chunk arrives in step s?"
            text, expected = f"on {ranks} ranks: at place {place} {text}", f"the chunk of rank {place}: {rule}"
            raise Wrong(text, expected, note, rank, _last_op(run, rank))


def ring_parts(answer: Any, kind: str) -> Iterator[Part]:
    """The parts of a ring collective, each over all of RANKS; what goes wrong first is shown.

    answer  reduce_scatter: answer(rank, ranks, chunks) gets its addends of all chunks and returns chunk `rank` of the
            sum; all_gather: answer(rank, ranks, chunk) returns all chunks in order. Generators that yield send and
            recv Requests
    """
    runs = [_ran(answer, kind, ranks) for ranks in RANKS]
    yield judged("values", _values, runs, kind)
    if any(run.messages for run in runs):  # without a message there is nothing to count
        yield judged("neighbours", _neighbours, runs)
        yield judged("steps", _steps, runs)
        yield judged("bytes", _bytes, runs, kind)


def _ran(answer: Any, kind: str, ranks: int) -> ProgramRun:
    """A run with a result. Raises Wrong if the result is missing, or the run asks for a collective."""
    scatters = kind == "reduce_scatter"
    values = [[_chunk(r, c) for c in range(ranks)] if scatters else _chunk(r, r) for r in range(ranks)]
    note = "A send never waits; a recv waits until its message has arrived. In each step: first send, then recv."
    run = ask_programs(f"Every rank finishes, on {ranks} ranks", answer, ranks, values, note)
    for request in run.asked:
        if request.kind not in ("send", "recv"):
            text, rule = f'Request("{request.kind}", ...)', "Sends and recvs only: the collective is what you build"
            raise Wrong(text, rule, "", request.rank, request.op)
    return run


def _values(runs: list[ProgramRun], kind: str) -> str:
    for run in runs:
        (_scattered if kind == "reduce_scatter" else _gathered)(run)
    return f"right on {_NUMBERS} ranks"


def _neighbours(runs: list[ProgramRun]) -> str:
    rule = "In a ring every rank sends to one neighbour, all in the same direction: rank r to r + 1 (or all to r - 1)"
    for run in runs:
        ways = {m: (m.destination - m.rank) % run.ranks for m in run.messages}
        first = next(iter(ways.values()), 1)
        direction = first if first in (1, run.ranks - 1) else 1
        for m, way in ways.items():
            if way != direction:
                text = f"on {run.ranks} ranks: {m.rank} sends to {m.destination}"
                raise Wrong(text, rule, "", m.rank, m.op)
    return "every message went to the next rank of the ring"


def _steps(runs: list[ProgramRun]) -> str:
    for run in runs:
        n, steps = run.ranks, run.steps
        if steps == n - 1:
            continue
        notes = {
            n: "One step too many: the last one brings every rank what it already has.",
            2 * (n - 1): "2 (n - 1) is a whole all_reduce: reduce_scatter, then all_gather.",
            0: "No message was sent.",
        }
        note = notes.get(steps, "")
        if steps == n * (n - 1) // 2 and n > 3:
            note = "The ranks wait for each other in turn: let every rank send before it receives."
        last = max(run.messages, key=lambda m: m.step).op
        raise Wrong(f"{steps} on {n} ranks", f"{n - 1}: n - 1 steps on n ranks", note, None, last)
    return f"n - 1 on {_NUMBERS} ranks"


def _bytes(runs: list[ProgramRun], kind: str) -> str:
    what = "what one rank gives" if kind == "reduce_scatter" else "the gathered result"
    rule = f"(n - 1)/n S on n ranks, S = bytes of {what}"
    for run in runs:
        n, size_bytes = run.ranks, run.ranks * WIDTH * 8
        for rank in range(n):
            sent = run.sent_bytes(rank)
            if sent * n == (n - 1) * size_bytes:
                continue
            notes = {
                (n - 1) * size_bytes: "(n - 1) S: everything is sent in every step. One chunk is enough.",
                2 * (n - 1) * size_bytes // n: "2 (n - 1)/n S is a whole all_reduce.",
                size_bytes: "S: one chunk too many.",
                n * size_bytes: "n S: everything is sent in every step, one time too many.",
            }
            requests = run.asked_by(rank)
            large = max(requests, key=lambda a: a.size_bytes).op if requests else ""
            expected = f"{(n - 1) * size_bytes // n} on {n} ranks: {rule}; here {n - 1}/{n} x {size_bytes}"
            raise Wrong(f"{sent} bytes sent by rank {rank}", expected, notes.get(sent, ""), rank, large)
    return f"exactly {rule}, on every rank"


_NUMBERS = ", ".join(map(str, sorted(RANKS)))
