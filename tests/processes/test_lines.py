"""Lines that meet in calls with a root: what is reported of a swap, and what is not a fault."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch
from parallel_lab.processes.lines import LINE, Lines
from tests.processes.pools import RARELY_OVER_MPI, assert_usable, noted

A, B, C, D = (LINE | n for n in range(1, 5))


def told(*calls, root=0):
    """For each call, given as the members' origins: the two members that are told apart, or None."""
    lines = Lines()
    return [lines.differing(origins, root) for origins in calls]


def test_members_that_are_not_the_root_share_a_line():
    assert told((A, B, B)) == [None]
    assert told((A, A, B)) == [(1, 2)]
    assert told((A, B, A), root=2) == [(0, 1)]


def test_swap_of_lines_that_have_met_is_reported():
    assert told((A, C), (B, D), (A, D)) == [None, None, (0, 1)]
    assert told((A, C, C), (B, D, D), (B, C, C)) == [None, None, (0, 1)]


def test_swap_of_calls_from_one_line_for_all_is_reported_at_the_second():
    assert told((A, B), (B, A)) == [None, (0, 1)]


@pytest.mark.parametrize("calls", [[(A, C), (A, D)], [(A, C), (B, C)], [(A, A), (A, B)], [(A, B), (C, D), (A, B)]])
def test_loops_and_helpers_are_not_a_fault(calls):
    """A line of one side may meet several of the other, as long as those meet no other one."""
    assert told(*calls * 3) == [None] * 3 * len(calls)


def test_tags_are_compared_among_those_that_give_one():
    assert told((1, 1, 1), (1, A, 1), (0, 1, 1)) == [None] * 3
    assert told((1, 2, 1)) == [(0, 1)]
    assert told((1, A, 2)) == [(0, 2)]
    assert told((1, 2), root=None) == [(0, 1)]
    assert told((A, B), root=None) == [None]


# ---- on ranks ----

RANKS = 8


@pytest.fixture(scope="module", params=RARELY_OVER_MPI)  # MPI is exhaustive
def pool(request):
    with request.param(RANKS, timeout_s=20) as pool:
        yield noted(pool)


def in_two_branches(comm, kind, n, odd, times, tag):
    """The idiom, twice per turn; the odd rank swaps its two calls in the last turn."""
    group, rank = tuple(range(n)), comm.rank
    if rank >= n:
        return []
    got = []

    def first():
        x, own = value(1.0), {"tag": "first"} if tag else {}
        if rank == 0:
            got.append(getattr(comm, kind)(x, root=0, group=group, **own))
        else:
            got.append(getattr(comm, kind)(x, root=0, group=group, **own))

    def second():
        x, own = value(2.0), {"tag": "second"} if tag else {}
        if rank == 0:
            got.append(getattr(comm, kind)(x, root=0, group=group, **own))
        else:
            got.append(getattr(comm, kind)(x, root=0, group=group, **own))

    def value(fill):
        return np.full(2 * n, fill) if rank == 0 or kind in ("reduce", "gather") else None

    for turn in range(times):
        swaps = rank == odd and turn == times - 1
        for call in (second, first) if swaps else (first, second):
            call()
    return got


CASES = [
    pytest.param(kind, n, odd, times, tag, id=f"{kind}-{n}-{odd}-{times}{'-tag' if tag else ''}")
    for kind, n in itertools.product(("broadcast", "reduce", "gather", "scatter"), range(2, RANKS + 1))
    for odd, times, tag in itertools.product(range(n), (1, 2), (False, True))
    # a root that swaps lines met once, or one of two ranks, cannot be told from other branches: a tag tells
    if tag or times > 1 or (odd and n > 2)
]


@pytest.mark.quick(6)
@pytest.mark.parametrize(("kind", "n", "odd", "times", "tag"), CASES)
def test_calls_with_a_root_in_another_order_are_reported(pool, kind, n, odd, times, tag):
    with pytest.raises(CollectiveMismatch, match=r"differ in .*origin") as caught:
        pool.run(in_two_branches, kind, n, odd, times, tag)
    assert tag or str(caught.value).count("test_lines.py:") >= 2
    assert_usable(pool)


@pytest.mark.quick(4)
@pytest.mark.parametrize("kind", ["broadcast", "reduce", "gather", "scatter"])
def test_branches_are_not_a_fault(pool, kind):
    for n in range(2, RANKS + 1):
        found = pool.run(in_two_branches, kind, n, -1, 5, False)
        assert [len(got) for got in found] == [10 if rank < n else 0 for rank in range(RANKS)]
