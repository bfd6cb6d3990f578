"""Ranges of a tensor: `strided_slice` and its shorter forms. `x[1:5]` is one of them (`indexing.py`)."""

from __future__ import annotations

import itertools

import numpy as np

from ..base.checks import integer, sequence_of
from .machine.registry import case, gradient, op
from .machine.signature import letters, more_letters
from .shape import changed_labels

_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def _taking(begin, end, strides, begin_mask=0, end_mask=0, ellipsis_mask=0, new_axis_mask=0, shrink_axis_mask=0, **_):
    """The key of `x[key]` that takes what begin, end, strides and the masks say; bit i of a mask is for position i."""

    def item(bit, first, last, step):
        if ellipsis_mask & bit:
            return Ellipsis
        if new_axis_mask & bit:
            return None
        first = None if begin_mask & bit else first
        if shrink_axis_mask & bit:
            return first if first is not None else 0 if step > 0 else -1
        return slice(first, None if end_mask & bit else last, step)

    bounds = zip(begin, end, strides or (1,) * len(begin), strict=True)
    return tuple(item(1 << i, *each) for i, each in enumerate(bounds))


def _per_dim(shape, key):
    """For every item of the key and every dim it leaves out: (the dim, None for a new one; the item)."""
    spare = len(shape) - sum(item is not None and item is not Ellipsis for item in key)
    rest = [slice(None)] * spare
    at = key.index(Ellipsis) if Ellipsis in key else len(key)
    dims = itertools.count()
    return [(None if item is None else next(dims), item) for item in [*key[:at], *rest, *key[at + 1 :]]]


def _check_slice(operands, **attrs):
    shape, begin, end, strides = (operands[0].shape, *(attrs[name] for name in ("begin", "end", "strides")))
    for name, given in (("end", end), ("strides", strides)):
        if given is not None and len(given) != len(begin):
            return f"{name} {given} with begin {begin}", "Tuples of ints, equally long"
    if 0 in (strides or ()):
        return f"strides {strides}", "Steps other than 0"
    key = _taking(**attrs)
    if sum(item is Ellipsis for item in key) > 1:
        return f"ellipsis_mask={attrs['ellipsis_mask']} for begin {begin}", "One bit at most"
    if sum(item is not None and item is not Ellipsis for item in key) > len(shape):
        return f"begin {begin} for a tensor of shape {shape}", "At most one int per dim"
    for dim, item in _per_dim(shape, key):
        if isinstance(item, int) and not -shape[dim] <= item < shape[dim]:
            what = f"begin {begin} with shrink_axis_mask={attrs['shrink_axis_mask']} for a tensor of shape {shape}"
            return what, f"A number from {-shape[dim]} to {shape[dim] - 1} for dim {dim}"


SOME_INTS = sequence_of(integer(), "A tuple of ints", empty=True)


def _slice_labels(shapes, *, skip_redistribution=False, **attrs):
    """A dim that is taken in part has a label of its own in the result, unless ranks take from their own slices."""
    names = letters(len(shapes[0]))
    spare = names if skip_redistribution else more_letters(len(names))
    out = ""
    for dim, item in _per_dim(shapes[0], _taking(**attrs)):
        if dim is None:
            out += "1"
        elif isinstance(item, slice):
            whole = item.indices(shapes[0][dim]) == (0, shapes[0][dim], 1)
            out += names[dim] if whole else spare[dim]
    return f"{names}->{out}"


def _taken(shapes, names, attrs):
    """{its name: elements taken} of every dim that stays."""
    dims = (each for each in _per_dim(shapes[0], _taking(**attrs)) if isinstance(each[1], slice))
    return {names[dim]: len(range(*item.indices(shapes[0][dim]))) for dim, item in dims}


def _slice_sizes(shapes, *, skip_redistribution=False, **attrs):
    return {} if skip_redistribution else _taken(shapes, more_letters(len(shapes[0])), attrs)


def _slice_out_sizes(shapes, *, skip_redistribution=False, **attrs):
    return _taken(shapes, letters(len(shapes[0])), attrs) if skip_redistribution else {}


