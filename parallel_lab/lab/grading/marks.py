"""A class graded: every submission of a folder in a grader's process of its own, and the table of points.

table = grade_folder(Path("submitted"), jobs=2)
table.write_csv(Path("marks.csv"))
print(table.summary())
"""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib.metadata
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from ...base.errors import DataFileError, WorldError
from ...base.files import shipped_folder
from ...base.progress import Progress
from ..exercises.book import RESULTS_FORMAT
from . import walls
from .confine import Limits
from .confined import found_walls
from .submissions import Submission, calls_of, find_submissions, harmless, newest, printable, read_cells, released_as

MOST_ENDS = 3  # of the process that grades, while the same submission runs
MOST_NAME = 50  # characters of a file's name: a folder's may have as many bytes as a name can have
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
            write_rows(file, self.marks)

    def write_json(self, folder: Path) -> None:
        """A file per student, as `save_results` writes it."""
        folder.mkdir(parents=True, exist_ok=True)
        students = sorted({student for student, _ in self.checks})
        names = {student: _file_name(student) for student in students}
        shared = Counter(name.casefold() for name in names.values())
        for student in students:
            checks = [one for (whose, _), found in self.checks.items() if whose == student for one in found]
            told = {"format": RESULTS_FORMAT, "version": 1, "learner": student, "checks": checks}
            name = names[student]
            # of "ann b" and "ann_b", of "Ann" and "ann" where capitals are the same
            if shared[name.casefold()] > 1 or len(name) > MOST_NAME:
                sum_of = blake2b(student.encode(errors="surrogatepass"), digest_size=4)
                name = f"{name[:MOST_NAME]}-{sum_of.hexdigest()}"
            (folder / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")

    def summary(self) -> str:
        """A line per student."""
        students = sorted({mark.student for mark in self.marks})
        width = max(map(len, students), default=0)
        lines = []
        for student in students:
            points, out_of, without = self.total(student)
            unmarked = f", {without} part{'s' * (without != 1)} without a mark: see the table" if without else ""
            lines.append(f"{printable(student):{width}}  {points:3} of {out_of:3} points{unmarked}")
        return "\n".join(lines)


def write_rows(file: IO[str], marks: Iterable[Mark], *, head: bool = True) -> None:
    """Rows of a table, as `Table.write_csv` writes them."""
    writer = csv.writer(file)
    if head:
        writer.writerow(field.name for field in fields(Mark))
    for mark in marks:
        writer.writerow(harmless(value) for value in asdict(mark).values())


def _file_name(student: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in student).lstrip(".") or "_"


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
    progress: Progress | None = None,
    graded: Callable[[Iterable[Mark]], object] = lambda marks: None,
) -> Table:
    """The marks of every notebook in a folder.

    release    folder of the notebooks that were handed out; the course's own by default
    exercises  a Python file with exercises of one's own, `EXERCISES`
    jobs       submissions at a time
    own_numbers  whether each student has numbers of their own (`Exercise.own`)
    seed       of the inputs on which answers are judged besides those that `check` shows; by default another one
               each time
    tell       receives lines: first what protects on this machine, then what is left out, and what is graded
    progress   counts submissions
    graded     receives the marks of each submission as soon as they are there

    Where files of the grader change meanwhile, no marks are given from then on.

    Where the process that grades ends, it is started again where it was.

    Raises DataFileError for a folder without notebooks, WorldError where a learner's file could change marks.
    """
    limits, release = limits or Limits(), release or shipped_folder("notebooks")
    seed = secrets.randbelow(2**32) if seed is None else seed
    with _clean(folder, exercises) as machine:
        tell(walls.told(machine["walls"]))
        found, before = find_submissions(folder, tell), _fingerprint()
        tasks = {submission: _task(submission, limits, release, exercises) for submission in found}
        for older, counts in newest(found, lambda s: _lessons(s, tasks[s])).items():
            found.remove(older)
            names = (f"{s.student}: {s.path.relative_to(folder)}" for s in (older, counts))
            why = "newer" if _is_newer(counts, older) else "of one that was handed out"
            tell("left out {}: the same lesson is in {}, which is {}".format(*map(printable, names), why))
        broken = _environment([tasks[submission] for submission in found], limits, machine)
        begun: dict[Submission, dict[str, Any]] = {}
        rows: dict[Submission, list[tuple[Mark, dict[str, Any] | None]]] = {}
        changed: list[str] = []  # the submissions that then ran

        def note(submission: Submission, told: dict[str, Any]) -> None:
            if changed or _fingerprint() != before:
                changed.append(str(submission.path))
                what = f"files of parallel_lab changed while {changed[0]} was graded"
                told = {"error": f"{what}: look at that notebook, install the package again, and grade once more"}
            rows[submission] = list(_rows(submission, told, exercises))
            graded(mark for mark, _ in rows[submission])
            tell(printable(f"graded {submission.student}: {submission.name}"))
            count.step()

        count = progress or Progress()
        count.begin(len(found))
        for submission in found:
            task = tasks[submission]
            reason = broken.get(task.get("release", "")) if isinstance(task, dict) else task
            if reason or isinstance(task, str):
                note(submission, {"error": reason})
                continue
            begun[submission] = task | machine | {"seed": seed, "learner": submission.student if own_numbers else ""}
        _grade_all(begun, limits, jobs, note, lambda: bool(changed))
    checks = {(s.student, s.name): [check for _, check in rows[s] if check] for s in found}
    return Table(tuple(mark for s in found for mark, _ in rows[s]), checks)


