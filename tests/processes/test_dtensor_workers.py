"""DTensors of a notebook on worker processes: what the simulator gives, one call per line; what goes wrong is named."""

import gc
import os
import signal
import textwrap
import threading
import time

import numpy as np
import pytest

import parallel_lab as pl
import parallel_lab.hyper_parallel as hp
from parallel_lab import nn, ops
from parallel_lab.base.errors import LayoutError, NotBuiltYet, RankDied, RankRaised
from parallel_lab.base.hooks import current_world
from parallel_lab.layout.mesh_layout import MeshLayout
from parallel_lab.nn.tensor.dtensor_parameter import update
from parallel_lab.processes import dtensor_ranks
from parallel_lab.processes.shm import WorkerPool
from tests.nn.test_dtensor import PLACES, STEPS, program
from tests.pools import shared_pool
from tests.processes.test_dtensor_ranks import PROGRAM
from tests.processes.test_mpi import NEEDS_MPI
from tests.recorded.ask_rosetta import drawn

pytestmark = pytest.mark.timeout(150)
EXECUTORS = ("simulator", "processes")
X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
PROMISE_S = 5.0  # the promise is 1 s; other work on the machine


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.setattr(dtensor_ranks, "get_pool", shared_pool)
    yield shared_pool(4)
    gc.collect()


@pytest.fixture
def mesh(pool):
    return pl.DeviceMesh((2, 2), ("dp", "tp"), executor="processes")


def kept(comm):
    return len(comm.state["dtensors"].tensors) if "dtensors" in comm.state else 0


def ran(executor):
    here: dict = {}
    exec(textwrap.dedent(PROGRAM).replace('"tp"))', f'"tp"), executor={executor!r})'), here)
    return here


def check_equal_bits(executor):
    one, other = ran("simulator"), ran(executor)
    assert list(map(str, one["sent"])) == list(map(str, other["sent"])) and len(one["sent"]) > 5
    for name, value in one["made"].items():
        away = other["made"][name]
        assert (away.placements, away.shape, away.dtype) == (value.placements, value.shape, value.dtype)
        for rank in range(4):
            np.testing.assert_array_equal(away.local(rank), value.local(rank), err_msg=f"{name} on rank {rank}")
        np.testing.assert_array_equal(away.asnumpy(), value.asnumpy())


def test_workers_hold_the_bits_of_the_simulator_and_send_its_messages(pool):
    check_equal_bits("processes")


