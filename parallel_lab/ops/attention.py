"""Scaled dot-product attention, fused, and the causal mask of one that is taken apart.

    softmax(scale * q k^T [+ mask]) v      scale: 1 / sqrt(d)
    q: (b, h, s, d), k: (b, h, t, d), v: (b, h, t, e) -> (b, h, s, e)

Samples and heads are independent: b and h may be split with no message, and so may rows of q (s) and columns of v (e).
Every query looks at all keys, so t stays whole in the fused operator, as d does. `AttentionExpand`, in the catalogue,
is the same made of MatMul, CausalMask, SoftmaxExpand and MatMul; there t may be split.

The fused operator never holds the (b, h, s, t) weights of all samples: it works on a few samples at a time, and its
gradient computes them again (as in Dao et al. 2022, here per sample). That is also faster, because the few stay in the
cache.
"""

from __future__ import annotations

import math

import numpy as np

from ..base.checks import choice, number
from ..base.dtypes import promoted
from .kernels.threads import spread_over_threads, thread_count
from .machine.registry import case, gradient, op
from .machine.signature import letters

# MindSpore's names of input layouts (FlashAttentionScore): heads before positions, or after
LAYOUTS = {"BNSD": "bhsd,bhtd,bhte->bhse", "BSND": "bshd,bthd,bthe->bshe"}
CHUNK_BYTES = 1 << 20  # of weights at a time: they stay in the second cache
THREAD_FLOPS = 100_000_000  # a thread costs 0.1 ms to start: not for less than 2 ms of work


def operand_fault(operands, *, input_layout="BNSD", **_):
    """The fault of q, k or v that is not a float with 4 dims, or None."""
    for name, x in zip(("q", "k", "v"), operands, strict=False):
        if len(x.shape) != 4 or x.dtype.kind != "f":
            return f"{name} is {x.dtype} of shape {x.shape}", f"Floats with 4 dims, {input_layout}"


def _check_masked(operands, **attrs):
    mask = operands[3]
    if mask.dtype.kind != "f" or not 2 <= len(mask.shape) <= 4:
        hint = "For a mask of True and False: ops.select(mask, 0.0, float('-inf'))" if mask.dtype.kind == "b" else ""
        given = f"mask is {mask.dtype} of shape {mask.shape}"
        return given, "Floats that are added, (s, t) or up to (b, h, s, t)", hint
    return operand_fault(operands[:3], **attrs)


def _labels(shapes, *, input_layout, **_):
    return LAYOUTS[input_layout]


def _masked_labels(shapes, *, input_layout, **_):
    q, k, _, mask = shapes
    heads_first = input_layout == "BNSD"
    full = (q[0], q[1 if heads_first else 2], q[2 if heads_first else 1], k[2 if heads_first else 1])
    dims = list(zip("bhst", full, strict=True))[4 - len(mask) :]
    labels = "".join("1" if n == 1 and extent != 1 else c for n, (c, extent) in zip(mask, dims, strict=True))
    ins, out = LAYOUTS[input_layout].split("->")
    return f"{ins},{labels}->{out}"


def _heads_first(x, input_layout):
    return x if input_layout == "BNSD" else x.swapaxes(1, 2)


