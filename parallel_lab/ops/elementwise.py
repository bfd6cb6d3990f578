"""Element-wise operators: each result element depends on the operand elements at its own place. Operands broadcast like numpy's.

Any dim may be cut; a dim of size 1 that is broadcast stays whole. No communication forward.
"""

from __future__ import annotations

import numpy as np

from ..errors import ShapeError, message, shorten
from .registry import case, op

__all__ = [
    "abs_",
    "add",
    "bias_add",
    "cast",
    "div",
    "equal",
    "exp",
    "gelu",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "log",
    "maximum",
    "minimum",
    "mul",
    "neg",
    "not_equal",
    "power",
    "relu",
    "sigmoid",
    "sign",
    "sqrt",
    "square",
    "sub",
    "tanh",
]

UNARY = "...->..."
BINARY = "...,...->..."
PAIR = (case((16, 8), (16, 8)), case((16, 8), (8,)), case((8, 16, 4), (16, 1)), case((8, 1), (1, 16)))
# Away from zero: gradients of log, sqrt and division grow without bound there, and finite differences lose their digits.
POSITIVE = {"low": 0.5, "high": 2.0}


def _float_result(dtypes: tuple[str, ...], **_: object) -> np.dtype:
    found = np.result_type(*dtypes)
    return found if found.kind == "f" else np.dtype(np.float32)


# ---- helpers of vjp rules ----


@op(infer_fn=lambda shapes, *, shape: shape)
def sum_to(x, *, shape):
    """Sum over the dims that broadcasting added or stretched.  x: any shape that `shape` broadcasts to -> `shape`."""
    if x.shape == tuple(shape):
        return x
    lead = x.ndim - len(shape)
    stretched = tuple(lead + i for i, n in enumerate(shape) if n == 1 and x.shape[lead + i] != 1)
    return x.sum(axis=tuple(range(lead)) + stretched, keepdims=True, dtype=x.dtype).reshape(shape)


def unbroadcast(g, operand):
    """The gradient of a broadcast operand; recorded only if something was broadcast."""
    return g if tuple(g.shape) == tuple(operand.shape) else sum_to(g, shape=tuple(operand.shape))


@op(infer_fn=lambda shapes: shapes[0])
def relu_grad(g, out):
    """Gradient of relu: g where out > 0.  g, out: (...) -> (...)."""
    return g * (out > 0)


@op(infer_fn=lambda shapes: shapes[0])
def gelu_grad(g, x):
    """Gradient of gelu (tanh form).  g, x: (...) -> (...)."""
    inner = np.tanh(_GELU_SCALE * (x + _GELU_CUBE * x**3))
    return g * (0.5 * (1 + inner) + 0.5 * x * (1 - inner**2) * _GELU_SCALE * (1 + 3 * _GELU_CUBE * x**2))


@op(infer_fn=lambda shapes: shapes[0])
def sigmoid_grad(g, out):
    """Gradient of sigmoid.  g, out: (...) -> (...)."""
    return g * out * (1 - out)


@op(infer_fn=lambda shapes: shapes[0])
def tanh_grad(g, out):
    """Gradient of tanh.  g, out: (...) -> (...)."""
    return g * (1 - out * out)


@op(infer_fn=lambda shapes: shapes[0])
def log_of_positive(x):
    """Logarithm where x > 0, zero elsewhere.  x: (...) -> (...)."""
    return np.log(np.where(x > 0, x, np.ones((), x.dtype)))


# ---- two operands ----


@op(BINARY, name="Add", aliases=("TensorAdd",), example=PAIR)
def add(x, y):
    """Sum.  x, y: (...) -> broadcast (...)."""
    return np.add(x, y)


@add.vjp
def _(g, out, x, y):
    return unbroadcast(g, x), unbroadcast(g, y)


@op(BINARY, name="Sub", example=PAIR)
def sub(x, y):
    """Difference.  x, y: (...) -> broadcast (...)."""
    return np.subtract(x, y)


@sub.vjp
def _(g, out, x, y):
    return unbroadcast(g, x), neg(unbroadcast(g, y))


