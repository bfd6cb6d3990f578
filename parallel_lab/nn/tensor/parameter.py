"""`Parameter`, a Tensor that training changes, and `ParameterTuple`.

w = Parameter(initializer("normal", [64, 32]), "w")     # drawn when first read, from (global seed, "w")
w.set_data(numbers)
ParameterTuple(net.trainable_params()).clone("moments", init="zeros")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...base.checks import checked, choice, fitting, fitting_class, flag, integer, no_tensor, refuse_slip
from ...base.dtypes import check_taken_in
from ...base.errors import ArgumentError, ArgumentTypeError, ContextConflictError, ShapeError, TraceError, shorten
from ...base.hooks import current_tracer, from_above
from ...base.origin import caller
from ...base.settings.current import get_auto_parallel_context, get_context
from ...base.settings.tables import PYNATIVE_MODE
from ...layout.slices import cut, gather_full, is_split
from ...layout.tensor_layout import TensorLayout
from ...ops import writes
from ...ops.spellings import tensor_operand
from .initial_slices import hold_slice, parameter_generator
from .numpy_calls import plain
from .tensor import Initial, Tensor, as_array


def _flag(name: str, meaning: str) -> property:
    """An attribute of a Parameter that is True or False."""
    slot = f"_{name}"
    write = lambda self, value: setattr(self, slot, flag(f"Parameter {self.name!r}", name, value))  # noqa: E731
    return property(lambda self: getattr(self, slot), write, doc=meaning)


@fitting_class
class Parameter(Tensor):
    """A Tensor that training changes.

    default_input  Tensor, array, number, or what `initializer(...)` returns (drawn when first read)
    name           name in plans and checkpoints; a Cell completes it with its path
    requires_grad  False: never updated
    layerwise_parallel  in data/hybrid parallel: keep the gradient local
    parallel_optimizer  in optimizer parallel: its states may be split among replicas
    storage_format, device  of accelerators: "" and None or "CPU"

    `comm_fusion`, an int, at least 0, is the number of the message that carries its gradient: gradients with equal ones
    travel together, 0 alone. It is 1 by default (`comm_fusion_given` is then False), which says nothing by itself.

    Raises ShapeError for an invalid name, ArgumentTypeError for a flag that is not a bool. Other attributes are a
    script's own; ArgumentError for one whose name is nearly one of these.

    On a rank that runs a compiled network a Parameter holds that rank's slice: `layout` says which part of the
    `full_shape` it is, `asnumpy()` and `shape` are the slice's (while a network is traced, `shape` is the whole one's),
    `full()` gathers the whole. An operator that runs at once cannot take a slice for the whole, and refuses it.
    """

    __slots__ = ("__dict__", "_comm_fusion", "_initial", "_requires_grad", "full_shape", "layout", "name")
    __slots__ += ("_layerwise_parallel", "_parallel_optimizer", "_parallel_optimizer_comm_recompute")
    is_variable = True
    unique = cache_enable = is_param_ps = False  # of MindSpore's tables on hosts; kept, as what a script notes here
    requires_grad = _flag("requires_grad", "Whether training changes it.")
    layerwise_parallel = _flag("layerwise_parallel", "In data and hybrid parallel: its gradient stays local.")
    parallel_optimizer = _flag("parallel_optimizer", "In optimizer parallel: its states may be split among replicas.")
    parallel_optimizer_comm_recompute = _flag("parallel_optimizer_comm_recompute", "Kept, without effect.")

    @checked(
        "Parameter",
        **dict.fromkeys(("requires_grad", "layerwise_parallel", "parallel_optimizer"), flag),
        storage_format=choice(""),
        device=choice("CPU") | None,
    )
    def __init__(
        self,
        default_input: Any,
        name: str | None = None,
        requires_grad: bool = True,
        layerwise_parallel: bool = False,
        parallel_optimizer: bool = True,
        storage_format: str = "",
        device: str | None = None,
    ) -> None:
        if isinstance(default_input, (bool, tuple)):
            raise no_tensor(ArgumentTypeError, "Parameter", "default_input=", default_input, True)
        self._initial = default_input if isinstance(default_input, Initial) and default_input.has_init else None
        if self._initial is None:
            super().__init__(default_input)
            self._data = np.array(self._data)
        else:
            self.node = self._data = None
        if name is not None and (not isinstance(name, str) or not name):
            raise ShapeError(f"name {shorten(name)}", where="Parameter", allowed="A non-empty str, or None")
        self.name = name or "Parameter"
        self._requires_grad, self.layerwise_parallel = requires_grad, layerwise_parallel
        self._comm_fusion: int | None = None
        self.parallel_optimizer, self.parallel_optimizer_comm_recompute = parallel_optimizer, False
        self.layout: TensorLayout | None = None
        self.full_shape = self.shape

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(type(self), name):  # a script's own note, or a slip
            refuse_slip(f"Parameter {self.name!r}", name, (attribute for attribute in dir(self) if attribute[0] != "_"))
        super().__setattr__(name, value)

    @property
    def array(self) -> np.ndarray:
        if self.layout is not None:
            what = f"parameter {self.name!r} holds this rank's slice {self.shape} of {self.full_shape}"
            allowed = "Operators that run at once take whole tensors"
            hint = "Run the network as it was compiled, or use .full() for the whole tensor, .asnumpy() for the slice"
            raise TraceError(what, where=caller().place, allowed=allowed, hint=hint)
        return self._drawn()

    def _drawn(self) -> np.ndarray:
        """The values held; drawn now if they were not yet."""
        if (self._data is None or self._requires_grad) and current_tracer.get() is not None:
            what = f"the value of parameter {self.name!r} is read while the network is traced"
            raise TraceError(what, where=caller().place, hint="Use it in operators, or its value()")
        if self._data is None:
            drawn = self._initial.draw(parameter_generator(self.name), self._initial.shape)
            self._data = np.array(drawn, dtype=self._initial.dtype, order="C")
        return self._data

    def __bool__(self) -> bool:
        return super().__bool__() if (tracer := current_tracer.get()) is None else bool(tracer.operand(self, []))

    def asnumpy(self) -> np.ndarray:
        """The numpy array itself (not a copy): on a rank of a compiled network, its slice."""
        return self._drawn()

    has_init = property(lambda self: self._data is None, doc="Whether the values are still to be drawn.")

    def init_data(self, layout: tuple[Any, ...] | None = None, set_sliced: bool = False) -> Parameter:
        """Draw the values now, if they were not yet; with a layout hold this rank's slice (or with set_sliced)"""
        flag("Parameter.init_data", "set_sliced", set_sliced)
        self._drawn()
        if layout is not None:
            hold_slice(self, layout)
        return self

    # what MindSpore's own passes keep at a parameter
    sliced = property(lambda self: self.layout is not None, doc="Whether it holds a rank's slice.")
    inited_param = property(lambda self: self, doc="The Parameter with the values: itself.")

    @property
    def param_info(self) -> Parameter:
        """Name and flags, which the Parameter itself holds; assigned, those of another are taken over."""
        return self

    @param_info.setter
    def param_info(self, other: Parameter) -> None:
        for name in ("name", "requires_grad", "layerwise_parallel", "parallel_optimizer", "_comm_fusion"):
            setattr(self, name, getattr(other, name))

    def add_pipeline_stage(self, stage: int) -> None:
        """Accepted: a parameter lies on the stages that use it. Raises ArgumentTypeError, ArgumentError."""
        integer(0)("add_pipeline_stage", "stage", stage)

    def value(self) -> Tensor:
        """The values now, which later training does not change; gradients through them are the Parameter's."""
        return self.copy() if (tracer := current_tracer.get()) is None else tracer.operand(self, [])

    def clone(self, init: Any = "same") -> Parameter:
        """A new Parameter with this name, shape, dtype.  init: "same", or what `initializer` takes ("zeros")."""
        return from_above("cloner")(self, self.name, init)

    def full(self) -> Tensor:
        """The whole tensor; while it is split, every rank of its world has to call it. Raises WorldError outside."""
        return Tensor(gather_full(self._drawn(), self.full_shape, self.layout, tag=f"full() of {self.name}"))

    def slice_for(self, layout: TensorLayout, rank: int) -> np.ndarray:
        """What `rank` holds under `layout`, C-contiguous. If a slice has to change, every rank has to call this."""
        held = self._drawn()
        if self.layout is not None and self.layout.same_placement(layout):
            return held
        if self.layout is None and not is_split(layout):
            return held if held.flags.c_contiguous else np.array(held, order="C")
        return cut(held if self.layout is None else self.full().asnumpy(), layout, rank)

    def hold(self, array: np.ndarray, layout: TensorLayout) -> None:
        """From now on hold this slice of the tensor, which nobody else may change any more."""
        self._data, self._initial = array, None
        self.layout = layout if is_split(layout) else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per dim: of this rank's slice, or in a trace of the whole tensor."""
        if self.layout is not None and current_tracer.get() is not None:
            return self.full_shape  # a network is written, and traced, for whole tensors
        return self._initial.shape if self._data is None else self._data.shape

    @property
    def dtype(self) -> np.dtype:
        """The numpy dtype."""
        return self._initial.dtype if self._data is None else self._data.dtype

    @property
    def comm_fusion(self) -> int:
        """Number of the message that carries its gradient; 0: a message of its own."""
        return 1 if self._comm_fusion is None else self._comm_fusion

    comm_fusion_given = property(lambda self: self._comm_fusion is not None, doc="Whether `comm_fusion` was chosen.")

    @comm_fusion.setter
    def comm_fusion(self, value: int) -> None:
        where = f"Parameter {self.name!r}"
        value = integer(0)(where, "comm_fusion", value)
        # the messages of what is split in PyNative mode are those of single calls (MindSpore refuses it too)
        mode = get_auto_parallel_context("parallel_mode")
        if get_context("mode") == PYNATIVE_MODE and mode == "auto_parallel":
            what = f"comm_fusion is set in PyNative mode with parallel_mode={mode!r}"
            raise ContextConflictError(what, where=where, hint="set_context(mode=GRAPH_MODE) first")
        self._comm_fusion = value

    def _become(self, new: Any) -> None:
        """`self.w[...] = value` is an `assign`, which counts in compiled networks too."""
        writes.assign(self, new)

    def set_data(self, data: Any, slice_shape: bool = False) -> None:
        """Replace the values, keeping shape and dtype (MindSpore refuses wider Tensors). What `initializer(...)`
        returns is drawn when next read. With slice_shape, another shape is taken too, the Parameter's from then on.

        A Parameter that holds a slice takes a slice, or the whole tensor, which is sliced when next used.
        """
        where, allowed = f"Parameter {self.name!r}", f"Shape {self.full_shape}"
        if data is None or isinstance(data, (str, bytes)):
            raise ArgumentTypeError(f"data={shorten(data)}", where=where, allowed="A Tensor, an array or a number")
        if isinstance(data, Initial) and data.has_init:
            if data.shape != self.full_shape:
                raise ShapeError(f"data of shape {data.shape}", where=where, allowed=allowed)
            self._initial, self._data, self.layout = Initial(data.draw, data.shape, self.dtype), None, None
            return
        if isinstance(data, (Tensor, bool, int, float)):
            check_taken_in(where, self.dtype, as_array(data, [self]).dtype)
        array = np.asarray(plain(tensor_operand(where, "data", data, number=True)), self.dtype)
        if flag(where, "slice_shape", slice_shape) and array.shape != self.shape:
            self.layout, self.full_shape, self._data = None, array.shape, array
        if array.shape not in (self.shape, self.full_shape):
            allowed += f", or that of the slice, {self.shape}" if self.layout is not None else ""
            raise ShapeError(f"data of shape {array.shape}", where=where, allowed=allowed)
        if array.shape == self.full_shape != self.shape:
            self.layout = None
        self._data, self._initial = np.array(array), None

    def adopt(self, array: np.ndarray) -> None:
        """As `set_data`, but keeps `array` itself, which nobody may change any more: for optimizers."""
        if array.shape == self.shape and array.dtype == self.dtype and array.flags.c_contiguous:
            self._data = array
        else:
            self.set_data(array)

    def __repr__(self) -> str:
        shown = f"name={self.name}, shape={self.shape}, dtype={self.dtype}, requires_grad={self.requires_grad}"
        return f"Parameter({shown})"

    __str__ = __repr__


