"""Matrix products."""

from __future__ import annotations

import math

import numpy as np

from ..base.checks import number
from ..base.errors import ShapeError, shorten
from .elementwise import add, float_result, mul
from .machine.opdef import SHAPE_ERRORS
from .machine.registry import case, gradient, op, unbroadcast
from .reduce import reduce_sum
from .shape import as_array, expand_dims, reshape, transpose
from .spellings import function, tensor_operand


def _labels(shapes, *, transpose_a, transpose_b):
    a, b = ("...km" if transpose_a else "...mk"), ("...nk" if transpose_b else "...kn")
    row, column = (len(shape) == 1 for shape in shapes)  # vectors, whose other dim the result has not
    return f"{'k' if row else a},{'k' if column else b}->...{'' if row else 'm'}{'' if column else 'n'}"


@op(
    _labels,
    name="MatMul BatchMatMul MatMulExt BatchMatMulExt",
    method="matmul(other)",
    operator="__matmul__",
    ufunc="matmul",
    numpy="dot",
    mint="matmul",
    axes="mkn",
    flops=2,
    example=(
        case((16, 8), (8, 24)),
        case((8, 16), (8, 24), transpose_a=True),
        case((16, 8), (24, 8), transpose_b=True),
        case((8, 16), (24, 8), transpose_a=True, transpose_b=True),
        case((8, 4, 2), (8, 2, 4)),
        case((8, 16, 2), (2, 4)),
        case((2, 4, 8, 2), (4, 4, 8), transpose_a=True, transpose_b=True),
        *(case((8,), (8,)), case((4, 16, 8), (8,)), case((8,), (4, 8, 16))),
    ),
)
def matmul(a, b, *, transpose_a=False, transpose_b=False):
    """Matrix product.  a: (..., m, k), b: (..., k, n) -> (..., m, n).

    Leading dims broadcast; transposed operands are stored (k, m) and (n, k); vectors (k,) are a row and a column.

    Strategies are in storage order. A split contraction dim k leaves partial sums: an all_reduce over k's ranks
    follows.
    """
    if transpose_a and a.ndim > 1:
        a = np.swapaxes(a, -1, -2)
    if transpose_b and b.ndim > 1:
        b = np.swapaxes(b, -1, -2)
    return np.matmul(a, b)


@matmul.vjp
def _(g, out, a, b, *, transpose_a, transpose_b, needs):
    row, column = len(a.shape) == 1, len(b.shape) == 1
    if row:
        g, a, transpose_a = expand_dims(g, -1 if column else -2), expand_dims(a, 0), False
    if column:
        g, b, transpose_b = expand_dims(g, -1), expand_dims(b, 1), False
    # a stored transposed takes the transposed gradient: (g b^T)^T = b g^T
    grad_a = grad_b = None
    if needs[0]:
        if transpose_a:
            grad_a = unbroadcast(matmul(b, g, transpose_a=transpose_b, transpose_b=True), a)
        else:
            grad_a = unbroadcast(matmul(g, b, transpose_b=not transpose_b), a)
    if needs[1]:
        if transpose_b:
            grad_b = unbroadcast(matmul(g, a, transpose_a=True, transpose_b=transpose_a), b)
        else:
            grad_b = unbroadcast(matmul(a, g, transpose_a=not transpose_a), b)
    return tuple(reshape(x, (-1,)) if v and x is not None else x for x, v in ((grad_a, row), (grad_b, column)))


@op("mk,k->m", name="Mv", mint="mv", flops=lambda s: 2 * s.m * s.k, example=case((16, 8), (8,)))
def mv(mat, vec):
    """Matrix times vector.  mat: (m, k), vec: (k,) -> (m,)."""
    return np.matmul(mat, vec)


@mv.vjp
def _(g, out, mat, vec):
    column = reshape(g, (-1, 1))
    return mul(column, vec), mv(transpose(mat, (1, 0)), g)


@op("i,j->ij", name="Outer Ger", also="ger", method="outer(vec2) ger(vec2)", mint="outer", example=case((16,), (8,)))
def outer(input, vec2):
    """All products of two vectors' elements.  input: (i,), vec2: (j,) -> (i, j)."""
    return np.multiply.outer(input, vec2)


@outer.vjp
def _(g, out, input, vec2):
    return mv(g, vec2), mv(transpose(g, (1, 0)), input)


# ---- distances ----


def _check_cdist(operands, *, p):
    shapes = [o.shape for o in operands]
    if not all(len(s) in (2, 3) and len(s) == len(shapes[0]) for s in shapes):
        return f"shapes {shapes[0]} and {shapes[1]}", "(b, p, m) and (b, r, m), or (p, m) and (r, m)"
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not p >= 0:
        return f"p={shorten(p)}", "A number, at least 0; infinity too"


