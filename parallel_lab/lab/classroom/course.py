"""`parallel-lab course FOLDER`: the lessons as the source of an nbgrader course.

    FOLDER/nbgrader_config.py
    FOLDER/source/lesson_02/02_collectives.ipynb      and so on: an assignment for each lesson

A test cell of the source has a hidden part with a seed of the course (hidden.py), which `nbgrader generate_assignment`
takes out of what students get. Do not hand out the folder `source`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat

from ...base.errors import ArgumentError, DataFileError
from ...base.files import shipped_folder, write_whole
from ..exercises import all_exercises

CONFIG = """# A course of parallel_lab's lessons: what is handed out and how it is graded is said in
# parallel_lab/lab/classroom/nbgrader_config.py
try:
    from parallel_lab.lab.classroom.nbgrader_config import configure
except ImportError as error:  # nbgrader would go on without this file, and mark every answer with 0
    raise SystemExit(f"nbgrader_config.py: {{error}}; run parallel-lab doctor with this Python") from error

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = {course!r}
configure(c, own_numbers={own_numbers})
"""
OWN_TEXT = """**Some exercises have numbers of your own.** Write your name into the next cell, as this course knows you
(with JupyterHub: as you log in), and run it. It says which exercises those are. There your numbers count, and not those
of the text: `print(numbers("{number}"))` shows them, and every verdict names them."""
OWN_CELL = """from parallel_lab.lab.exercises import learner, numbers

learner("")"""
HIDDEN = """check({given}).points
### BEGIN HIDDEN TESTS
from parallel_lab.lab.classroom.hidden import marks

marks({given}, seed={seed})
### END HIDDEN TESTS"""


def lessons_with_exercises() -> dict[str, Path]:
    """The notebooks that have test cells, by their number."""
    found = {}
    for path in sorted(shipped_folder("notebooks").glob("*.ipynb")):
        if any(_is_test(cell) for cell in nbformat.read(path, as_version=4).cells):
            found[path.name[:2]] = path
    return found


def write_course(folder: Path, numbers: Iterable[str] | None = None, *, own_numbers: bool = False) -> list[Path]:
    """Write the config, unless there is one, and the sources of these lessons (all by default) into `folder`; returns
    the sources. Raises ArgumentError for a number that no lesson with exercises has, DataFileError where a source is
    there already: another seed would change the marks.

    own_numbers  of a new course: each student has numbers of their own (`Exercise.own`), and a cell for their name
    """
    known = lessons_with_exercises()
    for number in numbers or ():
        if number not in known:
            raise ArgumentError(f"lesson {number!r}", where="course", allowed=f"One of {', '.join(known)}")
    chosen = [known[number] for number in dict.fromkeys(known if numbers is None else numbers)]
    targets = [folder / "source" / f"lesson_{path.name[:2]}" / path.name for path in chosen]
    for target in targets:
        if target.exists():
            raise DataFileError("already exists", where=str(target), hint="Name other lessons, or another folder")
    seed = secrets.randbelow(2**32)
    for path, target in zip(chosen, targets, strict=True):
        book = nbformat.read(path, as_version=4)
        for cell in filter(_is_test, book.cells):
            cell.source = hidden_test(cell.source, seed)
        have = [e.number for e in all_exercises() if e.own is not None and e.number.startswith(path.name[:2])]
        if own_numbers and have:
            text, name = OWN_TEXT.format(number=have[0]), nbformat.v4.new_code_cell(OWN_CELL)
            book.cells[1:1] = [nbformat.v4.new_markdown_cell(text), name]
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, nbformat.writes(book) + "\n")
    if not (folder / "nbgrader_config.py").exists():
        write_whole(folder / "nbgrader_config.py", CONFIG.format(course=folder.resolve().name, own_numbers=own_numbers))
    return targets


def _is_test(cell: Any) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("grade"))


def hidden_test(source: str, seed: int) -> str:
    """A test cell with its hidden part: what is handed to check is handed to `marks`."""
    given = re.fullmatch(r"check\((.*)\)\.(?:points|assert_passed\(\))", source.strip(), flags=re.DOTALL)
    if given is None:
        raise ArgumentError(f"test cell {source!r}", where="course", allowed="check(...).points")
    return HIDDEN.format(given=given[1].rstrip().removesuffix(","), seed=seed)
