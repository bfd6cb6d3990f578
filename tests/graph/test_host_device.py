"""Host and device: operators, optimizers and kept forward values on the host; copies, bytes, bits and refusals."""

from dataclasses import replace

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn, ops
from parallel_lab.base.cluster import Link
from parallel_lab.base.errors import ArgumentError, NotBuiltYet, PlanError
from parallel_lab.base.settings.context import reset_context, set_context, set_offload_context
from parallel_lab.cost import get_cluster, predict_memory, predict_timeline, step_time_s
from parallel_lab.lab.memory.count import predicted_ranks, simulated_ranks
from parallel_lab.train.session import Session, initial_values
from tests.crossed import crossed
from tests.graph.drawn_plans import OFFLOADS, Case, compiled, data
from tests.nets import cell, chain

WIDTH, ROWS = 16, 32
NODE = get_cluster("gpu_node")


def layers_of(count, stages=1):
    """Dense layers without bias, and tanh."""
    layer = f"dense {WIDTH} tanh"
    return chain(*[layer] * count, inputs=WIDTH, stages=stages, dtype="float32", has_bias=False)


def batch(rows=ROWS):
    rng = np.random.default_rng(5)
    return tuple(rng.standard_normal((rows, WIDTH)).astype(np.float32) for _ in range(2))


def adam(parameters):
    return nn.Adam(parameters, 0.01)


def stack_plan(
    layers=4, cpu=(), stages=1, parts=1, target=None, half=None, devices=1, rows=ROWS, make=adam, **settings
):
    net = layers_of(layers, stages)
    for at in cpu:  # whose products run on the host
        net.l[at].matmul.set_device("CPU")
    if half:
        net.to_float(half)
    optimizer = make(net.trainable_params()) if make else None
    if target:
        optimizer.target = target
    settings |= {"pipeline_stages": stages, "grad_accumulation_step": parts, "dataset_strategy": "full_batch"}
    plan = pl.compile(net, *batch(rows), loss=nn.MSELoss(), optimizer=optimizer, device_num=devices, **settings)
    return plan, net, optimizer


def trained(plan, net, optimizer, data=None, **ranks):
    with Session(plan, net, optimizer, **ranks) as session:
        losses = session.train([data or batch()], 3)
        return losses, {name: np.asarray(value) for name, value in session.parameters().items()}


def assert_same(one, other):
    assert one[0] == other[0] and one[1].keys() == other[1].keys()
    for name, value in one[1].items():
        np.testing.assert_array_equal(value, other[1][name])


def copies(plan, kind):
    return sum(c["bytes"] for c in plan.to_dict(rank=0)["copies"] if c["kind"] == kind)


# ---- the same bits ---- (most combinations by `crossed` are exhaustive)


CLIP = {"clip": nn.GradientClip("global_norm", 0.05)}
MAKERS = {
    "clipped": lambda p: nn.Adam(p, 0.01, **CLIP),
    "AdamOffload": lambda p: nn.AdamOffload(p, 0.01, weight_decay=0.1, **CLIP),
    "use_offload": lambda p: nn.Adam(p, 0.01, use_nesterov=True, use_offload=True, **CLIP),
}
ON_DEVICE = {
    **MAKERS,
    "AdamOffload": lambda p: nn.Adam(p, 0.01, weight_decay=0.1, **CLIP),
    "use_offload": lambda p: nn.Adam(p, 0.01, use_nesterov=True, **CLIP),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "half"), [("clipped", None), ("AdamOffload", "bfloat16"), ("use_offload", None)])
def test_a_host_that_updates_clips_by_the_norm_over_all_stages(name, half):
    form = {"stages": 2, "parts": 2, "devices": 2, "half": half}
    plan, *rest = stack_plan(make=MAKERS[name], target="CPU" if name == "clipped" else None, **form)
    assert {"moment1.l.0.weight", "moment2.l.3.weight"} <= set(plan.host)
    assert_same(trained(plan, *rest), trained(*stack_plan(make=ON_DEVICE[name], **form)))


class Sends(nn.Cell):
    """The first stage ends with an operator on the host, and the second one begins with one."""

    def __init__(self, target):
        super().__init__()
        self.w, self.v = (pl.Parameter(pl.Tensor(batch()[n][:WIDTH]), name=name) for n, name in enumerate("wv"))
        self.one, self.two = ops.MatMul(), ops.MatMul()
        if target:
            self.one.set_device(target)
            self.two.add_prim_attr("primitive_target", target)
        self.halves = nn.CellList([make_half(self.one, self.w), make_half(self.two, self.v)])
        for stage, half in enumerate(self.halves):
            half.pipeline_stage = stage

    def construct(self, x):
        return self.halves[1](self.halves[0](x))


