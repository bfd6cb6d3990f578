"""Training reads the global seed and the parallel settings: each test begins with the defaults, and what was before is put back."""

import pytest

from parallel_lab.context import current_world, reset_auto_parallel_context, set_seed, set_world


@pytest.fixture(autouse=True)
def default_settings():
    world = current_world()
    set_seed(1)
    reset_auto_parallel_context()
    yield
    reset_auto_parallel_context()
    set_world(world)
