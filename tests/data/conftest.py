"""Datasets draw with the global seed: each test begins with seed 1, and the seed of before is put back."""

import pytest

from parallel_lab.context import get_seed, set_seed


@pytest.fixture(autouse=True)
def global_seed():
    before = get_seed()
    set_seed(1)
    yield
    set_seed(before)
