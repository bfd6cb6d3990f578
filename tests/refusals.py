"""Tests of what is refused, from a list of calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from parallel_lab.base.errors import ParallelLabError


def refused(
    *cases: Any,
    by: Callable[..., object] = lambda call: call(),
    error: type[Exception] = ParallelLabError,
    text: str = "",
) -> Callable[..., None]:
    """A test with a case for each call: it raises its error, which is one of ours and says its text (a regular
    expression).

    test_what_dropout_refuses = refused((lambda: nn.Dropout(p=1.0), ValueError, "p=1.0"), ...)
    test_sizes_of_a_picture_are_checked = refused(0, 1.5, (10**9, "at most"), by=Resize, error=ArgumentError)

    cases  (call, error, text), (call, error), (call, text), or the call alone
    by     what refuses the call, if that is not a function; it may take more than one element of a case
    error  of the cases that name none; text likewise
    """
    taken = inspect.signature(by).parameters.values() if inspect.isfunction(by) else ()
    needed = max(1, sum(one.default is one.empty for one in taken))
    rows = []
    for case in cases:
        row = case if isinstance(case, tuple) else (case,)
        words = [each for each in row[needed:] if isinstance(each, str)]
        kinds = [each for each in row[needed:] if not isinstance(each, str)]
        rows.append((row[:needed], *(kinds or [error]), *(words or [text])))

    @pytest.mark.parametrize(("given", "error", "text"), rows)
    def test(given: tuple[Any, ...], error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=text or None) as caught:
            by(*given)
        assert isinstance(caught.value, ParallelLabError)

    return test
