"""The arrays of one micro-batch among those of its rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..graph.plan import Plan


class MicroBatch:
    """A rank's arrays as one micro-batch sees them: its own, kept as `env[name, number]`, before those of the step."""

    def __init__(self, plan: Plan, env: dict, number: int, step: int) -> None:
        self.env, self.number = env, number
        # of random masks every micro-batch has its own, and it goes on with the parameters it was given
        counts = {"step": step * plan.micro_batches + number, "micro_batch": number}
        counted = (i for i in plan.graph.inputs if i.role in counts)
        self.update((i.name, np.asarray(counts[i.role], i.dtype)) for i in counted)
        self.update((target, env[target]) for target, _ in plan.forward_assignments if target in env)

    def __getitem__(self, name: str) -> np.ndarray:
        own = self.env.get((name, self.number))
        return self.env[name] if own is None else own

    def __setitem__(self, name: str, array: np.ndarray) -> None:
        self.env[name, self.number] = array

    def __contains__(self, name: str) -> bool:
        return (name, self.number) in self.env

    def update(self, pairs: Iterable[tuple[str, np.ndarray]]) -> None:
        self.env.update(((name, self.number), array) for name, array in pairs)

    def pop(self, name: str, default: Any = None) -> Any:
        return self.env.pop((name, self.number), default)

    def end(self) -> None:
        """Drop what it has made."""
        for key in [key for key in self.env if type(key) is tuple and key[1] == self.number]:
            del self.env[key]
