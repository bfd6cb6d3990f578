"""A notebook with a lab, executed and exported by plain `jupyter nbconvert`: the lab's page is in it, with no kernel
and no network, and nothing on it is on that would do nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import parallel_lab.lab.shared
from tests.browser.lab_page import MARKS, browser, sync_api

__all__ = ["browser"]  # the fixture

expect = sync_api.expect

pytestmark = [*MARKS, pytest.mark.exhaustive]

TITLES = ("Fusion Lab", "all_reduce by ring, 4 ranks")
CELL = """from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.collectives.model import CollectiveStepper
from parallel_lab.lab.widgets import CollectiveStepperWidget, FusionLabWidget
"""
SETTINGS = Path(parallel_lab.lab.shared.__file__).with_name("jupyter_nbconvert_config.json")
LABS = ("FusionLabWidget(FusionLab('golf'))", "CollectiveStepperWidget(CollectiveStepper('all_reduce', 'ring', 4))")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """export(format) -> the file that nbconvert writes. An installed package has its settings in etc/jupyter."""
    folder = tmp_path_factory.mktemp("exported")
    cells = [nbformat.v4.new_code_cell(text) for text in (CELL, *LABS)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "labs.ipynb")

    def export(form: str):
        command = [sys.executable, "-m", "nbconvert", "--execute", "--to", form, "--output", form, "labs.ipynb"]
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "JUPYTER_CONFIG_PATH": str(SETTINGS.parent)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return next(file for file in folder.iterdir() if file.suffix == ".html" and file.name.startswith(form))

    return export


@pytest.fixture
def offline(browser):
    """A page without a network; at the end: no exception in it, and nothing that the labs asked for."""
    context, broken = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True), []
    page = context.new_page()
    page.on("pageerror", lambda error: broken.append(error))
    yield page
    context.close()
    ours = [str(e) for e in broken if not any(own in str(e) for own in ("require", "MathJax"))]  # of nbconvert's page
    assert not ours


def test_an_exported_notebook_shows_its_labs_offline(exported, offline):
    offline.goto(exported("html").as_uri())
    fusion, stepper = (offline.frame_locator(f"iframe[title='{title}']") for title in TITLES)
    expect(fusion.get_by_role("region", name="Fusion Lab")).to_be_visible()
    expect(fusion.get_by_text("No kernel here")).to_be_visible()
    # what needs a kernel is off: another network is compiled
    expect(fusion.locator("[data-key=subject]")).to_be_disabled()
    # and what is on does something: one round on changes the picture
    step = stepper.get_by_role("button", name="one round on")
    said = stepper.get_by_role("status").first
    expect(said).to_contain_text("Start:")
    step.click()
    expect(said).not_to_contain_text("Start:")


def test_slides_carry_the_pages_too(exported):
    text = exported("slides").read_text(encoding="utf-8")
    assert text.count("<iframe") == len(LABS) and text.count("No kernel here: the page") == len(LABS)


VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.mark.parametrize(
    ("shown", "taken"),
    [
        ((VIEW, "text/html", "text/plain"), "text/html"),
        ((VIEW, "text/plain"), VIEW),  # a slider: as before
        (("application/javascript", "text/html"), "application/javascript"),  # as before
        (("image/png", "text/plain"), "image/png"),
    ],
)
def test_only_a_widget_with_a_page_is_shown_otherwise_than_before(shown, taken):
    from nbconvert.filters.widgetsdatatypefilter import WidgetsDataTypeFilter
    from traitlets.config import Config

    known = {"": {"widgets": {"application/vnd.jupyter.widget-state+json": {"state": {"m1": {}}}}}}
    output = {name: {"model_id": "m1"} for name in shown}
    chosen = WidgetsDataTypeFilter(known, config=Config(json.loads(SETTINGS.read_text(encoding="utf-8"))))
    assert chosen(output) == [taken]
