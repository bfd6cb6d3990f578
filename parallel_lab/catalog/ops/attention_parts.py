"""Parts of attention: positions as turned pairs, and softmax and attention taken apart, for a key dim that is split.

    rotary_position_embedding(x (b, h, s, d), cos (1, 1, s, d), sin (1, 1, s, d)) -> (b, h, s, d)
    ApplyRotaryPosEmb   the same of query and key at once, with positions, where a model answers
    attention_expand    Mul, MatMul, CausalMask, SoftmaxExpand, MatMul: the fused operator is in `ops/attention.py`
    softmax_expand      ReduceMax, Sub, Exp, ReduceSum, Div

A split key dim costs an all_reduce of the maxima, one of the sums and one of the result. The dim of the pairs stays
whole.
"""

from __future__ import annotations

import math

import numpy as np

from ...base.checks import integer
from ...base.errors import ShapeError, StrategyError, shorten
from ...ops.activation import SOFTMAX
from ...ops.attention import SCALE, attention_work, causal_mask, operand_fault
from ...ops.elementwise import div, mul, sub
from ...ops.linalg import matmul
from ...ops.machine.composed import composed
from ...ops.machine.operand_checks import floats, ints
from ...ops.machine.registry import case, form, op, unbroadcast
from ...ops.machine.signature import letters, same_labels
from ...ops.reduce import reduce_max, reduce_sum
from ...ops.shape import reshape
from ...ops.unary import stop_gradient
from .elementary_functions import exp
from .flash_attention import primitive_for, refuse_gradient


@composed(same_labels, name="SoftmaxExpand", **SOFTMAX)
def softmax_expand(part, x, *, axis=-1):
    """exp(x) / sum of exp(x) along `axis`, which may be split.  x: (...) -> (...).

    ReduceMax (without gradient: it changes nothing), Sub, Exp, ReduceSum, Div: a split axis costs two all_reduces.
    """
    names = letters(len(x.shape))
    place = axis % len(names)
    kept = names[:place] + "1" + names[place + 1 :]
    largest = part(reduce_max, x, labels=f"{names}->{kept}", axis=axis, keep_dims=True)
    largest = part(stop_gradient, largest, labels=f"{kept}->{kept}")
    raised = part(exp, part(sub, x, largest, labels=f"{names},{kept}->{names}"), labels=f"{names}->{names}")
    total = part(reduce_sum, raised, labels=f"{names}->{kept}", axis=axis, keep_dims=True)
    return part(div, raised, total, labels=f"{names},{kept}->{names}")


@composed(
    "bhsd,bhtd,bhte->bhse",
    name="AttentionExpand",
    attrs={"scale": SCALE},
    check=operand_fault,
    whole="d",
    flops=attention_work,
    example=(
        case((4, 2, 4, 6), (4, 2, 8, 6), (4, 2, 8, 4)),
        case((2, 2, 8, 3), (2, 2, 8, 3), (2, 2, 8, 4), is_causal=True, scale=0.5),
    ),
)
def attention_expand(part, q, k, v, *, is_causal=False, scale=None):
    """softmax(scale * q k^T) v of Mul, MatMul, CausalMask, SoftmaxExpand, MatMul, for all dims but d split.

    q: (b, h, s, d), k: (b, h, t, d), v: (b, h, t, e) -> (b, h, s, e). A split t costs three all_reduces forward.
    """
    factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = part(matmul, part(mul, q, factor, labels="bhsd,->bhsd"), k, labels="bhsd,bhtd->bhst", transpose_b=True)
    if is_causal:
        scores = part(causal_mask, scores, labels="bhst->bhst")
    return part(matmul, part(softmax_expand, scores, labels="bhst->bhst", axis=-1), v, labels="bhst,bhte->bhse")


# ---- positions as angles (Su et al. 2021, "RoFormer") ----


