import dataclasses
from itertools import pairwise

import pytest

from parallel_lab.base.cluster import Cluster, Device, Link, get_cluster
from parallel_lab.base.errors import ArgumentError, PlanError
from parallel_lab.cost import instr_time_s, message_bytes, predict_timeline, step_time_s
from tests.cost.nets import product_plan, seed_plan
from tests.refusals import refused

DEVICE = Device(flops_per_s=1e9, memory_bytes=10**9, memory_bandwidth_bytes_per_s=1e9, overhead_s=5e-6)
NEAR, FAR = Link(3e-6, 2e-9), Link(1e-4, 1e-8)
NODE = Cluster("node", DEVICE, NEAR, devices_per_node=8)
# group 0-3 on one node, group 4-7 on two
UNEVEN = Cluster("uneven", DEVICE, NEAR, devices_per_node=6, node_count=2, node_link=FAR)

SETTINGS = {"all alike": (NODE, None), "one straggler": (NODE, {5: 3.0})}
SETTINGS |= {"two links": (UNEVEN, None), "both": (UNEVEN, {1: 1.5, 6: 0.5})}
each_setting = pytest.mark.parametrize("setting", SETTINGS)


def timeline(setting):
    cluster, slowdown = SETTINGS[setting]
    return predict_timeline(seed_plan(), cluster, slowdown=slowdown)


@each_setting
def test_bars_of_a_rank_follow_each_other_without_gap_or_overlap(setting):
    for lane in timeline(setting).log.lanes().values():
        assert lane[0].start_s == 0
        assert all(a.end_s == b.start_s for a, b in pairwise(lane))


@each_setting
def test_a_message_starts_and_ends_at_the_same_time_on_all_its_members(setting):
    log = timeline(setting).log
    messages = {}
    for event in log.filter(kind="communication"):
        messages.setdefault((event.phase, event.name, event.group), []).append(event)
    assert len({key[1] for key in messages}) == 7
    for (_, _, group), events in messages.items():
        assert tuple(e.rank for e in events) == group
        assert len({(e.start_s, e.end_s) for e in events}) == 1


@each_setting
def test_a_message_starts_when_its_last_member_arrives(setting):
    log = timeline(setting).log
    arrivals = {}
    for lane in log.lanes().values():
        for before, event in pairwise(lane):
            if event.kind == "communication":
                arrived = before.start_s if before.kind == "wait" else before.end_s
                arrivals.setdefault((event.name, event.group, event.start_s), []).append(arrived)
    assert all(start == max(arrived) for (_, _, start), arrived in arrivals.items())


@each_setting
def test_the_step_ends_with_its_last_rank(setting):
    made = timeline(setting)
    assert made.end_s == max(lane[-1].end_s for lane in made.log.lanes().values()) == made.log.end_s


@each_setting
def test_every_rank_runs_every_instruction_in_order(setting):
    program = [(phase, i.out) for phase, i in seed_plan().instructions()]
    for lane in timeline(setting).log.lanes().values():
        assert [(e.phase, e.name) for e in lane if e.kind != "wait"] == program


def test_ranks_that_are_alike_never_wait_and_take_the_sum_of_their_instructions():
    plan = seed_plan()
    made = predict_timeline(plan, NODE)
    assert made.symmetric
    assert not len(made.log.filter(kind="wait"))
    assert made.end_s == pytest.approx(step_time_s(plan, NODE).total_s)


def test_one_clock_for_all_gives_what_a_clock_per_rank_gives():
    plan = seed_plan()
    # two nodes with equal links: groups differ in whether they span nodes, and nothing else
    apart = predict_timeline(plan, dataclasses.replace(UNEVEN, node_link=NEAR))
    assert not apart.symmetric
    assert apart.log == predict_timeline(plan, NODE).log


def test_a_straggler_makes_its_group_wait_and_not_itself():
    plan = product_plan(((2, 4), (4, 1)))
    made = predict_timeline(plan, NODE, slowdown={5: 3.0})
    local_s = sum(instr_time_s(plan, i, NODE) for _, i in plan.instructions() if not i.is_communication)
    waits = {e.rank: e.duration_s for e in made.log.filter(kind="wait")}
    assert waits == pytest.approx({4: 2 * local_s, 6: 2 * local_s, 7: 2 * local_s})
    # ranks 0 to 3 have nothing to do with it
    assert {e.rank for e in made.log if e.end_s == made.end_s} == {4, 5, 6, 7}


