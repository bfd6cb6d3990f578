"""Rarer rules for initial values (mindspore.common.initializer), also by name: `initializer("orthogonal", shape)`.

In MindSpore's form, rules are called with what they fill, and derive from Initializer with `_initialize(self, arr)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...base.checks import choice, fitting, instance, integer, kept, number
from ...base.errors import ShapeError
from ...nn.initializer import *  # noqa: F403 - all rules are found here, with the methods below
from ...nn.initializer import GAINS, NAMES, Initializer, Normal, TruncatedNormal, _drawn, fans
from ...nn.tensor.tensor import Tensor


def _check_dims(rule: Initializer, shape: tuple[int, ...], least: int, most: int) -> None:
    if not least <= len(shape) <= most:
        allowed = f"{least} dims" if least == most else f"{least} to {most} dims"
        raise ShapeError(f"shape {shape}", where=type(rule).__name__, allowed=allowed)


class XavierNormal(Initializer):
    """Normal with variance gain^2 * 2 / (fan_in + fan_out) (Glorot and Bengio 2010)."""

    @kept(gain=number(0))
    def __init__(self, gain: float = 1.0) -> None: ...

    @_drawn
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return generator.normal(0, self.gain * math.sqrt(2 / sum(fans(shape, "XavierNormal"))), shape)


class Identity(Initializer):
    """1 on the diagonal, else 0; 2 dims."""

    @fitting
    def __init__(self) -> None: ...

    @_drawn
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        _check_dims(self, shape, 2, 2)
        return np.eye(*shape)


class Orthogonal(Initializer):
    """Rows, or columns if there are fewer, at right angles and of length `gain`; dims after the first count as one
    (Saxe et al. 2014).
    """

    @kept(gain=number())
    def __init__(self, gain: float = 1.0) -> None: ...

    @_drawn
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        _check_dims(self, shape, 2, 64)
        rows, columns = shape[0], math.prod(shape[1:])
        q, r = np.linalg.qr(generator.standard_normal((max(rows, columns), min(rows, columns))))
        q *= np.sign(np.diag(r))  # without it the angles are not equally likely
        return self.gain * (q if rows >= columns else q.T).reshape(shape)


class Sparse(Initializer):
    """Normal with deviation `sigma`, and a share `sparsity` of each column, rounded up, 0; 2 dims (Martens 2010)."""

    @kept(sparsity=number(0, 1), sigma=number(0))
    def __init__(self, sparsity: float, sigma: float = 0.01) -> None: ...

    @_drawn
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        _check_dims(self, shape, 2, 2)
        values = generator.normal(0, self.sigma, shape)
        for column in values.T:
            column[generator.permutation(shape[0])[: math.ceil(self.sparsity * shape[0])]] = 0
        return values


class Dirac(Initializer):
    """What lets a convolution pass its channels: 1 in the middle of kernel i of channel i, in each of `groups`."""

    @kept(groups=integer(1))
    def __init__(self, groups: int = 1) -> None: ...

    @_drawn
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        _check_dims(self, shape, 3, 5)
        if shape[0] % self.groups:
            raise ShapeError(f"shape {shape}", where="Dirac", allowed=f"Dim 0 is a multiple of groups={self.groups}")
        values, each = np.zeros(shape), shape[0] // self.groups
        middle = tuple(size // 2 for size in shape[2:])
        for group in range(self.groups):
            for i in range(min(each, shape[1])):
                values[(group * each + i, i, *middle)] = 1
        return values


class VarianceScaling(Initializer):
    """Variance scale / fan.  mode: "fan_in", "fan_out" or "fan_avg";  distribution: "truncated_normal",
    "untruncated_normal" or "uniform".
    """

    @kept(
        scale=number(0, above=True),
        mode=choice("fan_in", "fan_out", "fan_avg"),
        distribution=choice("uniform", "truncated_normal", "untruncated_normal"),
    )
    def __init__(self, scale: float = 1.0, mode: str = "fan_in", distribution: str = "truncated_normal") -> None: ...

    @_drawn
    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        fan_in, fan_out = fans(shape, "VarianceScaling")
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        sigma = math.sqrt(self.scale / fan)
        if self.distribution == "uniform":
            return generator.uniform(-math.sqrt(3) * sigma, math.sqrt(3) * sigma, shape)
        if self.distribution == "untruncated_normal":
            return generator.normal(0, sigma, shape)
        # cut off at 2 sigma, a normal distribution keeps 0.8796 of its deviation
        return TruncatedNormal(sigma / 0.87962566103423978).draw(generator, shape)


NAMES.update(
    dict.fromkeys(("xavier_normal", "xaviernormal"), XavierNormal),
    **dict.fromkeys(("variance_scaling", "variancescaling"), VarianceScaling),
    orthogonal=Orthogonal,
    identity=Identity,
    dirac=Dirac,
)


# ---- MindSpore's form: rules that fill arrays ----


def _begin(self: Any, **settings: Any) -> None:
    self._kwargs = settings


def _initialize(self: Any, arr: Any) -> None:
    """Fill an array or a Tensor, drawing from numpy's global state."""
    instance((np.ndarray, Tensor), "An array or a Tensor")(type(self).__name__, "arr", arr)
    arr[...] = self.draw(_generator(), tuple(arr.shape))


