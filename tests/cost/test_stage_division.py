"""Layers divided into stages: the exact minimum against all divisions, and against the plans of all divisions."""

import itertools

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn, ops
from parallel_lab.base.errors import ArgumentError, ArgumentTypeError
from parallel_lab.cost import balance, divide_stages, even, get_cluster
from parallel_lab.cost.time import instr_time_s, is_border
from parallel_lab.train.session import Session
from tests.crossed import each_of
from tests.refusals import refused


def divisions(layers, stages):
    """Sizes of all divisions of a chain."""
    for ends in itertools.combinations(range(1, layers), stages - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *ends, layers)))


def slowest(costs, sizes):
    ends = list(itertools.accumulate(sizes))
    return max(sum(costs[end - size : end]) for end, size in zip(ends, sizes, strict=True))


@pytest.mark.parametrize("stages", range(1, 6))
def test_no_division_has_a_faster_slowest_stage(rng, stages):
    for _ in range(40):
        costs = [int(c) for c in rng.integers(0, 9, int(rng.integers(stages, 11)))]
        sizes = balance(costs, stages)
        assert sum(sizes) == len(costs) and len(sizes) == stages and min(sizes) >= 1
        assert slowest(costs, sizes) == min(slowest(costs, each) for each in divisions(len(costs), stages)), costs


@pytest.mark.parametrize("stages", range(2, 5))
def test_among_equal_divisions_later_stages_have_the_most_layers(rng, stages):
    for _ in range(20):
        costs = [int(c) for c in rng.integers(0, 4, int(rng.integers(stages, 9)))]
        sizes = balance(costs, stages)
        every = list(divisions(len(costs), stages))
        least = min(slowest(costs, each) for each in every)
        assert sizes[-1] == max(each[-1] for each in every if slowest(costs, each) == least), costs
        assert sizes[:-1] == balance(costs[: -sizes[-1]], stages - 1), costs


def test_even_sizes_differ_by_one_at_most():
    for layers, stages in itertools.product(range(1, 20), range(1, 20)):
        if layers >= stages:
            sizes = even(layers, stages)
            assert sum(sizes) == layers and len(sizes) == stages
            assert sorted(sizes, reverse=True) == list(sizes) and sizes[0] - sizes[-1] <= 1


test_what_cannot_be_divided_is_refused = refused(
    lambda: balance((1, 2), 3),
    lambda: balance((1, -1), 1),
    lambda: balance((float("inf"), 1), 2),
    lambda: balance((1e308, 1e308), 2),
    lambda: balance(3, 1),
    lambda: even(1, 2),
    lambda: even("8", 2),
    lambda: even(8, 0),
    error=ArgumentError,
)


WIDE = (8, 8, 8, 64, 8, 8)


class Block(nn.Cell):
    def __init__(self, hidden):
        super().__init__()
        self.first, self.second = nn.Dense(8, hidden, dtype="float64"), nn.Dense(hidden, 8, dtype="float64")

    def construct(self, x):
        return x + self.second(ops.tanh(self.first(x)))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        pl.set_seed(2)
        self.front = nn.Dense(4, 8, dtype="float64")
        self.blocks = nn.CellList([Block(hidden) for hidden in WIDE])

    def construct(self, x):
        x = self.front(x)
        for block in self.blocks:
            x = block(x)
        return ops.tanh(x)


BATCH = tuple(np.random.default_rng(n).standard_normal((16, size)) for n, size in ((0, 4), (1, 8)))


def compiled(net, stages):
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    how = {"pipeline_stages": stages, "grad_accumulation_step": 4, "device_num": stages}
    return pl.compile(net, *BATCH, loss=nn.MSELoss(), optimizer=optimizer, dataset_strategy="full_batch", **how)


def work_s(plan):
    """Seconds that each stage computes in a step."""
    cluster = get_cluster("laptop")
    return [
        sum(instr_time_s(plan, i, cluster) for a in stage.actions for _, i in stage.part(a) if not is_border(i))
        for stage in plan.stages
    ]


@pytest.mark.exhaustive
def test_the_division_by_cost_is_the_best_of_all_plans():
    """No other plan has a faster slowest stage; the times are those of the plan, except at borders."""
    net = Net()
    found, plan = divide_stages(net.blocks, 2, lambda: compiled(net, 2))
    assert found.stages == tuple(block.pipeline_stage for block in net.blocks)
    np.testing.assert_allclose(found.times_s, work_s(plan), rtol=0.03)
    assert all(not node.name.startswith("divided") for node in plan.graph.nodes)
    others = []
    for sizes in divisions(len(WIDE), 2):
        for block, stage in zip(net.blocks, np.repeat((0, 1), sizes), strict=True):
            block.pipeline_stage = int(stage)
        others.append(max(work_s(compiled(net, 2))))
    assert max(work_s(plan)) == min(others) < max(others) * 0.9


@pytest.mark.quick(1)
@pytest.mark.parametrize("by", ["even", "cost"])
def test_a_divided_network_equals_one_device(by):
    net, alone = Net(), Net()
    found, plan = divide_stages(net.blocks, 4, lambda: compiled(net, 4), by=by)
    if by == "even":
        assert found.stages == (0, 0, 1, 1, 2, 3)
    losses = []
    for each, made in ((net, plan), (alone, compiled(alone, 1))):
        with Session(made, each, nn.Momentum(each.trainable_params(), 0.1, 0.9)) as session:
            losses.append(session.train([BATCH], 3))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-12)


@each_of(
    ("change", "words"),
    (lambda n: divide_stages(n.blocks, 7, lambda: compiled(n, 7)), "6 layers on 7 stages"),
    (lambda n: divide_stages(list(n.blocks)[::-1], 2, lambda: compiled(n, 2)), "reads"),
    (lambda n: divide_stages([*n.blocks, nn.Dense(2, 2)], 2, lambda: compiled(n, 2)), "does not call Cell 6"),
    (lambda n: divide_stages(n.blocks, 2, lambda: compiled(n, 1)), "the plan has 1 stages"),
    (lambda n: divide_stages(n.blocks, 2, lambda: compiled(n, 2), by="hand"), "by='hand'"),
    (lambda n: divide_stages("ab", 2, lambda: compiled(n, 2)), "cells='ab'"),
)
def test_refusals_leave_the_cells_as_they_were(change, words):
    net = Net()
    net.blocks[0].pipeline_stage = 1
    names = [block.cell_name for block in net.blocks]
    with pytest.raises((ArgumentError, ArgumentTypeError, pl.StrategyError), match=words):
        change(net)
    assert [block.pipeline_stage for block in net.blocks] == [1, None, None, None, None, None]
    assert [block.cell_name for block in net.blocks] == names
