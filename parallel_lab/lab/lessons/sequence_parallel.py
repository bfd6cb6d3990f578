"""Lesson 14: sequence parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...cost.planner.sequence_messages import sequence_parallel_messages
from ...graph.instr import Instr
from ..exercises import check, hint
from ..exercises.lesson_14 import BLOCK, FORMS, SIZES, job, layer_messages, summed_parameters, trained
from ..museum import PIECES
from ..shared.equality import Equality, compare_plans
from ..shared.mistakes import with_mistake
from ..shared.prediction import Comparison
from .predictions import Answers

__all__ = ["BLOCK", "FORMS", "check", "compare", "hint", "job", "layer_messages", "prove", "trained"]


def prove(form: str, mistake: Callable[[Instr], Instr] = lambda instr: instr) -> Equality:
    """Three steps of the GPT on four processes, in one of FORMS, next to one device."""
    (plan, net, optimizer, batch), alone = job(form), job("one device")
    executors = "processes", "simulator"
    return compare_plans(with_mistake(plan, mistake), alone[0], net, optimizer, [batch], 3, executors=executors)


def compare(prediction: dict[str, Any], *, show: bool = False) -> Comparison:
    """The answers next to formulas, and next to what is counted in the compiled plans."""
    again, plans = sequence_parallel_messages(*SIZES, 4), {form: job(form)[0] for form in FORMS}

    def smaller() -> str:
        made = {"the result of a norm": "norm1.layer_norm.0", "the queries": "attention.query.matmul"}
        size = {name: [plans[f].value(f"{BLOCK}{name}").slice_bytes for f in FORMS] for name in made.values()}
        return next(text for text, name in made.items() if 4 * size[name][1] == size[name][0])

    sent = {
        6144: "that is tensor parallel's: the same, if every rank keeps the gathered inputs, whole",
        3072: "a reduce_scatter is half an all_reduce, but an all_gather follows, the other half",
        12288: "an all_gather is not an all_reduce: it sends half as much",
    }
    return Answers("14", prediction, show).next_to(
        sent=(
            *(again.sent_bytes, lambda: sum(size for _, _, size in layer_messages("gathered again"))),
            sent | {None: "6 all_gathers and 4 reduce_scatters, each 3/4 of 1,024 bytes"},
        ),
        smaller=("the result of a norm", smaller, "queries were split by heads already, and stay so"),
        partial=(
            *("norms", lambda: "norms" if any("norm1" in name for name in summed_parameters()) else "products"),
            "each rank sees a quarter of the tokens of a norm; a product has its slice of the weights, and all tokens",
        ),
    )
