"""Where the choices of a random program come from: a seeded numpy generator, or Hypothesis, which can make a failing
program smaller.

    choices = Seeded(7)                  # the same seed always draws the same program
    choices = Drawn(data)                # `data` is what `st.data()` gives a test

Hypothesis decides what the program is: operators, shapes, strategies. Its numbers come from one seed that it draws,
because smaller numbers make no simpler program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from hypothesis import strategies as st


class Choices(Protocol):
    """What a drawer asks for. Arrays are float64 or int32."""

    def below(self, n: int) -> int: ...  # an int from 0 to n - 1
    def chance(self, probability: float) -> bool: ...
    def order(self, n: int) -> tuple[int, ...]: ...  # 0 .. n - 1 in any order
    def floats(self, low: float, high: float, shape: tuple[int, ...]) -> np.ndarray: ...
    def ints(self, bound: int, shape: Any) -> np.ndarray: ...  # from 0 to bound - 1


class Seeded:
    """Choices of a numpy generator."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def below(self, n: int) -> int:
        return int(self.rng.integers(n))

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def order(self, n: int) -> tuple[int, ...]:
        return tuple(int(i) for i in self.rng.permutation(n))

    def floats(self, low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
        return np.asarray(self.rng.uniform(low, high, shape))

    def ints(self, bound: int, shape: Any) -> np.ndarray:
        return np.asarray(self.rng.integers(0, bound, shape)).astype(np.int32)


class Drawn(Seeded):
    """Choices of Hypothesis; 0, False and the order 0, 1, 2, ... are the simplest ones."""

    def __init__(self, data: Any) -> None:
        self.data = data
        super().__init__(data.draw(st.integers(0, 2**16 - 1), label="seed of the numbers"))

    def below(self, n: int) -> int:
        return self.data.draw(st.integers(0, n - 1)) if n > 1 else 0

    def chance(self, probability: float) -> bool:
        return self.data.draw(st.integers(0, 99)) >= 100 - round(100 * probability)

    def order(self, n: int) -> tuple[int, ...]:
        left, found = list(range(n)), []
        while left:
            found.append(left.pop(self.below(len(left))))
        return tuple(found)


def pick(choices: Choices, options: Sequence[Any]) -> Any:
    """One of several options."""
    return options[choices.below(len(options))]
