"""Lesson 02's exercises: right answers pass, wrong ones fail where they are wrong and hear what they are."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from parallel_lab.base.cluster import Link
from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.classroom.hidden import marks
from parallel_lab.lab.collectives.algorithms.algorithm import algorithm
from parallel_lab.lab.collectives.all_reduce_menu import AllReduceMenu
from parallel_lab.lab.exercises.book import Desk, get_exercise, judge
from parallel_lab.lab.exercises.lesson_02 import LINE_START
from parallel_lab.lab.exercises.starts import handed_in
from parallel_lab.lab.lessons.collectives import react
from parallel_lab.processes.measure.fit import fit_line
from parallel_lab.run.communicator import Request
from tests.crossed import each_of
from tests.lab.verdicts import check, failed, passes, words_of

# ---- rings ----


def ring_scatter(begin=1, *, back=1, rounds=None, whole=False, mean=False, receive_first=False):
    """A ring reduce_scatter that begins with the chunk of rank - begin; with `back` -1 it turns the other way round."""

    def program(rank, ranks, chunks):
        to, source = (rank + back) % ranks, (rank - back) % ranks
        for step in range(ranks - 1 if rounds is None else rounds(ranks)):
            out, into = (rank - back * (begin + step)) % ranks, (rank - back * (begin + step + 1)) % ranks
            got = yield from exchange(rank, to, source, np.stack(chunks) if whole else chunks[out], receive_first)
            chunks[into] = chunks[into] + (got[into] if whole else got)
        return chunks[rank] / (ranks if mean else 1)

    return program


def exchange(rank, to, source, array, receive_first=False):
    """Send and receive in one step; returns what arrived."""
    if receive_first:
        got = yield Request("recv", (source, rank))
        yield Request("send", (rank, to), array)
        return got
    yield Request("send", (rank, to), array)
    return (yield Request("recv", (source, rank)))


def shifted(rank, ranks, chunks):
    """The complete sums, each on the wrong rank: the ring begins with a rank's own chunk."""
    yield from ring_scatter(begin=0)(rank, ranks, chunks)
    return chunks[(rank + 1) % ranks]


def sum_of_everything(rank, ranks, chunks):
    """Every step sends all chunks as they came, and adds them up."""
    passing, total = np.stack(chunks), np.stack(chunks)
    for _ in range(ranks - 1):
        passing = yield from exchange(rank, (rank + 1) % ranks, (rank - 1) % ranks, passing)
        total = total + passing
    return total[rank]


def by_name(kind, name):
    """One of the lab's own lists of sends as an answer: written by another hand, checked by another program."""

    def program(rank, ranks, value):
        x = np.stack(value) if kind == "reduce_scatter" else value[None]
        result = yield from algorithm(kind, name, ranks).program(rank, x)
        return result[0] if kind == "reduce_scatter" else result

    return program


def ring_gather(missing=0, order=1):
    def program(rank, ranks, chunk):
        chunks = [np.zeros_like(chunk)] * ranks
        chunks[rank] = passing = chunk
        for step in range(ranks - 1 - missing):
            passing = yield from exchange(rank, (rank + 1) % ranks, (rank - 1) % ranks, passing)
            chunks[(rank - order * (1 + step)) % ranks] = passing
        return chunks

    return program


def in_place(rank, ranks, chunks):
    """Writes into what it was given."""
    for step in range(ranks - 1):
        got = yield from exchange(rank, (rank + 1) % ranks, (rank - 1) % ranks, chunks[(rank - 1 - step) % ranks])
        chunks[(rank - 2 - step) % ranks] += got
    return chunks[rank]


@each_of(
    ("number", "answer"),
    ("02.1", ring_scatter()),
    ("02.1", ring_scatter(back=-1)),
    ("02.1", by_name("reduce_scatter", "ring")),
    ("02.1", in_place),
    ("02.2", ring_gather()),
    ("02.2", by_name("all_gather", "ring")),
)
def test_a_ring_passes_in_either_direction(number, answer):
    assert passes(check(number, answer), 5)


@each_of(
    ("answer", "part", "words", "rank"),
    (lambda r, ranks, chunks: chunks[r], "values", "No message was sent: every rank has only its own addend", 0),
    (shifted, "values", "rank r has chunk r + 1. Let each rank begin with the chunk before", 0),
    (ring_scatter(mean=True), "values", "That is the mean", 0),
    (ring_scatter(rounds=lambda n: n - 2), "steps", "3: n - 1", None),
    (ring_scatter(rounds=lambda n: n - 2), "bytes", "(n - 1)/n S", 0),
    (sum_of_everything, "bytes", "everything is sent in every step", 0),
    (by_name("reduce_scatter", "direct"), "neighbours", "0 sends to 2", 0),
    (lambda rank, ranks, chunks: None, "values", "Nothing is returned yet", 0),
    (ring_scatter(receive_first=True), "values", "first send, then recv", None),
)
def test_a_wrong_reduce_scatter_is_explained(answer, part, words, rank):
    found = failed(check("02.1", answer))[part]
    assert words in words_of(found) and found.rank == rank


