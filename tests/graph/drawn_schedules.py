"""Pipeline schedules that nobody wrote: any legal order of F, B and W on any placement, and what makes one illegal."""

from __future__ import annotations

from typing import Any

import numpy as np

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.schedules import Schedule, make_schedule
from parallel_lab.cost.schedules.order import do, key_of, loop, shape_v
from tests.graph.random_choices import Choices, pick

TWO_COPIES = ("chimera", "dualpipe")  # of every parameter


def draw_named(choices: Choices, name: str, counts: list[int]) -> Schedule:
    """A schedule with a name, on one of so many stages."""
    while True:
        stages, chunks = pick(choices, counts), pick(choices, [1, 1, 2, 3])
        micro_batches = stages * pick(choices, [1, 2]) if choices.chance(0.6) else 1 + choices.below(8)
        try:
            schedule = make_schedule(name, stages, micro_batches, chunks)
        except ArgumentError:
            continue  # numbers that it is not defined for
        if schedule.parts <= 8 and micro_batches <= 12:
            return schedule


# ---- by hand ----


def drawn_places(choices, stages, micro_batches):
    """Per micro-batch the rank of each part: around, as a V, at will, or two copies without a common rank."""
    kind = pick(choices, ["loop", "v", "any", "any", "copies"])
    chunks = 1 + choices.below(3 if stages < 4 else 2)
    if kind == "copies" and stages > 1 and micro_batches > 1:
        first = list(choices.order(stages))
        shift = 1 + choices.below(stages - 1)
        ways = [first, first[shift:] + first[:shift]]
        return [ways[0], ways[1], *(pick(choices, ways) for _ in range(micro_batches - 2))]
    if kind in ("loop", "v"):
        holds = (loop if kind == "loop" else shape_v)(stages, chunks)
        way = [next(r for r, mine in enumerate(holds) if k in mine) for k in range(stages * chunks)]
    else:
        ranks = [*range(stages), *choices.ints(stages, stages * (chunks - 1)).tolist()]
        way = [ranks[i] for i in choices.order(len(ranks))]
    return [way] * micro_batches


def needed(actions, parts):
    """What each action needs, directly."""
    return {key_of(a): Schedule.needs(Schedule("", parts, 1, (), ()), a) for a in actions}


def random_order(choices, actions, needs):
    """A random order in which nothing comes before what it needs; kinds that come early differ from draw to draw."""
    likes = {kind: pick(choices, [0.1, 1.0, 8.0]) for kind in "FBW"}
    left, done, order = list(actions), set(), []
    while left:
        ready = [a for a in left if done.issuperset(needs[key_of(a)])]
        odds = np.cumsum([likes[a.kind] for a in ready])
        action = ready[int(np.searchsorted(odds / odds[-1], float(choices.floats(0, 1, ())), side="right"))]
        left.remove(action)
        done.add(key_of(action))
        order.append(action)
    return order


def drawn_actions(choices, least=1, most=8):
    """Places per micro-batch and all actions, for `least` to `most` stages."""
    stages = least + choices.below(most + 1 - least)
    fewest = min(least, 2)
    micro_batches = fewest + choices.below((7 if stages <= 4 else 5) - fewest)
    places = drawn_places(choices, stages, micro_batches)
    kinds = pick(choices, ["FB", "FBW"])
    actions = [do(k, kind, n) for n, way in enumerate(places) for k in range(len(way)) for kind in kinds]
    return stages, places, actions


def lanes_of(order, places, stages):
    return [[a for a in order if places[a.micro_batch][a.stage] == rank] for rank in range(stages)]


def draw_by_hand(choices: Choices, ranks: int | None = None) -> Schedule:
    """Any legal order of F, B and W, divided or not, with any placement and no cap; through its text."""
    while True:
        stages, places, actions = drawn_actions(choices, 2)
        if not ranks or ranks % stages == 0:
            break
    order = random_order(choices, actions, needed(actions, len(places[0])))
    return Schedule.from_text(Schedule.of(lanes_of(order, places, stages)).text())


