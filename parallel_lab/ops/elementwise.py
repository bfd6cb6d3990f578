"""Element-wise arithmetic of tensors, which broadcast like numpy's. Any dim may be split, if it is not broadcast."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.checks import Check, choice
from ..base.dtypes import as_dtype, float_result, kind_of, number_result
from .machine.opdef import OpDef
from .machine.registry import case, form, op, unbroadcast
from .machine.signature import letters

UNARY = "...->..."
BINARY = "...,...->..."
SHAPE = (16, 8)
PAIR = (case(SHAPE, SHAPE), case(SHAPE, (8,)), case((8, 16, 4), (16, 1)), case((8, 1), (1, 16)))
# Away from zero, where gradients of log, sqrt and division grow and finite differences lose their digits.
POSITIVE = {"low": 0.5, "high": 2.0}
POSITIVE_PAIR = tuple(case(*c.shapes, **POSITIVE) for c in PAIR)


def each_element(
    name: str, function: Callable, text: str, vjp: Callable | None = None, /, *, signature: str, **facts: Any
) -> OpDef:
    """Declare an operator that applies one function to every element, or to every pair of elements.

    name      the operator's, in `ops`, and that of its class unless `facts` say otherwise
    function  numpy's, or a function of arrays; numpy's element-wise functions call the operator if given a Tensor
    text      the docstring without shapes
    vjp       (g, out, x) -> gradient of x, or (g, out, x, y) -> gradients of both; None: no gradient
    facts     other keywords of `op`
    """

    def one(x):
        return function(x)

    def two(x, y):
        return function(x, y)

    fn, operands, result = (one, "x", "") if signature == UNARY else (two, "x, y", "broadcast ")
    kind = " bool" if facts.get("dtype") == "bool" else ""
    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"{text}.  {operands}: (...) -> {result}(...){kind}."
    spelled = {"ufunc": function.__name__} if isinstance(function, np.ufunc) else {}
    operator = op(signature, **{"name": name.capitalize(), **spelled, **facts})(fn)
    if vjp is not None:
        operator.vjp(vjp if fn is two else lambda g, out, x: (vjp(g, out, x),))
    return operator


# ---- helpers of vjp rules ----


def _sum_labels(shapes, *, shape):
    names = letters(len(shapes[0]))
    kept = zip(names[len(names) - len(shape) :], shape, shapes[0][len(names) - len(shape) :], strict=True)
    return f"{names}->" + "".join("1" if n == 1 and m != 1 else c for c, n, m in kept)


@op(_sum_labels, result_shape=lambda shapes, *, shape: shape, shown="ReduceSum", linear="x")
def sum_to(x, *, shape):
    """Sum over the dims that broadcasting added or stretched.  x: any shape that `shape` broadcasts to -> `shape`."""
    if x.shape == tuple(shape):
        return x
    lead = x.ndim - len(shape)
    stretched = tuple(lead + i for i, n in enumerate(shape) if n == 1 and x.shape[lead + i] != 1)
    return x.sum(axis=tuple(range(lead)) + stretched, keepdims=True, dtype=x.dtype).reshape(shape)


@op("...,...,...->...", result_shape=0, dtype=0)
def where_at_least(g, x, y):
    """g where x >= y, zero elsewhere.  g: (...), x, y: broadcast to (...) -> (...)."""
    return g * np.greater_equal(x, y)


@op("...,...,...->...", result_shape=0, dtype=0)
def where_below(g, x, y):
    """g where x < y, zero elsewhere.  g: (...), x, y: broadcast to (...) -> (...)."""
    return g * np.less(x, y)


@op("...->...", result_shape=0)
def log_of_positive(x):
    """Logarithm where x > 0, zero elsewhere.  x: (...) -> (...)."""
    return np.log(np.where(x > 0, x, np.ones((), x.dtype)))


# ---- two operands ----


def binary(name, function, text, vjp=None, /, **facts):
    """Declare an operator of two numbers, see `each_element`."""
    return each_element(name, function, text, vjp, signature=BINARY, **{"example": PAIR, **facts})


SUMMED = "x+y; avg max min: x with y; avg: y with x"  # what a sum passes on
add = binary("add", np.add, "Sum", name="Add TensorAdd", method="add(other)", operator="__add__", linear=SUMMED)


@add.vjp
def _(g, out, x, y):
    return unbroadcast(g, x), unbroadcast(g, y)


sub = binary(
    "sub",
    np.subtract,
    "Difference",
    also="subtract",
    method="sub(other)",
    operator="__sub__",
    dtype=number_result,
    linear=SUMMED,
)


@sub.vjp
def _(g, out, x, y):
    return unbroadcast(g, x), neg(unbroadcast(g, y))


mul = binary(
    "mul",
    np.multiply,
    "Product of elements",
    also="multiply",
    method="mul(other)",
    operator="__mul__",
    mint="mul",
    linear="x, y",
)


@mul.vjp
def _(g, out, x, y, *, needs):
    return unbroadcast(mul(g, y), x) if needs[0] else None, unbroadcast(mul(g, x), y) if needs[1] else None


@op(
    BINARY,
    name="Div RealDiv",
    linear="x",
    operator="__truediv__",
    ufunc="divide true_divide",
    dtype=float_result,
    example=POSITIVE_PAIR,
)
def div(x, y):
    """Quotient; integers give float32.  x, y: (...) -> broadcast (...)."""
    return np.true_divide(x, y)


@div.vjp
def _(g, out, x, y, *, needs):
    return unbroadcast(div(g, y), x) if needs[0] else None, -unbroadcast(div(mul(g, out), y), y) if needs[1] else None


_WHOLE = {"dtype": number_result, "example": POSITIVE_PAIR[:2]}

floor_div = binary(
    "floor_div",
    np.floor_divide,
    "The largest integer not above x / y, in the operands' dtype; no gradient, which is 0 wherever it exists",
    name="FloorDiv",
    also="floor_divide",
    method="floor_divide(other)",
    operator="__floordiv__",
    mint="floor_divide",
    **_WHOLE,
)
_REMAINDER = "The remainder x - y * floor(x / y), which has the sign of y"
mod = binary(
    "mod",
    np.mod,
    _REMAINDER,
    name="FloorMod",
    also="floor_mod remainder",
    method="remainder(other)",
    operator="__mod__",
    mint="remainder",
    **_WHOLE,
)


@mod.vjp
def _(g, out, x, y):
    return unbroadcast(g, x), neg(unbroadcast(mul(g, floor_div(x, y)), y))


power = binary(
    "power",
    np.power,
    "x to the power y",
    name="Pow",
    also="pow",
    method="pow(exponent)",
    operator="__pow__",
    mint="pow",
    dtype=number_result,
    example=POSITIVE_PAIR,
)


@power.vjp
def _(g, out, x, y):
    # the gradient for the exponent exists for positive bases only; elsewhere it is 0, so that x ** 2 works for any x
    return unbroadcast(mul(g, mul(y, power(x, sub(y, 1.0)))), x), unbroadcast(mul(g, mul(out, log_of_positive(x))), y)


KEPT, RISING = "sum avg max min: x", "max min: x with y, y with x"
_EQUAL = "element; where equal, the gradient goes to x"
maximum = binary("maximum", np.maximum, f"The larger {_EQUAL}", mint="maximum", linear=f"{RISING}; max: x+y")
minimum = binary("minimum", np.minimum, f"The smaller {_EQUAL}", mint="minimum", linear=f"{RISING}; min: x+y")


@maximum.vjp
def _(g, out, x, y):
    return unbroadcast(where_at_least(g, x, y), x), unbroadcast(where_below(g, x, y), y)


@minimum.vjp
def _(g, out, x, y):
    return unbroadcast(where_at_least(g, y, x), x), unbroadcast(where_below(g, y, x), y)


def _bias_labels(shapes, *, data_format="NCHW"):
    # at least two: a vector has no dim 1, and the signature says so
    names = letters(max(2, len(shapes[0])))
    return f"{names},{names[-1 if data_format == 'NHWC' else 1]}->{names}"


@op(result_shape=lambda shapes: (shapes[0][1],), shown="BiasAddGrad")
def channel_sum(x):
    """Sum over all dims but dim 1.  x: (a, b, ...) -> (b,)."""
    return x.sum(axis=(0, *range(2, x.ndim)), dtype=x.dtype)


@op(
    _bias_labels,
    name="BiasAdd",
    linear="x+b; avg max min: x with b; avg: b with x",
    attrs={"data_format": choice("NCHW", "NHWC", "NCDHW")},
    example=(case((16, 8), (8,)), case((4, 8, 2, 3), (8,)), case((4, 2, 3, 8), (8,), data_format="NHWC")),
)
def bias_add(x, b, *, data_format="NCHW"):
    """Add a bias to every row, or to every channel.  x: (a, b, ...), b: (b,) -> (a, b, ...).

    data_format  "NHWC": the channels are x's last dim: x: (..., b)
    """
    return x + b if data_format == "NHWC" else x + b.reshape(-1, *(1,) * (x.ndim - 2))


@bias_add.vjp
def _(g, out, x, b, *, data_format):
    return g, unbroadcast(g, b) if len(x.shape) == 2 or data_format == "NHWC" else channel_sum(g)


# ---- one operand ----


def unary(name, function, text, vjp=None, /, **facts):
    """Declare a function of one number, see `each_element`."""
    text = text if vjp else f"{text}; no gradient"
    return each_element(name, function, text, vjp, signature=UNARY, **{"example": case(SHAPE), **facts})


neg = unary(
    "neg",
    np.negative,
    "Minus x",
    lambda g, out, x: neg(g),
    also="negative",
    method="neg",
    operator="__neg__",
    mint="neg negative",
    linear="x; max>min min>max: x",
    dtype=number_result,
)


def _number_dtype(dtype):
    try:
        # numpy takes None for float64, and one letter for an older type
        number_dtype = None if dtype is None or (type(dtype) is str and len(dtype) < 2) else as_dtype(dtype)
    except (TypeError, ValueError):  # numpy's words for it are its own
        number_dtype = None
    if number_dtype is None or kind_of(number_dtype) not in "biuf":
        raise TypeError
    return number_dtype


a_dtype = Check("A dtype of numbers or bools, such as 'float32' or 'int32'", _number_dtype)


@op(
    UNARY,
    name="Cast",
    linear=KEPT,
    attrs={"dtype": a_dtype},
    dtype=lambda dtypes, *, dtype: dtype,
    example=case(SHAPE, dtype="float64"),
)
def cast(x, dtype="float32"):
    """The same values in another dtype.  x: (...) -> (...). The gradient is cast back; ints and bools get none."""
    return x.astype(dtype)


@cast.vjp
def _(g, out, x, *, dtype):
    if kind_of(x.dtype) != "f" or kind_of(dtype) != "f":
        return (None,)
    return (g if str(g.dtype) == str(x.dtype) else cast(g, dtype=str(x.dtype)),)


@op(result_shape=0)
def divide_by(x, *, count):
    """x divided by a count of ranks, in x's own dtype.  x: (...) -> (...)."""
    return np.true_divide(x, np.asarray(count, x.dtype))


