"""Gradients of DTensors: the vjp rules of operators, run on DTensors.

Backward, operators are operators: a gradient lies as its last operator leaves it. Where x is split by rows and w
copied, the gradient of w is pending, and stays so until somebody reads it; nothing is sent for it here.

Some rules use operators without labels, or numpy itself. Whether one does is tried with tensors that have no values
(`Known`), so that what is sent never depends on what ran before. Such rules run on each rank's parts (`_by_parts`): the
gradient of the result is laid out as the result is, with copies where it is pending, and what lies where follows from
what each axis did: an operand that was split has a gradient split alike, one that was copied while others were split
has a pending one. Where that does not hold (a pending maximum, a mean, messages within the rule) all is copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import NotBuiltYet, ShapeError
from ...layout.mesh_layout import MeshLayout, Partial, Replicate
from ...ops.machine.axis_rules import AxisRule, Choice, has_labels
from ...ops.machine.opdef import OPS, OpDef, dtype_name
from ...ops.reduce import reduced_dims
from ...ops.shape import reshape
from .dtensor_formulas import READS, formula_of
from .dtensor_parts import (
    Parts,
    as_a_rank,
    as_part,
    dual,
    hollow,
    local_call,
    move,
    offset_needed,
    recorder,
    replicated,
    types_of,
    valueless,
)
from .dtensor_surroundings import hollow_var, node_var, policy_var
from .tape import alone, as_read, history
from .tensor import Node, Tensor

_afterwards: ContextVar[list[Callable[[], None]]] = ContextVar("parallel_lab_dtensor_afterwards")
Kind = tuple[tuple[int, ...], str]  # a tensor's shape and dtype


def run_backward(output: Parts, gradient: Parts | None) -> None:
    """See `DTensor.backward`. Raises ShapeError: no gradient given for several elements."""
    if gradient is None:
        if output.size != 1:
            allowed = "A loss of one element, or backward(gradient)"
            raise ShapeError(f"a result of shape {output.shape}", where="backward", allowed=allowed)
        ones = {rank: np.ones(output.shape, output.dtype) for rank in output._locals}
        gradient = output.like(ones, replicated(output.mesh), output.shape)
    if not isinstance(gradient, Parts) or gradient.shape != output.shape:
        what = f"a gradient of shape {tuple(gradient.shape)} for a result of shape {output.shape}"
        raise ShapeError(what, where="backward", allowed="A DTensor of the result's shape")
    for leaf, grad in _backward(output, gradient):
        before = getattr(leaf, "grad", None)
        leaf.grad = grad if before is None else before + grad


def _backward(output: Parts, gradient: Parts) -> Iterator[tuple[Any, Any]]:
    """(tensor that asked for it, its gradient); when all were taken, what was to be done afterwards is done."""
    asked: list[Callable[[], None]] = []
    tokens = _afterwards.set(asked), node_var.set(output.node)
    try:
        yield from _gradients(output, gradient)
        for function in asked:
            function()
    finally:
        _afterwards.reset(tokens[0])
        node_var.reset(tokens[1])


def differentiated() -> Node | None:
    """How the tensor was made whose gradient passes now; None outside of `backward`."""
    return node_var.get()


def gradients_of(output: Parts, tensors: Sequence[Any]) -> list[Parts]:
    """Gradients of the sum of a result's elements for these tensors, zeros where it does not depend on them."""
    found = {id(x): grad for x, grad in _backward(output, filled(output, 1))}
    return [found[id(x)] if id(x) in found else filled(x, 0) for x in tensors]


def filled(x: Parts, number: int) -> Parts:
    """A tensor of one number that lies as the gradient of x does."""
    layout = dual(x.layout)
    parts = {rank: np.full(layout.local_shape(x.shape, rank), number, x.dtype) for rank in x._locals}
    return x.detach().like(parts, layout, x.shape)


def after_backward(function: Callable[[], None]) -> None:
    """Call a function at the end of the `backward` that runs."""
    _afterwards.get().append(function)


