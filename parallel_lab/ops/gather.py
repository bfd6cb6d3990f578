"""Operators that pick rows by number (gather, embedding_lookup, gather_elements), add rows up by number
(unsorted_segment_sum), or make a row per number (one_hot).

A table whose rows are split is looked up where the rows are: every rank takes the indices, subtracts the number of its
first row, gives zeros for rows that lie elsewhere, and the sum over the ranks is the result.

        rows 0-3 on rank 0, 4-7 on rank 1;  indices [5, 2]
        rank 0: [   0   ,  row 2 ]  \\
                                      + = [ row 5, row 2 ]
        rank 1: [ row 5 ,    0   ]  /

Rules: MindSpore, operators Gather, EmbeddingLookup, GatherD, UnsortedSegmentSum, OneHot. Ranges, and Python's x[...],
are in `indexing.py`.
"""

from __future__ import annotations

import numpy as np

from ..base.checks import integer
from ..base.errors import ShapeError
from .machine.operand_checks import ints, new_dim, one_dim
from .machine.registry import case, gradient, op
from .machine.signature import letters, more_letters
from .spellings import function

# ---- rows by number ----

# rows with more equal numbers are summed by numpy's reduceat, others in rounds (measured with 2048 rows of 128)
_ROUNDS = 32


def add_rows(rows, indices, count):
    """Sums of equal-numbered rows: (t, ...) and t numbers from 0 to count - 1 -> (count, ...).

    The order of the additions, and so the bits of a sum, depend on the rows of that number only: up to 32 are added one
    after the other as they stand, more of them pairwise. np.add.at needs 5 times as long for 2048 rows of 128 numbers,
    a product with one-hot rows up to 100 times.
    """
    total = np.zeros((count, *rows.shape[1:]), rows.dtype)
    if not len(indices):
        return total
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[starts, len(ordered)])
    many = counts > _ROUNDS
    if many.any():
        chosen = np.repeat(many, counts)
        sums = np.add.reduceat(rows[order[chosen]], np.r_[0, np.cumsum(counts[many])[:-1]], axis=0)
        total[ordered[starts[many]]] = sums
        starts, counts = starts[~many], counts[~many]
    for nth in range(counts.max(initial=0)):
        some = starts[counts > nth]
        total[ordered[some]] += rows[order[some + nth]]
    return total


def _inside(indices, count, offset, where):
    """Row numbers within this slice, and which lie in it (None: all must, of a table that is not split)."""
    if offset is None:
        if indices.size and not (indices.min() >= 0 and indices.max() < count):
            worst = indices.min() if indices.min() < 0 else indices.max()
            raise ShapeError(f"an index is {worst}", where=where, allowed=f"Indices from 0 to {count - 1}")
        return indices, None
    local = indices.astype(np.int64) - offset
    mine = (local >= 0) & (local < count)
    return np.where(mine, local, 0), mine


def _look_up(table, indices, axis, offset, where):
    local, mine = _inside(indices, table.shape[axis], offset, where)
    # of a vector and one index numpy makes a number, which takes nothing in place
    rows = np.asarray(np.take(table, local, axis))
    if mine is not None:
        rows[(slice(None),) * axis + (~mine,)] = 0
    return rows


def _add_back(g, indices, shape, axis, offset, where):
    """Reverse of _look_up: every row of g added to the row of the table that it was a copy of."""
    local, mine = _inside(indices, shape[axis], offset, where)
    rows = np.moveaxis(g.reshape((*shape[:axis], indices.size, *shape[axis + 1 :])), axis, 0)
    numbers = local.reshape(-1)
    if mine is not None:
        rows, numbers = rows[mine.reshape(-1)], numbers[mine.reshape(-1)]
    return np.array(np.moveaxis(add_rows(rows, numbers, shape[axis]), 0, axis), order="C")


def _gather_labels(shapes, *, axis):
    table, place = letters(len(shapes[0])), axis % len(shapes[0])
    indices = letters(len(shapes[0]) + len(shapes[1]))[len(shapes[0]) :]
    return f"{table},{indices}->{table[:place]}{indices}{table[place + 1 :]}"


def _restrict_gather(signature, cuts, sizes, *, axis):
    """MindSpore, Gather: CheckStrategy."""
    table, indices = signature.ins
    place = axis % len(table)
    row = table[place]
    if cuts[row] == 1:
        return None
    what = f"splits dim {place} of input 0 ('{row}', the rows that are looked up) {cuts[row]} ways"
    if place or len(table) > 2:
        why = f"axis is {axis}" if place else f"the table has {len(table)} dims"
        return f"{what}, but {why}", "Rows can be split in tables with 1 or 2 dims, at axis 0"
    if not indices:
        return f"{what}, but the index is one number", "With split rows the indices have dims"
    cut = [c for c in indices if cuts[c] > 1]
    both = len(table) == len(indices) == 2 and cut == [indices[0]] and cuts[table[1]] == 1
    if cut and not both:
        allowed = "The rows or the indices are split; both only for 2-D indices split in dim 0 and a 2-D table"
        allowed += " with whole columns"
        return f"{what}, and the indices too (input 1)", allowed
    return None


