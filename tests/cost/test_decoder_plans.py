"""Plans of decoders over data, tensors, sequences, stages and experts: their terms, their search, what is refused."""

import dataclasses

import numpy as np
import pytest

from parallel_lab.base.cluster import Link
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.planner import DecoderPoint, decoder_space, get_decoder, get_machine, predict_point, search_plans
from parallel_lab.cost.planner.decoder_memory import stages_of
from parallel_lab.cost.planner.decoder_point import Columns
from parallel_lab.cost.planner.decoder_pricing import Costs, price
from parallel_lab.cost.schedules import make_schedule
from parallel_lab.cost.schedules.clock import run_clock
from parallel_lab.layout.placements import Placement, attention_work
from tests.crossed import each_of
from tests.refusals import refused

H100 = get_machine("dgx_h100", 64)
LLAMA, MIXTRAL, V3 = map(get_decoder, ("llama3_8b", "mixtral_8x7b", "deepseek_v3"))


def free_links(machine):
    """Messages that take no time."""
    cluster = dataclasses.replace(machine.cluster, link=Link(0.0, 0.0), node_link=Link(0.0, 0.0))
    return dataclasses.replace(machine, cluster=cluster)


def test_attention_waits_for_the_longest_rank_of_each_step():
    """Contiguous rings differ from zigzag by the pairs that `attention_work` counts, 14 d operations a head each."""
    seconds = {}
    for way in ("ring", "zigzag"):
        found = predict_point(LLAMA, DecoderPoint(8192, context=8, way=way), free_links(H100))
        assert found.context_s == 0
        seconds[way] = found.attention_s
    pairs = [attention_work(Placement(kind, 8192, 8)).time for kind in ("contiguous", "zigzag")]
    more = 32 * 14 * 4096 * (pairs[0] - pairs[1]) / H100.rate("attention")
    assert seconds["ring"] - seconds["zigzag"] == pytest.approx(more)


def test_a_slow_link_exposes_a_ring_and_an_exchange_by_their_bytes():
    slow = Link(0.0, 1e-3)  # 1,000 bytes a second: nothing is hidden but the arithmetic, which is as nothing
    machine = dataclasses.replace(H100, cluster=dataclasses.replace(H100.cluster, link=slow))
    for way in ("zigzag", "gathered", "ulysses", "hybrid"):
        point = DecoderPoint(8192, context=8, way=way, exchange=2 if way == "hybrid" else 1)
        found = predict_point(LLAMA, point, machine)
        c, keys, queries = 8192 // 8, 8 * 128, 4096
        ring = 2 * 7 * c * keys * 2 * 2 + 2 * 8 * c * keys * 4
        inside = 2 * 3 * (2 * c) * (keys // 2) * 2 * 2 + 2 * 4 * (2 * c) * (keys // 2) * 4  # four groups of two
        sent = {
            "zigzag": ring,
            "gathered": 3 * 2 * 7 * c * keys * 2,
            "ulysses": 2 * 2 * c * (queries + keys) * 2 * 7 // 8,
            "hybrid": 2 * 2 * c * (queries + keys) * 2 // 2 + inside,
        }
        assert found.context_s == pytest.approx(32 * sent[way] * 1e-3, rel=1e-3)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_memory_is_states_and_what_layers_keep(level):
    point = DecoderPoint(4096, data=4, tensor=2, context=2, expert=8, micro_batch=2, level=level)
    found = predict_point(MIXTRAL, point, H100).memory
    states = sum(found[kind] for kind in ("params", "grads", "optimizer"))
    assert states == pytest.approx(point.degrees.states(MIXTRAL, level).size_bytes)
    assert found["activations"] == 32 * MIXTRAL.layer_activation_bytes(2, 4096, 2, 2)


def test_without_sequence_parallel_norms_are_whole_on_each_rank():
    kept = [LLAMA.layer_activation_bytes(1, 512, 8, sequence_parallel=on) for on in (False, True)]
    assert kept[0] - kept[1] == 512 * 4 * 4096 * 2 * (1 - 1 / 8)  # inputs and results of two norms


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 2)])
def test_a_pipeline_takes_what_its_schedule_does(schedule, chunks):
    """Against the clock of the schedule itself: (m - 1) of the slowest and each once is exact for GPipe, and the most
    that uneven stages take with 1F1B (theory, section 4).
    """
    point = DecoderPoint(4096, stages=4, micro_batches=8, schedule=schedule, chunks=chunks)
    machine = free_links(H100)
    costs = Costs(LLAMA, machine, Columns.of_points([point]))
    layer_s, head_s = sum(s[0] for s in costs.layer(False).seconds), sum(s[0] for s in costs.head())
    stages = stages_of(LLAMA, 4, 4 * chunks)
    works = [s.layers[0] * layer_s + s.head * head_s for s in stages for _ in range(s.count)]
    assert len(works) == 4 and sum(s.count * s.layers[0] for s in stages) == 32
    found = predict_point(LLAMA, point, machine)
    if chunks == 1:
        clocked = run_clock(make_schedule(schedule, 4, 8), [w / 3 for w in works], [2 * w / 3 for w in works], 0.0, {})
        less = pytest.approx(1) if schedule == "gpipe" else pytest.approx(1, abs=0.02)
        ratio = max(lane[-1] for lane in clocked.ends) / (found.step_s - found.update_s)
        assert ratio == less and ratio <= 1 + 1e-9
    else:  # equal parts: the formula's bubble is the clock's
        even = sum(works) / 8
        clocked = run_clock(make_schedule(schedule, 4, 8, chunks), [even / 3] * 8, [2 * even / 3] * 8, 0.0, {})
        assert max(lane[-1] for lane in clocked.ends) - 8 * 2 * even == pytest.approx(3 * even)
        assert found.waiting_s == pytest.approx((sum(works) - max(works)) / 2)


