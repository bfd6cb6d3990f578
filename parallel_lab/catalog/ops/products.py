"""Products of matrices, vectors and more, in the words of MindSpore and PyTorch, made of `matmul`."""

from __future__ import annotations

import math

import numpy as np

from ...base.checks import SHAPE_ERRORS, integer, is_int, number
from ...base.errors import ShapeError, shorten
from ...nn.tensor.dtensor_formulas import as_pytorch, by_rows
from ...ops.elementwise import add, mul, unbroadcast
from ...ops.linalg import matmul
from ...ops.machine.operand_checks import one_dim, refuse, some_dims
from ...ops.machine.registry import case, form, op
from ...ops.machine.signature import along_axis, letters
from ...ops.reduce import reduce_sum
from ...ops.shape import as_array, broadcast_to, reshape, transpose
from ...ops.spellings import function, tensor_operand
from .diagonals import eye
from .float_checks import NUMBER


@op("mk,k->m", name="Mv", flops=lambda s: 2 * s.m * s.k, example=case((16, 8), (8,)))
def mv(mat, vec):
    """Matrix times vector.  mat: (m, k), vec: (k,) -> (m,)."""
    return np.matmul(mat, vec)


@mv.vjp
def _(g, out, mat, vec):
    column = reshape(g, (-1, 1))
    return mul(column, vec), mv(transpose(mat, (1, 0)), g)


@op("i,j->ij", name="Outer Ger", also="ger", mint="outer", example=case((16,), (8,)))
def outer(input, vec2):
    """All products of two vectors' elements.  input: (i,), vec2: (j,) -> (i, j)."""
    return np.multiply.outer(input, vec2)


@outer.vjp
def _(g, out, input, vec2):
    return mv(g, vec2), mv(transpose(g, (1, 0)), input)


def _sum_labels(shapes, *, transpose_b):
    wanted = zip("mn", (shapes[1][0], shapes[2][not transpose_b]), strict=True)
    added = list(zip(list(wanted)[2 - len(shapes[0]) :], shapes[0], strict=True))
    return f"{''.join('1' if n == 1 != size else c for (c, size), n in added)},mk,{'nk' if transpose_b else 'kn'}->mn"


@op(
    _sum_labels,
    linear="input+a, input+b",
    flops=2,
    example=(case((8,), (4, 16), (16, 8)), case((4, 1), (4, 8), (6, 8), transpose_b=True)),
)
def plus_product(input, a, b, *, transpose_b=False):
    """input + a @ b at once, as PyTorch's DTensors.  input: broadcast to (m, n), a: (m, k), b: (k, n) -> (m, n)."""
    return input + np.matmul(a, b.T if transpose_b else b)


@plus_product.vjp
def _(g, out, input, a, b, *, transpose_b, needs):
    of_factors = matmul.vjp_fn(g, None, a, b, transpose_a=False, transpose_b=transpose_b, needs=needs[1:])
    return unbroadcast(g, input) if needs[0] else None, *of_factors


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


@function(mint="addmm")
def addmm(input, mat1, mat2, *, beta=1, alpha=1):
    """beta * input + alpha * mat1 @ mat2.  input: broadcast to (m, n), mat1: (m, k), mat2: (k, n) -> (m, n)."""
    if as_pytorch(mat1) and beta == alpha == 1 and len(mat1.shape) == len(mat2.shape) == 2 >= len(input.shape):
        return plus_product(input, mat1, mat2)
    return _plus(input, matmul(mat1, mat2), beta, alpha)


@function(mint="addmv")
def addmv(input, mat, vec, *, beta=1, alpha=1):
    """beta * input + alpha * mat @ vec.  input: broadcast to (m,), mat: (m, k), vec: (k,) -> (m,)."""
    return _plus(input, mv(mat, vec), beta, alpha)


@function(mint="baddbmm")
def baddbmm(input, batch1, batch2, beta=1, alpha=1):
    """beta * input + alpha * batch1 @ batch2.  input: broadcast to (b, m, n), batches: (b, m, k), (b, k, n)
    -> (b, m, n).
    """
    return _plus(input, bmm(batch1, batch2), beta, alpha)


@function(also="dense", mint="functional.linear")
def linear(input, weight, bias=None):
    """input @ weight^T + bias.  input: (..., k), weight: (n, k), bias: (n,) -> (..., n)."""
    weight = tensor_operand("linear", "weight", weight)
    if bias is not None and as_pytorch(input) and len(weight.shape) == 2 and len(bias.shape) == 1:
        made = by_rows(input, lambda rows: plus_product(bias, rows, weight, transpose_b=True))
        if made is not None:
            return made
    rows = input if len(input.shape) > 1 else reshape(input, (1, -1))
    made = matmul(rows, weight, transpose_b=True)
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


@function()
def kron(input, other):
    """Every element of `input` times all of `other`.  input: (m, ...), other: (n, ...) -> (m * n, ...)."""
    x, y = as_array(input), as_array(other)
    dims = max(len(x.shape), len(y.shape))
    a, b = ((1,) * (dims - len(each.shape)) + tuple(each.shape) for each in (x, y))
    spread = mul(
        reshape(x, tuple(n for size in a for n in (size, 1))), reshape(y, tuple(n for size in b for n in (1, size)))
    )
    return reshape(spread, tuple(m * n for m, n in zip(a, b, strict=True)))


# ---- vectors of three ----


