"""Exercises on ways that a lesson only mentions: a product in three dimensions, weights in bfloat16, two copies of a
batch that take turns.
"""

from __future__ import annotations

import math

import numpy as np

from .book import Exercise
from .ideas import MISCONCEPTIONS, Cases, Idea, by_cases, slip

FITS = "no message where shapes fit"

# ---- 05.5: a product in three dimensions ----

# m, k, n, ranks along p, q and r, bytes of a number; with r = 1 it is a product in two dimensions
PRODUCTS = ((16, 16, 8, 2, 4, 1, 4), (16, 16, 8, 2, 2, 2, 4), (64, 32, 128, 4, 2, 2, 2), (64, 64, 16, 2, 4, 8, 4))


def _terms(m: int, k: int, n: int, p: int, q: int, r: int, e: int) -> tuple[float, float, float]:
    """Bytes that a rank sends of the rows, of the weight and of the sums."""
    return tuple((ranks - 1) * size * e / (p * q * r) for ranks, size in ((q, m * k), (r, k * n), (p, m * n)))


def product_bytes(m: int, k: int, n: int, p: int, q: int, r: int, e: int) -> float:
    """Bytes that a rank sends in forward."""
    return sum(_terms(m, k, n, p, q, r, e))


def _draw_product(rng: np.random.Generator) -> list[tuple[int, ...]]:
    p, q, r = (int(2**n) for n in rng.integers(1, 4, 3))
    m, k, n = (int(size) * p * q * r for size in rng.integers(1, 9, 3))
    return [(m, k, n, p, q, r, int(rng.choice([2, 4])))]


PRODUCT_IDEAS = (
    Idea(FITS, f"The sums are missing. {MISCONCEPTIONS[FITS]}", lambda *sizes: sum(_terms(*sizes)[:2])),
    slip(
        "The weight is split by r as well, and gathered before the product.", lambda *s: _terms(*s)[0] + _terms(*s)[2]
    ),
    slip(
        "That adds up the sums with an all_reduce. Here each rank needs only its share of the result.",
        lambda *s: sum(_terms(*s)) + _terms(*s)[2],
    ),
    slip(
        "As if whole tensors were gathered. Ranks of a group hold parts of a part: the other axes split it, too.",
        lambda m, k, n, p, q, r, e: ((q - 1) / q * m * k + (r - 1) / r * k * n + (p - 1) / p * m * n) * e,
    ),
    slip(
        "As if each rank held all of every tensor. What it holds is one of p * q * r parts.",
        lambda m, k, n, p, q, r, e: sum(_terms(m, k, n, p, q, r, e)) * p * q * r,
    ),
    slip("Those are elements. A number has e bytes.", lambda *s: sum(_terms(*s)) / s[-1]),
    slip(
        "The axes are exchanged: rows of x are gathered over q, and rows of w over r.",
        lambda m, k, n, p, q, r, e: ((r - 1) * m * k + (q - 1) * k * n + (p - 1) * m * n) * e / (p * q * r),
    ),
    slip(
        "A rank keeps a part itself: of p parts it sends p - 1.",
        lambda m, k, n, p, q, r, e: (m * k / p / r + k * n / p / q + m * n / q / r) * e,
    ),
)

# ---- 08.4: weights in bfloat16 ----

UPDATES = (
    (1.0, 0.001),
    (1.0, 0.004),
    (1.0, 2**-8),
    (1 + 2**-7, 2**-8),
    (0.01953125, 0.0001),
    (200.0, 0.4),
    (3.0, 0.02),
)


def _rounded(value: float, bits: int) -> float:
    """To so many significant bits, ties to even: IEEE 754, as numpy and ml_dtypes round."""
    spacing = 2.0 ** (math.floor(math.log2(value)) - bits + 1)
    return round(value / spacing) * spacing


def stored(weight: float, update: float) -> float:
    """What a bfloat16 weight is after the update."""
    return _rounded(weight + update, 8)


def _draw_updates(rng: np.random.Generator) -> list[tuple[float, float]]:
    weights = [_rounded(float(w), 8) for w in np.exp(rng.normal(size=5))]
    return [(w, w * float(2.0 ** rng.uniform(-12, -5))) for w in weights]


UPDATE_IDEAS = (
    slip(
        "Nothing was rounded: that is the weight in float32, the copy that mixed precision keeps.", lambda w, u: w + u
    ),
    slip("That is float16, with 11 significant bits. bfloat16 has 8.", lambda w, u: _rounded(w + u, 11)),
    slip("Seven bits are stored, and a leading 1 that is not: 8 in all.", lambda w, u: _rounded(w + u, 7)),
    slip(
        "That cuts the last bits off. Rounding goes to the nearest number, half way to an even last bit.",
        lambda w, u: (
            math.floor((w + u) / 2.0 ** (math.floor(math.log2(w + u)) - 7)) * 2.0 ** (math.floor(math.log2(w + u)) - 7)
        ),
    ),
)

