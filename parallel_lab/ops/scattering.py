"""Operators that put rows where numbers say, combined with what stands there: `tensor_scatter_update` is what
`x[key] = value` becomes, and one loop declares its relatives with it.

    x = [[1, 1], [2, 2], [3, 3]],  numbers [2, 0, 2],  rows [[5, 5], [6, 6], [7, 7]]
    add:     [[7, 7], [2, 2], [15, 15]]
    update:  [[6, 6], [2, 2], [7, 7]]          the last of equal numbers stays

One rule for all (`combine`), and one for their splits: every rank is given all numbers, and takes the rows of those
that lie in its slice. No message is sent. The real system masks rows by a factor 0, or 1 in a product; for updates and
extremes there is no such factor, and the dims that are numbered stay whole.

Rules: MindSpore, operators TensorScatter*. The catalogue has Scatter*, ScatterNd*, Inplace* and unsorted segments.
"""

from __future__ import annotations

import math

import numpy as np

from .elementwise import neg
from .gather import add_rows, coordinates_fault, place_numbers
from .machine.registry import case, op
from .machine.signature import letters

FREE = ("add", "sub", "mul", "div")  # what a rank can do to its slice alone, whatever the others hold (MindSpore)
_AT = {"mul": np.multiply, "max": np.maximum, "min": np.minimum}
VERBS = {
    "add": "added to",
    "sub": "subtracted from",
    "mul": "multiplied into",
    "div": "dividing",
    "max": "compared with (the larger stays)",
    "min": "compared with (the smaller stays)",
    "update": "instead of (of equal ones the last)",
}


# ---- the rule ----


def combine(how, start, numbers, rows):
    """`start` with every row combined into the one of its number, in order.

    start: (count, ...), numbers: (t,) from 0 to count - 1, rows: (t, ...) -> (count, ...)
    """
    if how in ("add", "sub"):
        total = add_rows(rows, numbers, len(start))
        return start + total if how == "add" else start - total
    result = np.array(start)
    if how == "update":
        result[numbers] = rows
    elif how != "div":
        _AT[how].at(result, numbers, rows)
    elif result.dtype.kind == "f":
        np.divide.at(result, numbers, rows)
    else:  # towards 0, as in C
        divisor = combine("mul", np.ones_like(result), numbers, rows)
        result = np.abs(result) // np.abs(divisor) * np.sign(result) * np.sign(divisor)
    return result


def _rows(places, x, updates, offset, where):
    """x and its updates as rows: (x as rows, number of each update, its row, which updates lie in this slice)."""
    depth = places.shape[-1]
    sizes, rest = x.shape[:depth], x.shape[depth:]
    numbers, mine = place_numbers(places, sizes, offset, where)
    kept = slice(None) if mine is None else mine.reshape(-1)
    rows = updates.reshape((numbers.size, *rest)).astype(x.dtype, copy=False)
    return x.reshape((math.prod(sizes), *rest)), numbers.reshape(-1)[kept], rows[kept], kept


def put(how, x, places, updates, offset, where):
    """x with `updates` combined at `places`, coordinates of shape (..., depth), in one slice.  -> like x."""
    start, numbers, rows, _ = _rows(places, x, updates, offset, where)
    return combine(how, start, numbers, rows).reshape(x.shape)


# ---- TensorScatter: a new tensor; places are coordinates ----


def labels_of_coordinates(shapes, **_):
    """Labels of x, indices and updates, and of the result like x: dims that coordinates number stay whole."""
    x, indices = letters(len(shapes[0])), letters(len(shapes[0]) + len(shapes[1]))[len(shapes[0]) :]
    return f"{x},{indices},{indices[:-1]}{x[shapes[1][-1] :]}->{x}"


def _numbered(signature):
    """Labels of the dims of x that the indices number."""
    return "".join(c for c in signature.ins[0] if c not in signature.ins[2])


def splits(how):
    """Keywords of `op`: how x, its indices and updates may be split."""
    return {
        "axes": lambda signature: signature.ins[0],
        "whole": lambda signature, **_: signature.ins[1] + ("" if how in FREE else _numbered(signature)),
        "batch": "",
        "offset": _numbered,
        "dtype": 0,
    }


ND_CASES = (case((8, 4), (6, 1), (6, 4), ints={1: 8}, low=0.5), case((4, 8, 2), (6, 2), (6, 2), ints={1: 4}, low=0.5))