def _is_newer(one: Submission, other: Submission) -> bool:
    return one.path.stat().st_mtime_ns >= other.path.stat().st_mtime_ns


def _lessons(submission: Submission, task: dict[str, Any] | str) -> tuple[str, Sequence[str]]:
    """What a notebook's marks are for: the notebook as it was handed out, or "", and the exercises that are judged."""
    if isinstance(task, str):
        return "", ()
    released = task.get("release", "")
    cells = read_cells(Path(released)) if released else read_cells(submission.path, submission.lesson)
    return released, [call.number for call in calls_of(cells)]


# ---- processes ----


@contextlib.contextmanager
def _clean(folder: Path, exercises: Path | None) -> Iterator[dict[str, Any]]:
    """What tasks say of this machine, while nothing but what is installed can be imported here.

    Raises WorldError where something has been imported from the submissions, or a submission could read them.
    """
    classroom, before = folder.resolve(), sys.path[:]
    for name, file in _shadows(classroom):
        what = f"the module {name} comes from {file}, where learners' files lie: it may change marks"
        raise WorldError(what, where="grade", hint="Remove the file, and start `parallel-lab grade` in a new terminal")
    path = walls.installed(before)
    files = walls.readable(path)
    open_to_all = next((name for name in files if classroom.is_relative_to(Path(name).resolve())), None)
    if open_to_all or (exercises and exercises.resolve().is_relative_to(classroom)):
        what = (
            f"submissions are read by others in {open_to_all}"
            if open_to_all
            else f"{exercises} is a learner's to change"
        )
        hint = "Move the submissions to a folder of their own, outside of Python's, and no other file into it"
        raise WorldError(f"{what}: {folder}", where="grade", hint=hint)
    sys.path[:] = path
    scratch = tempfile.mkdtemp(prefix="parallel-lab-walls-")
    try:
        yield {"walls": found_walls(scratch, files, "grade"), "files": files}
    finally:
        sys.path[:] = before
        shutil.rmtree(scratch, ignore_errors=True)


def _shadows(classroom: Path) -> Iterator[tuple[str, str]]:
    """Modules that come from the submissions, or under another's name from the current folder, and their files."""
    trusted, here = [_PACKAGE, *walls.installed(sys.path)], Path.cwd()
    # asked for once at most: it reads each installed package's list of files
    names = functools.cache(lambda: {*sys.stdlib_module_names, *importlib.metadata.packages_distributions()})
    for name, module in list(sys.modules.items()):
        inside = Path(str(getattr(module, "__file__", None) or os.devnull)).resolve().is_relative_to
        if not any(map(inside, trusted)) and (inside(classroom) or (inside(here) and name in names())):
            yield name, str(module.__file__)


