"""What numpy's functions do with Tensors: `np.exp(x)` is the operator `exp`, with its gradient; `np.mean(x)` sees the
array, and is refused where its result would lose a gradient in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ...base.dtypes import kind_of
from ...base.errors import ArgumentTypeError
from ...base.hooks import on_tape
from ...base.origin import caller
from ...ops.spellings import NUMPY, UFUNCS
from .arithmetic import Arithmetic

OPERATORS = "operators of parallel_lab.ops"


class NumpyProtocol(Arithmetic):
    """A tensor with numbers (`array`), which numpy's functions take."""

    __slots__ = ()

    array: np.ndarray
    requires_grad: bool

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """numpy's ufuncs: `np.exp(x)` is `ops.exp(x)` with its gradient; others give a Tensor without."""
        out = kwargs.pop("out", None)
        # `array += tensor` asks for the array as output; the sum is a Tensor, which remembers how it was made
        operator = UFUNCS.get(ufunc.__name__)
        if method == "__call__" and not kwargs and operator and (out is None or out[0] is inputs[0]):
            return operator(*inputs)
        _refuse_gradient(inputs, f"np.{ufunc.__name__}")
        if out is not None:
            kwargs["out"] = tuple(plain(x) for x in out)
        return self._wrapped(getattr(ufunc, method)(*(plain(x) for x in inputs), **kwargs))

    def __array_function__(self, function: Callable, types: Any, args: Any, kwargs: Any) -> Any:
        """numpy's other functions (`np.mean(x)`) see the array; refused where a float result would lose a gradient."""
        tensors: list[NumpyProtocol] = []
        result = function(*_as_arrays(args, tensors), **_as_arrays(kwargs, tensors))
        if kind_of(getattr(result, "dtype", np.dtype(bool))) == "f":
            name = function.__name__
            _refuse_gradient(tensors, f"np.{name}", f"ops.{NUMPY[name]}" if name in NUMPY else OPERATORS)
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if on_tape.get() == 2 and getattr(self, "requires_grad", False):
            raise TypeError("numbers have no gradient")
        return np.array(self.array, dtype) if copy else np.asarray(self.array, dtype)

    def _wrapped(self, result: Any) -> Any:
        """Arrays of numbers as Tensors; several results one by one."""
        if isinstance(result, tuple):
            return tuple(self._wrapped(r) for r in result)
        number = isinstance(result, (np.ndarray, np.generic)) and kind_of(result.dtype) in "biuf"
        return self.from_numpy(np.asarray(result)) if number else result


def plain(value: Any) -> Any:
    """The array of a Tensor; anything else as it is."""
    return value.asnumpy() if isinstance(value, NumpyProtocol) else value


def _as_arrays(value: Any, tensors: list[NumpyProtocol]) -> Any:
    """`value` with arrays instead of its Tensors, which are added to `tensors`."""
    if isinstance(value, NumpyProtocol):
        tensors.append(value)
        return value.asnumpy()
    if isinstance(value, dict):
        return {k: _as_arrays(v, tensors) for k, v in value.items()}
    return type(value)(_as_arrays(v, tensors) for v in value) if type(value) in (list, tuple) else value


def _refuse_gradient(operands: Iterable[Any], what: str, instead: str = OPERATORS) -> None:
    """Raise ArgumentTypeError if a gradient may be asked for through `operands`, which `what` would lose in silence."""
    for x in operands:
        if isinstance(x, NumpyProtocol) and x.requires_grad:
            name = f"parameter {x.name!r}" if hasattr(x, "name") else "a tensor made from parameters"
            hint = f"Use {instead}, or x.asnumpy() for values without a gradient"
            raise ArgumentTypeError(f"{what} of {name} has no gradient", where=caller().place, hint=hint)
