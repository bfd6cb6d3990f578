"""Random networks, strategies and fusion settings: every value is that of the unfused plan, to the bit."""

import random

import numpy as np
import pytest

from parallel_lab.run.simulator import Simulator
from tests.crossed import first
from tests.graph.random_nets import compiled, draw_net


def settings(rng):
    mode = rng.choice(["auto", "size", "index", "times", "hiding"])
    if mode == "times":
        return {"cost_model_fusion": ("times", rng.randint(2, 4), 0.9 * rng.random())}
    if mode == "hiding":
        return {"cost_model_fusion": ("hiding", 0.1, 0.05, 10.0 ** -rng.randint(2, 7), 10.0 ** -rng.randint(2, 7))}
    config = {"auto": None, "size": rng.randint(1, 3), "index": sorted(rng.sample(range(6), rng.randint(1, 3)))}[mode]
    return {"comm_fusion": {"allreduce": {"mode": mode, "config": config}}}


def gradients(plan, draw):
    simulator = Simulator(plan, {name: np.array(p.asnumpy()) for name, p in draw.net.parameters_dict().items()})
    simulator.steps = draw.training_step
    loss = simulator.run_step(*draw.inputs)
    return {name: simulator.full(value) for name, value in plan.gradients} | {"loss": loss}


def check(seed):
    """Compare one drawn network; returns how many of its messages were joined."""
    rng = random.Random(seed)
    draw = draw_net(seed, rng.choice([2, 4, 8, 16]))
    plan = compiled(draw)
    if plan is None:
        return 0
    for parameter in draw.net.get_parameters():
        if rng.random() < 0.3:
            parameter.comm_fusion = rng.randint(0, 2)
    fused = compiled(draw, **settings(rng))
    alone, together = gradients(plan, draw), gradients(fused, draw)
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        assert np.array_equal(value, together[name], equal_nan=True), f"seed {seed}: {name}"
    buckets = [i for _, i in fused.instructions("backward") if i.kind == "concat"]
    return sum(len(i.ins) for i in buckets)


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", first(1, range(0, 60, 20)))
def test_fusion_changes_no_bit_of_random_networks(start):
    assert sum(check(seed) for seed in range(start, start + 20)) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", range(1000, 1400, 100))
def test_fusion_changes_no_bit_of_more_random_networks(start):
    assert sum(check(seed) for seed in range(start, start + 100)) > 0
