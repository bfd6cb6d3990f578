"""`parallel-lab grade`: marks computed by hand, hostile notebooks, faults of the machine, and what crosses between the
grader's process and the submission's.
"""

from __future__ import annotations

import csv
import json
import os
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from parallel_lab import Tensor
from parallel_lab.base.errors import ArgumentError, ArgumentTypeError, DataFileError
from parallel_lab.base.files import shipped_folder
from parallel_lab.cli.main import main
from parallel_lab.lab.exercises import JUNK, Exercise, get_exercise, judge, lesson_10
from parallel_lab.lab.grading import marks
from parallel_lab.lab.grading.confine import Limits, descendants
from parallel_lab.lab.grading.marks import Mark, Table, grade_folder
from parallel_lab.lab.grading.submissions import Call, Cell, calls_of, find_submissions, needed_cells, read_cells
from parallel_lab.lab.grading.wire import Encoder, decode, error_of, raised
from parallel_lab.run.communicator import Request
from tests.lab.graded import submit
from tests.notebooks.answers import ANSWERS

SHORT = Limits(time_s=60.0, cell_s=2.0, memory_bytes=1 << 30)
BUBBLE = 5  # points of 09.1
OWN = """
from parallel_lab.lab.exercises import Exercise, Idea, compare_calls, judged

CASES = [(3,), (5,)]
IDEAS = (Idea("half", "That is half of it.", lambda n: n / 2, "twice"),)


def grader(answer):
    yield judged("twice", compare_calls, answer, CASES, lambda n: 2 * n, IDEAS, "twice as many")
    yield judged("zero", compare_calls, answer, [(0,)], lambda n: 0, (), "none of none")


EXERCISES = (Exercise("my.1", "twice", (("twice", 3), ("zero", 1)), ("a?", "b", "c", "d"), grader, ideas=IDEAS),)
"""


def own_notebook(folder: Path, student: str, *sources: str) -> None:
    """A notebook of an author's own, with one exercise."""
    cells = [{"cell_type": "code", "metadata": {}, "source": source} for source in sources]
    path = folder / student / "mine.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")


# ---- marks ----


