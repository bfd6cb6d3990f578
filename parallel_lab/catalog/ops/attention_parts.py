"""Parts of attention: positions as turned pairs, and softmax and attention taken apart, for a key dim that is split.

    rotary_position_embedding(x (b, h, s, d), cos (1, 1, s, d), sin (1, 1, s, d)) -> (b, h, s, d)
    attention_expand    Mul, MatMul, CausalMask, SoftmaxExpand, MatMul: the fused operator is in `ops/attention.py`
    softmax_expand      ReduceMax, Sub, Exp, ReduceSum, Div

A split key dim costs an all_reduce of the maxima, one of the sums and one of the result. The dim of the pairs stays
whole.
"""

from __future__ import annotations

import math

import numpy as np

from ...base.checks import integer
from ...ops.activation import SOFTMAX
from ...ops.attention import SCALE, attention_work, causal_mask, operand_fault
from ...ops.elementwise import div, mul, sub
from ...ops.linalg import matmul
from ...ops.machine.composed import composed
from ...ops.machine.operand_checks import floats
from ...ops.machine.registry import case, op, unbroadcast
from ...ops.machine.signature import letters, same_labels
from ...ops.reduce import reduce_max, reduce_sum
from ...ops.unary import stop_gradient
from .elementary_functions import exp


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
