"""Lesson 05, slicing one product: what a strategy sends, the shapes of the slices, a product under a cap."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice, product
from operator import index
from typing import Any

import numpy as np

from ...base.errors import StrategyError
from ...base.units import plural
from . import more_ways
from .book import Exercise
from .ideas import Idea, recognised, slip
from .one_product import DEVICES, SHAPE, Pair, Product, counts, pair, product_with
from .ranks_agree import OF_LESSON_05
from .reading import another_form, reading, refusals, whole_numbers
from .running import ask
from .verdict import Part, Wrong, judged, reached

# ---- 05.1: what a strategy sends ----

STRATEGIES: tuple[Pair, ...] = (
    ((8, 1), (1, 1)),
    ((1, 8), (8, 1)),
    ((1, 1), (1, 8)),
    ((2, 4), (4, 1)),
    ((2, 4), (2, 1)),
    ((4, 1), (1, 2)),
    ((2, 2), (2, 2)),
    ((4, 2), (2, 2)),
    ((1, 2), (2, 1)),
    ((3, 1), (1, 1)),
    ((2, 1), (4, 1)),
    ((1, 4), (4, 2)),
)
OPEN = -1  # an entry that is still ...
FORM = "12 entries in the order of the table: None, 1, or how many ranks add up"


@lru_cache(maxsize=1)
def addends_of() -> tuple[int | None, ...]:
    """Per strategy the ranks that add up: 1 where nothing is sent, None where it is refused."""
    addends: list[int | None] = []
    for strategy in STRATEGIES:
        try:
            addends.append(product_with(strategy).addends)
        except StrategyError:
            addends.append(None)
    return tuple(addends)


SENDS_IDEAS = (  # what each says of ((a, b), (c, d))
    slip(
        "You counted every split. Only the dim that the product sums over leaves partial sums to add up.",
        lambda a, b, c, d: a * b * d,
    ),
    slip(
        "You counted both splits of x, rows and columns. Ranks with other rows of x compute other elements.",
        lambda a, b, c, d: a * b,
    ),
    slip(
        "Not all eight ranks add up: only those that hold partial sums of the same elements.",
        lambda a, b, c, d: DEVICES if b > 1 else 1,
    ),
    Idea(
        "no message where shapes fit",
        "Shapes that fit do not make a product free of communication: with k split, every rank has a part of each sum.",
        lambda a, b, c, d: 1,
    ),
    slip(
        "Ranks that are left over hold copies. They do not add up.",
        lambda a, b, c, d: DEVICES // (a * d) if b > 1 else 1,
    ),
)


def _sends(answer: Any) -> Iterator[Part]:
    with reading(answer, FORM, "nothing yet"):
        items = islice(answer, len(STRATEGIES) + 1)
        entries = [OPEN if each is ... else None if each is None else index(each) for each in items]
    if len(entries) != len(STRATEGIES) or set(entries) == {OPEN}:
        raise Wrong("nothing yet" if set(entries) == {OPEN} else f"{len(entries)} entries", form=FORM)
    for name, belongs in SENDS_PARTS.items():
        yield judged(name, _rows, entries, [n for n, addends in enumerate(addends_of()) if belongs(addends)])


SENDS_PARTS: dict[str, Callable[[int | None], bool]] = {
    "refused": lambda addends: addends is None,
    "nothing to add": lambda addends: addends == 1,
    "ranks that add up": lambda addends: addends is not None and addends > 1,
}


def _rows(entries: Sequence[int | None], rows: Sequence[int]) -> str:
    right = addends_of()
    wrong = [n for n in rows if entries[n] != right[n]]
    if wrong:
        first = wrong[0]
        text = f"number {first + 1}, {STRATEGIES[first]}: {_spoken(entries[first])}"
        count = f"{len(rows) - len(wrong)} of {len(rows)} right"
        raise Wrong(f"{count}; first wrong: {text}", "as the compiler says", _sends_note(entries, first))
    return f"{len(rows)} of {len(rows)} right, each compiled for {DEVICES} ranks"


def _spoken(entry: int | None) -> str:
    if entry == OPEN:
        return "still open"
    return "refused" if entry is None else "nothing to add" if entry == 1 else f"{entry} ranks add up"


def _sends_note(entries: Sequence[int | None], first: int) -> str:
    """The wrong model that explains all entries of valid strategies, or what is special about the first wrong one."""
    right, (a, b), (c, d) = addends_of(), *STRATEGIES[first]
    if entries[first] == OPEN:
        return ""
    if right[first] is None:
        if b != c:
            return "Look at the columns of x and the rows of w: both are k, and both must be split equally."
        if a * b * d > DEVICES:
            return f"How many ranks does it take? There are {DEVICES}."
        return "Into how many equal slices can 16 rows be divided?"
    if entries[first] is None:
        many = "There may be fewer slices than ranks: the ranks that are left over hold copies."
        return many if a * b * d < DEVICES else "This one is valid: k is split equally, and 8 ranks are enough."
    valid = [n for n, each in enumerate(right) if each is not None and entries[n] not in (None, OPEN)]
    model = recognised([entries[n] for n in valid], [sum(STRATEGIES[n], ()) for n in valid], SENDS_IDEAS)
    if right[first] == 1:
        return model or "Is k split here at all? Write 1 where nothing is added up."
    return model or "Whose products are parts of the same sums? Other rows of x, and other columns of w, make others."


# ---- 05.2: the shapes of the slices ----

SHAPES = (SHAPE, (64, 8, 24), (8, 48, 120))


def _slices(answer: Any) -> Iterator[Part]:
    ask("the shapes of the slices", answer, *SHAPE, ((1, 1), (1, 1)))
    for place, name in enumerate(("slices of x and w", "slice of the result", "addends")):
        yield judged(name, _as_compiled, answer, place)
    yield judged("on ranks", _on_ranks, answer)


def _answered(answer: Any, shape: tuple[int, int, int], strategy: Pair) -> tuple[Any, ...]:
    """((x, w, result), addends) as plain tuples."""
    case = f"a product {shape} with {strategy}"
    value = ask(case, answer, *shape, strategy)
    try:
        x, w, out, addends = value
        return *(whole_numbers(each, 3) for each in (x, w, out)), index(addends)
    except Exception as error:  # a shape has no fractions
        note = "Use // to divide: a shape is made of whole numbers." if "float" in str(error) else ""
        form = "(slice of x, slice of w, slice of the result, addends): three shapes and a number"
        raise another_form(value, form, "None", "", note, None, case) from error


def _as_compiled(
    answer: Any,
    place: int,
    shapes: Sequence[tuple[int, int, int]] = SHAPES,
    splits: Sequence[tuple[int, int, int]] = tuple(counts()),
) -> str:
    for shape, split in product(shapes, splits):
        strategy = pair(*split)
        answered, compiled = _answered(answer, shape, strategy), product_with(strategy, shape)
        right = (*compiled.slices, compiled.addends)
        for at in ((0, 1), (2,), (3,))[place]:
            if answered[at] != right[at]:
                name = ("slice of x", "slice of w", "slice of the result", "addends")[at]
                note = recognised([answered[at]], [(at, shape, split)], SHAPE_IDEAS)
                raise Wrong(f"{name}: {answered[at]}", f"{right[at]}", note, None, f"a product {shape}, {strategy}")
    return f"{len(shapes) * len(splits)} products and strategies, as compiled"


def _drawn_shape(place: int, answer: Any, rng: np.random.Generator) -> None:
    m, k, n = (int(8 * size) for size in rng.integers(1, 9, 3))
    splits = rng.permutation(list(counts()))[:3]
    _as_compiled(answer, place, [(m, k, n)], [tuple(map(int, each)) for each in splits])


def _each(of: Callable[..., int]) -> Callable[..., tuple[int, ...] | None]:
    """A wrong shape: `of(sizes, counts, dim)` for both dims of a tensor of `sizes` that is cut into `counts`."""

    def shape(at: int, sizes: tuple[int, int, int], split: tuple[int, int, int]) -> tuple[int, ...] | None:
        if at == 3:
            return None
        dims = ((0, 1), (1, 2), (0, 2))[at]
        whole, counts = (tuple(each[dim] for dim in dims) for each in (sizes, split))
        return tuple(of(whole, counts, place) for place in (0, 1))

    return shape


def _addends(of: Callable[[int, int, int], int]) -> Callable[..., int | None]:
    """A wrong number of addends, from the counts of m, k and n."""
    return lambda at, sizes, split: of(*split) if at == 3 else None


ONLY_K = "Only k leaves partial sums: other rows of x and other columns of w make other elements."
SMALLER = "Splitting k makes the result no smaller: a partial sum has the full size of what it is a part of."
SHAPE_IDEAS = (  # of one entry of the answer, a product's sizes and the counts of m, k and n
    slip(ONLY_K, _addends(lambda a, b, c: a * b)),
    slip(ONLY_K, _addends(lambda a, b, c: b * c)),
    slip(ONLY_K, _addends(lambda a, b, c: a * b * c)),
    slip("Those are all ranks. Only those that hold parts of the same sums add up.", _addends(lambda a, b, c: DEVICES)),
    slip("With k split a rank has a part of each sum. Who has the others?", _addends(lambda a, b, c: 1)),
    slip("That is the whole tensor.", _each(lambda whole, counts, dim: whole[dim])),
    slip(SMALLER, lambda at, s, split: (s[0] // (split[0] * split[1]), s[2] // split[2]) if at == 2 else None),
    slip(SMALLER, lambda at, s, split: (s[0] // split[0], s[2] // (split[1] * split[2])) if at == 2 else None),
    slip(
        "A strategy gives the number of slices: divide the size by it.",
        _each(lambda whole, counts, dim: whole[dim] * counts[dim]),
    ),
    slip(
        "The counts are per dim, in the order of the dims: rows, then columns.",
        _each(lambda whole, counts, dim: whole[dim] // counts[1 - dim]),
    ),
    slip("Those are the numbers of slices, not their sizes.", _each(lambda whole, counts, dim: counts[dim])),
    slip("Rows and columns are exchanged.", _each(lambda whole, counts, dim: whole[1 - dim] // counts[dim])),
    slip("Rows and columns are exchanged.", _each(lambda whole, counts, dim: whole[1 - dim] // counts[1 - dim])),
)


def _on_ranks(answer: Any) -> str:
    """The arrays of a run: what each of 8 simulated ranks really holds."""
    strategies = [pair(2, 4, 1), pair(2, 2, 2), pair(1, 2, 2)]
    for strategy in strategies:
        *shapes, addends = _answered(answer, SHAPE, strategy)
        product = product_with(strategy)
        held = product.held_arrays()
        for name, shape in zip(held, shapes, strict=True):
            if any(array.shape != shape for array in held[name]):
                raise Wrong(f"{name}: {shape}", f"{held[name][0].shape}, the array of rank 0", "", None, f"{strategy}")
        # the addends of an element, added up, are the element: counted, how many ranks take part
        if addends != product.addends:
            raise Wrong(f"{addends} addend{'s' * (addends != 1)}", f"{product.addends}", "", None, f"{strategy}")
    return f"{len(strategies)} products on {DEVICES} simulated ranks: arrays of these shapes"


# ---- 05.3: a product under a cap ----

LARGE, CAP = (64, 512, 128), 27_000


@lru_cache(maxsize=1)
def par_sent() -> tuple[int, tuple[Pair, ...]]:
    """The least elements that a rank sends under the cap, and the strategies that do: of all strategies."""
    products = (product_with(pair(*each), LARGE) for each in counts())
    fitting = [each for each in products if each.held_elements <= CAP]
    least = min(each.sent_elements for each in fitting)
    return least, tuple(each.strategy for each in fitting if each.sent_elements == least)


PAIR_FORM = "a strategy such as ((8, 1), (1, 1))"


def _under_cap(answer: Any) -> Iterator[Part]:
    with reading(answer, PAIR_FORM, "no strategy yet"), refusals("a strategy that compiles"):
        strategy = answer
        if isinstance(answer, str):
            numbers = [int(n) for n in re.findall(r"\d+", answer[:99])]
            if len(numbers) != 4:
                raise another_form(answer, PAIR_FORM)
            strategy = numbers[:2], numbers[2:]
        large = Product(tuple(whole_numbers(each, 3) for each in islice(strategy, 3)), LARGE)
    yield Part("valid", True, f"{plural(large.addends, 'addend')}, slices {', '.join(map(str, large.slices))}")
    held = large.held_elements
    if held > CAP:
        raise Wrong(f"{held:,} elements on a rank", f"at most {CAP:,}", _cap_note(large))
    yield Part("fits", True, f"{held:,} of {CAP:,} elements")
    least, _ = par_sent()
    text = f"{large.sent_elements:,} elements sent by a rank, counted from the plan's messages: "
    text += f"{large.sent_elements / least:.2f} x par"
    rule = f"{least:,}: no strategy under the cap sends less, by exhaustive search"
    yield reached("par", large.sent_elements <= least, text, rule, _sent_note(large))


def _cap_note(large: Product) -> str:
    sizes = {name: int(a * b) for name, (a, b) in zip(("x", "w", "the result"), large.slices, strict=True)}
    name = max(sizes, key=sizes.__getitem__)
    return f"Most of it is {name}: {sizes[name]:,} elements. Which counts make its slice smaller?"


def _sent_note(large: Product) -> str:
    if large.slices[2] == (LARGE[0], LARGE[2]):
        return "Every rank has a partial sum of the whole result. Split the result, too: then less is added up."
    return "Fewer addends, or a smaller slice of the result: either makes the message smaller."


EXERCISES = (
    Exercise(
        "05.1",
        "what a strategy sends",
        (("refused", 2), ("nothing to add", 2), ("ranks that add up", 2)),
        (
            "A matrix product sums over one of its three dims. Which one, and where is it in a strategy?",
            "Two of the four counts belong to the same dim. Compare them first; then count the slices; then divide 16.",
            "The second count is that of k: it says how many ranks add up. Where it is 1, nothing is sent. The third "
            "must be equal to it, and first times second times fourth must not exceed 8.",
            "5, 8, 10 and 11 are refused. Nothing is added up in 1, 3 and 6. Eight ranks add up in 2, four in 4 and "
            "12, two in 7 and 9.",
        ),
        _sends,
        ideas=(
            Idea(
                "no message where shapes fit",
                "Shapes that fit do not make a product free of communication",
                [1, 1, 1, 1, None, 1, 1, None, 1, None, None, 1],
                "ranks that add up",
            ),
        ),
        start="""\
