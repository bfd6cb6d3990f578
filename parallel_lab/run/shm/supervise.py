"""Looking after ranks that are processes of their own: a launcher's children, or processes that met at a hub.

The supervisor holds the arena and knows which ranks have attached, ended, died. `look` is called about twenty times a second by whoever waits for
them.
A wait counts only once all ranks have attached (starting Python takes as long as it takes); until then a limit of its own holds.
"""

from __future__ import annotations

import time

from .arena import ABORT, FINISHED, RUN, STARTED, WAIT_STAMP, Arena, FlightEntry
from .watch import Watch, os_state

__all__ = ["Supervisor"]

LATE_START_S = 10.0  # a rank that comes to `init` this much later than another is worth a warning


class Supervisor:
    """What is known about the ranks of one arena.

    pids           process per rank, None where it is not known
    timeout_s      a collective that some rank does not reach in this time stops the run
    warn_after_s   after this time a warning names the ranks that are missing
    start_limit_s  the same for `init`; None: timeout_s
    """

    def __init__(self, arena: Arena, timeout_s: float, warn_after_s: float, start_limit_s: float | None = None) -> None:
        self.arena = arena
        self._start_limit_s = timeout_s if start_limit_s is None else start_limit_s
        self.world_size = arena.map.world_size
        self.pids: list[int | None] = [None] * self.world_size
        self.ended: set[int] = set()
        self._watch = Watch(arena, timeout_s, warn_after_s)
        self._all_here_s: float | None = None
        self._first_wait_s: float | None = None
        self._warned_late = False
        arena.begin_run(1)

    @property
    def stopped(self) -> bool:
        """True once there is a fault: every rank that asks for something from now on raises it."""
        return bool(self.arena.words[ABORT])

    def fault(self) -> dict | None:
        """The note of the fault that stopped the run ("kind", "text", perhaps "rank" or "ranks"; "author"), or None."""
        found = self.arena.read_fault()
        return None if found is None else {**found[1], "author": found[0]}

    def look(self) -> list[str]:
        """Write a fault where one is due; returns new warnings."""
        now = time.monotonic()
        if self.stopped:
            return []
        if self._all_here_s is None:
            missing = self.not_attached()
            if missing:
                return self._starting(now, missing)
            self._all_here_s = now
        return self._watch.look(now, self._all_here_s)

    def not_attached(self) -> list[int]:
        """Ranks that have neither called `init` nor ended."""
        words, slot, run = self.arena.words, self.arena.map.slot, self.arena.words[RUN]
        return [r for r in range(self.world_size) if words[slot(r) + STARTED] != run and words[slot(r) + FINISHED] != run]

    def _starting(self, now: float, missing: list[int]) -> list[str]:
        words, slot = self.arena.words, self.arena.map.slot
        waiting = [r for r in range(self.world_size) if r not in missing and words[slot(r) + WAIT_STAMP]]
        if not waiting:
            self._first_wait_s = None
            return []
        if self._first_wait_s is None:
            self._first_wait_s = now
        waited_s = now - self._first_wait_s
        states = [f"rank {r}{f' (pid {self.pids[r]}, {os_state(self.pids[r])})' if self.pids[r] else ''}" for r in missing]
        limit_s = self._start_limit_s
        text = f"{', '.join(states)}: init() not called, {ranks_text(waiting)} waiting in it"
        if waited_s >= limit_s:
            self.arena.write_fault(self.world_size, "CollectiveTimeout", f"{text} for more than {limit_s:g} s.", ranks=missing)
            return []
        if waited_s < min(LATE_START_S, limit_s) or self._warned_late:
            return []
        self._warned_late = True
        return [f"{text} for {waited_s:.0f} s; CollectiveTimeout follows at {limit_s:g} s."]

    def finished(self, rank: int) -> None:
        """Rank `rank` is gone, in order: whoever still waits for it raises."""
        self.ended.add(rank)
        slot = self.arena.map.slot(rank)
        self.arena.words[slot + FINISHED] = self.arena.words[RUN]

    def died(self, rank: int, text: str, **attributes: object) -> None:
        """Rank `rank` is gone, not in order: everybody stops, for the reason `text`."""
        self.ended.add(rank)
        self.arena.write_fault(self.world_size, "RankDied", text, rank=rank, **attributes)

    def interrupt(self) -> None:
        """Let every collective raise KeyboardInterrupt."""
        self.arena.write_fault(self.world_size, "Interrupted", "The run was interrupted.")

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
                place = f"{'in' if entry.end_s is None else 'after'} {entry.kind} #{entry.number}{f' ({entry.origin})' if entry.origin else ''}"
            places.setdefault(place, []).append(rank)
        return "; ".join(f"{ranks_text(ranks)} {place}" for place, ranks in places.items())


def ranks_text(ranks: list[int] | tuple[int, ...]) -> str:
    """Ranks in words, runs of them as ranges.

    >>> ranks_text([0, 1, 2, 5]), ranks_text([3])
    ('ranks 0-2, 5', 'rank 3')
    """
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges_text(ranks)}"


def ranges_text(ranks: list[int] | tuple[int, ...]) -> str:
    """Numbers, with three or more in a row as a range.

    >>> ranges_text([0, 1, 2, 5, 6])
    '0-2, 5, 6'
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(parts)
