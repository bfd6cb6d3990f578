"""What the text of a lesson tells a reader to press or to choose stands in the lab next to it.

Lesson 12 said: choose tensor parallel, and read the messages; its lab was a simple one that had neither.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from parallel_lab.lab.shared.lab_view import widget_of
from tests.browser.lab_page import MARKS, browser, live, page_of

__all__ = ["browser", "live", "page_of"]  # the fixtures

pytestmark = MARKS
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
ASKS = re.compile(r"\b(?:choose|press|open|click|set)\b([^.:!?]*)", re.IGNORECASE)
MARKED = re.compile(r"\*\*(?!while\b)([^*]+)\*\*|(?<!\*)\*([^*]+)\*(?!\*)")
LAB = re.compile(r"^(\w+) = .*\w*(?i:lab|stepper)\b(?:.*\n)*\1\Z", re.MULTILINE)  # a cell that shows the lab it makes
SEEN = """(root) => [root.innerText, ...[...root.querySelectorAll("option, [aria-label], [title]")].flatMap(
  (e) => [e.textContent, e.getAttribute("aria-label"), e.getAttribute("title")])].join("\\n").toLowerCase()"""


def named(text: str) -> list[str]:
    """The marked words behind a verb that asks for something."""
    return [a or b for sentence in ASKS.findall(text) for a, b in MARKED.findall(sentence)]


def labs():
    """(notebook, cell, what its texts name): of every cell that ends with a lab, the texts before and after it."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        for at, cell in enumerate(cells):
            if cell["cell_type"] == "code" and LAB.search("".join(cell["source"])):
                near = [c for c in cells[at - 1 : at + 2 : 2] if c["cell_type"] == "markdown"]
                if words := [word for c in near for word in named("".join(c["source"]))]:
                    yield pytest.param(path, at, words, id=f"{path.name[:2]}-{cell['id']}")


def imports_of(source: str) -> str:
    """The imports of a cell."""
    try:
        nodes = ast.parse(source).body
    except SyntaxError:  # a magic
        return ""
    return "\n".join(ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def test_the_texts_name_controls():
    assert named("Press **Run**, or choose *tensor parallel*. Not **this**.") == ["Run", "tensor parallel"]
    assert len(list(labs())) >= 6


@pytest.mark.quick(1)
@pytest.mark.parametrize(("path", "at", "words"), list(labs()))
def test_what_the_text_names_is_in_the_lab(path, at, words, live):
    cells = ["".join(c["source"]) for c in json.loads(path.read_text())["cells"][: at + 1] if c["cell_type"] == "code"]
    space: dict[str, object] = {}
    for source in cells[:-1]:
        exec(imports_of(source), space)
    body = ast.parse(cells[-1]).body
    exec(ast.unparse(ast.Module(body[:-1], [])), space)
    shown = eval(ast.unparse(body[-1]), space)
    shown.set_predict(False)  # a question covers what the text speaks of until it is answered
    page, _ = live(widget_of(type(shown))(shown), width=848)
    page.locator("[class*=pl-lab]").first.wait_for()
    seen = page.locator("body").evaluate(SEEN)
    assert not [word for word in words if word.lower().rstrip("s") not in seen]