def _gradients(output: Any, seed: Any) -> list[tuple[Any, Any]]:
    """(tensor that asked for it, its gradient), for all from which `output` was made."""
    if (tracer := recorder()) is not None:
        tracer.begin("backward")
    totals: dict[int, Any] = {id(output): seed}
    asked: dict[int, Any] = {id(output): output} if output.node is None and output.requires_grad else {}
    parts: dict[int, Any] = {}
    made = history(output)
    for at, tensor in enumerate(made):
        node = tensor.node
        g = totals.get(id(tensor))
        if node.siblings is not None:
            values, number = node.siblings
            if g is not None:
                parts[number] = g
            if at + 1 < len(made) and made[at + 1].node.order == node.order:
                continue
            g, parts = tuple(parts.get(i) for i in range(len(values))) if parts else None, {}
            tensor = values
        if g is None:
            continue
        node_var.set(node)
        for hook in node.hooks:
            hook(g)
        operands = [as_read(x, node.order) if isinstance(x, Tensor) else x for x in node.operands]
        found = list(_rule(node, g, tensor, operands))
        if (told := hollow_var.get()) is not None:
            told(node.op, found, ())
        for operand, grad in zip(operands, found, strict=True):
            if grad is None or not isinstance(operand, Tensor) or not operand.requires_grad:
                continue
            before = totals.get(id(operand))
            totals[id(operand)] = grad if before is None else before + grad
            if operand.node is None:
                asked[id(operand)] = operand
    return [(tensor, totals[key]) for key, tensor in asked.items()]


def _rule(node: Node, g: Any, out: Any, operands: list[Any]) -> Sequence[Any]:
    """The gradients of a node's operands."""
    op = node.op
    if op.vjp_fn is None:
        back = op.back(g)
        return back if isinstance(back, tuple) else [back]
    if _first(g).alone:
        return _rank_by_rank(node, g, out, operands)
    needed = _needed(node)
    if (formula := formula_of(op, policy_var.get())) is not None:
        rule = lambda wanted: _called(op, g, out, operands, node.attrs, wanted)  # noqa: E731
        return formula(g, out, operands, needed, rule, **node.attrs)
    kinds = [tuple(map(_kind, x if isinstance(x, tuple) else (x,))) for x in (g, out, tuple(operands))]
    tried = _tried(op.name, *kinds, needed, tuple(sorted(node.attrs.items())), isinstance(out, tuple))
    if tried.labelled:
        attrs = node.attrs
        if -1 in tried.reads and isinstance(out, Parts) and not {"sum", "avg"}.issuperset(out.layout.pending.values()):
            if attrs.get("keep_dims") is False:  # as PyTorch does: the rules take both
                gone = reduced_dims(attrs["axis"], operands[0].ndim)
                kept = tuple(1 if dim in gone else size for dim, size in enumerate(operands[0].shape))
                g, out, attrs = reshape(g, kept), reshape(out, kept), attrs | {"keep_dims": True}
            out = move(out, dual(out.layout), f"gradient of {op.class_name}")  # before it is spread
        return _called(op, g, out, operands, attrs, needed)
    reads = READS.get(op.name, frozenset()) if policy_var.get() == "torch" else frozenset()
    return _by_parts(node, g, out, operands, tried.reads | reads)


def _called(
    op: OpDef, g: Any, out: Any, operands: Sequence[Any], attrs: dict[str, Any], needed: tuple[bool, ...]
) -> Sequence[Any]:
    """The rule itself, on whatever it is given."""
    assert op.vjp_fn is not None
    extra = {} if op.plain else dict(attrs)
    if op.vjp_across:
        extra["across"] = alone
    if op.vjp_total:
        extra["total"] = lambda value: (value, 1)
    if op.vjp_needs:
        extra["needs"] = needed
    return op.vjp_fn(g, out, *operands, **extra)


def _needed(node: Node) -> tuple[bool, ...]:
    return tuple([getattr(x, "requires_grad", False) for x in node.operands])


def _kind(x: Any) -> Kind | None:
    return None if x is None else (tuple(x.shape), dtype_name(x.dtype))