identity = unary(
    "identity", lambda x: x, "x itself", lambda g, out, x: g, linear=KEPT, example=(case(SHAPE), case((8, 4, 16)))
)


@form(identity, "Copy")
def _(self, input):
    """The same values.  input: (...) -> (...)."""
    return self.run(input)


# ---- of optimizers: they work on one rank's slice, have no gradient and take no strategy ----

PIECE = 1 << 15  # elements that are worked on at a time: what is in between stays in cache


def piecewise(formula):
    """An element-wise formula, worked out PIECE elements at a time, so that no array in between is as large as the
    result. The first operand gives shape and dtype of the result; the others have that shape or are numbers.
    """

    names = [p.name for p in inspect.signature(formula).parameters.values() if p.kind is not p.KEYWORD_ONLY]

    @functools.wraps(formula)
    def in_pieces(**given):
        first, *_ = operands = [given[name] for name in names]
        numbers = {name: value for name, value in given.items() if name not in names}
        whole = [np.shape(x) == first.shape for x in operands]
        if first.size <= PIECE or not all(
            x.flags.c_contiguous for x, each in zip(operands, whole, strict=True) if each
        ):
            return np.asarray(formula(*operands, **numbers), first.dtype)
        new = np.empty_like(first)
        out, flat = new.reshape(-1), [x.reshape(-1) if each else x for x, each in zip(operands, whole, strict=True)]
        for start in range(0, first.size, PIECE):
            part = slice(start, start + PIECE)
            out[part] = formula(*(x[part] if each else x for x, each in zip(flat, whole, strict=True)), **numbers)
        return new

    return in_pieces


def update_op(formula):
    """Declare a piecewise operator of update rules."""
    return op(result_shape=0, dtype=0)(piecewise(formula))


@update_op
def moving_mean(mean, x, *, keep, add):
    """mean * keep + x * add.  mean, x: (...) -> (...)."""
    return mean * keep + x * add


@op(result_shape=lambda shapes: (), dtype="float32")
def count_nonfinite(x):
    """How many elements are infinite or not a number.  x: (...) -> () float32."""
    return np.float32(x.size - np.count_nonzero(np.isfinite(x)))


@op(result_shape=1, dtype=1, shown="Select")
def choose(flag, new, old):
    """`new` if the flag is true, else `old`, and nothing else is computed.  flag: (), new, old: (...) -> (...)."""
    return new if flag else old
