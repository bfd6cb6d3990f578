"""Schedules of pipelines: in which order every stage runs forward and backward of the micro-batches, as data.

    make_schedule("1f1b", 2, 4)[0]      0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3

Names: gpipe, 1f1b (MindSpore, pipeline_scheduler). S stages, M micro-batches, C chunks: parts s, s + S, ... on stage s.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..base.errors import ArgumentError
from ..graph.actions import PROGRAMS, Action

Schedule = list[list[Action]]


def _do(stage: int, kind: str, micro_batch: int) -> Action:
    return Action(stage, kind, micro_batch, PROGRAMS[kind])


def gpipe(stage: int, stages: int, micro_batches: int, chunks: int) -> Iterator[Action]:
    """All forwards, chunk by chunk, then all backwards, chunks descending. (Huang et al. 2019.)"""
    for chunk in range(chunks):
        yield from (_do(stage + chunk * stages, "F", n) for n in range(micro_batches))
    for chunk in reversed(range(chunks)):
        yield from (_do(stage + chunk * stages, "B", n) for n in range(micro_batches))


def one_forward_one_backward(stage: int, stages: int, micro_batches: int, chunks: int) -> Iterator[Action]:
    """Some forwards first, then forward and backward in turn. (PipeDream-Flush, Narayanan et al. 2021; with chunks
    MindSpore's interleaved form, whose warm-up has (S + M mod S) (C - 1) + 2 (S - s - 1) forwards.)
    """
    rest = micro_batches % stages
    loops = [range(min(stages + rest, micro_batches))]
    while loops[-1].stop < micro_batches:
        loops.append(range(loops[-1].stop, loops[-1].stop + stages))
    ahead = [(n, c) for loop in loops for c in range(chunks) for n in loop]
    back = [(n, c) for loop in loops for c in reversed(range(chunks)) for n in loop]
    warm = stages - stage - 1 if chunks == 1 else (stages + rest) * (chunks - 1) + 2 * (stages - stage - 1)
    for i in range(len(ahead) + warm):
        if i < len(ahead):
            yield _do(stage + ahead[i][1] * stages, "F", ahead[i][0])
        if 0 <= i - warm < len(back):
            yield _do(stage + back[i - warm][1] * stages, "B", back[i - warm][0])


SCHEDULES = {"gpipe": gpipe, "1f1b": one_forward_one_backward}


def make_schedule(name: str, stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """The actions of every stage, in order. Raises ArgumentError: no schedule of that name."""
    if name not in SCHEDULES:
        raise ArgumentError(f"schedule {name!r}", where="make_schedule", allowed=", ".join(SCHEDULES))
    return [list(SCHEDULES[name](stage, stages, micro_batches, chunks)) for stage in range(stages)]