def _slice_local(attrs, parts):
    """A rank takes its share of begin and end from its own slice."""
    if not attrs["skip_redistribution"]:
        return attrs
    counts = tuple(parts.values())
    of_items = [1 if dim is None else counts[dim] for dim, _ in _per_dim(counts, _taking(**attrs))]

    def share(bounds):
        return tuple(n // count for n, count in zip(bounds, of_items, strict=False))

    return {**attrs, "begin": share(attrs["begin"]), "end": share(attrs["end"])}


def _restrict_slice(signature, cuts, sizes, *, ellipsis_mask=0, skip_redistribution=False, **attrs):
    """MindSpore, strided_slice_info: GetMask refuses the ellipsis, whatever is split."""
    labels = signature.ins[0] if skip_redistribution else ""
    for dim, item in _per_dim(tuple(sizes[c] for c in labels), _taking(**attrs)) if labels else ():
        if dim is not None and isinstance(item, slice) and cuts[labels[dim]] > 1:
            count, (begin, end, step) = cuts[labels[dim]], item.indices(sizes[labels[dim]])
            if step != 1 or begin % count or end % count:
                what = f"splits dim {dim} {count} ways, and {begin} to {end} are taken with stride {step}"
                return what, "Stride 1, begin and end multiples of the parts, where skip_redistribution is set"
    if ellipsis_mask:
        what = f"is for ellipsis_mask={ellipsis_mask}, which parallel modes do not take"
        return what, "ellipsis_mask=0: begin, end and strides name every dim, or the first ones"


@op(
    _slice_labels,
    name="StridedSlice",
    static=("begin", "end"),
    attrs={"begin": SOME_INTS, "end": SOME_INTS, "strides": SOME_INTS | None, **dict.fromkeys(_MASKS, integer(0))},
    check=_check_slice,
    sizes=_slice_sizes,
    out_sizes=_slice_out_sizes,
    whole=changed_labels,
    restrict=_restrict_slice,
    localize=_slice_local,
    flops=0,
    example=(
        case((16, 8), begin=(0, 1), end=(16, 7), strides=(1, 2)),
        case((4, 8, 2), begin=(-3,), end=(4,)),
        case((4, 8), begin=(0, 7), end=(4, -9), strides=(1, -1)),
        case((4, 8, 2), begin=(2, 5, 1), end=(4, 3, 2), begin_mask=3, end_mask=2, shrink_axis_mask=4),
        case((4, 8, 2), begin=(1, 0, 0, 0), end=(3, 0, 8, 8), new_axis_mask=2, strides=(1, 1, 1, 1)),
    ),
)
def strided_slice(
    x,
    begin,
    end,
    strides=None,
    *,
    begin_mask=0,
    end_mask=0,
    ellipsis_mask=0,
    new_axis_mask=0,
    shrink_axis_mask=0,
    skip_redistribution=False,
):
    """The elements begin, begin + stride, ... before end of every dim, by Python's slice rules.  x: (...) -> (...).

    One int per dim, from the first on; further dims are whole. Default stride 1. Only whole dims can be split.
    Masks, bit i for position i (MindSpore: StridedSlice); of several at one position the first in this list counts:

    ellipsis_mask     all dims that no other position names stand here, whole; one bit at most; on one device only
    new_axis_mask     a new dim of size 1
    shrink_axis_mask  the dim goes, with the element at begin
    begin_mask, end_mask  begin or end does not count: from the first element, to the last one

    skip_redistribution (by `add_prim_attr`): every rank takes its share from its own slice, so any dim may be split
    """
    key = _taking(begin, end, strides, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    return np.array(x[key], order="C")


@gradient(strided_slice, shown="StridedSliceGrad")
def slice_grad(g, *, shape, begin, end, strides, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask):
    """Gradient of strided_slice: zeros, with g where its elements came from.  g: (...) -> `shape`."""
    grad = np.zeros(shape, g.dtype)
    grad[_taking(begin, end, strides, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)] = g
    return grad
