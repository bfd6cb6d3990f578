"""Recomputing changes when memory is free and what is computed twice, and no bit of a result."""

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn, ops
from parallel_lab.cost import predict_memory
from parallel_lab.graph.kinds import KINDS
from parallel_lab.lab.memory.count import measured_ranks, predicted_ranks
from parallel_lab.processes.shm import close_all
from parallel_lab.train.session import initial_values
from tests.crossed import crossed
from tests.graph.drawn_plans import DATA_PARALLEL, LEVELS, Case, assert_same_bits, compiled, data, trained
from tests.recorded.nets import MegatronMlp


def copies(plan, phase="backward"):
    return [i for _, i in plan.instructions(phase) if i.origin.made_by == "recompute"]


CUT = ((2, 2), (1, 2))  # rows of the batch and of the weight: a sum over pairs
AGAIN = ("again", "kept messages", "gathered", "sliced", "operators", "one kept", "whole")


def case_of(mark="", blocks=4, cut=None, **more):
    """So many blocks, each of them recomputed so ("": not at all)."""
    marks = (mark,) if mark == "whole" else (mark,) * blocks
    return Case(**{"blocks": blocks, "devices": 8, "rows": 32, "marks": marks, "cuts": (cut,) * blocks, **more})


def planned(*mark, **more):
    return compiled(case_of(*mark, **more))[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", [{}, DATA_PARALLEL])
def test_statistics_of_a_batch_are_assigned_once(settings):
    case = case_of("whole", blocks=1, statistics=True, dropout=False, settings=settings)
    made = compiled(case)
    plan = made[0]
    assert_same_bits(trained(case, made), trained(case.plain), case)
    assert len({target for target, _ in plan.forward_assignments}) == len(plan.forward_assignments) == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["zb_h1", "zb_h2"])
def test_a_divided_backward_makes_again_in_b_and_only_kept_messages_in_w(name):
    """A stage at a time too: that one keeps its results, the other one makes them again."""
    more = {"blocks": 2, "stages": (0, 1), "schedule": name, "micro_batches": 6, "rows": 48, "cut": CUT}
    for mark in ("kept messages", "again", "sliced", "operators"):
        plan = planned(mark, **more)
        assert copies(plan) and bool(copies(plan, "weights")) == (mark == "kept messages")
    assert {i.stage % 2 for i in copies(planned(marks=("", "again"), **more))} == {1}


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
    plain, plan = (planned(mark, devices=1) for mark in ("", "again"))
    extra = list(plan.instructions("backward"))
    before = flops(plain, (i for _, i in plain.instructions("backward")))
    again = copies(plan)
    assert flops(plan, (i for _, i in extra)) - before == flops(plan, again) > 0
    forward = {i.outs: i for _, i in plan.instructions("forward")}
    originals = [forward[tuple(name.partition(".again")[0] for name in i.outs)] for i in again]
    assert flops(plan, originals) == flops(plan, again)
    # the residual's sum makes the output, and no gradient reads it
    assert not {i.name for i in again} & {f"network.backbone.blocks.{n}.add" for n in range(4)}


@pytest.mark.quick(2)
@pytest.mark.parametrize("level", ["", "level1"])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("mark", AGAIN)
def test_nothing_is_made_again_in_vain(mark, parts, level):
    """Every copy has a reader, nothing is copied twice for a step or a micro-batch, and what is copied is not kept."""
    plan = planned(mark, cut=CUT, micro_batches=parts, level=LEVELS.get(level, {}))
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

    def counted(plan, net, optimizer, batch=None):
        ranks = measured_ranks(plan, initial_values(plan, net, optimizer), batch or data(case_of()))
        for there, here in zip(ranks, predicted_ranks(plan), strict=True):
            assert [p.live for p in there.timeline] == [p.live for p in here.timeline]
            assert there.traffic == here.traffic
        return ranks[0]

    try:
        sent, kept = (counted(*compiled(case_of(mark, cut=CUT))) for mark in ("again", "kept messages"))
        cases = (case_of(mark, cut=CUT, level=LEVELS["level1"]) for mark in ("again", "gathered"))
        once, again = (counted(*compiled(case)) for case in cases)
        whole, sliced = counted(*megatron()), counted(*megatron(recompute_slice_activation=True))
    finally:
        close_all()
    assert kept.messages < sent.messages and kept.most("activations") > sent.most("activations")
    gathers = ("parameters", "all_gather")
    assert again.traffic[gathers][0] > once.traffic[gathers][0] and again.peak_bytes < once.peak_bytes
    assert sliced.messages == whole.messages + 3  # the first block's input is the batch
    assert sliced.most("activations") < whole.most("activations")


def test_messages_are_sent_again_or_their_results_kept():
    plans = [planned(mark, cut=((2, 2), (2, 2))) for mark in ("", "again", "kept messages")]
    sent = [sum(i.is_communication for _, i in plan.instructions("backward")) for plan in plans]
    assert sent[1] > sent[2] == sent[0]
    again, kept = (predict_memory(plan).activations_bytes for plan in plans[1:])
    assert again < kept


def test_parameters_are_gathered_again_where_asked_for():
    plans = [planned(mark, level=LEVELS["level1"]) for mark in ("again", "gathered")]
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
    plan = planned("again")
    assert "recompute: computed again for backward" in plan.text(phases=("backward",))
    program = [i for _, i in plan.instructions("backward")]
    reads = {name: at for at, i in reversed(list(enumerate(program))) for name in i.ins}
    for at, instr in enumerate(program):
        if instr in copies(plan):
            first = min(reads[name] for name in instr.kept)
            between = program[at + 1 : first]
            assert all(i.origin.made_by == "recompute" for i in between)


def test_with_pipeline_stages_gathering_again_is_ignored_with_a_warning():
    with pytest.warns(RuntimeWarning, match="parallel_optimizer_comm_recompute"):
        plan = planned("gathered", stages=(0, 0, 1, 1), micro_batches=4, level=LEVELS["level1"])
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


@pytest.mark.quick(2)
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
