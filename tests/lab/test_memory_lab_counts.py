"""The Memory Lab's bytes: by the ZeRO paper's formulas and as counted on ranks; traffic by formula; equality."""

from dataclasses import replace

import numpy as np
import pytest

from parallel_lab.cost import predict_memory, zero_memory, zero_traffic
from parallel_lab.cost.memory import MEMORY_KINDS
from parallel_lab.graph.compiler import compile_network
from parallel_lab.lab.memory.count import predicted_ranks, simulated_ranks
from parallel_lab.lab.memory.facts import formulas, parameter_facts
from parallel_lab.lab.memory.model import DEVICES, MemoryLab
from parallel_lab.lab.memory.run import counted
from parallel_lab.lab.memory.subjects import LEVELS, OPTIMIZERS, SUBJECTS, Settings, get_subject
from parallel_lab.lab.shared.jobs import STACK_LAYERS
from parallel_lab.nn.optim.weight_groups import GROUPED_OPTIMIZERS
from parallel_lab.processes.shm import close_all
from parallel_lab.train.session import initial_values

pytestmark = pytest.mark.timeout(120)

WIDTH = 64  # of the stack in these tests: 8 weights of 16 KiB
P = STACK_LAYERS * WIDTH * WIDTH
F32 = 4
STATES = {"SGD": 0, "Momentum": 1, "Adam": 2, "AdamWeightDecay": 2, "Lamb": 2}  # values of an optimizer per parameter
SCALARS = 4 * F32  # at most: learning rate, powers of beta, step
SEMI = [level for level in LEVELS["semi_auto_parallel"] if level != "off"]


def stack(**settings):
    """The stack of the tests: (job, settings, plan, plan without optimizer parallel)."""
    job, chosen = get_subject("stack").job(WIDTH), replace(Settings(devices=4, threshold_kb=0), **settings)
    return job, chosen, job.compile(chosen), job.compile(replace(chosen, level="off"))


# ---- memory: the paper's formulas ----


@pytest.mark.quick(2)
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("level", SEMI)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_a_rank_keeps_is_stage_3_of_the_paper(optimizer, level, devices):
    lab = MemoryLab("stack", devices, optimizer, level=level)
    lab.set_width(256)
    want = zero_memory(
        STACK_LAYERS * 256 * 256, devices, 3, param_bytes=4, grad_bytes=4, optimizer_bytes=4 * STATES[optimizer]
    )
    for rank in lab.ranks():
        kept = rank.at("resident")
        assert kept["params"] == want.params_bytes
        assert 0 <= kept["optimizer"] - want.optimizer_bytes <= SCALARS
        assert kept["grads"] == kept["activations"] == kept["gathered"] == kept["workspace"] == 0
    assert predict_memory(lab.plan).grads_bytes == want.grads_bytes


@pytest.mark.quick(1)
@pytest.mark.parametrize("optimizer", GROUPED_OPTIMIZERS)
@pytest.mark.parametrize("devices", DEVICES)
def test_weight_grouping_keeps_stage_1_of_the_paper(devices, optimizer):
    """Eight weights of one size: every rank owns as many, so that whole parameters dealt out are split evenly."""
    lab = MemoryLab("stack", devices, optimizer, "data_parallel", "grouping")
    lab.set_width(WIDTH)
    want = zero_memory(P, devices, 1, param_bytes=4, grad_bytes=4, optimizer_bytes=8)
    for rank in lab.ranks():
        kept = rank.at("resident")
        assert kept["params"] == want.params_bytes and 0 <= kept["optimizer"] - want.optimizer_bytes <= SCALARS
    assert predict_memory(lab.plan).grads_bytes == want.grads_bytes


def test_the_moments_are_the_report_s():
    lab = MemoryLab("stack", 4)
    report, rank = predict_memory(lab.plan, rank=2), lab.ranks()[2]
    assert rank.peak_bytes == report.peak_bytes and rank.at("peak") == report.peak.by_kind
    assert sum(rank.at("resident").values()) == report.resident_bytes
    before = [p.total_bytes for p in report.timeline if p.phase != "update"]
    assert sum(rank.at("training").values()) == max(before)


# level1 and level2 keep all gathered weights from forward to backward: they count as activations
UPDATES = [
    (optimizer, mode, level, accumulation)
    for mode, levels in LEVELS.items()
    for level in levels
    for optimizer in (GROUPED_OPTIMIZERS if level == "grouping" else OPTIMIZERS)
    for accumulation in ((1,) if level == "grouping" else (1, 2))
]


