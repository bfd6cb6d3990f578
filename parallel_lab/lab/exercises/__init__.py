"""Exercises that answer: `check` gives a verdict part by part, `hint` the next of four hints.

    from parallel_lab.lab.exercises import check, hint

    check("02.1", ring_reduce_scatter)      # what passed, counts beside the formula, the first rank and call at fault
    hint("02.1")                            # a question; then a place to look, a part of the answer, the answer
    par("09.2")                             # of a puzzle, an answer at par: after an attempt of one's own

In a class: exercise cells and test cells of the notebooks carry nbgrader's metadata (schema 3). A test cell holds
`check("02.1", ring_reduce_scatter).assert_passed()`, which raises AssertionError unless everything passed; with
`check("02.1", ring_reduce_scatter).points` in its place nbgrader gives the points of the parts that passed. The
notebooks are the students' version as they are. `nbgrader generate_assignment` leaves the starts of the exercises in
place with these lines in nbgrader_config.py:

    from nbgrader.converters import GenerateAssignment
    from nbgrader.preprocessors import ClearSolutions
    usual = GenerateAssignment.preprocessors.default()
    c.GenerateAssignment.preprocessors = [p for p in usual if p is not ClearSolutions]

A new exercise is an `Exercise` in `lesson_NN.py` (`book.py` says what it is made of), and nothing else.
"""

from .book import Exercise, all_exercises, check, get_exercise, hint, par
from .verdict import Hint, Par, Part, Verdict

__all__ = ["Exercise", "Hint", "Par", "Part", "Verdict", "all_exercises", "check", "get_exercise", "hint", "par"]
