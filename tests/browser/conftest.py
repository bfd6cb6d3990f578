"""What holds for all browser tests: actions wait until they are painted, and nothing is left behind.

Tests share a browser: Chromium's helpers come and go with it; only its own process is checked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests import conftest as everywhere


def processes() -> dict[int, str]:
    """Descendants of the test run, without the helpers of a Chromium."""
    return {
        pid: text for pid, text in everywhere.living_processes().items() if not ("chrom" in text and "--type=" in text)
    }


@pytest.fixture(autouse=True, scope="session")
def actions_are_painted(nothing_left_by_the_run: None) -> Iterator[None]:
    from tests.browser.lab_page import end_browser, painted_actions  # skips if playwright is missing

    with painted_actions():
        yield
    end_browser()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The shared Chromium ends before tests that take none: Playwright keeps an event loop running meanwhile."""
    shared = sys.modules.get("tests.browser.lab_page")
    goes_on = nextitem is not None and (nextitem.path == item.path or "browser" in nextitem.fixturenames)
    if shared and not goes_on:
        shared.end_browser()


@pytest.fixture(autouse=True)
def nothing_left_behind(nothing_left_by_the_run: None) -> Iterator[None]:
    """After each test: no process, no name in /dev/shm, no open widget beyond what was there before it."""
    before, names, widgets = processes(), everywhere.shared_names(), everywhere.open_widgets()
    yield
    left = everywhere._report(
        everywhere._left(processes, before),
        everywhere._left(lambda: everywhere.own_new_names(names), {}),
        everywhere._left(everywhere.open_widgets, widgets, 0.0),
    )
    if left:
        pytest.fail(f"left behind by this test:\n  {left}", pytrace=False)
