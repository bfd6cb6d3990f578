"""What every stage of a pipeline runs: its instructions of the whole program, and the order of its work.

`stage_programs` gives every stage its own instructions, with a send for each recv. Both travel while the ranks
compute:

    %h         = ...                          stage 0: a send is started behind what makes its value, and waited for at
    %h.to1     = start(%h)                    the end of the action
    %h.to1.sent = wait(%h.to1)
    %h.on1.coming = start()                   stage 1: a recv is started at the beginning of the action, and waited for
    %h.on1     = wait(%h.on1.coming)          where it is first read

`divided` makes two programs of backward for schedules that ask for it (zero bubble, Qi et al. 2023): "backward", B, the
gradients of activations, which the stage before waits for; "weights", W, those of parameters and their sums, which
nobody waits for until the update. `schedule_of` is the order in which a stage runs its programs.
"""

from __future__ import annotations

from dataclasses import replace

from ..base.errors import NotBuiltYet
from ..base.hooks import schedule_maker
from .actions import PROGRAMS, Action
from .ir import Draft, Instr, Value, at_compile, attr_pairs, fresh_name
from .passes.stages import border_of

EVERYWHERE = -1  # the part of what every stage makes for itself
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
        once = "first" if maker is None else "last" if maker.kind == "accumulate" else maker.once
        once = "last" if phase == "update" else once
        self.tag += 2
        who = "every stage" if reader is None else f"{reader.name or reader.op!r}"
        reason = f"{name!r} is made on stage {home % self.count}, and {who} on stage {stage} needs it"
        part = stage if reader is None or reader.stage == EVERYWHERE else reader.stage
        origin = (reader or maker or next(self.draft.instructions())[1]).origin.made("stages")
        facts = {"once": once, "reason": reason, "origin": origin}
        border = border_of(self.draft, self.values[name], (name, name), (home, part), self.tag, **facts)
        self.pair(made_in, phase, border)

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


# ---- backward in two programs ----


def divided(programs: Programs, draft: Draft) -> Programs:
    """A stage's programs with those gradients of parameters apart that no gradient of an activation is made from."""
    program = programs.get("backward", ())
    made = {name for i in draft.program("forward") if not i.once for name in i.outs}
    wanted = {gradient for value, gradient in draft.value_gradients if value in made}
    first: set[int] = set()
    for at in reversed(range(len(program))):
        instr = program[at]
        if (instr.attr("message") == "send" and not instr.once) or wanted.intersection(instr.outs):
            first.add(at)
            wanted.update(instr.ins)
    # what runs once with the last micro-batch waits for all gradients
    first -= {at for at in first if program[at].once == "last"}
    parts = {"backward": [], "weights": []}  # type: dict[str, list[Instr]]
    for at, instr in enumerate(program):
        parts["backward" if at in first else "weights"].append(instr)
    return programs | {name: tuple(part) for name, part in parts.items()}


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
