"""`mindspore.numpy`: numpy's functions on Tensors, made of `ops`, so that networks may use them and gradients flow.

    import mindspore.numpy as mnp
    mnp.roll(x, 1, axis=1), mnp.where(mask, x, 0.0), mnp.arange(4)

Lists and Python's numbers are taken as Tensors of int32 and float32. The rest (`_numpy_at_once.py`) runs on values
that are known. Names, arguments and their order: MindSpore 2.6.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise as _pairwise
from typing import Any

import numpy as np

from .. import ops as _ops
from ..base.checks import choice as _choice, fitting as _fitting, flag as _flag
from ..base.dtypes import kind_of as _kind_of
from ..base.errors import ArgumentError as _ArgumentError
from ..nn.tensor.arithmetic import Arithmetic as _Arithmetic
from ._functions import roll as _roll
from ._numpy_at_once import asarray

_larger = max

# ---- element by element: MindSpore's name, if it differs the operator's ----

_FLOATS = (
    "sqrt reciprocal log log2 log10 log1p exp exp2 expm1 sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh "
    "arccosh arctanh deg2rad rad2deg radians=deg2rad"
)
_SAME_KIND = (
    "absolute=abs abs fabs=abs square ceil floor trunc fix rint=round sign negative invert=bitwise_not bitwise_not "
    "isfinite isnan isinf isposinf isneginf signbit logical_not"
)
_OF_TWO_FLOATS = "divide=div true_divide=div float_power=pow hypot heaviside logaddexp logaddexp2 arctan2 copysign"
_OF_TWO = (
    "add subtract=sub multiply=mul power=pow maximum minimum floor_divide remainder=floor_mod mod=floor_mod fmod gcd "
    "lcm equal not_equal greater greater_equal less less_equal logical_and logical_or logical_xor bitwise_and "
    "bitwise_or bitwise_xor matmul"
)


def _cast(x: Any, dtype: Any) -> Any:
    return x if dtype is None else _ops.cast(x, dtype)


def _float(x: Any) -> Any:
    """`asarray`, with ints and bools as float32."""
    x = asarray(x)
    return x if _kind_of(x.dtype) == "f" else _ops.cast(x, "float32")


def _dims(given: Any) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


def _elementwise(name: str, operator: str, count: int, floats: bool) -> Callable:
    apply = getattr(_ops, operator)

    given = _float if floats else asarray

    def of_one(x: Any, dtype: Any = None) -> Any:
        return _cast(apply(given(x)), dtype)

    def of_two(x1: Any, x2: Any, dtype: Any = None) -> Any:
        return _cast(apply(*(x if type(x) in (int, float, bool) and not floats else given(x) for x in (x1, x2))), dtype)

    made = of_one if count == 1 else of_two
    made.__name__ = made.__qualname__ = name
    what = "input: (...) -> (...)" if count == 1 else "two inputs, broadcast: (...), (...) -> (...)"
    made.__doc__ = f"numpy's `{name}`, by `ops.{operator}`.  {what}. dtype: of the result."
    return made


for _names, _count, _is_float in (
    (_FLOATS, 1, True),
    (_SAME_KIND, 1, False),
    (_OF_TWO_FLOATS, 2, True),
    (_OF_TWO, 2, False),
):
    for _row in _names.split():
        _name, _, _operator = _row.partition("=")
        globals()[_name] = _elementwise(_name, _operator or _name, _count, _is_float)


def cbrt(x: Any, dtype: Any = None) -> Any:
    """The cube root.  x: (...) -> (...)."""
    x = _float(x)
    return _cast(_ops.mul(_ops.sign(x), _ops.pow(_ops.abs(x), 1 / 3)), dtype)


def divmod(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """(floor_divide, remainder)."""
    x1, x2 = asarray(x1), asarray(x2)
    return _cast(_ops.floor_divide(x1, x2), dtype), _cast(_ops.floor_mod(x1, x2), dtype)


def around(a: Any, decimals: int = 0) -> Any:
    """The nearest number with so many decimals, halves to the even one.  a: (...) -> (...)."""
    a = asarray(a)
    return _ops.round(a) if not decimals else _ops.div(_ops.round(_ops.mul(a, 10.0**decimals)), 10.0**decimals)


round = around


def clip(x: Any, xmin: Any, xmax: Any, dtype: Any = None) -> Any:
    """At least xmin, at most xmax; None: no bound.  x: (...) -> (...)."""
    if xmin is None and xmax is None:
        raise _ArgumentError("xmin=None, xmax=None", where="clip", allowed="One of the two at least")
    x = asarray(x) if xmin is None else _ops.maximum(asarray(x), xmin)
    return _cast(x if xmax is None else _ops.minimum(x, xmax), dtype)


# ---- along dims ----


def _all(x: Any, axis: Any) -> tuple[Any, Any]:
    """The elements in one row for axis=None."""
    x = asarray(x)
    return (_ops.reshape(x, (-1,)), 0) if axis is None else (x, axis)


def sum(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, initial: Any = None) -> Any:
    """The sum over `axis`, None: of all, added to `initial`.  a: (...) -> (...)."""
    a = asarray(a)
    a = _ops.cast(a, "int32") if _kind_of(a.dtype) == "b" and dtype is None else _cast(a, dtype)
    total = _ops.reduce_sum(a, axis, keep_dims=keepdims)
    return total if initial is None else _ops.add(total, initial)


def _extreme(name: str, over: Callable, both: Callable) -> Callable:
    def extreme(a: Any, axis: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True) -> Any:
        a = asarray(a)
        if where is not True:
            if initial is None:
                raise _ArgumentError("where without initial", where=name, allowed="A first value of what is left")
            a = _ops.select(_ops.broadcast_to(asarray(where), shape=tuple(a.shape)), a, _full_of(initial, a))
        found = over(a, axis, keep_dims=keepdims)
        return found if initial is None else both(found, initial)

    extreme.__name__ = extreme.__qualname__ = name
    extreme.__doc__ = f"The {name[1:]} over `axis`, None: of all; of `initial` too; where: of these.  (...) -> (...)."
    return extreme


def _full_of(value: Any, like: Any) -> Any:
    return _ops.broadcast_to(_ops.cast(asarray(value), str(like.dtype)), shape=tuple(like.shape))


amax = max = _extreme("amax", _ops.reduce_max, _ops.maximum)
amin = min = _extreme("amin", _ops.reduce_min, _ops.minimum)


def average(x: Any, axis: Any = None, weights: Any = None, returned: bool = False) -> Any:
    """The mean, or that of weighted elements; returned: and the sum of the weights.  x: (...) -> (...)."""
    x = _float(x)
    weights = _ops.ones_like(x) if weights is None else _float(weights)
    if tuple(weights.shape) != tuple(x.shape):
        shape = [n if d == axis % len(x.shape) else 1 for d, n in enumerate(x.shape)]
        weights = _ops.broadcast_to(_ops.reshape(weights, shape), shape=tuple(x.shape))
    total = sum(weights, axis)
    found = _ops.div(sum(_ops.mul(x, weights), axis), total)
    return (found, total) if _flag("average", "returned", returned) else found


def cumsum(a: Any, axis: Any = None, dtype: Any = None) -> Any:
    """Sums of the elements up to each one; None: in one row.  a: (...) -> (...)."""
    a, axis = _all(a, axis)
    return _ops.cumsum(_ops.cast(a, "int32") if dtype is None and _kind_of(a.dtype) == "b" else _cast(a, dtype), axis)


def cumprod(a: Any, axis: Any = None, dtype: Any = None) -> Any:
    """Products of the elements up to each one; None: in one row.  a: (...) -> (...)."""
    a, axis = _all(a, axis)
    return _ops.cumprod(_cast(a, dtype), axis)


def argmax(a: Any, axis: Any = None) -> Any:
    """The place of the largest; None: in one row.  a: (...) -> (...) int."""
    a, axis = _all(a, axis)
    return _ops.argmax(a, axis=axis)


def argmin(a: Any, axis: Any = None) -> Any:
    """The place of the smallest; None: in one row.  a: (...) -> (...) int."""
    a, axis = _all(a, axis)
    return _ops.argmin(a, axis=axis)


# ---- products ----


def dot(a: Any, b: Any) -> Any:
    """Sums over the last dim of a and the last but one of b.  (..., k), (..., k, n) -> (..., n)."""
    a, b = asarray(a), asarray(b)
    if not a.shape or not b.shape:
        return _ops.mul(a, b)
    return tensordot(a, b, ((len(a.shape) - 1,), (_larger(len(b.shape) - 2, 0),)))


def inner(a: Any, b: Any) -> Any:
    """Sums over both last dims.  (..., k), (..., k) -> (..., ...)."""
    a, b = asarray(a), asarray(b)
    return _ops.mul(a, b) if not a.shape or not b.shape else tensordot(a, b, ((-1,), (-1,)))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Sums over these dims of both: the last `axes` and the first, or (those of a, those of b)."""
    a, b = asarray(a), asarray(b)
    if not isinstance(axes, int):
        axes = tuple(tuple(d % len(x.shape) for d in np.atleast_1d(each)) for x, each in zip((a, b), axes, strict=True))
        axes = tuple(tuple(int(d) for d in each) for each in axes)
    return _ops.tensordot(a, b, axes)


