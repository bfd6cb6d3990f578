"""Lesson 15, context parallel: who holds which tokens, merging blocks, when a message hides, packed documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...cost.planner.sequence_messages import least_hidden_tokens
from ...layout.placements import AttentionWork, Placement, VisibleKeys, attention_work
from .book import Exercise
from .ideas import MISCONCEPTIONS, Cases, Idea, by_cases, slip
from .reading import reading, whole_numbers
from .verdict import Part, Wrong, reached

# ---- 15.1: zigzag ----


def zigzag(n: int, ranks: int, rank: int) -> list[int]:
    """The positions of a rank."""
    return Placement("zigzag", n, ranks).positions(rank).tolist()


def _longest(kind: str, n: int, ranks: int) -> str:
    pairs = {name: max(attention_work(Placement(name, n, ranks)).per_rank) for name in (kind, "zigzag")}
    return (
        f"the busiest of {ranks} ranks computes {pairs[kind]} of the pairs of {n} tokens, in zigzag {pairs['zigzag']}"
    )


PLACED = (
    Idea(
        "slices in order are fair",
        lambda n, p, r: f"Contiguous: {_longest('contiguous', n, p)}. {MISCONCEPTIONS['slices in order are fair']}",
        lambda n, p, r: Placement("contiguous", n, p).positions(r).tolist(),
    ),
    slip(
        lambda n, p, r: f"Striped: {_longest('striped', n, p)}. Close to fair, and not exactly.",
        lambda n, p, r: Placement("striped", n, p).positions(r).tolist(),
    ),
    slip(
        "Chunks r and r + P: both of the last rank's are the later ones. The second one counts from the end.",
        lambda n, p, r: [i for i in range(n) if i * 2 * p // n % p == r],
    ),
)


def _sizes(rng: np.random.Generator) -> list[tuple[int, int, int]]:
    ranks = int(rng.integers(2, 9))
    return [(2 * ranks * int(rng.integers(2, 9)), ranks, int(rng.integers(ranks))) for _ in range(3)]


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

LEAST = (
    slip(
        "That is without zigzag, and with a key head for each query head.",
        lambda f, b, n, kv, e: least_hidden_tokens(f, b, n, n, e) if n == 4 * kv else None,
    ),
    slip(
        "That is a contiguous ring's: in zigzag a step has half the pairs, and the message is as long.",
        lambda f, b, n, kv, e: least_hidden_tokens(f, b, n, kv, e),
    ),
    slip(
        "As if each query head had keys of its own: what travels are kv_heads, what is computed are heads.",
        lambda f, b, n, kv, e: least_hidden_tokens(f, b, n, n, e, direction="forward_zigzag"),
    ),
    slip("Keys travel, and values, too.", lambda *of: least_hidden_tokens(*of, direction="forward_zigzag") / 2),
)

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
            "Which rank has most to do if the tokens are handed out in order, and which one least?",
            "Look at the square of the Context Lab with the contiguous ring, then with zigzag.",
            "Cut the sequence into twice as many chunks as there are ranks. Every rank gets an early and a late one.",
            "Rank r holds chunk r, and the chunk that is as far from the end as that one is from the beginning.",
        ),
        **by_cases(
            zigzag,
            Cases("32 tokens, 4 ranks", 2, [(32, 4, r) for r in range(4)], "positions, in order", PLACED, _sizes),
            Cases("other sizes", 2, [(12, 3, 1), (16, 2, 0), (64, 8, 7)], "positions, in order", (), _sizes),
        ),
        start="""\
def positions(n, ranks, rank):
    return list(range(rank * n // ranks, (rank + 1) * n // ranks))


check("15.1", positions)
""",
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
            "Set 2 c squared heads over the device's rate equal to 2 c kv_heads bytes over the link's; solve for c.",
        ),
        **by_cases(
            partial(least_hidden_tokens, direction="forward_zigzag"),
            Cases(
                *("tokens", 3, [(312e12, 300e9, 32, 8, 2), (989e12, 50e9, 64, 8, 2), (1e12, 1e9, 8, 8, 4)]),
                *("tokens of a rank from which on a zigzag step hides its message", LEAST),
                lambda rng: [(float(rng.uniform(1, 9) * 1e14), float(rng.uniform(1, 9) * 1e11), 32, 4, 2)],
            ),
        ),
        start="""\
def least_tokens(flops_per_s, bytes_per_s, heads, kv_heads, number_bytes):
    return 0


check("15.3", least_tokens)
""",
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
