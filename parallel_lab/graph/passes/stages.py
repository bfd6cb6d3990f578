"""Passes `stages` and `borders`: a network in pipeline stages.

    stage 0   x -> fc1 -> h      send h        each rank to its counterpart in the next stage, per micro-batch
    stage 1   recv h -> fc2 -> loss

`stages` gives every operator its part of the network: the one its Cell was given, else that of its operands (of what
has none: that of its readers). Data flows to later stages only; with pipeline_interleave an edge to an earlier one
begins the next chunk: layers on stages 0, 1, 0, 1 make the parts 0, 1, 2, 3.

`borders` runs on the program of slices. A value that another part reads is brought there once, by a recv whose gradient
goes back the same way; what a redistribution makes smaller is sent after it. A part that reads a value hands it on to
later ones, so gradients are added up in the order of one device. A parameter lies on the first stage that reads it, and
goes to the others with the first micro-batch. Inputs and constants are wherever they are read.

`stage_programs`, at last, gives every stage its own instructions, with a send for each recv. Both travel while the
ranks compute:

    %h         = ...                          stage 0: a send is started behind what makes its value, and waited for at
    %h.to1     = start(%h)                    the end of the action
    %h.to1.sent = wait(%h.to1)
    %h.on1.coming = start()                   stage 1: a recv is started at the beginning of the action, and waited for
    %h.on1     = wait(%h.on1.coming)          where it is first read

Rules: MindSpore, Cell.pipeline_stage, nn.PipelineCell. The order in which stages work is in `graph/actions.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...base.errors import ContextConflictError, NotBuiltYet, StrategyError
from ...base.hooks import schedule_maker
from ..actions import PROGRAMS, Action
from ..ir import Draft, Graph, Instr, Node, Value, at_compile, attr_pairs, fresh_name

EVERYWHERE = -1  # the part of what every stage makes for itself


# ---- parts of the network ----


def assign_stages(draft: Draft) -> Draft:
    """Give every operator its part. Raises StrategyError for stages that are not used, or flow backwards."""
    graph, config = draft.graph, draft.config
    count = config.pipeline_stages
    if config.local:
        what, allowed = f"pipeline_stages={count} in {config.parallel_mode} mode", "semi_auto_parallel or auto_parallel"
        raise at_compile(ContextConflictError, what, allowed, "Within a stage the batch is split among its ranks")
    if graph.micro_batches < count and (draft.training.differentiated or graph.micro_batches > 1):
        fed = "is fed no micro-batches" if graph.micro_batches == 1 else f"is fed {graph.micro_batches} micro-batches"
        what, allowed = f"the network {fed}, with pipeline_stages={count}", "At least as many as there are stages"
        raise at_compile(StrategyError, what, allowed, f"Put it into nn.PipelineCell(net, {2 * count})")
    said = {n.name: n.stage for n in graph.nodes if n.phase == "forward"}
    stages = _coloured(graph, said)
    used = sorted(set(stages.values()))
    if used != list(range(count)):
        what = f"the network's operators are on stages {used}, with pipeline_stages={count}"
        allowed = f"Every stage from 0 to {count - 1} has an operator"
        raise at_compile(StrategyError, what, allowed, "Set cell.pipeline_stage, or stage_config of nn.PipelineCell")
    parts = _with_chunks(graph, stages, count, interleaved=config.pipeline_interleave)
    nodes = tuple(replace(n, stage=parts[n.name]) if n.name in parts else n for n in graph.nodes)
    most = max(parts.values())
    if most % count != count - 1 or set(parts.values()) != set(range(most + 1)):
        missing = next(k for k in range(most + count) if k not in parts.values())
        what = f"chunk {missing // count} has no operator on stage {missing % count}"
        raise at_compile(StrategyError, what, "Each chunk runs through all stages, from 0 to the last")
    placed = f"{len(nodes)} operators in {most + 1} parts on {count} stages"
    return replace(draft, graph=replace(graph, nodes=nodes)).noted("stages", placed)


def _coloured(graph: Graph, said: dict[str, int]) -> dict[str, int]:
    """Stage of every forward operator: as said, or the last one of its operands', or the first one of its readers'."""
    found: dict[str, int] = {}
    forward = graph.of_phase("forward")
    readers: dict[str, list[Node]] = {}
    for node in forward:
        for name in node.ins:
            readers.setdefault(graph.maker(name), []).append(node)
        before = [found[maker] for maker in map(graph.maker, node.ins) if maker in found]
        if said[node.name] >= 0 or before:
            found[node.name] = said[node.name] if said[node.name] >= 0 else max(before)
    for node in reversed(forward):
        if node.name not in found:
            found[node.name] = min((found[r.name] for r in readers.get(node.name, ())), default=0)
    return found


def _with_chunks(graph: Graph, stages: dict[str, int], count: int, *, interleaved: bool) -> dict[str, int]:
    """Part of every operator: its stage, and with chunks stage + chunk * count."""
    parts: dict[str, int] = {}
    for node in graph.of_phase("forward"):
        stage, chunk = stages[node.name], 0
        for maker in map(graph.maker, node.ins):
            if maker not in parts or _is_free(graph.node(maker)):
                continue
            before, above = parts[maker] // count, parts[maker] % count > stage
            if above and not interleaved:
                what = f"stage {stage}, and it reads {maker!r} of stage {parts[maker] % count}"
                allowed = "Data flows from a stage to the same or a later one"
                hint = "Give it a later stage, or set pipeline_interleave=True: it begins the next chunk"
                raise StrategyError(what, where=node.where, allowed=allowed, hint=hint)
            chunk = max(chunk, before + above)
        parts[node.name] = stage + chunk * count
    return parts


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
        """The instructions with their parts: that of the operator they belong to, or of who reads them first."""
        program = list(program)
        parts = {n.name: n.stage for n in self.graph.of_phase("forward")}
        readers: dict[str, int] = {}
        made: dict[str, int] = {}
        for at in reversed(range(len(program))):
            instr = program[at]
            part = parts.get(instr.name, min(readers.get(name, 10**9) for name in instr.outs))
            if part < 10**9:
                program[at] = replace(instr, stage=part)
                for name in instr.ins:
                    readers[name] = min(part, readers.get(name, part))
        for at, instr in enumerate(program):
            if instr.kind == "print":
                program[at] = replace(instr, stage=made.get(instr.ins[0], readers.get(instr.ins[0], 0)))
            made.update(dict.fromkeys(instr.outs, program[at].stage))
        return program

    def run(self, program: list[Instr]) -> list[Instr]:
        first: dict[str, int] = {}
        for instr in program:
            for name in instr.ins:
                first[name] = min(instr.stage, first.get(name, instr.stage))
        for given in self.graph.inputs:
            if given.role == "parameter" and given.name in first:
                self.homes[given.name] = {first[given.name]: given.name}
        made: dict[str, Instr] = {}
        done: list[Instr] = []
        for instr in program:
            ins = tuple(self.at(name, instr.stage, made, done) for name in instr.ins)
            done.append(replace(instr, ins=ins) if ins != instr.ins else instr)
            for name in instr.kept:
                made[name] = done[-1]
                self.homes[name] = {instr.stage: name}
        return done

    def at(self, name: str, part: int, made: dict[str, Instr], done: list[Instr]) -> str:
        """What `name` is called in a part, brought there if it is made in another one."""
        homes = self.homes.get(name)
        if name in self.free or homes is None or part in homes:
            return name if homes is None or name in self.free else homes[part]
        label = homes[part] = fresh_name(f"{name}.on{part}", self.values)
        self.values[label] = self.values[name]
        maker = made.get(name)
        if maker is not None and self.free.issuperset(maker.ins) and maker.kind == "compute":
            done.append(replace(maker, outs=(label,), stage=part))
            return label
        source = max(p for p in homes if p < part) if any(p < part for p in homes if p != part) else min(homes)
        once = "first" if maker is None or maker.once == "first" else maker.once
        done.append(self.border(homes[source], label, source, part, once if self.graph.micro_batches > 1 else ""))
        return label

    def border(self, name: str, label: str, source: int, part: int, once: str) -> Instr:
        config, made = self.draft.config, self.values[name]
        self.number += 1
        shift = (part % config.pipeline_stages - source % config.pipeline_stages) * config.device_num
        attrs = {"source": source, "shift": shift, "sr_tag": 2 * self.number, "fusion": 0}
        attrs |= {"shape": made.slice_shape, "dtype": made.dtype}
        node = self.graph.node(name)
        origin = (node.origin if node is not None else self.graph.nodes[0].origin).made("borders")
        where = f"stage {part % config.pipeline_stages}"
        reason = f"{name!r} is made on stage {source % config.pipeline_stages}, and read on {where}"
        place = {"axes": (), "device_matrix": (config.device_num,), "once": once, "stage": part}
        return Instr("recv", (label,), (name,), name, attrs=attr_pairs(attrs), reason=reason, origin=origin, **place)


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


# ---- programs of the stages ----

Programs = dict[str, tuple[Instr, ...]]


def stage_programs(draft: Draft) -> tuple[list[Programs], dict[str, Value]]:
    """Per stage its instructions of every program, with a send for every recv of another stage; and all values."""
    if draft.config.pipeline_stages == 1:
        return [dict(draft.programs)], draft.value_table()
    cut = _Cut(draft)
    return cut.run(), cut.values


class _Cut:
    """The programs of all stages while they are divided: `found[stage][phase]`.

    home     value -> the part that makes it, EVERYWHERE: every stage that reads it
    maker    value -> (program, instruction)
    """

    def __init__(self, draft: Draft) -> None:
        self.draft, self.count = draft, draft.config.pipeline_stages
        self.values = draft.value_table()
        self.found: list[dict[str, list[Instr]]] = [{} for _ in range(self.count)]
        # of every stage and program: recvs to start at the beginning, sends to wait for at the end
        self.first: list[dict[str, list[Instr]]] = [{} for _ in range(self.count)]
        self.last: list[dict[str, list[Instr]]] = [{} for _ in range(self.count)]
        self.there: list[set[str]] = [set() for _ in range(self.count)]
        self.maker: dict[str, tuple[str, Instr]] = {}
        self.tag = max((i.attr("sr_tag", 0) for _, i in draft.instructions()), default=0)
        self.parameters = {i.name for i in draft.graph.inputs if i.role == "parameter"}
        self.home: dict[str, int] = {}
        for instr in draft.program("forward"):
            part = instr.attr("source", instr.stage)
            self.home.update((name, part) for name in instr.ins if name in self.parameters)
        # what nothing reads, and is trained, is kept on the first one
        self.home |= dict.fromkeys(self.parameters - self.home.keys(), 0)
        self.home |= {state: self.home.get(parameter, EVERYWHERE) for state, parameter, _ in draft.states}

    def run(self) -> list[Programs]:
        self.place_all()
        for phase, program in self.draft.programs:
            for instr in program:
                if instr.attr("shift") is not None:
                    self.cross(phase, instr)
                    continue
                for stage in self.stages_of(instr.stage):
                    for name in instr.ins:
                        self.bring(phase, name, stage, instr)
                    self.add(stage, phase, instr)
        for target, source in self.draft.assignments:
            for stage in self.stages_of(self.home.get(target, EVERYWHERE)):
                self.bring("update", source, stage, None)
        last = self.draft.programs[-1][0]
        for name in self.draft.outputs:
            told = not self.values[name].shape or self.draft.config.pipeline_result_broadcast
            for stage in range(self.count) if told else ():
                self.bring(last, name, stage, None)  # every rank tells its loss
        sides = zip(self.first, self.found, self.last, strict=True)
        return [
            {phase: (*first.get(phase, ()), *program, *last.get(phase, ())) for phase, program in mine.items()}
            for first, mine, last in sides
        ]

    def place_all(self) -> None:
        """The part of every value; in the update that of its parameter, or of the largest operand."""
        programs = []
        for phase, program in self.draft.programs:
            placed = []
            for instr in program:
                if phase == "update" and instr.name in self.parameters:
                    instr = replace(instr, stage=self.home[instr.name])
                elif phase == "update":
                    known = [n for n in instr.ins if self.home.get(n, EVERYWHERE) != EVERYWHERE]
                    most = max(known, key=lambda n: (self.values[n].slice_bytes, self.home[n]), default=None)
                    instr = replace(instr, stage=EVERYWHERE if most is None else self.home[most])
                placed.append(instr)
                for name in instr.kept:
                    self.home[name], self.maker[name] = instr.stage, (phase, instr)
            programs.append((phase, tuple(placed)))
        self.draft = replace(self.draft, programs=tuple(programs))

    def stages_of(self, part: int) -> range:
        return range(self.count) if part == EVERYWHERE else range(part % self.count, part % self.count + 1)

    def add(self, stage: int, phase: str, instr: Instr) -> None:
        self.found[stage].setdefault(phase, []).append(instr)
        self.there[stage].update(instr.kept)

    def cross(self, phase: str, border: Instr) -> None:
        """Both sides of a border that an earlier pass has drawn; within a stage only the name changes."""
        source, part = border.attr("source"), border.stage
        if source % self.count == part % self.count:
            attrs = attr_pairs({"shape": self.values[border.out].slice_shape})
            named = replace(border, kind="reshape", attrs=attrs, reason="", device_matrix=())
            self.add(part % self.count, phase, named)
            return
        self.pair(phase, phase, border)

    def bring(self, phase: str, name: str, stage: int, reader: Instr | None) -> None:
        """Have the value `name` on a stage, sent by the one that makes it, if that is another."""
        home = self.home.get(name, EVERYWHERE)
        if home == EVERYWHERE or home % self.count == stage or name in self.there[stage]:
            return
        made_in, maker = self.maker.get(name, ("forward", None))
        once = "last" if phase == "update" or (maker is not None and maker.kind == "accumulate") else ""
        if not once:
            once = "first" if maker is None else maker.once
        self.tag += 2
        made, n = self.values[name], self.draft.config.device_num
        attrs = {"source": home, "shift": (stage - home % self.count) * n, "sr_tag": self.tag, "fusion": 0}
        attrs |= {"shape": made.slice_shape, "dtype": made.dtype}
        who = "every stage" if reader is None else f"{reader.name or reader.op!r}"
        reason = f"{name!r} is made on stage {home % self.count}, and {who} on stage {stage} needs it"
        part = stage if reader is None or reader.stage == EVERYWHERE else reader.stage
        origin = (reader or maker or next(self.draft.instructions())[1]).origin.made("stages")
        place = {"device_matrix": (n,), "once": once, "stage": part, "reason": reason, "origin": origin}
        self.pair(made_in, phase, Instr("recv", (name,), (name,), name, attrs=attr_pairs(attrs), **place))

    def pair(self, made_in: str, phase: str, border: Instr) -> None:
        """A send that is started behind what makes the value, and a recv that is waited for where it is read."""
        number, source = "0:float32", border.attr("source")
        self.values.setdefault(number, Value((), "float32", None))
        names = []
        for name in (
            f"{border.ins[0]}.to{border.stage}",
            f"{border.ins[0]}.to{border.stage}.sent",
            f"{border.out}.coming",
        ):
            names.append(fresh_name(name, self.values))
            self.values[names[-1]] = Value((0,), self.values[border.out].dtype, None)  # nothing comes back
        self.values[names[-1]] = self.values[border.out]
        going, sent, coming = ((name,) for name in names)
        at_source = {"stage": source, "once": border.once if made_in != "update" else "last"}
        send = {"attrs": attr_pairs({**dict(border.attrs), "message": "send"}), **at_source}
        program = self.found[source % self.count].setdefault(made_in, [])
        at = next((n + 1 for n, i in enumerate(program) if border.ins[0] in i.kept), 0)
        program.insert(at, replace(border, kind="start", outs=going, **send))
        ending = self.last[source % self.count].setdefault(made_in, [])
        ending.append(replace(border, kind="wait", ins=going, outs=sent, reason="", **send))
        attrs = attr_pairs({**dict(border.attrs), "message": "recv"})
        starting = self.first[border.stage % self.count].setdefault(phase, [])
        starting.append(replace(border, kind="start", ins=(number,), outs=coming, attrs=attrs))
        self.add(border.stage % self.count, phase, replace(border, kind="wait", ins=coming, attrs=attrs, reason=""))


# ---- the order of work ----


def schedule_of(draft: Draft) -> list[tuple[Action, ...]]:
    """What every stage does in a step, in order: as `pipeline_scheduler` says; on one stage part by part."""
    stages, count = draft.config.pipeline_stages, draft.graph.micro_batches
    back, forward = draft.program("backward"), draft.program("forward")
    kinds = [kind for kind, program in (("F", forward), ("B", back), ("W", back)) if program]
    if stages == 1:
        order = [Action(0, kind, n, PROGRAMS[kind]) for kind in kinds if kind != "W" for n in range(count)]
        sums = {name for i in forward if i.of_step and i.once != "first" for name in i.outs}
        if not any(i.once == "first" and sums.intersection(i.ins) for i in back):  # no gradient depends on the result
            order.sort(key=lambda a: a.micro_batch)
        orders = [order]
    else:
        parts = 1 + max(i.stage for i in forward)
        made = schedule_maker()(draft.config.pipeline_scheduler, stages, count, parts // stages)
        for at, mine in enumerate(made):
            other = next((a.stage for a in mine if a.stage % stages != at), None)
            if other is not None:
                what = f"schedule {draft.config.pipeline_scheduler!r} has part {other} on stage {at}"
                allowed = f"Part k on stage k % {stages}, in a plan that is run"
                hint = "Leave pipeline_interleave, or take '1f1b'; make_schedule(...).clock() shows what it would take"
                raise at_compile(NotBuiltYet, what, allowed, hint)
        orders = [[a for a in mine if a.kind in kinds] for mine in made]
    update = [Action(0, "update", 0, "update")] if draft.program("update") else []
    return [tuple(order + update) for order in orders]
