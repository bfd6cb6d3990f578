"""Tracing: run `construct` on values that only have a shape, and write down every operator.

    graph = trace_network(net, (("x", (16, 32), "float32"), ("label", (16, 16), "float32")), loss)

A traced value knows its global shape and dtype; asking for its numbers (`asnumpy()`, `if x:`, `float(x)`) raises TraceError with the learner's line.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..context import current_tracer
from ..errors import ShapeError, TraceError, message, shorten
from ..ops.registry import OPS, OpDef, Primitive, scalar_operand
from ..origin import Origin, caller
from ..tensor import FUNCTION_OPERATORS, UFUNC_OPERATORS, Arithmetic, Parameter, Tensor
from .ir import Graph, GraphInput, Node, attr_pairs, fresh_name

__all__ = ["TracedValue", "Tracer", "input_names", "trace_network"]


STEP = "training_step"  # name of the graph input that counts steps


class TraceAttributeError(TraceError, AttributeError):
    """An attribute that a traced value does not have; also an AttributeError, so that hasattr() works."""


class TracedValue(Arithmetic):
    """A value of the trace: a name, a shape and a dtype, no numbers."""

    __slots__ = ("dtype", "name", "shape", "tracer")

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str, tracer: Any) -> None:
        self.name, self.shape, self.dtype, self.tracer = name, tuple(shape), np.dtype(dtype), tracer

    def _refuse(self, what: str) -> Any:
        origin = caller()
        raise TraceError(
            message(
                f"{what} needs the numbers of {self.name!r} (shape {self.shape}, {self.dtype})",
                where=origin.place,
                allowed="While a network is compiled its tensors have shapes but no values yet",
                hint="Run the Cell outside a parallel mode to look at numbers, or use operators instead",
            )
        )

    # fmt: off
    def asnumpy(self): return self._refuse("asnumpy()")
    def item(self): return self._refuse("item()")
    def __array__(self, dtype=None, copy=None): return self._refuse("a conversion to a numpy array")
    def __bool__(self): return self._refuse("a truth test (if, while, and, or)")
    def __float__(self): return self._refuse("float()")
    def __int__(self): return self._refuse("int()")
    def __complex__(self): return self._refuse("complex()")
    def __index__(self): return self._refuse("use as an index")
    def __round__(self, digits=None): return self._refuse("round()")
    def __contains__(self, value): return self._refuse("a search ('in')")
    def __setitem__(self, index, value): return self._no_operator("assignment to elements", "Make a new tensor with operators")
    # fmt: on

    def _no_operator(self, what: str, hint: str, kind: type[TraceError] = TraceError) -> Any:
        """Raise TraceError: `what` is not among the operators that can be compiled."""
        given = f"{what} of {self.name!r} (shape {self.shape}, {self.dtype}) is not an operator yet"
        allowed = "A network that is compiled uses the operators of parallel_lab.ops"
        raise kind(message(given, where=caller().place, allowed=allowed, hint=hint))

    def _without_operator(self, symbol: str, function: np.ufunc, *operands: Any) -> Any:
        return self._no_operator(repr(symbol), "Write it with operators that exist: +, -, *, /, ** and comparisons")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """`array + x` reaches this through numpy, and is recorded; a numpy function on x is refused with the operator to use."""
        operator = UFUNC_OPERATORS.get(ufunc.__name__)
        # Python asks x's own method first when x stands on the left, so only here can numpy be the one who was asked to add
        if method == "__call__" and ufunc.__name__ in _BINARY_UFUNCS and not isinstance(inputs[0], TracedValue):
            out = kwargs.pop("out", None)
            if not kwargs and (out is None or out[0] is inputs[0]):
                return OPS[operator](*inputs)
        return self._no_operator(f"np.{ufunc.__name__}", f"Use ops.{operator}" if operator else "Use operators instead")

    def __array_function__(self, function: Callable, types: Any, args: Any, kwargs: Any) -> Any:
        name = function.__name__
        operator = FUNCTION_OPERATORS.get(name)
        if name in ("shape", "ndim", "size"):  # known without numbers
            return getattr(self, name)
        return self._no_operator(f"np.{name}", f"Use ops.{operator}" if operator else "Use operators instead")

    def __format__(self, spec: str) -> str:
        return self._refuse(f"the format {spec!r}") if spec else str(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in TracedValue.__slots__:  # Python and numpy look for methods that need not be there
            raise AttributeError(name)
        return self._no_operator(f"the attribute {name!r}", _attribute_hint(name), TraceAttributeError)

    @property
    def data(self) -> Any:
        return self._refuse(".data")

    def __repr__(self) -> str:
        return f"TracedValue({self.name}, shape={self.shape}, dtype={self.dtype})"

    def __str__(self) -> str:
        """What `print(x)` shows while the network is compiled; the numbers follow when the plan runs, on every rank those of its slice."""
        if isinstance(self.tracer, Tracer) and current_tracer.get() is self.tracer:
            self.tracer.prints.append((self.name, caller(self.tracer.scope_text())))
        return f"Tensor({self.name}: global shape {self.shape}, {self.dtype}; every rank prints its slice when the plan runs)"


# the numpy functions behind Python's binary operators
_ARITHMETIC = ("add", "subtract", "multiply", "divide", "true_divide", "power", "matmul")
_BINARY_UFUNCS = frozenset((*_ARITHMETIC, "equal", "not_equal", "greater", "greater_equal", "less", "less_equal"))


def _attribute_hint(name: str) -> str:
    if name in OPS and not OPS[name].internal:
        return f"Use ops.{name}(x)"
    near = difflib.get_close_matches(name, [n for n in dir(TracedValue) if not n.startswith("_")], 1)
    return f"Did you mean {near[0]!r}?" if near else "Use operators instead"


class Tracer:
    """Receives operators (through `current_tracer`) and Cell borders, and builds the Graph."""

    def __init__(self, network_parameters: Iterable[Parameter] = ()) -> None:
        network_parameters = list(network_parameters)
        self.registered = frozenset(id(p) for p in network_parameters)
        self.inputs: dict[str, GraphInput] = {}
        self.nodes: list[Node] = []
        self.parameters: dict[int, str] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.constant_names: dict[int, str] = {}
        self.kept: list[Any] = []
        self.scope: list[tuple[str, str]] = []
        self.prints: list[tuple[str, Origin]] = []
        self.assigns: dict[str, str] = {}
        # a parameter keeps its own name, also when an input or an operator that comes before it has the same
        self.reserved = frozenset(p.name for p in network_parameters)
        self.used: set[str] = set(self.reserved)

    # ---- Cell borders, called by Cell.__call__ ----

    def enter(self, cell: Any) -> None:
        self.scope.append((getattr(cell, "cell_name", "") or type(cell).__name__, type(cell).__name__))

    def leave(self) -> None:
        self.scope.pop()

    def scope_text(self) -> str:
        """MindSpore's scope: Default/network-WithLossCell/_backbone-Net."""
        return "/".join(["Default", *(f"{name}-{kind}" for name, kind in self.scope)])

    def path(self) -> str:
        """Dotted path of the running Cell below the network: "d1" or "loss_fn"."""
        parts = [name for name, _ in self.scope[1:]]
        if parts and parts[0] == "_backbone":
            parts = parts[1:]
        return ".".join(p.lstrip("_") for p in parts)

    # ---- values ----

    def named(self, base: str) -> str:
        """A name of its own for a new value."""
        name = fresh_name(base, self.used)
        self.used.add(name)
        return name

    def data(self, name: str, shape: tuple[int, ...], dtype: str) -> TracedValue:
        name = self.named(name)
        self.inputs[name] = GraphInput(name, "data", tuple(shape), dtype)
        return TracedValue(name, shape, dtype, self)

    def operand(self, value: Any, others: Sequence[Any]) -> TracedValue:
        """Anything an operator may be given, as a traced value."""
        if isinstance(value, TracedValue):
            if value.tracer is not self:
                raise TraceError(
                    message(f"{value.name!r} belongs to another trace", where=caller().place, hint="Do not keep tensors of a compiled call")
                )
            return value
        if isinstance(value, Parameter):
            return self._parameter(value)
        if isinstance(value, Tensor) or isinstance(value, np.ndarray) and value.ndim:
            return self._constant(value)
        if isinstance(value, (bool, int, float, np.generic, np.ndarray)):
            array = np.asarray(value) if isinstance(value, (np.generic, np.ndarray)) else scalar_operand(value, others)
            return self._scalar(array)
        raise TraceError(message(f"operand {shorten(value)}", where=caller().place, allowed="Tensors, Parameters and numbers"))

    def _parameter(self, parameter: Parameter) -> TracedValue:
        name = self.parameters.get(id(parameter))
        if name is None:
            name = parameter.name
            if name in self.inputs or (name in self.used and name not in self.reserved):
                other = "two parameters are" if name in self.parameters.values() else "a parameter and an input or operator before it are"
                hint = "Give one of them another name: Parameter(..., name='...')"
                if self.scope and id(parameter) not in self.registered:
                    hint = (
                        "One of them does not belong to the network: a plain list or dict does not register what it holds. "
                        "Keep Cells in nn.CellList([...]) and Parameters in ParameterTuple([...])"
                    )
                raise TraceError(message(f"{other} named {name!r}", where=caller().place, hint=hint))
            self.used.add(name)
            self.parameters[id(parameter)] = name
            self.kept.append(parameter)
            self.inputs[name] = GraphInput(
                name, "parameter", tuple(parameter.shape), str(parameter.dtype), parameter.requires_grad, int(parameter.comm_fusion)
            )
        return TracedValue(name, parameter.shape, str(parameter.dtype), self)

    def _constant(self, value: Any) -> TracedValue:
        array = value.asnumpy() if isinstance(value, Tensor) else value
        if array.ndim == 0:
            return self._scalar(array)
        name = self.constant_names.get(id(value))
        if name is None:
            name = self.constant_names[id(value)] = self.named("constant")
            self.kept.append(value)
            self.constants[name] = np.array(array)
            self.inputs[name] = GraphInput(name, "constant", array.shape, str(array.dtype))
        return TracedValue(name, array.shape, str(array.dtype), self)

    def _scalar(self, array: np.ndarray) -> TracedValue:
        number = array.item()
        name = f"{number!r}:{array.dtype}"
        self.inputs.setdefault(name, GraphInput(name, "scalar", (), str(array.dtype), value=number))
        return TracedValue(name, (), str(array.dtype), self)

    def step(self) -> TracedValue:
        """How many training steps were taken before the one that runs: () int64."""
        if STEP not in self.inputs:
            self.used.add(STEP)
            self.inputs[STEP] = GraphInput(STEP, "step", (), "int64")
        return TracedValue(STEP, (), "int64", self)

    def assign(self, parameter: Parameter, value: Any) -> None:
        """`parameter` takes `value` at the end of the forward program; what reads it before still sees the old one."""
        where = caller(self.scope_text()).place
        if not isinstance(parameter, Parameter) or parameter.requires_grad:
            what = f"{shorten(parameter)} is trained" if isinstance(parameter, Parameter) else f"{shorten(parameter)} is given a value"
            allowed = "Inside construct only a Parameter with requires_grad=False takes a value; the optimizer changes the others"
            raise TraceError(message(what, where=where, allowed=allowed))
        target, source = self._parameter(parameter), self.operand(value, [parameter])
        if (source.shape, source.dtype) != (target.shape, target.dtype):
            what = f"{target.name!r} of shape {target.shape}, {target.dtype}, is given a value of shape {source.shape}, {source.dtype}"
            raise ShapeError(message(what, where=where, allowed="Shape and dtype of the parameter"))
        if not any(n.name == source.name for n in self.nodes):
            raise TraceError(message(f"{target.name!r} is given {source.name!r}", where=where, allowed="A value that an operator has made"))
        self.assigns[target.name] = source.name

    # ---- operators ----

    def where(self, op_class: str, primitive: Primitive | None) -> str:
        """The start of an error about an operator that is being called: class, path and the learner's line."""
        origin = caller(self.scope_text())
        return f"{op_class} {self._base(op_class, primitive)!r}" + (f" ({origin.place})" if origin.place else "")

    def _base(self, op_class: str, primitive: Primitive | None) -> str:
        return self.path_of((primitive.instance_name if primitive is not None else "") or _snake(op_class))

    def path_of(self, name: str) -> str:
        """`name` below the running Cell: "conv1.conv2d"."""
        return f"{self.path()}.{name}" if self.path() else name

    def record(self, op: OpDef, operands: Sequence[Any], attrs: dict[str, Any], primitive: Primitive | None) -> TracedValue:
        """Write down one operator and return its result."""
        origin = caller(self.scope_text())
        values = [self.operand(x, operands) for x in operands]
        op_class = primitive.name if primitive is not None else self._class_name(op, values)
        base = self._base(op_class, primitive)
        if "index" in attrs and op.outputs is not None:
            base += f".{attrs['index']}"
        where = f"{op_class} {base!r}" + (f" ({origin.place})" if origin.place else "")
        shapes = tuple(v.shape for v in values)
        shape, dtype = op.infer(shapes, tuple(str(v.dtype) for v in values), attrs, where)
        if op.view:
            attrs = {**attrs, "shape": shape}
        node = Node(
            name=self.named(base),
            op=op.name,
            op_class=op_class,
            ins=tuple(v.name for v in values),
            attrs=attr_pairs(attrs),
            shape=shape,
            dtype=dtype,
            origin=origin,
            strategy=primitive.in_strategy if primitive is not None else None,
            strategy_source="user" if primitive is not None and primitive.in_strategy is not None else "",
            strategy_origin=primitive.strategy_origin if primitive is not None else None,
            out_strategy=primitive.out_strategy if primitive is not None else None,
            cross_batch=primitive is not None and primitive.prim_attrs.get("cross_batch") is True,
            sync=primitive.prim_attrs.get("sync") if primitive is not None else None,
        )
        self.nodes.append(node)
        return TracedValue(node.name, shape, dtype, self)

    @staticmethod
    def _class_name(op: OpDef, values: list[TracedValue]) -> str:
        if op.name == "matmul" and any(len(v.shape) > 2 for v in values):
            return "BatchMatMul"
        return op.class_name


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", name).replace("Mat_Mul", "MatMul").lower()


