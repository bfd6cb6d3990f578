"""Why a schedule cannot run: its faults, in order, each with a sentence.

    placement    an action on a rank that does not hold the part; a backward on another rank than its forward; copies of
                 a part that another part has fewer of
    number       a part, micro-batch or kind of action that the schedule does not have
    twice        an action listed two times                 never   one that is missing
    memory       a forward for which the rank has no room
    input        an action before another of the same rank that it needs
    deadlock     ranks that wait for each other in a circle

After a fault the check goes on as if that action had been in order, so that one mistake is reported once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from ...base.errors import ArgumentError
from ...graph.actions import Action
from .order import KINDS, Key, Order, key_of


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: its kind (see above), the rank and position of the action (-1: of none), a sentence."""

    kind: str
    rank: int
    position: int
    action: str
    text: str

    def __str__(self) -> str:
        return self.text


def find_faults(order: Order, cap: int | Sequence[int] | None = None, *, rendezvous: bool = False) -> list[Fault]:
    """The faults of a schedule; none if it can run.

    cap         micro-batches x parts whose activations a rank can keep: a number, or one per rank
    rendezvous  messages are sent when their receiver asks for them, and the sender waits until then
    """
    count = len(order.ranks)
    caps = None if cap is None else [cap] * count if isinstance(cap, int) else list(cap)
    if caps is not None and len(caps) != count:
        raise ArgumentError(
            f"cap={cap!r}", where="schedule check", allowed=f"A number, or one for each of {count} ranks"
        )
    faults = list(_of_actions(order))
    faults += _of_copies(order) if not faults else ()
    faults += _missing(order)
    if caps is not None:
        faults += _of_memory(order, caps)
    faults += _of_waits(order)
    if rendezvous and not any(fault.kind != "memory" for fault in faults):
        faults += _of_messages(order)
    return faults


def _name(key: Key) -> str:
    return f"{key[0]}{key[1]}{key[2]}"


def _of_actions(order: Order) -> Iterator[Fault]:
    """What is wrong with an action by itself, or with doing it here or again."""
    seen: dict[Key, int] = {}
    forwards = {key_of(a): r for r in reversed(range(len(order.ranks))) for a in order.ranks[r] if a.kind == "F"}
    for rank, lane in enumerate(order.ranks):
        for at, action in enumerate(lane):
            key, where = key_of(action), f"action {at} of rank {rank}"
            part, kind, n = key
            if fault := _number(order, action):
                yield Fault("number", rank, at, str(action), f"{where}: {action} has {fault}")
                continue
            if part not in order.holds[rank]:
                holders = [r for r, parts in enumerate(order.holds) if part in parts]
                places = " and ".join(map(str, holders)) or "none"
                held = ", ".join(map(str, order.holds[rank])) or "none"
                text = f"{where}: {action} cannot run here: part {part} lies on rank {places}, rank {rank} has {held}"
                yield Fault("placement", rank, at, str(action), text)
            elif kind != "F" and forwards.get((part, "F", n), rank) != rank:
                other = forwards[part, "F", n]
                text = f"{where}: {action} needs what {part}F{n} kept, which ran on rank {other}: do both on one rank"
                yield Fault("placement", rank, at, str(action), text)
            if key in seen:
                first = "the same rank" if seen[key] == rank else f"rank {seen[key]}"
                yield Fault(
                    "twice", rank, at, str(action), f"{where}: {action} is done a second time; {first} has done it"
                )
            seen.setdefault(key, rank)


