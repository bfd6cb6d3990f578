"""Settings as at the start of a program, for the tests that change them."""

from collections.abc import Iterator

import pytest

from parallel_lab.base import hooks
from parallel_lab.base.settings import context


def reset() -> None:
    context.reset_auto_parallel_context()
    context.reset_algo_parameters()
    context.reset_cost_model_context()
    context.reset_context()
    context.set_compat("seeds")
    hooks.set_world(None)


@pytest.fixture
def default_settings() -> Iterator[None]:
    """Every setting at its default, before and after the test."""
    reset()
    yield
    reset()
