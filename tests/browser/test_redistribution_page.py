"""The Redistribution Lab in a real browser: tokens travel from card to card, and a list stands there where none may."""

from __future__ import annotations

import pytest

from parallel_lab.lab.redistribution.model import STEPS, RedistributionLab
from parallel_lab.lab.widgets import RedistributionLabWidget
from tests.browser.lab_page import FEW, MARKS, boxes, browser, live, page_of, sync_api

__all__ = ["browser", "live", "page_of"]  # the fixtures

expect = sync_api.expect

pytestmark = MARKS

COLUMNS = ("8 x 1", "1 x 8", "copies", "all_to_all")
CENTRES = """(all) => all.map((e) => { const { x, y, width, height } = e.getBoundingClientRect();
  return [Math.round(x + width / 2), Math.round(y + height / 2)]; })"""


def tokens(page, side, look):
    return page.locator(f"[data-side^={side}] .pl-mv-{look} .pl-block")


@pytest.mark.exhaustive
def test_a_step_sends_a_token_from_every_card_to_every_other(page_of):
    """8 ranks, 7 tokens from each: in flight together, and then where the cards show them."""
    page = page_of(RedistributionLab(8, *COLUMNS).to_html(limits=FEW))
    expect(tokens(page, "before", "goes")).to_have_count(56)
    expect(tokens(page, "before", "stays")).to_have_count(8)
    expect(tokens(page, "after", "goes")).to_have_count(0)
    page.evaluate(  # the page counts: on a loaded machine a flight is over before it is asked
        """() => { window.most = 0; const all = document.getElementsByClassName("pl-ghost");
        const count = () => { most = Math.max(most, all.length); };
        new MutationObserver(count).observe(document.body, { subtree: true, childList: true }); }"""
    )
    page.get_by_role("button", name="one step on").click()
    page.wait_for_function("most === 56")
    expect(page.locator(".pl-ghost")).to_have_count(0)
    expect(tokens(page, "after", "goes")).to_have_count(56)
    expect(tokens(page, "after", "stays")).to_have_count(8)


@pytest.mark.exhaustive
def test_a_token_leaves_and_lands_on_the_place_that_the_cards_show(page_of):
    page = page_of(RedistributionLab(2, "2 x 1", "1 x 2", steps="all_to_all").to_html(limits=FEW))
    start = sorted(map(tuple, tokens(page, "before", "goes").evaluate_all(CENTRES)))
    page.evaluate("""() => { const fly = Element.prototype.animate; window.flown = [];
      Element.prototype.animate = function (frames, how) { const box = this.getBoundingClientRect();
        const end = frames.at(-1).transform.match(/-?[\\d.]+/g).map(Number), x = box.x + box.width / 2;
        const y = box.y + box.height / 2; window.flown.push([[x, y], [x + end[0], y + end[1]]]);
        return fly.call(this, frames, how); }; }""")
    page.get_by_role("button", name="one step on").click()
    expect(tokens(page, "after", "goes")).to_have_count(2)
    end = sorted(map(tuple, tokens(page, "after", "goes").evaluate_all(CENTRES)))
    flown = page.evaluate("window.flown")
    for shown, which in ((start, 0), (end, 1)):
        drawn = sorted(tuple(point[which]) for point in flown)
        near = [
            abs(a - b) < 2 for one, other in zip(shown, drawn, strict=True) for a, b in zip(one, other, strict=True)
        ]
        assert all(near), (shown, drawn)


@pytest.mark.exhaustive
def test_a_control_never_waits_for_flying_chunks(page_of):
    page = page_of(RedistributionLab(8, "8 x 1", "1 x 8").to_html(limits=FEW))
    page.evaluate(
        "document.querySelector('[data-act=next]').click(); document.querySelector('[data-act=next]').click()"
    )
    page.wait_for_selector("[data-at='2']")
    page.evaluate("document.querySelector('[data-act=reset]').click()")
    page.wait_for_selector("[data-at='0']")
    expect(page.locator(".pl-ghost")).to_have_count(0)
    expect(page.locator(".pl-mv-text")).to_contain_text("step 1, to come")


