"""Who answers the rows of `rosetta.json`: a function for each family, which calls public names only.

    layouts(ROWS["layouts"][0])     {"slices": [...], "b": "Layout(...)", "reason": "", "forms": ..., "no_form": ...}

A function takes a row and returns, under the names of the recorded file, what the row says was observed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import parallel_lab as pl
from parallel_lab.layout.notations import written

Row = dict[str, Any]
ROWS: dict[str, list[Row]] = {
    name: rows
    for name, rows in json.loads(Path(__file__).with_name("rosetta.json").read_text(encoding="utf-8")).items()
    if isinstance(rows, list)
}


# ---- layouts ----


def layouts(row: Row) -> Row:
    """`a` read with the row's mesh and shape: every rank's slices, `b` or the reason, and all other notations.

    What the text of `a` does not say is taken from the row: the mesh, and which reduction is pending.
    """
    mesh = pl.DeviceMesh(tuple(row["mesh"]), tuple(row["names"]), tuple(row.get("ranks", ())))
    shape, (notation, text), wanted = tuple(row["shape"]), row["a"], row["b"][0]
    layout = pl.notations[notation].parse(text, mesh, shape, next(iter(row.get("partial", {}).values()), "sum"))
    forms = written(layout, shape)
    return {
        "slices": [[list(run) for run in layout.slices(shape, rank)] for rank in range(mesh.size)],
        "b": forms[wanted].text,
        "reason": forms[wanted].reason,
        "forms": {name: form.text for name, form in forms.items()},
        "no_form": {name: form.reason for name, form in forms.items() if form.text is None},
    }
