"""Judging a ZeRO-1 step that a learner wrote as a rank program: its numbers, what a rank keeps, its messages and its
bytes.

Plain data parallel is computed in numpy, the learner's program runs on simulated ranks; what it asks for is written
down by the engine on its way to the simulator. The ranks fit a line through rows of their own by gradients of a mean
squared error, so that every step depends on the one before.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...base.errors import shorten
from ...base.origin import short_file
from ...ops.collectives.definitions import MESSAGES
from ...run.communicator import Request, Start
from .running import Fault, ProgramRun, run_programs
from .verdict import Part

STEP_PARTS = (("one step", 1), ("20 steps", 2), ("a slice of the velocity", 1), ("messages", 1), ("bytes", 1))
RATE, DECAY = 0.1, 0.9  # velocity = DECAY velocity + mean gradient;  weights -= RATE velocity
STEPS = 20
RANKS = (
    4,
    2,
    3,
    8,
)  # four first, because those are the ones the lesson has; an answer for four ranks only must not pass
WEIGHTS, ROWS = 48, 6  # every number of ranks cuts the weights into equal slices
CLOSE = 1e-9  # float64, 20 steps of sums in another order


@dataclass
class _Sent:
    """What the programs asked for in one step: (rank, kind, bytes a rank must send, origin), in order."""

    asked: list[tuple[int, str, int, str]] = field(default_factory=list)

    def of(self, rank: int) -> list[tuple[int, str, int, str]]:
        return [entry for entry in self.asked if entry[0] == rank]

    def bytes_of(self, rank: int) -> int:
        return sum(size for _, _, size, _ in self.of(rank))


@dataclass(frozen=True)
class _Problem:
    """Rows of each rank, and what plain data parallel makes of them: weights and velocity after each step, the start
    first.
    """

    ranks: int
    x: np.ndarray
    y: np.ndarray
    weights: tuple[np.ndarray, ...]
    velocity: tuple[np.ndarray, ...]

    def gradient(self, rank: int, weights: np.ndarray) -> np.ndarray:
        """Of the mean squared error of a rank's own rows."""
        return 2 * self.x[rank].T @ (self.x[rank] @ weights - self.y[rank]) / ROWS

    def piece(self, rank: int) -> slice:
        width = WEIGHTS // self.ranks
        return slice(rank * width, (rank + 1) * width)


def _problem(ranks: int) -> _Problem:
    rng = np.random.default_rng(60 + ranks)
    x = rng.normal(size=(ranks, ROWS, WEIGHTS)) / np.sqrt(WEIGHTS)
    y = rng.normal(size=(ranks, ROWS))
    start = rng.normal(size=WEIGHTS)
    found = _Problem(ranks, x, y, (start,), (np.zeros(WEIGHTS),))
    weights, velocity = [start], [np.zeros(WEIGHTS)]
    for _ in range(STEPS):
        mean = sum(found.gradient(r, weights[-1]) for r in range(ranks)) / ranks
        velocity.append(DECAY * velocity[-1] + mean)
        weights.append(weights[-1] - RATE * velocity[-1])
    return _Problem(ranks, x, y, tuple(weights), tuple(velocity))


def _counted(answer: Any, sent: _Sent) -> Any:
    """The learner's program for `run_programs`, with what it asks for written down on the way."""

    def program(rank: int, ranks: int, given: tuple[np.ndarray, ...]) -> Any:
        inner = answer(rank, ranks, *given)
        return _passed_on(inner, rank, sent) if isinstance(inner, Generator) else inner

    return program


def _passed_on(program: Generator, rank: int, sent: _Sent) -> Generator[Any, Any, Any]:
    reply = None
    while True:
        try:
            asked = program.send(reply)
        except StopIteration as end:
            return end.value
        request = asked.request if isinstance(asked, Start) else asked
        if isinstance(request, Request):
            size = 0 if request.value is None else int(np.asarray(request.value).nbytes)
            where = _line_of(program)
            sent.asked.append(
                (
                    rank,
                    str(request.kind),
                    _must_send(request, size),
                    f"{request.kind} at {where}" if where else str(request.kind),
                )
            )
            if not request.origin:  # the learner's line, and not the next one here
                request = replace(request, origin=where)
                asked = replace(asked, request=request) if isinstance(asked, Start) else request
        reply = yield asked


