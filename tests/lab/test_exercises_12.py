"""The capstone: its numbers are those that a run counts, trace and report are computed again, what belongs to another
run is found. Its par and what does not reach it: test_capstone.py.
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.exercises.capstone import Composed, Layout, messages_in, read_layout, train
from parallel_lab.lab.lessons import compose
from parallel_lab.processes.shm import close_all
from tests.crossed import each_of
from tests.lab.verdicts import check, passes, told

NEAR = {"stages": 4, "dp": 2, "tp": 1, "micro_batches": 8, "level": "level2", "recompute": [0, 1, 2, 3, 4]}
BEST = {"stages": 2, "dp": 2, "tp": 2, "micro_batches": 8, "level": "level1", "recompute": [0, 1]}
EARLIER = {"dp": 4, "tp": 2, "level": "level3"}


@each_of(
    ("given", "words"),
    ({"dp": 3, "tp": 3}, "layout: dp=3, tp=3. "),
    ({"dp": 8, "tp": 8}, "dp 8 * tp 8 * stages 1 is 64"),
    ({"dp": 8}, "A dict with dp"),
    ({"dp": 8, "tp": 1, "level": "level9"}, "layout: level='level9'. "),
    ({"dp": 8, "tp": 1, "stages": 2}, "dp 8 * tp 1 * stages 2 is 16"),
    ({"dp": 1, "tp": 1, "stages": 8, "micro_batches": 4}, "4 micro-batches for 8 stages"),
    ({"dp": 8, "tp": 1, "stages": True}, "stages=True"),
    ({"dp": 8, "tp": 1, "recompute": [8]}, "recompute=[8]"),
    ({"dp": 8, "tp": 1, "recompute": [[0]]}, "recompute=[[0]]"),
    ({"dp": 8, "tp": 1, "schedule": "zb_h1"}, "schedule='zb_h1'"),
    ({"dp": [8], "tp": 1}, "dp=[8]"),
    (None, "A dict with dp"),
    ("dp 8", "A dict with dp"),
)
def test_anything_but_a_layout_is_refused_and_named(given, words):
    with pytest.raises(ArgumentError, match=re.escape(words)):
        read_layout(given)


def test_forms_of_a_layout_that_mean_the_same_are_one():
    same = [{"recompute": form} for form in (True, list(range(8)), tuple(reversed(range(8))), [*range(8), 0])]
    assert len({read_layout({"dp": 8, "tp": 1, **form}) for form in same}) == 1
    assert read_layout(asdict(Layout(8, 1))) == Layout(8, 1) == read_layout({"dp": 8, "tp": 1, "recompute": False})


@pytest.mark.quick(1)
@each_of(
    ("answer", "part", "words"),
    # a ring of 8: 2 * 7 / 8 * 4 bytes of 8 blocks of 49,920 numbers, 5,248 of embeddings, norm and head, and the loss
    ({"layout": {"stages": 1, "dp": 8, "tp": 1}}, "traffic", "2,832,263 of"),
    ({"layout": {"dp": 3, "tp": 3}}, "layout", "dp * tp * stages = 8"),
    (
        [{"stages": 2, "dp": 4, "tp": 1, "micro_batches": 8, "schedule": "gpipe"}],
        "memory",
        "GPipe keeps those of all 8",
    ),
    (  # the level is not what is wrong here
        {"stages": 2, "dp": 2, "tp": 2, "micro_batches": 8, "schedule": "gpipe", "level": "level1"},
        "memory",
        "GPipe keeps those of all 8",
    ),
    ({"stages": 1, "dp": 8, "tp": 1, "micro_batches": 8}, "memory", "next to the sums so far"),
    ({"stages": 8, "dp": 1, "tp": 1, "micro_batches": 8}, "memory", "as many more micro-batches in flight"),
    ({"stages": 1, "dp": 4, "tp": 2, "level": "level3", "micro_batches": 8}, "traffic", "send for every micro-batch"),
    ({"layout": {"stages": 2, "dp": 2, "tp": 2, "micro_batches": 8, "recompute": True}}, "traffic", "once more"),
    ([{"stages": 1, "dp": 8, "tp": 1, "recompute": [n]} for n in range(8)] * 2, "memory", "Rank 0 is the fullest"),
    ([{"stages": 1, "dp": 8, "tp": 1, "recompute": [n, m]} for n in range(4) for m in range(4)], "memory", "Rank 0"),
    ([{"stages": 1, "dp": 8, "tp": 1, "recompute": [n, m]} for n in range(5) for m in range(5)], "layout", "15 diff"),
    ([{"stages": 1, "dp": 8, "tp": 1}] * 101, "layout", "101 layouts"),
    (5, "layout", "work = train"),
)
def test_a_layout_beyond_the_budgets_hears_why(answer, part, words):
    (found,) = [each for each in check("12.1", answer).parts if each.name == part]
    assert bool(found.passed) is words.endswith(" of")  # what is within the budget is said, too
    assert words in f"{found.found} {found.expected} {found.note} {found.form}"


@pytest.mark.exhaustive
def test_near_par_is_less_than_par():
    parts = {part.name: part for part in check("12.1", [NEAR]).parts}
    assert parts["memory"].passed and parts["traffic"].passed and parts["near par"].passed and not parts["par"].passed


@pytest.fixture(scope="module")
def works():
    made = train([NEAR, BEST]), train(EARLIER)
    close_all()
    return made


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_what_was_trained_passes(works):
    best, _ = works
    assert best.report.equal and passes(check("12.1", best), 13) and len(best.runs) == 1
    assert passes(check("12.1", {"layout": BEST, "trace": list(best.trace), "report": best.report}), 13)


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_work_of_an_earlier_edition_is_graded(works):
    """One block, as it was asked for then: its trace and its report are right, and the budgets are today's."""
    parts = {part.name: part.passed for part in check("12.1", works[1]).parts}
    assert set(works[1].layout) == {"dp", "tp", "level", "recompute"} and len(works[1].losses) == 10
    assert {name for name, passed in parts.items() if passed} == {"layout", "trace", "equality"}
    assert "another result" in told("12.1", replace(works[1], layout=BEST), "equality")


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_trace_or_report_of_another_run_is_found(works):
    best, other = works
    assert "this layout does not send" in told("12.1", replace(best, trace=other.trace), "trace")
    half = tuple(event for event in best.trace if event.rank < 4)
    assert "are missing" in told("12.1", replace(best, trace=half), "trace")
    made = tuple(replace(event, source="simulated") for event in best.trace)
    assert "not measured" in told("12.1", replace(best, trace=made), "trace")
    assert "no message in the trace" in told("12.1", replace(best, trace=()), "trace")
    first, *others = best.report.rows
    better = replace(best.report, rows=(replace(first, largest_difference=9.0), *others))
    assert "another result" in told("12.1", replace(best, report=better), "equality")


@pytest.mark.exhaustive
def test_plan_simulator_and_processes_agree(works):
    composed = Composed(read_layout(BEST))
    losses, events = composed.trained()
    assert tuple(losses) == works[0].losses and losses[1] < losses[0]
    assert messages_in(events) == messages_in(works[0].trace) == composed.messages
    for mine, counted in zip(composed.predicted, composed.counted, strict=True):
        assert (mine.peak_bytes, mine.sent_bytes) == (counted.peak_bytes, counted.sent_bytes)


@pytest.mark.exhaustive
def test_compare_asks_about_stages_and_still_answers_the_earlier_questions():
    rows = compose.compare({"fewest": (1, 8, 1), "fullest": None, "again": None}).rows
    assert [row[2] for row in rows] == [(8, 1, 1), 0, "more"]
    rows = compose.compare({"fewest": None, "least": None, "sharded": "more"}).rows
    assert [row[2] for row in rows] == [(4, 2), (2, 4), "the same"] and rows[2][3] == "the same"
