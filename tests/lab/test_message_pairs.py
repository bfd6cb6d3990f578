"""Messages in pairs: the partner of a forward message is what the plan's data flow says brings its gradient back."""

from __future__ import annotations

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.pictures.duals import duals, redistribution_of, with_duals
from parallel_lab.lab.pictures.picture import message_table
from parallel_lab.lab.shared.networks import NETWORKS
from parallel_lab.lab.strategy.model import StrategyLab

# which collective brings which one's gradient back, by the definition of each as a linear map and its transpose
TRANSPOSE = {"all_reduce": "all_reduce", "all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
TRANSPOSE |= {"all_to_all": "all_to_all", "halo_exchange": "halo_reduce", "broadcast": "reduce"}


def moving(plan):
    return [(p, i) for p, i in plan.instructions() if i.is_communication or i.kind == "slice"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("net", NETWORKS)
def test_a_partner_reads_the_gradient_of_what_the_message_made_and_makes_that_of_what_it_read(net):
    for preset in NETWORKS[net].presets:
        lab = StrategyLab(net)
        lab.set_preset(preset)
        plan, gradients = lab.plan, dict(lab.plan.value_gradients)
        pairs, instrs = duals(plan), moving(plan)
        for number, (phase, instr) in enumerate(instrs, 1):
            if phase == "forward" and number in pairs:
                other_phase, other = instrs[pairs[number] - 1]
                assert (other_phase, other.kind) == ("backward", TRANSPOSE[instr.kind])
                assert other.group(0) == instr.group(0)
                # a value that is read several times has the sum of what came back as its gradient
                assert gradients[instr.out] == other.ins[0]
                assert pairs[pairs[number]] == number
        # every backward message has its forward message, except sums over a parameter's copies
        alone = [i for n, (phase, i) in enumerate(instrs, 1) if phase == "backward" and n not in pairs]
        assert all(i.attr("parameter") or i.attr("members") for i in alone)


def test_every_message_says_what_its_partner_is_or_why_it_lacks_one():
    lab = StrategyLab()
    table = {row["number"]: row for row in with_duals(lab.plan, message_table(lab.plan, 5))}
    first = next(n for n, row in table.items() if row["collective"] == "AllReduce")
    back = table[first]["dual"]
    assert table[first]["dual_text"] == f"its backward is #{back}, the AllReduce of the gradient"
    assert table[back]["dual_text"] == f"it is the backward of #{first}, the AllReduce"
    of_w = next(row for row in table.values() if row["operator"] == "w")
    assert of_w["dual_text"] == "its forward sends nothing: the ranks hold copies of the parameter"
    assert "no gradient comes back" in table[1]["dual_text"]  # x is data
    into_relu = next(row for row in table.values() if row["operator"] == "relu")
    assert "zeros beside the gradient of the slice" in into_relu["dual_text"]
    assert f"Its backward is #{back}, the AllReduce of the gradient." in lab.to_text()


def test_a_message_of_a_redistribution_shows_what_moves_in_it():
    lab = StrategyLab("convnet")
    gather = next(m for m in lab.snapshot()["messages"] if m["collective"] == "AllGather")
    lab.select_message(gather["number"])
    shot = lab.snapshot()
    frames = shot["moves"]["frames"]
    assert [frame["title"] for frame in frames] == ["reshape", "all_gather", "reshape", "slice"]
    per_rank = sum(hop["bytes"] for hop in frames[1]["hops"]) / 8
    # an all_gather among n brings n - 1 slices: the message's bytes are those of one
    assert per_rank == (len(gather["group"]) - 1) * gather["bytes_predicted"]
    assert "Moves, pool2.max_pool for flatten.flatten" in lab.to_text()
    assert f"(predicted). #{gather['number']} (forward, AllGather of flatten.flatten" in shot["status"]
    lab.to(4)
    assert lab.snapshot()["at"] == 4
    with pytest.raises(ArgumentError, match="from 0 to 4"):
        lab.to(5)
    lab.select_tensor(lab.snapshot()["tensor"])
    assert lab.snapshot()["message"] is lab.snapshot()["moves"] is None


def test_a_message_that_the_plan_has_not_is_refused_and_another_strategy_forgets_it():
    lab = StrategyLab()
    with pytest.raises(ArgumentError, match="number"):
        lab.select_message(13)
    lab.select_message(3)
    assert lab.snapshot()["tensor"] == "matmul.partial" and redistribution_of(lab.plan, 3) is None
    lab.set_strategy("matmul", "((8, 1), (1, 1))")
    assert lab.snapshot()["message"] is None
