"""A small net with a layer of experts, and what its router says before and after every step of a training.

    losses, steps = trained(Shape(experts=8, k=2, skew=1))
    steps[0].counts, steps[24].counts     rows of each rank for each expert, (4, 8): untrained, and after 24 steps
    steps[24].sent(ep=4)                  rows that each rank gives each, (4, 4)

32 tokens of 16 numbers lie on 4 ranks, 8 on each. A token is of one of 8 kinds, each with its own function to be
learned; with more skew more tokens are of the first kinds. The net is x + moe(x); Adam takes the same tokens at every
step, so that what changes is the router's. Routing is that of `nn.MoE`, drops are those of `ops.expert_capacity`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ... import nn
from ...base.seeds import set_seed
from ...base.settings.current import default_settings
from ...cost.expert_placement import ExpertPlacement, place_experts
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...nn.models.strategies import expert_parallel
from ...nn.tensor.tensor import Tensor
from ...ops.elementwise import add
from ...ops.expert_capacity import ORDER_OF, capacity, kept_choices
from ...ops.expert_rows import exchange_splits, kept_load
from ...ops.routing import ROUTERS
from ...train.session import Session

RANKS, TOKENS, HIDDEN, KINDS = 4, 8, 16, 8  # tokens: of a rank
ROW_BYTES = HIDDEN * 4  # float32
STEPS, RATE = 24, 0.02
Order = tuple[int, ...]  # experts in the order of their places


@dataclass(frozen=True)
class Shape:
    """What a training depends on; the arguments of `nn.MoE` of the same names. factor: capacity, None is dropless."""

    experts: int = 8
    k: int = 2
    router: str = "softmax_topk_norm"
    factor: float | None = None
    convention: str = "megatron"
    skew: int = 1
    bias_rate: float = 0.0
    balance_factor: float = 0.0

    @cached_property
    def room(self) -> int | None:
        """Slots of an expert for the tokens of one rank; None: as many as come. Raises ArgumentError."""
        if self.factor is None:
            return None
        return capacity(TOKENS, self.experts, self.k, self.factor, self.convention)

    @property
    def drop_order(self) -> str:
        """Which choices find slots, as the convention's own library says it."""
        return ORDER_OF.get(self.convention, "choice_major")

    def layer(self, ep: int = 1) -> nn.MoE:
        """The layer of experts. Groups of tokens are the ranks' own on one device, too: drops depend on them."""
        factor = None if self.room is None else self.factor
        how: dict[str, Any] = {"router": self.router, "capacity_factor": factor, "convention": self.convention}
        how |= {"bias_rate": self.bias_rate, "balance_factor": self.balance_factor, "drop_order": self.drop_order}
        return nn.MoE(HIDDEN, HIDDEN, self.experts, self.k, expert_parallel=ep, groups=RANKS, **how)


class ExpertNet(nn.Cell):
    """x: (4, 8, 16) -> the same, and the loss of the balance, ()."""

    def __init__(self, moe: nn.MoE) -> None:
        super().__init__()
        self.moe, self.add = moe, add.primitive()

    def construct(self, x: Any) -> tuple[Any, Any]:
        y, loss = self.moe(x)
        return self.add(x, y), loss


class ExpertLoss(nn.Cell):
    """Mean squared error, and the loss of the balance.  (y, loss), wanted: (4, 8, 16) -> ()."""

    def __init__(self) -> None:
        super().__init__()
        self.error, self.add = nn.MSELoss(), add.primitive()

    def construct(self, result: Any, wanted: Any) -> Any:
        y, loss = result
        return self.add(self.error(y, wanted), loss)


class Choices(nn.Cell):
    """What the router of a layer chooses.  x: (4, 8, 16) -> experts and weights, (4, 8, k)."""

    def __init__(self, moe: nn.MoE) -> None:
        super().__init__()
        self.moe = moe

    def construct(self, x: Any) -> tuple[Any, Any]:
        _, experts, weights = self.moe.routed(x)
        return experts, weights


