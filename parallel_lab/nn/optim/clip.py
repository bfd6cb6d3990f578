"""Gradient clipping: functions for tensors at hand, and `GradientClip`, the setting an optimizer takes.

    optimizer = nn.Adam(net.trainable_params(), 1e-3, clip=nn.GradientClip("global_norm", 1.0))

With the setting the clipping is part of the update: eager steps and compiled plans do it alike, after the loss scale is
divided out and before weight decay. In a plan a rank holds slices; the norm counts every element of every parameter
once, summed over the ranks that hold different slices and not over those that hold copies.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from ...base.checks import checked, choice, fitting_class, flag, number
from ...base.errors import ArgumentError, ArgumentTypeError, shorten
from ...ops.elementwise import div, maximum, minimum, mul, power
from ...ops.machine.operand_checks import is_operand
from ...ops.reduce import reduce_max, reduce_sum
from ...ops.unary import abs_, sqrt
from .global_norm import Totals, added, all_finite, as_slice_of, in_dtype_of, of_the_whole, sum_of_squares


@fitting_class
@dataclass(frozen=True)
class GradientClip:
    """How an optimizer clips its gradients.

    kind   "value": every element to a range; "norm": every parameter's gradient to an L2 norm; "global_norm": all
           gradients by one factor, so that the L2 norm of all their elements together is at most the limit
    limit  a number above 0; for "value" also a pair (least, most), a number meaning (-number, number)
    """

    kind: str
    limit: float | tuple[float, float]

    def __post_init__(self) -> None:
        choice("value", "norm", "global_norm")("GradientClip", "kind", self.kind)
        limit = self.limit
        if self.kind != "value" or not isinstance(limit, (tuple, list)):
            limit = number(0, above=True)("GradientClip", "limit", limit)
        elif len(limit) != 2:
            allowed = "A number, or a pair (least, most)"
            raise ArgumentError(f"limit={shorten(limit)}", where="GradientClip", allowed=allowed)
        else:
            limit = _range("GradientClip", *limit)
        object.__setattr__(self, "limit", limit)

    def clipped(self, gradients: dict[str, Any], totals: Totals) -> dict[str, Any]:
        """The clipped gradients: {parameter: gradient or one rank's slice of it} -> the same."""
        if self.kind == "value":
            low, high = self.limit if isinstance(self.limit, tuple) else (-self.limit, self.limit)
            return totals.each(gradients, lambda name, g: maximum(minimum(g, high), low))
        squares = totals.each(gradients, lambda name, g: sum_of_squares(g))
        if self.kind == "global_norm":
            totals.at("")
            why = "the global norm, by which gradients are clipped, counts every element once"
            factors = dict.fromkeys(gradients, _factor(sqrt(totals.totals(squares, why)), self.limit))
        else:

            def factor(name: str, square: Any) -> Any:
                why = f"the norm by which the gradient of {name!r} is clipped counts all its elements"
                return _factor(sqrt(totals.total(name, square, why)), self.limit)

            factors = totals.each(squares, factor)
        return totals.each(gradients, lambda name, g: mul(g, in_dtype_of(g, factors[name])))

    def __str__(self) -> str:
        return f"GradientClip({self.kind!r}, {self.limit})"


def _factor(norm: Any, limit: float) -> Any:
    """limit / norm where the norm is above the limit, else 1."""
    return div(limit, maximum(norm, limit))


# ---- for tensors at hand ----


def clip_by_value(x: Any, clip_value_min: Any = None, clip_value_max: Any = None) -> Any:
    """Every element brought into the range.  x: (...) -> (...), or a list or tuple of such -> tuple.

    The bounds are numbers or Tensors, one may be None. Raises ArgumentError if both are None or cross.
    """
    if clip_value_min is None and clip_value_max is None:
        allowed = "clip_value_min, clip_value_max or both"
        raise ArgumentError("no bound is given", where="clip_by_value", allowed=allowed)
    if isinstance(clip_value_min, Real) and isinstance(clip_value_max, Real):
        _range("clip_by_value", clip_value_min, clip_value_max)
    if isinstance(x, (list, tuple)):
        return tuple(clip_by_value(one, clip_value_min, clip_value_max) for one in x)
    if clip_value_max is not None:
        x = minimum(x, clip_value_max)
    return x if clip_value_min is None else maximum(x, clip_value_min)


@checked(max_norm=number(0, above=True), error_if_nonfinite=flag)
def clip_by_norm(x: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Any:
    """Scaled so that the norm is at most `max_norm`.  x: (...) -> (...), or a list or tuple of such, by the norm of all
    elements together -> tuple.

    norm_type           p of the p-norm, at least 1; math.inf: the largest absolute value
    error_if_nonfinite  raise ArgumentError if the norm is not finite (it is read, so not while a network is compiled)

    MindSpore's clip_by_norm; without the 1e-6 that is added to the norm there.
    """
    where = "clip_by_norm"
    if isinstance(norm_type, bool) or not isinstance(norm_type, Real) or not norm_type >= 1:
        raise ArgumentError(f"norm_type={shorten(norm_type)}", where=where, allowed="A number, at least 1, or math.inf")
    given = tuple(x) if isinstance(x, (list, tuple)) else (x,)
    _check_tensors(x, given, where, "At least one Tensor")
    norm = _norm_of_all(given, float(norm_type))
    if error_if_nonfinite and not all_finite((norm,)):
        hint = "Look for inf and nan in the gradients, or use a loss scaler"
        raise ArgumentError("the norm is not finite", where=where, hint=hint)
    scaled = _scaled(given, _factor(norm, max_norm))
    return scaled if isinstance(x, (list, tuple)) else scaled[0]


def _norm_of_all(xs: tuple[Any, ...], p: float) -> Any:
    if p == 2:
        return sqrt(added([of_the_whole(one, sum_of_squares(one)) for one in xs]))
    sizes = [abs_(one) for one in xs]
    if math.isinf(p):
        largest = [of_the_whole(one, reduce_max(size), "max") for one, size in zip(xs, sizes, strict=True)]
        return functools.reduce(maximum, largest)
    powers = [of_the_whole(one, reduce_sum(power(size, p))) for one, size in zip(xs, sizes, strict=True)]
    return power(added(powers), 1 / p)


@checked(clip_norm=number(0, above=True))
def clip_by_global_norm(x: Sequence[Any], clip_norm: float = 1.0, use_norm: Any = None) -> tuple[Any, ...]:
    """All scaled by one factor, so that the L2 norm of all elements together is at most `clip_norm`.  x: list or tuple
    of (...) -> tuple.

    Of gradients that a compiled call has returned as slices all elements count: every rank has to call it.

    use_norm  the global norm, if it is known already: a number or a 0-d Tensor
    """
    where, given = "clip_by_global_norm", tuple(x) if isinstance(x, (list, tuple)) else ()
    _check_tensors(x, given, where, "A list or tuple of at least one Tensor")
    if isinstance(use_norm, Real):
        factor = clip_norm / max(number(0)(where, "use_norm", use_norm), clip_norm)
        return tuple(as_slice_of(one, mul(one, factor)) for one in given)
    return _scaled(given, _factor(_norm_of_all(given, 2) if use_norm is None else use_norm, clip_norm))


def _scaled(xs: tuple[Any, ...], factor: Any) -> tuple[Any, ...]:
    return tuple(as_slice_of(one, mul(one, in_dtype_of(one, factor))) for one in xs)


# ---- checks ----


def _check_tensors(x: Any, given: tuple[Any, ...], where: str, allowed: str) -> None:
    """ArgumentTypeError unless there is at least one tensor, and nothing else."""
    if not given or not all(map(is_operand, given)):
        raise ArgumentTypeError(f"x is {shorten(x)}", where=where, allowed=allowed)


def _range(where: str, low: Any, high: Any) -> tuple[float, float]:
    given = f"bounds {shorten(low)} and {shorten(high)}"
    if any(isinstance(b, bool) or not isinstance(b, Real) for b in (low, high)):
        raise ArgumentTypeError(given, where=where, allowed="Two numbers")
    if not low <= high:
        raise ArgumentError(given, where=where, allowed="The lower bound first")
    return float(low), float(high)