def make_half(product, weight):
    return cell(lambda net, x: net.product(x, net.weight), product=product, weight=weight)


def test_what_a_host_makes_is_sent_by_the_device_and_taken_by_the_other_one():
    """Activation and gradient go up before they are sent, and down where they arrive: once per micro-batch."""
    made = []
    for target in (None, "CPU"):
        net = Sends(target)
        optimizer = nn.Adam(net.trainable_params(), 0.01)
        how = {"pipeline_stages": 2, "grad_accumulation_step": 4, "dataset_strategy": "full_batch", "device_num": 2}
        plan = pl.compile(net, *batch(), loss=nn.MSELoss(), optimizer=optimizer, **how)
        made.append((plan, trained(plan, net, optimizer)))
    assert_same(made[0][1], made[1][1])
    plan, size = made[1][0], ROWS // 4 * WIDTH * 4
    sent = [i for _, i in plan.instructions() if i.message == "send" and i.once == ""]
    assert len(sent) == 8 and plan.host and not any(i.ins[0] in plan.host for i in sent)
    moved = [c for c in plan.to_dict(rank=1)["copies"] if c["kind"] == "copy_to_host" and c["phase"] == "forward"]
    assert {c["bytes"] for c in moved} == {size}


class Scores(nn.Cell):
    """The deep half of Wide&Deep: a look-up and two dense layers."""

    def __init__(self, target, mode):
        super().__init__()
        how = {"manual_shapes": (4, 12, 8, 8)} if mode == "field_slice" else {}
        self.table = nn.EmbeddingLookup(32, 8, "normal", target, mode, slices=4, **how)
        self.reshape, self.hidden, self.out = ops.Reshape(), nn.Dense(32, 8, activation="relu"), nn.Dense(8, 1)

    def construct(self, ids):
        return self.out(self.hidden(self.reshape(self.table(ids), (-1, 32))))


def scores(target, mode, update=None, devices=4):
    pl.set_seed(7)
    net = Scores(target, mode)
    if devices == 1:
        net.table.slices = 1
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    if update:
        optimizer.target = update
    rng = np.random.default_rng(8)
    starts, sizes = np.array([0, 4, 16, 24]), np.array([4, 12, 8, 8])
    ids = (starts + rng.integers(0, sizes, (16, 4))).astype(np.int32)
    labels = rng.integers(0, 2, (16, 1)).astype(np.float32)
    given = {"device_num": devices, "dataset_strategy": "full_batch"}
    plan = pl.compile(net, ids, labels, loss=nn.BCEWithLogitsLoss(), optimizer=optimizer, **given)
    return plan, net, optimizer, (ids, labels)


MODES = ("batch_slice", "table_row_slice", "table_column_slice", "field_slice")


@pytest.mark.quick(1)
@pytest.mark.parametrize(("mode", "update"), crossed(MODES, [None, "CPU"]))
def test_a_table_on_the_host_trains_as_one_on_the_device(mode, update):
    host, device = scores("CPU", mode, update), scores("DEVICE", mode)
    assert "table.embedding_table" in host[0].host and not device[0].host
    assert_same(trained(*host), trained(*device))


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES[:3])
def test_a_table_on_the_host_trains_as_on_one_device(mode):
    """field_slice counts ids within a rank's rows, so that one device has no such look-up."""
    found, whole = trained(*scores("CPU", mode, "CPU")), trained(*scores("DEVICE", mode, devices=1))
    np.testing.assert_allclose(found[0], whole[0], rtol=1e-5)
    for name, value in found[1].items():
        np.testing.assert_allclose(value, whole[1][name], atol=1e-5)


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", ["row", "column"])
def test_wide_and_deep_keeps_its_tables_on_the_host(how):
    """What crosses: rows of the look-up one way, their gradient the other; the device holds no table."""
    rows, fields, features = 16, 4, 32
    rng = np.random.default_rng(9)
    ids = rng.integers(0, features, (rows, fields)).astype(np.int32)
    weights, labels = rng.standard_normal((rows, fields)), rng.integers(0, 2, (rows, 1))
    data = (ids, weights.astype(np.float32), labels.astype(np.float32))
    made = []
    for target in ("DEVICE", "CPU"):
        pl.set_seed(3)
        net = pl.models.WideDeep(features, fields, 8, (16,), target=target)
        pl.models.split_embeddings(net, how, 4)
        optimizer = nn.Adam(net.trainable_params(), 0.01)
        if target == "CPU":
            optimizer.target = "CPU"
        given = {"device_num": 4, "dataset_strategy": "full_batch"}
        plan = pl.compile(net, *data, loss=nn.BCEWithLogitsLoss(), optimizer=optimizer, **given)
        made.append((plan, trained(plan, net, optimizer, data)))
    assert_same(made[0][1], made[1][1])
    plan = made[1][0]
    assert {"wide_table", "deep_table", "moment1.deep_table"} <= set(plan.host)
    assert predict_memory(plan).params_bytes == predict_memory(plan).optimizer_bytes == 0
    looked = [c for c in plan.to_dict(rank=0)["copies"] if "gather" in c["value"] and c["phase"] == "forward"]
    sizes = {c["value"]: c["bytes"] for c in looked if c["kind"] == "copy_to_device"}
    columns = 8 // (4 if how == "column" else 1)
    assert sizes["deep_gather" if how == "column" else "deep_gather.partial"] == rows * fields * columns * 4


