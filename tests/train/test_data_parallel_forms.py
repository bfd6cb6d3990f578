"""Data parallel training on processes against one device or a formula. Cases: `cases/data_parallel_forms.py`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.train.cases import data_parallel_forms as forms
from tests.train.worlds import compared, sizes

pytestmark = pytest.mark.timeout(300)  # the first case of a size waits for all of them


worlds, test_ranks_equal_one_device = compared(forms, quick=3)  # the larger ones are exhaustive


def share(size_bytes, size):
    """What leaves a rank of an all_reduce: 2 (n - 1) / n of its bytes."""
    return 2 * size_bytes * (size - 1) // size


# w (12, 8), bias (8,), v (8, 16) in float64
GRADIENTS = (12 * 8 + 8 + 8 * 16) * 8


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", sizes(*forms.SIZES))
@pytest.mark.parametrize("name", forms.FUSIONS)
@pytest.mark.parametrize("how", ["engine", "function"])
def test_messages_are_as_many_as_the_setting_says_and_results_the_same_to_the_bit(worlds, size, name, how):
    together = forms.FUSIONS[name][2]
    for note in worlds.notes(size, f"fusion, {how}"):
        found = note[name]
        assert found["same"]
        sizes = [sum(forms.BYTES[p] for p in members) for members in together]
        assert sorted(found["messages"]) == sorted(("all_reduce", share(bytes_, size)) for bytes_ in sizes)


@pytest.mark.quick(3)
@pytest.mark.parametrize("size", sizes(*forms.SIZES))
@pytest.mark.parametrize("name", forms.FUSIONS)
def test_buckets_of_the_plan_are_what_travels(worlds, size, name):
    """Messages predicted, in `plan.to_dict(rank)["buckets"]`, are those counted."""
    together = [set(members) for members in forms.FUSIONS[name][2] if len(members) > 1]
    for note in worlds.notes(size, "fusion, engine"):
        buckets = note[name]["buckets"]
        shared = [(set(members), size_bytes) for _, members, size_bytes in buckets if len(members) > 1]
        assert sorted(map(sorted, (members for members, _ in shared))) == sorted(map(sorted, together))
        for members, size_bytes in shared:
            assert size_bytes == sum(forms.BYTES[p] for p in members)
            assert ("all_reduce", share(size_bytes, size)) in note[name]["messages"]


@pytest.mark.parametrize("size", sizes(*forms.SIZES))
def test_collectives_with_one_fusion_number_in_a_trained_network(worlds, size):
    """Two all_reduces of (1, 16) and one all_gather of the rank's rows forward, as much backward, and the gradients."""
    row, rows = 16 * 8, (16 // size) * 16 * 8
    forward_apart = [("all_reduce", share(row, size))] * 2
    for note in worlds.notes(size, "collectives_of_a_network_share_a_message"):
        assert note["same"]
        gathered = ("all_gather", rows * (size - 1))
        assert note["apart"][:3] == [*forward_apart, gathered]
        assert sorted(note["together"][:2]) == sorted([("all_reduce", share(2 * row, size)), gathered])
        assert note["together"][2:] == note["apart"][3:] and note["apart"][-1] == ("all_reduce", share(GRADIENTS, size))


@pytest.mark.parametrize("size", sizes(2, 4))
@pytest.mark.parametrize("how", ["Model", "a step", "at once"])
def test_ranks_had_drawn_other_weights_before_the_broadcast(worlds, size, how):
    drawn = [note["drawn"] for note in worlds.notes(size, f"parameter_broadcast, {how}")]
    assert all(not np.array_equal(drawn[0], other) for other in drawn[1:])


def test_without_a_broadcast_ranks_go_on_with_different_weights_if_a_warning_is_enough(worlds):
    first, second = worlds.notes(2, "without_a_broadcast_copies_differ")
    assert not np.array_equal(first["before"], second["before"]) and not np.array_equal(first["after"], second["after"])
    assert "parameter 'weight' begins with other values on rank 1 than on rank 0" in first["warned"][0]
    assert not second["warned"]
    for kinds, text in (first["refused"], second["refused"]):  # unless a warning is asked for
        assert "WorldError" in kinds and "parameter 'weight' has other values on rank 1 than on rank 0" in text
    # gradients are each rank's at its own weights, averaged: both go the same way
    np.testing.assert_allclose(first["after"] - first["before"], second["after"] - second["before"], atol=1e-6)


@pytest.mark.parametrize("size", sizes(2, 4))
@pytest.mark.parametrize("loop", [*forms.LOOPS, "engine"])
def test_layerwise_parameters_send_nothing(worlds, size, loop):
    for note in worlds.notes(size, f"layerwise_parallel, by {loop}"):
        assert [m for m in note["messages"] if m[0] == "all_reduce"] == [("all_reduce", share((12 * 8 + 8) * 8, size))]


@pytest.mark.parametrize("size", sizes(2, 4))
def test_a_weight_cut_by_hand_is_held_in_parts(worlds, size):
    assert [note["held"] for note in worlds.notes(size, "a_network_cut_by_hand")] == [(12, 8 // size)] * size


def test_what_does_not_go_together_is_refused_on_all_ranks(worlds):
    for note in worlds.notes(2, "what_is_refused"):
        kinds, text = note["full_batch"]
        assert "ContextConflictError" in kinds and "every rank feeds its own rows" in text
        kinds, text = note["compiled"]
        assert "CollectiveMismatch" in kinds and "before step 1" in text
        assert "ValueError" in note["AutoParallel"][0]
