"""Gradients that PyTorch computes by formulas which read operands in another order, or more often, than our rules.

Under the policy "torch" DTensors take these, so that what is sent is what PyTorch sends: an operand is moved each time
that it is read. Values are those of our rules, also where elements are equal. Source: PyTorch 2.14, derivatives.yaml
(a gradient for the second operand comes first) and FunctionsManual.cpp; compared with what its DTensors send.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...base.errors import LayoutError
from ...layout.mesh_layout import MeshLayout, Replicate, Shard, StridedShard
from ...ops.elementwise import div, mul, neg, power, unbroadcast
from ...ops.linalg import matmul
from ...ops.logic import equal, greater, isnan, less, logical_and, logical_or, select
from ...ops.machine.opdef import OPS, OpDef
from ...ops.reduce import reduce_max, reduce_mean, reduce_min, reduce_sum, reduced_dims
from ...ops.shape import reshape, transpose
from .dtensor_parts import Parts, dual
from .dtensor_surroundings import policy_var

Formula = Callable[
    ..., Any
]  # (g, out, operands, which of them need a gradient, the rule, **attributes) -> their gradients


def second_first(
    g: Any, out: Any, operands: Sequence[Any], needed: Sequence[bool], rule: Formula, **_: Any
) -> list[Any]:
    """Our own rule, for one operand after the other, the last one first."""
    found: list[Any] = [None] * len(operands)
    for i in reversed(range(len(operands))):
        if needed[i]:
            found[i] = rule(tuple(at == i for at in range(len(operands))))[i]
    return found


def of_div(g: Any, out: Any, operands: Sequence[Any], needed: Sequence[bool], rule: Formula, **_: Any) -> list[Any]:
    """x / y; of a number x, x times the reciprocal, whose gradient reads the result."""
    x, y = operands
    if not isinstance(x, Parts):
        return [None, neg(mul(mul(g, out), div(out, x)))] if x.item() else rule(needed)
    of_y = unbroadcast(mul(neg(g), div(div(x, y), y)), y) if needed[1] else None
    return [unbroadcast(div(g, y), x) if needed[0] else None, of_y]


def of_power(g: Any, out: Any, operands: Sequence[Any], needed: Sequence[bool], rule: Formula, **_: Any) -> list[Any]:
    """x to the power of a number"""
    x, exponent = operands
    if isinstance(exponent, Parts):
        return rule(needed)
    return [mul(g, mul(power(x, exponent - 1), exponent)), None]


def of_larger(beyond: Formula, below: Formula) -> Formula:
    """The larger (the smaller) of x and y: both are compared twice for each gradient. Where equal, it goes to x."""

    def formula(
        g: Any, out: Any, operands: Sequence[Any], needed: Sequence[bool], rule: Formula, **_: Any
    ) -> list[Any]:
        x, y = operands
        of_y = of_x = None
        if needed[1]:
            of_y = unbroadcast(select(equal(x, y), 0.0, select(beyond(x, y), 0.0, g)), y)
        if needed[0]:
            of_x = unbroadcast(select(equal(x, y), g, select(below(x, y), 0.0, g)), x)
        return [of_x, of_y]

    return formula


def as_pytorch(x: Any) -> bool:
    """Whether an operator on x is to send what PyTorch sends: x is a DTensor, under the policy "torch"."""
    return isinstance(x, Parts) and not x.alone and policy_var.get() == "torch"


def by_rows(x: Any, product: Callable[[Any], Any]) -> Any:
    """A product of the rows of x, as one matrix: PyTorch's way for more dims, and for one; None where they cannot be
    joined where they lie.  x: (..., k) -> (..., n).
    """
    if len(x.shape) == 2:
        return product(x)
    try:
        made = product(reshape(x, (math.prod(x.shape[:-1]), x.shape[-1])))
        return reshape(made, (*x.shape[:-1], made.shape[-1]))
    except LayoutError:
        return None


def product_of_rows(a: Any, b: Any, **attrs: Any) -> Any:
    """The product of (..., k) with a matrix."""
    if attrs["transpose_a"] or len(a.shape) < 3 or len(b.shape) != 2:
        return None
    return by_rows(a, lambda rows: matmul(rows, b, **attrs))


def of_extreme(
    g: Any, out: Any, operands: Sequence[Any], needed: Sequence[bool], rule: Formula, *, axis: Any, keep_dims: bool
) -> list[Any]:
    """The largest element (the smallest): equal ones, which share the gradient, are counted; of all elements PyTorch
    also asks which are no numbers.
    """
    (x,) = operands
    gone = reduced_dims(axis, x.ndim)
    if len(gone) == x.ndim:
        no_numbers = logical_and(isnan(x), isnan(out))
        mask = logical_or(equal(x, out), no_numbers)
        return [mul(mask, div(g, reduce_sum(mask)))]
    kept = tuple(1 if dim in gone else size for dim, size in enumerate(x.shape))
    mask = equal(reshape(out, kept), x)
    return [mul(div(reshape(g, kept), reduce_sum(mask, gone, keep_dims=True)), mask)]


READS = {"layer_normalization": frozenset({2})}  # operands that PyTorch's rules are given, and do not compute with
FLAT = ("floor", "ceil", "round_", "trunc", "sign")  # their gradients are zeros, where we give nothing


def place_of_extreme(name: str, reduction: Any) -> Callable[..., Any]:
    """The number of the extreme along a split dim: each rank's extreme and its number are gathered, axis by axis."""

    def places(x: Any, *, axis: int, keep_dims: bool, **attrs: Any) -> Any:
        axis, whole = axis % len(x.shape), OPS[name]
        if x.layout.pending:
            reduced = x.redistribute(dual(x.layout), reason=f"operand 0 of {whole.class_name}")
            return whole(reduced, axis=axis, keep_dims=keep_dims, **attrs)
        split = [i for i, p in enumerate(x.placements) if getattr(p, "dim", None) == axis]
        sizes = [x.mesh.shape[i] for i in split]
        ranks = math.prod(sizes)
        if not split or x.shape[axis] % ranks or any(x.placements[i] != Shard(axis) for i in split):
            return None
        # pieces lie as if the last of these axes had cut them first: the first one's ranks are neighbours then
        cuts = {i: StridedShard(axis, f) if (f := math.prod(sizes[n:])) > 1 else Shard(axis)
                for n, i in enumerate(split, 1)}  # fmt: skip
        others = [replace(p, dim=p.dim + 1) if getattr(p, "dim", -1) > axis else p for p in x.placements]
        layout = MeshLayout(x.mesh, tuple(cuts.get(i, p) for i, p in enumerate(others)))
        shape = (*x.shape[:axis], ranks, x.shape[axis] // ranks, *x.shape[axis + 1 :])
        parts = {rank: part.reshape(layout.local_shape(shape, rank)) for rank, part in x._locals.items()}
        pieces = x.detach().like(parts, layout, shape)
        both = [reduction(pieces, axis + 1), whole(pieces, axis=axis + 1, keep_dims=False, **attrs)]
        for i in split:
            to = [Replicate() if n == i else p for n, p in enumerate(both[0].placements)]
            both = [y.redistribute(to, reason=f"operand 0 of {whole.class_name}") for y in both]
        turned = (*range(axis), *reversed(range(axis, axis + len(sizes))),
                  *range(axis + len(sizes), len(x.shape) - 1 + len(sizes)))  # fmt: skip
        apart = (*x.shape[:axis], *reversed(sizes), *x.shape[axis + 1 :])
        if len(sizes) > 1:
            both = [reshape(transpose(reshape(y, apart), turned), y.shape) for y in both]
        found, number = both
        piece = whole(found, axis=axis, keep_dims=True, **attrs)
        first = OPS["gather_elements"](number, axis, piece) + piece * shape[axis + 1]
        return first if keep_dims else reduce_max(first, axis)

    return places


def rms_of_means(x: Any, gamma: Any, *, epsilon: float) -> Any:
    """x by the root of the mean of its squares, and that root's inverse: PyTorch's rms_norm has no rule of its own."""
    root = OPS["rsqrt"](reduce_mean(power(x, 2.0), tuple(range(-len(gamma.shape), 0)), keep_dims=True) + epsilon)
    return mul(mul(x, root), gamma), root


# operators that PyTorch makes of others; None: not here
MADE_OF = {
    "matmul": product_of_rows,
    "rms_norm_fused": rms_of_means,
    "argmax_of_whole": place_of_extreme("argmax_of_whole", reduce_max),
    "argmin_of_whole": place_of_extreme("argmin_of_whole", reduce_min),
}
FORMULAS: dict[str, Formula] = {
    "matmul": second_first,
    "mul": second_first,
    "div": of_div,
    "power": of_power,
    "maximum": of_larger(greater, less),
    "minimum": of_larger(less, greater),
    "reduce_max": of_extreme,
    "reduce_min": of_extreme,
}


def of_rows(
    g: Any, out: Any, operands: Sequence[Any], needed: Sequence[bool], rule: Formula, **attrs: Any
) -> Sequence[Any]:
    """A product with a matrix in JAX: the matrix's gradient sums over all rows in one product, ours dim by dim."""
    a, b = operands
    if needed[1] and len(b.shape) == 2 and sum(map(bool, a.layout.dims(len(a.shape))[:-1])) > 1:
        raise LayoutError("rows split along several dims", where="gradient of matmul", allowed="Along one dim")
    return rule(tuple(needed))


def formula_of(op: OpDef, policy: str) -> Formula | None:
    """How PyTorch, or JAX, computes the gradients of an operator, where that differs and its messages are asked for."""
    return (
        of_rows if policy == "gspmd" and op.name == "matmul" else FORMULAS.get(op.name) if policy == "torch" else None
    )
