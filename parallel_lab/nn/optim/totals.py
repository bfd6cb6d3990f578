"""`Totals`: sums over all elements of a parameter, or along some of its dims, for rules that need a norm or a mean.

A rule computes on what it is given. On one device that is the whole parameter; in a compiled program it is one rank's
slice, and the pass `update` gives the rule a `Totals` of its own, whose sums run over the ranks that hold different
slices. So one rule serves both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...ops.elementwise import add, count_nonfinite, moving_mean, mul


class Totals:
    """The sums of one device: it holds every parameter whole, so there is nothing to add."""

    def at(self, name: str) -> None:
        """The next operators work on this parameter ("" = on all of them); a compiled program is named by it."""

    def each(self, values: dict[str, Any], function: Callable[[str, Any], Any]) -> dict[str, Any]:
        """{parameter: function(parameter, value)}."""
        done = {}
        for name, value in values.items():
            self.at(name)
            done[name] = function(name, value)
        return done

    def total(
        self, name: str, local: Any, why: str, over: Sequence[int] | None = None, kept: Sequence[int] = ()
    ) -> Any:
        """Sum of `local` over the slices of parameter `name`.

        local  0-d, or with the dims `kept` of the parameter: then it is a slice of these
        why    the start of the message's reason
        over   dims of the parameter whose slices are added up; None: all
        """
        return local

    def parts(self, name: str) -> tuple[float, ...]:
        """In how many slices each dim of a parameter is split; () for a whole one."""
        return ()

    def totals(self, by_name: dict[str, Any], why: str) -> Any:
        """Sum of 0-d values over the slices of all these parameters; every element counts once."""
        return added([self.total(name, local, why) for name, local in by_name.items()])


def added(values: list[Any]) -> Any:
    """The sum of at least one value, from the left."""
    return functools.reduce(add, values)


@dataclass(frozen=True)
class Place:
    """What a rule receives about the parameter whose slice it gets: its name, its factor of weight decay (a number, or
    where it depends on the step () in the parameter's dtype), in how many slices each of its dims is split (() for a
    whole one), `total`, `Totals.total` without the name, and whether its gradient is to be `centralized`.
    """

    name: str = ""
    weight_decay: Any = 0.0
    total: Callable[..., Any] = lambda local, why, over=None, kept=(): local
    parts: tuple[float, ...] = ()
    centralized: bool = False

    @property
    def fixed_decay(self) -> float | None:
        """The factor of weight decay, or None where it depends on the step."""
        return self.weight_decay if isinstance(self.weight_decay, (int, float)) else None

    def decayed(self, parameter: Any, x: Any) -> Any:
        """x + weight_decay * parameter."""
        if self.fixed_decay is None:
            return add(x, mul(parameter, self.weight_decay))
        return x if self.fixed_decay == 0 else moving_mean(x, parameter, keep=1.0, add=self.fixed_decay)


def nonfinite(gradients: dict[str, Any], totals: Totals) -> Any:
    """Number of elements that are not finite in all gradients, over all their slices.  {parameter: (...)} -> ()."""
    counts = totals.each(gradients, lambda name, gradient: count_nonfinite(gradient))
    totals.at("")
    return totals.totals(counts, "all ranks skip the step if a gradient is not finite on one of them")
