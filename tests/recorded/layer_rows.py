"""Rows for layers: ours and PyTorch's, on the same weights. See `torch_table.py`.

Weights are inputs of a row like any other, so that their gradients are compared too. Where the two differ on purpose,
PyTorch is called so that it means what ours means; the comment says how.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parallel_lab import nn
from parallel_lab.mindspore import mint
from parallel_lab.nn.tensor.parameter import Parameter
from tests.recorded.torch_table import Row, Spec, floats, given, ints, positive, row

# ---- how a layer gets its weights ----


def fitted(cell: nn.Cell, names: Sequence[str], weights: Sequence[Any]) -> nn.Cell:
    """The layer with these tensors as its parameters; the names may have dots."""
    for name, weight in zip(names, weights, strict=True):
        owner, _, last = name.rpartition(".")
        target = functools.reduce(getattr, owner.split("."), cell) if owner else cell
        own = weight if isinstance(weight, Parameter) else Parameter(weight.asnumpy(), requires_grad=False)
        setattr(target, last, own)
    return cell


def ours(
    make: Callable[[], nn.Cell], names: Sequence[str], *, train: bool = False, after: Sequence[str] = ()
) -> Callable:
    """x, then the weights. after: parameters whose values are further results."""

    def run(x, *weights):
        layer = fitted(make(), names, weights).set_train(train)
        y = layer(x)
        return (y, *(np.array(getattr(layer, name).asnumpy()) for name in after)) if after else y

    return run


def theirs(
    make: Callable[[Any], Any], names: Sequence[str], *, train: bool = False, after: Sequence[str] = ()
) -> Callable:
    """The same for torch: make(torch.nn) gives the module."""

    def run(t, x, *weights):
        given = dict(zip(names, (w.clone() for w in weights), strict=True))  # running statistics are changed in place
        module, inputs = make(t.nn).train(train), (x.long() if x.dtype == t.int32 else x,)
        own = (module.called, t) if isinstance(module, Rows) else (t.func.functional_call, module)
        call = functools.partial(*own)
        y = call(given, inputs)
        return (y, *(given[name] for name in after)) if after else y

    return run


def layer(
    key: str, mine: Callable[[], nn.Cell], make: Callable[[Any], Any], names: str, *inputs: Spec, **options: Any
) -> Row:
    """A row for a layer.

    names    of the weights, which follow x among the inputs; "ours=torch's" where they differ
    options  `train` and `after` (our names), for both sides
    """
    pairs = [(name.partition("=")[0], name.rpartition("=")[2]) for name in names.split()]
    after = options.pop("after", ())
    other = {"after": [dict(pairs)[name] for name in after], **options}
    run = ours(mine, [one for one, _ in pairs], after=after, **options)
    return row(key, theirs(make, [two for _, two in pairs], **other), *inputs, ours=run)


class Rows:
    """PyTorch's layer for rows, given a weight with a height of 1 as ours has it; what `theirs` needs of a module."""

    def __init__(self, make: Callable, *args: Any) -> None:
        self.make, self.args = make, args

    def train(self, mode: bool) -> Rows:
        return self

    def called(self, t: Any, named: dict[str, Any], inputs: tuple) -> Any:
        module, rows = self.make(*self.args), {**named, "weight": named["weight"].squeeze(2)}
        return t.func.functional_call(module, rows, inputs)


# ---- layers with weights ----

AFFINE = "gamma=weight beta=bias"
STATISTICS = "moving_mean=running_mean moving_variance=running_var"


