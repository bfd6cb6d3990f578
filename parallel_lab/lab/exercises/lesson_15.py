"""Lesson 15, context parallel: who holds which tokens, merging blocks, when a message hides, packed documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...cost.planner.sequence_messages import least_hidden_tokens
from ...layout.placements import AttentionWork, Placement, VisibleKeys, attention_work
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
        lambda n, speeds, r: f"Striped: {_longest('striped', n, len(speeds))}. Close to fair, and not exactly.",
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
        "As if each query head had keys of its own: what travels are kv_heads, what is computed are heads.",
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

DOCUMENTS, CHUNK, RANKS = (7, 3, 2), 16, 4  # chunks of each document; tokens of a chunk
PASS, CAP = 192, 9  # pairs that a rank computes while it passes on a chunk; chunks that it may hold at once
PAR = 448  # exposed pairs: the least of all ways to give the chunks to the ranks; a test tries them all
STRIPED = tuple(chunk % RANKS for chunk in range(sum(DOCUMENTS)))
FORM = f"A list of {sum(DOCUMENTS)} ranks, 0 to {RANKS - 1}: whose each chunk is"


def _ring(owners: Sequence[int]) -> tuple[int, int, list[tuple[int, int]]]:
    """(exposed, chunks held at most, (pairs of the longest rank, message) of each step) of a ring; time in pairs."""
    ranks, of, counts = range(RANKS), np.repeat(owners, CHUNK), [list(owners).count(r) for r in range(RANKS)]
    first, stop = VisibleKeys(documents=tuple(n * CHUNK for n in DOCUMENTS)).bounds(len(of))
    before = [np.concatenate([[0], np.cumsum(of == r)]) for r in ranks]  # keys of a rank before each position
    pairs = tuple(tuple(int((before[j][stop] - before[j][first])[of == r].sum()) for j in ranks) for r in ranks)
    work, last = AttentionWork(pairs, CHUNK), RANKS - 1
    steps = [(longest, PASS * max(counts) * (i < last)) for i, longest in enumerate(work.longest_per_step)]
    held = max(counts[r] + counts[r - i] + counts[r - i - 1] * (i < last) for r in ranks for i in ranks)
    return sum(map(max, steps)) - work.useful // RANKS, held, steps


def _ring_puzzle(answer: Any) -> Iterator[Part]:
    with reading(answer, FORM, "no list yet"):
        owners = whole_numbers(answer, sum(DOCUMENTS) + 1, flags=False)
    if len(owners) != sum(DOCUMENTS) or not set(owners) <= set(range(RANKS)):
        raise Wrong(f"{len(owners)} numbers, {', '.join(map(str, owners))}", form=FORM)
    exposed, held, steps = _ring(owners)
    striped = _ring(STRIPED)[0]
    yield Part("a list", True, f"exposed {exposed}, a rank holds {held} chunks at most")
    over = f"{held} chunks: a rank's own queries, the keys at work, and those that arrive"
    yield reached("fits", held <= CAP, f"{held} of {CAP} chunks", f"at most {CAP}", over)
    if held <= CAP:
        slow = max(range(RANKS), key=lambda i: max(steps[i]))
        pairs, message = steps[slow]
        note = f"Step {slow + 1} lasts longest: pairs of the longest rank {pairs}, message {message}."
        text = f"exposed {exposed}: {exposed / PAR:.3f} x par"
        yield reached("beats striped", exposed < striped, text, f"less than striped, {striped}", note)
        yield reached("par", exposed <= PAR, text, f"{PAR}: no other way is less, by trying all", note)


EXERCISES = (
    Exercise(
        "15.1",
        "zigzag",
        hints=(
            "How many keys does the first token see, how many the last one, and how many do the two see together?",
            "Look at the square of the Context Lab with zigzag: which two parts does each rank have?",
            "A token and its mirror image, as far from the end, see n + 1 keys together, wherever they are: so many of "
            "these pairs as a rank can compute are its share.",
            "Cut the first half into parts as long as the speeds say. A rank holds its part and that one's mirror.",
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
            """\
def positions(n, ranks, rank):
    return list(range(rank * n // ranks, (rank + 1) * n // ranks))


check("15.1", positions)
""",
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
            """\
def least_tokens(flops_per_s, bytes_per_s, heads, kv_heads, number_bytes):
    return 0


check("15.3", least_tokens)
""",
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
        (
            "Which chunks of the same document meet in which step of the ring?",
            "Which step lasts longest, and is that its pairs or its message? The note of a verdict says so.",
            "Messages take equally long. Move a pair of chunks that meet in the longest step into another one.",
            "Three chunks on every rank. Begin with striped; exchange two while that helps; then start elsewhere.",
        ),
        _ring_puzzle,
        lambda: f"exposed {PAR} pairs: no way to give 12 chunks to 4 ranks is better, all of them were tried",
        "beats striped",
        start='owners = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]\n\ncheck("15.4", owners)\n',
    ),
)
