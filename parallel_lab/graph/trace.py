"""Tracing: run `construct` on values that only have a shape, and write down every operator.

    graph = trace_network(net, (("x", (16, 32), "float32"), ("label", (16, 16), "float32")), loss)

A traced value knows its global shape and dtype; `asnumpy()`, `if x:` and `float(x)` raise TraceError with the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..base.dtypes import scalar_operand
from ..base.errors import ShapeError, TraceError, shorten
from ..base.hooks import current_tracer
from ..base.origin import Origin, caller
from ..layout.named_layout import as_strategy
from ..nn.tensor.parameter import Parameter
from ..nn.tensor.tensor import Tensor
from ..ops.machine.opdef import OpDef, dtype_name
from ..ops.machine.primitive import Primitive
from ..ops.machine.registry import OPS
from .draft import fresh_name, needed, result_names
from .forms import computed, map_form, slot_for
from .instr import Pairs, attr_pairs
from .ir import Graph, GraphInput, Node
from .python_branches import with_branches
from .recomputed import option_of, region_of
from .traced_branches import TracedBranches
from .traced_value import TracedValue, TruthTest

STEP = "training_step"  # name of the graph input that counts steps
MICRO_BATCH = "micro_batch"  # name of the graph input that counts micro-batches within a step
# fields of a node, and what `add_prim_attr` asks for
ASKED = {"nd_tp": "enable_nd_tp", "cross_batch": "cross_batch", "own_rows": "skip_redistribution"}
ASKED |= {"scattered": "forward_reduce_scatter", "self_defined": "self_define_shard"}


class Scope(NamedTuple):
    """A Cell that runs, and what it, or a Cell around it, asked for.

    name, kind  of the Cell: its name in the Cell around it, its class
    by_batch    whether operators without a strategy split their batch (`Cell.set_data_parallel`)
    stage       its pipeline stage; -1: not chosen
    region      how its results are recomputed or kept on the host (`recomputed.py`); (): as usual
    """

    name: str = "Default"
    kind: str = ""
    by_batch: bool = False
    stage: int = -1
    region: Pairs = ()


class Tracer(TracedBranches):
    """Receives operators (through `current_tracer`) and Cell borders, and builds the Graph."""

    def __init__(self, network_parameters: Iterable[Parameter] = ()) -> None:
        super().__init__()
        network_parameters = list(network_parameters)
        self.parallel_mode: str | None = None  # of the program; None: as the context says
        self.device_num, self.rank = 1, 0  # that the program is for; the rank counts outside of a world only
        self.registered = frozenset(id(p) for p in network_parameters)
        self.inputs: dict[str, GraphInput] = {}
        self.nodes: list[Node] = []
        self.parameters: dict[int, str] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.constant_names: dict[int, str] = {}
        self.kept: list[Any] = []
        self.scopes = [Scope()]  # outside of all Cells, then a scope for every Cell that runs
        self.cells: dict[int, Any] = {}
        self.primitives: dict[int, Primitive] = {}
        self.prints: list[tuple[str, Origin]] = []
        self.assigns: dict[str, str] = {}
        # parameters that are read through another value, by `shard` with a parameter_plan
        self.pinned: dict[int, TracedValue] = {}
        # how many micro-batches the network is fed; what is written down now is for each of them, or once (`Node.once`)
        self.micro_batches, self.once = 1, ""
        self.fed: Any = None
        # whether functions are read for `if` on tensors (`python_branches.py`)
        self.finds_branches = False
        self.read_functions: dict[Any, Any] = {}
        # the same for a function that is differentiated, and values of the whole batch that it may not read
        self.parts, self.whole_batch = 1, frozenset[str]()
        # a parameter keeps its own name, also when an input or an operator that comes before it has the same
        self.reserved = frozenset(p.name for p in network_parameters)
        self.used: set[str] = set(self.reserved)

    # ---- Cell borders, called by Cell.__call__ ----

    def enter(self, cell: Any) -> None:
        """A Cell begins: operators belong to it, with its pipeline stage, and split by batch if it asks for that."""
        self.cells[id(cell)] = cell
        around, kind = self.scopes[-1], type(cell).__name__
        scope = Scope(
            name=getattr(cell, "cell_name", "") or kind,
            kind=kind,
            by_batch=around.by_batch or getattr(cell, "_data_parallel", False),
            stage=around.stage if cell.pipeline_stage is None else cell.pipeline_stage,
            region=region_of(cell, around.region, len(self.nodes)),
        )
        self.scopes.append(scope)

    def leave(self) -> None:
        """The Cell that was entered last has ended."""
        self.scopes.pop()

    def scope_text(self) -> str:
        """MindSpore's scope: Default/network-WithLossCell/_backbone-Net."""
        return "/".join(["Default", *(f"{scope.name}-{scope.kind}" for scope in self.scopes[1:])])

    def path(self) -> str:
        """Dotted path of the running Cell below the network: "d1" or "loss_fn"."""
        names = [scope.name for scope in self.scopes[1:]]
        return ".".join(name.lstrip("_") for name in names[2 if names[1:2] == ["_backbone"] else 1 :])

    def staged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the learner's, whose `if` on a tensor runs both sides if any function here has one."""
        return with_branches(function, self.read_functions) if self.finds_branches else function

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
                what, hint = f"{value.name!r} belongs to another trace", "Do not keep tensors of a compiled call"
                raise TraceError(what, where=caller().place, hint=hint)
            if value.name in self.whole_batch:
                what, allowed = f"a micro-batch reads {value.name!r} of the whole batch", "Arguments and Parameters"
                hint = "Give it to the function that value_and_grad made as an argument"
                raise TraceError(what, where=caller().place, allowed=allowed, hint=hint)
            return value
        if isinstance(value, Parameter):
            return self._parameter(value)
        if isinstance(value, Tensor) or isinstance(value, np.ndarray) and value.ndim:
            return self._constant(value)
        if isinstance(value, (bool, int, float, np.generic, np.ndarray)):
            array = np.asarray(value) if isinstance(value, (np.generic, np.ndarray)) else scalar_operand(value, others)
            return self._scalar(array)
        raise TraceError(f"operand {shorten(value)}", where=caller().place, allowed="Tensors, Parameters and numbers")

    def _parameter(self, parameter: Parameter) -> TracedValue:
        """The value of a parameter: what it was given last, or what it holds when the step begins."""
        if id(parameter) in self.pinned:
            return self.pinned[id(parameter)]
        name = self.value_now(self._own_parameter(parameter))
        return TracedValue(name, parameter.full_shape, str(parameter.dtype), self)

    def _own_parameter(self, parameter: Parameter) -> str:
        name = self.parameters.get(id(parameter))
        if name is None:
            name = parameter.name
            if name in self.inputs or (name in self.used and name not in self.reserved):
                twice = name in self.parameters.values()
                both = "two parameters" if twice else "a parameter and an input or operator before it"
                hint = "Give one of them another name: Parameter(..., name='...')"
                if self.scopes[1:] and id(parameter) not in self.registered:
                    hint = (
                        "One of them does not belong to the network: a plain list or dict does not register what it "
                        "holds. Keep Cells in nn.CellList([...]) and Parameters in ParameterTuple([...])"
                    )
                raise TraceError(f"{both} are named {name!r}", where=caller().place, hint=hint)
            self.used.add(name)
            self.parameters[id(parameter)] = name
            self.kept.append(parameter)
            shape, dtype, fusion = tuple(parameter.full_shape), str(parameter.dtype), int(parameter.comm_fusion)
            kept = {"layerwise": bool(parameter.layerwise_parallel), "fusion_given": parameter.comm_fusion_given}
            kept |= {"parallel_optimizer": bool(parameter.parallel_optimizer)}
            self.inputs[name] = GraphInput(name, "parameter", shape, dtype, parameter.requires_grad, fusion, **kept)
        return name

    def _constant(self, value: Any) -> TracedValue:
        array = value.asnumpy() if isinstance(value, Tensor) else value
        name = self.constant_names.get(id(value))
        if array.ndim == 0 and name is None:
            return self._scalar(array)
        if name is None:
            name = self.constant_names[id(value)] = self.named("constant")
            self.kept.append(value)
            self.constants[name] = np.array(array)
            self.inputs[name] = GraphInput(name, "constant", array.shape, str(array.dtype))
        return TracedValue(name, array.shape, str(array.dtype), self)

    def held_as(self, value: Tensor, new: TracedValue) -> None:
        """From now on `value`, a constant of the trace, stands for `new`."""
        self.constant_names[id(value)] = new.name
        self.kept.append(value)

    def _scalar(self, array: np.ndarray) -> TracedValue:
        number = array.item()
        name = f"{number!r}:{array.dtype}"
        self.inputs.setdefault(name, GraphInput(name, "scalar", (), str(array.dtype), value=number))
        return TracedValue(name, (), str(array.dtype), self)

    def step(self) -> TracedValue:
        """How many training steps were taken before the one that runs: () int64."""
        return self._count(STEP, "step")

    def _count(self, name: str, role: str) -> TracedValue:
        if name not in self.inputs:
            self.used.add(name)
            self.inputs[name] = GraphInput(name, role, (), "int64")
        return TracedValue(name, (), "int64", self)

    # ---- micro-batches, called by Cells that feed them ----

    def micro_batched(
        self, network: Callable[..., Any], inputs: Sequence[Any], count: int, *, rows_too: bool = True
    ) -> Any:
        """The sums of what `network` returns for `count` micro-batches of these inputs. It is written down once.

        rows_too=False: besides the first result only numbers are added up, and nothing outside can read the others
        """
        if self.when:
            raise self.twice(
                "micro-batches are made on one side of an if on a tensor", "Make them around the whole network"
            )
        call = (network, count, *(getattr(x, "name", x) for x in inputs))
        if self.fed and self.fed[0] == call:
            return self.fed[1]  # as in loss = net(x); grads = grad(net)(x)
        if self.micro_batches > 1:
            hint = "Put one Cell that makes micro-batches around the whole network"
            raise self.twice("micro-batches are made a second time", hint)
        self.micro_batches = count
        self.nodes = [replace(n, once="first" if n.phase == "forward" else "") for n in self.nodes]
        number = self._count(MICRO_BATCH, "micro_batch")
        rows, add_up = OPS["micro_batch_rows"], OPS["accumulate"]
        result = network(*(rows(x, number, count=count) if getattr(x, "shape", ()) else x for x in inputs))
        first = result[0] if isinstance(result, (tuple, list)) and result else result

        def summed(part: Any) -> Any:
            added = isinstance(part, TracedValue) and (rows_too or part is first or not part.shape)
            return add_up(part) if added else part

        result = map_form(summed, result)
        self.once, self.fed = "last", (call, result)
        return result

    def step_total(self, x: Any) -> Any:
        """x, added up if it is a micro-batch's: what reads the sum runs once in a step."""
        if self.micro_batches == 1 or self.once:
            return x
        total = OPS["accumulate"](x)
        self.totals.add(total.name)
        return total

    def differentiated(self, fn: Callable[..., Any], inputs: Sequence[Any]) -> Any:
        """What `fn`, which is differentiated, returns: with `parts` the sums over so many micro-batches."""
        fn = self.staged(fn)
        if self.parts == 1:
            return fn(*inputs)
        if self.micro_batches > 1:
            hint = "Differentiate one function that returns all losses added"
            raise self.twice(f"gradients are asked for a second time, with grad_accumulation_step={self.parts}", hint)
        for at, x in enumerate(inputs):
            if getattr(x, "shape", ()) and x.shape[0] % self.parts:
                dim = f"dim 0 of argument {at} of shape {x.shape}"
                what = f"{dim} is not divided by grad_accumulation_step={self.parts}"
                raise ShapeError(what, where=caller(self.scope_text()).place, allowed="Equal micro-batches")
        whole = {i.name for i in self.inputs.values() if i.role == "data" and i.shape}
        for node in self.nodes:
            whole.update(node.outs if whole.intersection(node.reads) else ())

        def each(*rows: Any) -> Any:
            self.whole_batch = frozenset(whole)
            result = fn(*rows)
            self.whole_batch = frozenset()
            return result

        return self.micro_batched(each, inputs, self.parts, rows_too=False)

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

    def record(self, op: OpDef, operands: Sequence[Any], attrs: dict[str, Any], primitive: Primitive | None) -> Any:
        """Write down one operator and return its result, or the tuple of its results."""
        origin = caller(self.scope_text())
        variable = self.variable(op.class_name, operands[0]) if op.writes else None
        values = [self.operand(x, operands) for x in operands]
        op_class = primitive.name if primitive is not None else self._class_name(op, values)
        base = self._base(op_class, primitive)
        where = f"{op_class} {base!r}" + (f" ({origin.place})" if origin.place else "")
        shapes = tuple(v.shape for v in values)
        results = op.infer(shapes, tuple([dtype_name(v.dtype) for v in values]), attrs, where)
        name = self.named(base)
        choices: dict[str, Any] = {}
        if primitive is not None:
            self.primitives[id(primitive)] = primitive
            prim_attrs = primitive.prim_attrs
            asked = {field: prim_attrs.get(name) is True for field, name in ASKED.items()}
            choices = {
                **asked,
                "strategy": as_strategy(primitive.in_strategy, asked["nd_tp"]),
                "strategy_source": "user" if primitive.in_strategy is not None else "",
                "strategy_origin": primitive.strategy_origin,
                "out_strategy": as_strategy(primitive.out_strategy),
                "sync": prim_attrs.get("sync"),
                "target": "CPU" if prim_attrs.get("primitive_target") == "CPU" else "",
            }
        node = Node(
            name=name,
            op=op.name,
            op_class=op_class,
            ins=tuple(v.name for v in values),
            attrs=attr_pairs({**attrs, "shape": results.shapes[0]} if op.view else attrs),
            outs=tuple(map(self.named, result_names(name, results))) if results.several else (name,),
            shapes=results.shapes,
            dtypes=results.dtypes,
            origin=origin,
            phase=self.phase_of(values, variable),
            once=self.once or ("last" if self.totals.intersection(v.name for v in values) else ""),
            stage=self.scopes[-1].stage,
            by_batch=choices.get("strategy") is None and self.scopes[-1].by_batch,
            recompute=option_of(primitive, self.scopes[-1].region),
            when=self.when,
            **choices,
        )
        self.nodes.append(node)
        self.note(node, variable)
        return results.form(
            [TracedValue(*out, self) for out in zip(node.outs, results.shapes, results.dtypes, strict=True)]
        )

    @staticmethod
    def _class_name(op: OpDef, values: list[TracedValue]) -> str:
        if op.name == "matmul" and any(len(v.shape) > 2 for v in values):
            return "BatchMatMul"
        return op.class_name


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", name).replace("Mat_Mul", "MatMul").lower()


