"""Layers of MindSpore's nn.transformer (1.5 to 2.0) whose operators carry the strategies of a configuration.

With `dp` parts of the batch and `mp` of the width (Megatron-LM's split, Shoeybi et al. 2019, section 3):

    dense1, dense2, dense3   ((dp, 1), (mp, 1))    columns: no message, every rank has its heads
    projection               ((dp, mp), (mp, 1))   rows: one all_reduce forward, one backward

Under auto_parallel with sharding_propagation only the projections keep theirs, and the others follow, as in MindSpore.
They compute in float16 with Parameters in float32, as MindSpore's do, and their names are its names.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import nn, ops
from ..base.checks import checked, flag, integer, kept, number
from ..base.errors import ArgumentError, ArgumentTypeError, ShapeError, shorten
from ..base.settings.current import get_auto_parallel_context
from ..nn.cell import Cell
from ..nn.initializer import initializer
from ..nn.tensor.parameter import Parameter
from ..nn.tensor.tensor import Tensor
from ._transformer_configs import (
    DP_MP,
    OF_EMBEDDING,
    MoEParallelConfig,
    OpParallelConfig,
    check_config,
    default_dpmp_config,
    default_embedding_parallel_config,
)

RATE, SIZE = number(0, 1, below=True), integer(1)


def propagates() -> bool:
    """Whether strategies spread by themselves, so that layers leave most operators without one."""
    mode, search = (get_auto_parallel_context(name) for name in ("parallel_mode", "search_mode"))
    return mode == "auto_parallel" and search == "sharding_propagation"


def cut(primitive: Any, *strategy: tuple[Any, ...]) -> Any:
    """The operator with this strategy, or without one where strategies spread."""
    return primitive if propagates() else primitive.shard(strategy)


def in_dtype(cast: Any, x: Any, dtype: Any) -> Any:
    """x in a dtype. The operator has the strategy of what x comes from: no message is sent for a cast."""
    return x if str(x.dtype) == str(np.dtype(dtype)) else cast(x, dtype)


def dropped(rate: float, *strategies: tuple[int, ...]) -> list[nn.Dropout]:
    """A dropout for each strategy."""
    layers = [nn.Dropout(p=rate) for _ in strategies]
    for layer, strategy in zip(layers, strategies, strict=True):
        cut(layer.dropout, strategy)
    return layers


def check_divides(where: str, parts: int, **sizes: int) -> None:
    """Raise ArgumentError unless `parts` divides each of the sizes."""
    for name, size in sizes.items():
        if size % parts:
            raise ArgumentError(f"{name}={size} in {parts} parts", where=where, allowed=f"A multiple of {parts}")


def check_shape(cell: Cell, name: str, value: Any, *shapes: tuple[int | None, ...], dtype: str = "float") -> None:
    """Raise ShapeError unless a value has one of these shapes; None is any size. ArgumentTypeError unless the name of
    its dtype begins so.
    """
    given = ops.shape(value)
    if not str(value.dtype).removeprefix("b").startswith(dtype):
        raise ArgumentTypeError(f"{name} of dtype {value.dtype}", where=cell._where(), allowed=dtype)
    if not any(len(given) == len(s) and all(n in (None, m) for n, m in zip(s, given, strict=True)) for s in shapes):
        allowed = " or ".join(str(shape).replace("None", "any") for shape in shapes)
        raise ShapeError(f"{name} of shape {given}", where=cell._where(), allowed=allowed)


class _LayerNorm(Cell):
    """Layer norm over the last dim.  x: (..., n) -> (..., n).  Parameters `gamma` and `beta`, each normalized_shape.

    eps  added to the variance;  is_self_defined  accepted: it names other operators for the same numbers
    """

    @checked(is_self_defined=flag)
    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, param_init_type: Any = "float32", is_self_defined: bool = False
    ) -> None:
        super().__init__()
        self.layer_norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=eps)
        for name, init in (("gamma", "ones"), ("beta", "zeros")):
            values = initializer(init, normalized_shape, param_init_type)
            setattr(self, name, Parameter(values, name=name, parallel_optimizer=False))

    def construct(self, x: Any) -> Any:
        return self.layer_norm(x, self.gamma, self.beta)[0]

    def shard(self, strategy: tuple[tuple[int, ...], ...]) -> _LayerNorm:  # type: ignore[override]
        """Give the operator this strategy for x, one tuple in a tuple. Returns self."""
        self.layer_norm.shard((strategy[0], (1,), (1,)))
        return self


class _Dropout(nn.Dropout):
    """Dropout that is given the share that it keeps, and takes a strategy itself."""

    def __init__(self, keep_prob: float = 0.5, dtype: Any = "float32") -> None:
        super().__init__(keep_prob=keep_prob, dtype=dtype)

    def shard(self, strategy: tuple[tuple[int, ...], ...]) -> None:  # type: ignore[override]
        """Give the operator a strategy, one tuple in a tuple."""
        self.dropout.shard(strategy)


class _Linear(Cell):
    """x @ weight + bias, then the activation, in `compute_dtype`.  x: (..., in_channels) -> (..., out_channels).

    transpose_b  the weight is (out_channels, in_channels), otherwise the other way round
    activation   a name, or a class of Cells without arguments
    expert_num   above 1: the rows lie by experts, in outer_batch groups, and each expert has a weight and a bias of its
                 own: (expert_num, ...), (1, expert_num, 1, out_channels). expert_group_size: how many rows of an expert
                 lie behind each other, where a search chooses strategies

    Operators: `matmul` (of experts a BatchMatMul) and `bias_add`, given strategies by `shard`.
    """

    @kept(in_channels=SIZE, out_channels=SIZE, has_bias=flag, expert_num=SIZE, outer_batch=SIZE)
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        weight_init: Any = "normal",
        bias_init: Any = "zeros",
        has_bias: bool = True,
        activation: Any = None,
        transpose_b: bool = True,
        expert_num: int = 1,
        outer_batch: int = 1,
        expert_group_size: int | None = None,
        param_init_type: Any = "float32",
        compute_dtype: Any = "float16",
    ) -> None:
        super().__init__()
        shape = [out_channels, in_channels] if transpose_b else [in_channels, out_channels]
        several = expert_num > 1
        self.groups = (outer_batch, expert_num, -1)
        if several and get_auto_parallel_context("parallel_mode") == "auto_parallel" and not propagates():
            size = SIZE("Linear", "expert_group_size", expert_group_size)
            self.groups = (-1, expert_num, size)
        shape = [expert_num, *shape] if several else shape
        self.weight = Parameter(initializer(weight_init, shape, param_init_type), name="weight")
        self.matmul = (ops.BatchMatMul if several else ops.MatMul)(transpose_b=transpose_b)
        self.bias = None
        if has_bias:
            values = initializer(bias_init, [*[1, expert_num, 1][: 3 * several], out_channels], param_init_type)
            self.bias = Parameter(values, name="bias", parallel_optimizer=False)
            self.bias_add = ops.Add()
        self.act_name = activation
        named = isinstance(activation, str) or activation is None
        if not (named or isinstance(activation, type) or callable(activation)):
            raise ArgumentTypeError(
                f"activation={shorten(activation)}", where="Linear", allowed="A name or a Cell class"
            )
        self.activation = nn.get_activation(activation, "Linear") if named else activation()
        self.dtype, self.cast, self.cast_back, self.reshape = compute_dtype, ops.Cast(), ops.Cast(), ops.Reshape()
        self.cast_parameter = ops.Cast()

    def construct(self, x: Any) -> Any:
        shape, dtype = ops.shape(x), x.dtype
        rows = (-1,) if self.expert_num == 1 else self.groups
        if len(shape) != 2 or self.expert_num > 1:
            x = self.reshape(x, (*rows, self.in_channels))
        x = self.matmul(in_dtype(self.cast, x, self.dtype), in_dtype(self.cast_parameter, self.weight, self.dtype))
        if self.has_bias:
            x = self.bias_add(x, in_dtype(self.cast_parameter, self.bias, self.dtype))
        if self.activation is not None:
            x = self.activation(x)
        x = in_dtype(self.cast_back, x, dtype)
        return x if len(shape) == len(rows) + 1 == 2 else self.reshape(x, (*shape[:-1], self.out_channels))

    def shard(self, strategy_matmul: Any, strategy_bias: Any = None, strategy_activation: Any = None) -> _Linear:  # type: ignore[override]
        """Give the operators strategies. Returns self."""
        self.matmul.shard(strategy_matmul)
        self.cast.shard(strategy_matmul[:1])
        if self.has_bias:
            self.bias_add.shard(strategy_bias)
            self.cast_back.shard(strategy_bias and strategy_bias[:1])
        if isinstance(self.act_name, str) and strategy_activation is not None:
            for primitive in self.activation._primitives.values():
                count = len(strategy_activation) if self.act_name != "prelu" else 2
                primitive.shard((*strategy_activation, (1,))[:count])
        elif hasattr(type(self.activation), "activation_shard") and strategy_activation is not None:
            self.activation.activation_shard(_config_of(*strategy_activation[0]))
        return self


def _config_of(dp: int, *parts: int) -> Any:
    """The configuration that gives an activation these parts: (dp, mp), or of experts (dp, ep, 1, mp)."""
    return OpParallelConfig(dp, *parts) if len(parts) == 1 else MoEParallelConfig(dp, parts[-1], parts[0])


class FeedForward(Cell):
    """Two dense layers with an activation between them and dropout behind.  x: (rows, hidden_size) or (batch, length,
    hidden_size), of experts also (groups, experts, rows, hidden_size) -> the same shape, float16.

    dropout_rate  share that the dropout sets to 0;  hidden_act  the activation's name, or a class of Cells
    expert_num    experts with weights of their own, for rows that lie by experts in data_parallel / expert_parallel
                  groups; expert_group_size  as of `_Linear`
    """

    @checked(hidden_size=SIZE, ffn_hidden_size=SIZE, dropout_rate=RATE, expert_num=SIZE, parallel_config=DP_MP)
    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        dropout_rate: float,
        hidden_act: Any = "gelu",
        expert_num: int = 1,
        expert_group_size: int | None = None,
        param_init_type: Any = "float32",
        parallel_config: Any = default_dpmp_config,
    ) -> None:
        super().__init__()
        check_config("FeedForward", parallel_config)
        dp, mp = parallel_config.data_parallel, parallel_config.model_parallel
        ep = getattr(parallel_config, "expert_parallel", 1) if expert_num > 1 else 1
        check_divides("FeedForward", mp, hidden_size=hidden_size, ffn_hidden_size=ffn_hidden_size)
        check_divides("FeedForward", ep, data_parallel=dp, expert_num=expert_num)
        groups, self.expert_num = dp // ep, expert_num
        experts = {"expert_num": expert_num, "expert_group_size": expert_group_size, "outer_batch": groups}
        how = {"transpose_b": False, "param_init_type": param_init_type, **experts}
        self.mapping = _Linear(hidden_size, ffn_hidden_size, activation=hidden_act, **how)
        self.projection = _Linear(ffn_hidden_size, hidden_size, **how)
        # parts of the rows, and of the further dims of weights and biases
        rows, own, bias = ((dp,), (), ()) if expert_num == 1 else ((groups, ep, 1), (ep,), (1, ep, 1))
        if not propagates():
            hidden = (*rows, mp)
            self.mapping.shard(((*rows, 1), (*own, 1, mp)), (hidden, (*bias, mp)), (hidden,))
        last = None if propagates() else ((*rows, 1), (*bias, 1))
        self.projection.shard(((*rows, mp), (*own, mp, 1)), last)
        cuts = (dp, 1), (dp, 1, 1), (groups, ep, 1, 1)
        self.dropout, self.dropout_3d, self.dropout_4d = dropped(dropout_rate, *cuts)
        self.dtype, (self.cast, self.cast_3d, self.cast_4d) = "float16", (cut(ops.Cast(), each) for each in cuts)

    def construct(self, x: Any) -> Any:
        width = self.mapping.in_channels
        shapes = (None, width), (None, None, width), (None, None, None, width)
        check_shape(self, "x", x, *shapes[: 3 if self.expert_num > 1 else 2])
        layers = (self.cast, self.dropout), (self.cast_3d, self.dropout_3d), (self.cast_4d, self.dropout_4d)
        cast, dropout = layers[len(ops.shape(x)) - 2]
        return dropout(self.projection(self.mapping(in_dtype(cast, x, self.dtype))))


class AttentionMask(Cell):
    """1 where a position may look at another: neither is padding, and it is not later.  input_mask: (batch,
    seq_length), 0 for padding -> (batch, seq_length, seq_length), float32.
    """

    @checked(seq_length=SIZE, parallel_config=DP_MP)
    def __init__(self, seq_length: int, parallel_config: Any = default_dpmp_config) -> None:
        super().__init__()
        dp = parallel_config.data_parallel
        self.seq_length = seq_length
        self.not_equal, self.reshape, self.cast = (
            ops.NotEqual().shard(((dp, 1), ())),
            ops.Reshape(),
            ops.Cast().shard(((dp, 1),)),
        )
        self.mul = ops.BatchMatMul().shard(((dp, 1, 1), (dp, 1, 1)))
        self.expand_dim = ops.ExpandDims().shard(((1, 1),))
        self.lower_triangle_mask = Tensor(np.tril(np.ones((seq_length, seq_length), np.float32)))
        self.multiply = ops.Mul().shard(((dp, 1, 1), (1, 1, 1)))

    def construct(self, input_mask: Any) -> Any:
        check_shape(self, "input_mask", input_mask, (None, self.seq_length))
        mask = self.cast(self.not_equal(input_mask, 0), "float16")
        batch, length = ops.shape(mask)
        both = self.mul(self.reshape(mask, (batch, length, 1)), self.reshape(mask, (batch, 1, length)))
        return self.multiply(both, self.expand_dim(self.lower_triangle_mask, 0))


class VocabEmbedding(Cell):
    """Rows of a table, and the table.  input_ids: (batch, length) ints -> (batch, length, embedding_size) and
    (vocab_size, embedding_size).

    parallel_config  an EmbeddingOpParallelConfig: vocab_emb_dp says whether the table is whole or split by rows
    param_init       what `initializer` takes, or its result
    """

    @checked(vocab_size=SIZE, embedding_size=SIZE, parallel_config=OF_EMBEDDING)
    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        parallel_config: Any = default_embedding_parallel_config,
        param_init: Any = "normal",
    ) -> None:
        super().__init__()
        check_config("VocabEmbedding", parallel_config)
        dp, mp = parallel_config.data_parallel, parallel_config.model_parallel
        self.vocab_size, self.embedding_size = vocab_size, embedding_size
        values = param_init if hasattr(param_init, "draw") and hasattr(param_init, "shape") else None
        if values is None:
            values = initializer(param_init, [vocab_size, embedding_size])
        self.embedding_table = Parameter(values, name="embedding_table", parallel_optimizer=False)
        if not parallel_config.vocab_emb_dp:
            check_divides("VocabEmbedding", mp, vocab_size=vocab_size)
        self.gather = ops.Gather().shard(((1, 1), (dp, 1)) if parallel_config.vocab_emb_dp else ((mp, 1), (1, 1)))

    def construct(self, input_ids: Any) -> tuple[Any, Any]:
        check_shape(self, "input_ids", input_ids, (None, None), dtype="int32")
        return self.gather(self.embedding_table, input_ids, 0), self.embedding_table


class MultiHeadAttention(Cell):
    """Attention of `num_heads` heads.  query_tensor: (batch, src_seq_length, hidden_size), key_tensor, value_tensor:
    (batch, tgt_seq_length, hidden_size), or with batch and length as one dim; attention_mask: (batch, src_seq_length,
    tgt_seq_length), 1 where a query may look at a key, or None -> the query's shape, and what it made of key and value:
    (batch, heads, size_per_head, tgt_seq_length), (batch, heads, tgt_seq_length, size_per_head).

    batch_size  of the inputs where use_past is True; otherwise it may be None
    hidden_dropout_rate, attention_dropout_rate  of the result and of the weights
    compute_dtype, softmax_compute_type, param_init_type  dtypes of the products, of the softmax and of the Parameters
    use_past    keep key and value for one token at a time: while `is_first_iteration` is True the whole sequence is
                given, afterwards one token, with key_past, value_past and batch_valid_length

    Operators: `dense1`, `dense2`, `dense3` (query, key, value), `projection`, `batch_matmul`, `softmax`, and others.
    """

    @checked(
        batch_size=SIZE | None,
        hidden_dropout_rate=RATE,
        attention_dropout_rate=RATE,
        parallel_config=DP_MP,
        **dict.fromkeys(("src_seq_length", "tgt_seq_length", "hidden_size", "num_heads"), SIZE),
    )
    @kept(use_past=flag)
    def __init__(
        self,
        batch_size: int | None,
        src_seq_length: int,
        tgt_seq_length: int,
        hidden_size: int,
        num_heads: int,
        hidden_dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.1,
        compute_dtype: Any = "float16",
        softmax_compute_type: Any = "float32",
        param_init_type: Any = "float32",
        use_past: bool = False,
        parallel_config: Any = default_dpmp_config,
    ) -> None:
        super().__init__()
        where = "MultiHeadAttention"
        check_config(where, parallel_config)
        dp, mp = parallel_config.data_parallel, parallel_config.model_parallel
        check_divides(where, num_heads, hidden_size=hidden_size)
        check_divides(where, mp, num_heads=num_heads)
        if batch_size is not None and get_auto_parallel_context("parallel_mode").endswith("auto_parallel"):
            check_divides(where, dp, batch_size=batch_size)
        self.src_seq_length, self.tgt_seq_length, self.hidden_size = src_seq_length, tgt_seq_length, hidden_size
        self.batch_size, self.n_head, self.size_per_head = batch_size, num_heads, hidden_size // num_heads
        self.is_first_iteration = True
        how = {"compute_dtype": compute_dtype, "param_init_type": param_init_type}
        self.projection = _Linear(hidden_size, hidden_size, transpose_b=False, **how)
        self.projection.shard(((dp, mp), (mp, 1)), ((dp, 1), (1,)))
        self.transpose = cut(ops.Transpose(), (dp, 1, mp, 1))
        self.merger_head_transpose = cut(ops.Transpose(), (dp, mp, 1, 1))
        self.reshape, self.cast, self.cast_past = ops.Reshape(), cut(ops.Cast(), (dp, 1)), ops.Cast()
        self.cast_scores, self.cast_mask = cut(ops.Cast(), (dp, mp, 1, 1)), cut(ops.Cast(), (dp, 1, 1, 1))
        self.batch_matmul = cut(ops.BatchMatMul(), (dp, mp, 1, 1), (dp, mp, 1, 1))
        self.real_div = cut(ops.RealDiv(), (dp, mp, 1, 1), ())
        self.sub = cut(ops.Sub(), (1,), (dp, 1, 1, 1))
        self.mul = cut(ops.Mul(), (dp, 1, 1, 1), (1,))
        self.add = cut(ops.Add(), (dp, 1, 1, 1), (dp, mp, 1, 1))
        self.multiply_data = Tensor([-10000.0], softmax_compute_type)
        self.one = Tensor([1.0], softmax_compute_type)
        self.scale_factor = Tensor(math.sqrt(math.sqrt(self.size_per_head)), compute_dtype)
        (self.dropout,) = dropped(hidden_dropout_rate, (dp, 1))
        (self.prob_dropout,) = dropped(attention_dropout_rate, (dp, mp, 1, 1))
        self.softmax = nn.Softmax().to_float(softmax_compute_type)
        cut(self.softmax.softmax, (dp, mp, 1, 1))
        self.expand_dims = cut(ops.ExpandDims(), (dp, 1, 1))
        for name in ("dense1", "dense2", "dense3"):
            dense = _Linear(hidden_size, hidden_size, **how)
            setattr(self, name, dense if propagates() else dense.shard(((dp, 1), (mp, 1)), ((dp, mp), (mp,))))
        self.dtype, self.softmax_dtype = compute_dtype, softmax_compute_type
        if use_past:
            integer(1)(where, "batch_size", batch_size)
            self.range = Tensor(np.tile(np.arange(src_seq_length, dtype=np.int32), (batch_size, 1, 1)))
            self.seq_length = src_seq_length
            # every rank holds the whole past: MindSpore splits none of these either
            self.expand_past = ops.ExpandDims().shard(((1, 1, 1),))
            self.past_sum = ops.Add().shard(((1, 1, 1, 1), (1, 1, 1, 1)))
            self.not_equal = ops.NotEqual().shard(((1, 1, 1), ()))
            self.reducesum = ops.ReduceSum().shard(((1, 1, 1),))
            self.equal, self.less, self.tensor_le = (
                operator().shard(((1, 1, 1), (1, 1, 1))) for operator in (ops.Equal, ops.Less, ops.LessEqual)
            )
            self.tile = ops.Tile().shard(((1, 1, 1, 1),))
            self.mul1 = ops.Mul().shard(((1, 1, 1, 1), (1, 1, 1, 1)))

    def construct(
        self,
        query_tensor: Any,
        key_tensor: Any,
        value_tensor: Any,
        attention_mask: Any,
        key_past: Any = None,
        value_past: Any = None,
        batch_valid_length: Any = None,
    ) -> tuple[Any, tuple[Any, Any]]:
        one = self.use_past and not self.is_first_iteration
        source, target = (1, 1) if one else (self.src_seq_length, self.tgt_seq_length)
        width = self.hidden_size
        check_shape(self, "query_tensor", query_tensor, (None, source, width), (None, width))
        check_shape(self, "key_tensor", key_tensor, (None, target, width), (None, width))
        check_shape(self, "value_tensor", value_tensor, (None, target, width), (None, width))
        shape, dtype = ops.shape(query_tensor), query_tensor.dtype
        batch = shape[0] if len(shape) == 3 else shape[0] // source
        heads = batch, -1, self.n_head, self.size_per_head
        given = (self.reshape(x, (-1, width)) for x in (query_tensor, key_tensor, value_tensor))
        rows = (in_dtype(self.cast, x, self.dtype) for x in given)
        denses = self.dense1, self.dense2, self.dense3
        query, key, value = (self.reshape(dense(x), heads) for dense, x in zip(denses, rows, strict=True))
        query = self.transpose(query, (0, 2, 1, 3))
        key, value = self.transpose(key, (0, 2, 3, 1)), self.transpose(value, (0, 2, 1, 3))
        if attention_mask is not None and len(ops.shape(attention_mask)) == 3:
            attention_mask = self.expand_dims(attention_mask, 1)
        present = key, value
        if self.use_past:
            key, value, present, attention_mask = self._with_past(
                key, value, attention_mask, key_past, value_past, batch_valid_length
            )
        attention = self._attn(query, key, value, attention_mask)
        output = in_dtype(self.cast, self.dropout(self.projection(attention)), dtype)
        return self.reshape(output, shape), present

    def _with_past(self, key: Any, value: Any, mask: Any, key_past: Any, value_past: Any, valid: Any) -> Any:
        """Key, value, what is kept of them, and the mask: with the padding away at first, and then with the past."""
        if self.is_first_iteration:
            inside = self.cast_past(self.less(self.range, self.reshape(valid, (-1, 1, 1))), self.dtype)
            present = self.mul1(key, self.expand_past(inside, 2)), self.mul1(value, self.expand_past(inside, 3))
            return key, value, present, mask
        # the token goes where the first column of zeros of the past is
        column = self.cast_past(self.not_equal(key_past[:, 0, 0:1, :], 0), "float32")
        length = self.reshape(self.reducesum(column, (1, 2)), (-1, 1, 1))
        here = self.cast_past(self.equal(self.cast_past(length, "int32"), self.range), self.dtype)
        key = self.past_sum(key_past, self.mul1(self.tile(key, (1, 1, 1, self.seq_length)), self.expand_past(here, 2)))
        value = self.past_sum(
            value_past, self.mul1(self.tile(value, (1, 1, self.seq_length, 1)), self.expand_past(here, 3))
        )
        seen = self.tensor_le(self.range, self.cast_past(length, "int32"))
        return key, value, (key, value), self.expand_past(self.cast_past(seen, "int32"), 2)

    def _attn(self, query: Any, key: Any, value: Any, attention_mask: Any) -> Any:
        """Values weighted by the softmax of query times key.  -> (batch * length, hidden_size)."""
        query, key = self.real_div(query, self.scale_factor), self.real_div(key, self.scale_factor)
        score = self.batch_matmul(query, key)
        dtype, score = score.dtype, in_dtype(self.cast_scores, score, self.softmax_dtype)
        if attention_mask is not None:
            hidden = self.sub(self.one, in_dtype(self.cast_mask, attention_mask, self.softmax_dtype))
            score = self.add(self.mul(hidden, self.multiply_data), score)
        weights = self.prob_dropout(in_dtype(self.cast_scores, self.softmax(score), dtype))
        merged = self.merger_head_transpose(self.batch_matmul(weights, value), (0, 2, 1, 3))
        return self.reshape(merged, (-1, self.hidden_size))
