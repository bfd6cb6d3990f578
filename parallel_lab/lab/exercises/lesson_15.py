"""Lesson 15, context parallel: who holds which tokens, merging blocks, when a message hides, packed documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...base.checks import checked, integer, sequence_of
from ...base.units import plural, table_lines
from ...cost.planner.sequence_messages import least_hidden_tokens
from ...layout.placements import Placement, VisibleKeys, attention_work
from .book import Exercise
from .ideas import MISCONCEPTIONS, Cases, Idea, by_cases, earlier_question, slip
from .reading import reading, whole_numbers
from .verdict import Part, Wrong, reached

# ---- 15.1: zigzag ----


def shared_out(n: int, speeds: Sequence[int], rank: int) -> list[int]:
    """The positions of a rank that has an early part and its mirror image, as long as its speed says."""
    start, stop = (n * sum(speeds[:r]) // (2 * sum(speeds)) for r in (rank, rank + 1))
    return [*range(start, stop), *range(n - stop, n - start)]


def zigzag(n: int, ranks: int, rank: int) -> list[int]:
    """The positions of one of equally fast ranks."""
    return shared_out(n, (1,) * ranks, rank)


ORDER = "positions, in order"


def _longest(kind: str, n: int, ranks: int) -> str:
    pairs = {name: max(attention_work(Placement(name, n, ranks)).per_rank) for name in (kind, "zigzag")}
    return (
        f"the busiest of {ranks} ranks computes {pairs[kind]} of the pairs of {n} tokens, in zigzag {pairs['zigzag']}"
    )


SLICES, SLICES_FAIR = "slices in order are fair", MISCONCEPTIONS["slices in order are fair"]
PLACED = (
    Idea(
        SLICES,
        lambda n, speeds, r: f"Contiguous: {_longest('contiguous', n, len(speeds))}. {SLICES_FAIR}",
        lambda n, speeds, r: Placement("contiguous", n, len(speeds)).positions(r).tolist(),
    ),
    slip(
        lambda n, speeds, r: f"Striped: {_longest('striped', n, len(speeds))}. Close to fair, but not exactly.",
        lambda n, speeds, r: Placement("striped", n, len(speeds)).positions(r).tolist(),
    ),
    slip(
        "Chunks r and r + P: both of the last rank's are the later ones. The second one counts from the end.",
        lambda n, speeds, r: [i for i in range(n) if i * 2 * len(speeds) // n % len(speeds) == r],
    ),
)
UNEQUAL = (
    slip("That is zigzag as if all ranks were equally fast.", lambda n, speeds, r: zigzag(n, len(speeds), r)),
    slip(
        "Slices in order, as long as the speeds say: a late token still sees more keys than an early one.",
        lambda n, speeds, r: list(range(*(n * sum(speeds[:i]) // sum(speeds) for i in (r, r + 1)))),
    ),
    slip(
        "The late parts are in the order of the early ones. A late part should be the mirror image of the early one.",
        lambda n, speeds, r: [i for i in range(n) if i % (n // 2) in shared_out(n, speeds, r)],
    ),
)


def _ranks(speeds: Sequence[int], each: int = 4) -> list[tuple[int, tuple[int, ...], int]]:
    """The call of every rank, with 2 `each` tokens for a speed of 1."""
    return [(2 * each * sum(speeds), tuple(speeds), rank) for rank in range(len(speeds))]


def _drawn_ranks(rng: np.random.Generator, most: int) -> list[tuple[int, tuple[int, ...], int]]:
    return _ranks([int(speed) for speed in rng.integers(1, most + 1, rng.integers(2, 7))], int(rng.integers(2, 9)))


def _equal_ranks(rng: np.random.Generator) -> list[tuple[int, int, int]]:
    """As an earlier edition of 15.1 called."""
    return [(n, len(speeds), rank) for n, speeds, rank in _drawn_ranks(rng, 1)]


# ---- 15.2: merge ----


def merge(o1: np.ndarray, l1: np.ndarray, o2: np.ndarray, l2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Attention to the keys of both blocks.  o: (rows, d), l: (rows,) log of the sum of exponentials."""
    lse = np.logaddexp(l1, l2)
    base = np.where(lse > -np.inf, lse, 0)
    return o1 * np.exp(l1 - base)[:, None] + o2 * np.exp(l2 - base)[:, None], lse


