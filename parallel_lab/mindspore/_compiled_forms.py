"""What was compiled, in the forms in which MindSpore's scripts inspect it. Views of a plan: nothing here decides.

    parameter_forms(made)["w"]       ([2, 4], [0, -1], [16, 32], 0, True, "")
    full_names(graph, ids, net)      {"matmul": "Default/network-Net/MatMul-op0"}
    graph_info(made.plan, rank=0)    {"Net": {"MatMul-0": {"inputs": ["x", "Load-0"], "attrs": {...}}, ...}}

Forms: MindSpore, Parameter.init_data (argument `layout`) and the names of nodes in its IR files.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..base.settings.checks import SHARDED_MODES
from ..graph.actions import Action
from ..graph.compiler import Compiled
from ..graph.instr import Instr
from ..graph.instr_text import shown_slice
from ..graph.ir import Graph, Node
from ..graph.kinds import class_name
from ..graph.plan import Plan
from ..graph.plan_text import bucket_messages, buckets_of
from ..graph.virtual_output import result_layout
from ..layout.named_layout import strategy_counts
from ..layout.tensor_layout import TensorLayout
from ..nn.cell import Cell
from ..nn.tensor.tensor import Tensor
from ..ops.collectives.definitions import MESSAGES

LayoutForm = tuple[list[int], list[Any], list[int], int, bool, str]

# ---- parameters ----


def parameter_forms(made: Compiled) -> dict[str, LayoutForm]:
    """{input, parameter or optimizer state: (device matrix without axes of one rank, tensor map, slice shape, 0,
    whether all slices are equally large, the group of the optimizer shard or "")}; {} where no operator is split.

    Matrix, map and slice are those that the network reads, without the optimizer shard (get_parallel_info.cc,
    GetParameterLayout); states follow their parameters.
    """
    plan, draft = made.plan, dict(made.steps).get("parallelize")
    if draft is None:
        return {}
    before, rank, found = draft.value_table(), plan.config.global_rank % plan.stages[0].count, {}
    for one in (*plan.data_inputs, *plan.parameters):
        layout = before[one.name].layout if one.name in before else plan.value(one.name).layout
        group = _shard_group(plan, one.name, plan.config.global_rank) if one.role == "parameter" else ""
        matrix, entries = _without_ones(layout)
        part = [index.stop - index.start for index in layout.slice_index(one.shape, rank)]
        found[one.name] = matrix, entries, part, 0, not layout.rows, group
    for state in plan.states:
        if state.parameter in found and plan.value(state.name).shape == plan.value(state.parameter).shape:
            found[state.name] = found[state.parameter]
    return found


def _shard_group(plan: Plan, name: str, rank: int) -> str:
    """The ranks among which the optimizer parallel has divided a parameter's slice; "": it has not."""
    for _, instr in plan.instructions("forward"):
        if name in instr.carried and instr.message == "all_gather":
            return _group(plan, instr.group(rank))
    return ""


def _group(plan: Plan, ranks: tuple[int, ...]) -> str:
    return "hccl_world_group" if len(ranks) == plan.config.device_num else group_name(ranks)


def group_name(ranks: tuple[int, ...]) -> str:
    """MindSpore's name of a group: its size and the hash of its ranks (device_manager.cc, GenerateGroupNameByRanks).

    >>> group_name((0, 1, 2, 3))  # as in seed 003
    '4-6301172352641561019'
    """
    return f"{len(ranks)}-{_hash(_ranks_text(ranks).encode())}"


def _hash(text: bytes) -> int:
    """std::hash of a string in libstdc++: MurmurHash64A with its seed (A. Appleby, 2008)."""
    factor, mask, whole = 0xC6A4A7935BD1E995, (1 << 64) - 1, len(text) // 8 * 8
    found = 0xC70F6907 ^ (len(text) * factor & mask)
    for at in range(0, whole, 8):
        part = int.from_bytes(text[at : at + 8], "little") * factor & mask
        part = (part ^ part >> 47) * factor & mask
        found = (found ^ part) * factor & mask
    if whole < len(text):
        found = (found ^ int.from_bytes(text[whole:], "little")) * factor & mask
    found = (found ^ found >> 47) * factor & mask
    return found ^ found >> 47


def _ranks_text(ranks: tuple[int, ...]) -> str:
    return "-".join(map(str, ranks))


