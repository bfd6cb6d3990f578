"""Matrix products."""

from __future__ import annotations

import math

import numpy as np

from ..base.errors import ShapeError, shorten
from .elementwise import mul
from .machine.registry import case, op, unbroadcast
from .reduce import reduce_sum
from .shape import as_array, reshape, transpose
from .spellings import function


def _labels(shapes, *, transpose_a, transpose_b):
    a = "km" if transpose_a else "mk"
    b = "nk" if transpose_b else "kn"
    return f"...{a},...{b}->...mn"


@op(
    _labels,
    name="MatMul BatchMatMul",
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
    ),
)
def matmul(a, b, *, transpose_a=False, transpose_b=False):
    """Matrix product.  a: (..., m, k), b: (..., k, n) -> (..., m, n).

    Leading dims broadcast; transposed operands are stored (k, m) and (n, k).

    Strategies are in storage order. A split contraction dim k leaves partial sums: an all_reduce over k's ranks
    follows.
    """
    if transpose_a:
        a = np.swapaxes(a, -1, -2)
    if transpose_b:
        b = np.swapaxes(b, -1, -2)
    return np.matmul(a, b)


@matmul.vjp
def _(g, out, a, b, *, transpose_a, transpose_b, needs):
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
    return grad_a, grad_b


@op("mk,k->m", name="Mv", mint="mv", flops=lambda s: 2 * s.m * s.k, example=case((16, 8), (8,)))
def mv(mat, vec):
    """Matrix times vector.  mat: (m, k), vec: (k,) -> (m,)."""
    return np.matmul(mat, vec)


@mv.vjp
def _(g, out, mat, vec):
    column = reshape(g, (-1, 1))
    return mul(column, vec), mv(transpose(mat, (1, 0)), g)


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
