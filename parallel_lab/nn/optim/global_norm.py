"""Norms and means of whole parameters, from the slices that a rule is given (`totals.py`), and sums of a rank that
updates its slices at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...base.hooks import current_world
from ...layout.slices import cut, is_split, put
from ...layout.tensor_layout import TensorLayout
from ...ops.elementwise import cast, div, sub
from ...ops.reduce import reduce_mean, reduce_sum
from ...ops.shape import expand_dims
from ...ops.unary import sqrt, square
from ..tensor.tensor import RankTensor, Tensor
from .state_shapes import along
from .totals import Place, Totals


class RankTotals(Totals):
    """Sums of a rank that updates its slices at once, as every rank must. layouts: {parameter: layout if split}."""

    def __init__(self, layouts: dict[str, TensorLayout]) -> None:
        self.layouts = layouts

    def total(
        self, name: str, local: Any, why: str, over: Sequence[int] | None = None, kept: Sequence[int] = ()
    ) -> Any:
        layout = self.layouts.get(name)
        if layout is None:
            return local
        counted = layout if over is None else along(layout, sorted({*over, *kept}))
        return _over_slices(counted, np.asarray(local), "sum", f"{why}: {name}", along(layout, kept))

    def parts(self, name: str) -> tuple[float, ...]:
        return self.layouts[name].slice_counts if name in self.layouts else ()


def _over_slices(
    layout: TensorLayout, value: np.ndarray, reduce: str, tag: str, held: TensorLayout | None = None
) -> np.ndarray:
    """The ranks' findings, combined over all slices of a tensor; copies count once. Every rank has to call it.

    held  the layout of `value`, a slice itself: each is added to those of its place only
    """
    world = current_world()
    numbers = layout.slice_numbers(world.rank)
    first = next(rank for rank in range(world.world_size) if layout.slice_numbers(rank) == numbers)
    mine = value if first == world.rank or reduce != "sum" else np.zeros_like(value)
    if not is_split(held):
        return world.comm.all_reduce(mine, reduce=reduce, tag=tag)
    full = np.zeros(held.full_shape(value.shape), value.dtype)
    put(mine, held.slice_numbers(world.rank), full, held)
    return cut(world.comm.all_reduce(full, reduce=reduce, tag=tag), held, world.rank)


def of_the_whole(x: Any, sums: Any, reduce: str = "sum") -> Any:
    """`found`, 0-d, of x, combined ("sum", "max") over its slices if `x` is what a compiled call has returned."""
    if not isinstance(x, RankTensor) or not is_split(x.layout):
        return sums
    tag = f"{reduce} over the slices of a tensor {x.full_shape}"
    return Tensor(_over_slices(x.layout, np.asarray(sums.asnumpy()), reduce, tag))


def as_slice_of(x: Any, result: Any) -> Any:
    """`result`, made element by element from x, laid out as x is."""
    return RankTensor(result.asnumpy(), x.full_shape, x.layout) if isinstance(x, RankTensor) else result


def wide(x: Any) -> Any:
    """x in float32 at least."""
    return cast(x, "float32") if np.dtype(str(x.dtype)).itemsize < 4 else x


def sum_of_squares(x: Any) -> Any:
    """Sum of squared elements, in float32 at least.  x: (...) -> ()."""
    return reduce_sum(square(wide(x)))


def norm(x: Any, place: Place, what: str) -> Any:
    """L2 norm of the whole of what `x` is a slice of.  x: (...) -> ()."""
    return in_dtype_of(x, sqrt(place.total(sum_of_squares(x), f"the norm of {what} counts all elements")))


def mean(x: Any, place: Place, what: str, over: Sequence[int] | None = None, dims: Sequence[int] | None = None) -> Any:
    """Mean of the whole of what `x` is a slice of.

    over  dims of the parameter along which it is taken; None: all
    dims  dims of the parameter that x has; None: all
    """
    dims = tuple(range(len(x.shape))) if dims is None else tuple(dims)
    over = dims if over is None else tuple(over)
    kept = tuple(d for d in dims if d not in over)
    local = reduce_mean(x, tuple(dims.index(d) for d in over)) if over else x
    parts = math.prod(place.parts[d] for d in over) if place.parts else 1
    if parts == 1:
        return local
    return div(place.total(local, f"the mean of {what} counts all elements", over, kept), parts)


def centralized(gradient: Any, place: Place) -> Any:
    """A gradient without its mean along all dims but the first (Yong and others 2020, "Gradient centralization"); that
    of a parameter of one dim as it is.
    """
    dims = tuple(range(len(gradient.shape)))
    if len(dims) < 2:
        return gradient
    middle = mean(gradient, place, f"the gradient of {place.name!r}, which is centralized,", dims[1:])
    for d in dims[1:]:
        middle = expand_dims(middle, d)
    return sub(gradient, in_dtype_of(gradient, middle))


def in_dtype_of(x: Any, value: Any) -> Any:
    """`value` in the dtype of `x`, so that the two multiply without widening."""
    return value if str(value.dtype) == str(x.dtype) else cast(value, str(x.dtype))
