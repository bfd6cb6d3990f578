"""Figures with hover and zoom, and their static pictures: both draw the same numbers, and say where they are from."""

from __future__ import annotations

import builtins
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.zero import zero_memory
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pictures.charts import COMPUTE, fit_chart, loss_chart, timeline_chart
from parallel_lab.lab.pictures.plotted import PLOTLY, MissingPlotly, plotted
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.processes.measure.fit import fit_line

SVG = "{http://www.w3.org/2000/svg}"


def line():
    """A fit of times that lie on 20 us + 1 ns per byte."""
    sizes = tuple(1 << power for power in range(6, 18))
    return fit_line(sizes, [[20e-6 + 1e-9 * size] * 3 for size in sizes])


@pytest.fixture(scope="module")
def charts():
    strategy, memory = StrategyLab(devices=4), MemoryLab("stack", 2)
    found = {name: strategy.figure(name).chart for name in strategy.charts()}
    found |= {name: memory.figure(name).chart for name in memory.charts()}
    found["loss of three"] = loss_chart([("a", [3, 2, 1], 1), ("b", [3, 2.5], 5), ("c < d", [2.0], 1)])
    return found


NAMES = ("timeline", "loss", "memory", "zero", "loss of three")


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_figure_has_title_source_units_and_alt_text_in_both_forms(charts, name):
    chart = charts[name]
    figure, svg = plotted(chart).plotly(), ET.fromstring(chart.svg().replace("<svg ", f'<svg xmlns="{SVG[1:-1]}" ', 1))
    assert chart.source in ("predicted", "simulated", "measured") and f"({chart.source})" in figure.layout.title.text
    assert figure.layout.title.text in [text.text for text in svg.iter(f"{SVG}text")]
    assert figure.layout.xaxis.title.text == chart.x != "" and figure.layout.meta["alt"] == svg.get("aria-label")
    assert chart.rows or figure.layout.yaxis.title.text == chart.y != ""
    assert [trace.name for trace in figure.data] == [trace.name for trace in chart.traces]


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_cell_holds_the_live_form_and_a_static_one_without_script(charts, name):
    bundle = plotted(charts[name])._repr_mimebundle_()
    assert bundle["text/plain"] == charts[name].alt and bundle["text/html"].startswith("<svg ")
    assert "<script" not in bundle["text/html"] and "http" not in bundle["text/html"]
    assert [trace["name"] for trace in bundle[PLOTLY]["data"]] == [trace.name for trace in charts[name].traces]


def test_sizes_are_written_as_powers_of_two_in_both_forms():
    chart = fit_chart(line())  # 64 B to 128 KiB
    axis, texts = plotted(chart).plotly().layout.xaxis, ("64 B", "256 B", "1 KiB", "4 KiB", "16 KiB", "64 KiB")
    assert axis.ticktext == texts and axis.tickvals == tuple(64.0 * 4**n for n in range(6))
    assert all(f">{text}</text>" in chart.svg() for text in texts)


def test_every_event_of_the_timeline_is_a_bar_with_its_times(charts):
    lab = StrategyLab(devices=4)
    lanes = lab.snapshot()["timeline"]["lanes"]
    bars = [b for lane in lanes for b in (*lane["bars"], *lane.get("meanwhile", ()))]
    figure = plotted(charts["timeline"]).plotly()
    drawn = sorted((b, b + x, y) for t in figure.data for b, x, y in zip(t.base, t.x, t.y, strict=True))
    wanted = sorted((b["start"], b["end"], n) for n, lane in enumerate(lanes) for b in lane["bars"])
    assert len(drawn) == len(bars) == len(wanted)
    assert drawn == [pytest.approx(bar) for bar in wanted]
    assert next(t for t in figure.data if t.name == "compute").marker.color == COMPUTE
    assert all("us" in said for trace in figure.data for said in trace.hovertext)


