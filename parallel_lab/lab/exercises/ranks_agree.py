"""Exercises on what ranks must do together: a step with all gradients, rows that are used once, a sum before a ReLU,
and what a step costs when ranks wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ...base.errors import shorten
from ...run.communicator import Request
from .book import Exercise
from .ideas import Cases, Idea, by_cases, compare_calls, recognised, same_value, slip
from .reading import PROGRAM, floats, read_dict, reading, whole_numbers
from .running import ProgramRun, ask, ask_programs
from .verdict import Part, Wrong, judged

Program = Generator[Request, Any, Any]
REDUCED_LOSS = "reduce the loss and backward follows"
TWICE, WAITS, NODES = "twice the ranks, twice the speed", "partial sums may wait", "a strategy names nodes"


def _entry(answer: Any, name: str, example: str) -> Any:
    return read_dict(answer, example, "nothing yet").get(name)


# ---- 03.4: twice the ranks ----

# compute_s of the whole batch on one rank, size_bytes of the gradients, ranks, alpha_s, beta_s_per_byte
STEPS = ((0.8, 4e6, 2, 1e-5, 1e-9), (0.8, 4e6, 8, 1e-5, 1e-9), (0.01, 1e3, 64, 1e-4, 1e-9), (1.0, 1e9, 16, 0.0, 1e-10))


def step_s(compute_s: float, size_bytes: float, ranks: int, alpha_s: float, beta_s_per_byte: float) -> float:
    """Seconds of a step: a share of the batch, then a ring all_reduce of the gradients."""
    return compute_s / ranks + 2 * (ranks - 1) * (alpha_s + beta_s_per_byte * size_bytes / ranks)


STEP_IDEAS = (
    Idea(
        TWICE,
        "Twice the ranks, twice the speed: that is the computation alone. The ring starts 2 (p - 1) messages, and each "
        "rank still sends nearly twice the bytes of the gradients, however many ranks there are.",
        lambda compute_s, size_bytes, ranks, alpha_s, beta: compute_s / ranks,
    ),
    Idea(
        "the batch grows with the ranks",
        "That is a batch that grows with the ranks. Here it stays the same: each rank computes a share of it.",
        lambda compute_s, *more: compute_s + step_s(0.0, *more),
    ),
    Idea(
        "whole gradients in every message",
        "Each message of a ring carries 1/p of the gradients, not all of them.",
        lambda c, size, p, alpha, beta: c / p + 2 * (p - 1) * (alpha + beta * size),
    ),
)


STEP_RULE = "a share of the computation, then 2 (p - 1) messages, each with 1/p of the gradients"


def _draw_step(rng: np.random.Generator) -> list[tuple[float, ...]]:
    compute_s, size_bytes = float(rng.uniform(0.01, 2)), float(rng.integers(10**3, 10**9))
    links = float(rng.uniform(1e-6, 1e-4)), float(rng.uniform(1e-10, 1e-9))
    return [(compute_s, size_bytes, int(rng.integers(2, 200)), *links)]


# ---- 03.5: what the ranks must agree on ----

DRAWS = ((4, 16), (2, 10), (3, 12))  # ranks, rows
EPOCHS, RATE = 3, 0.1


def _drawn(answer: Any, ranks: int, rows: int, epoch: int) -> list[list[int]]:
    rule = f"{rows // ranks} row numbers, each from 0 to {rows - 1}"
    drawn = []
    for rank in range(ranks):
        value = ask(rule, answer, rank, ranks, rows, epoch)
        with reading(value, rule, "None", "", "", rank):
            drawn.append(list(whole_numbers(value, rows + 1)))
        if len(drawn[-1]) != rows // ranks:
            raise Wrong(f"{len(drawn[-1])} rows of {rows} on {ranks} ranks", form=rule, rank=rank)
    return drawn


def _each_once(answer: Any, draws: Sequence[tuple[int, int]] = DRAWS) -> str:
    for ranks, rows in draws:
        for epoch in range(EPOCHS):
            drawn = _drawn(answer, ranks, rows, epoch)
            taken = [row for own in drawn for row in own]
            if sorted(taken) == list(range(rows)):
                continue
            twice = next((row for row in taken if taken.count(row) > 1), None)
            missing = next((row for row in range(rows) if row not in taken), None)
            apart = all(len(set(own)) == len(own) for own in drawn) and set(taken) <= set(range(rows))
            text = f"{rows} rows on {ranks} ranks, epoch {epoch}: row {twice} is used twice, row {missing} never"
            raise Wrong(text, "every row once in an epoch", OWN_DRAWS.told if apart else "")
    return f"every row once in an epoch, for {', '.join(f'{rows} rows on {ranks} ranks' for ranks, rows in draws)}"


def _drawn_rows(answer: Any, rng: np.random.Generator) -> None:
    ranks = int(rng.integers(2, 7))
    _each_once(_entry(answer, "rows", TOGETHER), [(ranks, ranks * int(rng.integers(2, 7)))])


def _other_order(answer: Any) -> str:
    epochs = [_drawn(answer, 4, 16, epoch) for epoch in range(EPOCHS)]
    if any(a == b for a, b in pairwise(epochs)):
        raise Wrong("two epochs with the same rows in the same order", "a different order in each epoch")
    return f"{EPOCHS} epochs, each in a different order"


def _one_step(answer: Any, seed: int = 0) -> str:
    if not callable(answer):
        raise Wrong(f"{shorten(answer)} is not a function", form=PROGRAM)
    rule = f"weights - {RATE} x the mean of all gradients, on every rank"
    for ranks in (4, 3):
        rng = np.random.default_rng(ranks + seed)
        weights, gradients, losses = rng.normal(size=5), rng.normal(size=(ranks, 5)), rng.normal(size=(ranks, 1))
        values = [(weights.copy(), g.copy(), loss.copy()) for g, loss in zip(gradients, losses, strict=True)]
        run = ask_programs(rule, lambda rank, ranks, each: answer(rank, ranks, *each), ranks, values)
        right, has_sent = weights - RATE * gradients.mean(axis=0), bool(run.asked)
        _compare_ranks(run, right, rule, STEP_RESULT_IDEAS, (weights, gradients, has_sent))
    return "the same weights on every rank, those of the mean gradient"


def _compare_ranks(run: ProgramRun, right: np.ndarray, rule: str, ideas: Sequence[Idea], case: tuple[Any, ...]) -> None:
    """Raises Wrong for the first rank whose result is not `right`. The ideas take the rank, and what `case` holds."""
    for rank, value in enumerate(run.results):
        array = floats(value, right.shape)
        if array is None or not same_value(array, right):
            requests = run.asked_by(rank)
            last = requests[-1].op if requests else ""
            note = "" if array is None else recognised([array], [(rank, *case)], ideas)
            raise Wrong(f"{shorten(value)} on rank {rank} of {run.ranks}", rule, note, rank, last)


OWN_DRAWS = Idea(
    "every rank may draw as it likes",
    "Each rank drew for itself, so two of them have the same row. All ranks must make the same draw, and each takes "
    "its part of it.",
    lambda rank, ranks, rows, epoch: np.random.default_rng(10 * epoch + rank).permutation(rows)[rank::ranks],
    "each row once",
)
OWN_GRADIENT = "Each rank took the step with its own gradient"
STEP_RESULT_IDEAS = (  # the weights on a rank, of the weights before, all gradients, and whether anything was sent
    Idea(
        REDUCED_LOSS,
        f"{OWN_GRADIENT}: the reduced loss is a number that backward never sees. Reduce the gradients.",
        lambda rank, weights, gradients, has_sent: weights - RATE * gradients[rank] if has_sent else None,
    ),
    slip(
        f"{OWN_GRADIENT}, and nothing was sent.",
        lambda rank, weights, gradients, has_sent: weights - RATE * gradients[rank],
    ),
    Idea(
        "all_reduce averages",
        "An all_reduce does not average: that is the sum of the gradients.",
        lambda rank, weights, gradients, has_sent: weights - RATE * gradients.sum(axis=0),
    ),
)


def _drawn_gradients(answer: Any, rng: np.random.Generator) -> None:
    _one_step(_entry(answer, "step", TOGETHER), int(rng.integers(1, 10**9)))


TOGETHER = '{"rows": rows_of, "step": step}'


def _belongs(answer: Any) -> Iterator[Part]:
    rows, step = (_entry(answer, name, TOGETHER) for name in ("rows", "step"))
    once = judged("each row once", _each_once, rows)
    yield once
    if once.passed:
        yield judged("another order", _other_order, rows)
    yield judged("one step", _one_step, step)


def _loss_alone(rank: int, ranks: int, weights: Any, gradient: Any, loss: Any) -> Program:
    yield Request("all_reduce", tuple(range(ranks)), loss, reduce="mean")
    return weights - RATE * gradient


# ---- 05.4: who holds what, and when to add up ----


def holders(m: int, k: int, block: int) -> tuple[int, ...]:
    """Ranks with rows `block` of x under ((m, k), (k, 1)): the last axis of the device matrix runs fastest."""
    return tuple(range(block * k, (block + 1) * k))


PLACES = ((4, 2, 0), (4, 2, 3), (8, 1, 5), (2, 4, 1), (1, 8, 0))
HOLDER_IDEAS = (
    Idea(
        NODES,
        "As if a count named nodes of four devices. A strategy counts slices; which ranks hold them follows from the "
        "device matrix, whatever the nodes are.",
        lambda m, k, block: tuple(range(4 * block, 4 * block + 4)),
        "holders",
    ),
    Idea("rank i holds block i", "One rank alone: k ranks share these rows.", lambda m, k, block: (block,), "holders"),
    Idea(
        "the first axis runs fastest",
        "Ranks are numbered along the last axis of the device matrix first: neighbours differ in k.",
        lambda m, k, block: tuple(range(block, m * k, m)),
        "holders",
    ),
    slip("Blocks are counted from 0, as ranks are.", lambda m, k, block: tuple(range((block - 1) * k, block * k))),
    slip("m is how many blocks there are. How many ranks share one?", lambda m, k, b: tuple(range(b * m, b * m + m))),
    slip("All eight have rows of x, but not the same ones.", lambda m, k, block: tuple(range(m * k))),
)


def _relu(answer: Any) -> str:
    rule = "relu of the whole sum, on every rank"
    for ranks in (4, 2):
        parts = np.random.default_rng(ranks).normal(size=(ranks, 6))
        run = ask_programs(rule, answer, ranks, [part.copy() for part in parts])
        right = np.maximum(parts.sum(axis=0), 0)
        _compare_ranks(run, right, rule, RELU_IDEAS, (parts,))
    return "as on one device, on 2 and on 4 ranks"


RELU_IDEAS = (  # the result, of the partial sums
    Idea(
        WAITS,
        "ReLU came before the sum: relu(a) + relu(b) is not relu(a + b). A partial sum must be complete before an "
        "operator that is not linear.",
        lambda rank, parts: np.maximum(parts, 0).sum(axis=0),
    ),
    slip("That is the sum, without the ReLU.", lambda rank, parts: parts.sum(axis=0)),
)


PLACED = '{"holders": holders, "relu": relu_of_product}'


def _placed(answer: Any) -> Iterator[Part]:
    where, relu = (_entry(answer, name, PLACED) for name in ("holders", "relu"))
    yield judged("holders", compare_calls, where, PLACES, holders, HOLDER_IDEAS, "ranks that hold these rows")
    yield judged("relu", _relu, relu)


def _drawn_holders(answer: Any, rng: np.random.Generator) -> None:
    m, k = (int(2**n) for n in rng.integers(0, 4, 2))
    case = m, k, int(rng.integers(m))
    compare_calls(_entry(answer, "holders", PLACED), [case, (4, 2, int(rng.integers(4)))], holders)


def _relu_first(rank: int, ranks: int, partial: Any) -> Program:
    return (yield Request("all_reduce", tuple(range(ranks)), np.maximum(partial, 0)))


def _with(name: str, ideas: Sequence[Idea]) -> tuple[Idea, ...]:
    """Ideas about one entry of an answer."""
    return tuple(Idea(idea.name, idea.note, {name: idea.answer}, idea.part) for idea in ideas)


def _idea(name: str, note: str, entry: str, answer: Callable[..., Any], part: str) -> Idea:
    return Idea(name, note, {entry: answer}, part)


OF_LESSON_03 = (
    Exercise(
        "03.4",
        "twice the ranks",
        hints=(
            "Which part of a step gets shorter with more ranks, and which part is there only with more than one?",
            "Lesson 02: how many messages does a ring all_reduce take, and how large is each?",
            "The p ranks share the computation. Then come 2 (p - 1) messages, each with 1/p of the gradients.",
            "Divide compute_s by the ranks, and add 2 (ranks - 1) messages. Each costs alpha, plus beta times the "
            "bytes divided by the ranks.",
        ),
        **by_cases(
            step_s,
            Cases("one rank", 1, [(0.8, 4e6, 1, 1e-5, 1e-9)], "nothing is sent"),
            Cases("a step", 3, STEPS, STEP_RULE, STEP_IDEAS, _draw_step),
            gives="seconds",
        ),
        start="""\
