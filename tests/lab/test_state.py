"""A lab in a small file: it comes back as it was, and anything but a lab is refused in words, fast."""

from __future__ import annotations

import json
import os
import random
import time

import pytest

import parallel_lab as pl
from parallel_lab.base.errors import ArgumentError, DataFileError, ParallelLabError
from parallel_lab.lab import widgets
from parallel_lab.lab.collectives.algorithms.algorithm import custom_algorithm
from tests.crossed import each_of

MAKE = {name: getattr(pl, name) for name in widgets.LABS}


def wander(lab, steps: int, seed: str) -> None:
    """So many commands, drawn from those that a page would do."""
    draw = random.Random(seed)
    for _ in range(steps):
        calls = [*lab.replays(), *([["toggle", draw.randrange(12)]] if "toggle" in lab.commands else [])]
        command, *arguments = draw.choice(calls)
        try:
            getattr(lab, command)(*arguments)
        except ParallelLabError:
            continue


def picture(lab) -> dict:
    shot = lab.snapshot()
    history = ("can_undo", "can_redo", "own", "tried", "notes")  # of what was there before
    return {name: part for name, part in shot.items() if name not in history}


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MAKE)
def test_a_saved_lab_comes_back_as_it_was(tmp_path, name, seed):
    lab = MAKE[name]()
    wander(lab, 4, f"{name} {seed}")
    again = pl.open_lab(lab.save(tmp_path / "lab.json"))
    assert type(again) is MAKE[name] and again.state() == lab.state() and picture(again) == picture(lab)
    assert type(lab).open(tmp_path / "lab.json").state() == lab.state()


def typed(name):
    """What no list offers: typed sizes, cuts, drawn schedules, strategies that were refused."""
    lab = MAKE[name]()
    if name == "FusionLab":
        lab.set_line(0.001, 2.5e-9)
        lab.set_cuts([4, 6])
    elif name == "MemoryLab":
        lab.set_width(64)
        lab.set_capacity("900 KiB")
        lab.set_zero("1.5B", 16, 8)
    elif name == "PipelineLab":
        lab.set_typed("times", "1:2:0.5")
        lab.toggle_recompute(2)
        lab.clear_rank(1)
        lab.put_next(1, "F")
    elif name == "StrategyLab":
        lab.set_steps(7)
        lab.set_strategy("relu", "((8, 1),)")
        lab.set_strategy("matmul2", None)
    elif name == "CollectiveStepper":
        lab.choose_elements(999)
        lab.to(3)
        lab.follow(1)
    return lab


@each_of("name", "FusionLab", "MemoryLab", "PipelineLab", "StrategyLab", "CollectiveStepper")
def test_what_was_typed_comes_back_too(tmp_path, name):
    lab = typed(name)
    again = pl.open_lab(lab.save(tmp_path / "lab.json"))
    assert again.state() == lab.state() and picture(again) == picture(lab)


def test_a_lab_for_first_lessons_comes_back_as_one(tmp_path):
    lab = pl.StrategyLab(simple=True)
    assert pl.open_lab(lab.save(tmp_path / "lab.json")).snapshot()["simple"] is True


def test_an_algorithm_of_ones_own_is_not_kept_and_the_error_says_so(tmp_path):
    stepper = pl.CollectiveStepper()
    stepper.show(custom_algorithm("broadcast", [[(0, 1, 0, "store")]], ranks=2))
    with pytest.raises(ArgumentError, match="algorithm of your own"):
        stepper.save(tmp_path / "lab.json")
    assert not list(tmp_path.iterdir())


