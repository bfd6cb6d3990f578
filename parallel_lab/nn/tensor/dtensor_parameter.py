"""Parameters that are DTensors: how a Cell holds them, and what an optimizer does with their gradients.

    distribute_parameter(net.fc1, "weight", mesh, [Shard(0)])
    net(x).sum().backward()
    update(net.trainable_params(), lambda p, g: p - 0.1 * g)

A gradient may be pending (`dtensor_gradients.py`). An update lays it out as the parameter is, which reduces it, and the
message's reason says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...base.errors import ArgumentTypeError
from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import AxisPlacement, MeshLayout
from .dtensor import DTensor, RankTensors, distribute_tensor
from .dtensor_calls import on_ranks
from .dtensor_parts import Locals, P, dual, move


class DTensorParameter(DTensor):
    """A DTensor that a Cell holds as its Parameter: it has a name, and `grad` after `backward`."""

    __slots__ = ("name",)

    def __init__(self, parts: Locals, layout: MeshLayout, shape: Sequence[int], name: str, wanted: bool = True) -> None:
        super().__init__(parts, layout, shape, wanted)
        self.name = name

    def like(self, parts: Locals, layout: MeshLayout, shape: Sequence[int]) -> DTensor:  # type: ignore[override]
        return DTensor(parts, layout, shape)

    @on_ranks(changes=True)
    def take(self, new: DTensor) -> None:
        """Have the values of a DTensor that lies as this one does, and no gradient."""
        self._locals, self._grad = new._locals, None

    @on_ranks(changes=True)
    def set_data(self, data: Any) -> DTensorParameter:
        """Have the values of a whole tensor, cut as this one is. Returns self."""
        self._locals = distribute_tensor(data, self.mesh, self.placements)._locals
        return self

    full_shape = property(lambda self: self.shape, doc="That of the whole.")

    def __reduce__(self) -> tuple[Any, ...]:
        return DTensorParameter, (self._locals, self.layout, self._shape, self.name, self._wanted)


def hold(cell: Any, attribute: str, value: P) -> P:
    """Let a Cell hold `value` as its Parameter. Returns it."""
    cell._params[attribute] = cell.__dict__[attribute] = value
    return value


def distribute_parameter(
    cell: Any, attribute: str, mesh: DeviceMesh, placements: Sequence[AxisPlacement]
) -> DTensorParameter:
    """Cut a Cell's Parameter into the parts of a layout. Returns the DTensor, which keeps its name."""
    old = cell._params[attribute]
    return hold(cell, attribute, cut_parameter(old.asnumpy(), mesh, placements, old.name, old.requires_grad))


@on_ranks()
def cut_parameter(
    value: Any, mesh: DeviceMesh, placements: Sequence[AxisPlacement], name: str, wanted: bool
) -> DTensorParameter:
    """A whole value cut into the parts of a Parameter of this name.  wanted: whether it is trained"""
    whole = distribute_tensor(value, mesh, placements)
    return DTensorParameter(whole._locals, whole.layout, whole.shape, name, wanted)


def reduced(parameter: Any, reason: str) -> Any:
    """A parameter's gradient, laid out as the parameter: what is pending is reduced. None without one."""
    grad = parameter.grad
    if grad is None or not isinstance(parameter, DTensorParameter):
        return grad
    return move(grad, parameter.layout, f"{reason} reads the gradient of {parameter.name}")


def update(parameters: Iterable[Any], rule: Callable[[Any, Any], Any]) -> None:
    """Give every DTensor parameter that has a gradient the value rule(parameter, gradient), and forget the gradient.

        update(net.trainable_params(), lambda p, g: p - 0.1 * g)

    Raises ArgumentTypeError for another Parameter, which an optimizer updates.
    """
    for parameter in parameters:
        if not isinstance(parameter, DTensorParameter):
            allowed = "Those of parallelize_module and fully_shard"
            raise ArgumentTypeError(f"Parameter {parameter.name!r}", where="update", allowed=allowed)
        grad = reduced(parameter, "an update")
        if grad is not None:
            new = move(rule(parameter.detach(), grad), parameter.layout, f"update of {parameter.name}")
            parameter.take(new)


def clip_gradients(parameters: Iterable[Any], max_norm: float) -> float:
    """Scale the gradients of DTensor parameters so that the norm of all together is at most `max_norm`.

    Returns the norm before. Pending gradients are reduced first: the norm of a sum is not a sum of norms.
    """
    held = [(p, g) for p in parameters if (g := reduced(p, "clipping")) is not None]
    norm = float(np.sqrt(sum(float((g * g).sum()) for _, g in held)))
    for parameter, grad in held:
        parameter.grad = grad * min(1.0, max_norm / (norm + 1e-6))
    return norm


def settled(value: Any, reason: str) -> Any:
    """A tensor whose elements are read: a DTensor with what is pending reduced."""
    return move(value, dual(value.layout), reason) if isinstance(value, DTensor) and value.layout.pending else value


def as_dtensor(value: Any, mesh: DeviceMesh, placement: AxisPlacement | None) -> Any:
    """What a Cell is given or gives, as a DTensor: ranks' own parts laid out as `placement` says.

    placement  None: left as it is, like anything but a tensor
    """
    if placement is None or not hasattr(value, "asnumpy"):
        return value
    if isinstance(value, DTensor) and not isinstance(value, RankTensors):
        return value
    return DTensor.from_local(value, mesh, [placement])
