"""Random nets and training steps with random legal strategies on 2, 4, 8 and 16 ranks, alltoall on and off, equal one
device: loss, every value, every gradient; of steps what they return, parameters, states and accumulators.

`random_nets.py` and `random_steps.py` say what is drawn. Run by hand, 20 000 nets found what the named cases below now
guard against.
"""

import pytest

from tests.crossed import each_of, first
from tests.graph.random_nets import compare, draw_net, until_compared
from tests.graph.random_steps import compare_step, draw_step


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", first(50, range(150)))  # the others are exhaustive
def test_random_net_equals_one_device(seed):
    until_compared(draw_net, seed, compare)


@pytest.mark.quick(2)
@each_of(
    "seed",
    # x + b where a slice of x has b's shape: one array was the gradient of both, under one name with one layout
    27,
    48,  # the gradient of a reduction of a scalar had shape (1,)
    292,  # a redistribution ending in a reshape that changes nothing kept the layout of the step before
    399,
    587,
    634,
)
def test_nets_that_found_defects_equal_one_device(seed):
    until_compared(draw_net, seed, compare)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", first(40, range(150)))
def test_random_training_step_equals_one_device(seed):
    until_compared(draw_step, seed, compare_step)


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", range(1000, 1500, 100))
def test_more_random_training_steps_equal_one_device(start):
    for seed in range(start, start + 100):
        until_compared(draw_step, seed, compare_step)