@lru_cache(maxsize=8)
def tokens(skew: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and what is to be learned of them, (4, 8, 16) float32 each. Kind i is as frequent as 1 / (i + 1)^skew."""
    rng = np.random.default_rng(3)
    centres, functions = rng.normal(size=(KINDS, HIDDEN)), rng.normal(size=(KINDS, HIDDEN, HIDDEN)) / 4
    shares = (1.0 + np.arange(KINDS)) ** -skew
    kinds = rng.choice(KINDS, size=(RANKS, TOKENS), p=shares / shares.sum())
    x = centres[kinds] + 0.5 * rng.normal(size=(RANKS, TOKENS, HIDDEN))
    x /= np.sqrt((x**2).mean(axis=-1, keepdims=True))
    wanted = x + np.einsum("rth,rthg->rtg", x, functions[kinds])
    return x.astype(np.float32), wanted.astype(np.float32)


@dataclass(frozen=True)
class Routing:
    """What the router says of all tokens, at one moment of a training.

    logits, scores    (4, 8, e);  experts, weights, kept: (4, 8, k)
    bias              (e,), for the choice alone
    """

    logits: np.ndarray
    scores: np.ndarray
    experts: np.ndarray
    weights: np.ndarray
    kept: np.ndarray
    bias: np.ndarray

    @classmethod
    def of(cls, shape: Shape, moe: nn.MoE, gate: np.ndarray, bias: np.ndarray) -> Routing:
        """What the layer says with these parameters."""
        moe.gate.set_data(Tensor(gate))
        moe.bias.set_data(Tensor(bias))
        logits, experts, weights = (each.asnumpy() for each in moe.routed(Tensor(tokens(shape.skew)[0])))
        pairs, how = zip(experts, weights, strict=True), (shape.experts, shape.room, shape.drop_order)
        kept = np.stack([kept_choices(own, *how, own_weights) for own, own_weights in pairs])
        return cls(logits, ROUTERS[shape.router].of_all(logits), experts, weights, kept, bias)

    @cached_property
    def counts(self) -> np.ndarray:
        """Rows of each rank for each expert, without what is dropped: (4, e)."""
        pairs = zip(self.experts, self.kept, strict=True)
        return np.stack([kept_load(own, kept, self.logits.shape[-1]) for own, kept in pairs])

    def sent(self, ep: int, order: Order | None = None) -> np.ndarray:
        """Rows that each rank gives each: (4, 4). The ep ranks next to each other hold all experts, in this order."""
        counts, made = self.counts[:, order] if order else self.counts, np.zeros((RANKS, RANKS), int)
        for first in range(0, RANKS, ep):
            group = slice(first, first + ep)
            made[group, group] = exchange_splits(counts[group])[0]
        return made

    def placed(self, ep: int, more: int = 0) -> ExpertPlacement:
        """Experts on the ranks of a group by EPLB, with so many copies more on each rank."""
        return place_experts(self.counts.sum(axis=0).tolist(), self.logits.shape[-1] + more * ep, ep)


def compiled(shape: Shape, ep: int, order: Order | None = None) -> tuple[Plan, ExpertNet, nn.Optimizer]:
    """The training on 4 ranks, or (ep=0) on one device. order: of the experts on the places, first parameters too."""
    set_seed(1)
    net = ExpertNet(shape.layer(max(ep, 1)))
    for parameter in (net.moe.gate, net.moe.up, net.moe.down) if order else ():
        parameter.set_data(Tensor(parameter.asnumpy()[list(order or ())]))
    net.set_train()
    optimizer = nn.Adam(net.trainable_params(), RATE)
    if ep:
        expert_parallel(net, RANKS, ep)
    how: dict[str, Any] = {"dataset_strategy": "full_batch", "enable_alltoall": True, "device_num": RANKS if ep else 1}
    plan = compile_network(net, *tokens(shape.skew), loss=ExpertLoss(), optimizer=optimizer, **how)
    return plan, net, optimizer


@lru_cache(maxsize=64)
def trained(shape: Shape) -> tuple[tuple[float, ...], tuple[Routing, ...]]:
    """Losses of a training on one device, and the routing before each step and after the last."""
    with default_settings():
        plan, net, optimizer = compiled(shape, 0)
        losses, steps = [], []
        with Session(plan, net, optimizer) as session:
            for step in range(STEPS + 1):
                now = {
                    "moe.bias": np.zeros(shape.experts, np.float32),
                    **session.parameters(),
                }  # not all orders have it
                steps.append(Routing.of(shape, net.moe, now["moe.gate"], now["moe.bias"]))
                losses += session.train([tokens(shape.skew)], 1) if step < STEPS else []
    return tuple(losses), tuple(steps)
