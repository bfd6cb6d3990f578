"""What compiled functions take and return: tensors, also inside tuples, lists and dicts, and other arguments.

form, tensors = tensors_of((x, {"mask": m}, 3))     # (Slot(0), {"mask": Slot(1)}, 3), [x, m]
fill_form(form, [1.0, 2.0])                         # (1.0, {"mask": 2.0}, 3)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..nn.tensor.parameter import Parameter
from ..nn.tensor.tensor import Tensor
from ..ops.machine.registry import OPS
from .traced_value import TracedValue


class Slot(NamedTuple):
    """The place of a tensor: of an argument, or of one of the graph's outputs in what the function returned."""

    number: int


def fill_form(form: Any, values: Sequence[Any]) -> Any:
    """What a traced function returned, with values instead of its slots."""
    return map_form(lambda part: values[part.number] if isinstance(part, Slot) else part, form)


def map_form(change: Callable[[Any], Any], form: Any) -> Any:
    """`form` with `change` of what stands in its lists, tuples and dicts."""
    if isinstance(form, (list, tuple)) and not isinstance(form, Slot):
        parts = [map_form(change, part) for part in form]
        return type(form)(*parts) if hasattr(form, "_fields") else type(form)(parts)
    return {k: map_form(change, part) for k, part in form.items()} if isinstance(form, dict) else change(form)


def leaves(form: Any) -> list[Any]:
    """What stands in the lists, tuples and dicts of a form."""
    if isinstance(form, (list, tuple)) and not isinstance(form, Slot):
        return [leaf for part in form for leaf in leaves(part)]
    return [leaf for part in form.values() for leaf in leaves(part)] if isinstance(form, dict) else [form]


def slot_for(part: Any, tracer: Any, outputs: list[str]) -> Any:
    """The Slot of a value, whose name is added to `outputs`; anything else as it is."""
    changed = tracer.constant_names.get(id(part), "") not in ("", *tracer.inputs)  # a constant with other elements now
    if not (changed or isinstance(part, (TracedValue, Parameter))):
        return part
    name = tracer.operand(part, []).name
    if name not in outputs:
        outputs.append(name)
    return Slot(outputs.index(name))


def computed(result: Any, tracer: Any) -> Any:
    """What a network returned, where tensors are its inputs as they are, or all constants: each as an Identity's."""
    answers = any(isinstance(part, (TracedValue, Parameter)) for part in leaves(result))
    if tracer.nodes and (answers or tracer.optimizers):
        return result
    return map_form(lambda part: OPS["identity"](part) if isinstance(part, (Tensor, TracedValue)) else part, result)


# ---- arguments ----


def is_tensor(value: Any) -> bool:
    """Whether an argument of a call is data, and not part of the program."""
    return isinstance(value, (Tensor, np.ndarray))


def tensors_of(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
    """(arguments with a Slot for every tensor, the tensors), those in tuples, lists and dicts too."""
    tensors: list[Any] = []

    def slot(value: Any) -> Any:
        if not is_tensor(value):
            return value
        tensors.append(value)
        return Slot(len(tensors) - 1)

    return map_form(slot, args), tensors


def of_tensors(fn: Callable[..., Any], form: tuple[Any, ...]) -> Callable[..., Any]:
    """`fn` called with arguments of this form, as a function of its tensors alone."""
    if all(isinstance(each, Slot) for each in form):
        return fn

    @functools.wraps(getattr(fn, "construct", fn))
    def run(*tensors: Any) -> Any:
        return fn(*fill_form(form, tensors))

    names = input_names(getattr(fn, "construct", fn), len(form))
    counts = [len([part for part in leaves(each) if isinstance(part, Slot)]) for each in form]
    inputs = [
        name if isinstance(each, Slot) else f"{name}_{i}"
        for name, each, count in zip(names, form, counts, strict=True)
        for i in range(count)
    ]
    kept = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in inputs]
    run.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    return run


def input_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names for `count` positional inputs, taken from the function's own parameters where it has them."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [names[i] if i < len(names) else f"input{i}" for i in range(count)]
