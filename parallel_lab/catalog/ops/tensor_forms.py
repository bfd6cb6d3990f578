"""Methods of Tensors in MindSpore's form where that is not the form of the function with their name.

    x.sum(0, ms.float16), x.round(decimals=2), x.prod(1, dtype=ms.float32), x.ptp(1)

Forms: MindSpore 2.10, mindspore.Tensor.
"""

from __future__ import annotations

import math

import numpy as np

from ...base.checks import choice, flag, integer
from ...base.errors import NotBuiltYet, ShapeError, shorten
from ...ops.elementwise import add, cast, div, mul, sub
from ...ops.reduce import reduce_max, reduce_min, reduce_sum
from ...ops.shape import reshape, squeeze
from ...ops.spellings import NAMES, method


def _cast(x, dtype):
    return x if dtype is None else cast(x, dtype=dtype)


@method("sum")
def _(self, axis=None, dtype=None, keepdims=False, initial=None, **spelled):
    """The sum over `axis`, None: of all, added to `initial`. dtype: of the elements; a bool is keepdims, as PyTorch."""
    if isinstance(dtype, bool):
        dtype, keepdims = None, dtype
    total = NAMES["sum"](self, axis, **{"keep_dims": keepdims, **spelled}, dtype=dtype)
    return total if initial is None else add(total, initial)


@method("value")
def _(self):
    """The tensor itself; of a Parameter its values now."""
    return self


@method("prod")
def _(self, axis=None, keep_dims=False, dtype=None, **spelled):
    """The product over `axis`, None: of all. dtype: of the elements."""
    return NAMES["prod"](self, axis, **{"keep_dims": keep_dims, **spelled}, dtype=dtype)


@method("round")
def _(self, decimals=0):
    """The nearest number with so many decimals, halves to the even one."""
    scale = 10.0 ** integer()("round", "decimals", decimals)
    return NAMES["round"](self) if scale == 1 else div(NAMES["round"](mul(self, scale)), scale)


@method("softmax")
def _(self, axis=-1, dtype=None, **spelled):
    """exp(x) / sum of exp(x) along `axis`. dtype: of the result."""
    return NAMES["softmax"](_cast(self, dtype), **{"axis": axis, **spelled})


@method("norm")
def _(self, ord=None, dim=None, keepdim=False, *, dtype=None):
    """The norm of vectors along one dim, of matrices in two; dim=None: of all. dtype: of the elements.

    ord  of vectors a number; of matrices "fro" (None), the largest sum of a column (1) or row (inf), the smallest (-)
    """
    x = _cast(self, dtype)
    dims = tuple(range(len(x.shape))) if dim is None and ord is not None else dim
    if not isinstance(dims, (tuple, list)) or len(dims) < 2 or ord in (None, "fro"):
        return NAMES["norm"](x, ord, dim, keepdim)
    if len(dims) > 2 or isinstance(ord, str) or ord not in (1, -1, math.inf, -math.inf):
        what, allowed = f"ord={shorten(ord)} of {len(dims)} dims", "None, 'fro', 1, -1, inf or -inf of two"
        raise NotBuiltYet(what, where="norm", allowed=allowed, hint="One dim, as dim=-1, for norms of vectors")
    summed, other = dims if abs(ord) == 1 else dims[::-1]
    sums = reduce_sum(NAMES["abs"](x), summed, keep_dims=True)
    found = (reduce_max if ord > 0 else reduce_min)(sums, other, keep_dims=True)
    return found if flag("norm", "keepdim", keepdim) else squeeze(found, tuple(dims))


@method("take")
def _(self, indices, axis=None, mode=None):
    """Elements at these places along `axis`; None: in one row. mode: of places outside: "clip", "wrap", None: raise."""
    how = (choice("clip", "wrap", "raise") | None)("take", "mode", mode)
    indices = np.asarray(indices) if isinstance(indices, (list, tuple, int)) else indices
    if how in ("clip", "wrap"):
        count = self.size if axis is None else self.shape[axis]
        indices = NAMES["clip"](indices, 0, count - 1) if how == "clip" else NAMES["floor_mod"](indices, count)
    return NAMES["take"](self, indices, axis)


