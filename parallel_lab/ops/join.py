"""Operators that join tensors into one and split one into several: concat, stack, split, unstack.

    concat((4, 2), (4, 3)) along axis 1 -> (4, 5)         split (4, 5) into sizes (2, 3) along axis 1 -> (4, 2), (4, 3)
    stack((4, 2), (4, 2)) along axis 1 -> (4, 2, 2)       unstack (4, 2, 2) along axis 1 -> (4, 2), (4, 2)

The dim they work along stays whole, all others may be split.

add_prim_attr("skip_redistribution", True) lets Concat and Split of equal parts split that dim too: every rank joins or
splits its own slice, and elements lie in another order than on one device (MindSpore: concat_info, split_info).

    [0 1 2 3 | 4 5 6 7] on two ranks, split in two:  [0 1 | 4 5] and [2 3 | 6 7]
"""

from __future__ import annotations

import numpy as np

from ..base.checks import SHAPE_ERRORS, integer, is_int, sequence_of
from ..base.errors import ShapeError, shorten
from .machine.operand_checks import check_dim, new_dim, one_dim
from .machine.registry import case, form, op
from .machine.signature import along_axis, letters, more_letters
from .shape import fill, int_tuple

# ---- joining ----


def _check_concat(operands, *, axis, skip_redistribution=False):
    first = operands[0].shape
    place = axis % len(first)
    for i, operand in enumerate(operands):
        shape = operand.shape
        if len(shape) != len(first) or any(
            a != b and d != place for d, (a, b) in enumerate(zip(shape, first, strict=True))
        ):
            return f"tensor {i} has shape {shape}, the first {first}", f"Shapes that differ in dim {place} at most"


def _concat_labels(shapes, *, axis, skip_redistribution=False):
    names, place = letters(len(shapes[0])), axis % len(shapes[0])
    spare = iter(more_letters(len(shapes)))
    # tensors of one size share the label, so that the device matrix is as long as the strategy
    labels = {shapes[0][place]: names[place]}
    for shape in shapes:
        if shape[place] not in labels:
            labels[shape[place]] = next(spare)
    return ",".join(names[:place] + labels[s[place]] + names[place + 1 :] for s in shapes) + "->" + names


def _joined_dim(signature, *, axis, skip_redistribution=False):
    names = "".join(dict.fromkeys(labels[axis] for labels in signature.ins))
    return "" if skip_redistribution and len(names) == 1 else names


@op(
    _concat_labels,
    name="Concat",
    also="cat",
    numpy="concatenate",
    attrs={"axis": one_dim},
    check=_check_concat,
    out_sizes=lambda shapes, *, axis, **_: {letters(len(shapes[0]))[axis]: sum(s[axis] for s in shapes)},
    whole=_joined_dim,
    flops=0,
    example=(case((8, 4), (8, 2), (8, 4), axis=1), case((4, 8), (4, 8)), case((4, 2, 8), (4, 3, 8), axis=-2)),
)
def concat(*inputs, axis=0, skip_redistribution=False):
    """Tensors joined along `axis`.  inputs: each (..., n_i, ...) -> (..., sum of n_i, ...)."""
    return np.concatenate(inputs, axis=axis)


@concat.vjp
def _(g, out, *inputs, axis, skip_redistribution):
    place = axis % len(out.shape)
    return split_parts(g, axis=place, sizes=tuple(x.shape[place] for x in inputs))


def _check_stack(operands, *, axis):
    first = operands[0].shape
    for i, operand in enumerate(operands):
        if operand.shape != first:
            return f"tensor {i} has shape {operand.shape}, the first {first}", "Tensors of one shape"


def _stack_labels(shapes, *, axis):
    names = letters(len(shapes[0]))
    place = axis % (len(names) + 1)
    return ",".join([names] * len(shapes)) + f"->{names[:place]}{more_letters(1)}{names[place:]}"


