"""moe_distribute_dispatch and moe_distribute_combine on four real ranks."""

import numpy as np
import pytest

from parallel_lab.base.errors import NotBuiltYet, ShapeError
from parallel_lab.mindspore import Tensor, ops
from parallel_lab.processes.shm import WorkerPool
from tests.ops.ranks import on_ranks

pytestmark = pytest.mark.timeout(90)

N, T, H, E, K = 4, 5, 3, 8, 2
rng = np.random.default_rng(5)
X = rng.integers(0, 9, (N, T, H)).astype(np.float32)
# nobody chooses experts 6 and 7: the last rank receives nothing
IDS = np.stack([[rng.permutation(6)[:K] for _ in range(T)] for _ in range(N)]).astype(np.int32)
WEIGHTS = rng.integers(1, 5, (N, T, K)).astype(np.float32)


def there_and_back(world):
    """Experts multiply by their number and one."""
    rank, place = world.rank, ("", N, world.rank, E)
    x, ids, weights = (Tensor(each[rank]) for each in (X, IDS, WEIGHTS))
    found = ops.moe_distribute_dispatch(x, ids, *place, expert_scales=weights)
    rows, _, number, nums, counts, _, scales = (np.asarray(each) for each in found)
    experts = np.repeat(np.arange(E // N) + rank * E // N, nums)
    made = rows.copy()
    made[: len(experts)] *= experts[:, None] + 1
    y = ops.moe_distribute_combine(Tensor(made), ids, Tensor(number), Tensor(counts), weights, *place)
    sums = ops.moe_distribute_dispatch(x, ids, *place, expert_token_nums_type=0)[3]
    return rows, nums, counts, scales, np.asarray(y), np.asarray(sums)


def wrong(world):
    x, ids = Tensor(X[world.rank]), Tensor(IDS[world.rank])
    for error, size, rank, experts, more in (
        (NotBuiltYet, N, world.rank, E, {"quant_mode": 2}),
        (NotBuiltYet, N, world.rank, E, {"shared_expert_rank_num": 1}),
        (ShapeError, 2, world.rank % 2, E, {}),
        (ShapeError, N, (world.rank + 1) % N, E, {}),
        (ShapeError, N, world.rank, 6, {}),
        (ShapeError, N, world.rank, 4, {}),  # expert 5 is chosen
    ):
        with pytest.raises(error):
            ops.moe_distribute_dispatch(x, ids, "", size, rank, experts, **more)


def test_rows_come_by_expert_and_rank_and_go_back_to_their_tokens():
    with WorkerPool(N) as pool:
        results = on_ranks(pool, there_and_back)
        on_ranks(pool, wrong)
    for rank, (rows, nums, counts, scales, y, sums) in enumerate(results):
        own = range(rank * E // N, (rank + 1) * E // N)
        picks = [[np.argwhere(IDS[r] == e) for r in range(N)] for e in own]
        flat = [(r, t, j) for by_rank in picks for r, found in enumerate(by_rank) for t, j in found]
        want = np.array([X[r, t] for r, t, _ in flat]).reshape(-1, H)
        assert rows.shape == (N * T * K, H)  # the most that can come: K choices of all tokens
        np.testing.assert_array_equal(rows[: len(want)], want)
        assert not rows[len(want) :].any()
        np.testing.assert_array_equal(scales[: len(want)], [WEIGHTS[each] for each in flat])
        sizes = [len(found) for by_rank in picks for found in by_rank]
        assert nums.tolist() == [sum(map(len, by_rank)) for by_rank in picks]
        assert counts.tolist() == np.cumsum(sizes).tolist() and sums.tolist() == np.cumsum(nums).tolist()
        np.testing.assert_array_equal(y, ((IDS[rank] + 1) * WEIGHTS[rank]).sum(1, keepdims=True) * X[rank])
    assert results[3][1].sum() == 0