def _without_ones(layout: TensorLayout) -> tuple[list[int], list[Any]]:
    """Device matrix and tensor map as lists, without axes of one rank; a dim that several axes split has a list."""
    axes = [axis for axis in range(len(layout.device_matrix)) if layout.axis_size(axis) > 1]
    number = {axis: at for at, axis in enumerate(axes)}
    entries = [[number[axis] for axis in entry if axis in number] for entry in layout.tensor_map]
    matrix = [size for size in layout.device_matrix if size > 1] or [1]
    return matrix, [entry if len(entry) > 1 else entry[0] if entry else -1 for entry in entries]


# ---- operators ----


def _from_the_end(graph: Graph) -> Iterator[Node]:
    """The operators that have rules of splitting, readers before what they read: depth first from the results."""
    ends = (*graph.outputs, *graph.seeds, *(value for _, value in (*graph.updates, *graph.assigns)))
    stack, seen = list(reversed(ends)), set()
    while stack:
        node = graph.node(stack.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        if node.phase == "forward" and not getattr(node.opdef, "internal", False):
            yield node
        stack.extend(reversed(node.ins))


def full_names(graph: Graph, ids: Iterator[int], outermost: Cell) -> dict[str, str]:
    """{operator: "scope/Class-op<id>"}. The scope begins below the outermost Cell; ids are taken from the network's end
    backwards.
    """
    names, kind = {}, type(outermost).__name__
    wrapped = type(getattr(outermost, "network", None)).__name__ if kind == "AutoParallel" else ""
    for node in _from_the_end(graph):
        scope = node.origin.scope.split("/")
        if scope[1:2] == [f"{outermost.cell_name or kind}-{kind}"]:
            del scope[1]
        elif scope[1:2] == [f"{wrapped}-{wrapped}"]:
            scope[1] = f"network-{wrapped}"  # which keeps its own name
        names[node.name] = "/".join([*filter(None, scope), f"{node.op_class}-op{next(ids)}"])
    return names


def shard_strategies(plan: Plan, names: dict[str, str]) -> dict[str, list[list[int]]]:
    """{full name: a list of counts per input}; of an operator without a strategy of its own, such as Reshape, what its
    operand is split into.
    """
    strategies = {}
    for node in _from_the_end(plan.graph):
        if node.strategy is not None:
            strategies[names[node.name]] = [list(counts) for counts in strategy_counts(node.strategy)]
        elif node.opdef.view:
            value = plan.value_table.get(node.ins[0])
            if value is not None and value.layout is not None:
                strategies[names[node.name]] = [list(value.layout.splits)]
    return strategies


def virtual_outputs(made: Compiled) -> dict[str, list[list[int]]]:
    """{full name: a list of counts} of what is appended to the results outside training (`virtual_output.py`)."""
    graph, config = made.plan.graph, made.plan.config
    if graph.seeds or graph.updates or made.plan.gradients:
        return {}
    layouts = [result_layout(config, graph.shapes()[name]) for name in graph.outputs]
    kept = [list(layout.splits) for layout in layouts if layout is not None]
    return {f"Default/_VirtualOutput-op{number}": [counts] for number, counts in enumerate(kept)}


# ---- the graph ----

# operator: its attributes among its inputs, behind the tensors; "axis*" is a tuple, "dim@1" comes second, "size" is the
# result's shape (MindSpore, gen_ops_prim.py; compared with what 2.10 compiles)
_REDUCED = ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceAny", "ReduceAll")
_SEGMENTS = ("UnsortedSegmentSum", "UnsortedSegmentMin", "UnsortedSegmentMax", "UnsortedSegmentProd")
_ALONG = ("LogSoftmax", "Cummax", "Cummin", "ExpandDims", "Concat", "SparseGatherV2")
_ARGUMENTS = {
    **dict.fromkeys(_REDUCED, "axis* keep_dims"),
    **dict.fromkeys(_SEGMENTS, "num_segments"),
    **dict.fromkeys(_ALONG, "axis"),
    **dict.fromkeys(("MatMul", "BatchMatMul"), "transpose_a transpose_b"),
    **dict.fromkeys(("ArgMaxWithValue", "ArgMinWithValue"), "axis keep_dims"),
    **dict.fromkeys(("CumSum", "CumProd"), "axis exclusive reverse"),
    **dict.fromkeys(("Softmax", "Squeeze"), "axis*"),
    "ReduceSum": "axis* keep_dims skip_mode",
    "Split": "axis output_num",
    "Tile": "multiples",
    "Elu": "alpha",
    "Transpose": "perm",
    "LayerNorm": "begin_norm_axis begin_params_axis epsilon",
    "Gather": "axis batch_dims",
    "GatherD": "dim@1",
    "EmbeddingLookup": "start",
    "OneHot": "depth@1 axis",
    "BroadcastTo": "shape",
    "TopK": "k",
    "StridedSlice": "begin end strides begin_mask end_mask ellipsis_mask new_axis_mask shrink_axis_mask",
    "Slice": "begin size",
    "Reshape": "size",
}
_LISTED = ("Concat", "Stack", "AddN")  # operators of a tuple of tensors
_MOST_SHOWN = 30  # elements of a Tensor that are shown as text (tensor.cc, ToString)


def _text(value: Any) -> Any:
    """Numbers and texts stay; other values are text, as MindSpore's ToString writes them: (1, 2), Tensor(...)."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(str(_text(one)) for one in value)})"
    if isinstance(value, Tensor):
        array = value.asnumpy()
        shown = f"{array.item():g}" if array.ndim == 0 else "\n" * (array.ndim > 1) + str(array)
        kept = shown if array.size < _MOST_SHOWN else "[...]"
        return f"Tensor(shape={list(value.shape)}, dtype={str(value.dtype).capitalize()}, value={kept})"
    return value if isinstance(value, (bool, int, float, str)) else str(value)


class _Writer:
    """Nodes of one rank's program under MindSpore's names: "AllReduce-0", "AllReduce-1", ... Inputs come before what
    reads them, from the results backwards (graph_utils.cc, TopoSort).
    """

    def __init__(self, plan: Plan, rank: int, mirrored: frozenset[str] = frozenset(), loss: str = "") -> None:
        self.plan, self.rank, self.mirrored, self.loss = plan, rank, mirrored, loss
        self.nodes: dict[str, dict[str, Any]] = {}
        self._counts: Counter[str] = Counter()
        self._made: dict[str, str] = {}  # a value -> the node that makes it
        self._parts: dict[str, tuple[str, int]] = {}  # one of several results -> the node, its number
        self._roles = {graph_input.name: graph_input.role for graph_input in plan.graph.inputs}
        self._data = [one.name for one in plan.data_inputs] if plan.config.parallel_mode in SHARDED_MODES else []

    def add(self, kind: str, inputs: list[Any], attrs: dict[str, Any] | None = None) -> str:
        """A node; returns its name."""
        name = f"{kind}-{self._counts[kind]}"
        self._counts[kind] += 1
        shown = {key: _text(value) for key, value in (attrs or {}).items()}
        self.nodes[name] = {"inputs": [_text(value) for value in inputs], "attrs": shown}
        return name

    def operand(self, name: str) -> Any:
        """What stands for a value: a node, an input's name, a Tensor that the network holds, a number as a Tensor."""
        role = self._roles.get(name)
        if name not in self._made and role == "parameter":
            read = self.add("Load", [name, "U"])
            self._made[name] = self.add("_MirrorOperator", [read]) if name in self.mirrored else read
        elif name not in self._made and name in self._data:  # what the virtual dataset hands on
            self._made[""] = self._made.get("") or self.add("MakeTuple", self._data)
            self._made[name] = self.add("TupleGetItem", [self._made[""], self._data.index(name)])
        elif name not in self._made and name in self._parts:
            self._made[name] = self.add("TupleGetItem", [*self._parts[name]])
        if name in self._made:
            return self._made[name]
        if role == "constant":
            return Tensor(self.plan.constant_arrays[name])
        return Tensor(self.plan.scalars[name]) if name in self.plan.scalars else name

    def write(self, instr: Instr) -> None:
        """One instruction."""
        kind, node = class_name(instr), self.plan.graph.node(instr.name)
        written = int(instr.kind == "compute" and node is not None and node.opdef.writes)
        if _gathers(instr):  # of what the optimizer parallel divides: MindSpore reads what it gathers
            self._made[instr.out] = self.add("Load", [self._message(instr, list(instr.ins), kind), "U"])
            return
        inputs: list[Any] = [*instr.ins[:written], *map(self.operand, instr.ins[written:])]
        if instr.message:
            self._made[instr.out] = self._message(instr, inputs, kind)
            return
        attrs = {**dict(instr.attrs), "instance_name": instr.name}
        if instr.strategy is not None:
            attrs["in_strategy"] = strategy_counts(instr.strategy)
        if instr.name == self.loss and node is not None and kind == node.op_class:
            inputs = [self.add("_VirtualDiv", [x]) if isinstance(x, str) and x in self.nodes else x for x in inputs]
        if kind in _LISTED:
            inputs = [self.add("MakeTuple", inputs)]
        rows = _own_rows(self.plan, instr, self.rank) if kind == "Gather" else None
        if rows is not None:  # those of other slices are looked up as the nearest of this one, and multiplied by 0
            below = self.add("Sub", [inputs[1], self._number(instr.ins[1], rows.start)])
            within = [self.add("ReLU", [below]), self._number(instr.ins[1], rows.stop - rows.start - 1)]
            inputs[1] = nearest = self.add("Minimum", within)
        if instr.kind == "slice":
            inputs += [*shown_slice(self.plan, instr, self.rank).args, *(0,) * 5]
        else:
            known = {"skip_mode": False, "size": tuple(self.plan.value(instr.outs[0]).slice_shape), **attrs}
            for name, _, at in (one.partition("@") for one in _ARGUMENTS.get(kind, "").split()):
                value = known[name.rstrip("*")]
                value = float(np.float32(value)) if isinstance(value, float) else value
                if name.endswith("*") and not isinstance(value, tuple):
                    value = () if value is None else (value,)
                inputs.insert(int(at or len(inputs)), value)
        if instr.op == "divide_by":
            inputs.append(self._number(instr.outs[0], instr.attr("count")))
        made = self.add(kind, [*inputs, *"U" * written], attrs)
        if rows is not None:
            dtype = self.add("DtypeToEnum", ["DtypeToEnum", "dtype", self.add("DType", [made])])
            mask = self.add("Cast", [self.add("Equal", [below, nearest]), dtype])
            for _ in range(len(self.plan.value(instr.ins[0]).shape) - instr.attr("axis") - 1):
                mask = self.add("ExpandDims", [mask, -1])
            made = self.add("Mul", [made, mask])
        if len(instr.outs) == 1:
            self._made[instr.out] = made
        else:
            self._parts |= {name: (made, at) for at, name in enumerate(instr.outs) if name}

    def _number(self, like: str, number: int) -> Tensor:
        return Tensor(number, self.plan.value(like).dtype)

    def _message(self, instr: Instr, inputs: list[Any], kind: str) -> str:
        """A message; MindSpore's gather and scatter along dim 0 only, with a Split and a Concat after or before."""
        definition, ranks = MESSAGES[instr.message], instr.group(self.rank)
        attrs = {"fusion": instr.attr("fusion", 0), "instance_name": instr.name, "group": _group(self.plan, ranks)}
        attrs |= {"group_ranks": _ranks_text(ranks), "group_rank_ids": ranks, "rank_list": ranks, "rank_ids": ranks}
        attrs |= {"rank_size": len(ranks), "group_size": len(ranks)}
        if instr.attr("reduce"):
            attrs["op"] = instr.attr("reduce")
        if instr.attr("root") is not None:
            attrs["root_rank"] = instr.attr("root")
        if definition.join and definition.cut:
            dims = {name: instr.attr(name) for name in ("split_dim", "concat_dim")}
            return self.add(kind, inputs, attrs | {"split_count": len(ranks)} | dims)
        dim = instr.attr("dim", 0)
        if dim and definition.cut:
            return self.add(kind, [self._moved(inputs[0], dim, 0, len(ranks))], attrs)
        sent = self.add(kind, inputs, attrs)
        return self._moved(sent, 0, dim, len(ranks)) if dim and definition.join else sent

    def _moved(self, source: Any, split: int, joined: int, parts: int) -> str:
        """The parts of `source` along one dim, joined along another."""
        cut = self.add("Split", [source, split, parts], {"axis": split, "output_num": parts})
        taken = [self.add("TupleGetItem", [cut, at]) for at in range(parts)]
        return self.add("Concat", [self.add("MakeTuple", taken), joined], {"axis": joined})

    @property
    def newest(self) -> str:
        return next(reversed(self.nodes), "")

    def knows(self, name: str) -> bool:
        """Whether a node here or an input of the network stands for a value."""
        return name in self._made or name in self._parts or name in self._roles

    def loads(self) -> list[str]:
        """The nodes that read parameters, in the order in which the network does."""
        made = [self._made.get(n, "") for _, i in self.plan.instructions("forward") for n in (*i.ins, *i.outs)]
        made = [self.nodes[one]["inputs"][0] if one.startswith("_Mirror") else one for one in made]
        return [name for name in dict.fromkeys(made) if name.startswith("Load-")]

    def program(self, phase: str, instrs: list[Instr]) -> None:
        """The instructions of one action. Messages in a bucket are written one by one, as they were before."""
        carried = buckets_of(self.plan.stage_of(self.rank).program(phase))
        inside = {i.out for concat, splits in carried.values() for i in (concat, *splits)}
        makers: dict[str, Instr] = {}
        for instr in instrs:
            single = [instr] if instr.out not in inside and instr.kind != "print" else []
            if instr.kind == "start" and instr.attr("members") is not None:
                single = [message for message, _, _ in bucket_messages(self.plan, instr, *carried[instr.out])]
            makers |= {name: one for one in single for name in one.outs if name}
        wanted = [name for name, instr in makers.items() if not _redistributes(instr)]
        stack, done = [*reversed(wanted), *reversed([name for name in self.plan.outputs if name in makers])], set()
        while stack:
            name = stack.pop()
            instr = makers.get(name)
            if instr is None:
                self.operand(name)
            elif (instr.outs, True) in done:
                continue
            elif (instr.outs, False) in done:
                done.add((instr.outs, True))
                if instr.kind == "wait":
                    self._made[instr.out] = self._made.get(instr.ins[0], "")
                else:
                    self.write(instr)
                for read in instr.ins if instr.kind == "compute" else ():
                    while (maker := makers.get(read)) is not None and _redistributes(
                        maker
                    ):  # another reader has its own
                        done -= {(maker.outs, False), (maker.outs, True)}
                        self._made.pop(read, None)
                        read = maker.ins[0]
            else:
                done.add((instr.outs, False))
                stack += [name, *(() if _gathers(instr) else reversed(instr.ins))]


def _redistributes(instr: Instr) -> bool:
    """Whether an instruction brings an operand of `instr.name` into its layout (parallelize.py, Builder)."""
    return instr.kind != "compute" and re.search(rf"\.\w+\.{re.escape(instr.name)}\b", instr.out) is not None


def _own_rows(plan: Plan, instr: Instr, rank: int) -> slice | None:
    """The rows that a rank has of a table that is split along them into equal slices."""
    table, axis = plan.value(instr.ins[0]), instr.attr("axis")
    if table.layout is None or table.layout.rows or table.layout.splits[axis] == 1:
        return None
    return table.layout.slice_index(table.shape, rank % plan.stages[0].count)[axis]


def _divided_loss(plan: Plan) -> str:
    """The operator of the loss, if ranks have it repeatedly: its gradient is divided by their number."""
    layout, node = plan.value(plan.outputs[0]).layout, plan.graph.node(plan.graph.outputs[0])
    once = layout is None or math.prod(layout.splits) == plan.stages[-1].count
    return "" if once or node is None or not plan.config.loss_repeated_mean else node.name


def _gathers(instr: Instr) -> bool:
    return instr.message == "all_gather" and instr.ins[0] == instr.attr("parameter")


def graph_info(plan: Plan, rank: int = 0) -> dict[str, dict[str, dict[str, Any]]]:
    """{"@graph_0": {node: {"inputs": [...], "attrs": {...}}}} of one rank's forward; of a training step, "@graph_1" has
    its forward, backward and update.

    Nodes are numbered per class, inputs before their readers. Inputs are names of nodes and optimizer states, numbers,
    and Tensors and shapes as text; a parameter is read by a Load, data come from the virtual dataset's MakeTuple, and
    _MirrorOperator stands for the all_reduce of a gradient. A message's attributes: op, fusion, rank_size (group_size),
    group_ranks and group_rank_ids (rank_ids, rank_list), and group, its name.

    What MindSpore's graph has otherwise: gradients and updates are made of its operators (here of this package's, such
    as ReluGrad and Descend).
    """
    actions = plan.stage_of(rank).actions
    later = [i for name in ("backward", "update") for _, i in plan.instructions(name)]
    mirrored = frozenset(name for i in later if i.message == "all_reduce" for name in i.carried)
    first = [action for action in actions if action.program == "forward"]
    graphs = [
        _graph(_Writer(plan, rank, mirrored, _divided_loss(plan) if later else ""), first),
        *([_graph(_Writer(plan, rank), actions)] if later else ()),
    ]
    return {f"@graph_{number}": nodes for number, nodes in enumerate(graphs)}


def _graph(writer: _Writer, actions: Sequence[Action]) -> dict[str, dict[str, Any]]:
    """The nodes of these actions and of what they return."""
    plan, rank = writer.plan, writer.rank
    for action in actions:
        instrs = [instr for _, instr in plan.stage_of(rank).part(action) if instr.runs_on(rank)]
        writer.program(action.program, instrs)
    results = [writer.operand(name) for name in plan.outputs if writer.knows(name)] or [writer.newest]
    result = results[0] if len(results) == 1 else writer.add("MakeTuple", results)
    if loads := writer.loads():  # the result waits for what was read
        state = writer.add("UpdateState", ["U", writer.add("MakeTuple", loads) if len(loads) > 1 else loads[0]])
        result = writer.add("Depend", [result, state])
    writer.add("Return", [result])
    return writer.nodes