def test_nothing_flies_under_reduced_motion_and_the_list_is_open(page_of):
    page = page_of(RedistributionLab(8, *COLUMNS).to_html(limits=FEW), reduced_motion="reduce")
    page.evaluate("() => { window.flown = 0; Element.prototype.animate = () => { window.flown += 1; }; }")
    page.get_by_role("button", name="one step on").click()
    expect(tokens(page, "after", "goes")).to_have_count(56)
    assert page.evaluate("window.flown") == 0
    expect(page.get_by_role("tabpanel")).to_contain_text("rank 1 keeps [2:4, 4:8]; gets [0:2, 4:8] from 0 (32 B)")


@pytest.mark.exhaustive
def test_the_answer_of_the_kernel_does_not_end_the_flight(live):
    page, widget = live(RedistributionLabWidget(RedistributionLab(8, *COLUMNS)))
    page.evaluate("""() => { const fly = Element.prototype.animate;
      Element.prototype.animate = function (...how) { const one = fly.apply(this, how);
        one.pause(); return one; }; }""")
    page.get_by_role("button", name="one step on").click()
    expect(page.locator(".pl-ghost")).to_have_count(56)
    page.wait_for_timeout(300)
    assert widget.lab.at == 1  # the kernel has answered while they are in the air
    assert page.locator(".pl-ghost").count() == 56
    page.evaluate("() => document.getAnimations().forEach((one) => one.finish())")
    expect(tokens(page, "after", "goes")).to_have_count(56)


@pytest.mark.exhaustive
def test_the_picture_counts_the_steps_of_the_sentence(page_of):
    """An all_reduce is drawn in two halves, and is one step; a reshape sends nothing, and is one, too."""
    lab = RedistributionLab(8, "2 x 2", "1 x 4", "addends")
    page, place = page_of(lab.to_html(limits=FEW)), []
    expect(page.locator(".pl-status")).to_contain_text(f"{len(lab.plan)} steps, 3 with communication")
    for at in range(len(lab.moves["frames"]) + 1):
        if at:
            page.get_by_role("button", name="one step on").click()
        page.wait_for_selector(f"[data-at='{at}']")
        place.append(page.locator(".pl-place").inner_text())
    assert place == [f"{done} of 7 steps" for done in ("0", "½", "1", "2", "3", "4", "5", "6", "7")]


@pytest.mark.exhaustive
def test_partial_sums_are_hatched_until_they_are_added(page_of):
    lab = RedistributionLab(4, "2 x 1", "2 x 1", "addends")
    page = page_of(lab.to_html(limits=FEW))
    hatched = "[data-side^={}] rect[fill*=hatch]"
    assert page.locator(hatched.format("before")).count() > 0
    page.get_by_role("button", name="one step on").click()
    expect(page.locator(".pl-ghost")).to_have_count(0)
    assert page.locator(hatched.format("after")).count() == 0


def test_all_cards_are_in_view(page_of):
    page = page_of(RedistributionLab(8, "2 x 2", "1 x 4", "addends").to_html(limits=FEW), width=848)
    cards = boxes(page.locator(".pl-mv-card"))
    assert len(cards) == 16 and all(c["x"] >= 0 and c["x"] + c["width"] <= 848 for c in cards)
    assert max(c["y"] + c["height"] for c in cards) < 800


@pytest.mark.exhaustive
@pytest.mark.parametrize("steps", STEPS)
def test_a_projector_shows_the_bytes_on_the_cards_whole(page_of, steps):
    """At 1.6 times the size "1.75 KiB" was cut off at its last letter."""
    lab = RedistributionLab(8, "8 x 1", "1 x 8", steps=steps)
    lab.set_scale(1.6)
    page = page_of(lab.to_html(limits=FEW), width=1280)
    over = """(all) => all.filter((e) => { const card = e.closest(".pl-mv-card").getBoundingClientRect();
      return e.getBoundingClientRect().right > card.right - 1; }).map((e) => e.textContent)"""
    said = page.locator(".pl-mv-card i")
    assert said.count() and said.evaluate_all(over) == []
