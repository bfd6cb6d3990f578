"""The capstone's par is proved, and no call, loop, plan, search, link or preset of the package reaches it.

A step of a layout is never shorter, and no rank of it sends less, than of the same layout with fewer blocks recomputed:
recomputing adds instructions to a stage and takes none away. And what a stage holds and sends depends on its own blocks
alone. So a search over 32,768 layouts looks at some 400 plans.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations, islice, product
from math import comb

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.planner import Transformer, search_plans
from parallel_lab.lab.exercises import Part, book, capstone, get_exercise, lesson_12, progress
from parallel_lab.lab.exercises.capstone import (
    BLOCKS,
    DEVICES,
    LEVELS,
    MACHINE,
    RUNS,
    SCHEDULES,
    WAYS,
    Composed,
    Layout,
    tries_of,
)
from parallel_lab.lab.lessons import compose

CAP, BUDGET, PAR_S = lesson_12.CAP, lesson_12.BUDGET, lesson_12.PAR_S


def layouts() -> Iterator[Layout]:
    """All there are, without those that change nothing: a level with dp 1, a schedule without stages."""
    sets = [one for count in range(BLOCKS + 1) for one in combinations(range(BLOCKS), count)]
    for dp, tp, m, schedule, level in product(WAYS, WAYS, WAYS, SCHEDULES, LEVELS):
        stages = DEVICES // (dp * tp)
        if (
            dp * tp * stages == DEVICES
            and m >= stages
            and (level == "off" or dp > 1)
            and (schedule == "1f1b" or stages > 1)
        ):
            yield from (Layout(dp, tp, level, again, stages, m, schedule) for again in sets)


BASES = [layout for layout in layouts() if not layout.recompute]


def of(base, again):
    return Layout(base.dp, base.tp, base.level, tuple(again), base.stages, base.micro_batches, base.schedule)


def priced(layout):
    """(seconds of a step, what the fullest rank of each stage holds, what the one that sends most sends)."""
    one, ranks = Composed(layout), DEVICES // layout.stages
    each = [one.predicted[first : first + ranks] for first in range(0, DEVICES, ranks)]
    held, sent = (tuple(max(getattr(c, of) for c in stage) for stage in each) for of in ("peak_bytes", "sent_bytes"))
    return one.step_s, held, sent


# ---- how many there are, and par ----


def test_there_are_32768layouts():
    """With one stage: dp 1 with any of 4 numbers of micro-batches, three other dp with 4 levels each as well;
    with stages both schedules, and at least as many micro-batches as stages. Each with any of 2^8 sets of blocks."""
    kinds = 0
    for power in range(4):  # 2^power stages
        rows = 3 - power  # dp is 1, 2, ... 2^rows
        kinds += (4 - power) * (2 if power else 1) * (1 + 4 * rows)
    assert kinds == len(BASES) == 128 and sum(comb(BLOCKS, n) for n in range(BLOCKS + 1)) == 256
    assert len(set(layouts())) == 128 * 256 == 32_768


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, 12))])
def test_a_layout_is_what_its_stages_are(seed):
    rng = np.random.default_rng(seed)
    base = [one for one in BASES if one.stages > 1][rng.integers(76)]
    width = BLOCKS // base.stages
    again = [n for n in range(BLOCKS) if rng.random() < 0.5]
    time_s, held, sent = priced(of(base, again))
    least_s, _, least = priced(base)
    assert time_s >= least_s and all(a >= b for a, b in zip(sent, least, strict=True))
    for stage in range(base.stages):
        mine = {n % width for n in again if n // width == stage}
        _, alike, alike_sent = priced(of(base, [n for n in range(BLOCKS) if n % width in mine]))
        assert (held[stage], sent[stage]) == (alike[stage], alike_sent[stage])


def shortest(base):
    """The shortest step of these layouts within both budgets; infinity where none is below or at par."""
    width = BLOCKS // base.stages
    least_s, _, least = priced(base)
    if least_s > PAR_S * (1 + 1e-9) or max(least) > BUDGET:
        return float("inf")
    fitting = [[] for _ in range(base.stages)]  # of each stage, sets of its blocks: no other one that fits is inside
    slow = []
    for count in range(width + 1):
        for mine in combinations(range(width), count):
            if any(set(less) <= set(mine) for less in slow):
                continue
            time_s, held, sent = priced(of(base, [n for n in range(BLOCKS) if n % width in mine]))
            if base.stages == 1 and time_s > PAR_S * (1 + 1e-9):
                slow.append(mine)
                continue
            for stage, sets in enumerate(fitting):
                inside = any(set(less) <= set(mine) for less in sets)
                if held[stage] <= CAP and sent[stage] <= BUDGET and not inside:
                    sets.append(mine)
    whole = [[width * stage + n for stage, mine in enumerate(one) for n in mine] for one in product(*fitting)]
    return min((priced(of(base, again))[0] for again in whole), default=float("inf"))


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stages", WAYS)
def test_no_layout_within_both_budgets_is_faster_than_par(stages):
    """Sets of blocks in which another one that fits lies are no faster, and are left out."""
    found = {base: shortest(base) for base in BASES if base.stages == stages}
    best = min(found, key=found.__getitem__)
    print({str(base): time_s for base, time_s in found.items() if time_s < float("inf")})
    if stages == 2:
        assert found[best] == pytest.approx(PAR_S, rel=1e-9) and best == Layout(2, 2, "level1", (), 2, 8)
    else:
        assert found[best] > PAR_S


# ---- what does not reach it ----

BLOCK = {"stages": 1, "dp": 8, "tp": 1}


@pytest.fixture
def desk(monkeypatch):
    """A new one, to which the functions of the lesson speak, too."""
    mine = book.Desk()
    judged = tuple(Part(name, name == "layout", points=points) for name, points in get_exercise("12.1").parts)
    monkeypatch.setattr(capstone, "spend", mine.spend)
    monkeypatch.setattr(Composed, "trained", lambda self, executor: pytest.fail("trained"))
    monkeypatch.setattr(book.Exercise, "judge", lambda self, answer: judged)
    return mine


@pytest.mark.exhaustive
def test_a_loop_ends_after_ten_runs_and_what_was_tried_costs_none(desk):
    """Before: 32 layouts, all of them printed by one call, or a loop over them checked each."""
    seen = [{**BLOCK, "recompute": [n]} for n in range(8)]
    assert capstone.count_runs(*seen)[7].layout == Layout(8, 1, "off", (7,))
    for one in (seen[0], seen[3], seen):
        assert desk.check("12.1", one).points == 1 and len(desk.tried["12.1"]) == 8
    desk.check("12.1", {"layout": {**BLOCK, "level": "level1"}})
    assert compose.layouts_text({**BLOCK, "level": "level2"}).count("stages 1") == 1
    told = desk.check("12.1", {**BLOCK, "level": "level3"})
    assert told.points == 0 and "0 left" in told.parts[0].found and len(desk.tried["12.1"]) == RUNS
    for call in (compose.layouts_text, compose.train):
        with pytest.raises(ArgumentError, match=r"1 more.*10 different ones.*0 left"):
            call({**BLOCK, "level": "level3"})
    desk.learner("somebody else")
    assert desk.check("12.1", {**BLOCK, "level": "level3"}).points == 0
    assert desk.check("12.1", Nothing()).points == 1 and len(desk.tried["12.1"]) == RUNS  # the grader's to refuse


class Nothing:
    def __iter__(self):
        raise RuntimeError


def test_a_list_of_all_is_refused_at_once_and_counts_none(desk):
    every = [vars(layout) for layout in islice(layouts(), 0, None, 300)]
    with pytest.raises(ArgumentError, match=r"110 more|110 layouts"):
        compose.layouts_text(*every)
    assert desk.check("12.1", every).parts[-1].passed is False and not desk.tried.get("12.1")
    with pytest.raises(ArgumentError, match="no attempt of your own passes 'par' yet"):
        desk.par("12.1")


def test_hints_and_notes_before_the_last_hint_name_no_layout_at_par():
    exercise = get_exercise("12.1")
    texts = [*exercise.hints[:3], exercise.title, exercise.start, *(idea.note for idea in exercise.ideas)]
    assert not [text for text in texts if "dp 2" in text or "2 stages" in text]


def fits(layout):
    """Whether it is within both budgets and at par."""
    one = Composed(layout)
    return one.memory_bytes <= CAP and one.sent_bytes <= BUDGET and one.step_s <= PAR_S * (1 + 1e-6)


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("field", ["level", "micro_batches", "recompute", "ranks"])
def test_no_value_of_a_control_solves_it_from_the_start(field):
    ranks = [{"stages": s, "dp": d, "tp": DEVICES // s // d, "micro_batches": 8} for s, d in ((8, 1), (2, 2), (1, 1))]
    values = {"level": capstone.LEVELS, "micro_batches": WAYS, "recompute": (True, False)}
    for change in ranks if field == "ranks" else ({field: value} for value in values[field]):
        assert not fits(capstone.read_layout({**BLOCK, **change})), change


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_the_plan_of_the_outer_search_does_not_solve_it():
    """That of this network on this machine, with recompute and levels."""
    model = Transformer("capstone", BLOCKS, capstone.HIDDEN, capstone.HEADS, 16, 32, "here")
    how = {"memory_bytes": CAP, "recompute": ("none", "full"), "levels": (0, 1, 2)}
    point = search_plans(model, MACHINE, 64, **how).winner.point
    level = f"level{point.level}" if point.level else "off"
    again = tuple(range(BLOCKS)) if point.recompute == "full" else ()
    assert not fits(Layout(point.data, point.tensor, level, again, point.stages, min(8, point.micro_batches)))


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("again", [(), tuple(range(BLOCKS))])
def test_no_division_of_the_ranks_solves_it_with_all_or_no_blocks_recomputed(again):
    """All that presets, plans and one-word settings can say."""
    assert not [base for base in BASES if fits(of(base, again))]


def test_tries_are_the_same_after_a_page_has_written_and_read_them():
    layout = {
        "stages": 2,
        "dp": 2,
        "tp": 2,
        "micro_batches": 4,
        "schedule": "1f1b",
        "level": "off",
        "recompute": [0, 3],
    }
    tries = tries_of([layout, {**layout, "level": "level1"}])
    read = json.loads(json.dumps([progress._listed(one) for one in tries]))
    assert len(set(tries)) == 2 and [progress._hashable(one) for one in read] == tries
