"""Every form of training on processes, against one device, and what ranks hold and send. Cases: `cases/forms.py`."""

import pytest

from tests.train.cases import forms
from tests.train.cases.forms import Form
from tests.train.worlds import compared, sizes

worlds, test_ranks_equal_one_device = compared(forms, quick=5)  # the others are exhaustive

WHOLE = {"w": (12, 8), "bias": (8,), "v": (8, 16)}


def twice(shapes):
    """Two states of each parameter, of its shape."""
    return {name: [shape, shape] for name, shape in shapes.items()}


@pytest.mark.parametrize("size", sizes(2, 4))
def test_where_operators_are_split_parameters_and_states_are_held_as_slices(worlds, size):
    # the strategies of `nets.cuts`: w's rows are split in 2, v's rows in 2 and its columns in size / 2
    shapes = {"w": (6, 8), "bias": (8,), "v": (4, 16 // (size // 2))}
    for note in worlds.notes(size, Form("split", optimizer="adam").name):
        assert note["plan"] and note["held"] == (shapes, twice(shapes)) and note["layouts"] == shapes.keys()


@pytest.mark.quick(1)
@pytest.mark.parametrize("setting", ["data_parallel", "stand_alone"])
def test_parameters_stay_whole_in_data_parallel_and_alone(worlds, setting):
    for note in worlds.notes(2, Form(setting, optimizer="adam").name):
        assert note["held"] == (WHOLE, twice(WHOLE)) and bool(note["plan"]) == (setting == "data_parallel")
        assert setting == "data_parallel" or not note["layouts"]


# ---- optimizer parallel ----


@pytest.mark.parametrize("size", sizes(2, 4))
def test_a_rank_holds_its_part_of_weights_and_states(worlds, size):
    """w (12, 8) whole, v (8, 16) by columns in 2; the bias (8,) is split as the sum it is added to: by rows or not."""
    shapes = {"w": (12 // size, 8), "bias": (8 // size,), "v": (8 // (size // 2), 8)}
    for note in worlds.notes(size, Form("level1", optimizer="adam").name):
        assert note["held"] == (shapes, twice(shapes))


IN_TWOS = {"w": (6, 8), "bias": (4,), "v": (4, 8)}


@pytest.mark.exhaustive
def test_in_twos_each_pair_shares(worlds):
    for note in worlds.notes(4, Form("in twos", optimizer="adam").name):
        assert note["held"][0] == IN_TWOS


def test_hsdp_reaches_the_program(worlds):
    form = Form("level3 in twos", "auto parallel of function", rows=(16, 32, 16))
    for note in worlds.notes(4, form.name):
        assert note["plan"].optimizer_level == "level3" and note["held"][0] == IN_TWOS


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", sizes(2, 4))
def test_parameters_are_slices_when_their_network_is_traced_again(worlds, size):
    form = Form("level1", optimizer="adam", network="reads shapes", rows=(16, 32), looks=True)
    for note in worlds.notes(size, form.name):
        shapes = note["held"][0]
        assert shapes["norm.gamma"] == shapes["scale"] == (8 // size,) and shapes["second.w"] == (12 // size, 8)


OWNED = {0: ["v", "w"], 1: ["bias"]}  # of w, bias, v, by rank


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("way", "optimizer"),
    [("engine", "lamb, clipped"), ("engine", "adam with weight decay"), ("cell", "adam with weight decay")],
)
def test_in_weight_grouping_the_owner_alone_holds_the_states(worlds, way, optimizer):
    for rank, note in enumerate(worlds.notes(2, Form("grouped", way, optimizer).name)):
        shapes, kept = note["held"]
        assert shapes == WHOLE and sorted(kept) == OWNED[rank]


# ---- AutoParallel, messages ----


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", sizes(2, 4))
@pytest.mark.parametrize(("setting", "mode"), [("split", "semi_auto_parallel"), ("auto", "auto_parallel")])
def test_autoparallel_s_own_settings_count_not_the_context_s(worlds, size, setting, mode):
    for note in worlds.notes(size, Form(setting, "auto parallel of function", rows=(16, 32, 16)).name):
        assert note["plan"].parallel_mode == mode and note["held"][0]["w"] == (6, 8)


# what leaves a rank of an all_reduce: 2 (n - 1) / n of the bytes; w (12, 8), bias (8,), v (8, 16) in float64
GRADIENTS = 2 * (12 * 8 + 8 + 8 * 16) * 8


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", sizes(2, 4))
@pytest.mark.parametrize("way", forms.LOOPS)
@pytest.mark.parametrize("setting", ["fused", "fused, hybrid"])
def test_a_loop_sends_one_message_per_step(worlds, size, way, setting):
    for note in worlds.notes(size, Form(setting, way, "adam").name):
        for messages in note["messages"]:
            assert [m for m in messages if m[0] == "all_reduce"] == [("all_reduce", GRADIENTS * (size - 1) // size)]
