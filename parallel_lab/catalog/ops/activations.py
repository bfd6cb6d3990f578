"""Activations that no layer of the lessons has, and forms of others."""

from __future__ import annotations

import math

import numpy as np

from ...base.checks import number
from ...base.errors import shorten
from ...ops.activation import EXAMPLE, log_softmax, relu, relu_grad, sigmoid_of, softmax, tanh
from ...ops.elementwise import SHAPE, UNARY, a_dtype, cast, float_result, mul, neg, sub
from ...ops.join import split_parts
from ...ops.machine.operand_checks import filled_dim
from ...ops.machine.registry import case, form, gradient, op
from ...ops.machine.signature import letters, same_labels
from ...ops.spellings import function
from ...ops.unary import floats, fractional

# ---- activations ----


def _prelu_labels(shapes):
    names = letters(len(shapes[0]))
    return f"{names},{'1' if shapes[1] == (1,) else names[1:2]}->{names}"


def _check_prelu(operands):
    x, weight = (o.shape for o in operands)
    if len(weight) != 1 or (weight != (1,) and (len(x) < 2 or weight[0] != x[1])):
        allowed = f"({x[1]},), one number per channel (dim 1 of x), or (1,)" if len(x) > 1 else "(1,)"
        return f"weight has shape {weight} beside x of shape {x}", allowed


@op(
    _prelu_labels,
    name="PReLU",
    mint="functional.prelu",
    check=_check_prelu,
    flops=2,
    example=(case((8, 4, 2), (4,)), case(SHAPE, (1,))),
)
def prelu(x, weight):
    """x where x > 0, weight * x elsewhere; split alike.  x: (n, c, ...), weight: (c,) or (1,) -> (n, c, ...)."""
    return np.where(x > 0, x, weight.reshape((-1,) + (1,) * max(x.ndim - 2, 0)) * x)


@gradient(prelu, shown="PReLUGrad")
def prelu_grad(g, x, weight):
    """Gradient for x.  g, x: (n, c, ...), weight: (c,) or (1,) -> (n, c, ...)."""
    return np.where(x > 0, g, weight.reshape((-1,) + (1,) * max(x.ndim - 2, 0)) * g)


@gradient(prelu, "weight", shown="PReLUGrad")
def prelu_weight_grad(g, x, weight):
    """Gradient for the weight: the sum of g * x where x <= 0.  g, x: (n, c, ...), weight: (c,) -> like weight."""
    over = tuple(i for i in range(x.ndim) if i != 1 or weight.shape == (1,))
    return (g * np.minimum(x, 0)).sum(axis=over).reshape(weight.shape)


def _activation(name, **facts):
    """`op` of a function of one float per element; mint: functional, under its own name."""

    def declare(fn):
        mint = f"functional.{fn.__name__}"
        return op(UNARY, name=name, **{"mint": mint, "dtype": float_result, "example": EXAMPLE, **facts})(fn)

    return declare


@function()
def softmin(x, axis=-1, *, dtype=None):
    """softmax(-x) along `axis`, of x in `dtype`.  x: (...) -> (...)."""
    return softmax(neg(x if dtype is None else cast(x, dtype=str(a_dtype("softmin", "dtype", dtype)))), axis=axis)


@function(mint="functional.tanhshrink")
def tanhshrink(input):
    """x - tanh(x).  input: (...) -> (...)."""
    return sub(input, tanh(input))


@function()
def glu(x, axis=-1):
    """The first half along `axis` times the sigmoid of the second.  x: (..., 2n, ...) -> (..., n, ...)."""
    first, second = split_parts(x, axis=axis, output_num=2)
    return mul(first, sigmoid(second))


def _check_masked(operands):
    shape = operands[0].shape
    return None if len(shape) == 4 else (f"a tensor of shape {shape}", "(n, c, h, w)")


