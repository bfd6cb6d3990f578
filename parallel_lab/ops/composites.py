"""Functions made of operators, in the words of MindSpore and PyTorch: dims moved and joined, numbers made safe,
activations of halves, counts and spreads of elements; and operators under further classes of mint.
"""

from __future__ import annotations

import math

import numpy as np

from ..base.checks import instance, integer, is_int, number
from ..base.dtypes import is_bfloat16, kind_of
from ..base.errors import ShapeError, shorten
from .activation import elu, leaky_relu, log_softmax, sigmoid, softmax, tanh
from .creation import eye, tril
from .elementwise import SHAPE, UNARY, a_dtype, add, cast, div, maximum, mul, neg, power, sub
from .gather import one_hot
from .join import concat, split_parts
from .linalg import bmm, einsum, matmul, outer
from .logic import isnan, near, not_equal, select
from .machine.opdef import SHAPE_ERRORS
from .machine.operand_checks import check_dim, refuse, some_dims
from .machine.registry import PRIMITIVES, case, form, gradient, op
from .machine.signature import letters
from .padding import flip
from .reduce import reduce_all, reduce_mean, reduce_sum, spelling
from .shape import as_array, broadcast_to, expand_dims, reshape, swapaxes, transpose
from .spellings import function, tensor_operand
from .statistics import lp_norm, std, var

NUMBER = instance((int, float, np.integer, np.floating), "A number")

# ---- dims ----


@function(also="movedim", method="movedim moveaxis")
def moveaxis(x, source, destination):
    """Dims moved to other places, the others in their order.  x: (...) -> (...). Both: an int, or a tuple of ints."""
    shape = tuple(x.shape)
    pairs = {}
    for name, value in (("source", source), ("destination", destination)):
        value = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        refuse("moveaxis", some_dims(name, value, shape))
        pairs[name] = [d % len(shape) for d in value]
    if len(pairs["source"]) != len(pairs["destination"]):
        what = f"source {source} and destination {destination}"
        raise ShapeError(what, where="moveaxis", allowed="As many dims in both")
    perm = [d for d in range(len(shape)) if d not in pairs["source"]]
    for place, dim in sorted(zip(pairs["destination"], pairs["source"], strict=True)):
        perm.insert(place, dim)
    return transpose(x, tuple(perm))


@function(method="swapdims")
def swapdims(input, dim0, dim1):
    """`swapaxes`: x with two dims exchanged.  input: (...) -> (...)."""
    return swapaxes(input, dim0, dim1)


@function(method="t", mint="t")
def t(input):
    """The transpose of a matrix; a vector or a number as it is.  input: (m, n) -> (n, m)."""
    if len(input.shape) > 2:
        raise ShapeError(f"a tensor of shape {tuple(input.shape)}", where="t", allowed="At most 2 dims")
    return transpose(input, (1, 0)) if len(input.shape) == 2 else input


@function(mint="ravel")
def ravel(input):
    """All elements in one row.  input: (...) -> (count,)."""
    return reshape(input, (-1,))


@function(method="numel", mint="numel")
def numel(input):
    """How many elements a tensor has, an int.  input: (...) -> int."""
    return math.prod(input.shape)


@function(method="fliplr")
def fliplr(input):
    """Columns in reverse order.  input: (m, n, ...) -> (m, n, ...)."""
    return flip(input, axis=1)


@function(method="flipud")
def flipud(input):
    """Rows in reverse order.  input: (m, ...) -> (m, ...)."""
    return flip(input, axis=0)


@function(method="view_as")
def view_as(input, other):
    """The same elements in the shape of `other`.  input: (...) -> (...)."""
    return reshape(input, tuple(tensor_operand("view_as", "other", other).shape))


@form(broadcast_to, "Expand")
def _(self, x, shape):
    """x stretched to `shape`; -1 keeps a dim.  x: (...) -> `shape`."""
    return self.run(x, shape=shape.asnumpy().tolist() if hasattr(shape, "asnumpy") else shape)


@form(broadcast_to, "ExpandAs")
def _(self, input, other):
    """input stretched to the shape of `other`.  input: (...) -> (...)."""
    return self.run(input, shape=tuple(tensor_operand("ExpandAs", "other", other).shape))