# ---- bytes ----


@pytest.mark.quick(1)
@pytest.mark.parametrize(("half", "each"), [(None, 4), ("float16", 2), ("bfloat16", 2)])
def test_an_optimizer_on_the_host_moves_gradients_down_and_parameters_up(half, each):
    """theory.md 6.3: in mixed precision 2P + 2P bytes per step; 4P and states on the host, no fp32 parameter on the
    device. In single precision 4P + 4P.
    """
    plan, *_ = stack_plan(target="CPU", half=half)
    count, time, report = 4 * WIDTH * WIDTH, step_time_s(plan, NODE), predict_memory(plan)
    assert (time.to_host_bytes, time.to_device_bytes) == (each * count, each * count)
    assert (copies(plan, "copy_to_host"), copies(plan, "copy_to_device")) == (each * count, each * count)
    scalars = 3 * 4  # the rate, two powers of Adam
    assert report.host_resident_bytes == 12 * count + scalars
    assert report.params_bytes == report.optimizer_bytes == report.grads_bytes == 0
    brought = [p for p in report.timeline if p.phase == "update"]
    assert max(p.total_bytes for p in brought) == report.inputs_bytes + 4  # and the loss
    plain = predict_memory(stack_plan(half=half)[0])
    assert plain.resident_bytes - report.resident_bytes == 12 * count + scalars
    assert plain.host_peak_bytes == 0 and report.peak_bytes < plain.peak_bytes - 8 * count


@pytest.mark.parametrize("name", ["AdamOffload", "use_offload"])
def test_moments_on_the_host_cost_a_copy_each_way_and_leave_parameters_on_the_device(name):
    """4P down, 4P up; the device has 4 bytes of a parameter, and not 12 (MindSpore's "1/3", theory.md 6.3)."""
    plan, plain = (stack_plan(make=made[name])[0] for made in (MAKERS, ON_DEVICE))
    count, time, report = 4 * WIDTH * WIDTH, step_time_s(plan, NODE), predict_memory(plan)
    moved = time.to_host_bytes, time.to_device_bytes
    assert 0 <= moved[0] - 4 * count <= 4 * 4 and moved[1] == 4 * count  # and what the host needs of numbers
    assert report.params_bytes == 4 * count and report.host_resident_bytes == 8 * count
    before = predict_memory(plain)
    assert before.resident_bytes - report.resident_bytes == 8 * count
    assert before.peak_bytes - report.peak_bytes == 8 * count


def test_gradients_summed_over_ranks_are_summed_on_the_device():
    """The sum is in float32, as without a host, so 4P go down and 2P come up."""
    plan, *_ = stack_plan(target="CPU", half="bfloat16", devices=2)
    count, time = 4 * WIDTH * WIDTH, step_time_s(plan, NODE)
    assert (time.to_host_bytes, time.to_device_bytes) == (4 * count, 2 * count)


def test_micro_batches_share_one_copy_of_a_parameter():
    plan, *_ = stack_plan(target="CPU", half="bfloat16", parts=4)
    count, time = 4 * WIDTH * WIDTH, step_time_s(plan, NODE)
    assert (time.to_host_bytes, time.to_device_bytes) == (4 * count, 2 * count)


