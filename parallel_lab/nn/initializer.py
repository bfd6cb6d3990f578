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

from ..base.checks import checked, choice, fitting, instance, integer, kept, number, sequence_of
from ..base.dtypes import MOST_ELEMENTS, kind_of, plain_array
from ..base.errors import ArgumentError, ArgumentTypeError, NotBuiltYet, ShapeError, shorten
from ..base.hooks import set_from_above
from ..ops.machine.tables import Table
from .tensor.parameter import Parameter
from .tensor.tensor import Initial, Tensor

SHAPE = sequence_of(integer(1), "An int, or a list or tuple of ints, each at least 1", one=True, empty=True)
_drawn = checked(
    generator=instance(np.random.Generator, "A numpy.random.Generator"),
    shape=sequence_of(integer(0), "A list or tuple of ints, each at least 0", one=True, empty=True),
)


class Initializer:
    """A rule for initial values. Subclasses define `draw`."""

    @_drawn
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Values of this shape, drawn from `generator`."""
        raise NotBuiltYet(f"{type(self).__name__} has no draw(generator, shape)", hint="A subclass writes it")

    def __repr__(self) -> str:
        shown = {k: v for k, v in vars(self).items() if not k.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in shown.items())})"


class Constant(Initializer):
    """Every element `value`."""

    @kept(value=number())
    def __init__(self, value: float) -> None: ...

    @_drawn
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, self.value)


class Zero(Constant):
    """Zeros."""

    @fitting
    def __init__(self) -> None:
        super().__init__(0)


class One(Constant):
    """Ones."""

    @fitting
    def __init__(self) -> None:
        super().__init__(1)


class Normal(Initializer):
    """Normal distribution of standard deviation `sigma` around `mean`."""

    @kept(sigma=number(0), mean=number())
    def __init__(self, sigma: float = 0.01, mean: float = 0.0) -> None: ...

    @_drawn
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return generator.normal(self.mean, self.sigma, shape)


class TruncatedNormal(Initializer):
    """Normal distribution without the values outside mean + a * sigma ... mean + b * sigma."""

    @kept(sigma=number(0), mean=number(), a=number(), b=number())
    def __init__(self, sigma: float = 0.01, mean: float = 0.0, a: float = -2.0, b: float = 2.0) -> None:
        share = (math.erf(b / math.sqrt(2)) - math.erf(a / math.sqrt(2))) / 2
        if share < 0.01:  # values are redrawn until they fit; below 1 % that takes too long, and no network wants it
            what = f"a={a}, b={b} keeps {share:.2%} of the distribution"
            raise ArgumentError(what, where="TruncatedNormal", allowed="At least 1 %, with a < b")

    @_drawn
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        values = generator.standard_normal(shape)
        while (outside := (values < self.a) | (values > self.b)).any():
            values[outside] = generator.standard_normal(int(outside.sum()))
        return self.mean + self.sigma * values


class Uniform(Initializer):
    """Uniform distribution on -scale ... scale."""

    @kept(scale=number(0))
    def __init__(self, scale: float = 0.07) -> None: ...

    @_drawn
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return generator.uniform(-self.scale, self.scale, shape)


class XavierUniform(Initializer):
    """Uniform with variance gain^2 * 2 / (fan_in + fan_out) (Glorot and Bengio 2010, eq. 16)."""

    @kept(gain=number(0))
    def __init__(self, gain: float = 1.0) -> None: ...

    @_drawn
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        bound = self.gain * math.sqrt(6 / sum(fans(shape, "XavierUniform")))
        return generator.uniform(-bound, bound, shape)


GAINS = {"relu": math.sqrt(2), "tanh": 5 / 3, "sigmoid": 1.0, "linear": 1.0}


class _He(Initializer):
    """Variance gain^2 / fan (He et al. 2015); mode: "fan_in" or "fan_out".

    nonlinearity  sets the gain: "leaky_relu" (with negative_slope), "relu", "tanh", "sigmoid" or "linear"
    """

    @kept(negative_slope=number(), mode=choice("fan_in", "fan_out"), nonlinearity=choice("leaky_relu", *GAINS))
    def __init__(self, negative_slope: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> None:
        self._gain = GAINS.get(nonlinearity, math.sqrt(2 / (1 + negative_slope**2)))

    def deviation(self, shape: tuple[int, ...]) -> float:
        """Standard deviation of the values for this shape."""
        fan_in, fan_out = fans(shape, type(self).__name__)
        return self._gain / math.sqrt(fan_in if self.mode == "fan_in" else fan_out)


class HeNormal(_He):
    """Normal distribution around 0 with variance gain^2 / fan; arguments as above (He et al. 2015)."""

    @_drawn
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return generator.normal(0, self.deviation(shape), shape)


class HeUniform(_He):
    """Uniform distribution around 0 with variance gain^2 / fan; arguments as above (He et al. 2015)."""

    @_drawn
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        bound = math.sqrt(3) * self.deviation(shape)
        return generator.uniform(-bound, bound, shape)


NAMES: Table[type[Initializer]] = Table(
    {
        "normal": Normal,
        **dict.fromkeys(("zeros", "zero"), Zero),
        **dict.fromkeys(("ones", "one"), One),
        "uniform": Uniform,
        # a class's own name, in any case, is its second name
        **dict.fromkeys(("xavier_uniform", "xavieruniform"), XavierUniform),
        **dict.fromkeys(("he_normal", "henormal"), HeNormal),
        **dict.fromkeys(("he_uniform", "heuniform"), HeUniform),
        **dict.fromkeys(("truncated_normal", "truncatednormal"), TruncatedNormal),
    }
)


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
        values = np.array(init.asnumpy() if isinstance(init, Tensor) else plain_array(init, where="initializer"))
        if kind_of(values.dtype) not in "biuf":
            raise ArgumentTypeError(f"values of {values.dtype}", where="initializer", allowed="Numbers")
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
    """(fan_in, fan_out) of a weight (out, in, ...); dims after the second count for both. ShapeError for one dim."""
    if len(shape) < 2:
        raise ShapeError(f"shape {shape} has {len(shape)} dims", where=where, allowed="At least 2 dims, (out, in, ...)")
    rest = math.prod(shape[2:])
    return shape[1] * rest, shape[0] * rest


def _rule(init: Any) -> Initializer:
    if isinstance(init, Initializer):
        return init
    if isinstance(init, str):
        if init.lower() not in NAMES:
            allowed = f"Names: {', '.join(NAMES)}"
            raise ArgumentError(f"init={init!r} is not known", where="initializer", allowed=allowed)
        return NAMES[init.lower()]()
    if isinstance(init, Number) and not isinstance(init, (bool, complex)):
        return Constant(init)
    allowed = "A name, a number, an Initializer, a Tensor or an array"
    hint = f"Write {init.__name__}()" if isinstance(init, type) and issubclass(init, Initializer) else ""
    raise ArgumentTypeError(f"init={shorten(init)}", where="initializer", allowed=allowed, hint=hint)


def _shape(shape: Any) -> tuple[int, ...]:
    dims = SHAPE("initializer", "shape", shape)
    if math.prod(dims) > MOST_ELEMENTS or len(dims) > 64:
        raise ArgumentError(
            f"shape={shorten(shape)}", where="initializer", allowed="At most 64 dims, and 2**59 elements"
        )
    return dims


def clone_parameter(parameter: Parameter, name: str, init: Any = "same") -> Parameter:
    """A new Parameter of this shape, dtype and flags.  init: "same" values, or what `initializer` takes ("zeros")."""
    p, same = parameter, isinstance(init, str) and init == "same"
    start = Tensor(p.full().asnumpy().copy()) if same else initializer(init, p.full_shape, p.dtype)
    new = Parameter(start, name, p.requires_grad, p.layerwise_parallel, p.parallel_optimizer)
    if p.comm_fusion_given:
        new.comm_fusion = p.comm_fusion
    return new


set_from_above(cloner=clone_parameter)
