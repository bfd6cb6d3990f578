"""What MindSpore's tutorials do beyond the seeds, on processes, one device. Cases: tests/train/cases/tutorials.py."""

import numpy as np
import pytest

from tests.train.cases import tutorials
from tests.train.worlds import compared, sizes

worlds, test_ranks_equal_one_device = compared(tutorials, quick=1)  # the larger ones are exhaustive


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", sizes(2, 4))
def test_a_rank_reads_its_stripe_of_each_picture(worlds, size):
    for _, note in worlds.of(size, "pictures_cut_by_columns"):
        assert note["shapes"] == {(tutorials.ROWS // 2, 1, 6, 16 // size)}


def test_a_sharded_function_outside_of_a_cut_network_is_refused(worlds):
    for _, note in worlds.of(2, "sharded_functions_in_a_network_that_auto_parallel_cuts"):
        kinds, text = note["alone"]
        assert "AssertionError" in kinds and "parallel_mode='stand_alone'" in text


@pytest.mark.exhaustive
def test_wrapped_networks_name_their_parameters_and_optimizers_follow(worlds):
    for found, note in worlds.of(2, "optimizers_made_before_their_network_is_wrapped"):
        assert all(name.startswith("network.") for name in note["names"]) and len(note["names"]) == 4
        np.testing.assert_allclose(found["own losses"], found["momentum losses"], rtol=1e-6)
