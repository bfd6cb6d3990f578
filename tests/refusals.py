"""Tests of what is refused, from a list of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from parallel_lab.base.errors import ParallelLabError


def refused(
    *cases: tuple[Any, type[Exception], str], by: Callable[[Any], object] = lambda call: call()
) -> Callable[..., None]:
    """A test with a case for each (call, error, text): the call raises that error, which is one of ours and says the
    text (a regular expression).

    test_what_dropout_refuses = refused((lambda: nn.Dropout(p=1.0), ValueError, "p=1.0"), ...)

    by  what refuses the first element of a case, if that is not a call
    """

    @pytest.mark.parametrize(("given", "error", "text"), cases)
    def test(given: Any, error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=text) as caught:
            by(given)
        assert isinstance(caught.value, ParallelLabError)

    return test
