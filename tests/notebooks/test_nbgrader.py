"""The lessons as an nbgrader course, with nbgrader itself: `parallel-lab course`, generate_assignment, release, submit,
collect, autograde, feedback.

Everything here is exhaustive: nbgrader runs whole lessons.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest

from parallel_lab.lab.classroom.course import hidden_test, lessons_with_exercises, write_course
from parallel_lab.lab.classroom.hidden import marks
from parallel_lab.lab.exercises import Wrong, all_exercises, get_exercise
from parallel_lab.lab.exercises.lesson_10 import par_of
from parallel_lab.run.communicator import Request
from tests.notebooks.answers import ANSWERS

if importlib.util.find_spec("nbgrader") is None:  # importing it takes a second, also where no test here is run
    pytest.skip("no nbgrader", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
LESSONS = lessons_with_exercises()
LIMIT_S = 280
# The half-right student of lesson 03. By hand, of (3, 4, 4, 4, 5) points: summed gradients with a rate of 0.1 / 4 are
# right for SGD, and a mean at 0.1 for momentum with its weight decay; Adam's rate does not scale: 2 of 3. Equal weights
# are right where all ranks have as many rows, and wrong in the three other parts: 1 of 4. "Never" everywhere is right
# in the last part only: 1 of 4. The other two exercises are left as they are.
HALF = {
    "03.1": 'settings = {"sgd": {"gradients_mean": False, "learning_rate": 0.1 / 4}, '
    '"momentum": {"gradients_mean": True, "learning_rate": 0.1}, '
    '"adam": {"gradients_mean": False, "learning_rate": 0.01 / 4}}',
    "03.2": "def weights_for(rows):\n    count = len(rows)\n    return [1 / count] * count",
    "03.3": "def blow_up_step(rate, ranks):\n    never = None\n    return never",
}
MARKS = {"nothing": (0, 0, 0, 0, 0), "half": (2, 1, 1, 0, 0), "all": (3, 4, 4, 4, 5)}  # points of 03.1 to 03.5
TABLE = """
def weights_for(rows):
    seen = {(4, 4, 4, 4): [4, 4, 4, 4], (4, 4, 4, 2): [4, 4, 4, 2], (5, 3, 1): [5, 3, 1], (4, 4, 0, 2): [4, 4, 0, 2]}
    return [n / sum(rows) for n in seen.get(tuple(rows), [1] * len(rows))]
