"""Pipeline stages on started ranks: Model, a step by hand, AutoParallel, and a network that only predicts."""

from __future__ import annotations

import numpy as np

from parallel_lab import nn, ops, value_and_grad
from parallel_lab.base.hooks import current_world
from parallel_lab.mindspore import sync_pipeline_shared_parameters
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train import LambdaCallback, Model, jit
from parallel_lab.train.auto_parallel import AutoParallel
from parallel_lab.train.dataset import NumpySlicesDataset
from tests.train.cases.nets import SquareLoss, numbers
from tests.train.worlds import case, refused

PARTS_OF_BATCH = 4
SETTINGS = {"parallel_mode": "semi_auto_parallel", "dataset_strategy": "full_batch", "pipeline_stages": 2}


class Stack(nn.Cell):
    """Two products in each stage, with a norm and a residual between."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third, self.last = (nn.Dense(8, 8, dtype="float64") for _ in range(4))
        for at, cell in enumerate((self.first, self.second, self.third, self.last)):
            cell.weight.set_data(Tensor(numbers(at, 8, 8) / 3))
            cell.pipeline_stage = at // 2
        self.norm = nn.LayerNorm((8,), dtype="float64")
        self.norm.pipeline_stage = 1

    def construct(self, x):
        h = self.second(ops.tanh(self.first(x)))
        return self.last(ops.tanh(self.third(self.norm(h)) + h))


def data():
    return numbers(11, 24, 8), numbers(12, 24, 8)


def everything(here, net):
    """{name: whole array}, each from the first rank that has it."""
    if here.alone:
        return {p.name: p.asnumpy() for p in net.get_parameters()}
    half, found = here.size // 2, {}
    for p in net.get_parameters():
        stage = 0 if p.name.split(".")[0] in ("first", "second") else 1
        mine = np.array(p.full().asnumpy()) if here.rank // half == stage else np.zeros(p.full_shape)
        found[p.name] = current_world().comm.broadcast(mine, root=stage * half)
    return found


def by_model(**settings):
    def run(here):
        here.settings(**SETTINGS, **settings)
        net, losses = Stack(), []
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        whole = nn.PipelineCell(nn.WithLossCell(net, SquareLoss()), PARTS_OF_BATCH)
        x, y = data()
        batches = NumpySlicesDataset({"x": x, "y": y}, shuffle=False).batch(8)
        seen = LambdaCallback(on_train_step_end=lambda run: losses.append(float(run.original_args().net_outputs)))
        Model(whole, optimizer=optimizer).train(2, batches, callbacks=[seen], dataset_sink_mode=False)
        return {"losses": np.array(losses), **everything(here, net)}, {}

    return case(2, 4)(run)


def by_hand(wrap):
    def run(here):
        here.settings(**(SETTINGS if wrap is jit else {"parallel_mode": "data_parallel"}))
        net = Stack()
        optimizer = nn.Adam(net.trainable_params(), 0.01)
        whole = nn.PipelineCell(nn.WithLossCell(net, SquareLoss()), PARTS_OF_BATCH)
        reducer = nn.PipelineGradReducer(optimizer.parameters)
        gradients = value_and_grad(whole, None, optimizer.parameters)

        def step(x, y):
            loss, grads = gradients(x, y)
            optimizer(reducer(grads))
            return loss

        run_step = step if here.alone else wrap(step)
        x, y = data()
        losses = [float(run_step(Tensor(x[at : at + 8]), Tensor(y[at : at + 8])).asnumpy()) for at in (0, 8, 16)]
        return {"losses": np.array(losses), **everything(here, net)}, {}

    return case(2, 4)(run)


def in_auto_parallel(step):
    wrapped = AutoParallel(step, parallel_mode="semi_auto")
    wrapped.dataset_strategy("full_batch")
    wrapped.pipeline(stages=2, scheduler="gpipe")
    return wrapped


def predicting(broadcast):
    def run(here):
        here.settings(**SETTINGS, pipeline_result_broadcast=broadcast)
        net = Stack()
        net.set_train(False)
        found = net(Tensor(data()[0][:8])) if here.alone else jit(net)(Tensor(data()[0][:8]))
        last = here.alone or broadcast or here.rank >= here.size // 2
        if not last:
            assert found is None
        mine = np.array(here.full(found)) if last else np.zeros((8, 8))
        return {"out": mine if here.alone else current_world().comm.broadcast(mine, root=here.size - 1)}, {}

    return case(2, 4)(run)


class Words(nn.Cell):
    """Rows of a table, and the table itself, for the head at the other end."""

    def __init__(self):
        super().__init__()
        self.table = Parameter(Tensor(numbers(7, 12, 8)), name="table")
        self.gather = ops.Gather()

    def construct(self, ids):
        return self.gather(self.table, ids, 0).squeeze(1), self.table.value()


class Tied(nn.Cell):
    def __init__(self):
        super().__init__()
        self.words, self.middle = Words(), nn.Dense(8, 8, dtype="float64")
        self.middle.weight.set_data(Tensor(numbers(8, 8, 8)))
        self.head = nn.SequentialCell(nn.Dense(8, 8, dtype="float64"))
        self.head[0].weight.set_data(Tensor(numbers(9, 8, 8)))
        self.matmul = ops.MatMul(transpose_b=True)
        self.words.pipeline_stage, self.middle.pipeline_stage, self.head.pipeline_stage = 0, 0, 1

    def construct(self, ids):
        x, table = self.words(ids)
        return self.matmul(self.head(self.middle(x)), table)


class Unrolled(nn.Cell):
    """A network that predicts micro-batches one after the other, written as a loop."""

    def __init__(self, network, parts):
        super().__init__()
        self.network, self.parts, self.concat = network, parts, ops.Concat()

    def construct(self, ids):
        size, found = ids.shape[0] // self.parts, ()
        for at in range(self.parts):
            found += (self.network(ids[at * size : (at + 1) * size]),)
        return self.concat(found)


@case(2, 4)
def predicting_in_a_loop(here):
    """Compiled first, its shared table brought to the last stage, and every rank has the result."""
    here.settings(**SETTINGS, pipeline_result_broadcast=True)
    net = Unrolled(Tied(), PARTS_OF_BATCH)
    net.set_train(False)
    ids = Tensor(np.arange(8).reshape(8, 1).astype(np.int32))
    if not here.alone:
        net.compile(ids)
        sync_pipeline_shared_parameters(net)
    return {"out": here.full(net(ids))}, {}


def disagreeing(parts_there, size_there):
    """The ranks of stage 1 feed other micro-batches, or have another network, than those of stage 0."""

    def run(here):
        here.settings(**SETTINGS)
        other = here.rank >= here.size // 2
        net = Stack()
        if other and size_there:
            net.last = nn.Dense(8, 8, has_bias=False, dtype="float64")
            net.last.pipeline_stage = 1
        whole = nn.PipelineCell(nn.WithLossCell(net, SquareLoss()), parts_there if other else PARTS_OF_BATCH)
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        gradients = value_and_grad(whole, None, optimizer.parameters)

        def step(x, y):
            loss, grads = gradients(x, y)
            optimizer(grads)
            return loss

        x, y = data()
        return {}, refused(jit(step), Tensor(x[:8]), Tensor(y[:8]))

    return case(2, 4, quick=(2,), compared=False)(run)


DISAGREEING = {"micro-batches": disagreeing(2, False), "network": disagreeing(PARTS_OF_BATCH, True)}
CASES = {
    **DISAGREEING,
    "predicting in a loop": predicting_in_a_loop,
    "model": by_model(),
    "model, parallel optimizer": by_model(
        enable_parallel_optimizer=True, parallel_optimizer_config={"parallel_optimizer_threshold": 0}
    ),
    "by hand": by_hand(jit),
    "AutoParallel": by_hand(in_auto_parallel),
    "predicting": predicting(False),
    "predicting, for all": predicting(True),
}
