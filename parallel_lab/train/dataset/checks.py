"""Checks of arguments shared by datasets and transforms, in the form of `base/checks.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np

from ...base.checks import INT_LIMIT, Check, integer
from ...base.dtypes import plain_array
from ...base.errors import ArgumentError, ArgumentTypeError, DatasetError, NotBuiltYet, shorten
from ...nn.tensor.tensor import Tensor


def at_least(low: int) -> Check:
    """An int, at least `low`, and at most what MindSpore's datasets take."""
    return integer(low, INT_LIMIT)


def _read_names(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else list(value) if isinstance(value, Sequence) else None
    if names is None or not all(isinstance(column, str) for column in names):
        raise TypeError
    if not names or not all(names) or len(set(names)) < len(names):
        raise ValueError("At least one name, none empty, none twice")
    return tuple(names)


def _read_dtype(value: Any) -> np.dtype:
    if value is not None:  # numpy takes None for float64; nobody who passes None means that
        with contextlib.suppress(TypeError):
            return np.dtype(value)
    raise TypeError


def unavailable(why: str) -> Callable[..., None]:
    """A check of an argument that stays None here: anything else raises NotBuiltYet, with the reason."""

    def check(where: str, name: str, value: Any, errors: Any = None) -> None:
        if value is not None:
            raise NotBuiltYet(f"{name}={shorten(value)}", where=where, allowed="None", hint=why)

    return check


CACHE = unavailable("Files are read once, when the dataset is made, and then held in memory")
WORKERS = at_least(1) | None  # a number of MindSpore's worker threads, without effect here
NAMES = Check("A column name or a list of column names", _read_names)
DTYPE = Check("A dtype or its name, such as 'int32'", _read_dtype)


def member(choices: type[Enum]) -> Check:
    """A member of the enum `choices`, or the member of that name in any case."""

    def read(value: Any) -> Enum:
        if isinstance(value, choices):
            return value
        if not isinstance(value, str):
            raise TypeError
        if value.upper() not in choices.__members__:
            raise ValueError
        return choices[value.upper()]

    return Check(f"One of {', '.join(f'{choices.__name__}.{name}' for name in choices.__members__)}", read)


def as_value(value: Any, column: str, where: str) -> np.ndarray:
    """What a source or an operation gave for one column, as an array of numbers or text. Raises DatasetError."""
    if isinstance(value, Tensor):
        return value.asnumpy()
    try:
        array = plain_array(value, where=f"{where}, column {column!r}")
    except ArgumentTypeError as error:
        raise DatasetError(str(error)) from None
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biufUS":
        what = f"column {column!r} got {shorten(value)}"
        raise DatasetError(what, where=where, allowed="Numbers, text, arrays or Tensors in a rectangular shape")
    return array


def split_counts(sizes: Any, size: int) -> list[int]:
    """Rows of the parts of a split of `size` rows. Raises ArgumentError, ArgumentTypeError."""
    fault = {"where": "split", "allowed": f"Ints that add up to {size} rows, or floats that add up to 1"}
    given = list(sizes) if isinstance(sizes, Sequence) and not isinstance(sizes, str) else []
    kinds = {type(one) for one in given}
    if kinds not in ({int}, {float}):
        raise ArgumentTypeError(f"sizes={shorten(sizes)}", **fault)
    if kinds == {float}:
        if not all(0 < one <= 1 for one in given) or abs(sum(given) - 1) > 1e-9:
            raise ArgumentError(f"sizes={shorten(sizes)}", **fault)
        given = [round(one * size) for one in given]
        rest = size - sum(given)
        for i, one in enumerate(given):
            if one + rest > 0:
                given[i] += rest
                break
    if min(given) < 1 or sum(given) != size:
        raise ArgumentError(f"sizes={shorten(sizes)} are {given} of {size} rows", **fault)
    return given
