"""Bytes held and bytes sent, of every rank over one step: predicted from a plan, and counted where it runs. What the
Memory Lab draws.

    predicted_ranks(plan)            what the formulas say, per rank: a `Count`
    simulated_ranks(plan, ...)       counted on simulated ranks: the arrays each one holds after every instruction, the
                                     messages it asks for
    measured_ranks(plan, ...)        the same on worker processes, by the workers themselves

The count looks at real arrays: two names of the same memory count once, plain numbers of the program not at all.
Only the kind that an array is called by comes from the plan (`cost.memory.value_kinds`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ...base.hooks import breathe
from ...base.system import resident_bytes
from ...cost.memory import MEMORY_KINDS, MemoryPoint, predict_memory, value_kinds
from ...cost.time import sent_bytes
from ...graph.actions import Action
from ...graph.instr import Instr
from ...graph.plan import Plan
from ...ops.collectives.definitions import MESSAGES
from ...run.computing import computing
from ...run.full_values import slice_value, step_inputs
from ...run.interpreter import Env
from ...run.simulator import Simulator
from ...train.program import step_on

MOMENTS = {"states": "model states", "peak": "fullest moment", "training": "before the update"}
MOMENTS |= {"resident": "between steps"}
PHASES = ("forward", "backward", "update")
PURPOSES = ("gradients", "parameters", "network")
_STATES = ("params", "grads", "optimizer")  # what memory is discussed in
_STAYS = ("params", "optimizer", "inputs")  # from the start of the step to its end

Live = tuple[int, ...]
Traffic = dict[tuple[str, str], tuple[int, int]]
Rooms = dict[str, tuple[int, int]]


class Timeline(tuple[MemoryPoint, ...]):
    """What a rank holds, instruction by instruction. What is asked of it is worked out once for all ranks alike."""

    @cached_property
    def fullest(self) -> dict[str, MemoryPoint | None]:
        """The fullest instruction of the step ("peak"), and of the step without its update ("training")."""
        most: dict[str, MemoryPoint | None] = {"peak": None, "training": None}
        for point in self:
            for moment, known in most.items():
                if moment == "peak" or point.phase != "update":
                    most[moment] = point if known is None or point.total_bytes > known.total_bytes else known
        return most

    @cached_property
    def most(self) -> dict[str, int]:
        """Bytes of each kind at the instruction at which there were most of it."""
        columns = zip(*(point.live for point in self), strict=True)
        return dict(zip(MEMORY_KINDS, map(max, columns), strict=True)) if self else dict.fromkeys(MEMORY_KINDS, 0)


@dataclass(frozen=True)
class Count:
    """One rank over one step: what it held per instruction, and {(purpose, kind): (messages, bytes to send at best)}.
    grown_bytes: measured only, growth of the worker's resident set from before its arrays came to after the step
    (pages, allocator and interpreter included); None where the system does not say. rooms: {result of an all_to_all_v:
    (bytes reserved for the most that can come, bytes of the rows that came)}, the most of a step; predicted: of alike
    choices.
    """

    rank: int
    timeline: tuple[MemoryPoint, ...]
    traffic: Traffic
    grown_bytes: int | None = None
    rooms: Rooms = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.timeline, Timeline):
            object.__setattr__(self, "timeline", Timeline(self.timeline))

    def point(self, moment: str) -> MemoryPoint | None:
        """The fullest instruction of the step ("peak"), or of the step without its update ("training"), or None."""
        return self.timeline.fullest.get(moment)

    def at(self, moment: str) -> dict[str, int]:
        """Bytes by kind at one of MOMENTS; "states": parameters, gradients and optimizer states, each when there is
        most of it; "resident": what stays from step to step.
        """
        if moment == "states":
            return {kind: self.most(kind) if kind in _STATES else 0 for kind in MEMORY_KINDS}
        if moment == "resident":
            first = self.timeline[0].by_kind if self.timeline else {}
            return {kind: first.get(kind, 0) if kind in _STAYS else 0 for kind in MEMORY_KINDS}
        point = self.point(moment)
        return point.by_kind if point else dict.fromkeys(MEMORY_KINDS, 0)

    def most(self, kind: str) -> int:
        """Bytes of one kind at the instruction at which there were most of it."""
        return self.timeline.most[kind]

    @property
    def peak_bytes(self) -> int:
        return sum(self.at("peak").values())

    @property
    def messages(self) -> int:
        return sum(count for count, _ in self.traffic.values())

    @property
    def sent_bytes(self) -> int:
        return sum(size for _, size in self.traffic.values())


def purpose_of(phase: str, instr: Instr) -> str:
    """What a message is for: one of PURPOSES. "network": values of the network itself, such as the loss."""
    if instr.attr("parameter") is not None or instr.attr("members") is not None:
        return "parameters" if instr.message == "all_gather" else "gradients"
    return "parameters" if phase == "update" and instr.message == "broadcast" else "network"


def _added(traffic: Traffic, phase: str, instr: Instr, size_bytes: int) -> None:
    key = (purpose_of(phase, instr), instr.message)
    count, total = traffic.get(key, (0, 0))
    traffic[key] = (count + 1, total + size_bytes)


def _took(rooms: Rooms, plan: Plan, instr: Instr, rank: int, counts: Any = None) -> None:
    """Note the room and the rows of an all_to_all_v; counts: its second operand, None: as the plan predicts."""
    if instr.kind == "all_to_all_v":
        route = instr.attr("route") if counts is None else MESSAGES[instr.kind].counted(instr.attr("route"), counts)
        member, size = instr.group(rank).index(rank), plan.value(instr.out).slice_bytes
        came = size // route[1] * sum(row[member] for row in route[3])
        rooms[instr.out] = size, max(came, rooms.get(instr.out, (0, 0))[1])


def predicted_ranks(plan: Plan) -> tuple[Count, ...]:
    """What the formulas say of every rank (`predict_memory`, `sent_bytes`). Without owners all of a stage are alike."""
    counts: list[Count] = []
    for rank in range(plan.device_num):
        stage = plan.stage_of(rank)
        if rank > stage.first and not plan.owners:
            counts.append(replace(counts[-1], rank=rank))
            continue
        traffic: Traffic = {}
        rooms: Rooms = {}
        for action in stage.actions:
            for _, instr in stage.part(action):
                if instr.runs_on(rank) and instr.is_communication:
                    size = sent_bytes(plan, instr) if instr.attr("root", rank) == rank else 0
                    _added(traffic, action.program, instr, size)
                    _took(rooms, plan, instr, rank)
        counts.append(Count(rank, predict_memory(plan, rank=rank).timeline, traffic, rooms=rooms))
    return tuple(counts)


class _Held(NamedTuple):
    """Memory that an array has.  place: (address, bytes);  kind: one of MEMORY_KINDS;  on_host: it is offloaded"""

    place: tuple[int, int]
    kind: str
    on_host: bool


class _Counter:
    """Counts what a rank holds after each instruction and hands over to messages: an `observe` of the interpreter."""

    def __init__(self, plan: Plan, rank: int, env: Env) -> None:
        self.plan, self.rank, self.env = plan, rank, env
        self.kinds, self.host = value_kinds(plan, rank=rank), frozenset(plan.host)
        self.scalars = {i.name for i in plan.graph.inputs if i.is_number} | set(plan.scalars)
        # of every name in `env` its array at the last look, and what it counts as: most are still there at the next one
        self.looked: dict[Any, tuple[weakref.ref, _Held]] = {}
        self.timeline: list[MemoryPoint] = []
        self.traffic: Traffic = {}
        self.rooms: Rooms = {}
        # of every sum how many parts were added, and by micro-batch those that came before their turn
        self.turn: dict[str, int] = {}
        self.early: dict[str, dict[int, weakref.ref]] = {}

    def _add(self, instr: Instr, micro_batch: int) -> None:
        name, turns = instr.ins[0], self.plan.stage_of(self.rank).turns(instr.stage)
        parts, count = self.early.setdefault(name, {}), self.turn.get(name, 0)
        parts[micro_batch] = weakref.ref(self.env[name, micro_batch])
        while count < len(turns) and parts.pop(turns[count], None):
            count += 1
        self.turn[name] = count

    def _look(self, name: str, array: Any) -> _Held | None:
        if not isinstance(array, np.ndarray) or name in self.scalars:
            return None
        return _Held((array.ctypes.data, array.nbytes), self.kinds.get(name, "workspace"), name in self.host)

    def _held(self) -> Iterable[_Held]:
        """The memory that is held now, each part of it once, by the first name that it has."""
        known: dict[tuple[int, int], _Held] = {}
        for key, array in self.env.items():
            before = self.looked.get(key)
            held = before[1] if before is not None and before[0]() is array else None
            if held is None:
                held = self._look(key if isinstance(key, str) else key[0], array)
                if held is not None:
                    self.looked[key] = weakref.ref(array), held
            if held is not None:
                known.setdefault(held.place, held)
        for name, parts in self.early.items():
            for part in parts.values():
                if (held := self._look(name, part())) is not None:
                    known.setdefault(held.place, held)
        return known.values()

    def observe(
        self, action: Action, instr: Instr, start_s: float, end_s: float, handed_over: int, arrived_s: float | None
    ) -> None:
        breathe()
        if instr.kind == "accumulate":
            self._add(instr, action.micro_batch)
        live, there = dict.fromkeys(MEMORY_KINDS, 0), dict.fromkeys(MEMORY_KINDS, 0)
        for held in self._held():
            (there if held.on_host else live)[held.kind] += held.place[1]
        both = tuple(live.values()), tuple(there.values())
        self.timeline.append(MemoryPoint(action.program, len(self.timeline), instr.out, *both))
        if instr.is_communication:
            message = MESSAGES[instr.message]
            size = handed_over if message.piecewise else message.payload_bytes(handed_over, instr.group_size)
            _added(self.traffic, action.program, instr, size)
            own = [self.env.get((name, action.micro_batch), self.env.get(name)) for name in instr.ins[1:]]
            _took(self.rooms, self.plan, instr, self.rank, *own)

    def count(self, grown_bytes: int | None = None) -> Count:
        return Count(self.rank, tuple(self.timeline), dict(self.traffic), grown_bytes, dict(self.rooms))


def simulated_ranks(plan: Plan, values: Mapping[str, np.ndarray], batch: Sequence[Any]) -> tuple[Count, ...]:
    """The first step on simulated ranks.  values: full tensors by name (`initial_values`);  batch: global inputs."""
    simulator = Simulator(plan, values)
    counters = [_Counter(plan, rank, env) for rank, env in enumerate(simulator.envs)]
    simulator.run_step(*batch, observe=lambda rank, *what: counters[rank].observe(*what))
    return tuple(counter.count() for counter in counters)


def measured_ranks(plan: Plan, values: Mapping[str, np.ndarray], batch: Sequence[Any]) -> tuple[Count, ...]:
    """The first step on worker processes, one per rank, each counting its own arrays."""
    from ...processes.shm import get_pool  # looking at a plan needs no processes

    ranks = range(plan.device_num)
    envs = [{n: slice_value(plan, n, v, r) for n, v in values.items() if plan.held_by(n, r)} for r in ranks]
    arguments = [(plan, env, step_inputs(plan, rank, batch)) for rank, env in zip(ranks, envs, strict=True)]
    return tuple(get_pool(plan.device_num).run_each(_counted_step, arguments))


def _counted_step(comm: Any, plan: Plan, env: Env, inputs: Env) -> Count:
    """One step on a worker. The slices came as a message: copies of them are made while the process is watched."""
    before = resident_bytes()
    env = {name: np.array(array) for name, array in (env | inputs).items()}
    counter = _Counter(plan, comm.rank, env)
    with computing(plan):
        step_on(comm, plan, env, observe=counter.observe, show=comm.report)
    after = resident_bytes()
    return counter.count(None if before is None or after is None else after - before)
