"""The training jobs of the labs: a network with its loss, its batches and its optimizer. One table.

    job = JOBS["chain"]()                        # job.net, job.loss, job.batches, job.optimizer
    JOBS["stack"](width=64)
    JOBS["dense"]("digits")                      # a network of networks.py, with its first data or those that are named

A lab's `Subject` is a job under the name that the lab calls it by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from ... import nn
from ...base.settings.current import default_settings
from ...nn.initializer import initializer
from ...nn.tensor.parameter import Parameter
from ...ops.linalg import matmul
from .lab import Lab
from .networks import NETWORKS
from .problems import get_problem, problems_of

# Widths of layers whose weights are 4, 16, 8, 16, 8, 2, 4, 1, 1, 8 times UNIT^2 elements: the sizes of the puzzle
# "fusion golf" (fusion/subjects.py), from the first layer to the last
UNIT = 256
CHAIN_WIDTHS = tuple(int(UNIT * factor) for factor in (2, 2, 8, 1, 16, 0.5, 4, 1, 1, 1, 8))
CHAIN_ROWS = 64
STACK_LAYERS = 8  # as many parameters as ranks: weight grouping deals out one each
STACK_ROWS = 512  # 64 per rank of 8: activations that can be seen next to the weights
STACK_WIDTH = 256
PRODUCTS = {"gap": (1024, (64, 64, 1024, 64)), "wide": (512, (64, 64, 256, 2048))}  # rows, widths


class ChainNet(nn.Cell):
    """Dense layers without bias, tanh between them.  x: (rows, widths[0]) -> (rows, widths[-1])."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.CellList([nn.Dense(i, o, has_bias=False) for i, o in pairwise(widths)])
        self.tanh = nn.Tanh()

    def construct(self, x: Any) -> Any:
        for number, layer in enumerate(self.layers):
            x = layer(self.tanh(x) if number else x)
        return x


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


@dataclass(frozen=True, eq=False)
class Job:
    """A network ready to be compiled and trained; `batches` are global inputs of one step each.

    optimizer_of   makes the optimizer of these Parameters
    """

    net: nn.Cell
    loss: nn.Cell
    batches: tuple[tuple[np.ndarray, ...], ...]
    optimizer_of: Callable[[list[Parameter]], nn.Optimizer]

    @cached_property
    def optimizer(self) -> nn.Optimizer:
        with default_settings():
            return self.optimizer_of(self.net.trainable_params())


def _chain(net_of: Callable[[tuple[int, ...]], nn.Cell], rows: int, widths: tuple[int, ...], seed: int) -> Job:
    """A chain of layers that learns drawn numbers by heart."""
    draw = np.random.default_rng(seed)
    x, y = (draw.normal(size=(rows, width)).astype(np.float32) for width in (widths[0], widths[-1]))
    with default_settings():
        return Job(net_of(widths), nn.MSELoss(), ((x, y),), lambda parameters: nn.SGD(parameters, 0.01))


def _stack(width: int = STACK_WIDTH) -> Job:
    return _chain(ChainNet, STACK_ROWS, (width,) * (STACK_LAYERS + 1), seed=11)


def _network(name: str, data: str = "") -> Job:
    problem = get_problem(data or problems_of(NETWORKS[name].kind)[0])
    with default_settings():
        return Job(NETWORKS[name].factory(problem), problem.loss(), problem.batches, problem.optimizer)


JOBS: dict[str, Callable[..., Job]] = {
    "chain": partial(_chain, ChainNet, CHAIN_ROWS, CHAIN_WIDTHS, seed=7),
    "stack": _stack,
    **{name: partial(_chain, ProductChain, rows, widths, seed=11) for name, (rows, widths) in PRODUCTS.items()},
    **{name: partial(_network, name) for name in NETWORKS},
}


@dataclass(frozen=True)
class Subject:
    """What a lab looks at.

    name    in commands, links and files;  label: for people;  note: what it is, in a sentence
    job     makes it; None: a puzzle on paper
    data    name of its data where programs are written (`lab/code/data.py`)
    """

    name: str
    label: str
    note: str
    job: Callable[..., Any] | None = None
    data: str = ""


def named(subjects: Mapping[str, Any], name: str, what: str, where: str) -> Any:
    """The subject of that name. Raises ArgumentError for another one."""
    return subjects[Lab.one_of(name, subjects, what, where)]
