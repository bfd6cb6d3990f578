"""Attention, and the transformer's encoder (Vaswani et al. 2017), from layers whose operators can be split one by one.

Tensor parallel as in Megatron-LM (Shoeybi et al. 2019, section 3), with `dp` parts of the batch and `mp` of the width.
The projections of q, k and v are separate, so a split of their columns is one by heads:

    attention.q_proj.matmul.shard(((dp, 1), (mp, 1)))        column-parallel: no message
    attention.attention.shard(((dp, 1, mp, 1),) * 3)         every rank has its heads
    attention.out_proj.matmul.shard(((dp, mp), (1, mp)))     row-parallel: one all_reduce forward, one backward
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from ...base.checks import COPIES, checked, choice, flag, instance, integer, kept, number, probability
from ...base.dtypes import kind_of
from ...base.errors import ArgumentError, ArgumentTypeError, ShapeError
from ...ops.activation import softmax
from ...ops.attention import causal_mask, scaled_dot_product_attention, scaled_dot_product_attention_with_mask
from ...ops.elementwise import add, cast, mul
from ...ops.linalg import matmul
from ...ops.machine.primitive import Primitive
from ...ops.reduce import reduce_mean
from ...ops.shape import reshape, shape as shape_of, transpose
from ..cell import Cell
from ..initializer import HeUniform, Uniform, XavierUniform
from .activation import get_activation
from .basic import CellList, Dense
from .dropout import Dropout
from .normalization import LayerNorm

# Added to a masked score: its exponential is 0, and rows of masked ones stay numbers. float16 reaches to 65504.
MASKED = {"float16": -3e4}
MASKED_OTHERWISE = -1e30
A_CELL = instance(Cell, "A Cell")


class _Mask(Cell):
    """A mask as numbers to add, in a shape that broadcasts to (n, heads, l, s)."""

    def __init__(self) -> None:
        super().__init__()
        self.cast, self.mul, self.reshape = cast.primitive(), mul.primitive(), reshape.primitive()

    def construct(self, mask: Any, shape: tuple[int, ...], dtype: str) -> Any:
        if np.dtype(str(mask.dtype)).kind == "b":
            mask = self.mul(self.cast(mask, dtype), MASKED.get(dtype, MASKED_OTHERWISE))
        elif str(mask.dtype) != dtype:
            mask = self.cast(mask, dtype)
        return mask if tuple(mask.shape) == shape else self.reshape(mask, shape)


class MultiheadAttention(Cell):
    """Attention of `num_heads` heads, each of embed_dim / num_heads columns.

    query: (l, n, embed_dim), key: (s, n, kdim), value: (s, n, vdim) -> (l, n, embed_dim), and weights (n, l, s), or
    None. With batch_first n is the first dim; without n: (l, embed_dim) and so on.

    dropout      of the attention weights, in training
    has_bias     biases of the projections
    kdim, vdim   columns of key and value; default embed_dim
    add_bias_kv, add_zero_attn  False: others are not available

    Called with (query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None,
    average_attn_weights=True), and is_causal=True by name:
        key_padding_mask      (n, s): True, or a number that is added, for keys to leave out
        attn_mask             (l, s) or (n * num_heads, l, s): the same per query
        need_weights          also return the weights; average_attn_weights=False: of each head, (n, num_heads, l, s)
        is_causal             row i looks at the keys 0 to i only

    Projections: the Dense layers `q_proj`, `k_proj`, `v_proj`, `out_proj`. Without weights or dropout, one fused
    operator `attention`, or `masked_attention`, (n, l, heads, d) each; otherwise `transpose_q`, `transpose_k`,
    `transpose_v`, `scale`, `scores`, `causal`, `add_mask`, `softmax`, `dropout`, `weighted`, `transpose_out`. Names and
    initial values: MindSpore, nn.MultiheadAttention, with its in_proj in three parts.
    """

    @checked(has_bias=flag, kdim=integer(1) | None, vdim=integer(1) | None, dropout=probability)
    @checked(add_bias_kv=choice(False), add_zero_attn=choice(False))
    @kept(embed_dim=integer(1), num_heads=integer(1), batch_first=flag)
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        has_bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            given = f"embed_dim={embed_dim} with num_heads={num_heads}"
            raise ArgumentError(given, where="MultiheadAttention", allowed="num_heads divides embed_dim")
        self.head_dim = embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        # MindSpore draws the weights as one (3 embed_dim, embed_dim), its bound smaller by sqrt(2), if sizes allow
        gain = math.sqrt(0.5) if self.kdim == self.vdim == embed_dim else 1.0
        for name, columns in (("q_proj", embed_dim), ("k_proj", self.kdim), ("v_proj", self.vdim)):
            setattr(self, name, Dense(columns, embed_dim, XavierUniform(gain), "zeros", has_bias=has_bias, dtype=dtype))
        bound = Uniform(1 / math.sqrt(embed_dim))
        self.out_proj = Dense(embed_dim, embed_dim, HeUniform(math.sqrt(5)), bound, has_bias=has_bias, dtype=dtype)
        self.batch_q, self.batch_k, self.batch_v, self.batch_out = (transpose.primitive() for _ in range(4))
        self.split_heads, self.join_heads = reshape.primitive(), reshape.primitive()
        self.add_batch, self.drop_batch = reshape.primitive(), reshape.primitive()
        self.mask, self.padding_mask, self.add_masks = _Mask(), _Mask(), add.primitive()
        self.attention = scaled_dot_product_attention.primitive(input_layout="BSND")
        self.masked_attention = scaled_dot_product_attention_with_mask.primitive(input_layout="BSND")
        # taken apart
        self.transpose_q, self.transpose_k, self.transpose_v, self.transpose_out = (
            transpose.primitive() for _ in range(4)
        )
        self.scale, self.scores = mul.primitive(), matmul.primitives["BatchMatMul"](transpose_b=True)
        self.causal, self.add_mask = causal_mask.primitive(), add.primitive()
        self.softmax = softmax.primitive()
        self.weighted = matmul.primitives["BatchMatMul"]()
        self.mean_weights = reduce_mean.primitive()
        self.dropout = Dropout(p=dropout)

    def construct(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        *,
        is_causal: bool = False,
    ) -> tuple[Any, Any]:
        self._check(query, key, value)
        batched = len(shape_of(query)) == 3
        if not batched:
            query, key, value = (self.add_batch(x, (1, *shape_of(x))) for x in (query, key, value))
        elif not self.batch_first:
            same_key, same_value = key is query, value is key
            query = self.batch_q(query, (1, 0, 2))
            key = query if same_key else self.batch_k(key, (1, 0, 2))
            value = key if same_value else self.batch_v(value, (1, 0, 2))
        n, length, _ = shape_of(query)
        q, k, v = (
            self.split_heads(project(x), (*shape_of(x)[:2], self.num_heads, self.head_dim))
            for project, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        mask = self._joined_mask(attn_mask, key_padding_mask, n, length, shape_of(key)[1], str(q.dtype))
        weights = None
        if need_weights or (self.training and self.dropout.p):
            out, weights = self._unfused(q, k, v, mask, is_causal)
        else:
            out = self._fused(q, k, v, mask, is_causal)
        out = self.out_proj(self.join_heads(out, (n, length, self.embed_dim)))
        if not need_weights:
            weights = None
        elif average_attn_weights:
            weights = self.mean_weights(weights, 1)
        if not batched:
            out = self.drop_batch(out, (length, self.embed_dim))
            weights = None if weights is None else self.drop_batch(weights, tuple(shape_of(weights)[1:]))
        elif not self.batch_first:
            out = self.batch_out(out, (1, 0, 2))
        return out, weights

    def _fused(self, q: Any, k: Any, v: Any, mask: Any, is_causal: bool) -> Any:
        operator = self.attention if mask is None else self.masked_attention
        operator.given["is_causal"] = is_causal
        return operator(q, k, v) if mask is None else operator(q, k, v, mask)

    def _unfused(self, q: Any, k: Any, v: Any, mask: Any, is_causal: bool) -> tuple[Any, Any]:
        """The result, (n, l, heads, d), and the weights before dropout, (n, heads, l, s)."""
        turns = self.transpose_q, self.transpose_k, self.transpose_v
        q, k, v = (turn(x, (0, 2, 1, 3)) for turn, x in zip(turns, (q, k, v), strict=True))
        scores = self.scores(self.scale(q, 1 / math.sqrt(self.head_dim)), k)
        if is_causal:
            scores = self.causal(scores)
        if mask is not None:
            scores = self.add_mask(scores, mask)
        weights = self.softmax(scores)
        return self.transpose_out(self.weighted(self.dropout(weights), v), (0, 2, 1, 3)), weights

    def _joined_mask(self, attn_mask: Any, key_padding_mask: Any, n: int, length: int, keys: int, dtype: str) -> Any:
        """Both masks as one to add to the scores; None without masks."""
        pairs = ((length, keys), (n * self.num_heads, length, keys))
        shapes = {"attn_mask": pairs, "key_padding_mask": ((n, keys), (keys,))}
        for name, given in (("attn_mask", attn_mask), ("key_padding_mask", key_padding_mask)):
            if given is None or (tuple(shape_of(given)) in shapes[name] and kind_of(given.dtype) in "bf"):
                continue
            what = f"{name} is {given.dtype} of shape {shape_of(given)}"
            allowed = f"Bools or floats, {shapes[name][0]} or {shapes[name][1]}"
            raise ShapeError(what, where=self._where(), allowed=allowed)
        mask = None
        if attn_mask is not None:
            shape = (length, keys) if len(shape_of(attn_mask)) == 2 else (n, self.num_heads, length, keys)
            mask = self.mask(attn_mask, shape, dtype)
        if key_padding_mask is not None:
            padding = self.padding_mask(key_padding_mask, (n, 1, 1, keys), dtype)
            mask = padding if mask is None else self.add_masks(mask, padding)
        return mask

    def _check(self, query: Any, key: Any, value: Any) -> None:
        shapes = [shape_of(x) for x in (query, key, value)]
        columns = (self.embed_dim, self.kdim, self.vdim)
        dims, batch = len(shapes[0]), 0 if self.batch_first else 1
        fits = dims in (2, 3) and all(len(s) == dims and s[-1] == c for s, c in zip(shapes, columns, strict=True))
        if not fits or shapes[1][:-1] != shapes[2][:-1] or (dims == 3 and shapes[0][batch] != shapes[1][batch]):
            form = "(n, l, {}), (n, s, {}), (n, s, {})" if self.batch_first else "(l, n, {}), (s, n, {}), (s, n, {})"
            given = f"query, key and value of shapes {shapes[0]}, {shapes[1]}, {shapes[2]}"
            raise ShapeError(given, where=self._where(), allowed=f"{form.format(*columns)}, or all without n")


class TransformerLayer(Cell):
    """What the layers share: attention, two dense layers, and for each of them a norm, a dropout and an addition.

    attentions  names of its attentions
    """

    attentions = ("self_attn",)

    @checked(dropout=probability, layer_norm_eps=number(0, above=True), dim_feedforward=integer(1))
    @kept(norm_first=flag)
    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Cell | Primitive = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        for name in self.attentions:
            setattr(self, name, MultiheadAttention(d_model, nhead, dropout, batch_first=batch_first, dtype=dtype))
        self.linear1 = Dense(d_model, dim_feedforward, dtype=dtype)
        if activation is None:
            raise ArgumentTypeError("activation=None", where=self.cls_name, allowed="A name, a Cell or a Primitive")
        self.activation = get_activation(activation, self.cls_name)
        self.dropout = Dropout(p=dropout)
        self.linear2 = Dense(dim_feedforward, d_model, dtype=dtype)
        count = len(self.attentions) + 1
        for i in range(1, count + 1):
            setattr(self, f"norm{i}", LayerNorm((d_model,), epsilon=layer_norm_eps, dtype=dtype))
        for i in range(1, count + 1):
            setattr(self, f"dropout{i}", Dropout(p=dropout))
        for i in range(1, count + 1):
            setattr(self, f"add{i}", add.primitive())

    def _residual(self, i: int, x: Any, inner: Any) -> Any:
        """x, with what part i makes of it added."""
        norm, drop, residual = (getattr(self, f"{name}{i}") for name in ("norm", "dropout", "add"))
        return residual(x, drop(inner(norm(x)))) if self.norm_first else norm(residual(x, drop(inner(x))))

    def _feed(self, x: Any) -> Any:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(TransformerLayer):
    """Self-attention and two dense layers, each added to what it was given, with layer norm.  src: (s, n, d_model) ->
    (s, n, d_model).

    nhead            attention heads
    dim_feedforward  width between the dense layers;  activation  after the first: a name, a Cell or a Primitive
    dropout          of the attention weights, between the dense layers, and of what is added; in training
    batch_first      src: (n, s, d_model)
    norm_first       layer norm before attention and dense layers instead of after the additions

    Called with (src, src_mask=None, src_key_padding_mask=None), masks as in MultiheadAttention, and is_causal=True by
    name. Names and defaults: MindSpore, nn.TransformerEncoderLayer. Parts: `self_attn`, `linear1`, `linear2`, `norm1`,
    `norm2`, `dropout`, `dropout1`, `dropout2`, `add1`, `add2`.
    """

    def construct(
        self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, *, is_causal: bool = False
    ) -> Any:
        def attend(x: Any) -> Any:
            return self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal)[0]

        return self._residual(2, self._residual(1, src, attend), self._feed)


class TransformerLayers(Cell):
    """Copies of a layer, drawn apart, then `norm`."""

    def _set(self, layer: Cell, num_layers: int, norm: Cell | None) -> None:
        self.layers = CellList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    def construct(self, x: Any, *others: Any, **masks: Any) -> Any:
        for layer in self.layers:
            x = layer(x, *others, **masks)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(TransformerLayers):
    """`num_layers` copies of a layer, drawn apart, called as it is; then `norm`.  src: (s, n, d_model) -> the same."""

    @checked(encoder_layer=A_CELL, num_layers=integer(1, COPIES), norm=A_CELL | None)
    def __init__(self, encoder_layer: Cell, num_layers: int, norm: Cell | None = None) -> None:
        super().__init__()
        self._set(encoder_layer, num_layers, norm)
