"""MindSpore's nn.transformer (1.5 to 2.0): encoder and decoder of layers that a configuration divides.

    config = TransformerOpParallelConfig(data_parallel=2, model_parallel=4)
    encoder = TransformerEncoder(batch_size=2, num_layers=2, hidden_size=8, ffn_hidden_size=64, seq_length=16,
                                 num_heads=2, parallel_config=config)
    output, past = encoder(x, mask)        # x: (2, 16, 8), mask: (2, 16, 16)

Each layer gets its pipeline stage, its fusion number and its recomputation from the configuration, by `lambda_func`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import nn, ops
from ..base.checks import COPIES, checked, flag, function, integer, kept
from ..base.errors import ArgumentError, ContextConflictError
from ..base.settings.current import get_auto_parallel_context
from ..catalog.nn.forms import arguments_of
from ..nn.cell import Cell
from ..nn.tensor.parameter import Parameter
from ..nn.tensor.tensor import Tensor
from ._transformer_configs import (
    DP_MP,
    EXPERTS,
    OF_ALL,
    MoEConfig,
    check_config,
    default_dpmp_config,
    default_moe_config,
    default_transformer_config,
)
from ._transformer_experts import MoE
from ._transformer_layers import (
    RATE,
    SIZE,
    FeedForward,
    MultiHeadAttention,
    _LayerNorm,
    check_divides,
    check_shape,
    cut,
    in_dtype,
    propagates,
)

_SIZES = dict.fromkeys(("hidden_size", "ffn_hidden_size", "num_heads"), SIZE)
_RATES = dict.fromkeys(("attention_dropout_rate", "hidden_dropout_rate"), RATE)
_LAMBDA = function("A function of (network, layer_id, offset, parallel_config, layers)") | None


def _check_mode(where: str) -> None:
    """Raise ContextConflictError (a RuntimeError) where operators' strategies would be searched for."""
    if get_auto_parallel_context("parallel_mode") == "auto_parallel" and not propagates():
        hint = "set_auto_parallel_context(search_mode='sharding_propagation'), or semi_auto_parallel"
        raise ContextConflictError("auto_parallel with a search", where=where, hint=hint)


def _arguments(
    self,
    batch_size: int | None,
    hidden_size: int,
    ffn_hidden_size: int,
    num_heads: int,
    seq_length: int,
    src_seq_length: int,
    tgt_seq_length: int,
    num_layers: int,
    encoder_layers: int = 3,
    decoder_layers: int = 3,
    attention_dropout_rate: float = 0.1,
    hidden_dropout_rate: float = 0.1,
    post_layernorm_residual: bool = False,
    layernorm_compute_type: Any = "float32",
    softmax_compute_type: Any = "float32",
    param_init_type: Any = "float32",
    hidden_act: Any = "gelu",
    lambda_func: Any = None,
    offset: int = 0,
    use_past: bool = False,
    moe_config: MoEConfig = default_moe_config,
    parallel_config: Any = default_dpmp_config,
) -> None:
    """The arguments that layers and stacks choose from, each in an order of its own, which is MindSpore's."""


_DTYPES = "layernorm_compute_type softmax_compute_type param_init_type"
_OF_ATTENTION = (
    *("batch_size", "hidden_size", "num_heads", "attention_dropout_rate", "hidden_dropout_rate"),
    *("softmax_compute_type", "param_init_type", "use_past", "parallel_config"),
)


