"""Python's x[...] as operators: `getitem(x, key)` gives what numpy's indexing gives, on
arrays, Tensors and values of a trace, gradient included; `setitem(x, key, value)` what x is after `x[key] = value`.

    x[1:5, -1]         strided_slice, then squeeze
    x[:, None]         expand_dims
    x[[2, 0, 2]]       gather along dim 0
    x[rows, columns]   the two dims joined, then gather
    x[mask]            gather of the places where the mask is true
    x[1:5] = v         select: v where the key chooses, x elsewhere

The shape of the result must be known: a mask that a trace computes is refused.
"""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import numpy as np

from ..base.dtypes import plain_array
from ..base.errors import ArgumentTypeError, ShapeError, message, shorten
from ..base.hooks import current_tracer
from .elementwise import add, cast, mul
from .gather import gather
from .logic import less, select
from .machine.operand_checks import is_operand
from .machine.registry import OPS
from .shape import broadcast_to, expand_dims, reshape, squeeze
from .slicing import strided_slice
from .spellings import function, method

# ---- x[...] ----


class TensorIndexError(ShapeError, IndexError):
    """An index outside a tensor, or of a kind it does not take; an IndexError too, which ends Python's loops."""


@function()
def getitem(x: Any, key: Any) -> Any:
    """Elements of x as numpy's `x[key]`.  x: (...) -> (...).

    key  ints, slices, None, Ellipsis, and arrays or Tensors of ints or bools, one or several in a tuple

    Raises TensorIndexError for indices that lie outside, for too many of them, and for arrays of indices that stand
    apart from each other.
    """
    return _Index(x, key).result()


@function()
def setitem(x: Any, key: Any, value: Any) -> Any:
    """x with other elements, as after numpy's `x[key] = value`.  x: (...), value: broadcast to x[key] -> (...).

    key  as `getitem` takes it, arrays that stand apart too; and a mask that a trace computes, with a value for the dims
         behind it. If one element gets several values, only the last one counts and has a gradient.

    value is cast to the dtype of x. Raises TensorIndexError, ShapeError.
    """
    value = cast(value, str(x.dtype)) if hasattr(value, "dtype") else _numbers(value).astype(x.dtype)
    shape, is_array = tuple(x.shape), hasattr(key, "dtype")
    if is_array and _constant(key) is None and np.dtype(str(key.dtype)).kind == "b":
        if tuple(key.shape) != shape[: key.ndim]:
            raise TensorIndexError(f"a mask of shape {tuple(key.shape)} for a tensor of shape {shape}", where="x[...]")
        mask = reshape(key, (*key.shape, *(1,) * (len(shape) - key.ndim)))
        return select(mask, _fitting(value, shape[key.ndim :]), x)
    arrays = [item for item in _Index(x, key).items if isinstance(item, _Array)]
    if all(item.known is not None for item in arrays):
        return _chosen(x, tuple(map(_plain, key)) if isinstance(key, tuple) else _plain(key), value)
    if is_array:  # rows by number: further dims can stay split
        value = reshape(
            broadcast_to(_fitting(value, (*key.shape, *shape[1:])), (*key.shape, *shape[1:])), (-1, *shape[1:])
        )
        return OPS["tensor_scatter_update"](x, reshape(arrays[0].value, (-1, 1)), value)
    places = getitem(np.arange(math.prod(shape)).reshape(shape), key)
    value = reshape(broadcast_to(_fitting(value, places.shape), places.shape), (-1,))
    return reshape(OPS["tensor_scatter_update"](reshape(x, (-1,)), reshape(places, (-1, 1)), value), shape)


@method("__getitem__")
def _(self, index):
    """The elements that an index chooses, as numpy has them."""
    return getitem(self, index)


@method("__setitem__")
def _(self, index, value):
    """This tensor has other elements from now on; what was made from it before has not."""
    new = setitem(self, index, value)
    if new is not self:  # where nothing is chosen
        self._become(new)


def _numbers(value: Any) -> np.ndarray:
    """A number, or nested lists of numbers, as an array."""
    try:
        array = plain_array(value, where="x[...] = value")
    except ArgumentTypeError:
        raise
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise ShapeError(f"the value {shorten(value)}", where="x[...] = value", allowed="Numbers, or a Tensor")
    return array


def _plain(item: Any) -> Any:
    return _constant(item) if hasattr(item, "dtype") else item


def _chosen(x: Any, key: Any, value: Any) -> Any:
    """x with `value` where a key of known numbers chooses."""
    shape = tuple(x.shape)
    mask, numbers = np.zeros(shape, bool), np.zeros(shape, np.int64)
    value = _fitting(value, mask[key].shape)
    mask[key] = True
    if not mask.any():
        return x
    if math.prod(value.shape) == 1:
        return select(mask, reshape(value, ()), x)
    # which element of the value each of them takes
    numbers[key] = np.arange(math.prod(value.shape)).reshape(value.shape)
    return select(mask, gather(reshape(value, (-1,)), numbers, 0), x)


