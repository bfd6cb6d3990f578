"""Reductions made of others, so that the dims they reduce may be split: norms, variance, std; and sums of squares.

None of them is "each slice's own result, then one reduction": a norm is a root of a sum, a variance needs the mean
first. Each is declared with one strategy for all its parts (`machine/composed.py`); a split, reduced dim costs the
all_reduce of every reduction inside.
"""

from __future__ import annotations

import math

import numpy as np

from ...base.checks import SHAPE_ERRORS, Check, integer, number
from ...nn.tensor.dtensor_parts import dual
from ...ops.elementwise import cast, div, float_result, maximum, mul, power, sub
from ...ops.logic import equal, not_equal, select
from ...ops.machine.composed import composed
from ...ops.machine.registry import case, form, op
from ...ops.machine.signature import letters
from ...ops.reduce import (
    DIMS,
    reduce_labels,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
    reduced_dims,
)
from ...ops.shape import reshape, squeeze
from ...ops.spellings import function
from ...ops.unary import abs_, sqrt, square

CASES = (case((16, 8)), case((16, 8), axis=1), case((8, 4, 2), axis=(0, 2), keep_dims=True))


def _labels(shapes, *, axis, keep_dims, **_):
    return reduce_labels(shapes, axis=axis, keep_dims=keep_dims)


class _Steps:
    """Parts of one such operator; what is reduced keeps its dims, with size 1, until the end."""

    def __init__(self, part, x, axis):
        self.part, self.shape = part, tuple(x.shape)
        self.gone = reduced_dims(axis, len(self.shape))
        self.whole, self.small = reduce_labels((self.shape,), axis=self.gone or None, keep_dims=True).split("->")

    def each(self, fn, *operands, **attrs):
        """A function of every element of tensors shaped as x, of reduced ones, and of numbers."""
        shapes = (tuple(v.shape) if hasattr(v, "shape") else None for v in operands)
        labels = ("" if s is None else self.whole if s == self.shape else self.small for s in shapes)
        return self.part(fn, *operands, labels=",".join(labels), **attrs)

    def over(self, fn, x):
        """A reduction of x."""
        return self.part(fn, x, labels=self.whole, axis=self.gone or None, keep_dims=True)

    def floats(self, x):
        return x if float_result((str(x.dtype),)) == x.dtype else self.each(cast, x, dtype="float32")

    def root(self, total, exponent):
        """total ** exponent, an exponent below 1, with gradient 0 where total is 0: there the root's is undefined."""
        if getattr(total, "answers", False):  # a DTensor, which is read twice, and reduced once
            total = total.redistribute(dual(total.layout), reason="a root")
        zero = self.each(equal, total, 0.0)
        safe = self.each(select, zero, 1.0, total)
        root = self.each(sqrt, safe) if exponent == 0.5 else self.each(power, safe, exponent)
        return self.each(select, zero, 0.0, root)

    def done(self, result, keep_dims):
        """The result in the shape that was asked for."""
        return result if keep_dims or not self.gone else self.part(squeeze, result, labels=self.small, axis=self.gone)


def _read_exponent(p):
    if isinstance(p, bool) or not isinstance(p, (int, float)):
        raise TypeError
    if not (p >= 0 or p == -math.inf):
        raise ValueError
    return p


_exponent = Check("A number above 0, 0, or infinity with either sign", _read_exponent)


@composed(
    _labels,
    name="LpNorm",
    attrs={**DIMS, "p": _exponent, "epsilon": number(0)},
    dtype=float_result,
    example=(
        *CASES,
        case((16, 8), axis=0, p=1),
        case((16, 8), axis=1, p=math.inf),
        case((8, 4, 2), axis=-2, p=3),
        case((16, 8), p=-math.inf),
    ),
)
def lp_norm(part, x, *, axis=None, p=2, keep_dims=False, epsilon=0.0):
    """(sum of |x| to the power p) to the power 1/p over `axis` (None = all dims).  x: (...) -> (...) without those
    dims, or with size 1 there.

    p  2: the Euclidean norm; 1: the sum of |x|; infinity: the largest |x|, minus infinity: the smallest; 0: how many
       are not 0
    epsilon  the result is at least that

    The gradient at 0 is 0.
    """
    do = _Steps(part, x, axis)
    x = do.floats(x)
    if p == 2:
        total = do.root(do.over(reduce_sum, do.each(square, x)), 0.5)
    elif p == 0:
        total = do.over(reduce_sum, do.each(cast, do.each(not_equal, x, 0.0), dtype=str(x.dtype)))
    elif math.isinf(p):
        total = do.over(reduce_max if p > 0 else reduce_min, do.each(abs_, x))
    elif p == 1:
        total = do.over(reduce_sum, do.each(abs_, x))
    else:
        total = do.root(do.over(reduce_sum, do.each(power, do.each(abs_, x), float(p))), 1 / p)
    return do.done(do.each(maximum, total, float(epsilon)) if epsilon else total, keep_dims)


