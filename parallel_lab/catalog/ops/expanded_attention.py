"""Softmax and attention taken apart, so that the dim they sum over may be split.

    attention_expand    Mul, MatMul, CausalMask, SoftmaxExpand, MatMul: the fused operator is in `ops/attention.py`
    softmax_expand      ReduceMax, Sub, Exp, ReduceSum, Div

A split key dim costs an all_reduce of the maxima, one of the sums and one of the result.
"""

from __future__ import annotations

import math

from ...ops.activation import SOFTMAX
from ...ops.attention import SCALE, attention_work, causal_mask, operand_fault
from ...ops.elementwise import div, mul, sub
from ...ops.linalg import matmul
from ...ops.machine.composed import composed
from ...ops.machine.registry import case
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
