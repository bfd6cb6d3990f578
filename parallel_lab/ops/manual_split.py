"""Tables whose ranks hold so many rows as a learner says: the attribute `manual_split` of Gather and EmbeddingLookup.

    lookup = ops.Gather().add_prim_attr("manual_split", (3, 1, 2, 5)).shard(((4, 1), (1, 4)))

        rows 0-2 on rank 0, 3 on rank 1, 4-5 on rank 2, 6-10 on rank 3;  indices (samples, 4), one field per rank

The last dim of the indices, the fields of a sample, is split with the rows, and every field names rows of its own rank
only. So no rank needs another's, and no message is sent. Slices are as large as the largest part, zeros after the rows
(`TensorLayout.rows`).

Rules: MindSpore, Gather: CheckManualSplit.
"""

from __future__ import annotations

import itertools

import numpy as np

from ..base.checks import is_int
from ..base.errors import ShapeError, StrategyError, shorten


class ManualSplitError(ShapeError, StrategyError):
    """Parts that do not fit a table: a RuntimeError too, as MindSpore finds it together with strategies."""


def part_sizes(manual_split):
    """Rows per part, which may come as a pair with the first row."""
    return tuple(n[0] if isinstance(n, tuple) else n for n in manual_split)


def sizes_fault(manual_split, count):
    """Why a table of `count` rows cannot have these parts."""
    allowed = f"Ints of at least 1 whose sum is the table's {count} rows, or pairs of such an int and the sum before it"
    given = manual_split if isinstance(manual_split, tuple) else ((),)
    pairs = [n if isinstance(n, tuple) else (n, None) for n in given]
    if all(len(pair) == 2 and is_int(pair[0], 1) for pair in pairs):
        sizes = [n for n, _ in pairs]
        starts = itertools.accumulate(sizes[:-1], initial=0)
        if sum(sizes) == count and all(first in (None, at) for (_, first), at in zip(pairs, starts, strict=True)):
            return None
    return f"manual_split={shorten(manual_split)}", allowed


def uneven_rows(signature, *, manual_split=(), **_):
    """`uneven` of an operator whose operands are a table and indices."""
    return {signature.ins[0][0]: (part_sizes(manual_split), signature.ins[1][-1])} if manual_split else {}


def strategy_fault(table, indices, cuts, sizes, rows):
    """Why the rows and the indices cannot be split so.  table, indices: labels; rows: of every part."""
    field, parts = indices[-1], len(rows)
    if all(n == 1 for n in cuts.values()):
        return None  # of one device
    allowed = f"With manual_split the rows and the last dim of the indices are split {parts} ways, its number of parts"
    for c in (table[0], field):
        if cuts[c] != parts:
            at = (0, 0) if c == table[0] else (1, len(indices) - 1)
            return f"splits dim {at[1]} of input {at[0]} {cuts[c]} ways, but manual_split has {parts} parts", allowed
    if any(cuts[c] > 1 for c in indices[:-1]):
        return "splits the indices (input 1) in another dim than the last one", allowed
    if len(table) > 2:
        return f"splits a table of {len(table)} dims", "With manual_split a table has 1 or 2 dims"
    if min(rows) < sizes[field] // parts:
        what = f"gives a rank {sizes[field] // parts} fields (dim {len(indices) - 1} of input 1) and {min(rows)} rows"
        return what, "At least as many rows as fields: every field has rows of its own"
    return None


def own_rows(indices, part, manual_split):
    """Indices among the rows of part number `part`. Raises ShapeError for others."""
    sizes = part_sizes(manual_split)
    first, count = sum(sizes[:part]), sizes[part]
    local = indices.astype(np.int64) - first
    if local.size and not (local.min() >= 0 and local.max() < count):
        worst = indices.min() if local.min() < 0 else indices.max()
        allowed = f"Indices from {first} to {first + count - 1}: by manual_split the rank has these rows"
        raise ShapeError(f"an index is {worst}", where="Gather", allowed=allowed)
    return local
