"""In a real JupyterLab: a figure that plotly draws, and what axe-core finds in the labs."""

from __future__ import annotations

import pytest

from parallel_lab.lab import widgets
from tests.browser.jupyterlab import MARKS, opened, sync_api, world
from tests.browser.lab_page import axe_faults

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


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_axe_finds_no_fault_in_any_lab(opened, theme):
    labs = [f"{lab}Widget" for lab in widgets.LABS]
    code = "from IPython.display import display\nfrom parallel_lab.lab import widgets\n"
    code += f"for name in {labs}:\n    display(getattr(widgets, name)())"
    book = opened("labs.ipynb", code)
    book.page.evaluate(f"jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {theme}'}})")
    book.run_all()
    sync_api.expect(book.page.locator(".pl-lab[data-painted]")).to_have_count(len(labs), timeout=120_000)
    assert len(labs) == 9 and axe_faults(book.page, ".jp-OutputArea") == []
