"""Save on 8 real ranks under one strategy; go on with 4 under another, with 1, and with 8 again: the losses are those
of one that never stopped.

The bound: all runs compute the same sums in other orders. A product of 32 float32 terms is off by at most 32 roundings
of 6e-8 relative to the sum of the terms' sizes, 2e-6; fifty times that is allowed after ten steps of Adam.
On the same ranks and strategy the bits are equal.
"""

import numpy as np
import pytest

from parallel_lab.processes.shm import WorkerPool
from parallel_lab.train.checkpoint import describe_checkpoint, read_manifest
from tests.pools import shared_pool

pytestmark = pytest.mark.timeout(120)
BEFORE, AFTER = 4, 6
OVER_8 = (((2, 4), (4, 1)), ((2, 4),), ((8, 1), (1, 1)))
OVER_4 = (((1, 2), (2, 2)), ((4, 1),), ((1, 4), (4, 1)))
OVER_2 = (((1, 2), (2, 1)), ((2, 1),), ((1, 2), (2, 1)))
OVER_1 = (((1, 1), (1, 1)), ((1, 1),), ((1, 1), (1, 1)))
RTOL = 1e-4


def on_ranks(pool, fn, *args):
    """fn(rank, *args) on every rank of the pool, each a rank of a world; the results by rank."""

    def as_world(comm):
        from parallel_lab.base.hooks import set_world
        from parallel_lab.base.settings.context import reset_auto_parallel_context, set_auto_parallel_context
        from parallel_lab.processes.world.world import World

        world = World(comm, backend="shared_memory", launcher="test")
        set_world(world)
        set_auto_parallel_context(
            parallel_mode="semi_auto_parallel" if comm.world_size > 1 else "stand_alone",
            device_num=comm.world_size,
            dataset_strategy="full_batch" if comm.world_size > 1 else "data_parallel",
            gradients_mean=False,
        )
        try:
            return fn(comm.rank, *args)
        finally:
            reset_auto_parallel_context()
            set_world(None)

    return pool.run(as_world)


def training(rank, strategies, steps, before=None, after=None):
    """Train under `strategies`, before(net, optimizer) first and after(net, optimizer) last. The losses."""
    import numpy as np

    from parallel_lab import nn, set_seed
    from parallel_lab.train.engine import make_train_step
    from tests.recorded import nets

    set_seed(3)
    net = nets.Quick(32, 16, 16, *strategies)
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    if before:
        before(rank, net, optimizer)
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((16, 32)).astype(np.float32), draw.standard_normal((16, 16)).astype(np.float32)
    step = make_train_step(net, nn.MSELoss(), optimizer)
    losses = [float(step(x, y).asnumpy()) for _ in range(steps)]
    if after:
        after(rank, net, optimizer)
    return losses


def save(folder, integrated):
    def after(rank, net, optimizer):
        import os

        from parallel_lab.train.checkpoint import network_records, optimizer_records, save_checkpoint, save_distributed

        os.makedirs(f"{folder}/rank_{rank}", exist_ok=True)
        for name, one in (("net", net), ("opt", optimizer)):
            save_checkpoint(one, f"{folder}/rank_{rank}/{name}.ckpt", integrated_save=integrated)
        records = {**network_records(net, integrated=False), **optimizer_records(optimizer, integrated=False)}
        save_distributed(f"{folder}/all", records)

    return after


def load_files(folder, own=False):
    """Files of whole tensors, or each rank's own slices."""

    def before(rank, net, optimizer):
        from parallel_lab.train.checkpoint import load_checkpoint, load_param_into_net

        for name, one in (("net", net), ("opt", optimizer)):
            loaded = load_checkpoint(f"{folder}/rank_{rank if own else 0}/{name}.ckpt")
            assert load_param_into_net(one, loaded) == ([], [])

    return before


def load_all_ranks(folder):
    def before(rank, net, optimizer):
        from parallel_lab.train.checkpoint import load_checkpoint, load_distributed_checkpoint, load_optimizer_values

        load_distributed_checkpoint(net, [f"{folder}/rank_{r}/net.ckpt" for r in range(8)])
        whole = load_checkpoint(f"{folder}/all")  # the manifest's folder holds the optimizer's states too
        states = {n: v for n, v in whole.items() if n not in net.parameters_dict()}
        assert load_optimizer_values(optimizer, states) == ([], [])

    return before


@pytest.fixture(scope="module")
def pools():
    with WorkerPool(8) as eight, WorkerPool(4) as four, WorkerPool(1) as one:
        yield {8: eight, 4: four, 1: one}


