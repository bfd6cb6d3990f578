"""Elements whose number depends on values: `nonzero`, `masked_select`.

How many there are is known only when the values are there: these functions compute at once, and in a network that is
compiled they say that its tensors have no values yet.
"""

from __future__ import annotations

import numpy as np

from ...base.checks import flag
from ...base.errors import ShapeError
from ...nn.tensor.tensor import Tensor
from ...ops.gather import gather
from ...ops.logic import select, truth_fault
from ...ops.machine.registry import case, op, unbroadcast
from ...ops.machine.signature import but_numbers
from ...ops.shape import as_array, broadcast_to, reshape
from ...ops.spellings import function

# ---- elements whose number depends on values ----


@function()
def nonzero(input, *, as_tuple=False):
    """Where elements are not 0: coordinates.  input: (...) -> (k, dims) int64; as_tuple: one (k,) per dim."""
    given = np.asarray(input)
    if not given.ndim:
        raise ShapeError("a single number", where="nonzero", allowed="A tensor of one dim at least")
    made = Tensor if isinstance(input, Tensor) else np.asarray
    found = [places.astype(np.int64) for places in np.nonzero(given)]
    return tuple(map(made, found)) if flag("nonzero", "as_tuple", as_tuple) else made(np.stack(found, -1))


@function()
def argwhere(input):
    """Where elements are not 0: coordinates.  input: (...) -> (k, dims) int64."""
    return nonzero(input)


@function(mint="masked_select")
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


# ---- elements replaced where a mask holds ----


def _check_masked_fill(operands):
    shape = operands[2].shape
    return truth_fault(operands[1], "mask") or ((f"value has shape {shape}", "A number: shape ()") if shape else None)


@op(
    "...,...,...->...",
    name="MaskedFill",
    mint="masked_fill",
    check=_check_masked_fill,
    strategy_labels=but_numbers,
    dtype=0,
    example=(case((16, 8), (16, 8), (), bools={1}), case((4, 8, 2), (8, 1), (), bools={1})),
)
def masked_fill(x, mask, value):
    """x with `value` where the mask is true.  x: (...), mask: (...) bool, value: () -> broadcast (...) of x's dtype.

    A strategy has two tuples, for x and mask (MindSpore: MaskedFill).
    """
    return np.where(mask, np.asarray(value, x.dtype), x)


@masked_fill.vjp
def _(g, out, x, mask, value, *, needs):
    of_value = unbroadcast(select(mask, g, 0.0), value) if needs[2] else None
    return unbroadcast(select(mask, 0.0, g), x), None, of_value
