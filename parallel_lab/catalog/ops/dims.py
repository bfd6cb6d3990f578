"""Dims moved, exchanged, turned, joined and divided, in the words of MindSpore and PyTorch."""

from __future__ import annotations

import itertools
import math

import numpy as np

from ...base.checks import COPIES, SHAPE_ERRORS, integer, is_int, sequence_of
from ...base.errors import ShapeError, shorten
from ...ops.join import _sizes_of, concat, split_parts, unstack
from ...ops.machine.operand_checks import check_dim, one_dim, own_dim, refuse, some_dims
from ...ops.machine.registry import case, form, gradient, op
from ...ops.machine.signature import along_axis, same_labels
from ...ops.shape import as_array, broadcast_to, expand_dims, repeat_interleave, reshape, swapaxes, transpose
from ...ops.slicing import SOME_INTS, strided_slice
from ...ops.spellings import function, tensor_operand
from .lookups import one_hot

# ---- turned and divided ----


@function()
def rot90(input, k, dims):
    """Turned k times by 90 degrees, from the first of two dims to the second.  input: (...) -> (...)."""
    where = "rot90"
    if not isinstance(dims, (tuple, list)) or len(dims) != 2 or not is_int(k, -(2**31), 2**31):
        raise ShapeError(f"k={shorten(k)}, dims={shorten(dims)}", where=where, allowed="An int, and two dims")
    first, second = (own_dim(where, "dims", d, input) for d in dims)
    if first == second:
        raise ShapeError(f"dims={dims}", where=where, allowed="Two different dims")
    if k % 4 == 2:
        return flip(input, (first, second))
    if k % 4 == 1:
        return swapaxes(flip(input, (second,)), first, second)
    return flip(swapaxes(input, first, second), (second,)) if k % 4 else input


@function()
def tensor_split(input, indices_or_sections, axis=0):
    """Pieces along `axis`: as many as an int says, the first ones larger; or cut at a tuple of places.

    input: (..., n, ...) -> several (..., n_i, ...)
    """
    axis, given = own_dim("tensor_split", "axis", axis, input), indices_or_sections
    n = input.shape[axis]
    if isinstance(given, (tuple, list)) and all(is_int(i, -(2**31), 2**31) for i in given):
        ends = [min(max(i + n if i < 0 else i, 0), n) for i in given]
        pairs = list(zip([0, *ends], [*ends, n], strict=True))
    elif is_int(given, 1, COPIES):
        small, larger = divmod(n, given)
        ends = np.cumsum([0] + [small + (i < larger) for i in range(given)]).tolist()
        pairs = list(itertools.pairwise(ends))
    else:
        allowed = f"A count from 1 to {COPIES}, or a tuple of ints"
        raise ShapeError(f"indices_or_sections={shorten(given)}", where="tensor_split", allowed=allowed)
    return tuple(narrow(input, axis, min(begin, n), max(end - begin, 0)) for begin, end in pairs)


# ---- dims ----


@function(also="movedim")
def moveaxis(x, source, destination):
    """Dims moved to other places, the others in their order.  x: (...) -> (...). Both: an int, or a tuple of ints."""
    shape = tuple(x.shape)
    pairs = {}
    for name, value in (("source", source), ("destination", destination)):
        value = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        refuse("moveaxis", some_dims(name, value, shape))
        pairs[name] = [d % len(shape) for d in value]
    if len(pairs["source"]) != len(pairs["destination"]):
        what = f"source {source} and destination {destination}"
        raise ShapeError(what, where="moveaxis", allowed="As many dims in both")
    perm = [d for d in range(len(shape)) if d not in pairs["source"]]
    for place, dim in sorted(zip(pairs["destination"], pairs["source"], strict=True)):
        perm.insert(place, dim)
    return transpose(x, tuple(perm))


@function()
def swapdims(input, dim0, dim1):
    """`swapaxes`: x with two dims exchanged.  input: (...) -> (...)."""
    return swapaxes(input, dim0, dim1)


@function(mint="t")
def t(input):
    """The transpose of a matrix; a vector or a number as it is.  input: (m, n) -> (n, m)."""
    if len(input.shape) > 2:
        raise ShapeError(f"a tensor of shape {tuple(input.shape)}", where="t", allowed="At most 2 dims")
    return transpose(input, (1, 0)) if len(input.shape) == 2 else input


@function(mint="ravel")
def ravel(input):
    """All elements in one row.  input: (...) -> (count,)."""
    return reshape(input, (-1,))


