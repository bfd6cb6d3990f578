"""Lesson 13: MindSpore scripts. What a learner looks up in the IR files of `save_graphs`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

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
