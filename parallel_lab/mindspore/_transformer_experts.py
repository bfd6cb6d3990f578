"""Experts in the layers of MindSpore's nn.transformer (1.5 to 2.0): its router, and two dense layers for each expert.

Tokens fall into `data_parallel` groups, also on one device, and every expert has ceil(k T capacity_factor / E) slots
for the T tokens of each group. Choice by choice a token takes the most likely expert that has not *kept* it: where its
first choice was full it chooses the same expert again and is lost. The weights of the kept ones are divided by their
sum. The balance loss is added for each choice, of what is left of the scores (alike experts: k), a mean of the groups.

    dispatch    slots (dp / ep, ep, E, C, h): the second dim split, then the third: an all_to_all
    experts     E / expert_parallel on each rank, their width split model_parallel ways
"""

from __future__ import annotations

import math
from typing import Any

from .. import nn, ops
from ..base.checks import checked
from ..base.errors import NotBuiltYet, ShapeError
from ..nn.cell import Cell
from ..nn.initializer import initializer
from ..nn.tensor.parameter import Parameter
from ..ops.expert_capacity import capacity
from ..ops.expert_rows import combine_rows, dispatch_rows, slot_product
from ._transformer_configs import (
    DP_MP,
    EXPERTS,
    MoEConfig,
    check_config,
    default_moe_config,
    default_moeparallel_config,
)
from ._transformer_layers import RATE, SIZE, check_divides, cut, dropped, in_dtype

_TINY = 1e-9  # added to what is divided by


class _Router(Cell):
    """Logits, and what follows from them group by group.  x: (g, n, h) float32, room of an expert -> the slot of each
    choice (g, n, k) int32, -1 of a dropped one, weights (g, n, k), the balance loss ().
    """

    def __init__(self, hidden: int, config: MoEConfig, dp: int) -> None:
        super().__init__()
        self.experts, self.chosen = config.expert_num, config.num_experts_chosen
        self.dense = nn.Dense(hidden, config.expert_num, has_bias=False)
        cut(self.dense.matmul, (dp, 1), (1, 1))
        of_experts, of_tokens = (dp, 1, 1), (dp, 1)
        self.softmax, self.best = cut(ops.Softmax(), of_experts), cut(ops.ArgMaxWithValue(axis=-1), of_experts)
        self.onehot, self.before = ops.OneHot(), cut(ops.CumSum(exclusive=True), of_experts)
        cut(self.onehot, of_experts, (), ())
        self.mul, self.add, self.div = (cut(kind(), of_experts, of_experts) for kind in (ops.Mul, ops.Add, ops.RealDiv))
        self.less, self.minus = cut(ops.Less(), of_experts, ()), cut(ops.Sub(), (), of_experts)
        self.more, self.sum = cut(ops.Add(), of_experts, ()), cut(ops.ReduceSum(keep_dims=True), of_experts)
        self.of_token, self.mean = cut(ops.ReduceSum(), of_experts), cut(ops.ReduceMean(), of_experts)
        self.mul_token, self.add_token = (cut(kind(), of_tokens, of_tokens) for kind in (ops.Mul, ops.Add))
        self.scale, self.shift = cut(ops.Mul(), of_tokens, ()), cut(ops.Add(), of_tokens, ())
        self.mul_means, self.mean_all = cut(ops.Mul(), of_tokens, of_tokens), cut(ops.ReduceMean(), of_tokens)
        self.cast, self.to_int = cut(ops.Cast(), of_experts), cut(ops.Cast(), of_experts)
        self.index, self.stack = cut(ops.Cast(), of_tokens), cut(ops.Stack(axis=-1), *[of_tokens] * self.chosen)

    def construct(self, x: Any, room: int) -> tuple[Any, Any, Any]:
        shape = ops.shape(x)
        logits = ops.reshape(self.dense(ops.reshape(x, (-1, shape[-1]))), (*shape[:2], self.experts))
        scores, taken, filled, loss, rows, weights = self.softmax(logits), None, None, None, [], []
        for _ in range(self.chosen):
            scores = scores if taken is None else self.mul(scores, self.minus(1.0, taken))
            expert, gate = self.best(scores)
            mask = self.onehot(expert, self.experts, 1.0, 0.0)
            rest = self.div(scores, self.more(self.sum(scores, -1), _TINY))
            each = self.mean_all(self.mul_means(self.mean(mask, 1), self.mean(rest, 1)))
            loss = each if loss is None else loss + each
            place = self.before(mask, 1) if filled is None else self.add(self.before(mask, 1), filled)
            kept = self.mul(mask, self.cast(self.less(self.mul(place, mask), float(room)), "float32"))
            taken = kept if taken is None else self.add(taken, kept)
            filled = self.sum(kept, 1) if filled is None else self.add(filled, self.sum(kept, 1))
            stays, slot = self.of_token(kept, -1), self.of_token(self.mul(place, kept), -1)
            number = self.add_token(self.scale(self.index(expert, "float32"), float(room)), slot)
            rows.append(self.shift(self.mul_token(self.shift(number, 1.0), stays), -1.0))
            weights.append(self.mul_token(gate, stays))
        made = self.stack(weights)
        weight = self.div(made, self.more(self.sum(made, -1), _TINY))
        return self.to_int(self.stack(rows), "int32"), weight, loss * float(self.experts**2)


