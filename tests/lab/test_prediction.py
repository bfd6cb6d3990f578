"""Predictions next to the plan: right numbers, verdicts, and the reason behind a known wrong answer."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError, DataFileError
from parallel_lab.base.events import Event
from parallel_lab.lab.lessons import predictions, slicing
from parallel_lab.lab.quickstart.prediction import Prediction, ask, compare as quickstart_compare
from parallel_lab.lab.shared import prediction
from parallel_lab.lab.shared.prediction import Comparison, FirstAnswers
from parallel_lab.lab.strategy.model import StrategyLab
from tests.crossed import each_of

# Rank 5 is (1, 1) in the 2 x 4 matrix. Messages: two all_reduces forward and the loss, the same two backward, and the
# gradients of w2 and w.
BYTES = 4 * (8 * 16 + 8 * 16 + 1 + 8 * 16 + 8 * 16 + 4 * 16 + 8 * 16)
RIGHT = {"slice_of_w": (8, 16), "group_of_rank_5": (4, 5, 6, 7), "messages": 7, "bytes": BYTES}


@pytest.fixture(scope="module")
def plan():
    return StrategyLab().plan


def verdicts(comparison: Comparison) -> list[str]:
    return [comparison.verdict(yours, right) for _, yours, right, _, _ in comparison.rows]


def hint(plan, row: int, **answers) -> str:
    return Prediction(**answers).compare(plan).rows[row][4]


def test_right_answers_are_right(plan):
    comparison = Prediction(**RIGHT).compare(plan)
    assert verdicts(comparison) == ["right"] * 4
    assert [row[2] for row in comparison.rows] == list(RIGHT.values())


def test_lists_are_as_good_as_tuples(plan):
    expected = ["right", "right"]
    assert verdicts(Prediction(slice_of_w=[8, 16], group_of_rank_5=[4, 5, 6, 7]).compare(plan))[:2] == expected


def test_what_is_left_open_is_covered_until_it_is_asked_for(plan):
    comparison = Prediction(messages=7).compare(plan)
    assert verdicts(comparison) == ["no answer", "no answer", "right", "no answer"]
    assert "3 questions are open" in str(comparison)
    assert "(8, 16)" not in str(comparison) and f"{BYTES}" not in str(comparison)
    shown = str(Prediction(messages=7).compare(plan, show=True))
    assert "(8, 16)" in shown and f"{BYTES}" in shown and "open" not in shown
    assert "no question has an answer yet" in Prediction().compare(plan)._repr_html_()


def test_wrong_answers_are_not_yet(plan):
    assert verdicts(Prediction((32, 16), (0, 5), 3, 1).compare(plan)) == ["not yet"] * 4


@each_of(
    ("row", "answers", "words"),
    (0, {"slice_of_w": (32, 16)}, "whole of w"),
    (0, {"slice_of_w": (16, 8)}, "per dim"),
    (1, {"group_of_rank_5": (1, 5)}, "backward"),
    (1, {"group_of_rank_5": (0, 1, 2, 3)}, "runs fastest"),
    (2, {"messages": 3}, "forward alone"),
    (2, {"messages": 9}, "3 forward, 4 backward"),
    (3, {"bytes": BYTES // 4}, "elements"),
    (3, {"bytes": 7}, "512 + 512 + 4 + 512 + 512 + 256 + 512"),
)
def test_a_known_misconception_is_answered_with_its_reason(plan, row, answers, words):
    assert words in hint(plan, row, **answers)


def test_a_right_answer_needs_no_hint_in_print(plan):
    assert "runs fastest" not in str(Prediction(**RIGHT).compare(plan))
    assert "runs fastest" in str(Prediction().compare(plan, show=True))


@each_of("answers", {"slice_of_w": "eight by sixteen"}, {"group_of_rank_5": 4.5}, {"messages": object()})
def test_an_answer_that_is_not_a_number_is_refused_by_its_question(answers):
    with pytest.raises(ArgumentError, match=f"{next(iter(answers))}=.*A whole number, or several in a tuple"):
        Prediction(**answers)


def test_whole_floats_and_lists_are_answers_too():
    assert Prediction(messages=7.0, slice_of_w=[8, 16.0]) == Prediction(messages=7, slice_of_w=(8, 16))


@pytest.mark.parametrize(("net", "devices"), [("quickstart", 4), ("megatron", 8), ("dense", 8)])
def test_another_plan_is_refused(net, devices):
    with pytest.raises(ArgumentError, match="quickstart network on 8 devices"):
        Prediction().compare(StrategyLab(net, devices).plan)


def test_what_was_counted_stands_next_to_what_was_predicted(plan):
    ran = {"rank": 5, "step": 0, "kind": "communication", "start_s": 0, "end_s": 1}
    events = [
        Event(phase=phase, name=i.out, op=i.kind, group=i.group(5), bytes=plan.value(i.ins[0]).slice_bytes, **ran)
        for phase, i in plan.instructions()
        if i.is_communication
    ]
    rows = Prediction(**RIGHT).compare(plan, events).rows
    assert rows[2][3] == 7 and rows[3][3] == BYTES
    assert rows[2][3] == rows[2][2] and rows[3][3] == rows[3][2]


def test_the_table_in_a_notebook_is_escaped_and_has_headers():
    page = Comparison((("<b>?", "<i>1", 2, None, "a & b"),))._repr_html_()
    assert "&lt;b&gt;?" in page and "&lt;i&gt;1" in page and "a &amp; b" in page and "<b>?" not in page
    assert page.count("scope='col'") == 6


def test_a_comparison_takes_the_answers_by_their_keys():
    rows = Comparison.of({"n": 3, "b": None}, b=("bytes?", 8, 8, "4 each"), n=("how many?", 2, None, "two")).rows
    assert rows == (("bytes?", None, 8, None, "4 each"), ("how many?", 3, 2, None, "two"))
    with pytest.raises(ArgumentError, match=r"no answer 'm'.*A dict with m"):
        Comparison.of({"n": 3}, m=("?", 1, 1, ""))
    with pytest.raises(ArgumentError, match=r"prediction=7.*A dict with m"):
        Comparison.of(7, m=("?", 1, 1, ""))


def test_nothing_is_counted_for_an_open_question():
    counted = []
    asked = {"a": ("a?", 1, lambda: counted.append("a") or 1, ""), "b": ("b?", 2, lambda: counted.append("b") or 2, "")}
    assert Comparison.of({"a": None, "b": 2}, **asked).open == 1 and counted == ["b"]
    assert Comparison.of({"a": None, "b": 2}, show=True, **asked).open == 0 and counted == ["b", "a", "b"]


@each_of(
    ("yours", "right", "verdict"),
    ([8, 16], (8, 16), "right"),
    (7.0, 7, "right"),
    (np.int64(7), 7, "right"),
    (np.arange(3), 7, "not yet"),
    ("87", (8, 7), "not yet"),
    (object(), 7, "not yet"),
)
def test_an_answer_counts_in_any_form(yours, right, verdict):
    assert Comparison.verdict(yours, right) == verdict


# ---- forms ----

FORMS = json.loads(Path(predictions.__file__).with_suffix(".json").read_text(encoding="utf-8"))


@pytest.fixture
def form(tmp_path, monkeypatch):
    """form("05", x=...) -> the form of a lesson, with the answers that are kept in one folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prediction, "_FIRST", first := FirstAnswers())
    monkeypatch.setattr(predictions, "keep_answer", first.add)
    predict = partial(predictions.predict)  # one that can be given `first`
    predict.first = first
    return predict


