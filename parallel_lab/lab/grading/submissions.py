"""Submissions of a class: which notebooks are there, whose, and which of their cells matter for the marks.

    submitted/ada/02_collectives.ipynb         a folder per student (nbgrader's submitted/ada/lesson02/... too)
    submitted/02_collectives_ada.ipynb         or files whose names end with the student's
    submitted/ada/checks.json                  what a page has written (exercises/progress.py), a notebook per lesson

A notebook is compared with the one that was handed out, cell by cell. What a student changed or added runs; of the
other cells, those on whose names an answer depends. Test cells are those of the notebook that was handed out. A
page's file has the cells that were run, in that order; its verdicts are not looked at.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import os
import re
import symtable
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...base.errors import DataFileError, shorten
from ...base.files import shipped_folder
from ...base.plain_json import read_json
from ..exercises.book import RESULTS_FORMAT
from ..exercises.progress import LARGEST_BYTES

MOST_BYTES = 32 << 20  # of a notebook; without outputs a lesson has 40 KB
MOST_FILES = 20_000  # that are looked at in a folder
DEEPEST = 40  # folders in each other
MOST_LESSONS, MOST_CELLS = 50, 5000  # of a page's file; cells of a lesson
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)  # a magic, or what nobody can compile
SKIPPED = (".ipynb_checkpoints", "__pycache__")


@dataclass(frozen=True)
class Cell:
    """A code cell.  number: from 1 among all cells, as a reader counts; grade_id: nbgrader's, "" for most"""

    number: int
    source: str
    grade_id: str = ""
    ident: str = ""


@dataclass(frozen=True)
class Submission:
    """One notebook of one student.  path: the file;  name: as the table shows it

    lesson    of a page's file: the part of it that this is
    learner   whose it says it is
    fault     why it gets no mark
    """

    student: str
    path: Path
    name: str
    lesson: str = ""
    learner: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Call:
    """A call of check whose answer is graded.  call: its source, without `.points`;  number: of the exercise"""

    number: str
    call: str


def printable(text: str) -> str:
    """The text for a terminal: line ends and what would steer it, or turn the text around, as Python writes them."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def harmless(value: Any) -> Any:
    """A cell of a table: a text in one line, with a ' before it where a spreadsheet would take it for a formula."""
    text = printable(" ".join(value.split())) if isinstance(value, str) else value
    is_formula = isinstance(text, str) and unicodedata.normalize("NFKC", text[:1]) in ("=", "+", "-", "@")
    return f"'{text}" if is_formula else text


def newest(
    found: Iterable[Submission], lesson_of: Callable[[Submission], tuple[str, Sequence[str]]]
) -> dict[Submission, Submission]:
    """{a submission that does not count: the one that does}: of each student's notebooks of a lesson the newest.

    lesson_of  (the notebook that it was handed out as, or "";  the exercises that its marks are for): two that were
               handed out as one are of one lesson, and one that was not with any that has an exercise of its own
    """
    counting: dict[tuple[str, str], Submission] = {}
    lessons, older = {submission: lesson_of(submission) for submission in found}, {}
    for submission in sorted(lessons, key=lambda s: (not lessons[s][0], -s.path.stat().st_mtime_ns, s.name)):
        released, numbers = lessons[submission]
        asked = [(submission.student, name) for name in ([released] if released else numbers)]
        taken = next((counting[key] for key in asked if key in counting), None)
        if taken is None:
            counting |= dict.fromkeys([*asked, *((submission.student, number) for number in numbers)], submission)
        else:
            older[submission] = taken
    return older