_LOOKUP = {
    "axes": lambda signature: signature.ins[1] + signature.ins[0],
    "offset": lambda signature: next(c for c in signature.ins[0] if c not in signature.out),  # of the table's rows
    "dtype": 0,
    "flops": 0,
}


@op(
    _gather_labels,
    name="Gather GatherV2 SparseGatherV2",
    numpy="take",
    mint="gather",
    attrs={"axis": one_dim},
    check=lambda operands, **_: ints(operands[1], "indices"),
    restrict=_restrict_gather,
    example=(
        case((16, 8), (4, 2), ints={1: 16}),
        case((16,), (8,), ints={1: 16}),
        case((16, 8), (16,), ints={1: 4}),
        case((2, 8, 4), (4,), ints={1: 8}, axis=1),
        case((16, 4), (), ints={1: 16}, axis=-2),
    ),
    **_LOOKUP,
)
def gather(params, indices, axis=0, *, offset=None):
    """Rows of a table, by number: result[..., i, j, ...] = params[..., indices[i, j], ...].

    params: (..., rows, ...) with the rows in dim `axis`, indices: (i, j, ...) int from 0 to rows - 1 -> (..., i, j,
    ..., ...)

    A rank that holds rows from `offset` on gives zeros for the others. An index outside the table raises ShapeError; of
    a table whose rows are split no rank knows that it is outside, and gives zeros (as MindSpore).
    """
    return _look_up(params, indices, axis % params.ndim, offset, "Gather")


@gradient(gather, part_size=lambda shapes, attrs: attrs["shape"][attrs["axis"]])
def gather_grad(g, indices, *, shape, axis, offset=None):
    """Gradient of gather for its table: rows of g added by index.  g: like the result, indices: (...) -> `shape`."""
    return _add_back(g, indices, shape, axis % len(shape), offset, "Gather")


@function(mint="functional.embedding")
def embedding(input, weight):  # the argument names of PyTorch and mindspore.ops
    """Rows of a table by number: `gather` along axis 0.  input: (...) int, weight: (rows, d) -> (..., d)."""
    return gather(weight, input, 0)


def _check_lookup(operands, *, start):
    if len(operands[0].shape) not in (1, 2):
        return f"a table of shape {operands[0].shape}", "Look-ups need a table with 1 or 2 dims"
    return ints(operands[1], "indices")


@op(
    lambda shapes, *, start: _gather_labels(shapes, axis=0),
    name="EmbeddingLookup",
    attrs={"start": integer()},
    check=_check_lookup,
    restrict=lambda signature, cuts, sizes, *, start: _restrict_gather(signature, cuts, sizes, axis=0),
    example=(case((16, 8), (4, 2), ints={1: 16}), case((8, 4), (16,), ints={1: 16}, start=4)),
    **_LOOKUP,
)
def embedding_lookup(params, indices, start=0, *, offset=None):
    """Rows of a table from row `start`, else zeros.  params: (rows, ...), indices: (...) int -> (..., columns)."""
    return _look_up(params, indices, 0, start + (offset or 0), "EmbeddingLookup")


@gradient(embedding_lookup, part_size=lambda shapes, attrs: attrs["shape"][0])
def embedding_lookup_grad(g, indices, *, shape, start, offset=None):
    """Gradient of embedding_lookup for its table.  g: (..., columns), indices: (...) int -> `shape`."""
    return _add_back(g, indices, shape, 0, start + (offset or 0), "EmbeddingLookup")


# ---- one number per element ----


def _elements_labels(shapes, *, dim):
    names = letters(len(shapes[0]))
    place = dim % len(names)
    numbers = names[:place] + more_letters(1) + names[place + 1 :]
    return f"{names},{numbers}->{numbers}"


def _check_elements(operands, *, dim):
    x, index = (o.shape for o in operands)
    if len(x) != len(index):
        allowed = "The same number of dims, and equal sizes but in `dim`"
        return f"index has shape {index} beside x of shape {x}", allowed
    return ints(operands[1], "index")