def _with_dims(where, tensors, least):
    """The tensors of a list, with dims of size 1 in front (a vector's two before the third place for least 3)."""
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise ShapeError(f"tensors={shorten(tensors)}", where=where, allowed="A list or tuple of tensors")
    found = [tensor_operand(where, f"tensor {i}", x) for i, x in enumerate(tensors)]
    return [x if len(x.shape) >= least else reshape(x, (*(1,) * (least - len(x.shape)), *x.shape)) for x in found]


@function(mint="hstack")
def hstack(tensors):
    """Tensors joined along dim 1, vectors along dim 0.  tensors: each (m, n_i, ...) -> (m, sum of n_i, ...)."""
    found = _with_dims("hstack", tensors, 1)
    return concat(*found, axis=0 if len(found[0].shape) == 1 else 1)


@function(also="row_stack", mint="vstack")
def vstack(tensors):
    """Tensors joined along dim 0, vectors as rows.  tensors: each (m_i, n, ...) -> (sum of m_i, n, ...)."""
    return concat(*_with_dims("vstack", tensors, 2), axis=0)


@function(mint="dstack")
def dstack(tensors):
    """Tensors joined along dim 2, which matrices and vectors get.  tensors: each (m, n, k_i) -> (m, n, sum of k_i)."""
    found = _with_dims("dstack", tensors, 2)
    return concat(*(expand_dims(x, 2) if len(x.shape) == 2 else x for x in found), axis=2)


@function()
def column_stack(tensors):
    """Tensors joined along dim 1, vectors as columns.  tensors: each (m, n_i) or (m,) -> (m, sum of n_i)."""
    found = _with_dims("column_stack", tensors, 1)
    return concat(*(expand_dims(x, 1) if len(x.shape) == 1 else x for x in found), axis=1)


@function(method="diff", mint="diff")
def diff(x, n=1, axis=-1, prepend=None, append=None):
    """Differences of neighbours along `axis`, n times.  x: (..., k, ...) -> (..., k - n, ...).

    prepend, append  tensors that are joined to x before and after it, along `axis`
    """
    around = [
        tensor_operand("diff", name, y) for name, y in (("prepend", prepend), ("append", append)) if y is not None
    ]
    if around:
        x = concat(*around[: prepend is not None], x, *around[prepend is not None :], axis=axis)
    shape = tuple(x.shape)
    axis = check_dim("diff", "axis", axis, len(shape), shape)
    if not is_int(n, 0, shape[axis] - 1):
        raise ShapeError(f"n={shorten(n)}", where="diff", allowed=f"An int from 0 to {shape[axis] - 1}")
    for left in range(shape[axis], shape[axis] - n, -1):
        first, _ = split_parts(x, axis=axis, sizes=(left - 1, 1))
        _, second = split_parts(x, axis=axis, sizes=(1, left - 1))
        x = sub(second, first)
    return x


# ---- numbers ----


@function(numbers="input exponent", method="float_power(exponent)", mint="float_power")
def float_power(input, exponent):
    """input to the power `exponent`, in float64.  input, exponent: (...) -> broadcast (...)."""
    exponent = cast(exponent, dtype="float64") if hasattr(exponent, "dtype") else exponent
    return power(cast(as_array(input), dtype="float64"), exponent)


@op(UNARY, name="NanToNum", example=case(SHAPE, nan=0.5, posinf=1.0, neginf=-1.0))
def numbers_instead(x, *, nan=0.0, posinf=None, neginf=None):
    """Numbers in place of NaN and of infinities; None: the largest and smallest of the dtype.  x: (...) -> (...)."""
    return np.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)


@gradient(numbers_instead)
def numbers_instead_grad(g, x):
    """g where x is a number, 0 elsewhere.  g, x: (...) -> (...)."""
    return np.where(np.isfinite(x), g, 0).astype(g.dtype)


@form(numbers_instead, "NanToNum")
def _(self, x, *, nan=0.0, posinf=None, neginf=None):
    """Numbers in place of NaN and of infinities; None: the largest and smallest of the dtype.  x: (...) -> (...)."""
    nan, posinf, neginf = (n if n is None else NUMBER("nan_to_num", "a number", n) for n in (nan, posinf, neginf))
    if kind_of(x.dtype) != "f":
        return x
    # bfloat16 is computed in float32, whose largest number is more than it holds
    largest = (2 - 2**-7) * 2.0**127 if is_bfloat16(x.dtype) else float(np.finfo(str(x.dtype)).max)
    limits = {"posinf": largest if posinf is None else posinf, "neginf": -largest if neginf is None else neginf}
    return self.run(x, nan=0.0 if nan is None else nan, **limits)