def trained_and_saved(pool, strategies, tmp_path_factory):
    """(folder of integrated files, folder of slices, losses of the steps after an undisturbed save)."""
    whole, slices = str(tmp_path_factory.mktemp("whole")), str(tmp_path_factory.mktemp("slices"))
    uninterrupted = on_ranks(pool, training, strategies, BEFORE + AFTER)
    for folder, integrated in ((whole, True), (slices, False)):
        losses = on_ranks(pool, training, strategies, BEFORE, None, save(folder, integrated))
        assert losses == [u[:BEFORE] for u in uninterrupted]
    return whole, slices, uninterrupted[0][BEFORE:]


@pytest.fixture(scope="module")
def saved(pools, tmp_path_factory):
    return trained_and_saved(pools[8], OVER_8, tmp_path_factory)


@pytest.mark.exhaustive
def test_integrated_files_hold_whole_tensors_and_slices_say_what_they_are(saved):
    whole, slices, _ = saved
    for rank in range(8):
        for name in ("net", "opt"):
            assert all(
                info.layout is None for info in describe_checkpoint(f"{whole}/rank_{rank}/{name}.ckpt").tensors.values()
            )
        cut = describe_checkpoint(f"{slices}/rank_{rank}/net.ckpt").tensors
        assert {info.rank for info in cut.values() if info.layout} == {rank}
        assert any(info.layout is not None and info.shape != info.global_shape for info in cut.values())
    manifest = read_manifest(f"{slices}/all")
    assert manifest.world_size == 8
    w1 = next(name for name, one in manifest.tensors.items() if name.startswith("moment1.") and one.layout is not None)
    # a state lies like its parameter
    assert manifest.tensors[w1].layout == manifest.tensors[w1.removeprefix("moment1.")].layout


@pytest.mark.exhaustive
@pytest.mark.parametrize(("ranks", "strategies"), [(8, OVER_8), (4, OVER_4), (1, OVER_1)], ids=["8", "4", "1"])
@pytest.mark.parametrize("load", [load_files, load_all_ranks], ids=["whole", "all-ranks"])
def test_a_resumed_training_goes_on_as_if_nothing_had_happened(pools, saved, ranks, strategies, load):
    whole, slices, expected = saved
    found = on_ranks(pools[ranks], training, strategies, AFTER, load(whole if load is load_files else slices))
    assert all(losses == found[0] for losses in found)
    assert np.allclose(found[0], expected, rtol=RTOL, atol=0), (found[0], expected)
    if ranks == 8:
        assert found[0] == expected


@pytest.mark.exhaustive
def test_every_rank_can_go_on_with_its_own_slices(pools, saved):
    _, slices, expected = saved
    found = on_ranks(pools[8], training, OVER_8, AFTER, load_files(slices, own=True))
    assert found == [expected] * 8


@pytest.mark.exhaustive
def test_slices_go_into_another_strategy_of_as_many_ranks(pools, saved):
    _, slices, expected = saved
    other = (((4, 1), (1, 2)), ((2, 4),), ((2, 2), (2, 2)))
    found = on_ranks(pools[8], training, other, AFTER, load_files(slices, own=True))
    assert np.allclose(found, [expected] * 8, rtol=RTOL, atol=0)


@pytest.mark.exhaustive
def test_without_the_optimizer_the_losses_differ(pools, saved):
    """The tooth."""
    without_the_optimizer(pools[8], OVER_8, saved)


def without_the_optimizer(pool, strategies, saved):
    whole, _, expected = saved

    def before(rank, net, optimizer):
        from parallel_lab.train.checkpoint import load_checkpoint, load_param_into_net

        load_param_into_net(net, load_checkpoint(f"{whole}/rank_0/net.ckpt"))

    found = on_ranks(pool, training, strategies, AFTER, before)
    assert found[0][0] == expected[0]  # the parameters are right
    assert not np.allclose(found[0][1:], expected[1:], rtol=RTOL, atol=0)


def test_two_ranks_go_on_with_their_optimizer_and_not_without(tmp_path_factory):
    """What the other tests do with eight, and their tooth."""
    pool = shared_pool(2)
    saved = whole, slices, expected = trained_and_saved(pool, OVER_2, tmp_path_factory)
    for load in (load_files(whole), load_files(slices, own=True)):
        assert on_ranks(pool, training, OVER_2, AFTER, load) == [expected] * 2
    without_the_optimizer(pool, OVER_2, saved)
