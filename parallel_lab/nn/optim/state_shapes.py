"""Shapes and layouts of an optimizer's states, which follow from those of their parameter.

Most states have the shape of their parameter. Those that are means along a dim lack it (AdaFactor's): `dims_of_state`
names the dims that are left, and the slices of a state follow from the parameter's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ...layout.tensor_layout import TensorLayout

# which dim of the parameter, from the right, is missing
_MEANS_ALONG = {"exp_avg_sq_row": 1, "exp_avg_sq_col": 2}


def dims_of_state(kind: str, ndim: int, kinds: Collection[str] = ()) -> tuple[int, ...] | None:
    """The dims of a parameter that its state `kind` has; None if such a parameter has no such state, by its dims or
    because the states `kinds` of the optimizer stand for it.

    >>> dims_of_state("moments", 3), dims_of_state("exp_avg_sq_col", 3), dims_of_state("exp_avg_sq_col", 1)
    ((0, 1, 2), (0, 2), None)
    """
    factored = kind in _MEANS_ALONG
    if ndim < 2 if factored else kind == "exp_avg_sq" and ndim >= 2 and not _MEANS_ALONG.keys().isdisjoint(kinds):
        return None
    return tuple(d for d in range(ndim) if not factored or d != ndim - _MEANS_ALONG[kind])


def along(layout: TensorLayout, dims: Sequence[int]) -> TensorLayout:
    """The layout of a tensor with these dims of another, split as they are."""
    rows = layout.rows if tuple(dims[:1]) == (0,) else ()
    return TensorLayout(layout.device_matrix, tuple(layout.tensor_map[d] for d in dims), rows=rows)


def shape_of_state(kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a state of a parameter, or slice, of this shape."""
    return tuple(shape[d] for d in dims_of_state(kind, len(shape)) or ())


def layout_of_state(kind: str, layout: TensorLayout | None) -> TensorLayout | None:
    """How a state of a parameter with this layout is split."""
    return None if layout is None else along(layout, dims_of_state(kind, layout.ndim) or ())


@dataclass(frozen=True)
class ShapeAndDtype:
    """What `initial_state` needs to know about a parameter or a slice."""

    shape: tuple[int, ...]
    dtype: np.dtype | str
