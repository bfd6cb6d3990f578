"""Trainings in which one rank meets NaN or an infinity: in its batch, or in a gradient only."""

from __future__ import annotations

import itertools

import numpy as np

from parallel_lab import nn, ops, value_and_grad
from parallel_lab.base import seeds
from parallel_lab.base.settings.run_checks import reset_run_checks, set_run_checks
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train import Model
from parallel_lab.train.dataset import GeneratorDataset
from parallel_lab.train.engine import make_train_step
from tests.train.cases.nets import DATA, SquareLoss
from tests.train.worlds import case

STEPS, BAD_STEP = 6, 3
LOOPS = ("Model", "compiled step", "TrainOneStepCell", "reducer")
WHERE = ("input", "gradient")
BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


def trained(here, loop, where, bad, odd):
    """Train; the odd rank meets a bad number in step BAD_STEP. A rank writes down its error, and ends with it.

    gradient   the root of 0 has a finite value and an infinite derivative; nan: times the 0 of what is before it
    """
    here.settings(**DATA)
    seeds.set_seed(7)
    net = Rooted()
    optimizer = nn.SGD(net.trainable_params(), 0.01)
    loss_fn, rng = SquareLoss(), np.random.default_rng(here.rank)

    def rows(number):
        x, y = rng.random((4, 12), np.float32), rng.random((4, 16), np.float32)
        if here.rank == odd and number == BAD_STEP:
            if where == "input":
                x[2, 5] = BAD[bad]
            else:
                x[...] = 0.0
        return x, y

    def train():
        if loop == "Model":
            data = GeneratorDataset(lambda: (rows(number) for number in range(1, STEPS + 1)), ["data", "label"])
            Model(net, loss_fn, optimizer).train(1, data)
            return
        reducer = nn.DistributedGradReducer(optimizer.parameters)
        gradient = value_and_grad(lambda x, y: loss_fn(net(x), y), None, optimizer.parameters)
        cell = nn.TrainOneStepCell(nn.WithLossCell(net, loss_fn), optimizer)
        step = make_train_step(net, loss_fn, optimizer) if loop == "compiled step" else None
        for number in range(1, STEPS + 1):
            x, y = map(Tensor, rows(number))
            if step is not None:
                step(x, y)
            elif loop == "TrainOneStepCell":
                cell(x, y)
            else:
                optimizer(reducer(gradient(x, y)[1]))

    set_run_checks(finite=True)
    try:
        with np.errstate(all="ignore"):
            train()
    except Exception as error:
        (here.folder / f"rank_{here.rank}").write_text(f"{type(error).__name__}: {error}")
        raise
    finally:
        reset_run_checks()


class Rooted(nn.Cell):
    """sqrt(x w) v: where x is 0, the gradient of w is not finite, and the loss is."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(12, 8, has_bias=False), nn.Dense(8, 16)
        self.first.weight.set_data(np.random.default_rng(3).random((8, 12)).astype(np.float32))

    def construct(self, x):
        return self.second(ops.sqrt(self.first(x)))


def of(loop, where, bad, odd):
    def run(here):
        return {}, trained(here, loop, where, bad, odd)

    return case(4, compared=False)(run)


CASES = {
    f"{loop}, {where}, {bad}": of(loop, where, bad, number % 4)
    for number, (loop, where, bad) in enumerate(itertools.product(LOOPS, WHERE, BAD))
}
