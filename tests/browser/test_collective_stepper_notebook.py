"""The Collective Stepper in a real JupyterLab with a kernel, and the same algorithm on real ranks in a %%ranks cell."""

from __future__ import annotations

import pytest

from parallel_lab.lab.collectives.model import CollectiveStepper
from tests.browser.jupyterlab import MARKS, opened, shot, sync_api, until, world

__all__ = ["opened", "world"]  # the fixtures

expect = sync_api.expect

pytestmark = MARKS
PATIENCE_MS = 60_000
STEPPER = """from parallel_lab.lab.collectives.model import CollectiveStepper
from parallel_lab.lab.widgets import CollectiveStepperWidget
stepper = CollectiveStepper("all_reduce", "ring", ranks=4)
CollectiveStepperWidget(stepper)"""
# The page shows a step before the kernel has heard of it, and where kernels have subshells commands are heard while
# cells run.
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


@pytest.mark.exhaustive
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
    shot(page, "stepper_in_jupyterlab")
    page.get_by_role("radio", name="8 ranks").click()
    expect(page.locator(".pl-rank-card")).to_have_count(8, timeout=PATIENCE_MS)
    page.locator("[data-tab=compare]").click()
    page.locator(".pl-compare input[value=tree]").check()
    expect(page.locator(".pl-title")).to_have_text("all_reduce by tree, 8 ranks", timeout=PATIENCE_MS)
    book.run_cell(2)
    assert until(lambda: "0 tree 8" in book.printed(book.cells()[2]["id"]))
    assert not book.errors()


REDISTRIBUTION = """from parallel_lab.lab.redistribution.model import RedistributionLab
from parallel_lab.lab.widgets import RedistributionLabWidget
lab = RedistributionLab(8, "8 x 1", "1 x 8")
RedistributionLabWidget(lab)"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("cell", "at", "last"),
    [(STEPPER, "stepper.at", 6), (REDISTRIBUTION, "lab.at", 2)],
    ids=["stepper", "redistribution"],
)
def test_play_goes_to_the_end_and_the_model_with_it(world, opened, cell, at, last):
    page = world[0]
    book = opened("play.ipynb", cell, f"print({at})")
    book.run_cell(0)
    play = page.locator(".pl-lab [data-act=play]")
    play.click(timeout=PATIENCE_MS)
    expect(play).to_contain_text("❚❚ Stop", timeout=PATIENCE_MS)
    expect(page.locator(".pl-lab input[type=range]").first).to_have_value(str(last), timeout=PATIENCE_MS)
    expect(play).to_be_disabled(timeout=PATIENCE_MS)
    book.run_cell(1)
    assert until(lambda: book.printed("c1") == f"{last}\n") and not book.errors()


@pytest.mark.exhaustive
def test_an_algorithm_runs_on_the_ranks_of_a_cell(opened):
    book = opened("ranks.ipynb", "%load_ext parallel_lab", RANKS)
    book.run_cell(0)
    book.run_cell(1)
    said = book.printed(book.cells()[1]["id"])
    assert "[6.0, 10.0, 14.0, 18.0, 22.0, 26.0]" in said and not book.errors(), said
