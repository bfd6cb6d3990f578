"""What an optimizer may be given: Parameters, or groups of them with own settings; one gradient for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...base.dtypes import kind_of
from ...base.errors import ArgumentError, ArgumentTypeError, ShapeError, shorten
from ..tensor.arithmetic import Arithmetic
from ..tensor.parameter import Parameter
from ..tensor.tensor import Tensor

GROUP_KEYS = ("params", "lr", "weight_decay", "grad_centralization", "order_params")


def is_dtensor(value: Any) -> bool:
    """Whether it is a Parameter that is a DTensor."""
    return getattr(value, "answers", False) and hasattr(value, "name")


def groups_of(where: str, params: list[Any]) -> tuple[list[dict[str, Any]], list[Any] | None]:
    """The groups, each with a list under "params", and the list under "order_params" if there is one."""
    groups, order = [], None
    for i, group in enumerate(params):
        if not isinstance(group, dict):
            allowed = "Groups only, or Parameters only"
            raise ArgumentTypeError(f"params[{i}] is {shorten(group)}", where=where, allowed=allowed)
        unknown = [key for key in group if key not in GROUP_KEYS]
        if unknown:
            allowed = f"Keys: {', '.join(GROUP_KEYS)}"
            raise ArgumentError(f"group {i} has the key {unknown[0]!r}", where=where, allowed=allowed)
        if "order_params" in group:
            order = list(group["order_params"])
            continue
        allowed = "A list of Parameters under 'params'"
        if "params" not in group:
            raise ArgumentError(f"group {i} has no 'params'", where=where, allowed=allowed)
        given = group["params"]
        if isinstance(given, (Tensor, str, dict)) or not isinstance(given, Iterable):
            raise ArgumentTypeError(f"group {i} has params={shorten(given)}", where=where, allowed=allowed)
        groups.append({**group, "params": list(group["params"])})
        if not groups[-1]["params"]:
            raise ArgumentError(f"group {i} has no parameters", where=where, allowed="At least one per group")
    return groups, order


def in_order(where: str, parameters: list[Parameter], order: list[Any]) -> list[Parameter]:
    """The parameters in the order of `order_params`."""
    names = {p.name: p for p in parameters}
    ordered_names = [p.name for p in order if hasattr(p, "name") and p.requires_grad]
    if sorted(ordered_names) != sorted(names):
        odd = sorted(set(ordered_names) ^ set(names)) or [n for n in ordered_names if ordered_names.count(n) > 1]
        allowed = "Every parameter of the groups, each once"
        raise ArgumentError(f"order_params and the groups differ in {', '.join(odd)}", where=where, allowed=allowed)
    return [names[name] for name in ordered_names]


def trained_parameters(where: str, params: list[Any]) -> list[Parameter]:
    """Those of `params` that are trained, checked: Parameters of floats with different names."""
    allowed = "Parameters, for instance net.trainable_params()"
    names: dict[str, Parameter] = {}
    for i, parameter in enumerate(params):
        if not (isinstance(parameter, Parameter) or is_dtensor(parameter)):
            raise ArgumentTypeError(f"params[{i}] is {shorten(parameter)}", where=where, allowed=allowed)
        if parameter.name in names:
            same = "is given twice" if names[parameter.name] is parameter else "is the name of two parameters"
            raise ArgumentError(f"{parameter.name!r} {same}", where=where, allowed="Parameters with different names")
        names[parameter.name] = parameter
    trained = [p for p in names.values() if p.requires_grad]
    if not trained:
        raise ArgumentError("there is nothing to train" if names else "params is empty", where=where, allowed=allowed)
    for p in trained:
        if kind_of(p.dtype) != "f":
            what, allowed = f"parameter {p.name!r} has dtype {p.dtype}", "Parameters with a float dtype"
            raise ArgumentTypeError(what, where=where, allowed=allowed)
    return trained


def one_gradient_each(where: str, grads: Any, parameters: Sequence[Parameter]) -> Sequence[Any]:
    """`grads`, checked to be one per parameter."""
    allowed = "A list or tuple with one gradient per parameter"
    if isinstance(grads, (Arithmetic, np.ndarray)) or not isinstance(grads, Sequence):
        raise ArgumentTypeError(f"gradients {shorten(grads)}", where=where, allowed=allowed)
    if len(grads) != len(parameters):
        raise ShapeError(f"got {len(grads)} gradients", where=where, allowed=f"{len(parameters)}, one per parameter")
    for p, g in zip(parameters, grads, strict=True):
        if g is None:
            what, allowed = f"the gradient of {p.name!r} is None", "A Tensor or an array each"
            hint = "A parameter that the loss does not depend on has a gradient of zeros: ops.zeros_like(parameter)"
            raise ArgumentTypeError(what, where=where, allowed=allowed, hint=hint)
    return grads