@pytest.mark.quick(2)
@pytest.mark.parametrize(("optimizer", "mode", "level", "accumulation"), UPDATES)
def test_a_step_needs_no_second_copy_of_parameters_and_states(optimizer, mode, level, accumulation):
    """The update replaces them one by one: with all new values next to the old ones, Adam would need 7/4 of the sum."""
    _, _, plan, _ = stack(parallel_mode=mode, level=level, optimizer=optimizer, accumulation=accumulation)
    largest = max(plan.value(instr.out).slice_bytes for _, instr in plan.instructions())
    for rank, held in enumerate(predicted_ranks(plan)):
        report = predict_memory(plan, rank=rank)
        parts = sum(report.parts.values()) + report.inputs_bytes + report.gathered_bytes
        assert held.peak_bytes <= 1.1 * (parts + largest), report.peak
        in_update = max(p.total_bytes for p in report.timeline if p.phase == "update")
        resident = report.params_bytes + report.optimizer_bytes + report.grads_bytes + report.inputs_bytes
        assert in_update <= 1.1 * (resident + largest)


# ---- memory and traffic: what ranks really do ----

CASES = [
    ("stack", Settings(4, level="off")),
    ("stack", Settings(4, level="level1", threshold_kb=0)),
    ("stack", Settings(4, level="level3", threshold_kb=0, accumulation=2)),
    ("stack", Settings(4, level="level1", threshold_kb=0, accumulation=2, accumulation_shard=False, shard_size=2)),
    ("stack", Settings(4, "data_parallel", "Lamb", "grouping")),
    ("dense", Settings(8, level="level2", threshold_kb=0)),
    ("transformer", Settings(4, level="level3", threshold_kb=1)),
    ("transformer", Settings(8, "data_parallel", "Momentum", "off")),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("subject", "settings"), CASES)
def test_every_simulated_rank_holds_and_sends_what_is_predicted(subject, settings):
    job = get_subject(subject).job(WIDTH)
    plan = job.compile(settings)
    predicted = predicted_ranks(plan)
    found = simulated_ranks(plan, initial_values(plan, job.net, job.optimizer(settings.optimizer)), job.batches[0])
    assert [c.rank for c in found] == list(range(settings.devices))
    for one, other in zip(predicted, found, strict=True):
        assert [(p.phase, p.name, p.live) for p in one.timeline] == [(p.phase, p.name, p.live) for p in other.timeline]
        assert one.traffic == other.traffic and one.messages and other.grown_bytes is None


@pytest.mark.parametrize("subject", ["convnet", "embedding"])
def test_a_view_and_running_statistics_are_predicted_once_too_often(subject):
    """Batch norm's statistics are assigned after forward, while the prediction still has the old ones; numpy's
    expand_dims copies nothing. The prediction is never too small, and no more than a twentieth too large.
    """
    job, settings = get_subject(subject).job(0), Settings(4, level="level1", threshold_kb=0)
    plan = job.compile(settings)
    found = simulated_ranks(plan, initial_values(plan, job.net, job.optimizer("Adam")), job.batches[0])
    for one, other in zip(predicted_ranks(plan), found, strict=True):
        assert one.traffic == other.traffic
        for said, is_there in zip(one.timeline, other.timeline, strict=True):
            assert said.name == is_there.name and 0 <= said.total_bytes - is_there.total_bytes <= said.total_bytes / 20


@pytest.mark.quick(1)
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("parts", [(1, True), (2, True), (2, False)])
@pytest.mark.parametrize("size", [-1, 2])
@pytest.mark.parametrize("level", ["off", *SEMI])
def test_the_formulas_say_what_is_sent(subject, level, size, parts):
    """To the byte, but for the rounding of each message to whole bytes."""
    job = get_subject(subject).job(WIDTH)
    settings = Settings(8, "semi_auto_parallel", "Adam", level, 0, size, *parts)
    plan, off = job.compile(settings), job.compile(replace(settings, level="off"))
    sent = {key: found for key, found in predicted_ranks(plan)[0].traffic.items() if key[0] != "network"}
    said = formulas(plan, parameter_facts(plan, off))
    assert said.keys() == sent.keys()
    for key, (messages, size_bytes) in sent.items():
        assert abs(said[key].sent_bytes - size_bytes) <= messages, key


@pytest.mark.quick(1)
@pytest.mark.parametrize("level", ["off", *SEMI])
def test_the_traffic_of_the_stack_is_the_paper_s(level):
    """Level 3 does not gather the first layer's weight again: nobody asks for the gradient of the data."""
    _, _, plan, off = stack(level=level)
    stage = {"off": 0, "level1": 2, "level2": 2, "level3": 3}[level]
    first = WIDTH * WIDTH if level == "level3" else 0
    want = zero_traffic(P, 4, stage) - zero_traffic(first, 4, 3) + zero_traffic(first, 4, 2)
    assert sum(f.sent_bytes for f in formulas(plan, parameter_facts(plan, off)).values()) == want * F32


def test_weight_grouping_sends_each_weight_from_its_owner():
    _, _, plan, off = stack(parallel_mode="data_parallel", optimizer="Lamb", level="grouping")
    facts = parameter_facts(plan, off)
    assert [f.owner for f in facts] == [0, 1, 2, 3] * 2
    for rank in range(4):
        said = formulas(plan, facts, rank)
        assert said["parameters", "broadcast"].sent_bytes == 2 * WIDTH * WIDTH * F32
        assert said["gradients", "all_reduce"].sent_bytes == zero_traffic(P, 4, 0) * F32
        found = {k: v for k, v in predicted_ranks(plan)[rank].traffic.items() if k[0] != "network"}
        assert found == {key: (8, int(formula.sent_bytes)) for key, formula in said.items()}