def norm_rows(name: str, shape: tuple[int, ...]) -> tuple[Row, ...]:
    """A batch norm in training (with both rules for the running variance), and with running statistics."""
    c, spread = shape[1], np.prod(shape) // shape[1]
    x, weights = floats(*shape), (positive(c), floats(c))
    running = (floats(c, fixed=True), positive(c, fixed=True))
    make, both = getattr(nn, name), f"{AFFINE} {STATISTICS}"
    trained = {"train": True, "after": ("moving_mean", "moving_variance")}

    def case(label: str, names: str, *inputs: Spec, other: dict[str, Any], train: dict[str, Any], **mine: Any) -> Row:
        key, theirs = f"{name}-{label}", lambda n: getattr(n, name)(c, **other)
        return layer(key, lambda: make(c, **mine), theirs, names, *inputs, **train)

    biased = case("training", both, x, *weights, *running, other={"momentum": 0.2}, train=trained, momentum=0.8)

    def population(t, x, w, b, mean, variance):
        """PyTorch's running variance takes n / (n - 1) times the batch's: taken back."""
        y, mean_after, variance_after = biased.theirs(t, x, w, b, mean, variance)
        return y, mean_after, 0.8 * variance + (variance_after - 0.8 * variance) * (spread - 1) / spread

    unbiased = {"momentum": 0.9, "unbiased": True}
    plain = {"eps": 0.1, "affine": False}
    return (
        case("training-unbiased", both, x, *weights, *running, other={"momentum": 0.1}, train=trained, **unbiased),
        replace(biased, theirs=population),
        case("running", both, x, *weights, *running, other={}, train={}),
        case("not-affine", STATISTICS, x, *running, other=plain, train={}, **plain),
    )


UNEVEN = (4, 4, (3, 2), (2, 1))
TABLE, IDS = floats(6, 3), ints(6, 2, 4)

