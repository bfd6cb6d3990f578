"""Schedules as the CSV that PyTorch's pipeline runtime (torch.distributed.pipelining, 2.13) loads and dumps.

    0F0,0F1,,0I0,0W0,0B1          compute only: a line per rank, a cell per action; empty cells are waiting
    0UNSHARD,0F0,0SEND_F0,...     lowered: with messages, with the gathering of sharded parameters, with REDUCE_GRAD

F is a forward, B a whole backward, I an input gradient, W weight gradients; "(0F4;7B0)OVERLAP_F_B" runs as one. Where
backwards are divided a whole one is our B and W that run as one. What a lowered file says beyond the actions follows
from them: reading drops it, writing makes it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...base.errors import ArgumentError, shorten
from ...graph.actions import Action
from .order import Order, do, key_of
from .text import check_length, check_numbers

_KINDS = "F|I|B|W|UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B"
_WORD = re.compile(rf"(\d{{1,9}})({_KINDS})(\d{{0,9}})", re.ASCII)
_AS_ONE = re.compile(r"\((.*)\)OVERLAP_F_B")
_MOST_GATHERED = 3  # parts whose parameters PyTorch's lowering gathers ahead
_FORMS = "0F0, 0B0, 0I0, 0W0, (0F1;1B0)OVERLAP_F_B; lowered also 0SEND_F0, 1RECV_F0, 1SEND_B0, 0RECV_B0, 0UNSHARD, ..."


def write_csv(order: Order, lowered: bool = False) -> str:
    """The schedule as CSV. Raises ArgumentError: a part on two ranks has no place in PyTorch's files (nor, lowered, a
    schedule that cannot run)."""
    twice = sorted({k for parts in order.holds for k in parts if sum(k in p for p in order.holds) > 1})
    if twice:
        what = f"part {twice[0]} lies on {sum(twice[0] in p for p in order.holds)} ranks"
        raise ArgumentError(
            what, where=f"schedule {order.name!r} as CSV", allowed="In PyTorch's files each part is on one"
        )
    ranks = range(len(order.ranks))
    if not lowered:
        return "".join(",".join(_cell(order, cell) for cell in order.cells(rank)) + "\n" for rank in ranks)
    return "".join(",".join(row) + "\n" for row in _with_messages(order, [list(_gathered(order, r)) for r in ranks]))


def _cell(order: Order, cell: tuple[Action, ...]) -> str:
    words, whole = [], {(a.stage, a.micro_batch) for a in cell if a.kind == "W"}
    for action in cell:
        at_once = not order.splits_backward or (action.stage, action.micro_batch) in whole
        if action.kind == "B" or not (action.kind == "W" and f"{action.stage}B{action.micro_batch}" in words):
            kind = "I" if action.kind == "B" and not at_once else action.kind
            words.append(f"{action.stage}{kind}{action.micro_batch}")
    return words[0] if len(words) == 1 else f"({';'.join(words)})OVERLAP_F_B"


_Cell = tuple[Action, ...] | str


def _gathered(order: Order, rank: int) -> Iterator[_Cell]:
    """The actions of a rank, with where parameters are gathered and freed, and gradients reduced at a part's end."""
    cells, active = list(order.cells(rank)), set()
    for at, cell in enumerate(cells):
        following: list[int] = []
        for later in cells[at:]:
            following += [k for k in dict.fromkeys(a.stage for a in later) if k not in following]
            if len(following) >= _MOST_GATHERED:
                break
        for part in sorted(active - set(following)):
            yield f"{part}RESHARD"
        yield from (f"{part}UNSHARD" for part in following if part not in active)
        active = set(following)
        yield cell
        for action in cell:
            ends = action.kind == "W" or order.is_full(action)
            if ends and not any(a.stage == action.stage and a.kind in "BW" for c in cells[at + 1 :] for a in c):
                yield f"{action.stage}REDUCE_GRAD"
    yield from (f"{part}RESHARD" for part in sorted(active))


def _with_messages(order: Order, rows: list[list[_Cell]]) -> list[list[str]]:
    """Rows with SEND after what makes a value, and RECV put in its reader's row at that moment: both in one order."""
    lines: list[list[str]] = [[] for _ in rows]
    there: list[set[tuple[int, str, int]]] = [set() for _ in rows]
    at = [0] * len(rows)
    while any(n < len(row) for n, row in zip(at, rows, strict=True)):
        moved = False
        for rank, row in enumerate(rows):
            if at[rank] == len(row):
                continue
            cell = row[at[rank]]
            if isinstance(cell, str):
                lines[rank].append(cell)
            else:
                inputs = [key for a in cell for key in order.needs(a)[:1] if a.kind != "W" and key[0] != a.stage]
                if any(key not in there[rank] for key in inputs):
                    continue
                lines[rank].append(_cell(order, cell))
                for action in cell:
                    there[rank].add(key_of(action))
                    for reader in order.readers(action):
                        target = order.where.get(reader, rank)
                        if target != rank:
                            lines[rank].append(f"{action.stage}SEND_{action.kind}{action.micro_batch}")
                            lines[target].append(f"{reader[0]}RECV_{action.kind}{action.micro_batch}")
                            there[target].add(key_of(action))
            at[rank] += 1
            moved = True
        if not moved:
            raise ArgumentError(
                "no rank can go on", where=f"schedule {order.name!r} as CSV", hint="See schedule.check()"
            )
    return lines


def read_csv(text: str) -> list[list[tuple[Action, ...]]]:
    """The actions of each rank. Raises ArgumentError: line and cell of what is wrong."""
    check_length(text, "schedule as CSV")
    rows: list[list[list[tuple[int, str, int]]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        row = []
        for column, word in enumerate(line.split(","), 1):
            where, word = f"line {number}, cell {column}", word.strip()
            as_one = _AS_ONE.fullmatch(word)
            words = as_one[1].split(";") if as_one else [word] if word else []
            if cell := [action for one in words if (action := _read(one.strip(), where))]:
                row.append(cell)
        rows.append(row)
    while rows and not rows[-1]:
        rows.pop()
    if not rows:
        raise ArgumentError("the file has no actions", where="schedule as CSV", allowed=_FORMS)
    kinds = {"F": "F", "I": "B", "W": "W", "B": "B"}
    if any(letter in "IW" for row in rows for cell in row for _, letter, _ in cell):
        kinds["B"] = "BW"
    ranks = [[tuple(do(k, kind, n) for k, x, n in cell for kind in kinds[x]) for cell in row] for row in rows]
    check_numbers(ranks, "schedule as CSV")
    return ranks


def _read(word: str, where: str) -> tuple[int, str, int] | None:
    """Part, letter and micro-batch of a word; None if it is not a computation."""
    match = _WORD.fullmatch(word)
    if not match or (not match[3]) != (match[2] in ("UNSHARD", "RESHARD", "REDUCE_GRAD")):
        raise ArgumentError(f"{shorten(word)} is no action", where=where, allowed=_FORMS)
    part, letter, n = match.groups()
    return (int(part), letter, int(n)) if len(letter) == 1 else None