# ---- what is split, and why not ----


def test_small_and_odd_parameters_stay_whole_and_the_reason_is_shown():
    lab = MemoryLab("dense", 8)
    facts = {f.name: f for f in lab.facts}
    assert facts["dense1.weight"].ways == 8
    assert facts["dense1.weight"].kept_shape == (8, 784)
    assert not facts["dense1.weight"].why
    assert "below parallel_optimizer_threshold=64" in facts["dense1.bias"].why
    lab.set_threshold(0)
    facts = {f.name: f for f in lab.facts}
    assert facts["dense1.bias"].ways == 8
    assert "10 elements, which 8 ranks cannot share equally" in facts["dense2.weight"].why
    lab.set_devices(2)
    assert {f.name: f.ways for f in lab.facts} == dict.fromkeys(facts, 2)


def test_a_shard_size_leaves_copies():
    lab = MemoryLab("stack", 8)
    lab.set_shard_size(2)
    assert {(f.ways, f.replicas) for f in lab.facts} == {(2, 8)}
    assert ("gradients", "all_reduce") in lab.ranks()[0].traffic


# ---- the same numbers ----


@pytest.mark.quick(0)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("level", SEMI)
def test_every_level_equals_plain_data_parallel_after_20_steps(level, parts):
    lab = MemoryLab("stack", 4, level=level)
    lab.set_width(WIDTH)
    lab.set_threshold(0)
    lab.set_accumulation(parts)
    lab.run_simulated()
    assert lab.wait(60) and lab.snapshot()["run"]["state"] == "done"
    result = lab.results["simulated"]
    assert result.steps == 20 and result.equality.equal and len(result.equality.rows) == 1 + 2 * STACK_LAYERS
    assert lab.facts[0].ways == 4 and "simulated ranks against the same ranks without" in result.equality.title


@pytest.mark.exhaustive
def test_weight_grouping_equals_plain_data_parallel_to_the_bit():
    lab = MemoryLab("transformer", 8, "Lamb", "data_parallel", "grouping")
    lab.run_simulated(5)
    assert lab.wait(60)
    assert {row.verdict for row in lab.results["simulated"].equality.rows} == {"identical"}


def test_another_training_is_found_different():
    """Against ranks that add gradients up where these take the mean."""
    job, settings, plan, _ = stack(parallel_mode="data_parallel", optimizer="Momentum", level="off")
    part = tuple(x[: len(x) // 4] for x in job.batches[0])
    config = settings.config() | {"gradients_mean": False}
    other = compile_network(job.net, *part, loss=job.loss, optimizer=job.optimizer("Momentum"), **config)
    equality = counted("simulated", job, settings, plan, other, 3).equality
    assert not equality.equal and all(not row.equal for row in equality.rows if "gradient" in row.tensor)


def test_workers_hold_and_send_what_is_predicted_and_train_the_same():
    lab = MemoryLab("stack", 2, "AdamWeightDecay")
    lab.set_width(WIDTH)
    lab.set_threshold(0)
    try:
        for mode, level in (("semi_auto_parallel", "level3"), ("data_parallel", "grouping")):
            lab.set_parallel_mode(mode)
            lab.set_level(level)
            lab.run_measured(4)
            assert lab.wait(60) and lab.snapshot()["run"]["error"] is None
            for one, other in zip(lab.ranks(), lab.ranks("measured"), strict=True):
                assert [(p.name, p.live) for p in one.timeline] == [(p.name, p.live) for p in other.timeline]
                assert one.traffic == other.traffic and isinstance(other.grown_bytes, (int, type(None)))
            assert lab.results["measured"].equality.equal and lab.snapshot()["source"]["value"] == "measured"
            assert "worker processes" in lab.to_text()
    finally:
        lab.close()
        close_all()


def test_states_of_the_optimizers_are_as_many_as_the_tests_say():
    for name, count in STATES.items():
        job = get_subject("stack").job(16)
        states = job.optimizer(name).initial_state(job.net.trainable_params()[0])
        assert sum(np.ndim(v.asnumpy() if hasattr(v, "asnumpy") else v) == 2 for v in states.values()) == count


def test_ranks_that_are_alike_share_what_is_worked_out_of_their_timeline():
    ranks = MemoryLab("dense", 8).ranks()
    assert len({id(count.timeline) for count in ranks}) == 1
    assert all(count.timeline.fullest is ranks[0].timeline.fullest for count in ranks)
    for moment, points in (
        ("peak", ranks[0].timeline),
        ("training", [p for p in ranks[0].timeline if p.phase != "update"]),
    ):
        assert ranks[5].point(moment) == max(points, key=lambda p: sum(p.live))
    for place, kind in enumerate(MEMORY_KINDS):
        assert ranks[5].most(kind) == max(p.live[place] for p in ranks[0].timeline)
