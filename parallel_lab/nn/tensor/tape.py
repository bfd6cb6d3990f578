"""The tape walked backwards: gradients of what was run on Tensors, by the vjp rules that the compiler uses, on arrays.

(dx, dw) = gradients(loss, [x, w])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...base.errors import NotBuiltYet, ShapeError
from ...ops.machine.operand_checks import one_per_input
from .tensor import Node, Tensor


def alone(value: Any, reduce: str = "sum") -> Any:
    """`across` of a vjp rule where nothing is split: the one value there is."""
    return value


def _order(tensor: Tensor) -> int:
    return tensor.node.order


def history(root: Tensor, since: int = 0) -> list[Tensor]:
    """Tensors with a node from which `root` was made, latest first (iterative: deep nets do not overflow the stack)."""
    tensors, seen, stack = [], {id(root)}, [root]
    while stack:
        tensor = stack.pop()
        if tensor.node is None or tensor.node.order < since:
            continue
        tensors.append(tensor)
        order = tensor.node.order
        for operand in tensor.node.operands:
            if operand.node is not None and operand.node.order >= order:
                operand = as_read(operand, order)
            if operand.node is not None and id(operand) not in seen:
                seen.add(id(operand))
                stack.append(operand)
    tensors.sort(key=_order, reverse=True)
    return tensors


def as_read(tensor: Tensor, order: int = 0) -> Tensor:
    """The tensor as the operator of this number read it: before `x[...] = value` gave it other elements later."""
    while tensor.node is not None and tensor.node.order >= order and tensor.node.before is not None:
        tensor = tensor.node.before
    return tensor


def leaves_since(results: Sequence[Tensor], since: int) -> list[Tensor]:
    """Tensors made before the operator of this number, with a gradient, from which later ones have made the results."""
    computed = {id(t): t for root in results for t in history(root, since)}
    read = [as_read(x, t.node.order) for t in computed.values() for x in t.node.operands]
    leaves = {id(x): x for x in read if id(x) not in computed and (x.node is not None or x.requires_grad)}
    return list(leaves.values())


def gradients(output: Tensor, wrt: Sequence[Tensor], seed: Any = None, *, since: int = 0) -> list[np.ndarray]:
    """Gradient of `output` per tensor in `wrt`, as arrays; zeros if independent. seed: of the output, default ones;
    since: go back to the operator of this number, and no further.
    """
    targets = {id(t) for t in wrt}
    totals: dict[int, np.ndarray] = {
        id(output): np.ones(output.shape, output.dtype) if seed is None else np.asarray(seed, output.dtype)
    }
    parts: dict[int, np.ndarray] = {}  # of several results
    made = history(output, since)
    for at, tensor in enumerate(made):
        key = id(tensor)
        g = totals.get(key) if key in targets else totals.pop(key, None)
        if g is not None and g.dtype != tensor._data.dtype:
            g = g.astype(tensor._data.dtype)  # float16 with float32: the rule computed in the wider one
        node: Node = tensor.node
        if node.hooks and g is not None:
            g = _hooked(node.hooks, g)
            totals.update({key: g} if key in targets else {})
        if node.siblings is not None:
            # results of one call stand side by side: its rule runs once, when the last of them has been looked at
            values, number = node.siblings
            if g is not None:
                parts[number] = g
            if at + 1 < len(made) and _order(made[at + 1]) == node.order:
                continue
            g, parts = tuple(parts.get(i) for i in range(len(values))) if parts else None, {}
        if g is None:
            continue
        if node.op.vjp_fn is None:
            raise NotBuiltYet(f"{node.op.class_name} is to be differentiated once more", allowed="Others with a rule")
        operands = [as_read(x, node.order) for x in node.operands]
        op, arrays = node.op, node.arrays or [x.array for x in operands]
        out = tensor._data if node.siblings is None else node.siblings[0]
        needed = [x.node is not None or x.requires_grad for x in operands]
        if op.plain and not op.vjp_needs:
            grads = op.vjp_fn(g, out, *arrays)
        else:
            extra: dict[str, Any] = {"across": alone} if op.vjp_across else {}
            if op.vjp_total:
                extra["total"] = lambda value: (value, 1)
            if op.vjp_needs:
                extra["needs"] = tuple(needed)
            grads = op.vjp_fn(g, out, *arrays, **node.attrs, **extra)
        grads = one_per_input(grads, operands, op)
        for operand, needs_gradient, grad in zip(operands, needed, grads, strict=True):
            if grad is None or not needs_gradient:
                continue
            key = id(operand)
            before = totals.get(key)
            totals[key] = grad if before is None else before + grad
    ordered = [np.asarray(totals[id(t)], t.dtype) if id(t) in totals else np.zeros(t.shape, t.dtype) for t in wrt]
    return [_hooked(getattr(t, "hooks", ()), g) for t, g in zip(wrt, ordered, strict=True)]


def _hooked(hooks: Sequence[Callable], g: np.ndarray) -> np.ndarray:
    """A gradient as the hooks of its tensor leave it."""
    for hook in tuple(hooks):
        new = hook(Tensor(g))
        if new is not None:
            new = np.asarray(new.asnumpy() if hasattr(new, "asnumpy") else new, g.dtype)
            if new.shape != g.shape:
                what = f"a hook of a tensor of shape {g.shape} gives a gradient of shape {new.shape}"
                raise ShapeError(what, where="register_hook", allowed="Its shape, or None: nothing changes")
            g = new
    return g