def test_kept_values_leave_the_device_and_come_back():
    """A chain of n tanh keeps n results; with memory_offload all are away when the loss is reached."""
    layers, rows = 6, 1024
    size = rows * WIDTH * 4
    without = stack_plan(layers, rows=rows, make=None)[0]
    plan = stack_plan(layers, rows=rows, make=None, memory_offload=True)[0]
    kept = [c["value"] for c in plan.to_dict(rank=0)["copies"] if c["kind"] == "copy_to_host"]
    assert {f"l.{i}.activation.tanh" for i in range(layers - 1)} <= set(kept)
    time, before, after = step_time_s(plan, NODE), predict_memory(without), predict_memory(plan)
    assert time.to_host_bytes == time.to_device_bytes == len(kept) * size
    assert after.host_peak_bytes == len(kept) * size and before.host_peak_bytes == 0
    assert before.activations_bytes == len(kept) * size and after.activations_bytes == 0
    assert before.peak_bytes - after.peak_bytes >= (layers - 4) * size
    link = NODE.host.link
    assert time.copy_s == pytest.approx(2 * len(kept) * link.time_s(size))
    # down they travel alongside the work; on the way up the device waits for them
    longer = predict_timeline(plan, NODE).end_s - predict_timeline(without, NODE).end_s
    assert len(kept) * link.time_s(size) <= longer * (1 + 1e-9) and longer <= time.copy_s * (1 + 1e-9)


