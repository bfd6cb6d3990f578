"""Exercises on what ranks do together: right answers in different styles pass, wrong ideas are named."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab.lab.exercises.ranks_agree import REDUCED_LOSS
from parallel_lab.run.communicator import Request
from tests.crossed import each_of
from tests.lab.verdicts import check, failed, passes, told


def ring_loop(compute_s, size_bytes, ranks, alpha_s, beta_s_per_byte):
    """Message by message."""
    total = compute_s / ranks
    for _ in range(2 * (ranks - 1)):
        total += alpha_s + size_bytes / ranks * beta_s_per_byte
    return total


def test_the_step_is_right_message_by_message_and_by_formula():
    assert passes(check("03.4", ring_loop), 4)
    assert passes(check("03.4", lambda c, n, p, a, b: np.float64(c / p + 2 * a * (p - 1) + 2 * b * n * (p - 1) / p)), 4)


def test_computing_alone_is_right_on_one_rank_only():
    verdict = check("03.4", lambda c, n, p, a, b: c / p)
    assert verdict.points == 1 and failed(verdict)["a step"].idea == "twice the ranks, twice the speed"


def blocks(rank, ranks, rows, epoch):
    order = list(range(rows))
    np.random.default_rng(100 + epoch).shuffle(order)
    each = rows // ranks
    return order[rank * each : (rank + 1) * each]


def by_sends(rank, ranks, weights, gradient, loss):
    """Everybody sends its gradient to everybody."""
    total = gradient
    for other in range(ranks):
        if other != rank:
            yield Request("send", (rank, other), gradient)
    for other in range(ranks):
        if other != rank:
            total = total + (yield Request("recv", (other, rank)))
    return weights - 0.1 * total / ranks


def by_all_reduce(rank, ranks, weights, gradient, loss):
    return weights - 0.1 * (yield Request("all_reduce", tuple(range(ranks)), gradient)) / ranks


@each_of("step", by_sends, by_all_reduce)
def test_rows_in_blocks_and_steps_from_any_messages_pass(step):
    assert passes(check("03.5", {"rows": blocks, "step": step}), 5)


def summed(rank, ranks, weights, gradient, loss):
    return weights - 0.1 * (yield Request("all_reduce", tuple(range(ranks)), gradient))


def alone(rank, ranks, weights, gradient, loss):
    return weights - 0.1 * gradient


@each_of(
    ("answer", "part", "words"),
    ({"rows": lambda r, p, n, e: list(range(n // p))}, "each row once", "two of them have the same row"),
    ({"rows": lambda r, p, n, e: [0] * (n // p)}, "each row once", "row 0 is used twice, row 1 never"),
    ({"rows": lambda r, p, n, e: [1]}, "each row once", "1 rows of 16 on 4 ranks"),
    ({"rows": lambda r, p, n, e: range(r, n, p)}, "another order", "in the same order"),
    ({"rows": blocks, "step": summed}, "one step", "An all_reduce does not average"),
    ({"rows": blocks, "step": alone}, "one step", "and nothing was sent"),
    ({"rows": blocks, "step": 3}, "one step", "3 is not a function"),
    (3, "each row once", "rows_of"),
)
def test_a_pair_that_does_not_match_is_reported(answer, part, words):
    assert words in told("03.5", answer, part)


def test_stepping_alone_is_not_the_idea_of_the_reduced_loss():
    assert failed(check("03.5", {"step": alone}))["one step"].idea == ""
    assert REDUCED_LOSS not in {part.idea for part in check("03.5", {"step": summed}).parts}


def by_matrix(m, k, block):
    return np.arange(m * k).reshape(m, k)[block]


def by_halves(rank, ranks, partial):
    """Rank 0 adds up, everybody gets it."""
    if rank:
        yield Request("send", (rank, 0), partial)
        return np.where((whole := (yield Request("recv", (0, rank)))) > 0, whole, 0)
    for other in range(1, ranks):
        partial = partial + (yield Request("recv", (other, 0)))
    for other in range(1, ranks):
        yield Request("send", (0, other), partial)
    return partial.clip(0)


def test_holders_from_the_device_matrix_and_a_sum_by_sends_pass():
    assert passes(check("05.4", {"holders": by_matrix, "relu": by_halves}), 4)


def test_nodes_of_four_are_the_right_answer_for_one_strategy_alone():
    """Under ((2, 4), (4, 1)) rows 1 lie on ranks 4 to 7: the wrong idea is found by the other strategies."""
    verdict = check("05.4", {"holders": lambda m, k, block: range(4 * block, 4 * block + 4)})
    assert failed(verdict)["holders"].idea == "a strategy names nodes"
    first_fastest = {"holders": lambda m, k, block: range(block, 8, m)}
    assert "last axis" in failed(check("05.4", first_fastest))["holders"].note


@pytest.mark.parametrize("answer", [None, 3, {}, {"holders": 3, "relu": 4}])
def test_anything_but_a_pair_of_functions_is_reported(answer):
    verdict = check("05.4", answer)
    assert verdict.points == 0 and verdict.first_failure.found
