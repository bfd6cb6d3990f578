"""What `mindspore.numpy` makes of values that are known: new Tensors, and numpy's functions that are no operators.

Python's ints and floats, and what is made of them, are int32 and float32; Tensors keep their dtype. In a compiled
network these functions take what does not depend on its inputs. No gradient goes through them: a Tensor that needs one
is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ops
from ..base.checks import fitting, flag, integer
from ..base.errors import STUMBLES, ArgumentError, NotBuiltYet, ParallelLabError, ShapeError, shorten
from ..nn.tensor.arithmetic import Arithmetic
from ..nn.tensor.tensor import Tensor
from ._random import rand as _uniform, randint as _randint, randn as _normal

_NARROW = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}
pi, inf, nan = np.pi, np.inf, np.nan
PINF, NINF = np.inf, -np.inf


def asarray(a: Any, dtype: Any = None) -> Any:
    """A Tensor, or the one given; lists and numbers become int32 and float32."""
    if isinstance(a, Arithmetic):
        return a if dtype is None else ops.cast(a, dtype)
    try:
        array = a if isinstance(a, np.ndarray) else np.asarray(_values(a))
    except ValueError:
        raise ShapeError(shorten(a), where="asarray", allowed="Numbers in a rectangular shape") from None
    narrow = None if isinstance(a, np.ndarray) else _NARROW.get(array.dtype)
    return Tensor(array, narrow if dtype is None else dtype)


def array(obj: Any, dtype: Any = None, copy: bool = True, ndmin: int = 0) -> Any:
    """`asarray`, of a Tensor a copy, with at least `ndmin` dims."""
    made = asarray(obj, dtype)
    made = made.copy() if copy and made is obj else made
    missing = integer(0)("array", "ndmin", ndmin) - len(made.shape)
    return made if missing <= 0 else ops.reshape(made, (1,) * missing + tuple(made.shape))


def asfarray(a: Any, dtype: Any = "float32") -> Any:
    """`asarray` of floats; any other dtype counts as float32."""
    dtype = dtype if dtype is None or np.dtype(str(np.dtype(dtype))).kind == "f" else "float32"
    return asarray(a, dtype)


def copy(a: Any) -> Any:
    """A copy."""
    return asarray(a).copy()


def _values(value: Any) -> Any:
    """Tensors, also in lists, as arrays."""
    if isinstance(value, Arithmetic):
        if getattr(value, "requires_grad", False):
            what, hint = "a gradient through it", "Detach the tensor with ops.stop_gradient(x)"
            raise NotBuiltYet(what, where="mindspore.numpy", allowed="Values that need no gradient", hint=hint)
        return np.asarray(value)
    if isinstance(value, (list, tuple)) and any(isinstance(x, (Arithmetic, list, tuple)) for x in value):
        return type(value)(_values(x) for x in value)
    return value


def _on_arrays(function: Callable) -> Callable:
    """A function of Tensors as numpy calls it."""
    return lambda x, *args, **kwargs: _values(asarray(function(Tensor(x), *args, **kwargs)))


def _widest(values: Any) -> bool:
    """Whether a Tensor among them has 64 bits, which results then keep."""
    if isinstance(values, (list, tuple)):
        return any(_widest(x) for x in values)
    return getattr(values, "dtype", None) in _NARROW


def _tensors(found: Any, wide: bool) -> Any:
    if isinstance(found, (list, tuple)):
        return type(found)(_tensors(x, wide) for x in found)
    if not isinstance(found, (np.ndarray, np.generic)):
        return found
    return Tensor(found, None if wide else _NARROW.get(found.dtype))


def _at_once(name: str, function: Callable) -> Callable:
    """numpy's function on values."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # before 2.4, numpy tells it of few functions
        signature = inspect.signature(lambda *args, **kwargs: None)
    switches = [key for key, p in signature.parameters.items() if type(p.default) is bool]

    def made(*args: Any, **kwargs: Any) -> Any:
        for key in switches:
            flag(name, key, kwargs.get(key, False))
        try:
            given = {key: _values(value) for key, value in kwargs.items() if key != "dtype" or value is not None}
            wide = "dtype" in given or _widest(args) or _widest(list(kwargs.values()))
            found = function(*map(_values, args), **given)
        except ParallelLabError:
            raise
        except (*STUMBLES, RuntimeError) as error:
            raise ArgumentError(str(error), where=name, allowed="What numpy takes") from error
        return _tensors(found, wide)

    made.__name__ = made.__qualname__ = name
    made.__signature__ = signature  # type: ignore[attr-defined]
    made.__module__, made.__doc__ = __name__, f"numpy's `{name}`, of values that are known: Tensors."
    return made


