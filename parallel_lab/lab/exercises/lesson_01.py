"""Lesson 01, eight ranks: where a rank stands in the device matrix, and with whom it adds up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import index
from typing import Any

import numpy as np

from .book import Exercise
from .ideas import Idea, slip
from .one_product import pair, product_with
from .reading import another_form, whole_numbers
from .running import ask
from .verdict import Part, Wrong, judged

MATRICES = ((2, 4), (4, 2), (8, 1), (1, 8), (3, 5), (2, 2))
Place = tuple[int, int, tuple[int, ...]]  # row, column, ranks of the group


def place(rank: int, rows: int, columns: int) -> Place:
    """(row, column, ranks of the same row): ranks fill the matrix row by row."""
    row = rank // columns
    return row, rank % columns, tuple(range(row * columns, (row + 1) * columns))


def _by_columns(rank: int, rows: int, columns: int) -> Place:
    return rank % rows, rank // rows, tuple(range(rank % rows, rows * columns, rows))


def _swapped(rank: int, rows: int, columns: int) -> Place:
    row, column, group = place(rank, rows, columns)
    return column, row, group


def _other_group(ranks: Callable[[int, int, int], Any]) -> Callable[[int, int, int], Place]:
    """The right place, with another group."""
    return lambda rank, rows, columns: (*place(rank, rows, columns)[:2], tuple(ranks(rank, rows, columns)))


IDEAS = (
    Idea(
        "rank i holds block i",
        "That fills the matrix column by column. The last axis runs fastest: neighbours share a row.",
        _by_columns,
        "2 x 4",
    ),
    slip("Row and column are swapped.", _swapped),
    slip(
        "Those ranks share its column: they hold the same slice of w, but other rows of x.",
        _other_group(lambda rank, rows, columns: range(rank % columns, rows * columns, columns)),
    ),
    slip(
        "The rank itself belongs to the group, too.",
        _other_group(lambda rank, rows, columns: [n for n in place(rank, rows, columns)[2] if n != rank]),
    ),
    slip(
        "Not all of them: ranks with other rows of x compute other elements.",
        _other_group(lambda rank, rows, columns: range(rows * columns)),
    ),
    slip("Those are the columns of the matrix. Which ranks stand there?", _other_group(lambda rank, r, c: range(c))),
    slip("Rows and columns are counted from 0, as ranks are.", lambda *case: (*(n + 1 for n in place(*case)[:2]), ())),
    slip("That is right where a row has four ranks.", lambda rank, rows, columns: place(rank, rows, 4)),
    slip(
        "A row has as many ranks as the matrix has columns: divide by that.",
        lambda rank, rows, columns: place(rank, columns, rows),
    ),
)


def _answered(answer: Any, rank: int, rows: int, columns: int) -> Place:
    value = ask("row, column and group of a rank", answer, rank, rows, columns)
    try:
        row, column, group = value
        return index(row), index(column), tuple(sorted(whole_numbers(group, rows * columns + 1)))
    except Exception as error:  # a rank has no fractions
        note = "Use // to divide: rows and columns are whole numbers." if "float" in str(error) else ""
        form = "row, column and the ranks of the group: 1, 1, (4, 5, 6, 7)"
        raise another_form(value, form, "None", "", note, rank) from error


def _places(answer: Any) -> Iterator[Part]:
    ask("row, column and group of a rank", answer, 0, 2, 4)
    yield judged("2 x 4", _in, answer, MATRICES[:1])
    yield judged("other matrices", _in, answer, MATRICES[1:])
    yield judged("as compiled", _compiled, answer)


def _in(answer: Any, matrices: tuple[tuple[int, int], ...]) -> str:
    for rows, columns in matrices:
        for rank in range(rows * columns):
            case = rank, rows, columns
            row, column, group = answered = _answered(answer, *case)
            right = place(*case)
            if answered != right:
                compared = 3 if answered[:2] == right[:2] else 2  # where the place is wrong, the group does not matter
                notes = (i.told for i in IDEAS if i.answer(*case)[:compared] == answered[:compared])
                expected = f"row {right[0]}, column {right[1]}, group {right[2]}"
                text = f"rank {rank} of {rows} x {columns}: row {row}, column {column}, group {group}"
                raise Wrong(text, expected, next(notes, ""), rank)
    return f"every rank of {', '.join(f'{rows} x {columns}' for rows, columns in matrices)}"


def _drawn_matrices(answer: Any, rng: np.random.Generator) -> None:
    _in(answer, ((int(rng.integers(2, 10)), int(rng.integers(2, 10))),))


def _compiled(answer: Any) -> str:
    """Groups of the quickstart's first product, on eight ranks."""
    for rows, columns in MATRICES[:4]:
        product = product_with(pair(rows, columns, 1))
        for rank in range(8):
            group, right = _answered(answer, rank, rows, columns)[2], product.group(rank)
            if group != right:
                raise Wrong(f"rank {rank}, x in {rows} x {columns}: {group}", f"{right}, as in the plan", "", rank)
    return "the groups of x @ w with four strategies, as in the compiled plans"


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
        ideas=IDEAS[:1],
        start='''\
def stands(rank, rows, columns):
    """Returns row, column and group of a rank; the ranks form a matrix of so many rows and columns."""
    return 0, rank, (rank,)


check("01.1", stands)
''',
    ),
)
