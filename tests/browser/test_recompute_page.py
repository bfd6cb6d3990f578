"""The Recompute Lab's page of its own: layers and cap are chosen without a kernel, as the model would."""

from __future__ import annotations

import re

from parallel_lab.lab.recompute.chain import moments
from parallel_lab.lab.recompute.model import RecomputeLab
from tests.browser.lab_page import FEW, MARKS, browser, page_of, tabs

__all__ = ["browser", "page_of", "tabs"]  # the fixtures

pytestmark = MARKS


def bars(page):
    return [
        int(text) for text in re.findall(r"[FB]\d+: (\d+) result", " ".join(page.locator("title").all_text_contents()))
    ]


def test_layers_are_chosen_without_a_kernel(page_of):
    lab = RecomputeLab(40)
    page = page_of(lab.to_html(limits=FEW))
    assert bars(page) == [m.live for m in moments(lab.again)]
    for layer in (4, 0, 11):
        page.locator(f"[data-key=layer{layer}]").click()
        lab.toggle(layer)
    page.locator("[data-key=layer11]").press("Enter")  # by keyboard, too
    lab.toggle(11)
    page.locator("[data-key=set_cap-60]").click()
    lab.set_cap(60)
    assert bars(page) == [m.live for m in moments(lab.again)]
    shot = lab.snapshot()
    assert page.locator(".pl-status").inner_text() == shot["status"]
    assert page.locator(".pl-section-python pre").inner_text() == shot["sections"]["python"]["text"]
    assert "does not fit under 60" in page.locator(".pl-section-puzzle").inner_text()
    assert page.locator("[data-key=show_par]").is_disabled()
