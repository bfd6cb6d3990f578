"""Networks whose tensors get from layout to layout by exact pieces: one device's numbers, checked and priced plans."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parallel_lab.base.cluster import Link, get_cluster
from parallel_lab.base.errors import PlanError, StrategyError
from parallel_lab.base.settings.config import ParallelConfig
from parallel_lab.cost.search.time_model import TimeModel
from parallel_lab.cost.time import message_time_s
from parallel_lab.graph.instr import attr_pairs
from parallel_lab.graph.plan import Plan
from parallel_lab.layout.route import route_of
from parallel_lab.layout.tensor_layout import TensorLayout
from tests.graph.one_device import S, X, Y, check_equal, draw, plan_of, quick
from tests.graph.random_nets import compare, draw_net, until_compared
from tests.recorded.nets import Quick

TRIPLES = [
    (((1, 1), (1, 8)), ((8, 1),), S),
    (((2, 4), (4, 1)), ((4, 2),), ((1, 8), (8, 1))),
    (((8, 1), (1, 1)), ((1, 8),), ((8, 1), (1, 1))),
    (((4, 1), (1, 2)), ((2, 4),), ((2, 1), (1, 1))),
]
MANNERS = ("allgather", "alltoall", "exact")


@pytest.mark.quick(1)
@pytest.mark.parametrize("triple", TRIPLES)
def test_every_manner_gives_the_numbers_of_one_device(triple):
    net = quick(*triple)
    plans = {manner: check_equal(net, X, Y, redistribution=manner) for manner in MANNERS}
    kinds = {manner: {i.kind for _, i in plan.instructions()} for manner, plan in plans.items()}
    assert {"exchange", "exchange_reduce"} <= kinds["exact"]
    assert not kinds["exact"] & {"all_gather", "all_to_all", "reduce_scatter"}
    assert not (kinds["allgather"] | kinds["alltoall"]) & {"exchange", "exchange_reduce"}


def test_the_setting_stands_over_enable_alltoall():
    net = quick(*TRIPLES[2])
    settings = [{}, {"enable_alltoall": True}, {"enable_alltoall": True, "redistribution": "allgather"}]
    settings.append({"redistribution": "alltoall"})
    found = ["all_to_all" in {i.kind for _, i in plan_of(net, X, Y, **s).instructions()} for s in settings]
    assert found == [False, True, False, True]


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(2000, 2020))
def test_random_nets_equal_one_device(seed):
    until_compared(draw_net, seed, lambda draw: compare(draw, redistribution="exact"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", range(3000, 3300, 30))
def test_more_random_nets_equal_one_device(start):
    for seed in range(start, start + 30):
        until_compared(draw_net, seed, lambda draw: compare(draw, redistribution="exact"))


def exact_plan() -> Plan:
    return plan_of(quick(*TRIPLES[3]), X, Y, redistribution="exact")


def exchange_of(plan: Plan):
    return next(i for _, i in plan.instructions() if i.kind == "exchange")


def test_a_plan_says_what_a_rank_keeps_and_gets_and_comes_back_from_json():
    plan = exact_plan()
    assert Plan.from_dict(plan.to_dict()) == plan
    instr, text = exchange_of(plan), plan.text()
    assert "= AlltoAllV(" in text and "= AlltoAllVGrad(" in text
    route = route_of(instr.attr("route"))
    sizes = {g: int(np.prod([s.stop - s.start for s in box])) for g, box in route.taken[0].items()}
    others = ", ".join(f"{n} from rank {instr.group(0)[g]}" for g, n in sizes.items() if g)
    assert f"this rank keeps {sizes[0]} elements of its own and gets {others}" in text


def test_the_check_of_a_plan_refuses_a_route_that_is_not_that_of_its_values():
    plan = exact_plan()
    instr = exchange_of(plan)
    src, entries, dst, others, shape = instr.attr("route")
    swapped = replace(instr, attrs=attr_pairs({**dict(instr.attrs), "route": (dst, others, src, entries, shape)}))
    programs = tuple((p, tuple(swapped if i is instr else i for i in made)) for p, made in plan.stages[0].programs)
    with pytest.raises(PlanError, match="exchange"):
        replace(plan, stages=(replace(plan.stages[0], programs=programs),)).verify()


def test_splits_that_do_not_nest_are_reached_too():
    """24 devices as (3, 8) and as (8, 3): MindSpore finds no way between them, exact pieces need none."""
    net = Quick(24, 24, 24, ((3, 1), (1, 8)), ((8, 3),), ((8, 1), (1, 3)))
    for i, p in enumerate(net.trainable_params()):
        p._initial, p._data = None, draw(*p.shape, seed=20 + i)
    x, y = draw(24, 24, seed=3), draw(24, 24, seed=4)
    with pytest.raises(StrategyError, match="is wanted on"):
        plan_of(net, x, y, devices=24)
    plan = check_equal(net, x, y, devices=24, redistribution="exact")
    assert exchange_of(plan).group_size == 24


def test_a_search_counts_the_seconds_of_exact_pieces():
    """(1, 8) to (2, 4) on (16, 16), 4 bytes each: a rank gets 2 pieces of (8, 2), 64 bytes each; back, 2 are added."""
    cluster = get_cluster("laptop")
    model = SimpleNamespace(config=ParallelConfig(device_num=8, redistribution="exact"), cluster=cluster, links={})
    src, dst = (TensorLayout.from_strategy(cuts, 8) for cuts in ((1, 8), (2, 4)))
    there, back = TimeModel.steps_s(model, src, dst, (16, 16), (16, 16), 4, True)
    link, gamma = cluster.link_for(range(8)), cluster.device.gamma_s_per_byte
    assert there == pytest.approx(2 * link.alpha_s + 2 * 64 * link.beta_s_per_byte)
    assert back == pytest.approx(2 * link.alpha_s + 2 * 64 * (link.beta_s_per_byte + gamma))


def test_the_time_is_that_of_the_rank_that_sends_or_receives_most():
    """Rows in 2 parts on 2 ranks each, wanted whole everywhere: each rank gets the other half, gives its own once."""
    route = ((2, 2), ((1,), ()), (2, 2), ((), ()), (8, 4))
    link = Link(alpha_s=1e-6, beta_s_per_byte=1e-9)
    seconds = message_time_s("exchange", 64, 4, link, route=route)
    assert seconds == pytest.approx(1e-6 + 64e-9)
    # to one column each: every rank gets a half column (16 bytes) of one of the two holders
    route = ((2, 2), ((1,), ()), (4,), ((), (0,)), (8, 4))
    assert message_time_s("exchange", 64, 4, link, route=route) == pytest.approx(1e-6 + 16e-9)
    # gradients are added where they come back
    back = message_time_s("exchange_reduce", 32, 4, link, 2e-9, route=route)
    assert back == pytest.approx(1e-6 + 16 * (1e-9 + 2e-9))
