"""Activation functions. All but log_softmax and softmax work per element: any dim may be split, nothing is sent."""

from __future__ import annotations

import math

import numpy as np

from ..base.checks import choice, integer, number, sequence_of
from .elementwise import SHAPE, UNARY, float_result, mul, neg, sub
from .machine.operand_checks import filled_dim, some_dims
from .machine.registry import case, gradient, op
from .machine.signature import along_axis, letters
from .unary import error_function, floats, fractional

EXAMPLE = case(SHAPE)
WIDE = case(SHAPE, low=-8.0, high=8.0)  # reaches both flat ends


# ---- piecewise linear ----


@op(UNARY, name="ReLU", mint="functional.relu", example=(EXAMPLE, case((8, 4, 16))))
def relu(x):
    """max(x, 0).  x: (...) -> (...)."""
    return np.maximum(x, np.zeros((), x.dtype))


@gradient(relu)
def relu_grad(g, out):
    """Gradient of relu: g where out > 0.  g, out: (...) -> (...)."""
    return g * (out > 0)


@op(UNARY, name="ReLU6", mint="functional.relu6", example=WIDE)
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
    method="",
    mint="functional.hardsigmoid",
    flops=3,
    example=WIDE,
)


@op(UNARY, name="HSwish", also="hardswish", mint="functional.hardswish", dtype=float_result, flops=4, example=WIDE)
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


hardshrink = _shrink(
    "hardshrink", lambda x, bound: x, "x", "HShrink", method="hardshrink", mint="functional.hardshrink"
)
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
    mint="functional.hardtanh",
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
    mint="functional.threshold",
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


@op(
    UNARY,
    name="LeakyReLU",
    mint="functional.leaky_relu",
    attrs={"negative_slope": number()},
    dtype=float_result,
    flops=2,
    example=(EXAMPLE, case(SHAPE, negative_slope=0.2)),
)
def leaky_relu(x, *, negative_slope=0.01):
    """x where x > 0, negative_slope * x elsewhere.  x: (...) -> (...)."""
    x = floats(x)
    return np.where(x > 0, x, np.asarray(negative_slope, x.dtype) * x)


@gradient(leaky_relu)
def leaky_relu_grad(g, x, *, negative_slope):
    """Gradient of leaky_relu.  g, x: (...) -> (...)."""
    return np.where(x > 0, g, np.asarray(negative_slope, g.dtype) * g)


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


# ---- smooth ----


_GELU_SCALE = float(np.sqrt(2 / np.pi))
_GELU_CUBE = 0.044715  # Hendrycks and Gimpel 2016, eq. for the tanh form


def _gelu_inner(x):
    """tanh of the tanh form's argument, in one new array."""
    inner = np.asarray(x * x)  # of a 0-d array numpy makes a number, which takes nothing in place
    inner *= x.dtype.type(_GELU_SCALE * _GELU_CUBE)
    inner += x.dtype.type(_GELU_SCALE)
    inner *= x
    return np.tanh(inner, out=inner)


@op(
    UNARY,
    name="GeLU",
    mint="functional.gelu",
    attrs={"approximate": choice("tanh", "none")},
    dtype=float_result,
    flops=8,
    example=(EXAMPLE, case(SHAPE, approximate="none")),
)
def gelu(x, *, approximate="tanh"):
    """Gaussian error linear unit: x times the standard normal distribution function.  x: (...) -> (...).

    approximate  "tanh": its tanh form, as MindSpore's GeLU; "none": 0.5 x (1 + erf(x / sqrt 2))
    """
    x = floats(x)
    if approximate == "none":
        return 0.5 * x * (1 + error_function(x * x.dtype.type(math.sqrt(0.5))))
    inner = _gelu_inner(x)
    inner += 1
    inner *= x
    inner *= x.dtype.type(0.5)
    return inner


