"""The Recompute Lab's page of its own: layers and cap are chosen without a kernel, as the model would."""

from __future__ import annotations

import json
import random
import re

import pytest

from parallel_lab.lab.recompute.chain import moments
from parallel_lab.lab.recompute.model import CAPS, RecomputeLab
from tests.browser.lab_page import FEW, MARKS, browser, page_of

__all__ = ["browser", "page_of"]  # the fixtures

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
    for command in ("recompute_all", "keep_all"):
        page.locator(f"[data-command={command}]").click()
        getattr(lab, command)()
        assert bars(page) == [m.live for m in moments(lab.again)]


@pytest.mark.quick(0)
@pytest.mark.parametrize("seed", range(6))
def test_any_choice_shows_what_the_lab_shows_and_stays_in_the_address(page_of, seed):
    draw, lab = random.Random(seed), RecomputeLab(30)
    lab.toggle(draw.randrange(12))
    page = page_of(lab.to_html(limits=FEW))
    for layer in draw.sample(range(12), draw.randint(1, 11)):
        page.locator(f"[data-key=layer{layer}]").click()
        lab.toggle(layer)
    cap = draw.choice(CAPS)
    page.locator(f"[data-key=set_cap-{cap}]").click()
    lab.set_cap(cap)
    for _ in range(2):
        assert bars(page) == [m.live for m in moments(lab.again)]
        assert page.locator(".pl-status").inner_text() == lab.snapshot()["status"]
        cells = page.locator(".pl-section-puzzle tbody tr").first.locator("td")
        assert [int(text) for text in cells.all_inner_texts()] == [lab.predicted.peak_bytes, lab.predicted.extra_s]
        page.reload()
        page.wait_for_selector(".pl-lab[data-painted]")
    kept = json.loads(page.evaluate("new URLSearchParams(location.hash.slice(1)).get('state')"))
    assert kept["calls"] == lab.calls()


@pytest.mark.exhaustive
def test_a_picture_that_is_drawn_out_of_sight_keeps_its_width(page_of):
    """After a change of the theme a lab whose cell was scrolled away was 92 pixels wider than its cell."""
    page = page_of(RecomputeLab(40).to_html(limits=FEW), width=700)
    lab, picture = page.locator(".pl-lab"), page.locator(".pl-rc-figure svg")
    width, painted = picture.get_attribute("width"), lab.get_attribute("data-painted")
    lab.evaluate("(e) => { e.style.display = 'none'; }")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("(before) => document.querySelector('.pl-lab').dataset.painted !== before", arg=painted)
    assert picture.get_attribute("width") == width