def test_the_zero_table_as_lines_has_the_numbers_of_the_paper_s_formula():
    lab = MemoryLab("stack", 2)
    lab.set_zero(7.5e9, 64)
    for stage, trace in enumerate(lab.figure("zero").chart.traces):
        wanted = [zero_memory(7.5e9, int(n), stage, optimizer_bytes=12).total_bytes / 1e9 for n in trace.x]
        assert trace.y == pytest.approx(wanted) and 64 in trace.x


def test_areas_of_memory_add_up_to_the_peak():
    lab = MemoryLab("stack", 2)
    chart = lab.figure("memory").chart
    sums = [sum(parts) for parts in zip(*(trace.y for trace in chart.traces), strict=True)]
    assert max(sums) * 2**20 == pytest.approx(lab.ranks()[0].peak_bytes)


def test_the_fit_is_drawn_with_its_points_and_its_line():
    chart = fit_chart(line())
    points, fitted, alpha, beta = chart.traces
    assert points.y == pytest.approx([20 + 1e-3 * size for size in points.x]) and chart.log == "xy"
    assert fitted.y[0] == pytest.approx(20 + 1e-3 * 64) and fitted.y[-1] == pytest.approx(20 + 1e-3 * (1 << 17))
    assert list(alpha.y) == pytest.approx([20] * 61) and beta.y[-1] == pytest.approx(1e-3 * (1 << 17)) and alpha.dashed
    assert "alpha 20 us" in chart.alt


def test_a_measured_run_and_earlier_ones_are_curves_of_one_chart():
    lab = StrategyLab(devices=1, steps=3)
    for steps in (3, 2):
        lab.set_steps(steps)
        lab.run()
        assert lab.wait(60)
    chart = lab.figure("loss").chart
    assert [len(t.y) for t in chart.traces] == [2, 2, 3]
    assert chart.traces[0].y == pytest.approx(chart.traces[2].y[:2])
    assert lab.figure("timeline").chart.source == "measured"
    lab.close()


def test_a_thinned_curve_keeps_its_steps():
    assert loss_chart([("long", [4, 3, 2], 10)]).traces[0].x == (1, 11, 21)


def test_without_plotly_the_static_form_is_shown_and_the_error_names_the_package(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("plotly"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    shown = plotted(loss_chart([("a", [2, 1], 1)]))
    assert list(shown._repr_mimebundle_()) == ["text/plain", "text/html"]
    with pytest.raises(MissingPlotly, match="pip install plotly"):
        shown.plotly()


@pytest.mark.exhaustive
def test_labs_are_made_and_shown_without_loading_plotly():
    code = "import sys; from parallel_lab.lab.strategy.model import StrategyLab; lab = StrategyLab(devices=2); "
    code += "lab.snapshot(); lab.figure('timeline').svg(); sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_an_unknown_figure_is_refused_with_those_there_are():
    with pytest.raises(ArgumentError, match="One of timeline, loss"):
        StrategyLab(devices=2).figure("pie")
    with pytest.raises(ArgumentError):
        FusionLab("golf").figure("memory")


def test_an_empty_timeline_is_a_chart_too():
    empty = timeline_chart({"source": "predicted", "unit": "us", "end": 0.0, "lanes": []})
    assert empty.svg().startswith("<svg ") and plotted(empty).plotly().layout.title.text


@pytest.mark.quick(1)
@pytest.mark.parametrize(("end", "unit", "right"), [(999.0, "us", 999.0), (6500.0, "ms", 6.5)])
def test_a_long_step_is_drawn_in_milliseconds(end, unit, right):
    """Its axis said "2k" and "4k" of microseconds."""
    lane = {"rank": 3, "bars": [{"kind": "wait", "label": "all_reduce", "start": 0.0, "end": end}]}
    chart = timeline_chart({"source": "measured", "unit": "us", "end": end, "lanes": [lane]})
    assert chart.x == f"time in {unit}" and chart.traces[0].ends == (pytest.approx(right),)
    assert chart.traces[0].said[0].endswith(f" {unit}") and f"{right:g} {unit} on 1 ranks" in chart.alt
