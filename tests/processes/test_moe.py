"""Rows of experts on real ranks: all_to_all_v by hand, and a layer that trains, bit for bit as simulated."""

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch
from parallel_lab.ops.collectives.block_exchange import rows_route
from parallel_lab.processes.mpi.pool import MpiPool
from parallel_lab.run.communicator import Request
from parallel_lab.run.simulator import simulate
from tests.nn.test_moe_ranks import SEED, trained
from tests.processes.pools import RARELY_OVER_MPI, lent

RANKS, HIDDEN = 4, 3


@pytest.fixture(scope="module", params=RARELY_OVER_MPI)
def pool(request):
    with lent(request.param, RANKS) as pool:
        yield pool


def drawn_splits(rng):
    """Counts of rows, some ranks without any."""
    splits = rng.integers(0, 4, (RANKS, RANKS))
    splits[:, rng.integers(RANKS)] = 0
    splits[rng.integers(RANKS)] = 0
    return splits


@pytest.mark.parametrize("number", range(3))
def test_rows_come_in_the_order_of_the_members_and_only_those_are_counted(pool, number):
    rng = np.random.default_rng([SEED, number])
    splits = drawn_splits(rng)
    route = rows_route(int(splits.sum(1).max() + 1), int(splits.sum(0).max() + 2), splits)
    values = rng.normal(size=(RANKS, route[0], HIDDEN)).astype(np.float32)

    def program(comm, values, route):
        comm.records.clear()
        comm.recording = True
        reply = comm.all_to_all_v(values[comm.rank], route)
        comm.recording = False
        return reply, comm.records[-1].size_bytes

    def simulated(rank):
        return (yield Request("all_to_all_v", tuple(range(RANKS)), values[rank], route=route))

    ends, on_ranks = np.cumsum(splits, axis=1), pool.run(program, values, route)
    for me, ((reply, size_bytes), same) in enumerate(
        zip(on_ranks, simulate([simulated(r) for r in range(RANKS)]), strict=True)
    ):
        came = [values[i, ends[i, me] - splits[i, me] : ends[i, me]] for i in range(RANKS)]
        np.testing.assert_array_equal(reply[: splits[:, me].sum()], np.concatenate(came))
        assert not reply[splits[:, me].sum() :].any() and reply.shape == (route[1], HIDDEN)
        np.testing.assert_array_equal(reply, same)
        assert size_bytes == (splits[me].sum() - splits[me, me]) * HIDDEN * 4


def test_ranks_that_count_other_rows_get_an_error(pool):
    def program(comm, routes):
        comm.all_to_all_v(np.ones((4, 2)), routes[comm.rank == 3], tag="both")

    ones = np.ones((RANKS, RANKS), int)
    with pytest.raises(CollectiveMismatch, match="all_to_all_v"):
        pool.run(program, [rows_route(4, 4, ones), rows_route(4, 4, ones - np.eye(RANKS, dtype=int))])


@pytest.mark.parametrize(
    "moe",
    [
        {},
        pytest.param({"capacity_factor": 1.0, "drop_order": "weight"}, marks=pytest.mark.exhaustive),
        pytest.param({"router": "sigmoid_norm", "bias_rate": 0.1}, marks=pytest.mark.exhaustive),
    ],
)
def test_training_on_processes_gives_the_bits_of_the_simulator(pool, moe):
    losses, parameters = trained(4, 2, steps=3, **moe)
    executor = "mpi" if isinstance(pool, MpiPool) else "processes"
    on_ranks, found = trained(4, 2, steps=3, executor=executor, pool=pool, **moe)
    assert on_ranks == losses and len(set(losses)) == 3
    for name, value in parameters.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
