"""A Strategy Lab that trains only on `step()`: choices, layouts, texts are real, losses made up; no process starts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.lab.strategy.training import Training

STEPS = 60
TENSORS = ("x", "w", "matmul", "relu", "w2", "matmul2")  # of the quickstart network, whatever its strategies


class FakeLab(StrategyLab):
    """The quickstart on 1, 2, 4, 8 ranks. single, parallel: a run's losses, one rounding apart."""

    def __init__(self, devices: int = 8) -> None:
        super().__init__(devices=devices, steps=STEPS)
        self.single = (0.33 * 0.97 ** np.arange(STEPS)).astype(np.float32)
        self.parallel = np.nextafter(self.single, np.float32(1))

    def run(self) -> None:
        idle = SimpleNamespace(pause=lambda: None, resume=lambda: None, stop=lambda: None)
        self._run = Training("running", steps=STEPS, session_run=idle)
        self._changed("run")

    def stop(self) -> None:
        self._run.state = "done"
        self._changed("run")

    def step(self, count: int = 1) -> None:
        """Take so many steps of the run; the last one ends it."""
        done = min(STEPS, len(self._run.parallel) + count)
        self._run.parallel[:], self._run.single[:] = self.parallel[:done].tolist(), self.single[:done].tolist()
        if done == STEPS:
            self._run.state = "done"
            self._changed("run")
        self._changed("loss")
