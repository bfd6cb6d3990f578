"""Lesson 16's exercises: right answers pass, wrong ones hear what they are; pars are the least that there is."""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from parallel_lab.cost.expert_placement import place_experts
from parallel_lab.cost.planner.predict import predict_point
from parallel_lab.lab.exercises import get_exercise, judge_drawn, lesson_16
from parallel_lab.lab.exercises.lesson_16 import DEVICES, LEAST_ROWS, LOAD, ROOM
from parallel_lab.lab.lessons import expert_parallel
from parallel_lab.ops.expert_rows import exchange_splits
from tests.crossed import each_of
from tests.lab.verdicts import check, failed, passes, told


def own_sums(table, owners):
    sums = np.zeros((len(table),) * 2, int)
    np.add.at(sums.T, owners, table.T)
    return sums


@each_of(
    ("number", "answer", "part", "words"),
    # 8 tokens, 8 experts, 2 for each: 2 slots for a factor of 1; Mesh-TF's rule gives 1
    ("16.1", lambda t, e, k, f: int(t * f / e), "slots", "a capacity factor counts tokens"),
    ("16.1", lambda t, e, k, f: int(t * k / e * f), "slots", "Rounded down"),
    ("16.1", lambda t, e, k, f: k * int(f * -(-t // e)), "slots", "Tutel"),
    ("16.1", lambda t, e, k, f: float("nan"), "slots", "nan"),
    ("16.2", lambda rank, *of: (own_sums(*of)[:, rank], own_sums(*of)[rank]), "4 ranks", "exchanged"),
    ("16.2", lambda rank, counts, owners: (counts[rank], counts[:, rank]), "4 ranks", "add up the columns"),
    ("16.2", lambda rank, *of: (own_sums(*of)[rank],) * 2, "4 ranks", "gets a column"),
    ("16.2", lambda rank, counts, owners: [x[rank] for x in exchange_splits(counts)], "4 ranks", "next to each other"),
    ("16.2", lambda rank, counts, owners: np.zeros((3, 3)), "4 ranks", ""),
    # dp 4, ep 4: one device's is a mean over 4 ranks, an expert has one copy: 4 times too large; by 8 experts half
    ("16.3", lambda tp, cp, dp, ep, e: tp * cp * dp // ep, "divisor", "4 x one device's"),
    ("16.3", lambda tp, cp, dp, ep, e: tp * cp * dp // ep, "divisor", "an expert is averaged over its copies"),
    ("16.3", lambda tp, cp, dp, ep, e: cp * dp // ep, "divisor", "Those are copies"),
    ("16.3", lambda tp, cp, dp, ep, e: e, "divisor", "0.5 x one device's"),
    ("16.3", lambda tp, cp, dp, ep, e: tp * cp * dp, "divisor", "same tokens"),
    ("16.3", lambda tp, cp, dp, ep, e: dp, "divisor", "a mean of their own"),
    ("16.4", [[0, 1, 2]] * 4, "places", "A list of 4 lists"),
    ("16.4", [[0, 1, 2, 3], [4, 5], [6, 7, 0], [1, 2, 3]], "places", "A list of 4 lists"),
    ("16.4", [[0.0] * 3] * 4, "places", "A list of 4 lists"),
    ("16.4", place_experts(LOAD, 12, 4).devices, "beats EPLB", "48.5 rows"),
    (
        "16.5",
        {"tensor": 1, "context": 32, "stages": 1, "expert": 1},
        "fits",
        "every rank of a sequence has all weights",
    ),
    ("16.5", {"tensor": 2, "context": 4, "stages": 8, "expert": 4}, "near par", "What it loses most by"),
    ("16.5", {"tensor": 1, "context": 3, "stages": 1, "expert": 8}, "a run", "powers of two"),
    ("16.5", {"tensor": 2, "context": 4, "stages": 2, "expert": 8, "step_s": 0}, "a run", "powers of two"),
    ("16.5", {"tensor": True, "context": 4, "stages": 2, "expert": 8}, "a run", "powers of two"),
)
def test_a_wrong_answer_hears_what_it_is(number, answer, part, words):
    assert words in f"{told(number, answer, part)} {failed(check(number, answer))[part].idea}"


def test_a_function_of_an_earlier_edition_is_graded():
    """Experts in order, as many on each rank; known by its name."""

    def splits(rank, counts):
        sent = counts.reshape(len(counts), len(counts), -1).sum(axis=2)
        return sent[rank], sent[:, rank]

    assert judge_drawn(get_exercise("16.2"), splits, {}, seed=1).points == 4


def test_no_copies_and_no_packing_make_the_busiest_device_better_than_par():
    """For every number of copies (12 places, 8 experts) a search for four sums of three parts each below par."""

    def copies(places, experts):
        if experts == 1:
            yield (places,)
        for own in range(1, places - experts + 2) if experts > 1 else ():
            yield from ((own, *rest) for rest in copies(places - own, experts - 1))

    def packs(parts, sums, room, most):
        if not parts:
            return True
        for at in {(sums[d], room[d]): d for d in range(DEVICES) if room[d]}.values():
            if sums[at] + parts[0] <= most:
                more, less = ([*values] for values in (sums, room))
                more[at], less[at] = sums[at] + parts[0], room[at] - 1
                if packs(parts[1:], more, less, most):
                    return True
        return False

    def reached(most):
        every = (
            sorted(np.repeat(np.divide(LOAD, own), own), reverse=True) for own in copies(DEVICES * ROOM, len(LOAD))
        )
        return any(parts[0] <= most and packs(parts, [0.0] * DEVICES, [ROOM] * DEVICES, most) for parts in every)

    assert reached(LEAST_ROWS + 1e-9) and not reached(LEAST_ROWS - 1e-6)


def test_par_of_the_letters_is_the_fastest_run_within_both_budgets():
    """Every run that the planner's space has, priced one by one; the planner's own winner sends too much."""
    found, right = lesson_16._found(), []
    for verdict in found.verdicts:
        if verdict.kind not in ("misfit", "states"):
            run = predict_point(lesson_16.MODEL, verdict.point, found.machine)
            if run.memory_bytes <= lesson_16.CAP and sum(run.sent_bytes.values()) <= lesson_16.SENT:
                right.append((run.step_s, {name: getattr(run.point, name) for name in lesson_16.LETTERS}))
    right.sort(key=itemgetter(0))
    assert passes(check("16.5", right[0][1]), 5) and not failed(check("16.5", right[0][1]))
    assert "par" in failed(check("16.5", right[1][1])) and right[1][0] > right[0][0]
    for run in (found.winner, *found.line):  # what search_plans gives
        letters = {name: getattr(run.point, name) for name in lesson_16.LETTERS}
        assert letters == right[0][1] or {"fits", "par"} & {*failed(check("16.5", letters))}
    assert "fits" in failed(check("16.5", {name: getattr(found.winner.point, name) for name in lesson_16.LETTERS}))


def test_a_run_that_sends_too_much_does_not_name_a_better_one():
    """The planner leaves runs out because a better one bounds them, and says which: that would be the answer."""
    found = check("16.5", {"tensor": 8, "context": 1, "stages": 2, "expert": 8})
    # sent inside and between nodes: 360.8 and 17.5 of 1e9 bytes
    assert [p.found for p in found.parts if p.name == "fits"] == ["it needs 54 GiB, and sends 352 GiB"]


def test_predictions_are_compared_with_counts():
    rows = expert_parallel.compare({"sent": 2048, "places": 1.857, "dropped": 0})._cells()
    assert [row[2:5] for row in rows] == [
        ("1536", "1536", "not yet"),
        ("1.857", "1.857", "right"),
        ("23", "23", "not yet"),
    ]
