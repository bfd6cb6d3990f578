"""Rows put where numbers say: into a Parameter that takes the result, and into rows that an attribute numbers.

The rule and its splits are those of `ops/scattering.py` (MindSpore: Scatter*, ScatterNd*, Inplace*).
"""

from __future__ import annotations

import numpy as np

from ...base.checks import is_int, number
from ...ops.elementwise import neg
from ...ops.gather import coordinates_fault
from ...ops.machine.operand_checks import ints
from ...ops.machine.registry import case, op
from ...ops.machine.signature import but_numbers, letters
from ...ops.scattering import FREE, ND_CASES, VERBS, labels_of_coordinates, put, splits, update_grad
from ...ops.writes import SHAPES, WRITES, write_fault

# ---- Scatter and ScatterNd: a Parameter takes the result ----


def _row_labels(shapes, **_):
    x, indices = letters(len(shapes[0])), letters(len(shapes[0]) + len(shapes[1]))[len(shapes[0]) :]
    return f"{x},{indices},{indices}{x[1:]}->{x}"


def _check_rows(operands, **_):
    if not operands[0].shape:
        return "input_x has shape ()", "A Parameter with rows"
    return ints(operands[1], "indices")


def _scatter(how, nd):
    def fn(input_x, indices, updates, *, use_locking=how == "update", offset=None):
        return put(how, input_x, indices if nd else indices[..., None], updates, offset, class_name)

    class_name = f"Scatter{'Nd' if nd else ''}{how.title()}"
    fn.__name__ = fn.__qualname__ = f"scatter_{'nd_' if nd else ''}{how}"
    places = "elements at their coordinates" if nd else "rows that the indices name"
    taken = "indices: (i, ..., m) int, m coordinates each, updates: (i, ..., rest)" if nd else ""
    fn.__doc__ = f"""Updates {VERBS[how]} the {places}: the Parameter input_x takes the result.

    input_x: (n, ...), {taken or "indices: (i, ...) int from 0 to n - 1, updates: (i, ..., rest)"}, input_x's other dims
    -> (n, ...). The indices stay whole{"" if how in FREE else ", and so do the dims that they number"}.
    use_locking changes nothing: a rank does one thing at a time.
    """
    op(
        labels_of_coordinates if nd else _row_labels,
        name=class_name,
        check=coordinates_fault if nd else _check_rows,
        example=ND_CASES if nd else _ROW_CASES,
        writes=True,
        **splits(how),
    )(fn)


_ROW_CASES = (
    case((8, 4), (6,), (6, 4), ints={1: 8}, low=0.5),
    case((8, 4, 2), (2, 3), (2, 3, 4, 2), ints={1: 8}, low=0.5),
)
for _how in VERBS:
    _scatter(_how, nd=False)
    _scatter(_how, nd=True)


# ---- Inplace: rows that an attribute numbers ----


def _inplace_labels(shapes, *, indices):
    names = letters(len(shapes[0]) + 1)
    return f"{names[:-1]},{names[-1]}{names[1:-1]}->{names[:-1]}"


def _check_inplace(operands, *, indices):
    x, v = (o.shape for o in operands)
    numbers = indices if isinstance(indices, tuple) else (indices,)
    if not x or not numbers or any(not is_int(n, 0, x[0] - 1) for n in numbers):
        allowed = f"An int, or a tuple of ints, from 0 to {x[0] - 1}" if x else "A tensor with dims"
        return f"indices={indices} for a tensor of shape {x}", allowed
    if v != (len(numbers), *x[1:]):
        return f"v has shape {v}", f"One row of x per index: {(len(numbers), *x[1:])}"
    return None


def _places(indices):
    return np.reshape(np.asarray(indices, np.int64), (-1, 1))


