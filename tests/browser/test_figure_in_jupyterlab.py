"""In a real JupyterLab: figures and pictures that plotly draws, and what axe-core finds in the labs."""

from __future__ import annotations

import pytest

from parallel_lab.lab import widgets
from tests.browser.jupyterlab import MARKS, opened, sync_api, until, world
from tests.browser.lab_page import axe_faults
from tests.crossed import each_of

__all__ = ["opened", "world"]  # the fixtures

pytestmark = [*MARKS, pytest.mark.exhaustive]
NOTEBOOKS: tuple[str, ...] = ()


def test_a_figure_is_drawn_by_plotly_with_its_title_and_source(opened):
    book = opened("figure.ipynb", "import parallel_lab as pl\npl.StrategyLab(devices=2).figure('timeline')")
    book.run_all()
    figure = book.page.locator(".js-plotly-plot").first
    figure.wait_for(timeout=60_000)
    sync_api.expect(figure.locator(".gtitle")).to_contain_text("Timeline of one step (predicted)")
    assert figure.locator(".bars .point").count() > 10


def test_a_figure_keeps_its_height_when_the_window_changes_while_it_is_out_of_sight(opened):
    """It came back 30 pixels high, with eight ranks in one line."""
    figure = "import parallel_lab as pl\npl.StrategyLab(devices=2).figure('timeline')"
    book = opened("resized.ipynb", figure, "print('line\\n' * 200)")
    book.run_all()
    drawn = book.page.locator(".js-plotly-plot .main-svg").first
    drawn.wait_for(timeout=60_000)
    tall = drawn.bounding_box()["height"]
    book.scroll_to(1)
    book.page.set_viewport_size({"width": 1100, "height": 1400})
    book.page.wait_for_timeout(1000)  # nothing tells that it has been drawn anew
    book.scroll_to(0)
    book.page.wait_for_timeout(1000)
    box = drawn.bounding_box()
    assert tall == 380 and box["height"] == 380
    sync_api.expect(book.page.locator(".jp-Notebook .js-plotly-plot")).to_have_count(1)
    assert box["width"] <= book.page.locator(".jp-OutputArea-output").first.bounding_box()["width"] + 1
    book.page.set_viewport_size({"width": 1280, "height": 1000})


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_axe_finds_no_fault_in_any_lab(opened, theme):
    labs = [f"{lab}Widget" for lab in widgets.LABS]
    code = "from IPython.display import display\nfrom parallel_lab.lab import widgets\n"
    code += f"for name in {labs}:\n    display(getattr(widgets, name)())"
    book = opened("labs.ipynb", code)
    book.page.evaluate(f"jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {theme}'}})")
    book.run_all()
    sync_api.expect(book.page.locator(".pl-lab[data-painted]")).to_have_count(len(labs), timeout=120_000)
    assert len(labs) == 15 and axe_faults(book.page, ".jp-OutputArea") == []


def shown_by_plotly(opened, name, kind):
    book = opened(f"{kind}.ipynb", f"import parallel_lab as pl\npl.widgets.{kind}Widget(pl.{kind}())")
    book.run_all()
    picture = book.page.locator(f"[data-plotly={name}]").first
    picture.locator(".main-svg").first.wait_for(timeout=60_000)
    assert not book.page.locator(
        "figure.pl-cv > svg, .pl-se-plot > svg, .pl-rc-figure > svg"
    ).count()  # it replaces ours
    sizes = "node => [...node.querySelectorAll('text')].map((t) => parseFloat(getComputedStyle(t).fontSize))"
    assert set(picture.evaluate(sizes)) <= {11, 12.5}
    assert book.page.locator(".pl-lab").first.evaluate("lab => lab.getBoundingClientRect().height") <= 655
    return book.page, picture


def test_the_cost_lab_is_drawn_by_plotly_and_follows_its_settings(opened):
    page, picture = shown_by_plotly(opened, "curves", "CostLab")
    drawn = "node => node.firstChild.data.map((trace) => [trace.name, trace.y.at(-1), trace.hoverinfo])"
    before = [curve for *curve, hover in picture.evaluate(drawn) if hover == "text"]
    page.get_by_role("radio", name="1 GB/s").click()
    assert until(
        lambda: [curve for *curve, hover in picture.evaluate(drawn) if hover == "skip"] == before[:4]
    )  # a ghost


@each_of(
    ("name", "kind", "words"),
    ("step", "MemoryLab", "of 129, update:"),
    ("moments", "RecomputeLab", "results"),
    ("over", "ExpertLab", "x the mean"),
)
def test_a_pointer_reads_what_a_picture_has_at_that_place(opened, name, kind, words):
    page, picture = shown_by_plotly(opened, name, kind)
    box = picture.bounding_box()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.7 * box["height"])
    sync_api.expect(picture.locator(".hovertext").first).to_contain_text(words)


def test_a_click_on_a_plan_chooses_it_and_so_do_keys(opened):
    page, picture = shown_by_plotly(opened, "plans", "SearchLab")
    chosen = page.locator(".pl-se-turn [aria-checked=true]")
    point = picture.locator(".point").nth(1)  # drawn on the chosen one's ring: the first of the plans
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    said = picture.locator(".hovertext").first
    said.wait_for()
    name = said.text_content()[:6]
    page.mouse.down()
    page.mouse.up()
    sync_api.expect(chosen).to_contain_text(name)
    clicked = chosen.text_content()
    chosen.focus()
    page.keyboard.press("Home")
    assert until(lambda: chosen.text_content() != clicked)
