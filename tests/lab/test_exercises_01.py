"""Lesson 01's exercise: the order in which ranks fill the device matrix."""

from __future__ import annotations

from parallel_lab.lab.exercises.lesson_01 import place
from parallel_lab.lab.lessons.quickstart import forward_messages
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.layout.tensor_layout import TensorLayout
from tests.crossed import each_of
from tests.lab.verdicts import check, passes, told


def test_the_place_is_the_layouts_own():
    for rows, columns in ((2, 4), (4, 2), (8, 1)):
        layout = TensorLayout((rows, columns), (1, 0))
        for rank in range(rows * columns):
            row, column, group = place(rank, rows, columns)
            assert (row, column) == layout.coordinates(rank) and group == layout.group((0,), rank)


def test_the_rule_passes_in_any_form():
    assert passes(check("01.1", place), 4)
    assert passes(check("01.1", lambda r, m, n: [r // n, r % n, {k for k in range(m * n) if k // n == r // n}]), 4)


@each_of(
    ("answer", "part", "words"),
    (lambda r, m, n: (r % m, r // m, range(r % m, m * n, m)), "2 x 4", "column by column"),
    (lambda r, m, n: (r // n, r % n, range(r % n, m * n, n)), "2 x 4", "share its column"),
    (lambda r, m, n: (r // n, r % n, [k for k in range(m * n) if k // n == r // n != r or 0]), "2 x 4", "rank"),
    (lambda r, m, n: (r // n, r % n, range(m * n)), "2 x 4", "Not all of them"),
    (lambda r, m, n: (r // 4, r % 4, range(r // 4 * 4, r // 4 * 4 + 4)), "other matrices", "where a row has four"),
    (lambda r, m, n: (r // m, r % m, range(r // m * m, r // m * m + m)), "2 x 4", "as the matrix has columns"),
    (lambda r, m, n: (r // n + 1, r % n + 1, range(r // n * n, r // n * n + n)), "2 x 4", "counted from 0"),
    (lambda r, m, n: (r // n, r % n, range(n)), "2 x 4", "Which ranks stand there?"),
    (lambda r, m, n: (r / n, r % n, (r,)), "2 x 4", "Use //"),
)
def test_a_wrong_place_is_explained(answer, part, words):
    assert words in told("01.1", answer, part)


def test_the_forward_messages_have_a_line_and_a_reason_each():
    lines = forward_messages(StrategyLab().plan, rank=5).splitlines()
    assert len(lines) == 6 and lines[0].endswith("ranks 4 5 6 7") and "sums over 'k'" in lines[1]
