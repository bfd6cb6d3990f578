"""Predictions of plan points against the clock and the memory of whole compiled plans, and against published steps."""

import dataclasses
import json
import os
from dataclasses import fields, replace

import numpy as np
import pytest

from parallel_lab.base.cluster import Cluster, Device, Link, get_cluster
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost import predict_memory, predict_timeline
from parallel_lab.cost.planner import PlanPoint, Transformer, get_machine, machine_names, predict_point, read_machine
from parallel_lab.cost.planner.block import Part, Work, _parts, compile_block, compile_gpt, compile_single, read_part
from parallel_lab.cost.schedules import make_schedule
from parallel_lab.cost.schedules.clock import run_clock
from tests.crossed import each_of
from tests.refusals import refused

SMALL = Transformer("small", 8, 64, 4, 32, 256)


def cluster_of(devices):
    return get_cluster("two_nodes").with_nodes(-(-devices // 8))


def whole(point, model=SMALL, **more):
    options = {"stages": point.stages, "micro_batches": point.micro_batches, "recompute": point.recompute}
    options |= {"chunks": point.chunks, "schedule": point.schedule, "sequence": point.sequence_parallel, **more}
    return compile_gpt(model, point.tensor, point.micro_batch, point.data, **options)


# data, tensor, stages, micro-batch, micro-batches
POINTS = [
    PlanPoint(1, 1, 1, 1, 1),
    PlanPoint(2, 2, 1, 2, 1),
    PlanPoint(2, 2, 1, 2, 4),
    PlanPoint(1, 2, 2, 2, 4),
    PlanPoint(2, 2, 2, 3, 4),
    PlanPoint(2, 4, 2, 1, 4, sequence_parallel=True),
    PlanPoint(1, 4, 1, 4, 4, sequence_parallel=True),
    PlanPoint(4, 2, 2, 1, 4, schedule="gpipe"),
    PlanPoint(2, 2, 4, 1, 8, recompute="full"),
    PlanPoint(8, 2, 4, 1, 8, recompute="attention"),
    PlanPoint(1, 4, 8, 4, 8),
    PlanPoint(2, 4, 8, 1, 9),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize("point", POINTS, ids=PlanPoint.text)
def test_a_step_takes_what_the_clock_of_the_whole_plan_says(point):
    cluster = cluster_of(point.devices)
    # what is gathered again takes no time: as if it were kept
    expected = predict_timeline(whole(point, gather_again=False), cluster, ranks=()).end_s
    found = predict_point(SMALL, point, cluster, precision="float32")
    # not counted: a micro-batch is cut out of the token numbers of the whole step, the longer the more there are
    assert found.step_s == pytest.approx(expected, rel=1e-12 if point.stages == 1 else 1e-5)
    parts = found.compute_s, found.tensor_s, found.copies_s, found.update_s, found.waiting_s
    assert sum(parts) == pytest.approx(found.step_s)


@pytest.mark.exhaustive
@pytest.mark.parametrize("stages", [2, 4])
def test_interleaved_steps_are_those_of_the_plan_to_two_thousandths(stages):
    """With chunks a border's time is the same for both of its directions and all of its chunks."""
    point = PlanPoint(2, 2, stages, 1, 8, 2, "interleaved")
    cluster = cluster_of(point.devices)
    expected = predict_timeline(whole(point), cluster, ranks=()).end_s
    assert predict_point(SMALL, point, cluster, precision="float32").step_s == pytest.approx(expected, rel=2e-3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("point", POINTS, ids=PlanPoint.text)
def test_memory_is_near_that_of_the_plan(point):
    """Terms are each at their most, which is up to 30 % more than the plan's moment with most where there is but one
    micro-batch, or a block is as small as the embedding.
    """
    plan = whole(point)
    peak = max(predict_memory(plan, rank=stage.first).peak_bytes for stage in plan.stages)
    found = predict_point(SMALL, point, cluster_of(point.devices), precision="float32")
    # the scalars of Adam and of the loss are not counted
    assert peak - 64 <= found.memory_bytes <= 1.3 * peak


@pytest.mark.quick(1)
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("sums", [False, True])
def test_numbers_of_a_larger_micro_batch_follow_from_those_of_one_and_two(sums, sequence):
    model = Transformer("one", 1, 64, 4, 32, 256)
    made = compile_single(model, 2, 8, recompute="none", copies=True, sums=sums, sequence=sequence)
    plan = compile_gpt(model, 2, 8, 2, micro_batches=4 if sums else 1, sequence=sequence)
    again = read_part(plan, plan.stages[0], 2, 2)
    for name in ("forward", "backward", "update"):
        mine, expected = getattr(made, name), getattr(again, name)
        for numbers in ("flops", "touched_bytes"):
            assert getattr(mine, numbers) == pytest.approx(getattr(expected, numbers))
        assert mine.messages == expected.messages
    assert made.kept_bytes == again.kept_bytes and made.spare_bytes == pytest.approx(again.spare_bytes)


def same(mine: Part, read: Part) -> None:
    """Equal to the last bit, in all that a prediction reads."""
    for field in fields(Part):
        a, b = getattr(mine, field.name), getattr(read, field.name)
        if isinstance(a, Work):
            assert [m.__dict__ for m in a.messages] == [m.__dict__ for m in b.messages], field.name
            assert np.array_equal(a.flops, b.flops) and np.array_equal(a.touched_bytes, b.touched_bytes), field.name
        elif field.name in ("spare_bytes", "update_bytes"):
            assert a.max() == b.max(), field.name
        else:
            assert a == b and type(a) is type(b), field.name


@pytest.mark.quick(2)
@pytest.mark.parametrize("recompute", ["full", "none", "attention"])
@pytest.mark.parametrize("sequence", [True, False])
@pytest.mark.parametrize(("tensor", "vocabulary"), [(8, 256), (8, 260), (4, 256), (2, 256)])
def test_parts_that_share_their_update_are_those_of_the_whole_plan(tensor, vocabulary, sequence, recompute):
    """Those of 8 ranks are not compiled, they follow from those of 2 and 4, unless 8 does not divide a size."""
    model = Transformer("three", 3, 64, 8, 32, vocabulary)
    how = {"recompute": recompute, "sequence": sequence}
    plan = compile_gpt(model, tensor, 1, 2, stages=3, micro_batches=4, **how)
    block = compile_block(replace(model, layers=1), tensor, 1, copies=True, **how)
    for part, stage in zip((block.first, block.middle, block.last), plan.stages, strict=True):
        same(part, read_part(plan, stage, tensor, 2))


def test_more_devices_compile_nothing_more():
    compiled = []
    for data in (8, 512, 65536):
        predict_point(SMALL, PlanPoint(data, 4, 2, 1, 4), get_machine("dgx_a100", 8 * data))
        compiled.append(_parts.cache_info().misses)
    assert len(set(compiled)) == 1


# Korthikanti et al. 2022, table 5: (model, stages, chunks, micro-batch, micro-batches, seconds). They compute attention
# again, whose scores ours does not keep.
STEPS = [
    ("gpt_22b", 1, 1, 4, 1, 1.10),
    ("gpt3_175b", 8, 3, 1, 64, 13.75),
    pytest.param("mt_nlg_530b", 35, 3, 1, 280, 37.83, marks=pytest.mark.exhaustive),
    pytest.param("gpt_1t", 64, 1, 1, 512, 71.49, marks=pytest.mark.exhaustive),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "stages", "chunks", "micro_batch", "micro_batches", "seconds"), STEPS)
def test_measured_steps_are_met_within_an_eighth(name, stages, chunks, micro_batch, micro_batches, seconds):
    """Nothing was fitted: rates are 0.7 of the peak and 0.8 of a link."""
    how = {"schedule": "interleaved" if chunks > 1 else "1f1b", "sequence_parallel": True}
    point = PlanPoint(1, 8, stages, micro_batch, micro_batches, chunks, **how)
    found = predict_point(name, point, get_machine("dgx_a100", 8 * stages))
    assert found.step_s == pytest.approx(seconds, rel=1 / 8)


# ---- what must hold of any prediction ----

BASE = PlanPoint(4, 2, 4, 1, 8)


def at(point, cluster=None, **options):
    return predict_point(SMALL, point, cluster or cluster_of(point.devices), **options)


@pytest.mark.exhaustive
def test_one_device_sends_nothing():
    found = at(PlanPoint(1, 1, 1, 2, 4))
    assert found.tensor_s == found.copies_s == found.waiting_s == sum(found.sent_bytes.values()) == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["link", "node_link"])
def test_a_faster_link_is_never_slower(name):
    base, times = cluster_of(32), []
    for k in (0, 0.5, 1, 2, 8):
        links = {n: getattr(base, n) for n in ("link", "node_link")}
        links[name] = Link(links[name].alpha_s * k, links[name].beta_s_per_byte * k)
        cluster = Cluster("changed", base.device, links["link"], 8, 4, links["node_link"])
        times.append(at(BASE, cluster).step_s)
    assert times == sorted(times)


def test_levels_hold_less_and_the_third_sends_more():
    found = [at(PlanPoint(4, 2, 4, 1, 8, level=n)) for n in range(4)]
    states = [p.memory["params"] + p.memory["grads"] + p.memory["optimizer"] for p in found]
    parameters = states[0] / 16
    assert [s / parameters for s in states] == pytest.approx([16, 4 + 12 / 4, 2 + 14 / 4, 16 / 4])
    assert found[3].copies_s > found[2].copies_s > found[1].copies_s
    # ring: a reduce_scatter and an all_gather are an all_reduce
    assert found[1].copies_s == pytest.approx(found[0].copies_s)


# What MindSpore's optimizer parallel makes of levels: weights, gradients and states are all stored divided, gathered
# once a step (its levels 1 and 2) or before forward and backward (3); gradients are divided behind every backward
@pytest.mark.exhaustive
@each_of(
    ("level", "ours", "micro_batches", "near"),
    ("level1", 1, 1, 2e-3),
    ("level1", 2, 1, 2e-3),
    ("level2", 2, 4, 0.02),
    ("level3", 3, 1, 0.08),
    ("level3", 3, 4, 0.08),
)
def test_levels_take_about_what_the_compiled_optimizer_parallel_does(level, ours, micro_batches, near):
    """At level 3 ours gathers every parameter twice; the plan gathers the tables once, and divides among all ranks what
    those of a layer hold alike.
    """
    model, cluster = Transformer("wide", 4, 512, 8, 128, 1024), cluster_of(8)
    options = {"enable_parallel_optimizer": True, "optimizer_level": level, "parallel_optimizer_threshold": 0}
    plan = compile_gpt(model, 2, 2, 4, micro_batches=micro_batches, **options)
    point = PlanPoint(4, 2, 1, 2, micro_batches, level=ours)
    found = predict_point(model, point, cluster, precision="float32")
    assert found.step_s == pytest.approx(predict_timeline(plan, cluster, ranks=()).end_s, rel=near)
    if ours == 3:
        held, states = predict_memory(plan), found.memory["params"] + found.memory["optimizer"]
        assert 1 <= states / (held.params_bytes + held.optimizer_bytes) <= 1.1


def test_overlap_hides_messages_between_copies_and_nothing_else():
    plain, hidden = (at(PlanPoint(4, 2, 1, 1, 8, overlap=o)) for o in (False, True))
    assert hidden.copies_s < plain.copies_s
    assert hidden.step_s == pytest.approx(plain.step_s - (plain.copies_s - hidden.copies_s))


@pytest.mark.exhaustive
def test_sequence_parallel_keeps_less_and_sends_a_quarter_more():
    """Korthikanti et al. 2022: six all_gathers and four reduce_scatters a block for four all_reduces, (t - 1) / t b s h
    numbers each (an all_reduce twice that); borders carry 1 / t.
    """
    how = {"precision": "float32"}
    plain, divided = (at(PlanPoint(1, 4, 4, 1, 4, sequence_parallel=s), **how) for s in (False, True))
    assert divided.memory["activations"] < plain.memory["activations"]
    activation, blocks, micro_batches, t = 32 * 64 * 4, 2, 4, 4
    for found, times, border in ((plain, 8, 1), (divided, 10, 1 / t)):
        main = (times * blocks * (t - 1) / t + 2 * border) * micro_batches * activation
        gradients = blocks * (4 + 2) * 64 * 4 * 2 * (t - 1) / t  # norms, biases behind row-split products
        assert sum(found.sent_bytes.values()) == main + gradients


def test_recompute_takes_longer_and_keeps_less():
    found = [at(PlanPoint(1, 2, 2, 4, 4, recompute=r)) for r in ("none", "attention", "full")]
    kept, times = [p.memory["activations"] for p in found], [p.step_s for p in found]
    assert kept == sorted(kept, reverse=True) and kept[0] > kept[2]
    assert times == sorted(times)


@pytest.mark.exhaustive
def test_more_micro_batches_wait_a_smaller_part_of_the_step():
    bubbles = [at(PlanPoint(1, 1, 4, 1, m)).bubble for m in (4, 8, 16, 64)]
    assert bubbles == sorted(bubbles, reverse=True)


def test_bytes_on_links_are_those_of_the_rings():
    """Two all_reduces forward and two backward per block of two ranks, 2 (n - 1) / n b s h numbers each; a border's two
    neighbours get b s h each. The rest are gradients of norms and biases that the plan reduces within a layer too.
    """
    found = at(PlanPoint(1, 2, 4, 1, 4), precision="float32")
    activation, blocks, micro_batches = 32 * 64 * 4, 2, 4
    main = (4 * blocks + 2) * micro_batches * activation
    whole_tensors = 4 + 2  # of a block: two norms' gamma and beta, biases behind row-split products; 64 numbers each
    assert sum(found.sent_bytes.values()) - main == blocks * whole_tensors * 64 * 4
    assert found.sent_bytes["between nodes"] == 0


@pytest.mark.exhaustive
def test_an_explanation_names_units_and_formulas_and_is_data_too():
    found = predict_point("gpt_1.7b", PlanPoint(4, 2, 2, 1, 4, level=1), get_machine("dgx_a100", 16))
    text = found.explain()
    assert "predicted" in text.splitlines()[0] and "12 bytes each / d" in text and "MFU" in text
    data = json.loads(json.dumps(found.to_dict()))
    assert data["step_s"] == found.step_s and data["point"]["tensor"] == 2


@each_of(
    ("point", "said"),
    (PlanPoint(2, 2, 3, 1, 4), "8 layers in 3 parts"),
    (PlanPoint(1, 8, 1, 1, 4), "4 heads on 8 ranks"),
    (PlanPoint(1, 3, 1, 1, 4), "4 heads on 3 ranks"),
    (PlanPoint(16, 2, 4, 1, 4), "128 devices of 64"),
    (PlanPoint(1, 1, 4, 1, 2), "2 micro-batches on 4 stages"),
    (PlanPoint(1, 1, 1, 1, 4, 2), "2 chunks on one stage"),
    (PlanPoint(1, 1, 4, 1, 8, schedule="zb_h1"), "divides backward"),
    (PlanPoint(1, 1, 4, 1, 8, schedule="chimera"), "do not lie in a loop"),
)
def test_points_that_cannot_be_are_refused_with_the_reason(point, said):
    with pytest.raises(ArgumentError, match=said):
        predict_point(SMALL, point, cluster_of(64))


test_wrong_inputs_are_refused = refused(
    lambda: PlanPoint(0),
    lambda: PlanPoint(schedule="1b1f"),
    lambda: PlanPoint(level=4),
    lambda: PlanPoint(recompute="selective"),
    lambda: PlanPoint(overlap=1),
    lambda: predict_point("gpt4", BASE, "dgx_a100"),
    lambda: predict_point(SMALL, BASE, "selene"),
    lambda: predict_point(SMALL, BASE, cluster_of(32), precision="half"),
    lambda: get_machine("dgx_a100", 12),
    lambda: get_machine("laptop", 16),
    lambda: get_machine({"preset": "dgx_a100", "nodelink": {}}),
    lambda: get_machine({"preset": "dgx_a100", "link": {"alpha": 1}}),
    lambda: get_machine({"link": {"alpha_s": 1e-6, "beta_s_per_byte": 1e-9}}),
    lambda: get_machine({"preset": "dgx_a100", "device": 3}),
    lambda: get_machine({"preset": "dgx_a100", "device": {"flops_per_s": -1}}),
    lambda: read_machine("there is no such file.json"),
)


def test_a_cluster_is_read_from_a_file(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"preset": "dgx_h100", "node_link": {"alpha_s": 3e-5}, "name": "ours"}))
    found, known = read_machine(path, 64), get_machine("dgx_h100")
    assert found.cluster.name == "ours" and found.cluster.node_count == 8
    assert found.cluster.node_link == Link(3e-5, known.cluster.node_link.beta_s_per_byte)
    assert found == dataclasses.replace(known, cluster=found.cluster)  # shares, fp8 and host as of the preset
    assert get_machine({"preset": "dgx_h100"}) == known
    own = get_machine({"preset": "dgx_h100", "device": {"flops_per_s": 1e14}, "fp8_flops_per_s": 0})
    assert (own.rate("bf16"), own.rate("attention"), own.fp8_flops_per_s) == (1e14, 1e14, 0)
    device = {"flops_per_s": 1e12, "memory_bytes": 10**9, "memory_bandwidth_bytes_per_s": 1e11}
    link = {"alpha_s": 1e-6, "beta_s_per_byte": 1e-9}
    path.write_text(json.dumps({"device": device, "link": link, "devices_per_node": 4}))
    assert read_machine(path).cluster == Cluster("cluster of a file", Device(1e12, 10**9, 1e11), Link(1e-6, 1e-9), 4)