def begun(begin, way):
    """A ring to the right (way 1) or left that begins with chunk rank + begin and returns the chunk it added last."""

    def program(rank, ranks, chunks):
        chunks, at = list(chunks), (rank + begin) % ranks
        for _ in range(ranks - 1):
            got = yield from exchange(rank, (rank + way) % ranks, (rank - way) % ranks, chunks[at])
            at = (at - way) % ranks
            chunks[at] = chunks[at] + got
        return chunks[at]

    return program


@pytest.mark.quick(2)
@pytest.mark.parametrize("way", [1, -1])
@pytest.mark.parametrize("off", [1, -1])
def test_the_note_on_where_a_ring_begins_leads_to_the_right_one(way, off):
    assert check("02.1", begun(-way, way)).passed
    note = failed(check("02.1", begun(-way + off, way)))["values"].note
    assert f"with the chunk {'before' if off == 1 else 'after'} the one it begins with now" in note


def test_the_bytes_of_a_whole_vector_ring_and_of_the_right_one_are_counted():
    """(n - 1) S against (n - 1)/n S, with n = 4 ranks and S = 4 chunks of 6 float64."""
    part = failed(check("02.1", sum_of_everything))["bytes"]
    size_bytes = 4 * 6 * 8
    assert part.found == f"{3 * size_bytes} bytes sent by rank 0"
    assert part.expected.startswith(f"{3 * size_bytes // 4} on 4 ranks")
    assert "send 0 -> 1 at test_exercises_02.py:" in part.op


def test_a_wrong_sum_says_whose_addends_are_missing():
    """After n - 2 of n - 1 steps one addend is missing in chunk r: on rank 0 of 4, that of its right neighbour."""
    part = failed(check("02.1", ring_scatter(rounds=lambda n: n - 2)))["values"]
    assert part.found.startswith("on 4 ranks: chunk 0") and part.rank == 0 and "missing" in part.found


def test_the_collective_itself_is_not_an_answer():
    def asks(rank, ranks, chunks):
        return (yield Request("reduce_scatter", tuple(range(ranks)), np.concatenate(chunks)))

    part = check("02.1", asks).first_failure
    assert part.rank == 0 and "Sends and recvs only" in part.expected
    assert "reduce_scatter at test_exercises_02.py:" in part.op


def test_an_answer_for_four_ranks_only_does_not_pass():
    def four(rank, ranks, chunks):
        return (yield from ring_scatter(rounds=lambda n: 3)(rank, ranks, chunks))

    assert set(failed(check("02.1", four))) == {"values", "steps", "bytes"}


def always_its_own(place):
    def program(rank, ranks, chunk):
        chunks = [np.zeros_like(chunk) for _ in range(ranks)]
        chunks[rank] = chunk
        for step in range(ranks - 1):
            chunks[place(rank, step) % ranks] = yield from exchange(rank, (rank + 1) % ranks, (rank - 1) % ranks, chunk)
        return chunks

    return program


OWN_CHUNK = "Every rank sends its own chunk in each step"


@each_of(
    ("answer", "words"),
    (always_its_own(lambda rank, step: rank - 1 - step), OWN_CHUNK),
    (always_its_own(lambda rank, step: rank - 1), OWN_CHUNK),
    (ring_gather(missing=1), "nothing has arrived there"),
    (ring_gather(order=-1), "which rank's chunk arrives in step s?"),
    (lambda rank, ranks, chunk: [chunk] * ranks, "at place 1 the chunk of rank 0"),
    (lambda rank, ranks, chunk: chunk, "4 chunks"),
)
def test_a_wrong_all_gather_is_explained(answer, words):
    found = failed(check("02.2", answer))["values"]
    assert words in words_of(found) and found.rank == 0


# ---- alpha and beta ----

ALPHA_S, BETA_S_PER_BYTE = 7e-6, 3e-10
SIZES = [1 << power for power in range(6, 23)]
FIT = fit_line(SIZES, [[(ALPHA_S + BETA_S_PER_BYTE * m) * (1 + 0.02 * (-1) ** i)] for i, m in enumerate(SIZES)])
HALF = ALPHA_S / BETA_S_PER_BYTE


def usual(sizes, times):
    beta, alpha = np.polyfit(sizes, times, 1)
    return alpha, beta


