"""Activations as Cells. Each holds its operator under the operator's own name: `nn.ReLU().relu.shard(((2, 4),))`.

nn.Dense(784, 512, activation="relu")      # by name: see ACTIVATIONS
"""

from __future__ import annotations

from typing import Any

from ...base.checks import checked, flag, kept, text
from ...base.errors import ArgumentError, ArgumentTypeError, shorten
from ...ops import activation
from ...ops.machine.calling import Operator
from ...ops.machine.primitive import Primitive
from ...ops.machine.tables import Table
from ..cell import Cell


class OneOperator(Cell):
    """A layer that is one operator (`operator`: its class), held under the operator's own name."""

    operator: type[Primitive]

    def __init__(self) -> None:
        self._begin()

    def _begin(self, **attributes: Any) -> None:
        super().__init__()
        setattr(self, self.operator.op.name, self.operator(**attributes))

    def construct(self, x: Any) -> Any:
        return getattr(self, self.operator.op.name)(x)


def elementwise(name: str, operator: Operator, formula: str, module: str = __name__) -> type[OneOperator]:
    """The layer class of an operator without settings. module: the one that has it under this name."""
    text = f"{formula}  x: (...) -> (...)."
    return type(name, (OneOperator,), {"operator": operator.primitive, "__doc__": text, "__module__": module})


ReLU = elementwise("ReLU", activation.relu, "max(x, 0).")
Tanh = elementwise("Tanh", activation.tanh, "Hyperbolic tangent.")


class GELU(OneOperator):
    """Gaussian error linear unit; approximate: the form with tanh, not the normal distribution.  x: (...) -> (...)."""

    operator = activation.gelu.primitive

    @kept(approximate=flag)
    def __init__(self, approximate: bool = True) -> None:
        self._begin(approximate="tanh" if approximate else "none")


# MindSpore's names (nn.get_activation); the catalogue has more
ACTIVATIONS: Table[type[Cell]] = Table(relu=ReLU, gelu=GELU, tanh=Tanh)


@checked(prim_name=text | None)
def get_activation(name: str | Cell | Primitive | None, prim_name: str | None = None) -> Cell | Primitive | None:
    """The activation of this name as a new Cell; Cells, Primitives and None are returned as they are.

    prim_name  what errors begin with
    """
    if name is None or isinstance(name, (Cell, Primitive)):
        return name
    if not isinstance(name, str):
        allowed = "A name, a Cell, a Primitive or None"
        raise ArgumentTypeError(f"name={shorten(name)}", where=prim_name or "get_activation", allowed=allowed)
    if name not in ACTIVATIONS:
        allowed = f"Names: {', '.join(ACTIVATIONS)}"
        raise ArgumentError(f"name={name!r} is not known", where=prim_name or "get_activation", allowed=allowed)
    return ACTIVATIONS[name]()
