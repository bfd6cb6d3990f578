"""Gradients of DTensors: the vjp rules of operators, run on DTensors.

Backward, operators are operators: a gradient lies as its last operator leaves it. Where x is split by rows and w
copied, the gradient of w is pending, and stays so until somebody reads it; nothing is sent for it here.

Some rules use operators without labels, or numpy itself. They run on each rank's parts (`_by_parts`): the gradient of
the result is laid out as the result is, with copies where it is pending, and what lies where follows from what each
axis did: an operand that was split has a gradient split alike, one that was copied while others were split has a
pending one. Where that does not hold (a pending maximum, a mean, messages within the rule) all is copied first.
"""

from __future__ import annotations

import dis
import itertools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any

import numpy as np

from ...base.errors import NotBuiltYet, ShapeError
from ...layout.mesh_layout import MeshLayout, Partial, Replicate, Shard, StridedShard
from ...ops.machine.axis_rules import AxisRule, Choice
from ...ops.machine.opdef import OpDef
from .dtensor_parts import Parts, as_part, dual, local_call, messages_noted, move, offset_needed, replicated
from .tape import alone, as_read, history
from .tensor import Node, Tensor

_afterwards: ContextVar[list[Callable[[], None]]] = ContextVar("parallel_lab_dtensor_afterwards")
_BY_PARTS: set[str] = set()  # operators whose rule does not run on DTensors


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
    asked: list[Callable[[], None]] = []
    token = _afterwards.set(asked)
    try:
        leaves = _gradients(output, gradient)
    finally:
        _afterwards.reset(token)
    for leaf, grad in leaves:
        before = getattr(leaf, "grad", None)
        leaf.grad = grad if before is None else before + grad
    for function in asked:
        function()


def after_backward(function: Callable[[], None]) -> None:
    """Call a function at the end of the `backward` that runs."""
    _afterwards.get().append(function)


def _gradients(output: Any, seed: Any) -> list[tuple[Any, Any]]:
    """(tensor that asked for it, its gradient), for all from which `output` was made."""
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
        operands = [as_read(x, node.order) if isinstance(x, Tensor) else x for x in node.operands]
        for operand, grad in zip(operands, _rule(node, g, tensor, operands), strict=True):
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
        return [op.back(g)]
    if _first(g).alone:
        return _rank_by_rank(node, g, out, operands)
    if op.name not in _BY_PARTS:
        before = messages_noted()
        try:
            return _called(node, g, out, operands)
        except (TypeError, AttributeError, NotBuiltYet):
            _BY_PARTS.add(op.name)
            messages_noted(keep=before)
    return _by_parts(node, g, out, operands)


def _called(node: Node, g: Any, out: Any, operands: list[Any], attrs: dict[str, Any] | None = None) -> Sequence[Any]:
    """The rule itself, on whatever it is given."""
    op, extra = node.op, {}
    if not op.plain:
        extra = dict(node.attrs if attrs is None else attrs)
    if op.vjp_across:
        extra["across"] = alone
    if op.vjp_total:
        extra["total"] = lambda value: (value, 1)
    if op.vjp_needs:
        extra["needs"] = tuple(getattr(x, "requires_grad", False) for x in node.operands)
    return op.vjp_fn(g, out, *operands, **extra)


def _first(g: Any) -> Parts:
    """A gradient, or the first that is there."""
    return next(x for x in (g if isinstance(g, tuple) else (g,)) if x is not None)


def _rank_by_rank(node: Node, g: Any, out: Any, operands: list[Any]) -> Sequence[Any]:
    """The rule on what each rank has of its own."""
    first = _first(g)
    grads: dict[int, list[Any]] = {}
    for rank in first._locals:
        mine = [x._locals[rank] if isinstance(x, Parts) else x.array for x in operands]
        made = _called(node, _part(g, rank), _part(out, rank), mine)
        grads[rank] = list(made)
    return [
        None if each[0] is None else first.like(dict(zip(grads, map(np.asarray, each), strict=True)), first.layout, ())
        for each in zip(*grads.values(), strict=True)
    ]


def _part(x: Any, rank: int) -> Any:
    if isinstance(x, tuple):
        return tuple(_part(each, rank) for each in x)
    return x._locals[rank] if isinstance(x, Parts) else x.array if isinstance(x, Tensor) else x


