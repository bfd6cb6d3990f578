"""The simulator's clock: when each rank would have done what, if it had a core of its own.

Local work takes what it took here, one rank after the other; a message starts when its last member arrives and takes
what the cluster profile says. Started messages travel one by one on each rank's line. A step starts at 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.cluster import Cluster
from ..graph.actions import Action
from ..graph.ir import Instr
from .time import border_key, is_border, message_time_s, takes_border

# An instruction that ran: (action, instruction, start, end, bytes handed over, of a wait: its message's completion).
Ran = tuple[Action, Instr, float, float, int, float | None]


def virtual_clock(ran: Sequence[Sequence[Ran]], cluster: Cluster) -> list[list[Ran]]:
    """What each rank `ran` in one step, in order, on the virtual clock; messages are those of one program."""
    now = [0.0] * len(ran)
    line = [0.0] * len(ran)  # when each rank's line is free for the next message that was started
    due: dict[tuple[int, str], float] = {}
    out: list[list[Ran]] = [[] for _ in ran]
    at = [0] * len(ran)

    # what was sent to another stage -> when it is there
    arrivals: dict[tuple[tuple[int, ...], int, int], float] = {}

    def work(rank: int) -> None:
        """What a rank does until its next message, or until it needs what another stage has not sent yet."""
        mine = ran[rank]
        while at[rank] < len(mine) and (not mine[at[rank]][1].is_communication or is_border(mine[at[rank]][1])):
            action, instr, start_s, end_s, handed_over, noticed_s = mine[at[rank]]
            begin = now[rank]
            if is_border(instr):
                pair = instr.group(rank)
                key = (pair, *border_key(instr, action))
                if takes_border(instr) and key not in arrivals:
                    return
                if takes_border(instr):
                    now[rank] = max(begin, arrivals[key])
                elif instr.message == "send":
                    arrivals[key] = begin + message_time_s("send", handed_over, 2, cluster.link_for(pair))
            elif instr.kind == "wait":
                noticed_s = due.pop((rank, instr.ins[0]))
                now[rank] = max(begin, noticed_s)
            else:
                now[rank] = begin + (end_s - start_s)
            out[rank].append((action, instr, begin, now[rank], handed_over, noticed_s))
            at[rank] += 1

    for rank in range(len(ran)):
        work(rank)
    while any(at[rank] < len(mine) for rank, mine in enumerate(ran)):
        arrived, free = list(now), list(line)
        asked = [mine[at[rank]] if at[rank] < len(mine) else None for rank, mine in enumerate(ran)]
        for rank, message in enumerate(asked):
            if message is None or is_border(message[1]):
                continue
            action, instr, _, _, handed_over, noticed_s = message
            group = instr.group(rank)
            begin = end = arrived[rank]
            at_once = instr.kind != "start"
            start = max(arrived[r] if at_once else max(arrived[r], free[r]) for r in group)
            # of a broadcast the root alone has something to hand over
            size_bytes = max(asked[r][4] for r in group)
            link, gamma = cluster.link_for(group), cluster.device.gamma_s_per_byte
            over = start + message_time_s(instr.message, size_bytes, len(group), link, gamma, instr.attr("window"))
            if at_once:
                # waiting for the others is part of the message here; the event log has the members' starts
                now[rank] = end = over
            else:
                line[rank] = due[rank, instr.out] = over
            out[rank].append((action, instr, begin, end, handed_over, noticed_s))
            at[rank] += 1
        for rank in range(len(ran)):
            work(rank)
    return out