def input_names(fn: Callable, count: int) -> list[str]:
    """Names for `count` positional inputs, taken from the function's own parameters where it has them."""
    try:
        names = [p.name for p in inspect.signature(fn).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        names = []
    return [names[i] if i < len(names) else f"input{i}" for i in range(count)]


def trace_network(
    network: Callable, inputs: Sequence[tuple[str, tuple[int, ...], str]], name: str = "Net"
) -> tuple[Graph, dict[str, Parameter], dict[str, np.ndarray]]:
    """Trace `network` (a Cell or a function) on inputs given as (name, global shape, dtype).

    Returns the graph, the Parameters it used by name, and the arrays it held as constants. Raises TraceError, ShapeError.
    """
    tracer = Tracer(network.get_parameters()) if hasattr(network, "get_parameters") else Tracer()
    values = [tracer.data(*spec) for spec in inputs]
    token = current_tracer.set(tracer)
    try:
        result = network(*values)
    finally:
        current_tracer.reset(token)
    results = result if isinstance(result, (tuple, list)) else (result,)
    for r in results:
        if not isinstance(r, TracedValue):
            raise TraceError(message(f"the network returned {shorten(r)}", where=name, allowed="Tensors that it computed from its inputs"))
    if not tracer.nodes:
        raise TraceError(message("the network returned its input unchanged", where=name, hint="Use at least one operator"))
    parameters = {tracer.parameters[id(p)]: p for p in tracer.kept if isinstance(p, Parameter)}
    graph = Graph(
        tuple(tracer.inputs.values()), tuple(tracer.nodes), tuple(r.name for r in results), name, tuple(tracer.prints), tuple(tracer.assigns.items())
    )
    return graph, parameters, tracer.constants


def check_input(position: int, name: str, value: Any) -> tuple[str, tuple[int, ...], str]:
    """An example input of `compile` as (name, shape, dtype)."""
    if isinstance(value, TracedValue) or not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise ShapeError(
            message(f"input {position} is {shorten(value)}", where="compile", allowed="A Tensor or numpy array with the shape to compile for")
        )
    return name, tuple(int(n) for n in value.shape), str(np.dtype(str(value.dtype)))
