"""Lesson 13: MindSpore scripts. What a learner looks up in the IR files of `save_graphs`, and scripts to repair."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...base.events import EventLog
from ...processes.launch import as_mindspore_folder
from ..exercises import check, hint
from ..exercises.played_ranks import on_ranks
from ..shared.prediction import Comparison
from .predictions import Answers

__all__ = ["by_rank_table", "check", "chosen_strategies", "compare", "hint", "losses_of", "on_ranks", "rank_program"]

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


def _written(name: str) -> Any:
    """What a script has written, a number or a tuple; None: the notebook is of an earlier release, without it."""
    return ast.literal_eval(Path(name).read_text(encoding="utf-8")) if Path(name).exists() else None


def losses_of(name: str) -> list[np.ndarray]:
    """The losses that the four ranks of a script wrote into `name_rank.txt`."""
    return [np.loadtxt(f"{name}_{rank}.txt") for rank in range(4)]


def by_rank_table(cards: Sequence[int], script: str) -> str:
    """What a script says that is started once for each card, as a shell would: its last line for each rank, in order.

    cards  of one server, by rank: they are written into rank_table.json, in the present folder
    """
    places = list(enumerate(map(str, cards)))
    devices = [{"device_id": card, "device_ip": f"192.1.27.{card}", "rank_id": str(rank)} for rank, card in places]
    server = {"server_id": "10.0.0.1", "host_nic_ip": "reserve", "device": devices}
    table = {"version": "1.0", "server_count": "1", "status": "completed", "server_list": [server]}
    Path("rank_table.json").write_text(json.dumps(table, indent=1), encoding="utf-8")
    path = os.pathsep.join(filter(None, (str(as_mindspore_folder()), os.environ.get("PYTHONPATH"))))
    shared = {**os.environ, "PYTHONPATH": path, "RANK_TABLE_FILE": "rank_table.json"}
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = [
        subprocess.Popen([sys.executable, script], env={**shared, "RANK_ID": str(rank), "DEVICE_ID": card}, **how)
        for rank, card in places
    ]
    try:
        return "\n".join(one.communicate()[0].strip().splitlines()[-1] for one in started)
    finally:
        for one in started:
            one.kill()  # without effect on those that have ended
            one.wait()


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
    return Answers("13", prediction, show).next_to(
        sum=(1 + 2 + 3 + 4, *sums, "AllReduce gives the whole sum to all"),
        bytes=(2 * (p - 1) * 4096 // p, events.filter(rank=0).events[0].bytes, "2 (p - 1)/p S"),
        data_parallel=("different", own_losses, "each rank has its own rows"),
        semi_auto=("same", split_losses, "all ranks share one loss"),
        slice=((32 // 2, 16), slices[0].shape, "(2, 1) splits the rows of w in two"),
        relu=(((2, 2),), strategies["relu"][1], "((2, 1),) would leave 2 of the 4 devices unused"),
        seen=((1 * 16, 4 * 8), _written("seen.txt"), "a slice's shape times the counts: global"),
        card=(2, _written("card_of_1.txt"), "the order in the table counts, not the card's number"),
    )
