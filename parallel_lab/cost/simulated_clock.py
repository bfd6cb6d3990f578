"""The simulator's clock: when each rank would have done what, on cores of its own or on some that all share.

Local work takes the processor time that it took here, one rank after the other. Who waits for a core is served in turn
(`shared_cores.py`). A message starts when its last member arrives and takes what the cluster profile says; it needs no
core. Started messages travel one by one on each rank's line. A step starts at 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ..base.cluster import Cluster
from ..graph.actions import Action
from ..graph.instr import Instr
from ..graph.plan import Plan
from ..ops.collectives.definitions import MESSAGES
from .shared_cores import SharedCores
from .time import border_key, is_border, message_bytes, message_time_s, operand_of, own_time_s

# An instruction that ran: (action, instruction, start, end, bytes handed over, of a wait: its message's completion).
Ran = tuple[Action, Instr, float, float, int, float | None]


def virtual_clock(ran: Sequence[Sequence[Ran]], cluster: Cluster, cores: int | None = None) -> list[list[Ran]]:
    """What each rank `ran` in one step, in order, on the virtual clock; messages are those of one program.

    cores   processor cores that all ranks share; None: each has its own
    """
    return _Clock(ran, cluster, cores).run()


def predicted_run(plan: Plan, cluster: Cluster) -> list[list[Ran]]:
    """What `virtual_clock` takes, where local work takes what the cost model says."""
    host, times, found = frozenset(plan.host), {}, []
    for stage in plan.stages:
        work = [(action, instr) for action in stage.actions for _, instr in stage.part(action)]
        for _, instr in work:
            if id(instr) not in times:
                free = instr.is_communication or instr.kind == "wait"
                times[id(instr)] = 0.0 if free else own_time_s(plan, instr, cluster, host)
        found += [
            [(a, i, 0.0, times[id(i)], message_bytes(plan, i, rank), None) for a, i in work if i.runs_on(rank)]
            for rank in stage.ranks
        ]
    return found


class _Message:
    """A collective: who has come to it, (when, bytes handed over); when it was complete; started: who waits for it."""

    def __init__(self, instr: Instr, group: tuple[int, ...]) -> None:
        self.instr, self.group = instr, group
        self.came: dict[int, tuple[float, int]] = {}
        self.over_s: float | None = None
        self.waiting: list[int] = []


class _Clock:
    """All ranks in order of time.

    shared   the ranks' turns, in order of time;  at: how far a rank is;  since: when it came there
    sent     what was sent -> when it is there;  looked_for: what -> the ranks that need it
    met      (group, whether started, its number among those) -> the collective;  here: the one a rank is at
    lines    each rank's started collectives that do not travel yet, in order; free: when its line is, for the next
    """

    def __init__(self, ran: Sequence[Sequence[Ran]], cluster: Cluster, cores: int | None) -> None:
        self.ran, self.cluster, self.shared = ran, cluster, SharedCores(cores)
        count = len(ran)
        self.out: list[list[Ran]] = [[] for _ in ran]
        self.at, self.since = [0] * count, [0.0] * count
        self.sent: dict[tuple, float] = {}
        self.looked_for: dict[tuple, list[int]] = {}
        self.met: dict[tuple, _Message] = {}
        self.here: list[_Message | tuple | None] = [None] * count
        self.counts: dict[tuple, int] = {}
        self.lines: list[deque[_Message]] = [deque() for _ in ran]
        self.free = [0.0] * count
        self.due: dict[tuple[int, str], _Message | tuple] = {}

    def run(self) -> list[list[Ran]]:
        self.wake(range(len(self.ran)))
        for rank, work_began_s in self.shared.turns():
            if work_began_s is not None:
                self.done(rank, work_began_s)
            self.look(rank)
        return self.out

    def done(self, rank: int, start_s: float, noticed_s: float | None = None) -> None:
        """What a rank is at has ended."""
        (action, instr, _, _, handed_over, _), now = self.ran[rank][self.at[rank]], self.shared.now
        self.out[rank].append((action, instr, start_s, now, handed_over, noticed_s))
        self.at[rank] += 1
        self.since[rank], self.here[rank] = now, None

    def look(self, rank: int) -> None:
        """What a rank does from now on until it works or waits."""
        mine, now = self.ran[rank], self.shared.now
        while self.at[rank] < len(mine):
            action, instr, start_s, end_s, handed_over, _ = mine[self.at[rank]]
            waits = instr.kind == "wait"
            if not waits and not instr.is_communication:
                if end_s == start_s:  # work that takes no time needs no core
                    self.done(rank, now)
                    continue
                self.shared.work(rank, end_s - start_s, action)
                return
            if self.here[rank] is None:
                self.here[rank] = self.due[rank, instr.ins[0]] if waits else self.come(rank, action, instr, handed_over)
            message, there_s = self.here[rank], now
            kind = instr.attr("message") if waits else instr.kind
            if isinstance(message, tuple):
                if kind == "recv":
                    if message not in self.sent:
                        self.looked_for.setdefault(message, []).append(rank)
                        return
                    there_s = self.sent[message]
                noticed_s = self.sent[message] if waits else None
            else:
                if kind != "start":
                    if message.over_s is None:
                        message.waiting.append(rank)
                        return
                    there_s = message.over_s
                noticed_s = message.over_s if waits else None
            if there_s > now:
                self.shared.at(there_s, rank)
                return
            self.done(rank, self.since[rank], noticed_s)

    def wake(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.shared.at(self.shared.now, rank)

    def count(self, *what: object) -> int:
        """How often this was asked before."""
        number = self.counts.get(what, 0)
        self.counts[what] = number + 1
        return number

    def come(self, rank: int, action: Action, instr: Instr, handed_over: int) -> _Message | tuple:
        """A rank comes to a message: what it will wait for. A send is on its way at once, whoever receives it."""
        group, now = instr.group(rank), self.shared.now
        if instr.message in ("send", "recv"):
            tag = instr.attr("sr_tag")
            which = border_key(instr, action)[1] if is_border(instr) else self.count(group, tag, instr.message)
            found: _Message | tuple = group, tag, which
            if instr.message == "send":
                self.sent[found] = now + message_time_s("send", handed_over, 2, self.cluster.link_for(group))
                self.wake(self.looked_for.pop(found, ()))
        else:
            started = instr.kind == "start"
            number = self.count(rank, group, started)
            found = self.met.setdefault((group, started, number), _Message(instr, group))
            found.came[rank] = now, handed_over
            if started:
                self.lines[rank].append(found)
            self.set_off(found)
        if instr.kind == "start":
            self.due[rank, instr.out] = found
        return found

    def set_off(self, first: _Message) -> None:
        """Let messages travel whose members are all there; started ones with none before them on their lines."""
        todo = [first]
        while todo:
            message = todo.pop()
            instr, group, cluster = message.instr, message.group, self.cluster
            started = instr.kind == "start"
            if len(message.came) < len(group) or message.over_s is not None:
                continue
            if started and any(self.lines[rank][0] is not message for rank in group):
                continue
            begin_s = max(when for when, _ in message.came.values())
            if started:
                begin_s = max(begin_s, *(self.free[rank] for rank in group))
            # of a broadcast the root alone has something to hand over
            size_bytes = max(size for _, size in message.came.values())
            link, gamma = cluster.link_for(group), cluster.device.gamma_s_per_byte
            operand_bytes = operand_of(instr, size_bytes, len(group))
            took_s = MESSAGES[instr.message].time_s(operand_bytes, len(group), link, gamma, instr.how)
            message.over_s = begin_s + took_s
            for rank in group if started else ():
                self.lines[rank].popleft()
                self.free[rank] = message.over_s
                todo += [self.lines[rank][0]] if self.lines[rank] else []
            self.wake(message.waiting)