class Known(Tensor):
    """A tensor whose shape and dtype are known, and nothing else. Operators note that they read it.

    noted  what all tensors of a trial have in common: those that were read; "unlabelled" if an operator has no labels
    """

    __slots__ = ("_dtype", "_noted", "_shape")
    answers = True

    def __new__(cls, *args: Any) -> Known:
        return object.__new__(cls)

    def __init__(self, shape: tuple[int, ...], dtype: str, noted: set[Any]) -> None:
        self._shape, self._dtype, self._noted, self.node = shape, np.dtype(dtype), noted, None

    shape = property(lambda self: self._shape)
    dtype = property(lambda self: self._dtype)

    @property
    def array(self) -> np.ndarray:
        """Refused: there are no values. Raises TypeError."""
        raise TypeError("a tensor without values")

    _data = array  # type: ignore[assignment]

    def __parallel_lab_plain__(self, op: OpDef, operands: tuple[Any, ...]) -> Any:
        return NotImplemented

    def __parallel_lab_op__(self, op: OpDef, operands: list[Any], attrs: dict[str, Any]) -> Any:
        """What `op` would give."""
        self._noted.update(id(x) for x in operands)
        among = any(not isinstance(x, Known) and getattr(x, "size", 1) != 1 for x in operands)  # DTensors refuse them
        shapes, dtypes = types_of(operands)
        found = op.infer(shapes, dtypes, attrs)
        if among or not (op.view or has_labels(op, shapes, attrs)):
            self._noted.add("unlabelled")
        return found.form([Known(*kind, self._noted) for kind in zip(found.shapes, found.dtypes, strict=True)])


class Tried(NamedTuple):
    """What is known of an operator's rule: whether it is made of operators with labels, and runs on DTensors; the
    positions of the operands whose values it reads, -1 being the result.
    """

    labelled: bool
    reads: frozenset[int]


@lru_cache(maxsize=4096)
def _tried(
    name: str,
    g: tuple[Kind | None, ...],
    out: tuple[Kind, ...],
    operands: tuple[Kind | None, ...],
    needed: tuple[bool, ...],
    attrs: tuple[tuple[str, Any], ...],
    several: bool,
) -> Tried:
    noted: set[Any] = set()
    known = [tuple(None if k is None else Known(*k, noted) for k in kinds) for kinds in (g, out, operands)]
    try:
        _called(OPS[name], *(x if several else x[0] for x in known[:2]), known[2], dict(attrs), needed)
    except (TypeError, AttributeError, NotBuiltYet):  # numpy's functions, say
        return Tried(False, frozenset(range(-1, len(operands))))
    read = [(-1, x) for x in known[1]] + list(enumerate(known[2]))
    return Tried("unlabelled" not in noted, frozenset(at for at, x in read if id(x) in noted))


def _first(g: Any) -> Parts:
    """A gradient, or the first that is there."""
    return next(x for x in (g if isinstance(g, tuple) else (g,)) if x is not None)


def _rank_by_rank(node: Node, g: Any, out: Any, operands: list[Any]) -> Sequence[Any]:
    """The rule on what each rank has of its own."""
    first = _first(g)
    grads: dict[int, list[Any]] = {}
    for rank in first._locals:
        if valueless():
            grads[rank] = _hollow_gradients(node, rank, g, out, operands)
            continue
        mine = [x._locals[rank] if isinstance(x, Parts) else x.array for x in operands]
        with as_a_rank(mine, (first.shape,)):
            made = _called(node.op, _part(g, rank), _part(out, rank), mine, node.attrs, _needed(node))
        grads[rank] = list(made)
    return [
        None if each[0] is None else first.like(dict(zip(grads, map(as_part, each), strict=True)), first.layout, ())
        for each in zip(*grads.values(), strict=True)
    ]


def _part(x: Any, rank: int) -> Any:
    if isinstance(x, tuple):
        return tuple(_part(each, rank) for each in x)
    return x._locals[rank] if isinstance(x, Parts) else x.array if isinstance(x, Tensor) else x


