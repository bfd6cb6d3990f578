"""Elements whose number depends on values: `nonzero`, `masked_select`.

How many there are is known only when the values are there: these functions compute at once, and in a network that is
compiled they say that its tensors have no values yet.
"""

from __future__ import annotations

import numpy as np

from ...base.checks import flag
from ...base.errors import ShapeError
from ...ops.elementwise import cast
from ...ops.gather import gather
from ...ops.shape import as_array, broadcast_to, reshape
from ...ops.spellings import function

# ---- elements whose number depends on values ----


@function(method="nonzero")
def nonzero(input, *, as_tuple=False):
    """Where elements are not 0: coordinates.  input: (...) -> (k, dims) int64; as_tuple: one (k,) per dim."""
    given = np.asarray(input)
    if not given.ndim:
        raise ShapeError("a single number", where="nonzero", allowed="A tensor of one dim at least")
    found = np.nonzero(given)
    if flag("nonzero", "as_tuple", as_tuple):
        return tuple(cast(places, dtype="int64") for places in found)
    return cast(np.stack(found, -1), dtype="int64")


@function()
def argwhere(input):
    """Where elements are not 0: coordinates.  input: (...) -> (k, dims) int64."""
    return nonzero(input)


@function(method="masked_select", mint="masked_select")
def masked_select(input, mask):
    """Elements where the mask holds, row by row.  input, mask: (...) -> (k,)."""
    input, mask = as_array(input), as_array(mask)
    try:
        shape = np.broadcast_shapes(tuple(input.shape), tuple(mask.shape))
    except ValueError:
        what = f"input of shape {tuple(input.shape)} and mask of shape {tuple(mask.shape)}"
        raise ShapeError(what, where="masked_select", allowed="Shapes that broadcast") from None
    places = np.flatnonzero(np.broadcast_to(np.asarray(mask), shape))
    return gather(reshape(broadcast_to(input, shape=shape), (-1,)), places, axis=0)