WEIGHTED: tuple[Row, ...] = (
    layer(
        "Dense", lambda: nn.Dense(4, 3), lambda n: n.Linear(4, 3), "weight bias", floats(5, 4), floats(3, 4), floats(3)
    ),
    layer(
        *("Dense-no-bias", lambda: nn.Dense(4, 3, has_bias=False), lambda n: n.Linear(4, 3, bias=False)),
        *("weight", floats(2, 3, 4), floats(3, 4)),
    ),
    layer(
        *("Conv2d", lambda: nn.Conv2d(2, 3, 3, has_bias=True), lambda n: n.Conv2d(2, 3, 3, padding="same")),
        *("weight bias", floats(2, 2, 4, 5), floats(3, 2, 3, 3), floats(3)),
    ),
    layer(
        *("Conv2d-options", lambda: nn.Conv2d(*UNEVEN, "pad", (1, 1, 2, 2), (1, 2), 2)),
        *(lambda n: n.Conv2d(*UNEVEN, (1, 2), (1, 2), 2, False), "weight", floats(1, 4, 5, 4), floats(4, 2, 3, 2)),
    ),
    layer(
        *("Conv2d-valid", lambda: nn.Conv2d(2, 2, 2, 2, "valid", has_bias=True), lambda n: n.Conv2d(2, 2, 2, 2)),
        *("weight bias", floats(2, 2, 4, 4), floats(2, 2, 2, 2), floats(2)),
    ),
    layer(
        *("Conv1d", lambda: nn.Conv1d(2, 4, 3, 2, "pad", 1, 1, 2, True), lambda n: Rows(n.Conv1d, 2, 4, 3, 2, 1, 1, 2)),
        *("weight bias", floats(2, 2, 5), floats(4, 1, 1, 3), floats(4)),
    ),
    layer(
        *("Conv3d", lambda: nn.Conv3d(2, 3, 3, has_bias=True), lambda n: n.Conv3d(2, 3, 3, padding="same")),
        *("weight bias", floats(1, 2, 3, 4, 3), floats(3, 2, 3, 3, 3), floats(3)),
    ),
    layer(
        *("Conv3d-options", lambda: nn.Conv3d(2, 2, (2, 1, 3), (1, 2, 1), "pad", (1, 1, 0, 0, 1, 1), (2, 1, 1), 2)),
        *(lambda n: n.Conv3d(2, 2, (2, 1, 3), (1, 2, 1), (1, 0, 1), (2, 1, 1), 2, False), "weight"),
        *(floats(1, 2, 4, 3, 4), floats(2, 1, 2, 1, 3)),
    ),
    layer(
        *("Conv2dTranspose", lambda: nn.Conv2dTranspose(4, 6, 3, 2, "pad", 1, 1, 1, 2, True)),
        *(lambda n: n.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2), "weight bias"),
        *(floats(2, 4, 3, 4), floats(4, 3, 3, 3), floats(6)),
    ),
    layer(
        *("Conv2dTranspose-valid", lambda: nn.Conv2dTranspose(2, 3, (2, 3), (1, 2), "valid", dilation=(2, 1))),
        *(lambda n: n.ConvTranspose2d(2, 3, (2, 3), (1, 2), bias=False, dilation=(2, 1)), "weight"),
        *(floats(1, 2, 3, 4), floats(2, 3, 2, 3)),
    ),
    layer(
        *("Conv1dTranspose", lambda: nn.Conv1dTranspose(4, 2, 3, 2, "pad", 1, has_bias=True)),
        *(
            lambda n: Rows(n.ConvTranspose1d, 4, 2, 3, 2, 1),
            "weight bias",
            floats(2, 4, 5),
            floats(4, 2, 1, 3),
            floats(2),
        ),
    ),
    *norm_rows("BatchNorm1d", (6, 3)),
    *norm_rows("BatchNorm2d", (2, 3, 2, 2)),
    *norm_rows("BatchNorm3d", (2, 2, 2, 1, 2)),
    layer(
        *("LayerNorm", lambda: nn.LayerNorm((6,)), lambda n: n.LayerNorm(6, 1e-7), AFFINE),
        *(floats(2, 3, 6), positive(6), floats(6)),
    ),
    layer(
        *(
            "LayerNorm-two-dims",
            lambda: nn.LayerNorm((3, 4), 1, 1, epsilon=1e-5),
            lambda n: n.LayerNorm((3, 4)),
            AFFINE,
        ),
        *(floats(2, 3, 4), positive(3, 4), floats(3, 4)),
    ),
    layer(
        "RMSNorm", lambda: nn.RMSNorm((6,)), lambda n: n.RMSNorm(6, 1e-6), "gamma=weight", floats(2, 3, 6), positive(6)
    ),
    layer(
        *("GroupNorm", lambda: nn.GroupNorm(2, 4), lambda n: n.GroupNorm(2, 4), AFFINE),
        *(floats(2, 4, 3), positive(4), floats(4)),
    ),
    *(
        layer(
            *(f"Embedding-one-hot-{hot}", lambda hot=hot: nn.Embedding(6, 3, use_one_hot=hot)),
            *(lambda n: n.Embedding(6, 3), "embedding_table=weight", IDS, TABLE),
        )
        for hot in (False, True)
    ),
    *(
        layer(
            *(f"EmbeddingLookup-{target}", lambda target=target: nn.EmbeddingLookup(6, 3, target=target)),
            *(lambda n: n.Embedding(6, 3), "embedding_table=weight", IDS, TABLE),
        )
        for target in ("CPU", "DEVICE")
    ),
    layer("PReLU", lambda: nn.PReLU(3), lambda n: n.PReLU(3), "w=weight", floats(2, 3, 4), floats(3)),
    layer(
        *("SequentialCell", lambda: nn.SequentialCell(nn.Flatten(), nn.Dense(4, 3), nn.Tanh())),
        *(lambda n: n.Sequential(n.Flatten(), n.Linear(4, 3), n.Tanh()), "1.weight 1.bias"),
        *(floats(2, 2, 2), floats(3, 4), floats(3)),
    ),
)


# ---- layers without weights ----


def plain(
    key: str, spec: Spec, mine: Callable[[], nn.Cell] | None = None, make: Callable[[Any], Any] | None = None
) -> Row:
    """None: the class of that name, without arguments."""
    name = key.partition("-")[0]
    return layer(key, mine or getattr(nn, name), make or (lambda n: getattr(n, name)()), "", spec)