def _grade_all(
    tasks: Mapping[Submission, dict[str, Any]],
    limits: Limits,
    jobs: int,
    note: Callable[[Submission, dict[str, Any]], None],
    stopped: Callable[[], bool],
) -> None:
    """Grade in a child, which is started again where it has ended: first what did not run then, and one at a time."""
    left, ended = dict(enumerate(tasks)), Counter[int]()
    while left:
        order = sorted(left, key=lambda at: ended[at])
        job = {"tasks": {at: tasks[left[at]] for at in order}, "jobs": 1 if ended else jobs, "limits": limits.to_dict()}
        running = set()
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(job).encode())
            file.seek(0)
            command = walls.command(__name__)
            child = subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, env=walls.environment())
        assert child.stdout is not None
        try:
            for line in child.stdout:
                message = json.loads(line) if line.endswith(b"\n") else {}
                if "begun" in message:
                    running.add(message["begun"])
                elif "at" in message:
                    note(left.pop(message["at"]), message["told"])
                    running.discard(message["at"])
                if stopped():
                    break
        finally:
            child.stdout.close()
            if left:
                child.kill()
            child.wait()
        if stopped():
            for submission in left.values():
                note(submission, {})
            return
        ended.update(running or list(left))
        for at in [at for at in left if ended[at] == MOST_ENDS]:
            note(left.pop(at), {"error": f"the process that grades has ended {MOST_ENDS} times while this was graded"})


def main() -> None:
    """Grade the tasks that standard input tells: a line when one begins, and one with its marks."""
    job, writing = json.load(sys.stdin), threading.Lock()
    limits = Limits(**job["limits"])

    def say(message: dict[str, Any]) -> None:
        with writing:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    def one(item: tuple[str, dict[str, Any]]) -> None:
        at = int(item[0])
        say({"begun": at})
        say({"at": at, "told": _run(item[1], limits)})

    with ThreadPoolExecutor(max(1, job["jobs"])) as pool:
        list(pool.map(one, job["tasks"].items()))


def _fingerprint() -> str:
    """A hash of the package's files: their names, sizes and times of change."""
    told = blake2b(digest_size=16)
    for where, folders, files in os.walk(_PACKAGE):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            stat = os.lstat(Path(where) / name)
            told.update(f"{where}/{name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return told.hexdigest()


def _task(submission: Submission, limits: Limits, release: Path, exercises: Path | None) -> dict[str, Any] | str:
    """What a grader's process reads; a text where the notebook cannot be read."""
    path, lesson = submission.path, submission.lesson
    try:
        handed_out = None if submission.fault else released_as(read_cells(path, lesson), release, lesson)
    except DataFileError as error:
        return str(error)
    if submission.fault:
        return submission.fault
    task = {"path": str(path.resolve()), "lesson": lesson, "limits": limits.to_dict(), "seed": 0}
    task |= {"release": str(handed_out.resolve())} if handed_out else {}
    return task | ({"exercises": str(exercises.resolve())} if exercises else {})


def _run(task: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """The marks of a task, from a process of its own; {"error": reason} if it gives none."""
    try:
        done = subprocess.run(
            walls.command(f"{__package__}.grader"),
            input=json.dumps(task).encode(),
            capture_output=True,
            timeout=limits.time_s + LATE_S,
            env=walls.environment(),
            check=False,
        )
        told = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"error": f"the grader did not end within {limits.time_s + LATE_S:g} s"}
    except ValueError:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        return {"error": f"the grader ended with code {done.returncode}: {words[-1] if words else 'without a message'}"}
    return told if isinstance(told, dict) else {"error": "the grader gave no marks"}


def _environment(tasks: Iterable[dict[str, Any] | str], limits: Limits, machine: dict[str, Any]) -> dict[str, str]:
    """{notebook that was handed out: why it cannot be graded here}. It must run as it is, whatever the answers."""
    broken, usual = {}, Limits()
    limits = replace(limits, time_s=max(limits.time_s, usual.time_s), cell_s=max(limits.cell_s, usual.cell_s))
    handed_out = {task["release"]: task for task in tasks if isinstance(task, dict) and "release" in task}
    for path, task in sorted(handed_out.items()):
        told = _run(task | machine | {"path": path, "lesson": "", "limits": limits.to_dict(), "seed": 0}, limits)
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


if __name__ == "__main__":
    main()
