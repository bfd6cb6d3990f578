"""What choices would lead to, in a real browser: bars in the list, and a preview where one points."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_lab.base.units import bytes_text
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.memory.puzzle import fullest
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.shared.lab_view import widget_of
from parallel_lab.lab.shared.replay import Limits
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.lab.widgets import StrategyLabWidget
from tests.browser.lab_page import MARKS, axe_faults, browser, live, page_of, sync_api

__all__ = ["browser", "live", "page_of"]  # the fixtures

expect = sync_api.expect
pytestmark = MARKS
LAB_PX = 655
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
    expect(page.locator(f".pl-list [role=option]:nth-child({last}) .pl-weights i:visible")).to_have_count(3)
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


# a lab, a choice that is pointed at, what opens its list, and a text that only the picture with that choice has
LISTS: dict[str, tuple[Any, str, str, Any]] = {
    "memory": (MemoryLab, "level3", "", lambda lab: f"fullest: {bytes_text(fullest(lab.ranks()).peak_bytes)}"),
    "fusion": (FusionLab, "each", "", lambda lab: "message 10: "),
    "pipeline": (PipelineLab, "gpipe", "[data-do=weigh]", lambda lab: "at most 8 micro-batches"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["page", "kernel"])
@pytest.mark.parametrize("name", LISTS)
def test_a_row_of_choices_has_bars_and_previews_the_one_pointed_at(page_of, live, name, form):
    make, choice, opener, text = LISTS[name]
    lab, tried = make(), make()
    (command,) = lab.weighed
    getattr(tried, command)(choice)
    if form == "page":
        page = page_of(lab.to_html(limits=Limits(14, 60)), width=904)
    else:
        page, _ = live(widget_of(make)(lab), width=848)
    if opener:
        page.locator(opener).click()
    others = [call[-1] for call in lab.replays() if call[0] == command][:6]
    rows = [page.locator(f"button[data-command={command}][data-value='{one}']") for one in others]
    for row in rows:
        expect(row.locator(".pl-weights i:visible")).to_have_count(3)
    share = "(e) => [...e.querySelectorAll('.pl-weights i')].map((i) => parseFloat(i.style.width))"
    weights = [[value for value, _ in lab.weigh(command, one).values()] for one in others]
    drawn = [row.evaluate(share) for row in rows]
    for n in range(3):
        expected = [weight[n] / (weights[0][n] or 1) for weight in weights]
        assert [bars[n] / (drawn[0][n] or 1) for bars in drawn] == pytest.approx(expected, abs=0.03)
    before, height = page.locator(".pl-status").inner_text(), page.locator(".pl-lab").bounding_box()["height"]
    row = page.locator(f"button[data-command={command}][data-value={choice}]")
    row.hover()
    expect(page.locator(".pl-previewing")).to_have_count(1)
    expect(page.locator(".pl-status")).to_contain_text(tried.snapshot()["status"].replace(" us", " µs"))
    expect(page.locator(".pl-lab")).to_contain_text(text(tried))
    assert height <= LAB_PX or form == "page"
    assert lab.snapshot() == make().snapshot() and not axe_faults(page, ".pl-lab")
    page.mouse.move(2, 2)
    expect(page.locator(".pl-previewing")).to_have_count(0)
    assert page.locator(".pl-status").inner_text() == before
    row.click()
    expect(page.locator(".pl-status")).to_contain_text(tried.snapshot()["status"].replace(" us", " µs"))
    expect(row).to_have_attribute("aria-checked", "true")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LISTS)
def test_no_choice_moves_away_from_the_pointer(live, name):
    """The preview of "off" in the Memory Lab had one line less to say, and all below it moved up by 21 pixels."""
    make, _, opener, _ = LISTS[name]
    lab = make()
    page, _ = live(widget_of(make)(lab), width=848)
    if opener:
        page.locator(opener).click()
    (command,) = lab.weighed
    rows = page.locator(f"button[data-command={command}]")
    expect(rows.last.locator(".pl-weights i:visible")).to_have_count(3)
    moved, pointed = {}, 0
    for row in rows.all():
        before = row.bounding_box()
        row.hover()
        page.wait_for_timeout(100)
        pointed += page.locator(".pl-previewing").count()
        if (after := row.bounding_box()) != before:
            moved[row.get_attribute("data-value")] = (before, after)
        page.mouse.move(2, 2)
        expect(page.locator(".pl-previewing")).to_have_count(0)
    assert not moved and pointed >= 3
