"""Lesson 11's exercises: right answers pass in two styles, misconceptions are named, par is the least of all plans."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from parallel_lab.base.cluster import Link
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.time import message_time_s
from parallel_lab.lab.classroom.hidden import marks
from parallel_lab.lab.exercises import get_exercise, lesson_11, plan_points, probe, three_products
from parallel_lab.lab.exercises.ranks_agree import step_s
from parallel_lab.lab.lessons import choose
from parallel_lab.processes.shm import close_all
from tests.crossed import each_of
from tests.lab.verdicts import check, failed, passes, told

FEWEST = {"matmul2": ((2, 1), (1, 4))}

# ---- right answers ----


def formula_step(n, compute, size, alpha, beta):
    return compute / n + 2 * (n - 1) * (alpha + beta * size / n)


def doubled(most, compute_s, size_bytes, alpha_s, beta_s_per_byte, gain):
    """Step by step."""
    ranks, step_s = 1, compute_s
    while 2 * ranks <= most:
        faster_s = compute_s / (2 * ranks) + 2 * (2 * ranks - 1) * (alpha_s + beta_s_per_byte * size_bytes / 2 / ranks)
        if faster_s * gain > step_s:
            break
        ranks, step_s = 2 * ranks, faster_s
    return ranks


def last_that_pays(most, *case):
    """The last of all counts that pays: the ratio of two steps only falls, so it is the answer."""
    *costs, gain = case
    counts = 2 ** np.arange(int(math.log2(most)) + 1)
    steps = np.array([formula_step(n, *costs) for n in counts])
    return int(counts[np.flatnonzero([True, *(steps[:-1] >= gain * steps[1:])])[-1]])


def formula_count(p, rows, row, start):
    return min((m for m in range(p, rows + 1) if rows % m == 0), key=lambda m: (m + p - 1) * (start + row * rows / m))


def neighbours_count(stages, rows, row_s, start_s):
    root = math.sqrt((stages - 1) * rows * row_s / start_s)
    counts = [m for m in range(stages, rows + 1) if rows % m == 0]
    near = [max([m for m in counts if m <= root], default=counts[0]), min([m for m in counts if m >= root])]
    times = [(m + stages - 1) * (start_s + rows // m * row_s) for m in near]
    return near[times.index(min(times))]


def formula_nodes(strategy, per_node):
    (m, k), _ = strategy
    return len({i * (8 // (m * k)) // per_node for i in range(k)})


def counted_nodes(strategy, per_node):
    (m, k), (_, n) = strategy
    copies = 8 // (m * k * n)
    places = list(itertools.product(range(m), range(k), range(n), range(copies)))
    return len({rank // per_node for rank, place in enumerate(places) if (place[0], *place[2:]) == (0, 0, 0)})


def searched(ask):
    """From t4, one count after the other, by factors of two."""
    best, at = None, {"d": 4, "t": 4, "p": 4}
    for give, take in [("d", "p"), ("p", "d"), ("t", "p"), ("d", "t")]:
        for more in ("", " zero1"):
            tried = {**at, give: at[give] // 2, take: at[take] * 2}
            text = " ".join(f"{name}{count}" for name, count in tried.items()) + " b1" + more
            seconds = ask(text)
            if seconds is not None and (best is None or seconds < best):
                best = seconds
    return best


RIGHT = {
    "11.1": [FEWEST, {"matmul2": "((2, 1), (1, 4))"}, {"matmul2": [[2, 1], [1, 4]]}],
    "11.3": [doubled, last_that_pays],
    "11.4": [formula_count, neighbours_count],
    "11.5": [formula_nodes, counted_nodes],
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", RIGHT)
def test_an_exercise_is_sound(number):
    """The start earns nothing, right answers pass, each belief has its own note."""
    assert probe(get_exercise(number), RIGHT[number], junk=()) == []


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_the_game_is_sound_and_its_par_is_the_fastest_of_all_plans():
    winner = plan_points.solved().winner
    assert probe(get_exercise("11.2"), [["d2 t4 p8 b1 zero1"], searched]) == []
    fastest = min(found.step_s for found in all_predictions() if found.fits)
    assert winner.step_s == pytest.approx(fastest, rel=1e-12)
    assert eval(get_exercise("11.2").par()) == [plan_points.plan_text(winner.point)]
    near = check("11.2", ["d4 t4 p4 b1"])
    assert "1.011 x par" in near.parts[2].found and "divide among" in near.parts[2].note


def all_predictions():
    for point in plan_points.plans():
        try:
            yield plan_points.predicted(point)
        except ArgumentError:  # more stages than micro-batches
            continue


# ---- 11.1 ----


def test_no_choice_of_the_other_two_sends_less_than_par():
    fewest = round(three_products.least().best.cost)
    names, (_, *others) = three_products.operators(), three_products.operators().values()
    for second, third in itertools.product(*others):
        strategies = dict(zip(names, (three_products.GIVEN["matmul1"], second, third), strict=True))
        problem = three_products.least().problem
        assert problem.cost(problem.chosen(strategies)) >= fewest
    assert three_products.sent_bytes_of(three_products.spread(FEWEST)) == fewest


def test_propagation_sends_nothing_between_products_and_the_large_sum_within_them():
    """2 (p - 1)/p of the (1024, 1024) result forward, nothing else: no gradient is a partial sum where k is split."""
    strategies = three_products.spread({})
    assert strategies["matmul2"] == ((1, 8), (8, 1)) and strategies["matmul3"] == ((1, 1), (1, 8))
    forward, backward = 2 * 7 * 1024 * 1024 * 4 // 8, 2 * 7 * 1024 * 1024 * 4 // 8
    assert three_products.sent_bytes_of(strategies) == forward + backward
    assert 20 < (forward + backward) / three_products.least().best.cost < 30


@pytest.mark.quick(7)
@each_of(
    ("number", "answer", "part", "words"),
    ("11.1", {"matmul3": ((8, 1), (1, 1))}, "half of propagation's", "matmul2 still follows matmul1"),
    ("11.1", {"matmul2": ((1, 4), (4, 2))}, "par", "k of matmul2 is still split"),
    ("11.1", {"matmul2": ((8, 1), (1, 1))}, "par", "974,848 bytes sent by a rank, counted in the plan: 1.75 x par"),
    ("11.1", {"matmul2": ((1, 1), (1, 8))}, "par", "Columns only"),
    ("11.1", {"matmul2": ((4, 1), (1, 2))}, "par", "the right kind"),
    ("11.1", {"matmul1": ((8, 1), (1, 1))}, "one operator", "matmul2 or matmul3"),
    ("11.1", {"matmul2": ((3, 1), (1, 1))}, "one operator", "powers of two"),
    ("11.1", {**FEWEST, "matmul3": ((2, 4), (4, 1))}, "one operator", "2 operators"),
    ("11.2", ["d8 t8 p1 b1"], "one fits", "no plan fits"),
    ("11.2", ["d4 t8 p4 b1"], "questions", "128 devices"),
    ("11.2", ["d4 t16 p1 b1"], "questions", "t up to 8"),
    ("11.2", ["fast"], "questions", "question 1: plan: 'fast'"),
)
def test_a_wrong_choice_hears_why(number, answer, part, words):
    assert words in told(number, answer, part)


def test_question_21_is_not_answered_and_a_plan_asked_again_does_not_count(monkeypatch):
    monkeypatch.setattr(plan_points, "predicted", lambda point: "not looked at")
    texts = [plan_points.plan_text(point) for point in plan_points.plans()]
    assert all(plan_points.read_plan(text) in plan_points.plans() for text in texts) and len(set(texts)) == len(texts)
    ask = plan_points.Game()
    for text in (*texts[:20], *texts[:20]):
        ask(text)
    with pytest.raises(ArgumentError, match="question 21"):
        ask(texts[20])
    verdict = check("11.2", texts[:21])
    assert "question 21" in failed(verdict)["questions"].found


@pytest.mark.exhaustive
@pytest.mark.parametrize(("number", "worth"), [("11.3", 3), ("11.4", 3), ("11.5", 3)])
def test_right_answers_hold_on_drawn_inputs_and_a_table_of_the_shown_ones_does_not(number, worth):
    for answer in RIGHT[number]:
        assert marks(number, answer, seed=7) == worth
    shown = {"11.3": [*lesson_11.ENOUGH, *lesson_11.ENDS], "11.4": lesson_11.PIPELINES, "11.5": lesson_11.PLACED}
    table = {case: RIGHT[number][0](*case) for case in shown[number]}
    assert marks(number, lambda *case: table.get(case, 0), seed=7) == 0


def test_a_misconception_is_named():
    for number, name in (
        ("11.3", "twice the ranks, twice the speed"),
        ("11.4", "more micro-batches are free"),
        ("11.5", "a strategy names nodes"),
    ):
        idea = next(i for i in get_exercise(number).ideas if i.name == name)
        assert failed(check(number, idea.answer))[idea.part].idea == name


def in_nodes(per_node, far, count):
    """Nodes of so many ranks, each `far` from the one before."""
    return len({i * far // per_node for i in range(count)})


@each_of(
    ("answer", "words"),
    (lambda s, per_node: counted_nodes((s[0][::-1], s[1]), per_node), "That takes m for k"),
    (lambda s, per_node: in_nodes(per_node, 8 // s[0][0], s[0][0]), "That counts the ranks of m"),
    (lambda s, per_node: in_nodes(per_node, 1, s[0][1]), "Only where k is the last axis"),
    (lambda s, per_node: s[0][1], "several of them may be in one node"),
)
def test_nodes_of_other_ranks_are_explained(answer, words):
    assert words in failed(check("11.5", answer))["nodes"].note


def test_the_right_answers_are_the_clocks_and_the_plans():
    assert all(lesson_11._best_count(*case) == formula_count(*case) for case in lesson_11.PIPELINES)
    assert all(lesson_11._nodes(*case) == counted_nodes(*case) for case in lesson_11.PLACED)


# ---- the notebook's own calls ----


@pytest.mark.exhaustive
def test_the_lessons_answers_are_those_of_the_plans():
    rows = choose.compare({"times": 25, "speed_up": 2, "micro_batches": 64, "nodes": 1, "half": "both"}).rows
    assert [row[2:4] for row in rows] == [(25, 25), (1, 1), (16, 16), (2, 2), ("recompute layers",) * 2]
    assert formula_step(32, 0.8, 10**8, 1e-5, 1e-9) / formula_step(64, 0.8, 10**8, 1e-5, 1e-9) < 1.1


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_both_choices_train_as_one_device_and_a_pipeline_that_keeps_too_much_is_refused():
    try:
        assert choose.prove(FEWEST).count("equal to one device") == 2
    finally:
        close_all()
    assert "predicted" in choose.training("1f1b", 64)
    with pytest.raises(ArgumentError, match="none of 1 points"):
        choose.training("gpipe", 64)
    assert passes(check("11.1", FEWEST), 4)


def test_a_step_of_n_ranks_has_the_all_reduce_of_the_cost_model():
    for ranks in (1, 2, 8, 64, 1024):
        compute_s, size_bytes, alpha_s, beta = lesson_11.EXAMPLE
        sent_s = message_time_s("all_reduce", size_bytes, ranks, Link(alpha_s, beta), 0.0)
        took_s = step_s(compute_s, size_bytes, ranks, alpha_s, beta)
        assert took_s == pytest.approx(compute_s / ranks + sent_s, rel=1e-12)


def test_where_the_last_doubling_pays_by_hand():
    """2 s of compute, no start-ups, 1 s per sent gradient: 2; 1 + 1 = 2; 0.5 + 1.5 = 2 s. With a quarter of the bytes
    2; 1.25; 0.875; 0.6875 s: 1.6, 1.43 and 1.27 times as fast."""
    assert [lesson_11._enough(64, 2.0, size, 0.0, 1.0, 1.4) for size in (1, 0.25)] == [1, 4]
    assert lesson_11._enough(2, 2.0, 0.25, 0.0, 1.0, 1.4) == 2