@function(mint="numel")
def numel(input):
    """How many elements a tensor has, an int.  input: (...) -> int."""
    return math.prod(input.shape)


@function()
def fliplr(input):
    """Columns in reverse order.  input: (m, n, ...) -> (m, n, ...)."""
    return flip(input, axis=1)


@function()
def flipud(input):
    """Rows in reverse order.  input: (m, ...) -> (m, ...)."""
    return flip(input, axis=0)


@function()
def view_as(input, other):
    """The same elements in the shape of `other`.  input: (...) -> (...)."""
    return reshape(input, tuple(tensor_operand("view_as", "other", other).shape))


@form(broadcast_to, "Expand")
def _(self, x, shape):
    """x stretched to `shape`; -1 keeps a dim.  x: (...) -> `shape`."""
    return self.run(x, shape=shape.asnumpy().tolist() if hasattr(shape, "asnumpy") else shape)


def _with_dims(where, tensors, least):
    """The tensors of a list, with dims of size 1 in front (a vector's two before the third place for least 3)."""
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise ShapeError(f"tensors={shorten(tensors)}", where=where, allowed="A list or tuple of tensors")
    found = [tensor_operand(where, f"tensor {i}", x) for i, x in enumerate(tensors)]
    return [x if len(x.shape) >= least else reshape(x, (*(1,) * (least - len(x.shape)), *x.shape)) for x in found]


@function(mint="hstack")
def hstack(tensors):
    """Tensors joined along dim 1, vectors along dim 0.  tensors: each (m, n_i, ...) -> (m, sum of n_i, ...)."""
    found = _with_dims("hstack", tensors, 1)
    return concat(*found, axis=0 if len(found[0].shape) == 1 else 1)


@function(also="row_stack", mint="vstack")
def vstack(tensors):
    """Tensors joined along dim 0, vectors as rows.  tensors: each (m_i, n, ...) -> (sum of m_i, n, ...)."""
    return concat(*_with_dims("vstack", tensors, 2), axis=0)


@function(mint="dstack")
def dstack(tensors):
    """Tensors joined along dim 2, which matrices and vectors get.  tensors: each (m, n, k_i) -> (m, n, sum of k_i)."""
    found = _with_dims("dstack", tensors, 2)
    return concat(*(expand_dims(x, 2) if len(x.shape) == 2 else x for x in found), axis=2)


@function()
def column_stack(tensors):
    """Tensors joined along dim 1, vectors as columns.  tensors: each (m, n_i) or (m,) -> (m, sum of n_i)."""
    found = _with_dims("column_stack", tensors, 1)
    return concat(*(expand_dims(x, 1) if len(x.shape) == 1 else x for x in found), axis=1)


@function()
def meshgrid(*inputs, indexing="xy"):
    """Vectors broadcast to a grid.  inputs: (n_i,) each -> as many tensors (n_0, n_1, ...), of "xy" (n_1, n_0, ...)."""
    given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)) else inputs
    given = [tensor_operand("meshgrid", "inputs", each) for each in given]
    if indexing not in ("xy", "ij") or not given or any(len(each.shape) != 1 for each in given):
        shapes = ", ".join(str(tuple(each.shape)) for each in given)
        what, allowed = f"indexing={shorten(indexing)} of tensors of shape {shapes}", 'Vectors, "xy" or "ij"'
        raise ShapeError(what, where="meshgrid", allowed=allowed)
    order = list(range(len(given)))
    if indexing == "xy" and len(given) > 1:
        order[:2] = [1, 0]
    shape = [given[i].shape[0] for i in order]
    places = [[n if order[dim] == i else 1 for dim, n in enumerate(shape)] for i in range(len(given))]
    return tuple(
        broadcast_to(reshape(each, place), shape=tuple(shape)) for each, place in zip(given, places, strict=True)
    )


@form(broadcast_to, "ExpandAs")
def _(self, input, other):
    """input stretched to the shape of `other`.  input: (...) -> (...)."""
    return self.run(input, shape=tuple(tensor_operand("ExpandAs", "other", other).shape))


@form(transpose, "TransposeExt")
def _(self, input, dim0, dim1):
    """Two dims exchanged.  input: (...) -> (...)."""
    shape = tuple(input.shape)
    places = [check_dim("TransposeExt", name, d, len(shape), shape) for name, d in (("dim0", dim0), ("dim1", dim1))]
    perm = list(range(len(shape)))
    perm[places[0]], perm[places[1]] = places[1], places[0]
    return self.run(input, tuple(perm))