@pytest.mark.parametrize("layers", [28, 97])
@pytest.mark.parametrize("parts", [1, 2, 7, 16, 64])
def test_the_longest_part_is_as_short_as_it_can_be(layers, parts):
    """Parts no longer than T hold T // c layers each, the last one (T - head) // c: the least T that holds them all."""
    d = dataclasses.replace(LLAMA, layers=layers)
    each, head = d.attention_parameters + d.mlp_parameters, d.vocab_size * d.hidden
    ends = sorted(k * each + more for k in range(layers + 1) for more in (0, head))
    least = next(t for t in ends if t >= head and (parts - 1) * (t // each) + (t - head) // each >= layers)
    stages = stages_of(d, parts, parts)
    assert sum(s.count * s.layers[0] for s in stages) == layers and sum(s.count for s in stages) == parts
    assert max(s.layers[0] * each + s.head * head for s in stages) == least


def test_copies_of_a_stage_with_the_head_alone_wait_for_the_whole_message():
    """V h gradients of four bytes, weights of two: 3 / 4 of them pass a link, the gradients are added, too."""
    link, gamma = Link(0.0, H100.cluster.link.beta_s_per_byte), H100.cluster.device.gamma_s_per_byte
    machine = dataclasses.replace(H100, cluster=dataclasses.replace(H100.cluster, link=link))
    found = predict_point("qwen3_0.6b", DecoderPoint(4096, 4, stages=16, micro_batches=16, level=1), machine)
    assert [s.layers for s in stages_of(get_decoder("qwen3_0.6b"), 16, 16) if s.head] == [(0, 0)]
    assert found.copies_s == pytest.approx(151936 * 1024 * 3 / 4 * ((4 + 2) * link.beta_s_per_byte + 4 * gamma))


@pytest.mark.parametrize("changed", [{"layers": 97}, {"heads": 24, "kv_heads": 8}, {"head_size": 7}])
def test_no_prediction_of_a_search_is_without_a_number(changed):
    d = dataclasses.replace(LLAMA, **changed)
    points = decoder_space(d, 64, 64, seq_length=4096, tensor=(1, 8), context=(1,))
    assert 64 in points.stages if changed.get("layers") else 32 in points.stages
    with np.errstate(all="raise"):
        found = price(d, H100, points)
    assert np.isfinite(found.step_s).all() and np.isfinite(found.memory_bytes).all() and (found.step_s > 0).all()


def test_the_winner_is_the_fastest_of_all_points_that_fit():
    options = {"tensor": (1, 2), "context": (1, 2), "expert": (1, 4, 8), "levels": (1, 3)}
    points = list(decoder_space(MIXTRAL, 32, 64, seq_length=8192, **options))
    found = search_plans(MIXTRAL, get_machine("dgx_h100", 32), 64, seq_length=8192, **options)
    assert [v.point for v in found.verdicts] == points and len(points) > 500
    every = [predict_point(MIXTRAL, p, get_machine("dgx_h100", 32)) for p in points[:: len(points) // 60]]
    fitting = [p.step_s for p in every if p.fits]
    assert fitting and found.winner.fits and found.winner.step_s <= min(fitting)
    assert found.winner.label == "predicted" and "predicted" in found.text() and "predicted" in found.winner.explain()


def test_a_sequence_whose_layers_do_not_fit_is_divided():
    """A million tokens: the least that a rank of at most eight keeps of 32 layers is more than 30 GB without CP."""
    tokens, cap = 1 << 20, 30e9
    assert 2 * 4096 * tokens * 32 / 8 > cap
    with pytest.raises(ArgumentError, match="fits"):
        _ = search_plans(LLAMA, H100, 8, seq_length=tokens, memory_bytes=cap, context=(1,)).winner
    assert search_plans(LLAMA, H100, 8, seq_length=tokens, memory_bytes=cap).winner.point.context > 1


def test_experts_whose_states_do_not_fit_are_divided():
    """Weights and gradients of V3's experts on at most 32 stages of 256 ranks: 6 bytes each, 122 GB without EP."""
    machine, few = get_machine("dgx_h100", 256), {"seq_length": 4096, "levels": (1,), "tensor": (1,), "context": (1,)}
    assert 6 * V3.part("experts") / 32 > machine.cluster.device.memory_bytes
    with pytest.raises(ArgumentError, match="fits"):
        _ = search_plans(V3, machine, 256, expert=(1,), **few).winner
    assert search_plans(V3, machine, 256, **few).winner.point.expert > 1


def test_the_busiest_rank_of_experts_makes_all_wait():
    point = DecoderPoint(4096, data=8, expert=8)
    even, uneven = (predict_point(MIXTRAL, point, H100, load=load) for load in (1, 1.5))
    more = 32 * 4096 * 0.5 * 2 * 3 * 4096 * 14336 * 6 / H100.rate("bf16")
    assert uneven.compute_s - even.compute_s == pytest.approx(more)
    assert uneven.moved_s > even.moved_s
    rows = 0.5 * 4096 * 2 * 4096 * 2 * 7 / 8  # bytes more, to other ranks, each of four times
    assert uneven.expert_s - even.expert_s == pytest.approx(32 * 4 * rows * H100.cluster.link.beta_s_per_byte)


@pytest.mark.parametrize(
    ("name", "devices", "point", "published"),
    [  # Dubey et al. 2024, table 4; release notes of Megatron-Core: 1e12 operations a second of a device
        ("llama3_405b", 8192, DecoderPoint(8192, 64, 8, 1, 16, micro_batches=32), 430),
        ("mixtral_8x7b", 64, DecoderPoint(4096, 16, 1, 1, 4, 8, micro_batches=16), 468),
    ],
)
def test_published_rates_are_met_within_a_quarter(name, devices, point, published):
    found = predict_point(name, point, get_machine("dgx_h100", devices))
    print(f"{name}: predicted {found.mfu * 989:.0f}, published {published} TFLOP/s")
    assert found.mfu * 989 == pytest.approx(published, rel=0.25)


@each_of(
    ("decoder", "point", "said"),
    (LLAMA, DecoderPoint(8192, context=64, way="ulysses"), "32 heads exchanged among 64 ranks"),
    (LLAMA, DecoderPoint(6144, tensor=2, context=3, way="ulysses"), "16 heads exchanged among 3 ranks"),
    (LLAMA, DecoderPoint(8184, context=8, way="zigzag"), "8184 tokens in 16 pieces"),
    (LLAMA, DecoderPoint(8192, tensor=3), "32 heads on 3 ranks"),
    (LLAMA, DecoderPoint(8192, context=4, way="hybrid", exchange=3), "among 3 of 4 ranks"),
    (LLAMA, DecoderPoint(8192, data=4, expert=2), "no experts to divide"),
    (MIXTRAL, DecoderPoint(4096, data=16, expert=16), "8 experts on 16 ranks"),
    (MIXTRAL, DecoderPoint(4096, tensor=2, sequence_parallel=False), "sequence_parallel=True"),
    (MIXTRAL, DecoderPoint(4096, data=3, expert_tensor=3), "experts of 14336 on 3 ranks"),
    (LLAMA, DecoderPoint(4096, stages=4, micro_batches=2), "2 micro-batches on 4 stages"),
    (LLAMA, DecoderPoint(4096, data=128), "128 devices of 64"),
)
def test_points_that_cannot_be_are_refused_with_the_reason(decoder, point, said):
    with pytest.raises(ArgumentError, match=said):
        predict_point(decoder, point, H100)


test_wrong_inputs_are_refused = refused(
    lambda: DecoderPoint(4096, data=4, expert=3),  # does not divide the ranks of a stage
    lambda: DecoderPoint(4096, context=4, exchange=2),  # zigzag exchanges nothing
    lambda: DecoderPoint(4096, way="around"),
    lambda: search_plans(LLAMA, H100, 64),  # no sequence length
    lambda: search_plans("gpt_22b", H100, 64, seq_length=4096),
    lambda: search_plans(LLAMA, H100, 64, seq_length=4096, ways=("around",)),
    lambda: search_plans(LLAMA, H100, 64, seq_length=4096, chunks=(0,)),
    lambda: search_plans(LLAMA, H100, 64, seq_length=4096, numbers="int3"),
    lambda: predict_point(LLAMA, DecoderPoint(4096, numbers="fp8"), get_machine("dgx_a100", 8)),
    lambda: DecoderPoint(4096, stages=2, chunks=2),  # 1F1B does not divide stages
    lambda: predict_point("gpt_22b", DecoderPoint(4096), H100),
    lambda: predict_point(LLAMA, DecoderPoint(4096), H100, precision="float32"),
    lambda: predict_point(MIXTRAL, DecoderPoint(4096), H100, load=0.5),
    error=ArgumentError,
)
