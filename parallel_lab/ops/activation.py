"""Activation functions. All but softmax work per element: any dim may be split, nothing is sent."""

from __future__ import annotations

import math

import numpy as np

from ..base.checks import choice, integer, sequence_of
from .elementwise import SHAPE, UNARY, float_result
from .machine.operand_checks import filled_dim, some_dims
from .machine.registry import case, gradient, op
from .machine.signature import along_axis
from .unary import error_function, floats, fractional

EXAMPLE = case(SHAPE)


# ---- piecewise linear ----


@op(UNARY, name="ReLU", linear="max min: x", example=(EXAMPLE, case((8, 4, 16))))
def relu(x):
    """max(x, 0).  x: (...) -> (...)."""
    return np.maximum(x, np.zeros((), x.dtype))


@gradient(relu)
def relu_grad(g, out):
    """Gradient of relu: g where out > 0.  g, out: (...) -> (...)."""
    return g * (out > 0)


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


tanh = fractional(
    "tanh",
    np.tanh,
    "Hyperbolic tangent",
    lambda g, out, x: tanh_grad(g, out),
    mint="tanh functional.tanh",
    linear="max min: x",
)


@op("...,...->...", result_shape=0)
def tanh_grad(g, out):
    """Gradient of tanh.  g, out: (...) -> (...)."""
    return g * (1 - out * out)


# ---- along one dim ----


def softmax_of(x, axis=-1):
    """Softmax of an array."""
    x = floats(x)
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)


def softmax_gradient_of(g, p, axis=-1):
    """Gradient for the numbers whose softmax is p."""
    return p * (g - (g * p).sum(axis=axis, keepdims=True))


def sigmoid_of(x):
    """1 / (1 + exp(-x)) of an array of floats, without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype, copy=False)


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


@op(
    UNARY,
    name="Softmax",
    method="softmax",
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
    return softmax_gradient_of(g, out, axis)


@op(UNARY, name="LogSoftmax", instead="x - LogSumExp(x)", whole=along_axis, **SOFTMAX)
def log_softmax(x, *, axis=-1):
    """log(softmax(x)) along `axis`, which stays whole.  x: (...) -> (...)."""
    return log_softmax_of(x, axis)


@gradient(log_softmax)
def log_softmax_grad(g, out, *, axis):
    """Gradient of log_softmax: g - softmax * sum of g along `axis`.  g, out: (...) -> (...)."""
    return g - np.exp(out) * g.sum(axis=axis, keepdims=True)
