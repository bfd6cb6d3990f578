"""What a learner expects of the quickstart before it runs, compared with its plan and with what was counted.

guess = Prediction(slice_of_w=(8, 16), group_of_rank_5=(4, 5, 6, 7), messages=7, bytes=2820)
guess.compare(lab.plan, lab.events)
"""

from __future__ import annotations

import dataclasses
from ast import literal_eval
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...base.errors import ArgumentError, shorten
from ...base.events import Event
from ...graph.plan import Plan
from ..pictures.picture import message_table
from ..shared.prediction import Comparison
from ..shared.questions import Question
from ..strategy.model import StrategyLab

RANK = 5


@dataclass(frozen=True)
class Prediction:
    """Answers before the run; None = not answered.

    slice_of_w        shape of the slice of `w` that rank 5 holds
    group_of_rank_5   ranks whose addends of the first MatMul's result rank 5 needs, itself included
    messages          messages that rank 5 takes part in during one training step (an inserted slice does not count)
    bytes             bytes of all arrays that rank 5 hands to these messages
    """

    slice_of_w: tuple[int, ...] | None = None
    group_of_rank_5: tuple[int, ...] | None = None
    messages: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _plain(getattr(self, field.name), field.name))

    def compare(self, plan: Plan, events: Iterable[Event] = (), *, show: bool = False) -> Comparison:
        """The answers, planned and (of a recorded run) counted. show: those of open questions too.

        Raises ArgumentError for a plan without rank 5 or `w`.
        """
        return Comparison(self._rows(plan, events), show).kept("01")

    def _rows(self, plan: Plan, events: Iterable[Event] = ()) -> tuple[tuple[str, Any, Any, Any, str], ...]:
        if plan.device_num <= RANK or "w" not in plan.value_table:
            what = f"plan {plan.graph.name!r} on {plan.device_num} devices"
            raise ArgumentError(what, where="Prediction", allowed="The quickstart network on 8 devices")
        table = [m for m in message_table(plan, RANK, events) if m["group"]]
        first = plan.graph.nodes[0].name
        adding = next((tuple(m["group"]) for m in table if m["operator"] == first and m["phase"] == "forward"), (RANK,))
        counted = [m["bytes_counted"] for m in table if m["bytes_counted"] is not None]
        slice_of_w = plan.value("w").slice_shape
        size = sum(m["bytes_predicted"] for m in table)
        return (
            ("slice of w on rank 5", self.slice_of_w, slice_of_w, None, self._about_slice(plan, slice_of_w)),
            ("ranks that add up with rank 5", self.group_of_rank_5, adding, None, self._about_group(adding)),
            (
                "messages of rank 5 in one step",
                self.messages,
                len(table),
                len(counted) or None,
                self._about_messages(table),
            ),
            (
                "bytes rank 5 contributes in one step",
                self.bytes,
                size,
                sum(counted) if counted else None,
                self._about_bytes(table),
            ),
        )

    # ---- known misconceptions ----

    def _about_slice(self, plan: Plan, right: tuple[int, ...]) -> str:
        whole = plan.value("w").shape
        yours = self.slice_of_w
        if yours == whole:
            return "That is the whole of w: the second tuple of the strategy splits it."
        if yours == tuple(reversed(right)):
            return (
                "The counts are per dim, in order: (4, 1) splits the rows (height) 4 ways and leaves the columns whole."
            )
        return f"w is {whole}; each dim is divided by its count."

    def _about_group(self, right: tuple[int, ...]) -> str:
        if self.group_of_rank_5 is not None and set(self.group_of_rank_5) == {1, 5}:
            text = "1 and 5 hold the same slice of w: they meet in backward. In forward those add up that hold the "
            return text + "same rows of x."
        text = "The last axis of the device matrix runs fastest: 4 neighbours share the rows of x and split the "
        return text + "sum over k."

    def _about_messages(self, table: list[dict[str, Any]]) -> str:
        forward = sum(m["phase"] == "forward" for m in table)
        if self.messages == forward:
            text = f"{forward} is forward alone: every all_reduce forward has one backward, and gradients of "
            return text + "replicated parameters are added up."
        return f"{forward} forward, {len(table) - forward} backward; the loss itself takes one."

    def _about_bytes(self, table: list[dict[str, Any]]) -> str:
        if self.bytes is not None and self.bytes * 4 == sum(m["bytes_predicted"] for m in table):
            return "Those are elements: a float32 has 4 bytes."
        return " + ".join(str(m["bytes_predicted"]) for m in table) + " bytes, in the order of the messages."


ASKED = (
    "Rank 5 of a 2 x 4 matrix of ranks: what is the shape of its slice of w, which is (32, 16)?",
    "Each rank has only a part of every sum in x @ w. Which ranks add up to get the result of rank 5, itself included?",
    "In how many messages does rank 5 take part in one step, forward and backward?",
    "How many bytes does rank 5 contribute to them? A float32 has 4.",
)


def ask(lab: StrategyLab) -> None:
    """Let the lab begin with the questions of the lesson; they are about the plan that it has now."""
    questions, plan = [], lab.plan

    def about(at: int, answer: Any) -> str:
        given: list[Any] = [None] * len(ASKED)
        given[at] = literal_eval(answer) if isinstance(answer, str) else answer
        return Prediction(*given)._rows(plan)[at][-1].removesuffix(".")

    for at, (text, (what, _, right, _, why)) in enumerate(zip(ASKED, Prediction()._rows(plan), strict=True)):
        listed = isinstance(right, tuple)
        how = {"listed": listed, "hides": ("tables", "rank", "picture"), "about": partial(about, at)}
        answer = str(right) if listed else right
        questions.append(Question(f"Lesson 01: {what}", text, (answer,), why.removesuffix("."), **how))
    lab.ask_first(questions, len(questions))


def compare(lab: StrategyLab, *, show: bool = False) -> Comparison:
    """What was answered in the lab, next to its plan and to what was counted."""
    given = [lab.answers.get(f"Lesson 01: {row[0]}") for row in Prediction()._rows(lab.plan)]
    answers = (literal_eval(one) if isinstance(one, str) else one for one in given)
    return Prediction(*answers).compare(lab.plan, lab.events, show=show)


def _plain(value: Any, question: str) -> Any:
    """An answer as an int or a tuple of ints: [8, 16] is as good as (8, 16), and 7.0 as 7."""
    if value is None or isinstance(value, int):
        return value
    try:
        numbers = tuple(value) if not isinstance(value, float) else (value,)
        if isinstance(value, str) or any(n != int(n) for n in numbers):
            raise ValueError
    except (TypeError, ValueError):
        what = f"{question}={shorten(value)}"
        raise ArgumentError(what, where="Prediction", allowed="A whole number, or several in a tuple") from None
    whole = tuple(int(n) for n in numbers)
    return whole[0] if isinstance(value, float) else whole
