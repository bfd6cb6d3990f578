"""Operators under the names that tutorials for MindSpore and PyTorch type: `ops.sum`, `ops.topk`, `ops.bmm`, `ops.einsum`.

Nothing is computed here: each is another name of an operator, or made of operators. Several names are also Python's own (sum, max, abs, ...), so this
file uses none of those functions.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import ShapeError, message, shorten
from .elementwise import div, floor_div, mul, neg, power, sub
from .functions import abs_, round_
from .index import gather_elements, strided_slice
from .linalg import matmul
from .logic import equal, greater, greater_equal, less, less_equal, not_equal
from .order import argmax, argmin, sort, top_k
from .reduce import reduce_all, reduce_any, reduce_max, reduce_mean, reduce_min, reduce_prod, reduce_sum
from .registry import check_dim
from .shape import expand_dims, reshape, squeeze, tile, transpose

__all__ = [
    "abs",
    "absolute",
    "all",
    "amax",
    "amin",
    "any",
    "bmm",
    "divide",
    "einsum",
    "eq",
    "floor_divide",
    "gather_d",
    "ge",
    "gt",
    "le",
    "lt",
    "max",
    "mean",
    "min",
    "multiply",
    "ne",
    "negative",
    "permute",
    "pow",
    "prod",
    "repeat_interleave",
    "round",
    "subtract",
    "sum",
    "topk",
    "unsqueeze",
]

abs = absolute = abs_
round = round_
pow = power
divide, floor_divide, multiply, negative, subtract = div, floor_div, mul, neg, sub
eq, ne, gt, ge, lt, le = equal, not_equal, greater, greater_equal, less, less_equal
gather_d = gather_elements


def _array(value):
    """A list as an array; anything with a dtype as it is."""
    return value if hasattr(value, "dtype") else np.asarray(value)


# ---- reductions ----


def spelling(where, axis, keep_dims, spelled):
    """(axis, keep_dims) from all spellings: `dim` is axis, `keepdims` and `keepdim` are keep_dims. ShapeError for other names."""
    for name, value in spelled.items():
        if name == "dim" and axis is None:
            axis = value
        elif name in ("keepdims", "keepdim"):
            keep_dims = value
        else:
            fault = "axis and dim are both given" if name == "dim" else f"unknown argument {name!r}"
            raise ShapeError(message(fault, where=where, allowed="axis (or dim), keep_dims (or keepdims, keepdim)"))
    return axis, keep_dims


def _reduction(where, operator, x, axis, keep_dims, spelled):
    axis, keep_dims = spelling(where, axis, keep_dims, spelled)
    return operator(x, axis, keep_dims=keep_dims)


def sum(input, axis=None, keep_dims=False, **spelled):
    """`reduce_sum`.  input: (...) -> (...) without the dims `axis` (or `dim`; None: all), or with size 1 there if keep_dims (keepdims, keepdim)."""
    return _reduction("sum", reduce_sum, input, axis, keep_dims, spelled)


def mean(input, axis=None, keep_dims=False, **spelled):
    """`reduce_mean`.  input: (...) -> (...) without the dims `axis` (or `dim`; None: all), or with size 1 there if keep_dims (keepdims, keepdim)."""
    return _reduction("mean", reduce_mean, input, axis, keep_dims, spelled)


def prod(input, axis=None, keep_dims=False, **spelled):
    """`reduce_prod`.  input: (...) -> (...) without the dims `axis` (or `dim`; None: all), or with size 1 there if keep_dims (keepdims, keepdim)."""
    return _reduction("prod", reduce_prod, input, axis, keep_dims, spelled)


def amax(input, axis=None, keep_dims=False, **spelled):
    """`reduce_max`.  input: (...) -> (...) without the dims `axis` (or `dim`; None: all), or with size 1 there if keep_dims (keepdims, keepdim)."""
    return _reduction("amax", reduce_max, input, axis, keep_dims, spelled)


def amin(input, axis=None, keep_dims=False, **spelled):
    """`reduce_min`.  input: (...) -> (...) without the dims `axis` (or `dim`; None: all), or with size 1 there if keep_dims (keepdims, keepdim)."""
    return _reduction("amin", reduce_min, input, axis, keep_dims, spelled)


def all(input, axis=None, keep_dims=False, **spelled):
    """`reduce_all`.  input: (...) -> (...) bool without the dims `axis` (or `dim`; None: all), or with size 1 there if keep_dims."""
    return _reduction("all", reduce_all, input, axis, keep_dims, spelled)


def any(input, axis=None, keep_dims=False, **spelled):
    """`reduce_any`.  input: (...) -> (...) bool without the dims `axis` (or `dim`; None: all), or with size 1 there if keep_dims."""
    return _reduction("any", reduce_any, input, axis, keep_dims, spelled)


def _extreme(where, operator, place, x, axis, keep_dims, spelled):
    """The extreme elements along one dim and their numbers."""
    axis, keep_dims = spelling(where, axis, keep_dims, spelled)
    shape = tuple(x.shape)
    if axis is None:
        return operator(x), place(reshape(x, (-1,)))
    axis = check_dim(where, "axis", axis, len(shape), shape)
    numbers = place(x, axis=axis, keep_dims=True)
    values = gather_elements(x, axis, numbers)  # unlike reduce_max, the gradient goes to the one element that has this number
    return (values, numbers) if keep_dims else (squeeze(values, axis=(axis,)), squeeze(numbers, axis=(axis,)))


def max(input, axis=None, keep_dims=False, **spelled):
    """The largest elements along one dim and their numbers, as in mindspore.ops.  input: (..., n, ...) -> values (...), numbers (...) int32.

    axis  an int, or None: the largest of all elements, (), and its number among them in row-major order (MindSpore says 0 then)

    Of equal elements the first counts, and the gradient is its alone. `reduce_max` (or `amax`) gives the values only; there `axis` may be cut.
    """
    return _extreme("max", reduce_max, argmax, _array(input), axis, keep_dims, spelled)


def min(input, axis=None, keep_dims=False, **spelled):
    """The smallest elements along one dim and their numbers, as in mindspore.ops.  input: (..., n, ...) -> values (...), numbers (...) int32.

    axis  an int, or None: the smallest of all elements, (), and its number among them in row-major order (MindSpore says 0 then)

    Of equal elements the first counts, and the gradient is its alone. `reduce_min` (or `amin`) gives the values only; there `axis` may be cut.
    """
    return _extreme("min", reduce_min, argmin, _array(input), axis, keep_dims, spelled)


# ---- order ----


def topk(input, k, dim=None, largest=True, sorted=True):
    """The k largest (or smallest) elements along `dim` (None: the last one), in order, and their numbers, as in mindspore.ops.

    input: (..., n, ...) -> values (..., k, ...), numbers (..., k, ...) int32. `sorted=False` promises no order; it is the same.
    """
    input = _array(input)
    shape = tuple(input.shape)
    axis = check_dim("topk", "dim", -1 if dim is None else dim, len(shape), shape)
    if largest and axis == len(shape) - 1:
        return top_k(input, k)
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= shape[axis]:
        what = f"k={shorten(k)} for dim {axis} of a tensor of shape {shape}"
        raise ShapeError(message(what, where="topk", allowed=f"An int from 0 to {shape[axis]}, the size of the dim"))
    end = (*shape[:axis], k)
    return tuple(strided_slice(each, (0,) * len(end), end) for each in sort(input, axis=axis, descending=largest))


# ---- shapes ----


def permute(input, *axis):
    """`transpose`: dims in the order `axis`, a tuple or the ints themselves.  input: (...) -> (...)."""
    return transpose(_array(input), tuple(axis[0]) if len(axis) == 1 and isinstance(axis[0], (tuple, list)) else axis)


def unsqueeze(input, dim):
    """`expand_dims`: a dim of size 1 put in at `dim` of the result.  input: (...) -> (..., 1, ...)."""
    return expand_dims(input, dim)


def repeat_interleave(input, repeats, axis=None):
    """Every element `repeats` times along `axis`, one after the other, as numpy's repeat; axis None: of input as one row.

    input: (..., n, ...) -> (..., n * repeats, ...)
    """
    input = _array(input)
    if axis is None:
        input, axis = reshape(input, (-1,)), 0
    shape = tuple(input.shape)
    axis = check_dim("repeat_interleave", "axis", axis, len(shape), shape)
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        hint = "For other counts along each dim use ops.tile(x, multiples)" if isinstance(repeats, (tuple, list)) else ""
        raise ShapeError(message(f"repeats={shorten(repeats)}", where="repeat_interleave", allowed="An int, at least 1", hint=hint))
    multiples = (*(1,) * (axis + 1), repeats, *(1,) * (len(shape) - axis - 1))
    return reshape(tile(expand_dims(input, axis + 1), multiples), (*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]))


# ---- products ----


def bmm(input, mat2):
    """A product for every matrix of a batch: `matmul` of tensors with 3 dims.  input: (b, m, k), mat2: (b, k, n) -> (b, m, n)."""
    input, mat2 = _array(input), _array(mat2)
    a, b = tuple(input.shape), tuple(mat2.shape)
    if len(a) != 3 or len(b) != 3 or a[0] != b[0]:
        raise ShapeError(
            message(f"shapes {a} and {b}", where="bmm", allowed="(b, m, k) and (b, k, n)", hint="ops.matmul takes other numbers of dims")
        )
    return matmul(input, mat2)


def einsum(equation, *operands):
    """Products and sums of one or two tensors by labels: `einsum("bik,bkj->bij", x, y)`.  operands: as labelled -> as labelled after "->".

    Labels that the result lacks are summed over. Without "->" the result has the labels that occur once, in the order of the alphabet. Made of
    reduce_sum, transpose and matmul, and of reshape where several labels are one dim of a matrix. Not taken: "...", a label twice in one tensor.
    """
    operands = [_array(x) for x in (operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands)]
    ins, out = _equation(equation, operands)
    if len(operands) == 1:
        return _ordered(*_summed(operands[0], ins[0], out), out)
    (a, left), (b, right) = _summed(operands[0], ins[0], out + ins[1]), _summed(operands[1], ins[1], out + ins[0])
    size = {**dict(zip(left, a.shape, strict=True)), **dict(zip(right, b.shape, strict=True))}
    batch = "".join(c for c in left if c in right and c in out)
    inner = "".join(c for c in left if c in right and c not in out)
    rows, columns = ("".join(c for c in labels if c not in batch + inner) for labels in (left, right))

    def matrices(x, labels, first, second):
        shape = tuple(size[c] for c in batch) + tuple(math.prod(size[c] for c in part) for part in (first, second))
        return _shaped(_ordered(x, labels, batch + first + second), shape)

    product = matmul(matrices(a, left, rows, inner), matrices(b, right, inner, columns))
    made = batch + rows + columns
    return _ordered(_shaped(product, tuple(size[c] for c in made)), made, out)


def _equation(equation, operands):
    """(labels of each operand, labels of the result) of an equation that fits the operands. Raises ShapeError."""

    def refuse(what, allowed, hint=""):
        raise ShapeError(message(f"{what} in {shorten(equation)}", where="einsum", allowed=allowed, hint=hint))

    text = equation.replace(" ", "") if isinstance(equation, str) else ""
    left, arrow, out = text.partition("->")
    ins = left.split(",")
    if not left.replace(",", "").isalpha() or (out and not out.isalpha()):
        refuse("the labels", "Letters, one per dim, as 'ij,jk->ik'", "Write out the dims that '...' stands for" if "..." in text else "")
    if len(ins) != len(operands) or len(ins) > 2:
        hint = "Take the tensors two at a time" if len(operands) > 2 else ""
        refuse(f"{len(operands)} tensors for {len(ins)} groups of labels", "One or two tensors, with a group of labels each", hint)
    size = {}
    for labels, x in zip(ins, operands, strict=True):
        if len(labels) != len(x.shape) or len(set(labels)) < len(labels):
            refuse(f"labels {labels!r} for a tensor of shape {tuple(x.shape)}", "One label per dim, each once")
        for label, n in zip(labels, x.shape, strict=True):
            if size.setdefault(label, n) != n:
                refuse(f"label {label!r} is {size[label]} and {n}", "One size per label")
    if not arrow:
        out = "".join(sorted(c for c in size if left.count(c) == 1))
    if len(set(out)) < len(out) or not set(out) <= set(size):
        refuse(f"the result's labels {out!r}", "Labels of the tensors, each once")
    return ins, out


def _summed(x, labels, wanted):
    """x summed over the labels that nobody wants, and the labels it has then."""
    gone = tuple(i for i, c in enumerate(labels) if c not in wanted)
    return (reduce_sum(x, gone) if gone else x), "".join(c for c in labels if c in wanted)


def _ordered(x, labels, wanted):
    return x if labels == wanted else transpose(x, tuple(labels.index(c) for c in wanted))


def _shaped(x, shape):
    return x if tuple(x.shape) == shape else reshape(x, shape)