@gradient(gelu, shown="GeLUGrad")
def gelu_grad(g, x, *, approximate):
    """Gradient of gelu.  g, x: (...) -> (...)."""
    kind = x.dtype.type
    if approximate == "none":
        density = np.exp(-0.5 * x * x) * kind(1 / math.sqrt(2 * math.pi))
        return g * (0.5 * (1 + error_function(x * kind(math.sqrt(0.5)))) + x * density)
    inner = _gelu_inner(x)
    slope = x * x
    slope *= kind(3 * _GELU_SCALE * _GELU_CUBE)
    slope += kind(_GELU_SCALE)
    slope *= x  # x times the slope of tanh's argument
    slope *= 1 - inner * inner
    slope += 1
    slope += inner
    slope *= kind(0.5)
    return g * slope


def _sigmoid(x):
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype, copy=False)


sigmoid = fractional(
    "sigmoid",
    _sigmoid,
    "1 / (1 + exp(-x)), without overflow",
    lambda g, out, x: sigmoid_grad(g, out),
    mint="sigmoid functional.sigmoid",
)


@op(result_shape=0)
def sigmoid_grad(g, out):
    """Gradient of sigmoid.  g, out: (...) -> (...)."""
    return g * out * (1 - out)


@op(UNARY, name="SiLU", mint="functional.silu", dtype=float_result, flops=5, example=EXAMPLE)
def silu(x):
    """x times sigmoid(x), also called swish.  x: (...) -> (...)."""
    x = floats(x)
    return x * _sigmoid(x)


@gradient(silu, shown="SiLUGrad")
def silu_grad(g, x):
    """Gradient of silu: g * s * (1 + x (1 - s)) with s = sigmoid(x).  g, x: (...) -> (...)."""
    s = _sigmoid(x)
    return g * s * (1 + x * (1 - s))


softplus = fractional(
    "softplus",
    lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, np.zeros((), x.dtype)),
    "log(1 + exp(x)), without overflow",
    lambda g, out, x: mul(g, sigmoid(x)),
    method="",
    mint="functional.softplus",
    flops=4,
)


@op(UNARY, name="Mish", mint="functional.mish", dtype=float_result, flops=8, example=EXAMPLE)
def mish(x):
    """x times tanh(softplus(x)).  x: (...) -> (...)."""
    x = floats(x)
    return x * np.tanh(np.logaddexp(x, np.zeros((), x.dtype)))


@gradient(mish)
def mish_grad(g, x):
    """Gradient of mish: g * (t + x (1 - t^2) sigmoid(x)) with t = tanh(softplus(x)).  g, x: (...) -> (...)."""
    t = np.tanh(np.logaddexp(x, np.zeros((), x.dtype)))
    return g * (t + x * (1 - t * t) * _sigmoid(x))


@op(UNARY, name="Softsign", mint="functional.softsign", dtype=float_result, flops=3, example=EXAMPLE)
def softsign(x):
    """x / (1 + |x|).  x: (...) -> (...)."""
    x = floats(x)
    return x / (1 + np.abs(x))


@gradient(softsign)
def softsign_grad(g, x):
    """Gradient of softsign: g / (1 + |x|)^2.  g, x: (...) -> (...)."""
    return g / np.square(1 + np.abs(x))


@op(UNARY, name="FastGeLU FastGelu", also="fast_gelu", dtype=float_result, flops=6, example=EXAMPLE)
def fast_gelu(x):
    """x times sigmoid(1.702 x), which is near GeLU (MindSpore: FastGeLU).  x: (...) -> (...)."""
    x = floats(x)
    return x * _sigmoid(x.dtype.type(1.702) * x)


@gradient(fast_gelu, shown="FastGeLUGrad")
def fast_gelu_grad(g, x):
    """Gradient of fast_gelu.  g, x: (...) -> (...)."""
    slope = x.dtype.type(1.702)
    s = _sigmoid(slope * x)
    return g * s * (1 + slope * x * (1 - s))


log_sigmoid = fractional(
    "log_sigmoid",
    lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))),
    "log(sigmoid(x)), without overflow",
    lambda g, out, x: mul(g, sigmoid(neg(x))),
    name="LogSigmoid",
    also="logsigmoid",
    method="",
    mint="functional.logsigmoid",
    flops=5,
)