sends = [..., ..., ..., ..., ..., ..., ..., ..., ..., ..., ..., ...]

check("05.1", sends)
""",
    ),
    Exercise(
        "05.2",
        "the shapes of the slices",
        (("slices of x and w", 2), ("slice of the result", 1), ("addends", 1), ("on ranks", 1)),
        (
            "Which dims does the result have, and by which counts are they split?",
            "Write the product as mk,kn->mn: three letters, and a count for each.",
            "x has m and k, w has k and n, the result has m and n: divide each by its letter's count. What happens to "
            "k, which the result does not have?",
            "With the counts ((a, b), (b, c)): x is (m // a, k // b), w is (k // b, n // c), the result is "
            "(m // a, n // c), and there are b addends.",
        ),
        _slices,
        drawn={
            name: partial(_drawn_shape, place)
            for place, name in enumerate(("slices of x and w", "slice of the result", "addends"))
        },
        start='''\
def slices(m, k, n, strategy):
    """Returns the slices' shapes of x, w and result, and how many partial sums an element has."""
    return (m, k), (k, n), (m, n), 1


check("05.2", slices)
''',
    ),
    Exercise(
        "05.3",
        "a product under a cap",
        (("valid", 1), ("fits", 1), ("par", 2)),
        (
            "Which of the three tensors is the largest, and which counts split it?",
            "To send nothing, k must stay whole. What does a rank hold then, at the least?",
            "Nothing fits unless k is split. Split it as little as the cap allows, and use the other counts to make "
            "the message small.",
            "Two addends are enough: split k in 2, and use the remaining factor of 4 on the result. Split the columns "
            "of w in 4, or the rows of x and the columns of w in 2 each.",
        ),
        _under_cap,
        lambda: "\n".join(map(str, par_sent()[1])),
        "fits",
        start="""\
strategy = ((1, 8), (8, 1))

check("05.3", strategy)
""",
    ),
    *OF_LESSON_05,
    *more_ways.OF_LESSON_05,
)
