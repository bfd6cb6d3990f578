"""The predicted timeline of one step: a clock per rank, moved by the plan's program.

    rank 0  |matmul    |wait      |all_reduce      |relu  |
    rank 1  |matmul (slower rank) |all_reduce      |relu  |

Local work moves a rank's own clock. A message starts for all members of its group when the last of them arrives (those
before it wait) and ends for all of them together. A message that is started travels on its rank's line while the rank
goes on, one after the other: it begins when all members have come to it and their lines are free, and who waits for it
goes on when it has ended. Ranks run one program on equal slices, so their clocks only part where groups use different
links or a rank is slowed down on purpose; else one clock stands for all, and 4096 ranks cost what one does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..base.cluster import Cluster
from ..base.errors import ArgumentError
from ..base.events import Event, EventLog
from ..graph.ir import Instr
from ..graph.plan import Plan
from .time import local_time_s, message_bytes, plan_message_time_s, single_stage


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

    Raises ArgumentError (small cluster, factor not positive), PlanError (pipeline, ranks that do not exist).
    """
    cluster.check_device_num(plan.device_num)
    stage = single_stage(plan)
    shown = tuple(range(plan.device_num)) if ranks is None else tuple(sorted(set(ranks)))
    factors = _factors(plan, slowdown or {})
    for rank in shown:
        plan.stage_of(rank)
    owned = any(i.owner is not None for _, i in plan.instructions())  # work that one rank does alone
    messages = [i for _, i in plan.instructions() if i.is_communication]
    alike = all(len(set(_spans(i.device_matrix, i.axes, cluster.devices_per_node).tolist())) == 1 for i in messages)
    symmetric = factors is None and not owned and alike
    # one clock stands for all ranks while they are alike
    clocks = np.zeros(1 if symmetric else plan.device_num)
    lines = clocks.copy()
    due: dict[str, np.ndarray] = {}  # when what was started will be complete
    lanes: dict[int, list[Event]] = {rank: [] for rank in shown}
    for action in stage.actions:
        for _, instr in stage.part(action):
            overlapped = instr.kind == "start"
            if instr.is_communication:
                starts, ends = _message(plan, instr, cluster, np.maximum(clocks, lines) if overlapped else clocks)
                if overlapped:
                    lines = due[instr.out] = ends
            elif instr.kind == "wait":
                starts = ends = np.maximum(clocks, due.pop(instr.ins[0]))
            else:
                work_s = local_time_s(plan, instr, cluster.device)
                works = 1.0 if instr.owner is None else np.arange(len(clocks)) == instr.owner
                starts, ends = clocks, clocks + works * (work_s if factors is None else work_s * factors)
            for rank, lane in lanes.items():
                if not instr.runs_on(rank):
                    continue
                at = 0 if symmetric else rank
                waits = instr.kind == "wait"
                group = instr.group(rank) if instr.is_communication or waits else ()
                op = instr.op_class or instr.message or instr.attr("message") or instr.kind
                name = instr.ins[0] if waits else instr.out
                common = {"rank": rank, "step": step, "phase": action.program, "name": name, "op": op, "group": group}
                common["micro_batch"] = action.micro_batch
                arrived_s, start_s, end_s = float(clocks[at]), float(starts[at]), float(ends[at])
                if waits or (start_s > arrived_s and not overlapped):
                    lane.append(Event(kind="wait", start_s=arrived_s, end_s=start_s, source="predicted", **common))
                if not waits:
                    kind = "communication" if instr.is_communication else "compute"
                    sent = {"bytes": message_bytes(plan, instr, rank), "overlapped": overlapped}
                    lane.append(Event(kind=kind, start_s=start_s, end_s=end_s, source="predicted", **sent, **common))
            clocks = clocks if overlapped else ends
    log = EventLog(tuple(e for lane in lanes.values() for e in lane))
    return Timeline(log, float(max(clocks.max(), lines.max())), symmetric)


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


def _message(plan: Plan, instr: Instr, cluster: Cluster, clocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """When a message starts and ends: for every rank, or once for all where there is one clock."""
    spans = _spans(instr.device_matrix, instr.axes, cluster.devices_per_node)

    def seconds(across: bool) -> float:
        return plan_message_time_s(plan, instr, cluster, cluster.link_over(spans=across))

    if len(clocks) == 1:
        return clocks, clocks + seconds(bool(spans[0]))
    members = tuple(-1 - axis for axis in instr.axes)
    last = clocks.reshape(instr.device_matrix).max(axis=members, keepdims=True)
    starts = np.broadcast_to(last, instr.device_matrix).reshape(-1)
    durations = np.zeros(len(clocks))
    for across in set(spans.tolist()):
        durations[spans == across] = seconds(across)
    return starts, starts + durations


@lru_cache(maxsize=256)
def _spans(device_matrix: tuple[int, ...], axes: tuple[int, ...], devices_per_node: int) -> np.ndarray:
    """For every rank, whether its group along `axes` has members on different nodes."""
    nodes = (np.arange(math.prod(device_matrix)) // devices_per_node).reshape(device_matrix)
    members = tuple(-1 - axis for axis in axes)
    spans = nodes.max(axis=members, keepdims=True) != nodes.min(axis=members, keepdims=True)
    found = np.broadcast_to(spans, device_matrix).reshape(-1)
    found.flags.writeable = False  # the cache hands the same array to everyone
    return found