class _Problem:
    """One call on arrays: heads-first views of the operands, and the weights of a few samples at a time."""

    def __init__(self, q, k, v, mask, is_causal, scale, input_layout, offset):
        self.q, self.k, self.v = (_heads_first(x, input_layout) for x in (q, k, v))
        self.dtype = np.result_type(q, k, v)
        self.scale = np.asarray(1 / math.sqrt(q.shape[3]) if scale is None else scale, self.dtype)
        b, h, s, _ = self.q.shape
        t = self.k.shape[2]
        self.mask = (
            None if mask is None else np.broadcast_to(mask.reshape((1,) * (4 - mask.ndim) + mask.shape), (b, h, s, t))
        )
        self.causal = None
        if is_causal:
            # row i of this slice is row offset + i of all, and looks at the keys 0 to offset + i
            later = np.arange(t) > np.arange(offset, offset + s)[:, None]
            self.causal = np.where(later, np.asarray(-np.inf, self.dtype), np.asarray(0, self.dtype))
        self.samples = max(1, CHUNK_BYTES // max(1, h * s * t * self.dtype.itemsize))
        self.flops = 4 * b * h * s * t * q.shape[3]

    def chunks(self):
        return [slice(i, i + self.samples) for i in range(0, len(self.q), self.samples)]

    def each(self, work):
        """Call work(chunk) for every chunk of samples, in threads where several are in use and it is worth it."""
        chunks = self.chunks()
        threads = min(len(chunks), thread_count()) if self.flops >= THREAD_FLOPS else 1

        def part(number):
            for chunk in chunks[number::threads]:
                work(chunk)

        spread_over_threads(part, threads)

    def exponentials(self, chunk):
        """exp(score - largest score of the row) and their sums.  -> (n, h, s, t), (n, h, s, 1)."""
        scores = np.matmul(self.q[chunk] * self.scale, self.k[chunk].swapaxes(-1, -2))
        if self.causal is not None:
            scores += self.causal
        if self.mask is not None:
            scores += self.mask[chunk]
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        return scores, (scores @ np.ones(scores.shape[-1], scores.dtype))[..., None]


def _attention(q, k, v, mask, *, is_causal, scale, input_layout, offset):
    problem = _Problem(q, k, v, mask, is_causal, scale, input_layout, offset)
    out = np.empty((*q.shape[:3], v.shape[3]), problem.dtype)
    view = _heads_first(out, input_layout)

    def work(chunk):
        scores, sums = problem.exponentials(chunk)
        np.divide(np.matmul(scores, problem.v[chunk]), sums, out=view[chunk])

    problem.each(work)
    return out


def _gradients(g, out, q, k, v, mask, *, is_causal, scale, input_layout, offset, of_mask=False):
    """Gradients for q, k, v (and mask)."""
    problem = _Problem(q, k, v, mask, is_causal, scale, input_layout, offset)
    arrays = [np.empty(x.shape, problem.dtype) for x in (q, k, v)]
    of_q, of_k, of_v = (_heads_first(each, input_layout) for each in arrays)
    scores_grad = np.empty(problem.mask.shape, problem.dtype) if of_mask else None
    g, out = _heads_first(g, input_layout), _heads_first(out, input_layout)

    def work(chunk):
        weights, sums = problem.exponentials(chunk)
        weights /= sums
        of_v[chunk] = np.matmul(weights.swapaxes(-1, -2), g[chunk])
        grad = np.matmul(g[chunk], problem.v[chunk].swapaxes(-1, -2))
        # the sum over keys of weight * its gradient is that of out * g over columns, which are fewer
        grad -= np.vecdot(g[chunk], out[chunk])[..., None]
        grad *= weights
        if of_mask:
            scores_grad[chunk] = grad
        grad *= problem.scale
        of_q[chunk] = np.matmul(grad, problem.k[chunk])
        of_k[chunk] = np.matmul(grad.swapaxes(-1, -2), problem.q[chunk])

    problem.each(work)
    if of_mask:
        aligned = (1,) * (4 - mask.ndim) + mask.shape
        summed = tuple(i for i, n in enumerate(aligned) if n == 1)
        arrays.append(scores_grad.sum(axis=summed).reshape(mask.shape))
    return tuple(arrays)


def _rows_of_q(shapes, attrs):
    return shapes[2][2 if attrs["input_layout"] == "BNSD" else 1]


def attention_work(s):
    """Multiplications and additions of both products, by the sizes of the dims."""
    return 4 * s.b * s.h * s.s * s.t * max(s.d, s.e)


SCALE = number() | None
_FACTS = {
    "attrs": {"scale": SCALE, "input_layout": choice(*LAYOUTS)},
    "whole": "td",
    "offset": "s",
    "flops": attention_work,
}


@op(
    _labels,
    name="ScaledDotProductAttention",
    instead="AttentionExpand",
    check=operand_fault,
    example=(
        case((4, 2, 8, 6), (4, 2, 5, 6), (4, 2, 5, 4)),
        case((2, 2, 8, 4), (2, 2, 8, 4), (2, 2, 8, 4), is_causal=True),
        case((2, 8, 4, 4), (2, 8, 4, 4), (2, 8, 4, 2), is_causal=True, scale=0.3, input_layout="BSND"),
    ),
    **_FACTS,
)
def scaled_dot_product_attention(q, k, v, *, is_causal=False, scale=None, input_layout="BNSD", offset=0):
    """softmax(scale * q k^T) v.  q: (b, h, s, d), k: (b, h, t, d), v: (b, h, t, e) -> (b, h, s, e).

    is_causal     row i of q looks at the keys 0 to i only
    scale         None: 1 / sqrt(d)
    input_layout  "BNSD" as above, or "BSND": (b, s, h, d) and so on, which saves the transposes after a projection
    """
    return _attention(q, k, v, None, is_causal=is_causal, scale=scale, input_layout=input_layout, offset=offset)


@op(result_shape=(2, 3, 4), part_size=_rows_of_q)
def attention_grad(g, out, q, k, v, *, is_causal, scale, input_layout, offset=0):
    """Gradients for q, k and v.  g, out: (b, h, s, e), q, k, v -> like q, k, v."""
    return _gradients(g, out, q, k, v, None, is_causal=is_causal, scale=scale, input_layout=input_layout, offset=offset)


@scaled_dot_product_attention.vjp
def _(g, out, q, k, v, **attrs):
    return attention_grad(g, out, q, k, v, **attrs)


@op(
    _masked_labels,
    name="ScaledDotProductAttentionWithMask",
    check=_check_masked,
    dtype=lambda dtypes, **_: promoted(dtypes[:3]),
    example=(
        case((4, 2, 8, 6), (4, 2, 5, 6), (4, 2, 5, 4), (8, 5)),
        case((2, 8, 4, 4), (2, 6, 4, 4), (2, 6, 4, 2), (2, 1, 1, 6), input_layout="BSND"),
        case((2, 2, 4, 4), (2, 2, 4, 4), (2, 2, 4, 4), (2, 2, 4, 4), is_causal=True),
    ),
    **_FACTS,
)
def scaled_dot_product_attention_with_mask(
    q, k, v, mask, *, is_causal=False, scale=None, input_layout="BNSD", offset=0
):
    """softmax(scale * q k^T + mask) v.

    q: (b, h, s, d), k: (b, h, t, d), v: (b, h, t, e), mask: broadcast to (b, h, s, t) -> (b, h, s, e)
    mask  numbers added to the scores; -inf where a query must not look at a key. A row without any key gives NaN
    Attributes: as `scaled_dot_product_attention`. The mask is in the order b, h, s, t whatever the input layout; dims
    of size 1 are not split.
    """
    return _attention(q, k, v, mask, is_causal=is_causal, scale=scale, input_layout=input_layout, offset=offset)


def _masked_shapes(shapes, *, of_mask, **_):
    return shapes[2 : 6 if of_mask else 5]


@op(result_shape=_masked_shapes, part_size=_rows_of_q, dtype=lambda dtypes, **_: promoted(dtypes[2:5]))
def masked_attention_grad(g, out, q, k, v, mask, *, is_causal, scale, input_layout, of_mask, offset=0):
    """The same with, if `of_mask`, the gradient for the mask.  g, out: (b, h, s, e), others -> like them."""
    attrs = {"is_causal": is_causal, "scale": scale, "input_layout": input_layout, "offset": offset}
    return _gradients(g, out, q, k, v, mask, of_mask=of_mask, **attrs)


@scaled_dot_product_attention_with_mask.vjp
def _(g, out, q, k, v, mask, *, needs, **attrs):
    gradients = masked_attention_grad(g, out, q, k, v, mask, of_mask=needs[3], **attrs)
    return gradients if needs[3] else (*gradients, None)


# ---- the mask alone ----


def _check_causal(operands):
    shape, dtype = operands[0].shape, operands[0].dtype
    if not 2 <= len(shape) <= 20 or dtype.kind != "f":
        return f"scores are {dtype} of shape {shape}", "Floats, (..., s, t)"


def _causal_labels(shapes):
    names = letters(len(shapes[0]) - 2)
    return f"{names}st->{names}st"


@op(_causal_labels, name="CausalMask", check=_check_causal, offset="st", example=(case((2, 2, 8, 8)), case((8, 8))))
def causal_mask(scores, *, offset=(0, 0)):
    """Scores with -1e30 for keys that come after the query; any dim may be split.  scores: (..., s, t) -> (..., s, t).

    -1e30 and not -inf: a slice may hold nothing else, and the difference to its maximum must be a number.
    """
    least = np.asarray(max(-1e30, float(np.finfo(scores.dtype).min)), scores.dtype)
    return np.where(_hidden(scores.shape, offset), least, scores)


def _hidden(shape, offset):
    (row, column), (s, t) = offset, shape[-2:]
    return np.arange(column, column + t) > np.arange(row, row + s)[:, None]


@gradient(causal_mask, part_size=lambda shapes, attrs: tuple(shapes[0][-2:]))
def causal_mask_grad(g, *, offset=(0, 0)):
    """Zeros as the gradients of keys that come after the query.  g: (..., s, t) -> (..., s, t)."""
    return np.where(_hidden(g.shape, offset), np.zeros((), g.dtype), g)
