"""WKV: the mean of all values so far, with weights that decay, one position after another (Peng et al. 2023, "RWKV").

    o_t = (sum of exp((t - 1 - i) w + k_i) v_i over i < t, and exp(u + k_t) v_t) / (the same sum without v)

Sums are kept as exp(m) p and exp(m) q with the largest exponent m so far, so that nothing overflows. Samples and the
hidden dim may be split, positions may not. Rule: MindSpore, wkv_info.
"""

from __future__ import annotations

import numpy as np

from ...ops.elementwise import mul
from ...ops.machine.operand_checks import floats
from ...ops.machine.registry import case, op


def _shares(first, second):
    """exp of two exponents, over that of the larger; and the larger."""
    largest = np.maximum(first, second)
    return np.exp(first - largest), np.exp(second - largest), largest


@op(
    "h,h,bth,bth,bh,bh,bh->bth,bh,bh,bh",
    name="WKV",
    check=lambda operands: floats(operands[2], "k"),
    axes="bh",
    whole="t",
    flops=12,
    example=case((8,), (8,), (4, 3, 8), (4, 3, 8), (4, 8), (4, 8), (4, 8), low=0.1),
)
def wkv(w, u, k, v, m, p, q):
    """Weighted means of the values, and the sums after the last position.

    w: (h,), what an exponent grows by per position, below 0 in a network; u: (h,), added to that of a position itself;
    k, v: (b, t, h); m, p, q: (b, h), the exponent of the sums so far (-1e38: none), these with values, and without
    (zeros) -> (b, t, h), and the three after the last position, (b, h) each
    """
    made = np.empty_like(v)
    for t in range(k.shape[1]):
        old, own, _ = _shares(m, u + k[:, t])
        made[:, t] = (old * p + own * v[:, t]) / (old * q + own)
        old, own, m = _shares(w + m, k[:, t])
        p, q = old * p + own * v[:, t], old * q + own
    return made, m, p, q


@op(result_shape=(4, 5, 6, 7, 8, 9, 10))
def wkv_grad(*operands):
    """Gradients of `wkv`.  Those of its 4 results, its 7 operands -> like the operands."""
    g, gm, gp, gq, w, u, k, v, m, p, q = operands
    states = [(p, q, m)]
    for t in range(k.shape[1]):
        old, own, largest = _shares(w + m, k[:, t])
        p, q, m = old * p + own * v[:, t], old * q + own, largest
        states.append((p, q, m))
    of_w, of_u, of_k, of_v = (np.zeros_like(x) for x in (w, u, k, v))
    for t in reversed(range(k.shape[1])):
        p, q, m = states[t]
        old, own, _ = _shares(w + m, k[:, t])
        of_old, of_own = (gp * p + gq * q) * old, (gp * v[:, t] + gq) * own
        grows = w + m >= k[:, t]  # the largest exponent is the old one
        of_largest = gm - of_old - of_own
        of_old, of_own = of_old + np.where(grows, of_largest, 0), of_own + np.where(grows, 0, of_largest)
        of_w += of_old.sum(axis=0)
        of_k[:, t], of_v[:, t] = of_own, gp * own
        gp, gq, gm = gp * old, gq * old, of_old
        old, own, _ = _shares(m, u + k[:, t])  # and of the mean at t, where the largest exponent cancels
        below = old * q + own
        above = g[:, t] / below
        down = -above * (old * p + own * v[:, t]) / below
        of_own = (above * v[:, t] + down) * own
        of_u += of_own.sum(axis=0)
        of_k[:, t] += of_own
        of_v[:, t] += above * own
        gp, gq, gm = gp + above * old, gq + down * old, gm + (above * p + down * q) * old
    return of_w, of_u, of_k, of_v, gm, gp, gq


@wkv.vjp
def _(g, out, *operands):
    g = [mul(y, 0.0) if x is None else x for x, y in zip(g, out, strict=True)]
    return wkv_grad(*g, *operands)
