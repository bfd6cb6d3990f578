"""How often the Strategy Lab compiles: once for a change, not at all for a setting it has just had, nor for a look."""

from __future__ import annotations

import pytest

from parallel_lab.base.errors import ParallelLabError
from parallel_lab.graph.compiler import compile_network
from parallel_lab.lab.pictures import lanes, picture
from parallel_lab.lab.strategy import plans
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.lab.strategy.plans import Plans, Setting
from tests.crossed import each_of


@pytest.fixture
def counted(monkeypatch):
    """Device counts of what was compiled."""
    found = []

    def compiling(*args, **how):
        found.append(how["device_num"])
        return compile_network(*args, **how)

    monkeypatch.setattr(plans, "compile_network", compiling)
    return found


@pytest.mark.quick(2)
@each_of(
    "command",
    ("set_devices", 4),
    ("set_preset", "data parallel"),
    ("set_strategy", "matmul", "((4, 1), (1, 2))"),
    ("set_fusion", "fused"),
    ("set_optimizer", "sliced"),
)
def test_a_change_compiles_once_and_the_way_back_and_there_again_not_at_all(counted, command):
    lab = StrategyLab("quickstart", 8)
    back = next(call for call in lab.calls() if call[0] == command[0]) if command[0] != "set_strategy" else None
    back = back or ["set_strategy", "matmul", str(lab._strategies["matmul"])]
    del counted[:]
    getattr(lab, command[0])(*command[1:])
    assert len(counted) == 1
    there = lab.snapshot()
    getattr(lab, back[0])(*back[1:])
    getattr(lab, command[0])(*command[1:])
    assert len(counted) == 1 and lab.snapshot() == there


@pytest.mark.exhaustive
def test_a_new_lab_compiles_its_plan_and_only_the_first_lab_the_names_of_operators(counted):
    plans.facts_of.cache_clear()
    for _ in range(2):
        StrategyLab("transformer", 8)
    assert counted == [1, 8, 8]


def test_a_look_compiles_and_predicts_nothing(counted, monkeypatch):
    lab = StrategyLab("quickstart", 8)
    for rank in (3, 5):
        lab.select_rank(rank)
        lab.snapshot()
    del counted[:]
    monkeypatch.setattr(lanes, "predict_timeline", None)
    monkeypatch.setattr(picture, "predict_memory", None)
    for rank in (3, 5):
        lab.select_rank(rank)
        lab.select_phase("backward")
        lab.snapshot()
    assert not counted


def test_a_branch_knows_the_plans_of_its_lab(counted):
    lab = StrategyLab("quickstart", 8)
    other = lab.branch()
    other.set_devices(4)
    del counted[:]
    lab.set_devices(4)
    assert not counted and lab.plan is other.plan


@pytest.mark.parametrize("like", ["((True, 8), (1, 1))", "([1, 8], (8, 1))", "((1.0, 8), (8, 1))"])
def test_what_python_takes_for_a_known_strategy_is_refused_all_the_same(like):
    kept, setting = Plans(), Setting("quickstart", "seed", 8)
    kept.plan(setting, {"matmul": ((1, 8), (8, 1))})
    with pytest.raises(ParallelLabError):
        kept.plan(setting, {"matmul": eval(like)})


def test_only_the_last_few_plans_are_kept_those_that_were_asked_for_last(counted, monkeypatch):
    monkeypatch.setattr(plans, "KEPT", 2)
    kept = Plans()
    for devices in (1, 2, 1, 4, 1, 2):  # 4 takes the place of 2, not of 1
        kept.plan(Setting("quickstart", "seed", devices), {})
    assert counted == [1, 2, 4, 2]


@pytest.mark.quick(1)
@pytest.mark.parametrize("net", ["quickstart", "megatron", "dense", "convnet", "transformer", "embedding"])
@pytest.mark.parametrize("devices", [2, 8])
def test_operators_of_a_network_are_the_same_on_any_number_of_devices(net, devices):
    lab = StrategyLab(net, devices)
    nodes = {node.name for node in lab.plan.graph.nodes}
    named = {name: any(node == name or node.startswith(f"{name}.") for node in nodes) for name in lab._strategies}
    assert all(named.values())
