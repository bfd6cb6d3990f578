"""Lesson 01, eight ranks: where a rank stands in the device matrix, and with whom it adds up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import index as whole
from typing import Any

import numpy as np

from ...base.errors import shorten
from .book import Exercise
from .ideas import Idea
from .one_product import Product, pair
from .running import ask
from .verdict import Note, Part, Wrong, judged

MATRICES = ((2, 4), (4, 2), (8, 1), (1, 8), (3, 5), (2, 2))
ORDER = "rank i holds block i"


def place(rank: int, rows: int, columns: int) -> tuple[int, int, tuple[int, ...]]:
    """(row, column, ranks of the same row): ranks fill the matrix row by row."""
    row = rank // columns
    return row, rank % columns, tuple(range(row * columns, (row + 1) * columns))


def _answered(answer: Any, rank: int, rows: int, columns: int) -> tuple[int, int, tuple[int, ...]]:
    value = ask("row, column and group of a rank", answer, rank, rows, columns)
    try:
        row, column, group = value
        return whole(row), whole(column), tuple(sorted(whole(each) for each in islice(group, rows * columns + 1)))
    except Exception as error:  # floats are no numbers of ranks
        note = "Use // to divide: rows and columns are whole numbers." if "float" in str(error) else ""
        form = "row, column and the ranks of the group: 1, 1, (4, 5, 6, 7)"
        raise Wrong(shorten(value), "", note, rank, form=form) from error


def _places(answer: Any) -> Iterator[Part]:
    ask("row, column and group of a rank", answer, 0, 2, 4)
    yield judged("2 x 4", _in, answer, MATRICES[:1])
    yield judged("other matrices", _in, answer, MATRICES[1:])
    yield judged("as compiled", _compiled, answer)


def _in(answer: Any, matrices: tuple[tuple[int, int], ...]) -> str:
    for rows, columns in matrices:
        for rank in range(rows * columns):
            given, right = _answered(answer, rank, rows, columns), place(rank, rows, columns)
            if given != right:
                found = f"rank {rank} of {rows} x {columns}: row {given[0]}, column {given[1]}, group {given[2]}"
                expected = f"row {right[0]}, column {right[1]}, group {right[2]}"
                raise Wrong(found, expected, _note(given, rank, rows, columns), rank)
    return f"every rank of {', '.join(f'{rows} x {columns}' for rows, columns in matrices)}"


def _drawn_matrices(answer: Any, rng: np.random.Generator) -> None:
    _in(answer, ((int(rng.integers(2, 10)), int(rng.integers(2, 10))),))


def _note(given: tuple[int, int, tuple[int, ...]], rank: int, rows: int, columns: int) -> str:
    row, column, group = place(rank, rows, columns)
    other = rank % rows, rank // rows, tuple(range(rank % rows, rows * columns, rows))
    if given == other or given[:2] == other[:2] != (row, column):
        text = "That fills the matrix column by column. The last axis runs fastest: neighbours share a row."
        return Note(text, ORDER)
    if given[:2] != (row, column) and given[:2] == (column, row):
        return "Row and column are swapped."
    if given[:2] == (row, column) and given[2] == tuple(range(column, rows * columns, columns)):
        return "Those ranks share its column: they hold the same slice of w, but other rows of x."
    if given[:2] == (row, column) and given[2] == tuple(each for each in group if each != rank):
        return "The rank itself belongs to the group, too."
    if given[:2] == (row, column) and given[2] == tuple(range(rows * columns)) != group:
        return "Not all of them: ranks with other rows of x compute other elements."
    return ""


def _compiled(answer: Any) -> str:
    """Groups of the quickstart's first product, on eight ranks."""
    for rows, columns in MATRICES[:4]:
        found = Product(pair(rows, columns, 1))
        for rank in range(8):
            given, right = _answered(answer, rank, rows, columns)[2], found.group(rank)
            if given != right:
                raise Wrong(f"rank {rank}, x in {rows} x {columns}: {given}", f"{right}, as in the plan", "", rank)
    return "the groups of x @ w with four strategies, as in the compiled plans"


def _by_columns(rank: int, rows: int, columns: int) -> tuple[int, int, list[int]]:
    return rank % rows, rank // rows, list(range(rank % rows, rows * columns, rows))


EXERCISES = (
    Exercise(
        "01.1",
        "where a rank stands",
        (("2 x 4", 1), ("other matrices", 2), ("as compiled", 1)),
        (
            "Rank 5 of 2 x 4 is in row 1. Where would it be in 4 x 2?",
            "Write the numbers 0 to 7 into both matrices, row by row.",
            "The row is how often the number of columns fits into the rank; the column is the remainder.",
            "Row: rank // columns. Column: rank % columns. Group: all ranks from row * columns on, as many as "
            "there are columns.",
        ),
        _places,
        drawn=dict.fromkeys(("other matrices", "as compiled"), _drawn_matrices),
        ideas=(Idea(ORDER, "column by column", _by_columns, "2 x 4"),),
        start='''\
def stands(rank, rows, columns):
    """Returns row, column and group of a rank; the ranks form a matrix of so many rows and columns."""
    return 0, rank, (rank,)


check("01.1", stands)
''',
    ),
)
