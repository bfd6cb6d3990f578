"""Reading an answer in the form that an exercise asks for: another form is a `Wrong` that says which one is needed.

with reading(answer, "Positions at which messages end, such as [2, 5]", "no list yet"):
    positions = whole_numbers(answer)      # whatever a learner's object raises here, the form is wrong
with refusals("a strategy that compiles"):
    Product(strategy)                      # an error of ours: its text is what is wrong
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import islice
from operator import index
from typing import Any

import numpy as np

from ...base.errors import ParallelLabError, shorten
from .running import MOST_ITEMS, listed
from .verdict import Wrong

PROGRAM = "A rank program: a function that yields Requests"


def another_form(answer: Any, form: str, nothing: str = "None", *details: Any) -> Wrong:
    """What a grader raises for an answer that has another form.

    nothing   what is said of None, where the answer is still to come
    details   further arguments of `Wrong`: what is expected, note, rank, op
    """
    text = nothing if answer is None else shorten(answer)
    if text.startswith("<") and (callable(answer) or " at 0x" in text):  # an address says nothing to a learner
        text = "a function" if callable(answer) else f"an object of type {type(answer).__name__}"
    return Wrong(text, *details, form=form)


@contextlib.contextmanager
def reading(answer: Any, form: str, nothing: str = "None", *details: Any) -> Iterator[None]:
    """While an answer is read. Raises `another_form` for whatever a learner's object raises."""
    try:
        yield
    except Wrong:
        raise
    except Exception as error:
        raise another_form(answer, form, nothing, *details) from error


@contextlib.contextmanager
def refusals(expected: str = "", *, form: str = "") -> Iterator[None]:
    """While ours looks at an answer. Raises Wrong, with its text, for an error of ours."""
    try:
        yield
    except ParallelLabError as error:
        raise Wrong(str(error), expected, form=form) from error


def read_dict(answer: Any, form: str, nothing: str = "None") -> Mapping[Any, Any]:
    """The answer, a dict. Raises Wrong."""
    if not isinstance(answer, Mapping):
        raise another_form(answer, form, nothing)
    return answer


def floats(value: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """A learner's value as an array of that shape, float64; None for anything else."""
    try:
        array = np.asarray(value, np.float64)
    except Exception:  # whatever a learner's object does
        return None
    return array if array.shape == shape else None


def whole_numbers(values: Any, most: int = MOST_ITEMS, *, flags: bool = True) -> tuple[int, ...]:
    """At most so many whole numbers of what a learner gave. Raises what reading it raises, TypeError for a float.

    flags  whether True and False count as 1 and 0
    """
    items = listed(values) if most == MOST_ITEMS else islice(values, most)
    return tuple(_whole(item, flags) for item in items)


def _whole(item: Any, flags: bool) -> int:
    if isinstance(item, bool) and not flags:
        raise TypeError(f"{item} is not a number")
    return index(item)
