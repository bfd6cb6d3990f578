"""The outer search against looking at every point with the clock, and what must hold of any search."""

import contextlib
import json

import pytest

from parallel_lab.base.cluster import get_cluster
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.planner import Machine, PlanPoint, Transformer, get_machine, predict_point, search_plans, space
from parallel_lab.cost.planner.predict import Pricing
from tests.crossed import first
from tests.refusals import refused

MODEL, BATCH = Transformer("small", 4, 64, 4, 32, 256), 8
FEW = {"micro_batch": (1, 2), "chunks": (1, 2, 4), "levels": (0, 1, 3), "recompute": ("none", "full")}


def machine(devices=8):
    return get_machine("two_nodes", devices)


def points(devices=8):
    return tuple(space(MODEL, devices, BATCH, tensor=(1, 2), **FEW))


@pytest.fixture(scope="module")
def every():
    """Every point of the space that can be, predicted with the clock."""
    found = {}
    for point in points():
        try:
            found[point] = predict_point(MODEL, point, machine())
        except ArgumentError:
            continue
    assert len(found) > 100
    return found


def undominated(predictions):
    """By definition: no other is at least as good in both and better in one."""
    best = []
    for p in predictions:
        mine = p.step_s, p.memory_bytes
        others = ((q.step_s, q.memory_bytes) for q in predictions)
        if not any(o != mine and o[0] <= mine[0] and o[1] <= mine[1] for o in others):
            best.append(mine)
    return sorted(set(best))


@pytest.mark.exhaustive
@pytest.mark.parametrize("share", first(1, [0.5, 0.2, 1.0]))
def test_winner_and_line_are_those_of_all_points(every, share):
    cap = share * max(p.memory_bytes for p in every.values())
    fitting = [p for p in every.values() if p.memory_bytes <= cap]
    found = search_plans(MODEL, machine(), BATCH, points=points(), memory_bytes=cap)
    assert [(p.step_s, p.memory_bytes) for p in found.line] == undominated(fitting)
    assert found.winner.step_s == min(p.step_s for p in fitting)
    refused = sum(v.kind in ("states", "memory") for v in found.verdicts)
    assert refused == len(every) - len(fitting)


@pytest.mark.exhaustive
def test_no_schedule_is_faster_than_the_bound(every):
    for point, found in every.items():
        assert Pricing(MODEL, point, machine()).least_s <= found.step_s * (1 + 1e-12)


def test_no_drawn_schedule_is_faster_than_the_bound(rng):
    """24 points of the space that can be."""
    found, there = {}, points()
    for at in rng.permutation(len(there)):
        with contextlib.suppress(ArgumentError):
            found[there[at]] = predict_point(MODEL, there[at], machine()).step_s
        if len(found) == 24:
            break
    assert len(found) == 24
    assert all(Pricing(MODEL, point, machine()).least_s <= step_s * (1 + 1e-12) for point, step_s in found.items())


def test_every_point_has_a_verdict_with_a_reason():
    found = search_plans(MODEL, machine(), BATCH, points=(*points(), PlanPoint(1, 16), PlanPoint(16, micro_batches=2)))
    assert len(found.verdicts) == sum(found.counts.values()) == len(points()) + 2
    assert all(bool(v.kind) == bool(v.reason) and bool(v.prediction) != bool(v.kind) for v in found.verdicts)
    assert next(v for v in found.verdicts if v.point.tensor == 16).kind == "misfit"


@pytest.mark.exhaustive
def test_more_memory_and_a_faster_link_are_never_slower():
    sizes = [1e6, 1.5e6, 2e6, 2.5e6, 1e8]
    times = [search_plans(MODEL, machine(), BATCH, points=points(), memory_bytes=n).winner.step_s for n in sizes]
    assert times == sorted(times, reverse=True)
    one = machine().cluster
    slow = one.with_nodes(2, type(one.link)(4 * one.node_link.alpha_s, 4 * one.node_link.beta_s_per_byte))
    there = search_plans(MODEL, Machine(slow, 312e12, "slower"), BATCH, points=points()).winner.step_s
    assert there >= times[-1]


def test_why_tells_the_term_that_loses():
    found = search_plans(MODEL, machine(), BATCH, points=points())
    slower = next(v for v in found.verdicts if v.kind == "slower")
    text = found.why(slower)
    assert slower.reason in text and "winner" in text
    here, best = predict_point(MODEL, slower.point, machine()), found.winner
    terms = ("compute", "tensor", "copies", "update", "waiting")
    most = max(terms, key=lambda n: getattr(here, f"{n}_s") - getattr(best, f"{n}_s"))
    assert here.step_s == best.step_s or text.endswith(f"What it loses most by: {most}.")


def test_the_table_and_the_data_name_winner_and_refusals():
    found = search_plans(MODEL, machine(), BATCH, points=points(), memory_bytes=2e6)
    text = found.text(most=1)
    assert found.winner.point.text() in text and "need more memory" in text and "predicted" in text
    assert repr(found) == found.text()
    data = json.loads(json.dumps(found.to_dict()))
    assert data["winner"]["step_s"] == found.winner.step_s
    assert len(data["refused"]) + len(data["line"]) == len(points())


def test_the_space_spends_all_devices_and_the_whole_batch():
    for point in points():
        assert point.devices == 8 and point.batch == BATCH and MODEL.layers % (point.stages * point.chunks) == 0


def test_if_nothing_fits_the_nearest_plan_is_named():
    found = search_plans(MODEL, machine(), BATCH, points=points(), memory_bytes=1000)
    with pytest.raises(ArgumentError, match=r"none of .* fits.*The least is"):
        _ = found.winner


test_wrong_inputs_are_refused = refused(
    lambda: search_plans(MODEL, machine(), BATCH - 1, tensor=(1,)),
    lambda: search_plans(MODEL, machine(), 0),
    lambda: search_plans(MODEL, machine(), BATCH, memory_bytes=-1),
    lambda: search_plans(MODEL, machine(), BATCH, precision="int8"),
    lambda: search_plans(MODEL, machine(), BATCH, levels=(4,)),
    lambda: search_plans(MODEL, machine(), BATCH, micro_batch=2),
    lambda: search_plans("gpt5", machine(), 32),
    lambda: search_plans(MODEL, get_cluster("gpu_node"), 32, devices=16),
)


@pytest.mark.exhaustive
def test_thousands_of_plans_for_4096_devices():
    """GPT-3 on 512 nodes: every verdict is there, the winner keeps layers within nodes."""
    found = search_plans("gpt3_175b", get_machine("dgx_a100", 4096), 4096)
    assert len(found.verdicts) > 1000
    assert found.winner.point.tensor <= 8 and found.winner.fits and 0.4 < found.winner.mfu < 0.7
