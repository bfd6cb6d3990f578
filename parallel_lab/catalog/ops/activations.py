"""Activations that no layer of the lessons has, and forms of others."""

from __future__ import annotations

import numpy as np

from ...ops.activation import _sigmoid, elu, leaky_relu, log_softmax, relu, relu_grad, sigmoid, softmax, tanh
from ...ops.elementwise import a_dtype, cast, float_result, mul, neg, sub
from ...ops.join import split_parts
from ...ops.machine.operand_checks import filled_dim
from ...ops.machine.registry import case, form, gradient, op
from ...ops.machine.signature import letters, same_labels
from ...ops.spellings import function
from ...ops.unary import floats

# ---- activations ----


@function(mint="functional.softmin")
def softmin(x, axis=-1, *, dtype=None):
    """softmax(-x) along `axis`, of x in `dtype`.  x: (...) -> (...)."""
    return softmax(neg(x if dtype is None else cast(x, dtype=str(a_dtype("softmin", "dtype", dtype)))), axis=axis)


@function(mint="functional.tanhshrink")
def tanhshrink(input):
    """x - tanh(x).  input: (...) -> (...)."""
    return sub(input, tanh(input))


@function(mint="functional.glu")
def glu(x, axis=-1):
    """The first half along `axis` times the sigmoid of the second.  x: (..., 2n, ...) -> (..., n, ...)."""
    first, second = split_parts(x, axis=axis, output_num=2)
    return mul(first, sigmoid(second))


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
    return first * _sigmoid(first) * second


@gradient(swiglu)
def swiglu_grad(g, x, *, dim):
    """Gradient of swiglu.  g: (..., n, ...), x: (..., 2n, ...) -> like x."""
    first, second = np.split(x, 2, axis=dim)
    s = _sigmoid(first)
    return np.concatenate([g * second * s * (1 + first * (1 - s)), g * first * s], axis=dim)
