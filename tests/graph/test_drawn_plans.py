"""Whatever is set, a plan trains as one device does; what only moves work and data changes no bit; what no schedule
allows is refused, with its reason, before anything runs.

`drawn_plans.py` says what is drawn. Each named case once was wrong, or is a combination that must be among the drawn.
"""

import pytest

import parallel_lab as pl
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.schedules import make_schedule, schedule_names
from parallel_lab.graph.placement import placement_of
from tests.graph.drawn_plans import (
    DATA_PARALLEL,
    FED_BY_RANKS,
    FUSIONS,
    LEVELS,
    OFFLOADS,
    Case,
    check,
    compiled,
    draw,
    drawn_case,
)
from tests.graph.drawn_schedules import CHANGES, draw_by_hand, draw_illegal
from tests.graph.random_choices import Seeded


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(90))
def test_a_drawn_plan_trains_as_one_device(seed):
    check(draw(seed))


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", range(1000, 1400, 50))
def test_more_drawn_plans_train_as_one_device(start):
    for seed in range(start, start + 50):
        check(draw(seed))


def in_stages(*stages, **more):
    """A block on each of these stages, and four micro-batches."""
    ranks = 1 + max(stages)
    return Case(**{"blocks": len(stages), "stages": stages, "devices": ranks, "micro_batches": 4, **more})


def scheduled(name, stages=2, micro_batches=4, **more):
    schedule = make_schedule(name, stages, micro_batches)
    way = placement_of(schedule, schedule.parts).ways[0]
    return in_stages(*way, schedule=schedule, micro_batches=micro_batches, **more)


def by_hand(seed):
    choices = Seeded([17, seed])
    return drawn_case(choices, draw_by_hand(choices))


