"""`Graph`: what the learner wrote, operators on global shapes in order, with their strategies. Next it is a `Draft`.

%matmul = MatMul(%x, %w)  {'transpose_a': False}  strategy ((2, 4), (4, 1))    # (16, 16) float32, net.py:12
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ..base.origin import Origin
from ..layout.named_layout import AnyStrategy, strategy_counts
from ..layout.tensor_layout import TensorLayout
from ..ops.machine.opdef import CALLS, OPS, OpDef
from .instr import Instr, Pairs, Shape, Value, Written

SKIP = ""  # instead of a parameter's name: whether the optimizer's step does nothing


@dataclass(frozen=True)
class GraphInput:
    """Something the graph is given.

    role   "data" (fed each step), "parameter", "constant" (a Tensor the network holds), "scalar" (a Python number,
           `value`), "step" (training steps before this one: what random masks depend on), "micro_batch" (which one
           the program runs for), "gradient" (by backward), "updated" (a parameter after the optimizer's step)
    layerwise   a parameter whose gradient stays each rank's own in data_parallel and hybrid_parallel mode
    fusion_given   the learner chose comm_fusion (1 is the default too);  parallel_optimizer: may be sharded
    """

    name: str
    role: str
    shape: Shape
    dtype: str
    trainable: bool = False
    comm_fusion: int = 1
    value: float | int | bool | None = None
    layerwise: bool = False
    fusion_given: bool = False
    parallel_optimizer: bool = True

    @property
    def is_number(self) -> bool:
        """Whether it is one number that every rank knows, and that has no gradient."""
        return self.role in ("scalar", "step", "micro_batch")

    def whole(self, device_num: int) -> Value:
        """As a value that every rank holds whole."""
        return Value(self.shape, self.dtype, TensorLayout.replicated(device_num, len(self.shape)))


@dataclass(frozen=True)
class Node(Written):
    """One operator of the graph.

    What the learner wrote, as traced:
    name         unique, and readable: "d1.matmul";  op: name in the registry;  op_class: MindSpore's class name
    ins, attrs   names of its operands, its attributes
    outs, shapes, dtypes   the values it makes: its own name, or of several results "d1.topk.0", "d1.topk.1"
    origin       Cell path, file:line
    phase        "forward"; "update" if it needs gradients; "after" if it needs what the update has made of parameters

    How it is split:
    strategy, strategy_source   None until the strategies pass; "user", "default" or "propagated"
    strategy_origin, strategy_reason   the line of the learner's `shard`; why a propagated one was chosen, in a sentence
    out_strategy   how partial sums leave the result split: None, as it follows from `strategy`
    by_batch     it has no strategy and its batch is to be split, in a search too: `Cell.set_data_parallel`
    own_rows     a slice that each rank takes of its own rows, so that nothing moves (`skip_redistribution`)
    nd_tp        a product that gathers what its layouts split in addition and scatters its sums (`enable_nd_tp`)
    self_defined   its layouts are the learner's, those of its results, too (`self_define_shard`)
    cross_batch  leave a split reduction as each rank has it
    scattered    its sums may wait for a reader that splits another dim (`forward_reduce_scatter`)
    sync         in data_parallel mode, average the result over all ranks (True), over groups of them or not (False);
                 None: it does not look across samples

    Where and when it runs:
    stage        the part of a pipeline that it belongs to; -1: the learner has not said
    once         "": it runs with each micro-batch of `nn.GradAccumulation`; "first", "last": with that one alone
    target       "CPU": it runs on the host (`set_device`); "": on its device
    when         (value, bool) pairs: it runs only where each of these () bools is that (`traced_branches.py`)
    recompute    how its results are recomputed for backward (`graph/recomputed.py`); (): they are kept
    """

    name: str
    op: str
    op_class: str
    ins: tuple[str, ...]
    attrs: Pairs
    outs: tuple[str, ...]
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    origin: Origin
    strategy: AnyStrategy | None = None
    strategy_source: str = ""
    strategy_origin: Origin | None = None
    out_strategy: AnyStrategy | None = None
    cross_batch: bool = False
    scattered: bool = False
    sync: bool | tuple[tuple[int, ...], ...] | None = None
    phase: str = "forward"
    strategy_reason: str = ""
    nd_tp: bool = False
    self_defined: bool = False
    once: str = ""
    stage: int = -1
    own_rows: bool = False
    by_batch: bool = False
    recompute: Pairs = ()
    target: str = ""
    when: Pairs = ()

    @property
    def opdef(self) -> OpDef:
        return CALLS.get(self.op) or OPS[self.op]

    @property
    def follows(self) -> bool:
        """Whether its layout is its operand's: a view; a write without a strategy; a variable of a loop."""
        op = self.opdef
        return op.view or bool(self.loop) or (op.writes and op.signature == "...,...->..." and self.strategy is None)

    def keeps_own_part(self, device_num: int) -> bool:
        """Whether a reduction over a split dim stays "cross_batch": a mean only if dim 0 is split over all devices."""
        if not self.cross_batch or len(self.ins) != 1:
            return False
        return not self.opdef.mean or strategy_counts(self.strategy)[0][0] == device_num

    @property
    def shape(self) -> Shape:
        """Shape of the only result, or of the first; dtype likewise."""
        return self.shapes[0]

    @property
    def dtype(self) -> str:
        return self.dtypes[0]

    @property
    def kind(self) -> str:
        """The kind of the instruction that computes it."""
        return self.op if self.op in ("accumulate", "branch", "loop") else "compute"

    def computed(self, ins: tuple[str, ...], attrs: Pairs, outs: tuple[str, ...] = (), **fields: Any) -> Instr:
        """The instruction that computes this operator, on slices; `fields` are further fields of it."""
        what = (self.name, self.op, self.op_class, attrs)
        return Instr(self.kind, outs or self.outs, ins, *what, origin=self.origin, when=self.when, **fields)

    @property
    def where(self) -> str:
        """The start of every error about this operator."""
        return f"{self.op_class} {self.name!r}" + (f" ({self.origin.place})" if self.origin.place else "")


@dataclass(frozen=True)
class Graph:
    """Operators in the order they ran, on global shapes.

    prints   values that `construct` prints: (name, where)
    assigns  (parameter, value): what `construct` writes into parameters that are not trained, at the end of the forward
             program (running statistics) or, if it was made from gradients, of the update program

    In a function that asks for gradients itself (`value_and_grad` in a training step):

    seeds      the values that are differentiated, one for each time it asks; (): the outputs, together
    gradients  (gradient input, what it is the gradient for, the number of the seed)
    updates    (parameter, value): what the optimizer is called with; (SKIP, value): a bool, true where it does nothing
    updated    (input, parameter whose new value it is)

    micro_batches  how many the network is fed
    """

    inputs: tuple[GraphInput, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    name: str = "Net"
    prints: tuple[tuple[str, Origin], ...] = ()
    assigns: tuple[tuple[str, str], ...] = ()
    seeds: tuple[str, ...] = ()
    gradients: tuple[tuple[str, str, int], ...] = ()
    updates: tuple[tuple[str, str], ...] = ()
    updated: tuple[tuple[str, str], ...] = ()
    micro_batches: int = 1

    @cached_property
    def _inputs_by_name(self) -> dict[str, GraphInput]:
        return {i.name: i for i in self.inputs}

    @cached_property
    def _nodes_by_name(self) -> dict[str, Node]:
        return {name: n for n in self.nodes for name in (n.name, *n.outs)}

    @cached_property
    def _shapes(self) -> dict[str, Shape]:
        results = (pair for n in self.nodes for pair in zip(n.outs, n.shapes, strict=True))
        return {i.name: i.shape for i in self.inputs} | dict(results)

    @cached_property
    def _dtypes(self) -> dict[str, str]:
        results = (pair for n in self.nodes for pair in zip(n.outs, n.dtypes, strict=True))
        return {i.name: i.dtype for i in self.inputs} | dict(results)

    @cached_property
    def read(self) -> frozenset[str]:
        """Values that anything reads: operators, prints, parameters that are assigned to, gradients, the caller."""
        pairs = (*self.assigns, *self.updates)
        names = (*self.outputs, *self.seeds, *(value for _, value in pairs), *(name for name, _ in self.prints))
        return frozenset(names).union(*(n.reads for n in self.nodes))

    def input(self, name: str) -> GraphInput | None:
        return self._inputs_by_name.get(name)

    def node(self, name: str) -> Node | None:
        """The operator of this name, or that makes the value of this name."""
        return self._nodes_by_name.get(name)

    def source(self, name: str) -> GraphInput:
        """The input of this name, which the graph has."""
        return self._inputs_by_name[name]

    def operator(self, name: str) -> Node:
        """The operator of this name, or that makes the value of this name, which the graph has."""
        return self._nodes_by_name[name]

    def maker(self, name: str) -> str:
        """The operator that makes the value `name`; for an input of the graph, its own name."""
        node = self.node(name)
        return name if node is None else node.name

    def read_late(self) -> tuple[str, ...]:
        """Values of the forward program that are read outside it: by gradients, the update program, the caller."""
        early = {i.name for i in self.inputs if i.role not in ("gradient", "updated")} | {
            name for n in self.of_phase("forward") for name in n.outs
        }
        used = [*self.seeds, *(i for n in self.of_phase("update", "after") for i in n.reads), *self.outputs]
        return tuple(dict.fromkeys(name for name in used if name in early))

    def of_phase(self, *phases: str) -> tuple[Node, ...]:
        """The operators of these phases, in order."""
        return tuple(n for n in self.nodes if n.phase in phases)

    def shapes(self) -> Mapping[str, Shape]:
        """Global shapes of all inputs and of what operators make, by name."""
        return MappingProxyType(self._shapes)

    def dtypes(self) -> Mapping[str, str]:
        """Dtypes of the same values."""
        return MappingProxyType(self._dtypes)

    def operand_shapes(self, node: Node) -> tuple[Shape, ...]:
        """Global shapes of an operator's operands."""
        return tuple(self._shapes[name] for name in node.ins)

    def numbered(self, instrs: Iterable[Instr]) -> tuple[Instr, ...]:
        """Instructions with the pipeline part and the micro-batch (`once`) of the operators they belong to."""
        places = {n.name: {"once": n.once, "stage": max(n.stage, 0)} for n in self.nodes if n.once or n.stage > 0}
        return tuple(replace(i, **places[i.name]) if i.name in places else i for i in instrs)

    def text(self) -> str:
        """One line per operator."""
        shown = ", ".join(f"{i.name}: {i.shape} {i.dtype}" for i in self.inputs if i.role in ("data", "parameter"))
        lines = [f"graph {self.name}({shown})"]
        for n in self.nodes:
            chosen = f"  strategy {n.strategy} ({n.strategy_source})" if n.strategy is not None else ""
            call = f"{n.op_class}({', '.join('%' + i for i in n.ins)})"
            results = ", ".join(f"{shape} {dtype}" for shape, dtype in zip(n.shapes, n.dtypes, strict=True))
            lines.append(f"  {', '.join('%' + o for o in n.outs)} = {call}{chosen}    # {results}, {n.origin.place}")
        lines.append(f"  return {', '.join('%' + o for o in self.outputs)}")
        return "\n".join(lines)
