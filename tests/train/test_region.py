"""Sharded Cells and functions in PyNative mode on real processes, against one device. Cases: `cases/region.py`."""

import pytest

from tests.crossed import each_of
from tests.train.cases import region
from tests.train.worlds import assert_refused, compared, sizes

worlds, test_ranks_equal_one_device = compared(region, quick=2)  # the larger ones are exhaustive


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", sizes(2, 4))
@pytest.mark.parametrize("name", ["rows", "parameter_plan", "running_statistics"])
def test_parameters_stay_whole_around_a_region(worlds, size, name):
    for note in worlds.notes(size, name):
        assert note["whole"] and all(note["whole"])


def test_in_graph_mode_a_region_is_part_of_the_program_around_it(worlds):
    for note in worlds.notes(2, "inside_a_compiled_network"):
        assert note["held"] == (12, 4)


@each_of(
    ("what", "kind", "words"),
    ("inputs", "CollectiveMismatch", ("rank 1 was given other inputs than rank 0",)),
    ("parameters", "WorldError", ("parameter 'w' begins with other values on rank 1",)),
    ("count", "ArgumentError", ("2 inputs and 1 strategies",)),
    ("odd", "StrategyError", ("splits dim 0", "15 elements")),
)
def test_parts_that_cannot_be_joined_are_refused_on_every_rank(worlds, what, kind, words):
    for note in worlds.notes(2, "what_is_refused"):
        assert_refused(note[what], kind, words)


def test_a_refused_call_breaks_nothing(worlds):
    for note in worlds.notes(2, "what_is_refused"):
        assert note["goes on"] < 1e-12
