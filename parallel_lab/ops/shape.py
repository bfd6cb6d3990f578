"""Operators that rename, move, add and repeat dims. Others: `padding.py`, `join.py`, `indexing.py`, `gather.py`."""

from __future__ import annotations

import math

import numpy as np

from ..base.checks import integer, is_int, sequence_of
from ..base.errors import ShapeError, shorten
from .machine.operand_checks import any_dims, check_dim, new_dim, some_dims
from .machine.registry import case, op, unbroadcast
from .machine.signature import letters, more_letters
from .reduce import reduce_sum
from .spellings import function, tensor_operand


def _target(shape, target):
    """The target shape with its -1 worked out; None if `shape` has not its number of elements."""
    total, target = math.prod(shape), target if isinstance(target, tuple) else (target,)
    product = math.prod(n for n in target if n != -1)
    if target.count(-1) == 1 and product and total % product == 0:
        target = tuple(total // product if n == -1 else n for n in target)
    return None if -1 in target or math.prod(target) != total else target


def _check_reshape(operands, *, shape):
    if _target(operands[0].shape, shape) is None:
        given = f"shape {shape} for a tensor of shape {operands[0].shape}"
        return given, f"A shape with {math.prod(operands[0].shape)} elements"


@op(
    lambda shapes, *, shape: f"{letters(len(shapes[0]))}->",
    name="Reshape",
    numpy="reshape ravel",
    mint="reshape",
    static=("shape",),
    attrs={"shape": sequence_of(integer(-1), "A tuple of ints; one of them may be -1", one=True, empty=True)},
    check=_check_reshape,
    sizes=lambda shapes, *, shape: {"shape": _target(shapes[0], shape)},
    view=True,
    flops=0,
)
def reshape(x, shape):
    """The same elements under another shape; one entry may be -1.  x: (...) -> `shape`.

    Takes no strategy: a parallel program redistributes from its producer's layout to the one its consumer wants.
    """
    return x.reshape(shape)


def _check_flatten(operands):
    return None if operands[0].shape else ("a tensor of shape ()", "At least one dim")


@op(
    lambda shapes: f"{letters(len(shapes[0]))}->az",
    name="Flatten",
    check=_check_flatten,
    whole=lambda signature: signature.ins[0][1:] + "z",
    sizes=lambda shapes: {"z": math.prod(shapes[0][1:])},
    flops=0,
    example=(case((16, 2, 4)), case((8, 1, 2, 2))),
)
def flatten(x):
    """All dims but the first joined.  x: (a, ...) -> (a, product of the rest). Only the first dim may be split."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))  # -1 has no answer where there are no rows


def _permuted(shapes, *, perm):
    names = letters(len(shapes[0]))
    return f"{names}->{''.join(names[p] for p in perm)}"


def _permutation(name, value, shape):
    if isinstance(value, tuple) and len(value) == len(shape):
        return some_dims(name, value, shape)
    return f"{name} {shorten(value)} for a tensor of shape {shape}", f"A permutation of {tuple(range(len(shape)))}"


@op(
    _permuted,
    name="Transpose",
    numpy="transpose",
    static=("perm",),
    attrs={"perm": _permutation},
    flops=0,
    example=(case((16, 8), perm=(1, 0)), case((4, 8, 2), perm=(2, 0, 1))),
)
def transpose(x, perm):
    """Dims in the order `perm`.  x: (...) -> (...), dim i of the result is dim perm[i] of x."""
    return np.array(np.transpose(x, perm), order="C")  # ascontiguousarray would give a 0-d array a dim


@transpose.vjp
def _(g, out, x, *, perm):
    inverse = [0] * len(perm)
    for i, p in enumerate(perm):
        inverse[p % len(perm)] = i
    return (transpose(g, tuple(inverse)),)


@function(method="swapaxes")
def swapaxes(x, axis0, axis1):
    """x with two dims exchanged.  x: (...) -> (...)."""
    ndim = len(x.shape)
    perm = list(range(ndim))
    i = check_dim("swapaxes", "axis0", axis0, ndim, tuple(x.shape))
    j = check_dim("swapaxes", "axis1", axis1, ndim, tuple(x.shape))
    perm[i], perm[j] = j, i
    return transpose(x, tuple(perm))


# ---- dims of size 1 ----


def _expanded(shapes, *, axis):
    names = letters(len(shapes[0]))
    place = axis % (len(names) + 1)
    return f"{names}->{names[:place]}1{names[place:]}"


@op(
    _expanded,
    name="ExpandDims",
    method="expand_dims",
    numpy="expand_dims",
    static=("axis",),
    attrs={"axis": new_dim},
    flops=0,
    example=(case((16, 8), axis=1), case((16, 8), axis=-1), case((16,), axis=0)),
)
def expand_dims(x, axis):
    """A dim of size 1 put in at `axis` of the result.  x: (...) -> (..., 1, ...)."""
    return np.expand_dims(x, axis)


_NO_DIM = "none"  # axis of a slice that keeps every dim, where () would mean all of size 1


def _squeezed(shape, axis):
    """The dims that go: those named, or all of size 1."""
    if axis == _NO_DIM:
        return ()
    if axis in ((), None):
        return tuple(i for i, n in enumerate(shape) if n == 1)
    return tuple(a % len(shape) for a in (axis if isinstance(axis, tuple) else (axis,)))


def _single_dims(name, value, shape):
    if value is None:
        return None
    if fault := some_dims(name, value, shape):
        return fault
    for d in value if isinstance(value, tuple) else (value,):
        if shape[d] != 1:
            allowed = f"Dims of size 1; dim {d % len(shape)} has {shape[d]}"
            return f"{name}={value} for a tensor of shape {shape}", allowed


_single_dims.alone = any_dims.alone


def _squeeze_labels(shapes, *, axis):
    names, gone = letters(len(shapes[0])), _squeezed(shapes[0], axis)
    # dims that go have labels of their own kind, for _squeeze_local: a slice may have size 1 where the tensor has more
    spare = dict(zip(gone, more_letters(len(gone)), strict=True))
    kept = "".join(c for i, c in enumerate(names) if i not in spare)
    return "".join(spare.get(i, c) for i, c in enumerate(names)) + "->" + kept


def _squeeze_local(attrs, parts):
    if attrs["axis"] in ((), None):
        # which dims go is known of the whole tensor: where none does, a slice of size 1 must not lose a dim either
        gone = tuple(i for i, c in enumerate(parts) if not c.isascii())
        return {**attrs, "axis": gone or _NO_DIM}
    return attrs


@op(
    _squeeze_labels,
    name="Squeeze",
    numpy="squeeze",
    attrs={"axis": _single_dims},
    localize=_squeeze_local,
    flops=0,
    example=(case((16, 1, 8)), case((1, 16, 1, 8), axis=(0,)), case((16, 8, 1), axis=-1)),
)
def squeeze(x, *, axis=()):
    """Dims of size 1 taken out: those of `axis`, or all of them for ().  x: (...) -> (...)."""
    gone = _squeezed(x.shape, axis)
    return x.reshape([n for i, n in enumerate(x.shape) if i not in gone])


@reshape.vjp
@flatten.vjp
@expand_dims.vjp
@squeeze.vjp
def _(g, out, x, **_):
    return (reshape(g, tuple(x.shape)),)


# ---- repeating ----


def int_tuple(least):
    """A tuple of ints, none below `least`."""
    return sequence_of(integer(least), f"A tuple of ints, none below {least}", empty=True)


def _check_tile(operands, *, multiples):
    shape = operands[0].shape
    if len(multiples) < len(shape):
        return f"multiples {multiples} for a tensor of shape {shape}", "At least one count per dim"


def _tile_labels(shapes, *, multiples):
    names = letters(len(shapes[0]))
    added = len(multiples) - len(names)
    spare = more_letters(len(multiples))
    repeated = "".join(c if m == 1 else s for c, m, s in zip(names, multiples[added:], spare[added:], strict=True))
    return f"{names}->{spare[:added]}{repeated}"


def _tile_sizes(shapes, *, multiples):
    full = (1,) * (len(multiples) - len(shapes[0])) + tuple(shapes[0])
    return {c: n * m for c, n, m in zip(more_letters(len(multiples)), full, multiples, strict=True)}


def _tile_restrict(signature, cuts, sizes, *, multiples):
    for position, (label, m) in enumerate(zip(signature.out, multiples, strict=True)):
        if m > 1 and m % cuts[label]:
            what = f"splits position {position} of input 0 {cuts[label]} ways, but its multiple is {m}"
            return what, "Where a dim is repeated its copies are shared out, and each stays whole"


def _tile_local(attrs, parts):
    spare = more_letters(len(attrs["multiples"]))
    return {"multiples": tuple(m // parts.get(c, 1) for c, m in zip(spare, attrs["multiples"], strict=True))}


def _tile_counted(signature, sizes, *, multiples):
    """The layout is the input's, with repeated dims left whole; counts split the multiples."""
    return [c for c, m in zip(signature.out, multiples, strict=True) if 1 < m < sizes[c]]


def changed_labels(signature, **_):
    """Labels of dims that have another one in the result: a dim that is changed stays whole."""
    return "".join(signature.reduced)


@op(
    _tile_labels,
    name="Tile",
    numpy="tile",
    static=("multiples",),
    attrs={"multiples": int_tuple(1)},
    check=_check_tile,
    sizes=_tile_sizes,
    axes=lambda signature: signature.out,
    strategy_labels=lambda signature: (signature.out,),
    whole=changed_labels,
    restrict=_tile_restrict,
    counted=_tile_counted,
    localize=_tile_local,
    flops=0,
    example=(
        case((16, 8), multiples=(1, 3)),
        case((8, 4), multiples=(4, 1, 1)),
        case((4, 2, 8), multiples=(2, 3, 1)),
        case((3, 4), multiples=(8, 2)),
    ),
)
def tile(x, multiples):
    """x repeated `multiples[i]` times along dim i; more counts add dims in front.  x: (...) -> (...).

    A strategy is one tuple as long as `multiples` (MindSpore: Tile): where a multiple is 1 it splits the dim, elsewhere
    it divides the multiple, and every rank has whole copies.
    """
    return np.tile(x, multiples)


@tile.vjp
def _(g, out, x, *, multiples):
    added = len(multiples) - len(x.shape)
    split, over = list(multiples[:added]), list(range(added))
    for n, m in zip(x.shape, multiples[added:], strict=True):
        over.append(len(split))
        split += [m, n]
    return (reduce_sum(reshape(g, tuple(split)), tuple(over)) if over else g,)


def _broadcast_shape(shape, target):
    """The target shape with its -1 (as x has it) worked out; None if x does not broadcast to it."""
    added = len(target) - len(shape)
    full = (None,) * added + tuple(shape)
    if added < 0 or any(
        n is None and t < 0 or n not in (None, 1, t) and t != -1 for n, t in zip(full, target, strict=True)
    ):
        return None
    return tuple(n if t == -1 else t for n, t in zip(full, target, strict=True))


def _check_broadcast(operands, *, shape):
    if _broadcast_shape(operands[0].shape, shape) is None:
        allowed = "Dims of size 1 are stretched, dims in front are added, -1 keeps a dim; other sizes stay"
        return f"shape {shape} for a tensor of shape {operands[0].shape}", allowed


def _broadcast_labels(shapes, *, shape):
    names, target = letters(len(shape)), _broadcast_shape(shapes[0], shape)
    added = len(shape) - len(shapes[0])
    kept = "".join(c if n == t else "1" for c, n, t in zip(names[added:], shapes[0], target[added:], strict=True))
    return f"{kept}->{names}"


def _broadcast_local(attrs, parts):
    labels, shape = letters(len(attrs["shape"])), attrs["shape"]
    return {"shape": tuple(n if n == -1 else n // parts[c] for c, n in zip(labels, shape, strict=True))}


@op(
    _broadcast_labels,
    name="BroadcastTo",
    numpy="broadcast_to",
    attrs={"shape": int_tuple(-1)},
    check=_check_broadcast,
    sizes=lambda shapes, *, shape: dict(zip(letters(len(shape)), _broadcast_shape(shapes[0], shape), strict=True)),
    localize=_broadcast_local,
    flops=0,
    example=(case((16, 1), shape=(16, 8)), case((8,), shape=(4, 8)), case((4, 1, 8), shape=(2, -1, 3, -1))),
)
def broadcast_to(x, *, shape):
    """x stretched to `shape` by numpy's rules; -1 keeps a dim.  x: (...) -> `shape`. New dims are not split."""
    return np.array(np.broadcast_to(x, _broadcast_shape(x.shape, shape)), order="C")


@broadcast_to.vjp
def _(g, out, x, *, shape):
    return (unbroadcast(g, x),)


# ---- constants, and helpers of the compiler ----


@op(result_shape=lambda shapes, *, shape, value, dtype: shape, dtype=lambda dtypes, *, shape, value, dtype: dtype)
def fill(*, shape, value, dtype):
    """A constant.  -> `shape` of `dtype`, every element `value`."""
    return np.full(shape, value, dtype)


@op(result_shape=lambda shapes, *, shape, dim: shape, part_size=lambda shapes, attrs: shapes[0][attrs["dim"]])
def strided_slice_grad(g, *, shape, dim, offset=0):
    """Gradient of keeping one part of a tensor along `dim`: zeros, with g at `offset`.  g: (...) -> `shape`."""
    grad = np.zeros(shape, g.dtype)
    grad[(slice(None),) * dim + (slice(offset, offset + g.shape[dim]),)] = g
    return grad


# ---- in PyTorch's words ----


def as_array(value):
    """A list as an array; anything with a dtype as it is."""
    return tensor_operand("ops", "a tensor", value)


@function()
def repeat_interleave(input, repeats, axis=None):
    """Elements `repeats` times along `axis` (None: of one row).  input: (..., n, ...) -> (..., n * repeats, ...)."""
    input = as_array(input)
    if axis is None:
        input, axis = reshape(input, (-1,)), 0
    shape = tuple(input.shape)
    axis = check_dim("repeat_interleave", "axis", axis, len(shape), shape)
    if not is_int(repeats, 1):
        hint = "For other counts along each dim use ops.tile(x, multiples)"
        given, tuples = f"repeats={shorten(repeats)}", isinstance(repeats, (tuple, list))
        raise ShapeError(given, where="repeat_interleave", allowed="An int, at least 1", hint=hint if tuples else "")
    multiples = (*(1,) * (axis + 1), repeats, *(1,) * (len(shape) - axis - 1))
    longer = (*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :])
    return reshape(tile(expand_dims(input, axis + 1), multiples), longer)


# ---- facts about operands ----


@function()
def shape(x):
    """The shape of x as a tuple of ints; in a trace the global shape."""
    return tuple(x.shape)
