"""What MindSpore 2.10 said to learners' mistakes, and what is said here with compat "2.10".

tests/recorded/mistakes.json has calls with the type of their error (null: accepted). NETWORKS has what was recorded for
networks compiled for 8 devices. Where this package says something else, DIFFERENT says why.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from parallel_lab.mindspore.common.api import _cell_graph_executor

import parallel_lab
import parallel_lab.mindspore as ms
from parallel_lab.base.errors import ParallelLabError
from parallel_lab.base.settings import context
from parallel_lab.mindspore import Parameter, Tensor, nn, ops

CALLS = json.loads((Path(__file__).parents[1] / "recorded" / "mistakes.json").read_text())
S = ((2, 4), (4, 1))


@pytest.fixture(autouse=True)
def as_2_10():
    parallel_lab.set_compat("2.10")
    yield
    parallel_lab.set_compat("seeds")
    context.reset_auto_parallel_context()
    context.reset_context()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_taken_or_refused_as_recorded(name):
    code = CALLS[name]["code"].replace("from mindspore", "from parallel_lab.mindspore")
    kind = CALLS[name]["type"]
    names = {"ms": ms, "nn": nn, "ops": ops, "Tensor": Tensor, "np": np}
    if kind is None:
        exec(code, names)
        return
    with pytest.raises(ParallelLabError) as caught:
        exec(code, names)
    assert kind in [base.__name__ for base in type(caught.value).__mro__]


def zeros(*shape):
    return Tensor(np.zeros(shape, np.float32))


class Product(nn.Cell):
    """relu(x @ w)."""

    def __init__(self, matmul=None, relu=None, rows=32, columns=16):
        super().__init__()
        self.w, self.matmul, self.relu = Parameter(zeros(rows, columns), "w"), ops.MatMul(), ops.ReLU()
        if matmul is not None:
            self.matmul.shard(matmul)
        if relu is not None:
            self.relu.shard(relu)

    def construct(self, x):
        return self.relu(self.matmul(x, self.w))


class SharedWeight(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(zeros(64, 64), "w")
        self.first, self.second = ops.MatMul().shard(((1, 8), (8, 1))), ops.MatMul().shard(((8, 1), (1, 1)))

    def construct(self, x):
        return self.second(self.first(x, self.w), self.w)


class CrossEntropy(nn.Cell):
    def __init__(self):
        super().__init__()
        self.loss = ops.SoftmaxCrossEntropyWithLogits().shard(((1, 8), (1, 8)))

    def construct(self, logits, labels):
        return self.loss(logits, labels)[0]


class Layers(nn.Cell):
    """Four products, each on a stage; None: without a stage."""

    def __init__(self, stages):
        super().__init__()
        self.layers = nn.CellList([Product(((2, 1), (1, 1)), rows=64, columns=64) for _ in range(4)])
        for layer, stage in zip(self.layers, stages or (), strict=False):
            layer.pipeline_stage = stage

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def compiled(net, *inputs, **settings):
    settings = {"device_num": 8, "global_rank": 0, "full_batch": True, **settings}
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", **settings)
    _cell_graph_executor.compile(net, *inputs)


def pipeline(stages, count, micro=4, **settings):
    net = nn.WithLossCell(Layers(stages), nn.MSELoss())
    net = nn.TrainOneStepCell(nn.PipelineCell(net, micro), nn.Momentum(net.trainable_params(), 0.1, 0.9))
    compiled(net, zeros(64, 64), zeros(64, 64), pipeline_stages=count, **settings)


def product(matmul, relu=None, x=(16, 32), **settings):
    compiled(Product(matmul, relu, rows=x[1]), zeros(*x), **settings)


NETWORKS = {
    "strategy_not_dividing": (lambda: product(((3, 1), (1, 1))), RuntimeError),
    "strategy_not_power_of_2_dividing": (lambda: product(((3, 1), (1, 1)), x=(12, 32)), RuntimeError),
    "strategy_too_many": (lambda: product(((8, 4), (4, 1))), RuntimeError),
    "strategy_contraction_mismatch": (lambda: product(((2, 4), (2, 1))), RuntimeError),
    "strategy_wrong_rank": (lambda: product(((8,), (1, 1))), RuntimeError),
    "strategy_wrong_count": (lambda: product(((8, 1),)), RuntimeError),
    "strategy_zero": (lambda: product(((0, 4), (4, 1))), RuntimeError),  # taken by shard, as recorded above
    "strategy_negative": (lambda: product(((-1, 4), (4, 1))), RuntimeError),
    "relu_wrong_count": (lambda: product(S, ((8, 1), (1, 1))), RuntimeError),
    "batch_not_divisible": (lambda: product(None, x=(12, 32), full_batch=False), None),
    "odd_dims_small_shape": (lambda: product(None, x=(4, 32), full_batch=False), None),
    "device_num_6": (lambda: product(((2, 3), (3, 1)), x=(16, 33), device_num=6), RuntimeError),
    "shared_param_conflict": (lambda: compiled(SharedWeight(), zeros(64, 64)), RuntimeError),
    "pipeline_not_dividing": (lambda: pipeline((0, 0, 1, 2), 3), RuntimeError),
    "pipeline_stage_missing": (lambda: pipeline((0, 0, 1, 1), 4), RuntimeError),
    "pipeline_stage_out_of_range": (lambda: pipeline((0, 1, 1, 2), 2), RuntimeError),
    "pipeline_decreasing": (lambda: pipeline((1, 1, 0, 0), 2), RuntimeError),
    "pipeline_no_stage_set": (lambda: pipeline(None, 2), RuntimeError),
    "pipeline_micro_lt_stages": (lambda: pipeline((0, 1, 2, 3), 4, micro=2), RuntimeError),
    "pipeline_micro_not_dividing": (lambda: pipeline((0, 0, 1, 1), 2, micro=3), ValueError),
    "global_rank_too_big": (lambda: product(S, global_rank=8), RuntimeError),
    "dataset_strategy_wrong": (
        lambda: compiled(
            nn.WithLossCell(Product(), nn.MSELoss()), zeros(16, 32), zeros(16, 16), dataset_strategy=((3, 1), (3, 1))
        ),
        RuntimeError,
    ),
    "dataset_strategy_count": (
        lambda: compiled(
            nn.WithLossCell(Product(), nn.MSELoss()), zeros(16, 32), zeros(16, 16), dataset_strategy=((8, 1),)
        ),
        RuntimeError,
    ),
    "quick_bad_arg_order": (lambda: compiled(Product(S), zeros(2, 4)), ValueError),
    "ce_vocab_split": (lambda: compiled(CrossEntropy(), zeros(16, 8), zeros(16, 8)), RuntimeError),
    "semi_auto_on_cpu": (lambda: (ms.set_context(device_target="CPU"), product(S)), RuntimeError),
}
DIFFERENT = {"semi_auto_on_cpu": "every rank here is a processor of this machine, whatever device_target says"}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_compiles_or_is_refused_as_recorded(name):
    compile_it, kind = NETWORKS[name]
    if kind is None or name in DIFFERENT:
        compile_it()
        return
    with pytest.raises(kind) as caught:
        compile_it()
    assert isinstance(caught.value, ParallelLabError)
