"""Lesson 11, choosing: one pin against propagation, twenty questions, and three beliefs that choose badly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from ...base.errors import ArgumentError, ParallelLabError, shorten
from ...base.units import time_text
from ...cost.schedules import make_schedule
from ..strategy.operators import parse_strategy
from .book import Exercise
from .ideas import LATER_S, Cases, Idea, by_cases
from .one_product import counts, pair, product_with
from .plan_points import FORM, QUESTIONS, Game, plan_text, solved
from .ranks_agree import TWICE, step_s
from .reading import reading, refusals
from .running import ask, attempt
from .three_products import GIVEN, least, operators, sent_bytes_of, spread
from .verdict import Part, Wrong, reached

# ---- 11.1: one pin ----


def _one_pin(answer: Any) -> Iterator[Part]:
    pins, free = _pins(answer), [name for name in operators() if name not in GIVEN]
    if len(pins) != 1 or (name := next(iter(pins))) not in free:
        text = f"{len(pins)} operators" if len(pins) != 1 else shorten(name)
        raise Wrong(text, form=f"One operator, {' or '.join(free)}, and its strategy")
    with refusals("a strategy that compiles"):
        strategies = spread({name: parse_strategy(str(pins[name]).replace("[", "(").replace("]", ")"))})
        sent = sent_bytes_of(strategies)
    rest = ", ".join(f"{other} {strategy}" for other, strategy in strategies.items() if other != name)
    yield Part("one operator", True, f"{name} {strategies[name]}; propagation: {rest}")
    alone, fewest = sent_bytes_of(spread({})), round(least().best.cost)
    text = f"{sent:,} bytes sent by a rank, counted in the plan: {sent / fewest:.3g} x par"
    if 2 * sent > alone:
        raise Wrong(text, f"at most half of {alone:,}, propagation's own", _still_large(name, strategies))
    yield Part("half of propagation's", True, text)
    rule = f"{fewest:,}: no strategies of the other two send less, by branch and bound"
    yield reached("par", sent <= fewest, text, rule, _over_par(strategies))


def _pins(answer: Any) -> dict[Any, Any]:
    with reading(answer, 'A dict with one entry, such as {"matmul2": ((8, 1), (1, 1))}', "no pin yet"):
        return dict(islice(dict(answer).items(), 9))


_SPLIT = "k of matmul2 is still split: ranks have partial sums of a (1024, 1024) result, and they are added up."


def _still_large(name: str, strategies: dict[str, Any]) -> str:
    if name == "matmul3":
        return "matmul2 still follows matmul1: it sums over a split k, and its result is the largest tensor there is."
    return _SPLIT if strategies["matmul2"][0][1] > 1 else ""


def _over_par(strategies: dict[str, Any]) -> str:
    (rows, inner), (_, columns) = strategies["matmul2"]
    if inner > 1:
        return _SPLIT
    if columns == 1:
        return "Rows only: each rank has all of w2 and w3, and their gradients are added up among all ranks."
    if rows == 1:
        return "Columns only: the sums of matmul3, (1024, 64), are added up among all eight ranks."
    return "Rows and columns: this is the right kind. Which of the counts makes the sums and the gradients smallest?"


def _shown_pin() -> str:
    """The pins that lead to par."""
    fewest, pins = round(least().best.cost), []
    for name, candidates in operators().items():
        for strategy in candidates if name not in GIVEN else ():
            if sent_bytes_of(spread({name: strategy})) == fewest:
                pins.append(f"{{{name!r}: {strategy}}}")
    return "\n".join(pins)


# ---- 11.2: twenty questions ----


def _questions(answer: Any) -> Iterator[Part]:
    game = Game()
    if callable(answer):
        if _asks(answer):
            solved()  # afterwards a question takes milliseconds, and none of the time that a function has
        ask("questions, by calls of ask", answer, game)
    else:
        _listed(answer, game)
    if not game.asked:
        raise Wrong("no question", form=f"A list of at most {QUESTIONS} plans, each {FORM}")
    best_s, best = game.best
    yield Part("questions", True, f"{len(game.asked)} of {QUESTIONS}")
    if best is None:
        note = "Split the layers (t), the stages (p), or recompute."
        raise Wrong("no plan fits into 80 GB", "a plan that fits", note)
    yield Part("one fits", True, f"{plan_text(best)}: {time_text(best_s)}")
    winner = solved().winner
    text = f"{time_text(best_s)} with {plan_text(best)} (predicted): {best_s / winner.step_s:.3f} x par"
    rule = f"{time_text(winner.step_s)}: the outer search proves that none of {len(solved().verdicts)} is faster"
    yield reached("par", best_s <= winner.step_s * (1 + 1e-12), text, rule, _slower(best, winner.point))


def _asks(function: Any) -> bool:
    """Whether a learner's function asks a question at all."""
    questions: list[Any] = []

    def first(text: Any) -> None:
        questions.append(text)
        raise ArgumentError("that is enough", where="ask")

    attempt(function, first, seconds=LATER_S)
    return bool(questions)


