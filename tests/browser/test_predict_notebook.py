"""Predict first in a real JupyterLab: a lab asks, keeps the answer before it shows, and asks no more once it is off."""

from __future__ import annotations

import pytest

from parallel_lab.lab.collectives.model import CollectiveStepper
from tests.browser.jupyterlab import MARKS, opened, sync_api, until, world

__all__ = ["opened", "world"]  # the fixtures

expect = sync_api.expect

pytestmark = [*MARKS, pytest.mark.exhaustive]
PATIENCE_MS = 60_000
STEPPER = """import parallel_lab as pl
lab = pl.CollectiveStepper("all_reduce", "ring", ranks=4)
lab.set_predict(True)
pl.widgets.CollectiveStepperWidget(lab)"""
STRATEGY = """import parallel_lab as pl
lab = pl.StrategyLab("quickstart", 8)
pl.widgets.StrategyLabWidget(lab)"""
KEPT = "print(list(lab.answers.values()), lab._predict)"


def test_a_number_is_typed_before_the_rounds_are_shown_and_the_switch_ends_the_questions(opened):
    book = opened("predict.ipynb", STEPPER, "print(lab.predictions())", KEPT, KEPT)
    book.run_cell(0)
    root = book.page.locator(".pl-lab").first
    asked = root.get_by_role("group", name="predict first")
    expect(asked).to_contain_text("Predict:", timeout=PATIENCE_MS)
    expect(root.locator(".pl-transport")).to_have_count(0)  # the rounds are covered
    asked.get_by_role("textbox", name="your answer").fill("7")
    asked.get_by_role("button", name="Keep").click()
    rounds = CollectiveStepper("all_reduce", "ring", ranks=4).snapshot()["frames"]
    expect(asked).to_contain_text(f"You: 7 rounds, not yet. {len(rounds) - 1} rounds", timeout=PATIENCE_MS)
    expect(root.locator(".pl-transport")).to_have_count(1)
    book.run_cell(1)
    assert until(lambda: "How many rounds" in book.printed("c1")) and "7" in book.printed("c1")
    root.get_by_role("checkbox", name="predict first").uncheck()
    expect(asked).to_have_count(0, timeout=PATIENCE_MS)
    book.run_cell(2)
    assert until(lambda: book.printed("c2") == "[7] False\n")
    root.get_by_role("radio", name="8 ranks").click()  # about which nothing was asked yet
    expect(root.locator(".pl-title")).to_have_text("all_reduce by ring, 8 ranks", timeout=PATIENCE_MS)
    expect(asked).to_have_count(0)
    expect(root.locator(".pl-transport")).to_have_count(1)
    assert not book.errors()


def test_a_click_on_an_edge_is_the_answer_once_the_switch_is_on(opened):
    book = opened("click.ipynb", STRATEGY, KEPT)
    book.run_cell(0)
    root = book.page.locator(".pl-lab").first
    expect(root.locator(".pl-tabs")).to_have_count(1, timeout=PATIENCE_MS)
    root.get_by_role("checkbox", name="predict first").check()
    asked = root.get_by_role("group", name="predict first")
    expect(asked).to_contain_text("Click its edge in the graph", timeout=PATIENCE_MS)
    expect(root.locator(".pl-tabs")).to_have_count(0)
    root.locator('.pl-edge[data-value="matmul.partial"] .pl-reach').click(force=True)
    expect(asked).to_contain_text("You: out of matmul, partial sums", timeout=PATIENCE_MS)
    expect(root.locator(".pl-tabs")).to_have_count(1)
    book.run_cell(1)
    assert until(lambda: book.printed("c1") == "['matmul.partial'] True\n") and not book.errors()
