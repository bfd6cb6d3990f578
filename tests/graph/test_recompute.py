"""Recomputing changes when memory is free and what is computed twice, and no bit of a result."""

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn, ops
from parallel_lab.base import hooks
from parallel_lab.cost import predict_memory
from parallel_lab.cost.schedules import make_schedule
from parallel_lab.graph.kinds import KINDS
from parallel_lab.graph.plan import Plan
from parallel_lab.lab.memory.count import measured_ranks, predicted_ranks
from parallel_lab.processes.shm import close_all
from parallel_lab.train.session import Session, initial_values
from tests.crossed import crossed
from tests.recorded.nets import MegatronMlp

SIZE = 8


class Block(nn.Cell):
    """Norm, product, dropout, and a residual; `cut` splits the product."""

    def __init__(self, cut=None):
        super().__init__()
        self.norm = nn.LayerNorm((SIZE,), dtype="float64")
        self.fc1, self.fc2 = (nn.Dense(SIZE, SIZE, dtype="float64") for _ in range(2))
        self.relu, self.drop = ops.ReLU(), nn.Dropout(p=0.25)
        if cut is not None:
            self.fc1.matmul.shard(cut)

    def construct(self, x):
        return x + self.drop(ops.tanh(self.fc2(self.relu(self.fc1(self.norm(x))))))


class Stack(nn.Cell):
    """Blocks, on stages; in front, if asked for, batch normalisation, whose statistics are assigned."""

    def __init__(self, count=4, cut=None, stages=(), norm=False):
        super().__init__()
        pl.set_seed(5)
        self.norm = nn.BatchNorm1d(SIZE) if norm else None
        self.blocks = nn.CellList([Block(cut) for _ in range(count)])
        for block, stage in zip(self.blocks, stages, strict=False):
            block.pipeline_stage = stage
        self.set_train()

    def construct(self, x):
        x = ops.cast(self.norm(ops.cast(x, dtype="float32")), dtype="float64") if self.norm is not None else x
        for block in self.blocks:
            x = block(x)
        return x


def batch(rows=32):
    rng = np.random.default_rng(0)
    return rng.standard_normal((rows, SIZE)), rng.standard_normal((rows, SIZE))


def nothing(net):
    pass


def each_block(net, **options):
    for block in net.blocks:
        block.recompute(**options)


def operators(net):
    for block in net.blocks:
        block.relu.recompute()
        block.drop.dropout.add_prim_attr("recompute", True)


MARKS = {
    "blocks": each_block,
    "whole": lambda net: net.recompute(),
    "kept messages": lambda net: each_block(net, mp_comm_recompute=False),
    "gathered again": lambda net: each_block(net, parallel_optimizer_comm_recompute=True),
    "sliced": lambda net: each_block(net, recompute_slice_activation=True),
    "operators": operators,
    "one kept": lambda net: (net.recompute(), net.blocks[1].fc1.matmul.recompute(False)),
}
OPTIMIZERS = {
    "adam": lambda net: nn.Adam(net.trainable_params(), 0.01),
    "lamb": lambda net: nn.Lamb(net.trainable_params(), 0.01),
    "scaled": lambda net: nn.Momentum(net.trainable_params(), 0.1, 0.9, loss_scaler=nn.DynamicLossScaler(1024.0, 2, 2)),
    "clipped": lambda net: nn.SGD(net.trainable_params(), 0.1, clip=nn.GradientClip("global_norm", 0.05)),
}
MODES = {
    "semi": {"parallel_mode": "semi_auto_parallel", "dataset_strategy": "full_batch"},
    "data": {"parallel_mode": "data_parallel", "dataset_strategy": "data_parallel"},
}
SHARDED = {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}
LEVELS = {"": {}} | {level: {**SHARDED, "optimizer_level": level} for level in ("level1", "level2", "level3")}
AUTO = {"mode": "auto", "config": None}


