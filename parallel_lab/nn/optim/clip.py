"""Gradient clipping: `GradientClip`, the setting that an optimizer takes.

    optimizer = nn.Adam(net.trainable_params(), 1e-3, clip=nn.GradientClip("global_norm", 1.0))

With the setting the clipping is part of the update: eager steps and compiled plans do it alike, after the loss scale is
divided out and before weight decay. In a plan a rank holds slices; the norm counts every element of every parameter
once, summed over the ranks that hold different slices and not over those that hold copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

from ...base.checks import choice, fitting_class, number
from ...base.errors import ArgumentError, ArgumentTypeError, shorten
from ...ops.elementwise import div, maximum, minimum, mul
from ...ops.unary import sqrt
from .global_norm import in_dtype_of, sum_of_squares
from .totals import Totals


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
            limit = clip_range("GradientClip", *limit)
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
            factors = dict.fromkeys(gradients, clip_factor(sqrt(totals.totals(squares, why)), self.limit))
        else:

            def factor(name: str, square: Any) -> Any:
                why = f"the norm by which the gradient of {name!r} is clipped counts all its elements"
                return clip_factor(sqrt(totals.total(name, square, why)), self.limit)

            factors = totals.each(squares, factor)
        return totals.each(gradients, lambda name, g: mul(g, in_dtype_of(g, factors[name])))

    def __str__(self) -> str:
        return f"GradientClip({self.kind!r}, {self.limit})"


def clip_factor(norm: Any, limit: float) -> Any:
    """limit / norm where the norm is above the limit, else 1."""
    return div(limit, maximum(norm, limit))


# ---- for tensors at hand ----


# ---- checks ----


def clip_range(where: str, low: Any, high: Any) -> tuple[float, float]:
    """The bounds as floats. Raises ArgumentTypeError, ArgumentError for bounds that cross."""
    given = f"bounds {shorten(low)} and {shorten(high)}"
    if any(isinstance(b, bool) or not isinstance(b, Real) for b in (low, high)):
        raise ArgumentTypeError(given, where=where, allowed="Two numbers")
    if not low <= high:
        raise ArgumentError(given, where=where, allowed="The lower bound first")
    return float(low), float(high)
