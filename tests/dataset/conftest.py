"""Datasets draw with the global seed: each test begins with seed 1."""

import pytest

from parallel_lab.base.seeds import set_seed


@pytest.fixture(autouse=True)
def global_seed():
    set_seed(1)
