"""How nbgrader hands out and grades the lessons.

    # nbgrader_config.py of a course, as `parallel-lab course FOLDER` writes it
    from parallel_lab.lab.classroom.nbgrader_config import configure
    configure(get_config())

nbgrader goes on without a configuration that cannot be imported; the file therefore ends nbgrader where that happens.

- The lessons are handed out as they are: exercises begin with code that runs, and nbgrader's ClearSolutions, which
  would put `raise NotImplementedError()` in its place, is left out. There are no solution regions.
- Points are partial: the value of a test cell.
- A fault of the grading environment (a package that is missing, a kernel that dies, a check that does not end) is an
  error of that submission, in nbgrader's log and its exit code, and no score is saved. A warning on stderr costs no
  points, which nbgrader alone takes for a failure.
"""

from __future__ import annotations

import re
from typing import Any

import nbformat
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.converters import Autograde, GenerateAssignment
from nbgrader.preprocessors import ClearSolutions, Execute
from traitlets import Bool

from ..exercises import GradingError
from . import hidden

CELL_LIMIT_S = 120  # of a cell of the notebook; a check ends by itself before
READY = "from parallel_lab.lab.classroom.hidden import ready\n\nready({student!r})"
_MARK = "parallel_lab_ready"  # in the metadata of the cell that says whether this kernel can grade


class RunLesson(Execute):
    """Runs a submitted notebook; raises GradingError for faults that are not the student's; then it leaves no score."""

    own_numbers = Bool(False, help="whether exercises have numbers of each student's own").tag(config=True)

    def preprocess(self, nb: Any, resources: Any, **how: Any) -> tuple[Any, Any]:
        source = READY.format(student=resources["nbgrader"]["student"] if self.own_numbers else "")
        nb.cells.insert(0, nbformat.v4.new_code_cell(source, metadata={_MARK: True}))
        try:
            nb, resources = super().preprocess(nb, resources, **how)
            _refuse_faults(nb)
        except Exception:  # a kernel that died, too: nbgrader tells it as an error of this submission
            _forget(resources["nbgrader"])
            raise
        nb.cells = [cell for cell in nb.cells if _MARK not in cell.metadata]
        return nb, resources


def _refuse_faults(nb: Any) -> None:
    ours = set(hidden.packages())
    for cell in nb.cells:
        role = cell.metadata.get("nbgrader", {})
        for error in (output for output in cell.get("outputs", ()) if output.output_type == "error"):
            missing = re.search(r"No module named '(\w+)", error.evalue) if "Module" in error.ename else None
            fault = _MARK in cell.metadata or error.ename == "GradingError" or (missing and missing[1] in ours)
            if fault or (role.get("grade") and error.ename == "CellTimeoutError"):
                where = role.get("grade_id", "the kernel of the notebook")
                hint = "This is not a mark: repair the environment, and grade this submission again"
                raise GradingError(f"{error.ename}: {error.evalue}", where=where, hint=hint)
        if role.get("grade") and cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.output_type != "stream" or o.name != "stderr"]


def _forget(of: Any) -> None:
    """Take a submission that was never graded out of the gradebook, where it would count as 0 points."""
    with Gradebook(of["db_url"]) as book:
        try:
            found = book.find_submission_notebook(of["notebook"], of["assignment"], of["student"])
        except MissingEntry:
            return
        if all(grade.auto_score is None for grade in found.grades):
            book.remove_submission(of["assignment"], of["student"])


def configure(config: Any, *, own_numbers: bool = False) -> None:
    """Set what the lessons need in an nbgrader config; what else is in it stays.

    own_numbers  whether each student has numbers of their own in the exercises whose answer a class could share: they
                 follow from the student's id in the gradebook
    """
    usual = GenerateAssignment.preprocessors.default()
    config.GenerateAssignment.preprocessors = [step for step in usual if step is not ClearSolutions]
    steps = Autograde.autograde_preprocessors.default()
    at = steps.index(Execute)
    config.Autograde.autograde_preprocessors = [*steps[:at], RunLesson, *steps[at + 1 :]]
    config.RunLesson.timeout = CELL_LIMIT_S
    config.RunLesson.iopub_timeout = CELL_LIMIT_S  # what a cell printed comes later where the machine is busy
    config.RunLesson.own_numbers = own_numbers
