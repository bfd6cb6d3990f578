"""The algorithms by name: how each is made, its idea in a sentence, and its closed forms.

    >>> recipe = recipe_of("all_reduce", "ring")
    >>> recipe.formula.rounds(8, 8), recipe.formula.sent(8, 8), recipe.formula.sent_text
    (14, Fraction(7, 4), '2(n-1)/n·S')

The formulas come from the papers that `rounds.py` names, what is counted from the lists of sends; tests compare.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ....base.checks import integer, text
from ....base.errors import ArgumentError, shorten
from ....ops.collectives.definitions import (
    LESS_ONE,
    LOG,
    LOG_WHOLES,
    MESSAGES,
    ONE,
    PAIR_SHARE,
    SHARE,
    TWO_SHARES,
    WHOLE,
    Formula,
    Term,
    ceil_log2,
    formula,
    largest_subtree,
    of_n,
)
from .rounds import (
    Phase,
    Send,
    bruck_gather,
    chain_gather,
    chain_reduce,
    everybody,
    floor_log2,
    folded,
    halving,
    is_power_of_two,
    mirrored,
    phase,
    ring_gather,
    ring_scatter,
    to_all_bruck,
    to_all_pairwise,
    to_all_ring,
    tree_gather,
    tree_reduce,
    tree_spread,
)
from .walk import check_ranks

LARGEST = 128  # ranks: a list of all sends has up to n^3 / 2 entries; closed forms for more are in cost/time.py
_OTHER = " (other n: "  # what follows in a text is about numbers of ranks that are no power of two
CHAINS = (("broadcast", "ring"), ("reduce", "ring"))
OTHER_NAMES = {
    "rabenseifner": "halving_doubling",
    "recursive_doubling": "recursive_halving",
    "binomial": "tree",
    "chain": "ring",
}


@dataclass(frozen=True)
class Recipe:
    """How one algorithm of one kind is made.

    build    (ranks, root, segments) -> phases
    words    the idea in one sentence
    power_of_two   whether it is refused for other numbers of ranks, and instead what takes any
    chunks   (ranks, segments) -> how many chunks; None: the usual number, one per rank or one per pair
    """

    build: Callable[[int, int, int], list[Phase]]
    formula: Formula
    words: str
    power_of_two: str = ""
    chunks: Callable[[int, int], int] | None = None


def text_for(text: str, ranks: int) -> str:
    """The part of a formula's text that is about this number of ranks.

    >>> text_for("log₂n (other n: ⌊log₂n⌋+2)", 8), text_for("log₂n (other n: ⌊log₂n⌋+2)", 6)
    ('log₂n', '⌊log₂n⌋+2')
    """
    usual, split, other = text.partition(_OTHER)
    return other[:-1] if split and not is_power_of_two(ranks) else usual


def formula_texts(formula: Formula, ranks: int) -> tuple[str, str, str, str]:
    """How rounds, messages, sent bytes and time are written for this number of ranks."""
    texts = (formula.rounds_text, formula.messages_text, formula.sent_text, formula.time_text)
    return tuple(text_for(text, ranks) for text in texts)


def algorithm_names(kind: str, ranks: int | None = None) -> tuple[str, ...]:
    """The algorithms of a collective; with `ranks`, those that take this number. Raises ArgumentError.

    >>> algorithm_names("all_gather"), algorithm_names("all_gather", ranks=6)
    (('ring', 'recursive_doubling', 'bruck', 'tree', 'direct'), ('ring', 'bruck', 'tree', 'direct'))
    """
    any_taken = ranks is None or is_power_of_two(ranks)
    return tuple(name for name, recipe in _recipes(kind).items() if any_taken or not recipe.power_of_two)


def recipe_of(kind: str, name: str) -> Recipe:
    """Raises ArgumentError for a kind or name that is not known, with the nearest."""
    recipes = _recipes(kind)
    if name not in recipes:
        raise _unknown("algorithm", name, recipes, kind)
    return recipes[name]


def rounds_of(kind: str, name: str, ranks: int, root: int = 0, segments: int | None = None) -> tuple[Phase, ...]:
    """The phases of an algorithm.

    ranks      group size
    root       position of the root, for broadcast, reduce, scatter and gather
    segments   chunks in which a chain ("ring" of broadcast and reduce) passes the data on; default: `ranks`

    Raises ArgumentError for unknown names, and for a number of ranks that the algorithm cannot take.
    """
    recipe, where = recipe_of(kind, name), f"{kind} by {name}"
    ranks, root = check_ranks(kind, ranks, root, where)
    if ranks > LARGEST:
        hint = "Closed forms for any number are in cost.time and in recipe_of(kind, name).formula"
        allowed = f"At most {LARGEST}: every send is listed"
        raise ArgumentError(f"{ranks} ranks", where=where, allowed=allowed, hint=hint)
    if segments is not None and (kind, name) not in CHAINS:
        allowed = f"Segments are for {' and '.join(f'{k} by {n}' for k, n in CHAINS)}"
        raise ArgumentError(f"segments={segments}", where=where, allowed=allowed)
    if recipe.power_of_two and not is_power_of_two(ranks):
        allowed = "2, 4, 8, ... ranks: partners differ in one bit of their numbers"
        raise ArgumentError(f"{ranks} ranks", where=where, allowed=allowed, hint=recipe.power_of_two)
    return tuple(recipe.build(ranks, root, ranks if segments is None else integer(1)(where, "segments", segments)))


# ---- all_reduce ----


def _all_reduce_doubling(n: int, root: int, k: int) -> list[Phase]:
    def inner(members: list[int]) -> list[Phase]:
        bits = [1 << i for i in range(floor_log2(len(members)))]
        return [
            phase(
                "exchange", [[Send(m, members[q ^ bit], range(n), True) for q, m in enumerate(members)] for bit in bits]
            )
        ]

    return folded(n, n, inner)


def _all_reduce_halving(n: int, root: int, k: int, *, near_first: bool = False) -> list[Phase]:
    def inner(members: list[int]) -> list[Phase]:
        rounds = halving(members, near_first=near_first)
        return [phase("halving", rounds), phase("doubling", mirrored(rounds))]

    return folded(n, 1 << floor_log2(n), inner)


# ---- the table ----


def _on_power(power: Callable[[int], int | Fraction], extra: int, text: str = "") -> Term:
    """A term of the largest power of two up to n; `extra` is added where the other ranks must be folded in."""
    return of_n(lambda n: power(1 << floor_log2(n)) + (0 if is_power_of_two(n) else extra), text)


def _two_logs(p: int) -> int:
    return 2 * floor_log2(p)


def _two_shares(p: int) -> Fraction:
    return Fraction(2 * (p - 1), p)


def _usual(kind: str) -> Formula:
    """The formula of the algorithm by which messages of this kind are priced."""
    return MESSAGES[kind].formula


_LOG2 = of_n(floor_log2, "log₂n")
_TWO_LOGS = of_n(lambda n: 2 * ceil_log2(n), "2⌈log₂n⌉")
_LOG_AND_LESS_ONE = of_n(lambda n: ceil_log2(n) + n - 1, "⌈log₂n⌉+n-1")
_WHOLES = of_n(lambda n: n - 1, "(n-1)·S")

_DOUBLING = formula(
    _on_power(floor_log2, 2, "log₂n (other n: ⌊log₂n⌋+2)"),
    _on_power(floor_log2, 1, "log₂n·S (other n: (⌊log₂n⌋+1)·S)"),
    "log₂n·(α + S·β + S·γ) (other n: (⌊log₂n⌋+2)·(α + S·β) + (⌊log₂n⌋+1)·S·γ)",
    messages=_on_power(floor_log2, 1, "log₂n (other n: ⌊log₂n⌋+1)"),
    betas=_on_power(floor_log2, 2),
    gammas=_on_power(floor_log2, 1),
)
_HALVING = formula(
    _on_power(_two_logs, 2, "2·log₂n (other n: 2⌊log₂n⌋+2)"),
    _on_power(_two_shares, 1, "2(n-1)/n·S (other n: (3 - 2/2^⌊log₂n⌋)·S)"),
    "2·log₂n·α + 2(n-1)/n·S·β + (n-1)/n·S·γ (other n: (2⌊log₂n⌋+2)·α + (4 - 2/2^⌊log₂n⌋)·S·β + (2 - 1/2^⌊log₂n⌋)·S·γ)",
    messages=_on_power(_two_logs, 1, "2·log₂n (other n: 2⌊log₂n⌋+1)"),
    betas=_on_power(_two_shares, 2),
    gammas=_on_power(lambda p: _two_shares(p) / 2, 1),
)
_CHAIN_ROUNDS = Term(lambda n, k: n - 2 + k if n > 1 else 0, "n-2+k")
_CHAIN_MESSAGES = Term(lambda n, k: k if n > 1 else 0, "k")
_CHAIN_BETAS = Term(lambda n, k: Fraction(n - 2 + k, k) if n > 1 else 0, "")


def _direct(sent: Term, time_text: str, **terms: Term) -> Formula:
    """One round, in which a rank's port sends to all others, one after the other."""
    return formula(ONE, sent, time_text, alphas=LESS_ONE, **{"messages": LESS_ONE, **terms})


