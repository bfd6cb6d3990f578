"""A lab in a small file: anything but a lab is refused in words, fast. That each comes back: test_labs.py."""

from __future__ import annotations

import json
import os
import time

import pytest

import parallel_lab as pl
from parallel_lab.base.errors import ArgumentError, DataFileError
from parallel_lab.lab.collectives.algorithms.algorithm import custom_algorithm


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