@op(
    _stack_labels,
    name="Stack Pack",
    numpy="stack",
    attrs={"axis": new_dim},
    check=_check_stack,
    sizes=lambda shapes, *, axis: {more_letters(1): len(shapes)},
    flops=0,
    example=(case((8, 4), (8, 4), (8, 4), axis=1), case((16,), (16,)), case((4, 8), (4, 8), axis=-1)),
)
def stack(*inputs, axis=0):
    """Tensors of one shape along a new dim at `axis` of the result.  inputs: each (...) -> (..., count, ...)."""
    return np.stack(inputs, axis=axis)


@form(stack, "StackExt")
def _(self, tensors, dim=0):
    """`stack` along `dim`.  tensors: each (...) -> (..., count, ...)."""
    return self.run(tensors, axis=dim)


@stack.vjp
def _(g, out, *inputs, axis):
    return unstack(g, axis=axis)


# ---- splitting ----


def _check_split(operands, *, axis, output_num, sizes, skip_redistribution=False):
    shape = operands[0].shape
    n = shape[axis]
    if sizes:
        fault = f"sizes {sizes} of dim {axis} of shape {shape}", f"Sizes that add up to {n}"
        return None if sum(sizes) == n else fault
    if n % output_num:
        given = f"output_num={output_num} for dim {axis} of shape {shape}"
        return given, f"A count that divides {n}", "Give sizes=(...) for unequal parts"


