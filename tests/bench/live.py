"""What a page that computes takes: its first interaction, and the longest slice in which its controls cannot answer.

    found = measure_live(["memory"])
    print(live_text(found))

Every lab is opened in a Python that is played as a browser's (tests/portable/played_browser.py), with the numpy of this
machine, and nothing is downloaded. Times are those of the processor. A first interaction lasts from the start of Python
to the answer to a first command, with what it changed; slices are those of all runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallel_lab.base.units import time_text
from tests.bench.goals import Goal, goal_rows
from tests.bench.page import quotient, tables_text
from tests.lab.labs import LABS, WALKS
from tests.portable import played_browser

FIRST_S, SLICE_S = 3.0, 0.050  # the goals
LIMIT_S = 300
# WebAssembly's memory only grows: what was freed is there to be used again
MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


@dataclass(frozen=True)
class Taken:
    """Processor seconds of a lab.  slice_s: the longest, of its runs; None: it runs nothing"""

    lab: str
    first_s: float
    slice_s: float | None


def _played(*words: str) -> Any:
    command = [sys.executable, str(Path(played_browser.__file__)), *words]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **MEMORY, "MPLBACKEND": "agg", "IPYTHONDIR": folder, "TMPDIR": folder}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, cwd=folder, check=True
        )
    return json.loads(done.stdout.splitlines()[-1].removeprefix("FOUND "))


def measure_live(names: Iterable[str], *, tell: Callable[[str], object] = lambda text: None) -> list[Taken]:
    """Each of these labs, in processes of their own, one after the other."""
    found = []
    for name in names:
        tell(name)
        first_s = _played("first_interaction", json.dumps(LABS[name]().state()), json.dumps(WALKS[name][0]))
        runs = [run["longest_s"] for run in _played("run_labs", name)[name].values() if isinstance(run, dict)]
        found.append(Taken(name, first_s, max(runs, default=None)))
    return found


def live_goals(found: Iterable[Taken]) -> tuple[Goal, ...]:
    """The lab that takes longest, for each of the two."""
    first = max(found, key=lambda taken: taken.first_s)
    longest = max(found, key=lambda taken: taken.slice_s or 0.0)
    return (
        Goal("first interaction", time_text(FIRST_S), 1.0, first.first_s / FIRST_S, first.lab),
        Goal("a slice", time_text(SLICE_S), 1.0, quotient(longest.slice_s, SLICE_S), longest.lab),
    )


def live_text(found: Iterable[Taken]) -> str:
    """A line for each lab, and the goals."""
    rows = [("lab", "first interaction", "longest slice")]
    rows += [(f.lab, time_text(f.first_s), "-" if f.slice_s is None else time_text(f.slice_s)) for f in found]
    return tables_text([(rows, 1), (goal_rows(live_goals(found)), 2)], ["Times of the processor, nothing downloaded."])
