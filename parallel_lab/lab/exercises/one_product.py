"""One matrix product on several ranks: what a strategy makes of it. Lesson 05 looks at nothing else.

    found = Product(((2, 4), (4, 1)))       x (16, 32) @ w (32, 16) on 8 ranks
    found.slices                            ((8, 8), (8, 16), (8, 16)): of x, of w, of the result
    found.group(5)                          (4, 5, 6, 7): they add up
    found.held_elements, found.sent_elements

Everything is read off the compiled plan; `run` computes it on ranks.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ... import nn
from ...base.errors import StrategyError
from ...base.units import table_lines
from ...cost.time import sent_bytes
from ...graph.compiler import compile_network
from ...graph.instr import Value
from ...graph.plan import Plan
from ...nn.tensor.parameter import Parameter
from ...nn.tensor.tensor import Tensor
from ...ops.linalg import matmul
from ...run.simulator import Simulator
from ...train.session import Session
from ..shared.sections import html_table

DEVICES = 8
SHAPE = (16, 32, 16)  # m, k, n
Pair = tuple[tuple[int, int], tuple[int, int]]


class _Net(nn.Cell):
    """x @ w.  x: (m, k) -> (m, n)."""

    def __init__(self, w: np.ndarray, strategy: Any) -> None:
        super().__init__()
        self.w = Parameter(Tensor(w), "w")
        self.matmul = matmul.primitive().shard(strategy)

    def construct(self, x: Any) -> Any:
        return self.matmul(x, self.w)


def arrays(shape: tuple[int, int, int] = SHAPE) -> tuple[np.ndarray, np.ndarray]:
    """x (m, k) and w (k, n), float32: small whole numbers, so that sums are exact in any order."""
    rng = np.random.default_rng(5)
    m, k, n = shape
    return tuple(rng.integers(-4, 5, size).astype(np.float32) for size in ((m, k), (k, n)))


@dataclass(frozen=True)
class Product:
    """x (m, k) @ w (k, n) with a strategy, on `devices` ranks. Raises StrategyError if it is refused.

    strategy  ((rows, columns) of x, (rows, columns) of w): slices per dim
    """

    strategy: Any
    shape: tuple[int, int, int] = SHAPE
    devices: int = DEVICES

    def __post_init__(self) -> None:
        _ = self.plan

    @cached_property
    def _net(self) -> _Net:
        return _Net(arrays(self.shape)[1], self.strategy)

    @cached_property
    def plan(self) -> Plan:
        """The forward program."""
        how = {"device_num": self.devices, "dataset_strategy": "full_batch"}
        return compile_network(self._net, arrays(self.shape)[0], **how)

    @property
    def _x(self) -> str:
        """x as the product reads it: sliced, where it is split."""
        return "x.for.matmul" if "x.for.matmul" in self.plan.value_table else "x"

    @property
    def x(self) -> Value:
        """x as the product reads it."""
        return self.plan.value(self._x)

    @property
    def slices(self) -> tuple[tuple[int, ...], ...]:
        """Shapes that a rank holds: of x, of w, of the result."""
        return tuple(self.plan.value(name).slice_shape for name in (self._x, "w", "matmul"))

    @property
    def held_elements(self) -> int:
        """Elements of x, w and the result on one rank."""
        return sum(int(np.prod(shape)) for shape in self.slices)

    @property
    def _messages(self) -> list[Any]:
        return [i for _, i in self.plan.instructions() if i.is_communication]

    def group(self, rank: int) -> tuple[int, ...]:
        """Ranks that add up with this one, itself included."""
        return next((i.group(rank) for i in self._messages), (rank,))

    @property
    def addends(self) -> int:
        """Partial sums of every element of the result: 1 where nothing is added up."""
        return len(self.group(0))

    @property
    def sent_elements(self) -> int:
        """Elements that one rank sends."""
        return sum(sent_bytes(self.plan, i, 0) for i in self._messages) // 4

    def held_arrays(self) -> dict[str, list[np.ndarray]]:
        """{name: the array of each rank} for x, w and the result of a run on simulated ranks."""
        x, w = arrays(self.shape)
        names, held = {self._x: "x", "w": "w", "matmul": "result"}, {}
        simulator = Simulator(self.plan, {"w": w})
        simulator.begin(x)
        while (tick := simulator.next_instruction()) is not None:
            for value in set(names) & {*tick.instr.ins, *tick.instr.outs}:
                held[names[value]] = [simulator.value(value, rank) for rank in range(self.devices)]
        return held

    def run(self, executor: str = "simulator") -> np.ndarray:
        """The whole result (m, n), computed slice by slice."""
        x, w = arrays(self.shape)
        with Session(self.plan, {"w": w}, executor=executor) as session:
            return session.outputs(x)[0]


@lru_cache(maxsize=128)
def product_with(strategy: Pair, shape: tuple[int, int, int] = SHAPE) -> Product:
    """The Product on DEVICES ranks, compiled once: an exercise asks for the same few in each of its parts. Only for
    strategies of our own: those of learners that are equal, such as 2 and 2.0, need not be equally good.
    """
    return Product(strategy, shape)


def counts(devices: int = DEVICES) -> Iterator[tuple[int, int, int]]:
    """Every way to split m, k and n of a product on so many ranks: powers of two."""
    ways = [1 << n for n in range(devices.bit_length())]
    return ((m, k, n) for m, k, n in itertools.product(ways, repeat=3) if m * k * n <= devices)


def pair(m: int, k: int, n: int) -> Pair:
    """The strategy that splits m, k and n so often."""
    return (m, k), (k, n)


@dataclass(frozen=True)
class ProductTable:
    """Strategies of one product side by side. Prints as a table."""

    rows: tuple[tuple[str, ...], ...]

    TITLES = ("strategy", "slice of x", "slice of w", "slice of the result", "add up with rank 5", "held", "sent", "")

    def __str__(self) -> str:
        return "\n".join(table_lines([self.TITLES, *self.rows], right=(5, 6)))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.TITLES, self.rows, [";white-space:nowrap"] * len(self.TITLES))


def side_by_side(*strategies: Any, shape: tuple[int, int, int] = SHAPE) -> ProductTable:
    """What rank 5 of 8 holds and sends with each strategy, in elements; a refused one says why."""
    rows = []
    for strategy in strategies:
        try:
            product = Product(strategy, shape)
        except StrategyError as error:
            why = re.sub(r"strategy .*? (splits|makes)", r"\1", str(error).partition(": ")[2].partition(". ")[0])
            rows.append((str(strategy), "refused", *[""] * 5, f"it {why}"))
            continue
        group = product.group(5)
        who = "nobody" if len(group) == 1 else " ".join(map(str, group))
        sizes = (f"{product.held_elements:,}", f"{product.sent_elements:,}")
        rows.append((str(strategy), *map(str, product.slices), who, *sizes, ""))
    return ProductTable(tuple(rows))