# ---- other shapes ----


def transpose(a: Any, axes: Any = None) -> Any:
    """Dims in the order `axes`; None: reversed.  a: (...) -> (...)."""
    a = asarray(a)
    return _ops.transpose(a, tuple(reversed(range(len(a.shape)))) if axes is None else tuple(axes))


def expand_dims(a: Any, axis: Any) -> Any:
    """New dims of size 1 at these places of the result.  a: (...) -> (...)."""
    a = asarray(a)
    axes = _dims(axis)
    for place in sorted(d % (len(a.shape) + len(axes)) for d in axes):
        a = _ops.expand_dims(a, place)
    return a


def rollaxis(x: Any, axis: int, start: int = 0) -> Any:
    """The dim `axis` before the one that is now at `start`.  x: (...) -> (...)."""
    x = asarray(x)
    order, axis = list(range(len(x.shape))), axis % len(x.shape)
    start += len(x.shape) if start < 0 else 0
    order.insert(start - (start > axis), order.pop(axis))
    return _ops.transpose(x, tuple(order))


def _arrays(arrays: Any) -> list[Any]:
    return [asarray(x) for x in ([arrays] if isinstance(arrays, _Arithmetic) else arrays)]


def concatenate(arrays: Any, axis: int | None = 0) -> Any:
    """Joined along a dim; None: all elements in one row.  (..., a), (..., b) -> (..., a + b)."""
    arrays = _arrays(arrays)
    return _ops.concat([ravel(x) for x in arrays] if axis is None else arrays, axis or 0)


