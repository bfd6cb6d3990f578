"""Activations as Cells, also by name: `nn.Dense(784, 512, activation="leakyrelu")`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...base.checks import Check, checked, choice, floating, integer, kept, number
from ...base.errors import ArgumentError, ArgumentTypeError
from ...nn.cell import Cell
from ...nn.initializer import initializer
from ...nn.layers.activation import ACTIVATIONS, OneOperator, elementwise
from ...nn.tensor.parameter import Parameter
from ...ops import activation
from ...ops.elementwise import mul, neg, sub
from ...ops.join import split_parts
from ..ops import activations

_layer = partial(elementwise, module=__name__)

ReLU6 = _layer("ReLU6", activations.relu6, "min(max(x, 0), 6).")
SiLU = _layer("SiLU", activations.silu, "x * sigmoid(x).")
Sigmoid = _layer("Sigmoid", activations.sigmoid, "1 / (1 + exp(-x)).")
Softplus = _layer("Softplus", activations.softplus, "log(1 + exp(x)), without overflow.")
HSigmoid = _layer("HSigmoid", activations.hsigmoid, "The sigmoid in straight pieces: (x + 3) / 6 between 0 and 1.")
HSwish = _layer("HSwish", activations.hswish, "x times HSigmoid of x.")
Mish = _layer("Mish", activations.mish, "x * tanh(softplus(x)).")
SeLU = _layer("SeLU", activations.selu, "1.0507 times (x where x > 0, 1.6733 (exp(x) - 1) elsewhere).")
Softsign = _layer("Softsign", activations.softsign, "x / (1 + |x|).")
FastGelu = _layer("FastGelu", activations.fast_gelu, "x * sigmoid(1.702 x), which is near GELU.")


class LeakyReLU(OneOperator):
    """x where x > 0, alpha * x elsewhere.  x: (...) -> (...). Default alpha: MindSpore's."""

    operator = activations.leaky_relu.primitive

    @kept(alpha=number())
    def __init__(self, alpha: float = 0.2) -> None:
        self._begin(negative_slope=alpha)


class PReLU(Cell):
    """x where x > 0, weight * x elsewhere.  x: (n, c, ...) -> like x. channel: 1 or c trained weights, w at first."""

    @checked(channel=integer(1))
    def __init__(self, channel: int = 1, w: Any = 0.25) -> None:
        super().__init__()
        if isinstance(w, int):  # True too
            raise ArgumentTypeError(f"w={w}", where="PReLU", allowed="A float, a Tensor of floats, or an initializer")
        self.w = Parameter(initializer(w, (channel,), np.float32), name="a")
        self.prelu = activations.prelu.primitive()

    def construct(self, x: Any) -> Any:
        return self.prelu(x, self.w)


class ELU(OneOperator):
    """x where x > 0, exp(x) - 1 elsewhere.  x: (...) -> (...). alpha: 1.0, as in MindSpore; `ops.Elu` takes others."""

    operator = activations.elu.primitive

    @kept(alpha=choice(1.0))
    def __init__(self, alpha: float = 1.0) -> None:
        self._begin(alpha=alpha)


def _read_slope(value: Any) -> float:
    if floating().read(value) == 0:
        raise ValueError
    return float(value)


_SLOPE = Check("A finite float other than 0", _read_slope)


class CELU(OneOperator):
    """x where x > 0, alpha * (exp(x / alpha) - 1) elsewhere.  x: (...) -> (...). alpha: not 0."""

    operator = activations.celu.primitive

    @kept(alpha=_SLOPE)
    def __init__(self, alpha: float = 1.0) -> None:
        self._begin(alpha=alpha)


class HShrink(OneOperator):
    """x where |x| > lambd, 0 elsewhere.  x: (...) -> (...)."""

    operator = activations.hardshrink.primitive

    @kept(lambd=floating(0))
    def __init__(self, lambd: float = 0.5) -> None:
        self._begin(lambd=lambd)


class SoftShrink(HShrink):
    """x, lambd nearer to 0, where |x| > lambd, 0 elsewhere.  x: (...) -> (...)."""

    operator = activations.soft_shrink.primitive


class Hardtanh(OneOperator):
    """x, at least min_val and at most max_val.  x: (...) -> (...)."""

    operator = activations.hardtanh.primitives["Hardtanh"]

    @kept(min_val=number(), max_val=number())
    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        if min_val >= max_val:
            what = f"min_val={min_val} and max_val={max_val}"
            raise ArgumentError(what, where="Hardtanh", allowed="min_val below max_val")
        self._begin(min_val=min_val, max_val=max_val)


class Threshold(Cell):
    """x where x > threshold, `value` elsewhere.  x: (...) -> (...)."""

    @kept(threshold=number(), value=number())
    def __init__(self, threshold: float, value: float) -> None:
        super().__init__()
        self.threshold_op = activations.threshold.primitive()

    def construct(self, x: Any) -> Any:
        return self.threshold_op(x, self.threshold, self.value)


class Tanhshrink(Cell):
    """x - tanh(x).  x: (...) -> (...)."""

    def __init__(self) -> None:
        super().__init__()
        self.tanh, self.sub = activation.tanh.primitive(), sub.primitive()

    def construct(self, x: Any) -> Any:
        return self.sub(x, self.tanh(x))


class GLU(Cell):
    """The first half along `axis` times the sigmoid of the second.  x: (..., 2n, ...) -> (..., n, ...)."""

    @kept(axis=integer())
    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.split = split_parts.primitive(axis=axis, output_num=2)
        self.sigmoid = activations.sigmoid.primitive()
        self.mul = mul.primitive()

    def construct(self, x: Any) -> Any:
        first, second = self.split(x)
        return self.mul(first, self.sigmoid(second))


class LogSigmoid(Cell):
    """log(1 / (1 + exp(-x))), without overflow: minus the softplus of -x.  x: (...) -> (...)."""

    def __init__(self) -> None:
        super().__init__()
        self.neg1, self.softplus, self.neg2 = neg.primitive(), activations.softplus.primitive(), neg.primitive()

    def construct(self, x: Any) -> Any:
        return self.neg2(self.softplus(self.neg1(x)))


class Softmax(OneOperator):
    """exp(x) / sum of exp(x) along `axis`.  x: (...) -> (...)."""

    operator = activation.softmax.primitive

    @kept(axis=integer())
    def __init__(self, axis: int = -1) -> None:
        self._begin(axis=axis)


class Softmin(Cell):
    """softmax of -x along `axis`.  x: (...) -> (...)."""

    @kept(axis=integer())
    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.neg, self.softmax = neg.primitive(), activation.softmax.primitive(axis=axis)

    def construct(self, x: Any) -> Any:
        return self.softmax(self.neg(x))


class LogSoftmax(Softmax):
    """Logarithm of the softmax along `axis`.  x: (...) -> (...)."""

    operator = activations.log_softmax.primitive


_NAMED = (Sigmoid, Softmax, LogSoftmax, ReLU6, LeakyReLU, PReLU, ELU, SiLU, HSwish, HSigmoid, LogSigmoid, Mish, SeLU)
_NAMED += (CELU, Softsign, HShrink, SoftShrink, Softmin, Hardtanh, Tanhshrink)
ACTIVATIONS.update({cell.__name__.lower(): cell for cell in _NAMED}, fast_gelu=FastGelu)