def _cdist_labels(shapes, *, p):
    return "pm,rm->pr" if len(shapes[0]) == 2 else "bpm,brm->bpr"


def _apart(x1, x2):
    return x1[..., :, None, :] - x2[..., None, :, :]


@op(
    _cdist_labels,
    name="Cdist",
    check=_check_cdist,
    axes="bpr",
    whole="m",
    dtype=float_result,
    flops=lambda s: 3 * s.p * s.r * s.m * getattr(s, "b", 1),
    mint="cdist",
    example=(
        case((8, 4, 3), (8, 2, 3)),
        case((16, 3), (8, 3), p=1.0),
        case((8, 3), (16, 3), p=3.5),
        case((4, 2, 3), (4, 8, 3), p=math.inf),
    ),
)
def cdist(x1, x2, *, p=2.0):
    """Distances (sum of |difference|^p)^(1/p) of all rows; p 0: how many differ.

    x1: (b, p, m), x2: (b, r, m) -> (b, p, r); or without b. The rows' dim m stays whole.
    """
    size = np.abs(_apart(x1, x2))
    if p == 0:
        return np.count_nonzero(size, axis=-1).astype(size.dtype)
    if math.isinf(p):
        return size.max(axis=-1)
    return np.sqrt(np.square(size).sum(axis=-1)) if p == 2 else np.power(np.power(size, p).sum(axis=-1), 1 / p)


def _cdist_slope(out, x1, x2, p):
    """Derivative of every distance for every difference; 0 where there is none.  -> (..., p, r, m)."""
    apart, far = _apart(x1, x2), out[..., None]
    if p == 0:
        return np.zeros_like(apart)
    if math.isinf(p):
        return np.sign(apart) * (np.abs(apart) == far)
    safe = np.where(far == 0, np.ones((), far.dtype), far)
    return np.sign(apart) * np.power(np.abs(apart) / safe, p - 1, where=apart != 0, out=np.zeros_like(apart))


@gradient(cdist)
def cdist_grad(g, out, x1, x2, *, p):
    """Gradient for x1.  g, out: (b, p, r), x1: (b, p, m), x2: (b, r, m) -> like x1."""
    return (g[..., None] * _cdist_slope(out, x1, x2, p)).sum(axis=-2)


@gradient(cdist, "x2", shown="CdistGrad")
def cdist_grad_2(g, out, x1, x2, *, p):
    """Gradient for x2.  g, out: (b, p, r), x1: (b, p, m), x2: (b, r, m) -> like x2."""
    return -(g[..., None] * _cdist_slope(out, x1, x2, p)).sum(axis=-3)


# ---- in PyTorch's words ----


@function(mint="mm")
def mm(input, mat2):
    """Matrix product.  input: (m, k), mat2: (k, n) -> (m, n)."""
    return matmul(input, mat2)


@function(mint="dot")
def dot(input, other):
    """Sum of the products of two vectors' elements.  input, other: (n,) -> ()."""
    shapes = tuple(tuple(np.shape(each)) for each in (input, other))
    if len(shapes[0]) != 1 or shapes[0] != shapes[1]:
        raise ShapeError(f"shapes {shapes[0]} and {shapes[1]}", where="dot", allowed="Two vectors of one size")
    return reduce_sum(mul(input, other))


def _plus(input, product, beta, alpha):
    beta, alpha = (
        x if isinstance(x, (bool, int, float)) else number()("a sum of products", name, x, SHAPE_ERRORS)
        for name, x in (("beta", beta), ("alpha", alpha))
    )
    return add(input if beta == 1 else mul(input, beta), product if alpha == 1 else mul(product, alpha))


@function(method="addmm", mint="addmm")
def addmm(input, mat1, mat2, *, beta=1, alpha=1):
    """beta * input + alpha * mat1 @ mat2.  input: broadcast to (m, n), mat1: (m, k), mat2: (k, n) -> (m, n)."""
    return _plus(input, matmul(mat1, mat2), beta, alpha)


@function(method="addmv", mint="addmv")
def addmv(input, mat, vec, *, beta=1, alpha=1):
    """beta * input + alpha * mat @ vec.  input: broadcast to (m,), mat: (m, k), vec: (k,) -> (m,)."""
    return _plus(input, mv(mat, vec), beta, alpha)


@function(method="baddbmm", mint="baddbmm")
def baddbmm(input, batch1, batch2, beta=1, alpha=1):
    """beta * input + alpha * batch1 @ batch2.  input: broadcast to (b, m, n), batches: (b, m, k), (b, k, n)
    -> (b, m, n).
    """
    return _plus(input, bmm(batch1, batch2), beta, alpha)


