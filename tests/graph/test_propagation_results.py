"""Propagated strategies: what a learner sees, results against one device, and the time propagation takes."""

import time
from dataclasses import replace
from functools import partial

import pytest

from parallel_lab import nn, ops
from parallel_lab.cost.search.propagation import propagate_strategies
from parallel_lab.graph.compiler import compile_steps
from parallel_lab.graph.plan import Plan
from tests.graph.propagated import AUTO, S, array, forgetful, propagated, strategies, why
from tests.graph.random_choices import Seeded
from tests.graph.random_nets import compare, draw_net, until_compared
from tests.graph.random_programs import draw_program
from tests.recorded import nets

# ---- what a learner sees ----


def test_the_plan_tells_why_each_operator_is_cut_as_it_is():
    plan = propagated(nets.Quick(32, 16, 16, S), array(16, 32))
    reason = why(plan, "relu")
    assert "'matmul'" in reason and "(8, 16)" in reason and "(8, 4)" in reason
    assert "((2, 1),) would move nothing, but uses 2 of 8 devices, and fully_use_devices is True" in reason
    assert f"# why: {reason}" in plan.text(rank=0)
    assert {o["name"]: o["reason"] for o in plan.to_dict(rank=0)["ops"]}["relu"] == reason
    assert dict(plan.notes)["strategies"] == "1 given, 2 propagated from them"
    assert [n.strategy_source for n in plan.graph.nodes] == ["user", "propagated", "propagated"]
    assert why(plan, "matmul") == ""
    assert Plan.from_dict(plan.to_dict()) == plan


def test_propagation_leaves_the_graph_it_was_given_alone_and_answers_the_same_twice():
    plan = propagated(nets.Quick(32, 16, 16, S), array(16, 32))
    steps = compile_steps(nets.Quick(32, 16, 16, S), array(16, 32), device_num=8, dataset_strategy="full_batch", **AUTO)
    traced = steps[0][1].graph
    before = replace(traced)
    once, twice = (propagate_strategies(traced, plan.config) for _ in range(2))
    assert once == twice and traced == before
    assert [n.strategy for n in once.nodes] == list(strategies(plan).values())


# ---- against one device ----


def check(draw, seed, fully):
    """Draw until there is a net with a strategy left and no parameter that given operators disagree about."""
    settings = {**AUTO, "fully_use_devices": fully, "elementwise_op_strategy_follow": seed % 3 == 0}
    until_compared(lambda s, devices: forgetful(draw(s, devices), s), seed, partial(compare, **settings), settings)


@pytest.mark.quick(2)
@pytest.mark.parametrize("fully", [True, False])
@pytest.mark.parametrize("seed", range(110))
def test_random_net_with_some_strategies_given_equals_one_device(seed, fully):
    check(draw_net, seed, fully)


@pytest.mark.quick(1)
@pytest.mark.parametrize("fully", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_random_program_with_some_strategies_given_equals_one_device(seed, fully):
    check(lambda s, devices: draw_program(Seeded(s), devices), seed, fully)


# ---- time ----


class Deep(nn.Cell):
    """40 operators: convolutions, products and what lies between; the first is given a strategy."""

    def __init__(self):
        super().__init__()
        self.convs = nn.CellList([nn.Conv2d(16, 16, 3) for _ in range(6)])
        self.denses = nn.CellList([nn.Dense(16 * 16 * 16 if i == 0 else 256, 256) for i in range(7)])
        self.start, self.relu = ops.Mul().shard(((8, 8, 1, 1), ())), ops.ReLU()

    def construct(self, x):
        x = self.start(x, 2.0)
        for conv in self.convs:
            x = ops.tanh(self.relu(conv(x)))
        x = x.reshape(x.shape[0], 16 * 16 * 16)
        for dense in self.denses:
            x = self.relu(dense(x))
        return x


def test_forty_operators_on_64_devices():
    started = time.perf_counter()
    plan = propagated(Deep(), array(64, 16, 16, 16), device_num=64)
    print(
        f"{len(plan.graph.nodes)} operators on 64 devices: {time.perf_counter() - started:.2f} s with tracing and "
        "every pass"
    )
    assert len(plan.graph.nodes) >= 40
    assert all(n.strategy_source in ("user", "propagated") for n in plan.graph.nodes if not n.opdef.view)
