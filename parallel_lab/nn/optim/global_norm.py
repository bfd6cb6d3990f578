"""`Totals`: sums over all elements of a parameter, for rules that need a norm.

A rule computes on what it is given. On one device that is the whole parameter; in a compiled program it is one rank's
slice, and the pass `update` gives the rule a `Totals` of its own, whose sums run over the ranks that hold different
slices. So one rule serves both. A rank that updates its slices without a program has `RankTotals`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import ops
from ...base.hooks import current_world
from ...layout.slices import is_split
from ...layout.tensor_layout import TensorLayout
from ..tensor.tensor import RankTensor, Tensor


class Totals:
    """The sums of one device: it holds every parameter whole, so there is nothing to add."""

    def at(self, name: str) -> None:
        """The next operators work on this parameter ("" = on all of them); a compiled program is named by it."""

    def each(self, found: dict[str, Any], function: Callable[[str, Any], Any]) -> dict[str, Any]:
        """{parameter: function(parameter, value)}."""
        done = {}
        for name, value in found.items():
            self.at(name)
            done[name] = function(name, value)
        return done

    def total(self, name: str, local: Any, why: str) -> Any:
        """Sum of `local`, 0-d, over the slices of parameter `name`.  why: the start of the message's reason."""
        return local

    def totals(self, found: dict[str, Any], why: str) -> Any:
        """Sum of 0-d values over the slices of all these parameters; every element counts once."""
        return added([self.total(name, local, why) for name, local in found.items()])


class RankTotals(Totals):
    """Sums of a rank that updates its slices at once, as every rank must. layouts: {parameter: layout if split}."""

    def __init__(self, layouts: dict[str, TensorLayout]) -> None:
        self.layouts = layouts

    def total(self, name: str, local: Any, why: str) -> Any:
        layout = self.layouts.get(name)
        return local if layout is None else _over_slices(layout, np.asarray(local), "sum", f"{why}: {name}")


def _over_slices(layout: TensorLayout, value: np.ndarray, reduce: str, tag: str) -> np.ndarray:
    """The ranks' findings, combined over all slices of a tensor; copies count once. Every rank has to call it."""
    world = current_world()
    held = layout.slice_numbers(world.rank)
    first = next(rank for rank in range(world.world_size) if layout.slice_numbers(rank) == held)
    mine = value if first == world.rank or reduce != "sum" else np.zeros_like(value)
    return world.comm.all_reduce(mine, reduce=reduce, tag=tag)


def of_the_whole(x: Any, found: Any, reduce: str = "sum") -> Any:
    """`found`, 0-d, of x, combined ("sum", "max") over its slices if `x` is what a compiled call has returned."""
    if not isinstance(x, RankTensor) or not is_split(x.layout):
        return found
    tag = f"{reduce} over the slices of a tensor {x.full_shape}"
    return Tensor(_over_slices(x.layout, np.asarray(found.asnumpy()), reduce, tag))


def as_slice_of(x: Any, result: Any) -> Any:
    """`result`, made element by element from x, laid out as x is."""
    return RankTensor(result.asnumpy(), x.full_shape, x.layout) if isinstance(x, RankTensor) else result


def added(values: list[Any]) -> Any:
    """The sum of at least one value, from the left."""
    return functools.reduce(ops.add, values)


@dataclass(frozen=True)
class Place:
    """What a rule is told about the parameter whose slice it gets: its name, its factor of weight decay, and
    `total`, a function of (0-d value, why) -> its sum over the parameter's slices.
    """

    name: str = ""
    weight_decay: float = 0.0
    total: Callable[[Any, str], Any] = lambda local, why: local


def sum_of_squares(x: Any) -> Any:
    """Sum of squared elements, in float32 at least.  x: (...) -> ()."""
    if np.dtype(str(x.dtype)).itemsize < 4:
        x = ops.cast(x, "float32")
    return ops.reduce_sum(ops.square(x))


def norm(x: Any, place: Place, what: str) -> Any:
    """L2 norm of the whole of what `x` is a slice of.  x: (...) -> ()."""
    return in_dtype_of(x, ops.sqrt(place.total(sum_of_squares(x), f"the norm of {what} counts all elements")))


def in_dtype_of(x: Any, value: Any) -> Any:
    """`value` in the dtype of `x`, so that the two multiply without widening."""
    return value if str(value.dtype) == str(x.dtype) else ops.cast(value, str(x.dtype))


def all_finite(inputs: Sequence[Any]) -> bool:
    """Whether no element is infinite or NaN.  inputs: a list or tuple of (...); of slices, every rank must call it."""
    if isinstance(inputs, (Tensor, np.ndarray)):
        inputs = (inputs,)
    bad = [np.float32(not np.isfinite(x.asnumpy() if isinstance(x, Tensor) else x).all()) for x in inputs]
    return not any(float(of_the_whole(x, Tensor(one), "max")) for x, one in zip(inputs, bad, strict=True))
