"""Initial values of Parameters.

    Parameter(initializer("normal", [32, 16]), "w")
    Parameter(initializer(HeUniform(math.sqrt(5)), [16, 32]), "w2")

Nothing is drawn here: the values come from a generator keyed by (global seed, parameter name) when the Parameter is
first read, see `tensor.Initial`. Rules and defaults: MindSpore, common.initializer. A weight of shape (out, in, ...)
has fan_in = in * rest and fan_out = out * rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np

from ..base.errors import ArgumentError, ArgumentTypeError, ShapeError, shorten
from ..base.hooks import set_cloner
from .tensor.tensor import Initial, Parameter, Tensor


class Initializer:
    """A rule for initial values. Subclasses define `draw`."""

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Values of this shape, drawn from `generator`."""
        raise NotImplementedError(f"{type(self).__name__} has no draw(generator, shape)")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in vars(self).items())})"


class Constant(Initializer):
    """Every element `value`."""

    def __init__(self, value: float) -> None:
        self.value = _number(value, "Constant", "value")

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, self.value)


class Zero(Constant):
    """Zeros."""

    def __init__(self) -> None:
        super().__init__(0)


class One(Constant):
    """Ones."""

    def __init__(self) -> None:
        super().__init__(1)


class Normal(Initializer):
    """Normal distribution of standard deviation `sigma` around `mean`."""

    def __init__(self, sigma: float = 0.01, mean: float = 0.0) -> None:
        self.sigma, self.mean = _number(sigma, "Normal", "sigma", least=0), _number(mean, "Normal", "mean")

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return generator.normal(self.mean, self.sigma, shape)


class TruncatedNormal(Initializer):
    """Normal distribution without the values outside mean + a * sigma ... mean + b * sigma."""

    def __init__(self, sigma: float = 0.01, mean: float = 0.0, a: float = -2.0, b: float = 2.0) -> None:
        self.sigma, self.mean = (
            _number(sigma, "TruncatedNormal", "sigma", least=0),
            _number(mean, "TruncatedNormal", "mean"),
        )
        self.a, self.b = _number(a, "TruncatedNormal", "a"), _number(b, "TruncatedNormal", "b")
        kept = (math.erf(self.b / math.sqrt(2)) - math.erf(self.a / math.sqrt(2))) / 2
        if kept < 0.01:  # values are redrawn until they fit; below 1 % that takes too long, and no network wants it
            raise ArgumentError(
                f"a={a}, b={b} keeps {kept:.2%} of the distribution",
                where="TruncatedNormal",
                allowed="At least 1 %, with a < b",
            )

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        values = generator.standard_normal(shape)
        outside = (values < self.a) | (values > self.b)
        while outside.any():
            values[outside] = generator.standard_normal(int(outside.sum()))
            outside = (values < self.a) | (values > self.b)
        return self.mean + self.sigma * values


class Uniform(Initializer):
    """Uniform distribution on -scale ... scale."""

    def __init__(self, scale: float = 0.07) -> None:
        self.scale = _number(scale, "Uniform", "scale", least=0)

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return generator.uniform(-self.scale, self.scale, shape)


class XavierUniform(Initializer):
    """Uniform with variance gain^2 * 2 / (fan_in + fan_out) (Glorot and Bengio 2010, eq. 16)."""

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = _number(gain, "XavierUniform", "gain", least=0)

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        fan_in, fan_out = fans(shape, "XavierUniform")
        bound = self.gain * math.sqrt(6 / (fan_in + fan_out))
        return generator.uniform(-bound, bound, shape)


class _He(Initializer):
    """Variance gain^2 / fan (He et al. 2015).

    negative_slope  of the leaky ReLU that follows (used by nonlinearity "leaky_relu" alone)
    mode            "fan_in" or "fan_out"
    nonlinearity    "leaky_relu", "relu", "tanh", "sigmoid" or "linear": sets the gain
    """

    def __init__(self, negative_slope: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> None:
        where = type(self).__name__
        self.negative_slope = _number(negative_slope, where, "negative_slope")
        gains = {
            "leaky_relu": math.sqrt(2 / (1 + self.negative_slope**2)),
            "relu": math.sqrt(2),
            "tanh": 5 / 3,
            "sigmoid": 1.0,
            "linear": 1.0,
        }
        if mode not in ("fan_in", "fan_out"):
            raise ArgumentError(f"mode={shorten(mode)}", where=where, allowed="'fan_in' or 'fan_out'")
        if nonlinearity not in gains:
            raise ArgumentError(
                f"nonlinearity={shorten(nonlinearity)}", where=where, allowed=f"One of {', '.join(gains)}"
            )
        self.mode, self.nonlinearity = mode, nonlinearity
        self._gain = gains[nonlinearity]

    def deviation(self, shape: tuple[int, ...]) -> float:
        """Standard deviation of the values for this shape."""
        fan_in, fan_out = fans(shape, type(self).__name__)
        return self._gain / math.sqrt(fan_in if self.mode == "fan_in" else fan_out)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.negative_slope}, {self.mode!r}, {self.nonlinearity!r})"


class HeNormal(_He):
    """Normal distribution around 0 with variance gain^2 / fan; arguments as above (He et al. 2015)."""

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return generator.normal(0, self.deviation(shape), shape)


