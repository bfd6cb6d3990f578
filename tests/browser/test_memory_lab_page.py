"""The Memory Lab in a real browser, offline: bars to scale, mouse and keyboard, nothing cut off, both themes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.memory.subjects import SUBJECTS
from parallel_lab.lab.widgets import MemoryLabWidget
from tests.browser.lab_page import FEW, MARKS, boxes, browser, live, page_of, sync_api

__all__ = ["browser", "live", "page_of"]  # the fixtures

expect = sync_api.expect

pytestmark = MARKS


def ran(lab, steps=1):
    """The lab, after a simulated run."""
    lab.run_simulated(steps)
    assert lab.wait(60)
    return lab


def show(page, tab):
    page.locator(f'[data-tab="{tab}"]').click()


# ---- what is drawn ----


@pytest.mark.exhaustive
@pytest.mark.parametrize("job", [("stack", 4), ("transformer", 4, "AdamWeightDecay", "data_parallel", "grouping")])
def test_bars_are_drawn_to_scale_in_the_fixed_order(page_of, job):
    """Ranks that hold the same are drawn once, with what one holds over the step."""
    lab = MemoryLab(*job)
    lab.set_capacity("4 MiB")
    lab.show_moment("peak")
    page, alike = page_of(lab.to_html(limits=FEW)), job == ("stack", 4)
    assert bool(page.locator("[data-key=step] .pl-mm-area").count()) == alike
    assert len({tuple(held.at("peak").items()) for held in lab.ranks()}) == (1 if alike else 4)
    drawn = page.locator(".pl-mm-bar").all()
    assert len(drawn) == 4 and (not alike or not drawn[3].locator("rect.pl-mm-params").count())
    for held, bar in zip(lab.ranks(), drawn[:1] if alike else drawn, strict=not alike):
        live = held.at("peak")
        found = {kind: bar.locator(f"rect.pl-mm-{kind}").bounding_box() for kind in live if live[kind]}
        order = [
            k for k in ("params", "grads", "optimizer", "activations", "gathered", "workspace", "inputs") if k in found
        ]
        per_byte = found["params"]["height"] / live["params"]
        assert [round(found[k]["height"], 0) for k in order] == pytest.approx(
            [max(0.75, live[k] * per_byte) for k in order], abs=1.6
        )
        bottoms = [found[k]["y"] + found[k]["height"] for k in order]
        assert bottoms == sorted(bottoms, reverse=True)
    line = page.locator(".pl-mm-figure .pl-mm-cap").first.bounding_box()
    ground = bottoms[0]
    assert ground - line["y"] == pytest.approx(lab.capacity_bytes * per_byte, abs=2)


def test_the_key_has_the_bytes_and_the_off_bar_goes_over_the_line(page_of):
    lab = MemoryLab("stack", 8)
    page = page_of(lab.to_html(limits=FEW))
    row = page.locator(".pl-mm-key tbody tr", has_text="parameters")
    assert [c.inner_text() for c in row.locator("td").all()] == ["2 MiB", "256 KiB"]
    expect(page.locator(".pl-mm-figure .pl-mm-total.pl-mm-over")).to_have_count(1)
    show(page, "levels")
    levels = page.locator(".pl-section-levels")
    expect(levels.locator("tbody tr th")).to_have_text(["off", "level1", "level2", "level3"])
    expect(levels.locator(".pl-wrong")).to_have_count(1)
    show(page, "traffic")
    expect(page.locator(".pl-section-traffic td .pl-good")).to_have_count(2)
    expect(page.locator(".pl-section-traffic td .pl-wrong")).to_have_count(0)


@pytest.mark.exhaustive
def test_rank_moment_and_source_are_chosen_without_a_kernel(page_of):
    page = page_of(ran(MemoryLab("stack", 4, "Lamb", "data_parallel", "grouping")).to_html(limits=FEW))
    page.get_by_role("radio", name="between steps").click()
    expect(page.locator(".pl-mm-figure > svg").first).to_have_attribute(
        "aria-label", "bytes per rank, between steps, simulated; the key has the same numbers"
    )
    page.get_by_role("radio", name="predicted").click()
    expect(page.locator(".pl-mm-key h3")).to_contain_text("predicted")
    page.locator('[data-rank="3"]').click()
    expect(page.locator(".pl-mm-key h3")).to_contain_text("Rank 3")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".pl-mm-key h3")).to_contain_text("Rank 2")
    assert page.evaluate("document.activeElement.dataset.rank") == "2"
    show(page, "traffic")
    expect(page.locator(".pl-section-traffic h3")).to_contain_text("rank 2")


@pytest.mark.quick(1)
@pytest.mark.parametrize("width", [1280, 848, 640])
def test_the_totals_of_the_bars_do_not_touch_and_the_key_is_inside(page_of, width):
    page = page_of(MemoryLab("transformer", 8).to_html(limits=FEW), width=width)
    totals = boxes(page.locator(".pl-mm-bar .pl-mm-total"))
    halo = 4  # on each side, part of the box
    assert all(a["x"] + a["width"] - halo <= b["x"] + halo for a, b in pairwise(totals))
    right = page.evaluate("document.querySelector('.pl-mm').getBoundingClientRect().right")
    assert all(cell["x"] + cell["width"] <= right + 1 for cell in boxes(page.locator(".pl-mm-key td")))


@pytest.mark.exhaustive
@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_lead_is_a_sentence_of_two_lines_at_most(live, subject):
    """It took three at 848 pixels, and pushed down what it is about."""
    lab = MemoryLab(subject, 8)
    page, _ = live(MemoryLabWidget(lab), width=848)
    lines = """(e, text) => { const s = getComputedStyle(e); e.textContent = text; e.style.minHeight = 0;
      return (e.getBoundingClientRect().height - 2 * parseFloat(s.paddingTop)) / parseFloat(s.lineHeight); }"""
    for capacity in (None, "1 KiB", "900 GiB"):
        lab.set_capacity(capacity)
        for level in lab.choices()["level"].known:
            lab.set_level(level)
            text = lab.snapshot()["status"]
            assert text.endswith(".") and text.count(". ") == 0
            assert page.locator(".pl-status").evaluate(lines, text) < 2.1, text


# ---- with a kernel ----


def test_a_level_is_chosen_with_the_arrow_keys(live):
    lab = MemoryLab("stack", 4)
    page, widget = live(MemoryLabWidget(lab))
    page.get_by_role("radio", name="level1").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="level2")).to_have_attribute("aria-checked", "true")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="level3")).to_have_attribute("aria-checked", "true")
    assert lab.settings.level == "level3" and widget.last_error is None
    expect(page.locator(".pl-status")).to_contain_text("With level3 a rank holds")
    show(page, "levels")
    expect(page.locator(".pl-section-levels tr.pl-on th")).to_have_text("level3")


def test_settings_are_typed_and_refused(live):
    lab = MemoryLab("stack", 4)
    page, _ = live(MemoryLabWidget(lab))
    field = page.get_by_label("a device has")
    field.fill("much")
    field.press("Enter")
    expect(page.locator(".pl-notice")).to_contain_text("A size such as")
    expect(field).to_have_value("4 MiB")
    field.fill("1 MiB")
    field.press("Enter")
    expect(page.locator(".pl-notice")).to_have_count(0)
    assert lab.capacity_bytes == 1 << 20
    page.get_by_label("threshold").fill("much")
    page.get_by_label("threshold").press("Tab")
    expect(page.locator(".pl-notice")).to_contain_text("threshold_kb='much'. An int, at least 0")
    page.get_by_label("threshold").fill("1000")
    page.get_by_label("threshold").press("Tab")
    expect(page.locator(".pl-status")).to_contain_text("nothing changes: a rank holds")
    page.get_by_label("sums in slices").uncheck()
    page.get_by_label("shared by").select_option("2")
    page.locator('[data-command="set_parallel_mode"]').select_option("data_parallel")
    expect(page.get_by_role("radio", name="grouping")).to_have_count(1)
    page.get_by_role("radio", name="grouping").click()
    expect(page.locator(".pl-notice")).to_contain_text("with Adam in data_parallel mode")
    page.locator('[data-command="set_optimizer"]').select_option("Lamb")
    page.get_by_role("radio", name="grouping").click()
    expect(page.locator(".pl-status")).to_contain_text("With grouping a rank holds")
    assert lab.settings.level == "grouping" and not lab.settings.accumulation_shard and lab.settings.shard_size == 2


@pytest.mark.exhaustive
def test_the_puzzle_is_played_and_solved(live):
    lab = MemoryLab("stack", 2, "SGD")
    page, widget = live(MemoryLabWidget(lab))
    field = page.get_by_label("a device has")
    field.fill("600000")
    field.press("Enter")
    show(page, "puzzle")
    expect(page.locator(".pl-section-puzzle .pl-wrong")).to_contain_text("does not fit")
    page.get_by_label("width").fill("16")
    page.get_by_label("width").press("Enter")
    expect(page.locator(".pl-section-puzzle .pl-good")).to_contain_text("fits")
    page.get_by_role("button", name="Find par").click()
    assert lab.wait(60)
    page.get_by_role("radio", name="before the update").click()  # this page hears of changes when it asks
    expect(page.get_by_role("button", name="Show par")).to_be_enabled()
    page.get_by_role("button", name="Show par").click()
    expect(page.locator(".pl-section-puzzle h3 small")).to_have_text("par")
    assert lab.score.ratio == 1 and widget.last_error is None


@pytest.mark.exhaustive
def test_the_paper_s_table_takes_the_learner_s_model(live):
    page, widget = live(MemoryLabWidget(MemoryLab("stack", 2)))
    show(page, "paper")
    field = page.get_by_label("parameters P")
    field.fill("1T")
    field.press("Enter")
    expect(page.locator(".pl-section-zero tbody tr").nth(3)).to_contain_text("250 GB")
    page.get_by_label("ranks", exact=True).and_(page.locator("input")).fill("1024")
    page.get_by_label("ranks", exact=True).and_(page.locator("input")).press("Enter")
    expect(page.locator(".pl-section-zero tbody tr").nth(3)).to_contain_text("15.6 GB")
    page.locator('[data-field="zero_k"]').fill("twelve")
    page.locator('[data-field="zero_k"]').press("Enter")
    expect(page.locator(".pl-notice")).to_have_count(1)
    expect(page.locator('[data-field="zero_k"]')).to_have_value("12")
    assert widget.last_error


@pytest.mark.exhaustive
def test_a_run_is_stopped_with_the_button(live):
    lab = MemoryLab("stack", 2)
    page, widget = live(MemoryLabWidget(lab))
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    lab.run_simulated(10**7)
    # this stand-in of a kernel tells the page what is new with each answer
    page.get_by_role("radio", name="between steps").click()
    page.get_by_role("button", name="Stop").click()
    assert lab.wait(60)
    page.get_by_role("radio", name="fullest moment").click()
    expect(page.locator(".pl-mm-run")).to_have_text("stopped; nothing was kept of it")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    assert widget.last_error is None


@pytest.mark.exhaustive
def test_a_run_shows_its_verdict(live):
    lab = MemoryLab("stack", 2)
    lab.set_width(32)
    page, _ = live(MemoryLabWidget(lab))
    show(page, "equality")
    expect(page.get_by_role("group", name="equality")).to_contain_text("not run yet")
    page.get_by_role("button", name="Simulate").click()
    assert lab.wait(60)
    page.get_by_role("radio", name="between steps").click()
    expect(page.get_by_role("radio", name="simulated")).to_have_attribute("aria-checked", "true")
    verdict = page.locator(".pl-section-equality_simulated > .pl-verdict .pl-good")
    expect(verdict).to_have_text("EQUAL: 17 of 17 tensors after 20 steps")
    expect(page.locator(".pl-section-equality_simulated tbody tr")).to_have_count(17)
    show(page, "equality")  # closed: the verdict stays in sight
    expect(page.locator(".pl-section-equality_simulated")).to_have_count(0)
    expect(page.locator(".pl-mm-run").last).to_have_text("simulated: EQUAL: 17 of 17 tensors after 20 steps")