def planned(mark=nothing, devices=8, optimizer="adam", shape=None, rows=32, **settings):
    net = Stack(**(shape or {}))
    mark(net)
    made = OPTIMIZERS[optimizer](net)
    settings = {**MODES["semi"], **settings}
    x, y = batch(rows if settings["dataset_strategy"] == "full_batch" else rows // devices)
    return pl.compile(net, x, y, loss=nn.MSELoss(), optimizer=made, device_num=devices, **settings), net, made


def trained(plan, net, optimizer, steps=3, rows=32, **ranks):
    with Session(plan, net, optimizer, **ranks) as session:
        return session.train([batch(rows)], steps), session.parameters()


def same_bits(mark, **given):
    """The plan that recomputes, after it was found to train as the other one does."""
    losses, parameters = trained(*planned(**given))
    plan, net, optimizer = planned(mark, **given)
    got, ours = trained(plan, net, optimizer)
    assert got == losses
    for name, want in parameters.items():
        np.testing.assert_array_equal(ours[name], want, err_msg=name)
    return plan


def copies(plan, phase="backward"):
    return [i for _, i in plan.instructions(phase) if i.origin.made_by == "recompute"]


CUT = ((2, 2), (1, 2))  # rows of the batch and of the weight: a sum over pairs


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("mark", "mode", "level", "parts", "fused"), crossed(MARKS, MODES, LEVELS, [1, 2], [False, True])
)
def test_no_bit_changes(mark, mode, level, parts, fused):
    settings = {**MODES[mode], **LEVELS[level], "grad_accumulation_step": parts}
    if fused:
        settings["comm_fusion"] = {"allreduce": AUTO, "allgather": AUTO}
    shape = {"cut": ((2, 2), (2, 2)) if mode == "semi" else None}
    plan = same_bits(MARKS[mark], optimizer="lamb", shape=shape, **settings)
    assert copies(plan)
    assert Plan.from_dict(plan.to_dict()).digest == plan.digest


@pytest.mark.quick(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("mode", MODES)
def test_no_bit_changes_with_any_optimizer(optimizer, mode):
    same_bits(each_block, optimizer=optimizer, **MODES[mode])


@pytest.mark.quick(1)
@pytest.mark.parametrize("scheduler", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "interleave"), [((0, 0, 1, 1), False), ((0, 1, 0, 1), True)])
@pytest.mark.parametrize("mark", ["blocks", "kept messages", "sliced", "operators"])
def test_no_bit_changes_in_pipelines(mark, stages, interleave, scheduler):
    settings = {"pipeline_stages": 2, "pipeline_interleave": interleave, "pipeline_scheduler": scheduler}
    shape = {"stages": stages, "cut": ((2, 2), (1, 2))}
    assert copies(same_bits(MARKS[mark], shape=shape, grad_accumulation_step=4, **settings))


# schedules whose backward is divided: B and W read what was made again, or W makes it
DIVIDED = {"zb_h1": False, "zb_h2": False, "zb_h1, chunks": True}


def divide(monkeypatch, name):
    """The settings of two stages on a schedule with B and W."""
    schedule = name.partition(",")[0]
    monkeypatch.setattr(hooks, "_schedule_maker", lambda _, *size: list(map(list, make_schedule(schedule, *size))))
    settings = {"pipeline_stages": 2, "pipeline_interleave": DIVIDED[name], "grad_accumulation_step": 4}
    return {"shape": {"stages": (0, 1, 0, 1) if DIVIDED[name] else (0, 0, 1, 1), "cut": CUT}, **settings}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", DIVIDED)
@pytest.mark.parametrize("mark", ["kept messages", "blocks", "whole", "sliced", "operators"])
def test_no_bit_changes_where_backward_is_divided(mark, name, monkeypatch):
    """A stage at a time too: that one keeps its results, the other one makes them again."""
    settings = divide(monkeypatch, name)
    plan = same_bits(MARKS[mark], **settings)
    made = copies(plan), copies(plan, "weights")
    assert made[0] and bool(made[1]) == (mark == "kept messages")
    only = same_bits(lambda net: net.blocks[3].recompute(), **settings)
    assert {i.stage % 2 for i in copies(only)} == {1}


@pytest.mark.exhaustive
def test_processes_make_again_what_the_simulator_kept(monkeypatch):
    settings = divide(monkeypatch, "zb_h1")
    with pl.WorkerPool(8) as pool:
        found = trained(*planned(each_block, **settings), executor="processes", pool=pool)
    losses, parameters = trained(*planned(**settings))
    assert found[0] == losses
    for name, want in parameters.items():
        np.testing.assert_array_equal(found[1][name], want, err_msg=name)


@pytest.mark.parametrize("mode", MODES)
def test_statistics_of_a_batch_are_assigned_once(mode):
    plan = same_bits(lambda net: (net.recompute(), net.norm.recompute()), shape={"norm": True}, **MODES[mode])
    assert len({target for target, _ in plan.forward_assignments}) == len(plan.forward_assignments) == 2


# ---- memory, work and messages ----

WIDTH, ROWS = 4, 64