def _by_parts(node: Node, g: Any, out: Any, operands: list[Any], reads: frozenset[int]) -> Sequence[Any]:
    op, (chosen,) = node.op, node.arrays or [None]
    outs, reason = out if isinstance(out, tuple) else (out,), f"gradient of {op.class_name}"
    shapes = tuple(tuple(getattr(x, "shape", ())) for x in operands)
    if chosen is None or not _plain_roles(op, chosen) or offset_needed(op, node.attrs, chosen, shapes):
        whole = replicated(outs[0].mesh)
        rule = AxisRule(tuple(Replicate() for _ in operands), tuple(Replicate() for _ in outs))
        ins = tuple(whole if isinstance(x, Parts) else None for x in operands)
        chosen = Choice(ins, (whole,) * len(outs), (rule,) * whole.mesh.ndim, 0.0)
        outs = tuple(move(x, whole, reason) if -1 in reads else _blank(x, whole) for x in outs)
    attrs, place = local_call(op, node.attrs, chosen, shapes, tuple(x.shape for x in outs))
    given = g if isinstance(g, tuple) else (g,)
    moved_g = tuple(None if x is None else move(x, dual(to), reason) for x, to in zip(given, chosen.outs, strict=True))
    moved = [
        x if to is None else move(x, to, reason) if i in reads else _blank(x, to)
        for i, (x, to) in enumerate(zip(operands, chosen.ins, strict=True))
    ]
    grads: list[dict[int, Any]] = [{} for _ in operands]
    for rank in outs[0]._locals:
        if valueless():
            for kept, part in zip(grads, _hollow_gradients(node, rank, moved_g, outs, moved), strict=True):
                kept[rank] = part
            continue
        mine = [x._locals[rank] if isinstance(x, Parts) else as_part(x, moved) for x in moved]
        its_g = tuple(None if x is None else x._locals[rank] for x in moved_g)
        its_out = tuple(x._locals[rank] for x in outs)
        several = isinstance(out, tuple)
        both = (its_g, its_out) if several else (its_g[0], its_out[0])
        with as_a_rank(mine, [x.shape for x in outs]):
            made = _called(op, *both, mine, attrs | place(rank), _needed(node))
        for kept, grad in zip(grads, made, strict=True):
            kept[rank] = grad
    found: list[Any] = []
    for i, (parts, operand) in enumerate(zip(grads, operands, strict=True)):
        if not isinstance(operand, Parts) or any(part is None for part in parts.values()):
            found.append(None)
            continue
        layout = MeshLayout(operand.mesh, tuple(rule.gradient(i) for rule in chosen.rules))
        arrays = {rank: as_part(part) for rank, part in parts.items()}
        found.append(operand.like(arrays, layout, operand.shape))
    return found


def _hollow_gradients(node: Node, rank: int, g: Any, out: Any, operands: Sequence[Any]) -> list[Any]:
    """Gradients without values: as large as the parts of the operands that want them."""
    known = [
        x for several in (g, out, operands) for x in (several if isinstance(several, (tuple, list)) else (several,))
    ]
    parts = [x._locals[rank] for x in known if isinstance(x, Parts)]
    return [
        hollow(_part(x, rank).shape, x.dtype, parts) if needed else None
        for x, needed in zip(operands, _needed(node), strict=True)
    ]


def _blank(x: Parts, to: MeshLayout) -> Parts:
    """A tensor of the same shape, dtype and layout that has no values: for rules that ask for nothing else."""
    zero = np.zeros((), x.dtype)
    parts = {rank: np.broadcast_to(zero, to.local_shape(x.shape, rank)) for rank in x._locals}
    return x.like(parts, to, x.shape)


def _plain_roles(op: Any, chosen: Choice) -> bool:
    """Whether the gradients of the parts are what the roles of the axes say."""
    pending = {p.reduce_op for rule in chosen.rules for p in (*rule.ins, *rule.outs) if isinstance(p, Partial)}
    return pending <= {"sum"} and not (op.vjp_across or op.vjp_total or op.mean)