def _by_parts(node: Node, g: Any, out: Any, operands: list[Any]) -> Sequence[Any]:
    op, (chosen,) = node.op, node.arrays or [None]
    outs, reason = out if isinstance(out, tuple) else (out,), f"gradient of {op.class_name}"
    shapes = tuple(tuple(getattr(x, "shape", ())) for x in operands)
    if chosen is None or not _plain_roles(op, chosen) or offset_needed(op, node.attrs, chosen, shapes):
        whole = replicated(outs[0].mesh)
        rule = AxisRule(tuple(Replicate() for _ in operands), tuple(Replicate() for _ in outs))
        ins = tuple(whole if isinstance(x, Parts) else None for x in operands)
        chosen = Choice(ins, (whole,) * len(outs), (rule,) * whole.mesh.ndim, 0.0)
        outs = tuple(move(x, whole, reason) if -1 in reads(op) else _blank(x, whole) for x in outs)
    attrs, place = local_call(op, node.attrs, chosen, shapes, tuple(x.shape for x in outs))
    given = g if isinstance(g, tuple) else (g,)
    moved_g = tuple(None if x is None else move(x, dual(to), reason) for x, to in zip(given, chosen.outs, strict=True))
    read = reads(op)
    moved = [
        x if to is None else move(x, to, reason) if i in read else _blank(x, to)
        for i, (x, to) in enumerate(zip(operands, chosen.ins, strict=True))
    ]
    grads: list[dict[int, Any]] = [{} for _ in operands]
    for rank in outs[0]._locals:
        mine = [x._locals[rank] if isinstance(x, Parts) else as_part(x, moved) for x in moved]
        its_g = tuple(None if x is None else x._locals[rank] for x in moved_g)
        its_out = tuple(x._locals[rank] for x in outs)
        several = isinstance(out, tuple)
        made = _called(
            node, its_g if several else its_g[0], its_out if several else its_out[0], mine, attrs | place(rank)
        )
        for kept, grad in zip(grads, made, strict=True):
            kept[rank] = grad
    found: list[Any] = []
    for i, (parts, operand) in enumerate(zip(grads, operands, strict=True)):
        if not isinstance(operand, Parts) or any(part is None for part in parts.values()):
            found.append(None)
            continue
        layout = MeshLayout(operand.mesh, tuple(_role(rule, i) for rule in chosen.rules))
        arrays = {rank: np.asarray(part) for rank, part in parts.items()}
        found.append(operand.like(arrays, layout, operand.shape))
    return found


def _blank(x: Parts, to: MeshLayout) -> Parts:
    """A tensor of the same shape, dtype and layout that has no values: for rules that ask for nothing else."""
    zero = np.zeros((), x.dtype)
    parts = {rank: np.broadcast_to(zero, to.local_shape(x.shape, rank)) for rank in x._locals}
    return x.like(parts, to, x.shape)


@cache
def reads(op: OpDef) -> frozenset[int]:
    """Positions of the operands whose values an operator's rule reads, beyond shapes and dtypes; -1: of the result."""
    names = op.tensors
    if op.gradients:
        used = {name for grad in op.gradients.values() for name in grad.tensors}
        return frozenset(i for i, name in enumerate(("out", *names), -1) if name in used)
    rule = op.vjp_fn
    while (
        inner := next((c.cell_contents for c in rule.__closure__ or () if callable(c.cell_contents)), None)
    ) is not None:
        if not hasattr(inner, "__code__") or inner.__code__.co_argcount != rule.__code__.co_argcount:
            break
        rule = inner
    code = rule.__code__
    if op.variadic or code.co_argcount < 2 + len(names):
        return frozenset(range(-1, 99))
    found, steps = set(), list(dis.get_instructions(rule))
    for step, after in itertools.zip_longest(steps, steps[1:]):
        if step.opname.startswith("LOAD_FAST") and not (after and after.argval in ("shape", "dtype", "ndim")):
            found |= set(step.argval if isinstance(step.argval, tuple) else (step.argval,))
        if step.opname == "LOAD_CLOSURE" or step.opname == "LOAD_DEREF":
            found.add(step.argval)
    return frozenset(i for i, name in enumerate(code.co_varnames[1 : 2 + len(names)], -1) if name in found)


def _plain_roles(op: Any, chosen: Choice) -> bool:
    """Whether the gradients of the parts are what the roles of the axes say."""
    pending = {p.reduce_op for rule in chosen.rules for p in (*rule.ins, *rule.outs) if isinstance(p, Partial)}
    return pending <= {"sum"} and not (op.vjp_across or op.vjp_total or op.mean)


def _role(rule: AxisRule, operand: int) -> Any:
    """What an axis does to the gradient of an operand."""
    mine = rule.ins[operand]
    if isinstance(mine, (Shard, StridedShard)):
        return mine
    shared = any(not isinstance(p, Replicate) for p in (*rule.ins, *rule.outs) if p is not None)
    return Partial() if shared and not isinstance(mine, Partial) else Replicate()
