"""A schedule as text: a line per rank, "0F0 0F1 0B0 0B1"; actions that run as one are joined, "0F4+3B0".

Empty lines and what follows a # are no actions. `read_text` says where a text is wrong: its line, and the word in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...base.errors import ArgumentError
from ...graph.actions import Action
from .order import Order, do

_ACTION = re.compile(r"(\d+)([A-Za-z_]+)(\d+)")
FORM = "An action is part, kind, micro-batch: 0F0, 3B1, 2W0 (kinds F, B and W)"


def write_text(order: Order) -> str:
    """The schedule as text, a line per rank."""
    rows = [" ".join("+".join(map(str, cell)) for cell in order.cells(rank)) for rank in range(len(order.ranks))]
    return "\n".join(rows)


def read_action(word: str, where: str) -> Action:
    """The action of a word such as "0F0". Raises ArgumentError, which says `where`."""
    found = _ACTION.fullmatch(word)
    if not found:
        raise ArgumentError(f"{word!r} is no action", where=where, allowed=FORM)
    part, kind, micro_batch = found.groups()
    if kind not in ("F", "B", "W"):
        raise ArgumentError(f"{word!r} is of kind {kind!r}", where=where, allowed=FORM)
    return do(int(part), kind, int(micro_batch))


def read_text(text: str) -> list[list[tuple[Action, ...]]]:
    """The actions of each rank, from a line per rank. Raises ArgumentError: line, column and word of what is wrong."""
    ranks = []
    for number, line in enumerate(text.splitlines(), 1):
        words = list(re.finditer(r"\S+", line.partition("#")[0]))
        if not words:
            continue
        rank, cells = len(ranks), []
        for word in words:
            where = f"line {number}, column {word.start() + 1} (rank {rank})"
            cells.append(tuple(read_action(one, where) for one in word.group().split("+")))
        ranks.append(cells)
    if not ranks:
        raise ArgumentError("the text has no actions", where="schedule", hint='Write a line per rank: "0F0 0B0"')
    return ranks


def placed(cells: Iterable[Iterable[tuple[Action, ...]]]) -> tuple[tuple[int, ...], ...]:
    """The parts that each rank holds, as far as its actions say: those that it runs something of."""
    return tuple(tuple(sorted({a.stage for cell in rank for a in cell})) for rank in cells)
