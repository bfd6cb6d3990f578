"""An evening with the kernel: the notebook shows what the kernel is, in its order, and says how long that takes."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.lessons.inside import show
from tests.crossed import each_of
from tests.house.kernel import KERNEL, lines_of

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "20_inside.ipynb"
CELLS = nbformat.read(NOTEBOOK, as_version=4).cells
TEXT = "\n".join(cell.source for cell in CELLS if cell.cell_type == "markdown")
MOST_MINUTES = 180


def shown():
    """(file, parts) of each call of `show`."""
    calls = [
        node
        for cell in CELLS
        if cell.cell_type == "code"
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "show"
    ]
    parts = [
        [
            (arg.value.elts if isinstance(arg, ast.Starred) and isinstance(arg.value, ast.Tuple) else [arg])
            for arg in call.args
        ]
        for call in calls
    ]
    return [tuple(part.value for group in groups for part in group) for groups in parts]


def test_it_shows_the_kernel_and_in_its_order():
    assert [(path, parts) for path, *parts in shown()] == [(stop.path, [*(stop.parts or ())]) for stop in KERNEL]


@pytest.mark.exhaustive
def test_a_source_has_the_lines_that_the_kernel_counts():
    sources = [show(*call) for call in shown()]
    assert [len(source) for source in sources] == [lines_of(stop) for stop in KERNEL]
    assert all(repr(source).count("\n") >= len(source) for source in sources)


def test_its_sections_say_their_minutes_and_it_is_one_evening():
    table = re.findall(r"^\| (\d+) ([^|]+) \| (\d+) \|$", TEXT, re.MULTILINE)
    sections = re.findall(r"^## (\d+) (.+)\n\n\*(\d+) minutes\.\*", TEXT, re.MULTILINE)
    assert sections == table and len(sections) == len(re.findall(r"^## ", TEXT, re.MULTILINE)) == 10
    assert sum(int(minutes) for *_, minutes in sections) <= MOST_MINUTES


def test_a_source_in_a_notebook_is_in_colours_with_the_files_own_line_numbers():
    text = show("ops/linalg.py", "@matmul.vjp")._repr_html_()
    first = show("ops/linalg.py", "@matmul.vjp").spans[0][0]
    assert "<span" in text and f">{first}" in text.replace(" ", "") and "ops/linalg.py" in text


@each_of(
    ("call", "text"),
    (("ops/nothing.py",), "ops/nothing.py"),
    ((3,), "path=3"),
    (("ops/linalg.py", "nothing"), "nothing"),
    (("graph/plan.py", "Plan.nothing"), "nothing"),
    (("graph/plan.py", "Nothing."), "Nothing"),
)
def test_a_file_or_a_part_that_does_not_exist_is_refused(call, text):
    with pytest.raises(ArgumentError, match=re.escape(text)):
        show(*call)
