"""Random pipelines equal one device that is fed the same micro-batches: schedules with names under all settings, and
any legal order of work made by hand; what is illegal is refused, with its reason, before anything runs.

`random_pipelines.py` says what is drawn.
"""

import pytest

import parallel_lab as pl
from parallel_lab.base.errors import ArgumentError
from tests.graph.random_pipelines import compare, compiled, draw_by_hand, draw_illegal, draw_named


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(42))
def test_a_random_combination_equals_one_device(seed):
    compare(draw_named(seed))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "seed", [205, 179, 73, *range(42)]
)  # the first: a micro-batch's values are read in its own order
def test_a_random_schedule_made_by_hand_equals_one_device(seed):
    compare(draw_by_hand(seed))


@pytest.mark.quick(0)
@pytest.mark.parametrize("draw", [draw_named, draw_by_hand])
@pytest.mark.parametrize("seed", range(1000, 1006))
def test_processes_give_the_simulators_bits(draw, seed, four):
    compare(draw(seed, 4), four)


@pytest.fixture(scope="module")
def four():
    with pl.WorkerPool(4) as made:
        yield made


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", [50099, *range(48)])
def test_a_random_illegal_schedule_is_refused_with_its_reason(seed):
    drawn, _, words = draw_illegal(seed)
    with pytest.raises(ArgumentError, match=words):
        compiled(drawn)