def _check_pairs(operands, *, mode):
    shapes = [each.shape for each in operands]
    if any(not s or s[-1] != shapes[0][-1] or len(s) != len(shapes[0]) for s in shapes) or shapes[0][-1] % 2:
        return f"tensors of shape {' and '.join(map(str, shapes))}", "As many dims, the last equal and even"
    return floats(operands[0])


@op(result_shape=0, dtype=0)
def quarter_turn(x, *, mode):
    """Every pair (u, v) of the last dim turned to (-v, u).  x: (..., d) -> (..., d). Turned back: times -1."""
    pairs = x.reshape((*x.shape[:-1], 2, -1) if mode == 0 else (*x.shape[:-1], -1, 2))
    first, second = np.moveaxis(pairs, -2 if mode == 0 else -1, 0)
    return np.stack([-second, first], axis=-2 if mode == 0 else -1).reshape(x.shape)


@op(
    "...d,...d,...d->...d",
    name="RotaryPositionEmbedding",
    whole="d",
    attrs={"mode": integer(0, 1)},
    check=_check_pairs,
    flops=4,
    example=(case((4, 2, 8, 6), (1, 1, 8, 6), (1, 1, 8, 6)), case((4, 8, 2, 4), (1, 8, 1, 4), (1, 8, 1, 4), mode=1)),
)
def rotary_position_embedding(x, cos, sin, mode=0):
    """x with its pairs turned: x cos + (quarter turn of x) sin.  x: (..., d), cos, sin: broadcast to it -> (..., d).

    mode  0: the pairs are elements i and i + d / 2, 1: elements 2i and 2i + 1

    Form: mindspore.ops.rotary_position_embedding.
    """
    return x * cos + quarter_turn.compute(x, mode=mode) * sin


@rotary_position_embedding.vjp
def _(g, out, x, cos, sin, *, mode):
    back = quarter_turn(mul(g, sin), mode=mode)
    of_sin = mul(g, quarter_turn(x, mode=mode))
    return sub(mul(g, cos), back), unbroadcast(mul(g, x), cos), unbroadcast(of_sin, sin)


def _check_positions(operands, *, cos_format):
    query, key, cos, sin, positions = operands
    rows = query.shape[0] * query.shape[1] if cos_format >= 2 else cos.shape[0]
    if cos.shape != sin.shape or cos.shape[0] != rows or cos.shape[1] % 2 or key.shape[-1] % (cos.shape[1] or 1):
        what = f"query {query.shape}, key {key.shape}, cos {cos.shape}, sin {sin.shape}"
        return what, "cos and sin alike, (positions, d), of heads of d; with cos_format 2 and 3 a row per token"
    length = query.shape[0] if query.shape[1] == 1 else query.shape[1]
    if cos_format < 2 and positions.shape != (length,):
        return f"position_ids of shape {positions.shape}", f"({length},): one per sample of one token, else per token"
    return ints(positions, "position_ids") or floats(query, "query")


def _whole_heads(signature, cuts, sizes, **_):
    if "h" in cuts and sizes["h"] % (cuts["h"] * sizes["d"]):
        what = f"splits the hidden dim {cuts['h']} ways, but there are {sizes['h'] // sizes['d']} heads"
        return what, "A head stays on one rank: its pairs are turned together"
    return None