class _ExpertDense(Cell):
    """A dense layer of each expert.  x: (o, p, e, r, i) -> (o, p, e, r, f).  weight (e, i, f), bias (1, e, 1, f)."""

    def __init__(self, experts: int, sizes: tuple[int, int], dtype: Any, *strategies: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = Parameter(initializer("normal", [experts, *sizes], dtype), name="weight")
        self.bias = Parameter(initializer("zeros", [1, experts, 1, sizes[1]], dtype), name="bias")
        x, weight, made, bias = strategies
        self.matmul, self.bias_add = cut(slot_product.primitive(), x, weight), cut(ops.Add(), made, bias)
        self.cast_parameter = ops.Cast()

    def construct(self, x: Any) -> Any:
        made = self.matmul(x, in_dtype(self.cast_parameter, self.weight, x.dtype))
        return self.bias_add(made, in_dtype(self.cast_parameter, self.bias, x.dtype))


class MoE(Cell):
    """Experts behind a router, of a layer's tokens.  x: (..., hidden_size) -> the same shape, and the balance loss, ().

    dropout_rate     share that the dropout behind the experts sets to 0;  hidden_act  as of FeedForward
    moe_config       `MoEConfig`: expert_num, num_experts_chosen, capacity_factor, aux_loss_factor
    parallel_config  `MoEParallelConfig`: expert_parallel divides data_parallel and the experts

    Parameters: router.dense.weight (e, h), ffn.mapping.weight (e, h, f), ffn.projection.weight (e, f, h), their biases.
    Raises ArgumentError for counts that do not divide, ShapeError for tokens that do not make equal groups.
    """

    @checked(hidden_size=SIZE, ffn_hidden_size=SIZE, dropout_rate=RATE, moe_config=EXPERTS, parallel_config=DP_MP)
    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        dropout_rate: float,
        hidden_act: Any = "gelu",
        param_init_type: Any = "float32",
        moe_config: MoEConfig = default_moe_config,
        parallel_config: Any = default_moeparallel_config,
    ) -> None:
        super().__init__()
        check_config("MoE", parallel_config)
        dp, mp = parallel_config.data_parallel, parallel_config.model_parallel
        ep, experts = getattr(parallel_config, "expert_parallel", 1), moe_config.expert_num
        check_divides("MoE", ep, expert_num=experts, data_parallel=dp)
        check_divides("MoE", mp, ffn_hidden_size=ffn_hidden_size)
        for name in ("group_wise_a2a", "comp_comm_parallel"):
            if getattr(moe_config, name):
                hint = "It changes messages and no number: leave it out"
                raise NotBuiltYet(f"{name}=True", where="MoE", allowed="False", hint=hint)
        self.moe_config, self.hidden_size, self.groups = moe_config, hidden_size, (dp // ep, ep)
        groups, slots = (*self.groups, 1, 1), (dp // ep, 1, ep, 1)
        self.router = _Router(hidden_size, moe_config, dp)
        first = ((*slots, 1), (ep, 1, mp), (*slots, mp), (1, ep, 1, mp))
        second = ((*slots, mp), (ep, mp, 1), (*slots, 1), (1, ep, 1, 1))
        self.ffn = Cell()
        self.ffn.mapping = _ExpertDense(experts, (hidden_size, ffn_hidden_size), param_init_type, *first)
        self.ffn.projection = _ExpertDense(experts, (ffn_hidden_size, hidden_size), param_init_type, *second)
        self.activation = nn.get_activation(hidden_act, "MoE") if isinstance(hidden_act, str) else hidden_act()
        for primitive in self.activation._primitives.values():
            cut(primitive, (*slots, mp))
        (self.dropout,) = dropped(dropout_rate, (*slots, 1))
        self.dispatch, self.combine = (
            cut(dispatch_rows.primitive(), groups, groups),
            cut(combine_rows.primitive(), *[groups] * 3),
        )
        self.cast, self.cast_slots, self.dtype = cut(ops.Cast(), (dp, 1, 1)), cut(ops.Cast(), groups), "float16"

    def construct(self, x: Any) -> tuple[Any, Any]:
        shape, config = ops.shape(x), self.moe_config
        dp = self.groups[0] * self.groups[1]
        tokens = math.prod(shape[:-1])
        if shape[-1] != self.hidden_size or tokens % dp:
            what, allowed = f"x of shape {shape}", f"(..., {self.hidden_size}), and tokens in {dp} equal groups"
            raise ShapeError(what, where=self._where(), allowed=allowed)
        experts, n = config.expert_num, tokens // dp
        room = capacity(n, experts, config.num_experts_chosen, config.capacity_factor, "mindspore")
        x = ops.reshape(x, (dp, n, self.hidden_size))
        found = self.router(in_dtype(self.cast, x, "float32"), room)
        rows, weights, x = (ops.reshape(each, (*self.groups, n, -1)) for each in (*found[:2], x))
        self.dispatch.given["rows"] = experts * room
        slots = self.dispatch(in_dtype(self.cast_slots, x, self.dtype), rows)
        slots = ops.reshape(slots, (*self.groups, experts, room, self.hidden_size))
        made = self.dropout(self.ffn.projection(self.activation(self.ffn.mapping(slots))))
        made = ops.reshape(made, (*self.groups, experts * room, self.hidden_size))
        y = self.combine(made, in_dtype(self.cast_slots, weights, self.dtype), rows)
        return ops.reshape(y, shape), found[2] * config.aux_loss_factor