def _listed(answer: Any, game: Game) -> None:
    with reading(answer, f"A list of at most {QUESTIONS} plans, or a function that asks", "no question yet"):
        texts = [answer] if isinstance(answer, str) else list(islice(answer, 10 * QUESTIONS))
        texts = [text for text in texts if text is not ...]
    for number, text in enumerate(texts, 1):
        try:
            game(text)
        except ParallelLabError as error:
            raise Wrong(f"question {number}: {error}", form=FORM) from error


def _slower(mine: Any, best: Any) -> str:
    if mine.recompute != "none":
        return "Every layer is computed again: about a third more work. Is there another way to fit?"
    if mine.micro_batch > 1:
        return "Larger micro-batches mean fewer of them: the stages wait longer for the first and the last of them."
    if mine.level < best.level and mine.data > 1:
        return "Close. What could the copies divide among themselves?"
    if mine.tensor > best.tensor:
        return "Many ranks per layer: each layer needs four all_reduces. Stages send less."
    if mine.data > best.data:
        return "Many copies add up many gradients, over the links between nodes. Give some ranks to the stages."
    if mine.stages > best.stages:
        return "Many stages wait long: the bubble is stages - 1 out of micro-batches + stages - 1."
    return "Close. Change one count at a time, and see which of the seconds grow."


# ---- 11.3: another doubling ----

EXAMPLE = (0.8, 10**8, 1e-5, 1e-9)  # seconds of compute on one rank, bytes of gradients, alpha, beta
ENOUGH = [  # ranks that there are, the four of EXAMPLE, how many times as fast a doubling must make the step
    (1024, *EXAMPLE, 1.2),
    (1024, 0.02, 10**6, 1e-4, 1e-10, 1.5),
    (256, 0.5, 10**8, 1e-6, 2e-10, 1.25),
    (1024, 2.0, 10**7, 1e-4, 1e-9, 1.9),
]
ENDS = [(64, 0.1, 10**8, 1e-5, 1e-9, 1.2), (8, 2.0, 10**7, 1e-5, 1e-10, 1.8), (1, *EXAMPLE, 1.5)]  # none pays, all pay


def step_of_ranks(ranks: int, compute_s: float, size_bytes: float, alpha_s: float, beta_s_per_byte: float) -> float:
    """The step of 03.4, with the ranks first: they are what this lesson changes."""
    return step_s(compute_s, size_bytes, ranks, alpha_s, beta_s_per_byte)


def _enough(most: int, *case: float, step: Callable[..., float] = step_of_ranks, from_one: bool = False) -> int:
    """Ranks: doubled from 1 on while that makes the step as many times as fast as the last of `case` says."""
    *costs, gain = case
    ranks = 1
    while 2 * ranks <= most and step(1 if from_one else ranks, *costs) >= gain * step(2 * ranks, *costs):
        ranks *= 2
    return ranks


ENOUGH_RULE = "doubled as long as the step, compute and a ring all_reduce, gets at least that many times as fast"
ENOUGH_IDEAS = (
    Idea(
        TWICE,
        "All the ranks there are: as if each doubling halved the step. Only the compute is divided. The gradients are "
        "as large as before, and the all_reduce has more messages.",
        lambda most, *case: most,
    ),
    Idea(
        "start-ups are free",
        "Alpha is missing. A ring of n ranks starts 2 (n - 1) messages, one after the other: they grow with the ranks.",
        partial(_enough, step=lambda n, compute, size, alpha, beta: step_of_ranks(n, compute, size, 0.0, beta)),
    ),
    Idea(
        "an all_reduce is one message",
        "It is a reduce_scatter and an all_gather: 2 (n - 1) messages of an n-th each, one after the other.",
        partial(_enough, step=lambda n, compute, size, alpha, beta: compute / n + (n > 1) * (alpha + beta * size)),
    ),
    Idea(
        "whole gradients in every message",
        "Each message of a ring carries 1/n of the gradients, not all of them.",
        partial(_enough, step=lambda n, compute, size, alpha, beta: compute / n + 2 * (n - 1) * (alpha + beta * size)),
    ),
    Idea(
        "compared with one rank",
        "That is how many times as fast as one rank. Compare with half of the ranks: what did the last doubling bring?",
        partial(_enough, from_one=True),
    ),
)