AWAY = ("away", "away early", "away and again", "again")
HELD = {
    "optimizer": Case(devices=2, target="CPU"),
    "operators": Case(devices=2, micro_batches=2, cpu=(1,)),
    "values": Case(devices=2, micro_batches=2, free=OFFLOADS["values"]),
    "cells": Case(blocks=4, devices=2, marks=AWAY),
    "cells, micro-batches": Case(devices=2, micro_batches=2, marks=AWAY[1:3]),
    "cells, stages": Case(blocks=4, devices=2, micro_batches=4, stages=(0, 0, 1, 1), marks=AWAY),
    **{
        f"{name}, {where}": Case(devices=2, micro_batches=6, stages=(0, 1), schedule=name, **how)
        for name in ("zb_h1", "zb_h2")
        for where, how in (("values", {"free": OFFLOADS["values"]}), ("work", {"target": "CPU", "cpu": (0, 1)}))
    },
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", HELD)
def test_what_is_predicted_is_held_on_both_sides(name):
    """Arrays counted on simulated ranks, after every instruction."""
    plan, net, optimizer = compiled(HELD[name])
    assert plan.host and (not name.startswith("zb") or any(a.kind == "W" for a in plan.stages[0].actions))
    counted = simulated_ranks(plan, initial_values(plan, net, optimizer), data(HELD[name]))
    for there, here in zip(counted, predicted_ranks(plan), strict=True):
        assert [(p.live, p.host) for p in there.timeline] == [(p.live, p.host) for p in here.timeline]


def test_a_report_fits_if_both_memories_do():
    plan, *_ = stack_plan(target="CPU", devices=2)
    report = predict_memory(plan)
    device = replace(NODE.device, memory_bytes=report.peak_bytes)
    host = replace(NODE.host, memory_bytes=report.host_peak_bytes * NODE.devices_per_node)
    assert report.fits(replace(NODE, device=device, host=host))
    assert not report.fits(replace(NODE, device=replace(device, memory_bytes=report.peak_bytes - 1), host=host))
    assert not report.fits(replace(NODE, device=device, host=replace(host, memory_bytes=host.memory_bytes - 1)))
    with pytest.raises(ArgumentError, match="Give host=Host"):
        report.fits(replace(NODE, host=None))


# ---- Cell.offload ----


def blocks(layers, prefetch=None, rows=ROWS, mark=lambda net: None, devices=1, make=None, **settings):
    net = layers_of(layers)
    for layer in net.l if prefetch else ():
        layer.offload(prefetch)
    mark(net)
    optimizer = make(net.trainable_params()) if make else None
    given = {"device_num": devices, "dataset_strategy": "full_batch", **settings}
    return pl.compile(net, *batch(rows), loss=nn.MSELoss(), optimizer=optimizer, **given), net, optimizer


def linked(seconds):
    """A cluster whose links between device and host bring a kept result in so many seconds."""
    host = replace(NODE.host, link=Link(alpha_s=seconds, beta_s_per_byte=0.0))
    return replace(NODE, host=host)


def test_copies_are_free_where_they_hide_behind_work():
    """theory.md 6.3: offload is free iff a copy takes no longer than the work of the window that it hides in. Equal
    layers; a copy comes back while the backward of the layer behind runs. Each further layer costs max(0, copy - work)
    in forward, where copies go down, and in backward, where they come back.
    """
    rows = 4096
    plain, ours = ({n: blocks(n, ahead, rows)[0] for n in (4, 8)} for ahead in (None, 3))
    end = {n: predict_timeline(plain[n], NODE).end_s for n in plain}
    phases = [{n: step_time_s(plain[n], NODE).phase(name).total_s for n in plain} for name in ("forward", "backward")]
    forward, backward = ((phase[8] - phase[4]) / 4 for phase in phases)  # the work of a layer
    assert 0 < forward < backward
    for copy in (forward / 4, forward, (forward + backward) / 2, backward, 2 * backward):
        extra = {n: predict_timeline(ours[n], linked(copy)).end_s - end[n] for n in ours}
        each = max(0.0, copy - forward) + max(0.0, copy - backward)
        assert extra[8] - extra[4] == pytest.approx(4 * each, rel=1e-6, abs=1e-12)


def test_what_comes_back_early_costs_memory_and_saves_time():
    ends, peaks = [], []
    for ahead in ("Auto", 3, 6, 9):
        plan = blocks(6, ahead, 4096)[0]
        ends.append(predict_timeline(plan, NODE).end_s)
        peaks.append(max(p.total_bytes for p in predict_memory(plan).timeline if p.phase == "backward"))
    assert ends == sorted(ends, reverse=True) and ends[0] > ends[-1]
    assert peaks == sorted(peaks) and peaks[-1] > peaks[0]
    kept = predict_memory(blocks(6, None, 4096)[0])
    assert predict_memory(blocks(6, "Auto", 4096)[0]).peak_bytes < kept.peak_bytes


def test_only_what_the_cells_made_leaves_the_device():
    plan = blocks(4, mark=lambda net: net.l[1].offload())[0]
    kept = [c["value"] for c in plan.to_dict(rank=0)["copies"] if c["kind"] == "copy_to_host"]
    assert kept == ["l.1.activation.tanh"]


@pytest.mark.parametrize("ahead", [0, -1, "auto", 1.5, True, None])
def test_an_invalid_number_of_operators_is_refused(ahead):
    with pytest.raises((TypeError, ValueError), match="backward_prefetch"):
        nn.Dense(2, 2).offload(ahead)


def test_a_cell_is_recomputed_or_offloaded():
    one, other = nn.Dense(2, 2), nn.Dense(2, 2)
    one.recompute()
    other.offload()
    for again in (one.offload, other.recompute):
        with pytest.raises(ArgumentError, match="One of recompute and offload"):
            again()


# ---- texts, settings, checks ----


def test_a_plan_says_what_lies_and_runs_on_the_host():
    plan, *_ = stack_plan(cpu=(1,))
    text = plan.text()
    assert "{parameter, on the host" in text and "CopyToHost(" in text and "{on the host}" in text
    assert "'l.1.matmul' lies on the host, and is read on the device" in text
    assert "pass place: 3 instructions run on the host, 1 parameters and states live there" in text


def test_settings_of_mindspore_give_the_plan():
    set_context(memory_offload="ON")
    try:
        set_offload_context({"offload_param": "cpu", "auto_offload": False})
        plan, *_ = stack_plan()
        set_offload_context({"offload_param": "disk"})
        with pytest.raises(NotBuiltYet, match="offload_param='disk'"):
            stack_plan()
    finally:
        set_offload_context({"offload_param": ""})
        reset_context()
    assert plan == stack_plan(memory_offload=True, offload_param="cpu")[0]
    assert {p.name for p in plan.parameters} <= set(plan.host)
    with pytest.raises(TypeError, match="A dict of settings"):
        set_offload_context("cpu")


@pytest.mark.parametrize("name", ["l.1.weight", "l.1.matmul"])
def test_a_value_read_in_the_other_memory_without_a_copy_is_a_defect(name):
    plan, *_ = stack_plan(cpu=(1,))
    wrong = replace(plan, host=tuple(n for n in plan.host if n != name))
    with pytest.raises(PlanError, match=r"without a copy|lies on the|one memory"):
        wrong.verify()


def test_another_target_makes_another_program():
    """It was kept and had no effect on what was compiled before."""
    x, layer = batch()[0], nn.Dense(WIDTH, WIDTH, has_bias=False)
    plain = pl.compile(layer, x, device_num=1, dataset_strategy="full_batch")
    layer.matmul.add_prim_attr("primitive_target", "CPU")
    assert not plain.host and "weight" in pl.compile(layer, x, device_num=1, dataset_strategy="full_batch").host
    layer.matmul.set_device("Ascend")
    assert pl.compile(layer, x, device_num=1, dataset_strategy="full_batch").host == ()