def _counts(n, output_num, sizes):
    """Numbers of elements of the parts of n elements."""
    return sizes or (n // output_num,) * output_num


def _own_parts(sizes, skip_redistribution):
    """Whether a rank may split its own slice: into equal parts."""
    return skip_redistribution and len(set(sizes)) < 2


def _split_labels(shapes, *, axis, output_num, sizes, skip_redistribution=False):
    """The dim that is split has a label of its own in every part, unless ranks split their own slices."""
    names, place = letters(len(shapes[0])), axis % len(shapes[0])
    count = len(sizes) or output_num
    parts = names[place] * count if _own_parts(sizes, skip_redistribution) else more_letters(count)
    return f"{names}->" + "".join(f"{names[:place]}{c}{names[place + 1 :]}," for c in parts)


def _split_sizes(shapes, *, axis, output_num, sizes, skip_redistribution=False):
    if _own_parts(sizes, skip_redistribution):
        return {}
    return dict(zip(more_letters(len(sizes) or output_num), _counts(shapes[0][axis], output_num, sizes), strict=True))


def _split_out_sizes(shapes, *, axis, output_num, sizes, skip_redistribution=False):
    if not _own_parts(sizes, skip_redistribution):
        return {}
    return {letters(len(shapes[0]))[axis]: shapes[0][axis] // (len(sizes) or output_num)}


def _split_local(attrs, parts):
    sizes = attrs["sizes"]
    if not sizes or not _own_parts(sizes, attrs["skip_redistribution"]):
        return attrs
    count = parts[tuple(parts)[attrs["axis"]]]
    return {**attrs, "sizes": tuple(n // count for n in sizes)}


def _joined(g, out, x, axis):
    """The gradient of a tensor from those of its parts along `axis`; zeros for parts without one."""
    zeros = {"value": 0.0, "dtype": str(x.dtype)}
    parts = [fill(shape=tuple(o.shape), **zeros) if p is None else p for p, o in zip(g, out, strict=True)]
    return ((concat if len(out[0].shape) == len(x.shape) else stack)(*parts, axis=axis),)


@op(
    _split_labels,
    name="Split",
    attrs={"axis": one_dim, "output_num": integer(1), "sizes": int_tuple(0)},
    check=_check_split,
    sizes=_split_sizes,
    out_sizes=_split_out_sizes,
    axes=lambda signature: signature.ins[0],
    whole=lambda signature, *, axis, sizes, skip_redistribution, **_: (
        "" if _own_parts(sizes, skip_redistribution) else signature.ins[0][axis]
    ),
    localize=_split_local,
    flops=0,
    example=(
        case((8, 6), axis=1, output_num=3),
        case((4, 8, 2), axis=0, output_num=2),
        case((16, 7), axis=-1, sizes=(1, 4, 2)),
    ),
)
def split_parts(x, *, axis=0, output_num=1, sizes=(), skip_redistribution=False):
    """A tensor split into `output_num` equal parts, or into `sizes`.  x: (..., n, ...) -> several (..., n_i, ...)."""
    borders = np.cumsum(_counts(x.shape[axis], output_num, sizes))[:-1]
    # copies: views would keep all of x alive
    return tuple(np.array(part, order="C") for part in np.split(x, borders, axis))


@split_parts.vjp
def _(g, out, x, *, axis, **_):
    return _joined(g, out, x, axis % len(x.shape))


def _split_form(prim, x, axis, sizes):
    own = prim.prim_attrs.get("skip_redistribution") is True
    return prim.run(x, axis=axis, sizes=sizes, skip_redistribution=own)


@form(split_parts, "SplitV")
def _(self, x, *, size_splits, split_dim, num_split):
    """x split into parts of `size_splits` along split_dim; one may be -1: what remains.  x: (..., n, ...) -> parts."""
    shape = tuple(x.shape)
    n = shape[check_dim("SplitV", "split_dim", split_dim, len(shape), shape)]
    sizes = sequence_of(integer(-1), "Ints, -1 once at most")("SplitV", "size_splits", size_splits, SHAPE_ERRORS)
    if len(sizes) != num_split or sizes.count(-1) > 1:
        given = f"size_splits={sizes} and num_split={shorten(num_split)}"
        raise ShapeError(given, where="SplitV", allowed="num_split sizes, -1 once at most")
    return _split_form(self, x, split_dim, tuple(n - sum(sizes) - 1 if s == -1 else s for s in sizes))


@form(split_parts, "SplitWithSize")
def _(self, x, split_sizes, dim=0):
    """x split into parts of these sizes along `dim`.  x: (..., n, ...) -> several (..., n_i, ...)."""
    return _split_form(self, x, dim, _sizes_of("SplitWithSize", x, split_sizes, dim))


@form(split_parts, "SplitTensor")
def _(self, x, split_size, dim=0):
    """x split into parts of one size along `dim`, a last one smaller.  x: (..., n, ...) -> several (..., n_i, ...)."""
    return _split_form(self, x, dim, _sizes_of("SplitTensor", x, split_size, dim))


def _sizes_of(where, x, sizes, axis):
    """Sizes of the parts: as many elements as `sizes` says, or of one size each. Raises ShapeError."""
    shape = tuple(x.shape)
    n = shape[check_dim(where, "axis", axis, len(shape), shape)]
    if isinstance(sizes, (list, tuple)):
        return tuple(sizes)
    if not is_int(sizes, 1):
        allowed = "An int, at least 1, or a tuple of sizes"
        raise ShapeError(f"split_size_or_sections={shorten(sizes)}", where=where, allowed=allowed)
    return tuple(min(sizes, n - start) for start in range(0, n, sizes)) or (0,)


def _check_unstack(operands, *, axis, num):
    shape = operands[0].shape
    if num not in (None, shape[axis]):
        return f"num={shorten(num)} for dim {axis} of shape {shape}", f"{shape[axis]}, or None"


def _unstack_labels(shapes, *, axis, num):
    names, place = letters(len(shapes[0])), axis % len(shapes[0])
    return f"{names}->" + f"{names[:place]}{names[place + 1 :]}," * shapes[0][axis]


@op(
    _unstack_labels,
    name="Unstack Unpack",
    attrs={"axis": one_dim},
    check=_check_unstack,
    whole=along_axis,
    flops=0,
    example=(case((8, 3), axis=1), case((2, 8, 4)), case((4, 8, 2), axis=-1, num=2)),
)
def unstack(x, *, axis=0, num=None):
    """The parts of a tensor along `axis`, without that dim.  x: (..., n, ...) -> n times (...). `num` may say n."""
    return tuple(np.array(np.take(x, i, axis), order="C") for i in range(x.shape[axis]))


@unstack.vjp
def _(g, out, x, *, axis, num):
    return _joined(g, out, x, axis % len(x.shape))