@pytest.mark.parametrize("name", machine_names())
def test_every_known_machine_has_a_source_and_plausible_numbers(name):
    found = get_machine(name)
    assert found.source and found.cluster.device.flops_per_s <= found.peak_flops_per_s


# ---- what the clock takes for it ----


def test_a_rank_goes_on_behind_an_action_whose_result_is_on_its_way():
    """Two stages, one micro-batch: F 1 + 1, B 1 + 1; 5 s behind the last stage's B delay nobody but that rank."""
    order = make_schedule("1f1b", 2, 1)
    timing = run_clock(order, 1.0, 1.0, 0.0, after=lambda a: 5.0 if str(a) == "1B0" else 0.0)
    assert timing.ends == ((1.0, 4.0), (2.0, 8.0)) and timing.work == (2.0, 7.0)


def test_what_an_action_does_ahead_needs_no_message():
    """Half a second of the last stage's F is done before the message, which takes 1 s, arrives."""
    order = make_schedule("1f1b", 2, 1)
    timing = run_clock(order, 1.0, 1.0, 0.0, 1.0, ahead=lambda a: 0.5 if str(a) == "1F0" else 0.0)
    assert timing.ends[1][0] == 2.5
    with pytest.raises(ArgumentError):
        run_clock(order, cores=1, after=lambda a: 0.0)


@each_of(
    ("content", "said"),
    (b'{"preset": "dgx_a100", "preset": "dgx_h100"}', "'preset' stands twice"),  # the last one won in silence
    (b"[" * 200_000, "nested deeper"),
    (b'{"preset": NaN}', "NaN"),
    (b'{"link": {"alpha_s": 1e400}}', "not finite"),
    (b"\xff\xfe{", "utf-8"),
    (b"", "invalid JSON"),
    (bytes(2 << 20), "at most 1048576"),
    (None, "it is a pipe"),  # it waited for ever,
)
def test_a_cluster_file_that_may_be_anything_is_refused_at_once(tmp_path, content, said):
    path = tmp_path / "cluster.json"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    with pytest.raises(ArgumentError, match=said):
        read_machine(path)


@pytest.mark.parametrize("sizes", [{"seq_length": 10**12}, {"layers": 10**13}, {"vocab_size": 10**13}])
def test_sizes_beyond_every_model_are_refused(sizes):
    with pytest.raises(ArgumentError, match=f"{next(iter(sizes))}=10+.*from 1 to"):
        Transformer("gpt", **{"layers": 4, "hidden": 64, "heads": 4, **sizes})
