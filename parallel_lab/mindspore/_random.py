"""MindSpore's random operators: their classes, `StandardNormal(seed)(shape)`, and functions that give Tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ops
from ..base import seeds
from ..base.checks import checked, fitting, flag, integer
from ..base.errors import ArgumentTypeError
from ..catalog.ops.random_numbers import SIZE
from ..nn.tensor.tensor import Tensor
from ..ops.elementwise import a_dtype
from ..ops.spellings import tensor_operand


def as_tensors(made: Any) -> Any:
    """Arrays as Tensors, several in a tuple; values of a trace as they are."""
    if isinstance(made, tuple):
        return tuple(map(as_tensors, made))
    return Tensor(made) if isinstance(made, np.ndarray) else made


def _given(fn: Callable) -> Callable:
    @functools.wraps(fn)
    def draw(*args: Any, **kwargs: Any) -> Any:
        return as_tensors(fn(*args, **kwargs))

    return draw


@functools.cache
def __getattr__(name: str) -> Any:
    """A function of parallel_lab.ops, giving Tensors."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return _given(getattr(ops, name))


def _shape(where: str, shape: Any) -> tuple[int, ...]:
    """A shape, as a tuple or as a constant Tensor of ints."""
    if hasattr(shape, "tracer"):
        raise ArgumentTypeError(
            "shape is computed by the network", where=where, allowed="A tuple, or a constant Tensor"
        )
    if hasattr(shape, "asnumpy"):
        sizes = shape.asnumpy().tolist()
        shape = tuple(sizes) if isinstance(sizes, list) else sizes
    return SIZE(where, "shape", shape)


class _Draw:
    """What MindSpore's random operators have in common: two seeds, and a call that draws anew each time.

    The key of a draw is made of the global seed, the number of the operator, and its seeds; the step and the number of
    the call within it tell its draws apart.
    """

    dtype: Any = None

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "__call__" in vars(cls):
            cls.__call__ = fitting(vars(cls)["__call__"])  # type: ignore[method-assign]

    @checked(seed=integer(0), seed2=integer(0))
    def __init__(self, seed: int = 0, seed2: int = 0) -> None:
        self._prepare(seed, seed2)

    def _prepare(self, *given: Any, **attrs: Any) -> None:
        super().__init__(**attrs)
        self._seeds, self._number, self._calls = given, seeds.next_draw(), ops.StepCalls()

    def _draw(self, *operands: Any, **attrs: Any) -> Any:
        step, again = self._calls.next()
        name = type(self).__name__
        key = ops.dropout_key(seeds.get_seed(), name, self._number, *self._seeds, again)
        self.given.update(attrs, key=key)
        return as_tensors(super().__call__(step, *operands))


class _OfShape(_Draw):
    def __call__(self, shape: Any) -> Any:
        return self._draw(shape=_shape(type(self).__name__, shape))


class StandardNormal(_OfShape, ops.StandardNormal):
    """`StandardNormal(seed, seed2)(shape)`: normal numbers, mean 0 and deviation 1.  -> `shape` float32."""


class StandardLaplace(_OfShape, ops.StandardLaplace):
    """`StandardLaplace(seed, seed2)(shape)`: numbers with density exp(-|x|) / 2.  -> `shape` float32."""


class UniformReal(_OfShape, ops.UniformReal):
    """`UniformReal(seed, seed2)(shape)`: numbers from 0 to below 1.  -> `shape` float32."""


class _Typed(_Draw):
    """With the dtype of the result as a third argument."""

    kinds = "f"

    @checked(seed=integer(0), seed2=integer(0))
    def __init__(self, seed: int = 0, seed2: int = 0, dtype: Any = None) -> None:
        self._prepare(seed, seed2)
        self.result = None if dtype is None else str(a_dtype(type(self).__name__, "dtype", dtype))

    def _draw(self, *operands: Any, **attrs: Any) -> Any:
        made = super()._draw(*operands, **attrs)
        return made if self.result in (None, str(made.dtype)) else ops.cast(made, dtype=self.result)


