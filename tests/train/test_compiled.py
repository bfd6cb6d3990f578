"""Functions and Cells that run compiled on real processes, against one device. Cases: `cases/compiled.py`."""

import numpy as np
import pytest

from parallel_lab import nn
from parallel_lab.nn.tensor.tensor import Tensor
from tests.train.cases import compiled
from tests.train.cases.nets import Net, SquareLoss, batch, numbers
from tests.train.worlds import compared, sizes

worlds, test_ranks_equal_one_device = compared(compiled, quick=1)  # the larger ones are exhaustive


@pytest.mark.parametrize("size", sizes(2, 4))
def test_a_cell_that_is_called_returns_slices_and_keeps_slices(worlds, size):
    for note in worlds.notes(size, "a_cell_that_is_called"):
        assert note == {"kind": "RankTensor", "held": (6, 8)}
    for note in worlds.notes(size, "a_cut_parameter_as_an_input"):
        assert note == {"held": (8, 8 // size)}


@pytest.mark.parametrize("size", sizes(2, 4))
def test_outside_training_a_call_returns_results_as_inputs_are_fed(worlds, size):
    """As MindSpore's virtual output: whole, or rows over all devices. Each rank got the last operator's slice."""
    whole = [(8, 4), (8, 4), (), (32,), (3, 4), (8, 12), (4, 4)]
    rows = [(8 // size, 4), (8 // size, 4), (), (32 // size,), (3, 4), (8 // size, 12), (4 // size, 4)]
    slices = [(8 // size, 4), (8, 4 // size), (), (32 // size,), (3, 4), (8, 12), (4, 4 // size)]
    for note in worlds.notes(size, "what_a_call_returns"):
        assert note["full_batch"] == note["jit"] == note["AutoParallel"] == (whole, True)
        assert note["data_parallel"] == (rows, True) and note["training"] == (slices, True)
        assert note[f"(({size}, 1),)"] == ([*slices[:5], (8 // size, 12), slices[6]], True)


def test_keyword_only_arguments_are_refused(worlds):
    for note in worlds.notes(2, "keyword_only_arguments"):
        kinds, text = note["refused"]
        assert {"TypeError", "ValueError"} <= set(kinds) and "'quiet': False" in text


@pytest.mark.parametrize("size", sizes(2, 4))
def test_a_cut_parameter_is_its_slice_and_takes_slices_and_wholes(worlds, size):
    for note in worlds.notes(size, "what_a_cut_parameter_is"):
        assert note["slice"] and note["equal"] and note["own slice"]
        assert note["shapes"] == ((6, 8), (12, 8), (6, 8)) and note["states"] == note["split again"] == (6, 8)
        assert note["whole"] == (True, True)
        kinds, text = note["wrong shape"]
        assert "ShapeError" in kinds and "(5, 8)" in text and "(12, 8)" in text and "(6, 8)" in text


@pytest.mark.parametrize("size", sizes(2, 4))
def test_operators_at_once_refuse_a_cut_parameter_and_say_why(worlds, size):
    for note in worlds.notes(size, "what_a_cut_parameter_is"):
        *operators, update = note["at once"]
        for kinds, text in operators:
            assert "TraceError" in kinds
            assert "compiled.py:" in text
            assert "holds this rank's slice (6, 8) of (12, 8)" in text
            assert ".full()" in text
        assert "ShapeError" in update[0] and "the gradient of" in update[1]


@pytest.mark.parametrize("size", sizes(2, 4))
def test_two_networks_bring_shared_parameters_to_their_own_layouts(worlds, size):
    for note in worlds.notes(size, "two_networks_share_parameters_in_two_layouts"):
        assert note["held"] == [(6, 8), (12, 8 // size)] * 2


def test_gradients_through_a_call_that_compiles_by_itself_are_not_silently_zero(worlds):
    for note in worlds.notes(2, "gradients_that_code_outside_asks_for"):
        kinds, text = note["AutoParallel"]
        assert "TraceError" in kinds and "through AutoParallel(Net" in text and "jit" in text


def test_an_optimizer_in_a_compiled_function_wants_its_gradients(worlds):
    for note in worlds.notes(2, "gradients_that_code_outside_asks_for"):
        kinds, text = note["twice"]
        assert "TraceError" in kinds and "'w' is updated with" in text and "value_and_grad" in text


@pytest.mark.parametrize("size", sizes(2, 4))
@pytest.mark.parametrize("how", ["jit", "at once", "update at once"])
def test_a_scale_that_overflows_shrinks_on_every_rank(worlds, size, how):
    # after a step that overflows it is divided by 2^8, after two in a row that do not it is multiplied by 2^8
    for note in worlds.notes(size, f"scaled by hand, {how}"):
        assert note["scales"][:3] == [2.0**118, 2.0**118, 2.0**126]


@pytest.mark.parametrize("size", sizes(2, 4))
def test_with_cross_batch_the_loss_is_each_rank_s_own(worlds, size):
    first = [note["own"][0] for note in worlds.notes(size, "cross_batch_leaves_each_rank_its_own_mean")]
    x, y = batch()
    n = 16 // size
    own = [np.square(x[r * n : (r + 1) * n] @ numbers(3, 12, 16) - y[r * n : (r + 1) * n]).mean() for r in range(size)]
    np.testing.assert_allclose(first, own, rtol=1e-10)


def test_a_loss_scale_that_is_a_power_of_two_changes_no_step():
    def trained(scaler):
        net = Net()
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9, loss_scaler=scaler)
        step = nn.TrainOneStepCell(nn.WithLossCell(net, SquareLoss()), optimizer)
        losses = [step(*map(Tensor, batch())).asnumpy() for _ in range(2)]
        return losses + [p.asnumpy() for p in net.get_parameters()]

    for plain, scaled in zip(trained(None), trained(nn.StaticLossScaler(1024.0)), strict=True):
        assert np.array_equal(plain, scaled)


def test_a_strategy_that_changes_between_calls_makes_another_program(worlds):
    for note in worlds.notes(2, "a_strategy_that_changes_between_calls"):
        assert note == {"held": [(12, 8), (6, 8)]}


def test_fusion_ids_that_change_between_steps_are_followed(worlds):
    for note in worlds.notes(2, "other_messages_make_another_program"):
        alone, together, alone_again = note["sent"]
        assert set(alone) == {1} == set(alone_again)
        assert len(alone) == len(alone_again) == sum(together)
        assert max(together) > 1
