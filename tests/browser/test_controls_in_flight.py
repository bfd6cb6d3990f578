"""An animation never delays a control: what is asked for while tokens fly is answered and drawn before they would land.

The flights are given a minute each, so that nothing here depends on the speed of the machine.
"""

from __future__ import annotations

import pytest

from parallel_lab.lab.collectives.model import CollectiveStepper
from parallel_lab.lab.redistribution.model import RedistributionLab
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.lab.widgets import CollectiveStepperWidget, RedistributionLabWidget, StrategyLabWidget
from tests.browser.lab_page import MARKS, browser, live, page_of, recorded, sync_api

__all__ = ["browser", "live", "page_of", "recorded"]  # the fixtures

pytestmark = MARKS
LONG = """() => { const fly = Element.prototype.animate;
  Element.prototype.animate = function (frames, how) {
    return fly.call(this, frames, { ...how, duration: 60000 }); }; }"""


def stepper():
    return CollectiveStepperWidget(CollectiveStepper("all_reduce", "ring", 4))


def redistribution():
    return RedistributionLabWidget(RedistributionLab(8, "8 x 1", "1 x 8"))


def strategy():
    """One that looks at a message whose redistribution moves something."""
    lab = StrategyLab("quickstart", 8)
    lab.set_strategy("matmul", "((8, 1), (1, 1))")
    lab.set_strategy("matmul2", "((1, 8), (8, 1))")
    lab.select_message(2)  # an all_gather
    return StrategyLabWidget(lab)


PRESSED = {
    "stepper: a chunk is followed": (stepper, lambda p: p.locator("[data-chunk]").nth(2).click(), ".pl-faded"),
    "stepper: other ranks": (stepper, lambda p: p.get_by_role("radio", name="8 ranks").click(), "[data-cell='7-7']"),
    "stepper: another tab": (stepper, lambda p: p.locator("[data-tab=compare]").click(), ".pl-compare"),
    "redistribution: a rank": (
        redistribution,
        lambda p: p.locator("[data-side=after-6]").click(),
        "[data-side=after-6][aria-checked=true]",
    ),
    "redistribution: other devices": (
        redistribution,
        lambda p: p.get_by_role("radio", name="4", exact=True).click(),
        "[data-slot=moves] > .pl-muted",  # with 4 nothing moves
    ),
    "strategy: a rank": (
        strategy,
        lambda p: p.locator(".pl-cards [data-value='2']").click(),
        "[data-side=after-2][aria-checked=true]",
    ),
    "strategy: another tab": (strategy, lambda p: p.locator("[data-tab=messages]").click(), ".pl-messages table"),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("what", PRESSED)
def test_what_is_pressed_in_the_middle_of_a_flight_is_drawn_at_once(live, what):
    make, press, drawn = PRESSED[what]
    page, widget = live(make())
    if make is strategy:
        page.locator("[data-tab=moves]").click()
    page.evaluate(LONG)
    page.locator("[data-act=next]").click()
    assert widget.lab.snapshot()["at"] == 1 and page.locator(".pl-ghost").count() > 0
    assert page.locator(drawn).count() == 0
    press(page)
    sync_api.expect(page.locator(drawn).first).to_be_attached()
    assert page.locator(".pl-ghost").count() == 0 and widget.last_error is None


@pytest.mark.quick(1)
@pytest.mark.parametrize("make", [stepper, redistribution])
def test_the_next_step_does_not_wait_for_the_one_under_way(live, make):
    page, widget = live(make())
    page.evaluate(LONG)
    for step in (1, 2):
        page.locator("[data-act=next]").click()
        assert page.locator(".pl-lab").get_attribute("data-at") == str(step) == str(widget.lab.at)
    page.locator("[data-act=reset]").click()
    assert page.locator(".pl-lab").get_attribute("data-at") == "0" == str(widget.lab.at)
    assert page.locator(".pl-ghost").count() == 0


@pytest.mark.quick(1)
def test_a_kernel_that_computes_for_long_is_said_to_until_it_has_answered(recorded):
    """For four seconds another network was chosen, and the lead still told the result of the one before."""
    page = recorded(RedistributionLab(8, "8 x 1", "1 x 8"))
    busy = page.locator(".pl-lab[aria-busy=true]")
    page.get_by_role("radio", name="4", exact=True).click()
    sync_api.expect(busy).to_have_count(1)
    answered = "(n) => window.tell('msg:custom', { kind: 'answered', number: n, refused: false })"
    page.get_by_role("radio", name="2", exact=True).click()
    page.evaluate(answered, 1)  # to the first of two
    assert busy.count() == 1
    page.evaluate(answered, 2)
    assert busy.count() == 0