def _joined(name: str, dims: Callable, axis: Callable) -> Callable:
    def join(tup: Any) -> Any:
        arrays = [dims(x) for x in _arrays(tup)]
        return _ops.concat(arrays, axis(arrays[0]))

    join.__name__, join.__doc__ = name, f"numpy's `{name}`: joined along a dim."
    return join


def _at_least(x: Any, dims: int) -> Any:
    shape = tuple(x.shape)
    if len(shape) >= dims:
        return x
    if dims == 3 and shape:
        return _ops.reshape(x, (1, *shape, 1) if len(shape) == 1 else (*shape, 1))
    return _ops.reshape(x, (1,) * (dims - len(shape)) + shape)


def _atleast(dims: int) -> Callable:
    def atleast(*arys: Any) -> Any:
        found = tuple(_at_least(asarray(x), dims) for x in arys)
        return found[0] if len(found) == 1 else found

    atleast.__name__, atleast.__doc__ = f"atleast_{dims}d", f"With {dims} dims at least; of several a tuple."
    return atleast


atleast_1d, atleast_2d, atleast_3d = map(_atleast, (1, 2, 3))
vstack = _joined("vstack", lambda x: _at_least(x, 2), lambda first: 0)
hstack = _joined("hstack", lambda x: _at_least(x, 1), lambda first: int(len(first.shape) > 1))
dstack = _joined("dstack", lambda x: _at_least(x, 3), lambda first: 2)
column_stack = _joined("column_stack", lambda x: x if len(x.shape) > 1 else _ops.reshape(x, (-1, 1)), lambda first: 1)