@op(
    UNARY,
    name="Elu",
    mint="functional.elu",
    attrs={"alpha": number()},
    dtype=float_result,
    flops=3,
    example=(EXAMPLE, case(SHAPE, alpha=0.5)),
)
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


@op(UNARY, name="SeLU SeLUExt", mint="functional.selu", dtype=float_result, flops=4, example=EXAMPLE)
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
        else (f"{name}={value}", "A number other than 0")
    )


@op(
    UNARY,
    name="CeLU",
    mint="functional.celu",
    attrs={"alpha": _some_number},
    dtype=float_result,
    flops=4,
    example=(EXAMPLE, case(SHAPE, alpha=0.5)),
)
def celu(x, *, alpha=1.0):
    """x where x > 0, alpha (exp(x / alpha) - 1) elsewhere.  x: (...) -> (...)."""
    x = floats(x)
    scale = x.dtype.type(alpha)
    return np.where(x > 0, x, scale * np.expm1(np.minimum(x / scale, np.zeros((), x.dtype))))


@gradient(celu)
def celu_grad(g, x, *, alpha):
    """Gradient of celu: g where x > 0, g exp(x / alpha) elsewhere.  g, x: (...) -> (...)."""
    return g * np.where(x > 0, np.ones((), x.dtype), np.exp(np.minimum(x / x.dtype.type(alpha), 0))).astype(g.dtype)


tanh = fractional(
    "tanh", np.tanh, "Hyperbolic tangent", lambda g, out, x: tanh_grad(g, out), mint="tanh functional.tanh"
)


@op(result_shape=0)
def tanh_grad(g, out):
    """Gradient of tanh.  g, out: (...) -> (...)."""
    return g * (1 - out * out)


# ---- along one dim ----


def softmax_of(x, axis=-1):
    """Softmax of an array."""
    x = floats(x)
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)


def log_softmax_of(x, axis=-1):
    """log(softmax(x)) of an array."""
    x = floats(x)
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


SOFTMAX = {
    "attrs": {"axis": filled_dim},
    "dtype": float_result,
    "flops": 5,
    "example": (EXAMPLE, case((8, 4, 2), axis=0)),
}


def _check_softmax(operands, *, axis):
    axes, shape = axis if isinstance(axis, tuple) else (axis,), operands[0].shape
    return next((f for f in (filled_dim("axis", a, shape) for a in axes) if f), None) or some_dims("axis", axis, shape)


@op(UNARY, name="LogSoftmax", mint="functional.log_softmax", instead="x - LogSumExp(x)", whole=along_axis, **SOFTMAX)
def log_softmax(x, *, axis=-1):
    """log(softmax(x)) along `axis`, which stays whole.  x: (...) -> (...)."""
    return log_softmax_of(x, axis)


@gradient(log_softmax)
def log_softmax_grad(g, out, *, axis):
    """Gradient of log_softmax: g - softmax * sum of g along `axis`.  g, out: (...) -> (...)."""
    return g - np.exp(out) * g.sum(axis=axis, keepdims=True)


@op(
    UNARY,
    name="Softmax",
    method="softmax",
    mint="softmax functional.softmax",
    instead="SoftmaxExpand",
    whole=along_axis,
    attrs={"axis": sequence_of(integer(), "An int, or ints in a tuple", one=True)},
    check=_check_softmax,
    dtype=float_result,
    flops=5,
    example=(*SOFTMAX["example"], case((8, 4, 2), axis=(1, -1))),
)
def softmax(x, *, axis=-1):
    """exp(x) / sum of exp(x) along `axis`, a dim or several together, which stay whole.  x: (...) -> (...)."""
    return softmax_of(x, axis)


@gradient(softmax)
def softmax_grad(g, out, *, axis):
    """Gradient of softmax.  g, out: (...) -> (...)."""
    return out * (g - (g * out).sum(axis=axis, keepdims=True))
