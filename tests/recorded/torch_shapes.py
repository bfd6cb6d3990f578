"""Rows for operators that move, join, cut, pick and order elements: ours and PyTorch's. See `torch_table.py`."""

from __future__ import annotations

from parallel_lab import ops
from tests.recorded.torch_table import F, O, Row, T, bools, floats, given, ints, row


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


SHAPES: tuple[Row, ...] = (
    row("reshape", T.reshape((3, 8)), floats(4, 6), shape=(3, -1)),
    row("flatten", T.flatten(1), floats(2, 3, 4)),
    row("flatten-no-rows", T.flatten(1), floats(0, 3, fixed=True)),
    row("transpose", T.permute((2, 0, 1)), floats(2, 3, 4), perm=(2, 0, 1)),
    row("swapaxes", T.swapaxes(0, -1), floats(2, 3, 4), ours=O.swapaxes(0, -1)),
    row("expand_dims", T.unsqueeze(1), floats(4, 6), axis=1),
    row("squeeze", T.squeeze(), floats(1, 4, 1, 3)),
    row("squeeze-one", T.squeeze(0), floats(1, 4, 1, 3), axis=(0,)),
    row("tile", T.tile((2, 1, 3)), floats(4, 3), multiples=(2, 1, 3)),
    row("broadcast_to", T.broadcast_to((2, 4, 3)), floats(4, 1), shape=(2, -1, 3)),
    row("concat", lambda t, x, y: t.cat((x, y), 1), floats(4, 2), floats(4, 3), axis=1),
    row("cat", lambda t, x, y: t.cat((x, y)), floats(2, 3), floats(1, 3), ours=lambda x, y: ops.cat((x, y))),
    row("stack", lambda t, x, y: t.stack((x, y), -1), floats(4, 3), floats(4, 3), axis=-1),
    row("split_parts", T.split(2, 1), floats(4, 6), axis=1, output_num=3),
    row("split_parts-sizes", T.split((1, 4, 2), 0), floats(7, 2), sizes=(1, 4, 2)),
    row("split", T.split(3, 1), floats(2, 7), ours=O.split(3, 1)),
    row("chunk", T.chunk(3, 1), floats(2, 7), ours=O.chunk(3, 1)),
    row("unstack", T.unbind(1), floats(4, 3), axis=1),
    row("unbind", T.unbind(0), floats(3, 2), ours=O.unbind()),
    row("flip", T.flip((0, -1)), floats(4, 3, 2), axis=(0, -1)),
    row("roll", T.roll((1, -1), (0, 2)), floats(4, 3, 3), shift=(1, -1), axis=(0, 2)),
    row("tril", T.tril(-1), floats(2, 4, 5), diagonal=-1),
    row("triu", T.triu(1), floats(4, 5), diagonal=1),
    row("pad_dims", F.pad((1, 3, 2, 0), value=0.5), floats(4, 3), paddings=((2, 0), (1, 3)), value=0.5),
    row("pad_dims-reflect", F.pad((2, 3), "reflect"), floats(2, 4), paddings=((0, 0), (2, 3)), mode="reflect"),
    row("pad_dims-replicate", F.pad((5, 1), "replicate"), floats(2, 4), paddings=((0, 0), (5, 1)), mode="replicate"),
    row("pad_dims-circular", F.pad((3, 2), "circular"), floats(2, 4), paddings=((0, 0), (3, 2)), mode="circular"),
    row(
        "pad_dims-symmetric",
        lambda t, x: t.cat((x[:, :2].flip(1), x, x[:, -3:].flip(1)), 1),
        floats(2, 4),
        paddings=((0, 0), (2, 3)),
        mode="symmetric",
    ),
    row("pad", F.pad((1, 0, 0, 2)), floats(3, 4), ours=O.pad((1, 0, 0, 2))),
)

