"""The report as a browser draws it: nothing is cut off."""

import dataclasses

import pytest

from parallel_lab.cli.doctor import find_chromium
from parallel_lab.lab.pictures.charts import round_ticks
from parallel_lab.lab.quickstart import report
from parallel_lab.lab.quickstart.model import Quickstart
from parallel_lab.lab.quickstart.report import report_page
from tests.crossed import each_of

sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser

# texts of the pictures with an edge outside the picture, which clips them: half a unit is the smoothing of the edge
CUT = """() => [...document.querySelectorAll('svg[role=img]')].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - 0.5 || box.right > frame.right + 0.5
      || (text.classList.contains('end') && box.top < frame.top - 0.5);
  }).map(text => text.textContent);
})"""
LABELS = "() => [...document.querySelectorAll('svg[aria-label^=Loss] text.end')].map(text => text.textContent)"

LOSSES = {
    "seed": None,
    "many digits": (1234.5678, 1234.5677, 1234.5675, 1234.5674),
    "very small": (3e-13, 2.5e-13, 2.2e-13, 2.1e-13),
    "very large": (3.1e30, 2.5e30, 1.2e29, 1.1e29),
    "below zero": (-0.00012345, -0.00012346, -0.00012348, -0.00012349),
    "all the same": (0.25, 0.25, 0.25, 0.25),
    "at the upper end": (0.95, 0.2, 0.1, 0.0),
    "many steps": tuple(2.0 - i / 6000 for i in range(10_000)),
}


@pytest.fixture(scope="module")
def result():
    return Quickstart(epochs=1, executor="simulator").run()


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [1280, 700])
def test_no_label_of_a_chart_is_cut_off_and_all_tell_their_value_apart(result, width):
    """Once the loss of one epoch of the seed's data had ".33175" next to its chart, and half of the 3 of 0.3318."""
    cut, alike = {}, {}
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"])
        try:
            page = browser.new_page(viewport={"width": width, "height": 900})
            for name, losses in LOSSES.items():
                shown = result if losses is None else dataclasses.replace(result, losses=losses, single_losses=losses)
                page.set_content(report_page(shown))
                cut[name] = page.evaluate(CUT)
                labels = page.evaluate(LABELS)
                alike[name] = len(labels) - len(set(labels)) if len(labels) > 1 else f"labels: {labels}"
        finally:
            browser.close()
    assert cut == {name: [] for name in LOSSES}
    assert alike == dict.fromkeys(LOSSES, 0)


@each_of(("low", "high"), (0.3311, 0.3319), (1234.56735, 1234.56785), (0.0, 3e-13), (1e29, 3.2e30), (-1.0, 1.0))
def test_labels_give_their_ticks_truly(low, high):
    ticks = round_ticks(low, high, 8)
    assert 2 <= len(ticks) <= 9
    assert low <= ticks[0] and ticks[-1] <= high * (1 + 1e-9)
    gap = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
    for tick, label in zip(ticks, report._labels(ticks), strict=True):
        assert abs(float(label) - tick) <= gap / 50
