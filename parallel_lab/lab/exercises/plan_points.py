"""Twenty questions: 64 devices, a transformer of 30 billion parameters, and the fastest plan. Lesson 11's game.

    read_plan("d4 t8 p2 b1 zero1 recompute")     copies, ranks of a layer, stages, rows of a micro-batch, what is saved
    predicted(read_plan("d4 t8 p2 b1"))          seconds and bytes of it: an answer to one question
    solved().winner                              the fastest that fits, of all, proved by the outer search

64 sequences a step on eight nodes of eight A100. Every plan has d * t * p = 64, and 64 / (d * b) micro-batches (1F1B).
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

from ...base.errors import ArgumentError, shorten
from ...base.units import bytes_text, table_lines, time_text
from ...cost.planner import (
    Found,
    PlanPoint,
    Prediction,
    Transformer,
    get_machine,
    predict_point,
    search_plans,
    space as all_plans,
)

DEVICES, BATCH, QUESTIONS = 64, 64, 20
MODEL = Transformer("30 B", layers=48, hidden=7168, heads=56, seq_length=4096, source="a model of the lesson's own")
MACHINE = get_machine("dgx_a100", DEVICES)
_CHOICES = {
    "tensor": (1, 2, 4, 8),
    "micro_batch": (1, 2, 4),
    "chunks": (1,),
    "levels": (0, 1),
    "recompute": ("none", "full"),
    "sequence_parallel": (False,),
}
FORM = 'd, t, p and b, and after them zero1 and recompute as you like: "d4 t8 p2 b1 zero1"'
_NUMBERS = re.compile(r"\s*d(\d{1,3})\s+t(\d{1,3})\s+p(\d{1,3})\s+b(\d{1,3})((?:\s+(?:zero1|recompute))*)\s*")


@lru_cache(maxsize=1)
def plans() -> tuple[PlanPoint, ...]:
    """All there are, whether they fit into the memory or not."""
    return tuple(all_plans(MODEL, DEVICES, BATCH, overlap=False, **_CHOICES))


def read_plan(text: str) -> PlanPoint:
    """The plan that a text names. Raises ArgumentError for another form, and for a plan that is not in `plans()`."""
    where, match = "plan", _NUMBERS.fullmatch(text[:99]) if isinstance(text, str) else None
    if match is None:
        raise ArgumentError(shorten(text), where=where, allowed=FORM)
    data, tensor, stages, rows = (int(n) for n in match.groups()[:4])
    if data * tensor * stages != DEVICES:
        what = f"d{data} t{tensor} p{stages} are {data * tensor * stages} devices"
        raise ArgumentError(what, where=where, allowed=f"d * t * p = {DEVICES}")
    words = match[5].split()
    micro_batches, rest = divmod(BATCH, data * rows) if rows else (0, 1)
    recompute = "full" if "recompute" in words else "none"
    level = int("zero1" in words)
    point = None
    if not rest:
        point = PlanPoint(data, tensor, stages, rows, micro_batches, level=level, recompute=recompute)
    if point not in plans():
        allowed = f"t up to 8, b1, b2 or b4; p divides {MODEL.layers} layers, d * b divides {BATCH}; zero1 needs copies"
        raise ArgumentError(shorten(text), where=where, allowed=allowed)
    return point


@lru_cache(maxsize=512)
def predicted(point: PlanPoint) -> Prediction:
    """Seconds of a step, and bytes of the rank that holds most. Raises ArgumentError if no schedule can do it."""
    return predict_point(MODEL, point, MACHINE)


def plan_text(point: PlanPoint) -> str:
    """As `read_plan` reads it."""
    words = [f"d{point.data} t{point.tensor} p{point.stages} b{point.micro_batch}"]
    words += ["zero1"] if point.level else []
    return " ".join(words + (["recompute"] if point.recompute == "full" else []))


@lru_cache(maxsize=1)
def solved() -> Found:
    """A verdict on every plan: no schedule of those that it leaves out is faster than its winner."""
    return search_plans(MODEL, MACHINE, BATCH, points=plans())


class Game:
    """Questions about plans: each gets its seconds, or None where it does not fit. A plan asked again does not count.

    ask = Game(); ask("d8 t8 p1 b1"); print(ask.text())

    Raises ArgumentError for anything but a plan, and for question 21.
    """

    def __init__(self) -> None:
        self.asked: dict[PlanPoint, Prediction | str] = {}

    def __call__(self, text: str) -> float | None:
        point = read_plan(text)
        if point not in self.asked:
            if len(self.asked) == QUESTIONS:
                raise ArgumentError(f"question {QUESTIONS + 1}", where="ask", allowed=f"{QUESTIONS} questions")
            try:
                self.asked[point] = predicted(point)
            except ArgumentError as error:
                self.asked[point] = str(error)
        answer = self.asked[point]
        return answer.step_s if isinstance(answer, Prediction) and answer.fits else None

    @property
    def best(self) -> tuple[float, PlanPoint | None]:
        """Seconds of the fastest so far that fits, and the plan; infinity and None without one."""
        fitting = [
            (answer.step_s, at) for at, answer in self.asked.items() if not isinstance(answer, str) and answer.fits
        ]
        return min(fitting, key=lambda pair: pair[0], default=(math.inf, None))

    def text(self) -> str:
        """A line for each question: where the step's seconds are, and the memory. All numbers predicted."""
        parts = ("compute_s", "tensor_s", "copies_s", "waiting_s")
        rows = [("plan", "step", "compute", "within layers", "copies", "waiting", "memory", "")]
        for point, answer in self.asked.items():
            if isinstance(answer, str):
                rows.append((plan_text(point), *[""] * 6, answer))
                continue
            times = (time_text(getattr(answer, name)) for name in ("step_s", *parts))
            fits = "" if answer.fits else "does not fit"
            rows.append((plan_text(point), *times, bytes_text(answer.memory_bytes), fits))
        return "\n".join(table_lines(rows, right=range(1, 7)))