@op(BINARY, name="Mul", example=PAIR)
def mul(x, y):
    """Product of elements.  x, y: (...) -> broadcast (...)."""
    return np.multiply(x, y)


@mul.vjp
def _(g, out, x, y):
    return unbroadcast(mul(g, y), x), unbroadcast(mul(g, x), y)


@op(BINARY, name="Div", aliases=("RealDiv",), dtype=_float_result, example=tuple(case(*c.shapes, **POSITIVE) for c in PAIR))
def div(x, y):
    """Quotient; integers give float32.  x, y: (...) -> broadcast (...)."""
    return np.true_divide(x, y, dtype=_float_result((np.result_type(x, y),)))


@div.vjp
def _(g, out, x, y):
    return unbroadcast(div(g, y), x), neg(unbroadcast(div(mul(g, out), y), y))


@op(BINARY, name="Pow", example=tuple(case(*c.shapes, **POSITIVE) for c in PAIR))
def power(x, y):
    """x to the power y.  x, y: (...) -> broadcast (...)."""
    return np.power(x, y)


@power.vjp
def _(g, out, x, y):
    # the gradient for the exponent exists for positive bases only; elsewhere it is 0, so that x ** 2 works for any x
    return unbroadcast(mul(g, mul(y, power(x, sub(y, 1.0)))), x), unbroadcast(mul(g, mul(out, log_of_positive(x))), y)


@op(BINARY, name="Equal", dtype="bool", example=case((16, 8), (8,)))
def equal(x, y):
    """Whether elements are equal.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.equal(x, y)


@op(BINARY, name="NotEqual", dtype="bool", example=case((16, 8), (8,)))
def not_equal(x, y):
    """Whether elements differ.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.not_equal(x, y)


@op(BINARY, name="Greater", dtype="bool", example=case((16, 8), (8,)))
def greater(x, y):
    """Whether x > y.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.greater(x, y)


@op(BINARY, name="Less", dtype="bool", example=case((16, 8), (8,)))
def less(x, y):
    """Whether x < y.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.less(x, y)


@op(BINARY, name="LessEqual", dtype="bool", example=case((16, 8), (8,)))
def less_equal(x, y):
    """Whether x <= y.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.less_equal(x, y)


@op(BINARY, name="GreaterEqual", dtype="bool", example=case((16, 8), (8,)))
def greater_equal(x, y):
    """Whether x >= y.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.greater_equal(x, y)


@op(BINARY, name="Maximum", example=PAIR)
def maximum(x, y):
    """The larger element.  x, y: (...) -> broadcast (...). Where equal, the gradient goes to x."""
    return np.maximum(x, y)


@maximum.vjp
def _(g, out, x, y):
    mask = cast(greater_equal(x, y), dtype=str(g.dtype))
    return unbroadcast(mul(g, mask), x), unbroadcast(mul(g, sub(1.0, mask)), y)


@op(BINARY, name="Minimum", example=PAIR)
def minimum(x, y):
    """The smaller element.  x, y: (...) -> broadcast (...). Where equal, the gradient goes to x."""
    return np.minimum(x, y)


@minimum.vjp
def _(g, out, x, y):
    mask = cast(greater_equal(y, x), dtype=str(g.dtype))
    return unbroadcast(mul(g, mask), x), unbroadcast(mul(g, sub(1.0, mask)), y)


@op("ab,b->ab", name="BiasAdd", example=case((16, 8), (8,)))
def bias_add(x, b):
    """Add a bias to every row.  x: (a, b), b: (b,) -> (a, b)."""
    return x + b


@bias_add.vjp
def _(g, out, x, b):
    return g, unbroadcast(g, b)


# ---- one operand ----


@op(UNARY, name="Neg", example=case((16, 8)))
def neg(x):
    """Minus x.  x: (...) -> (...)."""
    return np.negative(x)


@neg.vjp
def _(g, out, x):
    return (neg(g),)


@op(UNARY, name="Abs", example=case((16, 8)))
def abs_(x):
    """Absolute value; its gradient at 0 is 0.  x: (...) -> (...)."""
    return np.abs(x)


