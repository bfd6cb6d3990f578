"""The model in seconds: what a redistribution costs, and what must hold when cluster, candidates or memory change."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parallel_lab import StrategyError
from parallel_lab.base.cluster import get_cluster
from parallel_lab.base.settings.config import ParallelConfig
from parallel_lab.cost.search import eliminate, time_problem
from parallel_lab.cost.search.time_model import TimeModel
from parallel_lab.cost.time import message_time_s
from parallel_lab.graph.compiler import compile_steps
from parallel_lab.graph.instr import Instr, attr_pairs
from parallel_lab.graph.passes.parallelize import step_attrs
from parallel_lab.layout.redistribution import plan_redistribution
from tests.cost.test_strategy_search import Small, ones
from tests.layout.drawn_layouts import drawn_pair

LAPTOP, NODES = get_cluster("laptop"), get_cluster("two_nodes")
EXACTLY = 1e-12
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 60))]
BACK = {"all_gather": "reduce_scatter", "exchange": "exchange_reduce"}


def drawn(seed):
    """(graph, config) of a drawn network of at most four operators on 2 to 8 devices."""
    rng = np.random.default_rng(seed)
    net, count = Small(rng), int(rng.choice([2, 4, 8]))
    how = {"parallel_mode": "semi_auto_parallel", "device_num": count, "dataset_strategy": "full_batch"}
    draft = compile_steps(net, ones(*net.first), fully_use_devices=False, **how)[0][1]
    print(f"seed {seed}, {draft.config.device_num} devices: {[n.op_class for n in draft.graph.nodes]}")
    return draft.graph, draft.config


def least(problem, memory_limit=None):
    return eliminate(problem, memory_limit).cost


@pytest.mark.parametrize("manner", ["allgather", "alltoall", "exact"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_redistribution_costs_what_its_instructions_cost(seed, manner):
    rng = np.random.default_rng(seed)
    config = ParallelConfig(device_num=16, redistribution=manner)
    model = SimpleNamespace(config=config, cluster=NODES, links={})
    device = NODES.device
    for _ in range(20):
        src, dst, shape = drawn_pair(rng, 16)
        want = []
        for step in plan_redistribution(src, dst, shape, **config.manner):
            place = {"axes": step.axes, "device_matrix": step.device_matrix}
            instr = Instr(step.kind, ("y",), ("x",), attrs=attr_pairs(step_attrs(step)), **place)
            given, made = (4 * math.prod(s) for s in (step.in_shape, step.out_shape))
            if instr.is_communication:
                how = (instr.group_size, NODES.link_for(instr.group(0)), device.gamma_s_per_byte)
                for kind, size in ((step.kind, given), (BACK.get(step.kind, step.kind), made)):
                    want.append(message_time_s(kind, size, *how, route=instr.attr("route")))
            elif step.kind == "slice":
                sizes = (2 * made, given + made)
                want += [size / device.memory_bandwidth_bytes_per_s + device.overhead_s for size in sizes]
            elif step.in_shape != step.out_shape:
                want += [device.overhead_s] * 2
        assert list(TimeModel.steps_s(model, src, dst, shape, shape, 4, True)) == want


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bandwidth_doubled_never_makes_the_optimum_slower(seed):
    graph, config = drawn(seed)
    cluster, before = NODES, least(time_problem(graph, config, NODES))
    device, link = cluster.device, cluster.link
    faster = {
        "link": replace(link, beta_s_per_byte=link.beta_s_per_byte / 2),
        "device": replace(device, memory_bandwidth_bytes_per_s=2 * device.memory_bandwidth_bytes_per_s),
    }
    for name, part in faster.items():
        assert least(time_problem(graph, config, replace(cluster, **{name: part}))) <= before * (1 + EXACTLY)


@pytest.mark.parametrize("seed", SEEDS)
def test_costs_times_a_factor_scale_the_optimum_and_keep_the_choice(seed):
    problem = time_problem(*drawn(seed), LAPTOP)
    once = eliminate(problem)
    for factor in (0.25, 8.0):  # powers of two: no rounding
        terms = tuple(replace(term, weight=factor * term.weight) for term in problem.terms)
        scaled = eliminate(replace(problem, terms=terms))
        assert (scaled.chosen, scaled.cost) == (once.chosen, factor * once.cost)


@pytest.mark.parametrize("seed", SEEDS)
def test_fewer_candidates_are_never_better_nor_is_a_pin(seed):
    problem = time_problem(*drawn(seed), LAPTOP)
    best = eliminate(problem)
    for choice in problem.choices[1:]:
        pinned = [least(problem.pinned({choice.name: strategy})) for strategy in choice.candidates]
        assert min(pinned) == pytest.approx(best.cost, rel=EXACTLY)
        assert all(cost >= best.cost * (1 - EXACTLY) for cost in pinned)


@pytest.mark.parametrize("seed", SEEDS)
def test_only_the_links_that_are_used_count(seed):
    """All devices in one node: neither its size nor the link to other nodes changes anything."""
    graph, config = drawn(seed)
    inside = replace(NODES, devices_per_node=8)
    costs = [least(time_problem(graph, config, c)) for c in (inside, replace(inside, devices_per_node=16))]
    far = replace(inside.node_link, beta_s_per_byte=100 * inside.node_link.beta_s_per_byte)
    assert costs == [least(time_problem(graph, config, replace(inside, node_link=far)))] * 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_larger_cap_is_never_slower(seed):
    problem = time_problem(*drawn(seed), LAPTOP)
    whole = eliminate(problem)
    last = math.inf
    for share in (0.3, 0.5, 0.7, 0.9, 1.0):
        try:
            cost = least(problem, int(whole.memory_bytes * share))
        except StrategyError:
            continue
        assert cost <= last * (1 + EXACTLY)
        last = cost
    assert last == pytest.approx(whole.cost, rel=EXACTLY)