def _draw_doublings(some: bool, rng: np.random.Generator) -> list[tuple[float, ...]]:
    """Costs at which some doublings pay, or none does and, after that, every one."""
    most, alpha_s = int(2 ** rng.integers(4, 10)), float(rng.uniform(1e-6, 1e-5))
    beta = float(rng.uniform(1, 9)) * 1e-10
    size = int(rng.integers(10**6, 10**8))
    sending_s, gain = alpha_s + beta * size, float(rng.uniform(1.2, 1.7))
    # the bytes alone stop it at about so many ranks
    factors = [float(2 ** rng.uniform(3, 8))] if some else [0.5, 1e5]
    return [(most, sending_s * factor, size, alpha_s, beta, gain) for factor in factors]


# ---- 11.4: how many micro-batches ----

PIPELINES = [  # stages, rows, seconds of a row's forward, seconds that each micro-batch's forward takes to start
    (4, 64, 1e-3, 2e-3),
    (8, 64, 1e-3, 0.5e-3),
    (2, 48, 1e-3, 5e-3),
    (4, 96, 2e-3, 1e-3),
]


def _best_count(stages: int, rows: int, row_s: float, start_s: float) -> int:
    """By the clock of the schedule, of every count that divides the rows; backward takes twice as long as forward."""
    return min(
        (m for m in range(1, rows + 1) if rows % m == 0 and m >= stages),
        key=lambda m: _clock_s(stages, m, start_s + row_s * rows / m),
    )


def _clock_s(stages: int, count: int, forward_s: float) -> float:
    return make_schedule("1f1b", stages, count).clock(forward_s, 2 * forward_s, 0.0).makespan


COUNT_IDEAS = (
    Idea(
        "more micro-batches are free",
        "The bubble is smallest with one row each, but every micro-batch pays a start-up on every stage.",
        lambda stages, rows, row, start: rows,
    ),
    Idea(
        "as many micro-batches as stages",
        "Then each stage waits for about half of the step: (p - 1) of (m + p - 1).",
        lambda stages, rows, row, start: min(m for m in range(stages, rows + 1) if rows % m == 0),
    ),
    Idea(
        "the root is the answer",
        "That count need not divide the rows: compare the two neighbours that do, by the time of the step.",
        lambda stages, rows, row, start: round(math.sqrt((stages - 1) * rows * row / start)),
    ),
)


def _draw_pipeline(rng: np.random.Generator) -> list[tuple[int, int, float, float]]:
    rows = 8 * int(rng.integers(6, 13))
    return [(int(rng.integers(2, 9)), rows, float(rng.uniform(1e-3, 2e-3)), float(rng.uniform(5e-4, 5e-3)))]


# ---- 11.5: which link ----

PLACED = [
    (((2, 4), (4, 1)), 4),
    (((1, 2), (2, 4)), 4),
    (((2, 4), (4, 1)), 2),
    (((2, 2), (2, 2)), 2),
    (((4, 2), (2, 1)), 2),
    (((1, 4), (4, 2)), 2),
    (((1, 2), (2, 1)), 4),
]


