"""The Fusion Lab in a real browser, offline: drawing, cuts moved with mouse and keyboard, both themes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.widgets import FusionLabWidget
from tests.browser.lab_page import FEW, MARKS, boxes, browser, live, page_of, sync_api

__all__ = ["browser", "live", "page_of"]  # the fixtures

expect = sync_api.expect

pytestmark = MARKS


def cuts(page) -> list[int]:
    return [int(c.get_attribute("aria-valuenow")) for c in page.locator(".pl-fu-cut").all()]


# ---- what is drawn ----


def test_lanes_are_drawn_to_scale(page_of):
    """Par of golf: backward ends at 10 of 22 ms, messages 1 to 4 take 3, 2.5, 3.5 and 12 ms."""
    lab = FusionLab("golf")
    lab.set_index([4])
    lab.show_best()
    page = page_of(lab.to_html(limits=FEW))
    bars = boxes(page.locator(".pl-fu-box rect"))
    sent = boxes(page.locator(".pl-fu-message > rect:not(.pl-fu-bare)"))
    assert len(bars) == 10 and len(sent) == 4
    per_ms = bars[1]["x"] - bars[0]["x"]
    zero = bars[0]["x"]
    assert [round((b["x"] - zero) / per_ms, 1) for b in sent] == [1, 4, 6.5, 10]
    assert [round(b["width"] / per_ms, 1) for b in sent] == pytest.approx([3, 2.5, 3.5, 12], abs=0.1)
    assert page.locator(".pl-fu-exposed").inner_html() == "exposed 12 ms"
    expect(page.locator(".pl-fu-message .pl-fu-bare")).to_have_count(1)


def test_three_step_times_say_their_source_and_unit(page_of):
    lab = FusionLab("dense", devices=2)
    lab.run_simulated(steps=1)
    lab.wait(60)
    page = page_of(lab.to_html(limits=FEW))
    cards = page.locator(".pl-fu-time")
    expected = ["predicted", "simulated", "measured"]
    assert [cards.nth(i).locator(".pl-fu-source").inner_text() for i in range(3)] == expected
    for i in range(2):
        assert cards.nth(i).locator(".pl-fu-big").inner_text().split()[1] in ("µs", "ms", "s")
    assert cards.nth(2).locator(".pl-fu-big").inner_text() == "–"
    assert "equal bit for bit" in page.locator(".pl-section-times .pl-verdict").inner_text()


@pytest.mark.exhaustive
def test_the_lanes_of_another_source_can_be_chosen_without_a_kernel(page_of):
    lab = FusionLab("dense", devices=2)
    lab.run_simulated(steps=1)
    lab.wait(60)
    page = page_of(lab.to_html(limits=FEW))
    page.get_by_role("radio", name="simulated").click()
    page.locator('[data-tab="messages"]').click()
    expect(page.locator(".pl-section-messages h3 small")).to_contain_text("simulated")
    label = page.locator(".pl-fu-figure > svg").get_attribute("aria-label")
    assert label.startswith("backward and its messages, simulated")


@pytest.mark.quick(0)
@pytest.mark.parametrize("width", [1280, 848, 640])
@pytest.mark.parametrize("subject", ["golf", "transformer", "convnet"])
def test_every_cut_has_a_knob_that_a_hand_finds(page_of, subject, width):
    lab = FusionLab(subject, devices=8, parallel_mode="semi_auto_parallel")
    lab.set_mode("each")
    places = [box["x"] for box in boxes(page_of(lab.to_html(limits=FEW), width=width).locator(".pl-fu-knob"))]
    assert len(places) == len(lab.cuts) and all(b - a >= 6 for a, b in pairwise(places))


# ---- with a kernel ----


def test_a_cut_is_dragged_with_the_mouse(live):
    lab = FusionLab("golf")
    lab.set_cuts([2, 6])
    page, widget = live(FusionLabWidget(lab))
    bars = boxes(page.locator(".pl-fu-box rect"))
    knob = page.locator(".pl-fu-cut").nth(0).locator(".pl-fu-knob").bounding_box()
    page.mouse.move(knob["x"] + knob["width"] / 2, knob["y"] + knob["height"] / 2)
    page.mouse.down()
    page.mouse.move(bars[4]["x"] + 3, knob["y"] + 10, steps=6)  # where gradient 4 begins
    expect(page.locator(".pl-fu-cut").nth(0)).to_have_attribute("aria-valuenow", "4")
    page.mouse.up()
    expect(page.locator(".pl-fu-config input")).to_have_value("[3, 5]")
    assert lab.cuts == (4, 6) and cuts(page) == [4, 6] and widget.last_error is None


@pytest.mark.exhaustive
def test_par_is_reached_with_the_keyboard_alone(live):
    """From one bucket to [0, 3, 5]: Split three times, then arrow keys; the focus stays on the cut that moves."""
    lab = FusionLab("golf")
    page, widget = live(FusionLabWidget(lab))
    for number in (1, 2, 3):
        page.get_by_role("button", name="Split").press("Enter")
        expect(page.locator(".pl-fu-cut")).to_have_count(number)
    for number, to in enumerate((1, 4, 6)):
        slider = page.locator(".pl-fu-cut").nth(number)
        slider.focus()
        for _ in range(12):
            at = int(slider.get_attribute("aria-valuenow"))
            if at == to:
                break
            page.keyboard.press("ArrowRight" if at < to else "ArrowLeft")
            expect(slider).to_have_attribute("aria-valuenow", str(at + (1 if at < to else -1)))
            found = page.evaluate("document.activeElement.getAttribute('aria-valuenow')")
            assert found == slider.get_attribute("aria-valuenow")
    assert lab.cuts == (1, 4, 6) and lab.score.ratio == pytest.approx(1.0) and widget.last_error is None
    expect(page.locator(".pl-status")).to_contain_text("which is par")
    page.locator(".pl-fu-cut").nth(1).focus()
    page.keyboard.press("Delete")
    expect(page.locator(".pl-fu-cut")).to_have_count(2)
    assert lab.cuts == (1, 6)


def test_a_click_between_gradients_cuts_there(live):
    lab = FusionLab("golf")
    page, _ = live(FusionLabWidget(lab))
    page.locator('[data-add="7"] .pl-fu-reach').click()
    expect(page.locator(".pl-fu-cut")).to_have_count(1)
    assert lab.cuts == (7,)


def test_a_cut_is_moved_by_clicks_alone(live):
    """WCAG 2.5.7: the first click chooses it, the second takes it away, a third cuts elsewhere."""
    lab = FusionLab("golf")
    lab.add_cut(3)
    page, widget = live(FusionLabWidget(lab))
    knob = page.locator(".pl-fu-cut .pl-fu-knob").first
    knob.click()
    expect(page.locator(".pl-fu-cut")).to_be_focused()
    assert lab.cuts == (3,)
    knob.click()
    expect(page.locator(".pl-fu-cut")).to_have_count(0)
    page.locator('[data-add="6"] .pl-fu-reach').click()
    expect(page.locator(".pl-fu-cut")).to_have_count(1)
    assert lab.cuts == (6,) and widget.last_error is None


def test_modes_settings_and_refusals(live):
    lab = FusionLab("golf")
    page, widget = live(FusionLabWidget(lab))
    page.get_by_role("radio", name="size").click()
    field = page.locator(".pl-fu-config input")
    expect(field).to_have_value("8")
    field.fill("a lot")
    field.press("Enter")
    expect(page.locator(".pl-notice")).to_contain_text("One whole number of MB, such as 8")
    assert lab.comm_fusion["allreduce"] == {"mode": "size", "config": 8}
    field.fill("16")
    field.press("Enter")
    expect(page.locator(".pl-notice")).to_have_count(0)
    assert lab.comm_fusion["allreduce"]["config"] == 16 and widget.last_error is None
    page.get_by_role("radio", name="size").press("ArrowRight")  # the next mode is index
    expect(page.get_by_role("radio", name="index")).to_have_attribute("aria-checked", "true")
    page.locator('[data-tab="cost"]').click()
    page.locator('[data-line="alpha"]').fill("0")
    page.locator('[data-line="alpha"]').press("Enter")
    expect(page.get_by_role("button", name="Reset")).to_be_enabled()
    assert lab.snapshot()["line"]["alpha_s"] == 0
    for given, label in (("nan", "alpha"), ("-1", "alpha"), ("x", "beta")):
        page.locator(f'[data-line="{label}"]').fill(given)
        page.locator(f'[data-line="{label}"]').press("Enter")
        expect(page.locator(".pl-notice")).to_contain_text(f"{label} '{given}'. A finite number, 0 or more.")
    assert lab.snapshot()["line"]["alpha_s"] == 0
    page.get_by_role("button", name="Show par").click()
    expect(page.locator(".pl-status")).to_contain_text("which is par")
