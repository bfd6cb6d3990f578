"""`Tensor` and `Parameter`: numpy arrays that remember how they were made.

    x = Tensor([[1.0, 2.0]])
    w = Parameter(Tensor([[3.0], [4.0]]), name="w")
    y = ops.matmul(x, w)            # runs at once; y knows its operator and operands

Outside a trace an operator on Tensors computes immediately; `autograd.py` walks the remembered operators backwards. `Arithmetic` gives Tensors and
traced
values the same operators and methods.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import ops
from .context import current_tracer, get_seed
from .errors import ShapeError, TraceError, message, shorten
from .ops.registry import OPS, OpDef, scalar_operand
from .origin import caller

__all__ = ["Arithmetic", "Initial", "Parameter", "ParameterTuple", "Tensor", "parameter_generator"]


class Arithmetic:
    """Python operators and methods, for Tensors and for values of a trace."""

    __slots__ = ()

    shape: tuple[int, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    # fmt: off
    def __add__(self, other): return ops.add(self, other)
    def __radd__(self, other): return ops.add(other, self)
    def __sub__(self, other): return ops.sub(self, other)
    def __rsub__(self, other): return ops.sub(other, self)
    def __mul__(self, other): return ops.mul(self, other)
    def __rmul__(self, other): return ops.mul(other, self)
    def __truediv__(self, other): return ops.div(self, other)
    def __rtruediv__(self, other): return ops.div(other, self)
    def __pow__(self, other): return ops.power(self, other)
    def __matmul__(self, other): return ops.matmul(self, other)
    def __neg__(self): return ops.neg(self)
    def __abs__(self): return ops.abs_(self)
    def __gt__(self, other): return ops.greater(self, other)
    def __ge__(self, other): return ops.greater_equal(self, other)
    def __lt__(self, other): return ops.less(self, other)
    def __le__(self, other): return ops.less_equal(self, other)
    def sum(self, axis=None, keep_dims=False): return ops.reduce_sum(self, axis, keep_dims=keep_dims)
    def mean(self, axis=None, keep_dims=False): return ops.reduce_mean(self, axis, keep_dims=keep_dims)
    def max(self, axis=None, keep_dims=False): return ops.reduce_max(self, axis, keep_dims=keep_dims)
    def min(self, axis=None, keep_dims=False): return ops.reduce_min(self, axis, keep_dims=keep_dims)
    def astype(self, dtype): return ops.cast(self, dtype)
    # fmt: on

    def reshape(self, *shape):
        """The same elements under another shape: `x.reshape(4, -1)` or `x.reshape((4, -1))`."""
        return ops.reshape(self, shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)

    def transpose(self, *perm):
        """Dims in the order `perm`; without arguments reversed."""
        perm = perm[0] if len(perm) == 1 and isinstance(perm[0], (tuple, list)) else perm
        return ops.transpose(self, tuple(perm) or tuple(reversed(range(self.ndim))))

    @property
    def T(self):
        """Dims reversed."""
        return self.transpose()

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError(message("a 0-d tensor has no length", where="len"))
        return self.shape[0]


class Tensor(Arithmetic):
    """An array with a memory.

    input_data  array-like, scalar or Tensor
    dtype       numpy dtype or its name; default: that of the data, Python floats become float32

    Attributes: `data` (the numpy array), `shape`, `dtype` (numpy dtype).
    """

    __slots__ = ("__weakref__", "_data", "node")

    # numpy must not take over `array + tensor`
    __array_ufunc__ = None

    def __init__(self, input_data: Any, dtype: Any = None) -> None:
        if isinstance(input_data, Tensor):
            input_data = input_data.asnumpy()
        try:
            data = np.asarray(input_data, dtype)
        except (ValueError, TypeError) as error:  # rows of different lengths; text where a number should be
            raise _no_numbers(input_data) from error
        if data.dtype.kind not in "biuf":
            raise _no_numbers(input_data)
        if dtype is None and data.dtype == np.float64 and not isinstance(input_data, (np.ndarray, np.generic)):
            data = data.astype(np.float32)
        self._data: np.ndarray = data
        self.node: Node | None = None

    @property
    def data(self) -> np.ndarray:
        return self._data

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    @property
    def requires_grad(self) -> bool:
        return self.node is not None

    def asnumpy(self) -> np.ndarray:
        """The numpy array itself (not a copy)."""
        return self.data

    def item(self) -> Any:
        """The single element as a Python number."""
        return self.data.item()

    def __float__(self) -> float:
        return float(self.data)

    def __int__(self) -> int:
        return int(self.data)

    def __bool__(self) -> bool:
        return bool(self.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.data, dtype) if copy else np.asarray(self.data, dtype)

    def __repr__(self) -> str:
        return f"Tensor(shape={list(self.shape)}, dtype={self.dtype}, value=\n{self.data})"

    def __parallel_lab_op__(self, op: OpDef, operands: list[Any], attrs: dict[str, Any]) -> Tensor:
        """Run `op` now and remember it if a gradient may be asked for."""
        tensors = [x if isinstance(x, Tensor) else Tensor(as_array(x, operands)) for x in operands]
        shapes = tuple(t.shape for t in tensors)
        if op.infer_fn is None and not (len(shapes) == 2 and shapes[0] == shapes[1] and op.signature == "...,...->..."):
            op.signature_for(shapes, attrs)
        out = Tensor(op.compute(*(t.data for t in tensors), **attrs))
        if op.vjp_fn is not None and any(t.requires_grad for t in tensors):
            out.node = Node(op, tuple(tensors), attrs)
        return out


def _no_numbers(data: Any) -> ShapeError:
    return ShapeError(message(f"data {shorten(data)}", where="Tensor", allowed="Numbers in a rectangular shape"))


def as_array(value: Any, operands: list[Any]) -> np.ndarray:
    """An operand that is not a Tensor, as an array: numbers take the dtype of the Tensors beside them."""
    if isinstance(value, (bool, int, float)):
        return scalar_operand(value, operands)
    return np.asarray(value)


class Node:
    """How a Tensor was made: the operator, its operands and attributes."""

    __slots__ = ("attrs", "op", "operands")

    def __init__(self, op: OpDef, operands: tuple[Tensor, ...], attrs: dict[str, Any]) -> None:
        self.op, self.operands, self.attrs = op, operands, attrs


class Initial:
    """Values that are not drawn yet: a shape, a dtype, and a rule `draw(generator, shape) -> array`.

    Drawing waits until the owning Parameter has its name, because the generator is keyed by (global seed, parameter name): a parameter's values do
    not depend on how many others were made before, nor on the number of ranks.
    """

    def __init__(self, draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray], shape: tuple[int, ...], dtype: Any = np.float32) -> None:
        self.draw, self.shape, self.dtype = draw, tuple(shape), np.dtype(dtype)


def parameter_generator(name: str) -> np.random.Generator:
    """The generator of a parameter's initial values, keyed by (global seed, parameter name)."""
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.default_rng([get_seed(), int.from_bytes(digest[:8], "little")])


