"""`ParameterTuple`: several Parameters held as one, under their own names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...base.checks import fitting
from ...base.errors import ArgumentError, ArgumentTypeError, ShapeError, shorten
from ...base.hooks import cloner
from .tensor import Parameter

UNNAMED = "Parameter"  # the name of a Parameter that was given none


class ParameterTuple(tuple):
    """Several Parameters that a Cell registers under their own names."""

    @fitting
    def __new__(cls, parameters: Iterator[Parameter] | list[Parameter]) -> ParameterTuple:
        try:
            made = super().__new__(cls, () if isinstance(parameters, (str, type, dict)) else parameters)
            fits = not isinstance(parameters, (str, type, dict))
        except TypeError:  # an array without dims has an __iter__, too
            fits = False
        if not fits:
            raise ShapeError(shorten(parameters), where="ParameterTuple", allowed="A list or tuple of Parameters")
        if others := [p for p in made if not isinstance(p, Parameter)]:
            raise ShapeError(f"element {shorten(others[0])}", where="ParameterTuple", allowed="Parameters only")
        named: dict[str, Parameter] = {}
        for parameter in made:
            if named.setdefault(parameter.name, parameter) is not parameter and parameter.name != UNNAMED:
                what, hint = f"two Parameters are named {parameter.name!r}", "Give each its own name"
                raise ArgumentError(what, where="ParameterTuple", hint=hint)
        return made

    def clone(self, prefix: str, init: Any = "same") -> ParameterTuple:
        """New Parameters of these shapes, named `prefix.name`.  init: "same", or what `initializer` takes ("zeros")."""
        if not isinstance(prefix, str) or not prefix:
            raise ArgumentTypeError(f"prefix={shorten(prefix)}", where="clone", allowed="A non-empty str")
        return ParameterTuple([cloner()(p, f"{prefix}.{p.name}", init) for p in self])
