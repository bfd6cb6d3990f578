"""Checkpoints of pipelines: saved under S stages, loaded under others; expected is numpy's index into the whole."""

import itertools

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn, ops
from parallel_lab.layout.slices import is_split
from parallel_lab.mindspore._checkpoint import (
    TensorRecord,
    describe_checkpoint,
    load_distributed_checkpoint,
    merge_pipeline_strategys,
    rank_list_for_transform,
    read_checkpoint,
    restore_group_info_list,
    save_group_info,
    transform_checkpoint_by_rank,
    transform_checkpoints,
    write_checkpoint,
)
from parallel_lab.train.checkpoint.strategy_file import load_strategy, save_strategy
from tests.checkpoint.drawn import same_bits
from tests.crossed import crossed

LAYERS = 4


class Stack(nn.Cell):
    def __init__(self, stages=1, cuts=None):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(8, 8, dtype="float64") for _ in range(LAYERS)])
        for i, layer in enumerate(self.layers):
            layer.pipeline_stage = i * stages // LAYERS
            if cuts is not None:
                layer.matmul.shard(cuts[i % 2])

    def construct(self, x):
        for layer in self.layers:
            x = ops.tanh(layer(x))
        return x


def plan_of(stages, ranks, cuts=None, shard=False):
    net, x = Stack(stages, cuts), np.zeros((16, 8))
    how = {"pipeline_stages": stages, "grad_accumulation_step": 4, "dataset_strategy": "full_batch"}
    how |= {"enable_parallel_optimizer": shard, "parallel_optimizer_threshold": 0}
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    return pl.compile(net, x, x, loss=nn.MSELoss(), optimizer=optimizer, device_num=ranks, **how)


PLANS = {
    "one": lambda: plan_of(1, 1),
    "1 x 4": lambda: plan_of(1, 4, [((2, 2), (1, 2)), ((1, 4), (1, 4))]),
    "2 x 2": lambda: plan_of(2, 4, [((1, 2), (1, 2)), ((1, 1), (2, 1))]),
    "2 x 4": lambda: plan_of(2, 8, [((2, 2), (1, 2)), ((1, 1), (4, 1))], shard=True),
    "4 x 1": lambda: plan_of(4, 4),
}


def expected(plan, fulls, rank):
    """{name: what the rank has of it}."""
    found = {"step": fulls["step"]}
    for name in fulls.keys() - {"step"}:
        parameter = name.removeprefix("moments.")
        if plan.held_by(parameter, rank):
            layout, full = plan.value(parameter).layout, fulls[name]
            found[name] = np.ascontiguousarray(full[layout.slice_index(full.shape, rank % plan.stages[0].count)])
    return found


@pytest.fixture
def fulls(rng):
    values = {f"layers.{i}.{kind}": (8, 8) if kind == "weight" else (8,) for i in range(LAYERS) for kind in KINDS}
    drawn = {name: rng.standard_normal(shape) for name, shape in values.items()}
    return drawn | {f"moments.{n}": -v for n, v in drawn.items()} | {"step": np.asarray(3)}


KINDS = ("weight", "bias")


def written(folder, plan, fulls, bare):
    save_strategy(plan, folder.with_suffix(".json"))
    for rank in range(plan.device_num):
        records = {}
        for name, part in expected(plan, fulls, rank).items():
            layout = None if name == "step" else plan.value(name.removeprefix("moments.")).layout
            whole = bare or not is_split(layout)
            place = rank if whole else rank % plan.stages[0].count
            records[name] = TensorRecord(part, *(() if whole else (fulls[name].shape, layout)), rank=place)
        (folder / f"rank_{rank}").mkdir(parents=True)
        write_checkpoint(folder / f"rank_{rank}" / "net.ckpt", records)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("names", "bare"), crossed(list(itertools.permutations(PLANS, 2)), [False, True]))
def test_any_stages_become_any_other(tmp_path, fulls, names, bare):
    """Every rank of the target gets its own stage's parameters and states, from the ranks that are named for it."""
    source, target = (PLANS[name]() for name in names)
    written(tmp_path / "src", source, fulls, bare)
    save_strategy(target, tmp_path / "dst.json")
    files = str(tmp_path / "src.json"), str(tmp_path / "dst.json")
    transform_checkpoints(str(tmp_path / "src"), str(tmp_path / "dst"), "net", *files)
    for rank in range(target.device_num):
        needed = rank_list_for_transform(rank, *files)
        few = {n: str(tmp_path / "src" / f"rank_{n}" / "net.ckpt") for n in needed}
        transform_checkpoint_by_rank(rank, few, str(tmp_path / "few.ckpt"), *files)
        for file in (tmp_path / "dst" / f"rank_{rank}" / f"net{rank}.ckpt", tmp_path / "few.ckpt"):
            found, want = read_checkpoint(file).tensors, expected(target, fulls, rank)
            assert found.keys() == want.keys()
            assert all(same_bits(found[name].array, want[name]) for name in want)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", [n for n in PLANS if n != "one"])
def test_the_files_of_all_stages_load_on_one_device(tmp_path, fulls, name):
    plan, net = PLANS[name](), Stack()
    written(tmp_path / "src", plan, fulls, False)
    files = [tmp_path / "src" / f"rank_{rank}" / "net.ckpt" for rank in range(plan.device_num)]
    for strategy in (None, tmp_path / "src.json"):
        load_distributed_checkpoint(net, files, train_strategy_filename=strategy)
        for p in net.get_parameters():
            assert same_bits(p.asnumpy(), fulls[p.name])
            p.set_data(0 * p.asnumpy())
    with pytest.raises(ValueError, match=r"\d files\. \d, one per rank"):
        load_distributed_checkpoint(net, files[1:], train_strategy_filename=tmp_path / "src.json")


def test_a_strategy_file_says_which_stage_holds_a_parameter(tmp_path):
    plan = PLANS["2 x 2"]()
    for stage in (0, 1):  # every stage writes its own
        save_strategy(plan, tmp_path / "parts" / f"{stage}.json")
    merge_pipeline_strategys(tmp_path / "parts", tmp_path / "all.json")
    found = load_strategy(tmp_path / "all.json")
    assert (found.device_num, found.stages) == (4, ((0, 2), (2, 2)))
    assert {p.name: p.stages for p in found.parameters} == {
        f"layers.{i}.{kind}": (i // 2,) for i in range(LAYERS) for kind in KINDS
    }


def test_a_file_names_places_within_a_stage(tmp_path, fulls):
    """Rank 3 of 4 is rank 1 of its stage: files said rank 3 of 2, and could not be written."""
    written(tmp_path / "src", PLANS["2 x 2"](), fulls, False)
    assert describe_checkpoint(tmp_path / "src" / "rank_3" / "net.ckpt").tensors["layers.2.weight"].rank == 1


def test_the_ranks_with_the_same_slices_are_of_one_stage(tmp_path):
    """4 ranks per stage; layer 0 (2, 2) and layer 1 (1, 4) over them: nobody else has a rank's slices. Whole: all 4."""
    whole = plan_of(2, 8, [((1, 1), (1, 1))] * 2)
    for plan, rank, expected in ((PLANS["2 x 2"](), 3, [3]), (whole, 1, [0, 1, 2, 3]), (whole, 6, [4, 5, 6, 7])):
        save_group_info(plan, str(tmp_path / "group.json"), rank)
        assert restore_group_info_list(str(tmp_path / "group.json")) == expected
