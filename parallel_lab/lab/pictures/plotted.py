"""A chart with hover and zoom in a live notebook (plotly), and its static SVG wherever nothing runs: in a page, in a
saved notebook, where the package is missing.

    plotted(fit_chart(fit))                displayed on its own at the end of a cell
    plotted(chart).plotly()                the plotly Figure, to change and to save
"""

from __future__ import annotations

import json
from typing import Any

from ...base.errors import ParallelLabError
from .charts import Chart, Trace, size_ticks

PLOTLY = "application/vnd.plotly.v1+json"
# as in the labs; the grey can be read on white and on JupyterLab's dark ground
FONT = {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 11, "color": "#707880"}
AXIS = {"gridcolor": "rgba(128, 136, 144, 0.25)", "linecolor": "#707880", "showline": True, "zeroline": False}


class MissingPlotly(ParallelLabError, ImportError):
    """plotly is not installed."""


def figure_of(chart: Chart) -> Any:
    """The chart as a plotly Figure. Raises MissingPlotly (an ImportError)."""
    try:
        import plotly.graph_objects as go
    except ImportError:
        hint = "pip install plotly (it is in pyproject.toml and environment.yml); the chart's .svg() needs nothing"
        raise MissingPlotly("plotly is not installed", where="figure", hint=hint) from None
    figure = go.Figure([_trace(go, trace) for trace in chart.traces])
    figure.update_layout(
        title={"text": chart.heading, "font": {"size": 12.5}, "x": 0},
        font=FONT,
        xaxis={**AXIS, "title": {"text": chart.x}, **({"type": "log", "dtick": 1} if "x" in chart.log else {})},
        yaxis={**AXIS, "title": {"text": chart.y}, **({"type": "log", "dtick": 1} if "y" in chart.log else {})},
        meta={"alt": chart.alt, "source": chart.source},
        barmode="overlay",
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        height=380,
        margin={"l": 70, "r": 20, "t": 44, "b": 50},
        legend={"orientation": "h", "y": -0.2},
        hovermode="x unified" if any(t.kind == "area" for t in chart.traces) else "closest",
    )
    if chart.sizes:
        sizes = [value for trace in chart.traces for value in trace.x]
        values, texts = zip(*size_ticks(min(sizes), max(sizes)), strict=True)
        figure.update_xaxes(tickvals=values, ticktext=texts)
    if chart.rows:
        places = list(range(len(chart.rows)))
        figure.update_yaxes(tickvals=places, ticktext=list(chart.rows), autorange="reversed")
    return figure


def _trace(go: Any, trace: Trace) -> Any:
    hover = {"text": list(trace.said), "hoverinfo": "text"} if trace.said else {}
    if trace.kind == "bars":
        lengths = [end - start for start, end in zip(trace.x, trace.ends, strict=True)]
        how = {"x": lengths, "base": list(trace.x), "y": list(trace.y), "orientation": "h", "width": 0.7}
        # what hovering says is not written into the bars
        how |= {"hovertext": list(trace.said), "hoverinfo": "text"}
        return go.Bar(name=trace.name, marker={"color": trace.colour, "line": {"width": 0}}, **how)
    what = {"name": trace.name, "x": list(trace.x), "y": list(trace.y), **hover}
    if trace.kind == "points":
        return go.Scatter(mode="markers", marker={"color": trace.colour, "size": 8}, **what)
    line = {"color": trace.colour, "dash": "dash" if trace.dashed else "solid"}
    if trace.kind == "area":
        return go.Scatter(mode="lines", stackgroup="one", line={**line, "width": 0.5}, fillcolor=trace.colour, **what)
    return go.Scatter(mode="lines", line=line, **what)


class Plotted:
    """What a notebook shows of a chart: plotly's form where something can draw it, and the SVG."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart

    def plotly(self) -> Any:
        """The plotly Figure. Raises MissingPlotly."""
        return figure_of(self.chart)

    def svg(self) -> str:
        """The static form."""
        return self.chart.svg()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self.chart.alt, "text/html": self.svg()}
        try:
            drawn = json.loads(self.plotly().to_json())
        except MissingPlotly:
            return bundle
        return {**bundle, PLOTLY: {**drawn, "config": {"displaylogo": False}}}  # "responsive": 30 px high out of sight

    def __repr__(self) -> str:
        return self.chart.alt


def plotted(chart: Chart) -> Plotted:
    """The chart, to be shown."""
    return Plotted(chart)