@function(method="nan_to_num", mint="nan_to_num")
def nan_to_num(input, nan=None, posinf=None, neginf=None):
    """`NanToNum`; None: 0, and the largest and smallest number of the dtype.  input: (...) -> (...)."""
    return PRIMITIVES["NanToNum"](nan=nan, posinf=posinf, neginf=neginf)(input)


@function(method="isclose", mint="isclose")
def isclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether |input - other| is at most atol + rtol * |other|.  input, other: (...) -> broadcast (...) bool."""
    return near(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan)


@function(method="allclose", mint="allclose")
def allclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether all elements are close (`isclose`).  input, other: (...) broadcast -> () bool."""
    return reduce_all(isclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan))


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


# ---- counts and spreads ----


@function(method="count_nonzero", mint="count_nonzero")
def count_nonzero(x, axis=None, keep_dims=False, dtype="int32", **spelled):
    """How many elements are not 0 over `axis` (or `dim`; None: all).  x: (...) -> (...) ints without those dims."""
    axis, keep_dims = spelling("count_nonzero", axis, keep_dims, spelled)
    return reduce_sum(cast(not_equal(x, 0), dtype=dtype), axis, keep_dims=keep_dims)


@function(method="nansum", mint="nansum")
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


@function(mint="functional.cosine_similarity")
def cosine_similarity(x1, x2, dim=1, eps=1e-08):
    """Sum of products along `dim` over the product of both norms, each at least eps.  x1, x2: (...) -> (...)."""
    eps = number(0)("cosine_similarity", "eps", eps, SHAPE_ERRORS)
    dim = integer()("cosine_similarity", "dim", dim, SHAPE_ERRORS)
    norms = (maximum(lp_norm(x, axis=dim, p=2), eps) for x in (x1, x2))
    return div(reduce_sum(mul(x1, x2), dim), mul(*norms))


@function(mint="functional.normalize")
def normalize(input, p=2.0, dim=1, eps=1e-12):
    """input over its p-norm along `dim`, which is at least eps.  input: (...) -> (...)."""
    eps = number(0)("normalize", "eps", eps, SHAPE_ERRORS)
    return div(input, maximum(lp_norm(input, axis=dim, p=p, keep_dims=True), eps))


# ---- products ----


@function(method="addbmm", mint="addbmm")
def addbmm(input, batch1, batch2, *, beta=1, alpha=1):
    """beta * input + alpha * the sum of all products of a batch.  input: (m, n), (b, m, k), (b, k, n) -> (m, n)."""
    total = reduce_sum(bmm(batch1, batch2), 0)
    return add(input if beta == 1 else mul(input, beta), total if alpha == 1 else mul(total, alpha))


@function(also="tensor_dot")
def tensordot(x1, x2, axes):
    """Products summed over dims of both: the last `axes` of x1 and the first of x2, or those of a pair of tuples."""
    x1, x2 = (tensor_operand("tensordot", name, x) for name, x in (("x1", x1), ("x2", x2)))
    dims = [len(x1.shape), len(x2.shape)]
    if is_int(axes, 0, min(dims)):
        axes = tuple(range(dims[0] - axes, dims[0])), tuple(range(axes))
    pair = [each if isinstance(each, (tuple, list)) else (each,) for each in axes] if _is_pair(axes) else []
    if len(pair) != 2 or len(pair[0]) != len(pair[1]):
        allowed = f"An int from 0 to {min(dims)}, or two tuples of dims, equally long"
        raise ShapeError(f"axes={shorten(axes)}", where="tensordot", allowed=allowed)
    for x, each in zip((x1, x2), pair, strict=True):
        refuse("tensordot", some_dims("axes", tuple(each), tuple(x.shape)))
    names = letters(sum(dims))
    left, right = names[: dims[0]], list(names[dims[0] :])
    for i, j in zip(*pair, strict=True):
        right[j] = left[i]
    gone = {left[i] for i in pair[0]}
    return einsum(f"{left},{''.join(right)}->{''.join(c for c in [*left, *right] if c not in gone)}", x1, x2)


