"""A schedule as text: a line per rank, "0F0 0F1 0B0 0B1"; actions that run as one are joined, "0F4+3B0".

Empty lines and what follows a # are no actions. `read_text` says where a text is wrong: its line, and the word in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...base.errors import ArgumentError, shorten
from ...graph.actions import Action
from .order import Order, do

_ACTION = re.compile(r"(\d{1,9})([A-Za-z_]+)(\d{1,9})", re.ASCII)
LARGEST_TEXT = 1_000_000  # characters
MOST_MISSING = 10_000  # parts times micro-batches of a text with few actions
FORM = "An action is part, kind, micro-batch: 0F0, 3B1, 2W0 (kinds F, B and W)"


def write_text(order: Order) -> str:
    """The schedule as text, a line per rank."""
    rows = [" ".join("+".join(map(str, cell)) for cell in order.cells(rank)) for rank in range(len(order.ranks))]
    return "\n".join(rows)


def read_action(word: str, where: str) -> Action:
    """The action of a word such as "0F0". Raises ArgumentError, which says `where`."""
    match = _ACTION.fullmatch(word)
    if not match:
        raise ArgumentError(f"{shorten(word)} is no action", where=where, allowed=FORM)
    part, kind, micro_batch = match.groups()
    if kind not in ("F", "B", "W"):
        raise ArgumentError(f"{shorten(word)} is of kind {shorten(kind)}", where=where, allowed=FORM)
    return do(int(part), kind, int(micro_batch))


def read_text(text: str) -> list[list[tuple[Action, ...]]]:
    """The actions of each rank, from a line per rank. Raises ArgumentError: line, column and word of what is wrong."""
    check_length(text, "schedule")
    ranks: list[list[tuple[Action, ...]]] = []
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
    check_numbers(ranks, "schedule")
    return ranks


def check_length(text: str, where: str) -> None:
    """Raise ArgumentError for a text that would take long to read."""
    if len(text) > LARGEST_TEXT:
        raise ArgumentError(f"{len(text):,} characters", where=where, allowed=f"At most {LARGEST_TEXT:,}")


def check_numbers(ranks: list[list[tuple[Action, ...]]], where: str) -> None:
    """Raise ArgumentError where a few actions have numbers so large that the ones that are missing would fill the
    memory: a check of the schedule names each of them."""
    actions = [action for cells in ranks for cell in cells for action in cell]
    parts, micro_batches = (1 + max((getattr(a, n) for a in actions), default=0) for n in ("stage", "micro_batch"))
    most = max(MOST_MISSING, 4 * len(actions))
    if parts * micro_batches > most:
        what = f"{len(actions)} actions of {parts:,} parts and {micro_batches:,} micro-batches"
        raise ArgumentError(what, where=where, allowed=f"Parts times micro-batches is at most {most:,} in such a text")


def placed(cells: Iterable[Iterable[tuple[Action, ...]]]) -> tuple[tuple[int, ...], ...]:
    """The parts that each rank holds, as far as its actions say: those that it runs something of."""
    return tuple(tuple(sorted({a.stage for cell in rank for a in cell})) for rank in cells)
