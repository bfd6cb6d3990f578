"""The simulator's clock: when each rank would have done what, if it had a core of its own.

Local work takes what it took here, one rank after the other; a message starts when the last member of its group arrives and takes what the cluster
profile says. Messages that are started and waited for later travel one after the other on each rank's line, beside its work. Times start at 0 for
every step.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..cluster import Cluster
from ..cost.time import message_time_s
from ..graph.ir import Instr

__all__ = ["Ran", "virtual_clock"]

# One instruction that ran: (phase, instruction, start, end, bytes handed over, of a wait: when its message was complete).
Ran = tuple[str, Instr, float, float, int, float | None]


def virtual_clock(ran: Sequence[Sequence[Ran]], cluster: Cluster) -> list[list[Ran]]:
    """The same instructions on the virtual clock.

    ran  per rank, what it ran in one step, in order; ranks of a group must have run its messages at equal positions (one program for all)
    """
    now = [0.0] * len(ran)
    line = [0.0] * len(ran)  # when each rank's line is free for the next message that was started
    due: dict[tuple[int, str], float] = {}
    out: list[list[Ran]] = [[] for _ in ran]
    for position in range(max((len(mine) for mine in ran), default=0)):
        arrived, free = list(now), list(line)
        for rank, mine in enumerate(ran):
            phase, instr, start_s, end_s, handed_over, noticed_s = mine[position]
            begin = end = arrived[rank]
            if instr.is_communication:
                group = instr.group(rank)
                at_once = instr.kind != "start"
                start = max(arrived[r] if at_once else max(arrived[r], free[r]) for r in group)
                gamma = cluster.device.gamma_s_per_byte
                over = start + message_time_s(instr.message, handed_over, len(group), cluster.link_for(group), gamma, window=instr.attr("window"))
                if at_once:
                    # waiting for the others is part of the message here; the event log can tell them apart by the members' starts
                    end = over
                else:
                    line[rank] = due[rank, instr.out] = over
            elif instr.kind == "wait":
                noticed_s = due.pop((rank, instr.ins[0]))
                end = max(begin, noticed_s)
            else:
                end = begin + (end_s - start_s)
            now[rank] = end
            out[rank].append((phase, instr, begin, end, handed_over, noticed_s))
    return out
