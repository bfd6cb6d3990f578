"""Numbers of a learner's own: they follow from the name, right answers to them pass, another learner's do not."""

from __future__ import annotations

import itertools
import json
import os
import unicodedata

import numpy as np
import pytest

from parallel_lab.base.cluster import Link
from parallel_lab.base.errors import ArgumentError
from parallel_lab.base.settings.fusion_rules import size_groups_by_bytes
from parallel_lab.cost.overlap import predict_overlap
from parallel_lab.cost.recompute import predict_choice
from parallel_lab.cost.schedules import make_schedule
from parallel_lab.lab.classroom import hidden
from parallel_lab.lab.collectives.all_reduce_menu import AllReduceMenu
from parallel_lab.lab.exercises import (
    Wrong,
    all_exercises,
    get_exercise,
    judge,
    judge_drawn,
    lesson_02,
    lesson_04,
    lesson_08,
    lesson_09,
    lesson_16,
    probe,
)
from parallel_lab.lab.exercises.book import LEARNER, Desk
from parallel_lab.lab.fusion.subjects import GOLF, MB
from parallel_lab.lab.memory.subjects import WIDTHS, Settings, get_subject
from parallel_lab.lab.recompute.chain import LAYERS
from tests.lab.recorded_puzzles import fewest_bytes, solution
from tests.lab.test_exercises_08 import peak
from tests.lab.test_exercises_16 import packing

OWN = {exercise.number: exercise for exercise in all_exercises() if exercise.own is not None}
CLASS = [f"student {n}" for n in range(30)]


def numbers_of(number, name):
    """What the grader of a learner's exercise goes by: a menu, a line, bytes, sizes, caps."""
    return OWN[number].of(name).grader.args[0]


# ---- right answers, from the numbers alone ----


def cheapest(menu):
    """Order by order, the algorithm with the least time."""
    return {
        order.size_bytes: min(price, key=price.get) for order, price in zip(menu.orders, menu.prices_s, strict=True)
    }


def cheapest_of_all(menu):
    """Every choice of the whole menu, by its score."""
    return list(min(itertools.product(menu.names, repeat=len(menu.orders)), key=lambda c: menu.score(c).time_s))


def best_split(line):
    """All 512 ways to split the list."""
    ways = itertools.chain.from_iterable(itertools.combinations(range(9), n) for n in range(10))

    def step_s(ends):
        return predict_overlap(GOLF, [sum(end < n for end in ends) for n in range(10)], line).step_s

    return list(min(ways, key=step_s))


def widest(capacity):
    return {"width": max(w for w in WIDTHS if w <= 640 and peak(w, level="level3") <= capacity), "level": "level3"}


def as_the_hint_says(sizes):
    """Through time: each rank does what has come, a backward first, else a forward that it has memory for."""
    (puzzle,) = sizes.puzzles("09.2")
    ranks, count = range(sizes.stages), sizes.micro_batches
    ended, free, done = {}, [0.0 for _ in ranks], [{"F": 0, "B": 0} for _ in ranks]
    lanes = [[] for _ in ranks]
    while any(len(lane) < 2 * count for lane in lanes):
        ready = []
        for rank in ranks:
            for kind, source in (("B", rank + 1), ("F", rank - 1)):
                n = done[rank][kind]
                room = n - done[rank]["B"] < puzzle.cap if kind == "F" else n < done[rank]["F"]
                came = ended.get((source, kind, n)) if source in ranks else 0.0
                if n < count and room and came is not None:
                    late = puzzle.borders[min(rank, source)] if source in ranks else 0.0
                    ready.append((max(free[rank], came + late), rank, kind, n))
        start, rank, kind, n = min(ready)
        free[rank] = ended[rank, kind, n] = start + 1
        done[rank][kind] += 1
        lanes[rank].append(f"{rank}{kind}{n}")
    return lanes


def recorded(number, sizes):
    return {puzzle.cap: solution(puzzle.name) for puzzle in sizes.puzzles(number)}


def fewest_again(caps):
    """Those of all 4096 choices that fit."""
    ways = [predict_choice(LAYERS, again) for again in itertools.product((False, True), repeat=len(LAYERS))]
    best = {cap: min((w for w in ways if w.peak_bytes <= cap), key=lambda w: w.extra_s) for cap in caps}
    return {cap: [n for n, on in enumerate(found.recompute) if on] for cap, found in best.items()}