# ---- 14.4: copies that take turns ----

# layers, copies, seconds that all rows of a layer take to compute and to send, and that a message takes to start
LAYERS = (
    (4, 2, 3.0, 2.0, 0.0),
    (4, 2, 2.0, 3.0, 0.0),
    (8, 2, 1.0, 1.0, 0.25),
    (12, 4, 2.0, 0.5, 0.25),
    (6, 4, 1.0, 2.0, 0.1),
)


def step_s(layers: int, copies: int, compute_s: float, send_s: float, start_s: float) -> float:
    """Seconds of all layers: computing and sending go on at once, each of one copy at a time."""
    each, message = compute_s / copies, start_s + send_s / copies
    if copies == 1:
        return layers * (each + message)
    return layers * copies * max(each, message) + min(each, message)


def _draw_layers(rng: np.random.Generator) -> list[tuple[float, ...]]:
    compute_s, send_s = (float(s) for s in rng.uniform(0.1, 3, 2))
    return [(int(rng.integers(2, 50)), int(rng.integers(2, 6)), compute_s, send_s, float(rng.uniform(0, 0.5)))]


COPY_IDEAS = (
    slip(
        "Nothing is hidden there: while one copy's message travels, another copy can compute.",
        lambda n, c, *s: n * c * (s[0] / c + s[2] + s[1] / c),
    ),
    slip(
        "What takes less time is not hidden at the end: after the last piece of work nothing is left next to it.",
        lambda n, c, compute, send, start: n * c * max(compute / c, start + send / c),
    ),
    slip(
        "Every copy sends its own message, and each of them takes its time to start.",
        lambda n, c, compute, send, start: n * max(compute, start + send) + min(compute, start + send) / c,
    ),
)

OF_LESSON_05 = (
    Exercise(
        "05.5",
        "a product in three dimensions",
        hints=(
            "Which ranks hold the other parts of what a rank needs, and how many of them are there?",
            "Take one tensor at a time. Which axis of the three is the one along which it is gathered or scattered?",
            "In a ring a rank of p hands on p - 1 parts, each as large as what it stores.",
            "Three terms, each a tensor's elements divided by all ranks: the rows times q - 1, the weight times r - 1, "
            "and the result times p - 1. Times the bytes of a number.",
        ),
        **by_cases(
            product_bytes,
            Cases(
                "bytes",
                3,
                PRODUCTS,
                "parts of rows, weight and sums, each 1/(pqr) of its tensor",
                PRODUCT_IDEAS,
                _draw_product,
            ),
        ),
        start="""\
def sent_bytes(m, k, n, p, q, r, e):
    return 2 * (p - 1) / p * m * n * e


check("05.5", sent_bytes)
""",
    ),
)
OF_LESSON_08 = (
    Exercise(
        "08.4",
        "weights in bfloat16",
        hints=(
            "How far apart are two neighbouring bfloat16 numbers near 1, and near 3?",
            "The loop above: which sums did it round, and to what?",
            "Numbers between two powers of two are equally far apart: 128 steps from one power to the next.",
            "Find the power of two at or below the sum. A 128th of it is the step: round the sum to a multiple of it.",
        ),
        **by_cases(
            stored,
            Cases("no change", 1, [(1.0, 0.001), (200.0, 0.4)], "the weight as it was: less than half a step"),
            Cases("stored", 2, UPDATES, "the sum to 8 significant bits, ties to even", UPDATE_IDEAS, _draw_updates),
        ),
        start="""\
def stored(weight, update):
    return weight + update


check("08.4", stored)
""",
    ),
)
OF_LESSON_14 = (
    Exercise(
        "14.4",
        "copies that take turns",
        hints=(
            "While the message of one copy travels, what can the rank do?",
            "Draw two rows, computing and sending, for two layers and two copies. Which of them is never idle?",
            "The busier of the two works all the time. The other one only adds its first or its last piece.",
            "Take the longer piece of computing and sending, for each copy in each layer, and add one of the shorter "
            "pieces. A piece is a share of the rows; a message also takes its time to start.",
        ),
        **by_cases(
            step_s,
            Cases("one copy", 1, [(4, 1, 3.0, 2.0, 0.25)], "computing and sending take turns"),
            Cases(
                "copies",
                3,
                LAYERS,
                "the longer of both all the time, and one piece of the shorter",
                COPY_IDEAS,
                _draw_layers,
            ),
        ),
        start="""\
def step_s(layers, copies, compute_s, send_s, start_s):
    return layers * (compute_s + send_s + start_s)


check("14.4", step_s)
""",
    ),
)
