"""Lines of MindSpore that set a lab: read, never executed, and refused with the line."""

from __future__ import annotations

import pytest

import parallel_lab as pl
from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.code.pasted import read_code
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.search.subjects import SUBJECTS
from parallel_lab.lab.shared.networks import NETWORKS
from parallel_lab.lab.shared.page import FRONT_END
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.lab.widgets import LABS
from tests.crossed import each_of, first

EXAMPLES = [
    *[("StrategyLab", "megatron"), ("FusionLab", "dense"), ("MemoryLab", "dense"), ("PipelineLab", "stack")],
    *(("StrategyLab", net) for net in NETWORKS if net != "megatron"),
    *(("SearchLab", net) for net in SUBJECTS),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "net"), first(4, EXAMPLES))  # the others are exhaustive
def test_the_line_in_an_empty_field_sets_the_lab_whatever_its_network(name, net):
    """A line for an operator "matmul" was shown for networks without one."""
    lab = getattr(pl, name)(net)
    line = lab.snapshot()["sections"]["code_mindspore"]["paste_example"]
    lab.set_code(line)
    if ".shard(" in line:
        operator, _, strategy = line.removeprefix("self.").removesuffix(")").partition(".shard(")
        own = lab._strategies if name == "StrategyLab" else dict(lab.own.strategies)
        assert str(own[operator]) == strategy


def test_no_shared_script_names_a_lab():
    """Adding a lab touches no shared file."""
    titles = [getattr(pl, name)().snapshot()["title"] for name in LABS]
    for path in sorted((FRONT_END / "shared").glob("*.js")):
        assert not [title for title in titles if title in path.read_text()], path


@pytest.mark.quick(2)
@each_of(
    "lines",
    "self.matmul.shard(((4, 2), (2, 1)))",
    "net.matmul.shard(in_strategy=((4, 2), (2, 1)))",
    "self.matmul = ops.MatMul().shard(((4, 2), (2, 1)))",
    "self.matmul = P.MatMul(transpose_b=False).shard(((4, 2), (2, 1)))",
    "ops.MatMul().shard(((4, 2), (2, 1)))",
    "rows, columns = 4, 2\nmatmul.shard(((rows, columns), (rows // 2, columns - 1)))",
    "    def __init__(self):\n        super().__init__()\n        self.matmul.shard(((4, 2), (2, 1)))",
    "parts = ((4, 2), (2, 1))\nfor _ in range(3):\n    self.matmul.shard(parts)",
)
def test_the_forms_in_which_a_strategy_is_written(lines):
    lab = StrategyLab(devices=8)
    others = {name: cuts for name, cuts in lab._strategies.items() if name != "matmul"}
    lab.set_code(lines)
    assert lab._strategies == {**others, "matmul": ((4, 2), (2, 1))}


def test_calls_without_a_name_are_for_the_operators_of_their_class_in_order():
    lab = StrategyLab(devices=8)
    lab.set_code("ops.MatMul().shard(((8, 1), (1, 1)))\nops.MatMul().shard(((1, 8), (8, 1)))")
    assert (lab._strategies["matmul"], lab._strategies["matmul2"]) == (((8, 1), (1, 1)), ((1, 8), (8, 1)))


def test_the_device_count_of_the_context_is_taken_before_the_strategies():
    lab = StrategyLab(devices=8)
    lab.set_code("ms.set_auto_parallel_context(device_num=4)\nself.matmul.shard(((4, 1), (1, 1)))")
    assert lab.plan.device_num == 4 and lab._strategies["matmul"] == ((4, 1), (1, 1))


@each_of(
    ("lines", "words"),
    ("x = 1\nself.matmul.shard(((2, 4), (2, 1)))", ["line 2", "splits"]),
    ("self.matmul9.shard(((2, 4), (4, 1)))", ["line 1", "matmul9", "matmul2 (MatMul)"]),
    ("self.dense = ops.MatMul().shard(((2, 4), (4, 1)))", ["line 1", "no operator 'dense'", "matmul (MatMul)"]),
    ("dense = P.MatMul().shard(((2, 4), (4, 1)))", ["line 1", "no operator 'dense'", "matmul2 (MatMul)"]),
    ("\nself.matmul.shard(parts(8))", ["line 2", "'parts(8)' is not known", "Literals"]),
    ("self.matmul.shard(((2, 4), (4, 1))", ["line 1", "cannot be read"]),
    ("self.matmul.shard()", ["line 1", "without in_strategy"]),
    ("print('hello')", ["they set nothing", "Understood", "shard"]),
    ("nn.PipelineCell(net, 4)", ["they set micro_size, PipelineCell", "strategy"]),
    ("self.matmul.shard(" + "(" * 300 + ")" * 300 + ")", ["line 1", "cannot be read"]),
    ("ms.set_auto_parallel_context(device_num=5)", ["devices 5"]),
)
def test_what_cannot_be_taken_is_refused_with_its_line_and_changes_nothing(lines, words):
    lab = StrategyLab(devices=8)
    before, plan = lab._strategies, lab.plan
    with pytest.raises(ArgumentError) as caught:
        lab.set_code(lines)
    assert all(word in str(caught.value) for word in words), caught.value
    assert lab._strategies == before and lab.plan == plan


