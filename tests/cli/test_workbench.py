"""Copies of the notebooks: brought up to date, and never at the cost of the learner's work."""

import json
import os

import pytest

from parallel_lab.base.errors import DataFileError
from parallel_lab.cli.workbench import RECORD_NAME, Update, first_notebook, update_notebooks


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "shipped"
    (folder / "pictures").mkdir(parents=True)
    (folder / "01_ranks.ipynb").write_text("ranks, first edition")
    (folder / "02_layouts.ipynb").write_text("layouts, first edition")
    (folder / "pictures" / "ring.svg").write_text("<svg/>")
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / "01_ranks-checkpoint.ipynb").write_text("not shipped")
    return folder


@pytest.fixture
def work(tmp_path):
    return tmp_path / "deep" / "work"


ALL = ("01_ranks.ipynb", "02_layouts.ipynb", "pictures/ring.svg")


def test_the_first_time_everything_is_copied(source, work):
    assert update_notebooks(source, work) == Update(new=ALL, updated=(), same=(), kept=())
    assert {path.relative_to(work).as_posix() for path in work.rglob("*") if path.is_file()} == {*ALL, RECORD_NAME}
    assert (work / "pictures" / "ring.svg").read_text() == "<svg/>"


def test_the_second_time_nothing_changes(source, work):
    update_notebooks(source, work)
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*.ipynb")}
    assert update_notebooks(source, work) == Update(new=(), updated=(), same=ALL, kept=())
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*.ipynb")} == before


def test_an_untouched_copy_is_updated_and_an_edited_one_is_kept(source, work):
    update_notebooks(source, work)
    (work / "02_layouts.ipynb").write_text("my answers")
    for name in ALL:
        (source / name).write_text(f"{name}, second edition")
    done = update_notebooks(source, work)
    assert done == Update(new=(), updated=("01_ranks.ipynb", "pictures/ring.svg"), same=(), kept=("02_layouts.ipynb",))
    assert (work / "02_layouts.ipynb").read_text() == "my answers"
    assert (work / "01_ranks.ipynb").read_text() == "01_ranks.ipynb, second edition"
    assert "kept     02_layouts.ipynb" in done.text()
    assert "updated  01_ranks.ipynb" in done.text()


def test_an_edited_copy_stays_the_learners_over_many_versions(source, work):
    update_notebooks(source, work)
    (work / "01_ranks.ipynb").write_text("my answers")
    for edition in ("second", "third", "fourth"):
        (source / "01_ranks.ipynb").write_text(edition)
        assert update_notebooks(source, work).kept == ("01_ranks.ipynb",)
        assert (work / "01_ranks.ipynb").read_text() == "my answers"


def test_an_edit_that_was_undone_makes_the_copy_replaceable_again(source, work):
    update_notebooks(source, work)
    (work / "01_ranks.ipynb").write_text("my answers")
    (source / "01_ranks.ipynb").write_text("second edition")
    update_notebooks(source, work)
    (work / "01_ranks.ipynb").write_text("ranks, first edition")
    assert update_notebooks(source, work).updated == ("01_ranks.ipynb",)


def test_a_file_that_was_there_before_us_is_the_learners(source, work):
    work.mkdir(parents=True)
    (work / "01_ranks.ipynb").write_text("somebody's own")
    done = update_notebooks(source, work)
    assert (done.kept, done.new) == (("01_ranks.ipynb",), ALL[1:])
    assert (work / "01_ranks.ipynb").read_text() == "somebody's own"


def test_a_deleted_copy_comes_back(source, work):
    update_notebooks(source, work)
    (work / "01_ranks.ipynb").unlink()
    assert update_notebooks(source, work).new == ("01_ranks.ipynb",)


def test_files_that_no_longer_ship_and_files_of_the_learner_stay(source, work):
    update_notebooks(source, work)
    (source / "02_layouts.ipynb").unlink()
    (work / "notes.txt").write_text("mine")
    update_notebooks(source, work)
    assert (work / "02_layouts.ipynb").exists()
    assert (work / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("record", ["", "{", "[]", '{"files": 3}', '{"files": null}', "\x00"])
def test_a_damaged_record_costs_no_work_and_is_said(source, work, record):
    update_notebooks(source, work)
    (work / "01_ranks.ipynb").write_text("my answers")
    (work / RECORD_NAME).write_text(record)
    (source / "02_layouts.ipynb").write_text("second edition")
    done = update_notebooks(source, work)
    # without a record an old edition looks like an edit
    assert done.kept == ("01_ranks.ipynb", "02_layouts.ipynb")
    assert "could not be read" in done.text()
    assert (work / "01_ranks.ipynb").read_text() == "my answers"
    assert "files" in json.loads((work / RECORD_NAME).read_text())


def test_a_link_out_of_the_folder_is_not_written_through(source, work, tmp_path):
    update_notebooks(source, work)
    outside = tmp_path / "outside.txt"
    outside.write_text("ranks, first edition")  # the very content that was recorded
    (work / "01_ranks.ipynb").unlink()
    (work / "01_ranks.ipynb").symlink_to(outside)
    (source / "01_ranks.ipynb").write_text("second edition")
    assert update_notebooks(source, work).kept == ("01_ranks.ipynb",)
    assert outside.read_text() == "ranks, first edition"


def test_a_folder_instead_of_a_notebook_is_kept(source, work):
    (work / "01_ranks.ipynb").mkdir(parents=True)
    assert update_notebooks(source, work).kept == ("01_ranks.ipynb",)


def test_a_place_that_cannot_be_written_is_one_clear_error(source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFileError, match="--folder"):
        update_notebooks(source, tmp_path / "file" / "work")


def test_an_interrupted_write_leaves_the_old_file_and_no_part(source, work, monkeypatch):
    update_notebooks(source, work)
    (source / "01_ranks.ipynb").write_text("second edition")

    def disk_full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", disk_full)
    with pytest.raises(DataFileError, match="No space left"):
        update_notebooks(source, work)
    assert (work / "01_ranks.ipynb").read_text() == "ranks, first edition"
    assert list(work.rglob("*.part")) == []


def test_the_first_notebook_is_the_first_by_name(source, tmp_path):
    assert first_notebook(source) == "01_ranks.ipynb"
    assert first_notebook(tmp_path) is None