class _Layer(Cell):
    """What the layers of encoder and decoder share; their arguments are attributes."""

    crossed = False

    def _set(self) -> None:
        where, config = type(self).__name__, self.parallel_config
        _check_mode(where)
        check_config(where, config)
        dp, mp = config.data_parallel, config.model_parallel
        sizes = {name: getattr(self, name) for name in ("num_heads", "hidden_size", "ffn_hidden_size")}
        check_divides(where, mp, **sizes)
        self.dtype, self.use_moe = "float16", self.moe_config.expert_num > 1
        for name in ("layernorm1", "layernorm2", *(["cross_attention_layernorm"] if self.crossed else [])):
            norm = _LayerNorm((self.hidden_size,)).to_float(self.layernorm_compute_type)
            setattr(self, name, norm if propagates() else norm.shard(((dp, 1),)))
        how = {"param_init_type": self.param_init_type, "parallel_config": config}
        sizes = self.hidden_size, self.ffn_hidden_size
        of_experts = {"moe_config": self.moe_config} if self.use_moe else {}
        kind = MoE if self.use_moe else FeedForward
        self.output = kind(*sizes, self.hidden_dropout_rate, self.hidden_act, **of_experts, **how)
        self.add = ops.Add().shard(((dp, 1), (dp, 1))) if not (propagates() and self.crossed) else ops.Add()
        self.add_3d = ops.Add().shard(((dp, 1, 1),) * 2) if not (propagates() and self.crossed) else ops.Add()
        self.reshape, self.cast = ops.Reshape(), cut(ops.Cast(), (dp, 1))
        self.key_past = self.value_past = None

    def _attention(self, source: int, target: int) -> MultiHeadAttention:
        how = {name: getattr(self, name) for name in _OF_ATTENTION}
        return MultiHeadAttention(src_seq_length=source, tgt_seq_length=target, **how)

    def _finished(self, x: Any, shape: tuple[int, ...], present: Any) -> Any:
        """Norm, dense layers and addition, in the shape of the input; present; of experts their loss, too."""
        normed = in_dtype(self.cast, self.layernorm2(x), self.dtype)
        logit, *loss = self.output(normed) if self.use_moe else (self.output(normed),)
        rest = normed if self.post_layernorm_residual else x
        if len(shape) == 3:
            return self.add_3d(self.reshape(rest, shape), self.reshape(logit, shape)), present, *loss
        return self.add(rest, logit), present, *loss


class TransformerEncoderLayer(_Layer):
    """Attention and two dense layers, each with a norm before it and an addition behind.  x: (batch, seq_length,
    hidden_size) or (batch * seq_length, hidden_size), input_mask: (batch, seq_length, seq_length), 1 where attention is
    allowed -> x's shape, and key and value as MultiHeadAttention gives them; of experts also their balance loss.

    post_layernorm_residual  what is added is the norm's result instead of its input
    use_past                 one token at a time, see MultiHeadAttention; also called with init_reset ((1,) bools, False
                             to forget) and batch_valid_length ((batch,) ints)
    layernorm_compute_type, softmax_compute_type, param_init_type  dtypes;  hidden_act  as of FeedForward
    """

    @checked(batch_size=SIZE | None, seq_length=SIZE, **_SIZES, **_RATES, moe_config=EXPERTS, parallel_config=DP_MP)
    @kept(post_layernorm_residual=flag, use_past=flag)
    @arguments_of(
        _arguments,
        names="batch_size hidden_size ffn_hidden_size num_heads seq_length attention_dropout_rate hidden_dropout_rate "
        f"post_layernorm_residual {_DTYPES} hidden_act use_past moe_config parallel_config",
    )
    def __init__(self, batch_size: int | None, hidden_size: int, num_heads: int, seq_length: int, **_: Any) -> None:
        super().__init__()
        self._set()
        self.is_first_iteration = True
        self.attention = self._attention(seq_length, seq_length)
        if self.use_past:
            heads, per_head = (batch_size, num_heads), hidden_size // num_heads
            shapes = {"key_past": (*heads, per_head, seq_length), "value_past": (*heads, seq_length, per_head)}
            for name, shape in shapes.items():
                del self.__dict__[name]
                setattr(self, name, Parameter(Tensor(np.zeros(shape, np.float16)), name=name))
            self.mul = ops.Mul().shard(((1, 1, 1, 1), (1,)))
            self.assign = ops.Assign().shard(((1, 1, 1, 1), (1, 1, 1, 1)))

    def construct(self, x: Any, input_mask: Any, init_reset: Any = True, batch_valid_length: Any = None) -> Any:
        length = 1 if self.use_past and not self.is_first_iteration else self.seq_length
        check_shape(self, "x", x, (None, length, self.hidden_size), (None, self.hidden_size))
        shape = ops.shape(x)
        x = self.reshape(x, (-1, self.hidden_size))
        input_x = in_dtype(self.cast, self.layernorm1(x), self.dtype)
        if self.use_past:
            for past in (self.key_past, self.value_past):
                self.assign(past, self.mul(past, ops.cast(init_reset, self.dtype)))
        attention, present = self.attention(
            input_x, input_x, input_x, input_mask, self.key_past, self.value_past, batch_valid_length
        )
        x = self.add(input_x if self.post_layernorm_residual else x, attention)
        if self.use_past:
            for past, now in zip((self.key_past, self.value_past), present, strict=True):
                self.assign(past, now)
        return self._finished(x, shape, present)