VOLUME = floats(1, 2, 4, 5, 4)
PICTURE, LINE = floats(2, 2, 5, 6), floats(4, 6, low=-8.0, high=8.0)

PLAIN: tuple[Row, ...] = (
    *(plain(name, LINE) for name in ("ReLU", "ReLU6", "SiLU", "Sigmoid", "Softplus", "Identity", "LogSigmoid", "Tanh")),
    plain("LeakyReLU", LINE, make=lambda n: n.LeakyReLU(0.2)),
    plain("ELU", LINE, lambda: mint.nn.ELU(0.5), lambda n: n.ELU(0.5)),
    plain("GELU", LINE, make=lambda n: n.GELU("tanh")),
    plain("GELU-erf", LINE, lambda: nn.GELU(False)),
    # by its definition: the gradient of PyTorch's own has a sixth in float32
    row("HSigmoid", lambda t, x: t.nn.functional.relu6(x + 3) / 6, LINE, ours=ours(nn.HSigmoid, ())),
    # PyTorch divides by alpha in float32: one that is exact there
    plain("CELU", LINE, lambda: nn.CELU(0.5), lambda n: n.CELU(0.5)),
    row("FastGelu", lambda t, x: x * t.sigmoid(1.702 * x), LINE, ours=ours(nn.FastGelu, ())),
    plain("GLU", LINE, lambda: nn.GLU(0), lambda n: n.GLU(0)),
    plain("HShrink", LINE, make=lambda n: n.Hardshrink()),
    plain("Softmin", LINE, make=lambda n: n.Softmin(-1)),
    plain("SeLU", LINE, make=lambda n: n.SELU()),
    plain("SoftShrink", LINE, lambda: nn.SoftShrink(0.7), lambda n: n.Softshrink(0.7)),
    plain("Threshold", LINE, lambda: nn.Threshold(0.3, -1.0), lambda n: n.Threshold(0.3, -1.0)),
    *(plain(name, LINE) for name in ("Hardtanh", "Mish", "Softsign", "Tanhshrink")),
    plain("HSwish", LINE, make=lambda n: n.Hardswish()),
    plain("Softmax", LINE, lambda: nn.Softmax(0), lambda n: n.Softmax(0)),
    plain("LogSoftmax", LINE, make=lambda n: n.LogSoftmax(-1)),
    plain("Flatten", PICTURE),
    plain("MaxPool2d", PICTURE, lambda: nn.MaxPool2d(2, 2), lambda n: n.MaxPool2d(2)),
    plain(
        *("MaxPool2d-pad", PICTURE, lambda: nn.MaxPool2d((3, 2), (2, 1), "pad", (1, 0))),
        lambda n: n.MaxPool2d((3, 2), (2, 1), (1, 0)),
    ),
    plain("MaxPool3d", VOLUME, lambda: nn.MaxPool3d(2, 2), lambda n: n.MaxPool3d(2)),
    plain(
        *("MaxPool3d-ceil", VOLUME, lambda: nn.MaxPool3d((2, 3, 2), (3, 2, 1), "pad", (1, 1, 0), ceil_mode=True)),
        lambda n: n.MaxPool3d((2, 3, 2), (3, 2, 1), (1, 1, 0), ceil_mode=True),
    ),
    *(
        plain(
            *(f"AvgPool3d-ceil-{real}", VOLUME, lambda real=real: nn.AvgPool3d(3, 2, "pad", 1, True, not real)),
            lambda n, real=real: n.AvgPool3d(3, 2, 1, True, not real),
        )
        for real in (False, True)
    ),
    plain(
        *("AvgPool3d-divisor", VOLUME, lambda: nn.AvgPool3d(2, 1, divisor_override=3)),
        lambda n: n.AvgPool3d(2, 1, divisor_override=3),
    ),
    plain("AvgPool2d", PICTURE, lambda: nn.AvgPool2d(2, 1), lambda n: n.AvgPool2d(2, 1)),
    plain("AvgPool2d-pad", PICTURE, lambda: nn.AvgPool2d(3, 2, "pad", 1), lambda n: n.AvgPool2d(3, 2, 1)),
    plain(
        *("AvgPool2d-real", PICTURE, lambda: nn.AvgPool2d(3, 2, "pad", 1, count_include_pad=False)),
        lambda n: n.AvgPool2d(3, 2, 1, False, False),
    ),
    *(
        plain(
            name,
            PICTURE,
            lambda name=name, size=size: getattr(nn, name)(size),
            lambda n, name=name, size=size: getattr(n, name)(size),
        )
        for name, size in (("AdaptiveAvgPool2d", (2, None)), ("AdaptiveMaxPool2d", 2))
    ),
)


