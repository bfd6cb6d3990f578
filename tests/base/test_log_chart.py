"""The log-log chart: places by formula, marks that differ, no chart of nothing."""

import math
import xml.etree.ElementTree as ElementTree

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.base.log_chart import COLOURS, Series, log_chart

SVG = "{http://www.w3.org/2000/svg}"


def test_equal_factors_are_equal_distances():
    points = ((1024.0, 1e-6), (4096.0, 1e-5), (16384.0, 1e-4))
    root = ElementTree.fromstring(log_chart("t", [Series("a", points)]))
    marks = root.findall(f"{SVG}circle")[:3]
    for name, sign in (("cx", 1), ("cy", -1)):
        first, second, third = (float(m.get(name)) for m in marks)
        assert second - first == pytest.approx(third - second, abs=0.2) and sign * (third - first) > 0


def test_names_are_escaped_and_said_to_those_who_do_not_see():
    text = log_chart("a < b", [Series("x & y", ((1.0, 1.0),))])
    root = ElementTree.fromstring(text)
    assert "x & y" in root.get("aria-label") and "a < b" in root.get("aria-label") and "<script" not in text


def test_eight_series_differ_in_more_than_their_colour():
    root = ElementTree.fromstring(
        log_chart("t", [Series(f"s{i}", ((1.0, 1.0 + i), (2.0, 2.0 + i))) for i in range(len(COLOURS))])
    )
    shapes = [(e.tag, e.get("fill") == "none") for e in root if e.get("stroke-width") == "1.4"]
    kinds = {(tag, hollow) for tag, hollow in shapes}
    paths = {
        (e.get("d").split("l")[1:2][0] if "l" in e.get("d") else "", e.get("fill") == "none")
        for e in root.findall(f"{SVG}path")
        if "z" in e.get("d")
    }
    assert len(kinds - {(f"{SVG}path", True), (f"{SVG}path", False)}) == 4 and len(paths) == 4


def test_a_spread_outside_the_points_is_inside_the_axes():
    root = ElementTree.fromstring(log_chart("t", [Series("a", ((1.0, 1e-3),), ((1e-6, 1.0),))], height=300))
    bar = next(e.get("d") for e in root.findall(f"{SVG}path") if e.get("stroke-opacity") == ".55")
    top, bottom = sorted(float(part) for part in bar.replace("M", "").replace("V", " ").split()[1:])
    assert 0 < top < bottom < 300


@pytest.mark.parametrize("points", [(), ((1.0, 0.0),), ((0.0, 1.0),), ((1.0, math.nan),), ((1.0, math.inf),)])
def test_a_chart_needs_points_above_zero(points):
    with pytest.raises(ArgumentError, match="chart"):
        log_chart("t", [Series("a", points)])