def step_s(compute_s, size_bytes, ranks, alpha_s, beta_s_per_byte):
    return compute_s


check("03.4", step_s)
""",
    ),
    Exercise(
        "03.5",
        "what the ranks must agree on",
        (("each row once", 2), ("another order", 1), ("one step", 2)),
        (
            "If each rank shuffles by itself, how does it know which rows the others have taken?",
            "Let all ranks make the same permutation: what may its seed depend on? And what must be added up before a "
            "rank changes its weights?",
            "Seed with the epoch alone; a rank takes every ranks-th row, beginning at its own number. In the step, "
            "reduce the gradients.",
            "Permute the rows with a generator seeded by the epoch, and return a part that depends on the rank. In the "
            "step, ask for an all_reduce of the gradient that takes the mean, and subtract 0.1 times the reply.",
        ),
        _belongs,
        drawn={"each row once": _drawn_rows, "one step": _drawn_gradients},
        ideas=(
            *_with("rows", (OWN_DRAWS,)),
            _idea(REDUCED_LOSS, "the reduced loss is a number", "step", _loss_alone, "one step"),
        ),
        start="""\
def rows_of(rank, ranks, rows, epoch):
    return list(range(rows // ranks))


def step(rank, ranks, weights, gradient, loss):
    return weights
    yield


check("03.5", {"rows": rows_of, "step": step})
""",
    ),
)
OF_LESSON_05 = (
    Exercise(
        "05.4",
        "who holds what, and when to add up",
        (("holders", 2), ("relu", 2)),
        (
            "Eight ranks stand in a device matrix of m rows and k columns. Which of them have the same rows of x?",
            "Look above at who adds up with whom. And try relu on two numbers, one of them negative: before they are "
            "added, and after.",
            "Neighbours split k: k ranks in a row hold the same rows of x. A sum must be complete before a ReLU.",
            "The k ranks from block times k on. In the program ask for an all_reduce of the partial sum, and return "
            "the larger of the reply and 0, element by element.",
        ),
        _placed,
        drawn={"holders": _drawn_holders},
        ideas=(
            *_with("holders", [idea for idea in HOLDER_IDEAS if idea.name]),
            _idea(WAITS, "relu(a) + relu(b) is not", "relu", _relu_first, "relu"),
        ),
        start="""\
def holders(m, k, block):
    return ()


def relu_of_product(rank, ranks, partial):
    return partial
    yield


check("05.4", {"holders": holders, "relu": relu_of_product})
""",
    ),
)