def test_large_products_have_the_same_bits(pool):
    """The simulator multiplied with all threads of the BLAS, which adds in another order."""
    rng, found = np.random.default_rng(1), []
    a, b = rng.standard_normal((256, 1024)).astype(np.float32), rng.standard_normal((1024, 512)).astype(np.float32)
    for executor in EXECUTORS:
        mesh = pl.DeviceMesh((2, 2), ("dp", "tp"), executor=executor)
        x = pl.distribute_tensor(a, mesh, [pl.Shard(0), pl.Shard(1)], requires_grad=True)
        y = x @ pl.distribute_tensor(b, mesh, [pl.Replicate(), pl.Shard(0)])
        (y * y).sum().backward()
        found.append((y.asnumpy(), x.grad.asnumpy()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(40))
def test_drawn_programs_have_the_simulators_bits_and_messages(pool, seed):
    found = []
    for executor in EXECUTORS:
        random = np.random.default_rng(seed)
        mesh = pl.DeviceMesh(((4,), (2, 2))[seed % 2], (), executor=executor)
        names = random.choice(list(STEPS), int(random.integers(3, 9))).tolist()
        place = [MeshLayout.coded(mesh, random.choice(PLACES, mesh.ndim).tolist()) for _ in range(4)]
        operands = [drawn((8, 8), layout, random) for layout in place[:3]]
        with pl.dtensor_messages() as sent, pl.dtensor_policy(("torch", "cheapest", "reduce_at_once")[seed % 3]):
            try:
                value = program(names, {2: place[3]} if not place[3].pending else {})(*operands)
                value.backward()
            except LayoutError as error:
                found.append([type(error), str(error)])
                continue
        made = [x.local(rank) for x in (value, *(x.grad for x in operands if x.grad is not None)) for rank in range(4)]
        found.append([value.placements, list(map(str, sent)), *(part.tobytes() for part in made)])
    assert found[0] == found[1]


def test_value_and_grad_gives_the_simulators_gradients(pool):
    """It asked the notebook's handle for the history of a result, which lies on the workers."""
    found = []
    for executor in EXECUTORS:
        mesh = pl.DeviceMesh((2, 2), ("dp", "tp"), executor=executor)
        x = pl.distribute_tensor(X, mesh, [pl.Shard(0), pl.Shard(1)])
        w = pl.distribute_tensor(X[:6], mesh, [pl.Replicate(), pl.Shard(0)])
        value, grads = pl.value_and_grad(lambda x, w, unused: ops.tanh(x @ w).sum(), (0, 1, 2))(x, w, w * 2.0)
        found.append([(g.placements, *(g.local(rank).tobytes() for rank in range(4))) for g in (value, *grads)])
        assert not np.any(grads[2].asnumpy())
    assert found[0] == found[1]


def test_fully_shard_on_workers_runs_compiled_with_the_simulators_bits(pool):
    found = []
    for executor in EXECUTORS:
        mesh = pl.DeviceMesh((4,), ("dp",), executor=executor)
        pl.set_seed(3)
        net = nn.SequentialCell(nn.Dense(16, 16), nn.ReLU(), nn.Dense(16, 8))
        pl.fully_shard(net[0], mesh=mesh)
        pl.fully_shard(net, mesh=mesh)

        def step(x, net=net):
            loss = net(x.to_local()).sum()
            loss.backward()
            return loss

        x = pl.distribute_tensor(np.ones((8, 16), np.float32), mesh, [pl.Shard(0)])
        run, parts = pl.jit(step), []
        for _ in range(2):
            parts += [run(x).local(rank).tobytes() for rank in range(4)]
            parts += [p.grad.local(rank).tobytes() for p in net.trainable_params() for rank in range(4)]
            update(net.trainable_params(), lambda p, g: p - 0.1 * g)
        found.append(parts)
    assert found[0] == found[1]
    with pytest.raises(NotBuiltYet, match=r"pl\.jit"):
        step(x)


@pytest.mark.exhaustive
@NEEDS_MPI
def test_ranks_of_mpi_do_too():
    from parallel_lab.processes.mpi.pool import close_mpi_pools

    try:
        check_equal_bits("mpi")
    finally:
        close_mpi_pools()


def test_a_line_is_a_call_and_the_messages_have_its_place(pool, mesh, monkeypatch):
    calls = []
    run = pool.run
    monkeypatch.setattr(pool, "run", lambda *what: calls.append(what) or run(*what))
    x = pl.distribute_tensor(X, mesh, [pl.Shard(0), pl.Shard(1)])
    with pl.dtensor_messages() as sent:
        y = ops.reduce_sum(x * 2.0, 1).redistribute([pl.Replicate(), pl.Replicate()])
    x += x
    np.testing.assert_allclose(y.asnumpy(), 2 * X.sum(1), rtol=1e-5)
    assert len(calls) == 1 + 3 + 1 + 1
    assert [m.where.partition(":")[0] for m in sent] == ["test_dtensor_workers.py"] * len(sent) and len(sent) == 2


def trained(executor):
    """A network by styles, another by names: losses of three steps, and what was sent for them."""
    pl.set_seed(3)
    mesh = pl.DeviceMesh((4,), ("tp",), executor=executor)
    net = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 4))
    plan = {"0": pl.ColwiseParallel(), "2": pl.RowwiseParallel(output_layouts=pl.Shard(0), use_local_output=False)}
    pl.parallelize_module(net, mesh, plan)
    losses = []
    with pl.dtensor_messages() as sent:
        for _ in range(3):
            x = pl.DTensor.from_local(X, mesh, [pl.Replicate()])
            loss = ops.square(net(x)).sum()
            loss.backward()
            update(net.trainable_params(), lambda p, g: p - 0.01 * g)
            losses.append(float(loss))
    return losses, list(map(str, sent)), [p.asnumpy() for p in net.trainable_params()]


def test_a_network_of_styles_trains_as_simulated(pool):
    (one, sent, ends), (other, away, others) = map(trained, EXECUTORS)
    assert one == other and sent == away and one[2] < one[0]
    for end, theirs in zip(ends, others, strict=True):
        np.testing.assert_array_equal(end, theirs)


def test_hyper_parallels_names_work_on_workers(pool):
    mesh = hp.init_device_mesh("npu", (2, 2), mesh_dim_names=("dp", "tp"), executor="processes")
    x = hp.distribute_tensor(X, mesh, ("dp", "tp"))
    assert type(x) is hp.DTensor and x.local_shape == (4, 3)
    y = ops.reduce_sum(x, 1)
    assert y.is_partial() and not y.reduce_partial().is_partial()
    np.testing.assert_allclose(y.full_tensor().asnumpy(), X.sum(1), rtol=1e-5)
    with pytest.raises(ValueError, match="redistribute"):
        x @ hp.distribute_tensor(X.T.copy(), mesh, ("dp", "None"))
    add = hp.custom_shard(lambda a, n: a + n, mesh, (("dp", "None"),), (("dp", "None"), None))
    np.testing.assert_array_equal(add(x, 1.0).full_tensor().asnumpy(), X + 1)