def tile(a: Any, reps: Any) -> Any:
    """Repeated so many times along each of the last dims.  a: (...) -> (...)."""
    a, reps = asarray(a), _dims(reps)
    return _ops.tile(a, (1,) * (len(a.shape) - len(reps)) + reps)


def array_split(x: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    """Parts along a dim: so many, the first ones longer by one if need be, or cut before these places."""
    x = asarray(x)
    size = x.shape[axis]
    if isinstance(indices_or_sections, int):
        most = size + 2**16  # those beyond `size` are empty
        if not 0 < indices_or_sections <= most:
            raise _ArgumentError(f"{indices_or_sections} parts", where="array_split", allowed=f"From 1 to {most}")
        each, more = size // indices_or_sections, size % indices_or_sections
        indices_or_sections = np.cumsum([each + (i < more) for i in range(indices_or_sections - 1)]).tolist()
    ends = [0, *(slice(0, at).indices(size)[1] for at in indices_or_sections), size]
    before = (slice(None),) * (axis % len(x.shape))
    return [x[(*before, slice(a, _larger(a, b)))] for a, b in _pairwise(ends)]


def split(x: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    """`array_split` into equal parts, or cut before these places."""
    x = asarray(x)
    if isinstance(indices_or_sections, int) and x.shape[axis] % indices_or_sections:
        what = f"{x.shape[axis]} elements in {indices_or_sections} equal parts"
        raise _ArgumentError(what, where="split", allowed="A count that divides them", hint="array_split")
    return array_split(x, indices_or_sections, axis)


def broadcast_arrays(*args: Any) -> Any:
    """Stretched to one shape, a list."""
    args = _arrays(args)
    shape = np.broadcast_shapes(*(tuple(x.shape) for x in args))
    return [broadcast_to(x, shape) for x in args]


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """Elements moved along dims; None: in one row.  a: (...) -> (...)."""
    a = asarray(a)
    if axis is not None and (isinstance(axis, int) != isinstance(shift, int)):
        both = np.broadcast_arrays(np.atleast_1d(shift), np.atleast_1d(axis))
        shift, axis = (tuple(each.tolist()) for each in both)
    return _roll(a, shift, axis)


def flip(m: Any, axis: Any = None) -> Any:
    """Dims in the other direction; None: all.  m: (...) -> (...)."""
    m = asarray(m)
    return _ops.flip(m, axis=tuple(range(len(m.shape))) if axis is None else axis)


# ---- chosen elements ----


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """x where the condition holds, y elsewhere, broadcast; of the condition alone: where it holds, a place per dim."""
    condition = asarray(condition)
    if x is None and y is None:
        return _ops.nonzero(condition, as_tuple=True)
    condition = condition if _kind_of(condition.dtype) == "b" else _ops.not_equal(condition, 0)
    return _ops.where(condition, *(v if type(v) in (int, float) else asarray(v) for v in (x, y)))


def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """The choice of the first condition that holds, `default` elsewhere."""
    found = default
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        found = where(condition, choice, found)
    return found


def take(a: Any, indices: Any, axis: int | None = None, mode: str = "clip") -> Any:
    """Elements at these places along a dim; None: in one row.  mode: of places outside, "clip", "wrap" or "raise"."""
    a, axis = _all(a, axis)
    indices, size = asarray(indices), a.shape[axis]
    if _choice("clip", "wrap", "raise")("take", "mode", mode) == "clip":
        indices = clip(indices, 0, size - 1)
    elif mode == "wrap":
        indices = _ops.floor_mod(indices, size)
    return _ops.gather(a, indices, axis)


def take_along_axis(arr: Any, indices: Any, axis: int | None) -> Any:
    """Elements at these places, which differ from row to row.  arr, indices: (...) -> (...)."""
    arr, axis = _all(arr, axis)
    return _ops.gather_elements(arr, axis, asarray(indices))


# ---- diagonals and grids ----


def meshgrid(*xi: Any, sparse: bool = False, indexing: str = "xy") -> Any:
    """The coordinates of a grid, one array per dim; sparse: of size 1 along the others."""
    places = list(range(len(xi)))
    if _choice("xy", "ij")("meshgrid", "indexing", indexing) == "xy":
        places[:2] = reversed(places[:2])
    dims = [[-1 if d == at else 1 for d in range(len(xi))] for at in places]
    shaped = [_ops.reshape(ravel(x), tuple(shape)) for x, shape in zip(xi, dims, strict=True)]
    return shaped if _flag("meshgrid", "sparse", sparse) else broadcast_arrays(*shaped)


# ---- comparisons of whole arrays ----


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Whether shapes and elements are equal.  -> () bool."""
    a1, a2 = asarray(a1), asarray(a2)
    if tuple(a1.shape) != tuple(a2.shape):
        return asarray(False)
    same = _ops.equal(a1, a2)
    if _flag("array_equal", "equal_nan", equal_nan):
        same = _ops.logical_or(same, _ops.logical_and(_ops.isnan(_float(a1)), _ops.isnan(_float(a2))))
    return _ops.reduce_all(same)


def array_equiv(a1: Any, a2: Any) -> Any:
    """Whether elements are equal once the shapes are broadcast.  -> () bool."""
    try:
        return array_equal(*broadcast_arrays(a1, a2))
    except ValueError:
        return asarray(False)


def ravel(x: Any) -> Any:
    """All elements in one row.  x: (...) -> (size,)."""
    return _ops.reshape(asarray(x), (-1,))


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """Dims moved to other places.  a: (...) -> (...)."""
    return _ops.moveaxis(asarray(a), source, destination)


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The diagonal of two dims.  a: (..., n, m) -> (..., k)."""
    return _ops.diagonal(asarray(a), offset, axis1, axis2)


def broadcast_to(array: Any, shape: Any) -> Any:
    """Stretched to `shape` by numpy's rules.  array: (...) -> shape."""
    return _ops.broadcast_to(asarray(array), shape=_dims(shape))


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """The vector product along a dim of 2 or 3 elements.  (..., 3), (..., 3) -> (..., 3)."""
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    a, b = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    if a.shape[-1] == b.shape[-1] == 2:
        return _ops.sub(_ops.mul(a[..., 0], b[..., 1]), _ops.mul(a[..., 1], b[..., 0]))
    return moveaxis(_ops.cross(a, b, -1), -1, axisc)


# ---- those that are an operator with MindSpore's arguments ----

_SPELLED: dict[str, Callable] = {
    "positive": lambda a, dtype=None: _cast(asarray(a), dtype),
    "mean": lambda a, axis=None, keepdims=False, dtype=None: _cast(_ops.mean(_float(a), axis, keepdims), dtype),
    "var": lambda x, axis=None, ddof=0, keepdims=False: _ops.var(_float(x), axis, ddof=ddof, keep_dims=keepdims),
    "std": lambda x, axis=None, ddof=0, keepdims=False: _ops.std(_float(x), axis, ddof=ddof, keep_dims=keepdims),
    "ptp": lambda x, axis=None, keepdims=False: _ops.sub(amax(x, axis, keepdims), amin(x, axis, keepdims)),
    "count_nonzero": lambda x, axis=None, keepdims=False: _ops.reduce_sum(
        _ops.cast(_ops.not_equal(asarray(x), 0), "int32"), axis, keep_dims=keepdims
    ),
    "sometrue": lambda a, axis=None, keepdims=False: _ops.reduce_any(
        _ops.not_equal(asarray(a), 0), axis, keep_dims=keepdims
    ),
    "diff": lambda a, n=1, axis=-1, prepend=None, append=None: _ops.diff(
        asarray(a), n, axis, *(x if x is None else asarray(x) for x in (prepend, append))
    ),
    "trapz": lambda y, x=None, dx=1.0, axis=-1: _ops.trapz(_float(y), x if x is None else asarray(x), dx=dx, dim=axis),
    "norm": lambda x, ord=None, axis=None, keepdims=False: _ops.norm(_float(x), ord, axis, keepdims),
    "outer": lambda a, b: _ops.mul(_ops.reshape(asarray(a), (-1, 1)), _ops.reshape(asarray(b), (1, -1))),
    "kron": lambda a, b: _ops.kron(asarray(a), asarray(b)),
    "matrix_power": lambda a, n: _ops.matrix_power(asarray(a), n),
    "squeeze": lambda a, axis=None: _ops.squeeze(asarray(a), axis=() if axis is None else axis),
    "swapaxes": lambda x, axis1, axis2: _ops.swapaxes(asarray(x), axis1, axis2),
    "reshape": lambda x, new_shape: _ops.reshape(asarray(x), _dims(new_shape)),
    "append": lambda arr, values, axis=None: concatenate((arr, values), axis),
    "stack": lambda arrays, axis=0: _ops.stack(_arrays(arrays), axis),
    "vsplit": lambda x, indices_or_sections: split(x, indices_or_sections, 0),
    "hsplit": lambda x, indices_or_sections: split(x, indices_or_sections, int(len(asarray(x).shape) > 1)),
    "dsplit": lambda x, indices_or_sections: split(x, indices_or_sections, 2),
    "repeat": lambda a, repeats, axis=None: _ops.repeat_interleave(asarray(a), repeats, axis),
    "flipud": lambda m: flip(m, 0),
    "fliplr": lambda m: flip(m, 1),
    "rot90": lambda a, k=1, axes=(0, 1): _ops.rot90(asarray(a), k, axes),
    "trace": lambda a, offset=0, axis1=0, axis2=1, dtype=None: sum(diagonal(a, offset, axis1, axis2), -1, dtype),
    "diag": lambda v, k=0: _ops.diag(asarray(v), k),
    "diagflat": lambda v, k=0: _ops.diag(ravel(v), k),
    "tril": lambda m, k=0: _ops.tril(asarray(m), k),
    "triu": lambda m, k=0: _ops.triu(asarray(m), k),
    "isclose": lambda a, b, rtol=1e-05, atol=1e-08, equal_nan=False: _ops.isclose(
        _float(a), _float(b), rtol, atol, equal_nan
    ),
    "nansum": lambda a, axis=None, dtype=None, keepdims=False: _cast(_ops.nansum(_float(a), axis, keepdims), dtype),
}
for _name, _function in _SPELLED.items():
    _function.__name__ = _function.__qualname__ = _name
    _function.__doc__ = f"numpy's `{_name}` on Tensors, made of operators.  (...) -> (...)."
    globals()[_name] = _function
for _name, _function in list(globals().items()):
    if getattr(_function, "__module__", "") == __name__ and callable(_function) and not _name.startswith("_"):
        globals()[_name] = _fitting(_function, f"mindspore.numpy.{_name}")