def _call(self: Any, arr: Any) -> None:
    self._initialize(arr)


def _draw(self: Any, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """What a rule's own `_initialize` fills in. Numpy's global state begins from `generator`, so that all ranks draw
    alike, in whatever order they read their Parameters.
    """
    if type(self)._initialize is _initialize:
        return _without_rule(self, generator, shape)
    values, before = np.zeros(shape, np.float32), np.random.get_state()  # noqa: NPY002
    np.random.seed(generator.integers(2**32))  # noqa: NPY002
    try:
        self._initialize(values)
    finally:
        np.random.set_state(before)  # noqa: NPY002
    return values


_without_rule = Initializer.draw
for _name, _method in {"__init__": _begin, "draw": _draw, "_initialize": _initialize, "__call__": _call}.items():
    setattr(Initializer, _name, _method)


def _generator() -> np.random.Generator:
    return np.random.default_rng(np.random.randint(2**32))  # noqa: NPY002 - scripts seed numpy's global state


def _assignment(arr: np.ndarray, num: Any) -> np.ndarray:
    arr[...] = num
    return arr


def _calculate_correct_fan(shape: Any, mode: str) -> int:
    which = choice("fan_in", "fan_out")("_calculate_correct_fan", "mode", mode.lower())
    return fans(tuple(shape))[which == "fan_out"]


def _calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    slope = 0.01 if param is None else number()("_calculate_gain", "param", param)
    gains = {**GAINS, "leaky_relu": math.sqrt(2 / (1 + slope**2)), "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0}
    return gains[choice(*gains)("_calculate_gain", "nonlinearity", nonlinearity)]


def _init_random_normal(mean: float, sigma: float, shape: Any) -> np.ndarray:
    return Normal(sigma, mean).draw(_generator(), shape).astype(np.float32)


def _init_random_uniform(a: float, b: float, shape: Any) -> np.ndarray:
    return _generator().uniform(a, b, shape).astype(np.float32)


def _init_truncated_normal(a: float, b: float, mean: float, sigma: float, shape: Any) -> np.ndarray:
    return TruncatedNormal(sigma, mean, a, b).draw(_generator(), shape).astype(np.float32)


def _register(*aliases: str) -> Callable[[type], type]:
    """A decorator: `initializer(name, shape)` for the class's own name and for these."""

    def register(kind: type) -> type:
        NAMES.update({name.lower(): kind for name in (kind.__name__, *aliases)})
        return kind

    return register


_Initializer, _INITIALIZER_ALIAS, _calculate_fan_in_and_fan_out = Initializer, NAMES, fans
