"""What lies where after every round of a list of sends (no arrays: who is in which sum), and what first goes wrong.

    >>> walked = walk("all_reduce", [[Send(0, 1, 0, add=True)], [Send(1, 0, 0)]], ranks=2, chunks=1)
    >>> [str(held) for held in walked.states[1][1]], walked.fault
    (['v0 + v1'], None)

The rule of a round: all sends carry what lay there when the round began. Values that meet on a rank are combined in the
order of the ranks they come from, the rank's own among them; so `direct` adds in rank order, and two partners that swap
and add get the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ....base.checks import integer
from ....base.errors import ArgumentError, ArgumentTypeError, shorten
from ....base.units import plural
from ....ops.collectives.definitions import MESSAGES
from .rounds import KINDS, REDUCING, ROOTED, STORIES, Send

Term = int | tuple  # a rank's addend, or terms that were combined in this order


@dataclass(frozen=True)
class Held:
    """A chunk on a rank: the addends in it, and how they were combined. `str` writes it as a sum."""

    mask: int
    term: Term

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks whose addends are in it, ascending; for a chunk that is never added, the rank where it started."""
        return _bits(self.mask)

    def __str__(self) -> str:
        return _term_text(self.term)


@dataclass(frozen=True)
class Arrival:
    """A chunk that came in a round."""

    source: int
    destination: int
    chunk: int
    add: bool


@dataclass(frozen=True)
class Fault:
    """The first fault: `round` from 1 (None: only the end is wrong); `rank`, `chunk`: None for several."""

    text: str
    round: int | None = None
    rank: int | None = None
    chunk: int | None = None


@dataclass(frozen=True)
class Walk:
    """states[t][rank][chunk]: what lies there after t rounds (None: nothing). With a fault they end before it."""

    states: tuple[tuple[tuple[Held | None, ...], ...], ...]
    fault: Fault | None


@dataclass(frozen=True)
class Verdict(Fault):
    """Whether a list of sends does what its collective promises (as a truth value), and a sentence that says why."""

    ok: bool = False

    def __bool__(self) -> bool:
        return self.ok


def usual_chunks(kind: str, ranks: int) -> int:
    """One per rank; of all_to_all, one per pair."""
    return ranks * ranks if STORIES[kind].moves == "pair" else ranks


def _owner(kind: str, chunk: int, ranks: int, root: int) -> int:
    """The rank on which a chunk that is never added starts."""
    definition = MESSAGES[kind]
    return root if definition.sender == "root" else chunk // ranks if STORIES[kind].moves == "pair" else chunk


def start(kind: str, ranks: int, chunks: int, root: int = 0) -> tuple[tuple[Held | None, ...], ...]:
    """What lies where before the first round: [rank][chunk]."""

    def held(rank: int, chunk: int) -> Held | None:
        if kind in REDUCING:
            return Held(1 << rank, rank)
        owner = _owner(kind, chunk, ranks, root)
        return Held(1 << owner, owner) if owner == rank else None

    return tuple(tuple(held(rank, chunk) for chunk in range(chunks)) for rank in range(ranks))


def goal(kind: str, ranks: int, chunks: int, root: int = 0) -> tuple[tuple[int | None, ...], ...]:
    """The mask of addends that must lie there at the end, [rank][chunk]; None where anything may."""

    def mask(rank: int, chunk: int) -> int | None:
        if definition.receiver == "root" and rank != root:
            return None
        if definition.cut and rank != (chunk % ranks if STORIES[kind].moves == "pair" else chunk):
            return None
        return (1 << ranks) - 1 if definition.reducing else 1 << _owner(kind, chunk, ranks, root)

    definition = MESSAGES[kind]
    return tuple(tuple(mask(rank, chunk) for chunk in range(chunks)) for rank in range(ranks))


