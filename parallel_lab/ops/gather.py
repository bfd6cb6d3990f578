"""Rows picked by number: `gather`, and `gather_elements`; their relatives are in the catalogue (`lookups`).

A table whose rows are split is looked up where the rows are: every rank takes the indices, subtracts the number of its
first row, gives zeros for rows that lie elsewhere, and the sum over the ranks is the result.

        rows 0-3 on rank 0, 4-7 on rank 1;  indices [5, 2]
        rank 0: [   0   ,  row 2 ]  \\
                                      + = [ row 5, row 2 ]
        rank 1: [ row 5 ,    0   ]  /

Rules: MindSpore, operator Gather. What puts rows where numbers say is in `scattering.py`; ranges, and Python's x[...],
are in `indexing.py`.
"""

from __future__ import annotations

import math

import numpy as np

from ..base.checks import integer
from ..base.errors import ShapeError
from .machine.operand_checks import ints, one_dim
from .machine.registry import case, gradient, op
from .machine.signature import letters, more_letters
from .manual_split import ManualSplitError, own_rows, part_sizes, sizes_fault, strategy_fault, uneven_rows

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


def in_slice(indices, count, offset, where):
    """Row numbers within this slice, and which lie in it (None: all must, of a table that is not split)."""
    indices = np.asarray(indices)
    if offset is None:
        if indices.size and not (indices.min() >= 0 and indices.max() < count):
            worst = indices.min() if indices.min() < 0 else indices.max()
            raise ShapeError(f"an index is {worst}", where=where, allowed=f"Indices from 0 to {count - 1}")
        return indices, None
    local = indices.astype(np.int64) - offset
    mine = (local >= 0) & (local < count)
    return np.where(mine, local, 0), mine


def _blocks(shape, axis, batch_dims):
    """A table's elements as (batches, before the rows, rows, after the rows)."""
    before, after = shape[batch_dims:axis], shape[axis + 1 :]
    return math.prod(shape[:batch_dims]), math.prod(before), shape[axis], math.prod(after)


def look_up(table, indices, axis, offset, where, batch_dims=0):
    """The rows of a slice of a table, zeros for rows that lie elsewhere; offset None: the whole table."""
    local, mine = in_slice(indices, table.shape[axis], offset, where)
    if batch_dims:
        blocks = _blocks(table.shape, axis, batch_dims)
        numbers = local.reshape((blocks[0], 1, math.prod(indices.shape[batch_dims:]), 1))
        rows = np.take_along_axis(table.reshape(blocks), numbers, axis=2)
        return rows.reshape((*table.shape[:axis], *indices.shape[batch_dims:], *table.shape[axis + 1 :]))
    # of a vector and one index numpy makes a number, which takes nothing in place
    rows = np.asarray(np.take(table, local, axis))
    if mine is not None:
        rows[(slice(None),) * axis + (~mine,)] = 0
    return rows


def add_back(g, indices, shape, axis, offset, where, batch_dims=0):
    """Reverse of look_up: every row of g added to the row of the table that it was a copy of."""
    local, mine = in_slice(indices, shape[axis], offset, where)
    batches, before, count, after = _blocks(shape, axis, batch_dims)
    each = math.prod(indices.shape[batch_dims:])
    rows = np.moveaxis(g.reshape((batches, before, each, after)), 2, 1).reshape((batches * each, before, after))
    # the rows of every batch have numbers of their own
    numbers = (local.reshape((batches, each)) + count * np.arange(batches)[:, None]).reshape(-1)
    if mine is not None:
        rows, numbers = rows[mine.reshape(-1)], numbers[mine.reshape(-1)]
    total = add_rows(rows, numbers, batches * count).reshape((batches, count, before, after))
    return np.array(np.moveaxis(total, 1, 2), order="C").reshape(shape)


def gather_labels(shapes, *, axis, batch_dims=0, manual_split=()):
    """Labels of a table and its indices; the dim that is looked up is replaced by those of the indices."""
    table, place = letters(len(shapes[0])), axis % len(shapes[0])
    indices = table[:batch_dims] + letters(len(shapes[0]) + len(shapes[1]))[len(shapes[0]) + batch_dims :]
    return f"{table},{indices}->{table[:place]}{indices[batch_dims:]}{table[place + 1 :]}"


def gather_fault(operands, *, axis, batch_dims=0, manual_split=()):
    """The fault of an axis, batch dims or manual split that do not fit the operands, or None."""
    table, indices = (len(o.shape) for o in operands)
    if manual_split and (axis % table or batch_dims or not indices):
        given = f"manual_split with axis={axis}, batch_dims={batch_dims} and indices of shape {operands[1].shape}"
        raise ManualSplitError(given, where="Gather", allowed="Axis 0, no batch dims, and indices with dims")
    if manual_split and (fault := sizes_fault(manual_split, operands[0].shape[0])):
        raise ManualSplitError(fault[0], where="Gather", allowed=fault[1])
    if batch_dims > min(axis % table, indices):
        given = f"batch_dims={batch_dims} with axis={axis}, a table of {table} dims and indices of {indices}"
        return given, "The first dims of both, before the axis"
    return ints(operands[1], "indices")