@pytest.mark.parametrize("lesson", FORMS)
def test_the_questions_of_a_form_are_those_that_the_lesson_compares(lesson):
    (name,) = (path.name[3:-6] for path in Path("notebooks").glob(f"{lesson}_*.ipynb"))
    text = Path(f"parallel_lab/lab/lessons/{name}.py").read_text(encoding="utf-8")
    for key, (called, question, *choices) in FORMS[lesson].items():
        assert f"{key}=" in text and question.rstrip(".)").endswith(("?", "one", "12"))
        assert len(choices) != 1
        rows = predictions.Answers(lesson, {key: 7}, show=True).next_to(**{key: (7, lambda: 8, "because")}).rows
        assert rows == ((called, 7, 7, 8, "because"),)


def test_a_question_is_compared_under_the_name_that_its_form_has_for_it():
    compared = slicing.compare(dict.fromkeys(FORMS["05"]), show=True)
    assert [row[0] for row in compared.rows] == [called for called, *_ in FORMS["05"].values()]
    with pytest.raises(ArgumentError, match=r"no answer 'x'.*A dict with x"):
        predictions.Answers("05", {"sent": 192}).next_to(x=((8, 8), None, ""))


def test_a_form_and_a_dict_of_an_old_notebook_are_compared_alike(form):
    answers = {"x": (8, 8), "result": None, "group": (1, 5), "sent": 192}
    old = slicing.compare(answers)
    new = slicing.compare(form("05", x="8 x 8", group=[1, 5], sent="192"))
    assert new.rows == old.rows and new.open == old.open == 1


