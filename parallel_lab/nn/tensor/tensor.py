"""`Tensor` and `Parameter`: numpy arrays that remember how they were made.

    x = Tensor([[1.0, 2.0]])
    w = Parameter(Tensor([[3.0], [4.0]]), name="w")
    y = ops.matmul(x, w)            # runs at once; y knows its operator and operands

Outside a trace an operator on Tensors computes immediately; `tape.py` walks the remembered operators backwards.
What Tensors and traced values have in common, Python's operators and methods, is in `arithmetic.py`; what numpy's
functions do with Tensors, in `numpy_calls.py`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...base.checks import checked, fitting, fitting_class, instance, integer
from ...base.dtypes import as_dtype, kind_of, plain_array, scalar_operand
from ...base.errors import ArgumentTypeError, ShapeError, shorten
from ...base.hooks import current_tracer, on_tape
from ...layout.slices import gather_full
from ...layout.tensor_layout import TensorLayout
from ...ops.machine.opdef import OpDef
from ...ops.shape import transpose
from .dynamic_shapes import DynamicShape, dynamic_shape_of
from .initial_slices import drawn_slice, parameter_generator
from .numpy_calls import NumpyProtocol, plain

TRUTH_TEST = "a truth test (if, while, and, or)"


@fitting_class
class Tensor(NumpyProtocol):
    """An array with a memory.

    input_data  array-like, scalar or Tensor
    dtype       numpy dtype or its name; default: that of the data, Python floats become float32
    shape, init  instead of input_data: an Initializer, drawn when first read; or no values, see `dynamic_shapes.py`

    Attributes: `array` (the numpy array), `shape`, `dtype` (numpy dtype).
    """

    __slots__ = ("__weakref__", "_data", "node")
    is_variable = False  # True of Parameters (`parameter.py`)

    def __new__(cls, *args: Any, **kwargs: Any) -> Tensor:
        # `Tensor(shape=, dtype=, init=)`, a form of MindSpore's, has no values yet. It has a class of its own, so that
        # all other Tensors hold an array and need not ask at each access whether it was drawn.
        if cls is Tensor and (len(args) > 2 or not kwargs.keys() <= {"input_data", "dtype"}):
            return Initial.of(*args, **kwargs)
        return _new(cls)

    def __init__(self, input_data: Any = None, dtype: Any = None) -> None:
        input_data = input_data.asnumpy() if isinstance(input_data, Tensor) else input_data
        try:
            data = plain_array(input_data, None if dtype is None else as_dtype(dtype), where="Tensor")
        except ArgumentTypeError:
            raise
        except (ValueError, TypeError, OverflowError) as error:  # rows of different lengths; texts; what is too large
            raise _no_numbers(input_data, dtype) from error
        if kind_of(data.dtype) not in "biuf":
            raise _no_numbers(input_data, dtype)
        if dtype is None and data.dtype == np.float64 and not isinstance(input_data, (np.ndarray, np.generic)):
            data = data.astype(np.float32)
        self._data: np.ndarray = data
        self.node: Node | None = None

    @property
    def array(self) -> np.ndarray:
        """The numpy array. A Parameter that holds a rank's slice refuses it."""
        return self._data

    @property
    def data(self) -> Tensor:
        """The tensor itself, as in MindSpore; `asnumpy()` is its array."""
        return self

    shape = property(lambda self: self.array.shape, doc="Elements per dim, a tuple of ints.")
    dtype = property(lambda self: self.array.dtype, doc="The numpy dtype.")
    requires_grad = property(lambda self: self.node is not None, doc="Whether the tape recorded how it was computed.")

    def asnumpy(self) -> np.ndarray:
        """The numpy array itself (not a copy)."""
        return self.array

    def full(self) -> Tensor:
        """The whole tensor: this one. On ranks of a compiled network slices take its place: `full()` gathers them."""
        return self

    has_init = False  # whether the values are still to be drawn

    def init_data(self, slice_index: Any = None, shape: Any = None, opt_shard_group: Any = None) -> Tensor:
        """Refused for a Tensor without an initializer, as in MindSpore. Raises ArgumentTypeError."""
        allowed = "What initializer(...) or Tensor(shape=, dtype=, init=) returns"
        raise ArgumentTypeError("init_data of a Tensor that has its values", where="Tensor", allowed=allowed)

    def item(self) -> Any:
        """The single element as a Python number."""
        return self._single("item()")

    itemsize = property(lambda self: self.dtype.itemsize, doc="Bytes of an element.")
    nbytes = property(lambda self: self.size * self.itemsize, doc="Bytes of all elements.")

    @staticmethod
    @fitting
    def from_numpy(array: np.ndarray) -> Tensor:
        """A Tensor of the array itself, not a copy."""
        return Tensor(instance(np.ndarray, "A numpy array")("Tensor.from_numpy", "array", array))

    def tolist(self) -> Any:
        """The elements as Python numbers in nested lists."""
        return self.array.tolist()

    def copy(self) -> Tensor:
        return transpose(self, tuple(range(self.ndim)))  # of all operators the one that changes nothing, and copies

    def _single(self, what: str) -> Any:
        if self.size != 1:
            given, allowed = f"{what} of a tensor of shape {self.shape}", "A tensor with one element"
            hint = "Compare with .asnumpy() and numpy's any() or all()" if what == TRUTH_TEST else ""
            raise ShapeError(given, where=type(self).__name__, allowed=allowed, hint=hint)
        return self.array.item()

    def __float__(self) -> float:
        return float(self._single("float()"))

    def __int__(self) -> int:
        return int(self._single("int()"))

    def __bool__(self) -> bool:
        return bool(self._single(TRUTH_TEST))

    def __format__(self, spec: str) -> str:
        return format(self._single(f"the format {spec!r}"), spec) if spec else str(self)

    def __contains__(self, value: Any) -> bool:
        return bool(np.any(plain(self == value)))

    def _become(self, new: Any) -> None:
        """Hold what `x[...] = value` has made. What read this tensor before keeps what it read: `Node.before`."""
        tracer = current_tracer.get()
        if tracer is not None:
            tracer.held_as(self, new)
            return
        before = copy.copy(self)
        before.node = self.node  # which a copy of a LaterTensor lacks
        self._data, self.node = new.asnumpy(), new.node
        if self.node is not None:
            self.node.before = before

    def __repr__(self) -> str:
        return f"Tensor(shape={list(self.shape)}, dtype={self.dtype}, value=\n{self.array})"

    def __str__(self) -> str:
        return str(self.array)  # `print(loss)` shows the numbers, as in MindSpore

    def __parallel_lab_plain__(self, op: OpDef, operands: tuple[Any, ...]) -> Any:
        """`op` element by element on Tensors; NotImplemented for anything that needs a closer look."""
        arrays, tracked = [], False
        for x in operands:
            kind = type(x)
            if kind is Tensor:
                arrays.append(x._data)
                tracked = tracked or x.node is not None
            elif getattr(kind, "is_variable", False):
                arrays.append(x.array)
                tracked = tracked or x._requires_grad
            else:
                return NotImplemented
        dtype = arrays[0].dtype
        if dtype.kind not in op.plain_kinds or arrays[-1].dtype != dtype or on_tape.get() < 0:  # `compute` converts
            return NotImplemented
        try:
            data = op.fn(*arrays)
        except (ValueError, TypeError):
            return NotImplemented
        out = _new(Tensor)
        out._data = data if type(data) is np.ndarray else np.asarray(data)
        out.node = Node(op, operands, _NO_ATTRS, arrays) if tracked and op.vjp_fn is not None else None
        return out

    def __parallel_lab_op__(self, op: OpDef, operands: list[Any], attrs: dict[str, Any]) -> Any:
        """Run `op` now and remember it if a gradient may be asked for."""
        for x in operands:
            if getattr(x, "answers", False):  # for Tensors, too, which it may refuse
                return x.__parallel_lab_op__(op, operands, attrs)
        tensors = [x if isinstance(x, Tensor) else Tensor(as_array(x, operands)) for x in operands]
        arrays = [t.array for t in tensors]  # first: a slice has to be refused as what it is, not for its shape
        shapes = tuple(t.shape for t in tensors)
        alike = len(shapes) == 2 and shapes[0] == shapes[1] and op.signature == "...,...->..."
        if op.result_shape is None and not alike:
            op.signature_for(shapes, attrs)
        arrays_out = op.attempt(arrays, attrs)
        noted = op.vjp_fn is not None or (on_tape.get() == 2 and op.dtype != "bool" and op.name != "sign")
        recorded = noted and on_tape.get() >= 0 and any(t.requires_grad for t in tensors)
        node = Node(op, tuple(tensors), attrs, arrays) if recorded else None
        if type(arrays_out) is tuple:
            return node.results(arrays_out) if node is not None else tuple(map(Tensor, arrays_out))
        out = Tensor(arrays_out)
        out.node = node
        return out

    def __parallel_lab_later__(self, op: OpDef, attrs: dict[str, Any], result: Any) -> Tensor:
        """What `op` makes of this Tensor when `result` has come: remembered as ever, and not available yet."""
        out = LaterTensor(result)
        if op.vjp_fn is not None and self.requires_grad:
            out.node = Node(op, (self,), attrs)
        return out


