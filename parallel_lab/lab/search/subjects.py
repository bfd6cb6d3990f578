"""What the Search Lab searches strategies for: the networks of the labs, and two chains of products.

    job = SUBJECTS["gap"].job()         # network, loss, optimizer, batches

"gap" is a chain whose first product, split by its columns, leads sharding propagation to a plan without any
redistribution that costs many times the least; "wide" a chain whose last product is so wide that its weight should not
lie whole on every device (theory: "one weird trick", Krizhevsky 2014).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from ... import nn
from ...base.settings.context import default_settings
from ...nn.initializer import initializer
from ...nn.tensor.parameter import Parameter
from ...ops.linalg import matmul
from ...ops.machine.primitive import Strategy
from ..code.data import DATA, chain_of_search
from ..shared.networks import NETWORKS, apply_strategies
from ..shared.problems import TrainingJob, get_problem, problems_of

OWN = "data parallel"  # the preset that a chain has


class ProductChain(nn.Cell):
    """x @ w1 @ w2 ...  x: (rows, widths[0]) -> (rows, widths[-1])."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.count = len(widths) - 1
        for number, shape in enumerate(pairwise(widths), 1):
            setattr(self, f"weight{number}", Parameter(initializer("normal", list(shape)), f"w{number}"))
            setattr(self, f"matmul{number}", matmul.primitive())

    def construct(self, x: Any) -> Any:
        for number in range(1, self.count + 1):
            x = getattr(self, f"matmul{number}")(x, getattr(self, f"weight{number}"))
        return x


@dataclass(frozen=True)
class Subject:
    """A network.  data: lines that make its batches in a program (`lab/code/data.py`)
    presets   {name for people: devices -> {operator: strategy}}: choices of one's own to begin with
    """

    name: str
    label: str
    note: str
    make: Callable[[], TrainingJob]
    data: str
    presets: dict[str, Callable[[int], dict[str, Strategy]]]

    @property
    def job(self) -> TrainingJob:
        """The network with its first values, no strategy given: training takes copies of its parameters."""
        return _job_of(self.name)

    def with_strategies(self, strategies: dict[str, Strategy]) -> nn.Cell:
        """A network of its own, with these strategies."""
        with default_settings():
            return apply_strategies(self.make().net, strategies)


def _network(name: str, note: str) -> Subject:
    """A network of the labs, with its first data."""
    network, data = NETWORKS[name], problems_of(NETWORKS[name].kind)[0]

    def make() -> TrainingJob:
        problem = get_problem(data)
        net = network.factory(problem)
        return TrainingJob(net, problem.loss(), problem.optimizer(net.trainable_params()), problem.batches)

    return Subject(name, network.label, note, make, DATA[data], network.presets)


def _chain(name: str, label: str, note: str, rows: int, widths: tuple[int, ...]) -> Subject:
    def make() -> TrainingJob:
        draw = np.random.default_rng(11)
        x, y = (draw.normal(size=(rows, width)).astype(np.float32) for width in (widths[0], widths[-1]))
        net = ProductChain(widths)
        return TrainingJob(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.01), ((x, y),))

    return Subject(name, label, note, make, chain_of_search(rows, widths[0], widths[-1]), {OWN: lambda devices: {}})


_SUBJECTS = (
    _network("quickstart", "two products, relu between: the network of the automatic-parallel quickstart"),
    _network("megatron", "two products with bias, GeLU between"),
    _network("dense", "two Dense layers, ReLU between"),
    _chain("gap", "propagation gap", "1024 rows, widths 64, 64, 1024, 64", 1024, (64, 64, 1024, 64)),
    _chain("wide", "wide last layer", "512 rows, widths 64, 64, 256, 2048", 512, (64, 64, 256, 2048)),
    _network("embedding", "tables of features and two dense layers"),
    _network("convnet", "two convolutions with batch norm on colour digits"),
    _network("transformer", "a one-block GPT that learns to count in words"),
)
SUBJECTS = {subject.name: subject for subject in _SUBJECTS}


@cache
def _job_of(name: str) -> TrainingJob:
    with default_settings():
        return SUBJECTS[name].make()
