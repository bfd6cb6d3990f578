"""Counts, spreads and norms of elements, in the words of MindSpore and PyTorch."""

from __future__ import annotations

import numpy as np

from ...base.checks import SHAPE_ERRORS, number
from ...ops.elementwise import add, cast, div, float_result, maximum, mul, sub
from ...ops.logic import isfinite, isnan, not_equal, select
from ...ops.machine.composed import composed
from ...ops.machine.operand_checks import floats, one_dim
from ...ops.machine.registry import case, form, gradient, op
from ...ops.machine.signature import along_axis
from ...ops.normalization import EPSILON, wide
from ...ops.reduce import DIMS, reduce_max, reduce_mean, reduce_sum, spelling
from ...ops.spellings import function
from ...ops.unary import stop_gradient
from .elementary_functions import exp, log
from .norms import CASES, _labels, _Steps, kept_dims, lp_norm, std, var

# ---- counts and spreads ----


@function()
def count_nonzero(x, axis=None, keep_dims=False, dtype="int32", **spelled):
    """How many elements are not 0 over `axis` (or `dim`; None: all).  x: (...) -> (...) ints without those dims."""
    axis, keep_dims = spelling("count_nonzero", axis, keep_dims, spelled)
    return reduce_sum(cast(not_equal(x, 0), dtype=dtype), axis, keep_dims=keep_dims)


@function(mint="nansum")
def nansum(input, axis=None, keepdims=False, *, dtype=None, **spelled):
    """Sum that leaves NaN out, over `axis` (or `dim`; None: all).  input: (...) -> (...) without those dims."""
    axis, keepdims = spelling("nansum", axis, keepdims, spelled)
    numbers = select(isnan(input), 0.0, input)
    return reduce_sum(numbers if dtype is None else cast(numbers, dtype=dtype), axis, keep_dims=keepdims)


@function()
def std_mean(input, axis=None, ddof=0, keepdims=False):
    """Standard deviation, squares divided by the count less `ddof`, and mean.  input: (...) -> two (...)."""
    return std(input, axis, ddof=ddof, keep_dims=keepdims), reduce_mean(input, axis, keep_dims=keepdims)


@function()
def var_mean(input, axis=None, ddof=0, keepdims=False):
    """Variance, squares divided by the count less `ddof`, and mean.  input: (...) -> two (...)."""
    return var(input, axis, ddof=ddof, keep_dims=keepdims), reduce_mean(input, axis, keep_dims=keepdims)


@function(mint="functional.normalize")
def normalize(input, p=2.0, dim=1, eps=1e-12):
    """input over its p-norm along `dim`, which is at least eps.  input: (...) -> (...)."""
    eps = number(0)("normalize", "eps", eps, SHAPE_ERRORS)
    return div(input, maximum(lp_norm(input, axis=dim, p=p, keep_dims=True), eps))


# ---- further classes of operators ----


@form(lp_norm, "EuclideanNorm")
def _(self, x, axes=None, *, keep_dims=False):
    """Root of the sum of squares over `axes` (None: all).  x: (...) -> (...) without those dims, or with size 1."""
    return self.run(x, axis=axes.asnumpy().tolist() if hasattr(axes, "asnumpy") else axes, keep_dims=keep_dims)


@function()
def norm(x, ord=None, dim=None, keepdim=False):  # the argument names of mindspore.ops.norm
    """`lp_norm` in mindspore.ops' form.  x: (...) -> (...) without the dims `dim` (None: all), or with size 1 there.

    ord  None or 2: the Euclidean (Frobenius) norm; other numbers as `p` of lp_norm, on all elements as one vector
    """
    return lp_norm(x, axis=dim, p=2 if ord is None or isinstance(ord, str) and ord == "fro" else ord, keep_dims=keepdim)


@composed(_labels, name="LogSumExp", attrs=DIMS, dtype=float_result, example=CASES)
def logsumexp(part, x, axis=None, *, keep_dims=False):
    """log of the sum of exp(x) over `axis`, without overflow.  x: (...) -> (...) without those dims, or size 1."""
    do = _Steps(part, x, axis)
    x = do.floats(x)
    # shifted by the largest element, which needs no gradient; not a row of infinities: inf - inf is not a number
    top = do.each(stop_gradient, do.over(reduce_max, x))
    top = do.each(select, do.each(isfinite, top), top, 0.0)
    total = do.over(reduce_sum, do.each(exp, do.each(sub, x, top)))
    return do.done(do.each(add, do.each(log, total), top), keep_dims)


@logsumexp.vjp
def _(g, out, x, *, axis, keep_dims):
    return (mul(exp(sub(x, kept_dims(out, x, axis))), kept_dims(g, x, axis)),)


# ---- Euclidean norm ----


def _l2_scale(x, axis, epsilon):
    """1 / max(norm, sqrt(epsilon)), and where the norm is the larger."""
    squared = np.square(x).sum(axis=axis, keepdims=True)
    return 1 / np.sqrt(np.maximum(squared, x.dtype.type(epsilon))), squared > epsilon


@op(
    "...->...",
    name="L2Normalize",
    attrs={"axis": one_dim, "epsilon": EPSILON},
    check=lambda operands, **_: floats(operands[0]),
    whole=along_axis,
    flops=4,
    example=(case((16, 8)), case((8, 16), axis=-1), case((4, 8, 3), axis=1)),
)
def l2_normalize(x, *, axis=0, epsilon=1e-4):
    """x / sqrt(max(sum of x^2 along `axis`, epsilon)), by MindSpore's defaults.  x: (...) -> (...)."""
    return (wide(x) * _l2_scale(wide(x), axis, epsilon)[0]).astype(x.dtype, copy=False)


@gradient(l2_normalize)
def l2_normalize_grad(g, x, *, axis, epsilon):
    """Gradient of l2_normalize; below epsilon the norm is a constant.  g, x: (...) -> (...)."""
    scale, depends = _l2_scale(wide(x), axis, epsilon)
    unit = wide(x) * scale
    along = (wide(g) * unit).sum(axis=axis, keepdims=True) * depends
    return ((wide(g) - unit * along) * scale).astype(x.dtype, copy=False)