def _check_cross(operands, *, dim):
    shapes = tuple(each.shape for each in operands)
    if shapes[0] != shapes[1] or not shapes[0]:
        return f"tensors of shape {shapes[0]} and {shapes[1]}", "Equal shapes"
    return one_dim("dim", dim, shapes[0]) or (
        None if shapes[0][dim] == 3 else (f"dim={dim} of a tensor of shape {shapes[0]}", "A dim with 3 elements")
    )


@op(
    lambda shapes, **_: "{0},{0}->{0}".format(letters(len(shapes[0]))),
    name="Cross",
    whole=lambda signature, *, dim: along_axis(signature, axis=dim),
    attrs={"dim": integer()},
    check=_check_cross,
    flops=3,
    example=(case((8, 3, 4), (8, 3, 4), dim=1), case((16, 3), (16, 3))),
)
def cross_product(x1, x2, *, dim=-1):
    """Vector products of three numbers along `dim`, which stays whole.  x1, x2: (..., 3, ...) -> (..., 3, ...)."""
    return np.array(np.cross(x1, x2, axis=dim), order="C")


@cross_product.vjp
def _(g, out, x1, x2, *, dim):
    return cross_product(x2, g, dim=dim), cross_product(g, x1, dim=dim)


@function(mint="cross")
def cross(input, other, dim=None):
    """Vector products along `dim` (None: the first with 3 elements).  input, other: (..., 3, ...) -> broadcast."""
    shapes = tuple(input.shape), tuple(other.shape)
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ShapeError(f"shapes {shapes[0]} and {shapes[1]}", where="cross", allowed="What broadcasts") from None
    given = [each if tuple(each.shape) == shape else broadcast_to(each, shape) for each in (input, other)]
    if dim is None and 3 not in shape:
        raise ShapeError(f"tensors of shape {shape}", where="cross", allowed="A dim with 3 elements")
    return cross_product(*given, dim=shape.index(3) if dim is None else dim)


# ---- products ----


@function(mint="addbmm")
def addbmm(input, batch1, batch2, *, beta=1, alpha=1):
    """beta * input + alpha * the sum of all products of a batch.  input: (m, n), (b, m, k), (b, k, n) -> (m, n)."""
    total = reduce_sum(bmm(batch1, batch2), 0)
    return add(input if beta == 1 else mul(input, beta), total if alpha == 1 else mul(total, alpha))


@function(also="tensor_dot")
def tensordot(x1, x2, axes):
    """Products summed over dims of both: the last `axes` of x1 and the first of x2, or those of a pair of tuples."""
    x1, x2 = (tensor_operand("tensordot", name, x) for name, x in (("x1", x1), ("x2", x2)))
    dims = [len(x1.shape), len(x2.shape)]
    if is_int(axes, 0, min(dims)):
        axes = tuple(range(dims[0] - axes, dims[0])), tuple(range(axes))
    pair = [each if isinstance(each, (tuple, list)) else (each,) for each in axes] if _is_pair(axes) else []
    if len(pair) != 2 or len(pair[0]) != len(pair[1]):
        allowed = f"An int from 0 to {min(dims)}, or two tuples of dims, equally long"
        raise ShapeError(f"axes={shorten(axes)}", where="tensordot", allowed=allowed)
    for x, each in zip((x1, x2), pair, strict=True):
        refuse("tensordot", some_dims("axes", tuple(each), tuple(x.shape)))
    names = letters(sum(dims))
    left, right = names[: dims[0]], list(names[dims[0] :])
    for i, j in zip(*pair, strict=True):
        right[j] = left[i]
    gone = {left[i] for i in pair[0]}
    return einsum(f"{left},{''.join(right)}->{''.join(c for c in [*left, *right] if c not in gone)}", x1, x2)


@function(mint="inner")
def inner(input, other):
    """Sums of products along the last dims.  input: (..., n), other: (... , n) -> (..., ...). Numbers multiply."""
    input, other = (tensor_operand("inner", name, x) for name, x in (("input", input), ("other", other)))
    if not input.shape or not other.shape:
        return mul(input, other)
    return tensordot(input, other, ((len(input.shape) - 1,), (len(other.shape) - 1,)))


@function()
def vecdot(x, y, *, axis=-1):
    """Sums of products of elements along `axis`.  x, y: broadcast to (..., n, ...) -> (..., ...)."""
    return reduce_sum(mul(x, y), integer()("vecdot", "axis", axis, SHAPE_ERRORS))


def _is_pair(value):
    return isinstance(value, (tuple, list)) and len(value) == 2


@function(mint="trace")
def trace(input):
    """Sum of the main diagonal.  input: (m, n) -> ()."""
    shape = tuple(input.shape)
    if len(shape) != 2:
        raise ShapeError(f"a tensor of shape {shape}", where="trace", allowed="A matrix")
    return reduce_sum(mul(input, eye(*shape, dtype=str(input.dtype))))


@function()
def addr(x, vec1, vec2, *, beta=1, alpha=1):
    """beta * x + alpha * outer(vec1, vec2).  x: broadcast to (m, n), vec1: (m,), vec2: (n,) -> (m, n)."""
    made = outer(as_array(vec1), as_array(vec2))
    beta, alpha = NUMBER("addr", "beta", beta), NUMBER("addr", "alpha", alpha)
    return add(x if beta == 1 else mul(x, beta), made if alpha == 1 else mul(made, alpha))


@form(matmul, "Dense", read=2)
def _(self, input, weight, bias=None):
    """A dense layer's product.  input: (..., k), weight: (n, k), bias: (n,) -> (..., n)."""
    out = self.run(input, weight, transpose_b=True)
    return out if bias is None else add(out, bias)
