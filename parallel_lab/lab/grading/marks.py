"""A class graded: every submission of a folder in a grader's process of its own, and the table of points.

table = grade_folder(Path("submitted"), jobs=2)
table.write_csv(Path("marks.csv"))
print(table.summary())
"""

from __future__ import annotations

import csv
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ...base.errors import DataFileError
from ...base.files import shipped_folder
from ..exercises.book import RESULTS_FORMAT
from .confine import Limits
from .submissions import Submission, find_submissions, read_cells, released_as

LATE_S = 60.0  # after the time limit, which the grader keeps itself
_PACKAGE = Path(__file__).parents[2]
_WORDS = {True: "passed", False: "not yet", None: "not judged"}


@dataclass(frozen=True)
class Mark:
    """One row: a part of an exercise of a student's notebook.

    points  earned; None where no mark can be given (status "error")
    status  passed, not yet, not judged (an earlier part failed), not tried, no answer, error
    idea    the misconception that the answer comes from, where one is recognised
    note    what is wrong, or why the mark is missing
    """

    student: str
    notebook: str
    exercise: str
    part: str
    points: int | None
    out_of: int
    status: str
    idea: str = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Marks of a class.  checks: per student and notebook, verdicts in the form of `save_results`"""

    marks: tuple[Mark, ...]
    checks: dict[tuple[str, str], list[dict[str, Any]]]

    @property
    def errors(self) -> tuple[Mark, ...]:
        """Rows without a mark."""
        return tuple(mark for mark in self.marks if mark.status == "error")

    def total(self, student: str) -> tuple[int, int, int]:
        """(points, of how many, parts without a mark) of a student."""
        mine = [mark for mark in self.marks if mark.student == student]
        return sum(m.points or 0 for m in mine), sum(m.out_of for m in mine), sum(m.points is None for m in mine)

    def write_csv(self, path: Path) -> None:
        """A row per student, exercise and part. Cells that a spreadsheet would take for a formula begin with '."""
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(field.name for field in fields(Mark))
            for mark in self.marks:
                writer.writerow(_harmless(value) for value in asdict(mark).values())

    def write_json(self, folder: Path) -> None:
        """A file per student, as `save_results` writes it."""
        folder.mkdir(parents=True, exist_ok=True)
        for student in sorted({student for student, _ in self.checks}):
            checks = [one for (whose, _), found in self.checks.items() if whose == student for one in found]
            told = {"format": RESULTS_FORMAT, "version": 1, "learner": student, "checks": checks}
            name = "".join(c if c.isalnum() or c in "-_." else "_" for c in student).lstrip(".") or "_"
            (folder / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")

    def summary(self) -> str:
        """A line per student."""
        students = sorted({mark.student for mark in self.marks})
        width = max(map(len, students), default=0)
        lines = []
        for student in students:
            points, out_of, without = self.total(student)
            unmarked = f", {without} part{'s' * (without != 1)} without a mark: see the table" if without else ""
            lines.append(f"{student:{width}}  {points:3} of {out_of:3} points{unmarked}")
        return "\n".join(lines)


def _harmless(value: Any) -> Any:
    text = " ".join(str(value).split()) if isinstance(value, str) else value
    return f"'{text}" if isinstance(text, str) and text[:1] in ("=", "+", "-", "@") else text


def grade_folder(
    folder: Path,
    *,
    limits: Limits | None = None,
    release: Path | None = None,
    exercises: Path | None = None,
    jobs: int = 1,
    own_numbers: bool = False,
    seed: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Table:
    """The marks of every notebook in a folder.

    release    folder of the notebooks that were handed out; the course's own by default
    exercises  a Python file with exercises of one's own, `EXERCISES`
    jobs       submissions at a time
    own_numbers  whether each student has numbers of their own (`Exercise.own`)
    seed       of the inputs on which answers are judged besides those that `check` shows; by default another one
               each time
    tell       receives each submission that is graded, as a line

    Where files of the grader change meanwhile, no marks are given from then on.

    Raises DataFileError for a folder without notebooks.
    """
    limits, release = limits or Limits(), release or shipped_folder("notebooks")
    seed = secrets.randbelow(2**32) if seed is None else seed
    found, before = find_submissions(folder), _fingerprint()
    broken = _environment(found, limits, release, exercises)
    changed: list[str] = []  # the submissions that then ran

    def one(submission: Submission) -> list[tuple[Mark, dict[str, Any] | None]]:
        task = _task(submission.path, limits, release, exercises)
        if isinstance(task, dict):
            task |= {"seed": seed, "learner": submission.student if own_numbers else ""}
        reason = broken.get(task.get("release", "")) if isinstance(task, dict) else task
        told = {"error": reason} if reason or changed else _run(task, limits)
        if changed or _fingerprint() != before:
            changed.append(str(submission.path))
            what = f"files of parallel_lab changed while {changed[0]} was graded"
            told = {"error": f"{what}: look at that notebook, install the package again, and grade once more"}
        rows = list(_rows(submission, told, exercises))
        tell(f"{submission.student}: {submission.name}")
        return rows

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        graded = list(zip(found, pool.map(one, found), strict=True))
    checks = {(s.student, s.name): [check for _, check in rows if check] for s, rows in graded}
    return Table(tuple(mark for _, rows in graded for mark, _ in rows), checks)


def _fingerprint() -> str:
    """A hash of the package's files: their names, sizes and times of change."""
    told = blake2b(digest_size=16)
    for where, folders, files in os.walk(_PACKAGE):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            stat = os.lstat(Path(where) / name)
            told.update(f"{where}/{name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return told.hexdigest()


def _task(path: Path, limits: Limits, release: Path, exercises: Path | None) -> dict[str, Any] | str:
    """What a grader's process reads; a text where the notebook cannot be read."""
    try:
        handed_out = released_as(read_cells(path), release)
    except DataFileError as error:
        return str(error)
    task = {"path": str(path.resolve()), "limits": limits.to_dict(), "seed": 0}
    task |= {"release": str(handed_out.resolve())} if handed_out else {}
    return task | ({"exercises": str(exercises.resolve())} if exercises else {})


def _run(task: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """The marks of a task, from a process of its own; {"error": reason} if it gives none."""
    command = [sys.executable, "-m", f"{__package__}.grader"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(task).encode(),
            capture_output=True,
            timeout=limits.time_s + LATE_S,
            env=environment,
            check=False,
        )
        told = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"error": f"the grader did not end within {limits.time_s + LATE_S:g} s"}
    except ValueError:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        return {"error": f"the grader ended with code {done.returncode}: {words[-1] if words else 'without a message'}"}
    return told if isinstance(told, dict) else {"error": "the grader gave no marks"}


def _environment(found: Iterable[Submission], limits: Limits, release: Path, exercises: Path | None) -> dict[str, str]:
    """{notebook that was handed out: why it cannot be graded here}. It must run as it is, whatever the answers."""
    broken, usual = {}, Limits()
    limits = replace(limits, time_s=max(limits.time_s, usual.time_s), cell_s=max(limits.cell_s, usual.cell_s))
    tasks = (_task(submission.path, limits, release, exercises) for submission in found)
    for path in sorted({task["release"] for task in tasks if isinstance(task, dict) and "release" in task}):
        task = _task(Path(path), limits, release, exercises)
        told = _run(task, limits) if isinstance(task, dict) else {"error": task}
        faults = [f"cell {cell['cell']} of {Path(path).name}: {cell['fault']}" for cell in told.get("cells", ())]
        errors = [mark["reason"] for mark in told.get("exercises", ()) if mark["status"] != "graded"]
        reasons = [told["error"]] if "error" in told else [*faults, *errors]
        if reasons:
            broken[path] = f"this environment cannot run the lesson as it was handed out: {reasons[0]}"
    return broken


def _rows(
    submission: Submission, told: dict[str, Any], exercises: Path | None
) -> Iterable[tuple[Mark, dict[str, Any] | None]]:
    who = submission.student, submission.name
    if "error" in told:
        yield Mark(*who, "", "", None, 0, "error", note=told["error"]), None
        return
    for marked in told["exercises"]:
        verdict, reason = marked.get("verdict"), marked["reason"]
        if verdict is None:
            yield Mark(*who, marked["number"], "", None, 0, "error", note=reason), None
            continue
        for at, part in enumerate(verdict["parts"]):
            check = {**verdict, "attempts": 1} if at == 0 and marked["status"] != "error" else None
            row = (*who, marked["number"], part["name"])
            if marked["status"] == "error":
                yield Mark(*row, None, part["points"], "error", note=reason), check
            elif marked["status"] == "no answer":
                yield Mark(*row, 0, part["points"], "no answer", note=reason), check
            else:
                status = _WORDS[part["passed"]] if verdict["tried"] else "not tried"
                note = "" if part["passed"] else part["note"]
                yield Mark(*row, part["earned"], part["points"], status, part["idea"], note), check
