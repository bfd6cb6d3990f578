"""The scripts are MindSpore programs: they are started as programs, and cannot be imported for doctests."""

import pytest

from parallel_lab.base.seeds import set_seed

collect_ignore_glob = ["scripts/*"]


@pytest.fixture(autouse=True)
def the_seed_of_a_fresh_process():
    """What a test computes on one device begins with the values that the processes of a script begin with."""
    set_seed(1)