class Traced(NamedTuple):
    """What a trace found.

    graph        the operators, on global shapes
    parameters   the Parameters that were used, by name
    constants    the arrays that were held
    optimizers   those that were called
    scaler       (loss scaler that was asked for its scale, the input that holds it), or None
    form         what was returned, a `Slot` for every value of the graph: lists, tuples, dicts, numbers, None
    cells        (Cell, its `training`) of every Cell that was called
    primitives   (Primitive, what it `said`) of every operator object that was called
    """

    graph: Graph
    parameters: dict[str, Parameter]
    constants: dict[str, np.ndarray]
    optimizers: tuple[Any, ...]
    scaler: tuple[Any, str] | None
    form: Any
    cells: tuple[tuple[Any, bool], ...]
    primitives: tuple[tuple[Primitive, tuple[Any, ...]], ...]


def trace_network(
    network: Callable[..., Any],
    inputs: Sequence[tuple[str, tuple[int, ...], str]],
    name: str = "Net",
    trained: Iterable[Parameter] = (),
    *,
    parallel_mode: str | None = None,
    device_num: int = 1,
    rank: int = 0,
    parts: int = 1,
    finds_branches: bool = False,
) -> Traced:
    """Trace a Cell or function on inputs (name, global shape, dtype), for a program of `parallel_mode`.

    trained  Parameters of the network that belong to the program even if nothing reads them: an optimizer's
    parts    micro-batches in which a function runs that the network differentiates
    finds_branches   read functions for `if` on tensors from the start; by default only once one is met: few have any

    Raises TraceError, ShapeError.
    """
    tracer = Tracer(network.get_parameters()) if hasattr(network, "get_parameters") else Tracer()
    tracer.parallel_mode, tracer.device_num, tracer.rank, tracer.parts = parallel_mode, device_num, rank, parts
    tracer.finds_branches = finds_branches
    values = [tracer.data(*spec) for spec in inputs]
    token, meets_branch = current_tracer.set(tracer), False
    result: Any = None
    form: Any = None
    outputs: list[str] = []
    try:
        result = computed(tracer.staged(network)(*values), tracer)
        form = map_form(lambda part: slot_for(part, tracer, outputs), result)
        for parameter in trained:
            if id(parameter) in tracer.registered and parameter.requires_grad:
                tracer._own_parameter(parameter)
    except TruthTest:
        if finds_branches:
            raise
        meets_branch = True
    finally:
        current_tracer.reset(token)
    if meets_branch:
        program = {"parallel_mode": parallel_mode, "device_num": device_num, "rank": rank, "parts": parts}
        return trace_network(network, inputs, name, trained, **program, finds_branches=True)
    if tracer.refused_forward is not None and not tracer.seeds:
        raise tracer.refused_forward
    if not outputs and not tracer.optimizers:
        allowed = "Tensors that it computed from its inputs"
        raise TraceError(f"the network returned {shorten(result)}", where=name, allowed=allowed)
    parameters = {tracer.parameters[id(p)]: p for p in tracer.kept if isinstance(p, Parameter)}
    nodes = tracer.deferred(_read(tracer, outputs), outputs)
    named = {*outputs, *tracer.seeds, *(name for node in nodes for name in node.reads), *(n for n, _ in tracer.prints)}
    constants = {name: array for name, array in tracer.constants.items() if name in named}
    graph = Graph(
        inputs=tuple(i for i in tracer.inputs.values() if i.role != "constant" or i.name in constants),
        nodes=nodes,
        outputs=tuple(outputs),
        name=name,
        prints=tuple(tracer.prints),
        assigns=tuple(tracer.assigns.items()),
        seeds=tracer.seeds,
        gradients=tuple((name, *target) for name, target in tracer.targets.items()),
        updates=tracer.updates,
        updated=tuple(tracer.renewed.items()),
        micro_batches=tracer.micro_batches,
    )
    scaler = None if tracer.scaler is None else (tracer.scaler, tracer.scale_name)
    cells = tuple((c, c.training) for c in tracer.cells.values())
    primitives = tuple((p, p.compile_key) for p in tracer.primitives.values())
    return Traced(graph, parameters, constants, tracer.optimizers, scaler, form, cells, primitives)


def _read(tracer: Tracer, outputs: list[str]) -> tuple[Node, ...]:
    """The operators that the outputs, prints, new values or gradients depend on: what nothing reads is not computed.
    Communication is: the others of its group take part.
    """
    read = {*outputs, *tracer.seeds, *(name for name, _ in tracer.prints)}
    read |= {value for _, value in (*tracer.assigns.items(), *tracer.updates)}
    return needed(tracer.nodes, read, always=lambda node: node.opdef.message)
