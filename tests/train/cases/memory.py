"""Memory for time on started ranks, as MindSpore's scripts host_device and recompute: losses of Model.train."""

from __future__ import annotations

import numpy as np

from parallel_lab import nn, ops
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train import LambdaCallback, Model
from parallel_lab.train.dataset import NumpySlicesDataset
from tests.train.cases.nets import SquareLoss, numbers
from tests.train.worlds import case, parameters

ROWS, WORDS, FIELDS, WIDTH = 16, 64, 4, 8
SEMI = {"parallel_mode": "semi_auto_parallel", "dataset_strategy": "full_batch"}


def trained(here, net, optimizer, columns, parts):
    """Losses of two epochs of two batches, each fed in so many micro-batches."""
    named = {f"column{number}": column for number, column in enumerate(columns)}
    data = NumpySlicesDataset(named, shuffle=False).batch(ROWS // 2)
    losses = []
    seen = LambdaCallback(on_train_step_end=lambda run: losses.append(here.full(run.original_args().net_outputs)))
    whole = nn.WithLossCell(net, SquareLoss())
    whole = nn.PipelineCell(whole, parts) if parts > 1 else whole
    Model(whole, optimizer=optimizer).train(2, data, callbacks=[seen], dataset_sink_mode=False)
    assert len(losses) == 4
    return {"losses": losses}


# ---- host and device ----


class Head(nn.Cell):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Dense(FIELDS * WIDTH, 8, Tensor(numbers(3, 8, FIELDS * WIDTH) / 4), dtype="float64")
        self.out, self.reshape = nn.Dense(8, 1, Tensor(numbers(4, 1, 8)), dtype="float64"), ops.Reshape()

    def construct(self, deep):
        return self.out(ops.relu(self.hidden(self.reshape(deep, (-1, FIELDS * WIDTH)))))


class WideAndDeep(nn.Cell):
    """Two tables on the host, on stage 0; what is looked up goes through dense layers on the device, on stage 1."""

    def __init__(self, mode):
        super().__init__()
        self.wide = nn.EmbeddingLookup(WORDS, 1, Tensor(numbers(1, WORDS, 1)), "CPU", mode, dtype="float64")
        self.deep = nn.EmbeddingLookup(WORDS, WIDTH, Tensor(numbers(2, WORDS, WIDTH)), "CPU", mode, dtype="float64")
        self.head, self.sum = Head(), ops.ReduceSum()
        self.wide.pipeline_stage, self.deep.pipeline_stage, self.head.pipeline_stage = 0, 0, 1

    def construct(self, ids):
        return self.head(self.deep(ids)) + self.sum(self.wide(ids), 1)


def on_the_host(mode, optimizer, updates_there, settings):
    def run(here):
        here.settings(**SEMI, **settings)
        net = WideAndDeep(mode)
        made = optimizer(net.trainable_params())
        if updates_there:
            made.target = "CPU"
        ids = np.random.default_rng(5).integers(0, WORDS, (ROWS, FIELDS)).astype(np.int32)
        parts = 4 if "pipeline_stages" in settings else 1
        found = trained(here, net, made, (ids, numbers(6, ROWS, 1)), parts)
        return {**found, **({} if parts > 1 else parameters(here, net))}, {}

    return case(2, 8, quick=())(run)


def adam(parameters):
    return nn.Adam(parameters, 0.01)


def lazy_adam(parameters):
    return nn.LazyAdam(parameters, 0.01)


def ftrl(parameters):
    return nn.FTRL(parameters, learning_rate=0.05)


STAGES = {"pipeline_stages": 2}
SHARDED = {"enable_parallel_optimizer": True, "parallel_optimizer_config": {"parallel_optimizer_threshold": 0}}
MODES = ("batch_slice", "table_row_slice", "table_column_slice")
HOST = {
    "adam, there": (MODES[0], adam, True, {}),
    "adam, on the device": (MODES[1], adam, False, {}),
    "lazy adam, there": (MODES[1], lazy_adam, True, {}),
    "ftrl, there": (MODES[1], ftrl, True, {}),
    "sharded": (MODES[0], adam, True, SHARDED),
    "stages": (MODES[1], adam, True, STAGES),
    "stages, on the device": (MODES[2], adam, False, {**STAGES, **SHARDED}),
    "fused": (MODES[1], adam, True, {"comm_fusion": {"allreduce": {"mode": "auto", "config": None}}}),
}


# ---- recompute ----


class Stack(nn.Cell):
    """Dense layers with dropout between, each of them recomputed as `mark` says."""

    def __init__(self, mark, cut, count=6):
        super().__init__()
        self.layers = nn.CellList([nn.SequentialCell(*self.layer(n, cut)) for n in range(count)])
        for number, layer in enumerate(self.layers):
            layer.pipeline_stage = number * 2 // count
            if mark is not None:
                layer.recompute(**mark)
        self.head = Parameter(Tensor(numbers(9, 8, 4) / 3), name="head")
        self.matmul = ops.MatMul()
        self.set_train()

    @staticmethod
    def layer(number, cut):
        up = nn.Dense(8, 32, Tensor(numbers(2 * number, 32, 8) / 9), activation="relu", dtype="float64")
        down = nn.Dense(32, 8, Tensor(numbers(2 * number + 1, 8, 32) / 9), dtype="float64")
        if cut:
            up.matmul.shard(((1, 1), (2, 1)))
            down.matmul.shard(((1, 2), (1, 2)))
        return up, nn.Dropout(p=0.2), down

    def construct(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.matmul(x, self.head)


def recomputed(mark, settings=None, parts=1, cut=True):
    def run(here):
        here.settings(**SEMI, **(settings or {}))
        net = Stack(None if here.alone else mark, cut)
        optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
        found = trained(here, net, optimizer, (numbers(7, ROWS, 8), numbers(8, ROWS, 4)), parts)
        return {**found, **({} if parts > 1 else parameters(here, net))}, {}

    return case(2, 8, quick=())(run)


RECOMPUTED = {
    "all": recomputed({}),
    "messages kept": recomputed({"mp_comm_recompute": False}),
    "slices kept": recomputed({"recompute_slice_activation": True}),
    "gathered again": recomputed({"parallel_optimizer_comm_recompute": True}, SHARDED),
    "level3": recomputed({}, {**SHARDED, "parallel_optimizer_config": {"optimizer_level": "level3"}}),
    "stages": recomputed({}, STAGES, 4, cut=False),
    "stages, messages kept": recomputed({"mp_comm_recompute": False}, {**STAGES, **SHARDED}, 4, cut=False),
}

CASES = {f"host: {name}": on_the_host(*given) for name, given in HOST.items()} | RECOMPUTED
