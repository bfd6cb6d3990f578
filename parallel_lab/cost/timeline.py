"""The predicted timeline of one step: a clock per rank, moved by the plan's program.

    rank 0  |matmul    |wait      |all_reduce      |relu  |
    rank 1  |matmul (slower rank) |all_reduce      |relu  |

Local work moves a rank's own clock. A message starts for all members of its group when the last of them arrives (those
before it wait) and ends for all of them together. A message that is started travels on its rank's line while the rank
goes on, one after the other: it begins when all members have come to it and their lines are free, and who waits for it
goes on when it has ended. Ranks run one program on equal slices, so their clocks only part where groups use different
links or a rank is slowed down on purpose; else one clock stands for all, and 4096 ranks cost what one does.

A copy between device and host travels on a line of its own, one in each direction, and who reads it waits for it; the
device waits for what the host computes.

The stages of a pipeline have clocks of their own. What one sends another occupies neither: it is there when the link
has brought it, and who needs it waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..base.cluster import Cluster
from ..base.errors import ArgumentError, PlanError
from ..base.events import Event, EventLog
from ..graph.actions import Action, Stage
from ..graph.copies import COPIES
from ..graph.instr import Instr
from ..graph.plan import Plan
from .time import border_key, is_border, message_bytes, own_time_s, plan_message_time_s, takes_border

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
    shown = tuple(range(plan.device_num)) if ranks is None else tuple(sorted(set(ranks)))
    factors = _factors(plan, slowdown or {})
    each = {stage.first: sum(len(stage.part(action)) for action in stage.actions) for stage in plan.stages}
    if (events := sum(each[plan.stage_of(rank).first] for rank in shown)) > MOST_EVENTS:
        what, hint = f"{events:,} events of {len(shown)} ranks", "Give ranks=(0,), or ranks=() for the end of the step"
        raise ArgumentError(what, where="predict_timeline", allowed=f"At most {MOST_EVENTS:,}", hint=hint)
    arrivals: dict[tuple[int, int], np.ndarray] = {}
    clocks = [_StageClock(plan, stage, cluster, factors, shown, step, arrivals) for stage in plan.stages]
    moved = True
    while moved:  # a stage that waits for another one goes on in the next round
        moved = any(clock.advance() for clock in clocks)
    waiting = [clock.stage.first for clock in clocks if not clock.done]
    if waiting:
        what = f"the stages of ranks {waiting} wait for ever"
        raise PlanError(what, where="predict_timeline", allowed="A schedule in which every action's inputs come to be")
    lanes = {rank: lane for clock in clocks for rank, lane in clock.lanes.items()}
    log = EventLog(tuple(e for rank in shown for e in lanes[rank]))
    return Timeline(log, max(clock.end_s for clock in clocks), all(clock.symmetric for clock in clocks))


class _StageClock:
    """The clocks of a stage's ranks, one for all while they are alike, moved by its program until it has to wait.

    arrivals   (tag, micro-batch; -1 once) of what was sent to another stage -> when each rank's part is there
    """

    def __init__(
        self,
        plan: Plan,
        stage: Stage,
        cluster: Cluster,
        factors: np.ndarray | None,
        shown: tuple[int, ...],
        step: int,
        arrivals: dict[tuple[int, int], np.ndarray],
    ) -> None:
        self.plan, self.stage, self.cluster, self.step, self.arrivals = plan, stage, cluster, step, arrivals
        self.factors = None if factors is None else factors[stage.first : stage.first + stage.count]
        instrs = [i for _, program in stage.programs for i in program]
        owned = any(i.owner is not None for i in instrs)  # work that one rank does alone
        alike = all(len(set(self.spans(i).tolist())) == 1 for i in instrs if i.is_communication)
        self.symmetric = self.factors is None and not owned and alike
        self.clocks = np.zeros(1 if self.symmetric else stage.count)
        self.lines = self.clocks.copy()
        self.due: dict[str, np.ndarray] = {}  # when what was started will be complete
        self.lines_to = dict.fromkeys(COPIES, self.clocks)  # when the line to the host, and the one back, is free
        self.there: dict[str, np.ndarray] = {}  # when a copy has arrived
        self.host = frozenset(plan.host)
        self.lanes: dict[int, list[Event]] = {rank: [] for rank in shown if rank in stage.ranks}
        self.parts: dict[int, list[Instr | float]] = {}
        self.program = ((a, work) for a in stage.actions for work in self.part(a))
        self.next: tuple[Action, Instr | float] | None = next(self.program, None)

    @property
    def done(self) -> bool:
        return self.next is None

    @property
    def end_s(self) -> float:
        return float(max(line.max() for line in (self.clocks, self.lines, *self.lines_to.values())))

    def part(self, action: Action) -> list[Instr | float]:
        """What an action runs; where nobody looks and all ranks are alike, work in a row is a number of seconds."""
        part = self.stage.part(action)
        if self.host:  # copies go on beside the work
            return [instr for _, instr in part]
        if id(part) not in self.parts:
            work: list[Instr | float] = []
            for _, instr in part:
                alone = (
                    not self.lanes and self.symmetric and instr.kind not in ("start", "wait") and not is_border(instr)
                )
                seconds = float(self.ends(instr, np.zeros(1))[1][0]) if alone else None
                if seconds is not None and work and isinstance(work[-1], float):
                    work[-1] += seconds
                else:
                    work.append(instr if seconds is None else seconds)
            self.parts[id(part)] = work
        return self.parts[id(part)]

    def advance(self) -> bool:
        """Run until the end, or until something of another stage is not there yet. Whether anything was run."""
        moved = False
        while self.next is not None and self.ready(*self.next):
            action, work = self.next
            if isinstance(work, float):
                self.clocks = self.clocks + work
            else:
                self.run(action, work)
            self.next, moved = next(self.program, None), True
        return moved

    def ready(self, action: Action, work: Instr | float) -> bool:
        return isinstance(work, float) or not takes_border(work) or border_key(work, action) in self.arrivals

    def run(self, action: Action, instr: Instr) -> None:
        overlapped, ready = instr.kind in ("start", *COPIES), self.clocks
        for name in instr.ins:
            if name in self.there:
                ready = np.maximum(ready, self.there[name])
        if instr.kind not in COPIES:
            self.clocks = ready
        if is_border(instr):
            starts = ends = self.clocks
            if takes_border(instr):
                starts = ends = np.maximum(self.clocks, self.arrivals[border_key(instr, action)])
            elif instr.message == "send":
                arrives = self.message(instr, self.clocks)[1]
                self.arrivals[border_key(instr, action)] = arrives
        elif instr.kind in COPIES:  # a line in each direction; who reads the copy waits for it
            starts, ends = self.ends(instr, np.maximum(ready, self.lines_to[instr.kind]))
            self.lines_to[instr.kind] = self.there[instr.out] = ends
        elif overlapped:
            starts, ends = self.message(instr, np.maximum(self.clocks, self.lines))
            self.lines = self.due[instr.out] = ends
        elif instr.kind == "wait":
            starts = ends = np.maximum(self.clocks, self.due.pop(instr.ins[0]))
        else:
            starts, ends = self.ends(instr, self.clocks)
        for rank, lane in self.lanes.items():
            if instr.runs_on(rank):
                lane += self.events(action, instr, rank, starts, ends)
        self.clocks = self.clocks if overlapped else ends

    def ends(self, instr: Instr, clocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """When work that is not waited for later starts and ends."""
        if instr.is_communication:
            return self.message(instr, clocks)
        work_s = own_time_s(self.plan, instr, self.cluster, self.host)
        works = 1.0 if instr.owner is None else np.arange(len(clocks)) == instr.owner
        slower = 1.0 if self.factors is None or instr.kind in COPIES else self.factors
        return clocks, clocks + works * work_s * slower

    def message(self, instr: Instr, clocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """When a message starts and ends: for every rank, or once for all where there is one clock."""
        spans = self.spans(instr)

        def seconds(across: bool) -> float:
            return plan_message_time_s(self.plan, instr, self.cluster, self.cluster.link_over(spans=across))

        if len(clocks) == 1:
            return clocks, clocks + seconds(bool(spans[0]))
        starts = clocks
        if not is_border(instr):
            members = tuple(-1 - axis for axis in instr.axes)
            last = clocks.reshape(instr.device_matrix).max(axis=members, keepdims=True)
            starts = np.broadcast_to(last, instr.device_matrix).reshape(-1)
        durations = np.zeros(len(clocks))
        for across in set(spans.tolist()):
            durations[spans == across] = seconds(across)
        return starts, starts + durations

    def spans(self, instr: Instr) -> np.ndarray:
        """For every rank of the stage, whether its message goes to another node."""
        per_node = self.cluster.devices_per_node
        if is_border(instr):
            ranks = np.arange(self.stage.first, self.stage.first + self.stage.count)
            peers = ranks + instr.attr("shift") * (1 if instr.message == "send" else -1)
            return ranks // per_node != peers // per_node
        return _spans(instr.device_matrix, instr.axes, per_node, self.stage.first)

    def events(self, action: Action, instr: Instr, rank: int, starts: np.ndarray, ends: np.ndarray) -> list[Event]:
        """What a rank's lane shows of an instruction."""
        at = 0 if self.symmetric else rank - self.stage.first
        waits, overlapped = instr.kind == "wait", instr.kind in ("start", *COPIES)
        group = instr.group(rank) if instr.is_communication or waits else ()
        op = instr.op_class or instr.message or instr.attr("message") or instr.kind
        name = instr.ins[0] if waits else instr.out
        common = {"rank": rank, "step": self.step, "phase": action.program, "name": name, "op": op, "group": group}
        common |= {"micro_batch": action.micro_batch, "source": "predicted"}
        arrived_s, start_s, end_s = float(self.clocks[at]), float(starts[at]), float(ends[at])
        found = []
        if waits or (start_s > arrived_s and not overlapped):
            found.append(Event(kind="wait", start_s=arrived_s, end_s=start_s, **common))
        if not waits:
            kind = "communication" if instr.is_communication else "compute"
            sent = {"bytes": message_bytes(self.plan, instr, rank), "overlapped": overlapped}
            if instr.kind in COPIES:
                sent["bytes"] = self.plan.value(instr.out).slice_bytes
            found.append(Event(kind=kind, start_s=start_s, end_s=end_s, **sent, **common))
        return found


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
    found = np.broadcast_to(spans, device_matrix).reshape(-1)
    found.flags.writeable = False  # the cache hands the same array to everyone
    return found