@function(mint="inner")
def inner(input, other):
    """Sums of products along the last dims.  input: (..., n), other: (... , n) -> (..., ...). Numbers multiply."""
    input, other = (tensor_operand("inner", name, x) for name, x in (("input", input), ("other", other)))
    if not input.shape or not other.shape:
        return mul(input, other)
    return tensordot(input, other, ((len(input.shape) - 1,), (len(other.shape) - 1,)))


@function(method="vecdot")
def vecdot(x, y, *, axis=-1):
    """Sums of products of elements along `axis`.  x, y: broadcast to (..., n, ...) -> (..., ...)."""
    return reduce_sum(mul(x, y), integer()("vecdot", "axis", axis, SHAPE_ERRORS))


@function()
def meshgrid(*inputs, indexing="xy"):
    """Vectors broadcast to a grid.  inputs: (n_i,) each -> as many tensors (n_0, n_1, ...), of "xy" (n_1, n_0, ...)."""
    given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)) else inputs
    given = [tensor_operand("meshgrid", "inputs", each) for each in given]
    if indexing not in ("xy", "ij") or not given or any(len(each.shape) != 1 for each in given):
        shapes = ", ".join(str(tuple(each.shape)) for each in given)
        what, allowed = f"indexing={shorten(indexing)} of tensors of shape {shapes}", 'Vectors, "xy" or "ij"'
        raise ShapeError(what, where="meshgrid", allowed=allowed)
    order = list(range(len(given)))
    if indexing == "xy" and len(given) > 1:
        order[:2] = [1, 0]
    shape = [given[i].shape[0] for i in order]
    places = [[n if order[dim] == i else 1 for dim, n in enumerate(shape)] for i in range(len(given))]
    return tuple(
        broadcast_to(reshape(each, place), shape=tuple(shape)) for each, place in zip(given, places, strict=True)
    )


def _is_pair(value):
    return isinstance(value, (tuple, list)) and len(value) == 2


@function(method="trace", mint="trace")
def trace(input):
    """Sum of the main diagonal.  input: (m, n) -> ()."""
    shape = tuple(input.shape)
    if len(shape) != 2:
        raise ShapeError(f"a tensor of shape {shape}", where="trace", allowed="A matrix")
    return reduce_sum(mul(input, eye(*shape, dtype=str(input.dtype))))


@function(method="addr")
def addr(x, vec1, vec2, *, beta=1, alpha=1):
    """beta * x + alpha * outer(vec1, vec2).  x: broadcast to (m, n), vec1: (m,), vec2: (n,) -> (m, n)."""
    made = outer(as_array(vec1), as_array(vec2))
    beta, alpha = NUMBER("addr", "beta", beta), NUMBER("addr", "alpha", alpha)
    return add(x if beta == 1 else mul(x, beta), made if alpha == 1 else mul(made, alpha))


# ---- further classes of operators ----


@form(lp_norm, "EuclideanNorm")
def _(self, x, axes=None, *, keep_dims=False):
    """Root of the sum of squares over `axes` (None: all).  x: (...) -> (...) without those dims, or with size 1."""
    return self.run(x, axis=axes.asnumpy().tolist() if hasattr(axes, "asnumpy") else axes, keep_dims=keep_dims)


@form(one_hot, "OneHotExt")
def _(self, tensor, num_classes, on_value=1, off_value=0, axis=-1):
    """`on_value` at each index, `off_value` elsewhere.  tensor: (...) int -> (..., num_classes, ...)."""
    return self.run(tensor, num_classes, on_value, off_value, axis=axis)


@form(transpose, "TransposeExt")
def _(self, input, dim0, dim1):
    """Two dims exchanged.  input: (...) -> (...)."""
    shape = tuple(input.shape)
    places = [check_dim("TransposeExt", name, d, len(shape), shape) for name, d in (("dim0", dim0), ("dim1", dim1))]
    perm = list(range(len(shape)))
    perm[places[0]], perm[places[1]] = places[1], places[0]
    return self.run(input, tuple(perm))


@form(tril, "TrilExt")
def _(self, input, diagonal=0):
    """The lower triangle: zeros above `diagonal`.  input: (..., m, n) -> (..., m, n)."""
    return self.run(input, diagonal=diagonal)


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


@form(matmul, "Dense", read=2)
def _(self, input, weight, bias=None):
    """A dense layer's product.  input: (..., k), weight: (n, k), bias: (n,) -> (..., n)."""
    out = self.run(input, weight, transpose_b=True)
    return out if bias is None else add(out, bias)
