"""The fixed random batch of the automatic-parallel quickstart (seed 003, `get_dataset`).

>>> x, y = seed_batch()
>>> x.shape, y.shape, round(float(x[0, 0]), 6)
((16, 32), (16, 16), 0.417022)
"""

from __future__ import annotations

import numpy as np

__all__ = ["seed_batch"]


def seed_batch(batch_size: int = 16, in_dim: int = 32, out_dim: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Input (batch_size, in_dim) and label (batch_size, out_dim), float32, uniform in [0, 1): the same numbers on every call and rank.

    The quickstart calls `np.random.seed(1)` and draws input, then label. The legacy generator is used here because its stream is part of that text;
    a private one with the same seed gives the same numbers and leaves numpy's global state alone.
    """
    draw = np.random.RandomState(1)
    return draw.rand(batch_size, in_dim).astype(np.float32), draw.rand(batch_size, out_dim).astype(np.float32)