PICKING: tuple[Row, ...] = (
    row("strided_slice", _strided, floats(4, 8), begin=(3, 1), end=(-5, 7), strides=(-1, 2)),
    row("strided_slice-short", lambda t, x: x[-3:4], floats(4, 3, 2), begin=(-3,), end=(4,)),
    row("gather", lambda t, x, i: x[i.long()], floats(5, 3), ints(5, 2, 4)),
    row("gather-axis-1", lambda t, x, i: x.index_select(1, i.long()), floats(2, 5, 3), ints(5, 7), axis=1),
    row("gather-one-number", lambda t, x, i: x[:, i.long()], floats(3, 5), ints(5), axis=-1),
    row("take", T.take(), floats(4, 3), ints(12, 5), ours=O.take()),
    row("embedding", F.embedding(), ints(6, 3, 4), floats(6, 2), ours=O.embedding()),
    row("embedding_lookup", lambda t, w, i: _looked_up(t, w, i, 4), floats(5, 3), ints(12, 6), start=4),
    row("gather_elements", lambda t, x, i: x.gather(1, i.long()), floats(4, 5), ints(5, 4, 8), dim=1),
    row("gather_elements-axis-0", lambda t, x, i: x.gather(0, i.long()), floats(5, 2, 3), ints(5, 3, 2, 3), dim=-3),
    row("unsorted_segment_sum", lambda t, x, i: _segments(t, x, i, 3), floats(8, 2), ints(4, 8), num_segments=3),
    row("one_hot", F.one_hot(5), ints(5, 3, 4), ours=O.one_hot(5, 1, 0)),
    row("sort", T.sort(dim=0, descending=True), floats(5, 3), axis=0, descending=True),
    row("sort-ties", T.sort(stable=True), given((2.0, 1.0, 2.0, 1.0))),
    row("argsort", T.argsort(1), floats(3, 5), ours=O.argsort(1)),
    row("top_k", T.topk(3), floats(4, 6), k=3),
    *(
        row(f"getitem-{label}", lambda t, x, key=key: x[key], floats(4, 5, 3), ours=O.getitem(key))
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
    row("getitem-mask", lambda t, x, m: x[m], floats(4, 5), given(True, False, True, True), ours=O.getitem()),
    row("getitem-numbers", lambda t, x, i: x[i.long()], floats(4, 5), ints(4, 3, 2), ours=O.getitem()),
)

CONSTANTS: tuple[Row, ...] = (
    row("arange", T.arange(2, 11, 3), ours=O.arange(2, 11, 3)),
    row("linspace", lambda t: t.linspace(-1, 2, 7, dtype=t.float64), ours=O.linspace(-1, 2, 7, "float64")),
    row("eye", T.eye(3, 4), ours=O.eye(3, 4)),
    row("full", T.full((2, 3), 1.5), ours=O.full((2, 3), 1.5)),
    row("full_like", T.full_like(7), bools(2, 3), ours=O.full_like(7)),
)

# second names that are functions of their own
NAMES: tuple[Row, ...] = (
    row("sum", T.sum(dim=1, keepdim=True), floats(4, 6), ours=O.sum(dim=1, keepdim=True)),
    row("mean", T.mean((0, 2)), floats(4, 3, 2), ours=O.mean((0, 2))),
    row("prod", T.prod(-1), floats(4, 3), ours=O.prod(-1)),
    row("amax", T.amax(1), given((1.0, 3.0, 3.0), (2.0, -1.0, 0.0)), ours=O.amax(1)),
    row("amin", T.amin(0), floats(4, 3), ours=O.amin(0)),
    row("max", T.max(1), floats(4, 6), ours=O.max(1)),
    row("max-kept", T.max(0, keepdim=True), floats(4, 3, 2), ours=O.max(0, keepdims=True)),
    row("min", T.min(-2), floats(4, 6, 2), ours=O.min(-2)),
    row("all", T.all(1), bools(4, 3), ours=O.all(1)),
    row("any", T.any(1), bools(4, 3), ours=O.any(1)),
    row("topk", T.topk(3), floats(4, 6), ours=O.topk(3)),
    row("topk-smallest", T.topk(2, dim=0, largest=False), floats(5, 3), ours=O.topk(2, 0, largest=False)),
    row("permute", T.permute((2, 0, 1)), floats(4, 3, 2), ours=O.permute((2, 0, 1))),
    row("unsqueeze", T.unsqueeze(-1), floats(4, 3), ours=O.unsqueeze(-1)),
    row("repeat_interleave", T.repeat_interleave(3, 1), floats(4, 3, 2), ours=O.repeat_interleave(3, 1)),
    row("repeat_interleave-all", T.repeat_interleave(2), floats(2, 3), ours=O.repeat_interleave(2)),
    row("bmm", T.bmm(), floats(2, 3, 4), floats(2, 4, 5), ours=O.bmm()),
    *(
        row(
            *(f"einsum-{label}", lambda t, *xs, e=equation: t.einsum(e, *xs), *(floats(*shape) for shape in shapes)),
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