CUT_SUMS, WHOLE_SUMS = ({"gradient_accumulation_shard": cut} for cut in (True, False))
S, S2, ROWS = ((2, 2), (1, 2)), ((1, 2), (1, 2)), ((2, 1), (1, 1))
GPIPE, CHUNKS = {"pipeline_scheduler": "gpipe"}, {"pipeline_interleave": True}
V = {"pipeline_scheduler": "zero_bubble_v"}
SHARED = {"enable_parallel_optimizer": True}
NAMED = {
    # a micro-batch's values are read in the order of its own actions
    **{f"by hand {seed}": by_hand(seed) for seed in (205, 179, 73)},
    # running statistics on the host were those of the first micro-batch
    "statistics on the host": Case(statistics=True, micro_batches=4, free=OFFLOADS["all"]),
    # ... and on a V those of the micro-batch whose last part ran last
    "statistics on a V": scheduled("zero_bubble_v", statistics=True),
    # a Parameter on the host that two stages hold got its new value on one of them
    "two copies on the host": scheduled("chimera", cpu=(0,), free=OFFLOADS["values"]),
    # a scalar that no program reads was on no stage
    "a rate that nobody reads": in_stages(0, 1, optimizer="adafactor"),
    # a sum over slices that the host reads was refused in the update
    "clipped on the host": Case(
        devices=2, cuts=(ROWS, S2), micro_batches=4, optimizer="clipped-adam", target="CPU", level=LEVELS["level2"]
    ),
    # a cast lay in the first part of its stage, and what it waits for in a later one
    "halves in parts": in_stages(
        *(0, 1, 0, 1),
        **{"devices": 4, "dtype": "float32", "half": "bfloat16", "settings": CHUNKS, "level": LEVELS["level3"]},
        free=FUSIONS["all"],
    ),
    # ... or in the part of a later reader, and the one before it was refused: the way begins on stage 1
    "half a table": by_hand(133),
    # pipelines
    "two stages": in_stages(0, 0, 1, 1, devices=4, tied=True, level=LEVELS["level1"]),
    "four stages": in_stages(0, 1, 2, 3, devices=8, tied=True, optimizer="all-together", settings=GPIPE),
    "chunks": in_stages(0, 1, 0, 1, devices=8, optimizer="scaled", settings=CHUNKS, free=FUSIONS["gradients"]),
    "cuts on both sides": in_stages(0, 0, 1, devices=4, cuts=(None, ((1, 1), (2, 1)), ROWS)),
    "a V by its setting": in_stages(0, 1, 1, 0, tied=True, settings=V, optimizer="clip-global"),
    "sums per micro-batch": in_stages(0, 1, devices=8, level=LEVELS["level2"] | CUT_SUMS, free=FUSIONS["all"]),
    "sums per step": in_stages(0, 1, devices=4, level=LEVELS["level3"] | WHOLE_SUMS),
    "large ones alone": in_stages(0, 1, devices=4, level={**LEVELS["level1"], "parallel_optimizer_threshold": 64}),
    **{name: scheduled(name, devices=4, optimizer="clip-global", tied=True) for name in schedule_names()},
    # what is made again
    "again": Case(devices=8, cuts=(S, S), optimizer="lamb", marks=("again",) * 2, level=LEVELS["level1"]),
    "kept messages": Case(
        devices=8, cuts=(S, S), marks=("kept messages",) * 2, level=LEVELS["level2"], micro_batches=2
    ),
    "gathered again": Case(devices=8, cuts=(S, S), marks=("gathered",) * 2, level=LEVELS["level3"], micro_batches=2),
    "sliced": Case(devices=8, cuts=(S, S), optimizer="lamb", marks=("sliced",) * 2, free=FUSIONS["all"]),
    "operators": Case(devices=8, cuts=(S, S), marks=("operators", "one kept"), level=LEVELS["level1"]),
    "whole": Case(devices=8, cuts=(S, S), marks=("whole",), free=FUSIONS["all"], level=LEVELS["level1"]),
    "whole, data parallel": Case(
        devices=8, settings=DATA_PARALLEL, dropout=False, optimizer="scaled", marks=("whole",)
    ),
    "sliced, backward divided": scheduled("zb_h1", devices=8, cuts=(S, S), marks=("sliced", "operators")),
    "kept messages, chunks": in_stages(
        *(0, 1, 0, 1), devices=8, cuts=(S,) * 4, settings=CHUNKS | GPIPE, marks=("kept messages",) * 4
    ),
    "one of two stages": scheduled("zb_h2", micro_batches=6, marks=("", "again"), devices=8, cuts=(S, S)),
    # what lies on the host
    "all there": in_stages(0, 0, 1, 1, devices=4, cpu=(0, 2), target="CPU", free=OFFLOADS["all"]),
    "values there": Case(dtype="float32", micro_batches=4, devices=4, free=OFFLOADS["values"], cpu=(1,)),
    "halves": in_stages(0, 1, dtype="float32", half="bfloat16", optimizer="clipped-adam", target="CPU"),
    "moments there": in_stages(0, 1, optimizer="adam-offload"),
    "values there, backward divided": scheduled("zb_h1", free=OFFLOADS["values"]),
    "work there, backward divided": scheduled("zb_h2", micro_batches=6, target="CPU", cpu=(0, 1)),
    "cells there": in_stages(0, 0, 1, 1, devices=4, marks=("away", "away early", "away and again", "again")),
    "cells there, one stage": Case(
        blocks=3, devices=4, micro_batches=2, marks=("away", "away early", "away and again")
    ),
    # accumulation, data parallel
    "accumulated": Case(devices=8, micro_batches=4, cuts=(((4, 1), (2, 1)),) * 2, rows=64, settings=FED_BY_RANKS),
    "accumulated in data parallel": Case(devices=4, micro_batches=2, dropout=False, settings=DATA_PARALLEL),
    "updates shared": Case(devices=4, dropout=False, settings=DATA_PARALLEL, optimizer="all-together", level=SHARED),
    # fusion by each rule
    **{f"fused by {rule}": Case(devices=4, cuts=(None, ROWS), free=how) for rule, how in FUSIONS.items()},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMED)
def test_a_named_plan_trains_as_one_device(name):
    check(NAMED[name])


@pytest.fixture(scope="module")
def four():
    with pl.WorkerPool(4) as made:
        yield made


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1000, 1018))
def test_processes_give_the_simulators_bits(seed, four):
    check(draw(seed, 4), four)


@pytest.mark.quick(5)
@pytest.mark.parametrize("seed", [50099, *range(48)])
def test_a_random_illegal_schedule_is_refused_with_its_reason(seed):
    schedule, way, words = draw_illegal(Seeded([18, seed]), CHANGES[seed % len(CHANGES)])
    case = in_stages(*way, schedule=schedule, micro_batches=schedule.micro_batches)
    with pytest.raises(ArgumentError, match=words):
        compiled(case)
