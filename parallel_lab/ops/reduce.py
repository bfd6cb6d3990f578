"""Reductions over dims. A cut, reduced dim leaves partial results, which an all_reduce combines."""

from __future__ import annotations

import math

import numpy as np

from ..base.errors import ShapeError
from .elementwise import cast, first_dtype, mul
from .logic import equal, select
from .machine.opdef import check_dim
from .machine.registry import case, op
from .machine.signature import letters
from .spellings import function


def reduced_dims(axis, ndim: int) -> tuple[int, ...]:
    """The dims `axis` names, ascending: None and () are all of them, negative ones count from the end."""
    if axis is None or axis == ():
        return tuple(range(ndim))
    axes = (axis,) if isinstance(axis, int) else axis
    return tuple(sorted({a % ndim for a in axes}))


def check_axes(where, operands, *, axis, keep_dims):
    """axis: None, or one or several ints, each naming another dim."""
    if axis is None:
        return
    shape = operands[0].shape
    dims = [check_dim(where, "axis", a, len(shape), shape) for a in (axis if isinstance(axis, tuple) else (axis,))]
    if len(set(dims)) < len(dims):
        raise ShapeError(
            f"axis={axis} for a tensor of shape {shape} names a dim twice", where=where, allowed="Each dim once"
        )


def check_some(where, operands, *, axis, keep_dims):
    """As `check_axes`, for reductions that have no result for no elements."""
    check_axes(where, operands, axis=axis, keep_dims=keep_dims)
    shape = operands[0].shape
    if not math.prod(shape[i] for i in reduced_dims(axis, len(shape))):
        raise ShapeError(
            f"axis={axis} for a tensor of shape {shape}: no elements to reduce",
            where=where,
            allowed="At least one element",
        )


def reduce_labels(shapes, *, axis, keep_dims):
    """Signature of a reduction: the dims that `axis` names have no label in the result, or "1" if they are kept."""
    names = letters(len(shapes[0]))
    gone = reduced_dims(axis, len(names))
    kept = "".join(("1" if keep_dims else "") if i in gone else c for i, c in enumerate(names))
    return f"{names}->{kept}"


def _float(dtypes, **_):
    return dtypes[0] if np.dtype(dtypes[0]).kind == "f" else "float32"


def _summed(dtypes, **_):
    return "int64" if dtypes[0] == "bool" else dtypes[0]


_CASES = (
    case((16, 8)),
    case((16, 8), axis=-1),
    case((16, 8), axis=0, keep_dims=True),
    case((4, 8, 2), axis=(0, 2)),
    case((4, 8, 2), axis=(1,), keep_dims=True),
)


@op(infer_fn=lambda shapes, *, shape, axis: shape)
def spread(x, *, shape, axis):
    """Undo a reduction's shape: repeat x along the dims that were reduced.  x: (...) -> `shape`. axis: the reduced
    dims.
    """
    kept = tuple(1 if i in axis else n for i, n in enumerate(shape))
    return np.array(
        np.broadcast_to(x.reshape(kept), shape), order="C"
    )  # ascontiguousarray would give a 0-d array a dim


def _spread(value, x, axis):
    return spread(value, shape=tuple(x.shape), axis=reduced_dims(axis, len(x.shape)))


@op(reduce_labels, check=check_axes, name="ReduceSum", numpy="sum", dtype=_summed, example=_CASES)
def reduce_sum(x, axis=None, *, keep_dims=False):
    """Sum over `axis` (None or () = all dims).  x: (...) -> (...) without those dims, or with size 1 there if
    keep_dims.
    """
    return x.sum(axis=reduced_dims(axis, x.ndim), keepdims=keep_dims, dtype=_summed((str(x.dtype),)))


@reduce_sum.vjp
def _(g, out, x, *, axis, keep_dims):
    return (_spread(g, x, axis),)


@op(reduce_labels, check=check_some, name="ReduceMean", numpy="mean", dtype=_float, reduce="mean", example=_CASES)
def reduce_mean(x, axis=None, *, keep_dims=False):
    """Mean over `axis` (None or () = all dims).  x: (...) -> (...) without those dims, or with size 1 there if
    keep_dims.
    """
    return x.mean(axis=reduced_dims(axis, x.ndim), keepdims=keep_dims, dtype=_float((str(x.dtype),)))


@reduce_mean.vjp
def _(g, out, x, *, axis, keep_dims):
    count = math.prod(x.shape[i] for i in reduced_dims(axis, len(x.shape)))
    return (_spread(g / count, x, axis),)


def _extreme_vjp(g, out, x, *, axis, keep_dims, across):
    # Equal extremes share the gradient equally (MindSpore), also when they lie on different ranks: their number is
    # summed across ranks.
    mask = cast(equal(x, _spread(out, x, axis)), dtype=str(g.dtype))
    ties = across(reduce_sum(mask, axis, keep_dims=keep_dims))
    return (mul(mask, _spread(g / ties, x, axis)),)


@op(reduce_labels, check=check_some, name="ReduceMax", numpy="max amax", reduce="max", example=_CASES)
def reduce_max(x, axis=None, *, keep_dims=False):
    """Largest element over `axis` (None or () = all dims).  x: (...) -> (...) without those dims, or with size 1 there
    if keep_dims.
    """
    return x.max(axis=reduced_dims(axis, x.ndim), keepdims=keep_dims)


@reduce_max.vjp
def _(g, out, x, *, axis, keep_dims, across):
    return _extreme_vjp(g, out, x, axis=axis, keep_dims=keep_dims, across=across)