class TransformerDecoderLayer(_Layer):
    """Attention, attention to an encoder's result, and two dense layers, each with a norm before it and an addition
    behind.  hidden_stats: (batch, tgt_seq_length, hidden_size) or both first dims as one, decoder_mask: (batch,
    tgt_seq_length, tgt_seq_length), encoder_output: (batch, src_seq_length, hidden_size) or None, memory_mask: (batch,
    tgt_seq_length, src_seq_length) -> hidden_stats' shape, and keys and values of both attentions.

    Arguments as TransformerEncoderLayer; use_past is not available (MindSpore refuses it, too).
    """

    crossed = True

    @checked(batch_size=SIZE | None, src_seq_length=SIZE, tgt_seq_length=SIZE, **_SIZES, **_RATES)
    @checked(moe_config=EXPERTS, parallel_config=DP_MP)
    @kept(post_layernorm_residual=flag, use_past=flag)
    @arguments_of(
        _arguments,
        names="hidden_size ffn_hidden_size num_heads batch_size src_seq_length tgt_seq_length attention_dropout_rate "
        f"hidden_dropout_rate post_layernorm_residual use_past {_DTYPES} hidden_act moe_config parallel_config",
    )
    def __init__(self, src_seq_length: int, tgt_seq_length: int, use_past: bool, **_: Any) -> None:
        super().__init__()
        if use_past:
            raise ArgumentError("use_past=True", where="TransformerDecoderLayer", allowed="False: of encoders only")
        self._set()
        self.attention = self._attention(tgt_seq_length, tgt_seq_length)
        self.cross_attention = self._attention(tgt_seq_length, src_seq_length)

    def construct(
        self,
        hidden_stats: Any,
        decoder_mask: Any,
        encoder_output: Any = None,
        memory_mask: Any = None,
        init_reset: Any = True,
        batch_valid_length: Any = None,
    ) -> Any:
        width = self.hidden_size
        check_shape(self, "hidden_stats", hidden_stats, (None, self.tgt_seq_length, width), (None, width))
        shape = ops.shape(hidden_stats)
        x = self.reshape(hidden_stats, (-1, width))
        input_x = in_dtype(self.cast, self.layernorm1(x), self.dtype)
        attention, present = self.attention(input_x, input_x, input_x, decoder_mask)
        x = self.add(input_x if self.post_layernorm_residual else x, attention)
        if encoder_output is not None:
            middle = in_dtype(self.cast, self.cross_attention_layernorm(x), self.dtype)
            memory = in_dtype(self.cast, self.reshape(encoder_output, (-1, width)), self.dtype)
            looked, more = self.cross_attention(middle, memory, memory, memory_mask)
            present += more
            x = self.add(middle if self.post_layernorm_residual else x, looked)
        return self._finished(x, shape, present)


