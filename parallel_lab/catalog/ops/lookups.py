"""Rows, elements and classes by number: the other spellings of a look-up, and one-hot rows.

A table whose rows are split is looked up where the rows are, as `ops/gather.py` explains. Rules: MindSpore, operators
EmbeddingLookup, Embedding, IndexSelect, GatherNd, OneHot.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...base.checks import integer, is_int
from ...base.dtypes import alike, promoted
from ...base.errors import shorten
from ...ops.elementwise import cast, mul
from ...ops.gather import (
    LOOKUP,
    add_back,
    add_rows,
    coordinates_fault,
    gather,
    gather_devices,
    gather_fault,
    gather_grad,
    gather_labels,
    look_up,
    place_numbers,
    restrict_gather,
)
from ...ops.logic import not_equal
from ...ops.machine.operand_checks import ints, new_dim, one_dim
from ...ops.machine.registry import case, gradient, op
from ...ops.machine.signature import letters
from ...ops.manual_split import own_rows, uneven_rows
from ...ops.shape import reshape
from ...ops.spellings import function


@op(
    gather_labels,
    name="IndexSelect",
    mint="index_select",
    static=("axis",),
    attrs={"axis": one_dim},
    check=lambda operands, *, axis: _check_one_row(operands),
    restrict=restrict_gather,
    linear="input",
    example=(case((16, 8), (4,), ints={1: 16}, axis=0), case((8, 4, 2), (6,), ints={1: 4}, axis=1)),
    **LOOKUP,
)
def index_select(input, axis, index, *, offset=None):
    """The parts of `input` along `axis` that `index` names.  input: (..., n, ...), index: (k,) int -> (..., k, ...)."""
    return look_up(input, index, axis % input.ndim, offset, "IndexSelect")


def _check_one_row(operands):
    if len(operands[1].shape) != 1:
        return f"index has shape {operands[1].shape}", "One dim: the numbers in a row"
    return ints(operands[1], "index")


@index_select.vjp
def _(g, out, input, index, *, axis):
    return gather_grad(g, index, shape=tuple(input.shape), axis=axis), None


def _check_embedding(operands, *, padding_idx, max_norm, norm_type, scale_grad_by_freq):
    if max_norm is not None or scale_grad_by_freq or norm_type != 2.0:
        given = f"max_norm={max_norm}, norm_type={norm_type}, scale_grad_by_freq={scale_grad_by_freq}"
        return given, "None, 2.0 and False: rows are looked up as they are, and every look-up counts"
    if len(operands[1].shape) != 2:
        return f"weight has shape {operands[1].shape}", "A table with 2 dims: (rows, columns)"
    rows = operands[1].shape[0]
    if padding_idx is not None and not is_int(padding_idx, -rows, rows - 1):
        return f"padding_idx={shorten(padding_idx)}", f"None, or an int from {-rows} to {rows - 1}"
    return ints(operands[0], "input")


def _restrict_embedding(signature, cuts, sizes, *, padding_idx, **_):
    if padding_idx is not None and any(n > 1 for n in cuts.values()):
        return f"splits a look-up with padding_idx={padding_idx}", "padding_idx=None (MindSpore, in parallel modes)"
    return restrict_gather(signature, cuts, sizes, axis=0, at=(1, 0))


@op(
    "...,rd->...d",
    name="Embedding",
    mint="functional.embedding",
    check=_check_embedding,
    restrict=_restrict_embedding,
    example=(case((4, 2), (16, 8), ints={0: 16}), case((16,), (8, 4), ints={0: 8})),
    axes="rd",
    offset="r",
    scatters=0,
    devices=lambda signature, cuts, device_num, **_: gather_devices(signature, cuts, device_num, axis=0, at=(1, 0)),
    dtype=1,
    flops=0,
)
def embedding(
    input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, *, offset=None
):  # the argument names of PyTorch and mindspore.ops
    """Rows of a table by number: `gather` along axis 0.  input: (...) int, weight: (rows, d) -> (..., d).

    padding_idx  number of a row that gets no gradient. The arguments after it stay at their defaults
    """
    return look_up(weight, input, 0, offset, "Embedding")


@embedding.vjp
def _(g, out, input, weight, *, padding_idx, **_):
    if padding_idx is not None:
        counts = cast(not_equal(input, padding_idx % weight.shape[0]), dtype=str(g.dtype))
        g = mul(g, reshape(counts, (*input.shape, 1)))
    return None, gather_grad(g, input, shape=tuple(weight.shape), axis=0)


def _check_lookup(operands, *, start, manual_split):
    if manual_split and start:
        return f"manual_split with start={start}", "start=0"
    if len(operands[0].shape) not in (1, 2):
        return f"a table of shape {operands[0].shape}", "Look-ups need a table with 1 or 2 dims"
    return gather_fault(operands, axis=0, manual_split=manual_split)


@op(
    lambda shapes, **_: gather_labels(shapes, axis=0),
    name="EmbeddingLookup",
    host_only=True,
    attrs={"start": integer()},
    check=_check_lookup,
    restrict=lambda signature, cuts, sizes, *, start, **manual: restrict_gather(
        signature, cuts, sizes, axis=0, **manual
    ),
    uneven=uneven_rows,
    example=(case((16, 8), (4, 2), ints={1: 16}), case((8, 4), (16,), ints={1: 16}, start=4)),
    **LOOKUP
    | {
        "devices": lambda signature, cuts, device_num, *, start, **manual: gather_devices(
            signature, cuts, device_num, axis=0, **manual
        )
    },
)
def embedding_lookup(params, indices, start=0, *, manual_split=(), offset=None):
    """Rows of a table from row `start`, else zeros.  params: (rows, ...), indices: (...) int -> (..., columns).

    manual_split  as in `gather`, with start=0
    """
    if manual_split and offset is not None:
        indices, offset = own_rows(indices, offset // params.shape[0], manual_split), None
    return look_up(params, indices, 0, start + (offset or 0), "EmbeddingLookup")


@gradient(embedding_lookup, part_size=lambda shapes, attrs: attrs["shape"][0])
def embedding_lookup_grad(g, indices, *, shape, start, manual_split=(), offset=None):
    """Gradient of embedding_lookup for its table.  g: (..., columns), indices: (...) int -> `shape`."""
    if manual_split and offset is not None:
        indices, offset = own_rows(indices, offset // shape[0], manual_split), None
    return add_back(g, indices, shape, 0, start + (offset or 0), "EmbeddingLookup")


def _gather_nd_labels(shapes):
    x, indices = letters(len(shapes[0])), letters(len(shapes[0]) + len(shapes[1]))[len(shapes[0]) :]
    return f"{x},{indices}->{indices[:-1]}{x[shapes[1][-1] :]}"


@op(
    _gather_nd_labels,
    name="GatherNd",
    check=coordinates_fault,
    axes=lambda signature: signature.ins[1],
    whole=lambda signature: signature.ins[0] + signature.ins[1][-1],
    dtype=0,
    flops=0,
    example=(case((8, 4), (16, 2, 1), ints={1: 8}), case((4, 6, 2), (8, 2), ints={1: 4})),
)
def gather_nd(input_x, indices):
    """The parts of `input_x` at coordinates: result[i, ...] = input_x[indices[i, 0], indices[i, 1], ..., ...].

    input_x: (...), indices: (i, ..., m) int, m coordinates each -> (i, ..., rest), the rest of input_x's dims after m.
    Only the indices can be split (MindSpore, GatherNd).
    """
    depth = indices.shape[-1]
    numbers, _ = place_numbers(indices, input_x.shape[:depth], None, "GatherNd")
    return np.take(input_x.reshape((math.prod(input_x.shape[:depth]), *input_x.shape[depth:])), numbers, axis=0)


@gradient(gather_nd)
def gather_nd_grad(g, indices, *, shape):
    """Gradient of gather_nd for its tensor.  g: (i, ..., rest), indices: (i, ..., m) int -> `shape`."""
    sizes, rest = shape[: indices.shape[-1]], shape[indices.shape[-1] :]
    numbers, _ = place_numbers(indices, sizes, None, "GatherNd")
    return add_rows(g.reshape((numbers.size, *rest)), numbers.reshape(-1), math.prod(sizes)).reshape(shape)


def _one_hot_labels(shapes, *, depth, axis):
    names = letters(len(shapes[0]))
    place = axis % (len(names) + 1)
    return f"{names},,->{names[:place]}z{names[place:]}"


def _check_one_hot(operands, *, depth, axis):
    for name, operand in zip(("on_value", "off_value"), operands[1:], strict=True):
        if operand.shape:
            return f"{name} has shape {operand.shape}", "A number: shape ()"
    return ints(operands[0], "indices (labels)")


def _restrict_one_hot(signature, cuts, sizes, *, depth, axis):
    """MindSpore, OneHot: CheckStrategy."""
    dims = len(signature.ins[0])
    if dims < 2 or all(n == 1 for n in cuts.values()):
        return None
    if axis % (dims + 1) != dims:
        what = f"splits the result of input 0 (indices with {dims} dims), whose classes are dim {axis % (dims + 1)}"
        return what, "With indices of more than 1 dim the classes are the last dim: axis=-1"
    label = next((c for c in signature.out[1:] if cuts[c] > 1), "")
    if label:
        which = f"dim {signature.out.index(label)} of the result"
        return f"splits {which} {cuts[label]} ways, but the indices have {dims} dims", "Then dim 0 only is split"
    return None


@op(
    _one_hot_labels,
    name="OneHot",
    attrs={"depth": integer(1), "axis": new_dim},
    check=_check_one_hot,
    static=("depth",),
    numbers="on_value off_value",
    sizes=lambda shapes, *, depth, axis: {"z": depth},
    strategy_labels=lambda signature: (signature.out, "", ""),
    restrict=_restrict_one_hot,
    offset="z",
    part_size=lambda shapes, attrs: attrs["depth"],
    localize=lambda attrs, parts: {**attrs, "depth": attrs["depth"] // parts["z"]},
    dtype=lambda dtypes, **_: promoted(dtypes[1:]),
    flops=0,
    example=(case((16,), (), (), ints={0: 8}, depth=8), case((8,), (), (), ints={0: 16}, depth=16, axis=0)),
)
def one_hot(indices, depth, on_value, off_value, *, axis=-1, offset=0):
    """`on_value` at each index, `off_value` elsewhere.  indices: (...) int, values: () -> (..., depth, ...).

    The strategy's first tuple splits the result, the other two are (): other ranks' classes are "elsewhere".
    """
    on, off = alike((on_value, off_value), "OneHot")
    shape = list(indices.shape)
    shape.insert(axis % (indices.ndim + 1), depth)
    found = np.full(shape, off)
    at = np.expand_dims(indices, axis).astype(np.int64) - offset
    inside = (at >= 0) & (at < depth)
    np.put_along_axis(found, np.where(inside, at, 0).astype(np.intp), np.where(inside, on, off), axis)
    return found


@function()
def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    """Elements along `axis` by number; axis None: of x as one row.  x: (...), indices: (...) int -> (...)."""
    return gather(x, indices, axis) if axis is not None else gather(reshape(x, (-1,)), indices, 0)