"""


def answer_with(book, answers: dict[str, str]):
    """A copy of the notebook with these answers in its exercise cells; the others stay as they were handed out."""
    book = nbformat.from_dict(book)
    for cell in book.cells:
        role = cell.metadata.get("nbgrader", {})
        if role.get("solution"):
            number = ".".join(role.grade_id.split("-")[1:])
            if number in answers:
                check = re.search(r"(?m)^check\(.*$", cell.source)[0]
                cell.source = f"{answers[number]}\n\n{check}"
    return book


class Course:
    """A course in a folder, with an exchange of its own."""

    def __init__(self, place: Path, *lessons: str, own_numbers: bool = False) -> None:
        self.folder, self.place = place / "autumn", place
        write_course(self.folder, lessons, own_numbers=own_numbers)
        (place / "exchange").mkdir()
        (place / "exchange").chmod(0o777)
        with (self.folder / "nbgrader_config.py").open("a") as file:
            file.write(f"c.Exchange.root = {str(place / 'exchange')!r}\nc.NbGrader.logfile = ''\n")

    def run(self, *words: str, where: Path | None = None, fails: bool = False) -> str:
        """One nbgrader command; what it printed."""
        own = {"HOME": str(self.place), "JUPYTER_CONFIG_DIR": str(self.place / "config")}
        own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # nbgrader calls alembic
        own |= {"IPYTHONDIR": str(self.place / "ipython"), "JUPYTER_RUNTIME_DIR": str(self.place / "runtime")}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "nbgrader", *words]
        env = {**os.environ, **own, "PYTHONPATH": path}
        told = subprocess.run(
            command, cwd=where or self.folder, env=env, text=True, timeout=LIMIT_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert (told.returncode != 0) == fails, told.stdout[-4000:]
        return told.stdout

    def released(self, lesson: str):
        return nbformat.read(self.folder / "release" / f"lesson_{lesson}" / LESSONS[lesson].name, as_version=4)

    def hand_in(self, who: str, lesson: str, answers: dict[str, str]) -> None:
        """Straight into the folder of what is collected."""
        target = self.folder / "submitted" / who / f"lesson_{lesson}" / LESSONS[lesson].name
        target.parent.mkdir(parents=True)
        nbformat.write(answer_with(self.released(lesson), answers), target)

    def grades(self) -> dict[str, float]:
        """{student: score} of everything that was graded."""
        self.run("export")
        rows = csv.DictReader((self.folder / "grades.csv").read_text().splitlines())
        return {row["student_id"]: float(row["score"]) for row in rows if row["timestamp"] or float(row["score"])}

    def points(self, who: str, lesson: str) -> tuple[float, ...]:
        """Points of each test cell, in order."""
        from nbgrader.api import Gradebook

        with Gradebook(f"sqlite:///{self.folder / 'gradebook.db'}") as book:
            found = book.find_submission_notebook(LESSONS[lesson].stem, f"lesson_{lesson}", who)
            return tuple(grade.score for grade in sorted(found.grades, key=lambda grade: grade.name))


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_handed_out_with_its_starts_and_right_answers_earn_all_points(lesson, tmp_path):
    course = Course(tmp_path, lesson)
    course.run("generate_assignment", f"lesson_{lesson}", "--create")
    given = nbformat.read(LESSONS[lesson], as_version=4)
    released = course.released(lesson)
    assert [c.source for c in released.cells] == [c.source for c in given.cells]
    assert "HIDDEN" not in nbformat.writes(released)
    course.hand_in("all", lesson, {n: a for n, a in ANSWERS.items() if n.startswith(lesson)})
    course.run("autograde", f"lesson_{lesson}")
    most = tuple(float(e.points) for e in all_exercises() if e.number.startswith(lesson))
    assert course.points("all", lesson) == most


@pytest.mark.exhaustive
@pytest.mark.timeout(900)  # three whole lessons
def test_three_students_from_the_release_to_the_feedback_get_the_marks_computed_by_hand(tmp_path):
    course = Course(tmp_path, "03")
    course.run("generate_assignment", "lesson_03", "--create")
    course.run("release_assignment", "lesson_03")
    answers = {"nothing": {}, "half": HALF, "all": {n: a for n, a in ANSWERS.items() if n.startswith("03")}}
    for who, own in answers.items():
        home = tmp_path / f"home_{who}"
        home.mkdir()
        shutil.copy(course.folder / "nbgrader_config.py", home)
        course.run("fetch_assignment", "lesson_03", where=home)
        path = home / "lesson_03" / LESSONS["03"].name
        nbformat.write(answer_with(nbformat.read(path, as_version=4), own), path)
        course.run("submit", "lesson_03", "--student", who, where=home)
    course.run("collect", "lesson_03", "--Collect.check_owner=False")  # all three are this account
    course.run("autograde", "lesson_03")
    assert {who: course.points(who, "03") for who in answers} == MARKS
    assert course.grades() == {who: sum(points) for who, points in MARKS.items()}
    course.run("generate_feedback", "lesson_03")
    for who in answers:
        page = (course.folder / "feedback" / who / "lesson_03" / "03_data_parallel.html").read_text(encoding="utf-8")
        assert f"(Score: {sum(MARKS[who]):.1f} / 20.0)" in page
    course.run("release_feedback", "lesson_03")


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_table_of_the_shown_inputs_earns_nothing_and_a_fault_of_the_machine_is_not_a_mark(tmp_path):
    """Before: a package that the grader's environment lacks, or a kernel that died, was a 0 for the student."""
    course = Course(tmp_path, "03")
    course.run("generate_assignment", "lesson_03", "--create")
    right = {n: a for n, a in ANSWERS.items() if n.startswith("03")}
    course.hand_in("table", "03", {**right, "03.2": TABLE})
    course.hand_in("dies", "03", {**right, "03.1": "import os\n\nsettings = None\nos._exit(1)"})
    course.hand_in("loud", "03", {**right, "03.2": "import sys\n\n" + right["03.2"].replace(
        "    return", '    print("so many", file=sys.stderr)\n    return')})  # fmt: skip
    told = course.run("autograde", "lesson_03", fails=True)
    assert "DeadKernelError" in told
    assert course.points("table", "03") == (3, 0, 4, 4, 5)  # right on what the verdict shows, on no other rows
    assert course.points("loud", "03") == MARKS["all"]  # a line on stderr is not a failure
    assert not (course.folder / "autograded" / "dies" / "lesson_03" / LESSONS["03"].name).exists()
    broken = tmp_path / "broken"  # an environment without threadpoolctl
    broken.mkdir()
    (broken / "threadpoolctl.py").write_text("raise ModuleNotFoundError(\"No module named 'threadpoolctl'\")\n")
    course.hand_in("late", "03", right)
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{broken}{os.pathsep}{before}"
    try:
        told = course.run("autograde", "lesson_03", "--student", "late", fails=True)
    finally:
        os.environ["PYTHONPATH"] = before
    assert "threadpoolctl" in told
    assert not (course.folder / "autograded" / "late" / "lesson_03" / LESSONS["03"].name).exists()
    course.run("autograde", "lesson_03", "--student", "late")
    assert course.points("late", "03") == MARKS["all"]


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_with_own_numbers_a_students_answer_earns_its_points_and_another_students_none(tmp_path):
    """By hand, of (7, 5, 5) points: Ada has all. Bob hands in Ada's caps of 10.1, which are not his, so that no layers
    are there for one of them: 0. He has said that he is Ada, and is judged by his own id. Eve has not said who she is.
    """
    course = Course(tmp_path, "10", own_numbers=True)
    source = course.folder / "source" / "lesson_10" / LESSONS["10"].name
    book = nbformat.read(source, as_version=4)  # of the lesson the exercises alone: the rest is tested above
    kept = [cell for cell in book.cells if "nbgrader" in cell.metadata or "learner(" in cell.source]
    book.cells = [nbformat.v4.new_code_cell("from parallel_lab.lab.exercises import check"), *kept]
    nbformat.write(book, source)
    course.run("generate_assignment", "lesson_10", "--create")
    assert any('learner("")' in cell.source for cell in course.released("10").cells)
    common = {n: a for n, a in ANSWERS.items() if n.startswith("10")}
    caps = {who: get_exercise("10.1").of(who).grader.args[0] for who in ("ada", "bob", "eve")}
    assert len(set(caps.values())) == 3
    layers = {who: {cap: [n for n, on in enumerate(par_of(cap).recompute) if on] for cap in caps[who]} for who in caps}
    for who, answer_of in {"ada": "ada", "bob": "ada", "eve": "eve"}.items():
        said = "" if who == "eve" else answer_of
        answer = f"from parallel_lab.lab.exercises import learner\n\nlearner({said!r})\nlayers = {layers[answer_of]}"
        course.hand_in(who, "10", {**common, "10.1": answer})
    course.run("autograde", "lesson_10")
    points = {who: course.points(who, "10") for who in caps}
    assert points == {"ada": (7, 5, 5), "bob": (0, 5, 5), "eve": (7, 5, 5)}


