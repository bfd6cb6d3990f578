"""Judging a ZeRO-1 step that a learner wrote as a rank program: numbers, what a rank keeps, messages and bytes.

Plain data parallel is computed in numpy, the learner's program runs on simulated ranks. The ranks fit a line through
rows of their own by gradients of a mean squared error, so that every step depends on the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.errors import shorten
from ...run.communicator import Request
from .ideas import recognised, slip
from .reading import PROGRAM
from .running import ProgramRun, run_programs
from .verdict import Note, Part, Wrong, judged

STEP_PARTS = (("one step", 1), ("20 steps", 2), ("a slice of the velocity", 1), ("messages", 1), ("bytes", 1))
RATE, DECAY = 0.1, 0.9  # velocity = DECAY velocity + mean gradient;  weights -= RATE velocity
STEPS = 20
RANKS = (4, 2, 3, 8)  # four first: those are the ones the lesson has. An answer for four ranks only must not pass
WEIGHTS, ROWS = 48, 6  # every number of ranks splits the weights into equal slices
MORE = Note(
    "3 (p - 1)/p n: half as much again. ZeRO-1 need not send more: an all_reduce is a reduce_scatter and an all_gather "
    "already.",
    "ZeRO-1 sends more",
)
CLOSE = 1e-9  # float64, 20 steps of sums in another order


@dataclass(frozen=True)
class _Problem:
    """Rows of each rank, and what plain data parallel makes of them: weights and velocity from the start on."""

    ranks: int
    x: np.ndarray
    y: np.ndarray
    weights: list[np.ndarray]
    velocity: list[np.ndarray]

    def gradient(self, rank: int, weights: np.ndarray) -> np.ndarray:
        """The gradient of the mean squared error of a rank's own rows."""
        return 2 * self.x[rank].T @ (self.x[rank] @ weights - self.y[rank]) / ROWS

    def piece(self, rank: int) -> slice:
        width = WEIGHTS // self.ranks
        return slice(rank * width, (rank + 1) * width)


def _problem(ranks: int) -> _Problem:
    rng = np.random.default_rng(60 + ranks)
    x = rng.normal(size=(ranks, ROWS, WEIGHTS)) / np.sqrt(WEIGHTS)
    y = rng.normal(size=(ranks, ROWS))
    start = rng.normal(size=WEIGHTS)
    weights, velocity = [start], [np.zeros(WEIGHTS)]
    problem = _Problem(ranks, x, y, weights, velocity)
    for _ in range(STEPS):
        mean = sum(problem.gradient(r, weights[-1]) for r in range(ranks)) / ranks
        velocity.append(DECAY * velocity[-1] + mean)
        weights.append(weights[-1] - RATE * velocity[-1])
    return problem


@dataclass(frozen=True)
class _Trained:
    """A training on one number of ranks: results of the first and of the last step, and the run of the first."""

    problem: _Problem
    first: tuple[Any, ...]
    last: tuple[Any, ...]
    run: ProgramRun