# ---- attention: PyTorch keeps the three projections in one weight ----

HEADS = (
    *(f"{part}_proj.{name}" for name in ("weight", "bias") for part in "qkv"),
    *("out_proj.weight", "out_proj.bias"),
)


def head_weights(e: int, kdim: int | None = None, vdim: int | None = None) -> tuple[Spec, ...]:
    projections = tuple(floats(e, c, low=-1.0, high=1.0) for c in (e, kdim or e, vdim or e))
    return (*projections, floats(e), floats(e), floats(e), floats(e, e), floats(e))


def packed(t: Any, weights: Sequence[Any], prefix: str = "", separate: bool = False) -> dict[str, Any]:
    """Our eight tensors as torch's parameters of a MultiheadAttention."""
    q, k, v, *rest = weights
    own = {"q_proj_weight": q, "k_proj_weight": k, "v_proj_weight": v}
    own = own if separate else {"in_proj_weight": t.cat((q, k, v))}
    named = {**own, "in_proj_bias": t.cat(tuple(rest[:3])), "out_proj.weight": rest[3], "out_proj.bias": rest[4]}
    return {prefix + name: value for name, value in named.items()}


def attention_row(
    label: str,
    inputs: Sequence[Spec],
    masks: Sequence[Spec] = (),
    *,
    e: int = 4,
    kdim: int | None = None,
    vdim: int | None = None,
    **call: Any,
) -> Row:
    """A row for MultiheadAttention(e, 2): query, key, value; key_padding_mask, attn_mask where `call` has them."""
    first = call.pop("batch_first", False)
    kinds = [kind for kind in ("key_padding_mask", "attn_mask") if call.pop(kind, False)]

    def mine(q, k, v, *rest):
        layer = fitted(nn.MultiheadAttention(e, 2, kdim=kdim, vdim=vdim, batch_first=first), HEADS, rest[len(kinds) :])
        out, weights = layer(q, k, v, **dict(zip(kinds, rest, strict=False)), **call)
        return out if weights is None else (out, weights)

    def other(t, q, k, v, *rest):
        module = t.nn.MultiheadAttention(e, 2, kdim=kdim, vdim=vdim, batch_first=first)
        named = packed(t, rest[len(kinds) :], separate=kdim is not None)
        options = {**dict(zip(kinds, rest, strict=False)), **call}
        out, weights = t.func.functional_call(module, named, (q, k, v), options)
        return out if weights is None else (out, weights)

    return row(f"MultiheadAttention-{label}", other, *inputs, *masks, *head_weights(e, kdim, vdim), ours=mine)


QKV = (floats(3, 2, 4), floats(5, 2, 4), floats(5, 2, 4))
LEFT_OUT = given((False, True, False, False, True), (False, False, False, True, False))
SKIPPED = given(
    (True, False, False, False, False), (False, False, True, False, False), (False, False, False, True, True)
)

ENCODER = (
    *(f"self_attn.{name}" for name in HEADS),
    *(f"{part}.{name}" for part in ("linear1", "linear2") for name in ("weight", "bias")),
)
NORMS = tuple(f"{part}.{name}" for part in ("norm1", "norm2") for name in ("gamma", "beta"))