@abs_.vjp
def _(g, out, x):
    return (mul(g, sign(x)),)


@op(UNARY, name="Sign", example=case((16, 8)))
def sign(x):
    """-1, 0 or 1.  x: (...) -> (...). No gradient."""
    return np.sign(x)


@op(UNARY, name="ReLU", example=(case((16, 8)), case((8, 4, 16))))
def relu(x):
    """max(x, 0).  x: (...) -> (...)."""
    return np.maximum(x, np.zeros((), x.dtype))


@relu.vjp
def _(g, out, x):
    return (relu_grad(g, out),)


_GELU_SCALE = float(np.sqrt(2 / np.pi))
_GELU_CUBE = 0.044715  # Hendrycks and Gimpel 2016, eq. for the tanh form


@op(UNARY, name="GeLU", flops=lambda s: 8 * np.prod(list(vars(s).values())), example=case((16, 8)))
def gelu(x):
    """Gaussian error linear unit in its tanh form, as MindSpore's GeLU.  x: (...) -> (...)."""
    return 0.5 * x * (1 + np.tanh(_GELU_SCALE * (x + _GELU_CUBE * x**3)))


@gelu.vjp
def _(g, out, x):
    return (gelu_grad(g, x),)


@op(UNARY, name="Sigmoid", example=case((16, 8)))
def sigmoid(x):
    """1 / (1 + exp(-x)), without overflow.  x: (...) -> (...)."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype, copy=False)


@sigmoid.vjp
def _(g, out, x):
    return (sigmoid_grad(g, out),)


@op(UNARY, name="Tanh", example=case((16, 8)))
def tanh(x):
    """Hyperbolic tangent.  x: (...) -> (...)."""
    return np.tanh(x)


@tanh.vjp
def _(g, out, x):
    return (tanh_grad(g, out),)


@op(UNARY, name="Exp", example=case((16, 8)))
def exp(x):
    """e to the power x.  x: (...) -> (...)."""
    return np.exp(x)


@exp.vjp
def _(g, out, x):
    return (mul(g, out),)


@op(UNARY, name="Log", example=case((16, 8), **POSITIVE))
def log(x):
    """Natural logarithm.  x: (...) -> (...)."""
    return np.log(x)


@log.vjp
def _(g, out, x):
    return (div(g, x),)


@op(UNARY, name="Sqrt", example=case((16, 8), **POSITIVE))
def sqrt(x):
    """Square root.  x: (...) -> (...)."""
    return np.sqrt(x)


@sqrt.vjp
def _(g, out, x):
    return (div(mul(g, 0.5), out),)


@op(UNARY, name="Square", example=case((16, 8)))
def square(x):
    """x times x.  x: (...) -> (...)."""
    return np.square(x)


@square.vjp
def _(g, out, x):
    return (mul(g, mul(x, 2.0)),)


def _check_cast(where, operands, *, dtype):
    try:
        kind = np.dtype(dtype).kind
    except TypeError:
        kind = ""
    if not kind or kind not in "biuf":
        raise ShapeError(message(f"dtype={shorten(dtype)}", where=where, allowed="A dtype of numbers or bools, such as 'float32' or 'int32'"))


@op(UNARY, name="Cast", check=_check_cast, dtype=lambda dtypes, *, dtype: dtype, example=case((16, 8), dtype="float64"))
def cast(x, dtype="float32"):
    """The same values in another dtype.  x: (...) -> (...) of `dtype`. The gradient is cast back; integers and bools get none."""
    return x.astype(dtype)


@cast.vjp
def _(g, out, x, *, dtype):
    if np.dtype(str(x.dtype)).kind != "f" or np.dtype(dtype).kind != "f":
        return (None,)
    return (g if str(x.dtype) == dtype else cast(g, dtype=str(x.dtype)),)


@op(infer_fn=lambda shapes, *, count: shapes[0])
def divide_by(x, *, count):
    """x divided by a count of ranks, in x's own dtype.  x: (...) -> (...)."""
    return np.true_divide(x, np.asarray(count, x.dtype))
