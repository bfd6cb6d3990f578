"""Reductions over dims. A split, reduced dim leaves partial results, which an all_reduce combines."""

from __future__ import annotations

import math

import numpy as np

from ..base.checks import SHAPE_ERRORS, number
from ..base.dtypes import scalar_operand
from ..base.errors import ShapeError
from .elementwise import cast, float_result, identity, maximum, minimum, mul
from .logic import equal, select
from .machine.operand_checks import any_dims
from .machine.registry import case, form, op
from .machine.signature import letters
from .spellings import function


def reduced_dims(axis, ndim: int) -> tuple[int, ...]:
    """The dims `axis` names, ascending: None and () are all of them, negative ones count from the end."""
    if axis is None or axis == ():
        return tuple(range(ndim))
    axes = (axis,) if isinstance(axis, int) else axis
    return tuple(sorted({a % ndim for a in axes}))


def _has_elements(operands, *, axis, keep_dims):
    """For reductions that have no result for no elements."""
    shape = operands[0].shape
    if not math.prod(shape[i] for i in reduced_dims(axis, len(shape))):
        return f"axis={axis} for a tensor of shape {shape}: no elements to reduce", "At least one element"


def reduce_labels(shapes, *, axis, keep_dims):
    """Signature of a reduction: the dims that `axis` names have no label in the result, or "1" if they are kept."""
    names = letters(len(shapes[0]))
    gone = reduced_dims(axis, len(names))
    kept = "".join(("1" if keep_dims else "") if i in gone else c for i, c in enumerate(names))
    return f"{names}->{kept}"


def sum_dtype(dtypes, **_):
    """Result dtype of sums: bools are counted."""
    return "int64" if dtypes[0] == "bool" else dtypes[0]


DIMS = {"axis": any_dims}
_CASES = (
    case((16, 8)),
    case((16, 8), axis=-1),
    case((16, 8), axis=0, keep_dims=True),
    case((4, 8, 2), axis=(0, 2)),
    case((4, 8, 2), axis=(1,), keep_dims=True),
)


def _spread_labels(shapes, *, shape, axis):
    names = letters(len(shape))
    kept = len(shapes[0]) == len(shape)
    return "".join("1" * kept if i in axis else c for i, c in enumerate(names)) + "->" + names


def _spread_sizes(shapes, *, shape, axis):
    return dict(zip(letters(len(shape)), shape, strict=True))


@op(
    _spread_labels, sizes=_spread_sizes, result_shape=lambda shapes, *, shape, axis: shape, shown="BroadcastTo", flops=0
)
def spread(x, *, shape, axis):
    """Undo a reduction's shape: repeat x along the reduced dims `axis`.  x: (...) -> `shape`."""
    kept = tuple(1 if i in axis else n for i, n in enumerate(shape))
    # ascontiguousarray would give a 0-d array a dim
    return np.array(np.broadcast_to(x.reshape(kept), shape), order="C")


def _spread(value, x, axis):
    return spread(value, shape=tuple(x.shape), axis=reduced_dims(axis, len(x.shape)))


def _reduction(name, function, text, /, *, dtype=None, **facts):
    """Declare the reduction by numpy's `function`.  text: of the docstring; facts: other keywords of `op`."""

    def fn(x, axis=None, *, keep_dims=False):
        summed = {"dtype": dtype((str(x.dtype),))} if callable(dtype) else {}
        return function(x, axis=reduced_dims(axis, x.ndim), keepdims=keep_dims, **summed)

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"""{text} over `axis` (None or () = all dims).

    x: (...) -> (...){" bool" if dtype == "bool" else ""} without those dims, or with size 1 there if keep_dims.
    """
    linear = {"sum": "sum: x", "mean": "avg: x", "max": "max: x", "min": "min: x"}.get(facts.get("reduce", "sum"), "")
    return op(reduce_labels, attrs=DIMS, dtype=dtype, linear=linear, **{"example": _CASES, **facts})(fn)


reduce_sum = _reduction("reduce_sum", np.sum, "Sum", name="ReduceSum", numpy="sum", dtype=sum_dtype)
reduce_mean = _reduction(
    "reduce_mean",
    np.mean,
    "Mean",
    name="ReduceMean",
    numpy="mean",
    check=_has_elements,
    dtype=float_result,
    reduce="mean",
)
reduce_max = _reduction(
    "reduce_max", np.max, "Largest element", name="ReduceMax", numpy="max amax", check=_has_elements, reduce="max"
)
reduce_min = _reduction(
    "reduce_min", np.min, "Smallest element", name="ReduceMin", numpy="min amin", check=_has_elements, reduce="min"
)
reduce_prod = _reduction(
    "reduce_prod",
    np.prod,
    "Product",
    name="ReduceProd",
    numpy="prod",
    dtype=sum_dtype,
    reduce="prod",
    example=tuple(case(*c.shapes, low=0.5, high=1.5, **dict(c.attrs)) for c in _CASES),
)
_BOOLS = {"dtype": "bool", "example": tuple(case(*c.shapes, bools={0}, **dict(c.attrs)) for c in _CASES)}
reduce_any = _reduction(
    "reduce_any", np.any, "Whether any element is true (not 0)", name="ReduceAny", numpy="any", reduce="max", **_BOOLS
)
reduce_all = _reduction(
    "reduce_all", np.all, "Whether all elements are true (not 0)", name="ReduceAll", numpy="all", reduce="min", **_BOOLS
)


