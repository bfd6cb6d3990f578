"""Exercise cells of the notebooks: their nbgrader metadata is valid, points are the exercise's, and each has a start, a
check and a test cell.

The rules are those of nbgrader's schema 3 (`nbgraderformat/v3.json` and `v3.py` of nbgrader 0.9.6), written down here
because a lesson must not need nbgrader; `test_nbgrader.py` runs nbgrader itself.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from pathlib import Path

import nbformat
import pytest

from parallel_lab.lab.exercises import all_exercises, get_exercise
from tests.notebooks.answers import ANSWERS

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {path.name: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
CELLS = [
    (name, cell)
    for name, path in NOTEBOOKS.items()
    for cell in nbformat.read(path, as_version=4).cells
    if "nbgrader" in cell.metadata
]
REQUIRED = {"schema_version": int, "grade": bool, "solution": bool, "locked": bool, "task": bool, "grade_id": str}
ALLOWED = {*REQUIRED, "points", "checksum", "cell_type"}
each_cell = pytest.mark.parametrize(
    ("name", "cell"), CELLS, ids=[f"{n[:2]}-{c.metadata.nbgrader.get('grade_id')}" for n, c in CELLS]
)
each_exercise = pytest.mark.parametrize("exercise", all_exercises(), ids=lambda e: e.number)


def of(number: str, kind: str) -> list:
    """The cells of an exercise: kind "exercise" or "test"."""
    grade_id = f"{kind}-{number.replace('.', '-')}"
    found = [(name, cell) for name, cell in CELLS if cell.metadata.nbgrader.grade_id == grade_id]
    assert found, f"exercise {number}: its notebook has no cell with the grade_id {grade_id!r}"
    return found


def test_there_are_exercise_cells():
    assert {name for name, _ in CELLS} >= {"02_collectives.ipynb", "03_data_parallel.ipynb"}


def names_in(source: str, *, read: bool) -> set[str]:
    """Names that a cell reads, or that it makes: also those inside functions, which only lets more pass."""
    made, used = set(), set()
    for node in ast.walk(ast.parse(re.sub(r"(?m)^%.*$", "", source))):
        match node:
            case ast.Name(id=name, ctx=ctx):
                (used if isinstance(ctx, ast.Load) else made).add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                made.add(name)
            case ast.arg(arg=name):
                made.add(name)
            case ast.alias(name=name, asname=other):
                made.add(other or name.partition(".")[0])
    return used - made if read else made


def test_a_right_answer_reads_only_names_that_the_cells_before_it_have_made():
    """numpy stood below the exercise that wants it: what a learner types from the text ended in a NameError."""
    asked, unknown = 0, {}
    for name, path in NOTEBOOKS.items():
        known = set(dir(builtins))
        for cell in nbformat.read(path, as_version=4).cells:
            number = cell.metadata.get("nbgrader", {}).get("grade_id", "")
            number = ".".join(number.split("-")[1:]) if number.startswith("exercise") else ""
            if number in ANSWERS:
                asked += 1
                if missing := names_in(ANSWERS[number], read=True) - known:
                    unknown[name, number] = missing
            if cell.cell_type == "code" and not cell.source.startswith("%%"):
                known |= names_in(cell.source, read=False)
    assert asked > 60 and not unknown


@pytest.mark.quick(25)
@each_cell
def test_the_metadata_is_nbgraders_schema_3(name, cell):
    meta = cell.metadata.nbgrader
    assert {key: type(meta[key]) for key in REQUIRED} == REQUIRED
    assert meta.schema_version == 3 and meta.keys() <= ALLOWED
    assert re.fullmatch(r"[a-zA-Z0-9_\-]+", meta.grade_id)
    assert meta.get("cell_type", cell.cell_type) == cell.cell_type == "code" and not meta.task
    assert (
        meta.grade == ("points" in meta) and meta.grade != meta.solution
    )  # a cell is for the answer, or for its grade
    assert meta.locked == meta.grade
    assert type(meta.get("points", 0)) is int and meta.get("points", 1) > 0


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_grade_ids_are_unique_in_their_notebook(name):
    ids = Counter(cell.metadata.nbgrader.grade_id for notebook, cell in CELLS if notebook == name)
    assert [i for i, count in ids.items() if count > 1] == []


@pytest.mark.quick(25)
@each_cell
def test_a_cell_belongs_to_an_exercise_of_its_lesson(name, cell):
    kind, lesson, place = re.fullmatch(r"(exercise|test)-(\d\d)-(\d+)", cell.metadata.nbgrader.grade_id).groups()
    exercise = get_exercise(f"{lesson}.{place}")
    assert name.startswith(lesson)
    assert f'check("{exercise.number}", ' in cell.source
    assert (kind == "test") == cell.metadata.nbgrader.grade == cell.source.endswith(".points")
    if kind == "test":
        assert cell.metadata.nbgrader.points == exercise.points
        assert "tags" not in cell.metadata  # as shipped it earns 0 points, and raises nothing


@each_exercise
def test_an_exercise_has_one_cell_for_the_answer_and_one_for_the_grade(exercise):
    answers, tests = of(exercise.number, "exercise"), of(exercise.number, "test")
    assert len(answers) == len(tests) == 1 and answers[0][0] == tests[0][0]
    # both hand the same thing to check
    given = [re.search(r"(?m)^(check\(.*?\))(?:\.points)?$", cell.source)[1] for _, cell in (*answers, *tests)]
    assert given[0] == given[1]


@each_exercise
def test_the_start_is_the_cell_of_the_notebook(exercise):
    ((_, cell),) = of(exercise.number, "exercise")
    assert cell.source.strip() == exercise.start.strip()


def test_there_is_a_right_answer_to_each_exercise():
    assert ANSWERS.keys() == {exercise.number for exercise in all_exercises()}


@each_exercise
def test_the_exercise_is_announced_in_a_heading(exercise):
    (name, _), *_ = of(exercise.number, "exercise")
    text = "\n".join(c.source for c in nbformat.read(NOTEBOOKS[name], as_version=4).cells if c.cell_type == "markdown")
    assert re.search(rf"(?m)^### Exercise {re.escape(exercise.number)}: \w", text)


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in CELLS))
def test_helps_are_at_hand_from_the_first_cell_on_and_the_cells_that_grade_are_folded(name):
    cells = nbformat.read(NOTEBOOKS[name], as_version=4).cells
    first = next(cell.source for cell in cells if cell.cell_type == "code")
    imports = [node for node in ast.parse(first).body if isinstance(node, ast.ImportFrom)]
    imported = {alias.name for node in imports for alias in node.names}
    own = [exercise for exercise in all_exercises() if exercise.number.startswith(name[:2])]
    for helps in ("check", "hint", *(["par"] if any(exercise.par for exercise in own) else [])):
        assert helps in imported
    graded = [cell for cell in cells if cell.metadata.get("nbgrader", {}).get("grade")]
    heading, *below = cells[-len(graded) - 1 :]
    assert below == graded and heading.source.startswith("## For a class")
    assert heading.metadata["jp-MarkdownHeadingCollapsed"] is True
    assert all(cell.metadata.jupyter == {"source_hidden": True, "outputs_hidden": True} for cell in graded)
