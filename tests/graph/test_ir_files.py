"""IR files: the lines seed 003 shows (its "Verification": shapes, strategies, groups), written for every rank."""

import re

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, nn, ops
from parallel_lab.graph.compiler import compile_steps
from parallel_lab.mindspore._ir_files import write_graph_files
from tests.graph.propagated import AUTO
from tests.nets import cell


def make_net():
    parts = {"matmul": ops.MatMul().shard(((2, 4), (4, 1))), "relu": ops.ReLU(), "matmul2": ops.MatMul()}
    parts["weight"] = Parameter(Tensor(np.ones((32, 16), np.float32)), "w")
    parts["weight2"] = Parameter(Tensor(np.ones((16, 16), np.float32)), "w2")
    return cell(lambda net, x: net.matmul2(net.relu(net.matmul(x, net.weight)), net.weight2), **parts)


@pytest.fixture(scope="module")
def steps():
    net = make_net()
    options = {"loss": nn.MSELoss(), "optimizer": nn.Momentum(net.trainable_params(), 0.2, 0.1), "device_num": 8}
    options |= {**AUTO, "dataset_strategy": "data_parallel"}
    return compile_steps(net, np.ones((2, 32), np.float32), np.ones((2, 16), np.float32), **options)


def entry(text, instance):
    """The first line of an operator, and the line with its types."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if f"{{instance name: {instance}}}" in line)
    return lines[at], lines[at + 1].strip()


def types(*operands, gives):
    """The line of an operator's types."""
    return f": ({', '.join(f'<Tensor[Float32], {shape}>' for shape in operands)}) -> (<Tensor[Float32], {gives}>)"


def test_begin_file_shows_global_shapes_and_the_strategies_of_seed_003(steps, tmp_path):
    begin, _, _, _ = write_graph_files(steps, str(tmp_path), 0)
    assert re.fullmatch(r"step_parallel_begin_\d{4}\.ir", begin.name)
    text = begin.read_text()
    for instance, op, strategy, operands in (
        ("matmul", "MatMul", "((2, 4), (4, 1))", [(16, 32), (32, 16)]),
        ("relu", "ReLU", "((2, 4))", [(16, 16)]),
        ("matmul2", "MatMul", "((2, 4), (4, 1))", [(16, 16), (16, 16)]),
    ):
        first, second = entry(text, instance)
        assert f" = {op}(" in first
        assert first.endswith(f"{{in_strategy: {strategy}}}")
        assert second == types(*operands, gives=(16, 16))
    # only what the learner wrote is an attribute of the operator
    assert "in_strategy: ((2, 4), (4, 1)), out_strategy: None}" in entry(text, "matmul")[0]
    assert "out_strategy" not in entry(text, "matmul2")[0]
    assert "# scope: (Default/network-WithLossCell/_backbone-Net)" in text


@pytest.mark.parametrize(("rank", "group", "begin"), [(0, (0, 1, 2, 3), (0, 0)), (6, (4, 5, 6, 7), (0, 8))])
def test_execute_file_shows_the_slices_of_its_rank(steps, tmp_path, rank, group, begin):
    *_, execute = write_graph_files(steps, str(tmp_path), rank)
    assert execute.parent.name == f"rank_{rank}"
    text = execute.read_text()
    assert entry(text, "matmul")[1] == types((8, 8), (8, 16), gives=(8, 16))
    first, second = entry(text, "forward_op_matmul")
    assert "AllReduce(" in first
    assert f"group_ranks: {'-'.join(map(str, group))}, rank_list: {group}, fusion: 0" in first
    assert second == types((8, 16), gives=(8, 16))
    cut = next(line for line in text.splitlines() if "StridedSlice(" in line and "matmul.for.relu" in line)
    assert f"{begin}, {(8, begin[1] + 4)}, (1, 1))" in cut
    assert entry(text, "relu")[1] == types((8, 4), gives=(8, 4))
    assert entry(text, "matmul2")[1] == types((8, 4), (4, 16), gives=(8, 16))


def check_operands(text):
    """Every operand is a value that a line above has made; none is left as the name of a value."""
    known = set()
    for line in text.splitlines():
        if not line.startswith("%"):
            continue
        made, _, rest = line.partition(" ")
        operands = rest.partition("(")[2].partition("{instance")[0] if "{instance" in rest else ""
        assert set(re.findall(r"%[\w.:]+", operands)) <= known, line
        assert not re.search(r"(?<![%\w.])[A-Za-z_]\w*\.[a-z]", operands), line
        known.add(made.partition("(")[0])


def test_every_operand_of_a_file_is_made_above_it(steps, tmp_path):
    for path in write_graph_files(steps, str(tmp_path), 3):
        check_operands(path.read_text())


FUSED = {
    "comm_fusion": {kind: {"mode": "auto", "config": None} for kind in ("allreduce", "allgather", "reducescatter")}
}
ON = {**FUSED, "enable_parallel_optimizer": True}
SHARED = {
    "fused": FUSED,
    "optimizer parallel": {**ON, "parallel_optimizer_threshold": 0},
    "weight grouping": {**ON, "parallel_mode": "data_parallel", "dataset_strategy": "data_parallel"},
}


def shared_steps(settings):
    """The steps of a network with two weights on 2 ranks."""
    net = make_net()
    net.matmul.shard(((2, 1), (1, 1)))
    optimizer = nn.AdamWeightDecay(net.trainable_params(), 0.1)
    options = {"loss": nn.MSELoss(), "optimizer": optimizer, "device_num": 2, "dataset_strategy": "full_batch"}
    return compile_steps(net, np.ones((4, 32), np.float32), np.ones((4, 16), np.float32), **{**options, **settings})


@pytest.mark.quick(3)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", SHARED)
def test_files_of_shared_optimizers_and_buckets_name_nothing_that_the_rank_does_not_have(name, rank, tmp_path):
    for path in write_graph_files(shared_steps(SHARED[name]), str(tmp_path), rank):
        check_operands(path.read_text())


def test_messages_of_gradients_are_not_named_like_those_of_operators(tmp_path):
    text = write_graph_files(shared_steps(FUSED), str(tmp_path), 0)[-1].read_text()
    sent = [line for line in text.splitlines() if "= AllReduce(" in line]
    assert len(sent) == 2 and "instance name: forward_op_" in sent[0] and "instance name: mirror_bucket1" in sent[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_in_weight_grouping_a_file_shows_its_own_states_and_both_broadcasts(rank, tmp_path):
    """Two parameters, w of rank 0 and w2 of rank 1. (The files once showed the updates of all ranks on every rank.)"""
    text = write_graph_files(shared_steps(SHARED["weight grouping"]), str(tmp_path), rank)[-1].read_text()
    mine, other = ("w", "w2") if rank == 0 else ("w2", "w")
    assert f"ref_key=:adam_m.{mine}\n" in text and f"adam_m.{other}\n" not in text
    assert f"instance name: {other}.update" not in text
    assert [line.partition("root_rank: ")[2][0] for line in text.splitlines() if "= Broadcast(" in line] == ["0", "1"]


def test_a_second_program_gets_higher_numbers(steps, tmp_path):
    first, second = write_graph_files(steps, str(tmp_path), 0), write_graph_files(steps, str(tmp_path), 0)
    numbers = [int(p.stem.rpartition("_")[2]) for p in (*first, *second)]
    assert numbers == sorted(set(numbers))
