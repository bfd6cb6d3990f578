"""Supervising ranks that are processes of their own: a launcher's children, or processes that met at a hub.

A wait counts only once all ranks have attached (starting Python takes as long as it takes); until then a limit of its
own holds.
"""

from __future__ import annotations

import time

from ..flight import FlightEntry
from ..supervisor import Action, Facts, Limits, RecordDeath, StopRun, Supervisor
from .arena import ABORT, FINISHED, RAISED, RUN, Arena
from .watch import Watch, halted, ranks_text


class SharedWorld:
    """The ranks of one arena and their supervisor: the transport calls `look` often, and `left` or `died` at an end."""

    def __init__(self, arena: Arena, limits: Limits) -> None:
        self.arena, self.world_size = arena, arena.map.world_size
        self.supervisor = Supervisor(self.world_size, limits, takes_jobs=False)
        self.pids: list[int | None] = [None] * self.world_size
        self._watch = Watch(arena)
        self._left: set[int] = set()
        self._dead: dict[int, tuple[str, dict]] = {}  # what is known of each
        arena.begin_run(1)

    @property
    def stopped(self) -> bool:
        """True once there is a fault: every rank that asks for something from now on raises it."""
        return bool(self.arena.words[ABORT])

    def fault(self) -> dict | None:
        """The note of the fault that stopped the run ("kind", "text", perhaps "rank" or "ranks"; "author"), or None."""
        found = self.arena.read_fault()
        return None if found is None else {**found[1], "author": found[0]}

    def look(self) -> list[Action]:
        """Write a fault where one is due; returns what is left to do with processes and users."""
        left_to_do = []
        for action in self.supervisor.tick(time.monotonic(), self._facts()):
            match action:
                case StopRun(kind, text, ranks):
                    self.arena.write_fault(self.world_size, kind, text, ranks=list(ranks))
                case RecordDeath(rank):  # keeps the note of an exception, if the rank has left one
                    text, attributes = self._dead[rank]
                    self.arena.write_fault(self.world_size, "RankDied", text, rank=rank, **attributes)
                case _:
                    left_to_do.append(action)
        return left_to_do

    def _facts(self) -> Facts:
        ended = {"reported": self._left, "dead": self._dead}
        if self.stopped:
            left = [r for r in range(self.world_size) if r not in self._left and r not in self._dead]
            stopped = halted({r: self.pids[r] for r in left})
            culprit = self.fault().get("rank")
            if culprit not in left:  # one that raised at the same time writes its traceback, too
                culprit = next((rank for rank in left if self.raised(rank)), culprit)
            return Facts(**ended, fault=True, culprit=culprit, halted=stopped)
        limits, ranks = self.supervisor.limits, range(self.world_size)
        if self.supervisor.state == "starting":
            missing, stall = self._watch.absent(self.pids)
            return Facts(**ended, ready=[rank for rank in ranks if rank not in missing], stall=stall)
        patience_s = min(limits.warn_after_s, limits.timeout_s)
        return Facts(**ended, stall=self._watch.stall(self.supervisor.counting_since_s, patience_s))

    def raised(self, rank: int) -> bool:
        """Whether `rank` has said that it ends with an error of its own."""
        words = self.arena.words
        return bool(words[self.arena.map.slot(rank) + RAISED] == words[RUN])

    def left(self, rank: int) -> None:
        """The process of `rank` has ended in order: ranks that still wait for it raise."""
        self._left.add(rank)
        self.arena.words[self.arena.map.slot(rank) + FINISHED] = self.arena.words[RUN]

    def died(self, rank: int, text: str, **attributes: object) -> None:
        """The process of `rank` has ended, not in order: everybody stops, for the reason `text`."""
        self._dead[rank] = text, attributes

    def last_entry(self, rank: int) -> FlightEntry | None:
        """What `rank` asked for last."""
        return self.arena.last_entry(rank)

    def stopped_places(self, but: set[int]) -> str:
        """Where the ranks outside `but` were when the run stopped, in one line."""
        places: dict[str, list[int]] = {}
        for rank in sorted(set(range(self.world_size)) - but):
            entry = self.last_entry(rank)
            if entry is None:
                place = "before their first call"
            else:
                place = f"{'in' if entry.end_s is None else 'after'} {entry.kind} "
                place += f"#{entry.number}{f' ({entry.origin})' if entry.origin else ''}"
            places.setdefault(place, []).append(rank)
        return "; ".join(f"{ranks_text(ranks)} {place}" for place, ranks in places.items())