def _nodes(strategy: Any, per_node: int) -> int:
    """The nodes of the ranks that add up with rank 0 in the compiled plan."""
    return len({rank // per_node for rank in product_with(strategy).group(0)})


NODE_IDEAS = (
    Idea(
        "a strategy names nodes",
        "A strategy counts slices. Ranks fill the device matrix (m, k, n, copies) row by row, and nodes take the ranks "
        "in that order: whether k lies in a node follows from all the counts.",
        lambda strategy, per_node: 1,
    ),
    Idea(
        "ranks that add up are neighbours",
        "Only where k is the last axis. Columns of w and copies come after it: then the ranks of k lie apart.",
        lambda strategy, per_node: -(-strategy[0][1] // per_node),
    ),
    Idea(
        "m is taken for k",
        "That counts the ranks of m, the rows of x. Those that add up differ in their slice of k, the second number.",
        lambda strategy, per_node: len({i * (8 // strategy[0][0]) // per_node for i in range(strategy[0][0])}),
    ),
    Idea(
        "m is taken for k",
        "That takes m for k: in ((m, k), (k, n)) the second number is k, and the ranks that add up are those of k.",
        lambda strategy, per_node: len(
            {i * (8 // (strategy[0][0] * strategy[0][1])) // per_node for i in range(strategy[0][0])}
        ),
    ),
    Idea(
        "every rank of k has its node",
        "That many ranks add up, but several of them may be in one node.",
        lambda strategy, per_node: strategy[0][1],
    ),
)


def _draw_split(rng: np.random.Generator) -> list[tuple[Any, int]]:
    splits = list(counts())
    return [(pair(*splits[int(rng.integers(len(splits)))]), int(rng.choice((2, 4))))]


EXERCISES = (
    Exercise(
        "11.1",
        "beat propagation with one pin",
        (("one operator", 1), ("half of propagation's", 1), ("par", 2)),
        (
            "Which operator's message is the largest, and why did propagation not see it?",
            "Propagation looks only at what moves between two operators. Which strategies of matmul2 have no partial "
            "sums?",
            "Pin matmul2 with k whole. Its result should lie so that matmul3 can read it as it is: rows, columns, or "
            "some of both. Count the bytes of w2's and w3's gradients, too.",
            "Two slices of rows and four of columns of w2: matmul3 then sums over four ranks, and each gradient is "
            "added up by two.",
        ),
        _one_pin,
        _shown_pin,
        "half of propagation's",
        start="""\
pin = {"matmul2": ((1, 8), (8, 1))}

check("11.1", pin)
""",
    ),
    Exercise(
        "11.2",
        "twenty questions",
        (("questions", 1), ("one fits", 1), ("par", 3)),
        (
            "Which three costs grow with copies, with ranks of a layer and with stages? Which of them are small here?",
            "Begin in the middle: t4, and p so that it fits. Then change one count by a factor of two, and read which "
            "seconds went up.",
            "Recompute costs a third more work: without it, stages and ranks of a layer make it fit. b1 makes the "
            "bubble small, zero1 saves memory and lets each copy update its part alone.",
            "Two copies, four ranks of a layer, eight stages, one row a micro-batch, and zero1.",
        ),
        _questions,
        lambda: f'["{plan_text(solved().winner.point)}"]',
        "one fits",
        start="""\
questions = ["d8 t8 p1 b1"]

check("11.2", questions)
""",
    ),
    Exercise(
        "11.3",
        "another doubling",
        hints=(
            "What becomes smaller with more ranks, and what does not?",
            "Exercise 03.4 has the step of n ranks. Write it down for 32 ranks and for 64: which part is still halved?",
            "The step is compute over n, and 2 (n - 1) times (alpha plus beta times the bytes over n). Divide the step "
            "of n ranks by that of 2 n.",
            "Begin with one rank. As long as twice as many are allowed, and the step of n ranks is at least gain times "
            "that of 2 n ranks, double n.",
        ),
        **by_cases(
            _enough,
            Cases("ranks", 2, ENOUGH, ENOUGH_RULE, ENOUGH_IDEAS, partial(_draw_doublings, True)),
            Cases("none or all", 1, ENDS, "no doubling pays, or every one", (), partial(_draw_doublings, False)),
        ),
        start='''\
def enough(most, compute_s, size_bytes, alpha_s, beta_s_per_byte, gain):
    """How many ranks, 1, 2, 4, ... up to `most`: from there on a doubling is not worth it."""
    return 1


check("11.3", enough)
''',
    ),
    Exercise(
        "11.4",
        "how many micro-batches",
        hints=(
            "What does one more micro-batch save, and what does it cost?",
            "Write the step of 1F1B with m micro-batches on p stages as a number of slots times the time of a slot.",
            "(m + p - 1) slots of 3 (start + rows / m * row) seconds. Try every m that divides the rows.",
            "Among all m that divide the rows, from p on, the one with the least (m + p - 1) (start + row * rows / m).",
        ),
        **by_cases(
            _best_count,
            Cases("count", 3, PIPELINES, "the fewest seconds on the clock of 1F1B", COUNT_IDEAS, _draw_pipeline),
        ),
        start='''\
def micro_batches(stages, rows, row_s, start_s):
    """The number of micro-batches of the shortest step, a divisor of the rows, at least `stages`."""
    return 1


check("11.4", micro_batches)
''',
    ),
    Exercise(
        "11.5",
        "which link",
        hints=(
            "In which order do ranks fill the device matrix?",
            "The axes are m, k, n, and copies for the ranks left over; the last one changes first. The ranks that add "
            "up differ in their place along one axis.",
            "The ranks that add up are 0, s, 2s, ..., with s = n times the copies. Rank r is on node r // per_node.",
            "With ((m, k), (k, n)): s is 8 // (m k) ranks, and the answer is the number of different "
            "i * s // per_node, for i from 0 to k - 1.",
        ),
        **by_cases(
            _nodes, Cases("nodes", 3, PLACED, "nodes with ranks that add up with rank 0", NODE_IDEAS, _draw_split)
        ),
        start='''\
def nodes(strategy, per_node):
    """On how many nodes are those that add up with rank 0? x @ w, 8 ranks, per_node on a node."""
    return per_node


check("11.5", nodes)
''',
    ),
)
