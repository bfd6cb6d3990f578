"""Elements and slices added or written at given indices."""

from __future__ import annotations

import math

import numpy as np

from ...base.checks import SHAPE_ERRORS, flag, number
from ...base.dtypes import kind_of
from ...base.errors import ShapeError, shorten
from ...ops.elementwise import add, cast, mul
from ...ops.join import concat
from ...ops.logic import greater
from ...ops.machine.operand_checks import own_dim
from ...ops.machine.registry import OPS
from ...ops.shape import as_array, broadcast_to, expand_dims, swapaxes
from ...ops.spellings import function, tensor_operand

# ---- pieces added or put in ----


def _rows(where, x, numbers, dim):
    """The dim in front, and the numbers as coordinates: (k, 1)."""
    numbers = as_array(numbers)
    if len(numbers.shape) != 1:
        raise ShapeError(f"numbers of shape {tuple(numbers.shape)}", where=where, allowed="A vector of ints")
    return swapaxes(x, 0, dim) if dim else x, expand_dims(numbers, -1)


@function()
def index_add(x, indices, y, axis, use_lock=True, check_index_bound=True):
    """`y` added to the rows (columns, ...) of x with these numbers, in a new tensor.

    x: (..., n, ...), indices: (k,) int, y: (..., k, ...) -> like x. use_lock, check_index_bound: without effect
    """
    y = as_array(y)
    axis = own_dim("index_add", "axis", axis, x)
    moved, places = _rows("index_add", x, indices, axis)
    made = OPS["tensor_scatter_add"](moved, places, swapaxes(y, 0, axis) if axis else y)
    return swapaxes(made, 0, axis) if axis else made


@function()
def index_fill(x, axis, index, value):
    """The rows (columns, ...) with these numbers set to a value.  x: (..., n, ...), index: (k,) int -> like x."""
    axis = own_dim("index_fill", "axis", axis, x)
    moved, places = _rows("index_fill", x, index, axis)
    value = value.item() if hasattr(value, "item") and math.prod(value.shape) == 1 else value
    value = value if isinstance(value, bool) else number()("index_fill", "value", value, SHAPE_ERRORS)
    filled = np.full((places.shape[0], *moved.shape[1:]), value, str(x.dtype))
    made = OPS["tensor_scatter_update"](moved, places, filled)
    return swapaxes(made, 0, axis) if axis else made


@function(lists="indices", numbers="values")
def index_put(x, indices, values, accumulate=False):
    """`values` at these places, in a new tensor; with accumulate they are added to what is there.

    x: (n1, n2, ...), indices: m tensors of ints that broadcast to one shape s, one for each of the first m dims,
    values: broadcast to s + x.shape[m:] -> like x. Negative numbers count from the end.
    """
    flag("index_put", "accumulate", accumulate, SHAPE_ERRORS)
    shape = tuple(x.shape)
    if not isinstance(indices, (tuple, list)) or not 0 < len(indices) <= len(shape):
        allowed = f"A tuple of 1 to {len(shape)} tensors of ints, one per dim"
        raise ShapeError(f"indices={shorten(indices)}", where="index_put", allowed=allowed)
    numbers = [tensor_operand("index_put", "indices", each) for each in indices]
    try:
        places = np.broadcast_shapes(*(tuple(each.shape) for each in numbers))
    except ValueError:
        given = f"indices of shapes {[tuple(each.shape) for each in numbers]}"
        raise ShapeError(given, where="index_put", allowed="Shapes that broadcast to one") from None
    wrong = next((each for each in numbers if kind_of(each.dtype) not in "iu"), None)
    if wrong is not None:
        raise ShapeError(f"indices of {wrong.dtype}", where="index_put", allowed="Tensors of ints")
    at_end = [
        add(each, mul(cast(greater(0, each), str(each.dtype)), n)) for each, n in zip(numbers, shape, strict=False)
    ]
    together = concat([expand_dims(broadcast_to(each, places), -1) for each in at_end], axis=-1)
    values = cast(tensor_operand("index_put", "values", values), str(x.dtype))
    values = broadcast_to(values, (*places, *shape[len(numbers) :]))
    return OPS["tensor_scatter_add" if accumulate else "tensor_scatter_update"](x, together, values)
