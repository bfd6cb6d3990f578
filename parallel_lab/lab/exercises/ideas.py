"""Misconceptions: the wrong models that learners' numbers come from, and how an answer is recognised as one of them.

    WHOLE = Idea("ZeRO cuts all memory", "Stage 3 shards ...: activations stay.", answer=wrong_function)
    yield judged("stage 3", compare_calls, answer, CASES, right, (WHOLE,), "bytes of one rank")

`compare_calls` calls an answer with each case. Where it differs from the right function, the wrong ones are run on all
cases: the first that gives all of the learner's numbers is what the note tells. A number that an idea gives by accident
in one case is ruled out by the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...base.errors import shorten
from .running import ask, attempt, listed, read_number
from .verdict import Note, Part, Wrong, judged

CLOSE = 1e-9  # relative
LATER_S = 0.5  # of a call whose result only helps to tell ideas apart

# The misconceptions that the course aims at, by name, and what is wrong with each.
MISCONCEPTIONS = {
    "all_reduce averages": "It adds. The mean takes a division as well, and you ask for it: gradients_mean.",
    "the mean of means is the mean": "Only where every rank has equally many rows: each row must count the same.",
    "reduce the loss and backward follows": "The reduced loss is only a number; each rank still has its own gradients.",
    "no message where shapes fit": "A split contracted dimension leaves partial sums, whatever the shapes.",
    "partial sums may wait": "Not past an operator that is not linear: relu(a) + relu(b) is not relu(a + b).",
    "replicated value, replicated gradient": "Its gradient is a partial sum unless all ranks do the same work.",
    "ZeRO cuts all memory": "It shards states, gradients and parameters; activations and working memory stay.",
    "ZeRO-1 sends more": "A reduce_scatter and an all_gather send what one all_reduce sends.",
    "twice the ranks, twice the speed": "Start-ups grow with the ranks, and the bytes of an all_reduce do not shrink.",
    "a ring is always best": "It pays 2 (n - 1) start-ups: small messages want few rounds.",
    "fuse everything, or nothing": "One message hides nothing, many pay a start-up each: the best lies in between.",
    "1F1B has a smaller bubble": "It has GPipe's bubble, and keeps fewer activations.",
    "more micro-batches are free": "Each keeps its activations, and small matrix products use a device less well.",
    "rank i holds block i": "The map from dimensions to ranks decides, not the order of the blocks.",
    "a strategy names nodes": "It counts slices of each dimension; which ranks hold them is another question.",
    "no crash, no fault": "A wrong gradient trains without an error; only a comparison shows it.",
    "a hang is the network's": "A rank has skipped a call, or makes its calls in a different order.",
    "every rank may draw as it likes": "Ranks that work on the same data must make the same random draws for it.",
    "clip per rank": "The norm is over all slices: their squares are added up before the root is taken.",
    "more stages, less memory": "The first stage has fewer blocks, and as many more micro-batches in flight.",
    "tensor parallel is free": "Each block adds up activations, forward and backward, for every row of the batch.",
    "recompute sends nothing": "With slices of the network, each recomputed block adds up its activations once more.",
    "every ZeRO level sends as much": "Level 1 sends as much as none; levels 2 and 3 send for every micro-batch.",
    "a checkpoint loads anywhere": "Files of slices need the strategy that made them.",
    "gathered once is enough": "Only a slice of a product's input is kept: the backward pass gathers it again.",
    "slices in order are fair": "Late tokens see more keys, and every step of a ring waits for its longest rank.",
    "blocks count alike": "Each block counts as much as its sum of exponentials, e to the power of its l.",
    "a capacity factor counts tokens": "It counts choices, k of each token; only GShard's code counts tokens.",
    "an expert is averaged over its copies": "Divide by the number of means: it does not depend on where experts lie.",
    "context parallel shares out the weights": "It shares out activations: every rank of a sequence has all weights.",
    "the mesh orders the splits": "The order in the tuple does: its first axis cuts first, wherever it is in the mesh.",
    "equal counts, equal layout": "A strategy has its own device matrix, copies innermost: other ranks get the slices.",
    "positions begin at 0": "A slice's tokens have the positions that they have in the sequence.",
}


@dataclass(frozen=True)
class Idea:
    """A wrong idea, and the answer to an exercise that follows from it.

    name    of MISCONCEPTIONS, or words of one's own; results are counted under it, unless it is empty
    note    what a learner who gives this answer reads: what it is, and what was overlooked. Words, or a function of
            the case that gives them
    answer  that answer, in the form of the exercise: a function of the same arguments, a number, a choice
    part    the part of the exercise in which it is recognised
    """

    name: str
    note: Any
    answer: Any
    part: str = ""

    @property
    def told(self) -> Note:
        """The note, with the name."""
        return self.note_for()

    def note_for(self, *case: Any) -> Note:
        """The note on an answer to this case, with the name."""
        return Note(self.note(*case) if callable(self.note) else self.note, self.name)


def slip(note: Any, answer: Any) -> Idea:
    """A wrong model that is a slip, not a misconception: it gets its note, and results do not count it."""
    return Idea("", note, answer)


def same_value(found: Any, wanted: Any, close: float = CLOSE) -> bool:
    """Whether two answers are equal: numbers and arrays to rounding, lists and tuples alike, None only None."""
    if found is None or wanted is None or isinstance(wanted, str | bool):
        return found is wanted or (type(found) is type(wanted) and found == wanted)
    if isinstance(wanted, int | float):
        try:
            return not isinstance(found, str | bool) and math.isclose(
                float(found), wanted, rel_tol=close, abs_tol=1e-12
            )
        except Exception:  # whatever a learner's object does
            return False
    if isinstance(wanted, list | tuple):
        try:
            items = listed(found, len(wanted))
        except Exception:  # the same; or a list longer than the right one
            return False
        return len(items) == len(wanted) and all(same_value(*pair, close) for pair in zip(items, wanted, strict=True))
    try:
        items, array = np.asarray(found), np.asarray(wanted)
        return items.shape == array.shape and bool(np.allclose(items, array, rtol=close, atol=1e-12))
    except Exception:  # the same
        return False


def recognised(
    found: Sequence[Any], cases: Sequence[tuple[Any, ...]], ideas: Iterable[Idea], close: float = CLOSE
) -> str:
    """The note, on the first case, of the first idea that gives `found` on these cases; empty where none does."""

    def gives(idea: Idea) -> bool:
        try:
            return all(same_value(f, idea.answer(*case), close) for f, case in zip(found, cases, strict=True))
        except Exception:  # a wrong model need not fit every case
            return False

    return next((idea.note_for(*cases[0]) for idea in ideas if gives(idea)), "")


def compare_number(
    answer: Any,
    case: Sequence[Any],
    right: float,
    ideas: Iterable[Idea] = (),
    rule: str = "",
    *,
    ideas_case: Sequence[Any] | None = None,
    expected: str = "",
    place: str = "",
    form: str = "",
    close: float = CLOSE,
    near: float = 0.0,
    text: Callable[[float], str] = lambda number: f"{number:.6g}",
) -> float:
    """The number that a learner's function gives for one case. Raises Wrong where it is not `right`.

    rule        in words, what the function should give
    ideas_case  arguments of the ideas, where they are not those of the call
    expected    how the right number is written, with the rule;  place: which case it is
    form        of answers, where only a finite number is one
    close, near relative and absolute difference that rounding may make
    """
    value = ask(rule, answer, *case)
    number = read_number(value)
    if form and (number is None or not math.isfinite(number)):
        raise Wrong(shorten(value), rule, form=form)
    if number is not None and math.isclose(number, right, rel_tol=close, abs_tol=near):
        return number
    note = "" if number is None else recognised([number], [case if ideas_case is None else ideas_case], ideas, close)
    raise Wrong(shorten(value) if number is None else text(number), expected, note, None, place)


@dataclass(frozen=True)
class Cases:
    """A part of an exercise whose answer is a function: its cases, and the rule that it should follow.

    cases  arguments of each call
    rule   in words, what the function should give
    ideas  wrong models that are recognised in this part
    draw   draw(rng) gives other cases, for marks
    """

    name: str
    points: int
    cases: Sequence[tuple[Any, ...]]
    rule: str
    ideas: tuple[Idea, ...] = ()
    draw: Callable[[np.random.Generator], Sequence[tuple[Any, ...]]] | None = None


def by_cases(right: Callable[..., Any], *parts: Cases, gives: str = "") -> dict[str, Any]:
    """Fields of an Exercise whose answer is a function, compared part by part with the right one.

    gives  in words, what the function gives: a call of it comes first, and where that fails no part is judged
    """

    def grader(answer: Any) -> Iterator[Part]:
        if gives:
            ask(gives, answer, *parts[-1].cases[0])
        for part in parts:
            yield judged(part.name, compare_calls, answer, part.cases, right, part.ideas, part.rule)

    return {
        "parts": tuple((part.name, part.points) for part in parts),
        "grader": grader,
        "ideas": tuple(replace(idea, part=part.name) for part in parts for idea in part.ideas if idea.name),
        "drawn": {
            part.name: lambda answer, rng, draw=part.draw: compare_calls(answer, draw(rng), right)
            for part in parts
            if part.draw is not None
        },
    }


def earlier_question(name: str, right: Callable[..., Any], *parts: Cases) -> tuple[Callable[[Any], bool], dict]:
    """The field `earlier` of an Exercise that asked for another function before, known by its name; else `by_cases`."""

    def answers(answer: Any) -> bool:
        return callable(answer) and getattr(getattr(answer, "function", answer), "__name__", "") == name

    return answers, by_cases(right, *parts)


def compare_calls(
    answer: Any,
    cases: Sequence[tuple[Any, ...]],
    right: Callable[..., Any],
    ideas: Iterable[Idea] = (),
    rule: str = "",
    *,
    close: float = CLOSE,
    text: Callable[[Any], str] = shorten,
) -> str:
    """Compare a learner's function with the right one, case by case, for `judged`. Raises Wrong if they differ.

    cases  arguments of each call; `right` and the ideas' functions take the same
    rule   in words, what the function should give: told with the expected value
    text   how values are written
    """
    values: list[Any] = []
    for number, case in enumerate(cases, 1):
        values.append(ask(rule, answer, *case))
        expected_value = right(*case)
        if not same_value(values[-1], expected_value, close):
            arguments = ", ".join(shorten(argument) for argument in case)
            expected = f"{text(expected_value)}: {rule}" if rule else text(expected_value)
            for later in cases[number:] if ideas else ():
                called = attempt(answer, *later, seconds=LATER_S)
                if called.fault is not None:
                    break
                values.append(called.value)
            note = recognised(values, cases[: len(values)], ideas, close)
            raise Wrong(f"{text(values[number - 1])} for ({arguments})", expected, note)
    return f"{len(cases)} case{'s' if len(cases) > 1 else ''}: {rule}" if rule else f"{len(cases)} cases"
