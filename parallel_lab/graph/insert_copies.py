"""Copies between device and host where they are needed: every instruction reads in its own memory.

A value goes once in each direction, however many read it: down to the host as soon as it is made, up to the device just
before its first reader there. With `memory_offload` the values that backward reads again leave the device after their
last use in forward, and come back before their first use in backward; with `Cell.offload` those of a Cell, and they
come back so many operators earlier.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .copies import COPIES, TO_DEVICE, TO_HOST, makes_on_host
from .draft import Draft, fresh_name
from .instr import Instr, Value
from .recomputed import offloads

Programs = dict[str, tuple[Instr, ...]]
Pairs = tuple[tuple[str, str], ...]


@dataclass
class Placed:
    """What `with_copies` gives: programs per stage, values, what lies on the host, and pairs with copies' names."""

    programs: list[Programs]
    values: dict[str, Value]
    host: set[str]
    pairs: dict[str, Pairs] = field(default_factory=dict)
    targets: dict[tuple[str, str], str] = field(default_factory=dict)  # as `copies`, of new values: on all stages alike


def with_copies(draft: Draft, programs: list[Programs], values: dict[str, Value]) -> Placed:
    """The programs of all stages, in which everything reads what lies in its own memory."""
    pairs = {name: getattr(draft, name) for name in ("gradients", "assignments", "forward_assignments")}
    placed = Placed([], values, set(draft.host), pairs)
    offloaded = draft.config.memory_offload or any(offloads(node.recompute) for node in draft.graph.nodes)
    if not draft.host and not offloaded:
        return replace(placed, programs=programs)
    for program in programs:
        placed.programs.append(_Copies(draft, program, placed).run())
    return placed