def _get_lambda_func(total_layer: int | None = None) -> Callable[..., None]:
    """What places a layer: its stage, its fusion number and its recomputation, by the configuration.

    total_layer  layers of encoder and decoder together; None: `layers` of the call
    """

    def place(network: Cell, layer_id: int, offset: int, parallel_config: Any, layers: int) -> None:
        layers = total_layer or layers
        stages = parallel_config.pipeline_stage
        if layers < stages:
            raise ArgumentError(f"{layers} layers on {stages} stages", where="Transformer", allowed="A layer for each")
        number = layer_id + offset
        network.pipeline_stage = min(number // max(layers // stages, 1), stages - 1)
        network.set_comm_fusion(number // max(layers // parallel_config.gradient_aggregation_group, 1) + 1)
        how = parallel_config.recompute
        if how is True:
            network.recompute()
        elif not isinstance(how, bool) and how.recompute:
            names = "parallel_optimizer_comm_recompute", "mp_comm_recompute", "recompute_slice_activation"
            network.recompute(**{name: getattr(how, name) for name in names})

    return place


class _Stack(Cell):
    """Layers in a row, `blocks`, each placed by `lambda_func`."""

    kind: Any  # the class of its layers

    def __init__(self, num_layers: int, lambda_func: Any, offset: int, parallel_config: Any, **how: Any) -> None:
        super().__init__()
        where = type(self).__name__
        _check_mode(where)
        check_config(where, parallel_config)
        self.num_layers, self.use_moe = num_layers, how["moe_config"].expert_num > 1
        config = parallel_config.moe_parallel_config if self.use_moe else parallel_config.dp_mp_config
        self.blocks = nn.CellList()
        place = lambda_func or _get_lambda_func()
        for i in range(num_layers):
            block = self.kind(parallel_config=config, **how)
            place(block, layer_id=i, layers=num_layers, offset=offset, parallel_config=parallel_config)
            self.blocks.append(block)

    def construct(self, hidden_states: Any, *others: Any, **named: Any) -> Any:
        presents, losses = [], []
        for block in self.blocks:
            hidden_states, present, *loss = block(hidden_states, *others, **named)
            presents.append(present)
            losses += loss
        return hidden_states, tuple(presents), *_added(losses)


def _added(losses: Any) -> tuple[Any, ...]:
    """Losses of layers of experts, added; () without any."""
    return (functools.reduce(lambda a, b: a + b, losses),) if losses else ()


def _stacked(names: str) -> Any:
    """The maker of a stack that takes these arguments."""
    checks = {"num_layers": integer(1, COPIES), "lambda_func": _LAMBDA, "offset": integer(0), "moe_config": EXPERTS}
    takes = arguments_of(_arguments, names=names, parallel_config=default_transformer_config)
    return checked(**checks, parallel_config=OF_ALL)(takes(_Stack.__init__))


class TransformerEncoder(_Stack):
    """`num_layers` TransformerEncoderLayers.  hidden_states, attention_mask -> the last result, and of every layer key
    and value. Called as the layer is.

    lambda_func  places each layer: a function of (network, layer_id, offset, parallel_config, layers); None: by
                 parallel_config
    offset       number of layers before these;  the other arguments: of the layers
    """

    kind = TransformerEncoderLayer
    __init__ = _stacked(
        "batch_size num_layers hidden_size ffn_hidden_size seq_length num_heads attention_dropout_rate "
        f"hidden_dropout_rate hidden_act post_layernorm_residual {_DTYPES} lambda_func offset use_past moe_config "
        "parallel_config"
    )


class TransformerDecoder(_Stack):
    """`num_layers` TransformerDecoderLayers.  hidden_states, attention_mask, encoder_output, memory_mask -> the last
    result, and of every layer keys and values. Arguments as TransformerEncoder.
    """

    kind = TransformerDecoderLayer
    __init__ = _stacked(
        "num_layers batch_size hidden_size ffn_hidden_size src_seq_length tgt_seq_length num_heads "
        f"attention_dropout_rate hidden_dropout_rate post_layernorm_residual {_DTYPES} hidden_act lambda_func use_past "
        "offset moe_config parallel_config"
    )


class Transformer(Cell):
    """A TransformerEncoder and a TransformerDecoder; with decoder_layers=0 the encoder alone.  encoder_inputs: (batch,
    src_seq_length, hidden_size), encoder_masks, decoder_inputs: (batch, tgt_seq_length, hidden_size), decoder_masks,
    memory_mask: (batch, tgt_seq_length, src_seq_length) -> the last result, the encoder's keys and values, the
    decoder's, or None; of experts also the balance losses of all layers, added.

    lambda_func  None: the layers of both count together for stages and fusion;  the other arguments: of the layers
    """

    @checked(encoder_layers=integer(0, COPIES), decoder_layers=integer(0, COPIES), lambda_func=_LAMBDA)
    @checked(moe_config=EXPERTS, parallel_config=OF_ALL)
    @kept(use_past=flag)
    @arguments_of(
        _arguments,
        names="hidden_size batch_size ffn_hidden_size src_seq_length tgt_seq_length encoder_layers decoder_layers "
        f"num_heads attention_dropout_rate hidden_dropout_rate hidden_act post_layernorm_residual {_DTYPES} "
        "lambda_func use_past moe_config parallel_config",
        num_heads=2,
        parallel_config=default_transformer_config,
    )
    def __init__(
        self, src_seq_length: int, tgt_seq_length: int, encoder_layers: int, decoder_layers: int, **how: Any
    ) -> None:
        super().__init__()
        use_past = how["use_past"]
        if encoder_layers == 0 or (decoder_layers and use_past):
            given = f"encoder_layers={encoder_layers}, decoder_layers={decoder_layers}, use_past={use_past}"
            hint = "A decoder alone is TransformerDecoder; use_past belongs to encoders alone"
            raise ArgumentError(given, where="Transformer", hint=hint)
        how["lambda_func"] = how["lambda_func"] or _get_lambda_func(encoder_layers + decoder_layers)
        self.encoder = TransformerEncoder(num_layers=encoder_layers, seq_length=src_seq_length, **how)
        self.decoder = None
        if decoder_layers:
            lengths = {"src_seq_length": src_seq_length, "tgt_seq_length": tgt_seq_length}
            self.decoder = TransformerDecoder(num_layers=decoder_layers, offset=encoder_layers, **lengths, **how)

    def construct(
        self,
        encoder_inputs: Any,
        encoder_masks: Any,
        decoder_inputs: Any = None,
        decoder_masks: Any = None,
        memory_mask: Any = None,
        init_reset: Any = True,
        batch_valid_length: Any = None,
    ) -> tuple[Any, ...]:
        output, of_encoder, *losses = self.encoder(encoder_inputs, encoder_masks, init_reset, batch_valid_length)
        if self.decoder is None:
            return output, of_encoder, None, *losses
        output, of_decoder, *more = self.decoder(decoder_inputs, decoder_masks, output, memory_mask)
        return output, of_encoder, of_decoder, *_added(losses + more)


# ---- loss ----


class _Softmax(Cell):
    """Softmax of each row, and the label as a row of 0 and 1. Its gradient is that of `_NLLLoss`, which is for both."""

    def __init__(self, parallel_config: Any = default_dpmp_config) -> None:
        super().__init__()
        dp, mp = parallel_config.data_parallel, parallel_config.model_parallel
        self.max, self.sum = ops.ReduceMax(keep_dims=True), ops.ReduceSum(keep_dims=True)
        self.sub, self.exp, self.div = ops.Sub(), ops.Exp(), ops.RealDiv()
        for operator in (self.max, self.sum, self.exp):
            operator.shard(((dp, mp),))
        for operator in (self.sub, self.div):
            operator.shard(((dp, mp), (dp, 1)))
        self.onehot = ops.OneHot().shard(((dp, mp), (), ()))
        self.on_value, self.off_value = Tensor(1.0, "float32"), Tensor(0.0, "float32")
        self.cast = ops.Cast().shard(((dp, mp),))

    def construct(self, logits: Any, label: Any) -> tuple[Any, Any]:
        logits = in_dtype(self.cast, logits, "float32")
        exp = self.exp(self.sub(logits, self.max(logits, -1)))
        one_hot = self.onehot(label, ops.shape(logits)[-1], self.on_value, self.off_value)
        return self.div(exp, self.sum(exp, -1)), one_hot

    def bprop(self, logits: Any, label: Any, out: Any, dout: Any) -> tuple[Any, Any]:
        return in_dtype(self.cast, dout[0], logits.dtype), ops.zeros_like(label)


class _NLLLoss(Cell):
    """Minus the logarithm of a row's probability of its label.  (n, c) twice -> (n,)."""

    def __init__(self, parallel_config: Any = default_dpmp_config) -> None:
        super().__init__()
        dp, mp = parallel_config.data_parallel, parallel_config.model_parallel
        self.sum, self.log, self.neg = (kind().shard(((dp, mp),)) for kind in (ops.ReduceSum, ops.Log, ops.Neg))
        self.mul, self.add = ops.Mul().shard(((dp, mp), (dp, mp))), ops.Add().shard(((dp, mp), ()))
        self.eps_const = Tensor(1e-24, "float32")
        self.sub, self.scale = ops.Sub().shard(((dp, mp), (dp, mp))), ops.Mul().shard(((dp, mp), (dp, 1)))

    def construct(self, softmax_result: Any, one_hot_label: Any) -> Any:
        logarithm = self.log(self.add(softmax_result, self.eps_const))
        return self.sum(self.neg(self.mul(logarithm, one_hot_label)), -1)

    def bprop(self, softmax_result: Any, one_hot_label: Any, out: Any, dout: Any) -> tuple[Any, Any]:
        grad = self.scale(self.sub(softmax_result, one_hot_label), ops.expand_dims(dout, -1))
        return grad, ops.zeros_like(one_hot_label)


class CrossEntropyLoss(Cell):
    """Mean cross entropy of the rows that `input_mask` counts.  logits: (n, c), label: (n,) int32, input_mask: (n,)
    float32 -> (1,).

    The softmax may be split by rows and classes, by the OpParallelConfig. Its gradient is softmax minus label.
    """

    @checked(parallel_config=DP_MP)
    def __init__(self, parallel_config: Any = default_dpmp_config) -> None:
        super().__init__()
        self.sum2, self.relu = ops.ReduceSum().shard(((1,),)), ops.ReLU().shard(((1,),))
        self.mul2, self.add2, self.div2 = ops.Mul().shard(((1,), (1,))), ops.Add(), ops.RealDiv()
        self.small, self.reshape = Tensor([1e-5], "float32"), ops.Reshape()
        self._softmax, self._nllloss = _Softmax(parallel_config), _NLLLoss(parallel_config)

    def construct(self, logits: Any, label: Any, input_mask: Any) -> Any:
        check_shape(self, "logits", logits, (None, None))
        check_shape(self, "label", label, (None,), dtype="int32")
        loss = self._nllloss(*self._softmax(logits, label))
        input_mask = self.reshape(input_mask, (-1,))
        counted = self.add2(self.sum2(input_mask), self.small)
        return self.div2(self.sum2(self.mul2(loss, input_mask)), counted)
