"""The different elements of a vector (Unique), and the reverse of an order (InvertPermutation).

    unique([1, 2, 5, 2])    [1, 2, 5] and [0, 1, 2, 1], where each stands

How many elements differ is known only when they are there, but a plan needs shapes: in a compiled network the result is
as long as the vector, its last different element repeated. Looking rows up with it and back with the numbers gives what
the shorter vector gives. The vector stays whole (MindSpore: Unique, strategy ((1,),)).
"""

from __future__ import annotations

import numpy as np

from ...base.errors import ShapeError, shorten
from ...base.hooks import current_tracer
from ...ops.machine.operand_checks import ints
from ...ops.machine.registry import case, op
from ...ops.spellings import function


def _check_vector(operands, **_):
    shape = operands[0].shape
    return None if len(shape) == 1 and shape[0] else (f"a tensor of shape {shape}", "(n,), with elements")


def _by_appearance(x):
    """Different elements as they first appear, and the number of each element among them."""
    values, first, numbers = np.unique(x, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    return values[order], np.argsort(order, kind="stable")[numbers.reshape(-1)].astype(np.int32)


_VECTOR = {"check": _check_vector, "batch": "", "flops": 0}


@op(
    "n->m,n",
    name="Unique",
    whole="nm",
    sizes=lambda shapes, **_: {"m": shapes[0][0]},
    dtype=(0, "int32"),
    example=case((16,), ints={0: 9}),
    **_VECTOR,
)
def unique_elements(x, *, filled=True):
    """Different elements as they first appear, and where each element is among them.  x: (n,) -> (n,), (n,) int32.

    filled  up to n elements, with the last different one; False: as many as there are, outside of a compiled network
    """
    values, numbers = _by_appearance(x)
    return (np.pad(values, (0, len(x) - len(values)), mode="edge") if filled else values), numbers


@op(
    "n,->m,n",
    name="UniqueWithPad",
    whole="nm",
    sizes=lambda shapes: {"m": shapes[0][0]},
    strategy_labels=lambda signature: (signature.ins[0],),
    dtype=(0, "int32"),
    example=case((16,), (), ints={0: 9, 1: 50}),
    **_VECTOR,
)
def unique_with_pad(x, pad_num):
    """As `unique_elements`, filled with `pad_num`.  x: (n,), pad_num: () -> (n,), (n,) int32."""
    values, numbers = _by_appearance(x)
    return np.pad(values, (0, len(x) - len(values)), constant_values=x.dtype.type(pad_num)), numbers


@function()
def unique(input):
    """Different elements as they first appear, and the number of each element.  input: (n,) -> (m,), (n,) int32.

    In a compiled network m is n. Form: mindspore.ops.unique.
    """
    return unique_elements(input, filled=current_tracer.get() is not None)


@op(
    "n->n",
    name="InvertPermutation",
    whole="n",
    check=lambda operands: _check_vector(operands) or ints(operands[0], "permutation"),
    dtype=0,
    batch="",
    flops=0,
    example=case((1,), ints={0: 1}),
)
def invert_permutation(input_x):
    """Where each number stands: result[input_x[i]] = i.  input_x: (n,) int, 0 to n - 1 in any order -> (n,)."""
    if not np.array_equal(np.sort(input_x), np.arange(len(input_x))):
        what = f"the elements {shorten(input_x.tolist())}"
        raise ShapeError(what, where="InvertPermutation", allowed=f"Each number from 0 to {len(input_x) - 1} once")
    return np.argsort(input_x).astype(input_x.dtype)
