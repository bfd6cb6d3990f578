"""Programs of DTensors under `compile`: the eager program runs once, on parts without numbers, and is written down.

    plan = pl.compile(lambda x, w: (x @ w).relu(), x, w)       x, w: DTensors

Nothing chooses layouts here. Operators decide as they do at once (`nn/tensor/dtensor_parts.py`), and what each does on
a rank's part, or sends, is an instruction of the plan: same messages, groups, bytes and reasons, forward and backward.
A part is a `TracedValue` with the shape of a rank's slice. All ranks do the same, so that one stands for all; hence a
plan takes equal parts, on a mesh of the ranks 0, 1, 2, ....
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.checks import fitting
from ..base.errors import LayoutError, TraceError, shorten
from ..base.hooks import current_tracer
from ..base.origin import caller
from ..base.settings.current import frozen
from ..layout.device_mesh import DeviceMesh
from ..layout.mesh_layout import MeshLayout, Partial, Shard, StridedShard
from ..layout.mesh_redistribution import MeshStep
from ..layout.tensor_layout import TensorLayout
from ..nn.cell import Cell
from ..nn.tensor.dtensor import DTensor, RankTensors
from ..nn.tensor.dtensor_parameter import DTensorParameter
from ..nn.tensor.dtensor_parts import Parts, TracedDTensor
from ..nn.tensor.tensor import Tensor
from ..ops.machine.opdef import OPS, OpDef
from .compiler import compile_network as compile_tensors
from .draft import Draft, counted, fresh_name
from .forms import input_names, leaves, map_form, of_tensors, tensors_of
from .freeze import freeze
from .instr import Shape, Value, attr_pairs
from .ir import Graph, GraphInput
from .passes.local_recorder import LocalRecorder
from .plan import PHASES, Plan
from .traced_value import TracedValue

Own = dict[int, Any]  # the rank that stands for all -> its part


@fitting
@functools.wraps(compile_tensors, assigned=("__doc__", "__annotations__"))  # a worker finds it by its own module
def compile_network(network: Callable[..., Any], *inputs: Any, **options: Any) -> Plan:
    """As `compiler.compile_network`, whose text it has; a program of DTensors is written down as one of these."""
    if has_dtensors(network, inputs):
        return compile_dtensors(network, inputs, options).plan
    try:
        return compile_tensors(network, *inputs, **options)
    except TracedDTensor:
        return compile_dtensors(network, inputs, options).plan


def has_dtensors(network: Any, inputs: Any) -> bool:
    """Whether a program takes DTensors, or is a Cell that holds some."""
    held = network.get_parameters() if isinstance(network, Cell) else ()
    return any(isinstance(x, DTensor) for x in (*leaves(tuple(inputs)), *held))


@dataclass(frozen=True)
class Result:
    """A tensor that a program returns, or leaves somewhere.  name: its value; layout: None of a Tensor"""

    name: str
    layout: MeshLayout | None
    shape: Shape
    alone: bool = False

    def filled(self, parts: Own) -> Any:
        """It, of these parts."""
        if self.layout is None:
            return Tensor(next(iter(parts.values())))
        return RankTensors(parts, self.layout.mesh) if self.alone else DTensor(parts, self.layout, self.shape)


@dataclass(frozen=True)
class DTensorProgram:
    """A compiled program of DTensors.

    inputs   names of the values that its arguments give, in the order of `tensors_of`
    held     {value: the DTensor outside that it reads};  form: what it returns, with a Result for each tensor
    grads    (position of an argument or DTensor outside, its gradient), where `backward` ran
    writes   (position of an argument or DTensor outside, its new value), written in place
    guards   (function, what it gave): numbers in the program, as rates;  after: what is done after each run
    """

    plan: Plan
    inputs: tuple[str, ...]
    held: dict[str, DTensor]
    form: Any
    grads: tuple[tuple[Any, Result], ...]
    writes: tuple[tuple[Any, Result], ...]
    guards: tuple[tuple[Callable[[], Any], Any], ...] = ()
    after: tuple[Callable[[], None], ...] = ()


def compile_dtensors(
    network: Callable[..., Any], inputs: Sequence[Any], options: dict[str, Any] | None = None
) -> DTensorProgram:
    """Write down what a function or Cell does with these arguments. Numbers and texts among them are part of it.

    Raises TraceError for options, LayoutError for parts that a plan does not hold, and what the program itself raises.
    """
    chosen = {name: value for name, value in (options or {}).items() if value is not None}
    device_num = chosen.pop("device_num", None)
    if chosen:
        hint = "Call loss and value_and_grad in the function that is compiled"
        raise TraceError(f"{next(iter(chosen))}= with DTensors", where="compile", allowed="device_num=", hint=hint)
    tracer = DTensorTracer()
    form, tensors = tensors_of(tuple(inputs))
    function = of_tensors(network, form)
    names = input_names(getattr(function, "construct", function), len(tensors))
    token = current_tracer.set(tracer)
    try:
        given = [tracer.argument(name, x) for name, x in zip(names, tensors, strict=True)]
        arguments = tuple(tracer.inputs)
        returned = map_form(tracer.result, function(*given))
        left: list[tuple[Any, str, Any]] = [(n, arguments[n], x) for n, x in enumerate(given) if isinstance(x, DTensor)]
        left += [(name, name, x) for name, x in tracer.held.items() if name not in arguments]
        grads = [(at, tracer.result(x.grad)) for at, _, x in left if x.grad is not None]
        results = [(at, name, tracer.result(x)) for at, name, x in left]
        writes = [(at, result) for at, name, result in results if result.name != name]
    finally:
        current_tracer.reset(token)
        for x in tracer.held.values():
            x._grad = tracer.kept[id(x)]
    outputs = [part for part in (*leaves(returned), *(r for _, r in (*grads, *writes))) if isinstance(part, Result)]
    if not outputs or device_num not in (None, tracer.device_num):
        what = f"device_num={device_num}" if outputs else f"the program returned {shorten(returned)}"
        allowed = f"{tracer.device_num}, the ranks of the mesh" if outputs else "Tensors that it computed"
        raise TraceError(what, where="compile", allowed=allowed)
    names = tuple(dict.fromkeys(result.name for result in outputs))
    plan = tracer.plan(getattr(network, "__name__", type(network).__name__), names)
    held = {name: x for name, x in tracer.held.items() if name not in arguments}
    kept = tuple(tracer.guards), tuple(tracer.after_each_run)
    return DTensorProgram(plan, arguments, held, returned, tuple(grads), tuple(writes), *kept)


def tabled(layout: MeshLayout, shape: Shape) -> TensorLayout | None:
    """A layout as the table of values has it; None: its parts are values of the ranks. So are those in strides, and
    those over some axes of a mesh, where every group has a tensor of its own.
    """
    if layout.mesh.members != layout.mesh.ranks:
        return None
    means = set(layout.pending.values()) == {"avg"}
    sums = (Partial() if means and isinstance(p, Partial) else p for p in layout.placements)
    try:
        found = MeshLayout(layout.mesh, tuple(sums)).tensor_layout(len(shape))
    except LayoutError:
        return None
    return replace(found, reduce="avg") if means else found


class DTensorTracer(LocalRecorder):
    """Writes down what one rank does, while a program of DTensors runs.

    held      {input of the graph: the DTensor whose part it is}
    kept      {id of such a DTensor: its `grad` from before}, which it gets back in the end
    new       {id of such a DTensor: its parts after it was written in place}
    laid      {value: (layout, shape of the whole)} of parts;  constants: {value: array}
    """

    def __init__(self) -> None:
        super().__init__({}, {})
        self.suffix, self.cells = "", ["Default"]
        self.inputs: dict[str, GraphInput] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.held: dict[str, DTensor] = {}
        self.kept: dict[int, Any] = {}
        self.twins: dict[int, Own] = {}
        self.new: dict[int, Own] = {}
        self.laid: dict[str, tuple[MeshLayout, Shape]] = {}
        self.programs: dict[str, list[Any]] = {}
        self.device_num, self.parallel_mode = 0, "stand_alone"  # as far as composed operators ask: no strategies
        self.guards: list[tuple[Callable[[], Any], Any]] = []
        self.after_each_run: list[Callable[[], None]] = []
        self.begin("forward")

    def begin(self, phase: str) -> None:
        """What comes next belongs to this program of the plan, or to the later one that has begun."""
        phase = max(phase, *self.programs, key=PHASES.index) if self.programs else phase
        self.instrs = self.programs.setdefault(phase, [])
        self.suffix = ".grad" if phase == "backward" else ""

    # ---- what a tracer is asked ----

    def enter(self, cell: Any = None) -> None:
        self.cells.append(f"{getattr(cell, 'cell_name', '') or type(cell).__name__}-{type(cell).__name__}")

    def leave(self, cell: Any = None) -> None:
        self.cells.pop()

    def depends_on(self, value: Callable[[], Any]) -> None:
        """Where `value` gives something else than now, the program is another one."""
        self.guards.append((value, value()))

    def forward_of(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        """What a function that is differentiated returns."""
        return fn(*args)

    def record(self, op: OpDef, operands: Any, attrs: dict[str, Any], primitive: Any = None) -> Any:
        for x in operands:
            if getattr(x, "answers", False):
                self.noted(op)
                return x.__parallel_lab_op__(op, operands, attrs)
        if not any(isinstance(x, TracedValue) for x in operands):  # of arrays: what it gives is known
            token = current_tracer.set(None)
            try:
                return OPS[op.name](*operands, **attrs)
            finally:
                current_tracer.reset(token)
        return self.on_part(op, operands, attrs)

    def noted(self, op: OpDef) -> None:
        """What comes next belongs to this operator."""
        self.origin = caller("/".join(self.cells))
        self.name = ".".join([*(cell.partition("-")[0] for cell in self.cells[2:]), op.name])

    def on_part(self, op: OpDef, parts: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """An operator on a rank's parts.  attrs: "offset" of one that asks where they lie: (mesh, axes) of each dim"""
        attrs = dict(attrs)
        places = attrs.pop("offset", ())
        places = (places,) if places and isinstance(places[0], DeviceMesh) else places  # of one dim
        self.noted(op)
        if places:
            axes = tuple(self.axes(mesh, names) for mesh, names in places)
            self.place = {"offset_axes": axes, "device_matrix": self.matrix(places[0][0])}
        try:
            return super().record(op, [self.known(x) for x in parts], attrs)
        finally:
            self.place = {}

    def value(self, name: str) -> TracedValue:
        value = self.values[name]
        return TracedValue(name, value.slice_shape, value.dtype, self)

    # ---- parts ----

    def argument(self, name: str, value: Any) -> Any:
        """An argument of the program: a DTensor, or a Tensor that every rank is given alike."""
        if isinstance(value, DTensor):
            self.hold(name, value, "data")
            return value.detach().requires_grad_(value.requires_grad)
        name = fresh_name(name, self.values)
        shape, dtype = tuple(value.shape), str(value.dtype)
        self.inputs[name] = GraphInput(name, "data", shape, dtype)
        self.values[name] = Value(shape, dtype, None)
        return self.value(name)

    def hold(self, name: str, x: Any, role: str) -> Own:
        """Take a DTensor that was there before as an input. Returns its part."""
        name, dtype = fresh_name(name, self.values), str(x.dtype)
        self.inputs[name] = GraphInput(name, role, x.shape, dtype, x.requires_grad)
        rank = x.mesh.members[0]
        self.values[name] = Value(x.layout.local_shape(x.shape, rank), dtype, None)
        self.held[name], self.kept[id(x)], x._grad = x, getattr(x, "_grad", None), None
        self.twins[id(x)] = {rank: self.laid_out(self.value(name), x.layout, x.shape)}
        return self.twins[id(x)]

    def parts_of(self, x: Parts) -> Own:
        """The part of a DTensor: of one that was there before, the input that stands for it."""
        twin = self.new.get(id(x)) or self.twins.get(id(x))
        here = isinstance(x._parts, dict)  # else on workers, and there before
        if twin is None and here and isinstance(next(iter(x._parts.values())), TracedValue):
            return x._parts
        return twin or self.hold(x.name if isinstance(x, DTensorParameter) else "dtensor", x, "parameter")

    def written(self, x: Parts, parts: Own) -> bool:
        """Note the new value of a DTensor that was there before; False of others, which hold it themselves."""
        if id(x) not in self.twins:
            return False
        self.new[id(x)] = parts
        return True

    def declared(self, parts: Own, layout: MeshLayout | None, shape: Shape) -> Own:
        """The part of a DTensor that is made now, which lies so; None: the rank's own."""
        ((rank, part),) = parts.items()
        part = self.known(part)
        return {rank: part if layout is None else self.laid_out(part, layout, shape)}

    def known(self, part: Any) -> Any:
        """A part as a value of the program; arrays become constants, numbers stay."""
        if isinstance(part, (TracedValue, bool, int, float)) or part is None:
            return part
        array = np.asarray(part.asnumpy() if isinstance(part, Tensor) else part)
        if not array.ndim:
            return self.number(array, ())
        name = fresh_name("constant", self.values)
        self.constants[name], self.values[name] = array, Value(array.shape, str(array.dtype), None)
        self.inputs[name] = GraphInput(name, "constant", array.shape, str(array.dtype))
        return self.value(name)

    def laid_out(self, part: TracedValue, layout: MeshLayout, shape: Shape) -> TracedValue:
        """A part whose layout is in the table of values. Raises LayoutError for parts of several sizes."""
        self.matrix(layout.mesh)
        if part.name in self.scalars or self.laid.get(part.name) == (layout, shape):
            return part
        sizes = list(shape)
        for placement, ranks in zip(layout.on(len(shape)).placements, layout.mesh.shape, strict=True):
            if isinstance(placement, (Shard, StridedShard)):
                if sizes[placement.dim] % (ranks * placement.split_factor):
                    given = f"{layout} of a tensor of shape {shape}, over {layout.mesh}"
                    allowed = "Equal parts: a plan has one shape for the parts of all ranks"
                    raise LayoutError(given, where="compile", allowed=allowed, hint="It runs at once")
                sizes[placement.dim] //= ranks
        if part.name in self.laid:  # from_local says that it lies otherwise
            part = self.on_part(OPS["identity"], [part], {})
        self.laid[part.name] = layout, shape
        table = tabled(layout, shape)
        if table is not None and (part.name not in self.constants or part.shape == shape):
            self.values[part.name] = Value(shape, str(part.dtype), table)
        return part

    def result(self, x: Any) -> Any:
        """The Result that stands for a tensor in what the program returns."""
        if isinstance(x, Parts):
            ((_, part),) = self.parts_of(x).items()
            return Result(part.name, x.layout, x.shape, x.alone)
        if isinstance(x, (TracedValue, Tensor)):
            part = self.known(x)
            return Result(part.name, None, part.shape)
        return x

    # ---- ranks ----

    def matrix(self, mesh: DeviceMesh) -> Shape:
        """The device matrix of a mesh. Raises LayoutError: other ranks than those of the plan, or not in order."""
        whole = getattr(mesh, "whole", mesh)
        self.device_num = self.device_num or whole.size
        if not whole.in_order or whole.size != self.device_num:
            allowed = f"The ranks 0 to {self.device_num - 1} in their order"
            raise LayoutError(f"{whole}", where="compile", allowed=allowed, hint="It runs at once")
        return whole.shape

    def axes(self, mesh: DeviceMesh, names: Sequence[str]) -> tuple[int, ...]:
        """Axes of a mesh as those of the device matrix, counted from the right."""
        whole = getattr(mesh, "whole", mesh)
        return tuple(whole.ndim - 1 - whole.axis(name) for name in names)

    # ---- messages ----

    def take(self, step: MeshStep, shape: Shape, parts: Own, reason: str) -> Own:
        """A step of a redistribution, as instructions."""
        ((rank, part),) = parts.items()
        self.origin = caller("/".join(self.cells))
        before, after = step.before.on(len(shape)), step.after.on(len(shape))
        source, to = (getattr(layout.placements[step.axis], "dim", 0) for layout in (before, after))
        why: dict[str, Any] = {"axes": self.axes(before.mesh, [step.name]), "device_matrix": self.matrix(before.mesh)}
        why["reason"] = f"{reason}: {step.source.code} -> {step.to.code}"
        if step.kind == "addends":
            return {rank: self.laid_out(self.addend(step, part, after.local_shape(shape, rank)), after, shape)}
        local = after.local_shape(shape, rank)
        taken, given = self.order(step, shape, rank, taking=True), self.order(step, shape, rank, taking=False)
        if taken:
            n, f = taken
            part = self.swapped(part, to, (f, n))
        attrs: dict[str, Any] = step.attrs(len(shape))
        if step.kind in ("slice", "reduce_scatter"):
            attrs["dim"] = to
        elif step.kind == "all_gather":
            attrs["dim"] = source
        if given or taken or self.values[part.name].layout is None or tabled(after, shape) is None:
            attrs["of_slices"] = True
        made, name = Value(local, str(part.dtype), None), f"{part.name}.{step.kind}"
        part = self.emit(step.kind, made, (part.name,), name, attrs=attr_pairs(attrs), **why)
        if given:
            part = self.swapped(part, source, given)
        return {rank: self.laid_out(part, after, shape)}

    def message(self, kind: str, part: Any, mesh: DeviceMesh, axis: str, reduce: str, reason: str) -> Any:
        """A message of a rank's own value, in pieces of its first dim."""
        part, ranks = self.known(part), mesh.axis_size(axis)
        rows = {"all_gather": part.shape[0] * ranks, "reduce_scatter": part.shape[0] // ranks}.get(kind, part.shape[0])
        attrs: dict[str, Any] = {"reduce": reduce} if reduce else {}
        attrs |= {"of_slices": True} if kind == "all_reduce" else {"dim": 0, "of_slices": True}
        where = {"axes": self.axes(mesh, [axis]), "device_matrix": self.matrix(mesh), "reason": reason}
        value = Value((rows, *part.shape[1:]), str(part.dtype), None)
        return self.emit(kind, value, (part.name,), f"{part.name}.{kind}", attrs=attr_pairs(attrs), **where)

    def addend(self, step: MeshStep, part: Any, local: Shape) -> Any:
        """A part of a copy, or of a piece, as an addend of this shape."""
        n, source = step.before.mesh.shape[step.axis], step.source
        place = {"offset": (step.before.mesh, (step.name,))}
        if isinstance(source, (Shard, StridedShard)):
            attrs = {"shape": local, "dim": source.dim % len(local), **place}
            return self.on_part(OPS["strided_slice_grad"], [part], attrs)
        if step.to != Partial():
            return part
        if part.dtype.kind in "fc":
            return part / n
        attrs = {"shape": (n, *local), "dim": 0, **place}
        return self.on_part(OPS["strided_slice_grad"], [part.reshape((1, *local))], attrs)[0]

    def order(self, step: MeshStep, shape: Shape, rank: int, *, taking: bool) -> tuple[int, int] | None:
        """(n, f) where what is taken, or given, stands in n rows of f blocks that belong in f rows; None: in order."""
        before, after = step.before.on(len(shape)), step.after.on(len(shape))
        side, other = (after, before) if taking else (before, after)
        placement = side.placements[step.axis]
        if not isinstance(placement, (Shard, StridedShard)) or not any(
            isinstance(p, StridedShard) for p in (*before.placements, *after.placements)
        ):
            return None
        dim = placement.dim
        pieces = np.concatenate([side.indices(shape, member)[dim] for member in step.group(rank)])
        whole = other.indices(shape, rank)[dim]
        found = np.argsort(whole)[np.searchsorted(np.sort(whole), pieces)]
        if (found == np.arange(len(found))).all():
            return None
        n = len(step.group(rank))
        for f in range(2, len(found) // n + 1):
            if len(found) % (n * f) == 0:
                blocks = np.arange(len(found)).reshape(f, n, -1).swapaxes(0, 1).ravel()
                if (blocks == found).all():
                    return n, f
        raise LayoutError(f"{step}, of {before}", where="compile", allowed="Parts in blocks", hint="It runs at once")

    def swapped(self, part: Any, dim: int, blocks: tuple[int, int]) -> Any:
        """A part whose dim, rows of blocks, is columns of them afterwards."""
        shape = part.shape
        rows = part.reshape((*shape[:dim], *blocks, -1, *shape[dim + 1 :]))
        return rows.swapaxes(dim, dim + 1).reshape(shape)

    # ---- the plan ----

    def plan(self, name: str, outputs: tuple[str, ...]) -> Plan:
        """The plan of what was written down, verified."""
        programs = {phase: tuple(instrs) for phase, instrs in self.programs.items() if instrs}
        read = {name for instrs in programs.values() for i in instrs for name in i.reads}.union(outputs)
        inputs = tuple(i for i in self.inputs.values() if i.role != "constant" or i.name in read)
        graph = Graph(inputs, (), outputs, name)
        config = frozen(
            device_num=self.device_num,
            parallel_mode="semi_auto_parallel",
            dataset_strategy="full_batch",
            pipeline_stages=1,
        )
        draft = Draft(graph, config, tuple(sorted(self.values.items())), tuple(programs.items()), outputs=outputs)
        draft = draft.noted("dtensors", "; ".join(f"{phase}: {counted(i)}" for phase, i in programs.items()))
        return freeze(draft, {n: a for n, a in self.constants.items() if n in read})
