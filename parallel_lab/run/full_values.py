"""Between full tensors and the slices that ranks hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..base.dtypes import kind_of, plain_array
from ..base.errors import ShapeError
from ..base.hooks import breathe
from ..graph.kinds import Env
from ..graph.plan import Plan
from ..layout.slices import assemble, cut


def slice_value(plan: Plan, name: str, full: np.ndarray, rank: int) -> np.ndarray:
    """This rank's slice of a full tensor: a C-contiguous copy."""
    breathe()
    return cut(full_value(plan, name, full), plan.value(name).layout, rank % plan.stages[0].count)


def full_value(plan: Plan, name: str, full: np.ndarray) -> np.ndarray:
    """A full tensor in the dtype that the plan gives it. Raises ShapeError for another shape or kind of number."""
    value = plan.value(name)
    full = plain_array(full, where=name)
    if full.shape != value.shape:
        what = f"{name!r} has shape {full.shape}"
        raise ShapeError(what, where="slice_value", allowed=f"Its global shape {value.shape}")
    if full.dtype != value.dtype and not np.can_cast(full.dtype, value.dtype, "same_kind"):
        floats = kind_of(full.dtype) == "f"
        hint = "Class numbers are ints; or compile for floats" if floats else f"Convert it: astype({value.dtype!r})"
        allowed = f"{value.dtype}, for which the plan was compiled"
        raise ShapeError(f"{name!r} is {full.dtype}", where="slice_value", allowed=allowed, hint=hint)
    return full.astype(value.dtype, copy=False)


def gather_value(plan: Plan, name: str, slices: Sequence[Any]) -> np.ndarray:
    """The full tensor from the slices of the first stage that has it, partial results combined in rank order; else its
    first rank's, or the only holder's.
    """
    breathe()
    value, owner = plan.value(name), plan.owner_of(name)
    if owner is not None:
        return np.array(slices[owner])
    stage = next(stage for stage in plan.stages if plan.held_by(name, stage.first))
    return assemble(slices[stage.first : stage.first + stage.count], value.shape, value.layout)


def step_inputs(plan: Plan, rank: int, inputs: Iterable[Any]) -> Env:
    """This rank's part of one step's data, from the global batch, in the order `compile` was given it."""
    return held_slices(plan, rank, full_inputs(plan, inputs) | plan.constant_arrays)


def held_slices(plan: Plan, rank: int, full: Env) -> Env:
    """This rank's slices of those full tensors that it holds a part of."""
    return {name: slice_value(plan, name, array, rank) for name, array in full.items() if plan.held_by(name, rank)}


def full_inputs(plan: Plan, inputs: Iterable[Any]) -> Env:
    """One step's data by name, in the plan's dtypes, from the global batch in the order `compile` was given it."""
    arrays = [plain_array(x.asnumpy() if hasattr(x, "asnumpy") else x, where="inputs") for x in inputs]
    expected = plan.data_inputs
    if len(arrays) != len(expected):
        allowed = f"{len(expected)}: {', '.join(i.name for i in expected)}"
        raise ShapeError(f"got {len(arrays)} inputs", where=f"plan {plan.graph.name}", allowed=allowed)
    return {i.name: full_value(plan, i.name, x) for i, x in zip(expected, arrays, strict=True)}
