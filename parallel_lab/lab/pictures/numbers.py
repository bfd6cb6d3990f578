"""The numbers in a slice: what a rank holds of a tensor in the first step, as a small map.

    ranks = simulated_step(plan, net, optimizer, batch)
    heat_map(ranks.value("matmul.partial", 5), start=(8, 0), drawn=drawn_dims((2, 1)))

Real values of the simulator, which gives the bits that processes give; parameters as they are before the first update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...graph.plan import Plan
from ...run.simulator import Simulator
from ...train.session import initial_values
from .picture import TensorEntry

CELLS = 16  # of a map, each way; a slice with more rows or columns is shrunk to so many
DIGITS = 3  # of a number that is shown


def simulated_step(plan: Plan, net: Any, optimizer: Any, batch: Sequence[Any]) -> Simulator:
    """The ranks after forward and backward of the first step, with every value that they made."""
    ranks = Simulator(plan, initial_values(plan, net, optimizer))
    ranks.begin(*batch)
    updates = {id(instr) for _, instr in plan.instructions("update")}
    while (tick := ranks.next_instruction()) is not None and id(tick.instr) not in updates:
        pass
    return ranks


def slice_numbers(
    plan: Plan, ranks: Simulator, entry: TensorEntry, phase: str, rank: int, drawn: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The map of one rank's slice of a tensor, or of its gradient; None where that is missing."""
    name = entry.value if phase == "forward" else dict(plan.value_gradients).get(entry.value)
    if name is None or name not in ranks.envs[rank]:
        return None
    array, value = np.asarray(ranks.value(name, rank)), plan.value(name)
    start = (0,) * array.ndim
    if value.layout is not None and array.shape == value.slice_shape:
        start = tuple(s.start for s in value.layout.slice_index(value.shape, rank))
    return heat_map(array, start, drawn)


def heat_map(array: np.ndarray, start: Sequence[int], drawn: Mapping[str, Any]) -> dict[str, Any]:
    """At most CELLS x CELLS numbers of an array.

    start  where it begins in the whole tensor;  drawn: which dims run down and across (`drawn_dims`); of other dims the
    first index is taken

    A larger array is shrunk: a cell is the mean of a block, and blocks are as equal as they can be.

    >>> heat_map(np.arange(64.0).reshape(2, 32), (4, 0), {"down": 0, "across": 1})["rule"]
    'each cell is the mean of 1 x 2 values'
    """
    dims = [drawn["down"], drawn["across"]]
    flat = np.asarray(array, np.float64)
    others = [d for d in range(flat.ndim) if d not in dims]
    for d in sorted(others, reverse=True):
        flat = flat.take(0, axis=d)
    if None not in dims and dims[0] > dims[1]:
        flat = flat.T
    flat = flat.reshape([1 if d is None else array.shape[d] for d in dims])
    cuts = [np.array_split(np.arange(n), min(n, CELLS)) for n in flat.shape]
    means = [[_rounded(flat[np.ix_(rows, columns)].mean()) for columns in cuts[1]] for rows in cuts[0]]
    begin = [0 if d is None else start[d] for d in dims]
    spans = [
        [[first + int(part[0]), first + int(part[-1]) + 1] for part in cut]
        for first, cut in zip(begin, cuts, strict=True)
    ]
    most = [max(map(len, cut), default=0) for cut in cuts]
    rule = "each cell is one value" if most == [1, 1] else f"each cell is the mean of {most[0]} x {most[1]} values"
    if others:
        rule += f"; of dim{'s' * (len(others) > 1)} {', '.join(map(str, others))} the first index"
    known = [abs(v) for row in means for v in row if v is not None]
    return {"rows": spans[0], "columns": spans[1], "values": means, "rule": rule, "largest": max(known, default=0.0)}


def _rounded(value: float) -> float | None:
    """Six digits are more than are shown; None unless it is finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def number_text(value: float | None) -> str:
    """Three significant digits.

    >>> number_text(0.012345), number_text(-1234567.0), number_text(None)
    ('0.0123', '-1.23e+06', 'not a number')
    """
    return "not a number" if value is None else f"{value:.{DIGITS}g}"
