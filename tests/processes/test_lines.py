"""Lines that meet in calls with a root: what is reported of a swap, and what is not a fault."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch
from parallel_lab.processes.lines import LINE, Lines, crossing_text, line_digest
from tests.crossed import each_of
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


@each_of(
    ("meetings", "crosses"),
    ("10-11 12-13", False),  # two branches
    ("12-11 10-13", True),  # that the root has swapped
    ("10-13 12-11", True),  # or the others
    ("10-11 12-13 20-21 16-15 14-17", True),
    ("9-10 10-12", True),  # the root has its second call in front of line 10, the others behind it
    ("10-9 12-10", True),
    ("10-12 11-13", False),  # one branch with two calls
    ("5-28 8-25", False),  # functions for the root, and for the others
    ("10-13 11-14 10-15", False),  # the root loops over two lines
    ("10-11 13-12", False),  # if rank == 0, if rank != 0
    ("20-20 12-13", False),
)
def test_first_meetings_in_crossed_order_bring_one_warning(meetings, crosses):
    lines = Lines()
    for meeting in meetings.split():
        root, others = (line_digest(f"train.py:{number}") for number in meeting.split("-"))
        assert lines.differing((root, others, others), 0) is None
    found = lines.crossing()
    assert (found is not None) == crosses and lines.crossing() is None
    if crosses:
        last, before = meetings.split()[-1].split("-"), meetings.split()[-2].split("-")
        text = crossing_text(found, "train.py:1")
        assert f"train.py: line {before[0]} of the root has met line {before[1]}" in text and "tag=" in text
        assert f"then line {last[0]} met line {last[1]}:" in text


def test_lines_of_two_files_and_calls_of_two_roots_are_not_compared():
    for roots, files in (((0, 1), "aa"), ((0, 0), "ab")):
        lines = Lines()
        for root, file, (own, theirs) in zip(roots, files, ((10, 13), (14, 11)), strict=True):
            given = [line_digest(f"{file}.py:{theirs}")] * 2
            given[root] = line_digest(f"{file}.py:{own}")
            assert lines.differing(given, root) is None
        assert lines.crossing() is None


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


@pytest.mark.quick(1)
@pytest.mark.parametrize(("kind", "n", "odd", "times", "tag"), CASES)
def test_calls_with_a_root_in_another_order_are_reported(pool, kind, n, odd, times, tag):
    with pytest.raises(CollectiveMismatch, match=r"differ in .*origin") as caught:
        pool.run(in_two_branches, kind, n, odd, times, tag)
    assert tag or str(caught.value).count("test_lines.py:") >= 2
    assert_usable(pool)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["broadcast", "reduce", "gather", "scatter"])
def test_branches_are_not_a_fault(pool, kind):
    for n in range(2, RANKS + 1):
        found = pool.run(in_two_branches, kind, n, -1, 5, False)
        assert [len(got) for got in found] == [10 if rank < n else 0 for rank in range(RANKS)]


SILENT = [
    pytest.param(kind, n, odd, id=f"{kind}-{n}-{odd}")
    for kind in ("broadcast", "reduce", "gather", "scatter")
    for n, odd in ((2, 0), (2, 1), (3, 0), (4, 0))
]


@pytest.mark.quick(4)
@pytest.mark.parametrize(("kind", "n", "odd"), SILENT)
def test_two_calls_that_the_root_alone_swaps_are_a_warning_that_names_tags(pool, kind, n, odd):
    with pytest.warns(RuntimeWarning, match=r"test_lines\.py: line \d+ of the root .* crossed.*tag=") as caught:
        pool.run(in_two_branches, kind, n, odd, 1, False)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.run(in_two_branches, kind, n, -1, 2, False)
