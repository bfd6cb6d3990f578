"""Attention in blocks of 64 positions, in tiles of 16 x 16: a query sees its own block, and 16 keys of every block.

    MatmulDDS(bs, heads)(q, k, local_mask, global_mask) -> local_prob, global_prob     one softmax over both
    DSDMatmul()(local_prob, global_prob, v)             -> what they weigh of v

Head h shows tile 3 - h % 4 of every block to all blocks (Child et al. 2019, "fixed" attention). Samples and heads may
be split, for which neither operator sends a message. Forms and rules: MindSpore, matmul_dds_info, dsd_matmul_info;
tiles and their order: the shapes of its operators.
"""

from __future__ import annotations

import numpy as np

from ...base.checks import SHAPE_ERRORS, integer
from ...base.errors import ShapeError, StrategyError, shorten
from ...ops.elementwise import mul
from ...ops.machine.operand_checks import floats
from ...ops.machine.registry import case, form, op
from ...ops.shape import reshape
from .flash_attention import primitive_for

_TILES = 4  # of a block, and patterns of heads: both are fixed


def _joined(x):
    """Columns and rows of tiles as a matrix.  x: (..., columns, rows, t, t) -> (..., rows t, columns t)."""
    rows, columns, t = x.shape[-3], x.shape[-4], x.shape[-1]
    return np.moveaxis(x, -4, -2).reshape(*x.shape[:-4], rows * t, columns * t)


