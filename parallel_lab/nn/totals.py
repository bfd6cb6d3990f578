"""`Totals`: sums over all elements of a parameter, for rules that need a norm.

A rule computes on what it is given. On one device that is the whole parameter; in a compiled program it is one rank's slice, and the pass `update`
gives the rule a `Totals` of its own, whose sums run over the ranks that hold different slices. So one rule serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops
from ..tensor import Tensor

__all__ = ["Place", "Totals", "added", "all_finite", "in_dtype_of", "norm", "sum_of_squares"]


class Totals:
    """The sums of one device: it holds every parameter whole, so there is nothing to add."""

    def at(self, name: str) -> None:
        """The next operators work on this parameter ("" = on all of them); a compiled program is named by it."""

    def total(self, name: str, local: Any, why: str) -> Any:
        """Sum of `local`, a 0-d value, over the slices of parameter `name`.  why: what the sum is for, the start of the message's reason."""
        return local

    def totals(self, found: dict[str, Any], why: str) -> Any:
        """Sum of 0-d values over the slices of all these parameters; every element counts once."""
        return added(list(found.values()))


def added(values: list[Any]) -> Any:
    """The sum of at least one value, from the left."""
    total = values[0]
    for value in values[1:]:
        total = ops.add(total, value)
    return total


@dataclass(frozen=True)
class Place:
    """What an update rule is told about the parameter whose slice it is given.

    name          the parameter's name
    weight_decay  its factor of weight decay
    total         function of (0-d value, why) -> its sum over the parameter's slices
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
    """Whether no element of any tensor is infinite or not a number.  inputs: a list or tuple of (...)."""
    if isinstance(inputs, (Tensor, np.ndarray)):
        inputs = (inputs,)
    return all(bool(np.isfinite(x.asnumpy() if isinstance(x, Tensor) else x).all()) for x in inputs)