def test_nothing_of_a_text_is_executed(tmp_path):
    mark = tmp_path / "mark"
    read_code(f"open({str(mark)!r}, 'w')\nx = __import__('os').system('true')\nself.matmul.shard(((2, 4), (4, 1)))")
    assert not mark.exists()


@pytest.mark.parametrize("text", [None, 3, "x" * 100_001])
def test_anything_but_a_text_of_a_legal_size_is_refused(text):
    with pytest.raises(ArgumentError, match="100000 characters"):
        read_code(text)


FUSION = [
    ('ms.set_auto_parallel_context(comm_fusion={"allreduce": {"mode": "size", "config": 4}})', "size", None),
    ('net.comm_fusion(config={"allreduce": {"mode": "index", "config": [0, 3]}})', "index", [0, 0, 1, 1]),
    ('context.set_auto_parallel_context(comm_fusion={"openstate": False})', "off", None),
    ("net.dense1.set_comm_fusion(2)", "ids", None),
    ("net.dense2.weight.comm_fusion = 3", "ids", None),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("line", "mode", "_"), FUSION)
def test_the_forms_in_which_fusion_is_written(line, mode, _):
    lab, same = FusionLab("dense", 2), FusionLab("dense", 2)
    lab.set_code(line)
    do = {
        "size": lambda: same.set_size(4),
        "index": lambda: same.set_index([0, 3]),
        "off": lambda: same.set_mode("off"),
        "ids": lambda: same.set_ids(
            {"dense1.weight": 2, "dense1.bias": 2, "dense2.weight": 1, "dense2.bias": 1}
            if "dense1" in line
            else {"dense1.weight": 1, "dense1.bias": 1, "dense2.weight": 3, "dense2.bias": 1}
        ),
    }
    do[mode]()
    assert (lab._mode, lab.groups) == (mode, same.groups)


def test_the_parallel_mode_is_taken_too():
    lab = FusionLab("dense", 2)
    lab.set_code("ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.SEMI_AUTO_PARALLEL)")
    assert lab.parallel_mode == "semi_auto_parallel"


@each_of(
    ("line", "words"),
    ('\nnet.comm_fusion({"allreduce": {"mode": "sized", "config": 4}})', ["line 2", "sized"]),
    ('net.comm_fusion({"allgather": {"mode": "auto", "config": None}})', ["line 1", "not about gradients"]),
    ("net.dense7.set_comm_fusion(2)", ["line 1", "dense7", "dense1.weight"]),
    ("net.dense1.set_comm_fusion(-2)", ["line 1"]),
    ("self.matmul.shard(((2, 4), (4, 1)))", ["matmul.shard", "fusion"]),
)
def test_fusion_that_cannot_be_taken_is_refused_and_changes_nothing(line, words):
    lab = FusionLab("dense", 2)
    before = lab.groups, lab._mode
    with pytest.raises(ArgumentError) as caught:
        lab.set_code(line)
    assert all(word in str(caught.value) for word in words), caught.value
    assert (lab.groups, lab._mode) == before


def test_optimizer_parallel_is_taken_from_the_context_and_from_hsdp():
    lab = MemoryLab("stack", 4)
    lab.set_code("net.hsdp(shard_size=2, threshold=1, optimizer_level='level3')\nopt = nn.Momentum(params, 0.1, 0.9)")
    s = lab.settings
    assert (s.level, s.shard_size, s.threshold_kb, s.optimizer) == ("level3", 2, 1, "Momentum")
    lab.set_code("ms.set_auto_parallel_context(enable_parallel_optimizer=False)\nnet = nn.GradAccumulation(net, 4)")
    assert (lab.settings.level, lab.settings.accumulation, lab.settings.shard_size) == ("off", 4, 2)


def test_a_pipeline_is_taken_from_its_cell_and_from_auto_parallel():
    lab = PipelineLab("stack", 4, 8)
    lab.set_code('net = nn.PipelineCell(net, 6)\nnet.pipeline(stages=2, scheduler="gpipe")')
    assert (lab.settings.stages, lab.settings.micro_batches, lab.settings.name) == (2, 6, "gpipe")
    with pytest.raises(ArgumentError, match="stages 5"):
        lab.set_code("net.pipeline(stages=5)")
    with pytest.raises(ArgumentError, match="no pipeline"):
        lab.set_code("self.matmul.shard(((2, 4), (4, 1)))")
    assert lab.settings.stages == 2
