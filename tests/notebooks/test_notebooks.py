"""Every notebook runs from top to bottom in a fresh kernel, is stored clean, and is written as a lesson should be."""

from __future__ import annotations

import ast
import itertools
import os
import re
from pathlib import Path

import nbformat
import pytest

from tests.notebooks.answers import ANSWERS, OWN

nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("**/*.ipynb"))
# with their exercises they take up to half a minute each: exhaustive
LONG = tuple(path.name for path in NOTEBOOKS if not path.name[:2].isdigit() or int(path.name[:2]) >= 5)
LONGEST_HELPER = 10  # lines
LONGEST_CELL = 12  # lines of Python; a whole script, %%ranks, %%writefile or to be repaired, is as long as it is
KERNEL_LIMIT_S = 240
# words of the house table that have a better one: what stands in a lesson is what the code and the errors say
BETTER_WORDS = {"allreduce": "all_reduce", "reshard": "redistribution", "nprocs": "world_size"}
BETTER_WORDS |= {"mesh": "device matrix", "sharding spec": "strategy"}
LESSON = ("predict", "run", "compare", "break", "prove")
PYTHON_MAGICS = ("%%ranks ", "%%writefile ")  # of cells whose other lines are Python


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.name)
def path(request) -> Path:
    return request.param


@pytest.fixture
def book(path):
    return nbformat.read(path, as_version=4)


def code(book) -> list:
    return [c for c in book.cells if c.cell_type == "code"]


def python(cell) -> str:
    """The Python of a cell: without lines that are magics, and a magic of the whole cell."""
    first, _, rest = cell.source.partition("\n")
    lines = (rest if first.startswith(PYTHON_MAGICS) else cell.source).splitlines()
    return "\n".join(line for line in lines if not re.match(r"%\w", line))


def meant_to_fail(cell) -> bool:
    return "raises-exception" in cell.metadata.get("tags", ())


def is_test(cell) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("grade"))


def markdown(book) -> str:
    return "\n".join(c.source for c in book.cells if c.cell_type == "markdown")


def without_blocks(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def test_there_are_notebooks():
    assert [p.name for p in NOTEBOOKS if p.name == "01_quickstart.ipynb"]


def answered(book) -> list:
    """The exercise cells with right answers, each followed by the cell that grades it."""
    made = []
    for cell in code(book):
        role = cell.metadata.get("nbgrader", {})
        if role.get("solution"):
            _, lesson, place = role.grade_id.split("-")
            check = re.search(r"(?m)^check\(.*$", cell.source)[0]
            made.append(nbformat.v4.new_code_cell(f"{(ANSWERS | OWN)[f'{lesson}.{place}']}\n\n{check}"))
        elif role.get("grade"):
            made.append(nbformat.v4.new_code_cell(cell.source, metadata={"grade_id": role.grade_id}))
    return made


@pytest.mark.quick(0)
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=pytest.mark.exhaustive if p.name in LONG else (), id=p.name) for p in NOTEBOOKS],
    indirect=True,
)
def test_it_runs_from_top_to_bottom_in_a_fresh_kernel_and_right_answers_pass(book, tmp_path, monkeypatch):
    answers = answered(book)
    book.cells += answers
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    how = {"kernel_name": "python3", "store_widget_state": False, "resources": {"metadata": {"path": str(tmp_path)}}}
    client = nbclient.NotebookClient(book, timeout=KERNEL_LIMIT_S, **how)
    client.execute()  # raises CellExecutionError for the first cell that fails and is not tagged as one that does
    ran = code(book)
    assert [c.execution_count for c in ran] == list(range(1, len(ran) + 1))
    failed = [c.id for c in ran if any(o.output_type == "error" for o in c.outputs)]
    assert failed == [c.id for c in ran if meant_to_fail(c)]
    loud = [o.text for c in ran for o in c.outputs if o.output_type == "stream" and o.name == "stderr"]
    assert not loud, f"warnings or tracebacks on stderr: {loud}"
    points = {c.metadata.grade_id: c.outputs[-1].data["text/plain"] for c in answers if "grade_id" in c.metadata}
    most = {c.metadata.nbgrader.grade_id: str(c.metadata.nbgrader.points) for c in ran if is_test(c)}
    assert points == most


def test_it_is_stored_without_outputs_and_valid(path, book):
    nbformat.validate(book)
    assert all(c.outputs == [] and c.execution_count is None for c in code(book))
    assert "widgets" not in book.metadata and book.metadata.kernelspec.name == "python3"
    ids = [c.id for c in book.cells]
    assert len(set(ids)) == len(ids)
    assert path.stat().st_size < 100_000


def test_every_code_cell_is_python_and_no_helper_is_long(book):
    long = []
    for cell in code(book):
        tree = ast.parse(python(cell))
        in_classes = {f for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in ast.walk(c)}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node not in in_classes
                and not node.name.startswith("script_")  # to be repaired
                and node.end_lineno - node.lineno + 1 > LONGEST_HELPER
            ):
                long.append(f"{cell.id}: {node.name}, {node.end_lineno - node.lineno + 1} lines")
    assert not long


def test_no_cell_is_longer_than_a_screen_can_take_in(book):
    """What is longer belongs into the lesson's module."""
    cells = [cell for cell in code(book) if not cell.source.startswith("def script_")]
    lines = {cell.id: len(cell.source.splitlines()) for cell in cells if not cell.source.startswith(PYTHON_MAGICS)}
    assert {cell: count for cell, count in lines.items() if count > LONGEST_CELL} == {}
    scripts = [c for c in cells if c.id not in lines and len(c.source.splitlines()) > LONGEST_CELL]
    if not book.cells[0].source.startswith("# A lesson of your own"):  # which is about the files that it writes
        assert all(cell.metadata.jupyter == {"source_hidden": True} for cell in scripts)


def test_classes_are_networks_or_the_lab_of_a_template(book):
    """Anything else of that size belongs into the package."""
    classes = [
        node for cell in code(book) for node in ast.walk(ast.parse(python(cell))) if isinstance(node, ast.ClassDef)
    ]
    assert [c.name for c in classes if not any(ast.unparse(base).endswith(("Cell", "Lab")) for base in c.bases)] == []


def test_pictures_have_an_alternative_text(book):
    text = markdown(book)
    assert not re.findall(r"!\[\s*\]\([^)]*\)", text)
    assert not [tag for tag in re.findall(r"<img\b[^>]*>", text) if not re.search(r"""\balt=["'][^"']+["']""", tag)]


def test_it_says_the_houses_words(book):
    words = re.sub(r"`[^`]*`", "", without_blocks(markdown(book)))
    assert [(bad, good) for bad, good in BETTER_WORDS.items() if re.search(rf"\b{bad}\b", words)] == []


def test_headings_descend_one_level_at_a_time(book):
    text = without_blocks(markdown(book))
    levels = [len(m) for m in re.findall(r"^(#+) ", text, flags=re.MULTILINE)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


def test_a_lesson_goes_predict_run_compare_break_prove(path, book):
    if path.name == "20_inside.ipynb":  # not a lesson, but an evening of reading
        assert not [cell for cell in code(book) if cell.metadata.get("nbgrader")]
        return
    headings = re.findall(r"^## (.*)$", markdown(book).lower(), flags=re.MULTILINE)
    found = [next((word for word in LESSON if word in h), None) for h in headings]
    assert [w for w in found if w] == list(LESSON)