def test_answers_are_kept_when_the_notebook_runs_again_and_stay_once_they_were_compared(form):
    first = form("05", x="8 x 16", sent=7)
    first.answer("sent", 8)  # changed before it was compared
    form("07", missing="fails")  # those of another lesson stay
    assert dict(form("05")) == {"x": (8, 16), "result": None, "group": None, "sent": 8}
    slicing.compare(form("05"))
    again = form("05", x=(8, 8), result=(8, 16))
    assert again["x"] == (8, 16) and again["result"] == (8, 16)
    with pytest.raises(ArgumentError, match="The first answer counts"):
        again.answer("x", "(8, 8)")
    said = {one["text"]: (one["yours"], one["right"]) for one in form.first.said()}
    assert said["Lesson 05: slice of x"] == ("(8, 16)", ["(8, 8)"])
    assert said["Lesson 07: without that message"] == ("fails", [])  # nothing was shown yet


@each_of(
    ("given", "kept"),
    ("((2, 2),)", ((2, 2),)),
    ("16, 8", (16, 8)),
    (" 6 ", 6),
    ("1.5", 1.5),
    (np.float64(7.0), 7),
    ("__import__('os')", "__import__('os')"),
    ("half of them", "half of them"),
)
def test_a_typed_answer_is_read_as_what_it_writes_down_and_nothing_runs(form, given, kept):
    assert form("13", slice=given)["slice"] == kept


def test_a_form_takes_only_what_is_asked_and_says_what_its_file_lacks(form, tmp_path):
    with pytest.raises(ArgumentError, match="ring, fewest rounds"):
        form("02", small="tree")
    with pytest.raises(ArgumentError, match="A lesson: 02, 03"):
        form("2")
    with pytest.raises(ArgumentError, match="a tuple, or a text"):
        form("02", rounds=object())
    assert form("03", short_batch="False")["short_batch"] is False and form("12", fewest="(2, 2, 2)")["fewest"] == (
        2,
        2,
        2,
    )
    assert "rounds in a ring" not in form("02").to_text() and "After how many rounds" in form("02").to_text()
    (tmp_path / predictions.FILE).write_text('{"format": "parallel_lab.predictions", "lessons": {"02": []}}')
    with pytest.raises(DataFileError, match="Move it away"):
        form("02")


def test_lesson_01_asks_in_its_lab_and_compares_what_was_answered_there():
    """And one after the other: between two questions the lab showed the answers to the rest."""
    lab = StrategyLab()
    ask(lab)
    for given, said in (
        ("8 x 16", "each dim is divided"),
        ("1 5", "same slice of w: they meet in backward"),
        (7, "one"),
    ):
        lab.answer(lab.question().key, given)
        assert said in lab.to_text() and "messages a step" not in lab.to_text()  # the head of the lab's picture
        shown = lab.snapshot()["predict"]
        assert shown["then"] and not shown["more"] and shown["open"]["hides"] == ["tables", "rank", "picture"]
    assert verdicts(quickstart_compare(lab)) == ["right", "not yet", "right", "no answer"]
    lab.skip(lab.question().key)
    assert "messages a step" in lab.to_text()
    assert lab.question() is None and lab.snapshot()["predict"]["more"]  # its own questions: on demand
    lab.ask()
    assert not lab.question().key.startswith("Lesson")
