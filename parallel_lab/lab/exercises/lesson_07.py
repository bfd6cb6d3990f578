"""Lesson 07, gradients travel backwards: the dual of every message, the reduction that is missing, clipping by norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...base.errors import ArgumentError, ParallelLabError, shorten
from ...ops.collectives.definitions import MESSAGES
from ...run.communicator import Request
from ...run.simulator import simulate
from .book import Exercise
from .ideas import Idea, slip
from .reading import another_form, read_dict, reading
from .running import Asked, ProgramRun, ask_programs
from .verdict import Note, Part, Wrong, judged

REPLICATED = "replicated value, replicated gradient"
CLOSE = 1e-9  # relative, float64

# ---- 07.1: the dual of every message ----

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "scatter", "gather")
COPY = "copy"  # a value that every rank holds, used by each in its own way: forward nothing is sent
CHOICES = (*KINDS, "nothing")
RANKS = (4, 3)
PIECE = 6  # elements of a slice; every number of RANKS cuts a slice evenly, too


def _sends(kind: str, rank: int, ranks: int, value: np.ndarray | None) -> Iterator[Any]:
    """A rank's program: one message, among all ranks; the root is 0."""
    definition = MESSAGES[kind]
    how: dict[str, Any] = {"root": 0} if "root" in definition.attributes else {}
    if definition.sender == "root" and rank != 0:
        size = PIECE if kind == "scatter" else PIECE * ranks
        value, how = None, {**how, "shape": (size,), "dtype": "float64"}
    return (yield Request(kind, tuple(range(ranks)), value, **how))


