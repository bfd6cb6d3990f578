"""Fused, accumulated, optimizer-parallel plans on processes and MPI: the simulator's bits, the plan's messages."""

import random
from collections import Counter

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.train.session import Session
from tests.crossed import crossed, first
from tests.nets import chain

pytestmark = pytest.mark.timeout(240)
WIDTH = 16


def layers(strategies):
    return chain(*[f"dense {WIDTH}", "tanh"] * len(strategies), inputs=WIDTH, shard=strategies, dtype="float32")


def drawn(seed, ranks):
    """(settings of the compilation, strategies, optimizer by name, fusion ids or None) of one random case."""
    rng = random.Random(f"{seed} {ranks}")
    mode = rng.choice(["semi_auto_parallel", "semi_auto_parallel", "data_parallel"])
    settings = {"parallel_mode": mode, "gradients_mean": rng.random() < 0.5}
    settings["grad_accumulation_step"] = rng.choice([1, 1, 2])
    kinds = [("allreduce", rng.choice(["auto", "size", "index"]))]
    kinds += [(kind, rng.choice(["auto", "size"])) for kind in ("allgather", "reducescatter")]
    config = {"auto": None, "size": rng.randint(1, 2), "index": sorted(rng.sample(range(5), 2))}
    fused = {kind: {"mode": how, "config": config[how]} for kind, how in kinds if rng.random() < 0.7}
    settings |= {"comm_fusion": fused} if fused else {}
    strategies, optimizer = [None] * 4, rng.choice(["sgd", "momentum", "adam"])
    if mode == "data_parallel" and rng.random() < 0.3:
        settings["enable_parallel_optimizer"], optimizer = True, "lamb"
    if mode == "semi_auto_parallel":
        cuts = [None, ((1, 1), (2, 1))]
        if ranks > 2:
            cuts = [None, ((ranks // 2, 1), (2, 1)), ((ranks // 2, 2), (1, 2)), ((ranks, 1), (1, 1))]
        strategies = [rng.choice(cuts) for _ in range(4)]
        if rng.random() < 0.6:
            settings |= {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}
            settings |= {"optimizer_level": f"level{rng.randint(1, 3)}"}
            settings |= {"gradient_accumulation_shard": rng.random() < 0.5}
    ids = [rng.randint(0, 2) for _ in strategies] if rng.random() < 0.3 else None
    return settings, strategies, optimizer, ids


MAKE = {"sgd": lambda p: nn.SGD(p, 0.05), "momentum": lambda p: nn.Momentum(p, 0.05, 0.9)}
MAKE |= {"adam": lambda p: nn.Adam(p, 0.01), "lamb": lambda p: nn.Lamb(p, 0.01)}


def built(seed, ranks):
    settings, strategies, optimizer, ids = drawn(seed, ranks)
    pl.set_seed(11)
    net = layers(strategies)
    for layer, number in zip(net.l, ids or (), strict=False):
        layer.set_comm_fusion(number)
    rule = MAKE[optimizer](net.trainable_params())
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal((4 * ranks, WIDTH)).astype(np.float32) for _ in range(2))
    local = settings["parallel_mode"] == "data_parallel"
    fed = (x[:4], y[:4]) if local else (x, y)
    settings |= {"device_num": ranks, "dataset_strategy": "data_parallel" if local else "full_batch"}
    plan = pl.compile(net, *fed, loss=nn.MSELoss(), optimizer=rule, **settings)
    return plan, net, rule, (x, y)


def trained(seed, ranks, steps, **options):
    plan, net, optimizer, batch = built(seed, ranks)
    with Session(plan, net, optimizer, **options) as session:
        losses = session.train([batch], steps, record=1)
        values = session.parameters() | {f"gradient of {n}": v for n, v in session.gradients().items()}
        return plan, losses, values, session.events


def compare(seed, ranks, steps=3, **options):
    plan, losses, values, _ = trained(seed, ranks, steps)
    _, got, ours, events = trained(seed, ranks, steps, **options)
    assert got == losses, f"seed {seed}, {ranks} ranks: {drawn(seed, ranks)}"
    for name, value in values.items():
        assert np.array_equal(ours[name], value), f"seed {seed}, {ranks} ranks: {name}, {drawn(seed, ranks)}"
    sent = Counter(i.out for _, i in plan.instructions() if i.is_communication)
    for rank in range(ranks):
        assert Counter(e.name for e in events if e.rank == rank and e.kind == "communication") == sent


@pytest.fixture(scope="module")
def pools():
    made = {n: WorkerPool(n) for n in (2, 4, 8)}
    yield made
    for pool in made.values():
        pool.close()


MORE = [pytest.param(ranks, start, marks=pytest.mark.exhaustive) for ranks in (2, 4, 8) for start in range(100, 110, 2)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("ranks", "start"), [*crossed([2, 4, 8], range(0, 6, 2)), *MORE])
def test_processes_give_the_simulators_bits(pools, ranks, start):
    for seed in range(start, start + 2):
        compare(seed, ranks, executor="processes", pool=pools[ranks])


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", first(1, range(0, 8, 4)))
def test_mpi_gives_the_simulators_bits(start):
    from parallel_lab.processes.mpi.pool import MpiPool

    with MpiPool(4) as pool:
        for seed in range(start, start + 4):
            compare(seed, 4, executor="mpi", pool=pool)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(20))
def test_drawn_plans_equal_one_device(seed):
    """The loss is the mean over the whole batch, gradients its own: semi_auto, no gradients_mean, no accumulation."""
    ranks = (2, 4, 8)[seed % 3]
    settings, *_ = drawn(seed, ranks)
    plan, net, optimizer, batch = built(seed, ranks)
    own = settings["gradients_mean"] or settings["grad_accumulation_step"] > 1
    if settings["parallel_mode"] != "semi_auto_parallel" or own:
        return
    with Session(plan, net, optimizer) as session:
        losses = session.train([batch], 3)
    pl.set_seed(11)
    one = layers([None] * 4)
    rule = MAKE[drawn(seed, ranks)[2]](one.trainable_params())
    alone = pl.compile(one, *batch, loss=nn.MSELoss(), optimizer=rule, parallel_mode="stand_alone")
    with Session(alone, one, rule) as session:
        np.testing.assert_allclose(losses, session.train([batch], 3), rtol=1e-5)
