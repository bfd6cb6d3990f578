"""What optimizer parallel saves and sends against `cost/zero.py`'s closed forms. float32, Adam: 4 + 4 + 8 bytes."""

from itertools import pairwise

import numpy as np
import pytest

from parallel_lab import Simulator, compile, nn
from parallel_lab.base.cluster import get_cluster
from parallel_lab.cost import predict_memory, sent_bytes, step_time_s, zero_memory, zero_traffic
from parallel_lab.train.session import initial_values
from tests.nets import cell
from tests.recorded.nets import Layers

N, D, LAYERS = 8, 32, 4
P = LAYERS * D * D
ROWS = ((N, 1), (1, 1))
ADAM = {"param_bytes": 4, "grad_bytes": 4, "optimizer_bytes": 8}
SCALARS = 3 * 4  # learning rate and two powers of beta, on every rank
ON = {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}
LEVELS = ("level1", "level2", "level3")


def planned(net=None, make=nn.Adam, wrap=lambda net: net, **settings):
    net = net or Layers(LAYERS, D, ROWS)
    x = np.ones((16, D), np.float32)
    optimizer = make(net.trainable_params(), 0.01)
    settings = {"device_num": N, "dataset_strategy": "full_batch", **settings}
    return compile(wrap(net), x, x, loss=nn.MSELoss(), optimizer=optimizer, **settings), net, optimizer


def carried(plan):
    """(messages, bytes a rank sends) for parameters and their gradients."""
    found = [i for _, i in plan.instructions() if i.attr("parameter") is not None]
    return len(found), sum(sent_bytes(plan, i) for i in found)


def stored(plan):
    report = predict_memory(plan)
    return report.params_bytes, report.grads_bytes, report.optimizer_bytes - SCALARS


def formula(stage, degree=N):
    found = zero_memory(P, degree, stage, **ADAM)
    return found.params_bytes, found.grads_bytes, found.optimizer_bytes


# ---- memory ----


def test_without_it_every_rank_holds_everything():
    assert stored(planned()[0]) == formula(0)


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_stored_is_stage_3_of_the_paper_at_every_level(level):
    assert stored(planned(**ON, optimizer_level=level)[0]) == formula(3)


@pytest.mark.parametrize("size", [2, 4])
def test_a_shard_size_takes_the_place_of_the_number_of_ranks(size):
    assert stored(planned(**ON, optimizer_weight_shard_size=size)[0]) == formula(3, size)


def test_what_the_model_cuts_is_cut_once_more():
    """Columns in 2, replicas in 4: each rank stores 1 / 8."""
    cut = ((4, 1), (1, 2))
    assert stored(planned(Layers(LAYERS, D, cut), **ON)[0]) == formula(3)
    assert stored(planned(Layers(LAYERS, D, cut))[0]) == tuple(size_bytes / 2 for size_bytes in formula(0))


def test_weight_grouping_is_stage_1():
    """8 parameters of one size on 4 ranks: each keeps the states of two."""
    settings = {"parallel_mode": "data_parallel", "enable_parallel_optimizer": True, "dataset_strategy": None}
    plan, _, _ = planned(Layers(8, D, None), nn.AdamWeightDecay, device_num=4, **settings)
    want = zero_memory(8 * D * D, 4, 1, **ADAM)
    for rank in range(4):
        report = predict_memory(plan, rank=rank)
        found = (report.params_bytes, report.grads_bytes, report.optimizer_bytes - 4)  # its learning rate
        assert found == (want.params_bytes, want.grads_bytes, want.optimizer_bytes)


def test_level1_keeps_gathered_weights_for_backward_and_level3_one_at_a_time():
    """Backward reads all weights but the first, whose input needs no gradient."""
    assert predict_memory(planned()[0]).gathered_bytes == 0
    kept = {level: predict_memory(planned(**ON, optimizer_level=level)[0]) for level in LEVELS}
    assert kept["level1"].gathered_bytes == kept["level2"].gathered_bytes == (LAYERS - 1) * D * D * 4
    assert kept["level3"].gathered_bytes == D * D * 4
    assert kept["level3"].peak_bytes < kept["level1"].peak_bytes


