"""Answers at par to puzzles: the recorded schedules of lesson 09, and the moves of 17.5 by a search of the tests; and
what a learner may hear from a function that lies near a puzzle.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from parallel_lab.base.errors import LayoutError

RECORDED = json.loads((Path(__file__).parents[1] / "recorded" / "puzzles.json").read_text())["schedules"]


def solution(name: str) -> str:
    """The schedule of a puzzle: kinds of a rank's actions are recorded, the micro-batches of each are in order."""
    lanes = []
    for rank, kinds in enumerate(RECORDED[name]):
        counts = {kind: itertools.count() for kind in "FBW"}
        lanes.append(" ".join(f"{rank}{kind}{next(counts[kind])}" for kind in kinds))
    return "\n".join(lanes)


def fewest_bytes(puzzle):
    """By layers of ever more moves, keeping the least that is sent to each layout."""
    layer = {puzzle.source: (0.0, [])}
    best = None
    for _ in range(10):
        new = {}
        for dims, (cost, moves) in layer.items():
            for axis, to in itertools.product(puzzle.sizes, range(3)):
                with contextlib.suppress(LayoutError):
                    after, more = puzzle.after(dims, axis, to), cost + 1 - 1 / puzzle.sizes[axis]
                    if after not in new or more < new[after][0]:
                        new[after] = more, [*moves, (axis, to)]
        layer = new
        if puzzle.target in layer and (best is None or layer[puzzle.target][0] < best[0]):
            best = layer[puzzle.target]
    return best[1]


def replies(make: Callable[..., Any], given: Sequence[Any], counts: Iterable[int]) -> Iterator[tuple[str, Any]]:
    """The calls of a function with any of these arguments, so many at a time, and what each call gives."""
    for arguments in (each for n in counts for each in itertools.product(given, repeat=n)):
        try:
            value = make(*arguments)
            value = list(itertools.islice(value, 100)) if inspect.isgenerator(value) else value
        except Exception:  # not made for these
            continue
        yield f"{make.__name__}{arguments}", value
