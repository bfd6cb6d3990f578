"""What decides whether a function or a Cell that is called runs compiled: `jit`, and `run_cell` for Cells."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..base.checks import ARGUMENT, Errors, checked, instance
from ..base.errors import ArgumentTypeError, TraceError, shorten
from ..base.hooks import current_tracer, current_world, on_tape
from ..base.origin import caller
from ..base.settings.checks import SHARDED_MODES
from ..base.settings.current import frozen
from ..graph.dtensor_programs import has_dtensors
from ..graph.forms import is_tensor, tensors_of
from ..nn.cell import Cell
from ..nn.sharded_cell import ShardedCell, check_propagates
from ..nn.tensor.dynamic_shapes import Examples, check_inputs_fit
from ..nn.tensor.tensor import Tensor
from .compiled import CompiledFunction, positional, runs_compiled
from .dtensor_runs import DTensorFunction
from .region import run_region


def refuse_on_tape(name: str) -> None:
    """Raise TraceError where code that runs at once asks for the gradient through a compiled call: it would be zero."""
    if on_tape.get():
        what = f"the gradient through {name}, which runs compiled, is asked for by code that runs at once"
        hint = "Put value_and_grad and the optimizer into one function, and give it to jit or AutoParallel"
        raise TraceError(what, where=caller().place, allowed="A training step that is compiled as a whole", hint=hint)


def run_cell(cell: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A Cell, or function of `value_and_grad`, outside any trace: NotImplemented to run at once, or results."""
    if not runs_compiled():
        world = current_world()
        if world is None or not isinstance(cell, ShardedCell) or frozen().parallel_mode not in SHARDED_MODES:
            return NotImplemented
        check_propagates()
        inner = cell.fn.construct if isinstance(cell.fn, Cell) else cell.fn
        return run_region(cell, positional(inner, args, kwargs), world)
    inputs = positional(getattr(cell, "construct", cell), args, kwargs)
    if not any(a.ndim for a in tensors_of(inputs)[1]):
        return NotImplemented  # a function of numbers, such as a learning rate schedule: there is nothing to split
    refuse_on_tape(_name(cell))
    compiled = cell.__dict__.get("_compiled")
    if compiled is None:
        compiled = cell.__dict__["_compiled"] = CompiledFunction(cell, returns="as fed")
    return compiled(*inputs)


def _signature(where: str, name: str, given: Any, errors: Errors = ARGUMENT) -> Examples:
    """A tuple or dict of Tensors."""
    signature = given if isinstance(given, dict) else tuple(given) if isinstance(given, (list, tuple)) else (given,)
    examples = signature.values() if isinstance(signature, dict) else signature
    other = [value for value in examples if not isinstance(value, Tensor)]
    if other and given is not None:
        what = f"{name} with {shorten(other[0])}"
        raise errors.type(what, where=where, allowed="A Tensor, or a tuple, list or dict of them")
    return () if given is None else signature


@checked(fn=instance(Callable, "A function, a method or a Cell") | None, input_signature=_signature)
def jit(fn: Callable | None = None, *, input_signature: Any = (), **options: Any) -> Callable:
    """Compile a function or method where the parallel mode splits operators; else run it, with equal results.

    Used as `@jit`, `@jit(...)` or `jit(fn)`.

    input_signature  Tensors, one for each argument (a tuple, a list, or the Tensor of a single one) or for some of them
                     (a dict by name): a call whose shapes or dtypes do not fit raises ArgumentTypeError, and so do
                     arguments by name. Dims of -1 or None in them fit any size

    MindSpore's other options change nothing: there is one compiler.
    """
    accepted = (
        *("mode", "hash_args", "jit_config", "compile_once", "jit_level"),
        *("dynamic", "fullgraph", "backend", "capture_mode"),
    )
    unknown = next((name for name in options if name not in accepted), None)
    if unknown is not None:
        raise ArgumentTypeError(
            f"option {unknown!r}", where="jit", allowed=f"Options: input_signature, {', '.join(accepted)}"
        )
    if fn is None:
        return functools.partial(jit, input_signature=input_signature, **options)
    compiled: dict[int, tuple[Any, CompiledFunction]] = {}

    @functools.wraps(fn if not isinstance(fn, Cell) else fn.construct)
    def call(*args: Any, **kwargs: Any) -> Any:
        traced = current_tracer.get() is not None
        if input_signature and not traced:
            _check_signature(fn, input_signature, args, kwargs)
        of_dtensors = not traced and has_dtensors(fn, (args, kwargs))
        if traced or not (of_dtensors or runs_compiled()):
            return fn(*args, **kwargs)
        refuse_on_tape(_name(fn))
        args = positional(fn, args, kwargs)
        owner = args[0] if _is_method_call(fn, args) else None
        if id(owner) not in compiled:
            whole = functools.partial(fn, owner) if owner is not None else fn
            made = DTensorFunction(whole) if of_dtensors else CompiledFunction(whole, returns="as fed")
            compiled[id(owner)] = owner, made
        return compiled[id(owner)][1](*(args[1:] if owner is not None else args))

    return call


def _name(fn: Callable) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _is_method_call(fn: Callable, args: tuple[Any, ...]) -> bool:
    """Whether the first argument is the object whose method `fn` is."""
    return bool(args) and not is_tensor(args[0]) and callable(getattr(type(args[0]), _name(fn), None))


def _check_signature(fn: Callable, signature: Examples, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise ArgumentTypeError or ArgumentError unless a call's arguments fit the `input_signature`."""
    if kwargs:
        what = f"arguments by name: {', '.join(kwargs)}"
        raise ArgumentTypeError(what, where=_name(fn), allowed="With input_signature, arguments by position")
    method = _is_method_call(fn, args)
    inner = fn.construct if isinstance(fn, Cell) else functools.partial(fn, args[0]) if method else fn
    check_inputs_fit(_name(fn), inner, signature, args[1:] if method else args, {}, "input_signature")