# ---- what is illegal ----

CHANGES = ("never", "twice", "placement", "input", "swap", "deadlock", "memory", "number")


def draw_illegal(choices: Choices, change: str) -> tuple[Schedule, tuple[int, ...], str]:
    """A legal schedule with one change, the stage of each part, and what must be said of it (a regular expression)."""
    while True:
        stages, places, actions = drawn_actions(choices, 2, 5)
        if len(set(map(tuple, places))) == 1:
            break
    way, needs = places[0], needed(actions, len(places[0]))
    lanes = lanes_of(random_order(choices, actions, needs), places, stages)
    legal = Schedule.of(lanes)
    assert legal.check() == []
    action = pick(choices, [a for a in actions if change != "placement" or a.kind == "F"])
    rank = way[action.stage]
    lane, what = lanes[rank], {"holds": legal.holds, "parts": legal.parts, "micro_batches": legal.micro_batches}
    match change:
        case "never":
            lane.remove(action)
            words = f": {action} is never done; it belongs on rank {rank}"
        case "twice":
            first = lane.index(action) + 1
            lane.insert(first + choices.below(len(lane) + 1 - first), action)
            words = f"{action} is done a second time; the same rank"
        case "placement":
            other = pick(choices, [r for r in range(stages) if r != rank])
            lane.remove(action)
            lanes[other].insert(choices.below(len(lanes[other]) + 1), action)
            words = f"{action} cannot run here: part {action.stage} lies on rank {rank}|needs what {action} kept"
        case "number":
            late = choices.below(2)
            wrong = do(legal.parts, "F", 0) if late else do(action.stage, "F", legal.micro_batches)
            lane.insert(choices.below(len(lane) + 1), wrong)
            words = f"{wrong} has (part|micro-batch) "
        case "memory":
            what["cap"] = tuple(peak - (r == rank) for r, peak in enumerate(legal.peaks))
            words = f"of rank {rank}: no memory for .F.*keeps {legal.peaks[rank] - 1} of {legal.peaks[rank] - 1} "
        case "input":
            early, late = do(action.stage, "B", action.micro_batch), do(action.stage, "F", action.micro_batch)
            lane.remove(early)
            lane.insert(lane.index(late), early)
            words = f"{early} needs {late}, which the rank does only at action .*: {late} must come first"
        case "swap":
            pairs = [(i, k) for i, a in enumerate(lane) for k, b in enumerate(lane) if key_of(b) in needs[key_of(a)]]
            later, earlier = pick(choices, pairs)
            lane[later], lane[earlier] = lane[earlier], lane[later]
            words = "must come first"
        case _:
            lanes, words = circle(choices, actions, needs, way, stages), "deadlock|wait"
    return Schedule.of(lanes, **what), tuple(way), words


def circle(choices: Choices, actions: list[Any], needs: dict[Any, Any], way: list[int], stages: int) -> list[list[Any]]:
    """Lanes, each in order, two of which wait for each other: backward of one micro-batch for that of another, whose
    forward waits for the first rank's."""
    k = pick(choices, [k for k in range(len(way) - 1) if way[k] != way[k + 1]])
    n, m = choices.order(1 + max(a.micro_batch for a in actions))[:2]
    every: dict[Any, set[Any]] = {}

    def all_needs(key):
        if key not in every:
            every[key] = set(needs[key]).union(*map(all_needs, needs[key]))
        return every[key]

    lanes = []
    for rank in range(stages):
        mine = [a for a in actions if way[a.stage] == rank]
        keys = {key_of(a) for a in mine}
        inside = {key: all_needs(key) & keys for key in keys}
        for first, then in (((k, "B", n), (k, "F", m)), ((k + 1, "F", m), (k + 1, "B", n))):
            if then in keys:
                inside[then] = inside[then] | {first}
        lanes.append(random_order(choices, mine, inside))
    return lanes