def find_submissions(folder: Path, tell: Callable[[str], None] = lambda text: None) -> list[Submission]:
    """Every notebook and page's file in the folder, by student and name. Links, names that begin with a dot, and other
    files of JSON are left out, and `tell` receives a line about each. Raises DataFileError.
    """
    if not folder.is_dir():
        raise DataFileError(f"{folder} is not a folder", where="grade", allowed="A folder with a folder per student")
    submissions, refused, looked = [], [], 0

    def leave_out(path: Path, why: str) -> None:
        tell(f"left out {printable(str(path.relative_to(folder)))}: {why}")

    for where, folders, files in walked(folder, leave_out):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        handed_in = [Path(where) / name for name in sorted(files) if name.endswith((".ipynb", ".json"))]
        for path in [*(Path(where) / name for name in folders), *handed_in]:
            hidden = path.name.startswith(".") and path.name in folders
            if hidden or path.is_symlink():
                leave_out(path, "its name begins with a dot" if hidden else "it is a link")
        folders[:] = [name for name in folders if not name.startswith(".")]
        looked += len(files)
        if looked > MOST_FILES:
            raise DataFileError(f"{folder} holds more than {MOST_FILES} files", where="grade")
        for path in (path for path in handed_in if not path.is_symlink()):
            inside = path.relative_to(folder).parts
            student = inside[0] if len(inside) > 1 else _student_in(path)
            name = path.name if len(inside) > 1 or path.suffix == ".json" else f"{_lesson_in(path.name)}.ipynb"
            if path.suffix == ".ipynb":
                submissions.append(Submission(student, path, name))
                continue
            try:
                learner, lessons = read_results(path)
                submissions += [
                    Submission(student, path, f"{name}, lesson {lesson}", lesson, learner) for lesson in lessons
                ]
            except DataFileError as error:
                refused.append(Submission(student, path, name, fault=str(error)))
    submitted = {submission.student for submission in submissions}
    known = submitted | {one.student for one in refused}
    for path in sorted(folder.iterdir()):
        is_students = path.is_dir() and not path.is_symlink() and not path.name.startswith(".")
        if is_students and path.name not in known and path.name not in SKIPPED:
            leave_out(path, "it holds no file whose name ends in .ipynb")
    for one in refused:  # a lesson may write JSON; but a student who hands in nothing else must have a row
        if one.student in submitted:
            leave_out(one.path, one.fault)
        else:
            submissions.append(one)
    if not submissions:
        raise DataFileError(f"no notebook is in {folder}", where="grade", allowed="FOLDER/student/lesson.ipynb")
    return sorted(_of_one_each(submissions), key=lambda s: (s.student, s.name))


def walked(root: Path, leave_out: Callable[[Path, str], None]) -> Iterator[tuple[str, list[str], list[str]]]:
    """As os.walk, to a depth of DEEPEST; what cannot be looked into, or lies deeper, is left out with the reason."""

    def told(error: OSError) -> None:
        leave_out(Path(os.fsdecode(error.filename)), f"it cannot be read: {error.strerror}")

    base = len(root.parts)
    for where, folders, files in os.walk(root, onerror=told):
        if len(Path(where).parts) - base == DEEPEST:
            for name in folders:
                leave_out(Path(where) / name, f"it lies more than {DEEPEST} folders deep")
            folders.clear()
        yield where, folders, files


def _of_one_each(submissions: Iterable[Submission]) -> Iterator[Submission]:
    """The same; a page's file that says it is of a learner of whom others have files, too, counts for nobody but the
    student of that name.
    """
    submissions = list(submissions)
    claims = {(_plain(one.learner), one.student) for one in submissions if one.learner}
    for one in submissions:
        others = sorted(student for name, student in claims if name == _plain(one.learner) and student != one.student)
        if others and _plain(one.student) != _plain(one.learner):
            what = f"says it is of {shorten(one.learner)}, and so does a file of {', '.join(others)}"
            yield replace(one, fault=f"{one.name} {what}: one of them is a copy")
        else:
            yield one


def _plain(name: str) -> str:
    """A name without capitals and accents of different spellings."""
    return unicodedata.normalize("NFKC", name).casefold().strip()


def read_results(path: Path) -> tuple[str, dict[str, list[str]]]:
    """What a page has written: (learner, {lesson: sources of the cells that were run}). Raises DataFileError."""
    told = read_json(path, DataFileError, where=path.name, max_bytes=LARGEST_BYTES)
    if not isinstance(told, dict) or told.get("format") != RESULTS_FORMAT or told.get("version") != 1:
        raise DataFileError("does not hold results", where=path.name, allowed=f"{RESULTS_FORMAT}, version 1")
    cells, learner = told.get("cells"), told.get("learner", "")
    if cells is None or cells == {}:
        hint = "Hand in the notebook, or the checks.json of a page"
        raise DataFileError("holds verdicts, and no cells that could be run again", where=path.name, hint=hint)
    fits = isinstance(cells, dict) and isinstance(learner, str) and len(cells) <= MOST_LESSONS
    if not fits or not all(re.fullmatch(r"\w{1,20}", lesson) and _is_texts(found) for lesson, found in cells.items()):
        raise DataFileError("its cells have another form", where=path.name, allowed="Lists of texts, by lesson")
    return learner, {lesson: found for lesson, found in cells.items() if found}


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_CELLS and all(isinstance(each, str) for each in value)


def _student_in(path: Path) -> str:
    """`ada` of 02_collectives_ada.ipynb, by the lessons' names, and of checks_ada.json; else the whole stem."""
    stem = path.stem
    lesson = "checks" if path.suffix == ".json" else _lesson_in(path.name)
    return stem.removeprefix(lesson).strip("_- ") or stem


