"""The Rosetta Lab in a browser: typing into a notation, what was refused stays in its field, copying, a page alone."""

from __future__ import annotations

import pytest

from parallel_lab.lab.rosetta.model import RosettaLab
from parallel_lab.lab.shared.lab_view import widget_of
from parallel_lab.lab.shared.replay import Limits
from tests.browser.lab_page import MARKS, axe_faults, browser, live, page_of, sync_api

__all__ = ["browser", "live", "page_of"]  # the fixtures

expect = sync_api.expect
pytestmark = MARKS


def test_what_is_typed_into_one_notation_the_others_follow(live):
    lab = RosettaLab()
    page, view = live(widget_of(RosettaLab)(lab), width=848)
    field = page.locator("[data-field='form-jax.PartitionSpec']")
    field.fill("P(('tp', 'dp'), None)")
    field.press("Enter")
    expect(page.locator("[data-field='form-scaling_book']")).to_have_value("A[I_{YX}, J]")
    expect(field).to_have_value("PartitionSpec(('tp', 'dp'), None)")
    expect(page.locator("[data-field='form-mindspore.strategy']")).to_have_value("")
    expect(page.locator("tr[data-key='MindSpore strategy'] .pl-wrong")).to_contain_text("No form")
    expect(page.locator("[data-key=card5]")).to_contain_text("6:8")
    assert view.last_error is None and not axe_faults(page, ".pl-lab")
    lab.close()


def test_a_refused_text_stays_in_its_field_until_something_is_taken(live):
    lab = RosettaLab()
    page, view = live(widget_of(RosettaLab)(lab), width=848)
    field = page.locator("[data-field='form-torch']")
    field.fill("[Shard(0), Shard(0]")
    field.press("Enter")
    expect(page.locator(".pl-notice")).to_contain_text("<-- here")
    expect(field).to_have_value("[Shard(0), Shard(0]")
    assert "<-- here" in view.last_error
    page.locator("[data-command=set_tp][data-value=S1]").click()
    expect(field).to_have_value("[Shard(0), Shard(1)]")
    lab.close()


@pytest.mark.exhaustive
def test_a_notation_is_copied_and_says_so(live):
    lab = RosettaLab()
    page, _ = live(widget_of(RosettaLab)(lab), width=848)
    button = page.locator("[data-key='copy-torch']")
    page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (t) => { window.kept = t; }}})"
    )
    button.click()
    expect(button).to_have_text("Copied")
    assert page.evaluate("kept") == "[Shard(0), Replicate()]"
    lab.close()


def test_a_page_without_a_kernel_shows_texts_to_copy_and_follows_the_axes(page_of):
    page = page_of(RosettaLab().to_html(limits=Limits(12, 20)), width=848)
    assert not page.locator("[data-field]").count()
    book = page.locator("tr[data-key='scaling book'] code")
    expect(book).to_have_text("A[I_X, J]")
    page.locator("[data-command=set_dp][data-value=R]").click()
    expect(book).to_have_text("A[I, J]")
    assert not axe_faults(page, ".pl-lab")