def encoder_weights(e: int = 4, width: int = 6) -> tuple[Spec, ...]:
    dense = (floats(width, e, low=-1.0, high=1.0), floats(width), floats(e, width, low=-1.0, high=1.0), floats(e))
    return (*head_weights(e), *dense, *(positive(e), floats(e)) * 2)


def encoder_named(t: Any, weights: Sequence[Any], prefix: str = "") -> dict[str, Any]:
    """Our tensors as torch's parameters of a TransformerEncoderLayer."""
    names = [*ENCODER[8:], *(name.replace("gamma", "weight").replace("beta", "bias") for name in NORMS)]
    return {
        **packed(t, weights[:8], f"{prefix}self_attn."),
        **{prefix + name: w for name, w in zip(names, weights[8:], strict=True)},
    }


def encoder_row(label: str, layers: int = 0, masks: int = 0, **options: Any) -> Row:
    """TransformerEncoderLayer(4, 2, 6), or several; masks: how many of (src_mask, src_key_padding_mask) are given."""
    count = len(encoder_weights())
    causal = options.pop("is_causal", False)

    def mine(x, *rest):
        given, weights = rest[:masks], rest[masks:]
        layer = nn.TransformerEncoderLayer(4, 2, 6, 0.0, **options)
        names = [*ENCODER, *NORMS]
        if layers:
            layer = nn.TransformerEncoder(layer, layers)
            names = [f"layers.{i}.{name}" for i in range(layers) for name in names]
        return fitted(layer, names, weights)(x, *given, is_causal=causal)

    def other(t, x, *rest):
        given, weights = rest[:masks], rest[masks:]
        layer = t.nn.TransformerEncoderLayer(4, 2, 6, 0.0, **options)
        named = encoder_named(t, weights) if not layers else {}
        if layers:
            layer = t.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            for i in range(layers):
                named |= encoder_named(t, weights[i * count : (i + 1) * count], f"layers.{i}.")
        if causal:  # PyTorch takes is_causal as a hint along with the mask it stands for
            given = (t.nn.Transformer.generate_square_subsequent_mask(x.shape[0], dtype=x.dtype),)
        return t.func.functional_call(layer, named, (x, *given))

    inputs = (floats(3, 2, 4), *(floats(3, 3), given((False, False, True), (False, True, False)))[:masks])
    name = "TransformerEncoder" if layers else "TransformerEncoderLayer"
    return row(f"{name}-{label}", other, *inputs, *encoder_weights() * max(1, layers), ours=mine)


ATTENTION: tuple[Row, ...] = (
    attention_row("weights", QKV),
    attention_row("fused", QKV, need_weights=False),
    attention_row("each-head", QKV, average_attn_weights=False),
    attention_row("padding", QKV, (LEFT_OUT,), key_padding_mask=True),
    attention_row("padding-fused", QKV, (LEFT_OUT,), key_padding_mask=True, need_weights=False),
    attention_row("mask", QKV, (floats(3, 5, fixed=True),), attn_mask=True),
    attention_row("masks", QKV, (LEFT_OUT, SKIPPED), key_padding_mask=True, attn_mask=True),
    attention_row("batch-first", tuple(floats(2, n, 4) for n in (3, 5, 5)), batch_first=True),
    attention_row("no-batch", tuple(floats(n, 4) for n in (3, 5, 5))),
    attention_row("other-widths", (floats(3, 2, 4), floats(5, 2, 3), floats(5, 2, 6)), kdim=3, vdim=6),
    encoder_row("relu"),
    encoder_row("norm-first", norm_first=True, batch_first=True, layer_norm_eps=1e-3),
    encoder_row("causal", is_causal=True),
    encoder_row("masks", masks=2),
    encoder_row("two", layers=2),
)

ROWS = WEIGHTED + PLAIN + ATTENTION
