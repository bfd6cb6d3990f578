"""The Search Lab in a real JupyterLab: an argument flips the winner, and both are trained on worker processes."""

from __future__ import annotations

import pytest

from tests.browser.jupyterlab import MARKS, opened, sync_api, until, world

__all__ = ["opened", "world"]  # the fixtures

expect = sync_api.expect

pytestmark = [*MARKS, pytest.mark.exhaustive]
PATIENCE_MS = 60_000
LAB = """import parallel_lab as pl
lab = pl.SearchLab("quickstart", devices=4)
pl.widgets.SearchLabWidget(lab)"""
KEPT = "print(lab.pins, lab.result and all(run.equality.equal for run in lab.result.plans))"


@pytest.mark.timeout(300)
def test_a_pin_flips_the_winner_and_run_both_says_three_times_and_that_the_numbers_are_equal(opened):
    book = opened("search.ipynb", LAB, KEPT)
    book.run_cell(0)
    root = book.page.locator(".pl-lab").first
    status = root.locator(".pl-status")
    expect(status).to_contain_text("The exact search takes matmul", timeout=PATIENCE_MS)
    before = root.locator(".pl-se-op code").first.inner_text()
    other = root.locator(".pl-se-candidates tbody tr", has_not_text="chosen").first
    wanted = other.locator("th").inner_text()
    other.get_by_text("pin", exact=True).click()
    expect(status).to_contain_text("Without the pin of matmul the winner would be", timeout=PATIENCE_MS)
    expect(root.locator(".pl-se-op code").first).to_have_text(wanted)
    assert wanted != before
    root.locator("[data-key=run]").click()
    expect(root.locator(".pl-section-runs tbody tr")).to_have_count(2, timeout=PATIENCE_MS)
    expect(root.locator(".pl-section-runs .pl-good")).to_have_count(2)
    assert root.bounding_box()["width"] >= 640
    book.run_cell(1)
    assert until(lambda: "'matmul': " in book.printed("c1") and book.printed("c1").rstrip().endswith("True"))
    assert not book.errors()