def _must_send(request: Request, size_bytes: int) -> int:
    try:
        return MESSAGES[request.kind].payload_bytes(size_bytes, len(request.group))
    except Exception:  # the simulator says what is wrong with the request
        return 0


def _line_of(program: Any) -> str:
    while isinstance(program.gi_yieldfrom, Generator):
        program = program.gi_yieldfrom
    frame = program.gi_frame
    return f"{short_file(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""


@dataclass(frozen=True)
class _Trained:
    """Of one number of ranks: what the first step gave, what the last one did, and what was sent in the first."""

    problem: _Problem
    first: tuple[Any, ...]
    last: tuple[Any, ...]
    sent: _Sent
    fault: Part | None = None


def _state(value: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """(weights, velocity) as a program returned them, or None."""
    try:
        weights, velocity = value
        return np.array(weights, np.float64), np.array(velocity, np.float64)
    except Exception:  # whatever a learner's object does
        return None


def _train(answer: Any, ranks: int) -> _Trained:
    """Up to 20 steps; each rank goes on with what its program returned, however wrong. Ends where a shape makes that
    impossible.
    """
    problem = _problem(ranks)
    width = WEIGHTS // ranks
    states: list[tuple[np.ndarray, np.ndarray]] = [(problem.weights[0].copy(), np.zeros(width)) for _ in range(ranks)]
    first: tuple[Any, ...] = ()
    first_sent = _Sent()
    for step in range(STEPS):
        sent = _Sent()
        # copies: a program may write into what it gets
        given = [(w.copy(), problem.gradient(r, w), v.copy()) for r, (w, v) in enumerate(states)]
        run = run_programs(_counted(answer, sent), ranks, given)
        if run.fault is not None:
            return _Trained(problem, first, (), first_sent, _faulty(run, step))
        if not step:
            first, first_sent = run.results, sent
        found = [_state(value) for value in run.results]
        if any(f is None or f[0].shape != (WEIGHTS,) for f in found):
            return _Trained(problem, first, run.results, first_sent)
        states = [f for f in found if f is not None]
        if not all(np.isfinite(w).all() and np.isfinite(v).all() for w, v in states):
            break
    return _Trained(problem, first, tuple(states), first_sent)


def _faulty(run: ProgramRun, step: int) -> Part:
    fault: Fault = run.fault
    when = f"Every rank finishes, on {run.ranks} ranks (step {step + 1})"
    if "wait" in fault.text and "call" in fault.text:
        return fault.part("one step", when, "All ranks must ask for the same collectives in the same order.")
    return fault.part("one step", when)


# ---- parts ----


def step_parts(answer: Any) -> Iterator[Part]:
    """The parts of a ZeRO-1 step, each over all of RANKS; what goes wrong first is shown.

    answer(rank, ranks, weights, gradient, velocity) yields Requests and returns (all weights, this rank's slice of the
    velocity)
    """
    if not callable(answer):
        yield Part(
            "one step", False, f"{shorten(answer)} is not a function", "A rank program: a function that yields Requests"
        )
        return
    trained = []
    for ranks in RANKS:
        found = _train(answer, ranks)
        if found.fault is not None:
            yield found.fault
            return
        trained.append(found)
    rule = "weights - rate x (decay x velocity + mean gradient), the same on every rank"
    wrong = next(filter(None, (_weights_part("one step", t, t.first, 1, rule) for t in trained)), None)
    yield wrong or Part("one step", True, f"all {WEIGHTS} weights as with plain data parallel, on {_numbers()} ranks")
    wrong = next(filter(None, (_weights_part("20 steps", t, t.last, STEPS, rule) for t in trained)), None)
    yield wrong or Part(
        "20 steps", True, f"all {WEIGHTS} weights of every rank as with plain data parallel after {STEPS} steps"
    )
    wrong = next(filter(None, (_velocity_part(t) for t in trained)), None)
    yield wrong or Part(
        "a slice of the velocity",
        True,
        f"{WEIGHTS} / p elements per rank, equal to that slice of plain data parallel's",
    )
    if not any(t.sent.asked for t in trained):
        return  # without a message there is nothing to count
    yield next(filter(None, (_messages_part(t) for t in trained)), None) or Part(
        "messages", True, "one reduce_scatter, one all_gather"
    )
    yield next(filter(None, (_bytes_part(t) for t in trained)), None) or Part(
        "bytes", True, "exactly 2 (p - 1)/p n on every rank, as many as one all_reduce"
    )


def _weights_part(name: str, trained: _Trained, results: Sequence[Any], steps: int, rule: str) -> Part | None:
    """The failed part of the first rank whose weights are not those of plain data parallel, or None."""
    problem = trained.problem
    want, before = problem.weights[steps], problem.weights[0]
    for rank, value in enumerate(results):
        state = _state(value)
        if state is None:
            what = "The program ends without a return." if value is None else ""
            return Part(
                name,
                False,
                f"{shorten(value)} on {problem.ranks} ranks",
                "(weights, velocity): all weights, and this rank's slice",
                what,
                rank,
            )
        weights = state[0]
        if weights.shape != want.shape:
            note = (
                "That is a slice. Forward needs all weights: gather them."
                if weights.size == WEIGHTS // problem.ranks
                else ""
            )
            return Part(
                name,
                False,
                f"weights of shape {weights.shape} on {problem.ranks} ranks",
                f"{want.shape}: all weights",
                note,
                rank,
            )
        if np.allclose(weights, want, rtol=CLOSE, atol=CLOSE):
            continue
        wrong = np.flatnonzero(~np.isclose(weights, want, rtol=CLOSE, atol=CLOSE))
        off = float(np.abs(weights - want).max())
        found = (
            f"on {problem.ranks} ranks: {len(wrong)} of {WEIGHTS} weights are wrong, the first is number "
            f"{wrong[0]}, off by up to {off:.3g}"
        )
        note = _weights_note(trained, rank, weights, before) if steps == 1 else _later_note(trained)
        return Part(name, False, found, rule, note, rank, f"weights after step {steps}")
    return None


def _weights_note(trained: _Trained, rank: int, weights: np.ndarray, before: np.ndarray) -> str:
    """The wrong model that gives these weights after one step, found by computing what it gives."""
    problem, p = trained.problem, trained.problem.ranks
    mean, own, mine = problem.velocity[1], problem.gradient(rank, before), problem.piece(rank)
    right, width = problem.weights[1], WEIGHTS // p

    def turned(by: int) -> np.ndarray:
        return np.concatenate([right[problem.piece((r + by) % p)] for r in range(p)])

    only_mine = before.copy()
    only_mine[mine] = right[mine]
    summed = before - RATE * p * mean
    models = {
        "Nothing was changed yet.": before,
        "Each rank has stepped with its own gradient: they were never added up.": before - RATE * own,
        f"The gradients were summed, not averaged: {p} times too large. reduce='mean', or divide by the "
        "number of ranks.": summed,
        "This rank's slice is right, the others are as before: they need it too (all_gather)": only_mine,
        "The slices are right, but in another order: slice r belongs to rank r.": turned(1) if p > 2 else before,
        "The sign: weights go down the gradient, weights - rate x velocity.": before + RATE * mean,
        "The learning rate is missing.": before - mean,
    }
    named = next((text for text, wrong in models.items() if np.allclose(weights, wrong, rtol=CLOSE, atol=CLOSE)), "")
    if not named and any(
        np.allclose(weights[mine], right[problem.piece(r)], rtol=CLOSE, atol=CLOSE) for r in range(p) if r != rank
    ):
        named = "This rank has updated another rank's slice: reduce_scatter gives rank r slice r."
    if not named and np.allclose(weights[:width], right[:width], rtol=CLOSE, atol=CLOSE) and rank:
        named = "Only the first slice is right: which rows of the weights belong to this rank?"
    return named


def _later_note(trained: _Trained) -> str:
    """What is wrong after many steps where the first one was right."""
    problem = trained.problem
    first = [_state(value) for value in trained.first]
    if any(f is None for f in first):
        return ""
    if all(
        f[0].shape == problem.weights[1].shape and np.allclose(f[0], problem.weights[1], rtol=CLOSE, atol=CLOSE)
        for f in first
    ):
        if all(not f[1].any() for f in first):
            return (
                "The first step is right, where the velocity is 0. It came back as it was: update it, use it, and "
                "return it."
            )
        return (
            "The first step is right, a later one is not: is the velocity that is returned the one the next step needs?"
        )
    return ""


def _velocity_part(trained: _Trained) -> Part | None:
    problem = trained.problem
    name, width = "a slice of the velocity", WEIGHTS // problem.ranks
    rule = f"{width} elements: slice r on rank r, the optimizer state that ZeRO-1 shards"
    for rank, value in enumerate(trained.last):
        state = _state(value)
        if state is None:
            return Part(name, False, shorten(value), rule, rank=rank)
        velocity, whole = state[1], problem.velocity[STEPS]
        if velocity.shape != (width,):
            note = (
                "That is the whole velocity on every rank: the memory that ZeRO-1 saves."
                if velocity.shape == whole.shape
                else ""
            )
            return Part(name, False, f"shape {velocity.shape} on {problem.ranks} ranks", rule, note, rank)
        if np.allclose(velocity, whole[problem.piece(rank)], rtol=CLOSE, atol=CLOSE):
            continue
        note = "It is still 0, as at the start." if not velocity.any() else ""
        if np.allclose(velocity, problem.ranks * whole[problem.piece(rank)], rtol=1e-6, atol=1e-9):
            note = "That is the sum of the ranks' gradients, but plain data parallel takes the mean."
        others = [
            r for r in range(problem.ranks) if np.allclose(velocity, whole[problem.piece(r)], rtol=CLOSE, atol=CLOSE)
        ]
        if others:
            note = f"That is the slice of rank {others[0]}."
        off = float(np.abs(velocity - whole[problem.piece(rank)]).max())
        found = f"on {problem.ranks} ranks: off by up to {off:.3g} after {STEPS} steps"
        return Part(name, False, found, rule, note, rank, f"velocity after step {STEPS}")
    return None


def _messages_part(trained: _Trained) -> Part | None:
    problem = trained.problem
    rule = "reduce_scatter for the gradient, all_gather for the weights"
    for rank in range(problem.ranks):
        asked = trained.sent.of(rank)
        kinds = [kind for _, kind, _, _ in asked]
        if sorted(kinds) == ["all_gather", "reduce_scatter"]:
            continue
        note, op = (
            "",
            next(
                (o for _, k, _, o in asked if k not in ("reduce_scatter", "all_gather")), asked[-1][3] if asked else ""
            ),
        )
        if "all_reduce" in kinds:
            note = "An all_reduce brings the whole mean gradient to every rank, which needs 1/p of it."
        elif "all_gather" not in kinds and "reduce_scatter" in kinds:
            note = "The gradient is scattered; the new weights of the others are still missing."
        elif set(kinds) <= {"send", "recv"} and kinds:
            note = "From sends and recvs it can be built too (lesson 02); here ask for the collectives themselves."
        found = f"on {problem.ranks} ranks: {', '.join(kinds) or 'none'}"
        return Part("messages", False, found, rule, note, rank, op)
    return None


def _bytes_part(trained: _Trained) -> Part | None:
    problem = trained.problem
    p, n = problem.ranks, WEIGHTS * 8
    right = 2 * (p - 1) * n // p
    for rank in range(p):
        found = trained.sent.bytes_of(rank)
        kinds = {kind for _, kind, _, _ in trained.sent.of(rank)}
        if found == right and kinds != {"all_reduce"}:
            continue
        notes = {
            3
            * (p - 1)
            * n
            // p: "3 (p - 1)/p n: half as much again. An all_reduce is a reduce_scatter and an all_gather already.",
            4 * (p - 1) * n // p: "4 (p - 1)/p n: two all_reduces.",
            (p - 1) * n // p: "(p - 1)/p n: one half of it. The weights or the gradients stayed at home.",
            (p - 1) * n + (p - 1) * n // p: "Whole arrays are gathered, p times as many bytes: send your slice only.",
            (p - 1) * n: "(p - 1) n: every rank's whole gradient goes to every rank.",
        }
        note = (
            "The same bytes as ZeRO-1, and no memory saved: that is plain data parallel."
            if found == right
            else notes.get(found, "")
        )
        large = max(trained.sent.of(rank), key=lambda entry: entry[2], default=(0, "", 0, ""))[3]
        expected = f"{right} bytes on {p} ranks: 2 (p - 1)/p n, n = {n} bytes of all weights"
        expected += ", in a reduce_scatter and an all_gather" if found == right else ""
        return Part("bytes", False, f"{found} bytes sent by rank {rank}", expected, note, rank, large)
    return None


def _numbers() -> str:
    return ", ".join(map(str, sorted(RANKS)))
