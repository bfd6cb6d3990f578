"""Training reads the global seed and the parallel settings: each test begins with the defaults and restores them."""

import logging

import pytest

from parallel_lab import Session
from parallel_lab.base.hooks import current_world, set_world
from parallel_lab.base.seeds import set_seed
from parallel_lab.base.settings.context import reset_auto_parallel_context
from tests.pools import SharedPools
from tests.train.sessions import S, net_and_data, plan_for


@pytest.fixture(autouse=True)
def default_settings():
    world = current_world()
    set_seed(1)
    reset_auto_parallel_context()
    yield
    reset_auto_parallel_context()
    set_world(world)


@pytest.fixture(scope="session")
def pools():
    """One pool per number of ranks."""
    return SharedPools()


@pytest.fixture
def ready(pools):
    """(make a Session, data) for the quickstart on 8 ranks."""
    net, data = net_and_data(S)
    plan, optimizer = plan_for(net, data, 8)
    made = []

    def make(executor, **changes):
        options = {"parameters": net, "optimizer": optimizer, "pool": pools[8]} | changes
        made.append(Session(plan, options.pop("parameters"), options.pop("optimizer"), executor=executor, **options))
        return made[-1]

    yield make, data
    for session in made:
        session.close()


@pytest.fixture
def logged():
    """Texts of what is logged."""
    handler, texts = logging.Handler(), []
    handler.emit = lambda record: texts.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    yield texts
    logging.getLogger().removeHandler(handler)
