"""Exact redistribution on real ranks: values, what really travels, and the memory it takes; over MPI without copies."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from parallel_lab import Session, compile, nn
from parallel_lab.base.errors import CollectiveMismatch
from parallel_lab.processes.mpi.pool import MpiPool
from parallel_lab.processes.shm import WorkerPool
from tests.processes.pools import BACKENDS, NEEDS_MPI, lent
from tests.recorded.nets import Quick

SEED = 20261128
SHM = pytest.param(WorkerPool, id="shm")
MPI = pytest.param(MpiPool, id="mpi", marks=NEEDS_MPI)
RARELY_MPI = pytest.param(MpiPool, id="mpi", marks=[NEEDS_MPI, pytest.mark.exhaustive])
MPI_TRAINING = pytest.param("mpi", MpiPool, marks=[NEEDS_MPI, pytest.mark.exhaustive])


def moved_pairs(comm, first: int, count: int) -> list[tuple[int, int, bool]]:
    """Per drawn pair of layouts, on this rank: (elements that it took from others, those that it lacked, right?)."""
    import numpy as np

    from parallel_lab.lab.redistribution.model import run_steps
    from parallel_lab.layout.redistribution import plan_redistribution
    from parallel_lab.processes.mpi import movement
    from parallel_lab.processes.shm import collectives
    from tests.layout.drawn_layouts import drawn_pair

    def held(layout, shape, rank):
        """The numbers of the elements that a rank holds."""
        return np.arange(np.prod(shape)).reshape(shape)[layout.slice_index(shape, rank)]

    took, plain, buffer = [], collectives.copy_in, movement.Types.buffer

    def copy_in(piece, start, stop, flat):
        took.append(stop - start)
        plain(piece, start, stop, flat)

    def posted(types, array, box=None):
        """What MPI is to fill: the reply, not this rank's value."""
        if box is not None and array is not given[0]:
            took.append(int(np.prod([s.stop - s.start for s in box])))
        return buffer(types, array, box)

    found, given = [], [None]
    collectives.copy_in, movement.Types.buffer = copy_in, posted
    try:
        for seed in range(first, first + count):
            rng = np.random.default_rng([SEED, seed])
            src, dst, shape = drawn_pair(rng, comm.world_size)
            full = rng.standard_normal(shape)
            given[0] = np.ascontiguousarray(full[src.slice_index(shape, comm.rank)])
            took.clear()
            value = run_steps(comm, plan_redistribution(src, dst, shape, exact=True), given[0])
            lacked = np.setdiff1d(held(dst, shape, comm.rank), held(src, shape, comm.rank))
            right = np.array_equal(value, full[dst.slice_index(shape, comm.rank)])
            found.append((sum(took), len(lacked), right))
    finally:
        collectives.copy_in, movement.Types.buffer = plain, buffer
    return found


def compare(pool, first: int, count: int) -> None:
    print(f"seeds [{SEED}, {first} ... {first + count - 1}], {pool.world_size} ranks")
    done = pool.run(moved_pairs, first, count)
    for rank, found in enumerate(done):
        for seed, (took, lacked, right) in enumerate(found, first):
            assert (took, right) == (lacked, True), (seed, rank)
    assert sum(took for found in done for took, _, _ in found)


@pytest.fixture(scope="module", params=BACKENDS)
def pool(request):
    with lent(request.param, 3) as pool:
        yield pool


@pytest.mark.exhaustive
def test_ranks_take_from_others_what_they_lack_and_no_more(pool):
    compare(pool, 0, 60)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.*wait:RuntimeWarning")  # 16 ranks on a machine of 2 cores
@pytest.mark.parametrize(("ranks", "count"), [(2, 1400), (3, 1200), (4, 60), (6, 1000), (8, 900), (12, 350), (16, 150)])
@pytest.mark.parametrize("make", [SHM, MPI])
def test_5000_pairs_on_up_to_16_ranks(make, ranks, count):
    with make(ranks) as pool:
        compare(pool, 10_000 * ranks, count)


@pytest.mark.quick(1)
@pytest.mark.parametrize("make", [SHM, RARELY_MPI])
@pytest.mark.parametrize("direction", ["forward", "back"])
def test_memory_besides_the_value_is_the_reply_and_one_piece(make, direction):
    """Rows to columns on 4 ranks, 8 MB each, larger than the buffers; back: sums, whose pieces wait for their turn."""

    def program(comm, kind, route, shape):
        import tracemalloc

        import numpy as np

        from parallel_lab.run.communicator import Request

        value = np.full(shape, float(comm.rank))
        request = Request(kind, (0, 1, 2, 3), value, route=route)
        comm.answer(request)  # what is made once is not counted
        tracemalloc.start()
        try:
            comm.answer(request)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    from parallel_lab.layout.route import Route
    from parallel_lab.layout.tensor_layout import TensorLayout

    route = Route(TensorLayout((4,), (0, -1)), TensorLayout((4,), (-1, 0)), (2048, 2048)).attr
    kind, shape = ("exchange", (512, 2048)) if direction == "forward" else ("exchange_reduce", (2048, 512))
    reply_bytes, piece_bytes = 8 * 512 * 2048, 8 * 512 * 512
    with make(4) as pool:
        peaks = pool.run(program, kind, route, shape)
    print(f"{kind}: at most {max(peaks)} bytes on top of a value of {reply_bytes}")
    waiting = 3 * piece_bytes if direction == "back" else piece_bytes
    assert reply_bytes <= max(peaks) <= reply_bytes + waiting + 200_000  # and what numpy buffers


@pytest.mark.exhaustive
@pytest.mark.parametrize(("executor", "make"), [("processes", WorkerPool), MPI_TRAINING])
def test_training_gives_the_bits_of_the_simulator(executor, make):
    rng = np.random.default_rng(SEED)
    strategies = ((4, 1), (1, 2)), ((2, 4),), ((2, 1), (1, 1))  # exchanges among 8 ranks, with copies
    data = [(rng.normal(size=(16, 32)), rng.normal(size=(16, 16))) for _ in range(2)]
    found = {}
    for kind, pool_of in (("simulator", None), (executor, make)):
        net = Quick(32, 16, 16, *strategies)  # of one seed: the parameters are the same each time
        optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
        options = {"loss": nn.MSELoss(), "optimizer": optimizer, "device_num": 8, "dataset_strategy": "full_batch"}
        plan = compile(net, *data[0], redistribution="exact", **options)
        assert {"exchange", "exchange_reduce"} <= {i.kind for _, i in plan.instructions()}
        pool = contextlib.nullcontext() if pool_of is None else pool_of(8)
        with pool as workers, Session(plan, net, optimizer, executor=kind, pool=workers) as session:
            found[kind] = session.train(data, steps=4), session.parameters()
    assert found[executor][0] == found["simulator"][0] and len(set(found["simulator"][0])) == 4
    for name, want in found["simulator"][1].items():
        np.testing.assert_array_equal(found[executor][1][name], want, err_msg=f"{executor} {name}")


@pytest.mark.parametrize("make", [SHM, RARELY_MPI])
def test_ranks_that_say_different_routes_get_an_error(make):
    def program(comm):
        from parallel_lab.layout.route import Route
        from parallel_lab.layout.tensor_layout import TensorLayout

        layouts = [TensorLayout((2,), (0, -1)), TensorLayout((2,), (-1, 0)), TensorLayout((2,), (-1, -1))]
        comm.exchange(np.ones((2, 4)), Route(layouts[0], layouts[1 + comm.rank], (4, 4)).attr, tag="both")

    with make(2) as pool, pytest.raises(CollectiveMismatch, match="route"):
        pool.run(program)