@method("index_add")
def _(self, dim, index, source, *, alpha=1):
    """alpha times `source` added to the rows (columns, ...) with these numbers, in a new tensor."""
    scaled = source if type(alpha) is int and alpha == 1 else mul(source, alpha)
    return NAMES["index_add"](self, index, scaled, dim)


@method("trace")
def _(self, offset=0, axis1=0, axis2=1, dtype=None):
    """The sum of the diagonal of two dims. dtype: of the elements."""
    return NAMES["sum"](NAMES["diagonal"](self, offset, axis1, axis2), -1, dtype=dtype)


def _with_alpha(name, operator):
    @method(name)
    def _(self, other, *, alpha=1):
        return operator(self, other) if type(alpha) is int and alpha == 1 else NAMES[f"{name}_ext"](self, other, alpha)


_with_alpha("add", add)
_with_alpha("sub", sub)


def _spread(name, text):
    def spread(self, axis=None, ddof=0, keepdims=False, *, correction=None, **spelled):
        given = {"ddof": ddof if correction is None else correction, "keep_dims": keepdims, **spelled}
        return NAMES[name](self, axis, **given)

    spread.__doc__ = text
    method(name)(spread)


_spread("std", "Standard deviation over `axis`, the root of `var`.")
_spread("var", "Variance over `axis`; squares over count - ddof: 0 as in numpy and MindSpore (PyTorch: 1).")


@method("ptp")
def _(self, axis=None, keepdims=False):
    """The largest less the smallest over `axis`."""
    return sub(reduce_max(self, axis, keep_dims=keepdims), reduce_min(self, axis, keep_dims=keepdims))


@method("aminmax")
def _(self, *, axis=0, keepdims=False):
    """(the smallest, the largest) along `axis`."""
    return reduce_min(self, axis, keep_dims=keepdims), reduce_max(self, axis, keep_dims=keepdims)


@method("resize")
def _(self, *new_shape):
    """The first elements, row by row, under another shape, and zeros after them."""
    shape = tuple(new_shape[0]) if new_shape and isinstance(new_shape[0], (tuple, list)) else new_shape
    count = 1
    for extent in shape:
        count *= integer(0)("resize", "new_shape", extent)
    row = reshape(self, (-1,))
    row = row[:count] if count <= self.size else NAMES["pad"](row, (0, count - self.size))
    return reshape(row, shape)


@method("reshape_as")
def _(self, other):
    """The same elements in the shape of another tensor."""
    return reshape(self, tuple(other.shape))


@method("choose")
def _(self, choices, mode="clip"):
    """The element of the tensor that each number names. mode: of numbers outside, "clip" or "wrap"."""
    last = len(choices) - 1
    if last < 0:
        raise ShapeError("no choices", where="choose", allowed="At least one tensor")
    clips = choice("clip", "wrap")("choose", "mode", mode) == "clip"
    places = NAMES["clip"](self, 0, last) if clips else NAMES["floor_mod"](self, last + 1)
    choices = [np.asarray(each) if isinstance(each, (list, tuple)) else each for each in choices]
    found = choices[last]
    for i in range(last):
        found = NAMES["where"](NAMES["equal"](places, i), choices[i], found)
    return found


def _split_along(name, axis):
    @method(name)
    def _(self, indices_or_sections):
        along = axis if axis != 1 or len(self.shape) > 1 else 0
        return NAMES["tensor_split"](self, indices_or_sections, along)


for _name, _axis in (("vsplit", 0), ("hsplit", 1), ("dsplit", 2)):
    _split_along(_name, _axis)


@method("fill_diagonal")
def _(self, fill_value, wrap=False):
    """`fill_value` on the diagonal of a matrix; wrap: again below it, after a row between."""
    rows, columns = self.shape
    places = NAMES["arange"](rows * columns).reshape(rows, columns)
    below = rows * columns if wrap else columns * columns
    on = (places % (columns + 1) == 0) & (places < below)
    return NAMES["masked_fill"](self, on, fill_value)


@method("positive")
def _(self):
    """The tensor itself."""
    return self


@method("ndimension")
def _(self):
    """How many dims there are."""
    return len(self.shape)
