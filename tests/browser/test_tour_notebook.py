"""The first minute, as a new reader clicks through it in a real JupyterLab: each step of the tour waits for the
reader's own action, and one click ends it for ever.
"""

from __future__ import annotations

import re

import pytest

from tests.browser.jupyterlab import MARKS, opened, sync_api, world

__all__ = ["opened", "world"]  # the fixtures

expect = sync_api.expect

pytestmark = [*MARKS, pytest.mark.exhaustive, pytest.mark.timeout(400)]
LESSON, LAB = "01_quickstart.ipynb", 1  # the number of its cell
NOTEBOOKS = [LESSON]
PATIENCE_MS = 120_000
FORGET = "() => localStorage.removeItem('parallel-lab-strategy-story-off')"
THEME = "(theme) => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"


@pytest.fixture(params=["JupyterLab Light", "JupyterLab Dark"])
def begin(opened, request):
    """begin() -> the lab of the first lesson, drawn anew by its cell."""
    expect.set_options(timeout=PATIENCE_MS)
    book = opened(LESSON)
    book.page.evaluate(FORGET)
    book.page.evaluate(THEME, request.param)
    expect(book.page.locator("body")).to_have_attribute("data-jp-theme-name", request.param)

    def drawn():
        book.run_cell(LAB)
        book.scroll_to(LAB)
        lab = book.page.locator(".pl-lab").first
        expect(lab.locator(".pl-predict")).to_contain_text("what is the shape of its slice of w")
        lab.locator("[data-key=predict]").uncheck()  # the tour waits until nothing is asked
        expect(lab.locator(".pl-card")).to_have_count(8)
        return lab

    yield drawn
    book.page.evaluate(FORGET)
    assert not book.errors()
    expect.set_options(timeout=5_000)


def choose(lab, operator: str, strategy: str) -> None:
    lab.locator(f"[data-drop={operator}]").click()
    options = lab.get_by_role("listbox", name=f"legal strategies of {operator}").get_by_role("option")
    options.filter(has_text=strategy).click()
    expect(lab.get_by_role("combobox", name=operator, exact=True)).to_have_value(strategy)


def rank(lab, number: int):
    return lab.get_by_role("radio", name=re.compile(f"^rank {number},"))


def test_four_steps_each_taken_by_the_reader_and_then_no_tour_any_more(begin):
    lab = begin()
    told = lab.locator(".pl-story")
    expect(told).to_contain_text("1 of 4: Give an operator another strategy")
    rank(lab, 3).click()  # something else does not count as a step
    expect(rank(lab, 3)).to_have_attribute("aria-checked", "true")
    expect(told).to_contain_text("1 of 4")
    choose(lab, "matmul", "((1, 8), (8, 1))")
    expect(told).to_contain_text("2 of 4: Press Run")
    rank(lab, 5).click()
    expect(rank(lab, 5)).to_have_attribute("aria-checked", "true")
    expect(told).to_contain_text("2 of 4")
    lab.get_by_role("button", name="Run", exact=True).click()
    expect(told).to_contain_text("3 of 4: Hatched slices")
    lab.locator("select[data-key=tensor]").select_option("matmul2.partial")
    expect(lab.locator('.pl-card [fill*="hatch"]')).to_have_count(8)
    expect(told).to_contain_text("3 of 4")
    rank(lab, 2).click()
    expect(told).to_contain_text("4 of 4: Partial sums have to be added up")
    lab.locator("[data-tab=messages]").click()
    message = lab.locator("[data-command=select_message]")
    message.nth(0).click()  # a slice that a rank takes of what it has
    expect(told).to_contain_text("4 of 4: Message 1 adds up nothing")
    message.nth(1).click()
    expect(told).to_contain_text("Done.")
    told.get_by_role("button", name="close").click()
    expect(told).to_have_count(0)
    expect(begin().locator(".pl-story")).to_have_count(0)  # nor where the cell runs again


def test_one_click_ends_it_at_any_step_and_no_step_is_a_dead_end(begin):
    lab = begin()
    told = lab.locator(".pl-story")
    for operator, strategy in (("matmul", "((8, 1), (1, 1))"), ("relu", "((8, 1),)"), ("matmul2", "((8, 1), (1, 1))")):
        choose(lab, operator, strategy)
    lab.get_by_role("button", name="Run", exact=True).click()
    expect(told).to_contain_text("3 of 4: No operator makes partial sums now")
    choose(lab, "matmul2", "((2, 4), (4, 1))")
    expect(told).to_contain_text("3 of 4: Hatched slices")
    told.get_by_role("button", name="skip the story").click()
    expect(told).to_have_count(0)
    expect(begin().locator(".pl-story")).to_have_count(0)