def _check_var(operands, *, axis, ddof, keep_dims):
    shape = operands[0].shape
    count = math.prod(shape[i] for i in reduced_dims(axis, len(shape)))
    if ddof >= count:
        return f"ddof={ddof}", f"A number below {count}, how many elements are reduced"


def _squares(do, x, ddof):
    """Sum of the squared distances to the mean, divided by the count less ddof."""
    count = math.prod(do.shape[i] for i in do.gone)
    apart = do.each(sub, x, do.over(reduce_mean, x))
    total = do.over(reduce_sum, do.each(square, apart))
    return do.each(mul, total, 1.0 / (count - ddof))


def _read_ddof(value):
    if type(value) is not bool:
        return integer().read(value)
    return int(value)


_VARIANCE = {
    "attrs": {**DIMS, "ddof": Check("An int", _read_ddof)},
    "check": _check_var,
    "dtype": float_result,
    "example": (*CASES, case((16, 8), axis=0, ddof=1)),
}


@composed(_labels, name="Var", **_VARIANCE)
def var(part, x, axis=None, *, ddof=0, keep_dims=False):
    """Variance over `axis` (None: all); squares are divided by count - ddof.  x: (...) -> (...) without them, or 1."""
    do = _Steps(part, x, axis)
    return do.done(_squares(do, do.floats(x), ddof), keep_dims)


@composed(_labels, name="Std", **_VARIANCE)
def std(part, x, axis=None, *, ddof=0, keep_dims=False):
    """Standard deviation over `axis`, see `var`; gradient 0 at 0.  x: (...) -> (...) without those dims, or size 1."""
    do = _Steps(part, x, axis)
    return do.done(do.root(_squares(do, do.floats(x), ddof), 0.5), keep_dims)


def kept_dims(value, x, axis):
    """What a reduction of x gave, with its dims of size 1."""
    gone = reduced_dims(axis, len(x.shape))
    return reshape(value, tuple(1 if dim in gone else size for dim, size in enumerate(x.shape)))


@var.vjp
def _(g, out, x, *, axis, ddof, keep_dims):
    count = math.prod(x.shape[dim] for dim in reduced_dims(axis, len(x.shape)))
    apart = sub(x, reduce_mean(x, axis, keep_dims=True))
    return (mul(apart, mul(kept_dims(g, x, axis), 2.0 / (count - ddof))),)


@std.vjp
def _(g, out, x, *, axis, ddof, keep_dims):
    of_variance = select(equal(out, 0.0), 0.0, div(g, mul(out, 2.0)))
    return var.vjp_fn(of_variance, out, x, axis=axis, ddof=ddof, keep_dims=keep_dims)


@function(mint="functional.cosine_similarity")
def cosine_similarity(x1, x2, dim=1, eps=1e-08):
    """Sum of products along `dim` over the product of both norms, each at least eps.  x1, x2: (...) -> (...)."""
    eps = number(0)("cosine_similarity", "eps", eps, SHAPE_ERRORS)
    dim = integer()("cosine_similarity", "dim", dim, SHAPE_ERRORS)
    norms = (maximum(lp_norm(x, axis=dim, p=2), eps) for x in (x1, x2))
    return div(reduce_sum(mul(x1, x2), dim), mul(*norms))


# ---- sums of squares ----


@op(
    lambda shapes: f"{letters(len(shapes[0]))}->",
    name="L2Loss",
    dtype=float_result,
    flops=2,
    example=(case((16, 8)), case((4, 8, 2))),
)
def l2_loss(x):
    """Half of the sum of all squares.  x: (...) -> ()."""
    return np.sum(np.square(x, dtype=float_result((x.dtype,)))) / 2


@l2_loss.vjp
def _(g, out, x):
    return (mul(g, x),)


@op(
    lambda shapes, **_: f"{letters(len(shapes[0]))},{letters(len(shapes[0]))}->,,",
    name="SquareSumAll",
    flops=2,
    example=(case((16, 8), (16, 8)), case((4, 8, 2), (4, 8, 2))),
)
def square_sum_all(x, y):
    """The sums of all squares of two tensors of one shape.  x, y: (...) -> (), ()."""
    return tuple(np.sum(np.square(each), dtype=x.dtype) for each in (x, y))


@square_sum_all.vjp
def _(g, out, x, y):
    return tuple(None if part is None else mul(mul(part, 2.0), each) for part, each in zip(g, (x, y), strict=True))


# ---- reductions in the forms of other primitives ----


def _in_mints_form(operator, name):
    """Declare `name`, the reduction as mint's primitives call it: what is reduced is an argument of the call."""

    @form(operator, name)
    def _(self, input, dim=None, keepdim=False, dtype=None):
        x = input if dtype is None else self.before(cast, input, dtype=dtype)
        return self.run(x, dim, keep_dims=keepdim)


_in_mints_form(reduce_sum, "SumExt")
_in_mints_form(reduce_mean, "MeanExt")
_in_mints_form(reduce_prod, "ProdExt")


@form(reduce_max, "Max")
@form(reduce_min, "Min")
def _(self, input):
    """The largest element of all (Min: the smallest).  input: (...) -> ()."""
    return self.run(input)
