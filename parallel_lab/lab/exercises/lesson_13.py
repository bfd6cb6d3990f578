"""Lesson 13, MindSpore scripts: a ladder of ten that fail, hang or are silently wrong, to be repaired.

Each script is a function that runs on four simulated ranks (`played_ranks.py`), on numbers drawn by the grader. What
the ranks return is compared with one device, computed here with numpy alone; what they have sent is counted by the
engine, so that a script whose parallelism was deleted is not repaired. The subjects are those of MindSpore's FAQ on
distributed training, and settings that its pages describe; scripts and words are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...base.errors import shorten
from .book import Exercise
from .broken_scripts import SCRIPTS
from .ideas import Idea
from .reading import another_form
from .running import ProgramRun, listed, run_programs
from .starts import handed_in
from .verdict import Note, Part, Wrong, judged

SEED = 1  # of the numbers, which no verdict shows whole
RANKS, ROWS, INPUTS, OUTPUTS, HIDDEN = 4, 16, 8, 4, 6
STEPS, RATE, MOMENTUM, MICRO_BATCHES = 3, 0.1, 0.9, 2  # of every training
CLOSE, NEAR = 1e-3, 1e-5  # relative and absolute: the scripts train in float32, the grader in float64
RUN_S = 5.0  # of a run; right ones take about a second
SUMS = ("all_reduce", "reduce_scatter")
FORM = "on_ranks(...) of the repaired function"
Arrays = Sequence[np.ndarray]


@dataclass(frozen=True)
class Case:
    """Numbers for one run.

    values  arguments of the script, per rank
    right   what each rank should return: one of several, where more than one is right
    wrong   {note: what each rank returns} of wrong models
    """

    values: Sequence[tuple[Any, ...]]
    right: Sequence[Arrays]
    wrong: Mapping[Note, Arrays] = field(default_factory=dict)


@dataclass(frozen=True)
class Rung:
    """One script of the ladder.

    case      case(rng) draws a Case
    kinds     messages of these kinds, of so many `sent_bytes` by some rank, show that it is parallel
    alone     what to say of a script whose parallelism was deleted
    """

    case: Callable[[np.random.Generator], Case]
    kinds: tuple[str, ...]
    sent_bytes: int
    alone: str


# ---- one device ----


def _gradient(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The gradient of the mean of squares of x w' - y.  x: (rows, in), y: (rows, out), w: (out, in) -> like w."""
    return 2 / y.size * (x @ w.T - y).T @ x


def _trained(rows: Sequence[tuple[np.ndarray, np.ndarray]], w: np.ndarray, momentum: float = 0.0) -> np.ndarray:
    """w after a step on each of the batches."""
    moment = np.zeros_like(w)
    for x, y in rows:
        moment = momentum * moment + _gradient(x, y, w)
        w = w - RATE * moment
    return w


