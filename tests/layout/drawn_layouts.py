"""Layouts drawn at random: any device matrix, any axis on any dim, in any order."""

from __future__ import annotations

import math

import numpy as np

from parallel_lab.layout.tensor_layout import TensorLayout


def random_factors(rng: np.random.Generator, n: int) -> tuple[int, ...]:
    factors = []
    while n > 1:
        factor = int(rng.choice([f for f in range(2, n + 1) if n % f == 0]))
        factors.append(factor)
        n //= factor
    for _ in range(rng.integers(0, 2)):
        factors.insert(int(rng.integers(0, len(factors) + 1)), 1)
    return tuple(factors) or (1,)


def random_layout(
    rng: np.random.Generator, ranks: int, ndim: int, *, partial: bool = False, reduce: str = "sum"
) -> TensorLayout:
    """A device matrix of `ranks`, every axis on a random dim (several on one: in random order), on none, or partial."""
    device_matrix = random_factors(rng, ranks)
    roles = rng.integers(-1, ndim, len(device_matrix))
    pending = [a for a in range(len(roles)) if partial and rng.random() < 0.5]
    dims = [[a for a in range(len(roles)) if roles[a] == dim and a not in pending] for dim in range(ndim)]
    for axes in dims:
        rng.shuffle(axes)
    return TensorLayout(device_matrix, tuple(map(tuple, dims)), tuple(pending), reduce)


def shape_for(rng: np.random.Generator, *layouts: TensorLayout, most: int = 3) -> tuple[int, ...]:
    """A shape that all layouts divide; dims differ in size."""
    return tuple(
        math.lcm(*cuts) * int(rng.integers(1, most + 1))
        for cuts in zip(*(layout.splits for layout in layouts), strict=True)
    )


def drawn_pair(
    rng: np.random.Generator, ranks: int, most: int = 3
) -> tuple[TensorLayout, TensorLayout, tuple[int, ...]]:
    """Two layouts of a tensor of one to three dims, nothing pending, and a shape of `most` times the cuts at most."""
    ndim = int(rng.integers(1, 4))
    src, dst = random_layout(rng, ranks, ndim), random_layout(rng, ranks, ndim)
    return src, dst, shape_for(rng, src, dst, most=most)
