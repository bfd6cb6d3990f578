"""Random training steps with random operators on gradients, on 2 to 16 simulated ranks, equal one device.
`random_steps.py` says what is drawn.
"""

import pytest

from tests.crossed import first
from tests.graph.random_steps import compare_step, draw_step

DEVICES = (2, 4, 8, 8, 16)


def check(seed):
    devices = DEVICES[seed % len(DEVICES)]
    while True:
        drawn = draw_step(seed, devices)
        print(f"seed {seed}, {devices} ranks\n{drawn.text}")
        if compare_step(drawn):
            return
        seed += 100_000  # operators that share a parameter disagreed about it, which is refused: draw another step


@pytest.mark.quick(15)
@pytest.mark.parametrize("seed", first(40, range(150)))
def test_random_training_step_equals_one_device(seed):
    check(seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", range(1000, 1500, 100))
def test_more_random_training_steps_equal_one_device(start):
    for seed in range(start, start + 100):
        check(seed)