def _draw(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def _problem(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, labels and a weight."""
    x, y, w = _draw(rng, (ROWS, INPUTS), (ROWS, OUTPUTS), (OUTPUTS, INPUTS))
    return x, y, w


def _shares(*arrays: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """The rows of each rank, a quarter each, in order."""
    return list(zip(*(np.split(array, RANKS) for array in arrays), strict=True))


def _slices(w: np.ndarray) -> list[Arrays]:
    """What four ranks may hold of a weight that a strategy splits: blocks of rows, of columns, or of both."""
    found: list[Arrays] = []
    for copies, rows, columns in ((2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 1, 4), (1, 2, 2)):
        blocks = [part for half in np.split(w, rows) for part in np.split(half, columns, axis=1)]
        found += [blocks * copies, [block for block in blocks for _ in range(copies)]]
        if rows == columns == 2:
            found.append([blocks[n] for n in (0, 2, 1, 3)])
    return found


# ---- the ladder ----

OWN_VALUE = Note("Each rank returns its own number: nothing was added up.")
UNSPLIT = Note("The script runs, but every device holds the whole weight: it is the weight that must be split.")
RANK_0 = Note("All ranks have loaded the file of rank 0. A rank needs its own slice.", "a checkpoint loads anywhere")
SUMMED = Note("That is the sum of the ranks' gradients, four times their mean.", "all_reduce averages")
ALL_ROWS = Note("Every rank has read all rows, in batches of four: four steps in an epoch, all ranks the same ones.")
UNMARKED = Note("Every rank has read all 16 rows: the numbers are right, and three quarters of the work were wasted.")
OWN_SEED = Note(
    "The ranks begin with different weights and add equal gradients: they stay different networks.",
    "every rank may draw as it likes",
)
TAKEN_FOR_ALL = Note(
    "A rank takes its four rows for all that there are, and works on a quarter of them: 12 rows are lost.",
    "no crash, no fault",
)
WHOLE = Note("Every rank holds, and updates, the whole weight: the limit below which weights stay whole was not moved.")


def _no_init(rng: np.random.Generator) -> Case:
    values = _draw(rng, *[(4, 8)] * RANKS)
    return Case([(v,) for v in values], [[np.mean(values, axis=0)] * RANKS], {OWN_VALUE: values})


def _strategy(rng: np.random.Generator) -> Case:
    x, y, w = _problem(rng)
    right = _trained([(x, y)] * STEPS, w)
    return Case([(x, y, w)] * RANKS, _slices(right), {UNSPLIT: [right] * RANKS})


def _no_stage(rng: np.random.Generator) -> Case:
    x, y, first, second = _draw(rng, (ROWS, INPUTS), (ROWS, OUTPUTS), (HIDDEN, INPUTS), (OUTPUTS, HIDDEN))
    values = [(x, y, first, second)] * RANKS
    for _ in range(STEPS):
        hidden = x @ first.T
        of_result = MICRO_BATCHES * 2 / y.size * (hidden @ second.T - y)  # PipelineCell adds up the losses of its parts
        first, second = first - RATE * (of_result @ second).T @ x, second - RATE * of_result.T @ hidden
    return Case(values, [[first, first, second, second]])


def _one_branch(rng: np.random.Generator) -> Case:
    losses = _draw(rng, *[(1,)] * RANKS)
    return Case([(loss,) for loss in losses], [[np.mean(losses, axis=0)] * RANKS], {OWN_VALUE: losses})


def _checkpoint(rng: np.random.Generator) -> Case:
    x, _, w = _problem(rng)
    files = [{"weight": part} for part in np.split(w, RANKS)]
    wrong = np.repeat(x @ w[:1].T, OUTPUTS, axis=1)
    return Case([(x, files)] * RANKS, [[x @ w.T] * RANKS], {RANK_0: [wrong] * RANKS})


def _no_mean(rng: np.random.Generator) -> Case:
    x, y, w = _problem(rng)
    summed = w
    for _ in range(STEPS):
        summed = summed - RATE * RANKS * _gradient(x, y, summed)
    right = _trained([(x, y)] * STEPS, w)
    return Case([(*own, w) for own in _shares(x, y)], [[right] * RANKS], {SUMMED: [summed] * RANKS})


def _not_sharded(rng: np.random.Generator) -> Case:
    """The labels of rank r are r + 1 times as large, which shows who has read which row."""
    x, y, w = _problem(rng)
    marked = [(rank + 1) * y for rank in range(RANKS)]
    shares = [[slice(rank, None, RANKS) for rank in range(RANKS)], [slice(4 * r, 4 * r + 4) for r in range(RANKS)]]

    def after(batches: Sequence[Sequence[slice]]) -> Arrays:
        """The weights after steps in which rank r reads rows batches[...][r]."""
        joined = [
            (np.concatenate([x[s] for s in of]), np.concatenate([marked[r][s] for r, s in enumerate(of)]))
            for of in batches
        ]
        return [_trained(joined * STEPS, w)] * RANKS

    in_fours = [[slice(first, first + 4)] * RANKS for first in range(0, ROWS, 4)]
    wrong = {ALL_ROWS: after(in_fours), UNMARKED: after([[slice(None)] * RANKS])}
    return Case([(x, labels, w) for labels in marked], [after([share]) for share in shares], wrong)


def _own_seeds(rng: np.random.Generator) -> Case:
    x, y, _ = _problem(rng)
    return Case(_shares(x, y), [])  # right is what follows from the weights that rank 0 began with: `_same_start`


def _full_batch(rng: np.random.Generator) -> Case:
    x, y, w = _problem(rng)
    quarter = [4 * rank + rank for rank in range(RANKS)]  # of the four rows of rank r the one at r
    wrong = _trained([(x[quarter], y[quarter])] * STEPS, w)
    right = _trained([(x, y)] * STEPS, w)
    return Case(
        [(*own, w) for own in _shares(x, y)], [[right] * RANKS, *_slices(right)], {TAKEN_FOR_ALL: [wrong] * RANKS}
    )


def _too_small(rng: np.random.Generator) -> Case:
    x, y, w = _problem(rng)
    right = _trained([(x, y)] * STEPS, w, MOMENTUM)
    return Case([(*own, w) for own in _shares(x, y)], [np.split(right, RANKS)], {WHOLE: [right] * RANKS})


_W_BYTES = 4 * OUTPUTS * INPUTS * 2 * (RANKS - 1) // RANKS  # of an all_reduce of the weight's gradient, by a rank
LADDER = {
    "13.1": Rung(_no_init, ("all_reduce", "all_gather"), 1, "Nothing was added up."),
    "13.2": Rung(_strategy, (*SUMS, "all_to_all"), 1, "No operator is split: each rank does all of the work."),
    "13.3": Rung(_no_stage, ("send",), 1, "Nothing was handed from stage to stage."),
    "13.4": Rung(_one_branch, ("all_reduce", "all_gather"), 1, "No rank knows the losses of the others."),
    "13.5": Rung(_checkpoint, ("all_gather", "all_reduce"), 1, "Every rank has used the whole weight."),
    "13.6": Rung(_no_mean, SUMS, STEPS * _W_BYTES, "The gradients were not added up."),
    "13.7": Rung(_not_sharded, SUMS, STEPS * _W_BYTES, "The gradients were not added up."),
    "13.8": Rung(_own_seeds, SUMS, STEPS * _W_BYTES, "The gradients were not added up."),
    "13.9": Rung(_full_batch, SUMS, STEPS * _W_BYTES, "The gradients were not added up."),
    "13.10": Rung(_too_small, ("reduce_scatter",), STEPS * _W_BYTES // 2, "Nobody was given a share of the gradient."),
}


# ---- the judge ----


def _grader(number: str) -> Callable[[Any], Iterator[Part]]:
    rung = LADDER[number]

    def grader(answer: Any) -> Iterator[Part]:
        if not callable(answer):
            raise another_form(answer, FORM)
        case = rung.case(np.random.default_rng(SEED))
        run = run_programs(answer, RANKS, case.values, seconds=RUN_S)
        if run.fault is not None:
            raise run.fault.wrong("a result on each of 4 ranks")
        yield Part("runs", True, f"4 ranks, {len(run.asked)} calls of collectives in all")
        yield judged("one device", _same_as_one, case, run)
        yield judged("in parallel", _parallel, rung, run)

    return grader


def _array(value: Any) -> np.ndarray | None:
    try:
        return np.asarray(value, np.float64)
    except Exception:  # whatever a learner's object does
        return None


def _equal(found: Sequence[np.ndarray | None], wanted: Arrays) -> bool:
    return all(
        f is not None and f.shape == w.shape and np.allclose(f, w, CLOSE, NEAR)
        for f, w in zip(found, wanted, strict=True)
    )


def _same_as_one(case: Case, run: ProgramRun) -> str:
    if not case.right:
        return _same_start(case, run)
    found = [_array(value) for value in run.results]
    if any(_equal(found, right) for right in case.right):
        return "the numbers of one device, on every rank"
    note = next((note for note, wrong in case.wrong.items() if _equal(found, wrong)), "")
    right = case.right[0]
    rank = next((r for r in range(RANKS) if not _equal([found[r]], [right[r]])), 0)
    raise Wrong(f"rank {rank} returns {shorten(run.results[rank])}", shorten(right[rank]), note, rank)


def _same_start(case: Case, run: ProgramRun) -> str:
    """For scripts that draw their weights: (before, after) on each rank."""
    form = "Two arrays: the weight before training and after it"
    try:
        pairs = [tuple(np.asarray(each, np.float64) for each in listed(value, 2)) for value in run.results]
        shapes = {each.shape for pair in pairs for each in pair} | {(len(pair),) for pair in pairs}
    except Exception as error:  # whatever a learner's object does
        raise Wrong(shorten(run.results[0]), form=form) from error
    if shapes != {(OUTPUTS, INPUTS), (2,)}:
        raise Wrong(shorten(run.results[0]), form=form)
    before = pairs[0][0]
    if np.ptp(before) < NEAR:
        raise Wrong("weights that are all alike", "drawn weights, as before")
    for rank, (start, _) in enumerate(pairs):
        if not np.array_equal(start, before):
            raise Wrong(f"rank {rank} begins with other weights than rank 0", "one start", OWN_SEED, rank)
    x, y = (np.concatenate(part) for part in zip(*case.values, strict=True))
    right = _trained([(x, y)] * STEPS, before)
    for rank, (_, after) in enumerate(pairs):
        if not _equal([after], [right]):
            raise Wrong(f"rank {rank} ends with {shorten(after)}", shorten(right), "", rank)
    return "one start, and the numbers of one device, on every rank"


def _parallel(rung: Rung, run: ProgramRun) -> str:
    sent = [sum(a.size_bytes for a in run.asked_by(rank) if a.kind in rung.kinds) for rank in range(RANKS)]
    kinds = " and ".join(rung.kinds)
    if max(sent) < rung.sent_bytes:
        raise Wrong(f"{max(sent)} bytes of {kinds}", f"at least {rung.sent_bytes} bytes from some rank", rung.alone)
    return f"{max(sent)} bytes of {kinds} from a rank"


def written(source: str) -> Callable[..., Any]:
    """The script of a source text, on ranks."""
    name = source.removeprefix("def ").partition("(")[0]
    return handed_in(f'{source}\n\ncheck("", on_ranks({name}))')[0]


def _ideas(number: str) -> tuple[Idea, ...]:
    """The broken scripts that are wrong without an error: what they return is one of the wrong models."""
    found = [OWN_SEED] if number == "13.8" else LADDER[number].case(np.random.default_rng(SEED)).wrong
    return tuple(
        Idea(note.idea, note, written(SCRIPTS[number].start), "one device")
        for note in found
        if getattr(note, "idea", "")
    )


EXERCISES = tuple(
    Exercise(
        number,
        script.title,
        (("runs", 1), ("one device", 1), ("in parallel", 1)),
        script.hints,
        _grader(number),
        start=f'{script.start}\n\ncheck("{number}", on_ranks({script.name}))\n',
        ideas=_ideas(number),
    )
    for number, script in SCRIPTS.items()
)
