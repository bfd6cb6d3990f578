"""Lesson 06's exercises: right answers pass in several styles, wrong ones hear why, the least is the least."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from parallel_lab.lab.exercises import get_exercise, lesson_06
from parallel_lab.lab.exercises.one_product import counts, pair
from parallel_lab.lab.exercises.two_products import MANNERS, Chain, bounds, least
from parallel_lab.lab.lessons import chains
from parallel_lab.run.communicator import Request
from tests.crossed import each_of
from tests.lab.verdicts import check, passes, told

QUICKSTART = {"matmul": ((2, 4), (4, 1)), "relu": ((2, 4),), "matmul2": ((2, 4), (4, 1))}
COLUMNS_ROWS = {"matmul": ((2, 1), (1, 4)), "relu": ((2, 4),), "matmul2": ((2, 4), (4, 1))}
FEWEST = {"matmul": ((1, 1), (1, 8)), "relu": ((1, 8),), "matmul2": ((1, 2), (2, 4))}
NEARLY = {**FEWEST, "matmul2": ((2, 1), (1, 4)), "redistribution": "exact"}

# ---- what a chain sends ----


def test_a_chain_sends_what_the_textbook_says():
    """2 (p - 1)/p of each array. Data parallel: w and w2 over 8 ranks. Column-wise, then row-wise: the result's (8, 16)
    over 4 ranks, and the slices of w and w2, a quarter each, over 2. The quickstart: two results forward, the gradient
    of the first one's sum backward, the same weights."""
    weights, result = (32 * 16 + 16 * 16) // 4, 2 * 3 * 8 * 16 // 4
    assert Chain(lesson_06.DATA_PARALLEL).sent_elements == 2 * 7 * (32 * 16 + 16 * 16) // 8
    assert Chain(COLUMNS_ROWS).sent_elements == result + weights
    assert Chain(QUICKSTART).sent_elements == 3 * result + weights


@pytest.mark.exhaustive
def test_the_least_chain_sends_less_than_the_textbooks_and_no_pair_below_its_bound_was_left_out():
    best = least()
    assert best.sent_elements < Chain(COLUMNS_ROWS).sent_elements
    found = bounds()
    assert found == sorted(found) and len(found) == len(list(counts())) ** 2


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_no_chain_sends_less_than_the_least_or_than_its_bound():
    below = {(one, two): bound for bound, one, two in bounds()}
    relus = [((m, n),) for m, k, n in counts() if k == 1]
    fewest = least().sent_elements
    for (one, two), relu, manner in itertools.product(below, relus, MANNERS):
        sent = Chain({"matmul": pair(*one), "relu": relu, "matmul2": pair(*two)}, manner).sent_elements
        assert sent >= max(below[one, two], fewest), (one, relu, two, manner)


# ---- 06.1 ----


def by_all_to_all(rank, ranks, rows):
    return (yield Request("all_to_all", tuple(range(ranks)), rows, split_dim=1, concat_dim=0))


def by_sends(rank, ranks, rows):
    pieces = [np.ascontiguousarray(piece) for piece in np.split(rows, ranks, axis=1)]
    for other in range(ranks):
        if other != rank:
            yield Request("send", (rank, other), pieces[other])
    shape, dtype = pieces[0].shape, str(rows.dtype)
    for other in range(ranks):
        if other != rank:
            pieces[other] = yield Request("recv", (other, rank), shape=shape, dtype=dtype)
    return np.concatenate([pieces[other] for other in range(ranks)])


def by_gather(rank, ranks, rows):
    whole = yield Request("all_gather", tuple(range(ranks)), rows, dim=0)
    return np.split(whole, ranks, axis=1)[rank]


def gathered(rank, ranks, rows):
    whole = yield Request("all_gather", tuple(range(ranks)), rows, dim=0)
    return whole + 0


def transposed(rank, ranks, rows):
    return (yield from by_all_to_all(rank, ranks, rows)).T


def backwards(rank, ranks, rows):
    return (yield from by_all_to_all(rank, ranks, rows))[::-1]


@pytest.mark.parametrize("answer", [by_all_to_all, by_sends])
def test_rows_become_columns_at_par(answer):
    verdict = check("06.1", answer)
    assert passes(verdict, 4) and "448 elements" in verdict.parts[1].found and "1,024" in verdict.parts[2].found


@each_of(
    ("answer", "part", "words"),
    (by_gather, "received", "3,584 elements arrive at a rank, 8.00 x par"),
    (by_gather, "received", "brings every rank the whole tensor"),
    (by_gather, "held at once", "4,608 elements on a rank"),
    (gathered, "columns", "the whole tensor"),
    (transposed, "columns", "Transposed"),
    (backwards, "columns", "the order in which"),
    (lambda rank, ranks, rows: rows, "columns", "the rows that the rank had"),
)
def test_wrong_columns_are_explained(answer, part, words):
    assert words in told("06.1", answer, part)


# ---- 06.2 and 06.3 ----


def test_columns_then_rows_is_one_message():
    assert passes(check("06.2", COLUMNS_ROWS), 5)
    assert passes(check("06.2", {"matmul": [[1, 1], [1, 8]], "relu": [[1, 8]], "matmul2": [[1, 8], [8, 1]]}), 5)


@pytest.mark.exhaustive
def test_the_least_chain_is_at_par():
    assert passes(check("06.3", FEWEST), 5)
    shown, _, elements = get_exercise("06.3").par().rpartition(": ")
    assert passes(check("06.3", eval(shown)), 5) and elements == f"{least().sent_elements} elements"


@pytest.mark.quick(5)
@each_of(
    ("number", "answer", "part", "words"),
    ("06.2", {**QUICKSTART, "redistribution": "exact"}, "one message", "'matmul' sums over 'k'"),
    ("06.2", lesson_06.DATA_PARALLEL, "slices of the weights", "that is data parallel"),
    ("06.2", {**COLUMNS_ROWS, "relu": ((8, 1),)}, "one message", "relu"),
    ("06.2", {**QUICKSTART, "matmul": ((2, 4), (2, 1))}, "compiles", "splits 'k'"),
    ("06.2", {"fc1": ((1, 1), (1, 1))}, "compiles", "operator 'fc1'"),
    ("06.3", COLUMNS_ROWS, "better than columns, then rows", "one all_reduce forward"),
    ("06.3", lesson_06.DATA_PARALLEL, "better than the quickstart", "1,344 elements"),
    ("06.3", {**COLUMNS_ROWS, "redistribution": "fast"}, "compiles", "one of gather, all_to_all, exact"),
    pytest.param("06.3", NEARLY, "par", "288 elements", marks=pytest.mark.exhaustive),
)
def test_a_wrong_chain_hears_why(number, answer, part, words):
    assert words in told(number, answer, part)


def test_a_chain_above_par_hears_its_elements(monkeypatch):
    """Without the search for par, which takes seconds: that it finds this chain is exhaustive."""
    monkeypatch.setattr(lesson_06, "least", lambda: Chain(FEWEST))
    assert "288 elements" in told("06.3", NEARLY, "par")


# ---- the notebook's own calls ----


@pytest.mark.exhaustive
def test_compare_counts_on_processes():
    rows = chains.compare({"slice_bytes": 256, "gathered": 1, "least": None}).rows
    assert [row[2:4] for row in rows] == [(256, 256), (1792, 1792), (224, None)]
    assert chains.prove().count("8 of 8 ranks") == 3
    assert "768 elements" in chains.messages(QUICKSTART)
