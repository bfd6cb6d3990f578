"""A notebook with labs, executed and then shown elsewhere: exported by plain `jupyter nbconvert`, as slides, in a book
built by myst-nb, by a viewer of saved notebooks. The labs' pages are in it, with no kernel and no network, and nothing
on them is on that would do nothing. The lines for each in notebooks/authors.md are what is done here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import nbformat
import pytest

import parallel_lab.lab.shared
from parallel_lab.base.errors import escape
from parallel_lab.lab.fusion.model import FusionLab
from tests.browser.lab_page import MARKS, browser, sync_api
from tests.crossed import each_of

__all__ = ["browser"]  # the fixture

expect = sync_api.expect

pytestmark = [*MARKS, pytest.mark.exhaustive]

PATIENCE_MS = 30_000
TITLES = ("Fusion Lab", "all_reduce by ring, 4 ranks")
CELL = """from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.collectives.model import CollectiveStepper
from parallel_lab.lab.widgets import CollectiveStepperWidget, FusionLabWidget
"""
SETTINGS = Path(parallel_lab.lab.shared.__file__).with_name("jupyter_nbconvert_config.json")
LABS = ("FusionLabWidget(FusionLab('golf'))", "CollectiveStepperWidget(CollectiveStepper('all_reduce', 'ring', 4))")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the notebook, not yet executed: each cell is a slide, the first one none."""
    made = tmp_path_factory.mktemp("exported")
    cells = [nbformat.v4.new_code_cell(text) for text in (CELL, *LABS)]
    for cell, slide in zip(cells, ("skip", "slide", "slide"), strict=True):
        cell.metadata["slideshow"] = {"slide_type": slide}
    nbformat.write(nbformat.v4.new_notebook(cells=cells), made / "labs.ipynb")
    return made


@pytest.fixture(scope="module")
def exported(folder):
    """exported(format, *options) -> the file that nbconvert writes. An installed package has its settings in
    etc/jupyter.
    """

    def export(form: str, *options: str) -> Path:
        command = ["nbconvert", "--execute", "--to", form, "--output", form, "labs.ipynb", *options]
        run([sys.executable, "-m", *command], folder, JUPYTER_CONFIG_PATH=str(SETTINGS.parent))
        return next(folder.glob(f"{form}*.*"))

    return cache(export)


def run(command: list[str], folder: Path, **env: str) -> None:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def pages_of_labs(exported):
    """The text/html of the labs' outputs, as a saved notebook has it."""
    outputs = [o for cell in nbformat.read(exported("notebook"), 4).cells for o in cell.get("outputs", ())]
    return [o["data"]["text/html"] for o in outputs if "text/html" in o.get("data", {})]