@op(reduce_labels, check=check_some, name="ReduceMin", numpy="min amin", reduce="min", example=_CASES)
def reduce_min(x, axis=None, *, keep_dims=False):
    """Smallest element over `axis` (None or () = all dims).  x: (...) -> (...) without those dims, or with size 1 there
    if keep_dims.
    """
    return x.min(axis=reduced_dims(axis, x.ndim), keepdims=keep_dims)


@reduce_min.vjp
def _(g, out, x, *, axis, keep_dims, across):
    return _extreme_vjp(g, out, x, axis=axis, keep_dims=keep_dims, across=across)


@op(
    reduce_labels,
    check=check_axes,
    name="ReduceProd",
    numpy="prod",
    dtype=_summed,
    reduce="prod",
    example=tuple(case(*c.shapes, low=0.5, high=1.5, **dict(c.attrs)) for c in _CASES),
)
def reduce_prod(x, axis=None, *, keep_dims=False):
    """Product over `axis` (None or () = all dims).  x: (...) -> (...) without those dims, or with size 1 there if
    keep_dims.
    """
    return x.prod(axis=reduced_dims(axis, x.ndim), keepdims=keep_dims, dtype=_summed((str(x.dtype),)))


@op(infer_fn=lambda shapes, *, axis: shapes[1], dtype=first_dtype)
def reduce_prod_grad(g, x, product, zeros, *, axis):
    """Gradient of a product: g times the product of all other factors.

    g, product, zeros: x's shape without the dims `axis`, or with size 1 there; x: (...) -> (...)
    product  of the factors that are not 0, over all ranks; zeros: how many factors are 0, over all ranks
    """
    kept = tuple(1 if i in axis else n for i, n in enumerate(x.shape))
    product, zeros = product.reshape(kept), zeros.reshape(kept)
    factor = x == 0
    others = product / np.where(factor, np.ones((), x.dtype), x)
    return g.reshape(kept) * np.where(zeros == factor, others, np.zeros((), x.dtype))


@reduce_prod.vjp
def _(g, out, x, *, axis, keep_dims, across):
    # out / x would do but for zeros: the factors that are not 0 and the number of those that are say what the others
    # multiply to, for every x
    zero = equal(x, 0.0)
    product = across(reduce_prod(select(zero, 1.0, x), axis, keep_dims=keep_dims), reduce="prod")
    zeros = across(reduce_sum(cast(zero, dtype=str(g.dtype)), axis, keep_dims=keep_dims))
    return (reduce_prod_grad(g, x, product, zeros, axis=reduced_dims(axis, len(x.shape))),)


def _bool_case(c):
    return case(*c.shapes, bools={0}, **dict(c.attrs))


@op(
    reduce_labels,
    check=check_axes,
    name="ReduceAny",
    numpy="any",
    dtype="bool",
    reduce="max",
    example=tuple(_bool_case(c) for c in _CASES),
)
def reduce_any(x, axis=None, *, keep_dims=False):
    """Whether any element is true (not 0) over `axis` (None or () = all dims).  x: (...) -> (...) bool, without those
    dims or with size 1 there.
    """
    return x.any(axis=reduced_dims(axis, x.ndim), keepdims=keep_dims)


@op(
    reduce_labels,
    check=check_axes,
    name="ReduceAll",
    numpy="all",
    dtype="bool",
    reduce="min",
    example=tuple(_bool_case(c) for c in _CASES),
)
def reduce_all(x, axis=None, *, keep_dims=False):
    """Whether all elements are true (not 0) over `axis` (None or () = all dims).  x: (...) -> (...) bool, without those
    dims or with size 1 there.
    """
    return x.all(axis=reduced_dims(axis, x.ndim), keepdims=keep_dims)


# ---- every spelling ----


def spelling(where, axis, keep_dims, spelled):
    """(axis, keep_dims) from all spellings: `dim` is axis, `keepdims` and `keepdim` are keep_dims. ShapeError for other
    names.
    """
    for name, value in spelled.items():
        if name == "dim" and axis is None:
            axis = value
        elif name in ("keepdims", "keepdim"):
            keep_dims = value
        else:
            fault = "axis and dim are both given" if name == "dim" else f"unknown argument {name!r}"
            raise ShapeError(fault, where=where, allowed="axis (or dim), keep_dims (or keepdims, keepdim)")
    return axis, keep_dims


def _in_every_spelling(name, operator, result="", **spellings):
    """Publish `ops.<name>`, a reduction whose arguments may be spelled as in MindSpore, numpy or PyTorch."""

    def reduction(input, axis=None, keep_dims=False, **spelled):
        axis, keep_dims = spelling(name, axis, keep_dims, spelled)
        return operator(input, axis, keep_dims=keep_dims)

    reduction.__name__ = reduction.__qualname__ = name
    reduction.__doc__ = (
        f"`{operator.name}`.  input: (...) -> (...){result} without the dims `axis` (or `dim`; None: all), or with "
        "size 1 there if keep_dims (keepdims, keepdim)."
    )
    function(**spellings)(reduction)


_in_every_spelling("sum", reduce_sum, method="sum", mint="sum")
_in_every_spelling("mean", reduce_mean, method="mean", mint="mean")
_in_every_spelling("prod", reduce_prod, method="prod", mint="prod")
_in_every_spelling("amax", reduce_max)
_in_every_spelling("amin", reduce_min)
_in_every_spelling("all", reduce_all, " bool", method="all")
_in_every_spelling("any", reduce_any, " bool", method="any")
