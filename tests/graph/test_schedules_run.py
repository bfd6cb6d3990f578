"""Every schedule runs: those with a name, on all placements, and those made by hand; results are those of one device
that is fed the same micro-batches, to the bit where a schedule holds one copy of every parameter."""

from dataclasses import replace

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError, PlanError
from parallel_lab.cost.schedules import Schedule, make_schedule, schedule_names
from parallel_lab.graph.placement import placement_of
from tests.crossed import each_of
from tests.graph.test_pipeline import assert_equal, planned, trained

TWO_COPIES = ("chimera", "dualpipe")


def layers_of(schedule):
    """The stage of each of its parts, in order: a block of the network lies on each."""
    return placement_of(schedule, schedule.parts).ways[0]


def on_ranks(schedule, ranks, pool=None, **settings):
    settings = {"parts": schedule.micro_batches, "steps": 2, "optimizer": "clip-global", **settings}
    return trained(layers_of(schedule), ranks, pool=pool, schedule=schedule, **settings)


def on_one(schedule, **settings):
    settings = {"parts": schedule.micro_batches, "steps": 2, "optimizer": "clip-global", **settings}
    return trained((0,) * schedule.parts, 1, **settings)


def assert_same(found, want, schedule):
    """To the bit, but for the tied table, which two parts give gradients to, and for copies."""
    assert_equal(found, want)
    if schedule.name not in TWO_COPIES:
        for name in want[1].keys() - {"table"} if found[0] == want[0] else ():
            np.testing.assert_array_equal(found[1][name], want[1][name], err_msg=name)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", [n for n in schedule_names() if n not in TWO_COPIES])
def test_one_copy_has_the_bits_of_one_device(name):
    """After one step, whose sums of micro-batches are in their order whatever the schedule's."""
    schedule = make_schedule(name, 2, 4)
    found, want = on_ranks(schedule, 2, steps=1, optimizer="adam"), on_one(schedule, steps=1, optimizer="adam")
    assert found[0] == want[0]
    for parameter in want[1].keys() - {"table"}:
        np.testing.assert_array_equal(found[1][parameter], want[1][parameter])


def test_the_setting_zero_bubble_v_places_layers_as_a_v():
    """MindSpore's own example: of 8 layers on 4 stages, 0 and 7 lie on stage 0, ..., 3 and 4 on stage 3."""
    stages = (0, 1, 2, 3, 3, 2, 1, 0)
    plan = planned(stages, 4, parts=8, pipeline_scheduler="zero_bubble_v")[0]
    for at, pair in enumerate([(0, 7), (1, 6), (2, 5), (3, 4)]):
        blocks = {
            int(n.split(".")[1]) for n in plan.stages[at].names if n in dict(plan.gradients) and n[:7] == "blocks."
        }
        assert blocks == set(pair)
    parts = {n.name.split(".blocks.")[1].split(".")[0]: n.stage for n in plan.graph.nodes if ".blocks." in n.name}
    assert parts == {str(block): block for block in range(8)}
    made = make_schedule("zero_bubble_v", 4, 8)
    assert [tuple(a for a in stage.actions if not a.of_step) for stage in plan.stages] == list(made)


def test_two_copies_hold_every_parameter_twice_and_add_their_gradients():
    plan = planned((0, 1, 2, 3), 4, parts=4, schedule="chimera")[0]
    for parameter in plan.parameters:
        assert sum(plan.held_by(parameter.name, rank) for rank in range(4)) == 2
    assert [str(a) for a in plan.stages[1].actions[-2:]] == ["0reduce0", "0update0"]
    assert plan.stages[1].turns(1) == (0, 1) and plan.stages[1].turns(2) == (2, 3)


BY_HAND = "0F1 0F0 0B0 0B1 0W1 0W0\n1F1 1B1 1F0 1B0 1W0 1W1"


def test_a_schedule_from_text_runs():
    schedule = Schedule.from_text(BY_HAND)
    plan = planned((0, 1), 2, parts=2, schedule=schedule)[0]
    assert [" ".join(map(str, s.actions[:6])) for s in plan.stages] == BY_HAND.splitlines()
    assert_same(on_ranks(schedule, 2), on_one(schedule), schedule)
    csv = Schedule.from_csv(schedule.to_csv())
    assert planned((0, 1), 2, parts=2, schedule=csv)[0] == plan


@each_of(
    ("text", "options", "words"),
    ("0F0 0B0\n1B0 1F0", {}, "action 0 of rank 1: 1B0 .*1F0"),
    ("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1", {"cap": 1}, "action 1 of rank 0: no memory for 0F1.* 1 of 1"),
    ("0F0 0B1 0F1 0B0\n1F0 1F1 1B0 1B1", {}, "0B1 .*0F1"),
    ("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0", {}, "wait"),
    ("0F0 0B0\n1F0", {}, "1B0"),
    ("0F0 0B0 1F0\n1B0", {"holds": "loop"}, "1F0 cannot run here: part 1 lies on rank 1"),
)
def test_an_illegal_schedule_is_refused_with_its_reason(text, options, words):
    schedule = Schedule.from_text(text, **options)
    with pytest.raises(ArgumentError, match=words):
        planned((0, 1), 2, parts=schedule.micro_batches, schedule=schedule)


@pytest.mark.quick(1)
@each_of(
    ("lanes", "words"),
    (("0F0 0F1 0B1 0B0 0W0 0W1", "1F0 1B0 1W0 1F1 1B1 1W1"), ""),
    (("0F0 0B0 0W0 0F1 0B1 0W1", "1F0 1F1 1B0 1B1 1W0 1W1"), "waits for 1B0 before 0B0; .* for 0F1 before 1F1"),
    (("0F0 0F1 0B0 0W0 0W1 0B1", "1F0 1F1 1B0 1B1 1W0 1W1"), "waits for 0B1 before 0W1"),
)
def test_actions_of_a_plan_in_another_order_are_checked_as_a_schedule_is(lanes, words):
    """`verify` looked at programs, which the first micro-batch had made the values of; not at waits of stages."""
    plan = planned((0, 1), 2, parts=2, schedule=Schedule.from_text(BY_HAND))[0]
    orders = Schedule.from_text("\n".join(lanes)).ranks
    with_step = [
        (s, lane + tuple(a for a in s.actions if a.of_step)) for s, lane in zip(plan.stages, orders, strict=True)
    ]
    edited = replace(plan, stages=tuple(replace(stage, actions=actions) for stage, actions in with_step))
    if not words:
        edited.verify()
        return
    with pytest.raises(PlanError, match=words):
        edited.verify()


@each_of(
    ("stages", "options", "words"),
    ((0, 1), {"schedule": "ring"}, "'ring'"),
    ((0, 1), {"schedule": 5}, "schedule=5"),
    ((0, 1), {"schedule": "dualpipe", "parts": 2}, "at least 2 micro-batches per stage"),
    ((0, 1), {"schedule": make_schedule("1f1b", 2, 8)}, "it has 8 micro-batches"),
    ((0, 1), {"schedule": make_schedule("1f1b", 4, 4)}, "it has 4 ranks"),
    ((0, 1, 0, 1), {"schedule": "zero_bubble_v"}, "through the stages 0, 1, 1, 0"),
    ((0, 1), {"schedule": "v_half"}, "part 3 of the schedule has no operator"),
    ((0, 1), {"pipeline_scheduler": "seqpipe"}, "seqpipe"),
)
def test_a_schedule_that_does_not_fit_is_refused(stages, options, words):
    with pytest.raises(ValueError, match=words):
        planned(stages, 2, **options)
