"""Rows for operators that move, join, cut, pick and order elements: ours and PyTorch's. See `torch_table.py`."""

from __future__ import annotations

from parallel_lab import ops
from tests.recorded.torch_table import Row, bools, floats, given, ints, row


def _looked_up(t, table, indices, start):
    """Rows of a table that begins with number `start`; zeros for numbers it does not have."""
    local = indices.long() - start
    inside = (local >= 0) & (local < len(table))
    return t.nn.functional.embedding(t.where(inside, local, 0), table) * inside[..., None]


def _segments(t, x, ids, count):
    ids = ids.long()
    kept = ids < count
    return t.zeros(count, *x.shape[1:], dtype=x.dtype).index_add(0, ids[kept], x[kept])


def _strided(t, x):
    return x[:, 1:7:2].flip(0)


def _sized(shape):
    return floats(*shape)


SHAPES: tuple[Row, ...] = (
    row("reshape", lambda t, x: x.reshape(3, 8), floats(4, 6), shape=(3, -1)),
    row("flatten", lambda t, x: x.flatten(1), floats(2, 3, 4)),
    row("flatten", lambda t, x: x.flatten(1), floats(0, 3, fixed=True), label="no-rows"),
    row("transpose", lambda t, x: x.permute(2, 0, 1), floats(2, 3, 4), perm=(2, 0, 1)),
    row("swapaxes", lambda t, x: x.swapaxes(0, -1), floats(2, 3, 4), ours=lambda x: ops.swapaxes(x, 0, -1)),
    row("expand_dims", lambda t, x: x.unsqueeze(1), floats(4, 6), axis=1),
    row("squeeze", lambda t, x: x.squeeze(), floats(1, 4, 1, 3)),
    row("squeeze", lambda t, x: x.squeeze(0), floats(1, 4, 1, 3), label="one", axis=(0,)),
    row("tile", lambda t, x: x.tile(2, 1, 3), floats(4, 3), multiples=(2, 1, 3)),
    row("broadcast_to", lambda t, x: x.broadcast_to(2, 4, 3), floats(4, 1), shape=(2, -1, 3)),
    row("concat", lambda t, x, y: t.cat((x, y), 1), floats(4, 2), floats(4, 3), axis=1),
    row("cat", lambda t, x, y: t.cat((x, y)), floats(2, 3), floats(1, 3), ours=lambda x, y: ops.cat((x, y))),
    row("stack", lambda t, x, y: t.stack((x, y), -1), floats(4, 3), floats(4, 3), axis=-1),
    row("split_parts", lambda t, x: x.split(2, 1), floats(4, 6), axis=1, output_num=3),
    row("split_parts", lambda t, x: x.split((1, 4, 2), 0), floats(7, 2), label="sizes", sizes=(1, 4, 2)),
    row("split", lambda t, x: x.split(3, 1), floats(2, 7), ours=lambda x: ops.split(x, 3, 1)),
    row("chunk", lambda t, x: x.chunk(3, 1), floats(2, 7), ours=lambda x: ops.chunk(x, 3, 1)),
    row("unstack", lambda t, x: x.unbind(1), floats(4, 3), axis=1),
    row("unbind", lambda t, x: x.unbind(0), floats(3, 2), ours=ops.unbind),
    row("flip", lambda t, x: x.flip(0, -1), floats(4, 3, 2), axis=(0, -1)),
    row("roll", lambda t, x: x.roll((1, -1), (0, 2)), floats(4, 3, 3), shift=(1, -1), axis=(0, 2)),
    row("tril", lambda t, x: x.tril(-1), floats(2, 4, 5), diagonal=-1),
    row("triu", lambda t, x: x.triu(1), floats(4, 5), diagonal=1),
    row(
        "pad_dims",
        lambda t, x: t.nn.functional.pad(x, (1, 3, 2, 0), value=0.5),
        floats(4, 3),
        paddings=((2, 0), (1, 3)),
        value=0.5,
    ),
    row(
        "pad_dims",
        lambda t, x: t.nn.functional.pad(x, (2, 3), "reflect"),
        floats(2, 4),
        label="reflect",
        paddings=((0, 0), (2, 3)),
        mode="reflect",
    ),
    row(
        "pad_dims",
        lambda t, x: t.nn.functional.pad(x, (5, 1), "replicate"),
        floats(2, 4),
        label="replicate",
        paddings=((0, 0), (5, 1)),
        mode="replicate",
    ),
    row(
        "pad_dims",
        lambda t, x: t.nn.functional.pad(x, (3, 2), "circular"),
        floats(2, 4),
        label="circular",
        paddings=((0, 0), (3, 2)),
        mode="circular",
    ),
    row(
        *("pad_dims", lambda t, x: t.cat((x[:, :2].flip(1), x, x[:, -3:].flip(1)), 1), floats(2, 4)),
        **{"label": "symmetric", "paddings": ((0, 0), (2, 3)), "mode": "symmetric"},
    ),
    row(
        "pad", lambda t, x: t.nn.functional.pad(x, (1, 0, 0, 2)), floats(3, 4), ours=lambda x: ops.pad(x, (1, 0, 0, 2))
    ),
)

