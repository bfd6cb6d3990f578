"""The classroom wall of a made-up class, whose counts are computed by hand."""

from __future__ import annotations

import json
import os
import re
import subprocess

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab.base.cluster import cluster_for
from parallel_lab.base.errors import ArgumentError, DataFileError
from parallel_lab.cli.main import main
from parallel_lab.cost.memory import predict_memory
from parallel_lab.cost.time import step_time_s
from parallel_lab.lab.classroom.roll import FORMAT, hand_in, read_class
from parallel_lab.lab.classroom.wall import wall_page
from parallel_lab.lab.lessons import slicing
from parallel_lab.lab.quickstart.prediction import Prediction
from parallel_lab.lab.shared import prediction
from tests.browser.lab_page import CHROMIUM, axe_faults

ROUNDS = "How many rounds does all_reduce by ring on 4 ranks need?"  # 2 (4 - 1) = 6
MEAN = "all_reduce averages"


def check(number: str, points: int, most: int, *ideas: str) -> dict:
    parts = [{"name": f"part {n}", "passed": not idea, "idea": idea} for n, idea in enumerate(ideas)]
    return {"exercise": number, "points": points, "max_points": most, "parts": parts}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Five learners. Of ROUNDS: Ada and Di say 6, Bo 3, Cy 3, Eve skipped it. "all_reduce averages": Ada in two
    exercises, Bo in one; "a ring is always best": Cy. Layouts: Ada, Bo and Di of the Strategy Lab.
    """
    root = tmp_path_factory.mktemp("class")
    said = {"ada": 6, "bo": 3, "cy": 3, "di": 6, "eve": None}
    checks = {
        "ada": [check("03.1", 1, 3, MEAN, MEAN, ""), check("03.3", 2, 4, MEAN)],
        "bo": [check("03.1", 0, 3, MEAN)],
        "cy": [check("02.4", 3, 5, "a ring is always best")],
        "di": [check("03.1", 3, 3, "")],
        "eve": [],
    }
    for name, answer in said.items():
        stepper = pl.CollectiveStepper("all_reduce", "ring", 4)
        stepper.set_predict(True)
        key = stepper.question().key
        stepper.skip(key) if answer is None else stepper.answer(key, answer)
        told = {"format": FORMAT, "version": 1, "learner": name.title(), "labs": [], "checks": checks[name]}
        (root / f"{name}.json").write_text(json.dumps({**told, "predictions": stepper.answered()}))
    for name, strategy in (("Ada", "((2, 4), (4, 1))"), ("Bo", "((8, 1), (1, 1))"), ("Di", "((8, 1), (1, 1))")):
        lab = pl.StrategyLab()
        lab.set_strategy("matmul", strategy)
        (root / name).mkdir()
        lab.save(root / name / "layout.json")
    (root / "broken.json").write_text('{"format": "parallel_lab.class", "version": 1, "labs": [{}]}')
    (root / "notes.txt").write_text("no JSON")
    return root


@pytest.fixture(scope="module")
def roll(folder):
    return read_class(folder)


def test_predictions_ideas_and_points_are_counted(roll):
    assert roll.learners == ("Ada", "Bo", "Cy", "Di", "Eve")
    assert list(roll.answers) == [ROUNDS] and roll.right[ROUNDS] == ("6",)
    assert roll.histogram(ROUNDS) == [("3", 2), ("6", 2), ("(skipped)", 1)]
    assert roll.ideas == {MEAN: {"Ada": ("03.1", "03.3"), "Bo": ("03.1",)}, "a ring is always best": {"Cy": ("02.4",)}}
    assert roll.points["03.1"] == {"Ada": (1, 3), "Bo": (0, 3), "Di": (3, 3)}
    assert roll.points["03.3"] == {"Ada": (2, 4)} and roll.points["02.4"] == {"Cy": (3, 5)}
    assert [path for path, _ in roll.refused] == ["broken.json"]


def test_a_layout_has_the_time_and_the_memory_of_its_plan(roll):
    assert [layout.learner for layout in roll.layouts] == ["Ada", "Bo", "Di"]
    for layout in roll.layouts:
        plan = layout.lab.plan
        assert layout.time_s == max(step_time_s(plan, cluster_for(8), rank=rank).total_s for rank in range(8))
        assert layout.memory_bytes == max(predict_memory(plan, rank=rank).peak_bytes for rank in range(8))
    ada, bo, di = roll.layouts
    assert (bo.time_s, bo.memory_bytes) == (di.time_s, di.memory_bytes) != (ada.time_s, ada.memory_bytes)


@pytest.mark.exhaustive
def test_the_axes_of_the_plot_have_round_numbers(roll):
    page, tick = wall_page(roll), r'<text x="[\d.]+" y="[\d.]+" text-anchor="%s">([\d.]+) (?:us|ms|s|B|KiB|MiB)</text>'
    for anchor in ("middle", "end"):  # times, then sizes
        ticks = [float(found) for found in re.findall(tick % anchor, page)]
        step = ticks[1] - ticks[0]
        assert f"{step:.0e}"[0] in "125" and step == pytest.approx(float(f"{step:.0e}"))
        assert ticks == pytest.approx([n * step for n in range(len(ticks))])


def test_the_text_says_what_is_right_only_when_revealed(roll):
    covered, told = roll.to_text(), roll.to_text(reveal=True)
    assert "(right)" not in covered and "## 2: 6 (right)" in told and "## 2: 3\n" in told
    assert "  2: all_reduce averages (Ada, Bo)\n" in covered and "Not read: broken.json" in covered


def test_hidden_names_are_nowhere(roll):
    page, text = wall_page(roll.nameless()), roll.nameless().to_text()
    for name in ("Ada", "Bo", "Cy", "Di", "Eve"):
        assert not re.search(rf"\b{name}\b", text) and f">{name}<" not in page and f'"{name}: ' not in page
    assert "  2: all_reduce averages (learner 1, learner 2)\n" in text


def test_the_command_writes_the_page_or_prints_the_text(folder, tmp_path, capsys):
    out = tmp_path / "wall.html"
    assert main(["wall", str(folder), "--out", str(out)]) == 0
    assert f"{out}: 5 learners, 3 labs" in capsys.readouterr().out
    assert "connect-src" not in out.read_text() and "default-src 'none'" in out.read_text()
    assert main(["wall", str(folder), "--text", "--hide-names", "--reveal"]) == 0
    told = capsys.readouterr().out
    assert "5 learners: learner 1, learner 2" in told and "(right)" in told and "Ada" not in told
    assert main(["wall", str(tmp_path / "nowhere")]) == 2


def test_a_notebook_hands_in_its_labs_predictions_and_checks(tmp_path):
    lab = pl.CollectiveStepper("all_reduce", "ring", 4)
    lab.set_predict(True)
    lab.answer(lab.question().key, 8)
    hand_in(tmp_path / "x.json", lab, learner="Ada <b>")
    roll = read_class(tmp_path)
    assert roll.learners == ("Ada <b>",) and roll.histogram(ROUNDS) == [("8", 1)]
    assert [layout.title for layout in roll.layouts] == [lab.snapshot()["title"]]
    assert roll.layouts[0].time_s is None and "Ada <b>" not in wall_page(roll)
    with pytest.raises(ArgumentError, match="hand_in"):
        hand_in(tmp_path / "y.json", 3)


def test_what_is_predicted_in_cells_of_lessons_is_handed_in_as_it_was_before_the_reveal(tmp_path, monkeypatch):
    """Three learners, a session each. Lesson 05, elements that a rank sends: 2 x 3/4 x 128 = 192; Ada says so, Bo says
    128 first, and 192 once he has seen it; Cy has it shown. Lesson 01: Ada's list is Bo's tuple.
    """
    plan = pl.StrategyLab().plan
    sent, slices = "Lesson 05: elements that a rank sends", "Lesson 01: slice of w on rank 5"
    said = {"Ada": ([192], [8, 16]), "Bo": ([128, 192], (8, 16)), "Cy": ([None], None)}
    blank = dict.fromkeys(("x", "result", "group", "sent"))
    for name, (numbers, shape) in said.items():
        monkeypatch.setattr(prediction._FIRST, "_kept", {})  # a kernel of its own
        for number in numbers:
            slicing.compare({**blank, "sent": number}, show=number is None)
        slicing.compare({**blank, "sent": 7})  # too late for all three
        Prediction(slice_of_w=shape).compare(plan)
        hand_in(tmp_path / f"{name}.json", learner=name)
    roll = read_class(tmp_path)
    assert roll.refused == () and roll.right[sent] == ("192",)
    assert dict(roll.answers[sent]) == {"Ada": "192", "Bo": "128", "Cy": "(skipped)"}
    assert roll.histogram(slices) == [("(8, 16)", 2)] and roll.right[slices] == ("(8, 16)",)
    shown = wall_page(roll)
    assert f"<h3>{sent}</h3>" in shown and shown.count('class="wall-reveal"') == len(roll.answers)


def test_any_answer_can_be_handed_in(tmp_path, monkeypatch):
    monkeypatch.setattr(prediction._FIRST, "_kept", {})
    answers = dict(enumerate((np.array([8.0, 16.0]), np.float32(7), float("nan"), {3}, "\ud800", 10**400)))
    for n, answer in answers.items():
        prediction.Comparison.of({"n": answer}, lesson="02", n=(f"question {n}", (8, 16), None, ""))
    hand_in(tmp_path / "x.json")
    found = [list(row.values()) for row in read_class(tmp_path).answers.values()]
    assert found[:4] == [["(8, 16)"], ["7"], ["nan"], ["{3}"]] and len(found) == len(answers)


def test_folders_without_an_end_are_left_out_and_named(tmp_path):
    """They ended the command with a RecursionError."""
    hand_in(tmp_path / "ada.json", learner="Ada")
    for depth in range(1, 1201):
        os.mkdir(tmp_path / "/".join("a" * depth))
    roll = read_class(tmp_path)
    subprocess.run(["rm", "-rf", tmp_path / "a"], check=True)
    assert roll.learners == ("Ada",)
    assert [(len(path), why) for path, why in roll.refused] == [(81, "it lies more than 40 folders deep")]


def test_anything_but_a_class_is_refused(tmp_path):
    with pytest.raises(DataFileError, match="not a folder"):
        read_class(tmp_path / "x")
    with pytest.raises(DataFileError, match=r"0 \.json files"):
        read_class(tmp_path)
    for name, text in {
        "a": "{",
        "b": "[1]",
        "c": '{"format": "parallel_lab.class", "version": 2}',
        "d": "[" * 99,
    }.items():
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "e.json").write_text('{"format": "parallel_lab.class", "version": 1, "checks": 7}')
    roll = read_class(tmp_path)
    assert roll.learners == () and len(roll.refused) == 5 and "Not read" in wall_page(roll)


@pytest.mark.exhaustive
@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason="no chromium")
def test_in_a_browser_a_click_shows_a_layout_a_button_reveals_and_names_can_be_hidden(roll, tmp_path):
    from playwright.sync_api import expect

    from tests.browser.jupyterlab import chromium_page

    path = tmp_path / "wall.html"
    path.write_text(wall_page(roll), encoding="utf-8")
    with chromium_page() as page:
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith("file:") else errors.append(request.url))
        page.goto(path.as_uri())
        labs = page.locator(".pl-page > [id^=lab]")
        expect(labs).to_have_count(3)
        expect(labs.first).to_be_hidden()
        points = page.locator(".wall-point")
        expect(points).to_have_count(3)
        points.nth(1).click()
        expect(page.locator("#wall-shown")).to_have_text("What Bo handed in")
        expect(labs.nth(1)).to_be_visible()
        expect(labs.nth(0)).to_be_hidden()
        points.nth(0).focus()
        page.keyboard.press("Enter")
        expect(labs.nth(0)).to_be_visible()
        expect(page.locator(".wall-told")).to_be_hidden()
        page.get_by_role("button", name="Reveal").click()
        expect(page.locator(".wall-told")).to_have_text("Right: 6.")
        assert axe_faults(page) == []
        expect(page.get_by_text("Ada", exact=True).first).to_be_visible()
        page.get_by_role("button", name="Hide names").click()
        expect(page.get_by_text("Ada", exact=True)).to_have_count(0)
        assert not errors