def relative(sizes, times):
    rows = np.stack((1 / times, sizes / times), axis=1)
    return tuple(np.linalg.lstsq(rows, np.ones(len(times)), rcond=None)[0])


def answered(line, half, fit=FIT):
    return check("02.3", {"line": line, "half_size_bytes": half}, fit=fit)


def test_the_half_size_of_ones_own_line_is_as_good_as_the_fit_s():
    """If times are 30 % off, a line by another rule may be as near as the fit's and have another alpha / beta."""
    times = [(3e-6 + 2e-10 * m) * (1 + e) for m, e in zip(FIT.sizes_bytes, itertools.cycle((0.3, -0.3)))]
    fit = dataclasses.replace(FIT, median_s=tuple(times))

    def other(sizes, times):
        alpha, beta = relative(sizes, times)
        return 1.11 * alpha, 0.91 * beta

    alpha, beta = other(np.array(fit.sizes_bytes, float), np.array(times))
    assert answered(other, alpha / beta, fit).passed
    assert list(failed(answered(relative, alpha / beta, fit))) == ["half_size_bytes"]
    assert list(failed(answered(other, math.nan, fit))) == ["half_size_bytes"]


def test_the_relative_line_and_its_half_size_pass():
    assert answered(relative, HALF).passed
    assert answered(relative, np.float32(HALF * 1.1)).passed


def test_the_usual_line_hears_why_its_alpha_means_nothing():
    wrong = failed(answered(usual, HALF))
    assert list(wrong) == ["noisy times"] or set(wrong) == {"noisy times", "your machine"}
    assert "the usual least squares" in wrong["noisy times"].note and wrong["noisy times"].op == "alpha"


@pytest.mark.quick(3)
@each_of(
    ("line", "words"),
    (lambda m, t: relative(m, t)[::-1], "Swapped"),
    (lambda m, t: (relative(m, t)[0], 1 / relative(m, t)[1]), "beta is 1 / bandwidth"),
    (lambda m, t: None, "a pair of numbers"),
    (lambda m, t: (float("nan"), 1), "returned (nan"),
)
def test_a_wrong_line_is_explained(line, words):
    part = failed(answered(line, HALF))["exact times"]
    assert words in words_of(part)


@pytest.mark.quick(3)
@each_of(
    ("half", "words"),
    (1 / HALF, "beta / alpha: right with MindSpore's letters"),
    (HALF / 1e3, "factor of 1000"),
    (HALF * 1e3, "mind the units, us and ns"),
    (HALF / 1024, "kilobytes"),
    (1 / BETA_S_PER_BYTE, "the bandwidth"),
    (None, "no number yet"),
    (HALF * 1.3, ""),
)
def test_a_wrong_half_size_is_explained(half, words):
    wrong = failed(answered(relative, half))
    assert list(wrong) == ["half_size_bytes"]
    assert words in words_of(wrong["half_size_bytes"])


def test_where_bytes_cost_nothing_the_half_size_is_infinite():
    flat = dataclasses.replace(FIT, median_s=(3e-6,) * len(FIT.sizes_bytes))
    assert "half_size_bytes" not in failed(answered(relative, math.inf, flat))
    assert "bytes cost nothing" in words_of(failed(answered(relative, HALF, flat))["half_size_bytes"])


@pytest.mark.exhaustive
def test_the_line_of_a_fit_is_computed_again_from_its_times():
    forged = dataclasses.replace(FIT, alpha_s=1.0, beta_s_per_byte=1.0)
    assert answered(relative, HALF, forged).passed
    assert set(failed(answered(relative, 1.0, forged))) == {"half_size_bytes"}


@pytest.mark.parametrize("fit", [None, 3, "fit"])
def test_without_a_fit_it_is_asked_for(fit):
    assert "fit=fit" in failed(answered(relative, HALF, fit))["your machine"].expected


# ---- where a ring takes over; the line above is what earlier editions asked for ----


def ring_s(ranks, size_bytes, alpha_s, beta_s_per_byte):
    return 2 * (ranks - 1) * (alpha_s + beta_s_per_byte * size_bytes / ranks)


def switch_bytes(ranks, alpha_s, beta_s_per_byte):
    rounds = math.log2(ranks)
    return alpha_s * (2 * (ranks - 1) - rounds) / (beta_s_per_byte * (rounds - 2 * (ranks - 1) / ranks))


RIGHT_SWITCH = {"ring": ring_s, "switch": switch_bytes, "half_size_bytes": HALF}


