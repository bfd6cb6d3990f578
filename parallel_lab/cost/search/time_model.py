"""A problem in seconds and bytes: what the compiled step would take on a cluster, operator by operator.

    compute            seconds of an operator and its gradient on slices (roofline of the device)
    partial sums       seconds of the messages that combine them, and of these messages' counterparts
    gradients          seconds of the all_reduce of a parameter's gradient over the ranks that hold the same slice
    redistribution     seconds of messages and local work between two layouts, forward and backward

An operator is compiled alone under each of its candidates, by the passes that compile the network: its terms are those
of the plan. Where a tensor is read more than once, the gradient of each further read costs the work of adding it to the
first one's; what goes with a parameter is counted where it is first read. A redistribution that several readers want
alike is counted for each, where the plan has it once. What fusion, overlap and the optimizer do is not in the terms;
`predict_timeline` has it. Bytes are what a device holds of an operator when the backward program begins, with its
parameters, their gradients and the states.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...base.cluster import Cluster, Link
from ...base.dtypes import as_dtype, kind_of
from ...base.settings.config import ParallelConfig
from ...graph.draft import Draft
from ...graph.instr import Instr, Value
from ...graph.ir import Graph, GraphInput, Node
from ...graph.passes.differentiate import differentiate
from ...graph.passes.local_recorder import unfold
from ...graph.passes.parallelize import Builder
from ...layout.named_layout import AnyStrategy
from ...layout.redistribution import plan_redistribution
from ...layout.tensor_layout import Shape, TensorLayout
from ...ops.machine.split_labels import ShardingRule
from ..shared_cores import call_time_s, on_shared_cores
from ..time import local_time_s, message_time_s, plan_message_time_s
from .cost_model import CostModel, gives_back
from .places import Link as Read
from .problem import Problem, Term

WEIGH = "weigh"  # an operator behind the one that is priced, so that its gradient is an array and not one number


def time_problem(
    graph: Graph,
    config: ParallelConfig,
    cluster: Cluster,
    *,
    states: int = 0,
    also: Mapping[str, AnyStrategy] | None = None,
) -> Problem:
    """The choices of a traced network, in seconds on `cluster`.

    states  arrays that the optimizer keeps per parameter: 1 for Momentum, 2 for Adam
    also    more candidates, of operators by name
    """
    cluster.check_device_num(config.device_num)
    return TimeModel(graph, config, cluster, states, also).problem()


class _Program:
    """What the price of an instruction is asked of: a plan's values."""

    host: tuple[str, ...] = ()

    def __init__(self, values: dict[str, Value]) -> None:
        self.values = values

    def value(self, name: str) -> Value:
        return self.values[name]


