"""`Run`: the steps of a session that go on in the background, in one job of its workers or, if the session switches to
another plan meanwhile, in several.

    run = session.start(batches, 1000)
    run.pause(); run.resume()
    session.switch(other)               # between two steps; the run goes on with it
    losses = run.result()
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..base.events import from_dicts
from ..graph.plan import Plan
from ..run.full_values import full_inputs
from . import rank_steps

STOP_S = 0.5  # an interrupted cell must be over within a second: half of it for ending in order
Batch = Sequence[Any]


def rates_of_steps(plan: Plan, optimizer: Any, first: int, steps: int) -> dict[str, np.ndarray]:
    """Learning rates from step `first` on: {value name: (steps,), or (1,)}. Raises ArgumentError past a schedule."""
    if optimizer is None or not steps:
        return {}
    per_step = [optimizer.rates(step) for step in range(first, first + (steps if optimizer.has_schedule else 1))]
    scheduled = [s for s in plan.states if not s.parameter and s.kind in per_step[0]]
    return {s.name: np.array([rates[s.kind] for rates in per_step], plan.value(s.name).dtype) for s in scheduled}


class Run:
    """Training in the background. `result()` waits for the losses; `pause()`, `resume()`, `stop()` act between steps.

    losses     losses so far (grows while it runs)
    printed    what `construct` printed on the ranks, by arrival; `result()` prints it: a helper thread has no cell
    started_s  perf_counter at the start
    """

    def __init__(
        self,
        session: Any,
        batches: list[Batch],
        steps: int,
        record: int,
        phases: Sequence[str] | None,
        on_losses: Callable | None,
    ) -> None:
        self.session, self.steps = session, steps
        self.losses: list[float] = []
        self.printed: list[str] = []
        self.started_s = time.perf_counter()
        self._on_losses = on_losses
        self._batches, self._record, self._phases = batches, record, phases
        self._first = session.step
        self._taken = False
        self._asked = ""  # "pause" or "stop": also of the next part, if the session switches to another plan
        self._turn, self._is_halted = threading.RLock(), False  # held while it does
        self._asking = threading.Lock()  # a part that begins is asked what the one before was
        self._kept: Any = None  # the part whose end is known
        self._lost: BaseException | None = None  # why no part could follow
        self._begin()

    def _begin(self) -> None:
        """Begin the steps that are left, with the session's plan."""
        session, before = self.session, len(self.losses)
        first, steps = self._first + before, self.steps - before
        plan, pool = session.plan, session._pool
        turn = range(first, first + max(1, min(steps, len(self._batches))))
        inputs = [full_inputs(plan, self._batches[step % len(self._batches)]) for step in turn]
        rates = rates_of_steps(plan, session._optimizer, first, steps)
        order = session._key, inputs, first, steps, self._record, self._phases, rates, session.checks_finite
        self._before = before
        with self._asking:
            paused = self._asked == "pause"
            self._job = pool.submit(rank_steps.train_rank, *order, on_message=self._receive, paused=paused)
            if self._asked == "stop":
                self._job.stop()

    @contextmanager
    def halted(self) -> Iterator[None]:
        """Between two steps, until the block is left; then it takes the steps that are left, if any."""
        with self._turn:
            job, self._is_halted = self._job, True
            try:
                job.stop()
                self._keep(job.result())
                is_over = len(self.losses) == self.steps or self._asked == "stop"
                try:
                    yield
                except BaseException as error:  # with the plan that it had, if the workers still have their values
                    if not is_over:
                        self._go_on(error)
                    raise
                if not is_over:
                    self._go_on(None)
            finally:
                self._is_halted = False

    def _go_on(self, error: BaseException | None) -> None:
        try:
            if error is not None and self.session.executor != "simulator" and not self.session._pool.alive:
                raise error
            self._begin()
        except BaseException as lost:
            self._lost = lost
            raise

    def _keep(self, results: list) -> None:
        """What the ranks tell at the end of a part: losses, and events."""
        self._kept = self._job
        results = [r or ([], []) for r in results]  # None: stopped before its turn came, no step was taken
        self.losses[self._before :] = results[0][0]
        self.session.step = self._first + len(self.losses)
        if self._record:
            self.session.events = [e for _, events in results for e in from_dicts(events)]

    def _receive(self, message_: tuple[int, Any]) -> None:
        _, losses = message_
        if isinstance(losses, str):
            self.printed.append(losses)
            return
        first = self._first + len(self.losses)
        self.losses.extend(losses)
        if self._on_losses is not None:
            self._on_losses(first, losses)

    @property
    def state(self) -> str:
        return "running" if self._is_halted else "failed" if self._lost is not None else self._job.state

    def done(self) -> bool:
        return not self._is_halted and self._job.done()

    def wait_for_change(self, timeout: float | None = None) -> bool:
        """Block until losses come or the run ends; False when `timeout` seconds pass first."""
        if self._is_halted:
            ended = self._turn.acquire(timeout=-1 if timeout is None else max(timeout, 0))
            if ended:
                self._turn.release()
            return ended
        return self._job.wait_for_change(timeout)

    def pause(self) -> None:
        self._ask("pause")

    def resume(self) -> None:
        self._ask("")

    def stop(self) -> None:
        """Ask all ranks to end after the same step; `result()` then returns the losses up to it."""
        self._ask("stop")

    def _ask(self, what: str) -> None:
        with self._asking:
            if self._asked != "stop":
                self._asked = what
            getattr(self._job, what or "resume")()

    def interrupt(self) -> None:
        """End the run within a second, after the same step; a longer step is broken off, and the session with it."""
        self.stop()
        end = time.monotonic() + STOP_S
        while not self.done() and time.monotonic() < end:
            self._job.wait_for_change(end - time.monotonic())
        if self.done():
            self.result()
            return
        self.session._pool.interrupt(self._job)
        self.session._broken = "was interrupted in the middle of a step"

    def look_after_fault(self) -> None:
        """If this run has failed: let the session ask, once, what the ranks have left."""
        if self.state == "failed" and not self._taken:
            self._taken = True
            self.session._after_fault()

    def result(self, timeout: float | None = None) -> list[float]:
        """Wait for the end: the losses of the steps taken. Raises what ended the run (RankDied, ...)."""
        job, deadline = None, None if timeout is None else time.monotonic() + timeout
        try:
            while job is not self._job:  # another one has gone on with another plan
                job = self._job
                results = job.result(None if deadline is None else deadline - time.monotonic())
                with self._turn:
                    pass
            if self._lost is not None:
                raise self._lost
        except BaseException:
            self.look_after_fault()
            raise
        if not self._taken:
            self._taken = True
            for text in self.printed:
                print(text)
            if self._kept is not job:
                self._keep(results)
        return list(self.losses)
