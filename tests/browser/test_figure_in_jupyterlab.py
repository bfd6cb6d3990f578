"""A figure in a real JupyterLab: plotly draws it, and hovering says what an event took."""

from __future__ import annotations

import pytest

from tests.browser.jupyterlab import MARKS, opened, sync_api, world

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