@reduce_sum.vjp
def _(g, out, x, *, axis, keep_dims):
    return (_spread(g, x, axis),)


@form(reduce_sum, "ReduceSum")
def _(self, x, axis=(), *, keep_dims=False, skip_mode=False):
    """Sum over `axis` (None or () = all dims).  x: (...) -> (...) without those dims; keep_dims: with size 1 there.

    skip_mode  axis () means no dim at all: the result is x
    """
    if skip_mode and isinstance(axis, (tuple, list)) and not axis:
        return self.run(x, of=identity)
    return self.run(x, axis, keep_dims=keep_dims)


@reduce_mean.vjp
def _(g, out, x, *, axis, keep_dims):
    count = math.prod(x.shape[i] for i in reduced_dims(axis, len(x.shape)))
    return (_spread(g / count, x, axis),)


@reduce_max.vjp
@reduce_min.vjp
def _(g, out, x, *, axis, keep_dims, across):
    # Equal extremes share the gradient equally (MindSpore), across ranks too: their number is summed.
    mask = cast(equal(x, _spread(out, x, axis)), dtype=str(g.dtype))
    ties = across(reduce_sum(mask, axis, keep_dims=keep_dims))
    return (mul(mask, _spread(g / ties, x, axis)),)


@op(result_shape=1, dtype=0)
def reduce_prod_grad(g, x, product, zeros, *, axis):
    """Gradient of a product: g times the other factors.  g, product, zeros: without `axis` (or 1); x: (...) -> (...).

    product  of the factors that are not 0, over all ranks; zeros: how many factors are 0, over all ranks
    """
    kept = tuple(1 if i in axis else n for i, n in enumerate(x.shape))
    product, zeros = product.reshape(kept), zeros.reshape(kept)
    factor = x == 0
    others = product / np.where(factor, np.ones((), x.dtype), x)
    return g.reshape(kept) * np.where(zeros == factor, others, np.zeros((), x.dtype))


@reduce_prod.vjp
def _(g, out, x, *, axis, keep_dims, across):
    # not out / x: with zeros only the other factors, and the number of zeros, say what the rest multiplies to
    zero = equal(x, 0.0)
    product = across(reduce_prod(select(zero, 1.0, x), axis, keep_dims=keep_dims), reduce="prod")
    zeros = across(reduce_sum(cast(zero, dtype=str(g.dtype)), axis, keep_dims=keep_dims))
    return (reduce_prod_grad(g, x, product, zeros, axis=reduced_dims(axis, len(x.shape))),)


# ---- methods and functions in every spelling ----


def spelling(where, axis, keep_dims, spelled):
    """(axis, keep_dims) from all spellings: dim, keepdims, keepdim. ShapeError for other names."""
    for name, value in spelled.items():
        if name == "dim" and axis is None:
            axis = value
        elif name in ("keepdims", "keepdim"):
            keep_dims = value
        else:
            fault = "axis and dim are both given" if name == "dim" else f"unknown argument {name!r}"
            raise ShapeError(fault, where=where, allowed="axis (or dim), keep_dims (or keepdims, keepdim)")
    return axis, keep_dims


def _with_initial(name, pair, x, initial, where):
    """x, each element the larger (smaller) one of it and `initial`, which stands where `where` is false."""
    if initial is None:
        if where is not None:
            raise ShapeError("where is given without initial", where=name, allowed="Give initial, too")
        return x
    first = scalar_operand(number(-math.inf)(name, "initial", initial, SHAPE_ERRORS), [x])
    x = pair(x, first)
    return x if where is None else select(where, x, first)


def _in_every_spelling(name, operator, result="", pair=None, **spellings):
    """Publish `ops.<name>`, a reduction whose arguments may be spelled as in MindSpore, numpy or PyTorch.

    pair  of the largest and smallest element, which take `initial` and `where`: the operator of two
    """

    def reduction(input, axis=None, keep_dims=False, *, dtype=None, **spelled):
        first = {key: spelled.pop(key, None) for key in ("initial", "where")} if pair else {}
        axis, keep_dims = spelling(name, axis, keep_dims, spelled)
        x = input if dtype is None else cast(input, dtype=dtype)
        return operator(_with_initial(name, pair, x, **first) if pair else x, axis, keep_dims=keep_dims)

    reduction.__name__ = reduction.__qualname__ = name
    reduction.__doc__ = (
        f"`{operator.name}`.  input: (...) -> (...){result} without the dims `axis` (or `dim`; None: all), or with "
        "size 1 there if keep_dims (keepdims, keepdim). dtype: of the elements before they are reduced."
        + " initial: a number that counts too; where: (...) bool, which elements count."
        * (pair is not None)
    )
    return function(**spellings)(reduction)


_in_every_spelling("sum", reduce_sum, method="sum", mint="sum")
_in_every_spelling("mean", reduce_mean, method="mean", mint="mean")
_in_every_spelling("prod", reduce_prod, method="prod", mint="prod")
amax = _in_every_spelling("amax", reduce_max, pair=maximum, method="amax", mint="amax")
amin = _in_every_spelling("amin", reduce_min, pair=minimum, method="amin", mint="amin")
_in_every_spelling("all", reduce_all, " bool", method="all", mint="all")
_in_every_spelling("any", reduce_any, " bool", method="any", mint="any")
