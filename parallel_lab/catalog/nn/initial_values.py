"""Rarer rules for initial values (mindspore.common.initializer), also by name: `initializer("orthogonal", shape)`."""

from __future__ import annotations

import math

import numpy as np

from ...base.checks import choice, fitting, integer, kept, number
from ...base.errors import ShapeError
from ...nn.initializer import NAMES, Initializer, TruncatedNormal, _drawn, fans


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
