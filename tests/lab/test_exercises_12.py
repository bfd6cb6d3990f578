"""The capstone: budgets are counted, trace and report are computed again, and what belongs to another run is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.exercises import composed, get_exercise, lesson_12
from parallel_lab.lab.exercises.book import Desk
from parallel_lab.lab.exercises.composed import (
    Composed,
    Layout,
    _least_memory,
    layouts,
    messages_in,
    read_layout,
    train,
)
from parallel_lab.lab.lessons import compose
from parallel_lab.processes.shm import close_all
from tests.crossed import each_of
from tests.lab.verdicts import check, passes, told

FITS, BEST = {"dp": 4, "tp": 2, "level": "level1"}, {"dp": 4, "tp": 2, "level": "level3"}


@each_of(
    "given",
    {"dp": 3, "tp": 3},
    {"dp": 8, "tp": 8},
    {"dp": 8},
    {"dp": 8, "tp": 1, "level": "level9"},
    {"dp": 8, "tp": 1, "stages": 2},
    None,
    "dp 8",
)
def test_anything_but_a_layout_is_refused(given):
    with pytest.raises(ArgumentError, match="dp"):
        read_layout(given)


@pytest.mark.exhaustive
def test_both_budgets_exclude_the_pure_layouts_and_some_composed_ones_fit():
    def fits(layout):
        counts = Composed(layout).predicted
        held, sent = (max(getattr(c, field) for c in counts) for field in ("peak_bytes", "sent_bytes"))
        return held <= lesson_12.CAP and sent <= lesson_12.BUDGET

    fitting = [layout for layout in layouts() if fits(layout)]
    assert fitting and not [layout for layout in fitting if 1 in (layout.dp, layout.tp) or layout.level == "off"]
    held, best = _least_memory(lesson_12.BUDGET)
    assert best == Layout(**BEST) and held == min(
        max(count.peak_bytes for count in Composed(layout).predicted) for layout in fitting
    )


def test_no_call_shows_all_layouts_and_par_opens_at_par(monkeypatch):
    """Before: layouts_text printed all of them with both budgets, and par told the layout to one that fitted."""
    monkeypatch.setattr(composed, "_TRIED", {})
    with pytest.raises(ArgumentError, match=r"32 more layouts.*10 different ones in a session.*10 left"):
        composed.layouts_text(*layouts())
    shown = [{"dp": dp, "tp": 8 // dp} for dp in (8, 4, 2, 1)]
    assert composed.layouts_text(*shown) == composed.layouts_text(*shown) and len(composed._TRIED) == 4
    composed.count_runs(*list(layouts())[:6], *shown)
    with pytest.raises(ArgumentError, match="layout"):
        composed.count_runs(*list(layouts())[-9:])
    desk = Desk()
    desk.check("12.1", {"layout": {"dp": 4, "tp": 2, "level": "level1"}})
    with pytest.raises(ArgumentError, match="no attempt of your own passes 'par' yet"):
        desk.par("12.1")


@each_of(
    ("answer", "part", "words"),
    ({"layout": {"dp": 8, "tp": 1}, "trace": 1}, "memory", "8 ranks hold the same optimizer states"),
    ({"layout": {"dp": 3, "tp": 3}}, "layout", "dp * tp = 8"),
    ({"layout": {"dp": 1, "tp": 8, "level": "level3"}}, "memory", "shards what belongs to a parameter"),
    (5, "layout", "work = train"),
)
def test_a_layout_beyond_the_budgets_hears_why(answer, part, words):
    (wrong,) = [each for each in check("12.1", answer).parts if each.name == part]
    assert not wrong.passed and words in f"{wrong.found} {wrong.expected} {wrong.note} {wrong.form}"


@pytest.fixture(scope="module")
def works():
    made = train(FITS), train(BEST)
    close_all()
    return made


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_what_was_trained_passes_and_the_best_is_at_par(works):
    fits, best = works
    assert fits.report.equal and check("12.1", fits).points == 11
    assert passes(check("12.1", best), 13)
    assert passes(check("12.1", {"layout": BEST, "trace": list(best.trace), "report": best.report}), 13)
    assert "level3" in get_exercise("12.1").par()


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_trace_or_report_of_another_run_is_found(works):
    fits, best = works
    assert "this layout does not send" in told("12.1", replace(fits, trace=best.trace), "trace")
    half = tuple(event for event in fits.trace if event.rank < 4)
    assert "are missing" in told("12.1", replace(fits, trace=half), "trace")
    made = tuple(replace(event, source="simulated") for event in fits.trace)
    assert "not measured" in told("12.1", replace(fits, trace=made), "trace")
    assert "no message in the trace" in told("12.1", replace(fits, trace=()), "trace")
    first, *others = fits.report.rows
    better = replace(fits.report, rows=(replace(first, largest_difference=0.0), *others))
    assert "another result" in told("12.1", replace(fits, report=better), "equality")


@pytest.mark.exhaustive
def test_processes_and_simulator_see_the_same_messages_and_losses(works):
    losses, events = Composed.of(FITS).trained()
    assert tuple(losses) == works[0].losses and messages_in(events) == messages_in(works[0].trace)


def test_compare_knows_that_sharding_the_optimizer_sends_no_more():
    rows = compose.compare({"fewest": None, "least": None, "sharded": "more"}).rows
    assert [row[2] for row in rows] == [(4, 2), (2, 4), "the same"] and rows[2][3] == "the same"