PICKING: tuple[Row, ...] = (
    row("strided_slice", _strided, floats(4, 8), begin=(3, 1), end=(-5, 7), strides=(-1, 2)),
    row("strided_slice", lambda t, x: x[-3:4], floats(4, 3, 2), label="short", begin=(-3,), end=(4,)),
    row("gather", lambda t, x, i: x[i.long()], floats(5, 3), ints(5, 2, 4)),
    row("gather", lambda t, x, i: x.index_select(1, i.long()), floats(2, 5, 3), ints(5, 7), label="axis-1", axis=1),
    row("gather", lambda t, x, i: x[:, i.long()], floats(3, 5), ints(5), label="one-number", axis=-1),
    row("take", lambda t, x, i: t.take(x, i.long()), floats(4, 3), ints(12, 5), ours=ops.take),
    row(
        "embedding",
        lambda t, i, w: t.nn.functional.embedding(i.long(), w),
        ints(6, 3, 4),
        floats(6, 2),
        ours=ops.embedding,
    ),
    row("embedding_lookup", lambda t, w, i: _looked_up(t, w, i, 4), floats(5, 3), ints(12, 6), start=4),
    row("gather_elements", lambda t, x, i: x.gather(1, i.long()), floats(4, 5), ints(5, 4, 8), dim=1),
    row(
        "gather_elements",
        lambda t, x, i: x.gather(0, i.long()),
        floats(5, 2, 3),
        ints(5, 3, 2, 3),
        label="axis-0",
        dim=-3,
    ),
    row("unsorted_segment_sum", lambda t, x, i: _segments(t, x, i, 3), floats(8, 2), ints(4, 8), num_segments=3),
    row(
        "one_hot",
        lambda t, i: t.nn.functional.one_hot(i.long(), 5),
        ints(5, 3, 4),
        ours=lambda i: ops.one_hot(i, 5, 1, 0),
    ),
    row("sort", lambda t, x: t.sort(x, dim=0, descending=True), floats(5, 3), axis=0, descending=True),
    row("sort", lambda t, x: t.sort(x, stable=True), given((2.0, 1.0, 2.0, 1.0)), label="ties"),
    row("argsort", lambda t, x: t.argsort(x, 1), floats(3, 5), ours=lambda x: ops.argsort(x, 1)),
    row("top_k", lambda t, x: t.topk(x, 3), floats(4, 6), k=3),
    *(
        row(
            "getitem",
            lambda t, x, key=key: x[key],
            floats(4, 5, 3),
            label=label,
            ours=lambda x, key=key: ops.getitem(x, key),
        )
        for label, key in (
            ("int", 2),
            ("ints", (1, -1)),
            ("slices", (slice(1, None), slice(None, 3))),
            ("steps", (slice(None), slice(None, None, 2))),
            ("ellipsis", (..., 1)),
            ("none", (slice(None), None, 2)),
            ("rows", [3, 0, 3]),
            ("both", ([0, 3, 3], [1, 4, 1])),
            ("last", (slice(None), slice(None), [2, 2, 0])),
        )
    ),
    row("getitem", lambda t, x, m: x[m], floats(4, 5), given(True, False, True, True), label="mask", ours=ops.getitem),
    row(
        "getitem",
        lambda t, x, i: x[i.long()],
        floats(4, 5),
        ints(4, 3, 2),
        label="numbers",
        ours=lambda x, i: ops.getitem(x, i),
    ),
)

