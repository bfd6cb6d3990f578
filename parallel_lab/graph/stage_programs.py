"""What every stage of a pipeline runs: its instructions of the whole program, and the order of its work.

`stage_programs` gives every stage its own instructions, with a send for each recv. Both travel while the ranks
compute:

    %h         = ...                          stage 0: a send is started behind what makes its value, and waited for at
    %h.to1     = start(%h)                    the end of the action
    %h.to1.sent = wait(%h.to1)
    %h.on1.coming = start()                   stage 1: a recv is started at the beginning of the action, and waited for
    %h.on1     = wait(%h.on1.coming)          where it is first read

What has to wait until all micro-batches are done on several stages stands in a program of its own, "reduce", which runs
before the update. Where a schedule lets two copies of the network run, each adds up what its own micro-batches give;
"reduce" adds the sums of the copies, on both, and does what follows from them. Where backward is divided, it has the
sums that another part gives gradients to, as its weight gradients may come late.

`divided` makes two programs of backward for schedules that ask for it (zero bubble, Qi et al. 2023): "backward", B, the
gradients of activations, which the stage before waits for; "weights", W, those of parameters and their sums, which
nobody waits for until the update. `orders_of` is the order in which a stage runs its programs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..base.errors import NotBuiltYet, StrategyError
from .actions import OF_STEP, PROGRAMS, Action
from .draft import Draft, at_compile, fresh_name
from .instr import Instr, Value, attr_pairs
from .passes.stages import border_of
from .placement import Placement, placement_of

EVERYWHERE = -1  # the part of what every stage makes for itself
Programs = dict[str, tuple[Instr, ...]]


def stage_programs(draft: Draft) -> tuple[list[Programs], dict[str, Value]]:
    """Per stage its instructions of every program, with a send for every recv of another stage; and all values."""
    if draft.schedule is None:
        return [dict(draft.programs)], draft.value_table()
    cut = _Cut(draft)
    return cut.run(), cut.values


class _Cut:
    """The programs of all stages while they are divided: `found[stage][phase]`.

    place    the stages of the parts, for each copy of the network
    home     value -> the part that makes it, EVERYWHERE: every stage that reads it
    maker    value -> (program, instruction);  late: values that are made in "reduce"
    """

    def __init__(self, draft: Draft) -> None:
        self.draft, self.count = draft, draft.config.pipeline_stages
        parts = 1 + max(i.stage for i in draft.program("forward"))
        self.place: Placement = placement_of(draft.schedule, parts)
        self.values = draft.value_table()
        self.found: list[dict[str, list[Instr]]] = [{} for _ in range(self.count)]
        # of every stage and program: recvs to start at the beginning, sends to wait for at the end
        self.first: list[dict[str, list[Instr]]] = [{} for _ in range(self.count)]
        self.last: list[dict[str, list[Instr]]] = [{} for _ in range(self.count)]
        self.there: list[set[str]] = [set() for _ in range(self.count)]
        self.maker: dict[str, tuple[str, Instr]] = {}
        # copies of the network send under tags of their own
        self.tags = 2 + max((i.attr("sr_tag", 0) for _, i in draft.instructions()), default=0)
        self.tag = self.tags * len(self.place.ways)
        self.parameters = {i.name for i in draft.graph.inputs if i.role == "parameter"}
        self.home: dict[str, int] = {}
        for instr in draft.program("forward"):
            part = instr.attr("source", instr.stage)
            self.home.update((name, part) for name in instr.ins if name in self.parameters)
        # what nothing reads, and is trained, is kept on the first one
        self.home |= dict.fromkeys(self.parameters - self.home.keys(), 0)
        self.home |= {state: self.home.get(parameter, EVERYWHERE) for state, parameter, _ in draft.states}
        self.late = self.made_late()

    def made_late(self) -> set[str]:
        """Values that wait for all micro-batches on several stages."""
        late: set[str] = set()
        copies, divides = len(self.place.ways) > 1, splits_backward(self.draft.schedule)
        sums = {i.out for _, i in self.draft.instructions() if i.kind == "accumulate"} if copies else set()
        for phase, program in self.draft.programs:
            for instr in program if phase != "update" else ():
                comes = divides and phase == "backward" and instr.once == "last" and instr.attr("shift") is not None
                if comes or not sums.isdisjoint(instr.ins) or not late.isdisjoint(instr.ins):
                    late.update(instr.kept)
                    if instr.once != "last":
                        what = f"{instr.name!r} of each micro-batch reads what all of them give"
                        allowed = "A sum over micro-batches, and what is made of it in the end"
                        hint = "Take a schedule with one copy of the network, and no divided backward"
                        raise at_compile(StrategyError, what, allowed, hint)
        going_on = [pair for pair in self.draft.forward_assignments if pair[1] not in late]
        if copies and going_on:
            name, source = going_on[0]
            maker = next(i for i in self.draft.program("forward") if source in i.kept)
            what = f"{name!r} goes on from micro-batch to micro-batch, and copies on two stages run them side by side"
            allowed = "Running statistics in a schedule with one copy of the network"
            hint = "Take 1f1b or a zero-bubble schedule, or nn.LayerNorm"
            raise StrategyError(what, where=self.draft.graph.operator(maker.name).where, allowed=allowed, hint=hint)
        return late

    def run(self) -> list[Programs]:
        self.place_all()
        for phase, program in self.draft.programs:
            for instr in program:
                phase_now = "reduce" if not self.late.isdisjoint(instr.kept) else phase
                for way in range(len(self.place.ways) if instr.stage != EVERYWHERE else 1):
                    if instr.attr("shift") is not None:
                        self.cross(phase_now, instr, way)
                        continue
                    for stage in self.stages_of(instr.stage, way):
                        for name in instr.reads:
                            self.bring(phase_now, name, stage, instr, way)
                        self.add(stage, phase_now, self.own_sum(instr, way))
                if instr.kind == "accumulate":
                    self.add_copies(phase, instr)
        last = self.draft.programs[-1][0]
        last = "reduce" if self.late and last != "update" else last
        for way in range(len(self.place.ways)):
            for target, source in self.draft.assignments:
                home = self.home.get(target, EVERYWHERE)
                for stage in self.stages_of(home, way):
                    self.bring("update", source, stage, None, way)
        for name in self.draft.outputs:
            broadcast = self.values[name].shape in ((), (1,)) or self.draft.config.pipeline_result_broadcast
            for stage in range(self.count) if broadcast else ():
                self.bring(last, name, stage, None, 0)  # every rank tells its loss
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
                    homed = [n for n in instr.ins if self.home.get(n, EVERYWHERE) != EVERYWHERE]
                    most = max(homed, key=lambda n: (self.values[n].slice_bytes, self.home[n]), default=None)
                    instr = replace(instr, stage=EVERYWHERE if most is None else self.home[most])
                placed.append(instr)
                copied = instr.kind == "accumulate" and len(self.place.ways) > 1
                made_in = "reduce" if copied or not self.late.isdisjoint(instr.kept) else phase
                for name in instr.kept:
                    self.home[name], self.maker[name] = instr.stage, (made_in, instr)
            programs.append((phase, tuple(placed)))
        self.draft = replace(self.draft, programs=tuple(programs))

    def stages_of(self, part: int, way: int) -> Iterable[int]:
        return range(self.count) if part == EVERYWHERE else (self.place.ways[way][part],)

    def add(self, stage: int, phase: str, instr: Instr) -> None:
        self.found[stage].setdefault(phase, []).append(instr)
        self.there[stage].update(instr.kept)

    # ---- copies of the network ----

    def own_sum(self, instr: Instr, way: int) -> Instr:
        """What a copy adds up has a name of its own: the sum over all micro-batches is made later."""
        if instr.kind != "accumulate" or len(self.place.ways) == 1:
            return instr
        name = f"{instr.out}.copy{way}"
        self.values[name] = self.values[instr.out]
        return replace(instr, outs=(name,))

    def add_copies(self, phase: str, instr: Instr) -> None:
        """The sum of what the copies have added up, in their order, on the stage of each."""
        count, stages = len(self.place.ways), [way[instr.stage] for way in self.place.ways]
        sums = [f"{instr.out}.copy{way}" for way in range(count)]
        for way, stage in enumerate(stages if count > 1 else ()):
            total = sums[0]
            for other in range(count):
                if other != way:
                    reason = f"{sums[other]!r} is the sum of the copy on stage {stages[other]}"
                    facts = {"once": "last", "reason": reason, "origin": instr.origin.made("stages")}
                    self.tag += 2
                    names, parts = (sums[other], sums[other]), (instr.stage, instr.stage)
                    border = border_of(self.draft, self.values[instr.out], names, parts, self.tag, **facts)
                    self.pair(phase, "reduce", border, (stages[other], stage))
                if other:
                    out = instr.out if other == count - 1 else fresh_name(f"{instr.out}.copies", self.values)
                    self.values[out] = self.values[instr.out]
                    facts = {"kind": "compute", "op": "add", "op_class": "Add", "once": "last"}
                    self.add(stage, "reduce", replace(instr, outs=(out,), ins=(total, sums[other]), **facts))
                    total = out

    # ---- between parts ----

    def cross(self, phase: str, border: Instr, way: int) -> None:
        """Both sides of a border that an earlier pass has drawn; within a stage only the name changes."""
        source, part = (self.place.ways[way][k] for k in (border.attr("source"), border.stage))
        if source == part:
            attrs = attr_pairs({"shape": self.values[border.out].slice_shape})
            named = replace(border, kind="reshape", attrs=attrs, reason="", device_matrix=())
            self.add(part, phase, named)
            return
        tag = border.attr("sr_tag") + way * self.tags
        made_in = self.maker.get(border.ins[0], (phase, None))[0] if phase == "reduce" else phase
        border = replace(border, attrs=attr_pairs({**dict(border.attrs), "sr_tag": tag}))
        self.pair(made_in, phase, border, (source, part))

    def bring(self, phase: str, name: str, stage: int, reader: Instr | None, way: int) -> None:
        """Have the value `name` on a stage, sent by the one that makes it, if that is another."""
        home = self.home.get(name, EVERYWHERE)
        if home == EVERYWHERE or name in self.there[stage]:
            return
        source = self.place.ways[way][home]
        if source == stage or any(ways[home] == stage for ways in self.place.ways):
            return
        made_in, maker = self.maker.get(name, ("forward", None))
        once = "first" if maker is None else "last" if maker.kind == "accumulate" else maker.once
        once = "last" if phase in ("reduce", "update") else once
        self.tag += 2
        who = "every stage" if reader is None else f"{reader.name or reader.op!r}"
        reason = f"{name!r} is made on stage {source}, and {who} on stage {stage} needs it"
        part = home if reader is None or reader.stage == EVERYWHERE else reader.stage
        if reader is None:  # the last thing that the stage does
            part = max(k for ways in self.place.ways for k, lies in enumerate(ways) if lies == stage)
        origin = (reader or maker or next(self.draft.instructions())[1]).origin.made("stages")
        facts = {"once": once, "reason": reason, "origin": origin}
        border = border_of(self.draft, self.values[name], (name, name), (home, part), self.tag, **facts)
        self.pair(made_in, phase, border, (source, stage))

    def pair(self, made_in: str, phase: str, border: Instr, stages: tuple[int, int]) -> None:
        """A send that is started behind what makes the value, and a recv that is waited for where it is read."""
        (source, stage), number = stages, "0:float32"
        shift = (stage - source) * self.draft.config.device_num
        border = replace(border, attrs=attr_pairs({**dict(border.attrs), "shift": shift}))
        self.values.setdefault(number, Value((), "float32", None))
        names = []
        for name in (f"{border.ins[0]}.to{stage}", f"{border.ins[0]}.to{stage}.sent", f"{border.out}.coming"):
            names.append(fresh_name(name, self.values))
            self.values[names[-1]] = Value((0,), self.values[border.out].dtype, None)  # nothing comes back
        self.values[names[-1]] = self.values[border.out]
        going, sent, coming = ((name,) for name in names)
        of_step = made_in in ("reduce", "update")
        at_source = {"stage": border.attr("source"), "once": "last" if of_step else border.once}
        send = {"attrs": attr_pairs({**dict(border.attrs), "message": "send"}), **at_source}
        program = self.found[source].setdefault(made_in, [])
        at = next((n + 1 for n, i in enumerate(program) if border.ins[0] in i.kept), 0)
        program.insert(at, replace(border, kind="start", outs=going, **send))
        # where the other side takes it in the end, this one waits in the end
        ending = self.last[source].setdefault("reduce" if phase == "reduce" else made_in, [])
        ending.append(replace(border, kind="wait", ins=going, outs=sent, reason="", **send))
        self.found[source].setdefault("reduce" if phase == "reduce" else made_in, [])
        attrs = attr_pairs({**dict(border.attrs), "message": "recv"})
        starting = self.first[stage].setdefault(phase, [])
        starting.append(replace(border, kind="start", ins=(number,), outs=coming, attrs=attrs))
        self.add(stage, phase, replace(border, kind="wait", ins=coming, attrs=attrs, reason=""))


# ---- backward in two programs ----


def divided(programs: Programs, draft: Draft) -> Programs:
    """A stage's programs with those gradients of parameters apart that no gradient of an activation is made from."""
    program = programs.get("backward", ())
    loop = next((i for i in program if i.kind == "loop"), None)
    if loop is not None:
        what, allowed = f"{loop.name!r} is a loop on a tensor", "Loops in a schedule with one backward action"
        raise at_compile(NotBuiltYet, f"{what}, and the schedule divides backward", allowed, "Take 1f1b or gpipe")
    results = {name for i in draft.program("forward") if not i.once for name in i.outs}
    gradients = {gradient for value, gradient in draft.value_gradients if value in results}
    first: set[int] = set()
    for at in reversed(range(len(program))):
        instr = program[at]
        if (instr.attr("message") == "send" and not instr.once) or gradients.intersection(instr.outs):
            first.add(at)
            gradients.update(instr.ins)
    # what runs once with the last micro-batch waits for all gradients
    first -= {at for at in first if program[at].once == "last"}
    parts = {"backward": [], "weights": []}  # type: dict[str, list[Instr]]
    for at, instr in enumerate(program):
        parts["backward" if at in first else "weights"].append(instr)
    return programs | {name: tuple(part) for name, part in parts.items()}


# ---- the order of work ----


def splits_backward(orders: Iterable[Iterable[Action]]) -> bool:
    """Whether a schedule divides backward: it has actions W."""
    return any(action.kind == "W" for mine in orders for action in mine)


def orders_of(draft: Draft, programs: list[Programs]) -> list[tuple[Action, ...]]:
    """What every stage does in a step, in order: as the schedule says; without one part by part."""
    back, forward = draft.program("backward"), draft.program("forward")
    kinds = [kind for kind, program in (("F", forward), ("B", back), ("W", back)) if program]
    if draft.schedule is None:
        count = draft.graph.micro_batches
        order = [Action(0, kind, n, PROGRAMS[kind]) for kind in kinds if kind != "W" for n in range(count)]
        sums = {name for i in forward if i.of_step and i.once != "first" for name in i.outs}
        if not any(i.once == "first" and sums.intersection(i.ins) for i in back):  # no gradient depends on the result
            order.sort(key=lambda a: a.micro_batch)
        orders = [order]
    else:
        orders = [[a for a in mine if a.kind in kinds] for mine in draft.schedule]
    ends = [Action(0, p, 0, p) for p in OF_STEP if any(mine.get(p) for mine in programs)]
    return [tuple(order + ends) for order in orders]