class Parameter(Tensor):
    """A Tensor that training changes.

    default_input  Tensor, array, number, or what `initializer(...)` returns (drawn when first read)
    name           name in plans and checkpoints; a Cell completes it with its path
    requires_grad  False: never updated
    layerwise_parallel  in data/hybrid parallel: keep the gradient local
    """

    __slots__ = ("_initial", "_requires_grad", "comm_fusion", "layerwise_parallel", "name")

    def __init__(self, default_input: Any, name: str | None = None, requires_grad: bool = True, layerwise_parallel: bool = False) -> None:
        self._initial = default_input if isinstance(default_input, Initial) else None
        if self._initial is None:
            super().__init__(default_input)
            self._data = np.array(self._data)
        else:
            self.node = None
            self._data = None
        if name is not None and (not isinstance(name, str) or not name):
            raise ShapeError(message(f"name {shorten(name)}", where="Parameter", allowed="A non-empty str, or None to take the attribute's name"))
        self.name = name or "Parameter"
        self._requires_grad = bool(requires_grad)
        self.layerwise_parallel = bool(layerwise_parallel)
        self.comm_fusion = 1

    @property
    def data(self) -> np.ndarray:
        if self._data is None:
            tracer = current_tracer.get()
            if tracer is not None:
                raise TraceError(message(f"the value of parameter {self.name!r} is read while the network is traced", where=caller().place))
            drawn = self._initial.draw(parameter_generator(self.name), self._initial.shape)
            self._data = np.array(drawn, dtype=self._initial.dtype, order="C")
        return self._data

    @property
    def shape(self) -> tuple[int, ...]:
        return self._initial.shape if self._data is None else self._data.shape

    @property
    def dtype(self) -> np.dtype:
        return self._initial.dtype if self._data is None else self._data.dtype

    @property
    def requires_grad(self) -> bool:
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self._requires_grad = bool(value)

    def set_data(self, data: Any) -> None:
        """Replace the values; shape must stay, the dtype is kept. What `initializer(...)` returns is drawn when next read."""
        if isinstance(data, Initial):
            if data.shape != self.shape:
                raise ShapeError(message(f"data of shape {data.shape}", where=f"Parameter {self.name!r}", allowed=f"Shape {self.shape}"))
            self._initial, self._data = Initial(data.draw, data.shape, self.dtype), None
            return
        array = np.asarray(data.asnumpy() if isinstance(data, Tensor) else data, self.dtype)
        if array.shape != self.shape:
            raise ShapeError(message(f"data of shape {array.shape}", where=f"Parameter {self.name!r}", allowed=f"Shape {self.shape}"))
        self._data = np.array(array)

    def __repr__(self) -> str:
        return f"Parameter(name={self.name}, shape={self.shape}, dtype={self.dtype}, requires_grad={self.requires_grad})"


class ParameterTuple(tuple):
    """Several Parameters that a Cell registers under their own names."""

    def __new__(cls, parameters: Iterator[Parameter] | list[Parameter]) -> ParameterTuple:
        parameters = tuple(parameters)
        for p in parameters:
            if not isinstance(p, Parameter):
                raise ShapeError(message(f"element {shorten(p)}", where="ParameterTuple", allowed="Parameters only"))
        return super().__new__(cls, parameters)


assert OPS  # the operators must be registered before the first Tensor
