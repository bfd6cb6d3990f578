"""Pools that are lent to one file of tests after the other end behind the last of this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


def end_pools() -> None:
    if pools := sys.modules.get("tests.processes.pools"):
        pools.end_lent()


@pytest.fixture(autouse=True, scope="session")
def pools_end(nothing_left_by_the_run: None) -> Iterator[None]:
    yield
    end_pools()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path.parent != item.path.parent:
        end_pools()
