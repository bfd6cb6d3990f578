"""Looking at which ranks wait for which.

A rank that waits longer than a moment publishes the word it waits for and the rank that will write it. Following those
edges from a waiting rank leads to the rank that keeps everybody waiting, or back to a rank already passed: then nobody
in the circle can ever go on.

A rank that waits goes on with what it has started meanwhile, so each rank is two nodes: its program, and the oldest of
its started collectives. A wait for a started collective of a rank leads to that second node, or to the rank's program
where that has not started it yet.

Words only grow, so an edge that looks the same in two complete readings existed at every moment between them; a circle
found in both readings is therefore real, without stopping anybody.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from ...base.errors import message
from ...base.system import STATES, states_of
from ..faults import difference
from ..flight import FlightEntry
from ..supervisor import Stall
from .arena import FINISHED, LANE, PID, PROGRAM, RUN, STARTED, Arena, Wait

CYCLE_AFTER_S = 0.1  # waits shorter than this are not looked at
Node = tuple[int, bool]  # rank, whether its started collectives are meant
Edge = tuple[Wait, bool, Node]  # whether the wait is for a started collective; the node it leads to


def os_state(pid: int) -> str:
    """What a process does, in words."""
    return states_of([pid])[pid]


def halted(pids: Mapping[int, int | None]) -> list[int]:
    """Ranks whose processes a signal has stopped (SIGSTOP, Ctrl-Z).  pids: by rank; None, 0: not known"""
    states = states_of(pid for pid in pids.values() if pid)
    return [rank for rank, pid in pids.items() if pid and states[pid] == STATES["T"]]


class Watch:
    """What a supervisor sees of the waits in one arena."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.begin_run()

    def begin_run(self) -> None:
        """Forget what was seen before."""
        self.last_edges: dict[Node, Edge] = {}

    def stall(self, since_s: float, patience_s: float) -> Stall | None:
        """Ranks that wait in a circle, or delay others by `patience_s`; waits before `since_s` (monotonic) are out."""
        arena, now_s = self.arena, time.monotonic()
        edges: dict[Node, Edge] = {}
        oldest = 0.0
        for rank in range(arena.map.world_size):
            edge = self._edge(rank, PROGRAM)
            waited_s = 0.0 if edge is None else now_s - max(edge[0].since_ns / 1e9, since_s)
            if waited_s < CYCLE_AFTER_S:
                continue
            edges[rank, False] = edge
            oldest = max(oldest, waited_s)
            behind = self._edge(rank, LANE)
            if behind is not None:
                edges[rank, True] = behind
        steady = {node: edge for node, edge in edges.items() if self.last_edges.get(node) == edge}
        self.last_edges = edges
        circle = _circle(steady)
        if circle:
            kind, text = self._circle_text(circle, steady)
            return Stall(tuple(sorted({rank for rank, _ in circle})), text, oldest, kind)
        waiting = [node for node in steady if not node[1]]
        if oldest < patience_s or not waiting:
            return None
        late = sorted({_end_of(node, steady)[0] for node in waiting})
        return Stall(tuple(late), self._late_text(late, waiting), oldest)

    def absent(self, pids: Sequence[int | None]) -> tuple[list[int], Stall | None]:
        """Ranks that have neither called `init` nor ended, and whether others wait for them in it.  pids: per rank"""
        words, slot, run = self.arena.words, self.arena.map.slot, self.arena.words[RUN]
        ranks = range(self.arena.map.world_size)
        missing = [r for r in ranks if words[slot(r) + STARTED] != run and words[slot(r) + FINISHED] != run]
        waiting = {r: wait for r in ranks if r not in missing and (wait := self.arena.wait(r, PROGRAM))}
        if not missing or not waiting:
            return missing, None
        waited_s = time.monotonic() - min(wait.since_ns for wait in waiting.values()) / 1e9
        states = [f"rank {r}{f' (pid {pids[r]}, {os_state(pids[r])})' if pids[r] else ''}" for r in missing]
        text = f"{', '.join(states)}: init() not called, {ranks_text(waiting)} waiting in it"
        return missing, Stall(tuple(missing), text, waited_s)

    def _edge(self, rank: int, where: int) -> Edge | None:
        """What a rank waits for, None if that is nothing, or is over, or the rank has not yet looked."""
        arena, words = self.arena, self.arena.words
        wait = arena.wait(rank, where)
        if wait is None or wait.peer >= arena.map.world_size or wait.word >= arena.map.words:
            return None
        if words[wait.word] >= wait.value:
            return None
        started = where == LANE or bool(wait.of_started)
        return wait, started, (wait.peer, started and words[arena.map.slot(wait.peer) + LANE] != 0)

    def _entry(self, rank: int, wait: Wait) -> FlightEntry | None:
        """The request of `rank` that waits."""
        entry = self.arena.recorded(rank, wait.entry - 1) if wait.entry else None
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
        ranks = f"rank{'s' if len(kept) > 1 else ''} {', '.join(map(str, kept))}"
        return f"{', '.join(parts)} keeps {ranks} waiting in {first}"

    def _circle_text(self, circle: list[Node], edges: dict[Node, Edge]) -> tuple[str, str]:
        """(kind of fault, its text)."""
        entries = [self._entry(rank, edges[rank, started][0]) for rank, started in circle]
        # started ones meet apart from the others: a start and a call never were to be one
        plain = not any(edges[node][1] for node in circle)
        if len(circle) == 2 and plain and all(_is_common(entry, circle) for entry in entries):
            return "CollectiveMismatch", difference(*entries)
        after = [*circle[1:], circle[0]]
        parts = [
            f"rank {rank} waits for rank {peer} in {entry}"
            for (rank, _), (peer, _), entry in zip(circle, after, entries, strict=True)
        ]
        hint = "Let all ranks make their calls in an order in which each finds its partners"
        return "DeadlockError", message("; ".join(parts), where="Deadlock", hint=hint)


def _is_common(entry: FlightEntry | None, circle: list[Node]) -> bool:
    """Whether it is a collective in which all ranks of the circle take part: two such calls should have been one."""
    return entry is not None and entry.kind not in ("send", "recv") and all(rank in entry.group for rank, _ in circle)


def _end_of(node: Node, edges: dict[Node, Edge]) -> Node:
    passed = set()
    while node in edges and node not in passed:  # a circle that is not yet old enough has no end
        passed.add(node)
        node = edges[node][2]
    return node


def _circle(edges: dict[Node, Edge]) -> list[Node] | None:
    """A circle of nodes in which each waits for the next, or None."""
    for start in edges:
        path: list[Node] = []
        node = start
        while node in edges and node not in path:
            path.append(node)
            node = edges[node][2]
        if node in path:
            return path[path.index(node) :]
    return None


def ranks_text(ranks: Collection[int]) -> str:
    """Ranks in words, runs of them as ranges.

    >>> ranks_text([0, 1, 2, 5]), ranks_text([3])
    ('ranks 0-2, 5', 'rank 3')
    """
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges_text(ranks)}"


def ranges_text(ranks: Collection[int]) -> str:
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
