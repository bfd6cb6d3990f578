"""What a schedule is: which rank runs which action, in which order; and what every action waits for.

    rank 0   0F0 0F1 0B0 0F2 0B1 0B2        "0F1": part 0, forward, micro-batch 1
    rank 1   1F0 1B0 1F1 1B1 1F2 1B2

A network has parts 0, 1, ... in the order of its data flow; a rank holds one of them, or several. F is the forward of a
part, B its backward. In a schedule that has W, weight gradients, backwards are divided: B makes input gradients only.
Actions that a rank runs as one (F&B of DualPipe; B and W where nothing lies between) are said to be `together`.

F of part k waits for F of part k - 1; B for the F of its part and for B of part k + 1; W for its B.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ...graph.actions import PROGRAMS, Action

Lane = tuple[Action, ...]
Key = tuple[int, str, int]  # part, kind, micro-batch
KINDS = ("F", "B", "W")


def do(part: int, kind: str, micro_batch: int) -> Action:
    """The action of a kind: what runs `PROGRAMS[kind]` of a part on a micro-batch."""
    return Action(part, kind, micro_batch, PROGRAMS[kind])


def key_of(action: Action) -> Key:
    """What an action is, without the program that it runs: part, kind, micro-batch."""
    return action.stage, action.kind, action.micro_batch


def loop(stages: int, chunks: int = 1) -> tuple[tuple[int, ...], ...]:
    """Parts that each rank holds when they go around: part k on rank k % stages.

    >>> loop(2, 2)
    ((0, 2), (1, 3))
    """
    return tuple(tuple(range(rank, stages * chunks, stages)) for rank in range(stages))


def shape_v(stages: int, chunks: int = 2) -> tuple[tuple[int, ...], ...]:
    """Parts that each rank holds when they go down and up again, so that neighbours at a turn share a rank.

    >>> shape_v(2)
    ((0, 3), (1, 2))
    """
    turns = [range(stages) if chunk % 2 == 0 else range(stages)[::-1] for chunk in range(chunks)]
    ranks = [rank for turn in turns for rank in turn]
    return tuple(tuple(k for k, where in enumerate(ranks) if where == rank) for rank in range(stages))


def two_way(stages: int) -> tuple[tuple[int, ...], ...]:
    """Parts that each rank holds when two copies of the network run against each other.

    >>> two_way(2)
    ((0, 1), (1, 0))
    """
    return tuple((rank, stages - 1 - rank) for rank in range(stages))


@dataclass(frozen=True)
class Order:
    """The actions of each rank, in order, as data.

    name           what to call it
    parts          parts of the network
    micro_batches  pieces of the batch, each run through every part
    holds          the parts on each rank; two copies of the network put a part on two ranks
    ranks          the actions of each rank
    together       (rank, position) of actions that run as one with the action after them
    cap            micro-batches x parts whose activations a rank can keep: a number, or one per rank; None: any
    """

    name: str
    parts: int
    micro_batches: int
    holds: tuple[tuple[int, ...], ...]
    ranks: tuple[Lane, ...]
    together: frozenset[tuple[int, int]] = field(default=frozenset())
    cap: int | tuple[int, ...] | None = None

    @cached_property
    def where(self) -> dict[Key, int]:
        """The rank that runs an action."""
        return {key_of(action): rank for rank, lane in enumerate(self.ranks) for action in lane}

    @cached_property
    def splits_backward(self) -> bool:
        """Whether some backward is divided: B makes the input gradient, W the weight gradients."""
        return any(action.kind == "W" for lane in self.ranks for action in lane)

    def is_full(self, action: Action) -> bool:
        """Whether this is a backward with all that belongs to it: this schedule's are not divided."""
        return action.kind == "B" and not self.splits_backward

    def needs(self, action: Action) -> list[Key]:
        """What must have run before an action, wherever it ran: its input first.

        >>> Order("", 2, 1, loop(2), ()).needs(do(0, "B", 0))
        [(1, 'B', 0), (0, 'F', 0)]
        """
        part, kind, n = key_of(action)
        if kind == "F":
            return [(part - 1, "F", n)] if part else []
        if kind == "B":
            return [*([(part + 1, "B", n)] if part + 1 < self.parts else []), (part, "F", n)]
        return [(part, "B", n)]

    def readers(self, action: Action) -> list[Key]:
        """The action of another part that reads what this one makes."""
        part, kind, n = key_of(action)
        if kind == "F" and part + 1 < self.parts:
            return [(part + 1, "F", n)]
        return [(part - 1, "B", n)] if kind == "B" and part else []

    def cells(self, rank: int) -> Iterator[tuple[Action, ...]]:
        """The actions of a rank, those that run as one in one tuple."""
        lane, at = self.ranks[rank], 0
        if not self.together:
            yield from ((action,) for action in lane)
            return
        while at < len(lane):
            size = 1
            while (rank, at + size - 1) in self.together and at + size < len(lane):
                size += 1
            yield lane[at : at + size]
            at += size

    @cached_property
    def waits(self) -> tuple[tuple[tuple[tuple[Action, ...], tuple[Key, ...], tuple[tuple[Key, int], ...]], ...], ...]:
        """Per rank its cells, each with its keys and what must have run before it: (key, rank that runs it, or its own
        where nobody does). Many clocks run over one order.
        """
        lists = []
        for rank in range(len(self.ranks)):
            found = []
            for cell in self.cells(rank):
                keys = tuple(map(key_of, cell))
                needs = [key for action in cell for key in self.needs(action) if key not in keys]
                found.append((cell, keys, tuple((key, self.where.get(key, rank)) for key in needs)))
            lists.append(tuple(found))
        return tuple(lists)

    def held(self, rank: int) -> list[int]:
        """Micro-batches x parts whose activations a rank keeps after each of its actions: from F to the end of its
        backward, which is W where the backward is divided."""
        now, counts = 0, []
        for action in self.ranks[rank]:
            now += (action.kind == "F") - (action.kind == "W" or self.is_full(action))
            counts.append(now)
        return counts

    @cached_property
    def peaks(self) -> tuple[int, ...]:
        """The largest number of micro-batches x parts that each rank keeps activations of."""
        return tuple(max(self.held(rank), default=0) for rank in range(len(self.ranks)))


def lanes(
    cells: Iterable[Iterable[Action | tuple[Action, ...]]],
) -> tuple[tuple[Lane, ...], frozenset[tuple[int, int]]]:
    """`ranks` and `together` of an Order, from a list per rank in which a tuple of actions runs as one."""
    ranks, together = [], set()
    for rank, cell_list in enumerate(cells):
        lane: list[Action] = []
        for cell in cell_list:
            if isinstance(cell, Action):
                lane.append(cell)
            else:
                together.update((rank, len(lane) + i) for i in range(len(cell) - 1))
                lane.extend(cell)
        ranks.append(tuple(lane))
    return tuple(ranks), frozenset(together)
