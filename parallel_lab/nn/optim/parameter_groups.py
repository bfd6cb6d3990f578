"""What an optimizer may be given as `params`: Parameters, or groups of them with settings of their own. Checks and
errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...base.errors import ArgumentError, ArgumentTypeError, shorten
from ..tensor.tensor import Parameter, Tensor

GROUP_KEYS = ("params", "lr", "weight_decay", "grad_centralization", "order_params")


def groups_of(where: str, params: list[Any]) -> tuple[list[dict[str, Any]], list[Any] | None]:
    """The groups, each with a list under "params", and the list under "order_params" if there is one."""
    groups, order = [], None
    for i, group in enumerate(params):
        if not isinstance(group, dict):
            raise ArgumentTypeError(
                f"params[{i}] is {shorten(group)}", where=where, allowed="Groups only, or Parameters only"
            )
        unknown = [key for key in group if key not in GROUP_KEYS]
        if unknown:
            raise ArgumentError(
                f"group {i} has the key {unknown[0]!r}", where=where, allowed=f"Keys: {', '.join(GROUP_KEYS)}"
            )
        if group.get("grad_centralization"):
            hint = "Omit it; subtract the mean from the gradients by hand if you need it"
            what = f"group {i} asks for grad_centralization, which is not available"
            raise ArgumentError(what, where=where, hint=hint)
        if "order_params" in group:
            order = list(group["order_params"])
            continue
        if "params" not in group:
            raise ArgumentError(
                f"group {i} has no 'params'", where=where, allowed="A list of Parameters under 'params'"
            )
        if isinstance(group["params"], (Tensor, str, dict)) or not isinstance(group["params"], Iterable):
            raise ArgumentTypeError(
                f"group {i} has params={shorten(group['params'])}", where=where, allowed="A list of Parameters"
            )
        groups.append({**group, "params": list(group["params"])})
        if not groups[-1]["params"]:
            raise ArgumentError(f"group {i} has no parameters", where=where, allowed="At least one per group")
    return groups, order


def in_order(where: str, found: list[Parameter], order: list[Any]) -> list[Parameter]:
    """The parameters in the order of `order_params`."""
    names = {p.name: p for p in found}
    wanted = [p.name for p in order if isinstance(p, Parameter) and p.requires_grad]
    if sorted(wanted) != sorted(names):
        odd = sorted(set(wanted) ^ set(names)) or [n for n in wanted if wanted.count(n) > 1]
        allowed = "Every parameter of the groups, each once"
        raise ArgumentError(f"order_params and the groups differ in {', '.join(odd)}", where=where, allowed=allowed)
    return [names[name] for name in wanted]


def trained_parameters(where: str, params: list[Any]) -> list[Parameter]:
    """Those of `params` that are trained, checked: Parameters of floats with different names."""
    allowed = "Parameters, for instance net.trainable_params()"
    names: dict[str, Parameter] = {}
    for i, parameter in enumerate(params):
        if not isinstance(parameter, Parameter):
            raise ArgumentTypeError(f"params[{i}] is {shorten(parameter)}", where=where, allowed=allowed)
        if parameter.name in names:
            same = "is given twice" if names[parameter.name] is parameter else "is the name of two parameters"
            raise ArgumentError(f"{parameter.name!r} {same}", where=where, allowed="Parameters with different names")
        names[parameter.name] = parameter
    found = [p for p in names.values() if p.requires_grad]
    if not found:
        raise ArgumentError("there is nothing to train" if names else "params is empty", where=where, allowed=allowed)
    for p in found:
        if p.dtype.kind != "f":
            raise ArgumentTypeError(
                f"parameter {p.name!r} has dtype {p.dtype}", where=where, allowed="Parameters with a float dtype"
            )
    return found
