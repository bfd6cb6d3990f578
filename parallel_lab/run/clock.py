"""The simulator's clock: when each rank would have done what, if it had a core of its own.

Local work takes what it took here, one rank after the other; a message starts when the last member of its group arrives and takes what the cluster
profile says. Times start at 0 for every step.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..cluster import Cluster
from ..cost.time import message_time_s
from ..graph.ir import Instr

__all__ = ["Ran", "virtual_clock"]

# One instruction that ran: (phase, instruction, start, end, bytes handed over).
Ran = tuple[str, Instr, float, float, int]


def virtual_clock(ran: Sequence[Sequence[Ran]], cluster: Cluster) -> list[list[Ran]]:
    """The same instructions on the virtual clock.

    ran  per rank, what it ran in one step, in order; ranks of a group must have run its messages at equal positions (one program for all)
    """
    now = [0.0] * len(ran)
    out: list[list[Ran]] = [[] for _ in ran]
    for position in range(max((len(mine) for mine in ran), default=0)):
        arrived = list(now)
        for rank, mine in enumerate(ran):
            phase, instr, start_s, end_s, handed_over = mine[position]
            if instr.is_communication:
                group = instr.group(rank)
                start = max(arrived[r] for r in group)
                end = start + message_time_s(instr.kind, handed_over, len(group), cluster.link_for(group), window=instr.attr("window"))
                # waiting for the others is part of the message here; the event log can tell them apart by the members' starts
                begin = arrived[rank]
            else:
                begin = arrived[rank]
                end = begin + (end_s - start_s)
            now[rank] = end
            out[rank].append((phase, instr, begin, end, handed_over))
    return out
