"""A layer of experts: of many networks of one form each token uses k, which a router chooses for it.

    moe = nn.MoE(hidden=16, inner=64, experts=8, k=2, expert_parallel=4)
    y, loss = moe(x)                            # x: (b, s, hidden); `loss` is added to the network's
    expert_parallel(moe, dp=4, ep=4)            # models.expert_parallel: on 4 devices, 2 experts each

    router    logits, k experts of each token, weights            the same on every rank that has the token
    dispatch  a copy of the token for each of its experts         all_to_all_v, or all_to_all of slots
    experts   two layers, the rows of each expert together        rows * weights of that expert
    combine   the results come back, weighted and added           the same message the other way

Two forms. *Dropless* (capacity_factor=None): every copy travels, so ranks send each other as many rows as the router
says; the counts of all go first. The result does not depend on how many ranks have the experts. *With capacity*: every
expert has so many slots for each group of tokens, what finds none is dropped, and empty slots travel too. Which are
dropped depends on the groups, so on one device `groups` must be the same (Lepikhin et al. 2020, section 3.2).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...base.checks import choice, flag, integer, integers, kept, number
from ...base.dtypes import as_dtype
from ...base.errors import ArgumentError, ShapeError
from ...ops.elementwise import add, cast, mul
from ...ops.expert_balance import bias_step, expert_load, expert_scores, squared_log_sum_exp
from ...ops.expert_capacity import CONVENTIONS, ORDERS, ROUTERS_TO_ROOM, capacity, route_to_room
from ...ops.expert_rows import (
    combine_rows,
    dispatch_rows,
    exchange_rows,
    expert_product,
    slot_product,
    slot_rows,
    sorted_rows,
)
from ...ops.linalg import matmul
from ...ops.machine.state import step_total
from ...ops.reduce import reduce_mean, reduce_sum
from ...ops.routing import ROUTERS, check_routing, route_tokens
from ...ops.shape import reshape, shape as shape_of, transpose
from ...ops.writes import assign
from ..cell import Cell
from ..initializer import HeUniform, initializer
from ..tensor.parameter import Parameter
from ..tensor.tensor import Tensor
from .activation import get_activation


class MoE(Cell):
    """x: (b, s, hidden) -> (b, s, hidden), and the loss of its balance, ().

    hidden, inner, experts, k   width of tokens; inside an expert; how many experts; how many a token uses
    router           one of `ops.routing.ROUTERS`; scale: its weights are multiplied by it
    route_groups, best_groups, group_sum   experts outside of a token's best groups are left out
    capacity_factor  None: dropless. Otherwise slots of an expert for each group, by a `convention` of `capacity`,
                     and which choices get them by `drop_order` (`ops.expert_capacity.kept_choices`); "mindspore_v1"
                     chooses by what has room, and knows neither bias nor route_groups
    expert_parallel  over how many ranks next to each other the experts are split; `models.expert_parallel` says it anew
    groups           of tokens: (of samples, of the tokens of a sequence), or a number that samples share as far as it
                     divides; with capacity a rank has whole ones. Default: expert_parallel; dropless: a rank has one
    balance_factor, z_factor   of the balance loss, over all tokens or (per_sequence) of each sequence, and the z-loss
    bias_rate, centred   what a training step adds to the selection bias (`ops.expert_balance.bias_change`): by the
                     counts of all ranks and micro-batches (nn.GradAccumulation), once

    Parameters: `gate` (experts, hidden), `up` (experts, hidden, inner), `down` (experts, inner, hidden), and `bias`
    (experts,), which has no gradient. The router computes in float32 at least. Raises ArgumentError for counts that do
    not fit, ShapeError for tokens that do not divide by the groups.
    """

    @kept(hidden=integer(1), inner=integer(1), experts=integer(1), k=integer(1), router=choice(*ROUTERS))
    @kept(convention=choice(*CONVENTIONS), drop_order=choice(*ORDERS), expert_parallel=integer(1))
    @kept(capacity_factor=number() | None, groups=integers(1) | None, per_sequence=flag)
    @kept(balance_factor=number(0), z_factor=number(0), bias_rate=number(0))
    def __init__(
        self,
        hidden: int,
        inner: int,
        experts: int,
        k: int = 1,
        *,
        router: str = "softmax_topk_norm",
        scale: float = 1.0,
        route_groups: int = 1,
        best_groups: int = 1,
        group_sum: int | None = None,
        capacity_factor: float | None = None,
        convention: str = "megatron",
        drop_order: str = "choice_major",
        expert_parallel: int = 1,
        groups: int | tuple[int, int] | None = None,
        balance_factor: float = 0.0,
        per_sequence: bool = False,
        z_factor: float = 0.0,
        bias_rate: float = 0.0,
        centred: bool = False,
        activation: Any = "gelu",
        weight_init: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        check_routing(experts, k, router, route_groups, best_groups, group_sum)
        self.groups: tuple[int, ...] = (expert_parallel,) if groups is None else self.groups
        self.ranks: tuple[int, int] | None = None  # that split samples, and the tokens of a sequence
        if experts % expert_parallel or math.prod(self.groups) % expert_parallel or len(self.groups) > 2:
            what = f"experts={experts} and groups={groups} with expert_parallel={expert_parallel}"
            raise ArgumentError(what, where="MoE", allowed="expert_parallel divides both: ranks have equal shares")
        self.to_room = drop_order == "mindspore_v1" and capacity_factor is not None
        if self.to_room and (router not in ROUTERS_TO_ROOM or bias_rate or route_groups > 1):
            what = f"drop_order={drop_order!r} with router={router!r}, bias_rate={bias_rate}, {route_groups} groups"
            allowed = f"{' or '.join(ROUTERS_TO_ROOM)}, no bias, one group: a token chooses by scores alone"
            raise ArgumentError(what, where="MoE", allowed=allowed)
        rule, router_type = weight_init or HeUniform(math.sqrt(5)), np.promote_types(as_dtype(dtype), np.float32)
        self.gate = Parameter(initializer(rule, (experts, hidden), router_type))
        self.bias = Parameter(initializer("zeros", (experts,), router_type), requires_grad=False)
        self.up = Parameter(initializer(rule, (experts, hidden, inner), dtype))
        self.down = Parameter(initializer(rule, (experts, inner, hidden), dtype))
        # router
        self.cast, self.scores = cast.primitive(), matmul.primitive(transpose_b=True)
        limits = {"groups": route_groups, "best_groups": best_groups, "group_sum": group_sum or 0}
        of, limits = (route_to_room, {}) if self.to_room else (route_tokens, limits)
        self.route = of.primitive(k=k, router=router, scale=scale, **limits)
        self.load = _load(experts)
        self.balance = _Balance(self) if balance_factor or z_factor else None
        self.no_loss = Tensor(np.zeros((), router_type))
        self.bias_step, self.assign = bias_step.primitive(rate=bias_rate, centred=centred), assign.primitive()
        # dispatch, experts, combine
        self.into_groups, self.out_of_groups, self.as_blocks = (reshape.primitive() for _ in range(3))
        self.by_groups, self.by_samples = transpose.primitive(), transpose.primitive()
        self.apart, self.together = reshape.primitive(), reshape.primitive()
        self.dispatch, self.combine = dispatch_rows.primitive(), combine_rows.primitive()
        self.activation = get_activation(activation)
        if capacity_factor is None:
            self.place = sorted_rows.primitive(expert_num=experts)
            self.exchange, self.exchange_back = exchange_rows.primitive(), exchange_rows.primitive(back=True)
            self.first, self.second = expert_product.primitive(), expert_product.primitive()
        else:
            self.place = slot_rows.primitive(expert_num=experts, order=drop_order)
            self.first, self.second = slot_product.primitive(), slot_product.primitive()

    def construct(self, x: Any) -> tuple[Any, Any]:
        b, s, _ = shape_of(x)
        blocks, grid, n = self._grid(b, s)
        logits, experts, weights = self.routed(x)
        loss = self.no_loss if self.balance is None else self.balance(logits, experts)
        if self.bias_rate and self.training and (total := step_total(self.load(experts), self)) is not None:
            self.assign(self.bias, self.bias_step(self.bias, total))
        if str(weights.dtype) != str(x.dtype):
            weights = self.cast(weights, str(x.dtype))
        work = self._packed if self.capacity_factor is None else self._in_slots
        y = work(*(self._grouped(each, blocks, (*grid, n)) for each in (x, experts, weights)), grid)
        return self._in_order(y, blocks, (b, s)), loss

    def _grouped(self, x: Any, blocks: tuple[int, ...], grid: tuple[int, ...]) -> Any:
        """Tokens by groups, those of a rank next to each other.  x: (b, s, ...) -> (*grid, ...)."""
        width = shape_of(x)[-1]
        if blocks[3] * blocks[4] > 1:
            x = self.by_groups(self.as_blocks(x, (*blocks, width)), (0, 3, 1, 4, 2, 5, 6))
        return self.into_groups(x, (*grid, width))

    def _in_order(self, x: Any, blocks: tuple[int, ...], sizes: tuple[int, int]) -> Any:
        """The reverse.  x: (*grid, ...) -> (b, s, ...)."""
        width = shape_of(x)[-1]
        if blocks[3] * blocks[4] > 1:
            dp, of_samples, samples, sp, of_tokens, tokens = blocks
            x = self.as_blocks(x, (dp, sp, of_samples, of_tokens, samples, tokens, width))
            x = self.by_samples(x, (0, 2, 4, 1, 3, 5, 6))
        return self.out_of_groups(x, (*sizes, width))

    def routed(self, x: Any) -> tuple[Any, Any, Any]:
        """What the router says.  x: (b, s, hidden) -> logits (b, s, experts), choices and weights (b, s, k)."""
        logits = self._logits(x)
        if not self.to_room:
            return logits, *self.route(logits, self.bias)
        sizes = b, s = shape_of(logits)[:2]
        blocks, grid, n = self._grid(b, s)
        self.route.given["room"] = self._room(n)
        made = self.route(self._grouped(logits, blocks, (*grid, n)))
        return logits, *(self._in_order(each, blocks, sizes) for each in made)

    def _packed(self, tokens: Any, experts: Any, weights: Any, grid: tuple[int, int]) -> Any:
        """Every copy travels: as many rows as the counts say."""
        (copies, ep), n = grid, shape_of(tokens)[2]
        own = self.experts // ep  # experts of a rank
        share = math.ceil(ep * n * min(self.k, own) / own)  # all tokens of the ep ranks may come to one
        sent = n * self.k if ep > 1 else share * own
        self.dispatch.given["rows"] = self.exchange_back.given["rows"] = sent
        self.exchange.given["rows"] = share * own
        row_of, counts = self.place(experts)
        rows = self.dispatch(tokens, row_of)
        rows = self.exchange(rows, counts) if ep > 1 else rows
        rows = self.apart(rows, (copies, self.experts, share, self.hidden))
        rows = self.second(self.activation(self.first(rows, counts, self.up)), counts, self.down)
        rows = self.together(rows, (copies, ep, share * own, self.hidden))
        rows = self.exchange_back(rows, counts) if ep > 1 else rows
        return self.combine(rows, weights, row_of)

    def _in_slots(self, tokens: Any, experts: Any, weights: Any, grid: tuple[int, int]) -> Any:
        """Slots travel, empty ones too: where groups were split experts are, and the other way."""
        room = self._room(shape_of(tokens)[2])
        self.place.given["room"], self.dispatch.given["rows"] = room, self.experts * room
        row_of, _ = self.place(experts, weights)
        slots = self.apart(self.dispatch(tokens, row_of), (*grid, self.experts, room, self.hidden))
        slots = self.second(self.activation(self.first(slots, self.up)), self.down)
        return self.combine(self.together(slots, (*grid, self.experts * room, self.hidden)), weights, row_of)

    def _room(self, n: int) -> int:
        """Slots of an expert for a group of n tokens."""
        return capacity(n, self.experts, self.k, self.capacity_factor, self.convention) or 0

    def _grid(self, b: int, s: int) -> tuple[tuple[int, ...], tuple[int, int], int]:
        """(ranks that split b, groups of each, samples of a group, the same three of s); groups as (copies of the
        experts, groups that share them); tokens of a group.
        """
        ranks = self.ranks or (1, 1)
        if self.ranks and self.capacity_factor is None:
            groups = ranks
        else:
            both = math.gcd(self.groups[0], b)
            groups = self.groups if self.groups[1:] else (both, self.groups[0] // both)
        if b % groups[0] or s % groups[1]:
            what = f"{b} samples of {s} tokens in {groups[0]} x {groups[1]} groups"
            raise ShapeError(what, where=self._where(), allowed="Groups of equal size: their number divides the tokens")
        if groups[0] % ranks[0] or groups[1] % ranks[1]:
            what = f"{groups[0]} x {groups[1]} groups of tokens on {ranks[0]} x {ranks[1]} ranks"
            hint = f"nn.MoE(groups={tuple(map(math.lcm, groups, ranks))}): which choices are dropped depends on them"
            raise ShapeError(what, where=self._where(), allowed="A rank has whole groups", hint=hint)
        sizes = zip(ranks, groups, (b, s), strict=True)
        blocks = tuple(n for r, g, size in sizes for n in (r, g // r, size // g))
        copies = math.prod(self.ranks or groups) // self.expert_parallel
        return blocks, (copies, math.prod(groups) // copies), b * s // math.prod(groups)

    def _logits(self, x: Any) -> Any:
        """What the router compares.  x: (b, s, hidden) -> (b, s, experts), float32 at least."""
        shape = shape_of(x)
        if len(shape) != 3 or shape[2] != self.hidden:
            raise ShapeError(f"an input of shape {shape}", where=self._where(), allowed=f"(b, s, {self.hidden})")
        if str(x.dtype) != str(self.gate.dtype):
            x = self.cast(x, str(self.gate.dtype))
        return self.scores(x, self.gate)


def _load(experts: int, per_sequence: bool = False) -> Any:
    """Choices of each expert. Ranks that each run the whole layer (data_parallel) use the mean of theirs."""
    return expert_load.primitive(expert_num=experts, per_sequence=per_sequence).add_prim_attr("sync", not per_sequence)


class _Balance(Cell):
    """balance_factor * E * sum of f_i P_i + z_factor * mean of squared log-sum-exps, of the logits of all tokens."""

    def __init__(self, moe: MoE) -> None:
        super().__init__()
        self.factor, self.z_factor, self.k, self.experts = moe.balance_factor, moe.z_factor, moe.k, moe.experts
        self.per_sequence = moe.per_sequence
        self.load = _load(moe.experts, moe.per_sequence)
        self.scores = expert_scores.primitive(scores=ROUTERS[moe.router].scores)
        self.mean_scores, self.mul, self.sum = reduce_mean.primitive(), mul.primitive(), reduce_sum.primitive()
        self.scale, self.squared, self.mean_square = (
            mul.primitive(),
            squared_log_sum_exp.primitive(),
            reduce_mean.primitive(),
        )
        self.scale_z, self.add = mul.primitive(), add.primitive()

    def construct(self, logits: Any, experts: Any) -> Any:
        b, s, _ = shape_of(logits)
        choices = self.k * b * s  # of each sequence k s, and the mean over b
        means = self.mean_scores(self.scores(logits), (1,) if self.per_sequence else (0, 1))
        loss = self.sum(self.mul(means, self.load(experts)))
        loss = self.scale(loss, self.factor * self.experts / choices)
        if self.z_factor:
            loss = self.add(loss, self.scale_z(self.mean_square(self.squared(logits)), self.z_factor))
        return loss