_SAME = (
    "arange linspace logspace geomspace eye identity tri vander hamming hanning bartlett blackman indices diag_indices "
    "tril_indices triu_indices tril_indices_from triu_indices_from ix_ histogram_bin_edges bincount digitize histogram "
    "histogram2d histogramdd interp convolve correlate cov corrcoef gradient unwrap unravel_index ravel_multi_index "
    "isin searchsorted polyadd polysub polymul polyval polyder polyint"
)
for _name in _SAME.split():
    globals()[_name] = _at_once(_name, getattr(np, _name))
# numpy's, with MindSpore's arguments
_ARGUMENTS = {
    "in1d": lambda ar1, ar2, invert=False: np.isin(np.ravel(ar1), ar2, invert=invert),
    "unique": lambda x, return_inverse=False: np.unique(x, return_inverse=return_inverse),
    "choose": lambda a, choices, mode="clip": np.choose(a, choices, mode=mode),
    "multi_dot": lambda arrays: np.linalg.multi_dot(arrays),
    "ediff1d": lambda ary, to_end=None, to_begin=None: np.ediff1d(ary, to_end, to_begin),
    "nanmax": lambda a, axis=None, dtype=None, keepdims=False: np.nanmax(a, axis, keepdims=keepdims),
    "nanmin": lambda a, axis=None, dtype=None, keepdims=False: np.nanmin(a, axis, keepdims=keepdims),
    "nanmean": lambda a, axis=None, dtype=None, keepdims=False: np.nanmean(a, axis, dtype, keepdims=keepdims),
    "nanvar": lambda a, axis=None, dtype=None, ddof=0, keepdims=False: np.nanvar(a, axis, dtype, None, ddof, keepdims),
    "nanstd": lambda a, axis=None, dtype=None, ddof=0, keepdims=False: np.nanstd(a, axis, dtype, None, ddof, keepdims),
    "nancumsum": lambda a, axis=None, dtype=None: np.nancumsum(a, axis, dtype),
    "apply_along_axis": lambda func1d, axis, arr, *args, **kw: np.apply_along_axis(
        _on_arrays(func1d), axis, arr, *args, **kw
    ),
    "apply_over_axes": lambda func, a, axes: np.apply_over_axes(_on_arrays(func), a, axes),
    "piecewise": lambda x, condlist, funclist, *args, **kw: np.piecewise(
        x, condlist, [_on_arrays(f) if callable(f) else f for f in funclist], *args, **kw
    ),
}
for _name, _function in _ARGUMENTS.items():
    globals()[_name] = _at_once(_name, _function)


def zeros(shape: Any, dtype: Any = "float32") -> Tensor:
    """0 everywhere.  -> shape."""
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = "float32") -> Tensor:
    """1 everywhere.  -> shape."""
    return full(shape, 1, dtype)