def behind_products(own):
    """Norms, and what is behind fc2: its bias, and the scale if that is there."""
    names = [f"{n}.norm.{name}" for n in range(len(own.layers)) for name in ("gamma", "beta")]
    names += [f"{n}.fc2.bias" for n, (_, bias, _) in enumerate(own.layers) if bias]
    return names + [f"{n}.scale" for n, (*_, behind) in enumerate(own.layers) if behind == 2]


def by_exchanges(puzzle):
    """As the hint says: from striped on the best exchange of two chunks, as long as it helps."""
    owners, exchanges = [chunk % 4 for chunk in range(12)], list(itertools.combinations(range(12), 2))

    def exchanged(i, j):
        return [owners[j if at == i else i if at == j else at] for at in range(12)]

    while True:
        best = min((exchanged(*pair) for pair in exchanges), key=lambda one: puzzle.ring(one).exposed)
        if puzzle.ring(best).exposed >= puzzle.ring(owners).exposed:
            return owners
        owners = best


def packed(load):
    return packing(load, lesson_16.LOADS[load] + 1e-9)


def fastest(budgets):
    return dict(zip(lesson_16.LETTERS, lesson_16.letters_of(budgets._best.point), strict=True))


STYLES = {
    "02.4": (cheapest, cheapest_of_all),
    "04.2": (best_split, lambda line: np.array(best_split(line))),
    "09.2": (as_the_hint_says, lambda sizes: next(iter(recorded("09.2", sizes).values()))),
    "09.3": (
        lambda sizes: recorded("09.3", sizes),
        lambda sizes: {cap: text.splitlines() for cap, text in recorded("09.3", sizes).items()},
    ),
    "10.1": (fewest_again, lambda caps: {cap: set(layers) for cap, layers in fewest_again(caps).items()}),
    "14.3": (behind_products, lambda own: set(behind_products(own))),
    "15.4": (by_exchanges, lambda puzzle: np.array(by_exchanges(puzzle))),
    "16.4": (packed, lambda load: np.array(packed(load)).tolist()),
    "17.5": (fewest_bytes, lambda puzzle: np.array(fewest_bytes(puzzle), object)),
    "16.5": (fastest, lambda budgets: {name: np.int64(count) for name, count in fastest(budgets).items()}),
}


def given_for(number, sizes):
    if number != "09.2":
        return {}
    return {"two_parts": make_schedule("interleaved", sizes.stages, 2 * sizes.stages, 2)}


def right_for(number, name, style=0):
    numbers = numbers_of(number, name)
    return STYLES[number][style](numbers), given_for(number, numbers)


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", ["02.4", "04.2"])
def test_right_answers_to_ones_own_numbers_pass_and_those_to_the_common_ones_do_not(number):
    mine, common = OWN[number].of("Ada"), OWN[number]
    for style in range(2):
        answer, given = right_for(number, "Ada", style)
        assert judge(mine, answer, given).passed, str(judge(mine, answer, given))
    assert not judge(common, answer, given).passed
    assert mine.numbers.partition("\n")[0] in mine.title and mine.numbers != common.numbers


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CLASS[:8])
@pytest.mark.parametrize("number", STYLES)
def test_every_learners_numbers_can_be_solved_in_two_styles(number, name):
    for style in range(2):
        answer, given = right_for(number, name, style)
        verdict = judge(OWN[number].of(name), answer, given)
        assert verdict.passed, str(verdict)


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CLASS[:1])
def test_the_widest_model_under_ones_own_cap_passes_and_cutting_all_memory_is_recognised(name):
    mine, capacity = OWN["08.3"].of(name), numbers_of("08.3", name)
    answer = widest(capacity)
    assert judge(mine, answer, {}).passed, str(judge(mine, answer, {}))
    assert judge(
        mine, {**answer, "width": np.float64(answer["width"]), "parallel_mode": "semi_auto_parallel"}, {}
    ).passed
    all_cut = max(w for w in WIDTHS if predicted_without(w) <= 8 * capacity)
    fits = judge(mine, {"width": all_cut, "level": "level3"}, {}).first_failure
    assert (fits.name, fits.idea) == ("fits", "ZeRO cuts all memory") and f"Your {all_cut}" in fits.note


