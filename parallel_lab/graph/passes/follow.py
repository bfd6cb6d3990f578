"""Passes `follow` and `follow_updates`: what a step does with gradients before the optimizer (clipping, accumulation,
scaling), and after it with the new values of parameters (averages of weights, clipped weights).

A gradient is laid out as its parameter is. An operator on gradients that was given no strategy takes the legal one that
moves least of its operands, so that layouts are followed; its messages, if it needs any, are made as `parallelize`
makes them. The instructions come first in the update program; those on new values, which lie as the parameter does,
come last.

A message that the step calls itself acts on slices as they lie, and so does all that it is made of: sums that end in
it are each rank's own (MindSpore: behind the gradient nothing is split or combined).

In data_parallel and hybrid_parallel mode every rank has whole gradients, and operators run on them as they stand.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ...base.errors import TracedCommunication
from ...base.origin import Origin
from ...layout.tensor_layout import TensorLayout, canonical_axes, ranks_along
from ...ops.collectives.definitions import MESSAGES
from ...ops.machine.registry import OPS
from ...ops.machine.sharding import sharding_rule
from ..draft import Draft, fresh_name
from ..instr import Instr, Value, attr_pairs
from ..ir import Graph, GraphInput, Node
from .candidates import choose_from_inputs
from .parallelize import Builder, View, output_value
from .parameter_operators import follow_parameters


def follow_gradients(draft: Draft) -> Draft:
    """Make the instructions on gradients, the optimizer's arguments and the outputs. Raises as `parallelize`."""
    names, instrs, values = _gradients(draft)
    draft = replace(draft, bridges=(*draft.bridges, *names.items()))
    late = {name for name, _, _ in draft.graph.gradients}
    held = tuple(dict(draft.bridges).get(name, name) for name in draft.graph.outputs)
    return _with_phase(replace(draft, outputs=held), "update", late, instrs, values)


def follow_updates(draft: Draft) -> Draft:
    """Make the instructions on parameters that the optimizer has changed: averages of weights, for instance."""
    new, pairs = dict(draft.assignments), draft.graph.updated
    draft = replace(draft, bridges=(*draft.bridges, *((name, new.get(target, target)) for name, target in pairs)))
    return _with_phase(draft, "after", {name for name, _ in pairs}, [], draft.value_table())


