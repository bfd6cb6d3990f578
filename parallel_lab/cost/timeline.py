"""The predicted timeline of one step: a clock per rank, moved by the plan's program.

    rank 0  |matmul    |wait      |all_reduce      |relu  |
    rank 1  |matmul (slower rank) |all_reduce      |relu  |

Local work moves a rank's own clock. A message starts for all members of its group when the last of them arrives (those
before it wait) and ends for all of them together. A message that is started travels on its rank's line while the rank
goes on, one after the other: it begins when all members have come to it and their lines are free, and a rank that waits
for it goes on when it has ended. A copy between device and host travels on a line of its own, one in each direction;
the instruction that reads it waits for it, and the device waits for results of the host.

The stages of a pipeline are the lanes of a clock (`clock.py`). Ranks of a stage run one program on equal slices, so
their times only differ where groups use different links or a rank is slowed down on purpose; else one number stands for
all, and 4096 ranks cost what one does. What one stage sends another occupies neither: it is there when the link has
brought it, and what needs it waits.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..base.cluster import Cluster
from ..base.errors import ArgumentError, PlanError
from ..base.events import Event, EventLog
from ..graph.actions import Action
from ..graph.copies import COPIES
from ..graph.instr import Instr
from ..graph.plan import Plan
from .clock import Clock, Message, Task, Time
from .shared_cores import on_shared_cores
from .time import (
    border_key,
    instr_time_s,
    is_border,
    message_bytes,
    on_dearer_sides,
    own_time_s,
    plan_message_time_s,
    takes_border,
)

MOST_EVENTS = 5_000_000  # that a timeline returns: of about half a kilobyte each


@dataclass(frozen=True)
class Timeline:
    """A predicted step.

    log         events of the ranks that were asked for, rank by rank in order of time
    end_s       when the last rank is done, all ranks of the plan considered
    symmetric   whether the times of every rank's lane are the same
    """

    log: EventLog
    end_s: float
    symmetric: bool


def predict_timeline(
    plan: Plan,
    cluster: Cluster,
    ranks: Iterable[int] | None = None,
    *,
    step: int = 0,
    slowdown: Mapping[int, float] | None = None,
) -> Timeline:
    """Predicted events of one step, which starts at 0 on every rank.

    ranks     whose events to return; default: all
    step      step number the events carry
    slowdown  {rank: factor}: local work takes `factor` times as long there (a straggler)

    Raises ArgumentError (small cluster, factor not positive, more than MOST_EVENTS instructions to show), PlanError
    (ranks that do not exist).
    """
    cluster.check_device_num(plan.device_num)
    cluster = on_shared_cores(cluster, plan.device_num)
    plan = on_dearer_sides(plan, lambda instr: instr_time_s(plan, instr, cluster))
    shown = tuple(range(plan.device_num)) if ranks is None else tuple(sorted(set(ranks)))
    factors = _factors(plan, slowdown or {})
    each = {stage.first: sum(len(stage.part(action)) for action in stage.actions) for stage in plan.stages}
    if (events := sum(each[plan.stage_of(rank).first] for rank in shown)) > MOST_EVENTS:
        what, hint = f"{events:,} events of {len(shown)} ranks", "Give ranks=(0,), or ranks=() for the end of the step"
        raise ArgumentError(what, where="predict_timeline", allowed=f"At most {MOST_EVENTS:,}", hint=hint)
    stages = [_StageTasks(plan, number, cluster, factors, shown, step) for number in range(len(plan.stages))]
    symmetric = all(stage.symmetric for stage in stages)
    for stage in stages:  # ranks that differ in one stage send the others what comes at different times
        stage.symmetric = symmetric
    starts = [0.0 if symmetric else np.zeros(stage.stage.count) for stage in stages]
    clock = Clock([stage.tasks() for stage in stages], None, max if symmetric else np.maximum, starts)

    def done(number: int, task: Task, came_s: Time, start_s: Time, end_s: Time) -> None:
        if task.what is not None:
            stages[number].show(task, clock.there, came_s, start_s, end_s)

    clock.run(done)
    waiting = [stage.stage.first for stage, task in zip(stages, clock.tasks, strict=True) if task is not None]
    if waiting:
        what = f"the stages of ranks {waiting} wait for ever"
        raise PlanError(what, where="predict_timeline", allowed="A schedule in which every action's inputs come to be")
    lanes = {rank: lane for stage in stages for rank, lane in stage.lanes.items()}
    log = EventLog(tuple(e for rank in shown for e in lanes[rank]))
    return Timeline(log, max(float(np.max(at)) for at in (*clock.at_s, *clock.free_s.values())), symmetric)


class _StageTasks:
    """A stage's program as tasks of one lane, whose times are numbers while the ranks are alike, or one per rank.

    number  of the lane;  lanes:  events of the ranks that are shown
    """

    def __init__(
        self, plan: Plan, number: int, cluster: Cluster, factors: np.ndarray | None, shown: tuple[int, ...], step: int
    ) -> None:
        stage = plan.stages[number]
        self.plan, self.stage, self.cluster, self.step, self.number = plan, stage, cluster, step, number
        self.factors = None if factors is None else factors[stage.first : stage.first + stage.count]
        instrs = [i for _, program in stage.programs for i in program]
        owned = any(i.owner is not None for i in instrs)  # work that one rank does alone
        alike = all(len(set(self.spans(i).tolist())) == 1 for i in instrs if i.is_communication)
        self.symmetric = self.factors is None and not owned and alike
        self.host = frozenset(plan.host)
        self.lanes: dict[int, list[Event]] = {rank: [] for rank in shown if rank in stage.ranks}
        self.parts: dict[int, list[Instr | float]] = {}
        self.seconds: dict[int, Time] = {}  # of instructions, by their identity

    def tasks(self) -> Iterator[Task]:
        """The tasks, in order."""
        copied: dict[str, Message] = {}  # name of a copy -> the last one of it
        due: dict[str, Message] = {}  # name of what was started -> its message
        for action in self.stage.actions:
            for work in self.part(action):
                yield Task(work) if isinstance(work, float) else self.task(action, work, copied, due)

    def part(self, action: Action) -> list[Instr | float]:
        """What an action runs; where no rank is shown and all are alike, work in a row is a number of seconds."""
        part = self.stage.part(action)
        if self.host:  # copies go on next to the work
            return [instr for _, instr in part]
        if id(part) not in self.parts:
            work: list[Instr | float] = []
            alike = self.symmetric and not self.lanes
            for _, instr in part:
                alone = alike and instr.kind not in ("start", "wait") and not is_border(instr)
                seconds = None
                if alone and instr.is_communication:
                    seconds = _StageMessage(self, instr).travel(0.0)[1]
                elif alone:
                    seconds = self.work_s(instr)
                if seconds is not None and work and isinstance(work[-1], float):
                    work[-1] += seconds
                else:
                    work.append(instr if seconds is None else seconds)
            self.parts[id(part)] = work
        return self.parts[id(part)]

    def task(self, action: Action, instr: Instr, copied: dict[str, Message], due: dict[str, Message]) -> Task:
        """An instruction as a task. It waits for the copies that it reads; a copy of a copy does that on its line."""
        copies = tuple(copied[name] for name in instr.ins if name in copied)
        needs = [(copy, 0.0) for copy in copies]
        what = action, instr, copies
        if is_border(instr):
            if takes_border(instr):
                return Task(needs=[*needs, (border_key(instr, action), 0.0)], what=what)
            if instr.message == "send":
                sent = _StageMessage(self, instr, border_key(instr, action), copies)
                return Task(needs=needs, message=sent, what=what)
            return Task(needs=needs, what=what)
        if instr.kind in COPIES:
            copied[instr.out] = message = Message(self.work_s(instr), (self.number,), instr.kind, after=copies)
            return Task(message=message, what=what)
        if instr.kind == "wait":
            return Task(needs=[*needs, (due.pop(instr.ins[0]), 0.0)], what=what)
        if not instr.is_communication:
            return Task(self.work_s(instr), needs, what=what)
        message = _StageMessage(self, instr, after=copies)
        if instr.kind == "start":
            due[instr.out] = message
            return Task(needs=needs, message=message, what=what)
        return Task(needs=[*needs, (message, 0.0)], message=message, what=what)

    def work_s(self, instr: Instr) -> Time:
        """Seconds of local work or of a copy: a number, or one per rank."""
        if id(instr) not in self.seconds:  # the same for every micro-batch
            work_s = own_time_s(self.plan, instr, self.cluster, self.host)
            works = 1.0 if instr.owner is None else np.arange(self.stage.count) == instr.owner
            slower = 1.0 if self.factors is None or instr.kind in COPIES else self.factors
            self.seconds[id(instr)] = works * work_s * slower
        return self.seconds[id(instr)]

    def spans(self, instr: Instr) -> np.ndarray:
        """For every rank of the stage, whether its message goes to another node."""
        per_node = self.cluster.devices_per_node
        if is_border(instr):
            ranks = np.arange(self.stage.first, self.stage.first + self.stage.count)
            peers = ranks + instr.attr("shift") * (1 if instr.message == "send" else -1)
            return ranks // per_node != peers // per_node
        return _spans(instr.device_matrix, instr.axes, per_node, self.stage.first)

    def show(self, task: Task, there: Mapping[Hashable, Time], came_s: Time, start_s: Time, end_s: Time) -> None:
        """Add what the lanes show of a task."""
        (action, instr, copies), message = task.what, task.message
        if instr.kind not in COPIES:  # what it reads has arrived
            for copy in copies:
                came_s = np.maximum(came_s, there[copy])
        if message is not None and not is_border(instr):
            start_s, end_s = message.begin_s, message.end_s
        elif task.work_s is None:
            start_s = end_s
        for rank, lane in self.lanes.items():
            if instr.runs_on(rank):
                at = 0 if self.symmetric else rank - self.stage.first
                times = (float(t if np.ndim(t) == 0 else t[at]) for t in (came_s, start_s, end_s))
                lane += self.events(action, instr, rank, *times)

    def events(
        self, action: Action, instr: Instr, rank: int, arrived_s: float, start_s: float, end_s: float
    ) -> list[Event]:
        """What a rank's lane shows of an instruction."""
        waits, overlapped = instr.kind == "wait", instr.kind in ("start", *COPIES)
        group = instr.group(rank) if instr.is_communication or waits else ()
        op = instr.op_class or instr.message or instr.attr("message") or instr.kind
        name = instr.ins[0] if waits else instr.out
        common: dict[str, Any] = {
            "rank": rank,
            "step": self.step,
            "phase": action.program,
            "name": name,
            "op": op,
            "group": group,
        }
        common |= {"micro_batch": action.micro_batch, "source": "predicted"}
        events = []
        if waits or (start_s > arrived_s and not overlapped):
            events.append(Event(kind="wait", start_s=arrived_s, end_s=start_s, **common))
        if not waits:
            kind = "communication" if instr.is_communication else "compute"
            sent: dict[str, Any] = {"bytes": message_bytes(self.plan, instr, rank), "overlapped": overlapped}
            if instr.kind in COPIES:
                sent["bytes"] = self.plan.value(instr.out).slice_bytes
            events.append(Event(kind=kind, start_s=start_s, end_s=end_s, **sent, **common))
        return events