def predicted_without(width):
    from parallel_lab.lab.memory.count import predicted_ranks

    given = Settings(devices=8, optimizer="Adam", level="off")
    return predicted_ranks(get_subject("stack").job(width).compile(given))[0].peak_bytes


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", OWN)
def test_an_exercise_with_ones_own_numbers_is_sound(number):
    """As the common one: the start is not tried, each idea is recognised by name, junk gets words within 5 s."""
    right = [right_for(number, "Ada")[0]] if number in STYLES and number != "09.2" else []
    assert probe(OWN[number].of("Ada"), right) == []


@pytest.mark.exhaustive
def test_a_class_has_many_different_numbers():
    """Of 30 students at least 9 different tasks each, and all have their own in the whole course."""
    told = {number: [exercise.of(name).numbers for name in CLASS] for number, exercise in OWN.items()}
    assert OWN.keys() == {"02.4", "04.2", "08.3", "09.2", "09.3", "10.1", "14.3", "15.4", "16.4", "16.5", "17.5"}
    assert all(len(set(texts)) >= 9 for texts in told.values()), {n: len(set(t)) for n, t in told.items()}
    assert len(set(zip(*told.values(), strict=True))) == len(CLASS)


def test_numbers_follow_from_the_name_however_it_is_spaced():
    for exercise in OWN.values():
        assert exercise.of(" ada  L").numbers == exercise.of("Ada l").numbers != exercise.of("Bob").numbers
        assert exercise.of(" ") is exercise
    assert get_exercise("03.2").of("Ada") is get_exercise("03.2")


@pytest.mark.parametrize("name", ["José Núñez", "Nguyễn Văn A", "Zoë"])
def test_numbers_are_the_same_however_a_system_writes_the_letters(name):
    """A folder's name on a Mac takes letters and accents apart; what is typed into a notebook has them as one."""
    composed, apart = (unicodedata.normalize(form, name) for form in ("NFC", "NFD"))
    for exercise in OWN.values():
        assert composed != apart and exercise.of(apart).numbers == exercise.of(composed).numbers


def test_a_folder_whose_name_is_not_text_has_numbers_too():
    name = os.fsdecode(b"stud\xffent")
    for exercise in OWN.values():
        assert exercise.of(name).numbers == exercise.of(name).numbers
        assert any(exercise.of(name).numbers != exercise.of(other).numbers for other in ("student", "Ada", "Grace"))


@pytest.mark.exhaustive
def test_a_desk_goes_by_the_learner(tmp_path, monkeypatch):
    monkeypatch.delenv(LEARNER, raising=False)
    desk, answer = Desk(), right_for("10.1", "Ada")[0]
    assert "caps of 30, 40 and 50" in desk.numbers("10.1") and "all have the same" in desk.numbers("03.2")
    assert "10.1" in desk.learner("Ada") and desk.numbers("10.1") == f"10.1: {OWN['10.1'].of('Ada').numbers}"
    assert desk.check("10.1", answer).passed and str(min(answer)) in desk.par("10.1").text
    desk.save_results(tmp_path / "ada.json")
    assert json.loads((tmp_path / "ada.json").read_text())["learner"] == "Ada"
    assert "numbers of the text" in desk.learner("")
    with pytest.raises(ArgumentError, match="no attempt of your own"):
        desk.par("10.1")  # Ada's attempt opens nobody else's
    assert not desk.check("10.1", answer).passed
    monkeypatch.setenv(LEARNER, "ada")
    assert desk.check("10.1", answer).passed
    with pytest.raises(ArgumentError, match="exercise"):
        desk.numbers("10.9")


@pytest.mark.exhaustive
def test_marks_are_for_the_students_own_numbers_whatever_the_notebook_says(monkeypatch):
    monkeypatch.setenv(LEARNER, "")
    answer, common = cheapest(numbers_of("02.4", "Ada")), cheapest(numbers_of("02.4", ""))
    other = next(name for name in CLASS if cheapest(numbers_of("02.4", name)) != answer)
    assert answer != common and hidden.marks("02.4", common, seed=1) == 5 > hidden.marks("02.4", answer, seed=1)
    hidden.ready("Ada")
    assert hidden.marks("02.4", answer, seed=1) == 5 > hidden.marks("02.4", common, seed=1)
    hidden.ready(other)
    assert hidden.marks("02.4", answer, seed=1) < 5