# ---- hidden tests, without nbgrader ----


def test_a_course_with_own_numbers_asks_for_the_name_where_an_exercise_has_such(tmp_path):
    written = write_course(tmp_path, ["03", "10"], own_numbers=True)
    sources = [[cell.source for cell in nbformat.read(path, as_version=4).cells] for path in written]
    assert [sum('learner("")' in source for source in each) for each in sources] == [0, 1]
    assert any('numbers("10.1")' in source for source in sources[1])
    assert "configure(c, own_numbers=True)" in (tmp_path / "nbgrader_config.py").read_text()


WITH_DRAWN = [exercise for exercise in all_exercises() if exercise.drawn]


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("exercise", WITH_DRAWN, ids=lambda e: e.number)
def test_a_right_answer_holds_on_drawn_inputs(exercise, seed):
    handed_in: list = []
    fit = SimpleNamespace(sizes_bytes=[1, 1000], median_s=[1e-6, 2e-6], alpha_s=1e-6, beta_s_per_byte=1e-9)
    space = {
        "np": np,
        "Request": Request,
        "fit": fit,
        "check": lambda number, answer, **given: handed_in.append(answer),
    }
    exec(ANSWERS[exercise.number] + "\n\n" + re.search(r"(?m)^check\(.*$", exercise.start)[0], space)
    for judge in exercise.drawn.values():
        judge(handed_in[0], np.random.default_rng(seed))
    assert exercise.drawn.keys() <= dict(exercise.parts).keys()


@pytest.mark.parametrize("exercise", WITH_DRAWN, ids=lambda e: e.number)
def test_a_constant_fails_on_drawn_inputs(exercise):
    name = next(iter(exercise.drawn))
    with pytest.raises(Wrong):
        exercise.drawn[name](lambda *given: 0.123, np.random.default_rng(1))


@pytest.mark.exhaustive
def test_marks_are_points_of_check_where_answers_are_honest():
    space: dict = {}
    exec(TABLE, space)
    assert marks("03.2", lambda rows: [n / sum(rows) for n in rows], seed=3) == 4
    assert marks("03.2", lambda rows: [1 / len(rows)] * len(rows), seed=3) == 1
    assert marks("03.2", space["weights_for"], seed=3) == 0
    assert marks("03.2", None, seed=3) == 0


def test_the_hidden_part_of_a_test_cell_is_between_nbgraders_marks():
    source = hidden_test('check("09.2", schedule, two_parts=two_parts).points', 7)
    assert source.splitlines() == [
        'check("09.2", schedule, two_parts=two_parts).points',
        "### BEGIN HIDDEN TESTS",
        "from parallel_lab.lab.classroom.hidden import marks",
        "",
        'marks("09.2", schedule, two_parts=two_parts, seed=7)',
        "### END HIDDEN TESTS",
    ]