@pytest.mark.quick(1)
@pytest.mark.parametrize("level", LEVELS)
def test_the_simulator_holds_what_is_predicted(level):
    plan, net, optimizer = planned(**ON, optimizer_level=level)
    report = predict_memory(plan)
    simulator = Simulator(plan, initial_values(plan, net, optimizer))
    x = np.ones((16, D), np.float32)
    names = [p.name for p in plan.parameters], [s.name for s in plan.states]
    for rank in range(N):
        held = [sum(simulator.value(n, rank).nbytes for n in some) for some in names]
        assert held == [report.params_bytes, report.optimizer_bytes]
    most = [0]

    def seen(rank, action, instr, *_):
        if rank == 5:
            held = [(n if isinstance(n, str) else n[0], a) for n, a in simulator.envs[5].items()]
            here = {id(a): a.nbytes for n, a in held if n.split(".again")[0].endswith(".gathered")}
            most[0] = max(most[0], sum(here.values()))

    simulator.run_step(x, x, observe=seen)
    assert most[0] == report.gathered_bytes
    assert sum(simulator.value(g, 5).nbytes for _, g in plan.gradients) == report.grads_bytes


def between_micro_batches(**settings):
    """Bytes in use, besides what is stored, when the second of two micro-batches begins."""
    micro = cell(lambda net, x: net.loss(net.net(x), x), net=Layers(LAYERS, D, ROWS), loss=nn.MSELoss())
    given = cell(lambda net, out, label: out + 0.0 * label[0])  # the network's own result is the loss
    whole = nn.GradAccumulation(micro, 2)
    x, none = np.ones((32, D), np.float32), np.zeros((1,), np.float32)
    settings |= {"device_num": N, "dataset_strategy": "full_batch", **ON}
    plan = compile(whole, x, none, loss=given, optimizer=nn.Adam(whole.trainable_params(), 0.01), **settings)
    points = predict_memory(plan).timeline
    second = next(p for before, p in pairwise(points) if (before.phase, p.phase) == ("backward", "forward"))
    return second.by_kind["workspace"] + second.by_kind["grads"]


@pytest.mark.parametrize("settings", [{}, {"optimizer_level": "level2", "gradient_accumulation_shard": False}])
def test_the_buffer_of_accumulated_gradients_is_cut_or_whole(settings):
    """Of P gradients in float32 a rank keeps P / N; at level1, where nothing is said otherwise, all P."""
    whole = between_micro_batches(gradient_accumulation_shard=False)
    assert whole >= 4 * P and whole - between_micro_batches(**settings) == 4 * P - 4 * P // N


# ---- traffic ----


def test_without_it_every_gradient_is_reduced():
    assert carried(planned()[0]) == (LAYERS, zero_traffic(P, N, 0) * 4)


@pytest.mark.parametrize("level", ["level1", "level2"])
def test_levels_1_and_2_send_in_two_halves_what_was_sent_in_one(level):
    assert carried(planned(**ON, optimizer_level=level)[0]) == (2 * LAYERS, zero_traffic(P, N, 2) * 4)


def test_level3_gathers_what_backward_reads_once_more():
    messages, sent = carried(planned(**ON, optimizer_level="level3")[0])
    first = D * D
    assert messages == 3 * LAYERS - 1
    assert sent == (zero_traffic(P, N, 3) - zero_traffic(first, N, 3) + zero_traffic(first, N, 2)) * 4


@pytest.mark.parametrize("size", [2, 4])
def test_copies_that_are_left_add_an_all_reduce_of_what_a_rank_keeps(size):
    messages, sent = carried(planned(**ON, optimizer_weight_shard_size=size)[0])
    assert messages == 3 * LAYERS and sent == (zero_traffic(P, size, 2) + zero_traffic(P / size, N // size, 0)) * 4


def test_predicted_time_counts_the_same_bytes():
    plan, _, _ = planned(**ON)
    phases = {p.phase: p for p in step_time_s(plan, get_cluster("laptop")).phases}
    assert phases["forward"].sent_bytes >= zero_traffic(P, N, 2) * 4 / 2 and phases["update"].messages == 0


def test_one_layer_is_the_smallest_case():
    plan, _, _ = planned(Layers(1, D, ROWS), **ON, optimizer_level="level3")
    assert carried(plan) == (2, zero_traffic(D * D, N, 2) * 4) and predict_memory(plan).gathered_bytes == D * D * 4
