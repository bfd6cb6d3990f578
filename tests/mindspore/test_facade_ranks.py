"""The facade on ranks: what receives gives Tensors. Scripts under the launcher are in `test_seeds_*.py`."""

from __future__ import annotations

import numpy as np
import pytest

import parallel_lab.mindspore as ms
from parallel_lab.processes.shm import WorkerPool
from tests.ops.ranks import on_ranks

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(2) as pool:
        yield pool


def exchange(world):
    other = 1 - world.rank
    (got,) = ms.ops.NeighborExchange([other], [other], ((2,),), ((2,),), ms.float32)((ms.Tensor([world.rank, 1.0]),))
    if world.rank == 0:
        ms.ops.Send(0, 1)(ms.Tensor([3.0, 4.0]))
        return type(got) is ms.Tensor, got.asnumpy()
    received = ms.ops.Receive(0, 0, [2], ms.float32)()
    return type(got) is type(received) is ms.Tensor, got.asnumpy(), received.asnumpy()


def test_what_arrives_is_a_tensor(pool):
    first, second = on_ranks(pool, exchange)
    assert first[0] and second[0]
    np.testing.assert_array_equal(first[1], [1.0, 1.0])
    np.testing.assert_array_equal(second[1], [0.0, 1.0])
    np.testing.assert_array_equal(second[2], [3.0, 4.0])