class _StageMessage(Message):
    """A message of a stage's ranks: it begins for all members of a group when the last one has come."""

    __slots__ = ("instr", "stage")

    def __init__(self, stage: _StageTasks, instr: Instr, key: Hashable = None, after: tuple[Message, ...] = ()) -> None:
        line = "started" if instr.kind == "start" and not is_border(instr) else None
        super().__init__(None, (stage.number,), line, key, after)
        self.stage, self.instr = stage, instr

    def seconds(self, across: bool) -> float:
        """How long it takes, over the link between nodes or within one."""
        cluster = self.stage.cluster
        return plan_message_time_s(self.stage.plan, self.instr, cluster, cluster.link_over(spans=across))

    def travel(self, begin_s: Time) -> tuple[Time, Time]:
        instr, spans = self.instr, self.stage.spans(self.instr)
        if np.ndim(begin_s) == 0:
            return begin_s, begin_s + self.seconds(bool(spans[0]))
        if not is_border(instr):
            members = tuple(-1 - axis for axis in instr.axes)
            last = begin_s.reshape(instr.device_matrix).max(axis=members, keepdims=True)
            begin_s = np.broadcast_to(last, instr.device_matrix).reshape(-1)
        durations = np.zeros(len(begin_s))
        for across in set(spans.tolist()):
            durations[spans == across] = self.seconds(across)
        return begin_s, begin_s + durations


def _factors(plan: Plan, slowdown: Mapping[int, float]) -> np.ndarray | None:
    """One factor per rank, or None if no rank differs."""
    factors = np.ones(plan.device_num)
    for rank, factor in slowdown.items():
        plan.stage_of(rank)
        if not (math.isfinite(factor) and factor > 0):
            allowed = "A finite number above 0; 2 is half speed"
            raise ArgumentError(f"slowdown of rank {rank} is {factor}", where="predict_timeline", allowed=allowed)
        factors[rank] = factor
    return None if (factors == 1).all() else factors


@lru_cache(maxsize=256)
def _spans(device_matrix: tuple[int, ...], axes: tuple[int, ...], devices_per_node: int, first: int) -> np.ndarray:
    """For every rank from `first` on, whether its group along `axes` has members on different nodes."""
    nodes = ((first + np.arange(math.prod(device_matrix))) // devices_per_node).reshape(device_matrix)
    members = tuple(-1 - axis for axis in axes)
    spans = nodes.max(axis=members, keepdims=True) != nodes.min(axis=members, keepdims=True)
    each_rank = np.broadcast_to(spans, device_matrix).reshape(-1)
    each_rank.flags.writeable = False  # the cache hands the same array to everyone
    return each_rank
