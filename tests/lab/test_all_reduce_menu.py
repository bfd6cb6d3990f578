"""The puzzle "all-reduce menu": its prices are the papers' formulas, its par is what a search finds."""

from __future__ import annotations

import itertools

import pytest

from parallel_lab.base.cluster import Link
from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.collectives.all_reduce_menu import AllReduceMenu, Order

ALPHA, BANDWIDTH = 5e-6, 1e10
# distances and parts of the rounds on a ring of 8, written down from the algorithms' definitions
ROUNDS = {
    "ring": [(1 / 8, 1)] * 14,
    "recursive_doubling": [(1, 1), (1, 2), (1, 4)],
    "halving_doubling": [(1 / 2, 4), (1 / 4, 2), (1 / 8, 1), (1 / 8, 1), (1 / 4, 2), (1 / 2, 4)],
    "halving_doubling_near_first": [(1 / 2, 1), (1 / 4, 2), (1 / 8, 4), (1 / 8, 4), (1 / 4, 2), (1 / 2, 1)],
    "tree": [(1, 1), (1, 2), (1, 4), (1, 4), (1, 2), (1, 1)],
}


def seconds(name: str, size: int) -> float:
    return sum(ALPHA + part * size * hops / BANDWIDTH for part, hops in ROUNDS[name])


@pytest.mark.parametrize("name", ROUNDS)
def test_prices_are_alpha_beta_with_contention_by_hops(name):
    menu = AllReduceMenu()
    for order, prices in zip(menu.orders, menu.prices_s, strict=True):
        assert prices[name] == pytest.approx(seconds(name, order.size_bytes), rel=1e-12)


def test_the_par_is_the_recorded_one_and_no_choice_beats_it():
    menu = AllReduceMenu()
    assert menu.par == ("recursive_doubling", "halving_doubling_near_first", "ring", "ring")
    assert round(menu.score(menu.par).time_s * 1e6) == 26490
    assert round(menu.score(["ring"] * 4).time_s * 1e6) == 56928
    scores = [menu.score(choice) for choice in itertools.product(menu.names, repeat=4)]
    assert min(s.time_s for s in scores) == menu.score(menu.par).time_s
    assert [s.choices for s in scores if s.reached_par] == [menu.par]


def test_a_choice_per_size_and_the_words_of_a_score():
    menu = AllReduceMenu()
    given = dict(zip((1_000, 64_000, 1_000_000, 64_000_000), menu.par, strict=True))
    assert menu.score(given).reached_par and "no choice of this menu is faster" in menu.score(given).text
    naive = menu.score(["ring"] * 4)
    assert naive.ratio == pytest.approx(56928 / 26490, rel=1e-4)
    assert naive.text == "56928 us predicted, 2.15 times par (26490 us)."
    assert sum(naive.parts_s) == pytest.approx(naive.time_s)


def test_without_contention_the_menu_has_another_par():
    free = AllReduceMenu(contention="none")
    # a link for every pair: near and far cost the same, and of equal ones the first on the list is taken
    assert free.par == ("recursive_doubling", "recursive_doubling", "halving_doubling", "halving_doubling")
    assert free.prices_s[2]["halving_doubling"] == pytest.approx(6 * ALPHA + 2 * 7 / 8 * 1e6 / BANDWIDTH)
    assert free.score(["recursive_doubling"] * 2 + ["halving_doubling_near_first"] * 2).reached_par


def test_the_menu_can_be_of_another_machine():
    menu = AllReduceMenu([Order(2, 8)], ranks=3, link=Link(1.0, 0.0))
    # two rounds, a rank's port sends to two others, one after the other
    assert menu.score(["direct"]).time_s == 2 * 4.0
    assert "2 x 8 B" in menu.to_text() and "3 ranks in a ring" in menu.to_text()


@pytest.mark.parametrize("choices", [["ring"] * 3, "ring", {1_000: "ring"}, ["ring", "ring", "ring", "bubble"]])
def test_what_is_not_on_the_menu_is_refused(choices):
    with pytest.raises(ArgumentError, match=r"One of ring, recursive_doubling|4 names, one per order"):
        AllReduceMenu().score(choices)
