"""Gradients that PyTorch computes by formulas which read operands in another order, or more often, than our rules.

Under the policy "torch" DTensors take these, so that what is sent is what PyTorch sends: an operand is moved each time
that it is read. Values are those of our rules, also where elements are equal. Source: PyTorch 2.14, derivatives.yaml
(a gradient for the second operand comes first) and FunctionsManual.cpp; compared with what its DTensors send.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...base.errors import LayoutError
from ...layout.mesh_layout import Replicate, Shard
from ...ops.elementwise import div, mul, neg, power, unbroadcast
from ...ops.linalg import matmul
from ...ops.logic import equal, greater, less, logical_and, logical_or, select
from ...ops.machine.opdef import OPS, OpDef
from ...ops.reduce import reduce_max, reduce_min, reduce_sum, reduced_dims
from ...ops.shape import reshape
from .dtensor_parts import Parts
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
        no_numbers = logical_and(*map(OPS["isnan"], (x, out)))
        mask = logical_or(equal(x, out), no_numbers)
        return [mul(mask, div(g, reduce_sum(mask)))]
    kept = tuple(1 if dim in gone else size for dim, size in enumerate(x.shape))
    mask = equal(reshape(out, kept), x)
    return [mul(div(reshape(g, kept), reduce_sum(mask, gone, keep_dims=True)), mask)]


READS = {"layer_normalization": frozenset({2})}  # operands that PyTorch's rules are given, and do not compute with
FLAT = ("floor", "ceil", "round_", "trunc", "sign")  # their gradients are zeros, where we give nothing


def place_of_extreme(name: str, reduction: Any) -> Callable[..., Any]:
    """The number of the extreme along a split dim: each rank's extreme and its number are gathered."""

    def places(x: Any, *, axis: int, keep_dims: bool, **attrs: Any) -> Any:
        axis %= len(x.shape)
        splits = [(p, n) for p, n in zip(x.placements, x.mesh.shape, strict=True) if getattr(p, "dim", None) == axis]
        ranks = splits[0][1] if splits else 1
        if [p for p, _ in splits] != [Shard(axis)] or x.shape[axis] % ranks or x.layout.pending:
            return None
        whole, each = OPS[name], x.shape[axis] // ranks
        pieces = reshape(x, (*x.shape[:axis], ranks, each, *x.shape[axis + 1 :]))
        number = whole(pieces, axis=axis + 1, keep_dims=False, **attrs)
        copied = [Replicate() if p == Shard(axis) else p for p in number.placements]
        found, number = (
            y.redistribute(copied, reason=f"operand 0 of {whole.class_name}")
            for y in (reduction(pieces, axis + 1), number)
        )
        piece = whole(found, axis=axis, keep_dims=True, **attrs)
        first = OPS["gather_elements"](number, axis, piece) + piece * each
        return first if keep_dims else reduce_max(first, axis)

    return places


# operators that PyTorch makes of others; None: not here
MADE_OF = {
    "matmul": product_of_rows,
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


def formula_of(op: OpDef, policy: str) -> Formula | None:
    """How PyTorch computes the gradients of an operator, where that differs and its messages are asked for."""
    return FORMULAS.get(op.name) if policy == "torch" else None