def _lesson_in(name: str) -> str:
    stem = name.removesuffix(".ipynb")
    lessons = [path.stem for path in shipped_folder("notebooks").glob("*.ipynb")]
    return max((lesson for lesson in lessons if stem.startswith(lesson)), key=len, default=stem)


def read_cells(path: Path, lesson: str = "") -> list[Cell]:
    """The code cells of a notebook, or of a lesson in a page's file. Raises DataFileError if the file is not one."""
    if lesson:
        return [Cell(number, source) for number, source in enumerate(read_results(path)[1][lesson], 1)]
    try:
        book = read_json(path, DataFileError, where="JSON", max_bytes=MOST_BYTES, max_depth=100)
        cells = book.get("cells") if isinstance(book, dict) else None
        if not isinstance(cells, list):
            raise ValueError("it has no list of cells")
        code_cells = []
        for number, cell in enumerate(cells, 1):
            source, kind = cell["source"], cell["cell_type"]
            names = cell.get("metadata", {}).get("nbgrader", {}).get("grade_id", ""), cell.get("id", "")
            fits = kind in ("code", "markdown", "raw") and isinstance(source, (str, list))
            if not fits or [*map(type, names)] != [str, str]:
                raise ValueError(f"cell {number} is a {shorten(kind)} of {shorten(source)}, {shorten(names)}")
            if kind == "code":
                code_cells.append(Cell(number, "".join(source), *names))
        return code_cells
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataFileError(f"{path.name} cannot be read as a notebook: {error}", where="grade") from error


def released_as(cells: Iterable[Cell], folder: Path, lesson: str = "") -> Path | None:
    """The notebook in `folder` that this one was handed out as: that of the lesson, if it is known, else the one with
    most of its cells; None if none fits.
    """
    if lesson and (named := sorted(folder.glob(f"{lesson}_*.ipynb"))):
        return named[0]
    marks = {(cell.ident, cell.grade_id) for cell in cells} | {cell.source for cell in cells}
    best, most = None, 0
    for path in sorted(folder.glob("*.ipynb")):
        theirs = read_cells(path)
        graded = sum((cell.ident, cell.grade_id) in marks for cell in theirs if cell.grade_id)
        common = 1000 * graded + sum(cell.source in marks for cell in theirs)
        if common > most:
            best, most = path, common
    return best


# ---- which cells matter ----


def calls_of(cells: Iterable[Cell]) -> list[Call]:
    """The calls of check that give marks, one per exercise: in nbgrader's test cells, without them in all cells."""
    cells = list(cells)
    graded = [cell for cell in cells if cell.grade_id.startswith("test-")] or cells
    last_calls = {test.number: test for cell in graded for test in _found_in(cell.source)}
    return [last_calls[number] for number in sorted(last_calls)]


def _found_in(source: str) -> Iterator[Call]:
    tree = _tree(source)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check" and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                with contextlib.suppress(RecursionError):  # a sum of thousands: nobody hands that in
                    yield Call(first.value, ast.unparse(node))


def _tree(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except NOT_PYTHON:
        return None


def imported_in(source: str) -> set[str]:
    """Packages that a cell always imports: by a statement in no branch, function or `try`."""
    tree, names = _tree(source), set()
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _names(source: str) -> tuple[set[str], set[str]]:
    """(names that a cell makes or changes, names that it uses), as a notebook's other cells see them; an import of
    everything makes "*".
    """
    tree = _tree(source)
    try:
        left = [symtable.symtable(source, "<cell>", "exec")]
    except NOT_PYTHON:  # also what parses, and cannot be compiled: nonlocal at the top
        tree = None
    if tree is None:
        return set(), set()
    bound, used = set(), set()
    while left:
        scope = left.pop()
        outermost = scope.get_type() == "module"
        for symbol in scope.get_symbols():
            if outermost or symbol.is_global():
                if symbol.is_assigned() or symbol.is_imported():
                    bound.add(symbol.get_name())
                if symbol.is_referenced():
                    used.add(symbol.get_name())
        left += scope.get_children()
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in tree.body):
        bound.add("*")
    return bound, used - set(dir(builtins))


def needed_cells(cells: Iterable[Cell], released: Iterable[Cell] | None, tests: Iterable[Call]) -> list[Cell]:
    """The cells that are run for these tests, in their order."""
    known = {cell.source.strip() for cell in released} if released is not None else set()
    needed = set().union(*(_names(test.call)[1] for test in tests)) | {"*"}
    chosen: list[Cell] = []
    for cell in reversed(list(cells)):
        bound, used = _names(cell.source)
        changed = cell.source.strip() not in known
        if cell.grade_id.startswith("test-") or not cell.source.strip():
            continue
        if changed or bound & needed:
            chosen.append(cell)
            needed |= used
    return chosen[::-1]
