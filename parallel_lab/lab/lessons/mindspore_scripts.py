"""Lesson 13: MindSpore scripts. What a learner looks up in the IR files of `save_graphs`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np

from ...base.events import EventLog
from ..shared.prediction import Comparison

_STRATEGY = re.compile(r"= (\w+)\(.*instance name: (\w+)}.*{in_strategy: (.*)}")


def chosen_strategies(folder: str | Path) -> dict[str, tuple[str, tuple[tuple[int, ...], ...]]]:
    """{name: (operator, strategy)} of the latest `step_parallel_begin_*.ir` in a rank's folder."""
    text = sorted(Path(folder).glob("step_parallel_begin_*.ir"))[-1].read_text(encoding="utf-8")
    found = {}
    for operator, name, written in _STRATEGY.findall(text):
        strategy = ast.literal_eval(written)  # the files write ((2, 2)) for a single input
        found[name] = operator, strategy if isinstance(strategy[0], tuple) else (strategy,)
    return found


def rank_program(folder: str | Path, lines: int = 20) -> str:
    """The first lines of the latest `18_execute_*.ir` of a rank's folder: instructions, types and reasons only."""
    text = sorted(Path(folder).glob("18_execute_*.ir"))[-1].read_text(encoding="utf-8")
    program = text[text.index("\n%1(") + 1 :].splitlines()
    shown = [line.split(" {instance")[0] for line in program if not re.match(r"\s*# (scope|In file)", line)]
    return "\n".join(shown[:lines])


def losses_of(name: str) -> list[np.ndarray]:
    """The losses that the four ranks of a script wrote into `name_rank.txt`."""
    return [np.loadtxt(f"{name}_{rank}.txt") for rank in range(4)]


def compare(prediction: dict[str, Any], slices: Any, strategies: Any, *, show: bool = False) -> Comparison:
    """The answers next to what the scripts of the lesson have written in the present folder.

    slices      of w, of every rank;  strategies: as `chosen_strategies` found them
    """
    events = EventLog.load("sum.json")
    own, split = losses_of("data_parallel"), losses_of("split")
    sums = {float(np.load(f"sum_{rank}.npy")[0, 0]) for rank in range(4)}
    own_losses = "different" if np.ptp(own, axis=0).all() else "same"
    split_losses = "different" if np.ptp(split, axis=0).any() else "same"
    p = 4
    return Comparison.of(
        prediction,
        show=show,
        lesson="13",
        sum=("sum on every rank", 1 + 2 + 3 + 4, *sums, "AllReduce gives the whole sum to all"),
        bytes=("bytes one rank sends", 2 * (p - 1) * 4096 // p, events.filter(rank=0).events[0].bytes, "2 (p - 1)/p S"),
        data_parallel=("losses, data_parallel", "different", own_losses, "each rank has its own rows"),
        semi_auto=("losses, operators split", "same", split_losses, "all ranks share one loss"),
        slice=("slice of w on rank 0", (32 // 2, 16), slices[0].shape, "(2, 1) splits the rows of w in two"),
        relu=(
            "strategy of the ReLU",
            ((2, 2),),
            strategies["relu"][1],
            "((2, 1),) would leave 2 of the 4 devices unused",
        ),
    )