MEAN = "blocks count alike"
MERGED = (
    Idea(MEAN, MISCONCEPTIONS[MEAN], lambda o1, l1, o2, l2: ((o1 + o2) / 2, np.logaddexp(l1, l2))),
    slip(
        "Added with no weights: each block's result is divided by its own sum already, so two of them are too much.",
        lambda o1, l1, o2, l2: (o1 + o2, np.logaddexp(l1, l2)),
    ),
    slip(
        "The result is right. l is the log of both sums together, not the larger of the two.",
        lambda o1, l1, o2, l2: (merge(o1, l1, o2, l2)[0], np.maximum(l1, l2)),
    ),
    slip("l + l' is the log of a product; the two sums are added.", lambda *of: (merge(*of)[0], of[1] + of[3])),
)


def _blocks(rng: np.random.Generator, size: float = 1.0, blind: int = 0) -> list[tuple[Any, ...]]:
    """Two blocks of 5 rows of 4 numbers.  size: of the scores;  blind: rows that see no key, of the second block, and
    of both the last one"""
    o1, o2 = rng.normal(size=(2, 5, 4))
    l1, l2 = size * rng.normal(size=(2, 5)) + 10 * (size > 1)
    if blind:
        for o, lse, rows in ((o2, l2, blind), (o1, l1, 1)):
            o[-rows:], lse[-rows:] = 0, -np.inf
    return [(o1, l1, o2, l2)]


def _merged(name: str, points: int, ideas: tuple[Idea, ...], rule: str, *how: Any) -> Cases:
    return Cases(name, points, _blocks(np.random.default_rng(3), *how), rule, ideas, lambda rng: _blocks(rng, *how))


# ---- 15.3: from how many tokens on ----

ENOUGH = "tokens of a rank from which on a zigzag step hides its message"


def enough_tokens(
    flops_per_s: float, bytes_per_s: float, start_s: float, heads: int, kv_heads: int, head_size: int, number_bytes: int
) -> float:
    """The c for which half of c^2 pairs, of 4 operations a head and number, take as long as the message of a step."""
    work_s, sent_s = 2 * heads * head_size / flops_per_s, 2 * kv_heads * head_size * number_bytes / bytes_per_s
    return (sent_s + (sent_s**2 + 4 * work_s * start_s) ** 0.5) / (2 * work_s)


least_tokens = partial(least_hidden_tokens, direction="forward_zigzag")  # without the start of a message
LEAST = (
    slip(
        "That is without zigzag, and with a key head for each query head.",
        lambda f, b, a, n, kv, d, e: enough_tokens(f / 2, b, a, n, n, d, e),
    ),
    slip(
        "That is a contiguous ring's: in zigzag a step has half the pairs, and the message is as long.",
        lambda f, b, a, n, kv, d, e: enough_tokens(f, b, a, 2 * n, kv, d, e),
    ),
    slip(
        "As if each query head had keys of its own: kv_heads travel, and heads are computed.",
        lambda f, b, a, n, kv, d, e: enough_tokens(f, b, a, n, n, d, e),
    ),
    slip("Keys travel, and values, too.", lambda f, b, a, n, kv, d, e: enough_tokens(f, b, a, n, kv, d, e / 2)),
    slip(
        "That is without the time that a message needs to start.",
        lambda f, b, a, n, kv, d, e: least_tokens(f, b, n, kv, e),
    ),
)


