"""Ranks that should train equal copies, and one that does something else: in every form of data parallel training."""

from __future__ import annotations

import itertools
import warnings

import numpy as np

from parallel_lab import nn, ops, value_and_grad
from parallel_lab.base import seeds
from parallel_lab.base.settings import context
from parallel_lab.base.settings.run_checks import reset_run_checks, set_run_checks
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train import LambdaCallback, Model
from parallel_lab.train.dataset import GeneratorDataset
from parallel_lab.train.engine import make_train_step
from tests.train.cases.nets import DATA, SquareLoss
from tests.train.worlds import case, refused

STEPS, EVERY = 9, 3
LOOPS = ("Model", "AllReduce", "compiled step", "TrainOneStepCell", "reducer", "AllReduce together")
QUICK = 1  # of these in the quick suite
# what the odd rank does, and what the error must say of it
FAULTS = {
    "nothing": "",
    "learning rate": "learning_rate is ",
    "momentum": "momentum is ",
    "weight decay": "weight_decay is ",
    "mean": "gradients_mean is ",
    "optimizer": "optimizer is ",
    "weights by hand": "parameter '0.weight' has other values on rank",
    "bias by hand": "parameter '2.bias' has other values on rank",
    "weights later": "parameter '2.weight' has other values on rank",
    "seed": "seed is ",
}


def trained(here, loop, fault, odd, folder=None):
    """Train; what the odd rank's fault came to: (kinds of the error, text), steps that were begun."""
    is_odd = here.rank == odd

    def is_(name):
        return is_odd and fault == name

    here.settings(**{**DATA, "gradients_mean": not is_("mean")})
    seeds.set_seed(8 if is_("seed") else 7)
    net = nn.SequentialCell(nn.Dense(12, 8), nn.ReLU(), nn.Dense(8, 16))
    if is_("weights by hand"):
        net[0].weight.set_data(net[0].weight.asnumpy() + np.float32(1e-3))
    if is_("bias by hand"):
        net[2].bias.set_data(net[2].bias.asnumpy() + np.float32(1e-3))
    rate, momentum, decay = (0.05 if is_("learning rate") else 0.1), (0.8 if is_("momentum") else 0.9), 1e-4
    decay = 1e-3 if is_("weight decay") else decay
    if is_("optimizer"):
        optimizer = nn.SGD(net.trainable_params(), rate, momentum=momentum, weight_decay=decay)
    else:
        optimizer = nn.Momentum(net.trainable_params(), rate, momentum, weight_decay=decay)
    loss_fn, rng, begun = SquareLoss(), np.random.default_rng(here.rank), []

    def begin(run_context=None):
        begun.append(1)
        if is_("weights later") and len(begun) == 5:
            net[2].weight.set_data(net[2].weight.asnumpy() * np.float32(1.001))

    def rows():
        return rng.standard_normal((4, 12)).astype(np.float32), rng.standard_normal((4, 16)).astype(np.float32)

    def train():
        if loop == "Model":
            data = GeneratorDataset(lambda: (rows() for _ in range(STEPS)), ["data", "label"])
            Model(net, loss_fn, optimizer).train(1, data, callbacks=LambdaCallback(on_train_step_begin=begin))
            return
        reducer, all_reduce = nn.DistributedGradReducer(optimizer.parameters), ops.AllReduce()
        gradient = value_and_grad(lambda x, y: loss_fn(net(x), y), None, optimizer.parameters)
        cell = nn.TrainOneStepCell(nn.WithLossCell(net, loss_fn), optimizer)
        step = make_train_step(net, loss_fn, optimizer) if loop == "compiled step" else None
        for _ in range(STEPS):
            begin()
            x, y = map(Tensor, rows())
            if step is not None:
                step(x, y)
            elif loop == "TrainOneStepCell":
                cell(x, y)
            else:
                _, grads = gradient(x, y)
                if loop == "reducer":
                    optimizer(reducer(grads))
                else:
                    count = 1 if is_("mean") else here.size
                    sums = together(grads, all_reduce) if loop.endswith("together") else [all_reduce(g) for g in grads]
                    optimizer([ops.div(g, float(count)) for g in sums])

    set_run_checks(replicas="error", replicas_every=EVERY)
    try:
        return refused(train), len(begun)
    finally:
        reset_run_checks()
        here.mean(0.0)  # all ranks are through


