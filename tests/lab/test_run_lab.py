"""The Run Lab: published runs next to their predictions, with one thing changed."""

from __future__ import annotations

import random

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.base.units import time_text
from parallel_lab.cost.planner import changed_run, published_run, report_run, reports
from parallel_lab.lab.lessons.choose import reveal
from parallel_lab.lab.runs.model import AS_IT_IS, CHANGES, RunLab, run_names


def test_what_is_shown_is_the_report_of_the_run():
    lab = RunLab("titan-8b-cp4")
    text, report = lab.to_text(), report_run("titan-8b-cp4")
    assert f"{report.error:+.1%}" in text and report.run.point.text() in text and report.error_bar_text in text
    rows = lab.snapshot()["sections"]["waterfall"]["rows"]
    assert sum(row[2] for row in rows) == pytest.approx(report.seconds) == rows[-1][3]


def test_a_waterfall_begins_each_term_where_the_last_one_ends():
    rows = RunLab("nemo-llama3-405b-h100", links="0.5").snapshot()["sections"]["waterfall"]["rows"]
    drawn = [row[1] for row in rows]
    assert len(set(map(len, drawn))) == 1
    assert all(sum(text[i] == "█" for text in drawn) == 1 for i in range(24))


def test_a_change_is_what_the_function_says():
    lab = RunLab("titan-405b-cp1", change="cp 2")
    expected = report_run(changed_run(published_run("titan-405b-cp1"), context=2))
    assert lab.changed.seconds == expected.seconds < lab.report.seconds
    assert "decided by waiting (-" in lab.snapshot()["status"]


def test_every_change_keeps_devices_and_batch_and_changes_something():
    draw = random.Random(5)
    for name in draw.sample(run_names(), 6):
        lab = RunLab(name)
        assert lab.changes[0] == AS_IT_IS and set(lab.changes) <= set(CHANGES)
        for change in lab.changes[1:]:
            lab.set_change(change)
            point, was = lab.changed.run.point, lab.report.run.point
            assert (point.devices, point.batch) == (was.devices, was.batch)
            assert lab.changed.seconds != lab.report.seconds
        lab.set_change(AS_IT_IS)


def test_another_run_begins_as_it_was():
    lab = RunLab("titan-405b-cp1", change="cp 2")
    lab.set_run_id("llama3-405b-8k")
    assert lab.changed.seconds == lab.report.seconds and "With" not in lab.snapshot()["status"]
    with pytest.raises(ArgumentError):
        lab.set_change("cp 3")
    with pytest.raises(ArgumentError):
        RunLab("llama4")


def test_every_run_that_can_be_predicted_is_offered():
    assert set(run_names()) == {name for name, report in reports().items() if report.prediction}
    assert len(run_names()) > 45


def test_a_lab_goes_through_a_file_and_a_page(tmp_path):
    lab = RunLab("titan-405b-cp1", change="cp 2")
    assert RunLab.of_state(lab.state()).to_text() == lab.to_text()
    page = lab.to_html(tmp_path / "run.html").read_text()
    assert "Where a step goes" in page and "http://" not in page.replace("http://www.w3.org", "")


def test_degrees_are_picked_before_the_reveal():
    text = reveal("llama3-405b-16k", tensor=8, context=1, stages=8)
    own = report_run(changed_run(published_run("llama3-405b-16k"), stages=8, chunks=1, schedule="1f1b")).prediction
    theirs = report_run("llama3-405b-16k")
    assert time_text(own.step_s) in text and own.point.text() in text and theirs.run.point.text() in text
    assert time_text(theirs.run.step_s) in text and theirs.error_bar_text in text
    with pytest.raises(ArgumentError, match="4 micro-batches on 8 stages"):
        reveal("llama3-405b-16k", tensor=4, context=1, stages=8)
