"""Counts of flops, by formulas: twice the multiplications of each product, forward and for each gradient."""

from __future__ import annotations

import re
from math import floor

import numpy as np
import pytest
from parallel_lab.mindspore.common.api import _cell_graph_executor, flops_collection
from parallel_lab.mindspore.dataset import NumpySlicesDataset
from parallel_lab.mindspore.ops import operations as P
from parallel_lab.mindspore.ops.composite import GradOperation
from parallel_lab.mindspore.train import FlopsUtilizationCollector, Model

from parallel_lab.base.errors import ArgumentError, ArgumentTypeError
from parallel_lab.mindspore import PYNATIVE_MODE, Tensor, float32, nn, set_auto_parallel_context, set_context, set_seed
from parallel_lab.processes.shm import WorkerPool
from tests.crossed import each_of
from tests.ops.ranks import on_ranks

PEAK = 1e7


class Product(nn.Cell):
    """Gradients of all inputs of an operator whose result is added up."""

    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def construct(self, *inputs):
        return GradOperation(get_all=True)(lambda *given: self.operator(*given).sum())(*inputs)


def ones(*shape):
    return Tensor(np.ones(shape, np.float32))


def collected(net, inputs, devices):
    set_auto_parallel_context(device_num=devices, parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
    _cell_graph_executor.compile(net.set_train(), *inputs)
    return flops_collection(net.current_phase)


@each_of(
    ("operator", "strategy", "shapes", "forward", "parts"),
    (P.MatMul(), ((2, 2), (2, 2)), ((128, 32), (32, 128)), 128 * 32 * 128, 8),
    (P.MatMul(transpose_b=True), ((2, 1), (1, 1)), ((6, 8), (10, 8)), 6 * 8 * 10, 2),
    (P.BatchMatMul(), ((1, 2, 2, 2), (2, 2, 2)), ((1, 2, 16, 8), (2, 8, 12)), 2 * 16 * 8 * 12, 16),
    (
        P.Conv2D(out_channel=8, kernel_size=3, pad_mode="same"),
        ((2, 2, 2, 1), (2, 2, 1, 1)),
        ((4, 16, 8, 8), (8, 16, 3, 3)),
        4 * 16 * 3 * 3 * 8 * 8 * 8,
        16,
    ),
    ids=["MatMul", "on twice the devices", "BatchMatMul", "Conv2D"],
)
def test_a_product_counts_once_forward_and_once_for_each_gradient(operator, strategy, shapes, forward, parts):
    full = 3 * 2 * forward
    found = collected(Product(operator.shard(strategy)), [ones(*shape) for shape in shapes], max(parts, 4))
    assert found == (full, full, full // parts, full // parts, False)


def test_attention_counts_two_products_and_its_gradient_twice_that_in_hardware_three_times():
    batch, heads, length, size = 4, 6, 8, 10
    split, inputs = (2, 2, 2), [ones(batch, length, heads * size)] * 3
    operator = P.nn_ops.FlashAttentionScore(heads, input_layout="BSH")
    first = lambda *given: operator.shard((split, (2, 1, 2), (2, 1, 2)))(*given)[3]  # noqa: E731
    forward = 2 * 2 * batch * length * length * heads * size
    found = collected(Product(first), inputs, 8)
    assert found == (3 * forward, 4 * forward, 3 * forward // 8, 4 * forward // 8, False)


def test_a_size_that_is_unknown_is_said():
    net = Product(P.MatMul())
    set_auto_parallel_context(device_num=4, parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
    net.set_inputs(Tensor(shape=[None, 32], dtype=float32), ones(32, 12))
    _cell_graph_executor.compile(net)
    assert flops_collection(net.current_phase)[-1] is True


def test_an_unknown_phase_is_refused():
    with pytest.raises(ArgumentError, match="phase='no'"):
        flops_collection("no")


# ---- the callback ----

ROWS, INPUTS, OUTPUTS, HIDDEN = 32, 10, 5, 7


def data(rows=2 * ROWS):
    columns = {"x": np.ones((rows, INPUTS), np.float32), "y": np.zeros(rows, np.int32)}
    return NumpySlicesDataset(columns).batch(ROWS)


def trained(*callbacks, net=None, **how):
    net = net or nn.Dense(INPUTS, OUTPUTS)
    optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
    model = Model(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), optimizer, {"loss"})
    model.train(2, data(), callbacks=list(callbacks), **how)
    return model


COUNTED = "Full model flops is {0}, Full hardware flops is {1}, Shard model flops is {0}, Shard hardware flops is {1}."
USED = r"(Train|Eval) per step time: +([\d.]+) ms, mfu:([\d.]+)% hfu:([\d.]+)%"


@pytest.mark.parametrize("sink", [False, True])
def test_the_documented_example_counts_6400_and_divides_by_time_and_peak(sink, capsys):
    """Rows x inputs x outputs, twice, for the product and the gradient of its weight; no input has a gradient."""
    collector = FlopsUtilizationCollector(data().get_dataset_size(), computility=PEAK)
    trained(collector, dataset_sink_mode=sink)
    flops = 2 * 2 * ROWS * INPUTS * OUTPUTS
    first, *rest = capsys.readouterr().out.splitlines()
    assert flops == 6400 and first == COUNTED.format(flops, flops)
    assert len(rest) == 2  # after every second of four steps
    for line in rest:
        mode, ms, *used = re.fullmatch(USED, line).groups()
        exact = 1e2 * flops / (float(ms) / 1e3 * PEAK)  # of a time that is rounded to 0.001 ms
        for one in used:
            assert mode == "Train" and float(one) == pytest.approx(exact, rel=1e-3 / float(ms), abs=0.02)
    assert f"{floor(collector.mfu * 1e4) / 1e2:.2f}" == used[0]


def test_a_model_adds_its_program_to_those_that_a_cell_has():
    set_auto_parallel_context(device_num=2, parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
    net = nn.Dense(INPUTS, OUTPUTS)
    model = Model(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True), nn.SGD(net.trainable_params(), 0.1))
    half, _ = _cell_graph_executor.compile(
        model.train_network, ones(ROWS // 2, INPUTS), Tensor(np.zeros(ROWS // 2, np.int32))
    )
    model.train(1, data())
    whole = model._train_network.current_phase
    assert [flops_collection(phase)[0] for phase in (half, whole)] == [3200, 6400]


def test_counting_changes_no_training():
    """It traces the step once more, after the first one."""

    def parameters(*callbacks):
        set_seed(3)
        net = nn.SequentialCell(nn.Dense(INPUTS, HIDDEN), nn.Dropout(p=0.5), nn.Dense(HIDDEN, OUTPUTS))
        trained(*callbacks, net=net)
        return [p.asnumpy() for p in net.trainable_params()]

    for plain, counted in zip(parameters(), parameters(FlopsUtilizationCollector(1, PEAK)), strict=True):
        np.testing.assert_array_equal(plain, counted)


def test_an_evaluation_counts_forward_alone(capsys):
    model = trained()
    model.eval(data(), callbacks=FlopsUtilizationCollector(1, PEAK, full_flops=False))
    first, *rest = capsys.readouterr().out.splitlines()
    flops = 2 * ROWS * INPUTS * OUTPUTS
    assert first == f"Shard model flops is {flops}, Shard hardware flops is {flops}."
    assert [re.fullmatch(USED, line)[1] for line in rest] == ["Eval"] * 2


def test_what_is_computed_again_is_work_of_the_hardware_alone(capsys):
    block = nn.SequentialCell(nn.Dense(INPUTS, HIDDEN), nn.Tanh(), nn.Dense(HIDDEN, HIDDEN))
    block.recompute()
    trained(FlopsUtilizationCollector(1, PEAK), net=nn.SequentialCell(block, nn.Dense(HIDDEN, OUTPUTS)))
    first, second, third = (2 * ROWS * n for n in (INPUTS * HIDDEN, HIDDEN * HIDDEN, HIDDEN * OUTPUTS))
    model = 2 * first + 3 * second + 3 * third
    line = capsys.readouterr().out.splitlines()[0]
    assert line == COUNTED.format(model, model + first)  # backward of the second reads what the first has made


def test_a_collector_gets_files_and_nothing_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MA_LOG_DIR", str(tmp_path))
    trained(FlopsUtilizationCollector(1, enable_ma_collector=True))
    number = r"\d+\n"
    kinds = "".join(rf'flops{{type="{kind}_flops", rank_id="0"}} 6400 {number}' for kind in ("model", "hardware"))
    assert re.fullmatch(kinds, (tmp_path / "flops_rank_0.txt").read_text())
    step = rf'time_monitor{{type="per_step_time", rank_id="0"}} [\d.]+ {number}'
    assert re.fullmatch(step, (tmp_path / "time_step_rank_0.txt").read_text())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("given", [{"data_size": 0}, {"data_size": 1.5}, {"full_flops": 1}, {"computility": 0}])
def test_arguments_of_other_kinds_are_refused(given):
    with pytest.raises((ArgumentError, ArgumentTypeError)):
        FlopsUtilizationCollector(**{"data_size": 2, **given})


def test_pynative_mode_compiles_nothing_to_count():
    set_context(mode=PYNATIVE_MODE)
    with pytest.raises(ArgumentError, match="PYNATIVE_MODE"):
        trained(FlopsUtilizationCollector(1))


# ---- ranks ----


def on_a_rank(world, stages):
    mode = {"parallel_mode": "semi_auto_parallel", "dataset_strategy": "full_batch"} if stages > 1 else {}
    set_auto_parallel_context(**(mode or {"parallel_mode": "data_parallel", "gradients_mean": True}))
    collector, rows = FlopsUtilizationCollector(1, PEAK), 2 * ROWS
    net = nn.SequentialCell(nn.Dense(INPUTS, HIDDEN), nn.Dense(HIDDEN, OUTPUTS))
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    if stages > 1:
        set_auto_parallel_context(pipeline_stages=stages)
        for stage, layer in enumerate(net):
            layer.pipeline_stage = stage
        net = nn.PipelineCell(nn.WithLossCell(net, loss), 4)
    Model(net, None if stages > 1 else loss, nn.SGD(net.trainable_params(), 0.1)).train(1, data(rows), collector)
    return collector.full_model_flops, collector.shard_model_flops


def test_ranks_of_data_parallel_count_their_own_rows_and_those_of_all():
    with WorkerPool(2) as pool:
        found = on_ranks(pool, on_a_rank, 1)
    own = 2 * ROWS * (2 * INPUTS * HIDDEN + 3 * HIDDEN * OUTPUTS)
    assert found == [(2 * own, own)] * 2


def test_stages_count_their_own_layers_and_those_of_all_for_all_micro_batches():
    with WorkerPool(2) as pool:
        found = on_ranks(pool, on_a_rank, 2)
    own = 2 * ROWS * 2 * INPUTS * HIDDEN, 2 * ROWS * 3 * HIDDEN * OUTPUTS
    assert found == [(sum(own), part) for part in own]