class TruncatedNormal(_Typed, ops.TruncatedNormal):
    """`TruncatedNormal(dtype, seed, seed2)(shape)`: normal numbers between -2 and 2.  -> `shape`."""

    @fitting
    def __init__(self, dtype: Any = None, seed: int = 0, seed2: int = 0) -> None:
        super().__init__(seed, seed2, dtype)

    __call__ = _OfShape.__call__


class Randperm(_Draw, ops.Randperm):
    """`Randperm(max_length, pad, dtype)(n)`: 0 to n - 1 in some order, then `pad`.  -> (max_length,)."""

    @checked(max_length=integer(1), pad=integer())
    def __init__(self, max_length: int = 1, pad: int = -1, dtype: Any = np.int32) -> None:
        self.max_length, self.pad, self.result = max_length, pad, str(a_dtype("Randperm", "dtype", dtype))
        self._prepare(n=1)

    def __call__(self, n: Any) -> Any:
        given = int(n.asnumpy().reshape(())) if hasattr(n, "asnumpy") and not hasattr(n, "tracer") else n
        count = integer(0, self.max_length)("Randperm", "n", given)
        if not count:
            return Tensor(np.full(self.max_length, self.pad, self.result))
        made = ops.cast(self._draw(np.int64(0), n=count), dtype=self.result)
        rest = Tensor(np.full(self.max_length - count, self.pad, self.result))
        return ops.concat((made, rest)) if count < self.max_length else made


class UniformInt(_Draw, ops.UniformInt):
    """`UniformInt(seed, seed2)(shape, minval, maxval)`: ints from minval to below maxval.  -> `shape` int32."""

    def __call__(self, shape: Any, minval: Any, maxval: Any) -> Any:
        bounds = (_number(type(self).__name__, name, x) for name, x in (("minval", minval), ("maxval", maxval)))
        return self._draw(*bounds, shape=_shape(type(self).__name__, shape))


def _number(where: str, name: str, value: Any) -> Any:
    """A number as an operand of shape ()."""
    given = tensor_operand(where, name, value)
    return given if not given.shape else ops.reshape(given, ())


class Gamma(_Draw, ops.Gamma):
    """`Gamma(seed, seed2)(shape, alpha, beta)`: alpha, beta: broadcast with `shape` -> that shape, float32."""

    def __call__(self, shape: Any, alpha: Any, beta: Any) -> Any:
        return self._draw(alpha, beta, shape=_broadcast(type(self).__name__, shape, alpha, beta))


class Poisson(_Draw, ops.Poisson):
    """`Poisson(seed, seed2)(shape, mean)`: mean: broadcast with `shape` -> that shape, int32."""

    def __call__(self, shape: Any, mean: Any) -> Any:
        return self._draw(mean, shape=_broadcast(type(self).__name__, shape, mean))


def _broadcast(where: str, shape: Any, *parameters: Any) -> tuple[int, ...]:
    wanted = _shape(where, shape)
    try:
        return np.broadcast_shapes(wanted, *(tuple(tensor_operand(where, "x", p).shape) for p in parameters))
    except ValueError:
        return wanted  # the operator says which parameter does not fit


class Multinomial(_Typed, ops.Multinomial):
    """`Multinomial(seed, seed2, dtype)(x, num_samples)`: x: (rows, n) weights or (n,) -> (rows, num_samples) int32."""

    @fitting
    def __init__(self, seed: int = 0, seed2: int = 0, dtype: Any = None) -> None:
        super().__init__(seed, seed2, dtype)

    def _prepare(self, *given: Any, **attrs: Any) -> None:
        super()._prepare(*given, num_samples=1)

    def __call__(self, x: Any, num_samples: Any) -> Any:
        return self._draw(x, num_samples=num_samples)