def walk(kind: str, rounds: Sequence[Sequence[Send]], ranks: int, chunks: int, root: int = 0) -> Walk:
    """Follow the sends round by round, and compare the end with the goal."""
    state = start(kind, ranks, chunks, root)
    states = [state]
    for number, sends in enumerate(rounds, 1):
        after = _after(kind, state, sends, ranks, chunks)
        if isinstance(after, Fault):
            return Walk(tuple(states), Fault(f"Round {number}: {after.text}", number, after.rank, after.chunk))
        state = after
        states.append(state)
    return Walk(tuple(states), _unfinished(kind, state, ranks, chunks, root, len(rounds)))


def check_algorithm(
    kind: str,
    rounds: Iterable[Any],
    ranks: int,
    *,
    chunks: int | None = None,
    root: int = 0,
    max_rounds: int | None = None,
) -> Verdict:
    """Whether a list of sends is an algorithm for a collective; if not, the first rank and chunk where it goes wrong.

        check_algorithm("all_reduce", [[(0, 1, 0, "add")], [(1, 0, 0, "store")]], ranks=2, chunks=1)

    rounds      lists of sends: `Send`s, or (source, destination, chunk or chunks, "add" or "store")
    chunks      into how many the data is split; default: one per rank, of all_to_all one per pair (chunk i * n + j
                goes from i to j)
    root        position of the root, for broadcast, reduce, scatter and gather
    max_rounds  more are refused

    What is wrong with `rounds` is in the verdict. Raises ArgumentError for an invalid kind, count or root.
    """
    if kind not in KINDS:
        raise ArgumentError(f"kind {shorten(kind)}", where="check_algorithm", allowed=f"One of {', '.join(KINDS)}")
    ranks, root = check_ranks(kind, ranks, root)
    usual = usual_chunks(kind, ranks)
    chunks = usual if chunks is None else integer(1)(kind, "chunks", chunks)
    if chunks != usual and STORIES[kind].moves != "chunk":
        allowed = f"{usual}: chunks are the pieces of the ranks"
        raise ArgumentError(f"chunks={chunks} on {ranks} ranks", where=kind, allowed=allowed)
    try:
        read = as_rounds(rounds)
    except ArgumentError as error:
        return Verdict(str(error))
    if max_rounds is not None and len(read) > max_rounds:
        return Verdict(f"{len(read)} rounds; it can be done in {max_rounds}.")
    fault = walk(kind, read, ranks, chunks, root).fault
    if fault is not None:
        return Verdict(**vars(fault))
    count = sum(len(sends) for sends in read)
    return Verdict(f"{kind} of {ranks} ranks is complete after {len(read)} rounds and {count} messages.", ok=True)


def check_ranks(kind: str, ranks: Any, root: Any, where: str = "") -> tuple[int, int]:
    """Number of ranks and position of the root. Raises ArgumentError where a collective cannot have them."""
    where = where or kind
    ranks, root = integer(1)(where, "ranks", ranks), integer(0)(where, "root", root)
    if root >= ranks:
        raise ArgumentError(f"root={root}", where=where, allowed=f"Positions run from 0 to {ranks - 1}")
    if root and kind not in ROOTED:
        raise ArgumentError(f"root={root}", where=where, allowed=f"A root is for {', '.join(ROOTED)}")
    return ranks, root


def as_rounds(rounds: Iterable[Any]) -> tuple[tuple[Send, ...], ...]:
    """Rounds as tuples of `Send`s, from them or (source, destination, chunks, how) tuples. Raises ArgumentTypeError."""
    if isinstance(rounds, str) or not isinstance(rounds, Iterable):
        allowed = "A list of rounds, each a list of sends"
        raise ArgumentTypeError(f"rounds is {shorten(rounds)}", where="algorithm", allowed=allowed)
    read = []
    for number, sends in enumerate(rounds, 1):
        if isinstance(sends, str | Send) or not isinstance(sends, Iterable):
            what, hint = f"round {number} is {shorten(sends)}", "Put the sends of a round in a list of their own"
            raise ArgumentTypeError(what, where="algorithm", allowed="A list of sends", hint=hint)
        read.append(tuple(_as_send(send, f"round {number}, send {i}") for i, send in enumerate(sends, 1)))
    return tuple(read)


# ---- one round ----


