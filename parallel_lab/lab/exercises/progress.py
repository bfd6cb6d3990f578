"""What a reload of a page must not forget: hints that were given, tries that count, what `check` has said.

A notebook in a page has its files in the browser, and a kernel that ends with the page. So there a desk writes two
small files after each check and hint, and reads them before the first one. CHECKS has the form of `save_results`, and
is what a learner hands in: its verdicts are for `parallel-lab wall`, and `parallel-lab grade` runs its cells again: all
that were run, by lesson. PROGRESS has the rest.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from ...base.errors import ParallelLabError
from ...base.files import write_whole
from ...base.plain_json import read_json

CHECKS, PROGRESS = Path("checks.json"), Path("progress.json")  # in the notebook's folder
LARGEST_BYTES = 4 << 20


def keep(desk: Any) -> None:
    """Write them."""
    tried = {number: [_listed(one) for one in tries] for number, tries in desk.tried.items()}
    desk.save_results(CHECKS)
    write_whole(PROGRESS, json.dumps({"seen": desk.seen, "own": desk.own, "tried": tried}, indent=1) + "\n")


def cells_of(desk: Any) -> dict[str, list[str]]:
    """{lesson: the cells that were run up to its last check, oldest first}, those of earlier kernels among them."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    ran = [cell for cell in shell.history_manager.input_hist_raw if cell.strip()] if shell is not None else []
    lessons = {number.partition(".")[0] for number in desk.results}
    return {**desk.cells, **{lesson: _once_or_twice([*desk.cells.get(lesson, []), *ran]) for lesson in lessons}}


def _once_or_twice(cells: list[str]) -> list[str]:
    """Equal cells at most twice: the first, for those that needed it, and the last, which holds."""
    last = {cell: at for at, cell in enumerate(cells)}
    first = {cell: at for at, cell in reversed([*enumerate(cells)])}
    return [cell for at, cell in enumerate(cells) if at in (first[cell], last[cell])]


def recall(desk: Any) -> None:
    """Read them, if they are there. One that is damaged, or another file of that name, is put aside, and a line says
    so: the next check writes a new one.
    """
    for path, take in ((CHECKS, _checks), (PROGRESS, _progress)):
        if path.exists():
            try:
                vars(desk).update(take(desk, read_json(path, ParallelLabError, max_bytes=LARGEST_BYTES)))
            except (OSError, ParallelLabError, KeyError, TypeError, ValueError, AttributeError) as fault:
                aside = path.with_suffix(".damaged.json")
                with contextlib.suppress(OSError):
                    path.replace(aside)
                print(f"What {path} holds cannot be read: {fault!r}. It is {aside} now, and a new one begins.")


def _checks(desk: Any, record: Any) -> dict[str, Any]:
    before = {one["exercise"]: dict(one) for one in record["checks"]}
    cells = {str(lesson): [str(cell) for cell in cells] for lesson, cells in record.get("cells", {}).items()}
    return {"before": before, "name": desk.name or str(record["learner"]), "cells": cells}


def _progress(desk: Any, record: Any) -> dict[str, Any]:
    seen = {str(number): int(count) for number, count in record["seen"].items()}
    own = {str(number): str(said) for number, said in record["own"].items()}
    tried = {number: dict.fromkeys(map(_hashable, tries)) for number, tries in record["tried"].items()}
    return {"seen": seen, "own": own, "tried": tried}


def _listed(value: Any) -> Any:
    """A try as JSON has it."""
    return [_listed(each) for each in value] if isinstance(value, tuple) else value


def _hashable(value: Any) -> Hashable:
    """A try as `spend` counts it."""
    return tuple(_hashable(each) for each in value) if isinstance(value, list) else value
