"""Passes `stages` and `borders`: a network in pipeline stages.

    stage 0   x -> fc1 -> h      send h        each rank to its counterpart in the next stage, per micro-batch
    stage 1   recv h -> fc2 -> loss

`stages` gives every operator its part of the network: the one its Cell was given, else that of its operands (if they
lack one: that of its readers). Data flows to later stages only; with pipeline_interleave an edge to an earlier one
begins the next chunk: layers on stages 0, 1, 0, 1 make the parts 0, 1, 2, 3. A schedule may place parts in another
order (`graph/placement.py`): for zero_bubble_v layers lie on stages 0, 1, 1, 0. Where parts that follow each other lie
on one stage, its layers are shared out, as many operators to each as layers allow.

`borders` runs on the program of slices. A value that another part reads is brought there once, by a recv whose gradient
goes back the same way; what a redistribution makes smaller is sent after it. A part that reads a value hands it on to
later ones, so gradients are added up in the order of one device. A parameter lies on the first stage that reads it, and
goes to the others with the first micro-batch. Inputs and constants are wherever they are read.

Rules: MindSpore, Cell.pipeline_stage, nn.PipelineCell. What becomes of the parts is in `graph/stage_programs.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from ...base.errors import ContextConflictError, NotBuiltYet, StrategyError
from ..draft import Draft, at_compile, fresh_name
from ..instr import Instr, Value, attr_pairs
from ..ir import Graph, Node
from ..placement import Placement, given_schedule, named_placement, named_schedule, placement_of

# ---- parts of the network ----


def assign_stages(draft: Draft) -> Draft:
    """Give every operator its part, and the draft its schedule. Raises StrategyError for stages that are not used, or
    flow backwards; ArgumentError for a schedule that cannot run.
    """
    graph, config = draft.graph, draft.config
    count = config.pipeline_stages
    if config.local:
        what, allowed = f"pipeline_stages={count} in {config.parallel_mode} mode", "semi_auto_parallel or auto_parallel"
        raise at_compile(ContextConflictError, what, allowed, "Within a stage the batch is split among its ranks")
    schedule = None if draft.schedule is None else given_schedule(draft)
    fewer = schedule is None and graph.micro_batches < count
    if fewer and (draft.training.differentiated or graph.micro_batches > 1):
        fed = "is fed no micro-batches" if graph.micro_batches == 1 else f"is fed {graph.micro_batches} micro-batches"
        what, allowed = f"the network {fed}, with pipeline_stages={count}", "At least as many as there are stages"
        raise at_compile(StrategyError, what, allowed, f"Put it into nn.PipelineCell(net, {2 * count})")
    chosen = {n.name: n.stage for n in graph.nodes if n.phase == "forward"}
    beyond = next((n for n in graph.of_phase("forward") if n.stage >= count), None)
    if beyond is not None:
        what, allowed = f"stage {beyond.stage}, with pipeline_stages={count}", f"A stage from 0 to {count - 1}"
        raise StrategyError(what, where=beyond.where, allowed=allowed)
    stages = _coloured(graph, chosen)
    used = sorted(set(stages.values()))
    if used != list(range(count)):
        what = f"the network's operators are on stages {used}, with pipeline_stages={count}"
        allowed = f"Every stage from 0 to {count - 1} has an operator"
        raise at_compile(StrategyError, what, allowed, "Set cell.pipeline_stage, or stage_config of nn.PipelineCell")
    place = named_placement(draft) if schedule is None else placement_of(schedule, schedule.parts)
    parts = _parts(graph, stages, chosen, count, place, interleaved=config.pipeline_interleave)
    if _border_fault(graph, stages) is not None:
        # what is made of the data alone, such as a mask, lies where it is read (MindSpore makes it on every stage)
        stages, alone = _coloured(graph, chosen), _made_of(graph, "data", "micro_batch", "constant", "scalar")
        parts = _parts(graph, stages, chosen, count, place, alone, interleaved=config.pipeline_interleave)
    early = _needs_no_micro_batch(graph)
    nodes = tuple(replace(n, stage=parts[n.name]) if n.name in parts else n for n in graph.nodes)
    nodes = tuple(replace(n, once="first") if n.name in early else n for n in nodes)
    if (fault := _border_fault(graph, stages)) is not None:
        raise fault
    trained = {i.name for i in graph.inputs if i.trainable}
    first = [n for n in graph.of_phase("forward") if stages[n.name] == 0 and not _is_free(n)]
    if draft.training.differentiated and trained and not any(trained.intersection(n.ins) for n in first):
        what, allowed = "no operator of stage 0 has a trained Parameter", "Stage 0 is trained, and what follows it"
        hint = "Give the first layer with such Parameters stage 0, and what follows it the next ones"
        raise StrategyError(what, where=first[0].where, allowed=allowed, hint=hint)
    total = -(-(1 + max(parts.values())) // count) * count if place is None else len(place.ways[0])
    missing = next((k for k in range(total) if k not in parts.values()), None)
    if missing is not None:
        if place is None:
            what = f"chunk {missing // count} has no operator on stage {missing % count}"
            raise at_compile(StrategyError, what, "Each chunk runs through all stages, from 0 to the last")
        what, allowed = f"part {missing} of the schedule has no operator", f"Layers on stages {_shown(place)}, in order"
        raise at_compile(StrategyError, what, allowed, "Set their pipeline_stage, or take a schedule with fewer parts")
    draft = replace(draft, graph=replace(graph, nodes=nodes))
    draft = replace(draft, schedule=named_schedule(draft, total) if schedule is None else schedule)
    return draft.noted("stages", f"{len(nodes)} operators in {total} parts on {count} stages")


def _shown(place: Placement) -> str:
    return ", ".join(map(str, place.ways[0]))


def _coloured(graph: Graph, chosen: dict[str, int]) -> dict[str, int]:
    """Stage of every forward operator: as said, or the last one of its operands', or the first one of its readers'."""
    colours: dict[str, int] = {}
    forward = graph.of_phase("forward")
    readers = _readers(graph)
    for node in forward:
        before = [colours[maker] for maker in map(graph.maker, node.ins) if maker in colours]
        if chosen[node.name] >= 0 or before:
            colours[node.name] = chosen[node.name] if chosen[node.name] >= 0 else max(before)
    for node in reversed(forward):
        if node.name not in colours:
            colours[node.name] = min((colours[r.name] for r in readers.get(node.name, ())), default=0)
    return colours


def _readers(graph: Graph) -> dict[str, list[Node]]:
    """Operator -> the forward operators that read what it makes."""
    readers: dict[str, list[Node]] = {}
    for node in graph.of_phase("forward"):
        for name in node.ins:
            readers.setdefault(graph.maker(name), []).append(node)
    return readers


def _made_of(graph: Graph, *roles: str) -> set[str]:
    """Forward operators that read inputs of these roles only, or what such operators make."""
    found = {i.name for i in graph.inputs if i.role in roles}
    for node in graph.of_phase("forward"):
        if node.ins and found.issuperset(map(graph.maker, node.ins)):
            found.add(node.name)
    return found


def _parts(
    graph: Graph,
    stages: dict[str, int],
    chosen: dict[str, int],
    count: int,
    place: Placement | None,
    alone: Collection[str] = (),
    *,
    interleaved: bool,
) -> dict[str, int]:
    """Part of every operator: the first one on its stage behind those of its operands, or where it reads Parameters
    only, such as a cast, the first that reads it. place None: part k lies on stage k % count. Where data comes to a
    stage more than once, an operator without a stage is moved to that of its operands which is reached last, or of
    Parameters to that of its first reader: `stages` is changed; those in `alone` stay.
    """
    parts: dict[str, int] = {}
    of_parameters = _made_of(graph, "parameter")
    for node in graph.of_phase("forward"):
        if node.name in of_parameters and chosen[node.name] < 0:
            continue
        makers = [m for m in map(graph.maker, node.ins) if m in parts and not _is_free(graph.node(m))]
        last = max(makers, key=parts.__getitem__, default=None)
        if last is not None and chosen[node.name] < 0 and node.name not in alone:
            stages[node.name] = stages[last]
        stage, before = stages[node.name], 0 if last is None else parts[last]
        part = before + (stage - before) % count if place is None else place.after(before, stage)
        if part is None or (place is None and part >= count and not interleaved):
            what = f"stage {stage}, and it reads {last!r} of stage {stages.get(last or '', 0)}"
            allowed = "Data flows from a stage to the same or a later one"
            hint = "Give it a later stage, or set pipeline_interleave=True: it begins the next chunk"
            if place is not None:
                allowed = f"In this schedule data flows through the stages {_shown(place)}"
                hint = "Set pipeline_stage of its layers in this order"
            raise StrategyError(what, where=node.where, allowed=allowed, hint=hint)
        parts[node.name] = part
    readers = _readers(graph)

    def stage_of(part: int) -> int:
        return part % count if place is None else place.ways[0][part]

    for node in reversed(graph.of_phase("forward")):
        if node.name in of_parameters:
            reading = {parts[reader.name] for reader in readers.get(node.name, ())}
            if node.name not in parts:
                parts[node.name] = min(reading, default=0)
                stages[node.name] = stage_of(parts[node.name])
            on_stage = [part for part in reading if stage_of(part) == stages[node.name]]
            parts[node.name] = min(on_stage, default=parts[node.name])
    return parts if place is None else _shared_out(graph, parts, place.ways[0])


def _shared_out(graph: Graph, parts: dict[str, int], way: tuple[int, ...]) -> dict[str, int]:
    """Operators of a part behind which others lie on the same stage, shared out among these: about as many operators to
    each, and whole layers where these are about as long.
    """
    for first in (k for k in range(len(way)) if not k or way[k] != way[k - 1]):
        row = next((k for k in range(first, len(way)) if way[k] != way[first]), len(way)) - first
        mine = [n.name for n in graph.of_phase("forward") if parts[n.name] == first and not _is_free(n)]
        begin = 0
        for left in range(row - 1, 0, -1):  # parts that are still to come
            share = (len(mine) - begin) / (left + 1)
            begin = _cut(mine, begin + share, range(begin + 1, len(mine) - left + 1), share / 4)
            parts |= dict.fromkeys(mine[begin:], first + row - left)
    return parts


def _needs_no_micro_batch(graph: Graph) -> set[str]:
    """Operators behind the micro-batches that read nothing of them, such as the cast of a loss scale. They run with the
    first: backward of a micro-batch reads them, and begins before the last one's forward.
    """
    late, names = set(), set()
    for node in graph.of_phase("forward"):
        if node.once == "last" and late.isdisjoint(node.ins):
            names.add(node.name)
        elif node.once != "first":
            late.update(node.outs)
    return names


def _cut(names: list[str], target: float, allowed: range, tolerance: float) -> int:
    """Where a list of operators is cut: near `wanted`, between two layers if one of their borders is near enough."""
    at = len(names)
    for depth in range(1, 8):
        layers = [name.split(".")[:depth] for name in names]
        positions = [at for at in allowed if layers[at] != layers[at - 1]] if depth < 7 else list(allowed)
        at = min(positions, key=lambda at: abs(at - target), default=at)
        if abs(at - target) <= tolerance:
            break
    return at


def _border_fault(graph: Graph, stages: dict[str, int]) -> StrategyError | None:
    """The error where a Reshape makes what another stage reads, a Cast of it included (as in MindSpore), or None."""
    of_scale = _made_of(graph, "parameter", "constant", "scalar")  # a loss scale is not of the network
    for node in graph.of_phase("forward"):
        for name in node.ins:
            maker = graph.node(graph.maker(name))
            while maker is not None and maker.op_class == "Cast":
                maker = graph.node(graph.maker(maker.ins[0]))
            if maker is None or (maker.name in of_scale and maker.shapes[0] in ((), (1,))):
                continue
            if maker.op_class == "Reshape" and stages[maker.name] != stages[node.name]:
                here, there = stages[maker.name], stages[node.name]
                what = f"it is on stage {here}, and {node.name!r} on stage {there} reads its result"
                allowed = "No Reshape makes what crosses a border of stages"
                hint = "Reshape on the stage that reads it"
                return StrategyError(what, where=maker.where, allowed=allowed, hint=hint)
    return None


def _is_free(node: Node | None) -> bool:
    """Whether every stage that reads what an operator makes can make it for itself: rows of a micro-batch."""
    return node is not None and node.op == "micro_batch_rows"


# ---- borders ----


def cross_borders(draft: Draft) -> Draft:
    """Bring values of the forward program to the parts that read them."""
    build = _Borders(draft)
    program = build.run(_cheaper_sides(draft, build.parts_of(draft.program("forward"))))
    done = draft.with_program("forward", tuple(program), build.values)
    return done.noted("borders", f"{build.number} values cross borders")


class _Borders:
    """The forward program while it grows; `homes`: the parts that hold a value -> its name there."""

    def __init__(self, draft: Draft) -> None:
        self.draft, self.graph = draft, draft.graph
        self.values = draft.value_table()
        self.free = {i.name for i in draft.graph.inputs if i.role != "parameter"}
        self.homes: dict[str, dict[int, str]] = {}
        self.number = 0

    def parts_of(self, program: Iterable[Instr]) -> list[Instr]:
        """The instructions with their parts: that of the operator they belong to, or of their first reader. Other
        operators may read what a redistribution for one of them makes, those of an earlier part too.
        """
        program = list(program)
        parts = {n.name: n.stage for n in self.graph.of_phase("forward")}
        readers: dict[str, int] = {}
        part_of: dict[str, int] = {}
        for at in reversed(range(len(program))):
            instr = program[at]
            part = min(parts.get(instr.name, 10**9), *(readers.get(name, 10**9) for name in instr.outs))
            if part < 10**9:
                program[at] = replace(instr, stage=part)
                for name in instr.reads:
                    readers[name] = min(part, readers.get(name, part))
        for at, instr in enumerate(program):
            if instr.kind == "print":
                program[at] = replace(instr, stage=part_of.get(instr.ins[0], readers.get(instr.ins[0], 0)))
            part_of.update(dict.fromkeys(instr.outs, program[at].stage))
        return program

    def run(self, program: list[Instr]) -> list[Instr]:
        first: dict[str, int] = {}
        for instr in program:
            for name in instr.reads:
                first[name] = min(instr.stage, first.get(name, instr.stage))
        for source in self.graph.inputs:
            if source.role == "parameter" and source.name in first:
                self.homes[source.name] = {first[source.name]: source.name}
        brought: dict[str, Instr] = {}
        done: list[Instr] = []
        for instr in program:
            ins = tuple(self.at(name, instr.stage, brought, done) for name in instr.ins)
            when = tuple((self.at(name, instr.stage, brought, done), side) for name, side in instr.when)
            done.append(replace(instr, ins=ins, when=when) if (ins, when) != (instr.ins, instr.when) else instr)
            for name in instr.kept:
                brought[name] = done[-1]
                self.homes[name] = {instr.stage: name}
        return done

    def at(self, name: str, part: int, brought: dict[str, Instr], done: list[Instr]) -> str:
        """What `name` is called in a part, brought there if it is made in another one."""
        homes = self.homes.get(name)
        if name in self.free or homes is None or part in homes:
            return name if homes is None or name in self.free else homes[part]
        label = homes[part] = fresh_name(f"{name}.on{part}", self.values)
        self.values[label] = self.values[name]
        maker = brought.get(name)
        if maker is not None and self.free.issuperset(maker.ins) and maker.kind == "compute":
            done.append(replace(maker, outs=(label,), stage=part))
            return label
        if maker is not None and maker.when:
            what = f"{name!r}, made on one side of an if on a tensor, crosses from part {maker.stage} to {part}"
            hint = "Put the if into the Cell of one stage, or take one on a number that is known when it is compiled"
            where = f"{maker.op_class} {maker.name!r} ({maker.origin.place})"
            raise NotBuiltYet(what, where=where, allowed="Both sides of an if within one stage", hint=hint)
        source = max(p for p in homes if p < part) if any(p < part for p in homes if p != part) else min(homes)
        once = "first" if maker is None or maker.once == "first" else maker.once
        done.append(self.border(homes[source], label, source, part, once if self.graph.micro_batches > 1 else ""))
        return label

    def border(self, name: str, label: str, source: int, part: int, once: str) -> Instr:
        count, node = self.draft.config.pipeline_stages, self.graph.node(name)
        self.number += 1
        origin = (node.origin if node is not None else self.graph.nodes[0].origin).made("borders")
        reason = f"{name!r} is made on stage {source % count}, and read on stage {part % count}"
        facts = {"once": once, "reason": reason, "origin": origin}
        return border_of(self.draft, self.values[name], (name, label), (source, part), 2 * self.number, **facts)


def border_of(
    draft: Draft, value: Value, names: tuple[str, str], parts: tuple[int, int], tag: int, **facts: Any
) -> Instr:
    """The recv that brings a value to another part.  names: there and here;  parts: its own, the one that reads it."""
    (name, label), (source, part), config = names, parts, draft.config
    # how far it goes is known where stages get their programs
    attrs = {"source": source, "shift": 0, "sr_tag": tag, "fusion": 0}
    attrs |= {"shape": value.slice_shape, "dtype": value.dtype}
    place: dict[str, Any] = {"device_matrix": (config.device_num,), "stage": part, "attrs": attr_pairs(attrs)}
    return Instr("recv", (label,), (name,), name, **place, **facts)


def _cheaper_sides(draft: Draft, program: list[Instr]) -> list[Instr]:
    """The program with redistributions at borders on the side from which less is sent: where the slice is smallest."""
    values, place = draft.value_table(), {name: at for at, instr in enumerate(program) for name in instr.outs}
    for at, last in enumerate(program):
        node = draft.graph.node(last.name)
        if node is None or last.kind == "compute":
            continue
        chain = [at]
        while (before := place.get(program[chain[0]].ins[0])) is not None and _moves_for(program[before], last):
            chain.insert(0, before)
        source = program[chain[0]].ins[0]
        if source not in place or program[place[source]].stage >= last.stage:
            continue
        sizes = [values[source].slice_bytes, *(values[program[n].out].slice_bytes for n in chain)]
        for n in chain[: sizes.index(min(sizes))]:
            program[n] = replace(program[n], stage=program[place[source]].stage)
    return program


def _moves_for(instr: Instr, other: Instr) -> bool:
    """Whether an instruction is a step of the redistribution for the same operator."""
    return instr.kind != "compute" and instr.name == other.name
