"""What is called around a Cell's `construct`, and gradients of the user's own: hooks, a Cell's `bprop`.

    handle = net.fc.register_forward_hook(lambda cell, inputs, output: print(cell, output.shape))
    net(x)
    handle.remove()

    class Scale(Cell):
        def construct(self, x): return x * 2
        def bprop(self, x, out, dout): return (dout * 3,)        # instead of the gradient of construct

Hooks are for networks that run at once; a compiled network has them not (MindSpore: not in graph mode). bprop counts in
both: where operators are split its values are whole on every rank. Forms: MindSpore, nn.Cell.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..base.checks import function, misfit
from ..base.errors import ArgumentTypeError
from ..base.hooks import current_tracer
from ..ops.elementwise import identity
from .cell_tree import CellTree
from .tensor.arithmetic import Arithmetic, Handle
from .tensor.own_gradient import OwnGradient
from .tensor.parameter import Parameter

Hook = Callable[..., Any]


class Hooks(CellTree):
    """The hooks of a Cell, each called in the order of registration; one that returns None changes nothing."""

    def _register(self, kind: str, hook_fn: Any) -> Handle:
        function("A function")(f"register_{kind}_hook", "hook_fn", hook_fn)
        hooks = self.__dict__.setdefault("_hooks", {}).setdefault(kind, [])
        hooks.append(hook_fn)
        return Handle(hooks, hook_fn)

    def register_forward_pre_hook(self, hook_fn: Hook) -> Handle:
        """hook_fn(cell, inputs) before construct: None, or other inputs, a tuple or one."""
        return self._register("forward_pre", hook_fn)

    def register_forward_hook(self, hook_fn: Hook) -> Handle:
        """hook_fn(cell, inputs, output) after construct: None, or another output."""
        return self._register("forward", hook_fn)

    def register_backward_pre_hook(self, hook_fn: Hook) -> Handle:
        """hook_fn(cell, grad_output), a tuple, before construct's gradient is made: None, or another one."""
        return self._register("backward_pre", hook_fn)

    def register_backward_hook(self, hook_fn: Hook) -> Handle:
        """hook_fn(cell, grad_input, grad_output), tuples, after an input's gradient: None, or another grad_input."""
        return self._register("backward", hook_fn)

    def _with_hooks(self, construct: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hooks = {kind: list(functions) for kind, functions in self._hooks.items()}
        for hook in hooks.get("forward_pre", ()):
            changed = hook(self, args)
            args = args if changed is None else changed if isinstance(changed, tuple) else (changed,)
        last: list[tuple[Any, ...]] = [()]  # the gradient of the output, which comes first

        def of_output(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
            for hook in hooks.get("backward_pre", ()):
                gradients = _changed(hook(self, gradients), gradients)
            last[0] = gradients
            return gradients

        def of_inputs(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
            for hook in hooks.get("backward", ()):
                gradients = _changed(hook(self, gradients, last[0]), gradients)
            return gradients

        if hooks.get("backward"):
            args = _through(of_inputs, args)
        result = construct(*args, **kwargs)
        for hook in hooks.get("forward", ()):
            changed = hook(self, args, result)
            result = result if changed is None else changed
        if hooks.get("backward") or hooks.get("backward_pre"):
            several = isinstance(result, tuple)
            hooked = _through(of_output, result if several else (result,))
            result = hooked if several else hooked[0]
        return result

    def _with_bprop(self, construct: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """construct's results, with the gradient that `bprop(*inputs, out, dout)` says."""
        places = [i for i, x in enumerate(args) if isinstance(x, Arithmetic)]
        if current_tracer.get() is not None:  # a Parameter may be split otherwise in construct than it is here: whole
            args = tuple(identity(x) if isinstance(x, Parameter) else x for x in args)
        result = construct(*args, **kwargs)
        results = result if isinstance(result, tuple) else (result,)
        if not places or not all(isinstance(x, Arithmetic) for x in results):
            return result

        fixed = [None if i in places else x for i, x in enumerate(args)]

        def gradient(values: tuple[Any, ...], gradients: tuple[Any, ...]) -> list[Any]:
            outs, tensors = values[: len(results)], values[len(results) :]
            given = list(fixed)
            for i, tensor in zip(places, tensors, strict=True):
                given[i] = tensor
            form = tuple if isinstance(result, tuple) else lambda one: one[0]
            handed = (*given, form(outs), form(gradients))
            if fault := misfit(f"bprop of {self._where()}", inspect.signature(self.bprop), handed, {}):
                raise fault
            input_gradients = self.bprop(*handed)
            input_gradients = input_gradients if isinstance(input_gradients, (tuple, list)) else (input_gradients,)
            if len(input_gradients) not in (len(args), len(places)):
                what = f"bprop gives {len(input_gradients)} gradients"
                raise ArgumentTypeError(what, where=self._where(), allowed=f"{len(args)}, one per input")
            return [input_gradients[i] for i in places] if len(input_gradients) == len(args) else list(input_gradients)

        # kept by the Cell: a plan names it by its number
        own, key = self.__dict__.setdefault("_own_gradients", {}), (repr(fixed), len(args), type(result), len(results))
        if key not in own:
            own[key] = OwnGradient(f"{type(self).__name__}.bprop", gradient)
        return own[key](results, tuple(args[i] for i in places), several=isinstance(result, tuple))


def _changed(new: Any, old: tuple[Any, ...]) -> tuple[Any, ...]:
    return old if new is None else new if isinstance(new, tuple) else (new,)


def _through(gradient: Callable, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same values, whose tensors' gradients go through a function."""
    places = [i for i, x in enumerate(values) if isinstance(x, Arithmetic)]
    if not places:
        return values
    hooked = OwnGradient("hook", lambda _, gradients: gradient(gradients))(
        tuple(values[i] for i in places), several=True
    )
    values_out = list(values)
    for i, x in zip(places, hooked, strict=True):
        values_out[i] = x
    return tuple(values_out)