@op(
    "nchw->nchw,nkhwz",
    name="ReLUV2",
    whole="ckz",
    sizes=lambda shapes: {"k": -(-shapes[0][1] // 16), "z": 2},
    check=_check_masked,
    dtype=(0, "uint8"),
    example=case((8, 3, 4, 2)),
)
def relu_v2(x):
    """max(x, 0), and where x is above 0, as bits.  x: (n, c, h, w) -> (n, c, h, w), (n, c / 16, h, w, 2) uint8.

    Channels stay whole: 16 of them share two bytes.
    """
    n, c, h, w = x.shape
    positive = np.zeros((n, -(-c // 16) * 16, h, w), bool)
    positive[:, :c] = x > 0
    bits = np.packbits(positive.reshape(n, -1, 2, 8, h, w), axis=3, bitorder="little")[:, :, :, 0]
    return relu.compute(x), np.moveaxis(bits, 2, -1)


@relu_v2.vjp
def _(g, out, x):
    return (None if g[0] is None else relu_grad(g[0], out[0]),)


def _check_halves(operands, *, dim):
    shape = operands[0].shape
    return (f"dim {dim} of shape {shape}", "An even number of elements") if shape[dim] % 2 else None


@op(
    same_labels,
    name="Swiglu",
    attrs={"dim": filled_dim},
    check=_check_halves,
    dtype=float_result,
    out_sizes=lambda shapes, *, dim: {letters(len(shapes[0]))[dim]: shapes[0][dim] // 2},
    whole=lambda signature, *, dim: signature.ins[0][dim],
    flops=6,
    example=(case((16, 8)), case((8, 4, 2), dim=1)),
)
def swiglu(x, dim=-1):
    """silu of the first half along `dim`, which stays whole, times the second.  x: (..., 2n, ...) -> (..., n, ...)."""
    first, second = np.split(floats(x), 2, axis=dim)
    return first * sigmoid_of(first) * second


@gradient(swiglu)
def swiglu_grad(g, x, *, dim):
    """Gradient of swiglu.  g: (..., n, ...), x: (..., 2n, ...) -> like x."""
    first, second = np.split(x, 2, axis=dim)
    s = sigmoid_of(first)
    return np.concatenate([g * second * s * (1 + first * (1 - s)), g * first * s], axis=dim)


WIDE = case(SHAPE, low=-8.0, high=8.0)  # reaches both flat ends


@op(UNARY, name="ReLU6", example=WIDE)
def relu6(x):
    """max(x, 0), but at most 6.  x: (...) -> (...)."""
    return np.clip(x, np.zeros((), x.dtype), np.asarray(6, x.dtype))


@op(result_shape=0, dtype=0)
def within_grad(g, x, *, low, high, slope):
    """Gradient of a function that rises by `slope` between bounds only: g * slope where low < x < high.  -> (...)."""
    return g * ((x > low) & (x < high)) * np.asarray(slope, g.dtype)


@relu6.vjp
def _(g, out, x):
    return (within_grad(g, x, low=0.0, high=6.0, slope=1.0),)


def _hsigmoid(x):
    return np.clip((x + 3) / 6, np.zeros((), x.dtype), np.ones((), x.dtype))


hsigmoid = fractional(
    "hsigmoid",
    _hsigmoid,
    "Piecewise linear sigmoid: (x + 3) / 6, at least 0 and at most 1",
    lambda g, out, x: within_grad(g, x, low=-3.0, high=3.0, slope=1 / 6),
    name="HSigmoid HSigmoidExt",
    also="hardsigmoid",
    mint="functional.hardsigmoid",
    flops=3,
    example=WIDE,
    linear="max min: x",
)


@_activation("HSwish", also="hardswish", mint="functional.hardswish", flops=4, example=WIDE)
def hswish(x):
    """x times hsigmoid(x).  x: (...) -> (...)."""
    x = floats(x)
    return x * _hsigmoid(x)


@gradient(hswish, shown="HSwishGrad")
def hswish_grad(g, x):
    """Gradient of hswish: 0 below -3, 1 above 3, (2 x + 3) / 6 between.  g, x: (...) -> (...)."""
    return g * np.where(x <= -3, 0, np.where(x < 3, (2 * x + 3) / 6, 1)).astype(g.dtype, copy=False)


def _shrink(name, formula, text, class_name, **spelled):
    """Declare a function that is 0 between -lambd and lambd, and rises by 1 outside."""

    def fn(x, *, lambd=0.5):
        bound = np.asarray(lambd, x.dtype)
        return np.where(np.abs(x) > bound, formula(x, bound), np.zeros((), x.dtype))

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"{text} where |x| > lambd, 0 elsewhere.  x: (...) -> (...)."
    declared = {"name": class_name, "attrs": {"lambd": number(0)}, "example": (EXAMPLE, case(SHAPE, lambd=1.0))}
    made = op(UNARY, dtype=float_result, **declared, **spelled)(fn)

    @made.vjp
    def _(g, out, x, *, lambd):
        return (sub(g, within_grad(g, x, low=-float(lambd), high=float(lambd), slope=1.0)),)

    return made


hardshrink = _shrink("hardshrink", lambda x, bound: x, "x", "HShrink", mint="functional.hardshrink")
soft_shrink = _shrink(
    "soft_shrink",
    lambda x, bound: x - np.copysign(bound, x),
    "x, lambd nearer to 0,",
    "SoftShrink",
    also="softshrink",
    mint="functional.softshrink",
)


@op(
    UNARY,
    name="HardTanh Hardtanh",
    attrs={"min_val": number(), "max_val": number()},
    check=lambda operands, *, min_val, max_val: (
        None if min_val < max_val else (f"min_val={min_val} and max_val={max_val}", "A min_val below max_val")
    ),
    example=(EXAMPLE, case(SHAPE, min_val=-0.5, max_val=1.5)),
)
def hardtanh(x, *, min_val=-1.0, max_val=1.0):
    """x, at least min_val and at most max_val.  x: (...) -> (...)."""
    return np.clip(x, np.asarray(min_val, x.dtype), np.asarray(max_val, x.dtype))


@hardtanh.vjp
def _(g, out, x, *, min_val, max_val):
    return (within_grad(g, x, low=float(min_val), high=float(max_val), slope=1.0),)


@op(
    UNARY,
    name="Threshold",
    static=("threshold", "value"),
    attrs={"threshold": number(), "value": number()},
    example=case(SHAPE, threshold=0.5, value=-3.0),
)
def threshold(x, threshold, value):
    """x where x > threshold, `value` elsewhere.  x: (...) -> (...)."""
    return np.where(x > threshold, x, np.asarray(value, x.dtype))


@threshold.vjp
def _(g, out, x, *, threshold, value):
    return (within_grad(g, x, low=float(threshold), high=math.inf, slope=1.0),)


_SLOPES = {"attrs": {"negative_slope": number()}, "example": (EXAMPLE, case(SHAPE, negative_slope=0.2))}


@_activation("LeakyReLU", flops=2, **_SLOPES)
def leaky_relu(x, *, negative_slope=0.01):
    """x where x > 0, negative_slope * x elsewhere.  x: (...) -> (...)."""
    x = floats(x)
    return np.where(x > 0, x, np.asarray(negative_slope, x.dtype) * x)


@gradient(leaky_relu)
def leaky_relu_grad(g, x, *, negative_slope):
    """Gradient of leaky_relu.  g, x: (...) -> (...)."""
    return np.where(x > 0, g, np.asarray(negative_slope, g.dtype) * g)


@_activation("SiLU", flops=5)
def silu(x):
    """x times sigmoid(x), also called swish.  x: (...) -> (...)."""
    x = floats(x)
    return x * sigmoid_of(x)


@gradient(silu, shown="SiLUGrad")
def silu_grad(g, x):
    """Gradient of silu: g * s * (1 + x (1 - s)) with s = sigmoid(x).  g, x: (...) -> (...)."""
    s = sigmoid_of(x)
    return g * s * (1 + x * (1 - s))


@_activation("Mish", flops=8)
def mish(x):
    """x times tanh(softplus(x)).  x: (...) -> (...)."""
    x = floats(x)
    return x * np.tanh(np.logaddexp(x, np.zeros((), x.dtype)))


@gradient(mish)
def mish_grad(g, x):
    """Gradient of mish: g * (t + x (1 - t^2) sigmoid(x)) with t = tanh(softplus(x)).  g, x: (...) -> (...)."""
    t = np.tanh(np.logaddexp(x, np.zeros((), x.dtype)))
    return g * (t + x * (1 - t * t) * sigmoid_of(x))


@_activation("Softsign", flops=3)
def softsign(x):
    """x / (1 + |x|).  x: (...) -> (...)."""
    x = floats(x)
    return x / (1 + np.abs(x))


@gradient(softsign)
def softsign_grad(g, x):
    """Gradient of softsign: g / (1 + |x|)^2.  g, x: (...) -> (...)."""
    return g / np.square(1 + np.abs(x))


@_activation("FastGeLU FastGelu", also="fast_gelu", mint="", flops=6)
def fast_gelu(x):
    """x times sigmoid(1.702 x), which is near GeLU (MindSpore: FastGeLU).  x: (...) -> (...)."""
    x = floats(x)
    return x * sigmoid_of(x.dtype.type(1.702) * x)


@gradient(fast_gelu, shown="FastGeLUGrad")
def fast_gelu_grad(g, x):
    """Gradient of fast_gelu.  g, x: (...) -> (...)."""
    slope = x.dtype.type(1.702)
    s = sigmoid_of(slope * x)
    return g * s * (1 + slope * x * (1 - s))


log_sigmoid = fractional(
    "log_sigmoid",
    lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))),
    "log(sigmoid(x)), without overflow",
    lambda g, out, x: mul(g, sigmoid(neg(x))),
    name="LogSigmoid",
    also="logsigmoid",
    mint="functional.logsigmoid",
    flops=5,
)


_HALF = (EXAMPLE, case(SHAPE, alpha=0.5))


@_activation("Elu", attrs={"alpha": number()}, flops=3, example=_HALF)
def elu(x, *, alpha=1.0):
    """x where x > 0, alpha * (exp(x) - 1) elsewhere.  x: (...) -> (...)."""
    x = floats(x)
    return np.where(x > 0, x, np.asarray(alpha, x.dtype) * np.expm1(np.minimum(x, np.zeros((), x.dtype))))


@gradient(elu)
def elu_grad(g, x, *, alpha):
    """Gradient of elu: g where x > 0, g * alpha * exp(x) elsewhere.  g, x: (...) -> (...)."""
    below = np.asarray(alpha, g.dtype) * np.exp(np.minimum(x, np.zeros((), x.dtype)))
    return g * np.where(x > 0, np.ones((), g.dtype), below)


# D. Klambauer et al. 2017, Self-Normalizing Neural Networks
_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


@_activation("SeLU SeLUExt", flops=4)
def selu(x):
    """1.0507 times (x where x > 0, 1.6733 (exp(x) - 1) elsewhere).  x: (...) -> (...)."""
    x = floats(x)
    below = x.dtype.type(_SELU_ALPHA) * np.expm1(np.minimum(x, np.zeros((), x.dtype)))
    return x.dtype.type(_SELU_SCALE) * np.where(x > 0, x, below)


@gradient(selu)
def selu_grad(g, x):
    """Gradient of selu.  g, x: (...) -> (...)."""
    kind = x.dtype.type
    below = kind(_SELU_SCALE * _SELU_ALPHA) * np.exp(np.minimum(x, np.zeros((), x.dtype)))
    return g * np.where(x > 0, kind(_SELU_SCALE), below)


def _some_number(name, value, shape):
    return (
        None
        if isinstance(value, (int, float)) and math.isfinite(value) and value
        else (f"{name}={shorten(value)}", "A number other than 0")
    )


@_activation("CeLU", attrs={"alpha": _some_number}, flops=4, example=_HALF)
def celu(x, *, alpha=1.0):
    """x where x > 0, alpha (exp(x / alpha) - 1) elsewhere.  x: (...) -> (...)."""
    x = floats(x)
    scale = x.dtype.type(alpha)
    return np.where(x > 0, x, scale * np.expm1(np.minimum(x / scale, np.zeros((), x.dtype))))


@gradient(celu)
def celu_grad(g, x, *, alpha):
    """Gradient of celu: g where x > 0, g exp(x / alpha) elsewhere.  g, x: (...) -> (...)."""
    return g * np.where(x > 0, np.ones((), x.dtype), np.exp(np.minimum(x / x.dtype.type(alpha), 0))).astype(g.dtype)


@form(elu, "EluExt")
def _(self, input, alpha=1.0):
    """x where x > 0, alpha * (exp(x) - 1) elsewhere.  input: (...) -> (...)."""
    return self.run(input, alpha=alpha)


@form(leaky_relu, "LeakyReLUExt")
def _(self, input, negative_slope=0.01):
    """x where x > 0, negative_slope * x elsewhere.  input: (...) -> (...)."""
    return self.run(input, negative_slope=negative_slope)


@form(log_softmax, "LogSoftmaxExt")
def _(self, input, dim=-1, dtype=None):
    """log(softmax(x)) along `dim`.  input: (...) -> (...). dtype: that of the result."""
    return self.run(input if dtype is None else self.before(cast, input, dtype=dtype), axis=dim)


# ---- sigmoid and softplus ----


sigmoid = fractional(
    "sigmoid",
    sigmoid_of,
    "1 / (1 + exp(-x)), without overflow",
    lambda g, out, x: sigmoid_grad(g, out),
    mint="sigmoid functional.sigmoid",
    linear="max min: x",
)


@op(result_shape=0)
def sigmoid_grad(g, out):
    """Gradient of sigmoid.  g, out: (...) -> (...)."""
    return g * out * (1 - out)


softplus = fractional(
    "softplus",
    lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, np.zeros((), x.dtype)),
    "log(1 + exp(x)), without overflow",
    lambda g, out, x: mul(g, sigmoid(x)),
    mint="",
    flops=4,
)
