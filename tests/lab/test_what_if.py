"""What choices would lead to, before they are made: numbers and pictures of a lab that has really made them."""

from __future__ import annotations

import pytest

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