class LaterTensor(Tensor):
    """A message's result (`deferred.py`): reading it (`result.read()`) sends the message; shape and dtype are known."""

    __slots__ = ("_result",)

    def __init__(self, result: Any) -> None:
        self._result, self.node = result, None

    @property
    def _data(self) -> np.ndarray:
        return self._result.read()

    @_data.setter
    def _data(self, array: np.ndarray) -> None:
        self._result = SimpleNamespace(array=array, shape=array.shape, dtype=array.dtype, read=lambda: array)

    shape = property(lambda self: self._result.shape)
    dtype = property(lambda self: self._result.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also one in another process, is a Tensor of the values."""
        return Tensor, (self.array,)


class RankTensor(Tensor):
    """What a compiled call returns on a rank: its slice of a result.

    layout      which part of the tensor it is; None: every rank has a value of its own
    full_shape  shape of the whole tensor
    """

    __slots__ = ("full_shape", "layout")

    def __init__(self, data: Any, full_shape: tuple[int, ...], layout: TensorLayout | None) -> None:
        super().__init__(data)
        self.full_shape, self.layout = tuple(full_shape), layout

    def full(self) -> Tensor:
        """The whole tensor; if it is split, every rank of its world has to call this. Raises WorldError outside."""
        return Tensor(gather_full(self.asnumpy(), self.full_shape, self.layout))


def _no_numbers(data: Any, dtype: Any) -> ShapeError:
    what = f"data {shorten(data)}{'' if dtype is None else f', dtype={shorten(dtype)}'}"
    return ShapeError(what, where="Tensor", allowed="Numbers in a rectangular shape")


def as_array(value: Any, operands: list[Any]) -> np.ndarray:
    """An operand that is not a Tensor, as an array: numbers take the dtype of the other operands."""
    if isinstance(value, (bool, int, float)):
        return scalar_operand(value, operands)
    return plain_array(value, where="Tensor")


_new = object.__new__
_NO_ATTRS: dict[str, Any] = {}
_made = itertools.count().__next__


class Node:
    """How a Tensor was made: operator, operands, attributes. `order` grows with time, from operands to results.

    op        an OpDef, or what has a name and a rule as one (`Moved`)
    arrays    the operands' values then, if known: a Parameter may be given others before its gradient is made; of a
              DTensor how its operator ran (`Choice`)
    siblings  of an operator with several results: all their values, and which one this is; None of others
    before    the Tensor as it was, if `x[...] = value` has given it this node
    """

    __slots__ = ("arrays", "attrs", "before", "hooks", "op", "operands", "order", "siblings")

    def __init__(
        self, op: Any, operands: tuple[Tensor, ...], attrs: dict[str, Any], arrays: list[Any] | None = None
    ) -> None:
        self.op, self.operands, self.attrs, self.arrays, self.order = op, operands, attrs, arrays, _made()
        self.siblings: tuple[tuple[Any, ...], int] | None = None
        self.hooks: list[Callable] = []
        self.before: Tensor | None = None

    def results(self, values: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Several results of one call as Tensors: each has this node with its own number."""
        tensors = tuple(map(Tensor, values))
        arrays = tuple(tensor.array for tensor in tensors)
        for number, tensor in enumerate(tensors):
            tensor.node = copy.copy(self)
            tensor.node.siblings, tensor.node.hooks = (arrays, number), []
        return tensors


class Initial(Tensor):
    """A Tensor whose values are not drawn yet: a shape, a dtype, and a rule `draw(generator, shape) -> array`.

    Drawn when the Parameter made from it has its name: they depend on (global seed, name), not on other draws or ranks.
    Read without a Parameter, equal rules, shapes and dtypes draw alike.
    """

    __slots__ = ("_drawn", "_dtype", "_shape", "draw")

    def __new__(
        cls,
        draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray],
        shape: tuple[int, ...],
        dtype: Any = np.float32,
    ) -> Initial:
        try:
            kind = "" if dtype is None else kind_of(as_dtype(dtype))  # numpy takes None for float64
        except (TypeError, ValueError):
            kind = ""
        if not kind or kind not in "biuf":
            allowed = "A dtype of numbers, such as 'float32'"
            raise ArgumentTypeError(f"dtype={shorten(dtype)}", where="initializer", allowed=allowed)
        tensor = _new(cls)
        tensor.draw, tensor._shape, tensor._dtype = draw, tuple(shape), as_dtype(dtype)
        tensor._drawn = tensor.node = None
        return tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...  # all is done

    def __repr__(self) -> str:
        return super().__repr__() if dynamic_shape_of(self) is None else f"Tensor{self.shape, str(self.dtype)}"

    def __str__(self) -> str:
        return super().__str__() if dynamic_shape_of(self) is None else repr(self)

    @staticmethod
    @checked("Tensor")
    def of(input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None) -> Initial:
        """`Tensor(shape=, dtype=, init=)`; without a rule an input of a dynamic shape, see `dynamic_shapes.py`."""
        if input_data is not None or shape is None or dtype is None:
            what = f"input_data={shorten(input_data)}, shape={shorten(shape)}, dtype={shorten(dtype)}"
            raise ArgumentTypeError(what, where="Tensor", allowed="A shape and a dtype, and no input_data")
        if init is None:
            dynamic = DynamicShape(shape)
            return Initial(dynamic.draw, dynamic.shape, dtype)
        if not hasattr(init, "draw"):
            raise ArgumentTypeError(f"init={shorten(init)}", where="Tensor", allowed="An Initializer, such as Normal()")
        shape = tuple(shape) if isinstance(shape, (list, tuple)) else (shape,)
        return Initial(init.draw, tuple(integer(0)("Tensor", "shape", n) for n in shape), dtype)

    @property
    def _data(self) -> np.ndarray:
        if self._drawn is None:
            values = self.draw(parameter_generator("init_data"), self._shape)
            self._drawn = np.array(values, self._dtype, order="C")
        return self._drawn

    @_data.setter
    def _data(self, array: np.ndarray) -> None:
        self._drawn = array

    shape = property(lambda self: self._shape)
    dtype = property(lambda self: self._dtype)
    has_init = property(lambda self: self._drawn is None)

    def init_data(
        self, slice_index: int | None = None, shape: Any = None, opt_shard_group: str | None = None
    ) -> Tensor:
        """Draw the values now. Returns self; with `slice_index`, or the `shape` of a slice, a Tensor of its own, which
        is the same wherever the index is. opt_shard_group: accepted.
        """
        if slice_index is None and shape is None:
            assert self._data is not None
            return self
        return Tensor(drawn_slice(self, slice_index, shape))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Initial, (self.draw, self._shape, self._dtype)) if self._drawn is None else (Tensor, (self._drawn,))