@pytest.mark.quick(1)
@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_a_ring_takes_over_where_both_take_as_long_as_their_lists_of_sends(ranks):
    link = Link(ALPHA_S, BETA_S_PER_BYTE)
    at = switch_bytes(ranks, ALPHA_S, BETA_S_PER_BYTE)
    ring, doubling = (algorithm("all_reduce", name, ranks).time_s(at, link) for name in ("ring", "recursive_doubling"))
    assert ring == pytest.approx(doubling) == pytest.approx(ring_s(ranks, at, ALPHA_S, BETA_S_PER_BYTE))
    assert check("02.3", RIGHT_SWITCH, fit=FIT).passed


@pytest.mark.quick(3)
@each_of(
    ("part", "answer", "words"),
    ("ring", lambda n, m, a, b: (n - 1) * (a + b * m / n), "handed out too"),
    ("ring", lambda n, m, a, b: 2 * (n - 1) * (a + b * m), "a chunk, not the whole array"),
    ("ring", None, ""),
    ("switch", lambda n, a, b: a / b, "Compare two all_reduces"),
    ("switch", lambda n, a, b: 0, ""),
    ("half_size_bytes", 1 / HALF, "upside down"),
)
def test_a_wrong_switch_is_explained(part, answer, words):
    wrong = failed(check("02.3", {**RIGHT_SWITCH, part: answer}, fit=FIT))
    assert list(wrong) == [part] and words in words_of(wrong[part])


@pytest.mark.exhaustive
def test_both_editions_are_marked_on_drawn_inputs_and_their_starts_are_worth_nothing():
    for answer in (RIGHT_SWITCH, {"line": relative, "half_size_bytes": HALF}):
        assert marks("02.3", answer, fit=FIT, seed=3) == 5
    for start in (get_exercise("02.3").start, LINE_START):
        answer, given = handed_in(start)
        assert not judge(get_exercise("02.3"), answer, given).tried


def adds(rank, ranks, number):
    if rank == 0:
        yield Request("send", (0, 1), number)
    if rank == 1:
        number = number + (yield Request("recv", (0, 1)))
    return number


def forgets(rank, number):
    if rank == 0:
        yield Request("send", (0, 1), number)
    if rank == 1:
        number = yield Request("recv", (0, 1))
    return number


def waits(rank, ranks, number):
    return number + (yield Request("recv", ((rank - 1) % ranks, rank)))


def sends(rank, ranks, number):
    if rank == 0:
        yield Request("send", (0, 1), number)
    return number


@each_of(
    ("program", "words"),
    (adds, "That is it"),
    (sends, "Every send needs its recv"),
    (lambda rank, ranks, number: forgets(rank, number), "Rank 1 should return 11"),
    (waits, "deadlock"),
    (lambda rank, ranks, number: number, "No message yet"),
)
def test_a_first_program_is_answered_at_once(program, words):
    assert words in react(program)


# ---- the menu ----


def test_the_menu_is_passed_by_every_choice_at_par_and_by_no_other():
    menu = AllReduceMenu()
    par = min(
        sum(o.count * p[n] for o, p, n in zip(menu.orders, menu.prices_s, c, strict=True))
        for c in itertools.product(menu.names, repeat=4)
    )
    for names in itertools.product(("ring", "recursive_doubling", "halving_doubling_near_first"), repeat=4):
        total = sum(o.count * p[n] for o, p, n in zip(menu.orders, menu.prices_s, names, strict=True))
        assert check("02.4", names).passed == (total <= par)
    assert par == pytest.approx(26_490e-6, rel=1e-3)  # P1 of the puzzles: the recorded par


def test_a_ring_for_everything_hears_what_it_costs():
    verdict = check("02.4", dict.fromkeys((1_000, 64_000, 1_000_000, 64_000_000), "ring"))
    assert [part.passed for part in verdict.parts] == [False, False, True, True, False]
    assert "A ring is not always best" in verdict.parts[-1].note and "56928 us" in verdict.parts[-1].found


def test_a_name_that_is_not_on_the_menu_is_refused_with_those_that_are():
    part = check("02.4", {1_000: "rings"}).parts[0]
    assert not part.passed and "'rings'" in part.found and "recursive_doubling" in part.form


def test_the_menus_par_is_shown_after_an_own_attempt():
    desk = Desk()
    desk.check("02.4", dict.fromkeys((1_000, 64_000, 1_000_000, 64_000_000), "ring"))
    with pytest.raises(ArgumentError, match="own passes '500 x 1 kB'"):
        desk.par("02.4")
    desk.check("02.4", {**dict.fromkeys((64_000, 1_000_000, 64_000_000), "ring"), 1_000: "recursive_doubling"})
    found, names = desk.par("02.4"), {}
    assert "times par" in found.yours
    exec(found.text, names)
    assert check("02.4", names["choices"]).passed
