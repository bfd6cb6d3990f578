"""Gradient clipping by hand, for tensors of a training loop: by value, by norm, by the norm of several together.

    grads = nn.clip_by_global_norm(grads, 1.0)

The setting that an optimizer takes is `GradientClip` (`nn/optim/clip.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from ... import ops
from ...base.checks import checked, flag, integer, kept, number, sequence_of
from ...base.errors import ArgumentError, ArgumentTypeError, shorten
from ...nn.cell import Cell
from ...nn.optim.clip import clip_factor, clip_range
from ...nn.optim.global_norm import as_slice_of, in_dtype_of, of_the_whole, sum_of_squares
from ...nn.optim.totals import added
from ...nn.tensor.dtensor_parameter import settled
from ...nn.tensor.tensor import Tensor
from ...ops.elementwise import div
from ...ops.machine.operand_checks import is_operand
from ...ops.spellings import tensor_operand

AXES = sequence_of(integer(), "An int, or a tuple of ints", one=True, empty=True)


def clip_by_value(x: Any, clip_value_min: Any = None, clip_value_max: Any = None) -> Any:
    """Every element brought into the range.  x: (...) -> (...), or a list or tuple of such -> tuple.

    The bounds are numbers or Tensors, one may be None. Raises ArgumentError if both are None or cross.
    """
    if clip_value_min is None and clip_value_max is None:
        allowed = "clip_value_min, clip_value_max or both"
        raise ArgumentError("no bound is given", where="clip_by_value", allowed=allowed)
    if isinstance(clip_value_min, Real) and isinstance(clip_value_max, Real):
        clip_range("clip_by_value", clip_value_min, clip_value_max)
    if isinstance(x, (list, tuple)):
        return tuple(clip_by_value(one, clip_value_min, clip_value_max) for one in x)
    if clip_value_max is not None:
        x = ops.minimum(x, clip_value_max)
    return x if clip_value_min is None else ops.maximum(x, clip_value_min)


@checked(max_norm=number(0, above=True), error_if_nonfinite=flag)
def clip_by_norm(x: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Any:
    """Scaled so that the norm is at most `max_norm`.  x: (...) -> (...), or a list or tuple of such, by the norm of all
    elements together -> tuple.

    norm_type           p of the p-norm, at least 1; math.inf: the largest absolute value
    error_if_nonfinite  raise ArgumentError if the norm is not finite (it is read, so not while a network is compiled)

    MindSpore's clip_by_norm; without the 1e-6 that is added to the norm there.
    """
    where = "clip_by_norm"
    if isinstance(norm_type, bool) or not isinstance(norm_type, Real) or not norm_type >= 1:
        raise ArgumentError(f"norm_type={shorten(norm_type)}", where=where, allowed="A number, at least 1, or math.inf")
    given = tuple(x) if isinstance(x, (list, tuple)) else (x,)
    given = _check_tensors(x, given, where, "At least one Tensor")
    norm = _norm_of_all(given, float(norm_type))
    if error_if_nonfinite and not all_finite((norm,)):
        hint = "Look for inf and nan in the gradients, or use a loss scaler"
        raise ArgumentError("the norm is not finite", where=where, hint=hint)
    scaled = _scaled(given, clip_factor(norm, max_norm))
    return scaled if isinstance(x, (list, tuple)) else scaled[0]


def _norm_of_all(xs: tuple[Any, ...], p: float) -> Any:
    if p == 2:
        return ops.sqrt(added([of_the_whole(one, sum_of_squares(one)) for one in xs]))
    sizes = [ops.abs(one) for one in xs]
    if math.isinf(p):
        largest = [of_the_whole(one, ops.reduce_max(size), "max") for one, size in zip(xs, sizes, strict=True)]
        return functools.reduce(ops.maximum, largest)
    powers = [of_the_whole(one, ops.reduce_sum(ops.power(size, p))) for one, size in zip(xs, sizes, strict=True)]
    return ops.power(added(powers), 1 / p)


@checked(clip_norm=number(0, above=True))
def clip_by_global_norm(x: Sequence[Any], clip_norm: float = 1.0, use_norm: Any = None) -> tuple[Any, ...]:
    """All scaled by one factor, so that the L2 norm of all elements together is at most `clip_norm`.  x: list or tuple
    of (...) -> tuple.

    If a compiled call has returned the gradients as slices, all elements count: every rank has to call it.

    use_norm  the global norm, if it is known already: a number or a 0-d Tensor
    """
    where, given = "clip_by_global_norm", tuple(x) if isinstance(x, (list, tuple)) else ()
    given = _check_tensors(x, given, where, "A list or tuple of at least one Tensor")
    if isinstance(use_norm, Real):
        factor = clip_norm / max(number(0)(where, "use_norm", use_norm), clip_norm)
        return tuple(as_slice_of(one, ops.mul(one, factor)) for one in given)
    return _scaled(given, clip_factor(_norm_of_all(given, 2) if use_norm is None else use_norm, clip_norm))


def _scaled(xs: tuple[Any, ...], factor: Any) -> tuple[Any, ...]:
    return tuple(as_slice_of(one, ops.mul(one, in_dtype_of(one, factor))) for one in xs)


def _check_tensors(x: Any, given: tuple[Any, ...], where: str, allowed: str) -> tuple[Any, ...]:
    """The tensors, what is pending reduced. ArgumentTypeError unless there is at least one, and nothing else."""
    if not given or not all(map(is_operand, given)):
        raise ArgumentTypeError(f"x is {shorten(x)}", where=where, allowed=allowed)
    return tuple(settled(one, f"{where} reads tensor {n}") for n, one in enumerate(given))


class ClipByNorm(Cell):
    """Scaled so that the L2 norm over `axis` is at most clip_norm.  x: (...), clip_norm: a number or () -> (...).

    axis  an int or several; None: of all elements
    """

    @kept(axis=sequence_of(integer(), "An int, or a tuple of ints", one=True) | None)
    def __init__(self, axis: int | tuple[int, ...] | None = None) -> None:
        super().__init__()

    def construct(self, x: Any, clip_norm: Any) -> Any:
        if not hasattr(x, "dtype"):
            raise ArgumentTypeError(f"x is {shorten(x)}", where=self._where(), allowed="A Tensor")
        wide = ops.cast(x, "float32") if x.dtype.itemsize < 4 else x
        norm = ops.sqrt(ops.reduce_sum(ops.square(wide), self.axis, keep_dims=True))
        limit = ops.cast(clip_norm, str(wide.dtype)) if hasattr(clip_norm, "dtype") else clip_norm
        return ops.cast(div(ops.mul(wide, limit), ops.maximum(norm, limit)), str(x.dtype))


class Norm(Cell):
    """Square root of the sum of squares over `axis`, () for all dims.  x: (...) -> x without these dims, or with them
    as 1 (keep_dims). Names and defaults: MindSpore 1.x, nn.Norm.
    """

    @kept(axis=AXES, keep_dims=flag)
    def __init__(self, axis: Any = (), keep_dims: bool = False) -> None:
        super().__init__()
        self.reduce_sum, self.square = ops.ReduceSum(keep_dims=keep_dims), ops.Square()
        self.sqrt = ops.Sqrt()

    def construct(self, x: Any) -> Any:
        return self.sqrt(self.reduce_sum(self.square(x), self.axis))


def all_finite(inputs: Sequence[Any], status: Any = None) -> bool:
    """Whether no element is infinite or NaN.  inputs: a list or tuple of (...); of slices, every rank must call it.
    status: MindSpore's register of overflows, without effect.
    """
    inputs = tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)
    inputs = tuple(tensor_operand("all_finite", "inputs", x) for x in inputs)
    bad = [np.float32(not np.isfinite(x.asnumpy() if isinstance(x, Tensor) else x).all()) for x in inputs]
    return not any(float(of_the_whole(x, Tensor(one), "max")) for x, one in zip(inputs, bad, strict=True))