def _devices(rng: np.random.Generator) -> list[tuple[float, ...]]:
    return [
        (
            float(rng.uniform(1, 9) * 1e14),
            float(rng.uniform(1, 9) * 1e11),
            float(rng.uniform(1, 9)) * 1e-6,
            32,
            4,
            64,
            2,
        )
    ]


# ---- 15.4: packed documents on a ring ----

CHUNK, RANKS, CHUNKS, CAP = 16, 4, 12, 9  # tokens of a chunk; chunks in all, and those that a rank may hold at once
STRIPED = tuple(chunk % RANKS for chunk in range(CHUNKS))
COUNTS = sequence_of(integer(1), "Chunks of each document in a list or tuple")
FORM = f"A list of {CHUNKS} ranks, 0 to {RANKS - 1}: whose each chunk is"
# {chunks of each document: {pairs computed while a chunk is passed on: exposed pairs at par}}. CAP leaves three chunks
# for each rank, so there are 12! / 3!^4 ways; a test tries them all. Chosen from all lists of documents so that no
# pattern with a name is at par, and that exchanging two chunks, twice at most, leads there from striped
PARS = {
    (7, 3, 2): {192: 448, 224: 456, 256: 552},
    (4, 3, 3, 2): {128: 320, 192: 576, 224: 776},
    (5, 4, 3): {160: 320, 192: 448, 224: 648},
    (6, 2, 2, 2): {160: 384, 192: 512, 224: 712},
    (6, 4, 2): {192: 448, 224: 552, 256: 744},
    (7, 5): {192: 320, 224: 328, 256: 424},
}


@dataclass(frozen=True)
class PackedRing:
    """A ring over packed documents.

    pairs    of each rank in each step: [step][rank]
    message  pairs that are computed while the fullest rank passes its chunks on;  held: chunks of a rank at once
    """

    pairs: tuple[tuple[int, ...], ...]
    message: int
    held: int

    @property
    def steps(self) -> tuple[int, ...]:
        """How long each lasts, in pairs: as long as its longest rank, or its message; the last sends nothing."""
        *passing, last = (max(step) for step in self.pairs)
        return (*(max(longest, self.message) for longest in passing), last)

    @property
    def exposed(self) -> int:
        """What the steps take beyond the work of an average rank."""
        return sum(self.steps) - sum(map(sum, self.pairs)) // len(self.pairs[0])

    def __str__(self) -> str:
        rows = [("step", *(f"rank {r}" for r in range(len(self.pairs[0]))), "message", "lasts")]
        for at, (pairs, lasts) in enumerate(zip(self.pairs, self.steps, strict=True), 1):
            numbers = at, *pairs, self.message if at < len(self.pairs) else 0, lasts
            rows.append(tuple(map(str, numbers)))
        average = sum(self.steps) - self.exposed
        total = f"{sum(self.steps)} in all, {average} for an average rank: {self.exposed} exposed"
        return "\n".join([*table_lines(rows, right=range(9)), f"{total}; a rank holds {self.held} chunks at most"])


@checked(owners=sequence_of(integer(0, RANKS - 1), FORM), documents=COUNTS, message=integer(0))
def packed_ring(owners: Sequence[int], documents: Sequence[int] = (7, 3, 2), message: int = 192) -> PackedRing:
    """What each rank computes in each step of a ring of four.

    owners     the rank of each chunk of 16 tokens
    documents  chunks of each document
    message    pairs that are computed while a rank passes on one chunk

    Raises ArgumentError for other owners, LayoutError where the documents have another number of chunks.
    """
    ranks, of, counts = range(RANKS), np.repeat(owners, CHUNK), [list(owners).count(r) for r in range(RANKS)]
    first, stop = VisibleKeys(documents=tuple(n * CHUNK for n in documents)).bounds(len(of))
    before = [np.concatenate([[0], np.cumsum(of == r)]) for r in ranks]  # keys of a rank before each position
    seen = [[int((before[j][stop] - before[j][first])[of == r].sum()) for j in ranks] for r in ranks]
    pairs = tuple(tuple(seen[r][r - i] for r in ranks) for i in ranks)
    held = max(counts[r] + counts[r - i] + counts[r - i - 1] * (i < RANKS - 1) for r in ranks for i in ranks)
    return PackedRing(pairs, message * max(counts), held)