def _inplace(how):
    def fn(x, v, *, indices):
        return put(how, x, _places(indices), v, None, class_name)

    class_name = f"Inplace{how.title()}"
    fn.__name__ = fn.__qualname__ = f"inplace_{how}"
    fn.__doc__ = f"""Rows of v {VERBS[how]} the rows of x that the attribute `indices` names, in a new tensor.

    x: (n, ...), v: (k, ...), indices: an int, or k ints, from 0 to n - 1 -> (n, ...)
    """
    made = op(
        _inplace_labels,
        name=class_name,
        check=_check_inplace,
        axes=lambda signature: signature.ins[0],
        whole=lambda signature, **_: signature.ins[0][0] + signature.ins[1][0],
        dtype=0,
        example=(case((8, 4), (3, 4), indices=(5, 0, 5)), case((4, 8, 2), (1, 8, 2), indices=2)),
    )(fn)

    @made.vjp
    def _(g, out, x, v, *, indices):
        if how == "update":
            return inplace_grad(g, indices=indices, of=0), inplace_grad(g, indices=indices, of=1)
        rows = inplace_grad(g, indices=indices, of=2)
        return g, neg(rows) if how == "sub" else rows


@op(result_shape=lambda shapes, *, indices, of: (len(_places(indices)), *shapes[0][1:]) if of else shapes[0], dtype=0)
def inplace_grad(g, *, indices, of):
    """Gradient of Inplace: of=0: g but for rows that were replaced; 1: the rows that replaced them; 2: the rows that
    were combined with them.  g: (n, ...) -> (n, ...) or (k, ...).
    """
    numbers = _places(indices)[:, 0]
    if of == 2:
        return g[numbers]
    return update_grad(g, g, numbers, g[numbers], of)


for _how in ("add", "sub", "update"):
    _inplace(_how)


# ---- sums and differences of whole Parameters ----


@op("...,...->...", name="AssignAdd", check=write_fault, example=[case(*SHAPES), case((16,), ())], **WRITES)
def assign_add(variable, value):
    """The Parameter takes variable + value.  variable: (...), value: (...) or a number -> (...)."""
    return (variable + value).astype(variable.dtype)


@op("...,...->...", name="AssignSub", check=write_fault, example=case((16, 4, 8), (16, 4, 8)), **WRITES)
def assign_sub(variable, value):
    """The Parameter takes variable - value.  variable: (...), value: (...) or a number -> (...)."""
    return (variable - value).astype(variable.dtype)


def _keeps_shape(operands, **_):
    variable, value = (each.shape for each in operands)
    sizes = zip(reversed(variable), reversed(value), strict=False)
    if len(value) <= len(variable) and all(n in (1, m) for m, n in sizes):
        return None
    return f"a value of shape {value} for a Parameter of shape {variable}", "A shape that is broadcast to it"


def _in_place(names, function, text, scaled=False):
    def fn(input, other, alpha=1):
        made = function(input, other if alpha == 1 else alpha * other)
        return np.broadcast_to(made, input.shape).astype(input.dtype)

    def plain(input, other):
        return fn(input, other)

    made = fn if scaled else plain
    made.__name__ = made.__qualname__ = f"tensor_{names.split()[0].lower()}"
    made.__doc__ = f"The Parameter input takes {text}.  input: (...), other: broadcast to it, or a number -> (...)."
    rows = case((16, 4, 8), (4, 1), low=0.5)
    facts = {
        "check": _keeps_shape,
        "numbers": "other",
        "strategy_labels": but_numbers,
        "attrs": {"alpha": number()} if scaled else {},
    }
    # by a function: these do not lie as the Parameter does where they have no strategy, as an Assign
    op(lambda shapes, **_: "...,...->...", name=names, example=(case(*SHAPES, low=0.5), rows), **facts, **WRITES)(made)


_in_place("InplaceAddExt InplaceAddsExt", np.add, "input + alpha other", scaled=True)
_in_place("InplaceSubExt InplaceSubScalar", np.subtract, "input - alpha other", scaled=True)
_in_place("InplaceMul InplaceMuls", np.multiply, "input other")
_in_place("InplaceDiv InplaceDivs", np.divide, "input / other")
_in_place("InplaceFloorDivide InplaceFloorDivides", np.floor_divide, "the floor of input / other")
_in_place("InplaceCopy", lambda _, other: other, "other")