def restrict_gather(signature, cuts, sizes, *, axis, batch_dims=0, manual_split=(), at=(0, 1)):
    """MindSpore, Gather: GetGatherMode, CheckStrategy.  at: which inputs the table and the indices are."""
    table, indices = (signature.ins[i] for i in at)
    place = axis % len(table)
    row = table[place]
    if manual_split:
        return strategy_fault(table, indices, cuts, sizes, part_sizes(manual_split))
    if cuts[row] == 1:
        return None
    what = f"splits dim {place} of input {at[0]} ('{row}', the rows that are looked up) {cuts[row]} ways"
    if batch_dims:
        return f"{what}, but batch_dims is {batch_dims}", "With batch_dims the rows stay whole"
    if len(table) > 2:
        return f"{what}, but the table has {len(table)} dims", "Rows can be split in tables with 1 or 2 dims"
    cut = [c for c in indices if cuts[c] > 1]
    if place:
        parts, size = cuts[table[0]] * cuts[row], sizes[table[0]]
        if cut:
            return f"{what}, and the indices too (input {at[1]})", "At axis 1 the rows or the indices are split"
        if size % parts:
            given = f"{what}, and dim 0, which has {size} elements, {cuts[table[0]]} ways"
            return given, f"At axis 1 the sums are scattered along dim 0, so that both numbers, {parts} ways, divide it"
        return None
    if not indices:
        return f"{what}, but the index is one number", "With split rows the indices have dims"
    both = len(table) == len(indices) == 2 and cut[:1] == [indices[0]] and cuts[table[1]] == 1
    if cut and not both:
        allowed = "The rows or the indices are split; both only for 2-D indices split in dim 0 and a 2-D table"
        allowed += " with whole columns"
        return f"{what}, and the indices too (input {at[1]})", allowed
    return None


def gather_devices(signature, cuts, device_num, *, axis, batch_dims=0, manual_split=(), at=(0, 1)):
    """MindSpore, Gather: modes that need all devices, without repeated calculation."""
    table, indices = (signature.ins[i] for i in at)
    place = axis % len(table)
    if cuts[table[place]] == 1:
        if manual_split and device_num > 1:
            return "leaves the rows whole", f"With manual_split they are split {len(manual_split)} ways"
        return None
    used = math.prod(cuts[c] for c in (table if manual_split else table + indices))
    others = [c for c in table + indices if c != table[place] and cuts[c] > 1]
    repeated = not manual_split and place == 0 and (not others or others == list(indices))
    if used == device_num or repeated:
        return None
    allowed = "All of them, unless axis 0 alone is split, or with it both dims of the indices"
    return f"splits the rows that are looked up and uses {used} of {device_num} devices", allowed


LOOKUP = {
    "axes": lambda signature: dict.fromkeys(signature.ins[1] + signature.ins[0]),
    "offset": lambda signature: next(c for c in signature.ins[0] if c not in signature.out),  # of the table's rows
    "scatters": 1,
    "devices": gather_devices,
    "dtype": 0,
    "flops": 0,
}