def test_the_group_on_two_nodes_is_the_slower_one():
    plan = product_plan(((2, 4), (4, 1)))
    made = predict_timeline(plan, UNEVEN)
    seconds = {e.rank: e.duration_s for e in made.log.filter(kind="communication")}
    (message,) = [i for _, i in plan.instructions() if i.is_communication]
    assert seconds == pytest.approx({rank: instr_time_s(plan, message, UNEVEN, rank=rank) for rank in range(8)})
    assert seconds[4] > seconds[3]


@each_setting
def test_totals_per_message_are_its_formula_times_the_ranks(setting):
    cluster, slowdown = SETTINGS[setting]
    plan = seed_plan()
    expected = {
        i.out: (8, 8 * message_bytes(plan, i), sum(instr_time_s(plan, i, cluster, rank=r) for r in range(8)))
        for _, i in plan.instructions()
        if i.is_communication
    }
    totals = predict_timeline(plan, cluster, slowdown=slowdown).log.totals()
    assert {t.name: (t.count, t.bytes) for t in totals} == {name: e[:2] for name, e in expected.items()}
    assert {t.name: t.seconds for t in totals} == pytest.approx({name: e[2] for name, e in expected.items()})


def test_asked_for_some_ranks_it_gives_their_lanes_and_the_end_of_all():
    some = predict_timeline(seed_plan(), NODE, ranks=(6, 0), slowdown={5: 3.0})
    everyone = predict_timeline(seed_plan(), NODE, slowdown={5: 3.0})
    assert some.log == everyone.log.filter(rank=[0, 6])
    assert some.end_s == everyone.end_s


@pytest.mark.parametrize("slowdown", [None, {4095: 2.0}])
def test_4096_ranks_cost_what_their_formulas_say(slowdown):
    plan = product_plan(((2, 4), (4, 1)), device_num=4096)
    cluster = get_cluster("two_nodes").with_nodes(512)
    made = predict_timeline(plan, cluster, ranks=(0, 4095), slowdown=slowdown)
    assert made.log.ranks == (0, 4095)
    local_s = sum(instr_time_s(plan, i, cluster) for _, i in plan.instructions() if not i.is_communication)
    message_s = sum(instr_time_s(plan, i, cluster) for _, i in plan.instructions() if i.is_communication)
    factor = slowdown[4095] if slowdown else 1
    assert made.end_s == pytest.approx(factor * local_s + message_s)
    assert made.log.filter(rank=0).end_s == pytest.approx(local_s + message_s)


def test_more_events_than_memory_holds_are_refused_before_they_are_made(monkeypatch):
    """4096 ranks of a deep pipeline have 30 million; the end of their step is known without any."""
    plan = seed_plan()
    each = len(list(plan.instructions()))
    monkeypatch.setattr("parallel_lab.cost.timeline.MOST_EVENTS", 8 * each - 1)
    with pytest.raises(ArgumentError, match=rf"{8 * each} events of 8 ranks.*ranks=\(\) for the end of the step"):
        predict_timeline(plan, NODE)
    assert predict_timeline(plan, NODE, ranks=()).end_s == pytest.approx(
        predict_timeline(plan, NODE, ranks=range(7)).end_s
    )


def test_events_carry_the_step_and_say_that_they_are_predicted():
    log = predict_timeline(seed_plan(), NODE, ranks=[2], step=7).log
    assert {(e.rank, e.step, e.source) for e in log} == {(2, 7, "predicted")}


test_ranks_and_factors_that_make_no_sense_are_refused = refused(
    ({"ranks": (8,)}, PlanError, "rank 8 does not exist"),
    ({"slowdown": {9: 2.0}}, PlanError, "rank 9 does not exist"),
    ({"slowdown": {0: 0.0}}, ArgumentError, "above 0"),
    ({"slowdown": {0: float("nan")}}, ArgumentError, "above 0"),
    by=lambda options: predict_timeline(seed_plan(), NODE, **options),
)
