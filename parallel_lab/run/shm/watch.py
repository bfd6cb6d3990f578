"""Looking at who waits for whom: warnings, time limits and cycles.

A rank that waits longer than a moment publishes the word it waits for and the rank that will write it. Following those edges from a waiting rank
leads to the rank that keeps everybody waiting, or back to a rank already passed: then nobody in the circle can ever go on.

A rank that waits goes on with what it has started meanwhile, so each rank is two nodes: its program, and the oldest of its started collectives. A
wait for a started collective of a rank leads to that second node, or to the rank's program where that has not started it yet.

Words only grow, so an edge that looks the same in two complete readings existed at every moment between them; a circle found in both readings is
therefore real, without stopping anybody.
"""

from __future__ import annotations

import sys

from ...errors import message
from .arena import (
    LANE_ENTRY,
    LANE_INDEX,
    LANE_PEER,
    LANE_STAMP,
    LANE_VALUE,
    PID,
    WAIT_INDEX,
    WAIT_LANE,
    WAIT_PEER,
    WAIT_SINCE_NS,
    WAIT_STAMP,
    WAIT_VALUE,
    Arena,
    FlightEntry,
)
from .barrier import MOVING, difference

__all__ = ["Watch", "os_state"]

CYCLE_AFTER_S = 0.1  # waits shorter than this are not looked at

Node = tuple[int, bool]  # rank, whether its started collectives are meant
Edge = tuple[int, int, int, int, bool, Node]  # stamp, peer, index, value, whether for a started collective, the node it leads to


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
        self.last_edges: dict[Node, Edge] = {}
        self.warned: set[tuple[int, ...]] = set()

    def look(self, now_s: float, resumed_at_s: float) -> list[str]:
        """Write a fault where one is due; returns new warnings.

        now_s, resumed_at_s   time.monotonic() now, and when the job started or last went on after a pause: no wait counts from before
        """
        arena = self.arena
        edges: dict[Node, Edge] = {}
        oldest = 0.0
        for rank in range(arena.map.world_size):
            slot = arena.map.slot(rank)
            waited_s = now_s - max(arena.words[slot + WAIT_SINCE_NS] / 1e9, resumed_at_s)
            edge = self._edge(slot, WAIT_STAMP, (WAIT_PEER, WAIT_INDEX, WAIT_VALUE)) if waited_s >= CYCLE_AFTER_S else None
            if edge is None:
                continue
            edges[rank, False] = edge
            oldest = max(oldest, waited_s)
            behind = self._edge(slot, LANE_STAMP, (LANE_PEER, LANE_INDEX, LANE_VALUE))
            if behind is not None:
                edges[rank, True] = behind
        steady = {node: edge for node, edge in edges.items() if self.last_edges.get(node) == edge}
        self.last_edges = edges
        circle = _circle(steady)
        if circle:
            kind, text = self._circle_text(circle, steady)
            arena.write_fault(arena.map.world_size, kind, text, ranks=sorted({rank for rank, _ in circle}))
            return []
        waiting = [node for node in steady if not node[1]]
        if oldest < min(self.warn_after_s, self.timeout_s) or not waiting:
            return []
        late = sorted({_end_of(node, steady)[0] for node in waiting})
        if oldest >= self.timeout_s:
            text = f"{self._late_text(late, waiting)} for more than timeout_s = {self.timeout_s:g} s."
            arena.write_fault(arena.map.world_size, "CollectiveTimeout", text, ranks=late)
            return []
        if tuple(late) in self.warned:
            return []
        self.warned.add(tuple(late))
        return [f"{self._late_text(late, waiting)} for {oldest:.1f} s; CollectiveTimeout follows at {self.timeout_s:g} s."]

    def _edge(self, slot: int, stamp_word: int, fields: tuple[int, int, int]) -> Edge | None:
        """What is published behind a stamp, None if that is nothing, or is over, or the rank has not yet looked."""
        arena, words = self.arena, self.arena.words
        stamp = words[slot + stamp_word]
        if not stamp or (stamp_word == LANE_STAMP and stamp == MOVING):
            return None
        peer, index, value = (words[slot + field] for field in fields)
        started = stamp_word == LANE_STAMP or bool(words[slot + WAIT_LANE])
        if peer >= arena.map.world_size or index >= arena.map.words or words[slot + stamp_word] != stamp or words[index] >= value:
            return None
        return stamp, peer, index, value, started, (peer, started and words[arena.map.slot(peer) + LANE_STAMP] != 0)

    def _entry(self, node: Node) -> FlightEntry | None:
        """The request that a node waits for."""
        rank, started = node
        entry = self.arena.recorded(rank, self.arena.words[self.arena.map.slot(rank) + LANE_ENTRY] - 1) if started else None
        return entry or self.arena.waiting_entry(rank)

    def _late_text(self, late: list[int], waiting: list[Node]) -> str:
        parts = []
        for rank in late:
            pid = self.arena.words[self.arena.map.slot(rank) + PID]
            entry = self.arena.last_entry(rank)
            last = f"last call {entry}{'' if entry.end_s is None else ' (answered)'}" if entry else "no call yet"
            parts.append(f"rank {rank} (pid {pid}, {os_state(pid)}; {last})")
        kept = sorted({rank for rank, _ in waiting} - set(late))
        first = self.arena.waiting_entry(kept[0]) if kept else None
        return f"{', '.join(parts)} keeps rank{'s' if len(kept) > 1 else ''} {', '.join(map(str, kept))} waiting in {first}"

    def _circle_text(self, circle: list[Node], edges: dict[Node, Edge]) -> tuple[str, str]:
        """(kind of fault, its text)."""
        entries = [self._entry(node) for node in circle]
        # started ones meet apart from the others: a start and a call never were to be one
        if len(circle) == 2 and not any(edges[node][4] for node in circle) and all(_is_common(entry, circle) for entry in entries):
            return "CollectiveMismatch", difference(*entries)
        after = [*circle[1:], circle[0]]
        parts = [f"rank {rank} waits for rank {peer} in {entry}" for (rank, _), (peer, _), entry in zip(circle, after, entries, strict=True)]
        hint = "Let all ranks make their calls in an order in which each finds its partners"
        return "DeadlockError", message("; ".join(parts), where="Deadlock", hint=hint)


def _is_common(entry: FlightEntry | None, circle: list[Node]) -> bool:
    """Whether it is a collective in which all ranks of the circle take part: two such calls should have been one."""
    return entry is not None and entry.kind not in ("send", "recv") and all(rank in entry.group for rank, _ in circle)


def _end_of(node: Node, edges: dict[Node, Edge]) -> Node:
    passed = set()
    while node in edges and node not in passed:  # a circle that is not yet old enough has no end
        passed.add(node)
        node = edges[node][5]
    return node


def _circle(edges: dict[Node, Edge]) -> list[Node] | None:
    """A circle of nodes in which each waits for the next, or None."""
    for start in edges:
        path: list[Node] = []
        node = start
        while node in edges and node not in path:
            path.append(node)
            node = edges[node][5]
        if node in path:
            return path[path.index(node) :]
    return None