class RandomChoiceWithMask(_Draw, ops.RandomChoiceWithMask):
    """`RandomChoiceWithMask(count, seed, seed2)(input_x)`: some places where a bool tensor of 1 to 5 dims is true.

    -> (count, dims) int32, (count,) bool
    """

    @checked(count=integer(1), seed=integer(0), seed2=integer(0))
    def __init__(self, count: int = 256, seed: int = 0, seed2: int = 0) -> None:
        self._prepare(seed, seed2, count=count)

    def __call__(self, input_x: Any) -> Any:
        return self._draw(input_x)


class _Sampler(_Draw):
    def __call__(self, true_classes: Any) -> Any:
        return self._draw(true_classes)


class UniformCandidateSampler(_Sampler, ops.UniformCandidateSampler):
    """Classes below range_max, all equally likely: `UniformCandidateSampler(num_true, num_sampled, unique, range_max,
    seed, remove_accidental_hits)(true_classes)`.  true_classes: (rows, num_true) int -> (num_sampled,), (rows,
    num_true) and (num_sampled,) float32.
    """

    @checked(num_true=integer(1), num_sampled=integer(1), unique=flag, range_max=integer(1), seed=integer(0))
    def __init__(
        self,
        num_true: int,
        num_sampled: int,
        unique: bool,
        range_max: int,
        seed: int = 0,
        remove_accidental_hits: bool = False,
    ) -> None:
        counts = {"num_true": num_true, "num_sampled": num_sampled, "unique": unique, "range_max": range_max}
        self._prepare(seed, **counts, remove_accidental_hits=remove_accidental_hits)


class LogUniformCandidateSampler(_Sampler, ops.LogUniformCandidateSampler):
    """Classes below range_max, small ones likelier: `LogUniformCandidateSampler(num_true, num_sampled, unique,
    range_max, seed)(true_classes)`. See `UniformCandidateSampler`.
    """

    @checked(num_true=integer(1), num_sampled=integer(1), unique=flag, range_max=integer(1), seed=integer(0))
    def __init__(
        self, num_true: int = 1, num_sampled: int = 5, unique: bool = True, range_max: int = 5, seed: int = 0
    ) -> None:
        self._prepare(seed, num_true=num_true, num_sampled=num_sampled, unique=unique, range_max=range_max)


# ---- mindspore.mint, PyTorch's words ----


def mint_normal(mean: Any = 0.0, std: Any = 1.0, size: Any = None, generator: None = None) -> Any:
    """Normal numbers.  mean, std: numbers or tensors -> their broadcast shape, or `size`, float32."""
    return as_tensors(ops.normal(() if size is None else size, mean, std))


def mint_randint(*given: Any, generator: None = None, dtype: Any = None, device: str | None = None) -> Any:
    """Ints from low to below high: `randint(high, size)` or `randint(low, high, size)`.  -> `size`, int64 unless given.

    device  a text, without effect
    """
    dtype = np.int64 if dtype is None else dtype
    return as_tensors(ops.randint(*((0, *given) if len(given) == 2 else given), dtype=dtype))


def mint_randint_like(input: Any, *given: Any, dtype: Any = None, device: str | None = None) -> Any:
    """Ints from low to below high in the shape of input: `randint_like(input, high)`, `(input, low, high)`."""
    return as_tensors(ops.randint_like(input, *((0, *given) if len(given) == 1 else given), dtype=dtype))


def mint_randperm(n: int, *, generator: None = None, dtype: Any = np.int64) -> Any:
    """0 to n - 1 in some order.  -> (n,)."""
    return as_tensors(ops.randperm(n, dtype=dtype))


def mint_bernoulli(input: Any, *, generator: None = None) -> Any:
    """1 with the probability that stands in input, else 0.  input: (...) -> (...)."""
    return as_tensors(ops.bernoulli(input, input))


def mint_multinomial(input: Any, num_samples: int, replacement: bool = False, *, generator: None = None) -> Any:
    """Class numbers, each as likely as its weight.  input: (rows, n) or (n,) -> (rows, num_samples)."""
    return as_tensors(ops.multinomial(input, num_samples, replacement))
