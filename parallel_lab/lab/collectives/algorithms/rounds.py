"""Collective algorithms as lists of sends: who sends which chunks to whom in which round.

    >>> for number, sends in enumerate(ring_scatter(3), 1):
    ...     print(number, *sends, sep="   ")
    1   0 -> 1: chunk 2, add   1 -> 2: chunk 0, add   2 -> 0: chunk 1, add
    2   0 -> 1: chunk 1, add   1 -> 2: chunk 2, add   2 -> 0: chunk 0, add

A chunk is a part of the data, with one place on every rank. Where chunks lie at the start and at the end:

    all_reduce                S is split into chunks; every rank has its addend of each -> every rank the sum of each
    reduce                    the same                                                  -> the root the sum of each
    reduce_scatter            chunk i is the piece of rank i, addends on every rank     -> rank i the sum of chunk i
    all_gather, gather        rank i has chunk i                                        -> every rank (the root) has all
    broadcast, scatter        the root has all chunks                                   -> every rank has all (its own)
    all_to_all                rank i has chunks i * n + j of all j                      -> rank j has those of all i

S is the whole tensor (all_reduce, reduce_scatter: what one rank hands over; all_gather: the result; all_to_all: what
all ranks hold together). Sources: Thakur, Rabenseifner, Gropp 2005 (ring, recursive doubling and halving, Rabenseifner,
binomial trees, pairwise, folding for other counts than powers of two); Bruck et al. 1997; Chan et al. 2007 (chains,
scatter and all_gather, lower bounds).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ....base.checks import flag, integer, sequence_of
from ....ops.collectives.definitions import MESSAGES, ceil_log2


class Story(NamedTuple):
    """What moves: "chunk" (the value split as one likes), "piece" (one per rank) or "pair" (one per pair of ranks), and
    what lies where before and after.
    """

    moves: str
    starts: str
    goal: str


STORIES = {
    "all_reduce": Story(
        "chunk", "every rank has a partial sum of each chunk (hatched)", "every rank has the sum of every chunk"
    ),
    "all_gather": Story("piece", "every rank has one chunk", "every rank has every chunk"),
    "reduce_scatter": Story(
        "piece", "every rank has a partial sum of each chunk (hatched)", "every rank has the sum of its own chunk"
    ),
    "all_to_all": Story("pair", "every rank has a chunk for each rank", "every rank has the chunks that are for it"),
    "broadcast": Story("chunk", "rank {root} has everything", "every rank has everything"),
    "reduce": Story(
        "chunk", "every rank has a partial sum of each chunk (hatched)", "rank {root} has the sum of every chunk"
    ),
    "gather": Story("piece", "every rank has one chunk", "rank {root} has every chunk"),
    "scatter": Story("piece", "rank {root} has everything", "every rank has its own chunk"),
}
KINDS = tuple(STORIES)
ROOTED = tuple(kind for kind in KINDS if MESSAGES[kind].rooted)
REDUCING = tuple(kind for kind in KINDS if MESSAGES[kind].reducing)
RANK, CHUNKS = integer(), sequence_of(integer(), "The number of a chunk, or several of them", one=True)


@dataclass(frozen=True)
class Send:
    """One message between positions in the group: `chunks`, which the receiver adds to its own (`add`) or stores."""

    source: int
    destination: int
    chunks: tuple[int, ...]
    add: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.chunks, Iterable) and not isinstance(self.chunks, str | bytes):
            object.__setattr__(self, "chunks", tuple(self.chunks))
        for name, check in (("source", RANK), ("destination", RANK), ("chunks", CHUNKS), ("add", flag)):
            object.__setattr__(self, name, check("Send", name, getattr(self, name)))

    def __str__(self) -> str:
        which = f"chunk {self.chunks[0]}" if len(self.chunks) == 1 else f"chunks {span_text(self.chunks)}"
        return f"{self.source} -> {self.destination}: {which}, {'add' if self.add else 'store'}"


@dataclass(frozen=True)
class Phase:
    """Rounds that belong together, as the "reduce_scatter" of a ring all_reduce. Sends of a round happen together."""

    name: str
    rounds: tuple[tuple[Send, ...], ...]


# ---- pieces that algorithms are made of ----

Rounds = list[list[Send]]


def phase(name: str, rounds: Rounds) -> Phase:
    """The rounds as a phase; empty ones are left out."""
    return Phase(name, tuple(tuple(sends) for sends in rounds if sends))


def mirrored(rounds: Rounds) -> Rounds:
    """The rounds backwards, every message the other way: of a reduce a broadcast, of a reduce_scatter an all_gather."""
    return [[Send(s.destination, s.source, s.chunks) for s in sends] for sends in reversed(rounds)]


def ring_scatter(n: int) -> Rounds:
    """In round t, rank r passes chunk r - t to its right neighbour; after n - 1 rounds, rank r has all of chunk r."""
    return [[Send(r, (r + 1) % n, ((r - t) % n,), True) for r in range(n)] for t in range(1, n)]


def ring_gather(n: int) -> Rounds:
    """Chunk r starts on rank r and goes once around the ring: every rank passes on what it received last."""
    return [[Send(r, (r + 1) % n, ((r - t + 1) % n,)) for r in range(n)] for t in range(1, n)]


def _tree(n: int, root: int, chunks: Callable[[int, int], Iterable[int]], *, add: bool) -> Rounds:
    """A binomial tree towards the root. Counted from the root, v sends in the round of its lowest bit to v without it.

    chunks   (v, bit) -> what v sends: its subtree are v ... v + bit - 1
    """
    rank = [(root + v) % n for v in range(n)]
    rounds: Rounds = []
    for level in range(ceil_log2(n)):
        bit = 1 << level
        rounds.append([Send(rank[v], rank[v - bit], tuple(chunks(v, bit)), add) for v in range(bit, n, 2 * bit)])
    return rounds


def tree_spread(n: int, root: int) -> Rounds:
    """The tree of `tree_reduce` the other way: the root's value on every rank."""
    return mirrored(tree_reduce(n, root))