def _dims(axis):
    return axis if isinstance(axis, tuple) else (axis,)


@op(
    same_labels,
    name="ReverseV2 Flip",
    attrs={"axis": some_dims},
    whole=along_axis,
    flops=0,
    example=(case((16, 8), axis=1), case((4, 8, 2), axis=(0, -1))),
)
def flip(x, *, axis):
    """Elements in reverse order along the dims `axis`, which stay whole.  x: (...) -> (...)."""
    return np.array(np.flip(x, axis), order="C")


@flip.vjp
def _(g, out, x, *, axis):
    return (flip(g, axis=axis),)


def _check_roll(operands, *, shift, axis):
    if len(_dims(shift)) != len(_dims(axis)):
        return f"shift {shift} along axis {axis}", "An int, or as many ints as axis names dims"


@op(
    same_labels,
    name="Roll",
    attrs={"axis": some_dims, "shift": sequence_of(integer(), "An int, or a tuple of ints", one=True, empty=True)},
    check=_check_roll,
    whole=along_axis,
    flops=0,
    example=(case((16, 8), shift=3, axis=1), case((4, 8, 2), shift=(1, -1), axis=(0, 2))),
)
def roll(x, *, shift, axis):
    """Elements moved `shift` places along `axis`, those beyond the end to the front.  x: (...) -> (...)."""
    return np.roll(x, shift, axis)


@roll.vjp
def _(g, out, x, *, shift, axis):
    return (roll(g, shift=tuple(-n for n in _dims(shift)), axis=_dims(axis)),)


@function()
def permute(input, *axis):
    """`transpose`: dims in the order `axis`, a tuple or the ints themselves.  input: (...) -> (...)."""
    return transpose(as_array(input), tuple(axis[0]) if len(axis) == 1 and isinstance(axis[0], (tuple, list)) else axis)


@function(mint="unsqueeze")
def unsqueeze(input, dim):
    """`expand_dims`: a dim of size 1 put in at `dim` of the result.  input: (...) -> (..., 1, ...)."""
    return expand_dims(input, dim)


def _check_repeats(operands, *, repeats, axis):
    n = operands[0].shape[axis]
    many = isinstance(repeats, tuple) and len(repeats) != n
    return (f"{len(repeats)} repeats along a dim of {n}", "A count for each of its elements") if many else None


def _repeated(shapes, *, repeats, axis):
    n = shapes[0][axis]
    return {same_labels(shapes)[axis % len(shapes[0])]: sum(repeats) if isinstance(repeats, tuple) else n * repeats}


@op(
    same_labels,
    name="RepeatElement",
    attrs={"axis": one_dim, "repeats": sequence_of(integer(0), "An int, or ints, at least 0", one=True)},
    check=_check_repeats,
    whole=lambda signature, *, repeats, axis: signature.out[axis] if isinstance(repeats, tuple) else "",
    out_sizes=_repeated,
    flops=0,
    example=(case((16, 8), repeats=2, axis=1), case((4, 3, 2), repeats=(2, 0, 1), axis=-2)),
)
def repeat_element(x, *, repeats, axis):
    """Every element along `axis` repeated, by one count or one for each.  x: (..., n, ...) -> (..., sum, ...)."""
    return np.repeat(x, repeats, axis)


@gradient(repeat_element)
def repeat_element_grad(g, *, shape, repeats, axis):
    """Sums of g over each element's repetitions.  g: (..., sum, ...) -> `shape`."""
    grad, places = np.zeros(shape, g.dtype), np.repeat(np.arange(shape[axis]), repeats)
    np.add.at(np.moveaxis(grad, axis, 0), places, np.moveaxis(g, axis, 0))
    return grad


@form(repeat_element, "RepeatInterleaveInt RepeatInterleaveTensor", read=1)
def _(self, input, repeats, dim=None, output_size=None):
    """Elements along `dim` (None: of one row) repeated.  input: (..., n, ...), repeats: int, (n,) -> (..., k, ...)."""
    x = reshape(input, (-1,)) if dim is None else input
    repeats = tuple(repeats.asnumpy().tolist()) if hasattr(repeats, "asnumpy") else repeats
    return self.run(x, repeats=repeats, axis=0 if dim is None else dim)


@function()
def repeat_elements(x, rep, axis=0):
    """Every element along `axis` `rep` times.  x: (..., n, ...) -> (..., n rep, ...). Form: ops.repeat_elements."""
    return repeat_interleave(x, rep, axis)