class HeUniform(_He):
    """Uniform distribution around 0 with variance gain^2 / fan; arguments as above (He et al. 2015)."""

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        bound = math.sqrt(3) * self.deviation(shape)
        return generator.uniform(-bound, bound, shape)


NAMES: dict[str, type[Initializer]] = {
    "normal": Normal,
    "zeros": Zero,
    "zero": Zero,
    "ones": One,
    "one": One,
    "uniform": Uniform,
    "xavier_uniform": XavierUniform,
    "xavieruniform": XavierUniform,  # 'XavierUniform': a class's own name, in any case, is its second name
    "he_normal": HeNormal,
    "henormal": HeNormal,
    "he_uniform": HeUniform,
    "heuniform": HeUniform,
    "truncatednormal": TruncatedNormal,
    "truncated_normal": TruncatedNormal,
}


def initializer(
    init: str | Number | Initializer | Tensor | np.ndarray,
    shape: int | Sequence[int] | None = None,
    dtype: Any = np.float32,
) -> Initial:
    """Initial values for a Parameter.

    init   a name ("normal", "zeros", ...), a number, an Initializer, or a Tensor or array that holds the values
    shape  dims, each at least 1; may be omitted if `init` holds the values
    dtype  numpy dtype or its name

    Raises ArgumentError, ArgumentTypeError, and ShapeError when the values have another shape.

    >>> initializer("normal", [32, 16]).shape
    (32, 16)
    """
    if isinstance(init, (Tensor, np.ndarray)):
        values = np.array(init.asnumpy() if isinstance(init, Tensor) else init)
        if shape is not None and _shape(shape) != values.shape:
            raise ShapeError(f"values of shape {values.shape}", where="initializer", allowed=f"Shape {_shape(shape)}")
        return Initial(lambda generator, _: values, values.shape, dtype)
    rule = _rule(init)
    if shape is None:
        raise ArgumentError("no shape is given", where="initializer", allowed="initializer(init, shape)")
    dims = _shape(shape)
    if isinstance(rule, (XavierUniform, _He)):
        fans(dims, type(rule).__name__)
    return Initial(rule.draw, dims, dtype)


def fans(shape: tuple[int, ...], where: str = "fans") -> tuple[int, int]:
    """(fan_in, fan_out) of a weight of shape (out, in, ...): the dims after the second count for both. Fewer than 2
    dims: ShapeError.
    """
    if len(shape) < 2:
        raise ShapeError(f"shape {shape} has {len(shape)} dims", where=where, allowed="At least 2 dims, (out, in, ...)")
    rest = math.prod(shape[2:])
    return shape[1] * rest, shape[0] * rest


def _rule(init: Any) -> Initializer:
    if isinstance(init, Initializer):
        return init
    if isinstance(init, str):
        if init.lower() not in NAMES:
            raise ArgumentError(
                f"init={init!r} is not known", where="initializer", allowed=f"Names: {', '.join(NAMES)}"
            )
        return NAMES[init.lower()]()
    if isinstance(init, Number) and not isinstance(init, (bool, complex)):
        return Constant(init)
    hint = f"Write {init.__name__}()" if isinstance(init, type) and issubclass(init, Initializer) else ""
    raise ArgumentTypeError(
        f"init={shorten(init)}",
        where="initializer",
        allowed="A name, a number, an Initializer, a Tensor or an array",
        hint=hint,
    )


def _shape(shape: Any) -> tuple[int, ...]:
    dims = (shape,) if isinstance(shape, (int, np.integer)) else shape
    if not isinstance(dims, (list, tuple)) or any(
        isinstance(n, bool) or not isinstance(n, (int, np.integer)) for n in dims
    ):
        raise ArgumentTypeError(
            f"shape={shorten(shape)}", where="initializer", allowed="An int, or a list or tuple of ints"
        )
    if any(n < 1 for n in dims):
        raise ArgumentError(f"shape={shorten(shape)}", where="initializer", allowed="Every dim is at least 1")
    return tuple(int(n) for n in dims)


def _number(value: Any, where: str, name: str, least: float = -math.inf) -> float:
    if isinstance(value, (bool, np.bool_, complex)) or not isinstance(value, Number):
        raise ArgumentTypeError(f"{name}={shorten(value)}", where=where, allowed="A number")
    if not math.isfinite(value) or value < least:
        raise ArgumentError(
            f"{name}={shorten(value)}",
            where=where,
            allowed="A finite number" + (f", at least {least}" if least > -math.inf else ""),
        )
    return value


def clone_parameter(parameter: Parameter, name: str, init: Any = "same") -> Parameter:
    """A new Parameter of the same shape, dtype and flags.  init: "same": with the same values; otherwise what
    `initializer` takes, such as "zeros" or a number.
    """
    p = parameter
    start = (
        Tensor(p.full().asnumpy().copy())
        if isinstance(init, str) and init == "same"
        else initializer(init, p.full_shape, p.dtype)
    )
    new = Parameter(start, name, p.requires_grad, p.layerwise_parallel, p.parallel_optimizer)
    if p.comm_fusion_given:
        new.comm_fusion = p.comm_fusion
    return new


set_cloner(clone_parameter)
