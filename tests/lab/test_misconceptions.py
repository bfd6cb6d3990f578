"""The misconceptions: each that predicts a number or a choice is modelled by an exercise or a prediction, and
told for its number alone; the others are met by a broken run in a notebook.
"""

from __future__ import annotations

import nbformat
import pytest

from parallel_lab.base.files import shipped_folder
from parallel_lab.lab.exercises import MISCONCEPTIONS, Note, all_exercises
from parallel_lab.lab.lessons import pipelines
from parallel_lab.lab.shared.prediction import Comparison

MODELLED = {idea.name for exercise in all_exercises() for idea in exercise.ideas}
PREDICTED = {pipelines.SMALLER}  # in the comparison of lesson 09
BROKEN = {  # the notebook, and words of the cell that shows it
    "more micro-batches are free": ("09", "More micro-batches are free"),
    "no crash, no fault": ("05", "A run that does not fail need not be right"),
    "a hang is the network's": ("13", "one rank does something else, and the others wait for it"),
    "a checkpoint loads anywhere": ("10", "One file of four"),
    "positions begin at 0": ("15", "Positions that begin at 0"),
}


def test_every_misconception_is_met():
    assert len(MISCONCEPTIONS) == 33
    assert MISCONCEPTIONS.keys() - MODELLED - PREDICTED - BROKEN.keys() == set()
    assert (PREDICTED | BROKEN.keys()) <= MISCONCEPTIONS.keys()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_is_in_its_notebook(name):
    lesson, words = BROKEN[name]
    (path,) = shipped_folder("notebooks").glob(f"{lesson}_*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    at = next(n for n, cell in enumerate(cells) if cell.cell_type == "markdown" and words in cell.source)
    assert any(cell.cell_type == "code" for cell in cells[max(0, at - 4) : at + 5])


def test_a_smaller_bubble_is_recognised_by_its_numbers_and_by_no_others():
    """8 micro-batches on 4 stages: 2 x (8 + 3) = 22; with half of the bubble 19, with none 16."""
    told = {}
    for steps in (16, 19, 20, 22):
        prediction = dict.fromkeys(("gpipe_4", "gpipe_8", "one_8", "kept_gpipe", "kept_one"))
        rows = {row[0]: row for row in pipelines.compare(prediction | {"one_8": steps})._cells()}
        told[steps] = rows["1F1B, 8 micro-batches"][-1]
    assert told[19].startswith("Your 19 is half of GPipe's bubble") and told[16].startswith("Your 16 is a step without")
    assert told[20] == "as long as GPipe: the bubble is the same" and told[22] == ""
    assert isinstance(told[19], Note) and told[19].idea == pipelines.SMALLER


def test_what_is_wrong_with_an_answer_may_depend_on_it():
    why = {3: "three is half", None: "it is six"}
    cells = [Comparison.of({"n": n}, n=("how many?", 6, None, why))._cells()[0][-1] for n in (3, 4, 6)]
    assert cells == ["three is half", "it is six", ""]