def _with_phase(draft: Draft, phase: str, late: set[str], instrs: list[Instr], values: dict[str, Value]) -> Draft:
    """The draft with the operators of a phase; late: inputs of the graph that are there only now."""
    graph, names = draft.graph, dict(draft.bridges)
    late_nodes = [replace(n, ins=tuple(names.get(i, i) for i in n.ins)) for n in graph.of_phase("update", phase)]
    nodes = tuple(replace(n, when=tuple((names.get(c, c), side) for c, side in n.when)) for n in late_nodes)
    # what reads an earlier phase's view decides where it lies
    nodes = tuple(n for n in nodes if n.phase == phase or (n.opdef.view and not draft.config.local))
    for name in dict.fromkeys(i for node in nodes for i in node.reads):
        # numbers written in operators on gradients are values of the program too
        source = graph.input(name)
        if name not in values and source is not None and (source.is_number or source.role == "constant"):
            values[name] = source.whole(draft.config.device_num)
    added, read = (_local if draft.config.local else _sharded)(draft, nodes, values, phase)
    late = late.union(name for n in nodes if n.phase == phase for name in n.outs)

    def taken(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        return tuple((parameter, read(names.get(value, value), parameter or None)) for parameter, value in pairs)

    updates = taken(graph.updates) if phase == "update" else draft.updates
    assigned = taken(tuple(pair for pair in graph.assigns if pair[1] in late))
    others = tuple(pair for pair in draft.assignments if pair[0] not in dict(assigned))
    shown = zip(graph.outputs, draft.outputs, strict=True)
    outputs = tuple(read(names.get(name, name), None) if name in late else value for name, value in shown)
    program = (*instrs, *added)
    messages = sum(i.is_communication for i in program)
    changes = {"outputs": outputs, "updates": updates, "assignments": (*others, *assigned)}
    if program:
        done = draft.with_program("update", (*draft.program("update"), *program), values, **changes)
    else:
        done = replace(draft, values=tuple(sorted(values.items())), **changes)
    what = "gradients" if phase == "update" else "updated parameters"
    return done.noted("follow", f"{len(program)} instructions on {what}, {messages} messages")


def _gradients(draft: Draft) -> tuple[dict[str, str], list[Instr], dict[str, Value]]:
    """{gradient of the graph: value of the program}; without a gradient zeros, made by the instructions returned."""
    values, names, zeros, gradients = draft.value_table(), dict(draft.bridges), [], {}
    idle: dict[str, str] = {}
    for name, target, _ in draft.graph.gradients:
        if name not in names and target not in idle:
            held = values.setdefault(target, draft.graph.source(target).whole(draft.config.device_num))
            label = idle[target] = fresh_name(f"{target}.grad.zeros", values)
            attrs = attr_pairs({"shape": held.slice_shape, "value": 0.0, "dtype": held.dtype})
            fill, why = OPS["fill"].class_name, "the result does not depend on it"
            zeros.append(Instr("compute", (label,), (), target, "fill", fill, attrs, reason=why))
            values[label] = held
        gradients[name] = names.get(name) or idle[target]
    return gradients, zeros, values


def _local(draft: Draft, nodes: tuple[Node, ...], values: dict[str, Value], phase: str) -> tuple[list[Instr], Any]:
    """Operators on the whole gradients that every rank has."""
    for source in draft.graph.inputs:
        if source.role == "parameter":
            values.setdefault(source.name, source.whole(draft.config.device_num))
    for node in nodes:
        values |= {n: Value(s, d, None) for n, s, d in zip(node.outs, node.shapes, node.dtypes, strict=True)}

    def read(name: str, parameter: str | None) -> str:
        if parameter is not None and values[name].layout is None:
            # every rank has made the whole new value
            values[name] = Value(values[name].shape, values[name].dtype, values[parameter].layout)
        return name

    return [node.computed(node.ins, node.attrs) for node in nodes], read


def _sharded(draft: Draft, nodes: tuple[Node, ...], values: dict[str, Value], phase: str) -> tuple[list[Instr], Any]:
    """Operators on slices of gradients, with the messages they need."""
    config, graph = draft.config, draft.graph
    numbers = {i.name for i in graph.inputs if i.is_number}
    # earlier programs' values are given; a parameter that nothing has read yet takes its first operator's layout
    open_ = (i for i in graph.inputs if i.name in numbers or (i.role == "parameter" and i.name not in values))
    inputs = (*open_, *(GraphInput(n, "data", v.shape, v.dtype) for n, v in values.items() if n not in numbers))
    graph = Graph(inputs, nodes, (), draft.graph.name, prints=draft.graph.prints)
    build = Builder(replace(draft, graph=graph))
    build.values = values
    shapes = graph.shapes()
    own = {name for n in nodes if n.opdef.message for name in (n.name, *n.ins)}
    for node in reversed(nodes):
        own.update(node.ins if own.intersection(node.outs) else ())
    stages = _stages_of(draft, nodes, own) if own and config.pipeline_stages > 1 else {}
    for node in nodes:
        build.when = node.when
        if not own.isdisjoint(node.outs) and node.op != "loop":
            _on_slices(build, _over_stages(build, node, stages) if stages and node.opdef.message else node)
            build.prints(node.outs)
            continue
        if node.opdef.view:
            build.views[node.name] = View(node.ins[0], node)
            build.prints(node.outs if node.phase == phase else ())
            continue
        if node.op == "loop":
            build.go_on(node)
            continue
        if node.phase == "after" and (node.strategy is None or config.parallel_mode == "stand_alone"):
            follow_parameters(build, node, nodes)
            build.prints(node.outs)
            continue
        taken, attrs = graph.operand_shapes(node), dict(node.attrs)
        if own and (scratch := [n for n in node.ins if n in values and values[n].layout is None]):
            what, allowed = f"{scratch[0]!r} is a rank's own, no slice", "What a message brings in its operand's layout"
            raise TracedCommunication(what, where=node.where, allowed=allowed)
        strategy = None if config.parallel_mode == "stand_alone" else node.strategy
        if strategy is None:
            laid_out = (values.keys() | build.views.keys()) - numbers
            held = tuple(_placed(build, name) if name in laid_out else None for name in node.ins)
            strategy = choose_from_inputs(node.opdef, taken, attrs, held, config.device_num, config)
        node = replace(node, strategy=strategy, strategy_source=node.strategy_source or "followed")
        rule = sharding_rule(node.opdef, taken, attrs, strategy, config.device_num, node.where)
        build.compute(node, rule, build.operands(node, rule.ins))
        build.prints(node.outs)
    build.when = ()

    def read(name: str, parameter: str | None) -> str:
        """The value of the program that holds `name`; laid out as `parameter` is, if one is named."""
        if parameter is None:
            return output_value(build, name)
        have, shape = build.layout_and_shape(name)
        if parameter not in values:
            whole = TensorLayout.replicated(config.device_num, len(shapes[name]))
            layout = whole if name in build.views else have.whole()
            values[parameter] = Value(shapes[name], draft.graph.source(parameter).dtype, layout)
        want = values[parameter].placed
        if name not in build.views and have.same_placement(want):
            return name
        result = ((parameter,), (shapes[name],), (values[parameter].dtype,))
        taker = Node(parameter, "", "", (), (), *result, Origin(made_by="follow"))
        return build.redistribute(name, have, shape, want, taker, 0)

    return build.instrs, read


def _stages_of(draft: Draft, nodes: tuple[Node, ...], own: set[str]) -> dict[str, set[int]]:
    """{value behind the gradient: the stages of what it is made of}. TracedCommunication: several meet, not added."""
    made: dict[str, set[int]] = {}
    rooted = {i.name for i in draft.graph.inputs if i.role == "data"} | {name for _, name, _ in draft.graph.gradients}
    for node in draft.graph.of_phase("forward"):
        if rooted.intersection(node.ins):
            rooted.update(node.outs)
            made |= {name: {node.stage} for name in (*node.outs, *rooted.intersection(node.ins)) if name not in made}
    made |= {value: made.get(parameter, {0}) for parameter, value in draft.gradients}
    made |= {name: made.get(parameter, {0}) for name, parameter, _ in draft.graph.gradients}
    for node in nodes:
        sets = [made.get(name, set()) for name in node.ins]
        made |= dict.fromkeys(node.outs, set().union(*sets))
        if node.name in own and node.op not in ("add", "addn") and len({frozenset(one) for one in sets if one}) > 1:
            what = f"a message that the step calls reads {node.name!r}, which is made of values of several stages"
            raise TracedCommunication(what, where=node.where, allowed="Sums of what each stage has of its own")
    return made


def _over_stages(build: Builder, node: Node, stages: dict[str, set[int]]) -> Node:
    """A sum over all stages as each sends it: what Parameters made is added up over their stages already, what no stage
    has made all have alike. Raises TracedCommunication for other messages between stages.
    """
    size, count, attrs = build.config.device_num, build.config.pipeline_stages, dict(node.attrs)
    mine = tuple(r for r in attrs["group"] if r // size == attrs["group"][0] // size)
    if len(mine) == len(attrs["group"]):
        return node
    everybody = sorted(r % size + stage * size for r in mine for stage in range(count))
    if node.opdef.message != "all_reduce" or attrs["reduce"] != "sum" or list(attrs["group"]) != everybody:
        what = f"it is called for ranks {attrs['group']} of several stages"
        raise TracedCommunication(what, where=node.where, allowed="A sum over all stages, or within one")
    (source,) = node.ins
    for _ in range(0 if stages[node.name] else count - 1):
        label = fresh_name(f"{node.name}.stages", build.values)
        build.add(Instr("compute", (label,), (source, node.ins[0]), node.name, "add", "Add"), build.values[node.ins[0]])
        source = label
    if len(mine) == 1:
        return replace(node, ins=(source,), op="stop_gradient", op_class="Depend", attrs=())
    return replace(node, ins=(source,), attrs=attr_pairs({**attrs, "group": mine}))


def _on_slices(build: Builder, node: Node) -> None:
    """A message that the step calls, or an operator that one is made of: on slices as they lie, and nothing else moves.
    Raises TracedCommunication.
    """
    op, device_num, attrs = node.opdef, build.config.device_num, dict(node.attrs)
    for name in node.ins:
        if name not in build.values:
            build.values[name] = build.graph.source(name).whole(device_num)
    held = [build.values[name] for name in node.ins]
    slices, like = [v.slice_shape for v in held], held[0] if held else None
    if op.message:
        definition, group = MESSAGES[op.message], attrs["group"]
        attrs.setdefault("dim", 0)
        n, step = len(group), group[1] - group[0]
        placed, rooted = ((device_num // (n * step), n, step), (1,)), not definition.symmetric
        if device_num % (n * step) or ranks_along(*placed, group[0]) != group or (rooted and n < device_num):
            allowed = "Groups of equal size and distance that together are all ranks; with a root all ranks"
            what = f"it is called for ranks {group}, by one program for {device_num} ranks"
            raise TracedCommunication(what, where=node.where, allowed=allowed)
        shapes = [definition.reply_shape(slices[0], attrs, n)]
        about = {a: attrs[a] for a in definition.attributes} | {"fusion": 0, "of_slices": True}
        matrix, axes = canonical_axes(*placed)
        instr = Instr(op.message, node.outs, node.ins, node.name, "", node.op_class, attr_pairs(about), axes, matrix)
        instr = replace(instr, reason="the step calls it", origin=node.origin)
    else:
        if op.view:
            attrs["shape"] = node.shape if slices[0] == held[0].shape else (math.prod(slices[0]),)
            what = f"a message that the step calls reads {held[0].shape} reshaped to {node.shape}, slices {slices[0]}"
            if len(attrs["shape"]) != len(node.shape):
                raise TracedCommunication(what, where=node.where, allowed="A slice is reshaped to one dim only")
        elif op.result_shape is None:
            signature = op.signature_for(tuple(v.shape for v in held), attrs)
            like = next((v for v, labels in zip(held, signature.ins, strict=True) if labels == signature.outs[0]), None)
        else:
            like = held[op.result_shape] if isinstance(op.result_shape, int) else None
        shapes = op.infer(tuple(slices), tuple(v.dtype for v in held), attrs, node.where).shapes
        instr = node.computed(node.ins, attr_pairs(attrs))
    values = []
    for shape, local, dtype in zip(node.shapes, shapes, node.dtypes, strict=True):
        layouts = [like.layout] if like is not None and like.layout is not None else []
        layouts = [one for one in (*layouts, TensorLayout.replicated(device_num, len(shape))) if one.ndim == len(shape)]
        layout = next((one for one in layouts if one.full_shape(local) == shape), None)
        values.append(Value(local, dtype, None) if layout is None else Value(shape, dtype, layout.whole()))
    build.add(instr, *values)


def _placed(build: Builder, name: str) -> TensorLayout | None:
    """Where the elements of an operand lie; of a reshaped one, whose layout its consumer decides, the whole of it."""
    if name in build.views:
        return TensorLayout.replicated(build.config.device_num, len(build.graph.shapes()[name]))
    return build.values[name].layout