class Segment(nn.Cell):
    """tanh, some times: its gradient reads its result."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def construct(self, x):
        for _ in range(self.count):
            x = ops.tanh(x)
        return x


class Chain(nn.Cell):
    """`layers` equal layers in `segments` Cells, before a product with a weight (so that there is a gradient)."""

    def __init__(self, layers, segments, recompute):
        super().__init__()
        self.w = pl.Parameter(np.full((WIDTH,), 0.5), name="w")
        self.segments = nn.CellList([Segment(layers // segments) for _ in range(segments)])
        for segment in self.segments if recompute else ():
            segment.recompute()

    def construct(self, x):
        x = x * self.w
        for segment in self.segments:
            x = segment(x)
        return ops.reduce_sum(x)


def chain(layers, segments, recompute=True):
    given = {"device_num": 1, "dataset_strategy": "full_batch"}
    loss = lambda out, label: out + 0.0 * ops.reduce_sum(label)  # noqa: E731
    return pl.compile(Chain(layers, segments, recompute), np.ones((ROWS, WIDTH)), np.ones((1,)), loss=loss, **given)


LAYER = ROWS * WIDTH * 8  # bytes of a result


def beside_the_states(plan):
    """Results of layers that are in memory at the peak, besides a gradient and the one made of it."""
    memory = predict_memory(plan)
    return (memory.peak_bytes - memory.resident_bytes) // LAYER - 2


@pytest.mark.parametrize("segments", [2, 3, 4, 6, 8, 12])
def test_equal_layers_need_what_the_formula_of_segments_says(segments):
    """k inputs of segments are kept, and n / k - 1 results of one segment at a time are made again."""
    n = 24
    assert beside_the_states(chain(n, 1, recompute=False)) == n
    plan = chain(n, segments)
    assert beside_the_states(plan) == segments + n // segments - 1
    assert len(copies(plan)) == n - segments  # all layers but those that make a segment's result, once


def flops(plan, instrs):
    return sum(KINDS[i.kind].flops(plan, i) for i in instrs)


def test_the_work_of_what_is_made_again_is_counted():
    plain, plan = (planned(mark, devices=1)[0] for mark in (nothing, each_block))
    extra = list(plan.instructions("backward"))
    before = flops(plain, (i for _, i in plain.instructions("backward")))
    again = copies(plan)
    assert flops(plan, (i for _, i in extra)) - before == flops(plan, again) > 0
    forward = {i.outs: i for _, i in plan.instructions("forward")}
    originals = [forward[tuple(name.partition(".again")[0] for name in i.outs)] for i in again]
    assert flops(plan, originals) == flops(plan, again)
    # the residual's sum makes the output, and no gradient reads it
    assert not {i.name for i in again} & {f"network.backbone.blocks.{n}.add" for n in range(4)}


@pytest.mark.quick(3)
@pytest.mark.parametrize("level", ["", "level1"])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("mark", MARKS)
def test_nothing_is_made_again_in_vain(mark, parts, level):
    """Every copy has a reader, nothing is copied twice for a step or a micro-batch, and what is copied is not kept."""
    settings = {"shape": {"cut": CUT}, "grad_accumulation_step": parts, **LEVELS[level]}
    plan = planned(MARKS[mark], **settings)[0]
    forward, backward = (dict(plan.stages[0].programs)[phase] for phase in ("forward", "backward"))
    made = [i for i in backward if i.origin.made_by == "recompute" and i.attr("dim") is None]
    read = {name for i in backward for name in i.ins}
    names = [(n.partition(".again")[0], i.once) for i in made for n in i.kept]
    assert made and all(read.intersection(i.kept) for i in made)
    assert len(set(names)) == len(names)
    several = {n for i in forward if len(i.outs) > 1 for n in i.outs}  # a copy of one result brings the others
    assert not {n for n, _ in names} & (read - several)


def megatron(**options):
    net = nn.SequentialCell(*(MegatronMlp(16, 32, 2, 4) for _ in range(4)))
    for block in net:
        block.recompute(**options)
    x = np.ones((16, 16), np.float32)
    plan = pl.compile(net, x, x, loss=nn.MSELoss(), device_num=8, dataset_strategy="full_batch")
    return plan, net, None, (x, x)


@pytest.mark.exhaustive
def test_options_have_their_effects_on_workers():
    """Messages and bytes counted by the workers: as predicted, and as each option says."""

    def counted(plan, net, optimizer, data=None):
        ranks = measured_ranks(plan, initial_values(plan, net, optimizer), data or batch())
        for there, here in zip(ranks, predicted_ranks(plan), strict=True):
            assert [p.live for p in there.timeline] == [p.live for p in here.timeline]
            assert there.traffic == here.traffic
        return ranks[0]

    level, shape = LEVELS["level1"], {"cut": CUT}
    try:
        sent, kept = (counted(*planned(MARKS[mark], shape=shape)) for mark in ("blocks", "kept messages"))
        once, again = (counted(*planned(MARKS[mark], shape=shape, **level)) for mark in ("blocks", "gathered again"))
        whole, sliced = counted(*megatron()), counted(*megatron(recompute_slice_activation=True))
    finally:
        close_all()
    assert kept.messages < sent.messages and kept.most("activations") > sent.most("activations")
    gathers = ("parameters", "all_gather")
    assert again.traffic[gathers][0] > once.traffic[gathers][0] and again.peak_bytes < once.peak_bytes
    assert sliced.messages == whole.messages + 3  # the first block's input is the batch
    assert sliced.most("activations") < whole.most("activations")


def test_messages_are_sent_again_or_their_results_kept():
    cut = {"cut": ((2, 2), (2, 2))}
    plans = [planned(mark, shape=cut)[0] for mark in (nothing, each_block, MARKS["kept messages"])]
    sent = [sum(i.is_communication for _, i in plan.instructions("backward")) for plan in plans]
    assert sent[1] > sent[2] == sent[0]
    again, kept = (predict_memory(plan).activations_bytes for plan in plans[1:])
    assert again < kept


def test_parameters_are_gathered_again_where_asked_for():
    plans = [planned(MARKS[mark], **LEVELS["level1"])[0] for mark in ("blocks", "gathered again")]
    gathers = [[i for _, i in p.instructions("backward") if i.kind == "all_gather" and i.carried] for p in plans]
    assert not gathers[0] and len(gathers[1]) == len({i.attr("parameter") for i in gathers[1]}) > 0
    assert all("parallel_optimizer_comm_recompute" in i.reason for i in gathers[1])


def test_kept_activations_are_sliced_over_the_ranks_that_hold_them():
    plain, sliced = megatron()[0], megatron(recompute_slice_activation=True)[0]
    parts = copies(sliced, "forward")
    assert [i.kind for i in parts] == ["slice"] * 3  # the first block's input is the batch
    size = 16 // 2 * 16 * 4  # bytes of a kept result: 4 ranks hold each
    assert copies(plain, "forward") == []
    saved = predict_memory(plain).activations_bytes - predict_memory(sliced).activations_bytes
    assert saved == 3 * (size - size // 4)
    for i in copies(sliced):
        assert i.kind != "all_gather" or i.group_size == 4


def test_a_copy_says_why_it_is_there_and_stands_before_its_reader():
    plan = planned(each_block)[0]
    assert "recompute: computed again for backward" in plan.text(phases=("backward",))
    program = [i for _, i in plan.instructions("backward")]
    reads = {name: at for at, i in reversed(list(enumerate(program))) for name in i.ins}
    for at, instr in enumerate(program):
        if instr in copies(plan):
            first = min(reads[name] for name in instr.kept)
            between = program[at + 1 : first]
            assert all(i.origin.made_by == "recompute" for i in between)


def test_with_pipeline_stages_gathering_again_is_ignored_with_a_warning():
    settings = {"shape": {"stages": (0, 0, 1, 1)}, "grad_accumulation_step": 4, "pipeline_stages": 2}
    with pytest.warns(RuntimeWarning, match="parallel_optimizer_comm_recompute"):
        plan = planned(MARKS["gathered again"], **settings, **LEVELS["level1"])[0]
    assert any("has no effect" in text for name, text in plan.notes if name == "recompute")


# ---- messages that are kept ----

CUTS = {
    "row": ((4, 1), (1, 1)),
    "column": ((1, 1), (4, 1)),
    "inner": ((1, 4), (1, 4)),
    "both": ((2, 1), (2, 1)),
    "whole": ((1, 1), (1, 1)),
}
BETWEEN = {"relu": ops.ReLU, "gelu": nn.GELU, "softmax": nn.Softmax}


class Wide(nn.Cell):
    """A norm, two products with strategies of their own, something between them, and a residual."""

    def __init__(self, first, second, between):
        super().__init__()
        self.up, self.down, self.norm = nn.Dense(16, 64), nn.Dense(64, 16), nn.LayerNorm((16,))
        self.between = BETWEEN[between]()
        self.up.matmul.shard(CUTS[first])
        self.down.matmul.shard(CUTS[second])

    def construct(self, x):
        return x + self.down(self.between(self.up(self.norm(x))))


@pytest.mark.quick(4)
@pytest.mark.parametrize(("first", "second", "between"), crossed(list(CUTS), list(CUTS), list(BETWEEN)))
def test_keeping_what_messages_brought_takes_no_more_memory_than_keeping_everything(first, second, between):
    """A whole row was kept once, where the operator that reads it has a slice of it: twice the memory of no recompute.
    And no message is sent again."""
    x, found = np.ones((64, 16), np.float32), []
    for recomputed in (False, True):
        net = nn.SequentialCell(*(Wide(first, second, between) for _ in range(2)))
        for block in net if recomputed else ():
            block.recompute(mp_comm_recompute=False)
        plan = pl.compile(net, x, x, loss=nn.MSELoss(), device_num=4, dataset_strategy="full_batch")
        found.append(predict_memory(plan))
        assert not any(i.is_communication for i in copies(plan))
    everything, kept = found
    assert kept.activations_bytes <= everything.activations_bytes
    assert kept.peak_bytes <= everything.peak_bytes
