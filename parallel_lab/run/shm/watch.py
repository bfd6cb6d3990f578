"""Looking at who waits for whom: warnings, time limits and cycles.

A rank that waits longer than a moment publishes the word it waits for and the rank that will write it. Following those edges from a waiting rank
leads to the rank that keeps everybody waiting, or back to a rank already passed: then nobody in the circle can ever go on.

Words only grow, so an edge that looks the same in two complete readings existed at every moment between them; a circle found in both readings is
therefore real, without stopping anybody.
"""

from __future__ import annotations

import sys

from ...errors import message
from .arena import PID, WAIT_INDEX, WAIT_PEER, WAIT_SINCE_NS, WAIT_STAMP, WAIT_VALUE, Arena

__all__ = ["Watch", "os_state"]

CYCLE_AFTER_S = 0.1  # waits shorter than this are not looked at

Edge = tuple[int, int, int, int]  # stamp, peer, index, value


def os_state(pid: int) -> str:
    """The state letter of a process in words, "unknown" where the system does not say."""
    if sys.platform != "linux":
        return "unknown"
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            letter = file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "gone"
    names = {"R": "running", "S": "sleeping", "D": "waiting for a disk", "T": "stopped by a signal", "t": "stopped by a debugger", "Z": "ended"}
    return names.get(letter, letter)


class Watch:
    """The supervisor's view of one pool's waits."""

    def __init__(self, arena: Arena, timeout_s: float, warn_after_s: float) -> None:
        self.arena, self.timeout_s, self.warn_after_s = arena, timeout_s, warn_after_s
        self.begin_run()

    def begin_run(self) -> None:
        self.last_edges: dict[int, Edge] = {}
        self.warned: set[tuple[int, ...]] = set()

    def look(self, now_s: float, resumed_at_s: float) -> list[str]:
        """Write a fault where one is due; returns new warnings.

        now_s, resumed_at_s   time.monotonic() now, and when the job started or last went on after a pause: no wait counts from before
        """
        arena, words = self.arena, self.arena.words
        edges: dict[int, Edge] = {}
        oldest = 0.0
        for rank in range(arena.map.world_size):
            slot = arena.map.slot(rank)
            stamp = words[slot + WAIT_STAMP]
            if not stamp:
                continue
            since_s = max(words[slot + WAIT_SINCE_NS] / 1e9, resumed_at_s)
            edge = (stamp, words[slot + WAIT_PEER], words[slot + WAIT_INDEX], words[slot + WAIT_VALUE])
            if now_s - since_s < CYCLE_AFTER_S or edge[1] >= arena.map.world_size or edge[2] >= arena.map.words:
                continue
            if words[slot + WAIT_STAMP] != stamp or words[edge[2]] >= edge[3]:
                continue  # the wait is over, or its rank has not yet looked
            edges[rank] = edge
            oldest = max(oldest, now_s - since_s)
        steady = {rank: edge for rank, edge in edges.items() if self.last_edges.get(rank) == edge}
        self.last_edges = edges
        circle = _circle(steady)
        if circle:
            arena.write_fault(arena.map.world_size, "DeadlockError", self._circle_text(circle), ranks=circle)
            return []
        if oldest < min(self.warn_after_s, self.timeout_s) or not steady:
            return []
        late = sorted({_end_of(rank, steady) for rank in steady})
        if oldest >= self.timeout_s:
            text = f"{self._late_text(late, steady)} for more than timeout_s = {self.timeout_s:g} s."
            arena.write_fault(arena.map.world_size, "CollectiveTimeout", text, ranks=late)
            return []
        if tuple(late) in self.warned:
            return []
        self.warned.add(tuple(late))
        return [f"{self._late_text(late, steady)} for {oldest:.1f} s; CollectiveTimeout follows at {self.timeout_s:g} s."]

    def _late_text(self, late: list[int], edges: dict[int, Edge]) -> str:
        parts = []
        for rank in late:
            pid = self.arena.words[self.arena.map.slot(rank) + PID]
            entry = self.arena.last_entry(rank)
            last = f"last call {entry}{'' if entry.end_s is None else ' (answered)'}" if entry else "no call yet"
            parts.append(f"rank {rank} (pid {pid}, {os_state(pid)}; {last})")
        waiting = sorted(set(edges) - set(late))
        first = self.arena.last_entry(waiting[0]) if waiting else None
        return f"{', '.join(parts)} keeps rank{'s' if len(waiting) > 1 else ''} {', '.join(map(str, waiting))} waiting in {first}"

    def _circle_text(self, circle: list[int]) -> str:
        after = [*circle[1:], circle[0]]
        parts = [f"rank {rank} waits for rank {peer} in {self.arena.last_entry(rank)}" for rank, peer in zip(circle, after, strict=True)]
        return message("; ".join(parts), where="Deadlock", hint="Let all ranks make their calls in an order in which each finds its partners")


def _end_of(rank: int, edges: dict[int, Edge]) -> int:
    while rank in edges:
        rank = edges[rank][1]
    return rank


def _circle(edges: dict[int, Edge]) -> list[int] | None:
    """A circle of ranks in which each waits for the next, or None."""
    for start in edges:
        path: list[int] = []
        rank = start
        while rank in edges and rank not in path:
            path.append(rank)
            rank = edges[rank][1]
        if rank in path:
            return path[path.index(rank) :]
    return None
