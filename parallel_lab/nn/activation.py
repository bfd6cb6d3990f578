"""Activations as Cells. Each holds its operator under the operator's own name: `nn.ReLU().relu.shard(((2, 4),))`.

nn.Dense(784, 512, activation="relu")      # by name: see ACTIVATIONS
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops
from ..errors import ArgumentError, ArgumentTypeError, message, shorten
from ..ops.registry import Primitive
from ..tensor import Parameter
from .cell import Cell
from .checks import flag, number, whole_number
from .initializer import initializer

__all__ = [
    "ACTIVATIONS",
    "ELU",
    "GELU",
    "HSigmoid",
    "HSwish",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "PReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "get_activation",
]


class ReLU(Cell):
    """max(x, 0).  x: (...) -> (...)."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = ops.ReLU()

    def construct(self, x: Any) -> Any:
        return self.relu(x)


class ReLU6(Cell):
    """min(max(x, 0), 6).  x: (...) -> (...)."""

    def __init__(self) -> None:
        super().__init__()
        self.relu6 = ops.ReLU6()

    def construct(self, x: Any) -> Any:
        return self.relu6(x)


class LeakyReLU(Cell):
    """x where x > 0, alpha * x elsewhere.  x: (...) -> (...). Default alpha: MindSpore's."""

    def __init__(self, alpha: float = 0.2) -> None:
        super().__init__()
        self.leaky_relu = ops.LeakyReLU(negative_slope=number(alpha, "LeakyReLU", "alpha"))

    def construct(self, x: Any) -> Any:
        return self.leaky_relu(x)


class PReLU(Cell):
    """x where x > 0, weight * x elsewhere, with a trained weight.  x: (n, c, ...) -> (n, c, ...).

    channel  1 for one weight, or the number of channels for one each;  w  initial weight
    """

    def __init__(self, channel: int = 1, w: Any = 0.25) -> None:
        super().__init__()
        self.w = Parameter(initializer(w, (whole_number(channel, "PReLU", "channel", least=1),), np.float32), name="a")
        self.prelu = ops.PReLU()

    def construct(self, x: Any) -> Any:
        return self.prelu(x, self.w)


class ELU(Cell):
    """x where x > 0, alpha * (exp(x) - 1) elsewhere.  x: (...) -> (...)."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.elu = ops.Elu(alpha=number(alpha, "ELU", "alpha"))

    def construct(self, x: Any) -> Any:
        return self.elu(x)


class GELU(Cell):
    """Gaussian error linear unit.  x: (...) -> (...).

    approximate  True: the form with tanh; False: x times the normal distribution function
    """

    def __init__(self, approximate: bool = True) -> None:
        super().__init__()
        self.gelu = ops.GeLU(approximate="tanh" if flag(approximate, "GELU", "approximate") else "none")

    def construct(self, x: Any) -> Any:
        return self.gelu(x)


class SiLU(Cell):
    """x * sigmoid(x).  x: (...) -> (...)."""

    def __init__(self) -> None:
        super().__init__()
        self.silu = ops.SiLU()

    def construct(self, x: Any) -> Any:
        return self.silu(x)


class Sigmoid(Cell):
    """1 / (1 + exp(-x)).  x: (...) -> (...)."""

    def __init__(self) -> None:
        super().__init__()
        self.sigmoid = ops.Sigmoid()

    def construct(self, x: Any) -> Any:
        return self.sigmoid(x)


class LogSigmoid(Cell):
    """log(1 / (1 + exp(-x))), without overflow: minus the softplus of -x.  x: (...) -> (...)."""

    def __init__(self) -> None:
        super().__init__()
        self.neg1, self.softplus, self.neg2 = ops.Neg(), ops.Softplus(), ops.Neg()

    def construct(self, x: Any) -> Any:
        return self.neg2(self.softplus(self.neg1(x)))


class Softplus(Cell):
    """log(1 + exp(x)), without overflow.  x: (...) -> (...)."""

    def __init__(self) -> None:
        super().__init__()
        self.softplus = ops.Softplus()

    def construct(self, x: Any) -> Any:
        return self.softplus(x)


class HSigmoid(Cell):
    """The sigmoid in straight pieces: (x + 3) / 6 between 0 and 1.  x: (...) -> (...)."""

    def __init__(self) -> None:
        super().__init__()
        self.hsigmoid = ops.HSigmoid()

    def construct(self, x: Any) -> Any:
        return self.hsigmoid(x)


class HSwish(Cell):
    """x times HSigmoid of x.  x: (...) -> (...)."""

    def __init__(self) -> None:
        super().__init__()
        self.hswish = ops.HSwish()

    def construct(self, x: Any) -> Any:
        return self.hswish(x)


class Tanh(Cell):
    """Hyperbolic tangent.  x: (...) -> (...)."""

    def __init__(self) -> None:
        super().__init__()
        self.tanh = ops.Tanh()

    def construct(self, x: Any) -> Any:
        return self.tanh(x)


class Softmax(Cell):
    """exp(x) / sum of exp(x) along `axis`.  x: (...) -> (...)."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.softmax = ops.Softmax(axis=whole_number(axis, "Softmax", "axis"))

    def construct(self, x: Any) -> Any:
        return self.softmax(x)


class LogSoftmax(Cell):
    """Logarithm of the softmax along `axis`.  x: (...) -> (...)."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.log_softmax = ops.LogSoftmax(axis=whole_number(axis, "LogSoftmax", "axis"))

    def construct(self, x: Any) -> Any:
        return self.log_softmax(x)


# MindSpore's names (nn.get_activation)
ACTIVATIONS: dict[str, type[Cell]] = {
    "relu": ReLU,
    "gelu": GELU,
    "sigmoid": Sigmoid,
    "tanh": Tanh,
    "softmax": Softmax,
    "logsoftmax": LogSoftmax,
    "relu6": ReLU6,
    "leakyrelu": LeakyReLU,
    "prelu": PReLU,
    "elu": ELU,
    "silu": SiLU,
    "hswish": HSwish,
    "hsigmoid": HSigmoid,
    "logsigmoid": LogSigmoid,
}


def get_activation(activation: str | Cell | Primitive | None, where: str = "get_activation") -> Cell | Primitive | None:
    """The activation of this name as a new Cell; Cells, Primitives and None are returned as they are."""
    if activation is None or isinstance(activation, (Cell, Primitive)):
        return activation
    if not isinstance(activation, str):
        raise ArgumentTypeError(message(f"activation={shorten(activation)}", where=where, allowed="A name, a Cell, a Primitive or None"))
    if activation not in ACTIVATIONS:
        raise ArgumentError(message(f"activation={activation!r} is not known", where=where, allowed=f"Names: {', '.join(ACTIVATIONS)}"))
    return ACTIVATIONS[activation]()