class TimeModel(CostModel):
    """Seconds, as in the module's words."""

    name = "time"

    def __init__(
        self,
        graph: Graph,
        config: ParallelConfig,
        cluster: Cluster,
        states: int,
        also: Mapping[str, AnyStrategy] | None = None,
    ) -> None:
        super().__init__(graph, replace(config, enable_parallel_optimizer=False), also)
        self.cluster, self.copies_of_parameters = on_shared_cores(cluster, config.device_num), 2 + states
        self.last = {*graph.outputs, *graph.seeds}  # where the way back begins, with one number
        self.read = self.last | {name for node in graph.nodes for name in node.ins}
        self.links: dict[tuple[Any, ...], Link] = {}  # of a device matrix and axes
        self.further = self.further_reads()
        self.summed: dict[tuple[Any, ...], np.ndarray] = {}

    def further_reads(self) -> set[tuple[str, int]]:
        """(operator, operand) of all reads of a tensor but the first, where a gradient flows through them."""
        reads: dict[str, list[tuple[str, int]]] = {}
        # a parameter goes with an operator that reads it itself, if there is one, and not a reshape of it
        for link, _, tensor in sorted(self.sources(), key=lambda read: read[0].source in self.views):
            if tensor in self.live and gives_back(self.nodes[link.target]):
                reads.setdefault(tensor, []).append((link.target, link.position))
        return {read for several in reads.values() for read in several[1:]}

    def terms(self) -> tuple[Term, ...]:
        return (
            Term("compute", "s", 1.0, "max(flops / rate, bytes / bandwidth) + overhead, forward and backward"),
            Term("partial sums", "s", 1.0, "closed form of each message on the link it crosses"),
            Term("gradients", "s", 1.0, "all_reduce of a slice over the ranks that hold the same"),
            Term("redistribution", "s", 1.0, "messages and copies between two layouts, there and back"),
        )

    # ---- an operator ----

    def prices(self, node: Node, rules: list[ShardingRule]) -> tuple[np.ndarray, np.ndarray]:
        inputs = [self.input(node, at) for at in range(len(node.ins))]
        parameters = tuple(self.root(name) is not None for name in node.ins)
        further = tuple((node.name, at) in self.further for at in range(len(node.ins)))
        facts = (node.op, node.attrs, node.shapes, node.dtypes, node.out_strategy, node.cross_batch)
        ends = tuple((out in self.last, out in self.read) for out in node.outs)
        key = (facts, tuple(inputs), parameters, further, ends, id(rules))
        if key not in self.priced:
            listed = [self.price(node, inputs, rule) for rule in rules]
            self.priced[key] = (
                np.array([costs for costs, _ in listed]),
                np.array([size for _, size in listed], np.int64),
            )
        return self.priced[key]

    def root(self, name: str) -> str | None:
        """The parameter that `name` is, or is a copy or a reshape of."""
        while name in self.views:
            name = self.views[name].ins[0]
        return self.parameter(name)

    def input(self, node: Node, at: int) -> GraphInput:
        """An operand, as if it were an input of its own: a parameter where it has a gradient, else data."""
        name, shape = node.ins[at], self.graph.operand_shapes(node)[at]
        given = self.inputs.get(name)
        if given is not None and (given.is_number or given.role == "constant"):
            return replace(given, name=f"{at}")
        trained = name in self.live
        return GraphInput(f"{at}", "parameter" if trained else "data", shape, self.graph.dtypes()[name], trained)

    def price(self, node: Node, inputs: list[GraphInput], rule: ShardingRule) -> tuple[list[float], int]:
        """(terms, bytes) of one operator under one strategy."""
        names = tuple(i.name for i in inputs)
        alone = replace(node, ins=names, strategy=rule.strategy, recompute=(), once="", stage=-1)
        outs = [pair for pair in zip(node.outs, node.dtypes, strict=True) if pair[0] in self.read]
        floats = [out for out, dtype in outs if kind_of(dtype) == "f"]
        weighed = [out for out in floats if out not in self.last]
        behind = tuple(GraphInput(f"{WEIGH}.{out}", "constant", (), self.graph.dtypes()[out]) for out in weighed)
        draft = Draft(Graph((*inputs, *behind), (alone,), tuple(floats), name=node.name), self.config)
        build = Builder(draft)
        for given, layout in zip(inputs, rule.operand_layouts, strict=True):
            if given.role != "parameter":
                # of a constant each rank has all, and cuts its slice here; other tensors have been brought
                whole = given.is_number or given.role == "constant"
                placed = given.whole(self.device_num) if whole else Value(given.shape, given.dtype, layout)
                build.values[given.name] = placed
        ins = build.operands(alone, rule.operand_layouts)
        if rule.stored is not None:
            pairs = enumerate(zip(ins, rule.stored, rule.ins, strict=True))
            ins = tuple(build.gathered(name, have, want, alone, at) for at, (name, have, want) in pairs)
        build.compute(alone, rule, ins)
        outs = [out for out in floats if out in self.last and out in build.values]
        for out in (o for o in weighed if o in build.values):
            made = build.values[out]
            build.values[f"{WEIGH}.{out}"] = made
            instr = Instr("compute", (f"{out}.{WEIGH}",), (out, f"{WEIGH}.{out}"), WEIGH, "mul", "Mul")
            outs.append(build.add(instr, made))
        done = draft.with_program("forward", tuple(build.instrs), build.values, outputs=tuple(outs))
        if outs and any(i.trainable for i in inputs):
            done = differentiate(done)
        sent = unfold(done) if node.opdef.unfold else done  # with the messages that an operator sends itself
        terms = self.timed(sent, {names[at] for at in self.charged(node)}, node.name)
        for at, name in enumerate(node.ins):
            if self.root(name) is not None and (node.name, at) in self.further:
                terms[0] += self.sum_s(inputs[at].shape, inputs[at].dtype, rule.operand_layouts[at])
        return terms, self.held(node, rule, done)

    def charged(self, node: Node) -> list[int]:
        """The operands that are parameters which are counted here."""
        reads = enumerate(node.ins)
        return [at for at, name in reads if self.root(name) is not None and (node.name, at) not in self.further]

    def sum_s(self, shape: Shape, dtype: str, layout: TensorLayout) -> float:
        """Seconds of adding one gradient of a tensor to another."""
        value = Value(shape, dtype, layout)
        names = ("one", "other", "sum")
        add = Instr("compute", names[2:], names[:2], "", "add", "Add")
        return local_time_s(_Program(dict.fromkeys(names, value)), add, self.cluster.device)

    def timed(self, draft: Draft, parameters: set[str], name: str) -> list[float]:
        """Terms of the programs, without what is only there to price the operator."""
        program, terms = _Program(draft.value_table()), [0.0] * 4
        for _, instr in draft.instructions():
            if instr.name != name and instr.name not in parameters:
                continue
            if instr.is_communication:
                link = self.cluster.link_for(instr.group(0))
                terms[2 if instr.name in parameters else 1] += plan_message_time_s(program, instr, self.cluster, link)
            else:
                terms[0] += local_time_s(program, instr, self.cluster.device)
        return terms

    def held(self, node: Node, rule: ShardingRule, draft: Draft) -> int:
        """Bytes of a device: what the gradient reads, and parameters with all that goes with them."""
        values = draft.value_table()
        results = {out for instr in draft.program("forward") for out in instr.outs}
        read = {name for instr in draft.program("backward") if instr.name == node.name for name in instr.ins}
        total = sum(values[name].slice_bytes for name in read & results)
        for at, name in enumerate(node.ins):
            size = math.prod(rule.operand_layouts[at].slice_shape(self.graph.operand_shapes(node)[at]))
            size *= as_dtype(self.graph.dtypes()[name]).itemsize
            if self.root(name) is not None:
                if at in self.charged(node):
                    total += size * (self.copies_of_parameters if name in self.live else 1)
            elif f"{at}" in read:
                total += size
        return total

    # ---- between two operators ----

    def table(self, source: str, tensor: str, link: Read) -> np.ndarray:
        """What lies between the candidates of two places; of a further read, with the sum of gradients. An operator
        that reads a tensor twice alike has it brought once. A reshape to the same shape takes its start.
        """
        made, befores, afters = super().table(source, tensor, link), self.left(source, tensor), self.taken(link)
        reads = self.before[link.target][: self.before[link.target].index(link)]
        others = [self.taken(r) for r in reads if (r.source, r.tensor) == (link.source, link.tensor)]
        further = (link.target, link.position) in self.further
        reshaped = link.source in self.views and self.shapes[tensor] == self.there(link)
        if not others and not further and not reshaped:
            return made
        key = id(made), id(befores), id(afters), reshaped, *map(id, others)
        if key not in self.summed:
            what = self.there(link), self.graph.dtypes()[tensor]
            sums = np.zeros_like(made)
            if reshaped:
                lying = np.array([[a.same_placement(b) for b in afters] for a in befores])
                back = tensor in self.live and gives_back(self.nodes[link.target])
                sums[lying, 3] = self.cluster.device.overhead_s * (1 + back)
            again = np.array([any(o[at].same_placement(b) for o in others) for at, b in enumerate(afters)])
            if further:
                sums[:, :, 0] = [[self.sum_s(self.shapes[tensor], what[1], layout)] for layout in befores]
                sums[:, again, 0] = [self.sum_s(*what, b) for b, twice in zip(afters, again, strict=True) if twice]
            self.summed[key] = np.where(again[:, None], 0.0, made) + sums
        return self.summed[key]

    def between(
        self, before: TensorLayout, after: TensorLayout, shape: Shape, shape_after: Shape, itemsize: int, live: bool
    ) -> tuple[float, ...]:
        if shape == shape_after and before.same_placement(after):
            return (0.0,) * 4
        return 0.0, 0.0, 0.0, math.fsum(self.steps_s(before, after, shape, shape_after, itemsize, live))

    def steps_s(
        self, before: TensorLayout, after: TensorLayout, shape: Shape, shape_after: Shape, itemsize: int, live: bool
    ) -> Iterable[float]:
        """Seconds of each step of a redistribution, and (live) of its counterpart on the way back."""
        device = self.cluster.device
        for step in plan_redistribution(before, after, shape, dst_shape=shape_after, **self.config.manner):
            given, made = math.prod(step.in_shape) * itemsize, math.prod(step.out_shape) * itemsize
            if step.kind == "reshape":
                touched = [0, 0] if step.in_shape != step.out_shape else []  # a view, which takes its start
            elif step.kind == "slice":
                touched = [2 * made, given + made]  # back: zeros around it
            else:
                touched = [given + made] * 2
            if not step.communicates:
                for size in touched[: 1 + live]:
                    yield size / device.memory_bandwidth_bytes_per_s + device.overhead_s
                continue
            place = step.device_matrix, step.axes
            if place not in self.links:
                self.links[place] = self.cluster.link_for(step.group(0))
            link, gamma, route = self.links[place], device.gamma_s_per_byte, getattr(step, "route", None)
            back = {"all_gather": "reduce_scatter", "exchange": "exchange_reduce"}.get(step.kind, step.kind)
            members = step.group_size
            call_s = call_time_s(self.cluster)
            yield call_s + message_time_s(step.kind, given, members, link, gamma, route=route)
            if live:
                yield call_s + message_time_s(back, made, members, link, gamma, route=route)