def _apply(kind: str, values: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """What every rank has after a message in which it hands over its value; None: nothing."""
    if kind in ("nothing", COPY):
        return list(values)
    ranks = len(values)
    return simulate([_sends(kind, rank, ranks, value) for rank, value in enumerate(values)])


def _given(kind: str, ranks: int, rng: np.random.Generator) -> list[np.ndarray | None]:
    """Random values for a message: whole ones or slices, on the root alone where only it gives."""
    size = PIECE if kind in ("all_gather", "gather") else PIECE * ranks
    alone = kind in ("broadcast", "scatter")
    return [None if alone and rank else rng.normal(size=size) for rank in range(ranks)]


def _inner(one: Sequence[np.ndarray | None], two: Sequence[np.ndarray | None]) -> float:
    pairs = [(a, b) for a, b in zip(one, two, strict=True) if a is not None and b is not None]
    return float(sum(a @ b for a, b in pairs))


def gap(forward: str, backward: str, ranks: int = 4) -> float:
    """How far `backward` is from bringing back the gradient of `forward`, relative: 0 for its dual.

    A message is linear: what goes out is A x. Its backward must be A transposed, so <A x, y> = <x, A' y> for any x and
    any gradient y of what went out, added up over all ranks. Raises ParallelLabError if the shapes do not fit.
    """
    rng = np.random.default_rng(70 + ranks)
    values = _given(forward, ranks, rng)
    if forward == COPY:  # one value, used by all
        values = [values[0]] * ranks
    outs = _apply(forward, values)
    grads = [None if out is None else rng.normal(size=out.shape) for out in outs]
    back = _apply(backward, grads)
    if any(value is None and grad is not None for value, grad in zip(values, back, strict=True)):
        raise ArgumentError("a gradient arrives at ranks that gave nothing", where=backward)
    want = _inner(outs, grads)
    # every rank that holds the copy must get the same gradient, the whole one
    products = [_inner([value], [grad]) for value, grad in zip(values, back, strict=True)]
    return max(abs(each - want) / abs(want) for each in (products if forward == COPY else [sum(products)]))


def dual(kind: str) -> str:
    """The message that brings the gradient back."""
    return "all_reduce" if kind == COPY else MESSAGES[kind].adjoint


GROUPS = (("the same way", ("all_reduce", "all_to_all")), ("slices", ("all_gather", "reduce_scatter")))
GROUPS += (("one root", ("broadcast", "reduce", "scatter", "gather")), ("a copy", (COPY,)))


def _duals(answer: Any) -> Iterator[Part]:
    read_dict(answer, 'a dict: {"all_reduce": "...", "all_gather": "...", ...}')
    for name, kinds in GROUPS:
        yield judged(name, _dual_of, answer, kinds)


def _dual_of(answer: Mapping[str, Any], kinds: Sequence[str]) -> str:
    for kind in kinds:
        choice = answer.get(kind)
        if not isinstance(choice, str) or choice not in CHOICES:
            raise Wrong(
                f"{kind}: {'still open' if choice in (None, ...) else shorten(choice)}", form=", ".join(CHOICES)
            )
        for ranks in RANKS:
            what = f"{kind}, back by {choice}"
            try:
                off = gap(kind, choice, ranks)
            except (ParallelLabError, ValueError) as error:
                text = str(error) if isinstance(error, ArgumentError) else "the gradient does not fit the value"
                raise Wrong(f"{what}: {text}", dual(kind), _dual_note(kind, choice)) from error
            if off > CLOSE:
                text = f"{what}: on {ranks} ranks the gradients are off by {off:.0%}"
                raise Wrong(text, dual(kind), _dual_note(kind, choice))
    return "; ".join(f"{kind}, back by {answer[kind]}" for kind in kinds) + ": as by <A x, y> = <x, A' y>"


DUAL_IDEAS = (  # the answer: a message and what is said to bring its gradient back
    Idea(
        REPLICATED,
        "Every rank used the value in its own way, so each has a part of its gradient: the parts are added up.",
        [(COPY, "nothing")],
    ),
    Idea(
        REPLICATED, "Every rank goes on with the sum, and each has its own gradient of it.", [("all_reduce", "nothing")]
    ),
    Idea(
        REPLICATED,
        "Every rank has used what was gathered, and each has a gradient of all of it. Who adds them up?",
        [("all_gather", "scatter"), ("all_gather", "nothing")],
    ),
    slip("The root needs the sum of the gradients, not all of them.", [("broadcast", "gather")]),
    slip(
        "That goes in the same direction once more: the gradient has to come back.",
        [(kind, kind) for kind in KINDS if kind not in ("all_reduce", "all_to_all")],
    ),
)


def _dual_note(kind: str, choice: str) -> str:
    return next((idea.told for idea in DUAL_IDEAS if (kind, choice) in idea.answer), "")


# ---- 07.2: the reduction that is missing ----

ROWS, WIDTH, HIDDEN = 6, 8, 24
NAMES = ("w2", "w1", "gamma", "x")


def block(ranks: int, seed: int = 7) -> tuple[dict[str, np.ndarray], list[tuple[np.ndarray, ...]]]:
    """({name: gradient of the undivided block}, what each rank has kept): z = relu((gamma x) w1) w2, divided by columns
    of w1 and rows of w2. What is kept: x, gamma, its w1, w2 and hidden values, the gradient of z."""
    rng = np.random.default_rng(seed)
    x, gamma, dz = rng.normal(size=(ROWS, WIDTH)), rng.normal(size=WIDTH), rng.normal(size=(ROWS, WIDTH))
    w1, w2 = rng.normal(size=(WIDTH, HIDDEN)), rng.normal(size=(HIDDEN, WIDTH))
    hidden = np.maximum(gamma * x @ w1, 0)
    dhidden = dz @ w2.T * (hidden > 0)
    dscaled = dhidden @ w1.T
    right = {"w2": hidden.T @ dz, "w1": (gamma * x).T @ dhidden, "gamma": (dscaled * x).sum(axis=0)}
    right["x"] = dscaled * gamma
    columns, rows = np.split(w1, ranks, axis=1), np.split(w2, ranks)
    slices = zip(columns, rows, np.split(hidden, ranks, axis=1), strict=True)
    return right, [(x.copy(), gamma.copy(), w1.copy(), w2.copy(), h.copy(), dz.copy()) for w1, w2, h in slices]


def _backward(answer: Any) -> Iterator[Part]:
    if not callable(answer):
        raise another_form(answer, "a function: backward(rank, ranks, kept)")
    runs = {ranks: _run_of(answer, ranks) for ranks in RANKS}
    yield judged("w1 and w2", _gradients, runs, ("w1", "w2"))
    yield judged("x", _gradients, runs, ("x",))
    yield judged("gamma", _gradients, runs, ("gamma",))
    yield judged("one message", _one_sum, runs)


def _run_of(answer: Any, ranks: int, seed: int = 7) -> tuple[dict[str, np.ndarray], ProgramRun]:
    right, kept = block(ranks, seed)
    return right, ask_programs("the gradients of w2, w1, gamma and x on every rank", answer, ranks, kept)


def _drawn_block(names: Sequence[str], answer: Any, rng: np.random.Generator) -> None:
    ranks = int(rng.choice((2, 3, 4, 6)))
    _gradients({ranks: _run_of(answer, ranks, int(rng.integers(10**9)))}, names)


def _gradients(runs: Mapping[int, tuple[dict[str, np.ndarray], ProgramRun]], names: Sequence[str]) -> str:
    for ranks, (right, run) in runs.items():
        for rank in range(ranks):
            for name in names:
                wanted = right[name]
                if name in ("w1", "w2"):
                    wanted = np.split(wanted, ranks, axis=name == "w1")[rank]
                gradient = _of(run.results[rank], name)
                if gradient.shape != wanted.shape:
                    raise Wrong(f"gradient of {name}: shape {gradient.shape}", f"{wanted.shape}", "", rank)
                off = float(np.abs(gradient - wanted).max() / np.abs(wanted).max())
                if not off <= CLOSE:
                    text = f"gradient of {name} on {ranks} ranks: off by up to {off:.0%} of its largest element"
                    raise Wrong(text, "that of the undivided block", _part_note(run, name, right[name]), rank)
    return f"{' and '.join(names)}: on {' and '.join(map(str, runs))} ranks those of the undivided block"


def _of(result: Any, name: str) -> np.ndarray:
    with reading(result, "four arrays: the gradients of w2, w1, gamma and x"):
        return np.asarray(result[NAMES.index(name)], np.float64)


def _part_note(run: ProgramRun, name: str, right: np.ndarray) -> str:
    """Whether the ranks' answers are parts of the right sum, or multiples of it."""
    gradients = [_of(result, name) for result in run.results]
    if name in ("x", "gamma") and all(each.shape == right.shape for each in gradients):
        if all(np.allclose(each * run.ranks, right) for each in gradients):
            return Note("That is the mean of the parts: the parts of a sum are added up.", "all_reduce averages")
        if np.allclose(sum(gradients), right):
            text = f"Each rank has a part of it, and their sum is right: all hold {name}, but each used its own w1."
            return Note(text, REPLICATED)
        if all(np.allclose(each, run.ranks * right) for each in gradients):
            return f"{run.ranks} times too large: it was complete before it was added up."
    return ""


def _one_sum(runs: Mapping[int, tuple[dict[str, np.ndarray], ProgramRun]]) -> str:
    for ranks, (_, run) in runs.items():
        requests = run.asked_by(0)
        if len(requests) != 1:
            note = "gamma's gradient can be computed from what was added up for x." if len(requests) > 1 else ""
            rule = "one all_reduce: of the gradient that x and gamma share"
            raise Wrong(f"{_kinds(requests)} on {ranks} ranks", rule, note)
    return f"one {runs[RANKS[0]][1].asked_by(0)[0].kind} of {ROWS * WIDTH} elements"


def _kinds(requests: Sequence[Asked]) -> str:
    return ", ".join(each.kind for each in requests) or "nothing"


# ---- 07.3: clip by the norm of all ----

LIMIT = 1.0


def clipped(gradients: Sequence[np.ndarray]) -> list[np.ndarray]:
    """On one device: all gradients, so small that their common norm is at most LIMIT."""
    norm = float(np.sqrt(sum((each**2).sum() for each in gradients)))
    return [each * min(1.0, LIMIT / norm) for each in gradients]


def _cases(sizes: float, whole: float, ranks: int, seed: int = 73) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return sizes * rng.normal(size=ranks * 5), whole * rng.normal(size=4)


PARTS = (("slices", 3.0, 0.0), ("copies count once", 1.0, 3.0), ("small gradients stay", 0.02, 0.02))


def _clip(answer: Any) -> Iterator[Part]:
    if not callable(answer):
        raise another_form(answer, "a function: clip(rank, ranks, gradients)")
    for name, size, whole in PARTS:
        yield judged(name, _clips, answer, size, whole)
    yield judged("one number", _number, answer)


def _clip_run(answer: Any, ranks: int, size: float, whole: float, seed: int = 73) -> ProgramRun:
    sliced, copied = _cases(size, whole, ranks, seed)
    values = [(each.copy(), copied.copy()) for each in np.split(sliced, ranks)]
    return ask_programs("both gradients, clipped", answer, ranks, values)


def _drawn_gradients(size: float, whole: float, answer: Any, rng: np.random.Generator) -> None:
    factor = float(rng.uniform(0.5, 1))
    _clips(answer, size * factor, whole * factor, (int(rng.integers(2, 7)),), int(rng.integers(10**9)))


def _clips(answer: Any, size: float, whole: float, on: Sequence[int] = RANKS, seed: int = 73) -> str:
    for ranks in on:
        sliced, copied = _cases(size, whole, ranks, seed)
        right, other = clipped((sliced, copied))
        run = _clip_run(answer, ranks, size, whole, seed)
        for rank, result in enumerate(run.results):
            with reading(result, "two arrays: the slice and the copy, clipped"):
                mine, same = (np.asarray(each, np.float64) for each in result)
                close = np.allclose(mine, np.split(right, ranks)[rank]) and np.allclose(same, other)
            if not close:
                before = np.split(sliced, ranks)
                scale = float(np.abs(mine).max() / np.abs(before[rank]).max())
                right_scale = float(np.abs(right).max() / np.abs(sliced).max())
                text = f"on {ranks} ranks this slice is scaled by {scale:.4g}"
                note = _clip_note(scale, rank, before, copied)
                raise Wrong(text, f"{right_scale:.4g}: {LIMIT:g} over the norm of all", note, rank)
    return f"on {' and '.join(map(str, on))} ranks as on one device"


PER_RANK = "clip per rank"
NORMS_ADDED = "The norms were added up. It is the squares that add up: the root comes last."
CLIP_IDEAS = (  # the square of a norm, from the squares of all slices, the rank, and the square of the copy
    Idea(
        PER_RANK,
        "Each rank clips by its own norm, and slices of one gradient shrink differently.",
        lambda squares, rank, copy: squares[rank] + copy,
    ),
    Idea(PER_RANK, NORMS_ADDED, lambda squares, rank, copy: sum(np.sqrt(each + copy) for each in squares) ** 2),
    Idea(PER_RANK, NORMS_ADDED, lambda squares, rank, copy: (sum(map(np.sqrt, squares)) + np.sqrt(copy)) ** 2),
    slip(
        "The copy was counted on every rank, but it is one gradient.",
        lambda squares, rank, copy: sum(squares) + len(squares) * copy,
    ),
    slip("The copy is missing from the norm.", lambda squares, rank, copy: sum(squares)),
    slip(
        "The root is missing: that is 1 over the sum of the squares.",
        lambda squares, rank, copy: (sum(squares) + copy) ** 2,
    ),
)


def _clip_note(scale: float, rank: int, slices: Sequence[np.ndarray], copied: np.ndarray) -> str:
    """The wrong model that gives this scale."""
    case = [float((each**2).sum()) for each in slices], rank, float((copied**2).sum())
    if np.isclose(scale, 1) and sum(case[0]) + case[2] > LIMIT:
        return "Nothing was clipped, and the norm of all is above the limit."
    for idea in CLIP_IDEAS:
        if np.isclose(scale, min(1.0, LIMIT / np.sqrt(idea.answer(*case)))):
            return idea.told
    return "Small gradients stay as they are: the scale is at most 1." if scale > 1 else ""


def _number(answer: Any) -> str:
    run = _clip_run(answer, RANKS[0], 3.0, 1.0)
    requests, sent = run.asked_by(0), run.sent_bytes(0)
    most = 2 * 8  # bytes that an all_reduce of one float64 sends, at most
    if len(requests) != 1 or sent > most:
        text, rule = f"{_kinds(requests)}, {sent} bytes", "one all_reduce of one number"
        raise Wrong(text, rule, "A rank can add up its own squares first.")
    return f"one {requests[0].kind} of one number"


def _wrong_clip(how: Callable[..., float]) -> Callable[..., Any]:
    def clip(rank: int, ranks: int, gradients: Any) -> Iterator[Any]:
        mine, copied = gradients
        square = yield from how(rank, ranks, (mine**2).sum(), (copied**2).sum())
        scale = min(1.0, LIMIT / np.sqrt(square))
        return mine * scale, copied * scale

    return clip


def _own(rank: int, ranks: int, mine: float, copied: float) -> Iterator[Any]:
    return mine + copied
    yield


def _norms(rank: int, ranks: int, mine: float, copied: float) -> Iterator[Any]:
    return (yield Request("all_reduce", tuple(range(ranks)), np.array([np.sqrt(mine + copied)])))[0] ** 2


def _duals_where(**given: str) -> dict[str, str]:
    return {kind: dual(kind) for kind in (*KINDS, COPY)} | given


EXERCISES = (
    Exercise(
        "07.1",
        "the dual of every message",
        tuple((name, 1 if len(kinds) < 3 else 2) for name, kinds in GROUPS),
        (
            "Who has used an element that was sent, and where must the gradients of all its uses be added up?",
            "Draw two ranks and one element each. Follow each arrow back: arrows that part forward meet backward.",
            "A copy forward is a sum backward, and a sum a copy. What is joined forward is cut backward.",
            "all_reduce and all_to_all are their own duals. all_gather and reduce_scatter, broadcast and reduce, and "
            "scatter and gather are pairs. If each has a copy of a value, its gradient needs an all_reduce.",
        ),
        _duals,
        ideas=(Idea(REPLICATED, "added up", _duals_where(copy="nothing"), "a copy"),),
        start="""\
duals = {"all_reduce": ..., "all_to_all": ..., "all_gather": ..., "reduce_scatter": ...}
duals |= {"broadcast": ..., "reduce": ..., "scatter": ..., "gather": ...}
duals |= {"copy": ...}  # forward nothing is sent: every rank holds the value, and uses it in its own way

check("07.1", duals)
""",
    ),
    Exercise(
        "07.2",
        "the reduction that is missing",
        (("w1 and w2", 1), ("x", 2), ("gamma", 1), ("one message", 1)),
        (
            "Which of the four gradients can a rank compute completely from its own slices of w1 and w2?",
            "Add up what the ranks return for x. Compare with one rank's answer.",
            "dscaled is a partial sum: each rank went back through its own columns of w1. x and gamma need all of it.",
            "One all_reduce of dscaled among all ranks, before anything is computed from it.",
        ),
        _backward,
        drawn={
            "w1 and w2": partial(_drawn_block, ("w1", "w2")),
            **{name: partial(_drawn_block, (name,)) for name in ("x", "gamma")},
        },
        start='''\
def backward(rank, ranks, kept):
    """Returns this rank's gradients of w2, w1, gamma and x."""
    x, gamma, w1, w2, hidden, dz = kept
    dw2 = hidden.T @ dz
    dhidden = (dz @ w2.T) * (hidden > 0)
    dw1 = (gamma * x).T @ dhidden
    dscaled = dhidden @ w1.T
    return dw2, dw1, (dscaled * x).sum(axis=0), dscaled * gamma


check("07.2", backward)
''',
    ),
    Exercise(
        "07.3",
        "clip by the norm of all",
        (("slices", 2), ("copies count once", 1), ("small gradients stay", 1), ("one number", 1)),
        (
            "What is the norm of a vector, if you know the norms of its two halves?",
            "Squares add up, norms do not. How many numbers must a rank tell the others?",
            "all_reduce the sum of the squares of the slice. Every rank has the copy: add its squares after that.",
            "Add up the squares of the slice, all_reduce that one number, add the squares of the copy, and take the "
            "root. Scale by the limit over the norm, but never by more than 1.",
        ),
        _clip,
        drawn={name: partial(_drawn_gradients, size, whole) for name, size, whole in PARTS},
        ideas=(
            Idea(PER_RANK, "The norms were added up", _wrong_clip(_norms), "slices"),
            Idea(PER_RANK, "by its own norm", _wrong_clip(_own), "slices"),
        ),
        start='''\
def clip(rank, ranks, gradients):
    """gradients: this rank's slice of one, and a copy of another. Returns both, clipped to norm 1."""
    mine, copied = gradients
    norm = np.sqrt((mine**2).sum() + (copied**2).sum())
    return mine * min(1, 1 / norm), copied * min(1, 1 / norm)


check("07.3", clip)
''',
    ),
)
