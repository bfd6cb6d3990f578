"""Lesson 17, from shard to DTensor: who holds a row, notations of a layout, free cells, lost addends, a full memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...base.errors import shorten
from .book import Exercise
from .full_memory import PUZZLES, of_move
from .ideas import MISCONCEPTIONS, Cases, Idea, by_cases, compare_calls, slip
from .reading import another_form
from .running import ask_programs, listed
from .verdict import Note, Part, Wrong, judged

Mesh = dict[str, int]  # ranks along each axis, from the left
Dims = Sequence[Sequence[str]]  # per dim the axes that split it, outer first
NESTED = "the mesh orders the splits"
COUNTS = "equal counts, equal layout"
SHAPES_FIT = "no message where shapes fit"
WAIT = "partial sums may wait"


def places(mesh: Mesh) -> Iterator[dict[str, int]]:
    """Per rank, its position along each axis."""
    for position in np.ndindex(*mesh.values()):
        yield dict(zip(mesh, position, strict=True))


# ---- 17.1: who holds a row ----


def holders(row: int, rows: int, mesh: Mesh, order: Sequence[str]) -> list[int]:
    """The ranks that hold a row of a dim that these axes split, outer first."""
    found = []
    for rank, place in enumerate(places(mesh)):
        piece = 0
        for name in order:
            piece = piece * mesh[name] + place[name]
        if row * math.prod(mesh[name] for name in order) // rows == piece:
            found.append(rank)
    return found


def _columns_first(row: int, rows: int, mesh: Mesh, order: Sequence[str]) -> list[int]:
    turned = dict(reversed(mesh.items()))
    of = {tuple(sorted(place.items())): rank for rank, place in enumerate(places(mesh))}
    there = list(places(turned))
    named = [
        rank for rank, place in enumerate(there) if of[tuple(sorted(place.items()))] in holders(row, rows, mesh, order)
    ]
    return sorted(named)


HELD = (
    slip(
        "The name on the left is the outer one: it cuts the rows first.",
        lambda i, n, mesh, o: holders(i, n, mesh, o[::-1]),
    ),
    slip("Ranks along an axis that splits nothing hold copies: they have the row, too.", lambda *of: holders(*of)[:1]),
    slip("Ranks are counted along the last axis first: with dp=2, tp=4 rank 1 is dp 0, tp 1.", _columns_first),
    slip(
        "As if rows were dealt out one by one: a rank's rows lie next to each other.",
        lambda i, n, mesh, o: holders(i % (p := math.prod(mesh[a] for a in o)) * (n // p), n, mesh, o),
    ),
)
IN_MESH_ORDER = Idea(
    NESTED, MISCONCEPTIONS[NESTED], lambda i, n, mesh, o: holders(i, n, mesh, sorted(o, key=list(mesh).index))
)
MESHES: tuple[Mesh, ...] = (
    {"dp": 2, "tp": 4},
    {"dp": 3, "tp": 2},
    {"dp": 2, "cp": 2, "tp": 2},
    {"dp": 2, "cp": 3, "tp": 2},
)


def _held(rng: np.random.Generator, turned: bool) -> list[tuple[Any, ...]]:
    """turned: the axes are in another order than the mesh's."""
    cases = []
    for mesh in MESHES:
        names = [str(name) for name in rng.permutation(list(mesh))]
        named = names[: int(rng.integers(2 if turned else 1, len(mesh) + 1))]
        order = sorted(named, key=list(mesh).index, reverse=turned)
        rows = int(rng.integers(2, 5)) * math.prod(mesh[name] for name in order)
        cases.append((int(rng.integers(rows // 4, rows)), rows, mesh, tuple(order)))
    return cases


ROW = "the ranks whose slice has the row, ascending"


# ---- 17.2: the other notations ----


def spec(mesh: Mesh, shape: Sequence[int], strides: Sequence[Mesh], pending: Sequence[str]) -> tuple[Any, ...]:
    """Per dim the axes that split it, outer first.  strides: per dim, rows by which a slice begins later for a step
    along each axis
    """
    return tuple(tuple(sorted((a for a in mesh if by[a]), key=lambda a, by=by: -by[a])) for by in strides)


def placements(mesh: Mesh, shape: Sequence[int], strides: Sequence[Mesh], pending: Sequence[str]) -> list[str]:
    """Per axis, from the left: R, P, S0, or SS0:4 where axes to the right have cut four pieces before."""
    codes, names = {name: "P" if name in pending else "R" for name in mesh}, list(mesh)
    for dim, order in enumerate(spec(mesh, shape, strides, pending)):
        for at, name in enumerate(order):
            factor = math.prod(mesh[a] for a in order[:at] if names.index(a) > names.index(name))
            codes[name] = f"S{dim}" if factor == 1 else f"SS{dim}:{factor}"
    return list(codes.values())


def counts_of(mesh: Mesh, shape: Sequence[int], strides: Sequence[Mesh], pending: Sequence[str]) -> tuple[int, ...]:
    """Slices of each dim."""
    return tuple(math.prod(mesh[a] for a in mesh if by[a]) for by in strides)


def strategy(mesh: Mesh, shape: Sequence[int], strides: Sequence[Mesh], pending: Sequence[str]) -> Any:
    """Slices of each dim; "pending", or "order" where a strategy with these counts gives ranks other slices."""
    if pending:
        return "pending"
    counts = counts_of(mesh, shape, strides, pending)
    its_own = (*counts, math.prod(mesh.values()) // math.prod(counts))
    for rank, place in enumerate(places(mesh)):
        starts = (sum(by[a] * place[a] for a in mesh) for by in strides)
        index = tuple(start * n // size for start, n, size in zip(starts, counts, shape, strict=True))
        if tuple(map(int, np.unravel_index(rank, its_own)))[:-1] != index:
            return "order"
    return counts


def _factors(factor: Callable[[Mesh, Sequence[str], int], int]) -> Callable[..., list[str]]:
    """Placements with a wrong factor.  factor: of the axis at this place of a dim's order"""

    def wrong(mesh: Mesh, *of: Any) -> list[str]:
        codes = dict(zip(mesh, placements(mesh, *of), strict=True))
        for dim, order in enumerate(spec(mesh, *of)):
            for at, name in enumerate(order):
                n = factor(mesh, order, at)
                codes[name] = f"S{dim}" if n == 1 else f"SS{dim}:{n}"
        return list(codes.values())

    return wrong


def _right_of(mesh: Mesh, order: Sequence[str], at: int, before: bool) -> list[str]:
    """Axes that stand before (after) this one in a dim, and right (left) of it in the mesh."""
    names = list(mesh)
    others = order[:at] if before else order[at + 1 :]
    return [a for a in others if (names.index(a) > names.index(order[at])) == before]


FORMS: dict[str, tuple[Callable[..., Any], int, str, tuple[Idea, ...]]] = {
    "spec": (
        spec,
        1,
        "per dim a tuple of axes, outer first",
        (
            slip(
                "The outer axis stands first: it takes the longest stride.",
                lambda *of: tuple(o[::-1] for o in spec(*of)),
            ),
        ),
    ),
    "placements": (
        placements,
        2,
        "per axis R, P, S and the dim, or SS0:4 where axes to the right cut four pieces before",
        (
            Idea(NESTED, MISCONCEPTIONS[NESTED], _factors(lambda mesh, order, at: 1)),
            slip(
                "The factor is the size of the axes that cut before, and not of the axis itself.",
                _factors(lambda mesh, order, at: mesh[order[at]] if _right_of(mesh, order, at, True) else 1),
            ),
            slip(
                "It is the other axis that is strided: the one whose right neighbour has cut before it.",
                _factors(lambda mesh, order, at: math.prod(mesh[a] for a in _right_of(mesh, order, at, False))),
            ),
        ),
    ),
    "strategy": (
        strategy,
        2,
        'slices of each dim; "pending" or "order" where a strategy cannot say it',
        (
            Idea(COUNTS, MISCONCEPTIONS[COUNTS], lambda *of: "pending" if of[3] else counts_of(*of)),
            slip(
                "A strategy has no word for a pending sum: the result has to be reduced first.",
                lambda *of: strategy(*of[:3], ()),
            ),
            slip(
                "Copies along the last axis are what a strategy has, too: it repeats innermost.",
                lambda *of: "order" if "R" in placements(*of) and not of[3] else strategy(*of),
            ),
        ),
    ),
}


def strided(mesh: Mesh, shape: Sequence[int], dims: Dims, pending: Sequence[str] = ()) -> tuple[Any, ...]:
    """The arguments of `forms` for this layout."""
    strides = []
    for size, order in zip(shape, dims, strict=True):
        by, left = dict.fromkeys(mesh, 0), size
        for name in order:
            by[name] = left = left // mesh[name]
        strides.append(by)
    return mesh, tuple(shape), tuple(strides), tuple(pending)


LINE, CUBE = MESHES[0], MESHES[2]
LAYOUTS = [
    strided(LINE, (16, 32), (("dp",), ("tp",))),
    strided(LINE, (16, 32), (("tp", "dp"), ())),
    strided(LINE, (16, 32), (("dp",), ())),
    strided(LINE, (16, 32), ((), ("tp",))),
    strided(LINE, (16, 32), (("dp", "tp"), ())),
    strided(LINE, (16, 32), (("dp",), ()), ("tp",)),
    strided(CUBE, (16, 32), (("tp", "cp", "dp"), ())),
    strided(CUBE, (16, 32), (("dp",), ("tp", "cp"))),
]


def _layouts(rng: np.random.Generator) -> list[tuple[Any, ...]]:
    cases = []
    for mesh in (*MESHES[:3], LINE):
        dims: list[list[str]] = [[], []]
        at = rng.integers(0, 4, len(mesh))  # a dim, copies, or addends
        for name, where in zip(rng.permutation(list(mesh)), at, strict=True):
            if where < 2:
                dims[where].append(str(name))
        pending = [name for name in mesh if not any(name in order for order in dims)][: int(rng.integers(0, 2))]
        cases.append(strided(mesh, (24, 48), dims, pending))
    return cases


def _item(answer: Any, key: Any, ordered: bool = True) -> Callable[..., Any]:
    """One of the things that a learner's function gives.  ordered: whether their order counts"""

    def called(*case: Any) -> Any:
        value = answer(*case)[key]
        return value if ordered or isinstance(value, str) else sorted(listed(value))

    return called


def _compared(answer: Any, key: Any, right: Callable[..., Any], cases: Any, *how: Any, ordered: bool = True) -> str:
    if not callable(answer):
        raise another_form(answer, "A function, see the text", "no function yet")
    return compare_calls(_item(answer, key, ordered), cases, right, *how)


def right_forms(*of: Any) -> dict[str, Any]:
    """All three notations of a layout."""
    return {key: right(*of) for key, (right, *_) in FORMS.items()}


def _forms(answer: Any) -> Iterator[Part]:
    for key, (right, _, rule, ideas) in FORMS.items():
        yield judged(key, _compared, answer, key, right, LAYOUTS, ideas, rule)


# ---- 17.3: free cells ----


def free_result(left: str, right: str, out: str, a: str, b: str) -> str:
    """What a product of the left and the right operand is if nothing is sent: R, P, or the label that is split; "" if
    something must be sent.  a, b: what the axis does to them, in the same words
    """
    if "P" in (a, b):
        return "P" if "R" in (a, b) else ""
    split = {a, b} - {"R"}
    if len(split) > 1:
        return ""
    return next((label if label in out else "P" for label in split), "R")


def messages(left: str, right: str, out: str, a: str, b: str) -> list[str]:
    """The messages that would do, each alone: [] where nothing must be sent."""
    found = []
    for name, labels, here in (("a", left, a), ("b", right, b)):
        for to in ("R", *labels):
            after = (to, b) if name == "a" else (a, to)
            if here not in ("R", to) and free_result(left, right, out, *after):
                kinds = ("all_reduce", "reduce_scatter") if here == "P" else ("all_gather", "all_to_all")
                found.append(f"{name} {kinds[to != 'R']}")
    return [] if free_result(left, right, out, a, b) else sorted(set(found))


def cell(*of: str) -> tuple[str, list[str]]:
    """Both."""
    return free_result(*of), messages(*of)


def _table(left: str, right: str, out: str) -> list[tuple[str, ...]]:
    return [(left, right, out, a, b) for a in ("R", *left, "P") for b in ("R", *right, "P")]


SIXTEEN = _table("mk", "kn", "mn")
OTHERS = (("bmk", "bkn", "bmn"), ("ij", "ij", "ij"), ("ij", "j", "i"), ("i", "j", "ij"), ("ij", "jk", "k"))
RESULTS = (
    Idea(SHAPES_FIT, MISCONCEPTIONS[SHAPES_FIT], lambda *of: "R" if {*of[3:]} == {"k"} else free_result(*of)),
    Idea(WAIT, "The product of two sums is not the sum of products: reduce one of them first.",
         lambda *of: "P" if "P" in of[3:] and {*of[3:]} <= {"P", "R"} else free_result(*of)),
    slip(
        "A copy can be cut for nothing: a split operand next to it needs no message.",
        lambda *of: "" if of[3:] in (("R", "k"), ("k", "R")) else free_result(*of),
    ),
    slip(
        "Addends times a copy stay addends: a product is linear in each operand.",
        lambda *of: "" if "P" in of[3:] else free_result(*of),
    ),
    slip(
        "One axis cannot split both rows and columns of the result: each rank would have a block of the diagonal only.",
        lambda *of: "m" if of[3:] == ("m", "n") else free_result(*of),
    ),
)  # fmt: skip
MENDS = (
    slip(
        "A gather always works, and is not the only way: an all_to_all splits another dim, for fewer bytes.",
        lambda *of: [m for m in messages(*of) if "all_to_all" not in m],
    ),
    slip(
        "Addends need not be reduced whole: after a reduce_scatter each rank has a slice, as of the other operand.",
        lambda *of: [m for m in messages(*of) if "reduce_scatter" not in m],
    ),
    slip(
        "Either operand may move: list all messages that would do.",
        lambda *of: [m for m in messages(*of) if m[0] == "a"],
    ),
)


def _other(rng: np.random.Generator) -> list[tuple[str, ...]]:
    """Operators of other labels, one drawn cell and one with addends each."""
    cases = [case for labels in OTHERS for case in _table(*labels)]
    return [cases[int(n)] for n in rng.permutation(len(cases))[:20]]


def _cells(answer: Any) -> Iterator[Part]:
    how = "R, P or a label; empty where something must be sent"
    yield judged("results", _compared, answer, 0, free_result, SIXTEEN, RESULTS, how)
    how = "the messages that would do, each alone"
    yield judged("messages", partial(_compared, ordered=False), answer, 1, messages, SIXTEEN, MENDS, how)
    yield judged("other operators", _other_cells, answer, np.random.default_rng(7))


def _other_cells(answer: Any, rng: np.random.Generator) -> str:
    cases = _other(rng)
    _compared(answer, 0, free_result, cases, RESULTS)
    return _compared(answer, 1, messages, cases, MENDS, ordered=False)


# ---- 17.4: addends that are lost ----

LINEAR = ("scale", "negative", "transpose", "sum", "times a copy")
LOSING = ("relu", "exp", "square", "max", "plus a copy")


def first_loss(operators: Sequence[str]) -> int | None:
    """Place of the first operator that must not see addends, of a value that is pending at first; None without one."""
    for at, name in enumerate(operators):
        if name == "all_reduce" or name in LOSING:
            return None if name == "all_reduce" else at
    return None


LOST = (
    Idea(WAIT, MISCONCEPTIONS[WAIT], lambda operators: None),
    slip(
        "A copy that is added on every rank is in the sum as often as there are ranks.",
        lambda operators: first_loss([name.replace("plus a copy", "scale") for name in operators]),
    ),
    slip(
        "After an all_reduce the value is whole: nothing is lost any more.",
        lambda operators: first_loss([name.replace("all_reduce", "scale") for name in operators]),
    ),
    slip(
        "What is linear may read addends: f(a) + f(b) is f(a + b).",
        lambda operators: next((n for n, name in enumerate(operators) if name != "all_reduce"), None),
    ),
)
LISTS = [
    (("scale", "relu", "sum"),),
    (("transpose", "all_reduce", "exp"),),
    (("negative", "times a copy", "sum"),),
    (("scale", "plus a copy", "all_reduce", "relu"),),
    (("sum", "max", "square"),),
]


def _lists(rng: np.random.Generator) -> list[tuple[tuple[str, ...]]]:
    """Lists of 3 to 6 operators, half of them with an all_reduce."""
    cases = []
    for n in range(6):
        names = [str(name) for name in rng.choice([*LINEAR, *LINEAR, *LOSING], int(rng.integers(3, 7)))]
        if n % 2:
            names[int(rng.integers(1, len(names)))] = "all_reduce"
        cases.append((tuple(names),))
    return cases


RANKS = 4


def _blocks(rng: np.random.Generator, ranks: int) -> tuple[list[tuple[np.ndarray, ...]], dict[str, np.ndarray]]:
    """(what each rank has, one device's tensors).  x (5, 2 ranks), up (2 ranks, 6), bias (6,), down (6, 3)"""
    x, up, bias, down = (rng.normal(size=size) for size in ((5, 2 * ranks), (2 * ranks, 6), 6, (6, 3)))
    h = np.maximum(x @ up + bias, 0)
    own = [
        (x[:, 2 * r : 2 * r + 2].copy(), up[2 * r : 2 * r + 2].copy(), bias.copy(), down.copy()) for r in range(ranks)
    ]
    return own, {"h": h, "y": h @ down}


def _tensors(block: Any, ranks: int) -> str:
    """Compare a program's tensors with one device's, on every rank. Raises Wrong for the first that differs."""
    if not callable(block):
        raise another_form(block, "block=: a rank program that returns h and y", "no program yet")
    own, wanted = _blocks(np.random.default_rng(ranks), ranks)
    run = ask_programs("h and y of one device", block, ranks, [tuple(map(np.copy, mine)) for mine in own])
    for rank, result in enumerate(run.results):
        try:
            found = dict(zip(wanted, (np.asarray(each, np.float64) for each in listed(result, 3)), strict=True))
        except Exception:  # whatever a learner's objects do when they are read
            raise Wrong(shorten(result), "h and y", form="Two arrays: h, y") from None
        for name, right in wanted.items():
            if found[name].shape != right.shape or not np.allclose(found[name], right, rtol=1e-9):
                told = shorten(found[name].shape) if found[name].shape != right.shape else "another value"
                note = _note(name, found[name], own, wanted)
                raise Wrong(f"{told} of {name}", f"{name} of one device", note, rank, name)
    sent = [asked for asked in run.asked if asked.kind != "recv"]
    if len(sent) > ranks or {asked.kind for asked in sent} != {"all_reduce"}:
        kinds = shorten([asked.kind for asked in sent if asked.rank == 0])
        raise Wrong(
            f"rank 0 asks for {kinds}", "one all_reduce", "Once the sum is whole, what follows needs no message."
        )
    return f"h and y are one device's on {ranks} ranks, with one all_reduce"


def _note(name: str, found: np.ndarray, own: Sequence[tuple[np.ndarray, ...]], wanted: dict[str, np.ndarray]) -> str:
    """What a wrong tensor is, where that is known."""
    products, bias = [x @ up for x, up, *_ in own], own[0][2]
    if name == "y":
        ranks = len(own)
        again = found.shape == wanted["y"].shape and np.allclose(found, ranks * wanted["y"])
        return f"y is whole on every rank: the sum has it {ranks} times." if again else ""
    mistakes = {
        "This rank's addends went through the ReLU, and what was below zero is lost to the sum.": (
            *(np.maximum(p + bias, 0) for p in products),
        ),
        "The ReLU came before the sum: relu(a) + relu(b) is not relu(a + b).": (
            *(sum(np.maximum(p + c, 0) for p in products) for c in (bias, 0 * bias)),
        ),
        "Every rank has added the bias: it is in the sum as often as there are ranks.": (
            np.maximum(sum(products) + len(own) * bias, 0),
        ),
    }
    for text, values in mistakes.items():
        if any(found.shape == value.shape and np.allclose(found, value) for value in values):
            return Note(text, WAIT) if "ReLU" in text else text
    return ""


def _swallowed(answer: Any, block: Any = None) -> Iterator[Part]:
    yield judged("operator", compare_calls, answer, LISTS, first_loss, LOST, "the first that must not see addends")
    yield judged("tensors", _tensors, block, RANKS)
    yield judged("other ranks", _tensors, block, 3)


EXERCISES = (
    Exercise(
        "17.1",
        "who holds a row",
        hints=(
            "How many pieces is the dim cut into, and where among them is the row?",
            "In the Rosetta Lab let two axes split dim 0, and exchange the outer one and the inner one.",
            "The first name cuts the dim, the second each of these pieces. An axis that is not named changes nothing.",
            "A rank's piece is its place along the first axis times the size of the second, plus its place along that.",
        ),
        **by_cases(
            holders,
            Cases(
                "as in the mesh", 2, _held(np.random.default_rng(3), False), ROW, HELD, lambda rng: _held(rng, False)
            ),
            Cases(
                *("another order", 2, _held(np.random.default_rng(5), True), ROW),
                *((IN_MESH_ORDER, *HELD[1:]), lambda rng: _held(rng, True)),
            ),
        ),
        start='def holders(row, rows, mesh, order):\n    return [0]\n\n\ncheck("17.1", holders)\n',
    ),
    Exercise(
        "17.2",
        "the other notations",
        (*((key, points) for key, (_, points, *_) in FORMS.items()),),
        (
            "Which axis has the longest stride in a dim, and what does that say about who cuts first?",
            "Print pl.notations of such a layout, or edit it in the Rosetta Lab: what becomes of the strategy?",
            "The factor multiplies axes that cut before and stand to the right. A strategy has ranks of its own order.",
            "A strategy says it if no sum is pending and ranks in order walk through the slices, copies innermost.",
        ),
        _forms,
        ideas=tuple(
            replace(
                idea, part=key, answer=lambda *of, key=key, wrong=idea.answer: {**right_forms(*of), key: wrong(*of)}
            )
            for key, (*_, ideas) in FORMS.items()
            for idea in ideas
            if idea.name
        ),
        drawn={
            key: lambda answer, rng, key=key, right=right: _compared(answer, key, right, _layouts(rng))
            for key, (right, *_) in FORMS.items()
        },
        start="""\
def forms(mesh, shape, strides, pending):
    spec = tuple(tuple(axis for axis in mesh if by[axis]) for by in strides)
    placements = ["R" for axis in mesh]
    strategy = tuple(1 for size in shape)
    return {"spec": spec, "placements": placements, "strategy": strategy}


check("17.2", forms)
""",
    ),
    Exercise(
        "17.3",
        "free cells",
        (("results", 2), ("messages", 2), ("other operators", 1)),
        (
            "For each label: which operands have it, and has the result?",
            "Run the sixteen products above and look at the placements of the results, and at the messages.",
            "A split label must be split in every operand that has it; a copy is cut for nothing. Addends pass alone.",
            "Free: one label, or addends next to a copy. Else change one operand at a time, and see if that is free.",
        ),
        _cells,
        ideas=tuple(
            replace(idea, part="results", answer=lambda *of, wrong=idea.answer: (wrong(*of), messages(*of)))
            for idea in RESULTS
            if idea.name
        ),
        drawn={"other operators": _other_cells},
        start="""\
def cell(left, right, out, a, b):
    result, messages = "R", []
    return result, messages


check("17.3", cell)
""",
    ),
    Exercise(
        "17.4",
        "addends that are lost",
        (("operator", 2), ("tensors", 2), ("other ranks", 1)),
        (
            "Is f(a) + f(b) the same as f(a + b) for each operator?",
            "Compare h with one device's first, then y: which is the first that is wrong, and from what is it made?",
            "The bias is a copy: where would it be added once, and not once on each rank?",
            "Reduce the product of x and up, then add the bias: from there on tensors are whole, and nothing is sent.",
        ),
        _swallowed,
        ideas=(replace(LOST[0], part="operator"),),
        drawn={"operator": lambda answer, rng: compare_calls(answer, _lists(rng), first_loss)},
        start="""\
def first_loss(operators):
    return None


def block(rank, ranks, mine):
    x, up, bias, down = mine
    h = np.maximum(x @ up + bias, 0)
    y = yield Request("all_reduce", tuple(range(ranks)), h @ down)
    return h, y


check("17.4", first_loss, block=block)
""",
    ),
    Exercise(
        "17.5",
        "with a full memory",
        (("arrives", 1), ("near par", 1), ("par", 2)),
        attempt="near par",
        own=lambda rng: of_move(PUZZLES[int(rng.integers(len(PUZZLES)))]),
        **of_move(PUZZLES[0]),
        start='moves = [("tp", None), ("dp", 0)]\n\ncheck("17.5", moves)\n',
    ),
)