def _after(kind: str, state: Sequence[Sequence[Held | None]], sends: Sequence[Send], ranks: int, chunks: int) -> Any:
    """The state after a round, or the Fault in it."""
    met: dict[tuple[int, int], list[tuple[int, Held, bool]]] = {}
    for send in sends:
        for who in (send.source, send.destination):
            if not 0 <= who < ranks:
                return Fault(f"{send}: there is no rank {who}; ranks run from 0 to {ranks - 1}.", None, who, None)
        if send.source == send.destination:
            return Fault(f"{send}: rank {send.source} sends to itself.", None, send.source, None)
        if send.add and kind not in REDUCING:
            return Fault(f"{send}: nothing is added in {kind}.", None, send.destination, send.chunks[0])
        for chunk in send.chunks:
            if not 0 <= chunk < chunks:
                text = f"{send}: there is no chunk {chunk}; chunks run from 0 to {chunks - 1}."
                return Fault(text, None, send.source, chunk)
            held = state[send.source][chunk]
            if held is None:
                return Fault(f"{send}: rank {send.source} does not have chunk {chunk} yet.", None, send.source, chunk)
            met.setdefault((send.destination, chunk), []).append((send.source, held, send.add))
    changed = [list(row) for row in state]
    for (rank, chunk), arrivals in met.items():
        if not all(add for _, _, add in arrivals):
            if len(arrivals) > 1:
                sources = ", ".join(str(source) for source, _, _ in arrivals)
                text = f"chunk {chunk} comes to rank {rank} from ranks {sources} at once, and is not added by all."
                return Fault(text, None, rank, chunk)
            changed[rank][chunk] = arrivals[0][1]
            continue
        parts = [(rank, state[rank][chunk]), *((source, held) for source, held, _ in arrivals)]
        first, *others = (held for _, held in sorted(parts, key=lambda part: part[0]))
        mask, term = first.mask, first.term
        for held in others:
            if twice := mask & held.mask:
                names = " and ".join(f"v{r}" for r in _bits(twice))
                return Fault(f"rank {rank} adds {names} to chunk {chunk} a second time.", None, rank, chunk)
            mask, term = mask | held.mask, (term, held.term)
        changed[rank][chunk] = Held(mask, term)
    return tuple(map(tuple, changed))


def _unfinished(
    kind: str, state: Sequence[Sequence[Held | None]], ranks: int, chunks: int, root: int, rounds: int
) -> Fault | None:
    """The first rank and chunk where the end is not the goal."""
    for rank, wanted in enumerate(goal(kind, ranks, chunks, root)):
        for chunk, mask in enumerate(wanted):
            held = state[rank][chunk]
            if mask is None or held is not None and held.mask == mask:
                continue
            when = f"After {plural(rounds, 'round')}"
            if held is None:
                return Fault(f"{when} rank {rank} does not have chunk {chunk}.", None, rank, chunk)
            missing = ", ".join(f"v{r}" for r in _bits(mask & ~held.mask))
            return Fault(f"{when} rank {rank} has chunk {chunk} = {held}; missing: {missing}.", None, rank, chunk)
    return None


# ---- small things ----


def _as_send(given: Any, where: str) -> Send:
    if isinstance(given, Send):
        return given
    allowed = 'Send(...), or (source, destination, chunk, "add" or "store")'
    if not isinstance(given, tuple | list) or len(given) != 4:
        raise ArgumentTypeError(shorten(given), where=where, allowed=allowed)
    source, destination, chunks, what = given
    if isinstance(what, str) and what in ("add", "store"):
        what = what == "add"
    if not isinstance(what, bool):
        raise ArgumentTypeError(f"{shorten(what)} in {shorten(given)}", where=where, allowed=allowed)
    return Send(source, destination, chunks, what)


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def _term_text(term: Term) -> str:
    """`(v0 + v1) + (v2 + v3)`; what is added from the left needs no brackets."""
    if isinstance(term, int):
        return f"v{term}"
    left, right = term
    return f"{_term_text(left)} + {f'({_term_text(right)})' if isinstance(right, tuple) else _term_text(right)}"
