"""A GPT for long sequences, and the strategies under which the tokens of a sequence are split over ranks.

    net = ContextGPT(256, hidden=64, layers=2, heads=8, kv_heads=2, placement="zigzag", ranks=4)
    loss = nn.CrossEntropyLoss()
    context_parallel(net, loss, dp=2, cp=4)                                  a ring of 4, for two halves of the batch
    ids, next_ids = placed(ids, next_ids, placement="zigzag", ranks=4)       once, after labels were shifted

    cp = ring x ulysses    all_to_all of heads against tokens inside `ulysses` ranks, a ring among the others: with
                           ulysses=cp heads alone (Jacobs et al. 2023), between the two the hybrid (Fang and Zhao 2024)
    mp                     heads and columns, as in `tensor_parallel`

Only attention needs keys of other ranks; every other operator works on a rank's own tokens, and sends nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import nn
from ...base.checks import COPIES, checked, flag, integer, kept
from ...base.errors import ArgumentError, StrategyError, shorten
from ...layout.named_layout import Layout
from ...layout.placements import Placement
from ...ops.elementwise import add
from ...ops.gather import gather
from ...ops.linalg import matmul
from .. import initializer
from ..layers.context_attention import ContextParallelAttention, TokenDense
from ..tensor.parameter import Parameter
from .gpt import INITIAL
from .strategies import POWER_OF_TWO, SCATTERED, data_parallel, split_experts


def placed(
    *arrays: Any, placement: str, ranks: int, documents: tuple[int, ...] = (), dim: int = 1
) -> tuple[np.ndarray, ...]:
    """Arrays with their tokens in the order in which ranks hold them: ids, labels, masks, positions alike.

    dim  the one that counts tokens; labels are shifted before, or each rank's last token would lose its target

    Raises LayoutError where the tokens do not divide (`Placement`).

    >>> placed(np.arange(8)[None], placement="zigzag", ranks=2)[0].tolist()
    [[0, 1, 6, 7, 2, 3, 4, 5]]
    """
    taken = documents if placement == "per_document" else ()
    orders = (Placement(placement, np.shape(x)[dim], ranks, taken).order for x in arrays)
    return tuple(np.take(x, order, axis=dim) for x, order in zip(arrays, orders, strict=True))


class ContextBlock(nn.Cell):
    """Attention and two dense layers, each added to what it was given.  x: (n, s, hidden) -> (n, s, hidden). With
    experts instead of the layers also their loss.
    """

    def __init__(
        self, hidden: int, heads: int, inner: int, dtype: Any, moe: Mapping[str, Any] | None, **attention: Any
    ) -> None:
        super().__init__()
        how = {"weight_init": initializer.Normal(INITIAL), "bias_init": "zeros", "dtype": dtype}
        self.norm1, self.norm2 = (nn.LayerNorm((hidden,), epsilon=1e-5, dtype=dtype) for _ in range(2))
        self.attention = ContextParallelAttention(hidden, heads, **attention, **how)
        self.fc1 = TokenDense(hidden, inner, activation="gelu", **how) if moe is None else None
        self.fc2 = TokenDense(inner, hidden, **how) if moe is None else None
        own = {"inner": inner, "weight_init": initializer.Normal(INITIAL), "dtype": dtype, **(moe or {})}
        self.moe = None if moe is None else nn.MoE(hidden, **own)
        self.add1, self.add2 = add.primitive(), add.primitive()

    def construct(self, x: Any) -> Any:
        x = self.add1(x, self.attention(self.norm1(x)))
        if self.moe is None:
            return self.add2(x, self.fc2(self.fc1(self.norm2(x))))
        y, loss = self.moe(self.norm2(x))
        return self.add2(x, y), loss


class ContextGPT(nn.Cell):
    """Scores for the next token at every position, with rotary positions.  ids: (n, s) int -> (n, vocab_size, s).

    inner      width inside the blocks (default 4 * hidden)
    moe        arguments of `nn.MoE`: its experts instead of the MLPs, and the sum of their losses is a second result
    attention  keywords of `nn.ContextParallelAttention`: kv_heads, method, placement, ranks, window, dropout, ...
    """

    @kept(vocab_size=integer(1), hidden=integer(1), heads=integer(1))
    @checked(layers=integer(0, COPIES), inner=integer(1) | None)
    def __init__(
        self,
        vocab_size: int,
        hidden: int = 64,
        layers: int = 2,
        heads: int = 4,
        inner: int | None = None,
        dtype: Any = np.float32,
        moe: Mapping[str, Any] | None = None,
        **attention: Any,
    ) -> None:
        super().__init__()
        rule, how = initializer.Normal(INITIAL), {"rotary": 10000.0, "dtype": dtype, "moe": moe, **attention}
        tables = (initializer.initializer(rule, (vocab_size, hidden), dtype) for _ in range(2))
        self.token_table, self.head = map(Parameter, tables)
        self.embed, self.scores = gather.primitive(), matmul.primitive(transpose_b=True)
        inner = 4 * hidden if inner is None else inner
        self.blocks = nn.CellList([ContextBlock(hidden, heads, inner, **how) for _ in range(layers)])
        self.norm, self.add_loss = nn.LayerNorm((hidden,), epsilon=1e-5, dtype=dtype), add.primitive()

    def construct(self, ids: Any) -> Any:
        x, total = self.embed(self.token_table, ids, 0), None
        for block in self.blocks:
            x, loss = block(x) if self.moe is not None else (block(x), None)
            total = loss if total is None else self.add_loss(total, loss)
        scores = self.scores(self.head, self.norm(x))  # (V, h) (n, s, h)' -> (n, V, s)
        return scores if total is None else (scores, total)


class ContextMoELoss(nn.CrossEntropyLoss):
    """Mean cross-entropy, plus the experts' losses.  (scores (n, V, s), losses ()), next_ids: (n, s) int -> ()."""

    def __init__(self) -> None:
        super().__init__()
        self.add = add.primitive()

    def construct(self, scores: Any, next_ids: Any) -> Any:
        return self.add(super().construct(scores[0], next_ids), scores[1])