CONSTANTS: tuple[Row, ...] = (
    row("arange", lambda t: t.arange(2, 11, 3), ours=lambda: ops.arange(2, 11, 3)),
    row("linspace", lambda t: t.linspace(-1, 2, 7, dtype=t.float64), ours=lambda: ops.linspace(-1, 2, 7, "float64")),
    row("eye", lambda t: t.eye(3, 4), ours=lambda: ops.eye(3, 4)),
    row("full", lambda t: t.full((2, 3), 1.5), ours=lambda: ops.full((2, 3), 1.5)),
    row("full_like", lambda t, x: t.full_like(x, 7), bools(2, 3), ours=lambda x: ops.full_like(x, 7)),
)

# second names that are functions of their own
NAMES: tuple[Row, ...] = (
    row(
        "sum", lambda t, x: t.sum(x, dim=1, keepdim=True), floats(4, 6), ours=lambda x: ops.sum(x, dim=1, keepdim=True)
    ),
    row("mean", lambda t, x: t.mean(x, (0, 2)), floats(4, 3, 2), ours=lambda x: ops.mean(x, (0, 2))),
    row("prod", lambda t, x: t.prod(x, -1), floats(4, 3), ours=lambda x: ops.prod(x, -1)),
    row("amax", lambda t, x: t.amax(x, 1), given((1.0, 3.0, 3.0), (2.0, -1.0, 0.0)), ours=lambda x: ops.amax(x, 1)),
    row("amin", lambda t, x: t.amin(x, 0), floats(4, 3), ours=lambda x: ops.amin(x, 0)),
    row("max", lambda t, x: t.max(x, 1), floats(4, 6), ours=lambda x: ops.max(x, 1)),
    row(
        "max",
        lambda t, x: t.max(x, 0, keepdim=True),
        floats(4, 3, 2),
        label="kept",
        ours=lambda x: ops.max(x, 0, keepdims=True),
    ),
    row("min", lambda t, x: t.min(x, -2), floats(4, 6, 2), ours=lambda x: ops.min(x, -2)),
    row("all", lambda t, x: t.all(x, 1), bools(4, 3), ours=lambda x: ops.all(x, 1)),
    row("any", lambda t, x: t.any(x, 1), bools(4, 3), ours=lambda x: ops.any(x, 1)),
    row("topk", lambda t, x: t.topk(x, 3), floats(4, 6), ours=lambda x: ops.topk(x, 3)),
    row(
        "topk",
        lambda t, x: t.topk(x, 2, dim=0, largest=False),
        floats(5, 3),
        label="smallest",
        ours=lambda x: ops.topk(x, 2, 0, largest=False),
    ),
    row("permute", lambda t, x: t.permute(x, (2, 0, 1)), floats(4, 3, 2), ours=lambda x: ops.permute(x, (2, 0, 1))),
    row("unsqueeze", lambda t, x: t.unsqueeze(x, -1), floats(4, 3), ours=lambda x: ops.unsqueeze(x, -1)),
    row(
        "repeat_interleave",
        lambda t, x: t.repeat_interleave(x, 3, 1),
        floats(4, 3, 2),
        ours=lambda x: ops.repeat_interleave(x, 3, 1),
    ),
    row(
        "repeat_interleave",
        lambda t, x: t.repeat_interleave(x, 2),
        floats(2, 3),
        label="all",
        ours=lambda x: ops.repeat_interleave(x, 2),
    ),
    row("bmm", lambda t, x, y: t.bmm(x, y), floats(2, 3, 4), floats(2, 4, 5), ours=ops.bmm),
    *(
        row(
            "einsum",
            lambda t, *xs, e=equation: t.einsum(e, *xs),
            *map(_sized, shapes),
            label=label,
            ours=lambda *xs, e=equation: ops.einsum(e, *xs),
        )
        for label, equation, *shapes in (
            ("product", "ij,jk->ik", (2, 3), (3, 4)),
            ("turned", "ji,kj->ki", (3, 2), (4, 3)),
            ("heads", "bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
            ("outer", "i,j->ij", (3,), (4,)),
            ("inner", "i,i->", (5,), (5,)),
            ("two-inner", "aij,jib->ba", (2, 3, 4), (4, 3, 5)),
            ("elements", "ij,ij->ij", (2, 3), (2, 3)),
            ("summed", "ija,jkb->ik", (2, 3, 2), (3, 4, 2)),
            ("sum", "ijk->j", (2, 3, 4)),
            ("transpose", "ijk->kij", (2, 3, 4)),
            ("implicit", "cb,ba", (2, 3), (3, 4)),
        )
    ),
)

ROWS = SHAPES + PICKING + CONSTANTS + NAMES
