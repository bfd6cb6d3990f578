"""What choices would lead to, in a real browser: bars in the list, and a preview where one points."""

from __future__ import annotations

import pytest

from parallel_lab.base.units import bytes_text
from parallel_lab.lab.shared.replay import Limits
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.lab.widgets import StrategyLabWidget
from tests.browser.lab_page import MARKS, browser, live, page_of, sync_api

__all__ = ["browser", "live", "page_of"]  # the fixtures

expect = sync_api.expect
pytestmark = MARKS
CARDS = ".pl-cards .pl-card-text"


@pytest.mark.quick(1)
@pytest.mark.parametrize("form", ["page", "kernel"])
def test_a_list_of_strategies_shows_what_each_leads_to_and_previews_it(page_of, live, form):
    """As a lab with that strategy shows it; Escape and leaving bring back what is set, a click chooses."""
    lab, tried = StrategyLab(devices=4), StrategyLab(devices=4)
    plan, known = lab.plan, lab.snapshot()["operators"][0]["choices"]
    choices = known[:3]
    tried.set_strategy("matmul", choices[1])
    if form == "page":
        page = page_of(lab.to_html(limits=Limits(18, 60)), width=904)
    else:
        page, _ = live(StrategyLabWidget(lab), width=848)
    texts, before = page.locator(CARDS), [card["text"] for card in lab.snapshot()["cards"]]
    page.locator("[data-drop=matmul]").click()
    option = page.locator(".pl-list [role=option]")
    last = 3 if form == "page" else len(known)  # a kernel is asked for one after the other
    expect(page.locator(f".pl-list [role=option]:nth-child({last}) .pl-weights i")).to_have_count(3)
    share = "(e) => [...e.querySelectorAll('.pl-weights i')].map((i) => parseFloat(i.style.width))"
    lengths = [option.nth(n).evaluate(share) for n in range(len(choices))]
    memory = [lab.weigh("set_strategy", "matmul", choice)["memory"][0] for choice in choices]
    assert [bars[2] / lengths[0][2] for bars in lengths] == pytest.approx([m / memory[0] for m in memory], abs=0.01)
    option.nth(1).hover()
    expect(texts).to_have_text([card["text"] for card in tried.snapshot()["cards"]])
    expect(page.locator(".pl-status")).to_contain_text(tried.snapshot()["status_rank"])
    size = bytes_text(memory[1])
    expect(page.locator(".pl-weighed")).to_contain_text(f"memory {size}")
    page.keyboard.press("Escape")
    expect(texts).to_have_text(before)
    assert not page.locator(".pl-previewing").count() and lab.plan is plan
    page.locator("[data-drop=matmul]").click()
    page.keyboard.press("ArrowUp")  # from the one in force to the one before it
    expect(page.locator(".pl-previewing")).to_have_count(1)
    page.keyboard.press("Escape")
    page.locator("[data-drop=matmul]").click()
    option.nth(1).click()
    expect(texts).to_have_text([card["text"] for card in tried.snapshot()["cards"]])
    expect(page.locator(".pl-previewing")).to_have_count(0)