def _fitting(value: Any, shape: tuple[int, ...]) -> Any:
    """A value without leading dims of size 1 that `shape` has not. Raises ShapeError if it does not broadcast to it."""
    own = tuple(value.shape)
    spare = max(0, len(own) - len(shape))
    kept = own[spare:]
    pairs = zip(reversed(kept), reversed(shape), strict=False)
    if any(n != 1 for n in own[:spare]) or any(n not in (1, m) for n, m in pairs):
        what = f"a value of shape {own} for elements of shape {tuple(shape)}"
        raise ShapeError(what, where="x[...] = value", allowed="A number, or what broadcasts to that shape")
    return reshape(value, kept) if spare else value


class _Array:
    """Indices of one dim. known: the numbers; None if a trace computes `value`, or it is a Parameter."""

    def __init__(self, value: Any, known: np.ndarray | None) -> None:
        self.value, self.known = value, known
        self.shape = tuple(value.shape) if known is None else known.shape


def _constant(value: Any) -> np.ndarray | None:
    """The numbers of an index, where they are known."""
    if not hasattr(value, "dtype") or isinstance(value, (np.ndarray, np.generic)):
        return plain_array(value, where="an index")
    if not hasattr(value, "__parallel_lab_op__"):  # a value of a trace
        return None
    if current_tracer.get() is not None and hasattr(value, "comm_fusion"):  # a Parameter: it will change
        return None
    return value.asnumpy()


NO_ELEMENTS = "The dim has no elements"


def _range(n: int) -> str:
    return f"from {-n} to {n - 1}"


