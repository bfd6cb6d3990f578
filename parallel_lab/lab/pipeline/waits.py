"""Why a rank waits: from an empty place in its lane back along what it waits for.

    why = why_waiting(settings, rank=3, position=0)
    print(why.text)     Rank 3 waits from 0 to 3 for 2F0 of rank 2. 2F0 waits for 1F0 of rank 1, ...

A link of the chain is a cell that ends when the one before it in the chain can begin: what brings its input (an arrow
across ranks), or what its own rank does first. The chain ends where the wait began: before that the rank was busy.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...cost.schedules.order import Key, key_of
from .settings import Settings, cells_of

EPSILON = 1e-9


@dataclass(frozen=True)
class Link:
    """One thing that is waited for: a cell of a rank, when it runs; how: "input" or "busy"."""

    rank: int
    position: int
    name: str
    start: float
    end: float
    how: str


@dataclass(frozen=True)
class Why:
    """Why a rank waits before the cell at `position` (the number of its cells: after the last), from when to when."""

    rank: int
    position: int
    start: float
    end: float
    links: tuple[Link, ...]
    text: str


def number(time: float) -> str:
    """A time of the clock, short."""
    return f"{round(time, 3):g}"


def name_of(cell: tuple) -> str:
    """A cell as a schedule's text has it: "0F4", or "0F4+3B0" where several run as one."""
    return "+".join(map(str, cell))


def gaps(settings: Settings) -> list[tuple[int, int, float, float]]:
    """(rank, position, start, end) of every wait: before a cell, or after a rank's last until the step ends."""
    timed, waits = settings.timed, []
    over = timed.timing.makespan
    cells = cells_of(settings.schedule)
    for rank, spans in enumerate(timed.spans):
        before = 0.0
        for position, (start, end) in enumerate(spans):
            if start > before + EPSILON:
                waits.append((rank, position, before, start))
            before = end
        if over > before + EPSILON or len(spans) < len(cells[rank]):
            waits.append((rank, len(spans), before, over))
    return waits


def why_waiting(settings: Settings, rank: int, position: int) -> Why | None:
    """Why a rank waits before a cell; None where it does not."""
    wait = next((gap for gap in gaps(settings) if gap[:2] == (rank, position)), None)
    return None if wait is None else _Chains(settings).why(*wait)


def all_waits(settings: Settings) -> list[Why]:
    """Why the ranks wait, wherever they do."""
    chains = _Chains(settings)
    return [chains.why(*gap) for gap in gaps(settings)]


class _Chains:
    def __init__(self, settings: Settings) -> None:
        self.settings, self.timed = settings, settings.timed
        self.cells = cells_of(settings.schedule)
        self.place: dict[Key, tuple[int, int]] = {
            key_of(action): (rank, at)
            for rank, mine in enumerate(self.cells)
            for at, cell in enumerate(mine[: self.timed.counts[rank]])
            for action in cell
        }

    def link(self, rank: int, position: int, how: str) -> Link:
        start, end = self.timed.spans[rank][position]
        return Link(rank, position, name_of(self.cells[rank][position]), start, end, how)

    def before(self, rank: int, position: int) -> Link | None:
        """What ends last of all that a cell needs: the reason why it does not begin earlier."""
        start = self.timed.spans[rank][position][0]
        inside = {key_of(a) for a in self.cells[rank][position]}
        needs = [k for a in self.cells[rank][position] for k in self.settings.schedule.needs(a) if k not in inside]
        for key in needs:
            other, at = self.place[key]
            delay = self.settings.delay(other, rank)
            if other != rank and abs(self.timed.spans[other][at][1] + delay - start) < EPSILON:
                return self.link(other, at, "input")
        return self.link(rank, position - 1, "busy") if position else None

    def why(self, rank: int, position: int, start: float, end: float) -> Why:
        links: list[Link] = []
        if position == self.timed.counts[rank] < len(self.cells[rank]):
            pass  # it does not wait for a time: what it needs does not come
        elif position == self.timed.counts[rank]:
            last = max(range(len(self.cells)), key=lambda r: self.timed.spans[r][-1][1] if self.timed.spans[r] else 0.0)
            links.append(self.link(last, self.timed.counts[last] - 1, "input"))
        elif (first := self.before(rank, position)) is not None:
            links.append(first)
        while links and links[-1].start > start + EPSILON:
            following = self.before(links[-1].rank, links[-1].position)
            if following is None:
                break
            links.append(following)
        return Why(rank, position, start, end, tuple(links), self.text(rank, position, start, end, links))

    def text(self, rank: int, position: int, start: float, end: float, links: list[Link]) -> str:
        waits = f"Rank {rank} waits {number(end - start)}, from {number(start)} to {number(end)}"
        cells = self.cells[rank]
        if position == self.timed.counts[rank]:
            if position < len(cells):
                stuck = f"{name_of(cells[position])} cannot run, as {self.missing(cells[position])}"
                return f"Rank {rank} stops at {number(start)}: {stuck}."
            waits += ": it has nothing left to do, and the step ends with"
        else:
            waits += f", before {name_of(cells[position])}, for"
        parts, at = [], 0
        while at < len(links):
            link = links[at]
            run = [link]
            while at + 1 < len(links) and links[at + 1].how == "busy":
                at += 1
                run.append(links[at])
            at += 1
            mine = " ".join(one.name for one in reversed(run))
            does = f"{link.name} of rank {link.rank} (until {number(link.end)}"
            latency = 0.0 if parts else self.settings.delay(link.rank, rank)
            does += f", and {number(latency)} for its message)" if latency else ")"
            if len(run) > 1:
                does += f", which comes after {' '.join(mine.split()[:-1])} there"
            parts.append(does)
        text = f"{waits} {parts[0]}" if parts else waits
        for one in parts[1:]:
            text += f", that for {one}"
        return f"{text}."

    def missing(self, cell: tuple) -> str:
        """What a cell that cannot run still needs."""
        inside = {key_of(a) for a in cell}
        for action in cell:
            for key in self.settings.schedule.needs(action):
                if key not in inside and key not in self.place:
                    name = f"{key[0]}{key[1]}{key[2]}"
                    there = key in self.settings.schedule.where
                    return f"{name} cannot run either" if there else f"no rank has {name} yet"
        return "what comes before it there cannot"