# ---- strategies ----


@checked(dp=POWER_OF_TWO, cp=POWER_OF_TWO, mp=POWER_OF_TWO, ulysses=POWER_OF_TWO, ep=POWER_OF_TWO)
@checked(sequence=flag, expert_mp=POWER_OF_TWO | None)
def context_parallel(
    net: ContextGPT,
    loss: nn.CrossEntropyLoss | None = None,
    *,
    dp: int = 1,
    cp: int = 1,
    mp: int = 1,
    ulysses: int = 1,
    sequence: bool = False,
    ep: int = 1,
    expert_mp: int | None = None,
) -> ContextGPT:
    """Split samples `dp` ways, tokens `cp` ways and heads and columns `mp` ways, for dp * cp * mp devices, all or
    those of a pipeline stage (`pipeline_stage` of the blocks).

    ulysses  how many of the cp ranks exchange heads against tokens; the other factor is a ring (or gathers keys, as the
             net's `method` says). Heads travel by all_to_all where `enable_alltoall` is set
    sequence        what lies outside of the products is split by the mp ranks, too, as in `tensor_parallel`
    ep, expert_mp   of experts, as in `expert_parallel`: ep is at most dp * cp * mp / expert_mp

    Key heads are used up first; where there are fewer than ranks that split heads, each is repeated before it travels,
    and its gradients are added up. Device matrix: (dp, ring, ulysses, mp), neighbours last.

    Raises ArgumentError for another network, StrategyError where ulysses does not divide cp, or heads do not divide.
    """
    if not isinstance(net, ContextGPT):
        raise ArgumentError(f"net is {shorten(net)}", where="context_parallel", allowed="A ContextGPT")
    data_parallel(net)
    for block in net.blocks:
        parts = block.attention
        split = _Split(dp, cp, mp, ulysses, parts.heads, parts.groups, sequence)
        split.block(block)
        if block.moe is not None:
            split_experts(block.moe, dp, cp, ep, mp, expert_mp)
    split = _Split(dp, cp, mp, ulysses, net.heads, net.heads, sequence)
    net.embed.shard((split.layout("None", "None"), split.layout("dp", split.outside)))
    split.norm(net.norm)
    net.scores.shard((split.layout("None", "None"), split.residual))
    if loss is not None:
        scores, labels = split.layout("dp", "None", split.outside), split.layout("dp", split.outside)
        loss.class_cross_entropy.shard((scores, labels, split.layout("None")))
        loss.reduce_mean.shard((labels,))
    return net