class _Index:
    """One key, taken apart: `items` holds None, slices, ints and _Arrays; all but None stand for one dim of x each."""

    def __init__(self, x: Any, key: Any) -> None:
        self.x, self.key, self.shape = x, key, tuple(x.shape)
        parts = [p for item in (key if isinstance(key, tuple) else (key,)) for p in self.parts(item)]
        used = sum(p is not None and p is not Ellipsis for p in parts)
        if used > len(self.shape) or sum(p is Ellipsis for p in parts) > 1:
            what = f"takes {used} dims" if used > len(self.shape) else "has more than one '...'"
            raise self.error(what, f"At most {len(self.shape)} indices, and one '...'")
        where = next((i for i, p in enumerate(parts) if p is Ellipsis), len(parts))
        rest = [slice(None)] * (len(self.shape) - used)
        # an Ellipsis stands between its neighbours even if it takes no dim
        self.apart = where if where < len(parts) and not rest else None
        self.items: list[Any] = [*parts[:where], *rest, *parts[where + 1 :]]
        self.settle()

    def error(self, what: str, allowed: str, hint: str = "") -> TensorIndexError:
        given = f"index {shorten(self.key)} of a tensor of shape {self.shape} {what}"
        return TensorIndexError(message(given, where="x[...]", allowed=allowed, hint=hint))

    def parts(self, item: Any) -> list[Any]:
        """One entry of the key; a mask becomes one array of numbers for each of its dims."""
        if isinstance(item, slice):
            return [self.checked(item)]
        if item is None or item is Ellipsis:
            return [item]
        if isinstance(item, (int, np.integer)) and not isinstance(item, bool):
            return [int(item)]
        if isinstance(item, bool) or not (is_operand(item) or isinstance(item, (list, tuple, range))):
            raise self.error(f"has {shorten(item)} in it", "Ints, slices, None, '...', and arrays of ints or bools")
        values = _constant(item)
        kind = np.dtype(str(item.dtype)).kind if values is None else values.dtype.kind
        if values is not None and not values.size and not hasattr(item, "dtype"):
            values, kind = values.astype(np.int64), "i"  # an empty list has no dtype of its own
        if kind == "b":
            if values is None:
                allowed = "While a network is compiled the shape of the result must be known"
                raise self.error("is a mask that is computed", allowed, "ops.select(mask, x, other) keeps the shape")
            if not values.ndim:
                raise self.error("is one bool", "A mask has the dims it chooses from")
            return [_Mask(n, values.shape[d]) for d, n in enumerate(np.nonzero(values))]
        if kind not in "iu":
            dtype = item.dtype if values is None else values.dtype
            raise self.error(f"has an array of {dtype} in it", "Indices are ints or bools")
        if values is not None and not values.ndim:
            return [int(values)]
        return [_Array(item, values)]

    def checked(self, item: slice) -> slice:
        """A slice whose bounds are ints or None. Raises TensorIndexError."""
        try:
            bounds = [None if b is None else operator.index(b) for b in (item.start, item.stop, item.step)]
        except TypeError:
            what = "has a slice with a bound that is not an int"
            raise self.error(what, "Ints or None before and after ':'") from None
        if bounds[2] == 0:
            raise self.error("has a slice with step 0", "A step other than 0")
        return slice(*bounds)

    def settle(self) -> None:
        """Check every item against its dim, and count from the front."""
        dim = 0
        for place, item in enumerate(self.items):
            if item is None:
                continue
            n = self.shape[dim]
            if isinstance(item, int):
                if not -n <= item < n:
                    raise self.error(f"is outside dim {dim}", f"An int {_range(n)}" if n else NO_ELEMENTS)
                self.items[place] = item % n
            elif isinstance(item, _Array):
                self.items[place] = self.counted(item, n, dim)
            dim += 1

    def counted(self, item: _Array, n: int, dim: int) -> _Array:
        """The same indices, none below 0."""
        if isinstance(item, _Mask) and item.size != n:
            raise self.error(f"has a mask with {item.size} elements where dim {dim} has {n}", "A mask of the same size")
        if item.known is None:
            if np.dtype(str(item.value.dtype)).kind == "u":
                return item
            return _Array(select(less(item.value, 0), add(item.value, n), item.value), None)
        numbers = item.known
        if numbers.size and not -n <= numbers.min() <= numbers.max() < n:
            worst = numbers.min() if numbers.min() < -n else numbers.max()
            allowed = f"Ints {_range(n)}" if n else NO_ELEMENTS
            raise self.error(f"has {worst}, which is outside dim {dim}", allowed)
        if numbers.dtype.kind == "i" and numbers.size and numbers.min() < 0:
            numbers = np.where(numbers < 0, numbers + n, numbers)
            return _Array(numbers, numbers)
        return _Array(item.value if hasattr(item.value, "dtype") else numbers, numbers)

    # ---- operators ----

    def result(self) -> Any:
        arrays = [i for i, item in enumerate(self.items) if isinstance(item, _Array)]
        if len(arrays) > 1:
            self.join_block(arrays)
        if arrays:
            self.check_place(arrays[0])
        value = self.sliced()
        dims: list[str] = []  # what stands where in the value: "kept", "gone" (to be squeezed), "new" (to be put in)
        axis = 0
        for item in self.items:
            if isinstance(item, _Array):
                value = gather(value, item.value, axis)
                dims += ["kept"] * len(item.shape)
                axis += len(item.shape)
            else:
                dims.append("new" if item is None else "gone" if isinstance(item, int) else "kept")
                axis += item is not None
        gone = tuple(i for i, d in enumerate(d for d in dims if d != "new") if d == "gone")
        if gone:
            value = squeeze(value, axis=gone)
        for axis, what in enumerate(d for d in dims if d != "gone"):
            if what == "new":
                value = expand_dims(value, axis)
        return value

    def sliced(self) -> Any:
        """x with its slices and ints taken; the dims of ints have size 1, those of arrays are whole."""
        bounds = []
        dims = [item for item in self.items if item is not None]
        for item, n in zip(dims, self.x.shape, strict=True):
            if isinstance(item, int):
                bounds.append((item, item + 1, 1))
            elif isinstance(item, slice):
                start, stop, step = item.indices(n)
                # downwards, -1 means "to the first one"
                taken = (start, stop if stop >= 0 else -n - 1, step)
                bounds.append(taken if range(start, stop, step) else (0, 0, 1))
            else:
                bounds.append((0, n, 1))
        if all(b == (0, n, 1) for b, n in zip(bounds, self.x.shape, strict=True)):
            return self.x
        return strided_slice(self.x, *zip(*bounds, strict=True))

    def join_block(self, arrays: list[int]) -> None:
        """Several arrays side by side: their dims become one. Ints between them count as arrays."""
        first, last = arrays[0], arrays[-1]
        block = self.items[first : last + 1]
        split = self.apart is not None and first < self.apart <= last
        if split or any(item is None or isinstance(item, slice) for item in block):
            allowed = "Arrays of indices stand side by side"
            raise self.error("has arrays that stand apart", allowed, "Index in two steps")
        block = [item if isinstance(item, _Array) else _Array(np.asarray(item), np.asarray(item)) for item in block]
        dim = sum(item is not None for item in self.items[:first])
        sizes = self.shape[dim : dim + len(block)]
        if all(item.known is not None for item in block):
            try:
                numbers = np.ravel_multi_index(np.broadcast_arrays(*(item.known for item in block)), sizes)
            except ValueError as error:
                what = f"has arrays of shapes {[item.shape for item in block]}"
                raise self.error(what, "Shapes that broadcast to one") from error
            joined = _Array(numbers, numbers)
        else:
            total = block[0].value
            for item, n in zip(block[1:], sizes[1:], strict=True):
                total = add(mul(total, n), item.value)
            joined = _Array(total, None)
        self.x = reshape(self.x, (*self.shape[:dim], math.prod(sizes), *self.shape[dim + len(block) :]))
        self.items[first : last + 1] = [joined]

    def check_place(self, array: int) -> None:
        """numpy puts the dims of arrays first if an int stands apart: refused unless they stand there anyway."""
        special = [i for i, item in enumerate(self.items) if isinstance(item, (int, _Array))]
        split = self.apart is not None and special[0] < self.apart <= special[-1]
        together = all(b - a == 1 for a, b in itertools.pairwise(special)) and not split
        if not together and any(not isinstance(item, int) for item in self.items[:array]):
            what = "has an int apart from the array of indices"
            raise self.error(what, "They stand side by side", "Index in two steps, the int first: x[0][:, rows]")


class _Mask(_Array):
    """Where a mask is true, along one of its dims."""

    def __init__(self, numbers: np.ndarray, size: int) -> None:
        super().__init__(numbers, numbers)
        self.size = size