def tree_gather(n: int, root: int) -> Rounds:
    """The sender hands over the chunks of its whole subtree."""
    return _tree(n, root, lambda v, bit: [(root + u) % n for u in range(v, min(v + bit, n))], add=False)


def tree_reduce(n: int, root: int) -> Rounds:
    """The sender hands over its sum of all chunks."""
    return _tree(n, root, lambda v, bit: range(n), add=True)


def halving(members: Sequence[int], *, near_first: bool = False) -> Rounds:
    """Partners whose positions differ in one bit swap halves and add; position q of 2^k ends with chunk q's sum."""
    p = len(members)
    bits = [1 << i for i in range(p.bit_length() - 1)]
    kept = [list(range(p)) for _ in range(p)]
    rounds: Rounds = []
    for bit in bits if near_first else reversed(bits):
        theirs = [tuple(c for c in kept[q] if (c ^ q) & bit) for q in range(p)]
        rounds.append([Send(members[q], members[q ^ bit], theirs[q], True) for q in range(p)])
        kept = [[c for c in kept[q] if not (c ^ q) & bit] for q in range(p)]
    return rounds


def folded(n: int, chunks: int, inner: Callable[[list[int]], list[Phase]]) -> list[Phase]:
    """An algorithm for a power of two, on n ranks: some hand a neighbour their data first, and get the result back."""
    extra, whole = n - (1 << floor_log2(n)), tuple(range(chunks))
    members = [2 * i + 1 for i in range(extra)] + list(range(2 * extra, n))
    give = [[Send(2 * i, 2 * i + 1, whole, True) for i in range(extra)]]
    back = [[Send(2 * i + 1, 2 * i, whole) for i in range(extra)]]
    phases = inner(members)
    return phases if not extra else [phase("fold", give), *phases, phase("unfold", back)]


def everybody(n: int, chunk: Callable[[int, int], int], *, add: bool = False) -> Rounds:
    """One round in which every rank sends to every other; `chunk(source, destination)`."""
    return [[Send(i, j, (chunk(i, j),), add) for i in range(n) for j in range(n) if i != j]]


# ---- from the root, to the root ----


def chain_reduce(n: int, root: int, k: int) -> Rounds:
    """Segment s goes down the chain n - 1, n - 2, ..., root, one rank behind the segment before it."""
    rank = [(root + v) % n for v in range(n)]
    rounds: Rounds = [[] for _ in range(n - 2 + k if n > 1 else 0)]
    for v in range(n - 1, 0, -1):
        for s in range(k):
            rounds[n - 1 - v + s].append(Send(rank[v], rank[v - 1], (s,), True))
    return rounds


def chain_gather(n: int, root: int) -> Rounds:
    """Every rank of the chain passes on what it received last; the root gets the nearest chunk first."""
    rank = [(root + v) % n for v in range(n)]
    return [[Send(rank[v], rank[v - 1], (rank[v + t - 1],)) for v in range(1, n - t + 1)] for t in range(1, n)]


def bruck_gather(n: int) -> Rounds:
    """In round i, rank r sends all it has (r, r + 1, ...) to r - 2^i; in the last round only what is missing there."""
    steps = [1 << i for i in range(ceil_log2(n))]
    return [[Send(r, (r - d) % n, tuple((r + j) % n for j in range(min(d, n - d)))) for r in range(n)] for d in steps]


# ---- all_to_all: chunk i * n + j goes from i to j ----


def to_all_ring(n: int) -> Rounds:
    """Only neighbours talk: in round t, rank r passes on what started t - 1 places before it and has further to go."""

    def travelling(r: int, t: int) -> tuple[int, ...]:
        source = (r - t + 1) % n
        return tuple(source * n + (source + distance) % n for distance in range(t, n))

    return [[Send(r, (r + 1) % n, travelling(r, t)) for r in range(n)] for t in range(1, n)]


def to_all_pairwise(n: int) -> Rounds:
    """In round t, rank r sends its chunk to r + t."""
    return [[Send(r, (r + t) % n, (r * n + (r + t) % n,)) for r in range(n)] for t in range(1, n)]


def to_all_bruck(n: int) -> Rounds:
    """A chunk with d places to go moves 2^i places in round i where d has that bit."""

    def passing(r: int, bit: int) -> tuple[int, ...]:
        chunks = []
        for distance in (d for d in range(n) if d & bit):
            source = (r - (distance & (bit - 1))) % n  # where it started: it has come as far as the lower bits say
            chunks.append(source * n + (source + distance) % n)
        return tuple(chunks)

    bits = [1 << i for i in range(ceil_log2(n))]
    return [[Send(r, (r + bit) % n, passing(r, bit)) for r in range(n)] for bit in bits]


# ---- small things ----


def is_power_of_two(n: int) -> bool:
    """For n of at least 1."""
    return n & (n - 1) == 0


def floor_log2(n: int) -> int:
    """The exponent of the largest power of two up to n."""
    return n.bit_length() - 1


def span_text(numbers: Sequence[int]) -> str:
    """`0-3, 6` for 0, 1, 2, 3, 6."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