UNNAMED = "Parameter"  # the name of a Parameter that was given none


class ParameterTuple(tuple):
    """Several Parameters that a Cell registers under their own names."""

    @fitting
    def __new__(cls, parameters: Iterator[Parameter] | list[Parameter]) -> ParameterTuple:
        try:
            result = super().__new__(cls, () if isinstance(parameters, (str, type, dict)) else parameters)
            fits = not isinstance(parameters, (str, type, dict))
        except TypeError:  # an array without dims has an __iter__, too
            fits = False
        if not fits:
            raise ShapeError(shorten(parameters), where="ParameterTuple", allowed="A list or tuple of Parameters")
        if others := [p for p in result if not (isinstance(p, Parameter) or getattr(p, "answers", False))]:  # DTensors
            raise ShapeError(f"element {shorten(others[0])}", where="ParameterTuple", allowed="Parameters only")
        named: dict[str, Parameter] = {}
        for parameter in result:
            if named.setdefault(parameter.name, parameter) is not parameter and parameter.name != UNNAMED:
                what, hint = f"two Parameters are named {parameter.name!r}", "Give each its own name"
                raise ArgumentError(what, where="ParameterTuple", hint=hint)
        return result

    def clone(self, prefix: str, init: Any = "same") -> ParameterTuple:
        """New Parameters of these shapes, named `prefix.name`.  init: "same", or what `initializer` takes ("zeros")."""
        if not isinstance(prefix, str) or not prefix:
            raise ArgumentTypeError(f"prefix={shorten(prefix)}", where="clone", allowed="A non-empty str")
        return ParameterTuple([from_above("cloner")(p, f"{prefix}.{p.name}", init) for p in self])