MISTAKES = {
    "shapes": lambda x: x @ x,
    "another tensor": lambda x: x + pl.Tensor(X),
    "placements": lambda x: x.redistribute([pl.Shard(5), pl.Replicate()]),
    "parts of ranks": lambda x: x.to_local().full_tensor(),
    "a rank": lambda x: x.local(7),
    "groups that differ": lambda x: pl.DTensor.from_local(
        lambda rank: np.full(2, rank), x.mesh["tp"], [pl.Shard(0)]
    ).full_tensor(),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_the_simulators_error_and_the_workers_go_on(pool, what):
    found = []
    for executor in EXECUTORS:
        x = pl.distribute_tensor(X, pl.DeviceMesh((2, 2), ("dp", "tp"), executor=executor), [pl.Shard(0)] * 2)
        with pytest.raises(Exception) as error:
            MISTAKES[what](x)
        found.append(error)
        np.testing.assert_array_equal((x + x).asnumpy(), 2 * X)
    assert found[0].type is found[1].type
    if what not in ("groups that differ", "a rank"):
        assert str(found[0].value) == str(found[1].value)


def test_what_needs_parts_here_is_refused(pool, mesh):
    import copy

    x = pl.distribute_tensor(X, mesh)
    for touch in (copy.deepcopy, lambda x: pl.fully_shard(nn.Dense(6, 2), mesh=mesh["dp"])(x)):
        with pytest.raises((TypeError, NotImplementedError), match="parallel-lab run"):
            touch(x)


def test_parts_are_freed_with_their_handles(pool, mesh):
    x = pl.distribute_tensor(np.zeros((4096, 64), np.float32), mesh, [pl.Shard(0), pl.Replicate()])
    x.requires_grad_()
    (x * 2.0).sum().backward()
    assert max(pool.run(kept)) >= 1
    y = x.grad
    del x, y
    gc.collect()
    deadline = time.monotonic() + PROMISE_S
    while any(pool.run(kept)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert pool.run(kept) == [0] * 4 and not any(pool.run(lambda comm: "dtensors" in comm.state))


def test_what_one_rank_raises_names_it_and_leaves_nothing(pool, mesh):
    x = pl.distribute_tensor(X, mesh)
    before = pool.run(kept)

    def parts(rank):
        if rank == 2:
            raise RuntimeError("no part")
        return np.ones(2)

    with pytest.raises(RankRaised, match=r"rank 2 .*no part"):
        pl.DTensor.from_local(parts, mesh, [pl.Shard(0), pl.Replicate()])
    assert pool.run(kept) == before
    np.testing.assert_array_equal((x + x).asnumpy(), 2 * X)


def test_a_call_that_did_not_end_everywhere_has_not_happened():
    """As a rank sees it: what the call changed is put back, what it made is dropped."""
    x = pl.distribute_tensor(X, pl.DeviceMesh((1,), ("dp",)))
    before, table = x.local(0), dtensor_ranks.Table()
    table.last = 1
    key = table.made(x).key
    call = dtensor_ranks.Call(2, ("", ""), (), {}, (0,), -1, True, None, "")
    table.begin(call)
    x += x
    x.requires_grad_()
    table.made(x * 2.0)
    assert len(table.tensors) == 2 and x.local(0) is not before
    table.undo(1)  # not the last
    assert len(table.tensors) == 2
    table.undo(2)
    assert list(table.tensors) == [key] and x.local(0) is before and not x.requires_grad and not len(table.keys) > 1


def test_an_interrupt_leaves_the_workers_and_their_tensors(pool, mesh):
    x, pids = pl.distribute_tensor(X, mesh, [pl.Shard(0), pl.Replicate()]), pool.pids

    def waits(rank):
        while True:
            current_world().comm.barrier()

    timer = threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pl.DTensor.from_local(waits, mesh, [pl.Shard(0), pl.Replicate()])
    took_s = time.monotonic() - begin - 0.5
    print(f"interrupt: {took_s:.2f} s")
    assert took_s < PROMISE_S and pool.pids == pids
    np.testing.assert_array_equal((x + x).asnumpy(), 2 * X)


def test_a_killed_rank_is_named_and_new_workers_take_its_place(monkeypatch):
    pools: list[WorkerPool] = []

    def get_pool(count):
        if not pools or not pools[-1].alive:
            pools.append(WorkerPool(count))
        return pools[-1]

    monkeypatch.setattr(dtensor_ranks, "get_pool", get_pool)
    try:
        mesh = pl.DeviceMesh((2,), ("dp",), executor="processes")
        x = pl.distribute_tensor(X, mesh, [pl.Shard(0)])

        def dies(rank):
            os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else current_world().comm.barrier()

        begin = time.monotonic()
        with pytest.raises(RankDied, match=r"rank 1 .*SIGKILL"):
            pl.DTensor.from_local(dies, mesh)
        print(f"death: {time.monotonic() - begin:.2f} s")
        assert time.monotonic() - begin < PROMISE_S
        with pytest.raises(RuntimeError, match=r"rank 1 .*SIGKILL"):
            x + x
        again = pl.distribute_tensor(X, mesh, [pl.Shard(0)])
        np.testing.assert_array_equal((again + again).asnumpy(), 2 * X)
        with pytest.raises((TypeError, RuntimeError), match=r"closed|lost"):
            again + x
    finally:
        for pool in pools:
            pool.close()


def test_a_tensor_given_again_outlives_its_first_handle(pool, mesh):
    """Word of the first handle's end travels while the notebook is given a second: it lost its parts."""
    x = pl.distribute_tensor(X, mesh, requires_grad=True)
    (x * 3.0).sum().backward()
    for _ in range(20):
        del_me = x.grad
        del del_me
        again = x.grad
        time.sleep(0.015)
        assert again.asnumpy()[0, 0] == 3.0
