"""The bench of whole searches: what it prints, and that a search over arrays finds what pricing one by one does."""

from __future__ import annotations

from parallel_lab.cost.planner import predict_point
from tests.bench.plans import GOAL_PLANS, search


def test_a_search_says_how_long_so_many_plans_take():
    few = {
        "tensor": (1, 8),
        "context": (1, 2),
        "micro_batch": (1,),
        "schedules": ("1f1b", "zb_h1"),
        "offload": ("none",),
    }
    done = search("mixtral_8x7b", 32, 64, **few)
    assert f"{done.plans:,} plans" in done.text() and f"{GOAL_PLANS:,}" in done.text() and done.seconds > 0
    verdicts = done.found.verdicts
    able = verdicts.places("slower")
    assert len(able) > 20
    for at in able[:: len(able) // 20]:
        one = verdicts[int(at)]
        alone = predict_point(done.found.model, one.point, done.found.machine)
        assert abs(alone.step_s / one.least_s - 1) < 1e-12 and abs(alone.memory_bytes / one.memory_bytes - 1) < 1e-12
        better = [p for p in done.found.line if p.step_s <= one.least_s and p.memory_bytes <= one.memory_bytes]
        assert better and "more for" in one.reason
    for a in done.found.line:  # none beats another in both
        assert not any(b.step_s <= a.step_s and b.memory_bytes < a.memory_bytes for b in done.found.line)