@op(
    lambda shapes, **_: "bsh,bsh,md,md,p->bsh,bsh" if len(shapes[0]) == 3 else "bskq,bskd,md,md,p->bskq,bskd",
    name="TurnedPair",
    attrs={"cos_format": integer(0, 3)},
    check=_check_positions,
    dtype=(0, 1),
    axes="hkb",
    whole="sqdmp",
    restrict=_whole_heads,
    strategy_labels=lambda signature: (*signature.ins[:4], "b"),
    offset="b",
    flops=4,
    example=(
        case((4, 1, 16), (4, 1, 16), (9, 2), (9, 2), (4,), ints={4: 9}),
        case((4, 3, 8), (4, 3, 8), (9, 2), (9, 2), (3,), ints={4: 9}, cos_format=1),
        case((4, 2, 4, 6), (4, 2, 4, 2), (8, 2), (8, 2), (4,), ints={4: 9}, cos_format=2),
    ),
)
def turned_pair(query, key, cos, sin, position_ids, *, cos_format=0, offset=0):
    """Query and key with the pairs of their heads turned by their positions.

    query, key: (b, s, heads d), or of fewer key heads (b, s, n, heads d / n), (b, s, n, d); cos, sin: (positions, d),
    whose rows position_ids, (b,) or (s,) ints, names; cos_format 2, 3: (b s, d), a row per token -> as query and key
    """
    b, s = query.shape[:2]
    if cos_format < 2:
        places = position_ids[offset : offset + b, None] if s == 1 else position_ids[None]
        if places.size and (places.min() < 0 or places.max() >= len(cos)):
            what = f"position_ids from {places.min()} to {places.max()}"
            raise ShapeError(what, where="ApplyRotaryPosEmb", allowed=f"From 0 to {len(cos) - 1}: rows of cos")
        cos, sin = cos[places], sin[places]
    else:
        cos, sin = (x.reshape(-1, s, x.shape[-1])[offset : offset + b] for x in (cos, sin))
    made = []
    for x in (query, key):
        heads = x.reshape(b, s, -1, cos.shape[-1])
        turned = rotary_position_embedding.fn(heads, cos[:, :, None], sin[:, :, None], mode=cos_format % 2)
        made.append(turned.reshape(x.shape).astype(x.dtype, copy=False))
    return tuple(made)


@form(turned_pair, "ApplyRotaryPosEmb")
def _(self, query, key, cos, sin, position_ids, *, cos_format=0):
    """Query and key turned by their positions.  query: (b, s, heads d), key: (b, s, its heads d), cos, sin: (positions,
    d), position_ids: (b,) or (s,) ints -> as query, as key. See `turned_pair`.

    cos_format  0: pairs are elements i and i + d / 2 of a head, 1: 2i and 2i + 1; 2 and 3: the same, with cos and sin
                (b s, d), a row per token
    Strategy: ((dp, 1, mp), (dp, 1, mp), (1, 1), (1, 1), (dp,)). Rule: MindSpore, apply_rotary_pos_emb_info.
    """
    inner, cuts = primitive_for(self, turned_pair), self.in_strategy
    shapes = tuple(query.shape), tuple(key.shape)
    if any(len(s) != 3 for s in shapes) or len(cos.shape) != 2:
        what = f"query {shapes[0]}, key {shapes[1]}, cos {tuple(cos.shape)}"
        raise ShapeError(what, where=self.name, allowed="(b, s, heads d), (b, s, heads d) and (positions, d)")
    if cuts is not None and [len(c) for c in cuts] != [3, 3, 2, 2, 1]:
        allowed = "((dp, 1, mp), (dp, 1, mp), (1, 1), (1, 1), (dp,))"
        raise StrategyError(f"strategy {shorten(cuts)}", where=self.name, allowed=allowed)
    if shapes[0] != shapes[1]:
        d = cos.shape[1]
        heads = shapes[1][2] // d
        if not heads or shapes[1][2] % d or shapes[0][2] % shapes[1][2]:
            what = f"query {shapes[0]}, key {shapes[1]} for heads of {d}"
            raise ShapeError(what, where=self.name, allowed="A multiple of the key's heads, each of the size of cos")
        query, key = (reshape(x, (*s[:2], heads, s[2] // heads)) for x, s in zip((query, key), shapes, strict=True))
        inner.in_strategy = cuts and ((*cuts[0], 1), (*cuts[1], 1), *cuts[2:])
    made = turned_pair.call((query, key, cos, sin, position_ids), {"cos_format": self.given["cos_format"]}, inner)
    return tuple(x if tuple(x.shape) == s else reshape(x, s) for x, s in zip(made, shapes, strict=True))


refuse_gradient(turned_pair, hint="For training use ops.rotary_position_embedding")
