"""Made-up submissions of a class, for the tests of grading."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from parallel_lab.base.files import shipped_folder
from tests.notebooks.answers import ANSWERS


def submit(
    folder: Path,
    student: str,
    lesson: str,
    solved: Iterable[str] = (),
    *,
    answers: Mapping[str, str] = ANSWERS,
    first: str = "",
    edit: Callable[[dict], None] = lambda notebook: None,
) -> Path:
    """A student's notebook: the lesson as handed out, and to `solved` the `answers`, right ones.

    first  a cell of their own, behind the notebook's first
    """
    (path,) = shipped_folder("notebooks").glob(f"{lesson}_*.ipynb")
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        found = re.fullmatch(r"exercise-(\d\d)-(\d+)", cell["metadata"].get("nbgrader", {}).get("grade_id", ""))
        number = ".".join(found.groups()) if found else ""
        if number in solved:
            source = "".join(cell["source"])
            cell["source"] = answers[number].strip() + "\n\n\n" + source[source.index("check(") :]
    if first:
        own = {"cell_type": "code", "id": "mine", "metadata": {}, "outputs": [], "execution_count": None}
        notebook["cells"].insert(1, {**own, "source": first})
    edit(notebook)
    out = folder / student / path.name
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(notebook), encoding="utf-8")
    return out