@dataclass(frozen=True)
class Packed:
    """The puzzle for these documents."""

    documents: tuple[int, ...]
    message: int

    def ring(self, owners: Sequence[int]) -> PackedRing:
        """What these owners give."""
        return packed_ring(owners, self.documents, self.message)

    @property
    def par(self) -> int:
        """Exposed pairs, the least that there are."""
        return PARS[self.documents][self.message]

    def given(self) -> str:
        """Its numbers, in words."""
        text = f"documents of {', '.join(map(str, self.documents))} chunks, a message of {self.message} pairs a chunk"
        return f"{text}\nprint(packed_ring(owners, {self.documents}, {self.message}))"


def _ring_puzzle(puzzle: Packed, answer: Any, /) -> Iterator[Part]:
    with reading(answer, FORM, "no list yet"):
        owners = whole_numbers(answer, CHUNKS + 1, flags=False)
    if len(owners) != CHUNKS or not set(owners) <= set(range(RANKS)):
        raise Wrong(f"{len(owners)} numbers, {', '.join(map(str, owners))}", form=FORM)
    ring, striped, par = puzzle.ring(owners), puzzle.ring(STRIPED).exposed, puzzle.par
    yield Part("a list", True, f"exposed {ring.exposed}, a rank holds {ring.held} chunks at most")
    over = f"{ring.held} chunks: a rank's own queries, the keys at work, and those that arrive"
    yield reached("fits", ring.held <= CAP, f"{ring.held} of {CAP} chunks", f"at most {CAP}", over)
    if ring.held <= CAP:
        slow = max(range(RANKS), key=ring.steps.__getitem__)
        pairs, message = max(ring.pairs[slow]), ring.message * (slow < RANKS - 1)
        note = f"Step {slow + 1} lasts longest: pairs of the longest rank {pairs}, message {message}."
        text = f"exposed {ring.exposed}: {ring.exposed / par:.3f} x par"
        yield reached("beats striped", ring.exposed < striped, text, f"less than striped, {striped}", note)
        yield reached("par", ring.exposed <= par, text, f"{par}: no other way is less, by trying all", note)


def _of_documents(puzzle: Packed) -> dict[str, Any]:
    """What 15.4 is for these documents."""
    message = puzzle.ring(STRIPED).message
    free = message // CHUNK**2
    return {
        "numbers": puzzle.given(),
        "grader": partial(_ring_puzzle, puzzle),
        "par": lambda: f"exposed {puzzle.par} pairs: no way to give {CHUNKS} chunks to {RANKS} ranks is better",
        "hints": (
            "Which chunks of the same document meet in which step of the ring?",
            "Print packed_ring of a striped list: which step lasts longest, on which rank, with which chunks?",
            f"A message takes {message}: in steps 2 and 3 a rank has {plural(free, 'pair')} of chunks, 256 each, for "
            "nothing. What is too much in one step should move to another one, with one of its two chunks.",
            "Begin with striped, and exchange the two chunks with which exposed falls most, as long as it falls; a "
            "loop over all exchanges has a few lines. Where that ends above par, begin with another list.",
        ),
    }


def _own_documents(rng: np.random.Generator) -> dict[str, Any]:
    pairs = [Packed(documents, message) for documents, pars in PARS.items() for message in pars]
    return _of_documents(pairs[int(rng.integers(len(pairs)))])


