"""The recorded rows of sequence, context and expert parallelism (`tests/recorded/five_d.json`)."""

from __future__ import annotations

import pytest

from tests.crossed import each_of
from tests.recorded.ask_five_d import FAMILIES, ROWS, agrees, ask_row

ANSWERED = [row for row in ROWS if row["family"] in FAMILIES]


@pytest.mark.parametrize("row", ANSWERED, ids=lambda row: row["id"])
def test_a_recorded_row_is_answered(row):
    answer = ask_row(row)
    assert agrees(answer, row["expected"], row["tolerance"]), (answer, row["expected"])


def test_every_function_has_rows():
    assert FAMILIES.keys() <= {row["family"] for row in ROWS}


@each_of(
    ("answer", "expected", "tolerance"),
    (7, 8, {"exact": True}),
    ([1, 2], [1], {"exact": True}),
    ({"a": 1}, {"a": 1, "b": 2}, {"abs": 9}),
    (1.1, 1.0, {"rel": 0.01}),
)
def test_a_wrong_answer_does_not_agree(answer, expected, tolerance):
    assert not agrees(answer, expected, tolerance)
