"""Two products with a ReLU between them on eight ranks: what a step sends with every strategy, and the least that any
choice sends. Lesson 06's chain.

    chain = Chain({"matmul": ((2, 4), (4, 1)), "relu": ((2, 4),), "matmul2": ((2, 4), (4, 1))})
    chain.sent_elements         768: by a rank in one step, forward and backward
    least().sent_elements       256: no strategies send less

x (16, 32) @ w (32, 16), relu, @ w2 (16, 16): the quickstart's network without its loss, so that all that is sent is the
chain's own. Elements are those of the bandwidth-optimal form, 2 (p - 1)/p of an array for an all_reduce.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ...cost.time import sent_bytes
from ...graph.compiler import compile_network
from ...graph.instr import Instr
from ...graph.passes import PASSES
from ...graph.plan import Plan
from ...train.session import Session
from ..redistribution.model import STEPS
from ..shared.networks import NETWORKS, QuickNet, apply_strategies
from ..shared.problems import get_problem
from .one_product import DEVICES, Product, counts, pair

SHAPE = (16, 32, 16, 16)  # rows, in, hidden, out
MANNERS: dict[str, dict[str, Any]] = {"gather": {}, "all_to_all": {"enable_alltoall": True}}
MANNERS["exact"] = {"redistribution": "exact"}
OPERATORS = ("matmul", "relu", "matmul2")
assert MANNERS.keys() == STEPS.keys()


@dataclass(frozen=True)
class Chain:
    """The network with strategies.

    strategies      {operator: strategy}; one that is missing has the library's default (the batch is split)
    redistribution  "gather" (MindSpore's default), "all_to_all" or "exact"

    Raises StrategyError for strategies that are refused.
    """

    strategies: Mapping[str, Any] = field(hash=False)
    redistribution: str = "gather"

    @cached_property
    def plan(self) -> Plan:
        """Forward and backward, without a loss: of the outputs' sum."""
        rows, wide, hidden, out = SHAPE
        net = apply_strategies(QuickNet(wide, hidden, out), self.strategies)
        how = {"device_num": DEVICES, "dataset_strategy": "full_batch", **MANNERS[self.redistribution]}
        return compile_network(net, np.zeros((rows, wide), np.float32), passes=PASSES, **how)

    def messages(self, phase: str | None = None) -> list[Instr]:
        """Those of the plan, in order."""
        return [instr for _, instr in self.plan.instructions(phase) if instr.is_communication]

    @cached_property
    def sent_elements(self) -> int:
        """Elements that the rank sends that sends most, in one step."""
        per_rank = (sum(sent_bytes(self.plan, i, i.position(rank)) for i in self.messages()) for rank in range(DEVICES))
        return max(per_rank) // 4

    def weight_elements(self) -> dict[str, int]:
        """{weight: elements of a rank's slice}."""
        return {name: int(np.prod(self.plan.value(name).slice_shape)) for name in ("w", "w2")}

    def losses(self, steps: int) -> tuple[list[float], list[float]]:
        """The losses of a training on the quickstart's data: on simulated ranks, and on one device."""
        return self._trained(steps, **MANNERS[self.redistribution]), self._trained(steps, parallel_mode="stand_alone")

    def _trained(self, steps: int, **how: Any) -> list[float]:
        problem = get_problem("seed")
        net = apply_strategies(NETWORKS["quickstart"].factory(problem), self.strategies)
        optimizer = problem.optimizer(net.trainable_params())
        how |= {"dataset_strategy": "full_batch"}
        if how.get("parallel_mode") != "stand_alone":
            how["device_num"] = DEVICES
        plan = compile_network(net, *problem.batches[0], loss=problem.loss(), optimizer=optimizer, **how)
        with Session(plan, net, optimizer) as session:
            return session.train(problem.batches, steps)


def _relus() -> Iterator[tuple[tuple[int, int]]]:
    """Every strategy of the ReLU."""
    for m, k, n in counts():
        if k == 1:
            yield ((m, n),)


def own_elements(m: int, k: int, n: int, split: tuple[int, int, int]) -> int:
    """Elements that a rank sends for a product (m, k) @ (k, n), whatever is around it: for its sums, and for the
    gradient of its weight, a partial sum on every rank with other rows."""
    a, b, c = split
    return 2 * (b - 1) * m * n // (a * b * c) + 2 * (a - 1) * k * n // (a * b * c)


def _lacked(first: Product, second: Product) -> float:
    """Elements of its slice of the second product's input that a rank has not got from the first, on average."""
    had, needed = first.plan.value("matmul"), second.x
    lacks = 0
    for rank in range(DEVICES):
        pairs = zip(*(v.layout.slice_index(v.shape, rank) for v in (had, needed)), strict=True)
        both = [max(0, min(a.stop, b.stop) - max(a.start, b.start)) for a, b in pairs]
        lacks += int(np.prod(needed.slice_shape) - np.prod(both))
    return lacks / DEVICES


def bounds() -> list[tuple[float, tuple[int, int, int], tuple[int, int, int]]]:
    """(elements that a rank must send at least, counts of the first product, of the second), the least first."""
    rows, wide, hidden, out = SHAPE
    products = {
        size: {each: Product(pair(*each), size) for each in counts()}
        for size in ((rows, wide, hidden), (rows, hidden, out))
    }
    firsts, seconds = products.values()
    pairs = []
    for one, two in itertools.product(firsts, seconds):
        own = own_elements(rows, wide, hidden, one) + own_elements(rows, hidden, out, two)
        pairs.append((own + _lacked(firsts[one], seconds[two]), one, two))
    return sorted(pairs)


@lru_cache(maxsize=1)
def least() -> Chain:
    """The chain that sends least, exactly: of all strategies of the three operators and all manners.

    Branch and bound: no pair of products sends less than its bound, so pairs are tried in the order of their bounds,
    until one reaches the best that was found.
    """
    best: Chain | None = None
    for bound, first, second in bounds():
        if best is not None and bound >= best.sent_elements:
            break
        for relu, manner in itertools.product(_relus(), MANNERS):
            tried = Chain({"matmul": pair(*first), "relu": relu, "matmul2": pair(*second)}, manner)
            if best is None or tried.sent_elements < best.sent_elements:
                best = tried
    assert best is not None
    return best