GOOD = {"format": "parallel_lab lab", "version": 1, "kind": "FusionLab", "options": {}, "calls": [], "record": None}
HOSTILE = {
    "no JSON": b"{",
    "no text": b"\xff\xfe\x00",
    "empty": b"",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "a large number": b'{"format":' + b"9" * 200_000 + b"}",
    "NaN": b'{"format": NaN}',
    "a key twice": b'{"kind": 1, "kind": 2}',
    "another format": json.dumps({**GOOD, "format": "x"}).encode(),
    "another version": json.dumps({**GOOD, "version": 2}).encode(),
    "version true": json.dumps({**GOOD, "version": True}).encode(),
    "a kind that is none": json.dumps({**GOOD, "kind": "os"}).encode(),
    "a kind that is no name": json.dumps({**GOOD, "kind": ["FusionLab"]}).encode(),
    "no calls": json.dumps({**GOOD, "calls": None}).encode(),
    "calls that are none": json.dumps({**GOOD, "calls": [3, []]}).encode(),
    "too many calls": json.dumps({**GOOD, "calls": [["set_mode", "off"]] * 10_000}).encode(),
    "a call that runs": json.dumps({**GOOD, "calls": [["run_measured"]]}).encode(),
    "a call of Python's": json.dumps({**GOOD, "calls": [["__init__"], ["close"], ["save", "x"]]}).encode(),
    "an argument of another type": json.dumps({**GOOD, "calls": [["set_devices", "2; import os"]]}).encode(),
    "a value that is not offered": json.dumps({**GOOD, "calls": [["set_devices", 3]]}).encode(),
    "options": json.dumps({**GOOD, "options": {"cluster": "laptop"}}).encode(),
    "a record of nothing": json.dumps({**GOOD, "record": {"measured": [1]}}).encode(),
    "16 MB": json.dumps({**GOOD, "more": "x" * (16 << 20)}).encode(),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_anything_but_a_lab_is_refused(tmp_path, what):
    path = tmp_path / "lab.json"
    path.write_bytes(HOSTILE[what])
    begin = time.thread_time()
    with pytest.raises(DataFileError, match=r"lab\.json"):
        pl.open_lab(path)
    assert time.thread_time() - begin < 2  # one pass over 16 MB, and no more


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "lab.json")
    with pytest.raises(DataFileError, match="not a regular file"):
        pl.open_lab(tmp_path / "lab.json")


def test_another_kind_of_lab_is_named(tmp_path):
    path = pl.FusionLab("golf").save(tmp_path / "lab.json")
    with pytest.raises(DataFileError, match="a 'FusionLab'"):
        pl.MemoryLab.open(path)


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path):
    path = tmp_path / "lab.json"
    path.write_text("mine")
    with pytest.raises(DataFileError):
        pl.FusionLab("golf").save(tmp_path / "missing" / "lab.json")
    assert path.read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


# ---- what a page is made from ----


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", MAKE)
def test_free_choices_change_nothing_but_themselves(name):
    """What a page relies on: after a free choice the calls are the old ones but for its own."""
    lab, draw = MAKE[name](), random.Random(name)
    for _ in range(4):
        for choice in lab.free:
            known = list(lab.choices()[choice].known)
            call = [lab.command_of(choice), draw.choice(known)]
            before = [c for c in lab.calls() if c[0] not in lab.looks]
            try:
                getattr(lab, call[0])(call[1])
            except ParallelLabError:
                continue
            assert [c for c in lab.calls() if c[0] not in lab.looks] == [call if c[0] == call[0] else c for c in before]
        wander(lab, 1, name)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", MAKE)
def test_a_branch_leaves_its_lab_as_it_is(name):
    lab, heard = MAKE[name](), []
    lab.on_change(lambda *what: heard.append(what))
    before = json.dumps(lab.page_snapshot(), default=lambda x: x.tolist(), sort_keys=True)
    wander(lab.branch(), 5, name)
    assert json.dumps(lab.page_snapshot(), default=lambda x: x.tolist(), sort_keys=True) == before and not heard


def test_every_look_is_a_command_and_a_part_of_the_snapshot():
    for make in MAKE.values():
        lab = make()
        shot = lab.snapshot()
        assert set(lab.looks) <= set(lab.commands) and set(lab.looks.values()) <= set(shot)
