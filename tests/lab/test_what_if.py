"""What choices would lead to, before they are made: numbers and pictures of a lab that has really made them."""

from __future__ import annotations

import pytest

from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.strategy.model import StrategyLab
from tests.lab.fake_lab import FakeLab


def led_to(lab: StrategyLab) -> dict[str, float]:
    """What a lab with such settings shows: its lead, its lanes, its meter."""
    shot = lab.snapshot()
    sent = sum(m["bytes_predicted"] for m in shot["messages"] if m["group"])
    return {"step": 1e-6 * shot["timeline"]["end"], "sent": sent, "memory": shot["rank_detail"]["memory_total"]}


@pytest.mark.exhaustive
def test_every_strategy_weighs_what_a_lab_with_it_shows():
    lab = StrategyLab()
    lab.select_rank(3)
    before = lab.snapshot()
    for choice in before["operators"][0]["choices"]:
        other = StrategyLab()
        other.select_rank(3)
        other.set_strategy("matmul", choice)
        weight = lab.weigh("set_strategy", "matmul", choice)
        assert {name: value for name, (value, _) in weight.items()} == pytest.approx(led_to(other))
        assert choice in lab.compare("set_strategy", "matmul")
    assert lab.snapshot() == before


def test_a_choice_is_tried_on_a_lab_of_its_own_and_looks_at_what_its_operator_gives():
    """A training that goes on keeps its plan."""
    lab = FakeLab()
    lab.run()
    lab.step(7)
    plan = lab.plan
    tried = lab.what_if("set_strategy", "relu", "((8, 1),)").snapshot()
    assert (tried["picture"]["label"], tried["picture"]["slices"]) == ("out of relu", 8)
    assert (lab.plan, lab.snapshot()["run"]["state"], lab.snapshot()["loss"]["steps"]) == (plan, "running", 7)


def test_what_is_refused_has_the_reason_instead_of_numbers():
    lab = StrategyLab()
    why = lab.weigh("set_strategy", "matmul", "((3, 1), (1, 1))")
    lab.set_strategy("matmul", "((3, 1), (1, 1))")
    assert why == lab.snapshot()["operators"][0]["error"]


def test_levels_modes_and_schedules_weigh_what_a_lab_with_each_shows():
    """Memory: the rows of every level. Fusion: the table of step times. Pipeline: 1f1b keeps as many micro-batches as
    there are stages, gpipe all; with F + B + W = 3 ticks and no other wait both wait 3 (p - 1) of 3 (m + p - 1).
    """
    memory = MemoryLab()
    for level, resident, peak, sent, *_ in memory.snapshot()["sections"]["levels"]["rows"]:
        found = memory.weigh("set_level", level)
        assert [value for value, _ in found.values()] == [resident, peak, sent]
    fusion = FusionLab("chain")
    for mode in ("off", "each", "size"):
        other = FusionLab("chain")
        other.set_mode(mode)
        _, step_s, _, messages, _ = other.snapshot()["sections"]["times"]["rows"][0]
        found = fusion.weigh("set_mode", mode)
        assert (found["step"][0], found["messages"][0]) == (step_s, messages)
        assert found["exposed"][0] == pytest.approx(sum(m["exposed_s"] for m in lanes_of(other)["messages"]))
    pipeline = PipelineLab(stages=4, micro_batches=8)
    for schedule, kept in (("1f1b", 4), ("gpipe", 8)):
        found = pipeline.weigh("set_schedule", schedule)
        assert [value for value, _ in found.values()] == pytest.approx([3 * 11, 100 * 3 / 11, kept], rel=2e-3)


def lanes_of(lab: FusionLab) -> dict:
    return lab.snapshot()["sections"]["lanes"]["of"]["predicted"]["lanes"]


@pytest.mark.parametrize("kind", [MemoryLab, FusionLab, PipelineLab])
def test_a_lab_that_was_asked_what_if_is_as_it_was(kind):
    lab = kind()
    before = lab.snapshot()
    words = lab.compare(lab.weighed[0])
    assert all(str(call[-1]) in words for call in lab.replays() if call[0] == lab.weighed[0])
    assert lab.snapshot() == before