def _state(value: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """(weights, velocity) as a program returned them, or None."""
    try:
        weights, velocity = value
        return np.array(weights, np.float64), np.array(velocity, np.float64)
    except Exception:  # whatever a learner's object does
        return None


def _train(answer: Any, ranks: int) -> _Trained:
    """Up to 20 steps, each from what the programs returned, however wrong, while shapes allow it. Raises Wrong."""
    problem = _problem(ranks)
    states = [(problem.weights[0], np.zeros(WEIGHTS // ranks))] * ranks
    runs: list[ProgramRun] = []
    for step in range(STEPS):
        # copies: a program may write into what it gets
        values = [(w.copy(), problem.gradient(r, w), v.copy()) for r, (w, v) in enumerate(states)]
        run = run_programs(lambda rank, ranks, values: answer(rank, ranks, *values), ranks, values)
        if run.fault is not None:
            waits = "wait" in run.fault.text and "call" in run.fault.text
            note = "All ranks must ask for the same collectives in the same order." if waits else ""
            raise run.fault.wrong(f"Every rank finishes, on {ranks} ranks (step {step + 1})", note)
        runs.append(run)
        returned = [_state(value) for value in run.results]
        if any(f is None or f[0].shape != (WEIGHTS,) for f in returned):
            return _Trained(problem, runs[0].results, run.results, runs[0])
        states = returned
        if not all(np.isfinite(w).all() and np.isfinite(v).all() for w, v in states):
            break
    return _Trained(problem, runs[0].results, tuple(states), runs[0])


def reduced_first(rank: int, ranks: int, weights: Any, gradient: Any, velocity: Any) -> Iterator[Any]:
    """The belief that ZeRO-1 sends more: the whole gradient on every rank, then the slices of the weights."""
    everybody, width = tuple(range(ranks)), len(weights) // ranks
    mine = slice(rank * width, (rank + 1) * width)
    mean = yield Request("all_reduce", everybody, gradient, reduce="mean")
    velocity = DECAY * velocity + mean[mine]
    weights = yield Request("all_gather", everybody, weights[mine] - RATE * velocity)
    return weights, velocity


def step_parts(answer: Any) -> Iterator[Part]:
    """The parts of a ZeRO-1 step on RANKS; the first fault is shown.
    answer(rank, ranks, weights, gradient, velocity) yields Requests; returns (all weights, its slice of the velocity)
    """
    if not callable(answer):
        raise Wrong(f"{shorten(answer)} is not a function", form=PROGRAM)
    trained = [_train(answer, ranks) for ranks in RANKS]
    yield judged("one step", _one_step, trained)
    yield judged("20 steps", _all_steps, trained)
    yield judged("a slice of the velocity", _velocity, trained)
    if any(t.run.asked for t in trained):  # without a message there is nothing to count
        yield judged("messages", _messages, trained)
        yield judged("bytes", _bytes, trained)


def _one_step(trained: Sequence[_Trained]) -> str:
    for t in trained:
        _check_weights(t, t.first, 1)
    return f"all {WEIGHTS} weights as with plain data parallel, on {', '.join(map(str, sorted(RANKS)))} ranks"


def _all_steps(trained: Sequence[_Trained]) -> str:
    for t in trained:
        _check_weights(t, t.last, STEPS)
    return f"all {WEIGHTS} weights of every rank as with plain data parallel after {STEPS} steps"


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.allclose(a, b, rtol=CLOSE, atol=CLOSE)


def _check_weights(trained: _Trained, results: Sequence[Any], steps: int) -> None:
    """Raises Wrong for the first rank whose weights are not those of plain data parallel."""
    problem = trained.problem
    right, on_ranks = problem.weights[steps], f"on {problem.ranks} ranks"
    for rank, value in enumerate(results):
        state = _state(value)
        if state is None:
            note = "The program ends without a return." if value is None else ""
            allowed = "(weights, velocity): all weights, and this rank's slice"
            raise Wrong(f"{shorten(value)} {on_ranks}", "", note, rank, form=allowed)
        weights = state[0]
        if weights.shape != right.shape:
            is_slice = weights.size == WEIGHTS // problem.ranks
            note = "That is a slice. Forward needs all weights: gather them." if is_slice else ""
            text = f"weights of shape {weights.shape} {on_ranks}"
            raise Wrong(text, f"{right.shape}: all weights", note, rank)
        if not _same(weights, right):
            wrong = np.flatnonzero(~np.isclose(weights, right, rtol=CLOSE, atol=CLOSE))
            text = f"{on_ranks}: {len(wrong)} of {WEIGHTS} weights are wrong, the first is number {wrong[0]}, "
            text += f"off by up to {float(np.abs(weights - right).max()):.3g}"
            rule = "weights - rate x (decay x velocity + mean gradient), the same on every rank"
            note = _weights_note(problem, rank, weights) if steps == 1 else _later_note(trained)
            raise Wrong(text, rule, note, rank, f"weights after step {steps}")


def _only_mine(problem: _Problem, rank: int) -> np.ndarray:
    weights = problem.weights[0].copy()
    weights[problem.piece(rank)] = problem.weights[1][problem.piece(rank)]
    return weights


WEIGHT_IDEAS = (  # weights after the first step, of a problem, on a rank
    slip("Nothing was changed yet.", lambda problem, rank: problem.weights[0]),
    slip(
        "Each rank took the step with its own gradient: the gradients were never added up.",
        lambda problem, rank: problem.weights[0] - RATE * problem.gradient(rank, problem.weights[0]),
    ),
    slip(
        lambda problem, rank: (
            f"The gradients were summed, not averaged: {problem.ranks} times too large. reduce='mean', or divide by "
            "the number of ranks."
        ),
        lambda problem, rank: problem.weights[0] - RATE * problem.ranks * problem.velocity[1],
    ),
    slip("This rank's slice is right, the others are as before: they need it too (all_gather)", _only_mine),
    slip(
        "The slices are right, but in the wrong order: slice r belongs to rank r.",
        lambda problem, rank: np.roll(problem.weights[1], -WEIGHTS // problem.ranks) if problem.ranks > 2 else None,
    ),
    slip(
        "The sign is wrong: weights go down the gradient, weights - rate x velocity.",
        lambda problem, rank: problem.weights[0] + RATE * problem.velocity[1],
    ),
    slip("The learning rate is missing.", lambda problem, rank: problem.weights[0] - problem.velocity[1]),
)


def _weights_note(problem: _Problem, rank: int, weights: np.ndarray) -> str:
    """The wrong model that gives these weights after one step."""
    if note := recognised([weights], [(problem, rank)], WEIGHT_IDEAS, CLOSE):
        return note
    right, mine, width = problem.weights[1], problem.piece(rank), WEIGHTS // problem.ranks
    if any(_same(weights[mine], right[problem.piece(r)]) for r in range(problem.ranks) if r != rank):
        return "This rank has updated another rank's slice: reduce_scatter gives rank r slice r."
    if _same(weights[:width], right[:width]) and rank:
        return "Only the first slice is right: which rows of the weights belong to this rank?"
    return ""


def _later_note(trained: _Trained) -> str:
    """What is wrong after many steps where the first one was right."""
    right, first = trained.problem.weights[1], [_state(value) for value in trained.first]
    if not all(f is not None and f[0].shape == right.shape and _same(f[0], right) for f in first):
        return ""
    if all(not f[1].any() for f in first):
        return "The first step is right, where the velocity is 0. It came back as it was: update, use and return it."
    return "The first step is right, a later one is not: is the velocity that is returned the one the next step needs?"


def _velocity(trained: Sequence[_Trained]) -> str:
    for t in trained:
        for rank, value in enumerate(t.last):
            _check_velocity(t.problem, rank, value)
    return f"{WEIGHTS} / p elements per rank, equal to that slice of plain data parallel's"


def _check_velocity(problem: _Problem, rank: int, value: Any) -> None:
    width, whole = WEIGHTS // problem.ranks, problem.velocity[STEPS]
    rule = f"{width} elements: slice r on rank r, the optimizer state that ZeRO-1 shards"
    state = _state(value)
    if state is None:
        raise Wrong(shorten(value), rule, rank=rank)
    velocity, right = state[1], whole[problem.piece(rank)]
    if velocity.shape != (width,):
        is_whole = velocity.shape == whole.shape
        note = "That is the whole velocity on every rank: the memory that ZeRO-1 saves." if is_whole else ""
        raise Wrong(f"shape {velocity.shape} on {problem.ranks} ranks", rule, note, rank)
    if _same(velocity, right):
        return
    note = "It is still 0, as at the start." if not velocity.any() else ""
    if np.allclose(velocity, problem.ranks * right, rtol=1e-6, atol=1e-9):
        note = "That is the sum of the ranks' gradients, but plain data parallel takes the mean."
    other = next((r for r in range(problem.ranks) if _same(velocity, whole[problem.piece(r)])), None)
    if other is not None:
        note = f"That is the slice of rank {other}."
    text = f"on {problem.ranks} ranks: off by up to {float(np.abs(velocity - right).max()):.3g} after {STEPS} steps"
    raise Wrong(text, rule, note, rank, f"velocity after step {STEPS}")


def _messages(trained: Sequence[_Trained]) -> str:
    allowed = ("reduce_scatter", "all_gather")
    for t in trained:
        for rank in range(t.problem.ranks):
            requests = t.run.asked_by(rank)
            kinds = [a.kind for a in requests]
            if sorted(kinds) == sorted(allowed):
                continue
            note, other = (
                "",
                next((a.op for a in requests if a.kind not in allowed), requests[-1].op if requests else ""),
            )
            if "all_reduce" in kinds:
                note = "An all_reduce brings the whole mean gradient to every rank, but a rank needs 1/p of it."
            elif "all_gather" not in kinds and "reduce_scatter" in kinds:
                note = "The gradient is scattered; the new weights of the others are still missing."
            elif set(kinds) <= {"send", "recv"} and kinds:
                note = "It can be built from sends and recvs too (lesson 02); here ask for the collectives themselves."
            text = f"on {t.problem.ranks} ranks: {', '.join(kinds) or 'none'}"
            raise Wrong(text, "reduce_scatter for the gradient, all_gather for the weights", note, rank, other)
    return "one reduce_scatter, one all_gather"


def _bytes(trained: Sequence[_Trained]) -> str:
    for t in trained:
        p, n = t.problem.ranks, WEIGHTS * 8
        share = (p - 1) * n // p
        for rank in range(p):
            sent, requests = t.run.sent_bytes(rank), t.run.asked_by(rank)
            as_many = sent == 2 * share
            if as_many and {a.kind for a in requests} != {"all_reduce"}:
                continue
            notes = {
                3 * share: MORE,
                4 * share: "4 (p - 1)/p n: two all_reduces.",
                share: "(p - 1)/p n: one half of it. Either the weights or the gradients were not sent.",
                p * share + share: "Whole arrays are gathered, p times as many bytes: send your slice only.",
                p * share: "(p - 1) n: every rank's whole gradient goes to every rank.",
            }
            plain = "The same bytes as ZeRO-1, and no memory saved: that is plain data parallel."
            expected = f"{2 * share} bytes on {p} ranks: 2 (p - 1)/p n, n = {n} bytes of all weights"
            expected += ", in a reduce_scatter and an all_gather" if as_many else ""
            large = max(requests, key=lambda a: a.size_bytes).op if requests else ""
            note = plain if as_many else notes.get(sent, "")
            raise Wrong(f"{sent} bytes sent by rank {rank}", expected, note, rank, large)
    return "exactly 2 (p - 1)/p n on every rank, as many as one all_reduce"