def _of_copies(order: Order) -> Iterator[Fault]:
    """A rank that runs a part for some micro-batches holds a copy of it: copies of the network share no part."""
    ways: dict[tuple[int, ...], int] = {}  # the ranks that a micro-batch goes through -> the first one that does
    for n in range(order.micro_batches):
        way = tuple(order.where.get((part, "F", n), -1) for part in range(order.parts))
        if -1 not in way:
            ways.setdefault(way, n)
    for (first, n), (second, m) in combinations(ways.items(), 2):
        shared = next((k for k, (a, b) in enumerate(zip(first, second, strict=True)) if a == b), None)
        apart = next(k for k, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
        if shared is not None:
            a, b, one = first[apart], second[apart], first[shared]
            text = (
                f"{apart}F{m} runs on rank {b} and {apart}F{n} on rank {a}, but {shared}F{n} and {shared}F{m} both on"
            )
            told = f"rank {one}: a copy of part {apart} is one of the whole network"
            at = next(i for i, a in enumerate(order.ranks[b]) if key_of(a) == (apart, "F", m))
            yield Fault("placement", b, at, f"{apart}F{m}", f"action {at} of rank {b}: {text} {told}")
            return


def _number(order: Order, action: Action) -> str:
    if action.kind not in KINDS:
        return f"kind {action.kind!r}; a schedule has {', '.join(KINDS)}"
    if not 0 <= action.stage < order.parts:
        return f"part {action.stage}; the network has parts 0 to {order.parts - 1}"
    if not 0 <= action.micro_batch < order.micro_batches:
        return f"micro-batch {action.micro_batch}; there are 0 to {order.micro_batches - 1}"
    return ""


def _of_memory(order: Order, caps: Sequence[int]) -> Iterator[Fault]:
    frees = "W" if order.splits_backward else "B"
    for rank, lane in enumerate(order.ranks):
        kept: list[Key] = []
        early: set[Key] = set()  # backwards before their forward, which are reported as input
        full = False
        for at, action in enumerate(lane):
            part, kind, n = key_of(action)
            if _number(order, action):
                continue
            if kind == "F":
                if (part, frees, n) in early:
                    continue
                if len(kept) >= caps[rank] and not full:
                    shown = ", ".join(_name(key) for key in kept[:6]) + (", ..." if len(kept) > 6 else "")
                    text = f"action {at} of rank {rank}: no memory for {action}: rank {rank} keeps {len(kept)} of "
                    text += f"{caps[rank]} ({shown or 'none'}); a {frees} of one of them must come first"
                    yield Fault("memory", rank, at, str(action), text)
                    full = True  # one cause, told once, until there is room again
                kept.append(key_of(action))
            elif kind == frees and (part, "F", n) in kept:
                kept.remove((part, "F", n))
                full = full and len(kept) >= caps[rank]
            elif kind == frees:
                early.add((part, frees, n))


def _missing(order: Order) -> Iterator[Fault]:
    for n in range(order.micro_batches):
        for part in range(order.parts):
            for kind in KINDS if order.splits_backward else "FB":
                if (part, kind, n) in order.where:
                    continue
                holders = [rank for rank, parts in enumerate(order.holds) if part in parts]
                waits = [
                    f"{a} of rank {rank}"
                    for rank, lane in enumerate(order.ranks)
                    for a in lane
                    if (part, kind, n) in order.needs(a)
                ]
                home = f"it belongs on rank {' or '.join(map(str, holders))}" if holders else "no rank holds that stage"
                text = f"{part}{kind}{n} is never done; {home}"
                text += f", and {' and '.join(waits)} {'waits' if len(waits) == 1 else 'wait'} for it" if waits else ""
                yield Fault("never", holders[0] if holders else -1, -1, f"{part}{kind}{n}", text)


def _of_waits(order: Order) -> Iterator[Fault]:
    """Run the ranks without a clock; what stops them."""
    count = len(order.ranks)
    lists = [list(order.cells(rank)) for rank in range(count)]
    firsts = [[0] * len(cells) for cells in lists]  # position of a cell's first action
    for first, cells in zip(firsts, lists, strict=True):
        for i in range(1, len(cells)):
            first[i] = first[i - 1] + len(cells[i - 1])
    where: dict[Key, tuple[int, int]] = {}
    for rank, cells in enumerate(lists):
        for i, cell in enumerate(cells):
            for action in cell:
                where.setdefault(key_of(action), (rank, i))
    done: set[Key] = set()
    at, ready = [0] * count, list(range(count))
    readers: dict[Key, list[int]] = {}
    stopped: dict[int, Key] = {}  # rank -> what it waits for

    for rank, cells in enumerate(lists):  # what a rank does too late for itself
        for i, cell in enumerate(cells):
            for j, action in enumerate(cell):
                # of a backward's needs its own forward is the plainest: it is reported first
                for key in reversed(order.needs(action)) if not _number(order, action) else ():
                    other, later = where.get(key, (-1, 0))
                    before = {key_of(a) for a in cell[:j]}
                    if other == rank and later >= i and key not in before and key not in done:
                        text = (
                            f"action {firsts[rank][i] + j} of rank {rank}: {action} needs {_name(key)}, which the rank "
                        )
                        text += f"does only at action {firsts[rank][later]}: {_name(key)} must come first"
                        done.add(key)  # from here on as if it had
                        yield Fault("input", rank, firsts[rank][i] + j, str(action), text)

    def go_on(rank: int) -> None:
        while at[rank] < len(lists[rank]):
            cell = lists[rank][at[rank]]
            for action in cell:
                for key in order.needs(action) if not _number(order, action) else ():
                    if key not in done and key in where and where[key][0] != rank:
                        stopped[rank] = key  # an action that is nowhere has been told
                        readers.setdefault(key, []).append(rank)
                        return
            at[rank] += 1
            stopped.pop(rank, None)
            for key in map(key_of, cell):
                done.add(key)
                ready.extend(readers.pop(key, ()))

    while True:
        while ready:
            go_on(ready.pop())
        if not stopped:
            return
        circle = _circle({rank: where[key][0] for rank, key in stopped.items()})
        heads = [(rank, lists[rank][at[rank]], stopped[rank]) for rank in circle]
        steps = [
            f"rank {r} waits, before {'+'.join(map(str, c))}, for {_name(k)} of rank {where[k][0]}" for r, c, k in heads
        ]
        rank, cell, key = heads[0]
        spot = firsts[rank][at[rank]]
        text = f"deadlock: {'; '.join(steps)}; no rank can go on"
        yield Fault("deadlock", rank, spot, "+".join(map(str, cell)), text)
        done.add(key)  # as if it had come
        ready.extend(readers.pop(key, ()))


def _circle(waits: dict[int, int]) -> list[int]:
    """Ranks that wait for each other: every rank that waits does so for one that waits too."""
    rank, seen = min(waits), []
    while rank not in seen:
        seen.append(rank)
        rank = waits[rank]
    circle = seen[seen.index(rank) :]
    first = circle.index(min(circle))
    return circle[first:] + circle[:first]


def _of_messages(order: Order) -> Iterator[Fault]:
    """Run the ranks with messages for which sender and receiver wait for each other: receives right before the action
    that reads them, sends right after the one that makes them."""
    programs: list[list[tuple[str, Key, int]]] = []  # (what, action that makes the value, the other rank)
    for rank in range(len(order.ranks)):
        program = []
        for cell in order.cells(rank):
            needs = [key for a in cell for key in order.needs(a) if order.where[key] != rank]
            program += [("receive", key, order.where[key]) for key in needs]
            sent = [(key_of(a), order.where[r]) for a in cell for r in order.readers(a) if order.where[r] != rank]
            program += [("send", key, other) for key, other in sent]
        programs.append(program)
    at, ranks = [0] * len(programs), range(len(programs))
    work = list(ranks)
    while work:
        rank = work.pop()
        while at[rank] < len(programs[rank]):
            what, key, other = programs[rank][at[rank]]
            partner = ("receive" if what == "send" else "send", key, rank)
            if at[other] == len(programs[other]) or programs[other][at[other]] != partner:
                break
            at[rank] += 1
            at[other] += 1
            work.append(other)
    stopped = {rank: programs[rank][at[rank]] for rank in ranks if at[rank] < len(programs[rank])}
    if stopped:
        circle = _circle({rank: other for rank, (_, _, other) in stopped.items()})
        steps = []
        for rank in circle:
            what, key, other = stopped[rank]
            steps.append(f"rank {rank} waits to {what} {_name(key)} {'to' if what == 'send' else 'from'} rank {other}")
        rank = circle[0]
        name = _name(stopped[rank][1])
        text = f"deadlock: {'; '.join(steps)}; each waits for its partner before it goes on"
        position = next((i for i, a in enumerate(order.ranks[rank]) if str(a) == name), -1)
        yield Fault("deadlock", rank, position, name, text)