class _Split:
    """Names of the axes: dp; ring; u, the ulysses ranks; mg and mr, the ranks of mp that have other key heads, and that
    share one. repeats: how often a key head is there; 1 where only mp shares it, whose ranks made it themselves.
    """

    def __init__(self, dp: int, cp: int, mp: int, ulysses: int, heads: int, groups: int, sequence: bool) -> None:
        where = "context_parallel"
        if cp % ulysses:
            raise StrategyError(f"ulysses={ulysses} with cp={cp}", where=where, allowed="ulysses divides cp")
        mg = math.gcd(mp, groups)
        ug = math.gcd(ulysses, groups // mg)
        mr, ur = mp // mg, ulysses // ug
        if (mr > 1 and groups > mg) or (ur > 1 and groups > mg * ug) or (heads // groups) % (mr * ur):
            what = f"ulysses={ulysses} and mp={mp} for {heads} heads that read {groups} key heads"
            allowed = "Their product divides the key heads, or is a multiple of them that divides the heads"
            raise StrategyError(what, where=where, allowed=allowed)
        self.layout = Layout((dp, cp // ulysses, ulysses, mg, mr), ("dp", "ring", "u", "mg", "mr"))
        self.tokens, self.columns, self.repeats = ("ring", "u"), ("mg", "mr"), mr * ur if ur > 1 else 1

        self.outside = (*self.tokens, *self.columns) if sequence else self.tokens
        self.residual = self.layout("dp", self.outside, "None")

    def rows(self, columns: Any = "None") -> Any:
        return self.layout("dp", self.tokens, columns)

    def norm(self, norm: nn.LayerNorm) -> None:
        norm.layer_norm.shard((self.residual, self.layout("None"), self.layout("None")))

    def dense(self, dense: TokenDense, inputs: Any, outputs: Any) -> None:
        """A dense layer with its input or output columns split. Sums over inputs go where the residual lies."""
        result = self.residual if outputs == "None" else self.rows(outputs)
        dense.matmul.shard((self.rows(inputs), self.layout(outputs, inputs))).add_prim_attr(
            SCATTERED, outputs == "None"
        )
        dense.add.shard((result, self.layout(outputs)))
        if dense.activation is not None:
            for _, cell in dense.activation.cells_and_names():
                for primitive in cell._primitives.values():
                    primitive.shard((self.rows(outputs),))

    def block(self, block: ContextBlock) -> None:
        attention, layout, tokens = block.attention, self.layout, self.tokens
        for norm in (block.norm1, block.norm2):
            self.norm(norm)
        for residual in (block.add1, block.add2):
            residual.shard((self.residual, self.residual))
        for dense in filter(None, (attention.query, block.fc1)):
            self.dense(dense, "None", self.columns)
        for dense in (attention.key, attention.value):  # of fewer heads: as many parts as there are heads
            self.dense(dense, "None", "mg")
        for dense in filter(None, (attention.out, block.fc2)):
            self.dense(dense, self.columns, "None")
        groups, shared = (("mg", "mr"), "None") if self.repeats > 1 else (("mg",), "mr")
        if attention.rotary_query is not None:
            attention.rotary_query.shard((layout("dp", tokens, groups, shared, "None"),))
            attention.rotary_key.shard((layout("dp", tokens, "mg", "None"),))
        for repeat in (attention.repeat_key, attention.repeat_value):
            repeat.shard((layout("dp", tokens, "mg", "None"),))
            repeat.given["repeats"] = self.repeats
        groups = (*groups, "u")
        keys = layout("dp", "ring" if attention.attention.given["method"] == "ring" else "None", groups, "None")
        attention.attention.shard((layout("dp", "ring", groups, shared, "None"), keys, keys))
