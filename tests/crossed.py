"""Every combination of several lists as the cases of one test; the quick suite runs a few of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def crossed(*axes: Iterable[Any]) -> list[Any]:
    """All combinations of one value of each axis, as the cases for `parametrize`. The quick suite runs as many as the
    longest axis has values, in which each value of each axis comes at least once; the others are exhaustive.

    A second axis goes through its values in order, and once more shifted by one, and so on; a third shifted by two: so
    the quick cases do not always join the same values of two axes.
    """
    axes = [list(axis) for axis in axes]
    quick = {
        tuple((i + shift * (i // len(axis))) % len(axis) for shift, axis in enumerate(axes))
        for i in range(max(map(len, axes)))
    }
    return [
        pytest.param(
            *(axis[i] for axis, i in zip(axes, index, strict=True)),
            marks=() if index in quick else pytest.mark.exhaustive,
        )
        for index in itertools.product(*(range(len(axis)) for axis in axes))
    ]


def first(quick: int, values: Sequence[Any]) -> list[Any]:
    """Cases for `parametrize`, the first few quick, the others exhaustive. A tuple has one value for each name."""
    rare = [value if isinstance(value, tuple) else (value,) for value in values[quick:]]
    return [*values[:quick], *(pytest.param(*value, marks=pytest.mark.exhaustive) for value in rare)]


def each_of(names: str | tuple[str, ...], *cases: Any, **how: Any) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize`, with the cases as arguments."""
    return pytest.mark.parametrize(names, cases, **how)