@function(also="dense", mint="functional.linear")
def linear(input, weight, bias=None):
    """input @ weight^T + bias.  input: (..., k), weight: (n, k), bias: (n,) -> (..., n)."""
    rows = input if len(input.shape) > 1 else reshape(input, (1, -1))
    made = matmul(rows, tensor_operand("linear", "weight", weight), transpose_b=True)
    made = made if bias is None else add(made, bias)
    return made if len(input.shape) > 1 else reshape(made, (-1,))


@function(mint="bmm")
def bmm(input, mat2):
    """A product for every matrix of a batch.  input: (b, m, k), mat2: (b, k, n) -> (b, m, n)."""
    input, mat2 = as_array(input), as_array(mat2)
    a, b = tuple(input.shape), tuple(mat2.shape)
    if len(a) != 3 or len(b) != 3 or a[0] != b[0]:
        hint = "ops.matmul takes other numbers of dims"
        raise ShapeError(f"shapes {a} and {b}", where="bmm", allowed="(b, m, k) and (b, k, n)", hint=hint)
    return matmul(input, mat2)


@function(mint="einsum")
def einsum(equation, *operands):
    """Products and sums of one or two tensors by labels: `einsum("bik,bkj->bij", x, y)`.  operands -> as labelled.

    Labels that the result lacks are summed over. Without "->" the result has the labels that occur once, in the order
    of the alphabet. Made of reduce_sum, transpose and matmul, and of reshape where several labels are one dim of a
    matrix. Not taken: "...", a label twice in one tensor.
    """
    listed = len(operands) == 1 and isinstance(operands[0], (tuple, list))
    operands = [as_array(x) for x in (operands[0] if listed else operands)]
    ins, out = _equation(equation, operands)
    if len(operands) == 1:
        return _ordered(*_summed(operands[0], ins[0], out), out)
    (a, left), (b, right) = _summed(operands[0], ins[0], out + ins[1]), _summed(operands[1], ins[1], out + ins[0])
    size = {**dict(zip(left, a.shape, strict=True)), **dict(zip(right, b.shape, strict=True))}
    batch = "".join(c for c in left if c in right and c in out)
    inner = "".join(c for c in left if c in right and c not in out)
    rows, columns = ("".join(c for c in labels if c not in batch + inner) for labels in (left, right))

    def matrices(x, labels, first, second):
        shape = tuple(size[c] for c in batch) + tuple(math.prod(size[c] for c in part) for part in (first, second))
        return _shaped(_ordered(x, labels, batch + first + second), shape)

    product = matmul(matrices(a, left, rows, inner), matrices(b, right, inner, columns))
    made = batch + rows + columns
    return _ordered(_shaped(product, tuple(size[c] for c in made)), made, out)


def _equation(equation, operands):
    """(labels of each operand, labels of the result) of an equation that fits the operands. Raises ShapeError."""

    def refuse(what, allowed, hint=""):
        raise ShapeError(f"{what} in {shorten(equation)}", where="einsum", allowed=allowed, hint=hint)

    text = equation.replace(" ", "") if isinstance(equation, str) else ""
    left, arrow, out = text.partition("->")
    ins = left.split(",")
    if not left.replace(",", "").isalpha() or (out and not out.isalpha()):
        hint = "Write out the dims that '...' stands for" if "..." in text else ""
        refuse("the labels", "Letters, one per dim, as 'ij,jk->ik'", hint)
    if len(ins) != len(operands) or len(ins) > 2:
        hint = "Take the tensors two at a time" if len(operands) > 2 else ""
        what = f"{len(operands)} tensors for {len(ins)} groups of labels"
        refuse(what, "One or two tensors, with a group of labels each", hint)
    size = {}
    for labels, x in zip(ins, operands, strict=True):
        if len(labels) != len(x.shape) or len(set(labels)) < len(labels):
            refuse(f"labels {labels!r} for a tensor of shape {tuple(x.shape)}", "One label per dim, each once")
        for label, n in zip(labels, x.shape, strict=True):
            if size.setdefault(label, n) != n:
                refuse(f"label {label!r} is {size[label]} and {n}", "One size per label")
    if not arrow:
        out = "".join(sorted(c for c in size if left.count(c) == 1))
    if len(set(out)) < len(out) or not set(out) <= set(size):
        refuse(f"the result's labels {out!r}", "Labels of the tensors, each once")
    return ins, out


def _summed(x, labels, wanted):
    """x summed over the labels that are not wanted, and the labels that remain."""
    gone = tuple(i for i, c in enumerate(labels) if c not in wanted)
    return (reduce_sum(x, gone) if gone else x), "".join(c for c in labels if c in wanted)


def _ordered(x, labels, wanted):
    return x if labels == wanted else transpose(x, tuple(labels.index(c) for c in wanted))


def _shaped(x, shape):
    return x if tuple(x.shape) == shape else reshape(x, shape)
