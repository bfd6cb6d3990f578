"""The tabs with programs in a real browser: the text as `code()` gives it, a button that copies it, on one screen."""

from __future__ import annotations

import pytest

from parallel_lab.lab import widgets
from parallel_lab.lab.code.program import LABELS
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.search.model import SearchLab
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.lab.widgets import FusionLabWidget
from tests.browser.lab_page import FEW, MARKS, browser, live, page_of, recorded, sync_api

__all__ = ["browser", "live", "page_of", "recorded"]  # the fixtures

expect = sync_api.expect

LABS = {
    "strategy": lambda: StrategyLab(devices=4),
    "fusion": lambda: FusionLab("dense", 2),
    "memory": lambda: MemoryLab("stack", 2),
    "pipeline": lambda: PipelineLab("stack", 2, 4),
    "search": lambda: SearchLab(devices=4),
}
pytestmark = MARKS


@pytest.mark.quick(0)
@pytest.mark.parametrize("name", LABS)
def test_a_tab_shows_the_program_copies_it_and_stays_within_a_screen(page_of, name):
    lab = LABS[name]()
    page = page_of(lab.to_html(limits=FEW))
    # a page from a file may not use the clipboard: what it is given is kept
    page.evaluate("navigator.clipboard ?? Object.defineProperty(navigator, 'clipboard', { value: {} })")
    page.evaluate("Object.assign(navigator.clipboard, { writeText(text) { window.copied = text; } })")
    page.get_by_role("tab", name="Code", exact=True).click()
    for target, label in LABELS.items():
        if target != "mindspore":
            page.locator(f"[data-tab=code_{target}]").click()
        box = page.locator(f".pl-section-code_{target}")
        expect(box.locator("h3")).to_contain_text(label)
        assert box.locator("pre").text_content() == lab.code(target)
        assert box.bounding_box()["height"] < 500
        box.locator("[data-copy]").click()
        expect(box.locator("[data-copy]")).to_have_text("Copied")
        assert page.evaluate("window.copied") == lab.code(target)
    page.get_by_role("tab", name="Code", exact=True).click()
    expect(page.locator("textarea[data-command=set_code]")).to_be_disabled()  # this page has no kernel


def test_a_kernel_sends_the_programs_once_the_tab_is_open_and_from_then_on(live):
    lab = FusionLab("dense", 2)
    page, widget = live(FusionLabWidget(lab))
    assert widget.snapshot["sections"]["code_mindspore"]["text"] is None
    page.get_by_role("tab", name="Code", exact=True).click()
    program = page.locator(".pl-section-code_mindspore pre")
    expect(program).to_have_text(lab.code(), use_inner_text=True)
    page.locator("[data-command=set_mode][data-value=each]").click()
    expect(program).to_have_text(lab.code(), use_inner_text=True)


@pytest.mark.exhaustive
def test_lines_that_are_pasted_set_the_lab_and_a_refusal_names_the_line(live):
    lab = FusionLab("dense", 2)
    page, widget = live(FusionLabWidget(lab))
    page.get_by_role("tab", name="Code", exact=True).click()
    field = page.locator("textarea[data-command=set_code]")
    field.fill('net.comm_fusion({"allreduce": {"mode": "index", "config": [1]}})')
    field.blur()
    expect(page.locator("[data-value=index]")).to_have_attribute("aria-checked", "true")
    assert lab.groups == (0, 0, 1, 1) and widget.last_error is None
    field = page.locator("textarea[data-command=set_code]")
    field.fill("# nothing\nnet.dense9.set_comm_fusion(2)")
    field.blur()
    expect(page.locator(".pl-notice")).to_contain_text("line 2: there is no parameter")
    expect(page.locator(".pl-paste + .pl-refused-here")).to_contain_text("line 2: there is no parameter")


@pytest.mark.exhaustive
def test_where_a_page_may_not_use_the_clipboard_the_program_is_selected(page_of):
    lab = LABS["fusion"]()
    page = page_of(lab.to_html(limits=FEW))
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.get_by_role("tab", name="Code", exact=True).click()
    page.locator(".pl-section-code_mindspore [data-copy]").click()
    expect(page.locator(".pl-section-code_mindspore [data-copy]")).to_have_text("Selected: press Ctrl+C")
    assert page.evaluate("getSelection().toString()").strip() == lab.code().strip()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LABS)
def test_the_line_in_an_empty_field_is_one_that_sets_the_lab(live, name):
    """Every lab showed one for strategies, and three of them refuse it."""
    lab = LABS[name]()
    page, widget = live(getattr(widgets, f"{type(lab).__name__}Widget")(lab))
    page.get_by_role("tab", name="Code", exact=True).click()
    field = page.locator("textarea[data-command=set_code]")
    field.fill(field.get_attribute("placeholder"))
    page.get_by_role("button", name="Set the lab").click()
    assert widget.last_error is None and page.locator(".pl-notice").count() == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["button", "Control+Enter", "blur"])
@pytest.mark.parametrize("name", LABS)
def test_pasted_lines_are_taken_once_whichever_way_they_are_given(live, name, way):
    lab = LABS[name]()
    page, widget = live(getattr(widgets, f"{type(lab).__name__}Widget")(lab))
    taken, set_code = [], lab.set_code
    lab.set_code = lambda text: taken.append(text) or set_code(text)
    page.get_by_role("tab", name="Code", exact=True).click()
    field = page.locator("textarea[data-command=set_code]")
    field.fill(LINES[name])
    if way == "button":
        page.get_by_role("button", name="Set the lab").click()
    elif way == "blur":
        field.blur()
    else:
        field.press(way)
    page.wait_for_timeout(200)
    page.get_by_role("tab", name="Code", exact=True).focus()  # the field is left
    page.wait_for_timeout(100)
    assert taken == [LINES[name]] and widget.last_error is None


LINES = {
    "search": "self.matmul.shard(((2, 1), (1, 2)))",
    "strategy": "self.matmul.shard(((4, 1), (1, 1)))",
    "fusion": 'net.comm_fusion({"allreduce": {"mode": "index", "config": [1]}})',
    "memory": "opt = nn.Momentum(params, 0.1, 0.9)",
    "pipeline": 'net.pipeline(stages=2, scheduler="gpipe")',
}
