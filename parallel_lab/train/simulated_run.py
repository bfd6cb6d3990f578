"""A `Run` of a simulated session: its steps in a thread of this process, with the methods of one on workers."""

from __future__ import annotations

from typing import Any

from ..base.driver import DRIVER
from ..base.events import to_dicts
from ..processes.jobs import Job
from .background_run import Run


class SimulatedRun(Run):
    """As `Run`; its ranks are simulated, so an interrupt waits for the end of the present step."""

    def _begin(self) -> None:
        self._before = len(self.losses)
        with self._asking:
            job = self._job = _Steps(self, self._first + self._before)
            job._control = self._asked or "run"
            job.work = DRIVER.start(job.take, "simulated ranks")

    def interrupt(self) -> None:
        self.stop()
        self.result()


class _Steps(Job):
    """The steps that are left, from step `first` on."""

    def __init__(self, run: SimulatedRun, first: int) -> None:
        super().__init__(self, [], run._receive)
        self._run, self._first = run, first
        self._state = "running"
        self.work: Any = None

    def _control_changed(self, job: Job) -> None:
        """The thread looks at it between two steps."""

    def _in_callback_thread(self) -> bool:
        return self.work is not None and self.work.is_here()

    def _tell(self, losses: list[float]) -> None:
        try:
            self._on_message((0, losses))
        except Exception as error:  # a faulty display must not stop the training
            self.callback_errors.append(error)
            if len(self.callback_errors) == 1:
                self.warnings.append(f"on_losses raised {error!r}; see job.callback_errors")
        self._notify()

    def take(self) -> None:
        """Take the steps."""
        run, losses, events = self._run, [], []
        session, last = run.session, run._first + run.steps
        try:
            for step in range(self._first, last):
                with self._changed:
                    while self._control == "pause":
                        DRIVER.wait(self._changed)
                if self._control == "stop":
                    break
                batch: Any = [run._batches[step % len(run._batches)]]
                recorded = bool(run._record) and step >= last - run._record
                losses += session._simulate(batch, 1, int(recorded), run._phases, None)
                events += session.events if recorded else []
                self._tell(losses[-1:])
        except BaseException as error:
            self._finish(None, error)
        else:
            self._finish([(losses, to_dicts(events))], None)