cat = concat


@function(numpy="split")
def split(x, split_size_or_sections, axis=0):
    """A tensor split along `axis`, in PyTorch's and mindspore.ops' form.  x: (..., n, ...) -> several (..., n_i, ...).

    split_size_or_sections  an int: parts of this size, the last one may be smaller; ints: the sizes
    """
    return split_parts(x, axis=axis, sizes=_sizes_of("split", x, split_size_or_sections, axis))


@function()
def chunk(x, chunks, axis=0):
    """At most `chunks` equal parts along `axis`, a last one smaller.  x: (..., n, ...) -> several (..., n_i, ...)."""
    shape = tuple(x.shape)
    n = shape[check_dim("chunk", "axis", axis, len(shape), shape)]
    return split(x, max(1, -(-n // integer(1)("chunk", "chunks", chunks, SHAPE_ERRORS))), axis)


@function(mint="unbind")
def unbind(x, dim=0):
    """`unstack` under PyTorch's name.  x: (..., n, ...) -> n times (...)."""
    return unstack(x, axis=dim)


@form(one_hot, "OneHotExt")
def _(self, tensor, num_classes, on_value=1, off_value=0, axis=-1):
    """`on_value` at each index, `off_value` elsewhere.  tensor: (...) int -> (..., num_classes, ...)."""
    return self.run(tensor, num_classes, on_value, off_value, axis=axis)


# ---- ranges by begin and size ----


def _sized(where, shape, begin, size):
    """(begin, end) for sizes; a size of -1 means all that remain. Raises ShapeError."""
    begin, size = (
        SOME_INTS(where, name, value.asnumpy().tolist() if hasattr(value, "asnumpy") else value, SHAPE_ERRORS)
        for name, value in (("begin", begin), ("size", size))
    )
    given = f"begin {begin} and size {size} for a tensor of shape {shape}"
    if not len(begin) == len(size) == len(shape):
        raise ShapeError(given, where=where, allowed="One int per dim in both")
    end = tuple(n if s == -1 else b + s for b, s, n in zip(begin, size, shape, strict=True))
    if not all(0 <= b <= e <= n for b, e, n in zip(begin, end, shape, strict=True)):
        allowed = "begin from 0, begin + size within the dim; size -1 for all that remain"
        raise ShapeError(given, where=where, allowed=allowed)
    return begin, end


@function(also="slice")
def slice_(input_x, begin, size):
    """`size` elements of every dim from `begin` on; -1: all that remain.  input_x: (...) -> (...)."""
    return strided_slice(input_x, *_sized("slice", tuple(input_x.shape), begin, size))


def _along(where, shape, dim, start, end, step):
    """begin, end, strides of a range along one dim."""
    place = check_dim(where, "dim", dim, len(shape), shape)
    return (*(0,) * place, start), (*shape[:place], end), (*(1,) * place, step)


@function(mint="narrow")
def narrow(input, dim, start, length):
    """`length` elements along `dim` from `start` on.  input: (..., n, ...) -> (..., length, ...)."""
    shape = tuple(input.shape)
    n = shape[check_dim("narrow", "dim", dim, len(shape), shape)]
    first = start + n if is_int(start, -n, -1) else start
    if not is_int(first, 0, n) or not is_int(length, 0, n - first):
        allowed = f"A start from {-n} to {n}, and as many elements as follow it"
        given = f"start={shorten(start)}, length={shorten(length)} for dim {dim} of shape {shape}"
        raise ShapeError(given, where="narrow", allowed=allowed)
    return strided_slice(input, *_along("narrow", shape, dim, first, first + length, 1))


@function()
def scalar_to_array(value):
    """A Python number as a 0-d operand (MindSpore's scalar_to_array); it takes the dtype of the tensors next to it."""
    return value


@form(strided_slice, "Slice")
def _(self, input, begin, size):
    """`size` elements of every dim from `begin` on; -1: all that remain.  input: (...) -> (...). A dim that is split is
    taken whole.
    """
    return self.run(input, *_sized("Slice", tuple(input.shape), begin, size))


@form(strided_slice, "SliceExt")
def _(self, input, dim, start, end, step=1):
    """The elements start, start + step, ... before end along `dim`, which stays whole.  input: (...) -> (...)."""
    return self.run(input, *_along("SliceExt", tuple(input.shape), dim, start, end, step))
