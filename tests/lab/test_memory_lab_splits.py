"""The Memory Lab's splits of a GPT: what its block keeps and sends (Korthikanti et al. 2022), and equal training."""

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.memory.compiled import compiled
from parallel_lab.lab.memory.count import simulated_ranks
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.memory.splits import SPLITS
from parallel_lab.lab.shared.equality import compare_plans
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.train.session import initial_values

SAMPLES, TOKENS, HIDDEN = 16, 16, 32  # of "counting in words"; the MLP is twice as wide inside


def lab_of(devices=4, split="sequence", **settings):
    lab = MemoryLab("transformer", devices, level="off", **settings)
    lab.set_split(split)
    return lab


@pytest.mark.quick(1)
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_block_keeps_and_sends_what_the_paper_says(devices):
    t = min(devices, 4)
    m = SAMPLES // (devices // t) * TOKENS * HIDDEN * 4
    found = lab_of(devices).splits()
    kept = {name: block.kept_bytes for name, block in found.items()}
    assert kept == {
        "batch": 12 * SAMPLES // devices * TOKENS * HIDDEN * 4,
        "tensor": 4 * m + 8 * m // t,
        "sequence": 2 * m + 10 * m // t,
        "again": 12 * m // t,
    }
    sent = {name: block.sent_bytes for name, block in found.items()}
    each = (t - 1) * m // t
    assert sent == {"batch": 0, "tensor": 8 * each, "sequence": 8 * each, "again": 10 * each}
    assert [block.messages for block in found.values()] == [0, 4, 8, 10]


def test_the_table_of_splits_says_that_formulas_and_counts_agree():
    section = lab_of().snapshot()["sections"]["splits"]
    assert [row[-1] for row in section["rows"]] == [["as counted", True]] * 4
    assert [row[2] for row in section["rows"]] == ["12 M", "4 M + 8 M / 4", "2 M + 10 M / 4", "12 M / 4"]


@pytest.mark.exhaustive
def test_the_lead_says_memory_and_bytes_against_tensor_parallel():
    lab = lab_of(split="again")
    assert "50% of tensor parallel's memory, 1.25 times its bytes" in lab.snapshot()["status"]
    lab.set_split("sequence")
    assert "75% of tensor parallel's memory, as many bytes" in lab.to_text()
    lab.set_split("batch")
    assert lab.snapshot()["status"].startswith("Each of the 4 ranks holds everything")


@pytest.mark.quick(1)
@pytest.mark.parametrize("split", ["tensor", "sequence", "again"])
def test_ranks_hold_what_is_predicted_and_train_as_the_batch_split_does(split):
    lab = lab_of(2, split)
    optimizer = lab.job.optimizer("Adam")
    values = initial_values(lab.plan, lab.job.net, optimizer)
    counted = simulated_ranks(lab.plan, values, lab.job.batches[0])
    assert [rank.peak_bytes for rank in counted] == [rank.peak_bytes for rank in lab.ranks()]
    batch, _ = compiled("transformer", 0, lab.settings.replaced(split="batch"))
    how = {"executors": ("simulator", "simulator")}
    assert compare_plans(lab.plan, batch, lab.job.net, optimizer, lab.job.batches, 3, **how).equal


def test_the_preset_of_the_strategy_lab_scatters_and_gathers():
    """It has strategies only, and reduced the sums whole where nothing asked the products to wait."""
    lab = StrategyLab("transformer", 8)
    wanted = {"sequence parallel": ["all_gather", "reduce_scatter"] * 2, "tensor parallel": ["all_reduce"] * 2}
    for preset, kinds in wanted.items():
        lab.set_preset(preset)
        inside = (i for _, i in lab.plan.instructions("forward") if i.is_communication and i.name.startswith("blocks"))
        assert [i.kind for i in inside] == kinds


@pytest.mark.exhaustive
def test_other_networks_and_modes_have_no_splits():
    lab = lab_of()
    lab.set_parallel_mode("data_parallel")
    assert lab.settings.split == "batch" and not lab.splits()
    with pytest.raises(ArgumentError, match="One of batch"):
        lab.set_split("sequence")
    lab = lab_of()
    lab.set_subject("stack")
    assert lab.settings.split == "batch" and "splits" not in lab.snapshot()["sections"]
    assert [choice["value"] for choice in lab_of().snapshot()["split"]["choices"]] == list(SPLITS)


def test_code_of_a_split_sequence_adds_the_bias_along_the_last_dim():
    """MindSpore's BiasAdd splits no dim behind the channels."""
    codes = lab_of(4, "sequence").code_sections()
    text = str(codes)
    assert "ops.Add().shard(((1, 4, 1), (1,)))" in text


def test_rows_of_experts_have_a_room_and_those_that_came_are_counted():
    """4 ranks with 64 tokens each, 2 of 8 experts for each: all copies may come to one rank, none is lost."""
    lab = MemoryLab("experts", 4, level="off")
    values = initial_values(lab.plan, lab.job.net, lab.job.optimizer("Adam"))
    counted, predicted = simulated_ranks(lab.plan, values, lab.job.batches[0]), lab.ranks()
    row, copies = HIDDEN * 4, 4 * 64 * 2
    came = [[count.rooms["blocks.0.moe.exchange"] for count in counts] for counts in (predicted, counted)]
    assert came[0] == [(copies * row, copies // 4 * row)] * 4
    assert {room for room, _ in came[1]} == {copies * row} and sum(used for _, used in came[1]) == copies * row
    assert len({used for _, used in came[1]}) > 1
    assert [c.peak_bytes for c in counted] == [c.peak_bytes for c in predicted]
    rows = lab.snapshot()["sections"]["rooms"]["of"]["predicted"]["rows"]
    assert rows[0] == [0, "blocks.0.moe.exchange", copies * row, copies // 4 * row, "25%"]
    assert "its experts and the rest" in lab.snapshot()["status"]


@pytest.mark.exhaustive
def test_other_rows_than_predicted_are_not_the_doing_of_a_level():
    lab = MemoryLab("experts", 2, level="level2")  # nothing is as large as the threshold
    lab.run_simulated()
    lab.wait()
    assert "nothing changes" in lab.snapshot()["status"]