class _Copies:
    """The programs of one stage while copies come into them.

    maker    value -> (program, position);  before, behind: (program, position) -> copies to stand there
    copies   (value, kind) -> the name of its copy;  original: the name of a copy -> the value
    returned what is away from forward to backward -> the name under which it comes back
    """

    def __init__(self, draft: Draft, programs: Programs, placed: Placed) -> None:
        self.draft, self.placed = draft, placed
        self.values, self.host = placed.values, placed.host
        self.copies: dict[tuple[str, str], str] = {}
        self.programs = {phase: self.landed(program) for phase, program in programs.items()}
        self.inputs = {i.name: i for i in draft.graph.inputs if not i.is_number and i.role != "scalar"}
        self.given = set(self.inputs) | {name for name, _, _ in draft.states}
        self.maker: dict[str, tuple[str, int]] = {}
        for phase, program in programs.items():
            for at, instr in enumerate(program):
                self.maker.update(dict.fromkeys(instr.kept, (phase, at)))
        self.before: dict[tuple[str, int], list[Instr]] = {}
        self.behind: dict[tuple[str, int], list[Instr]] = {}
        self.original: dict[str, str] = {}
        self.returned: dict[str, str] = {}
        self.rewritten = {target for target, _ in placed.pairs["forward_assignments"]}
        self.ahead = {node.name: offloads(node.recompute) for node in draft.graph.of_phase("forward")}

    def run(self) -> Programs:
        if self.draft.config.memory_offload or any(self.ahead.values()):
            self.offload()
        ins: dict[tuple[str, int], tuple[str, ...]] = {}
        for phase, program in self.programs.items():
            for at, instr in enumerate(program):
                there = makes_on_host(instr, self.host)
                ins[phase, at] = tuple(self.read(name, phase, at, there) for name in instr.ins)
        self.end_pairs()
        done: Programs = {}
        for phase, program in self.programs.items():
            instrs: list[Instr] = []
            for at, instr in enumerate(program):
                own = replace(instr, ins=ins[phase, at]) if ins[phase, at] != instr.ins else instr
                instrs += [*self.before.get((phase, at), ()), own, *self.behind.get((phase, at), ())]
            done[phase] = tuple(instrs)
        return done

    def landed(self, program: tuple[Instr, ...]) -> tuple[Instr, ...]:
        """A program in which what another stage's host has made comes to the device first, and then down here too."""
        done: list[Instr] = []
        for instr in program:
            if instr.kind == "wait" and makes_on_host(instr, self.host):
                label = fresh_name(f"{instr.out}.device", self.values)
                self.values[label], self.copies[instr.out, TO_DEVICE] = self.values[instr.out], label
                down = self.copy_instr(TO_HOST, instr.out, label, instr, instr.once)
                done += [replace(instr, outs=(label,)), down]
            else:
                done.append(instr)
        return tuple(done)

    def read(self, name: str, phase: str, at: int, there: bool) -> str:
        """The name under which an instruction, on the host if `there`, reads the value `name`."""
        if phase == "backward" and not there and name in self.returned:
            return self.bring_back(name, at)
        if name not in self.given and name not in self.maker:
            return name  # a number of the program: both have it
        if (name in self.host) == there:
            return name
        return self.copy(name, TO_HOST if there else TO_DEVICE, phase, at)

    def copy(self, name: str, kind: str, phase: str, at: int) -> str:
        """The copy of a value: behind what makes it for the host; else before its first reader (phase, at)."""
        label = self.copies.get((name, kind))
        if label is not None:
            return label
        maker = self.maker.get(name)
        if kind == TO_HOST and maker is not None:
            self.put(self.behind, maker, name, kind, self.instr(maker))
        else:
            self.put(self.before, (phase, at), name, kind, self.instr((phase, at)))
        return self.copies[name, kind]

    def instr(self, place: tuple[str, int]) -> Instr:
        return self.programs[place[0]][place[1]]

    def put(
        self, where: dict[tuple[str, int], list[Instr]], place: tuple[str, int], name: str, kind: str, near: Instr
    ) -> str:
        """Write a copy down at a place; `near`: the instruction for which it is, or after which."""
        known, there = self.placed.targets.get((name, kind)), "host" if kind == TO_HOST else "device"
        label = known or fresh_name(f"{name}.{there}", self.values)
        self.values[label] = self.values[name]
        if kind == TO_HOST:
            self.host.add(label)
        self.copies[name, kind], self.original[label] = label, name
        where.setdefault(place, []).append(self.copy_instr(kind, label, name, near, self.once(name)))
        return label

    def copy_instr(self, kind: str, label: str, name: str, near: Instr, once: str) -> Instr:
        """A copy of the value `name`."""
        to, lies = ("host", "device") if kind == TO_HOST else ("device", "host")
        reason = f"{name!r} lies on the {lies}, and is read on the {to}"
        fields = {"name": near.name, "reason": reason, "origin": near.origin.made("place"), "once": once}
        return Instr(kind, (label,), (name,), op_class=COPIES[kind], owner=near.owner, stage=near.stage, **fields)

    def once(self, name: str) -> str:
        """With which micro-batch a copy is made: as the value; once of what the whole step has and none changes."""
        if self.draft.graph.micro_batches == 1 or name in self.rewritten:
            return ""
        place = self.maker.get(self.original.get(name, name))
        if place is None:
            return "first"
        maker = self.instr(place)
        return maker.once or ("last" if maker.kind == "accumulate" else "")

    def end_pairs(self) -> None:
        """New values come to where their targets lie; a gradient that only the host reads stays there."""
        read = {
            n for program in self.programs.values() for i in program for n in i.ins if not makes_on_host(i, self.host)
        }
        pairs = self.placed.pairs
        for kind in ("forward_assignments", "assignments"):
            before = zip(getattr(self.draft, kind), pairs[kind], strict=True)
            pairs[kind] = tuple((target, self.for_target(target, source, now)) for (target, source), (_, now) in before)
        kept = {n: label for (n, kind), label in self.copies.items() if kind == TO_HOST and n not in read}
        pairs["gradients"] = tuple((name, kept.get(g, g)) for name, g in pairs["gradients"])

    def for_target(self, target: str, source: str, now: str) -> str:
        """The name of a target's new value in its memory; `now`: as the stages before have it."""
        if source not in self.maker or (target in self.host) == (source in self.host):
            return now
        kind = TO_HOST if target in self.host else TO_DEVICE
        if (source, kind) not in self.copies:
            place = self.maker[source]
            self.put(self.behind, place, source, kind, self.instr(place))
        self.placed.targets[source, kind] = self.copies[source, kind]
        return self.copies[source, kind]

    # ---- memory_offload ----

    def offload(self) -> None:
        """Send what backward reads again to the host, behind its last use in forward."""
        last: dict[str, int] = {}
        there: set[str] = set()
        for at, instr in enumerate(self.programs.get("forward", ())):
            if not instr.of_step:
                last |= dict.fromkeys(instr.kept, at)
            last |= {name: at for name in instr.ins if name in last and name not in there}
            if makes_on_host(instr, self.host):  # the host reads it now: it goes there at once
                there.update(instr.ins)
                last |= {name: self.maker[name][1] for name in instr.ins if name in last}
        needed = {n for i in self.programs.get("backward", ()) if not makes_on_host(i, self.host) for n in i.ins}
        kept = needed & last.keys() - self.host - set(self.draft.outputs)
        for name in sorted(kept, key=last.__getitem__):
            maker = self.instr(self.maker[name])
            leaves = self.draft.config.memory_offload or self.ahead.get(maker.name)
            if leaves and self.values[name].shape and maker.kind != "start":
                near = self.instr(("forward", last[name]))
                self.put(self.behind, ("forward", last[name]), name, TO_HOST, replace(near, name=maker.name))
                self.returned[name] = ""

    def bring_back(self, name: str, at: int) -> str:
        if not self.returned[name]:
            away = self.copies[name, TO_HOST]
            place = ("backward", self.earlier(at, self.ahead.get(self.instr(self.maker[name]).name, 0)))
            self.returned[name] = self.put(self.before, place, away, TO_DEVICE, self.instr(place))
        return self.returned[name]

    def earlier(self, at: int, operators: int) -> int:
        """The position so many operators before one of backward, but within its part of the network and the step."""
        program = self.programs["backward"]
        reader = program[at]
        while operators and at and (program[at - 1].stage, program[at - 1].once) == (reader.stage, reader.once):
            at -= 1
            operators -= program[at].kind == "compute"
        return at
