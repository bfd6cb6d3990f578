"""Unsorted segments: rows with equal numbers combined with each other.

    rows [[5, 5], [6, 6], [7, 7]],  numbers [2, 0, 2]
    sum: [[6, 6], [0, 0], [12, 12]]

Where the numbers are split, every rank combines its own rows: the result is partial. Rules: MindSpore, operators
UnsortedSegment*.
"""

from __future__ import annotations

import numpy as np

from ...base.checks import integer
from ...ops.elementwise import cast, mul
from ...ops.gather import add_rows, place_numbers
from ...ops.logic import equal, select
from ...ops.machine.operand_checks import ints
from ...ops.machine.registry import case, gradient, op
from ...ops.machine.signature import letters, more_letters
from ...ops.scattering import combine


def _segment_labels(shapes, *, num_segments):
    names = letters(len(shapes[0]))
    ids = names[: len(shapes[1])]
    return f"{names},{ids}->{more_letters(1)}{names[len(ids) :]}"


def _check_segments(operands, *, num_segments):
    x, ids = (o.shape for o in operands)
    if not ids or x[: len(ids)] != ids:
        return f"segment_ids have shape {ids}, but x has shape {x}", "The first dims of x, at least one"
    return ints(operands[1], "segment_ids")


def _of_nothing(how, dtype):
    """The value of a segment without rows."""
    if how in ("add", "mul"):
        return dtype.type(how == "mul")
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return limits.max if how == "min" else limits.min


def _segments(name, text, how, empty):
    def fn(x, segment_ids, num_segments):
        numbers = segment_ids.reshape(-1)
        rows = x.reshape((numbers.size, *x.shape[segment_ids.ndim :]))
        kept = (numbers >= 0) & (numbers < num_segments)
        if how == "add":
            return add_rows(rows[kept], numbers[kept], num_segments)
        start = np.full((num_segments, *rows.shape[1:]), _of_nothing(how, x.dtype), x.dtype)
        return combine(how, start, numbers[kept], rows[kept])

    fn.__name__ = fn.__qualname__ = f"unsorted_segment_{name}"
    fn.__doc__ = f"""{text} of equal-numbered parts of x, {empty} for empty segments; other ids are left out.

    x: (i, ..., rest), segment_ids: (i, ...) int -> (num_segments, rest). Where the ids are split the result is partial.
    """
    return op(
        _segment_labels,
        name=f"UnsortedSegment{name.title()}",
        method=fn.__name__,
        static=("num_segments",),
        attrs={"num_segments": integer(0)},
        check=_check_segments,
        sizes=lambda shapes, *, num_segments: {more_letters(1): num_segments},
        reduce={"add": "sum", "mul": "prod"}.get(how, how),
        dtype=0,
        example=(
            case((16, 4), (16,), ints={1: 5}, num_segments=5),
            case((8, 2, 4), (8, 2), ints={1: 6}, num_segments=4),
        ),
    )(fn)


unsorted_segment_sum = _segments("sum", "Sums", "add", "0")
unsorted_segment_prod = _segments("prod", "Products", "mul", "1")
unsorted_segment_max = _segments("max", "Largest elements", "max", "the dtype's smallest number")
unsorted_segment_min = _segments("min", "Smallest elements", "min", "the dtype's largest number")


@gradient(unsorted_segment_sum)
def segment_grad(g, segment_ids, *, shape):
    """Gradient: every part gets its segment's, ignored ones zeros.  g: (segments, rest), segment_ids -> `shape`."""
    numbers, mine = place_numbers(segment_ids[..., None], g.shape[:1], 0, "UnsortedSegment")
    rows = np.take(g, numbers, 0)
    rows[~mine] = 0
    return rows.reshape(shape)


@unsorted_segment_max.vjp
@unsorted_segment_min.vjp
def _(g, out, x, segment_ids, *, num_segments, across):
    # equal extremes share the gradient equally (MindSpore), across ranks too: their number is summed
    shape = tuple(x.shape)
    extreme = cast(equal(x, segment_grad(out, segment_ids, shape=shape)), dtype=str(g.dtype))
    ties = across(unsorted_segment_sum(extreme, segment_ids, num_segments))
    each = g / select(equal(ties, 0.0), 1.0, ties)
    return mul(extreme, segment_grad(each, segment_ids, shape=shape)), None


@op(result_shape=1, dtype=0)
def segment_prod_grad(g, x, segment_ids, product, zeros):
    """Gradient of a product: g times the other factors.  g, product, zeros: (segments, rest), x: (i, ..., rest) -> x's.

    product  of the factors that are not 0, over all ranks; zeros: how many factors are 0, over all ranks
    """
    numbers, mine = place_numbers(segment_ids[..., None], g.shape[:1], 0, "UnsortedSegment")
    factor = x == 0
    others = np.take(product, numbers, 0) / np.where(factor, np.ones((), x.dtype), x)
    made = np.take(g, numbers, 0) * np.where(np.take(zeros, numbers, 0) == factor, others, np.zeros((), x.dtype))
    made[~mine] = 0
    return made


@unsorted_segment_prod.vjp
def _(g, out, x, segment_ids, *, num_segments, across):
    zero = equal(x, 0.0)
    product = across(unsorted_segment_prod(select(zero, 1.0, x), segment_ids, num_segments), reduce="prod")
    zeros = across(unsorted_segment_sum(cast(zero, dtype=str(g.dtype)), segment_ids, num_segments))
    return segment_prod_grad(g, x, segment_ids, product, zeros), None