def _tiles(x, t):
    """`_joined` backward.  x: (..., rows t, columns t) -> (..., columns, rows, t, t)."""
    x = x.reshape(*x.shape[:-2], x.shape[-2] // t, t, x.shape[-1] // t, t)
    return np.moveaxis(x, -2, -4)


def _seen(x, offset, t):
    """What all blocks see of x.  x: (b, n, s, d) -> (b, n, s / 4, d), tile 3 - h % 4 of each block for head h."""
    b, n, s, d = x.shape
    tile = _TILES - 1 - (offset + np.arange(n)) % _TILES
    blocks = x.reshape(b, n, -1, _TILES, t, d)
    return np.take_along_axis(blocks, tile[None, :, None, None, None, None], axis=3).reshape(b, n, s // _TILES, d)


def _unseen(made, x, offset, t):
    """`made`, (b, n, s, d), after the gradient x of what `_seen` gave was added.  x: (b, n, s / 4, d)."""
    b, n, _, d = made.shape
    blocks, x = made.reshape(b, n, -1, _TILES, t, d), x.reshape(b, n, -1, t, d)
    for head in range(n):
        blocks[:, head, :, _TILES - 1 - (offset + head) % _TILES] += x[:, head]
    return made


def _rows(x, t):
    """Query or key by samples and heads.  x: (n, d / t, b, s / t, t, t) -> (b, n, s, d)."""
    return _joined(np.transpose(x, (2, 0, 1, 3, 4, 5)))


def _as_rows(x, t):
    """`_rows` backward."""
    return np.transpose(_tiles(x, t), (1, 2, 0, 3, 4, 5))


def _blocks(x, t):
    """x: (..., s, d) -> (..., blocks, block, d)."""
    return x.reshape(*x.shape[:-2], -1, _TILES * t, x.shape[-1])


def _check_scores(operands):
    q, k, local, wide = (x.shape for x in operands)
    want = (q[3], q[2], _TILES, *q[4:]), (q[2], q[3] // _TILES, q[3], *q[4:])
    if q != k or q[3] % _TILES or q[4] != q[5] or (local, wide) != want:
        return f"q {q}, k {k}, local_mask {local}, global_mask {wide}", "Tiles of 16, blocks of 64, a quarter global"
    return floats(operands[0], "q")


@op(
    "ndbsxy,ndbsxy,sblxy,bgsxy->bnklvxy,bnkgvxy",
    name="SparseScores",
    check=_check_scores,
    sizes=lambda shapes: {"k": shapes[0][3] // _TILES, "v": _TILES},
    dtype=0,
    axes="nb",
    whole="dslgxykv",
    offset="n",
    flops=lambda s: 40 * s.b * s.n * s.s * s.x,
    example=case((4, 1, 2, 8, 2, 2), (4, 1, 2, 8, 2, 2), (8, 2, 4, 2, 2), (2, 2, 8, 2, 2)),
)
def sparse_scores(q, k, local_mask, global_mask, *, offset=0):
    """softmax(q k^T + mask) of each query over the keys of its block and those that all blocks see.

    q, k: (n, d / t, b, s / t, t, t); local_mask: (s / t, b, 4, t, t); global_mask: (b, s / 4t, s / t, t, t) -> (b, n,
    blocks, 4, 4, t, t), (b, n, blocks, s / 4t, 4, t, t), both in the order columns, rows, row, column
    """
    t = q.shape[-1]
    query, key = _blocks(_rows(q, t), t), _rows(k, t)
    near = query @ np.swapaxes(_blocks(key, t), -1, -2)
    far = query @ np.swapaxes(_seen(key, offset, t), -1, -2)[:, :, None]
    shape = (local_mask.shape[1], -1, _TILES, _TILES, t, t)  # (b, blocks, columns, rows, t, t)
    near = near + _joined(np.moveaxis(local_mask, 0, 1).reshape(shape))[:, None]
    far = far + _blocks(_joined(global_mask), t)[:, None]
    both = np.concatenate([near, far], axis=-1)
    both = np.exp(both - both.max(axis=-1, keepdims=True))
    both = (both / both.sum(axis=-1, keepdims=True)).astype(q.dtype, copy=False)
    return tuple(_tiles(part, t) for part in np.split(both, [_TILES * t], axis=-1))


@op(result_shape=(4, 5, 6, 7), part_size=lambda shapes, attrs: shapes[4][0])
def sparse_scores_grad(*operands, offset=0):
    """Gradients of `sparse_scores`.  Those of both results, the results, its operands -> like the operands."""
    g_near, g_far, near, far, q, k, *_ = operands
    t = q.shape[-1]
    query, key = _blocks(_rows(q, t), t), _rows(k, t)
    width = _TILES * t
    p, g = (np.concatenate([_joined(a), _joined(b)], axis=-1) for a, b in ((near, far), (g_near, g_far)))
    p, g = p.astype(np.result_type(p, np.float32)), g.astype(np.result_type(g, np.float32))
    of_near, of_far = np.split(p * (g - (g * p).sum(axis=-1, keepdims=True)), [width], axis=-1)
    seen = _seen(key, offset, t)
    of_query = (of_near @ _blocks(key, t) + of_far @ seen[:, :, None]).reshape(key.shape)
    of_key = (np.swapaxes(of_near, -1, -2) @ query).reshape(key.shape)
    of_key = _unseen(of_key, (np.swapaxes(of_far, -1, -2) @ query).sum(axis=2), offset, t)
    of_local = _tiles(of_near.sum(axis=1), t)  # (b, blocks, columns, rows, t, t)
    of_local = np.moveaxis(of_local.reshape(len(of_local), -1, _TILES, t, t), 0, 1)
    of_global = _tiles(of_far.sum(axis=1).reshape(len(of_far), key.shape[2], -1), t)
    made = (_as_rows(of_query, t), _as_rows(of_key, t), of_local, of_global)
    return tuple(x.astype(y.dtype, copy=False) for x, y in zip(made, operands[4:], strict=True))


@sparse_scores.vjp
def _(g, out, q, k, local_mask, global_mask):
    g = [mul(y, 0.0) if x is None else x for x, y in zip(g, out, strict=True)]
    return sparse_scores_grad(*g, *out, q, k, local_mask, global_mask)


def _cuts(self, *wanted):
    """The strategy's tuples, or None. Raises StrategyError unless there are as many counts as `wanted` says."""
    given = self.in_strategy
    if given is not None and [len(x) if isinstance(x, tuple) else None for x in given] != list(wanted):
        allowed = f"{len(wanted)} tuples of {', '.join(map(str, wanted))} counts"
        raise StrategyError(f"strategy {shorten(given)}", where=self.name, allowed=allowed)
    return given


@form(sparse_scores, "MatmulDDS")
def _(self, q, k, local_mask, global_mask, *, bs, heads):
    """`sparse_scores` of tiles of 16.  q, k: (heads d / 16, bs s / 16, 16, 16), local_mask: (s / 16, 4 bs, 16, 16),
    global_mask: (bs s / 64, s / 16, 16, 16) -> (bs, heads, s / 64, 4, 4, 16, 16), (bs, heads, s / 64, s / 64, 4, 16,
    16). Strategy: ((mp, dp, 1, 1), (mp, dp, 1, 1), (1, dp, 1, 1), (dp, 1, 1, 1)).
    """
    bs, heads = (integer(1)(self.name, n, v, SHAPE_ERRORS) for n, v in (("bs", bs), ("heads", heads)))
    given = [tuple(x.shape) for x in (q, k, local_mask, global_mask)]
    samples = [s[:2][1 if n < 3 else 0] % bs if len(s) == 4 else 1 for n, s in enumerate(given)]
    if any(samples) or given[0][0] % heads:
        what = f"bs={bs}, heads={heads} for {', '.join(map(str, given))}"
        raise ShapeError(what, where=self.name, allowed="(heads d / 16, bs s / 16, 16, 16) and masks of bs samples")
    inner, cuts = primitive_for(self, sparse_scores), _cuts(self, 4, 4, 4, 4)
    if cuts is not None:
        (a, b, *c), (d, e, *f), (g, h, *i), (j, *m) = cuts
        inner.in_strategy = (a, 1, b, 1, *c), (d, 1, e, 1, *f), (g, h, 1, *i), (j, 1, *m)
    rows = (heads, given[0][0] // heads, bs, given[0][1] // bs, *given[0][2:])
    shapes = rows, rows, (given[2][0], bs, -1, *given[2][2:]), (bs, -1, *given[3][1:])
    operands = [reshape(x, shape) for x, shape in zip((q, k, local_mask, global_mask), shapes, strict=True)]
    return sparse_scores.call(operands, {}, inner)


def _check_values(operands):
    near, far, v = (x.shape for x in operands)
    want = (near[0], near[2] * _TILES, near[1], v[3], *near[5:])
    if v != want or near[3:5] != (_TILES, _TILES) or far != (*near[:3], near[2], *near[4:]):
        return f"w1 {near}, w2 {far}, v {v}", "Blocks of 64 in tiles of 16, as MatmulDDS gives them"
    return floats(operands[0], "w1")


@op(
    "bnklvxy,bnkgvxy,bsndxy->bndsxy",
    name="SparseValues",
    check=_check_values,
    dtype=0,
    axes="bn",
    whole="klvxygsd",
    offset="n",
    flops=lambda s: 40 * s.b * s.n * s.s * s.x,
    example=case((2, 4, 2, 4, 4, 2, 2), (2, 4, 2, 2, 4, 2, 2), (2, 8, 4, 1, 2, 2)),
)
def sparse_values(w1, w2, v, *, offset=0):
    """w1 times the values of each block, and w2 times those that all blocks see, added.

    w1, w2: as `sparse_scores` gives them, v: (b, s / t, n, d / t, t (d), t (s)) -> (b, n, d / t, s / t, t (s), t (d))
    """
    t = v.shape[-1]
    value = _joined(np.transpose(v, (0, 2, 3, 1, 5, 4)))
    made = _joined(w1) @ _blocks(value, t) + _joined(w2) @ _seen(value, offset, t)[:, :, None]
    return _tiles(made.reshape(value.shape), t).astype(w1.dtype, copy=False)


@op(result_shape=(1, 2, 3), part_size=lambda shapes, attrs: shapes[1][1])
def sparse_values_grad(g, w1, w2, v, *, offset=0):
    """Gradients of `sparse_values`.  g: that of the result, w1, w2, v -> like w1, w2, v."""
    t = v.shape[-1]
    value, g = _joined(np.transpose(v, (0, 2, 3, 1, 5, 4))), _joined(g)
    blocks = _blocks(g, t)
    of_near = blocks @ np.swapaxes(_blocks(value, t), -1, -2)
    of_far = blocks @ np.swapaxes(_seen(value, offset, t), -1, -2)[:, :, None]
    of_value = (np.swapaxes(_joined(w1), -1, -2) @ blocks).reshape(value.shape)
    of_value = _unseen(of_value, (np.swapaxes(_joined(w2), -1, -2) @ blocks).sum(axis=2), offset, t)
    made = _tiles(of_near, t), _tiles(of_far, t), np.transpose(_tiles(of_value, t), (0, 3, 1, 2, 5, 4))
    return tuple(x.astype(y.dtype, copy=False) for x, y in zip(made, (w1, w2, v), strict=True))


@sparse_values.vjp
def _(g, out, w1, w2, v):
    return sparse_values_grad(g, w1, w2, v)


@form(sparse_values, "DSDMatmul")
def _(self, input_w1, input_w2, input_v):
    """`sparse_values` of tiles of 16.  input_w1: (b, heads, blocks, 4, 4, 16, 16), input_w2: (b, heads, blocks, blocks,
    4, 16, 16), input_v: (b s / 16, heads d / 16, 16, 16) -> (b, heads, d / 16, s / 16, 16, 16). Strategy: ((dp, mp, 1,
    1, 1, 1, 1), (dp, mp, 1, 1, 1, 1, 1), (dp, mp, 1, 1)).
    """
    first, v = tuple(input_w1.shape), tuple(input_v.shape)
    if len(first) != 7 or len(input_w2.shape) != 7 or len(v) != 4 or v[0] % first[0] or v[1] % first[1]:
        what = f"{', '.join(str(tuple(x.shape)) for x in (input_w1, input_w2, input_v))}"
        raise ShapeError(what, where=self.name, allowed="(b, heads, blocks, 4, 4, 16, 16), and v of b samples")
    inner, cuts = primitive_for(self, sparse_values), _cuts(self, 7, 7, 4)
    if cuts is not None:
        b, n, *further = cuts[2]
        inner.in_strategy = *cuts[:2], (b, 1, n, 1, *further)
    rows = reshape(input_v, (first[0], v[0] // first[0], first[1], v[1] // first[1], *v[2:]))
    return sparse_values.call((input_w1, input_w2, rows), {}, inner)