@op(
    gather_labels,
    name="Gather GatherV2 SparseGatherV2",
    method="gather(input_indices,axis,batch_dims)",
    numpy="take",
    attrs={"axis": one_dim, "batch_dims": integer(0)},
    uneven=uneven_rows,
    check=gather_fault,
    restrict=restrict_gather,
    example=(
        case((16, 8), (4, 2), ints={1: 16}),
        case((16,), (8,), ints={1: 16}),
        case((16, 8), (16,), ints={1: 4}),
        case((2, 8, 4), (4,), ints={1: 8}, axis=1),
        case((16, 4), (), ints={1: 16}, axis=-2),
        case((16, 8), (4,), ints={1: 8}, axis=1),
        case((4, 2, 8, 2), (4, 2), ints={1: 8}, axis=2, batch_dims=1),
        case((4, 8), (4, 2), ints={1: 8}, axis=1, batch_dims=1),
    ),
    **LOOKUP,
)
def gather(input_params, input_indices, axis=0, *, batch_dims=0, manual_split=(), offset=None):
    """Rows of a table, by number: result[..., i, j, ...] = input_params[..., input_indices[i, j], ...].

    input_params: (..., rows, ...) with the rows in dim `axis`, input_indices: (i, j, ...) int from 0 to rows - 1 ->
    (..., i, j, ..., ...)

    batch_dims    so many first dims are the same in both: every batch has a table and indices of its own
    manual_split  rows of every rank, which may differ (`add_prim_attr("manual_split", (5, 3))`). The last dim of the
                  indices is split with them, and names rows of its own rank only: no message is sent

    A rank that holds rows from `offset` on gives zeros for the others. An index outside the table raises ShapeError; of
    a table whose rows are split no rank knows that it is outside, and gives zeros (as MindSpore).
    """
    if manual_split and offset is not None:
        input_indices, offset = own_rows(input_indices, offset // input_params.shape[0], manual_split), None
    return look_up(input_params, input_indices, axis % input_params.ndim, offset, "Gather", batch_dims)


@gradient(gather, part_size=lambda shapes, attrs: attrs["shape"][attrs["axis"]])
def gather_grad(g, input_indices, *, shape, axis, batch_dims=0, manual_split=(), offset=None):
    """Gradient of gather for its table: rows of g added by index.  g: like the result, indices: (...) -> `shape`."""
    if manual_split and offset is not None:
        input_indices, offset = own_rows(input_indices, offset // shape[0], manual_split), None
    return add_back(g, input_indices, shape, axis % len(shape), offset, "Gather", batch_dims)


# ---- coordinates ----


def place_numbers(indices, sizes, offset, where):
    """Row-major numbers of the places whose coordinates stand in the last dim of `indices`, and which lie in this slice
    (None: all must, of a tensor that is not split).  indices: (..., m), sizes: m ints -> (...) int64, (...) bool.
    """
    offsets = offset if isinstance(offset, tuple) else (offset,) * len(sizes)
    numbers, mine = np.zeros(indices.shape[:-1], np.int64), None
    for dim, (size, first) in enumerate(zip(sizes, offsets, strict=True)):
        local, inside = in_slice(indices[..., dim], size, first, where)
        numbers = numbers * size + local
        mine = inside if mine is None else mine & inside
    return numbers, mine


def coordinates_fault(operands, **_):
    """What is wrong with `indices`, operand 1, as coordinates in operand 0."""
    x, indices = (o.shape for o in operands[:2])
    if not indices or not 1 <= indices[-1] <= len(x):
        return f"indices have shape {indices} for a tensor of shape {x}", f"A last dim of 1 to {len(x)} coordinates"
    return ints(operands[1], "indices")


# ---- elements by number ----


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
    mint="gather",
    static=("dim",),
    attrs={"dim": one_dim},
    check=_check_elements,
    axes=lambda signature: signature.ins[0],
    whole=lambda signature, *, dim: signature.ins[1][dim],
    held=lambda signature, *, dim: signature.ins[0][dim],
    offset=lambda signature: next(c for c in signature.ins[0] if c not in signature.out),
    dtype=0,
    flops=0,
    example=(case((16, 8), (16, 4), ints={1: 8}, dim=1), case((8, 4, 2), (2, 4, 2), ints={1: 8}, dim=-3)),
)
def gather_elements(input, dim, index, *, offset=None):
    """For every place of `index` the element of `input` whose number along `dim` stands there (torch.gather).

    input: (..., n, ...), index: (..., k, ...) int from 0 to n - 1 -> (..., k, ...). `dim` stays whole in the index; in
    the input it may be split: every rank gives what it holds, and zeros elsewhere.
    """
    local, mine = in_slice(index, input.shape[dim], offset, "GatherD")
    found = np.take_along_axis(input, local.astype(np.int64, copy=False), dim)
    if mine is not None:
        found[~mine] = 0
    return found


@gradient(gather_elements, part_size=lambda shapes, attrs: attrs["shape"][attrs["dim"]], shown="GatherDGradV2")
def gather_elements_grad(g, index, *, shape, dim, offset=None):
    """Gradient of gather_elements for its input.  g, index: (..., k, ...) -> `shape`."""
    if not index.size:
        return np.zeros(shape, g.dtype)
    # every element of the input has a number of its own, so that one sum by number adds them all
    local, mine = in_slice(index, shape[dim], offset, "GatherD")
    places, size = np.moveaxis(local, dim, -1), shape[dim]
    count = places.size // places.shape[-1]
    numbers = (places.reshape(count, -1).astype(np.int64) + size * np.arange(count)[:, None]).reshape(-1)
    given = np.moveaxis(g, dim, -1).reshape(-1)
    if mine is not None:
        kept = np.moveaxis(mine, dim, -1).reshape(-1)
        given, numbers = given[kept], numbers[kept]
    total = add_rows(given, numbers, count * size)
    return np.array(np.moveaxis(total.reshape((*places.shape[:-1], size)), -1, dim), order="C")