@pytest.mark.exhaustive
def test_the_marks_of_one_exercise_are_those_computed_by_hand(tmp_path):
    """All 3 + 1; half of it earns the part of zero alone, and its misconception's name; a name that is not there 0."""
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    for student, answer in {"all": "return 2 * n", "half": "return n / 2"}.items():
        own_notebook(tmp_path / "class", student, f"def f(n):\n    {answer}", 'check("my.1", f)')
    own_notebook(tmp_path / "class", "none", "f = undefined", 'check("my.1", f)')
    command = ["grade", str(tmp_path / "class"), "--exercises", str(tmp_path / "own.py"), "--jobs", "2"]
    assert main([*command, "--out", str(tmp_path / "m.csv"), "--json", str(tmp_path / "checks")]) == 0
    with (tmp_path / "m.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["student"], row["part"]): row for row in csv.DictReader(file)}
    told = {key: (row["points"], row["out_of"], row["status"], row["idea"]) for key, row in rows.items()}
    assert told == {
        ("all", "twice"): ("3", "3", "passed", ""),
        ("all", "zero"): ("1", "1", "passed", ""),
        ("half", "twice"): ("0", "3", "not yet", "half"),
        ("half", "zero"): ("1", "1", "passed", ""),
        ("none", "twice"): ("0", "3", "no answer", ""),
        ("none", "zero"): ("0", "1", "no answer", ""),
    }
    assert "name 'f' is not defined" in rows["none", "twice"]["note"]
    saved = json.loads((tmp_path / "checks" / "half.json").read_text(encoding="utf-8"))
    assert (saved["learner"], saved["checks"][0]["points"], saved["checks"][0]["parts"][0]["idea"]) == (
        "half",
        1,
        "half",
    )


@pytest.mark.exhaustive
def test_the_template_of_a_lesson_is_graded_with_the_files_that_it_writes(tmp_path):
    """Of 1 + 2 points: a split at par, all ranks (it fits, and is slower), one that does not fit, the start."""
    template = shipped_folder("notebooks") / "templates" / "your_own_lesson.ipynb"
    cells = json.loads(template.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for magic, _, text in (source.partition("\n") for source in sources if source.startswith("%%writefile")):
        (tmp_path / magic.split()[1]).write_text(text, encoding="utf-8")
    (mine,) = (source for source in sources if source.startswith("split = (1, 1)\n"))
    for student, split in {"ada": "(8, 4)", "bo": "[16, 4]", "cy": "(8, 8)", "di": "(1, 1)"}.items():
        answered = [source.replace("(1, 1)", split) if source == mine else source for source in sources]
        own_notebook(tmp_path / "class", student, *answered)
    table = grade_folder(tmp_path / "class", release=template.parent, exercises=tmp_path / "my_exercises.py")
    assert {name: table.total(name)[0] for name in ("ada", "bo", "cy", "di")} == {"ada": 3, "bo": 1, "cy": 0, "di": 0}
    assert {mark.idea for mark in table.marks} == {"", "twice the ranks, twice the speed", "memory is free"}


# of each lesson: points, added up by hand, the exercises of the half student, and the points of those
LESSONS = {
    "01": (4, ("01.1",), 1),
    "02": (20, ("02.1", "02.4"), 10),
    "03": (20, ("03.2", "03.4"), 8),
    "04": (16, ("04.1",), 6),
    "05": (22, ("05.2",), 5),
    "06": (14, ("06.1",), 4),
    "07": (15, ("07.1",), 5),
    "08": (19, ("08.1",), 5),
    "09": (21, ("09.1",), 5),
    "10": (17, ("10.2",), 5),
    "11": (18, ("11.3", "11.4", "11.5"), 9),
    "12": (13, ("12.1",), 11),
    "13": (30, ("13.1", "13.6", "13.10"), 9),
    "14": (13, ("14.1", "14.2"), 5),
    "15": (16, ("15.1", "15.2"), 8),
    "16": (19, ("16.1", "16.2"), 7),
}
# An answer that is right in part, for lessons with a single exercise: four columns fit 2 x 4 alone, 1 of 4 points. A
# layout within both budgets whose step is 1.15 times par: all but par's 2 of 13.
PARTLY = {
    "01.1": """
def stands(rank, rows, columns):
    row, column = divmod(rank, 4)
    return row, column, [4 * row + n for n in range(4)]
""",
    "12.1": """
near = {"stages": 4, "dp": 2, "tp": 1, "micro_batches": 8, "level": "level2", "recompute": [0, 1, 2, 3, 4]}
work = train(near)
""",
}


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lesson", LESSONS)
def test_three_students_of_a_lesson_get_the_marks_computed_by_hand(tmp_path, lesson):
    submit(tmp_path, "nothing", lesson)
    out_of, half, half_points = LESSONS[lesson]
    submit(tmp_path, "half", lesson, half, answers={**ANSWERS, **PARTLY})
    submit(tmp_path, "all", lesson, [number for number in ANSWERS if number.startswith(lesson)])
    table = grade_folder(tmp_path, jobs=2)
    assert not table.errors
    points = {student: table.total(student)[:2] for student in ("nothing", "half", "all")}
    assert points == {"nothing": (0, out_of), "half": (half_points, out_of), "all": (out_of, out_of)}
    assert {mark.status for mark in table.marks if mark.student == "nothing"} == {"not tried"}


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_tables_earn_nothing_and_own_numbers_are_the_students(tmp_path):
    """By hand: of 10.1's 7 points Ada has all, Bob with her caps none; 10.2 by a table of what check shows: 2 of 5, for
    a training step and nothing else."""
    caps = {who: get_exercise("10.1").of(who).grader.args[0] for who in ("ada", "bob")}
    assert caps["ada"] != caps["bob"]
    layers = {cap: [n for n, on in enumerate(lesson_10.par_of(cap).recompute) if on] for cap in caps["ada"]}
    shown = [case for cases in (lesson_10.CASES, lesson_10.SEVERAL, lesson_10.NEVER) for case in cases]
    table = {case: lesson_10._breaks_even(*case) for case in shown}
    step = lesson_10._offloaded()
    table[step[0], step[1].known_host.link.alpha_s, step[2]] = lesson_10._breaks_even(
        step[0], step[1].known_host.link.alpha_s, step[2]
    )
    answers = {
        "10.1": f"layers = {layers}",
        "10.2": f"def bandwidth(sizes_bytes, alpha_s, time_s):\n"
        f"    return {table!r}.get((tuple(sizes_bytes), alpha_s, time_s), 1.0)",
    }
    for who in caps:
        submit(tmp_path, who, "10", ["10.1", "10.2"], answers=answers)
    table = grade_folder(tmp_path, jobs=2, own_numbers=True, seed=3)
    assert {who: table.total(who)[0] for who in caps} == {"ada": 7 + 2, "bob": 0 + 2}
    assert any("Right for what check shows" in mark.note for mark in table.marks)


# ---- hostile notebooks ----

PATCHED = """
import numpy as np
import parallel_lab.lab.exercises as exercises
from parallel_lab.lab.exercises import book, verdict, running
for place in (exercises, book, verdict, running):
    for name in ("check", "judge", "judged", "ask"):
        setattr(place, name, lambda *a, **k: True)
verdict.Part.earned = verdict.Verdict.points = property(lambda self: 1000)
book.Exercise.judge = lambda self, *a, **k: tuple(verdict.Part(n, True, points=p) for n, p in self.parts)
np.allclose = np.array_equal = lambda *a, **k: True
import math
math.isclose = lambda *a, **k: True
"""
EDITED = """
import pathlib, parallel_lab
root = pathlib.Path(parallel_lab.__file__).parent
for path in [root / "lab" / "exercises" / "verdict.py", *root.glob("**/*.pyc")][:50]:
    try:
        path.write_bytes(b"raise SystemExit")
    except OSError:
        pass
pathlib.Path.home().joinpath("mine.txt").write_text("here I may")
"""
BOMB = "import os\nwhile True:\n    os.fork()\n"
DEAF = """
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
"""
STAYS = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(0)
"""
FDS = """
import os
for fd in range(3, 64):
    try:
        os.write(fd, b"\\0\\0\\0\\x10{\\"points\\": 1000}")
    except OSError:
        pass
"""
HOSTILE = {
    "loops": "while True:\n    pass",
    "loops and catches everything": DEAF,
    "prints gigabytes": "while True:\n    print('x' * 10_000_000)",
    "writes a large file": "with open('x', 'wb') as f:\n    while True: f.write(bytes(1 << 24))",
    "takes memory": "x = []\nwhile True:\n    x.append(bytearray(b'1' * (1 << 26)))",
    "forks without an end": BOMB,
    "leaves a process": STAYS,
    "exits": "import sys; sys.exit(0)",
    "ends its process": "import os; os._exit(0)",
    "kills its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "raises": "raise KeyboardInterrupt",
    "patches check": PATCHED,
    "edits the grader": EDITED,
    "writes into every file": FDS,
    "is deep": "def f(): f()\nf()",
    "changes signals": "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass",
}


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_cell_changes_no_mark_and_leaves_nothing_behind(tmp_path, what):
    """One exercise of three is answered rightly; before it, in a cell of its own, the notebook does its worst."""
    submit(tmp_path, "eve", "09", ["09.1"], first=HOSTILE[what])
    submit(tmp_path, "eva", "09", [], first=HOSTILE[what])
    begin, before = time.monotonic(), descendants(os.getpid())
    table = grade_folder(tmp_path, limits=SHORT)
    assert time.monotonic() - begin < 2 * SHORT.time_s + 30
    assert (table.total("eve"), table.total("eva")) == ((BUBBLE, 21, 0), (0, 21, 0)), table.marks
    assert descendants(os.getpid()) == before


FUNCTIONS = {
    "loops": "while True: pass",
    "loops and catches everything": HOSTILE["loops and catches everything"],
    "prints gigabytes": HOSTILE["prints gigabytes"],
    "ends its process": "import os; os._exit(0)",
    "forks": "import os\nos.fork()\nreturn 0",
    "takes memory": HOSTILE["takes memory"],
    "huge": "import numpy as np\nreturn np.broadcast_to(np.float64(1), (1 << 20, 1 << 20))",
    "nested": "x = []\nx.append(x)\nreturn x",
    "text": "return 'x' * 10**8",
}


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", FUNCTIONS)
def test_a_hostile_function_costs_its_own_points_alone(tmp_path, what):
    """The weights' function does its worst; the exercises before and after it are marked as they should be."""
    body = FUNCTIONS[what].replace("\n", "\n    ")

    def edit(notebook):
        for cell in notebook["cells"]:
            if cell["metadata"].get("nbgrader", {}).get("grade_id") == "exercise-03-2":
                cell["source"] = f"def weights_for(rows):\n    {body}"

    submit(tmp_path, "eve", "03", ["03.1", "03.3"], edit=edit)
    before = descendants(os.getpid())
    table = grade_folder(tmp_path, limits=SHORT)
    assert table.total("eve") == (3 + 4, 20, 0), table.marks
    assert descendants(os.getpid()) == before


# an exercise that hands the answer a function of its own, as 11.2 does
PLAY = """
from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.exercises import Exercise, Wrong, ask, judged


def played(answer):
    questions = []

    def game(text):
        questions.append(text)
        if text != "a plan":
            raise ArgumentError(text, where="ask", allowed="a plan")
        return {"seconds": 1.5}

    value = ask("seconds", answer, game)
    if (value, questions) != (1.5, ["no plan", "a plan"]):
        raise Wrong(f"{value}, {questions}")
    return "played"


def grader(answer):
    yield judged("plays", played, answer)


EXERCISES = (Exercise("my.1", "a game", (("plays", 1),), ("a?", "b", "c", "d"), grader),)
"""
# by exercise: answers that call back, that start messages and wait for them, with numbers and lists of uncommon kinds
TRAVELS = {
    "my.1": """
def answer(ask):
    try:
        ask("no plan")
    except ValueError as error:
        assert type(error).__name__ == "ArgumentError" and "a plan" in str(error)
        return ask("a plan")["seconds"]
""",
    "02.1": """
from parallel_lab.run.communicator import Request, Start, Wait


def answer(rank, ranks, chunks):
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    for step in range(ranks - 1):
        handle = yield Start(Request("send", (rank, right), chunks[(rank - 1 - step) % ranks]))
        at = (rank - 2 - step) % ranks
        chunks[at] = chunks[at] + (yield Request("recv", (left, rank)))
        yield Wait(handle)
    return chunks[rank]
""",
    "03.2": """
from fractions import Fraction


def answer(rows):
    return {rank: Fraction(n, sum(rows)) for rank, n in enumerate(rows)}.values()
""",
}
ASKING = """
def answer(ask):
    for plan in ("d4 t4 p4 b1", "d2 t4 p8 b1", "d2 t4 p8 b1 zero1"):
        assert ask(plan) > 0
"""


@pytest.mark.exhaustive
def test_answers_that_are_right_in_a_notebook_are_right_in_another_process(tmp_path):
    (tmp_path / "own.py").write_text(PLAY, encoding="utf-8")
    cells = []
    for at, (number, source) in enumerate(TRAVELS.items()):
        cells += [source.replace("def answer", f"def answer_{at}"), f'check("{number}", answer_{at})']
    own_notebook(tmp_path / "class", "ada", *cells)
    table = grade_folder(tmp_path / "class", exercises=tmp_path / "own.py")
    assert {mark.exercise for mark in table.marks} == set(TRAVELS)
    assert all(mark.points == mark.out_of > 0 for mark in table.marks), table.marks


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_twenty_questions_are_asked_by_a_function_of_the_submission(tmp_path):
    own_notebook(tmp_path, "ada", ASKING, 'check("11.2", answer)')
    assert grade_folder(tmp_path).total("ada") == (5, 5, 0)


# ---- faults of the machine ----


@pytest.mark.exhaustive
def test_a_package_that_is_missing_is_an_error_and_not_a_zero(tmp_path):
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    own_notebook(tmp_path / "c", "ada", "from no_such_package import f", 'check("my.1", f)')
    table = grade_folder(tmp_path / "c", exercises=tmp_path / "own.py")
    assert {(m.points, m.status) for m in table.marks} == {(None, "error")} and table.total("ada") == (0, 4, 2)
    assert all("no_such_package is not installed here" in mark.note for mark in table.marks)


@pytest.mark.exhaustive
def test_a_grader_that_lacks_a_package_is_an_error_and_not_a_zero(tmp_path):
    broken = OWN.replace("def grader(answer):", "def grader(answer):\n    import no_such_package")
    (tmp_path / "own.py").write_text(broken, encoding="utf-8")
    own_notebook(tmp_path / "c", "ada", "def f(n): return 2 * n", 'check("my.1", f)')
    table = grade_folder(tmp_path / "c", exercises=tmp_path / "own.py")
    assert {(m.points, m.status) for m in table.marks} == {(None, "error")}


@pytest.mark.exhaustive
def test_a_grader_that_is_changed_meanwhile_gives_no_more_marks_and_keeps_those_before(tmp_path, monkeypatch):
    package = tmp_path / "package"  # in its place: the real one is needed by other tests
    package.mkdir()
    (package / "rule.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(marks, "_PACKAGE", package)
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    for student in "abc":
        own_notebook(tmp_path / "class", student, "def f(n):\n    return 2 * n", 'check("my.1", f)')

    def edit(_graded: str) -> None:
        (package / "rule.py").write_text("changed", encoding="utf-8")

    table = grade_folder(tmp_path / "class", limits=SHORT, exercises=tmp_path / "own.py", tell=edit)
    assert [(mark.student, mark.points) for mark in table.marks] == [("a", 3), ("a", 1), ("b", None), ("c", None)]
    assert all("b/mine.ipynb was graded: look at that notebook" in mark.note for mark in table.errors)


@pytest.mark.exhaustive
def test_a_lesson_that_does_not_run_here_as_it_was_handed_out_is_an_error_for_all(tmp_path):
    """Where its own cells lack a package nobody's answer is judged."""
    path = submit(tmp_path / "release", "x", "09", first="")
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if "from fractions import Fraction" in "".join(cell["source"]):
            cell["source"] = "import no_such_package\n" + "".join(cell["source"])
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == "exercise-09-1":
            cell["source"] = "Fraction\n" + "".join(cell["source"])
    path.write_text(json.dumps(notebook), encoding="utf-8")
    (tmp_path / "c" / "ada").mkdir(parents=True)
    (tmp_path / "c" / "ada" / path.name).write_text(json.dumps(notebook), encoding="utf-8")
    table = grade_folder(tmp_path / "c", release=path.parent)
    assert table.errors and all(mark.points is None for mark in table.marks)
    assert "cannot run the lesson as it was handed out" in table.marks[0].note


@pytest.mark.quick(1)
@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cells": 3}', '{"cells": [{"cell_type": "code"}]}', "\0"])
def test_a_file_that_is_not_a_notebook_is_an_error_and_not_a_zero(tmp_path, text):
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "x.ipynb").write_text(text, encoding="utf-8")
    with pytest.raises(DataFileError, match="cannot be read as a notebook"):
        read_cells(tmp_path / "ada" / "x.ipynb")
    (mark,) = grade_folder(tmp_path).marks if text in ("", "[]") else [Mark("", "", "", "", None, 0, "error")]
    assert (mark.points, mark.status) == (None, "error")


# ---- submissions ----


def test_submissions_are_found_by_folder_and_by_name_and_links_are_not_followed(tmp_path):
    for name in ("ada/x.ipynb", "bob/lesson02/y.ipynb", "02_collectives_cleo.ipynb", "bob/.ipynb_checkpoints/y.ipynb"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}", encoding="utf-8")
    (tmp_path / "dan").mkdir()
    (tmp_path / "dan" / "link.ipynb").symlink_to(tmp_path / "ada" / "x.ipynb")
    found = [(s.student, s.name) for s in find_submissions(tmp_path)]
    assert found == [("ada", "x.ipynb"), ("bob", "y.ipynb"), ("cleo", "02_collectives.ipynb")]
    for wrong in (tmp_path / "dan" / "none", tmp_path / "dan"):
        with pytest.raises(DataFileError):
            find_submissions(wrong)


def test_cells_are_run_that_a_student_changed_or_an_answer_needs():
    released = [
        Cell(n, s) for n, s in enumerate(("import numpy as np", "slow = 1", "scale = 2", "f = None", "show(slow)"), 1)
    ]
    mine = [*released[:3], Cell(4, "def f(x):\n    return scale * x"), released[4], Cell(6, "extra = 7")]
    chosen = needed_cells(mine, released, [Call("1", 'check("1", f, fit=np.ones)')])
    assert [cell.number for cell in chosen] == [1, 3, 4, 6]


def test_tests_are_those_of_test_cells_and_else_every_call_of_check():
    cells = [Cell(1, 'check("02.1", f)', "exercise-02-1"), Cell(2, 'check("02.1", g, fit=1).points', "test-02-1")]
    assert calls_of(cells) == [Call("02.1", "check('02.1', g, fit=1)")]
    assert calls_of(cells[:1]) == [Call("02.1", "check('02.1', f)")]
    assert calls_of([Cell(1, "check(x)\n%magic"), Cell(2, "check(3, f)"), Cell(3, "mine.check('02.1', f)")]) == []


def test_a_table_is_harmless_in_a_spreadsheet_and_sums_up(tmp_path):
    rows = (Mark("=1+1", "n", "e", "p", 2, 3, "passed", note="-x\ny"), Mark("=1+1", "n", "e", "q", None, 4, "error"))
    table = Table(rows, {})
    table.write_csv(tmp_path / "m.csv")
    lines = (tmp_path / "m.csv").read_text(encoding="utf-8").splitlines()
    assert lines[1:] == ["'=1+1,n,e,p,2,3,passed,,'-x y", "'=1+1,n,e,q,,4,error,,"]
    assert table.summary() == "=1+1    2 of   7 points, 1 part without a mark: see the table"


# ---- what crosses ----

REQUEST = Request("send", (0, 1), np.arange(3.0))
CROSS = [
    None,
    True,
    3,
    -(10**30),
    2.5,
    float("inf"),
    "text",
    b"\0",
    1j,
    [1, [2.0, None]],
    (1, (2,)),
    {1, 2},
    {1: [2]},
    {"a": ()},
    Fraction(1, 3),
    Decimal("0.10"),
]
CROSS += [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.float64(0.1),
    np.bool_(True),
    np.array(["a"]),
    np.zeros((0, 3)),
]


@pytest.mark.parametrize("value", CROSS, ids=repr)
def test_data_crosses_as_it_is(value):
    found = decode(json.loads(json.dumps(Encoder().encode(value))))
    same = np.array_equal(found, value) if isinstance(value, np.ndarray | np.generic) else found == value
    assert type(found) is type(value) and same
    assert getattr(found, "dtype", None) == getattr(value, "dtype", None)


def test_requests_and_tensors_cross_and_functions_stay():
    found = decode(json.loads(json.dumps(Encoder().encode(REQUEST))))
    assert found.kind == "send" and found.group == (0, 1) and np.array_equal(found.value, REQUEST.value)
    assert np.array_equal(decode(Encoder().encode(Tensor(np.ones(2, np.float32)))), np.ones(2))
    encoder = Encoder()
    told = encoder.encode({"f": len, "g": (n for n in "ab")})
    functions = decode(told, lambda number, name: ("function", number, name), lambda number: ("generator", number))
    assert functions == {"f": ("function", 0, "len"), "g": ("generator", 1)} and encoder.kept[0] is len
    with pytest.raises(ValueError, match="stays in the other process"):
        decode(told)


def test_errors_cross_by_name_and_text():
    for error in (KeyError("a"), ArgumentError("7", where="ask", allowed="5"), ArgumentTypeError("8")):
        again = error_of(*raised(error))
        assert type(again) is type(error) and str(error) in str(again)
    for name in ("exit", "Path", "SystemExit"):
        assert type(error_of(name, "text")) is RuntimeError


def test_what_cannot_cross_is_a_text():
    for value in (object(), 10**2000, np.array([{}]), np.broadcast_to(np.float64(1), (1 << 20, 1 << 20))):
        assert "opaque" in Encoder().encode(value)


@pytest.mark.quick(16)
@pytest.mark.parametrize("number", range(len(JUNK)))
def test_no_junk_disturbs_an_encoder(number):
    assert json.dumps(Encoder().encode(JUNK[number]))


MADE_UP = [
    [],
    {},
    {"record": "Path", "fields": {}},
    {"record": "Request", "fields": {"x": 1}},
    {"array": "AAAA", "dtype": "|O", "shape": [1], "single": False},
    {"array": "AAAA", "dtype": "<f8", "shape": [9], "single": False},
    {"array": "AAAA", "dtype": "nonsense", "shape": [1], "single": False},
    {"dict": [[{"list": []}, 1]]},
    {"set": [{"list": []}]},
    {"complex": ["a", 1]},
    {"bytes": 3},
    {"number": "1e999999999", "kind": "Decimal"},
    {"number": "1e-999999999", "kind": "Fraction"},
    {"number": "9" * 1001, "kind": "Fraction"},
]


@pytest.mark.parametrize("data", MADE_UP, ids=repr)
def test_data_that_another_process_made_up_is_refused(data):
    with pytest.raises(ValueError):
        decode(data)


def test_an_exercise_is_judged_by_objects_that_only_pass_calls_on():
    """The grader needs no function of the submission's in its process: any callable will do."""

    class Elsewhere:
        def __call__(self, n):
            return 2 * n

    names = {}
    exec(OWN, names)
    (exercise,) = names["EXERCISES"]
    assert isinstance(exercise, Exercise) and judge(exercise, Elsewhere(), {}).passed