def _tensor_scatter(how, method):
    def fn(input_x, indices, updates, *, offset=None):
        return put(how, input_x, indices, updates, offset, class_name)

    class_name = f"TensorScatter{how.title()}"
    fn.__name__ = fn.__qualname__ = f"tensor_scatter_{how}"
    fn.__doc__ = f"""Updates {VERBS[how]} the elements at their coordinates, in a new tensor.

    input_x: (...), indices: (i, ..., m) int, m coordinates each, updates: (i, ..., rest), the rest of input_x's dims
    after m -> (...). The indices stay whole{"" if how in FREE else ", and the m first dims of input_x"}.
    """
    operator = op(
        labels_of_coordinates, name=class_name, method=method, check=coordinates_fault, example=ND_CASES, **splits(how)
    )(fn)

    @operator.vjp
    def _(g, out, input_x, indices, updates, needs):
        if how in ("add", "sub"):
            rows = picked(g, indices) if needs[2] else None
            return g, None, neg(rows) if needs[2] and how == "sub" else rows
        gradients = [scatter_grad(g, input_x, indices, updates, how=how, of=i) if needs[i] else None for i in (0, 2)]
        return gradients[0], None, gradients[1]

    return operator


def _part(x, indices):
    """Extents of a slice of x along the dims that the indices number."""
    return tuple(x[: indices[-1]])


@op(
    result_shape=lambda shapes: (*shapes[1][:-1], *shapes[0][shapes[1][-1] :]),
    dtype=0,
    part_size=lambda shapes, attrs: _part(*shapes),
)
def picked(g, indices, *, offset=None):
    """Elements at coordinates, zeros for those of other slices.  g: (...), indices: (i, ..., m) -> (i, ..., rest)."""
    depth = indices.shape[-1]
    numbers, mine = place_numbers(indices, g.shape[:depth], offset, "TensorScatter")
    elements = np.take(g.reshape((-1, *g.shape[depth:])), numbers, axis=0)
    if mine is not None:
        elements[~mine] = 0
    return elements


@op(
    result_shape=lambda shapes, *, how, of: shapes[3 if of else 1],
    dtype=0,
    part_size=lambda shapes, attrs: _part(shapes[1], shapes[2]),
)
def scatter_grad(g, input_x, indices, updates, *, how, of, offset=None):
    """Gradient of TensorScatter for input_x (of=0) or updates (of=2).  g: (...), its operands -> like the operand."""
    x, numbers, rows, kept = _rows(indices, input_x, updates, offset, "TensorScatter")
    g = g.reshape(x.shape)
    gradient = _ROW_GRADIENTS[how](g, x, numbers, rows, of)
    if not of:
        return gradient.reshape(input_x.shape)
    whole = np.zeros((math.prod(indices.shape[:-1]), *x.shape[1:]), g.dtype)
    whole[kept] = gradient
    return whole.reshape(updates.shape)


def last_of(numbers, count):
    """Which of equal numbers is the last: (t,) from 0 to count - 1 -> (t,) bool."""
    order, last = np.arange(len(numbers)), np.zeros(count, np.int64)
    last[numbers] = order
    return last[numbers] == order


def update_grad(g, x, numbers, rows, of):
    """Gradient of "update": for the updates, zero where a later one won (of: true), or for x, zero where replaced."""
    if of:
        won = last_of(numbers, len(x))
        return g[numbers] * won.reshape((-1, *[1] * (g.ndim - 1)))
    return combine("update", g, numbers, np.zeros_like(rows))


def _mul_grad(g, x, numbers, rows, of):
    if not of:
        return combine("mul", g, numbers, rows)
    # not out / row: with zeros only the other factors, and the number of zeros, say what the rest multiplies to
    product = combine("mul", np.where(x == 0, 1, x), numbers, np.where(rows == 0, 1, rows))
    zeros = combine("add", (x == 0).astype(g.dtype), numbers, (rows == 0).astype(g.dtype))
    others = product[numbers] / np.where(rows == 0, 1, rows)
    return g[numbers] * np.where(zeros[numbers] == (rows == 0), others, 0)


def _div_grad(g, x, numbers, rows, of):
    if of:
        return -(g * combine("div", x, numbers, rows))[numbers] / rows
    return combine("div", g, numbers, rows)


def _extreme_grad(how):
    def grad(g, x, numbers, rows, of):
        # equal extremes share the gradient equally, as in MindSpore
        out = combine(how, x, numbers, rows)
        here, there = x == out, rows == out[numbers]
        shared = g / np.maximum(combine("add", here.astype(g.dtype), numbers, there.astype(g.dtype)), 1)
        return np.where(there, shared[numbers], 0) if of else np.where(here, shared, 0)

    return grad


_ROW_GRADIENTS = {
    "update": update_grad,
    "mul": _mul_grad,
    "div": _div_grad,
    "max": _extreme_grad("max"),
    "min": _extreme_grad("min"),
}

# a Tensor's scatter_add has a second form (scatter_elements.py)
BY_COORDINATES = {
    how: _tensor_scatter(how, f"tensor_scatter_{how}" + ("" if how in ("add", "update") else f" scatter_{how}"))
    for how in VERBS
}
