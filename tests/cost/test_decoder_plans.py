"""Plans of decoders over data, tensors, sequences, stages and experts: their terms, their search, what is refused."""

import dataclasses

import pytest

from parallel_lab.base.cluster import Link
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.planner import DecoderPoint, decoder_space, get_decoder, get_machine, predict_point, search_plans
from parallel_lab.cost.planner.decoder_pricing import DecoderPricing
from parallel_lab.cost.schedules import make_schedule
from parallel_lab.cost.schedules.clock import run_clock
from parallel_lab.layout.placements import Placement, attention_work

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
        seconds[way] = found.compute_s
    pairs = [attention_work(Placement(kind, 8192, 8)).time for kind in ("contiguous", "zigzag")]
    more = 32 * 14 * 4096 * (pairs[0] - pairs[1]) / H100.cluster.device.flops_per_s
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


def test_a_pipeline_takes_what_its_schedule_does():
    point = DecoderPoint(4096, stages=4, micro_batches=8)
    pricing = DecoderPricing(LLAMA, point, free_links(H100))
    works = [sum(pricing._busy(s)) for s in pricing.stages for _ in range(s.count)]
    assert len(works) == 4 and works[3] > works[0]  # the head
    schedule = make_schedule("1f1b", 4, 8)
    clocked = run_clock(schedule, [w / 3 for w in works], [2 * w / 3 for w in works], 0.0, {})
    found = pricing.predict()
    assert found.step_s - found.update_s == pytest.approx(max(lane[-1] for lane in clocked.ends))


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
    more = 32 * 4096 * 0.5 * 2 * 3 * 4096 * 14336 * 6 / H100.cluster.device.flops_per_s
    assert uneven.compute_s - even.compute_s == pytest.approx(more, rel=0.1)  # and what it keeps is moved
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


@pytest.mark.parametrize(
    ("decoder", "point", "said"),
    [
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
    ],
)
def test_points_that_cannot_be_are_refused_with_the_reason(decoder, point, said):
    with pytest.raises(ArgumentError, match=said):
        predict_point(decoder, point, H100)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: DecoderPoint(4096, data=4, expert=3),  # does not divide the ranks of a stage
        lambda: DecoderPoint(4096, context=4, exchange=2),  # zigzag exchanges nothing
        lambda: DecoderPoint(4096, way="around"),
        lambda: search_plans(LLAMA, H100, 64),  # no sequence length
        lambda: search_plans("gpt_22b", H100, 64, seq_length=4096),
        lambda: search_plans(LLAMA, H100, 64, seq_length=4096, ways=("around",)),
        lambda: search_plans(LLAMA, H100, 64, seq_length=4096, chunks=(2,)),
        lambda: predict_point("gpt_22b", DecoderPoint(4096), H100),
        lambda: predict_point(LLAMA, DecoderPoint(4096), H100, precision="float32"),
        lambda: predict_point(MIXTRAL, DecoderPoint(4096), H100, load=0.5),
    ],
)
def test_wrong_inputs_are_refused(wrong):
    with pytest.raises(ArgumentError):
        wrong()
