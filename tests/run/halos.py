"""Windows for tests, drawn and judged without the code under test."""

from __future__ import annotations

import numpy as np

WindowAttr = tuple[int, int, int, int]  # (step, origin, length, part)


def filled_by_neighbours(window: WindowAttr, members: int) -> bool:
    """Whether all elements that window i reads inside the tensor lie in slices i - 1, i and i + 1; one by one."""
    step, origin, length, part = window
    read = [(i, e) for i in range(members) for e in range(step * i + origin, step * i + origin + length)]
    return all(abs(e // part - i) <= 1 for i, e in read if 0 <= e < part * members)


def any_window(rng: np.random.Generator) -> WindowAttr:
    part = int(rng.integers(1, 6))
    step, origin, length = (
        int(rng.integers(*ends)) for ends in ((1, part + 2), (-part - 1, part + 1), (1, 3 * part + 2))
    )
    return step, origin, length, part


def draw_windows(rng: np.random.Generator, members: int, count: int) -> list[WindowAttr]:
    """`count` different windows that neighbours can fill."""
    found: dict[WindowAttr, None] = {}
    while len(found) < count:
        window = any_window(rng)
        if filled_by_neighbours(window, members):
            found[window] = None
    return list(found)


def take(full: np.ndarray, dim: int, start: int, stop: int) -> np.ndarray:
    """The elements [start, stop) along `dim`, zeros outside the tensor: one element at a time."""
    nothing = np.zeros_like(np.take(full, [0], axis=dim))
    return np.concatenate(
        [np.take(full, [e], axis=dim) if 0 <= e < full.shape[dim] else nothing for e in range(start, stop)], axis=dim
    )
