"""Gradients of what was run on Tensors: the same vjp rules that the compiler uses, applied to arrays.

    loss, grads = value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())(x, y)

`gradients` is the machine; `grad` and `value_and_grad` have MindSpore's form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .errors import TraceError, message, shorten
from .tensor import Node, Parameter, Tensor

__all__ = ["grad", "gradients", "value_and_grad"]


def _identity(value: Any) -> Any:
    return value


def _ordered(root: Tensor) -> list[Tensor]:
    """Tensors with a node from which `root` was made, each after its operands (iterative: deep nets do not overflow the stack)."""
    done, seen, stack = [], set(), [(root, False)]
    while stack:
        tensor, ready = stack.pop()
        if ready:
            done.append(tensor)
        elif id(tensor) not in seen and tensor.node is not None:
            seen.add(id(tensor))
            stack.append((tensor, True))
            stack.extend((operand, False) for operand in tensor.node.operands)
    return done


def gradients(output: Tensor, wrt: Sequence[Tensor], seed: Any = None) -> list[np.ndarray]:
    """Gradient of `output` for each tensor in `wrt`, as arrays of their shapes.

    seed  gradient of the output itself; default ones (for a scalar: its plain gradient)

    Tensors that the output does not depend on get zeros.
    """
    asked = {id(t) for t in wrt}
    found: dict[int, np.ndarray] = {id(output): np.ones(output.shape, output.dtype) if seed is None else np.asarray(seed, output.dtype)}
    for tensor in reversed(_ordered(output)):
        g = found.get(id(tensor)) if id(tensor) in asked else found.pop(id(tensor), None)
        if g is None:
            continue
        node: Node = tensor.node
        extra = {"across": _identity} if node.op.vjp_across else {}
        grads = node.op.vjp_fn(g, tensor.data, *(t.data for t in node.operands), **node.attrs, **extra)
        for operand, operand_grad in zip(node.operands, grads, strict=True):
            if operand_grad is None or not operand.requires_grad:
                continue
            before = found.get(id(operand))
            found[id(operand)] = np.asarray(operand_grad) if before is None else before + operand_grad
    return [found.get(id(t), np.zeros(t.shape, t.dtype)) for t in wrt]


def value_and_grad(
    fn: Callable, grad_position: int | tuple[int, ...] | None = 0, weights: Sequence[Parameter] | None = None, has_aux: bool = False
) -> Callable:
    """A function that returns (fn's value, gradients).

    grad_position  which positional arguments to differentiate for; None: none of them
    weights        Parameters to differentiate for
    has_aux        fn returns (loss, more...), and only the loss is differentiated

    Gradients are Tensors: those of the arguments (one, or a tuple), those of the weights (tuple), or the pair of both.
    """
    if grad_position is None and weights is None:
        raise TraceError(message("neither grad_position nor weights is given", where="value_and_grad", hint="Give weights=net.trainable_params()"))
    positions = () if grad_position is None else (grad_position,) if isinstance(grad_position, int) else tuple(grad_position)

    def run(*args: Any) -> tuple[Any, Any]:
        args = [_Watched(a) if i in positions else a for i, a in enumerate(args)]
        value = fn(*args)
        output = value[0] if has_aux else value
        if not isinstance(output, Tensor):
            raise TraceError(message(f"the function returned {shorten(output)}", where="value_and_grad", allowed="A Tensor to differentiate"))
        weight_list = list(weights or ())
        grads = [Tensor(g) for g in gradients(output, [args[i] for i in positions] + weight_list)]
        by_position, by_weight = grads[: len(positions)], tuple(grads[len(positions) :])
        inputs = by_position[0] if isinstance(grad_position, int) else tuple(by_position)
        if weights is None:
            return value, inputs
        return value, by_weight if grad_position is None else (inputs, by_weight)

    return run


def grad(
    fn: Callable, grad_position: int | tuple[int, ...] | None = 0, weights: Sequence[Parameter] | None = None, has_aux: bool = False
) -> Callable:
    """As `value_and_grad`, without the value (with has_aux: gradients and the rest)."""
    both = value_and_grad(fn, grad_position, weights, has_aux)

    def run(*args: Any) -> Any:
        value, grads = both(*args)
        return (grads, *value[1:]) if has_aux else grads

    return run


class _Watched(Tensor):
    """An argument whose gradient is asked for."""

    __slots__ = ()
    requires_grad = True
