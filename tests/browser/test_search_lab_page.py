"""The Search Lab in a real browser, offline: points and candidates draw their plans, arguments flip the winner."""

from __future__ import annotations

import pytest

from parallel_lab.lab.search.model import SearchLab
from parallel_lab.lab.shared.replay import Limits
from parallel_lab.lab.widgets import SearchLabWidget
from tests.browser.lab_page import FEW, MARKS, boxes, browser, live, page_of, sync_api

__all__ = ["browser", "live", "page_of"]  # the fixtures

expect = sync_api.expect

pytestmark = MARKS


def centres(page) -> dict[str, tuple[float, float]]:
    """Where each point lies."""
    found = page.locator(".pl-se-point").evaluate_all(
        "(all) => all.map((g) => { const b = g.querySelector('.pl-se-ring').getBoundingClientRect(); "
        "return [g.dataset.key, b.x + b.width / 2, b.y + b.height / 2]; })"
    )
    return {name: (x, y) for name, x, y in found}


def test_a_point_draws_its_plan_and_arrows_lead_on(page_of):
    lab = SearchLab(devices=4)
    page = page_of(lab.to_html(limits=FEW))
    expect(page.locator(".pl-se-op code").first).to_have_text(str(lab.winner.strategies["matmul"]))
    page.locator(".pl-se-point[data-key=yours]").click()
    expect(page.locator(".pl-se-op code").first).to_have_text(str(lab.own.strategies["matmul"]))
    expect(page.locator(".pl-se-card")).to_have_count(4)
    page.keyboard.press("ArrowRight")
    chosen = page.locator(".pl-se-point[aria-checked=true]")
    expect(chosen).not_to_have_attribute("data-key", "yours")
    name = chosen.get_attribute("data-key")
    point = lab._point_of(name)
    expect(page.locator(".pl-se-op code").first).to_have_text(str(point.strategies["matmul"]))
    assert "#state=" in page.url


@pytest.mark.exhaustive
def test_the_dearer_a_plan_the_farther_right_the_larger_the_higher(page_of):
    lab = SearchLab("wide")
    page = page_of(lab.to_html(limits=FEW))
    places, points = centres(page), {**lab.points()}
    known = [name for name in places if name in points]
    assert len(known) > 10
    for one in known:
        for other in known:
            a, b = points[one], points[other]
            if a.cost < b.cost * 0.99:
                assert places[one][0] < places[other][0] + 0.5, (one, other)
            if a.memory_bytes < b.memory_bytes * 0.99:
                assert places[one][1] > places[other][1] - 0.5, (one, other)


@pytest.mark.exhaustive
def test_every_card_shows_what_the_plan_gives_its_rank(page_of):
    lab = SearchLab()
    page = page_of(lab.to_html(limits=FEW))
    for view in lab.snapshot()["net_of"]:
        page.locator(f".pl-se-op[data-key='{view['name']}']").click()
        texts = [card["text"] for card in view.get("cards", [])]
        assert page.locator(".pl-se-text").all_inner_texts() == texts
        expect(page.locator(".pl-se-candidates h3")).to_contain_text(view["name"].removeprefix("loss_fn."))


@pytest.mark.exhaustive
def test_a_slider_goes_through_the_search(page_of):
    lab = SearchLab(devices=2, mode="dynamic_programming")
    page = page_of(lab.to_html(limits=FEW))
    rail, steps = page.get_by_role("slider"), lab.argued.steps
    rail.focus()
    page.keyboard.press("Home")
    for number, step in enumerate(steps):
        expect(page.locator(".pl-se-steps p")).to_have_text(step.text.replace(" us", " µs"))
        expect(page.locator(".pl-se-steps")).to_contain_text(f"step {number + 1} of {len(steps)}")
        expect(page.locator(".pl-se-done")).to_have_count(len(step.done) if number < len(steps) - 1 else 0)
        page.keyboard.press("ArrowRight")


@pytest.mark.exhaustive
def test_a_pin_a_weight_and_a_cap_flip_the_winner_with_no_kernel(page_of):
    lab = SearchLab(devices=2)
    page = page_of(lab.to_html(limits=Limits(400, 60)))
    free = page.locator(".pl-se-op code").first.inner_text()
    page.locator(".pl-se-candidates tbody tr", has_not_text="chosen").first.get_by_text("pin", exact=True).click()
    expect(page.locator(".pl-status")).to_contain_text("Without the pin of matmul the winner would be")
    expect(page.locator(".pl-se-op code").first).not_to_have_text(free)
    page.locator("[data-key=clear_arguments]").click()
    expect(page.locator(".pl-se-op code").first).to_have_text(free)
    page.locator("[data-weight=gradients]").select_option("0")
    lab.set_weight("gradients", 0)
    expect(page.locator(".pl-status")).to_have_text(lab.snapshot()["status"].replace(" us", " µs"))
    page.locator("[data-key=clear_arguments]").click()
    caps = page.locator("[data-command=set_capacity] option").evaluate_all("(all) => all.map((o) => o.value)")
    page.locator("[data-command=set_capacity]").select_option(caps[-1])
    expect(page.locator(".pl-status")).to_contain_text("Without the cap of")
    expect(page.locator(".pl-se-cap")).to_have_count(1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_tensor_lies_inside_its_card(page_of, devices):
    """With 4 devices it was wider than the card, and lay over the next one."""
    page = page_of(SearchLab(devices=devices).to_html(limits=FEW), width=848)
    cards, tensors = (boxes(page.locator(f".pl-se-card{part}")) for part in ("", " svg"))
    assert len(cards) == devices
    for card, tensor in zip(cards, tensors, strict=True):
        assert card["x"] < tensor["x"] and tensor["x"] + tensor["width"] < card["x"] + card["width"]


@pytest.mark.exhaustive
@pytest.mark.timeout(180)
def test_controls_are_commands_and_a_run_of_both_opens_its_tables(live):
    lab = SearchLab(devices=2)
    page, widget = live(SearchLabWidget(lab))
    page.locator("[data-command=set_mode][data-value=recursive_programming]").click()
    assert lab.choices()["mode"].value == "recursive_programming"
    assert page.locator("[data-weight]").count() == 0  # folded until somebody argues
    page.locator("[data-argue]").click()
    page.locator("[data-weight='partial sums']").select_option("10")
    assert lab.argued.weights == {"partial sums": 10.0}
    page.locator("[data-key=clear_arguments]").click()
    assert lab.arguments == 0
    page.locator(".pl-se-point[data-key='front 1'], .pl-se-point[data-key=winner]").first.click()
    page.locator("[data-key=run]").click()
    assert lab.wait(120) and lab.result is not None and widget.last_error is None
    page.locator("[data-command=set_mode][data-value=recursive_programming]").click()  # the page asks what there is
    expect(page.locator(".pl-section-runs tbody tr")).to_have_count(2)
    page.locator("[data-tab=equality]").click()
    expect(page.locator(".pl-section-equality .pl-good")).not_to_have_count(0)
    expect(page.locator(".pl-section-equality .pl-wrong")).to_have_count(0)
    lab.close()