def empty(shape: Any, dtype: Any = "float32") -> Tensor:
    """Zeros: nothing here is left to chance.  -> shape."""
    return zeros(shape, dtype)


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    """One value, or what broadcasts, everywhere.  -> shape."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return ops.broadcast_to(asarray(fill_value, dtype), shape=shape) if shape else asarray(fill_value, dtype)


def _like(name: str, value: Any) -> Callable:
    def like(prototype: Any, dtype: Any = None, shape: Any = None) -> Any:
        given = asarray(prototype)
        shape = tuple(given.shape) if shape is None else shape
        return full(shape, value, str(given.dtype) if dtype is None else dtype)

    like.__name__, like.__doc__ = name, f"{value} everywhere, of this shape and dtype unless others are given."
    return like


zeros_like, ones_like, empty_like = _like("zeros_like", 0), _like("ones_like", 1), _like("empty_like", 0)


def full_like(a: Any, fill_value: Any, dtype: Any = None, shape: Any = None) -> Any:
    """One value everywhere, of this shape and dtype unless others are given."""
    return _like("full_like", fill_value)(a, dtype, shape)


class _Grid:
    """`mgrid[0:5, 0:3]`: coordinates; a step 5j: so many numbers."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def __getitem__(self, keys: Any) -> Any:
        return _tensors(self._grid[keys], False)


mgrid, ogrid = _Grid(np.mgrid), _Grid(np.ogrid)


def pad(
    arr: Any,
    pad_width: Any,
    mode: str = "constant",
    stat_length: Any = None,
    constant_values: Any = 0,
    end_values: Any = 0,
    reflect_type: str = "even",
    **kwargs: Any,
) -> Any:
    """numpy's `pad`; with zeros, or another number, as an operator."""
    arr = asarray(arr)
    if mode == "constant" and isinstance(constant_values, (int, float)):
        widths = np.broadcast_to(np.asarray(pad_width), (len(arr.shape), 2)).tolist()
        return ops.pad(arr, [n for width in reversed(widths) for n in width], "constant", constant_values)
    takes = {"constant": "constant_values", "linear_ramp": "end_values", "reflect": "reflect_type"}
    takes["symmetric"] = "reflect_type"
    takes.update(dict.fromkeys(("maximum", "mean", "median", "minimum"), "stat_length"))
    given = {"constant_values": constant_values, "end_values": end_values, "reflect_type": reflect_type}
    given["stat_length"] = stat_length
    further = {takes[mode]: given[takes[mode]]} if mode in takes else kwargs
    return _at_once("pad", np.pad)(arr, pad_width, mode, **further)


def size(a: Any, axis: int | None = None) -> int:
    """How many elements there are, of all or along a dim."""
    shape = tuple(asarray(a).shape)
    return int(np.prod(shape)) if axis is None else shape[axis]


def isscalar(element: Any) -> bool:
    """Whether it is a number or a text."""
    return isinstance(element, (int, float, complex, str, bytes, np.generic))


def array_str(a: Any) -> str:
    """The elements as a text."""
    return str(asarray(a))


def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """The dtype of what these make together."""
    given = (x if isinstance(x, (type, str, np.dtype)) else asarray(x).dtype for x in arrays_and_dtypes)
    return np.result_type(*given)


def promote_types(type1: Any, type2: Any) -> np.dtype:
    """The smallest dtype that both fit into."""
    return np.promote_types(type1, type2)


def rand(*shape: Any, dtype: Any = "float32") -> Any:
    """Uniform in [0, 1).  -> shape."""
    return _uniform(*_shape(shape), dtype=dtype)


def randn(*shape: Any, dtype: Any = "float32") -> Any:
    """Normal.  -> shape."""
    return _normal(*_shape(shape), dtype=dtype)


def randint(minval: int, maxval: int | None = None, shape: Any = None, dtype: Any = "int32") -> Any:
    """Ints from minval to below maxval; of one argument: from 0 to below it.  -> shape."""
    low, high = (0, minval) if maxval is None else (minval, maxval)
    return ops.cast(_randint(low, high, _shape(() if shape is None else (shape,))), dtype)


def _shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(shape[0]) if shape and isinstance(shape[0], (tuple, list)) else shape or (1,)


for _name, _function in list(globals().items()):
    if inspect.isfunction(_function) and _function.__module__ == __name__ and not _name.startswith("_"):
        globals()[_name] = fitting(_function, f"mindspore.numpy.{_name}")