@pytest.fixture(scope="module")
def reveal(folder):
    """reveal.js, and the require.js that nbconvert's slides load it with, next to the notebook: from npm."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: slides that need no network take reveal.js from it")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "reveal.js@4", "requirejs@2"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        pytest.skip(f"npm found no reveal.js: {done.stderr[-300:]}")


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
    # and what is on does something
    fuses(fusion)
    steps(stepper)


def steps(frame):
    """The stepper goes one round on."""
    said = frame.get_by_role("status").first
    expect(said).to_contain_text("Start:", timeout=PATIENCE_MS)
    frame.get_by_role("button", name="one round on").click()
    expect(said).not_to_contain_text("Start:", timeout=PATIENCE_MS)


def fuses(frame):
    """The Fusion Lab sends each gradient alone, and its picture follows."""
    said = frame.locator(".pl-status")
    expect(said).to_contain_text("1 message for 10 gradients", timeout=PATIENCE_MS)
    frame.locator("[data-command=set_mode][data-value=each]").click()
    expect(said).to_contain_text("10 messages for 10 gradients", timeout=PATIENCE_MS)


def test_slides_show_their_labs_with_reveal_from_npm(exported, reveal, offline):
    where = ["--reveal-prefix=node_modules/reveal.js"]
    where += ["--SlidesExporter.require_js_url=node_modules/requirejs/require.js"]
    still = ["--no-input", "--SlidesExporter.reveal_transition=none"]
    offline.goto(exported("slides", *where, *still).as_uri())
    for number, (title, use) in enumerate(zip(TITLES, (fuses, steps), strict=True)):
        if number:
            offline.locator(".navigate-right").click()
        slide = offline.locator("section.present:not(:has(section))")  # where reveal.js is
        expect(slide.locator("iframe")).to_have_attribute("title", title)
        use(slide.frame_locator("iframe"))
        frame = slide.locator("iframe").bounding_box()
        assert frame["y"] > 0 and frame["y"] + frame["height"] <= 900  # what was below the slide could not be reached


CONF = """extensions = ["myst_nb"]
nb_execution_mode = "off"  # the notebook has its outputs
nb_mime_priority_overrides = [("html", "text/html", 0)]  # a lab's page of its own, not the widget
"""


@pytest.mark.skipif(importlib.util.find_spec("myst_nb") is None, reason="myst-nb is not installed: extra `book`")
def test_a_book_built_by_myst_nb_shows_its_labs(exported, offline, tmp_path):
    (tmp_path / "conf.py").write_text(CONF, encoding="utf-8")
    shutil.copy(exported("notebook"), tmp_path / "index.ipynb")
    run([sys.executable, "-m", "sphinx", "-q", "-b", "html", ".", "built"], tmp_path)
    offline.goto((tmp_path / "built/index.html").as_uri())
    for title, use in zip(TITLES, (fuses, steps), strict=True):
        frame = offline.frame_locator(f"iframe[title='{title}']")
        expect(frame.get_by_text("No kernel here")).to_be_visible()
        use(frame)


def test_a_viewer_of_saved_notebooks_shows_the_labs_in_its_sandbox(pages_of_labs, offline, tmp_path):
    """It takes the HTML that was saved, and lets scripts run in a frame that may do nothing else."""
    box = 'sandbox="allow-scripts" width="1000" height="960"'
    held = "".join(
        f'<iframe {box} title="output {n}" srcdoc="{escape(text)}"></iframe>' for n, text in enumerate(pages_of_labs)
    )
    (tmp_path / "viewer.html").write_text(f"<!doctype html><title>viewer</title>{held}", encoding="utf-8")
    offline.goto((tmp_path / "viewer.html").as_uri())
    expect(offline.locator("iframe")).to_have_count(len(LABS))
    for n, (title, use) in enumerate(zip(TITLES, (fuses, steps), strict=True)):
        output = f"iframe[title='output {n}']"
        offline.locator(output).scroll_into_view_if_needed()  # Chromium draws in a sandbox only what is in sight
        use(offline.frame_locator(output).frame_locator(f"iframe[title='{title}']"))


@pytest.mark.parametrize("sandbox", ["", 'sandbox="allow-scripts"'])
def test_a_page_works_in_the_frame_of_another_page(offline, tmp_path, sandbox):
    FusionLab("golf").to_html(tmp_path / "fusion.html", controls=True, height=700)
    frame = f'<iframe src="fusion.html" title="Fusion Lab" {sandbox} width="1000" height="700"></iframe>'
    (tmp_path / "post.html").write_text(f"<!doctype html><title>post</title><p>A text</p>{frame}", encoding="utf-8")
    offline.goto((tmp_path / "post.html").as_uri())
    fuses(offline.frame_locator("iframe"))


VIEW = "application/vnd.jupyter.widget-view+json"


@each_of(
    ("shown", "taken"),
    ((VIEW, "text/html", "text/plain"), "text/html"),
    ((VIEW, "text/plain"), VIEW),  # a slider: as before
    (("application/javascript", "text/html"), "application/javascript"),  # as before
    (("image/png", "text/plain"), "image/png"),
)
def test_only_a_widget_with_a_page_is_shown_otherwise_than_before(shown, taken):
    from nbconvert.filters.widgetsdatatypefilter import WidgetsDataTypeFilter
    from traitlets.config import Config

    known = {"": {"widgets": {"application/vnd.jupyter.widget-state+json": {"state": {"m1": {}}}}}}
    output = {name: {"model_id": "m1"} for name in shown}
    chosen = WidgetsDataTypeFilter(known, config=Config(json.loads(SETTINGS.read_text(encoding="utf-8"))))
    assert chosen(output) == [taken]
