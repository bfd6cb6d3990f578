"""The Collective Stepper in a real JupyterLab, with a kernel behind it; and the same algorithm on real ranks in a
%%ranks cell.

`PLAB_SHOTS=folder` keeps a screenshot of each test.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parallel_lab.lab.collectives.model import CollectiveStepper
from tests.browser.jupyterlab import CHROMIUM, Notebook, Watch, chromium_page, jupyterlab, until, written

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

pytestmark = [pytest.mark.browser, pytest.mark.skipif(not CHROMIUM, reason="no chromium")]
PATIENCE_MS = 60_000
STEPPER = """from parallel_lab.lab.collectives.model import CollectiveStepper
from parallel_lab.lab.widgets import CollectiveStepperWidget
stepper = CollectiveStepper("all_reduce", "ring", ranks=4)
CollectiveStepperWidget(stepper)"""
# The page shows a step before the kernel has heard of it, and where kernels have subshells commands are heard beside
# the cells.
CODE_STEPS = """import time
end = time.monotonic() + 30
while stepper.at != 2 and time.monotonic() < end:
    time.sleep(0.01)
stepper.to(4)"""
RANKS = """%%ranks -n 4 --fold
import numpy as np
from parallel_lab.train.communication import get_rank, init
from parallel_lab.lab.collectives.algorithms.algorithm import run_algorithm
init()
total = run_algorithm(None, "all_reduce", "ring", np.arange(6.0) + get_rank())
print(total.tolist())"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(page, address of the server, folder of its notebooks)."""
    root = tmp_path_factory.mktemp("notebooks")
    with jupyterlab(root) as url, chromium_page(1280, 1000) as page:
        yield page, url, root


@pytest.fixture
def opened(world):
    """opened(name, *sources) -> Notebook; at the end no request went outside, nothing was raised in the page, and the
    kernel is gone.
    """
    page, url, root = world
    watch, books = Watch(page, url), []

    def book(name: str, *sources: str) -> Notebook:
        written(root / name, *sources)
        books.append(Notebook(page, url, name))
        return books[-1]

    yield book
    if books:
        page.evaluate("() => window.jupyterapp.shell.currentWidget.context.sessionContext.shutdown()")
    assert not watch.outside, f"asked of the network: {watch.outside}"
    assert not watch.broken, f"raised in the page: {watch.broken}"


def test_a_step_in_the_page_is_a_step_of_the_model_and_back(world, opened):
    page = world[0]
    book = opened(
        "stepper.ipynb", STEPPER, CODE_STEPS, "print(stepper.at, stepper.algorithm.name, stepper.algorithm.ranks)"
    )
    book.run_cell(0)
    root_node = page.locator(".pl-stepper")
    expect(page.locator(".pl-rank-card")).to_have_count(4, timeout=PATIENCE_MS)
    page.get_by_role("button", name="one round on").click()
    page.keyboard.press("ArrowRight")
    expect(root_node).to_have_attribute("data-at", "2", timeout=PATIENCE_MS)
    book.run_cell(1)
    expect(root_node).to_have_attribute("data-at", "4", timeout=PATIENCE_MS)
    expect(page.locator(".pl-ghost")).to_have_count(0, timeout=PATIENCE_MS)
    expect(page.locator(".pl-stepper [role=status]")).to_have_text(CollectiveStepper().snapshot()["frames"][4]["text"])
    if os.environ.get("PLAB_SHOTS"):
        page.screenshot(path=str(Path(os.environ["PLAB_SHOTS"]) / "stepper_in_jupyterlab.png"))
    page.get_by_role("radio", name="8 ranks").click()
    expect(page.locator(".pl-rank-card")).to_have_count(8, timeout=PATIENCE_MS)
    page.locator(".pl-compare input[value=tree]").check()
    expect(page.locator(".pl-title")).to_have_text("all_reduce by tree, 8 ranks", timeout=PATIENCE_MS)
    book.run_cell(2)
    assert until(lambda: "0 tree 8" in book.printed(book.cells()[2]["id"]))
    assert not book.errors()


def test_an_algorithm_runs_on_the_ranks_of_a_cell(opened):
    book = opened("ranks.ipynb", "%load_ext parallel_lab", RANKS)
    book.run_cell(0)
    book.run_cell(1)
    said = book.printed(book.cells()[1]["id"])
    assert "[6.0, 10.0, 14.0, 18.0, 22.0, 26.0]" in said and not book.errors(), said