TABLE: dict[str, dict[str, Recipe]] = {
    "all_reduce": {
        "ring": Recipe(
            lambda n, root, k: [phase("reduce_scatter", ring_scatter(n)), phase("all_gather", ring_gather(n))],
            _usual("all_reduce"),
            "Partial sums travel once around the ring, growing at each rank; then the complete sums travel around it",
        ),
        "recursive_doubling": Recipe(
            _all_reduce_doubling,
            _DOUBLING,
            "Partners at distance 1, 2, 4, ... swap everything they have and add: few rounds, much data",
        ),
        "halving_doubling": Recipe(
            _all_reduce_halving,
            _HALVING,
            "Rabenseifner's: partners swap halves, quarters, ... and add, the farthest first; then the sums come "
            "back doubling",
            chunks=lambda n, k: 1 << floor_log2(n),
        ),
        "halving_doubling_near_first": Recipe(
            lambda n, root, k: _all_reduce_halving(n, root, k, near_first=True),
            _HALVING,
            "As halving_doubling, but the large halves go to the near partners and only small parts go far",
            chunks=lambda n, k: 1 << floor_log2(n),
        ),
        "tree": Recipe(
            lambda n, root, k: [phase("reduce", tree_reduce(n, root)), phase("broadcast", tree_spread(n, root))],
            formula(
                _TWO_LOGS, LOG_WHOLES, "2⌈log₂n⌉·(α + S·β) + ⌈log₂n⌉·S·γ", messages=LOG, betas=_TWO_LOGS, gammas=LOG
            ),
            "A binomial tree adds everything up on rank 0, and the same tree carries the sum back",
        ),
        "direct": Recipe(
            lambda n, root, k: [
                phase("reduce_scatter", everybody(n, lambda i, j: j, add=True)),
                phase("all_gather", everybody(n, lambda i, j: i)),
            ],
            formula(
                of_n(lambda n: 2, "2"),
                TWO_SHARES,
                "2(n-1)·α + 2(n-1)/n·S·β + (n-1)/n·S·γ",
                messages=of_n(lambda n: 2 * (n - 1), "2(n-1)"),
                alphas=of_n(lambda n: 2 * (n - 1)),
                gammas=SHARE,
            ),
            "Every rank reads every other, as in shared memory: each rank adds its own chunk in rank order, then takes "
            "the others' sums",
        ),
    },
    "all_gather": {
        "ring": Recipe(
            lambda n, root, k: [phase("all_gather", ring_gather(n))],
            _usual("all_gather"),
            "Every rank passes on to its right neighbour what it received last",
        ),
        "recursive_doubling": Recipe(
            lambda n, root, k: [phase("all_gather", mirrored(halving(range(n))))],
            formula(_LOG2, SHARE, "log₂n·α + (n-1)/n·S·β"),
            "Partners at distance 1, 2, 4, ... swap all they have, twice as much each time",
            power_of_two="'bruck' needs as few rounds for any number of ranks, and 'ring' takes any number too",
        ),
        "bruck": Recipe(
            lambda n, root, k: [phase("all_gather", bruck_gather(n))],
            formula(LOG, SHARE, "⌈log₂n⌉·α + (n-1)/n·S·β"),
            "Every rank sends all it has to the one 1, 2, 4, ... places before it; any number of ranks",
        ),
        "tree": Recipe(
            lambda n, root, k: [phase("gather", tree_gather(n, 0)), phase("broadcast", tree_spread(n, 0))],
            formula(
                _TWO_LOGS,
                LOG_WHOLES,
                "2⌈log₂n⌉·α + ((n-1)/n + ⌈log₂n⌉)·S·β",
                messages=LOG,
                betas=of_n(lambda n: Fraction(n - 1, n) + ceil_log2(n)),
            ),
            "A binomial tree gathers everything on rank 0, and the same tree carries it back",
        ),
        "direct": Recipe(
            lambda n, root, k: [phase("all_gather", everybody(n, lambda i, j: i))],
            _direct(SHARE, "(n-1)·α + (n-1)/n·S·β"),
            "Every rank reads every other rank's chunk, as in shared memory",
        ),
    },
    "reduce_scatter": {
        "ring": Recipe(
            lambda n, root, k: [phase("reduce_scatter", ring_scatter(n))],
            _usual("reduce_scatter"),
            "Partial sums travel once around the ring, growing at each rank",
        ),
        "recursive_halving": Recipe(
            lambda n, root, k: [phase("halving", halving(range(n)))],
            formula(_LOG2, SHARE, "log₂n·α + (n-1)/n·S·β + (n-1)/n·S·γ", gammas=SHARE),
            "Partners swap halves, quarters, ... of what they still work on, and add",
            power_of_two="'ring' takes any number of ranks",
        ),
        "tree": Recipe(
            lambda n, root, k: [phase("reduce", tree_reduce(n, 0)), phase("scatter", mirrored(tree_gather(n, 0)))],
            formula(
                _TWO_LOGS,
                of_n(lambda n: 1 + Fraction(largest_subtree(n) - 1, n), "(1 + (m-1)/n)·S, m = the largest subtree"),
                "2⌈log₂n⌉·α + (⌈log₂n⌉ + (n-1)/n)·S·β + ⌈log₂n⌉·S·γ",
                messages=LOG,
                betas=of_n(lambda n: ceil_log2(n) + Fraction(n - 1, n)),
                gammas=LOG,
            ),
            "A binomial tree adds everything up on rank 0, which deals out the chunks",
        ),
        "direct": Recipe(
            lambda n, root, k: [phase("reduce_scatter", everybody(n, lambda i, j: j, add=True))],
            _direct(SHARE, "(n-1)·α + (n-1)/n·S·β + (n-1)/n·S·γ", gammas=SHARE),
            "Each rank reads its chunk of every rank's value and adds in rank order, as in shared memory",
        ),
    },
    "broadcast": {
        "tree": Recipe(
            lambda n, root, k: [phase("broadcast", tree_spread(n, root))],
            _usual("broadcast"),
            "In every round all who have the value send it to one more rank",
        ),
        "ring": Recipe(
            lambda n, root, k: [phase("broadcast", mirrored(chain_reduce(n, root, k)))],
            formula(_CHAIN_ROUNDS, WHOLE, "(n-2+k)·(α + S/k·β)", messages=_CHAIN_MESSAGES, betas=_CHAIN_BETAS),
            "Segments follow each other down a chain of ranks, so that all links work at once",
            chunks=lambda n, k: k,
        ),
        "scatter_all_gather": Recipe(
            lambda n, root, k: [phase("scatter", mirrored(tree_gather(n, root))), phase("all_gather", ring_gather(n))],
            formula(_LOG_AND_LESS_ONE, TWO_SHARES, "(⌈log₂n⌉+n-1)·α + 2(n-1)/n·S·β"),
            "The root deals out chunks by a tree, and a ring all_gather completes them everywhere: for large values",
        ),
        "direct": Recipe(
            lambda n, root, k: [phase("broadcast", [[Send(root, r, tuple(range(n))) for r in range(n) if r != root]])],
            _direct(_WHOLES, "(n-1)·(α + S·β)"),
            "The root sends to one rank after the other; in shared memory all read it at once",
        ),
    },
    "reduce": {
        "tree": Recipe(
            lambda n, root, k: [phase("reduce", tree_reduce(n, root))],
            _usual("reduce"),
            "In every round half of the ranks hand their sums to the other half",
        ),
        "ring": Recipe(
            lambda n, root, k: [phase("reduce", chain_reduce(n, root, k))],
            formula(
                _CHAIN_ROUNDS,
                WHOLE,
                "(n-2+k)·(α + S/k·β + S/k·γ)",
                messages=_CHAIN_MESSAGES,
                betas=_CHAIN_BETAS,
                gammas=_CHAIN_BETAS,
            ),
            "Segments follow each other down a chain of ranks to the root, growing at each",
            chunks=lambda n, k: k,
        ),
        "direct": Recipe(
            lambda n, root, k: [
                phase("reduce", [[Send(r, root, tuple(range(n)), True) for r in range(n) if r != root]])
            ],
            _direct(WHOLE, "(n-1)·(α + S·β + S·γ)", messages=ONE, betas=LESS_ONE, gammas=LESS_ONE),
            "The root reads every rank's value and adds in rank order, as in shared memory",
        ),
    },
    "scatter": {
        "tree": Recipe(
            lambda n, root, k: [phase("scatter", mirrored(tree_gather(n, root)))],
            _usual("scatter"),
            "The root sends half of the chunks away, then a quarter, ...; who has many passes them on",
        ),
        "ring": Recipe(
            lambda n, root, k: [phase("scatter", mirrored(chain_gather(n, root)))],
            formula(LESS_ONE, SHARE, "(n-1)·α + (n-1)/n·S·β"),
            "Chunks follow each other down a chain of ranks, the one with the longest way first",
        ),
        "direct": Recipe(
            lambda n, root, k: [phase("scatter", [[Send(root, r, (r,)) for r in range(n) if r != root]])],
            _direct(SHARE, "(n-1)·α + (n-1)/n·S·β"),
            "The root sends every rank its chunk; in shared memory each takes it",
        ),
    },
    "gather": {
        "tree": Recipe(
            lambda n, root, k: [phase("gather", tree_gather(n, root))],
            _usual("gather"),
            "In every round half of the ranks hand all they have to the other half",
        ),
        "ring": Recipe(
            lambda n, root, k: [phase("gather", chain_gather(n, root))],
            formula(LESS_ONE, SHARE, "(n-1)·α + (n-1)/n·S·β"),
            "Chunks follow each other down a chain of ranks to the root",
        ),
        "direct": Recipe(
            lambda n, root, k: [phase("gather", [[Send(r, root, (r,)) for r in range(n) if r != root]])],
            _direct(of_n(lambda n: Fraction(1, n), "S/n"), "(n-1)·α + (n-1)/n·S·β", messages=ONE, betas=SHARE),
            "Every rank sends its chunk to the root; in shared memory the root reads it",
        ),
    },
    "all_to_all": {
        "pairwise": Recipe(
            lambda n, root, k: [phase("all_to_all", to_all_pairwise(n))],
            _usual("all_to_all"),
            "In round t every rank sends to the one t places after it",
        ),
        "bruck": Recipe(
            lambda n, root, k: [phase("all_to_all", to_all_bruck(n))],
            formula(
                LOG,
                of_n(
                    lambda n: Fraction(sum(d.bit_count() for d in range(n)), n * n),
                    "½·log₂n·S/n (other n: one-bits of 0 … n-1, · S/n²)",
                ),
                "log₂n·α + ½·log₂n·S/n·β (other n: ⌈log₂n⌉·α + one-bits of 0 … n-1, · S/n²·β)",
            ),
            "A chunk with d places to go moves 1, 2, 4, ... places, as the bits of d say: few rounds, more data",
        ),
        "ring": Recipe(
            lambda n, root, k: [phase("all_to_all", to_all_ring(n))],
            formula(LESS_ONE, of_n(lambda n: Fraction(n - 1, 2 * n), "(n-1)/2n·S"), "(n-1)·α + (n-1)/2n·S·β"),
            "Only neighbours talk: chunks travel on until they are where they belong",
        ),
        "direct": Recipe(
            lambda n, root, k: [phase("all_to_all", everybody(n, lambda i, j: i * n + j))],
            _direct(PAIR_SHARE, "(n-1)·α + (n-1)/n²·S·β"),
            "Every rank reads its chunk of every other's value, as in shared memory",
        ),
    },
}


def _recipes(kind: str) -> dict[str, Recipe]:
    if text("collective algorithms", "kind", kind) not in TABLE:
        raise _unknown("kind", kind, TABLE, "collective algorithms")
    return TABLE[kind]


def _unknown(what: str, given: Any, known: Collection[str], where: str) -> ArgumentError:
    near = OTHER_NAMES.get(str(given))
    if near not in known:
        near = next(iter(difflib.get_close_matches(str(given), known, 1)), None)
    hint = f"Did you mean {near!r}?" if near else ""
    return ArgumentError(f"{what} {shorten(given)}", where=where, allowed=f"One of {', '.join(known)}", hint=hint)
