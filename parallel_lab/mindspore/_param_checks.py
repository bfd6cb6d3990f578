"""Checks of arguments that layers and optimizers written for MindSpore take from `mindspore._checkparam`.

    check_positive_int(width, "width", "Block")                         # the value, or an error that names both
    Validator.check_value_type("beta1", beta1, [float], "MyAdam")       # up to 1.10: in a class, and `Rel.GT`

Errors are ArgumentTypeError and ArgumentError, the TypeError and ValueError that MindSpore raises.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import wraps
from typing import Any

import numpy as np

from ..base.checks import fitting
from ..base.errors import ArgumentError, ArgumentTypeError, shorten


class Rel(Enum):
    """How a number lies to another, or to a range."""

    EQ, NE, LT, LE, GT, GE, INC_NEITHER, INC_LEFT, INC_RIGHT, INC_BOTH, IN, NOT_IN = range(1, 13)


EQ, NE, LT, LE, GT, GE, INC_NEITHER, INC_LEFT, INC_RIGHT, INC_BOTH, IN, NOT_IN = Rel  # names of the module since 2.0

_HOLDS: dict[Rel, tuple[str, Callable[..., Any]]] = {
    EQ: ("= {}", operator.eq),
    NE: ("!= {}", operator.ne),
    LT: ("< {}", operator.lt),
    LE: ("<= {}", operator.le),
    GT: ("> {}", operator.gt),
    GE: (">= {}", operator.ge),
    INC_NEITHER: ("in ({}, {})", lambda x, low, high: low < x < high),
    INC_LEFT: ("in [{}, {})", lambda x, low, high: low <= x < high),
    INC_RIGHT: ("in ({}, {}]", lambda x, low, high: low < x <= high),
    INC_BOTH: ("in [{}, {}]", lambda x, low, high: low <= x <= high),
    IN: ("one of {}", lambda x, several: x in several),
    NOT_IN: ("none of {}", lambda x, several: x not in several),
}


def _words(kinds: Iterable[Any]) -> str:
    return " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)


def _several(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, Iterable) else (values,)


def _related(value: Any, rel: Rel, *others: Any, name: str | None, prim_name: str | None, kind: Any = None) -> Any:
    """`value` if it has that relation, and is of the `kind` (no bool, nan or infinity)."""
    given = f"{name or 'value'}={shorten(value)}"
    text, holds = _HOLDS[rel]
    allowed = text.format(*others)
    if kind is not None and (isinstance(value, bool) or not isinstance(value, kind)):
        raise ArgumentTypeError(given, where=prim_name or "", allowed=f"{_words(_several(kind))} {allowed}")
    if (kind is not None and not np.all(np.isfinite(value))) or not holds(value, *others):
        raise ArgumentError(given, where=prim_name or "", allowed=allowed)
    return value


def check(arg_name, arg_value, value_name, value, rel=EQ, prim_name=None, excp_cls=ValueError):
    """`arg_value` if it lies to `value` as `rel` says, else `excp_cls`."""
    if not fitting(lambda: bool(_HOLDS[rel][1](arg_value, value)), "check")():
        if not (isinstance(excp_cls, type) and issubclass(excp_cls, Exception)):
            raise ArgumentTypeError(f"excp_cls={shorten(excp_cls)}", where="check", allowed="An exception's class")
        kind = ArgumentError if excp_cls is ValueError else ArgumentTypeError if excp_cls is TypeError else excp_cls
        raise kind(f"{prim_name or ''}: {arg_name}={arg_value} should be {_HOLDS[rel][0].format(value)} ({value_name})")
    return arg_value


def check_number(arg_name, arg_value, value, rel, prim_name):
    """`arg_value` if it lies to `value` as `rel` says."""
    return _related(arg_value, rel, value, name=arg_name, prim_name=prim_name)


def _comparing(kind: type, rel: Rel | None = None) -> Callable[..., Any]:
    """A check of an int or a float: against 0 if `rel` is given, else against a value with a relation."""
    if rel is not None:
        return lambda arg_value, arg_name=None, prim_name=None: _related(
            arg_value, rel, 0, name=arg_name, prim_name=prim_name, kind=kind
        )
    return lambda arg_value, value, rel, arg_name=None, prim_name=None: _related(
        arg_value, rel, value, name=arg_name, prim_name=prim_name, kind=kind
    )


def _in_range(kind: type) -> Callable[..., Any]:
    return lambda arg_value, lower_limit, upper_limit, rel, arg_name=None, prim_name=None: _related(
        arg_value, rel, lower_limit, upper_limit, name=arg_name, prim_name=prim_name, kind=(kind, np.generic)
    )


check_int, check_float = _comparing(int), _comparing(float)
check_positive_int, check_positive_float = _comparing(int, GT), _comparing(float, GT)
check_negative_int, check_negative_float = _comparing(int, LT), _comparing(float, LT)
check_non_positive_int, check_non_positive_float = _comparing(int, LE), _comparing(float, LE)
check_non_negative_int, check_non_negative_float = _comparing(int, GE), _comparing(float, GE)
check_int_range, check_float_range = _in_range(int), _in_range(float)


def check_equal_int(arg_value, value, arg_name=None, prim_name=None):
    """The int if it is `value`."""
    return check_int(arg_value, value, EQ, arg_name, prim_name)


def check_value_type(arg_name, arg_value, valid_types, prim_name=None):
    """The value if it is an instance of one of the types; True and False are ints only where bool is named."""
    valid = _several(valid_types)
    if not isinstance(arg_value, valid) or (isinstance(arg_value, bool) and bool not in valid):
        raise ArgumentTypeError(f"{arg_name}={shorten(arg_value)}", where=prim_name or "", allowed=_words(valid))
    return arg_value


def check_is_int(arg_value, arg_name=None, prim_name=None):
    """The value if it is an int."""
    return check_int(arg_value, arg_value, EQ, arg_name, prim_name)


def check_is_float(arg_value, arg_name=None, prim_name=None):
    """The value if it is a finite float."""
    return check_float(arg_value, arg_value, EQ, arg_name, prim_name)


def check_bool(arg_value, arg_name=None, prim_name=None):
    """True or False."""
    return check_value_type(arg_name or "value", arg_value, bool, prim_name)


def check_isinstance(arg_name, arg_value, classes):
    """The value if it is an instance of the classes; ArgumentError else."""
    if not isinstance(arg_value, classes):
        raise ArgumentError(f"{arg_name}={shorten(arg_value)}", allowed=_words(_several(classes)))
    return arg_value


def check_string(arg_value, valid_values, arg_name=None, prim_name=None):
    """The text if it is one of those."""
    if not isinstance(arg_value, str) or arg_value not in valid_values:
        raise ArgumentError(
            f"{arg_name or 'value'}={shorten(arg_value)}", where=prim_name or "", allowed=_words(valid_values)
        )
    return arg_value


def check_type_name(arg_name, arg_type, valid_types, prim_name):
    """The type, or dtype, if it is one of those."""
    if arg_type not in _several(valid_types):
        allowed = _words(_several(valid_types))
        raise ArgumentTypeError(f"{arg_name}={shorten(arg_type)}", where=prim_name or "", allowed=allowed)
    return arg_type


check_subclass = check_tensor_dtype_valid = check_type_name


def check_tensors_dtypes_same_and_valid(args, valid_dtypes, prim_name):
    """Of {name: dtype} all are the same, and one of those."""
    first, *others = args.items()
    check_type_name(*first, valid_dtypes, prim_name)
    for name, dtype in others:
        check_type_name(name, dtype, (first[1],), prim_name)


check_types_same_and_valid = check_tensors_dtypes_same_and_valid


def check_positive_int_sequence(sequence: Sequence[int], arg_name=None, prim_name=None):
    """A list or tuple of ints above 0."""
    for each in check_value_type(arg_name or "value", sequence, (list, tuple), prim_name):
        check_positive_int(each, arg_name, prim_name)
    return sequence


def check_axis_in_range(axis, ndim):
    """The dim, counted from the front."""
    check_is_int(axis, "axis")
    return check_int_range(axis, -ndim, ndim, INC_LEFT, "axis") % ndim


def args_type_check(**types: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: these arguments are of these types, or None."""

    def checked(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            for name, value in {**given, **given.get("kwargs", {})}.items():
                if name in types and value is not None:
                    check_value_type(name, value, types[name], function.__qualname__)
            return function(*args, **kwargs)

        return call

    return checked


globals().update({n: fitting(f, n) for n, f in list(globals().items()) if n.startswith("check_")})
Validator = type("Validator", (), {n: staticmethod(f) for n, f in list(globals().items()) if n.startswith("check")})
