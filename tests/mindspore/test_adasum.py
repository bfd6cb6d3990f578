"""AdaSum on ranks, against the formula of Maleki et al. 2020 in numpy, on gradients that differ by rank."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentTypeError, ParallelLabError, WorldError
from parallel_lab.mindspore import Tensor, nn
from parallel_lab.processes.shm import WorkerPool
from tests.ops.ranks import on_ranks

pytestmark = pytest.mark.timeout(90)

RATE = 0.5
SHAPES = ((3, 4), (3,))  # of a Dense's weight and bias


def gradients(rank):
    rng = np.random.default_rng(40 + rank)
    return [rng.normal(size=shape).astype(np.float32) * (rank + 1) for shape in SHAPES]


def adasum(parts):
    """By hand: neighbours first, then what they have made."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    a, b = (adasum(part).astype(np.float64) for part in (parts[:half], parts[half:]))
    both = (a * b).sum()
    return a - both / (2 * (a * a).sum()) * a + b - both / (2 * (b * b).sum()) * b


def step(world, name, equal):
    net = nn.Dense(4, 3)
    for p in net.trainable_params():
        p.set_data(Tensor(np.ones(p.shape, np.float32)))
    cell = getattr(nn, name)(nn.SGD(net.trainable_params(), RATE))
    cell(tuple(Tensor(g) for g in gradients(0 if equal else world.rank)))
    return [p.asnumpy().copy() for p in net.trainable_params()]


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.exhaustive), 8])
def pool(request):
    with WorkerPool(request.param) as pool:
        yield pool


@pytest.mark.parametrize("name", ["AdaSumByGradWrapCell", "AdaSumByDeltaWeightWrapCell"])
def test_a_step_of_all_ranks_is_that_of_the_formula(pool, name):
    """Plain descent changes by -rate x gradient, and AdaSum of multiples is the multiple of AdaSum: both agree."""
    found = on_ranks(pool, step, name, False)
    for at in range(len(SHAPES)):
        expected = 1 - RATE * adasum([gradients(rank)[at] for rank in range(pool.world_size)])
        assert all(np.array_equal(one[at], found[0][at]) for one in found)
        np.testing.assert_allclose(found[0][at], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["AdaSumByGradWrapCell", "AdaSumByDeltaWeightWrapCell"])
def test_equal_gradients_count_once(pool, name):
    for one in on_ranks(pool, step, name, True):
        for value, gradient in zip(one, gradients(0), strict=True):
            np.testing.assert_allclose(value, 1 - RATE * gradient, rtol=1e-5, atol=1e-6)


def zeros_and_others(world):
    """A rank whose gradient is zero, and another; a Tensor alone is refused."""
    cell = nn.AdaSumByGradWrapCell(nn.SGD(nn.Dense(2, 1, has_bias=False).trainable_params(), 1.0))
    with pytest.raises(ArgumentTypeError, match="one per parameter"):
        cell(Tensor(np.ones(2, np.float32)))
    return cell._added([Tensor(np.array([[3.0, 4.0]] if world.rank else [[0.0, 0.0]], np.float32))])[0].asnumpy()


def test_a_rank_without_a_gradient_changes_nothing():
    with WorkerPool(2) as pool:
        assert all(np.array_equal(one, [[3.0, 4.0]]) for one in on_ranks(pool, zeros_and_others))


def test_other_cells_are_refused_and_so_is_a_process_before_init():
    with pytest.raises(ArgumentTypeError, match="An optimizer"):
        nn.AdaSumByGradWrapCell(nn.Dense(2, 2))
    with pytest.raises(WorldError, match="Call init"):
        nn.AdaSumByGradWrapCell(nn.SGD(nn.Dense(2, 2).trainable_params(), 1.0))


def made(world):
    nn.AdaSumByGradWrapCell(nn.SGD(nn.Dense(2, 2).trainable_params(), 1.0))


def test_three_ranks_have_no_pairs():
    with WorkerPool(3) as pool, pytest.raises(ParallelLabError, match="power of two"):
        on_ranks(pool, made)