def test_a_learner_cannot_choose_the_numbers_by_an_argument():
    verdict = judge(OWN["10.1"], {72: [], 73: [], 74: []}, {"caps": (72, 73, 74)})
    assert not verdict.passed and verdict.points == 0


def test_a_part_that_fails_on_drawn_inputs_says_so_and_a_fault_in_it_does_not_crash():
    seen = {(4, 4, 4, 4): [0.25] * 4}
    verdict = judge_drawn(get_exercise("03.2"), lambda rows: seen[tuple(rows)], {}, 5)
    assert verdict.points == 0 and "Right for what check shows" in verdict.parts[0].note
    with pytest.raises(Wrong):
        get_exercise("03.2").drawn["equal rows"](lambda rows: [1.0], np.random.default_rng(1))


def test_a_schedule_for_other_sizes_hears_the_number_of_ranks_and_micro_batches():
    name = next(n for n in CLASS if numbers_of("09.2", n).stages == 3)
    first = judge(OWN["09.2"].of(name), make_schedule("1f1b", 4, 8), {}).first_failure
    assert "4 ranks" in first.found and "3" in first.form
    assert numbers_of("09.2", "") == lesson_09.SIZES_BY_HAND


def test_numbers_that_can_be_guessed_pass_the_check_and_earn_nothing():
    """06.1's tensor is 0, 1, 2, ...: a rank can write down its columns without a message."""

    def guessed(rank, ranks, rows):
        height, width = rows.shape[0] * ranks, rows.shape[1]
        return np.split(np.arange(height * width, dtype=np.float32).reshape(height, width), ranks, axis=1)[rank]
        yield

    exercise = get_exercise("06.1")
    assert judge(exercise, guessed, {}).points == 4 and judge_drawn(exercise, guessed, {}, seed=1).points == 0


# ---- every learner can pass every part ----


@pytest.mark.exhaustive
@pytest.mark.parametrize("start_ms", lesson_04.OWN_STARTS_MS)
def test_on_every_line_a_list_beats_all_thresholds_and_a_threshold_all_in_one(start_ms):
    """As in the common puzzle; and neither everything fused nor nothing is at par."""
    sizes = [gradient.size_bytes for gradient in GOLF]
    for ms_per_mb in lesson_04.OWN_MS_PER_MB:
        line = Link(start_ms * 1e-3, ms_per_mb * 1e-3 / MB)

        def step_s(groups, line=line):
            return predict_overlap(GOLF, groups, line).step_s

        ends = best_split(line)
        par_s = step_s([sum(end < n for end in ends) for n in range(10)])
        by_size_s = min(step_s(size_groups_by_bytes(sizes, mb)) for mb in range(sum(sizes) // MB + 1))
        assert par_s < by_size_s * (1 - 1e-6) and by_size_s <= min(step_s([0] * 10), step_s(range(10)))


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_for_no_machine_is_a_ring_best_for_everything():
    for ranks, us, gb in itertools.product(lesson_02.OWN_RANKS, lesson_02.OWN_STARTS_US, lesson_02.OWN_GB_PER_S):
        menu = AllReduceMenu(ranks=ranks, link=Link(us * 1e-6, 1e-9 / gb))
        assert set(menu.par) != {"ring"} and menu.prices_s[0]["ring"] > min(menu.prices_s[0].values())


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stages", [3, 4, 6])
def test_interleaved_is_at_the_proved_par_of_two_parts(stages):
    """Its formula: 2 (2 m + p - 1)."""
    found = lesson_09._two_parts_par(lesson_09.Sizes(stages, 2 * stages))
    assert found.proved and found.makespan == 2 * (2 * 2 * stages + stages - 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("capacity", [lesson_08.OWN_CAPACITIES[0], lesson_08.OWN_CAPACITIES[-1]])
def test_a_level_fits_more_than_none_under_the_smallest_and_the_largest_memory(capacity):
    without = max(w for w in WIDTHS if w <= 448 and peak(w, level="off") <= capacity)
    assert peak(without + WIDTHS.step, level="level3") <= capacity < peak(WIDTHS[-1], level="level3")
