"""The simulator's clock: when each rank would have done what, on cores of its own or on some that all share.

Local work takes the processor time that it took here, one rank after the other. A message starts when its last member
arrives and takes what the cluster profile says; it needs no core. Started messages travel one by one on each rank's
line. A step starts at 0. The rules are those of `clock.py`; this file says what its tasks and messages are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from ..base.cluster import Cluster
from ..graph.actions import Action
from ..graph.instr import Instr
from ..graph.plan import Plan
from ..ops.collectives.definitions import MESSAGES
from .clock import Clock, Message, Task
from .shared_cores import SharedCores, SharedMachine, call_time_s, on_shared_cores
from .time import (
    border_key,
    instr_time_s,
    is_border,
    message_bytes,
    message_time_s,
    on_dearer_sides,
    operand_of,
    own_time_s,
)

# An instruction that ran: (action, instruction, start, end, bytes handed over, of a wait: its message's completion).
Ran = tuple[Action, Instr, float, float, int, float | None]


def virtual_clock(ran: Sequence[Sequence[Ran]], cluster: Cluster, cores: int | None = None) -> list[list[Ran]]:
    """What each rank `ran` in one step, in order, on the virtual clock; messages are those of one program.

    cores   processor cores that all ranks share; None: those of a measured machine, else each has its own
    """
    if cores is None and isinstance(cluster, SharedMachine):
        cores = cluster.cores
    cluster = on_shared_cores(cluster, len(ran))  # messages, which are on all ranks at once
    timed: list[list[Ran]] = [[] for _ in ran]
    meetings: dict[tuple[Any, ...], _Meeting] = {}
    shared = None if cores is None else SharedCores(cores)
    clock = Clock([_tasks(rank, mine, meetings, cluster) for rank, mine in enumerate(ran)], shared)

    def done(rank: int, task: Task, came_s: float, start_s: float, end_s: float) -> None:
        action, instr, _, _, handed_over, _ = task.what
        if task.work_s is None:
            start_s = came_s
        noticed_s = clock.there[task.owner] if instr.kind == "wait" else None
        timed[rank].append((action, instr, start_s, end_s, handed_over, noticed_s))

    clock.run(done)
    return timed


def predicted_run(plan: Plan, cluster: Cluster) -> list[list[Ran]]:
    """What `virtual_clock` takes, where local work takes what the cost model says."""
    plan = on_dearer_sides(plan, lambda instr: instr_time_s(plan, instr, cluster))
    host, times, ran = frozenset(plan.host), {}, []
    for stage in plan.stages:
        work = [(action, instr) for action in stage.actions for _, instr in stage.part(action)]
        for _, instr in work:
            if id(instr) not in times:
                free = instr.is_communication or instr.kind == "wait"
                times[id(instr)] = 0.0 if free else own_time_s(plan, instr, cluster, host)
        ran += [
            [(a, i, 0.0, times[id(i)], message_bytes(plan, i, rank), None) for a, i in work if i.runs_on(rank)]
            for rank in stage.ranks
        ]
    return ran


class _Meeting(Message):
    """A collective; how long it takes is known when all have come, with what they hand over."""

    __slots__ = ("cluster", "handed_over", "instr")

    def __init__(self, instr: Instr, group: tuple[int, ...], cluster: Cluster) -> None:
        super().__init__(None, group, "started" if instr.kind == "start" else None)
        self.instr, self.cluster, self.handed_over = instr, cluster, 0

    def travel(self, begin_s: float) -> tuple[float, float]:
        instr, count, device = self.instr, len(self.members), self.cluster.device
        link, operand_bytes = self.cluster.link_for(self.members), operand_of(instr, self.handed_over, count)
        took_s = MESSAGES[instr.message].time_s(operand_bytes, count, link, device.gamma_s_per_byte, instr.how)
        return begin_s, begin_s + took_s + call_time_s(self.cluster)


def _tasks(
    rank: int, ran: Sequence[Ran], meetings: dict[tuple[Any, ...], _Meeting], cluster: Cluster
) -> Iterator[Task]:
    """What a rank ran, as tasks; the collectives that it comes to are added to `meetings`.

    A send is on its way at once, whether or not somebody waits for it; (group, tag, number) is its key. Collectives of
    a group are numbered, those that are started apart from the others.
    """
    counts: Counter[tuple[Any, ...]] = Counter()
    due: dict[str, Message | Hashable] = {}  # name of what was started -> the collective, or a send's key
    for entry in ran:
        action, instr, start_s, end_s, handed_over, _ = entry
        kind = instr.kind
        if kind == "wait":
            message = due[instr.ins[0]]
            is_sent = not isinstance(message, Message) and instr.attr("message") != "recv"  # whether or not it arrived
            yield Task(needs=() if is_sent else ((message, 0.0),), owner=message, what=entry)
        elif kind != "start" and kind not in MESSAGES:  # what takes no time needs no core
            yield Task(end_s - start_s or None, (), (), 0.0, None, action, entry)
        elif instr.message in ("send", "recv"):
            group, tag = instr.group(rank), instr.attr("sr_tag")
            counts[group, tag, instr.message] += 1
            which = border_key(instr, action)[1] if is_border(instr) else counts[group, tag, instr.message]
            key = due[instr.out] = group, tag, which
            if instr.message == "send":
                took_s = message_time_s("send", handed_over, 2, cluster.link_for(group)) + call_time_s(cluster)
                yield Task(message=Message(took_s, (rank,), key=key), what=entry)
            else:
                yield Task(needs=((key, 0.0),) if instr.kind == "recv" else (), what=entry)
        else:
            group, started = instr.group(rank), instr.kind == "start"
            counts[group, started] += 1
            key = group, started, counts[group, started]
            meeting = due[instr.out] = meetings.get(key) or meetings.setdefault(key, _Meeting(instr, group, cluster))
            # the root of a broadcast alone has something to hand over
            meeting.handed_over = max(meeting.handed_over, handed_over)
            yield Task(needs=() if started else ((meeting, 0.0),), message=meeting, what=entry)
