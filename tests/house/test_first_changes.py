"""The first changes of the page for developers: each is made in a copy of the tree, and the page's command tests it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.house.source import ROOT

PAGE = (ROOT / "notebooks" / "developers.md").read_text(encoding="utf-8")
TREE = ("parallel_lab", "tests", "notebooks", "data", "pyproject.toml", "README.md")
A_MINUTE_S = 60
SECTION = PAGE.partition("\n## Change your first thing\n")[2].partition("\n## ")[0]
BLOCK = re.compile(r"(.*?)^```(py|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Edit(NamedTuple):
    """What a block of code changes: a new file, the end of a file, or the place after a line of it."""

    path: str
    after: str | None  # the line;  "": the end of the file;  None: a new file
    text: str


def edit_of(before: str, text: str) -> Edit:
    """The last sentence before a block says where the block goes."""
    sentence = " ".join(before.strip().rpartition("\n\n")[2].split())
    if found := re.search(r"New file `([^`]+)`:$", sentence):
        return Edit(found[1], None, text)
    if found := re.search(r"At the end of `([^`]+)`:$", sentence):
        return Edit(found[1], "", text)
    found = re.search(r"In `([^`]+)`, after the line `([^`]+)`:$", sentence)
    assert found, f"where does this block go? {sentence!r}"
    return Edit(found[1], found[2], text)


def change(section: str) -> tuple[list[Edit], list[str]]:
    """(edits, commands) of one section."""
    found = BLOCK.findall(section)
    edits = [edit_of(before, text) for before, kind, text in found if kind == "py"]
    return edits, [line for _, kind, text in found if kind == "sh" for line in text.splitlines()]


CHANGES = {part.partition("\n")[0]: change(part) for part in SECTION.split("\n### ")[1:]}


def make(edit: Edit, tree: Path) -> None:
    """Change the file of `tree` that an edit names."""
    path = tree / edit.path
    if edit.after is None:
        assert not path.exists(), f"{edit.path} exists"
        path.parent.mkdir(exist_ok=True)
        path.write_text(edit.text, encoding="utf-8")
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    places = [i for i, line in enumerate(lines, 1) if line.strip() == edit.after] if edit.after else [len(lines)]
    assert len(places) == 1, f"{edit.path} has the line {edit.after!r} {len(places)} times"
    gap = "" if edit.after else "\n\n"
    path.write_text("".join([*lines[: places[0]], gap, edit.text, *lines[places[0] :]]), encoding="utf-8")


def test_there_are_six_changes_with_a_command_each():
    assert list(CHANGES) == ["An operator", "A pass", "A collective", "A lab", "An exercise", "A schedule"]
    assert SECTION.count("```") == 2 * sum(len(edits) + 1 for edits, _ in CHANGES.values())
    assert all(edits and len(commands) == 1 for edits, commands in CHANGES.values())


@pytest.mark.parametrize("name", CHANGES)
def test_the_places_of_a_change_are_in_the_tree(name, tmp_path):
    """Quick: the change can be made; the exhaustive test below runs its command."""
    for edit in CHANGES[name][0]:
        source, copy = ROOT / edit.path, tmp_path / edit.path
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.exists() and not copy.exists():
            shutil.copy(source, copy)
        make(edit, tmp_path)
        assert edit.text in copy.read_text(encoding="utf-8")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CHANGES)
def test_a_first_change_passes_the_pages_own_command(name, tmp_path):
    edits, (command,) = CHANGES[name]
    for part in TREE:
        source = ROOT / part
        skip = shutil.ignore_patterns("__pycache__", "_shipped", ".ipynb_checkpoints")
        shutil.copytree(source, tmp_path / part, ignore=skip) if source.is_dir() else shutil.copy(source, tmp_path)
    for edit in edits:
        make(edit, tmp_path)
    program, *arguments = shlex.split(command)
    assert program == "pytest"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PARALLEL_LAB_CI": ""},
        capture_output=True,
        text=True,
        timeout=5 * A_MINUTE_S,  # on a busy machine
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(f"{name}: {done.stdout.splitlines()[-1]}")
    assert re.search(r"\d+ passed", done.stdout) and str(tmp_path) not in done.stdout
