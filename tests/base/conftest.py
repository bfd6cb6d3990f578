"""Settings as at the start of a program, for the tests that change them."""

from collections.abc import Iterator

import pytest

from tests.base.contexts import reset


@pytest.fixture
def default_settings() -> Iterator[None]:
    """Every setting at its default, before and after the test."""
    reset()
    yield
    reset()