EXERCISES = (
    Exercise(
        "15.1",
        "zigzag",
        hints=(
            "How many keys does the first token see, how many the last one, and how many do the two see together?",
            "Look at the square of the Context Lab with zigzag: which two parts does each rank have?",
            "A token and its mirror image, as far from the end, see n + 1 keys together, wherever they are: give "
            "each rank as many of these pairs as its speed allows.",
            "Cut the first half into parts as long as the speeds say. A rank holds its part and the mirror of it.",
        ),
        **by_cases(
            shared_out,
            Cases("equally fast", 1, _ranks([1] * 4), ORDER, PLACED, lambda rng: _drawn_ranks(rng, 1)),
            Cases(
                *("other speeds", 3, [*_ranks((2, 1, 3)), *_ranks((1, 3), 2), *_ranks((3, 1, 2, 2))], ORDER, UNEQUAL),
                lambda rng: _drawn_ranks(rng, 4),
            ),
        ),
        start="""\
def shared_out(n, speeds, rank):
    ranks = len(speeds)
    return list(range(rank * n // ranks, (rank + 1) * n // ranks))


check("15.1", shared_out)
""",
        earlier=earlier_question(
            "positions",
            zigzag,
            Cases("32 tokens, 4 ranks", 2, [(32, 4, r) for r in range(4)], ORDER, (), _equal_ranks),
            Cases("other sizes", 2, [(12, 3, 1), (16, 2, 0), (64, 8, 7)], ORDER, (), _equal_ranks),
        ),
    ),
    Exercise(
        "15.2",
        "merge two blocks",
        hints=(
            "The result of each block is divided by its own sum of exponentials. By what should it be divided?",
            "What is the log-sum-exp of both blocks together, and how much of that sum is each block's?",
            "Each block's share is e to the power of its l minus the new l. The shares add up to 1.",
            "The new l is np.logaddexp of both. Weight each result by its share, and add; if both l are -inf, o is 0.",
        ),
        **by_cases(
            merge,
            _merged("two blocks", 2, MERGED, "attention to the keys of both blocks, and its l"),
            _merged("large scores", 1, (), "the same for scores of some thousands: take the larger l out", 4000.0),
            _merged("rows that see no key", 1, (), "a block with l = -inf has no share; two have o = 0", 1.0, 2),
        ),
        start='def merge(o1, l1, o2, l2):\n    return (o1 + o2) / 2, np.logaddexp(l1, l2)\n\n\ncheck("15.2", merge)\n',
    ),
    Exercise(
        "15.3",
        "from how many tokens on",
        hints=(
            "What must take at least as long as the message of a step?",
            "With c tokens on a rank, which of operations and bytes of a step grows with c squared?",
            "A zigzag step has half of c squared pairs, of 4 operations a head and number. Keys and values travel.",
            "Set 2 c squared heads head_size over the device's rate equal to start_s and 2 c kv_heads head_size bytes "
            "over the link's: a quadratic equation in c with one positive solution.",
        ),
        **by_cases(
            enough_tokens,
            Cases(
                *("tokens", 3, [(312e12, 300e9, 0.0, 32, 8, 128, 2), (989e12, 50e9, 2e-5, 64, 8, 128, 2)], ENOUGH),
                *(LEAST, _devices),
            ),
        ),
        start="""\
def enough_tokens(flops_per_s, bytes_per_s, start_s, heads, kv_heads, head_size, number_bytes):
    return 0


check("15.3", enough_tokens)
""",
        earlier=earlier_question(
            "least_tokens",
            least_tokens,
            Cases(
                *("tokens", 3, [(312e12, 300e9, 32, 8, 2), (1e12, 1e9, 8, 8, 4)], ENOUGH, ()),
                lambda rng: [(f, b, n, kv, e) for f, b, _, n, kv, _, e in _devices(rng)],
            ),
        ),
    ),
    Exercise(
        "15.4",
        "packed documents on a ring",
        (("a list", 1), ("fits", 1), ("beats striped", 1), ("par", 2)),
        attempt="beats striped",
        own=_own_documents,
        **_of_documents(Packed((7, 3, 2), 192)),
        start='owners = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]\n\ncheck("15.4", owners)\n',
    ),
)
