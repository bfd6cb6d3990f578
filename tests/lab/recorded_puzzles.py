"""The recorded schedules of the puzzles of lesson 09, which are at par."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

RECORDED = json.loads((Path(__file__).parents[1] / "recorded" / "puzzles.json").read_text())["schedules"]


def solution(name: str) -> str:
    """The schedule of a puzzle: kinds of a rank's actions are recorded, the micro-batches of each are in order."""
    lanes = []
    for rank, kinds in enumerate(RECORDED[name]):
        counts = {kind: itertools.count() for kind in "FBW"}
        lanes.append(" ".join(f"{rank}{kind}{next(counts[kind])}" for kind in kinds))
    return "\n".join(lanes)