@op(
    _elements_labels,
    name="GatherD GatherElements",
    also="gather_d",
    static=("dim",),
    attrs={"dim": one_dim},
    check=_check_elements,
    whole=lambda signature, *, dim: signature.ins[0][dim] + signature.ins[1][dim],
    dtype=0,
    flops=0,
    example=(case((16, 8), (16, 4), ints={1: 8}, dim=1), case((8, 4, 2), (2, 4, 2), ints={1: 8}, dim=-3)),
)
def gather_elements(x, dim, index):
    """For every place of `index` the element of x whose number along `dim` stands there (torch.gather).

    x: (..., n, ...), index: (..., k, ...) int from 0 to n - 1 -> (..., k, ...). `dim` stays whole in both.
    """
    _inside(index, x.shape[dim], None, "GatherD")
    return np.take_along_axis(x, index.astype(np.int64, copy=False), dim)


@gradient(gather_elements)
def gather_elements_grad(g, index, *, shape, dim):
    """Gradient of gather_elements for x.  g, index: (..., k, ...) -> `shape`."""
    if not index.size:
        return np.zeros(shape, g.dtype)
    # every element of x has a number of its own, so that one sum by number adds them all
    places, size = np.moveaxis(index, dim, -1), shape[dim]
    count = places.size // places.shape[-1]
    numbers = places.reshape(count, -1).astype(np.int64) + size * np.arange(count)[:, None]
    total = add_rows(np.moveaxis(g, dim, -1).reshape(-1), numbers.reshape(-1), count * size)
    return np.array(np.moveaxis(total.reshape((*places.shape[:-1], size)), -1, dim), order="C")


# ---- sums by number ----


def _segment_labels(shapes, *, num_segments):
    names = letters(len(shapes[0]))
    ids = names[: len(shapes[1])]
    return f"{names},{ids}->{more_letters(1)}{names[len(ids) :]}"


def _check_segments(operands, *, num_segments):
    x, ids = (o.shape for o in operands)
    if not ids or x[: len(ids)] != ids:
        return f"segment_ids have shape {ids} beside x of shape {x}", "The first dims of x, at least one"
    return ints(operands[1], "segment_ids")


@op(
    _segment_labels,
    name="UnsortedSegmentSum",
    static=("num_segments",),
    attrs={"num_segments": integer(1)},
    check=_check_segments,
    sizes=lambda shapes, *, num_segments: {more_letters(1): num_segments},
    dtype=0,
    example=(case((16, 4), (16,), ints={1: 5}, num_segments=5), case((8, 2, 4), (8, 2), ints={1: 6}, num_segments=4)),
)
def unsorted_segment_sum(x, segment_ids, num_segments):
    """Sums of equal-numbered parts of x, partial if split.  x: (i, ..., rest), ids: (i, ...) -> (segments, rest)."""
    numbers = segment_ids.reshape(-1)
    rows = x.reshape((numbers.size, *x.shape[segment_ids.ndim :]))
    kept = (numbers >= 0) & (numbers < num_segments)
    return add_rows(rows[kept], numbers[kept], num_segments)


@gradient(unsorted_segment_sum)
def segment_grad(g, segment_ids, *, shape):
    """Gradient: every part gets its segment's, ignored ones zeros.  g: (segments, rest), segment_ids -> `shape`."""
    return _look_up(g, segment_ids, 0, 0, "UnsortedSegmentSum").reshape(shape)


# ---- a row per number ----


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
    if cuts["z"] > 1:
        what = f"splits dim {dims} of input 0 ('z', the classes) {cuts['z']} ways, but the indices have {dims} dims"
        return what, "Classes are split for indices with 1 dim only"
    return None


@op(
    _one_hot_labels,
    name="OneHot",
    mint="functional.one_hot",
    attrs={"depth": integer(1), "axis": new_dim},
    check=_check_one_hot,
    static=("depth",),
    sizes=lambda shapes, *, depth, axis: {"z": depth},
    strategy_labels=lambda signature: (signature.out, "", ""),
    restrict=_restrict_one_hot,
    offset="z",
    part_size=lambda shapes, attrs: attrs["depth"],
    localize=lambda attrs, parts: {**attrs, "depth": attrs["depth"] // parts["z"]},
    dtype=lambda dtypes, **_: np.result_type(*dtypes[1:]),
    flops=0,
    example=(case((16,), (), (), ints={0: 8}, depth=8), case((8,), (), (), ints={0: 16}, depth=16, axis=0)),
)
def one_hot(indices, depth, on_value, off_value, *, axis=-1, offset=0):
    """`on_value` at each index, `off_value` elsewhere.  indices: (...) int, values: () -> (..., depth, ...).

    The strategy's first tuple splits the result, the other two are (): other ranks' classes are "elsewhere".
    """
    hit = np.expand_dims(indices, axis) - offset == np.arange(depth).reshape(
        [-1 if i == axis % (indices.ndim + 1) else 1 for i in range(indices.ndim + 1)]
    )
    return np.where(hit, on_value, off_value)