def together(grads, all_reduce):
    """The sums of gradients that travel in two messages, and of a loss next to them."""
    found = []
    for some in (grads[:1], grads[1:]):
        flat, at = all_reduce(ops.concat([ops.reshape(g, (-1,)) for g in some], 0)), 0
        for g in some:
            found.append(ops.reshape(flat[at : at + g.size], g.shape))
            at += g.size
    all_reduce(Tensor(np.ones(1, np.float32)))
    return found


def of_all(loop, fault):
    def run(here):
        return {}, [trained(here, loop, fault, odd) for odd in range(here.size)]

    return case(4, compared=False, quick=None if loop in LOOPS[:QUICK] else ())(run)


CASES = {f"{loop}, {fault}": of_all(loop, fault) for loop, fault in itertools.product(LOOPS, FAULTS)}


@case(2, compared=False)
def a_warning_is_enough(here):
    set_run_checks(replicas="warning")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        here.settings(**DATA)
        seeds.set_seed(7)
        net = nn.Dense(12, 16)
        optimizer = nn.Momentum(net.trainable_params(), 0.1 + here.rank, 0.9)
        step = make_train_step(net, SquareLoss(), optimizer)
        for _ in range(5):
            step(Tensor(np.ones((4, 12), np.float32)), Tensor(np.ones((4, 16), np.float32)))
    reset_run_checks()
    return {}, [str(one.message) for one in told if one.category is RuntimeWarning]


@case(2, compared=False)
def other_batches(here):
    """Rank 1's batch has other rows, or another dtype."""
    found = {}
    for what in ("rows", "dtype", "messages of its own"):
        is_odd = here.rank == 1
        here.settings(**DATA)
        seeds.set_seed(7)
        net = nn.SequentialCell(nn.Dense(12, 8), *([Summed()] if what[0] == "m" else []), nn.Dense(8, 16))
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        rows, dtype = (6 if is_odd and what != "dtype" else 4), ("f2" if is_odd and what == "dtype" else "f4")
        step = make_train_step(net, SquareLoss(), optimizer)
        found[what] = refused(step, Tensor(np.ones((rows, 12), dtype)), Tensor(np.ones((rows, 16), dtype)))
        here.mean(0.0)
    return {}, found


class Summed(nn.Cell):
    """Adds up over the ranks what rows of their own give."""

    def __init__(self):
        super().__init__()
        self.all_reduce = ops.AllReduce()

    def construct(self, x):
        return self.all_reduce(ops.reduce_sum(x, 0))[None]


@case(2, compared=False)
def what_may_differ(here):
    """Statistics of own batches, layerwise_parallel parameters, seeds of dropout, optimizers of own parameters."""
    set_run_checks(replicas="error", replicas_every=1)
    here.settings(**DATA)
    seeds.set_seed(7)
    net = nn.SequentialCell(nn.Dense(12, 8), nn.BatchNorm1d(8), nn.Dropout(p=0.5), nn.Dense(8, 16))
    net[3].bias.layerwise_parallel = True
    assert all(np.isfinite(p.asnumpy()).all() for p in net.get_parameters())  # drawn now, from one seed
    seeds.set_seed(10 + here.rank)
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    rng, step = np.random.default_rng(here.rank), make_train_step(net, SquareLoss(), optimizer)
    for _ in range(3):
        x, y = rng.standard_normal((4, 12)).astype(np.float32), rng.standard_normal((4, 16)).astype(np.float32)
        step(Tensor(x), Tensor(y))
    context.reset_auto_parallel_context()
    net = nn.SequentialCell(nn.Dense(12, 8), nn.Dense(8, 16))
    mine = nn.Momentum([net[here.rank].weight, net[here.rank].bias], 0.1, 0.9)  # an optimizer parallel by hand
    all_reduce, loss = ops.AllReduce(), SquareLoss()
    gradient = value_and_grad(lambda x, y: loss(net(x), y), None, net.trainable_params())
    for _ in range(3):
        x, y = rng.standard_normal((4, 12)).astype(np.float32), rng.standard_normal((4, 16)).astype(np.float32)
        sums = [all_reduce(g) for g in gradient(Tensor(x), Tensor(y))[1]]
        mine(sums[2 * here.rank : 2 * here.rank + 2])
    reset_run_checks()
    return {}, "through"
