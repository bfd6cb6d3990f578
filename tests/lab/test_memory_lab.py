"""The Memory Lab without a widget: bytes by the ZeRO paper's formulas and as counted on ranks, traffic by formula, equality, the puzzle, refusals."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from parallel_lab import reset_auto_parallel_context, set_auto_parallel_context
from parallel_lab.compiler import compile_network
from parallel_lab.cost import MEMORY_KINDS, predict_memory, zero_memory, zero_traffic
from parallel_lab.errors import ArgumentError, OptimizerParallelError, ParallelLabError, ShapeError
from parallel_lab.lab.memory_count import MOMENTS, predicted_ranks, simulated_ranks
from parallel_lab.lab.memory_facts import formulas, parameter_facts
from parallel_lab.lab.memory_lab import DEVICES, MemoryLab
from parallel_lab.lab.memory_page import memory_page
from parallel_lab.lab.memory_puzzle import choices, find_par
from parallel_lab.lab.memory_run import counted
from parallel_lab.lab.memory_subjects import LEVELS, OPTIMIZERS, STACK_LAYERS, SUBJECTS, WIDTHS, Settings, get_subject
from parallel_lab.lab.memory_views import KINDS
from parallel_lab.lab.memory_zero import parse_count, zero_table
from parallel_lab.nn.weight_groups import GROUPED_OPTIMIZERS
from parallel_lab.run.session import initial_values
from parallel_lab.run.shm import close_all

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


def state(lab):
    shot = lab.snapshot()
    shot.pop("run")
    return shot


# ---- memory: the paper's formulas ----


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("level", SEMI)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_a_rank_keeps_is_stage_3_of_the_paper(optimizer, level, devices):
    lab = MemoryLab("stack", devices, optimizer, level=level)
    lab.set_width(256)
    want = zero_memory(STACK_LAYERS * 256 * 256, devices, 3, param_bytes=4, grad_bytes=4, optimizer_bytes=4 * STATES[optimizer])
    for rank in lab.ranks():
        kept = rank.at("resident")
        assert kept["params"] == want.params_bytes
        assert 0 <= kept["optimizer"] - want.optimizer_bytes <= SCALARS
        assert kept["grads"] == kept["activations"] == kept["gathered"] == kept["workspace"] == 0
    assert predict_memory(lab.plan).grads_bytes == want.grads_bytes


@pytest.mark.parametrize("optimizer", GROUPED_OPTIMIZERS)
@pytest.mark.parametrize("devices", DEVICES)
def test_weight_grouping_keeps_stage_1_of_the_paper(devices, optimizer):
    """Eight weights of one size: every rank owns as many, so that whole parameters dealt out are cut evenly."""
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
    """Batch norm's statistics are assigned after forward, while the prediction still has the old ones; numpy's expand_dims copies nothing. The
    prediction is never too small, and no more than a twentieth too large."""
    job, settings = get_subject(subject).job(0), Settings(4, level="level1", threshold_kb=0)
    plan = job.compile(settings)
    found = simulated_ranks(plan, initial_values(plan, job.net, job.optimizer("Adam")), job.batches[0])
    for one, other in zip(predicted_ranks(plan), found, strict=True):
        assert one.traffic == other.traffic
        for said, is_there in zip(one.timeline, other.timeline, strict=True):
            assert said.name == is_there.name and 0 <= said.total_bytes - is_there.total_bytes <= said.total_bytes / 20


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
        assert {k: v for k, v in predicted_ranks(plan)[rank].traffic.items() if k[0] != "network"} == {
            key: (8, int(formula.sent_bytes)) for key, formula in said.items()
        }


# ---- what is cut, and why not ----


def test_small_and_odd_parameters_stay_whole_and_the_reason_is_told():
    lab = MemoryLab("dense", 8)
    facts = {f.name: f for f in lab.facts}
    assert facts["dense1.weight"].ways == 8 and facts["dense1.weight"].kept_shape == (8, 784) and not facts["dense1.weight"].why
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


# ---- the puzzle ----


@pytest.mark.parametrize(("devices", "optimizer", "capacity"), [(2, "SGD", 600_000), (4, "Adam", 1_000_000)])
def test_par_fits_as_counted_and_nothing_wider_does(devices, optimizer, capacity):
    given = Settings(devices, optimizer=optimizer)
    par = find_par(given, capacity)
    job = get_subject("stack").job(par.width)
    plan = job.compile(par.settings)
    ranks = simulated_ranks(plan, initial_values(plan, job.net, job.optimizer(optimizer)), job.batches[0])
    assert max(r.peak_bytes for r in ranks) == par.peak_bytes <= capacity
    assert par.parameters == STACK_LAYERS * par.width**2
    wider = get_subject("stack").job(par.width + WIDTHS.step)
    for settings in choices(given):
        try:
            assert max(r.peak_bytes for r in predicted_ranks(wider.compile(settings))) > capacity, settings
        except OptimizerParallelError:
            assert settings.level == "grouping" and optimizer not in GROUPED_OPTIMIZERS


def test_wider_stacks_take_more_which_the_search_relies_on():
    for settings in choices(Settings(2, optimizer="Lamb")):
        peaks = [max(r.peak_bytes for r in predicted_ranks(get_subject("stack").job(w).compile(settings))) for w in (16, 48, 96)]
        assert peaks == sorted(peaks) and len(set(peaks)) == 3, settings


def test_no_stack_may_fit():
    assert find_par(Settings(2), 1000) is None


def test_the_score_counts_parameters_that_fit():
    lab = MemoryLab("stack", 2, "SGD")
    lab.set_capacity(600_000)
    assert not lab.score.fits and lab.score.ratio is None and lab.score.parameters == STACK_LAYERS * 256**2
    with pytest.raises(ArgumentError, match="par is not known"):
        lab.show_best()
    lab.find_par()
    assert lab.wait(60)
    lab.set_width(16)
    assert lab.score.fits and 0 < lab.score.ratio < 1 and lab.score.source == "predicted"
    lab.show_best()
    assert lab.score.ratio == 1 and lab.score.fits
    lab.run_simulated(1)
    assert lab.wait(60) and lab.score.source == "simulated" and lab.score.fits
    assert lab.snapshot()["puzzle"]["ratio"] == 1
    lab.set_capacity(500_000)  # another line, another par
    assert lab.score.par is None


def test_there_is_nothing_to_score_without_a_line_or_a_width():
    lab = MemoryLab("dense", 2)
    for prepare in (lambda: lab.set_capacity("1 MiB"), lambda: (lab.set_subject("stack"), lab.set_capacity(None))):
        prepare()
        with pytest.raises(ArgumentError, match="nothing to score"):
            _ = lab.score
        assert lab.snapshot()["puzzle"] is None


# ---- the paper's table ----

# Rajbhandari et al. 2020, table 1: GB per device for 7.5 B, 128 B and 1 T parameters at stages 1, 2 and 3, as printed
TABLE_1 = {
    (7.5e9, 64): (31.4, 16.6, 1.88),
    (7.5e9, 1024): (30.1, 15.1, 0.12),
    (128e9, 16): (608, 368, 128),
    (128e9, 1024): (513, 257, 2),
    (1e12, 4): (7000, 5500, 4000),
    (1e12, 256): (4046, 2054, 62.5),
}


@pytest.mark.parametrize(("parameters", "degree"), TABLE_1)
def test_the_table_has_the_paper_s_numbers(parameters, degree):
    printed = TABLE_1[parameters, degree]
    table = zero_table(parameters, degree, 12)
    row = next(r for r in table["rows"] if r["ranks"] == degree)
    assert row["chosen"] and row["gb"][0] == 16 * parameters / 1e9
    for shown, stage, said in zip(row["gb"][1:], table["stages"][1:], printed, strict=True):
        assert shown == pytest.approx(said, rel=0.005, abs=0.005) and stage["total_gb"] == shown
        assert stage["params_gb"] + stage["grads_gb"] + stage["optimizer_gb"] == pytest.approx(shown)


def test_the_largest_models_are_the_paper_s_table_2():
    """32 GB, 64 ranks: 2 B, 7.6 B, 14.4 B and 128 B."""
    found = [stage["largest"] / 1e9 for stage in zero_table(7.5e9, 64, 12)["stages"]]
    assert found == pytest.approx([2, 7.6, 14.4, 128], rel=0.01)


def test_the_learner_s_model_is_shown_with_its_k():
    lab = MemoryLab("stack", 2)
    lab.set_zero("1T", 100, 8)
    zero = lab.snapshot()["zero"]
    assert zero["stages"][1]["total_gb"] == pytest.approx((4 + 8 / 100) * 1e12 / 1e9) and zero["degree"] == 100
    assert [r["ranks"] for r in zero["rows"] if r["chosen"]] == [100] and "K = 8" in lab.to_text()


@pytest.mark.parametrize(("text", "value"), [("7.5B", 7.5e9), (" 350 m", 3.5e8), ("1,5T", 1.5e12), ("1e12", 1e12), (12, 12.0), ("64k", 64e3)])
def test_numbers_of_parameters_are_read(text, value):
    assert parse_count(text) == pytest.approx(value)


@pytest.mark.parametrize("given", ["", "B", "many", "-1B", "1e30", "nan", float("inf"), 0, True, None, [1], "9" * 500])
def test_what_is_no_number_of_parameters_is_refused(given):
    with pytest.raises(ArgumentError, match="parameters="):
        parse_count(given)


# ---- commands ----


@pytest.mark.parametrize(
    ("command", "arguments", "error"),
    [
        ("set_subject", ("lenet",), ArgumentError),
        ("set_width", (100,), ArgumentError),
        ("set_width", (True,), ArgumentError),
        ("set_width", (2048,), ArgumentError),
        ("set_devices", (3,), ArgumentError),
        ("set_devices", ([2],), ArgumentError),
        ("set_parallel_mode", ("hybrid_parallel",), ArgumentError),
        ("set_optimizer", ("AdaGrad",), ArgumentError),
        ("set_level", ("grouping",), ArgumentError),
        ("set_threshold", (-1,), ValueError),
        ("set_threshold", ("much",), TypeError),
        ("set_shard_size", (3,), ArgumentError),
        ("set_shard_size", (8,), OptimizerParallelError),
        ("set_accumulation", (3,), ArgumentError),
        ("set_accumulation_shard", (1,), ArgumentError),
        ("set_capacity", ("a lot",), ArgumentError),
        ("set_capacity", (-5,), ArgumentError),
        ("set_capacity", ("1e400 GiB",), ArgumentError),
        ("select_rank", (4,), ArgumentError),
        ("show_moment", ("later",), ArgumentError),
        ("show_source", ("measured",), ArgumentError),
        ("set_zero", ("7.5B", 0), ArgumentError),
        ("set_zero", ("7.5B", 64.5), ArgumentError),
        ("set_zero", ("7.5B", 64, -1), ArgumentError),
        ("set_zero", ("7.5B", 10**9), ArgumentError),
        ("set_zero", ("7.5B", 64, 1e99), ArgumentError),
        ("set_zero", ("7.5B", 64, float("nan")), ArgumentError),
        ("run_simulated", (0,), ArgumentError),
        ("run_measured", (True,), ArgumentError),
        ("show_best", (), ArgumentError),
    ],
)
def test_what_is_refused_changes_nothing(command, arguments, error):
    lab = MemoryLab("stack", 4)
    lab.set_width(WIDTH)
    before = state(lab)
    with pytest.raises(error) as caught:
        getattr(lab, command)(*arguments)
    assert isinstance(caught.value, ParallelLabError) and state(lab) == before


def test_weight_grouping_has_its_restrictions():
    lab = MemoryLab("dense", 8, "Adam", "data_parallel")
    before = state(lab)
    with pytest.raises(RuntimeError, match="with Adam in data_parallel mode"):
        lab.set_level("grouping")
    assert state(lab) == before and "with Adam" in before["levels"][1]["refused"]
    lab.set_optimizer("Lamb")
    with pytest.raises(ValueError, match="8 ranks and 4 parameters"):
        lab.set_level("grouping")
    lab.set_devices(4)
    lab.set_level("grouping")
    assert [p["owner"] for p in lab.snapshot()["parameters"]] == [0, 1, 2, 3]
    with pytest.raises(OptimizerParallelError):
        lab.set_devices(8)
    assert lab.settings.devices == 4


def test_micro_batches_must_divide_a_rank_s_rows():
    lab = MemoryLab("transformer", 8, parallel_mode="data_parallel")
    with pytest.raises(ShapeError, match="4 equal micro-batches"):
        lab.set_accumulation(4)
    assert lab.settings.accumulation == 1


def test_what_another_choice_does_not_have_falls_back():
    lab = MemoryLab("stack", 8, level="level3")
    lab.set_shard_size(4)
    lab.select_rank(7)
    lab.set_devices(2)
    assert lab.settings.shard_size == -1 and lab.snapshot()["rank"] == 1
    lab.set_parallel_mode("data_parallel")
    assert lab.settings.level == "off"


def test_a_run_is_forgotten_when_the_settings_change_and_not_when_the_look_does():
    lab = MemoryLab("stack", 2)
    lab.set_width(WIDTH)
    lab.run_simulated(1)
    assert lab.wait(60)
    for look in (lambda: lab.set_capacity("9 MiB"), lambda: lab.select_rank(1), lambda: lab.show_moment("resident"), lambda: lab.set_zero(1e9, 8)):
        look()
        assert "simulated" in lab.results
    lab.show_source("predicted")
    lab.set_level("level2")
    assert not lab.results and lab.snapshot()["source"] == {"value": "predicted", "choices": ["predicted"]}


@pytest.mark.parametrize(
    ("given", "size"), [("4 MiB", 4 << 20), ("900KB", 900 << 10), ("2g", 2 << 30), ("", 0), (None, 0), (77, 77), ("1.5 M", 3 << 19), ("12 B", 12)]
)
def test_capacities_are_read(given, size):
    lab = MemoryLab("stack", 2)
    lab.set_capacity(given)
    assert lab.capacity_bytes == size and (lab.snapshot()["puzzle"] is None) == (size == 0)


def test_the_context_of_the_notebook_does_not_matter():
    plain = state(MemoryLab("dense", 4))
    try:
        set_auto_parallel_context(
            parallel_mode="data_parallel",
            device_num=8,
            enable_parallel_optimizer=True,
            gradients_mean=True,
            comm_fusion={"allreduce": {"mode": "auto", "config": None}},
            parallel_optimizer_config={"parallel_optimizer_threshold": 0},
        )
        assert state(MemoryLab("dense", 4)) == plain
    finally:
        reset_auto_parallel_context()


def test_listeners_hear_of_changes_until_they_end():
    lab, heard = MemoryLab("stack", 2), []
    end = lab.on_change(heard.append)
    lab.set_level("off")
    lab.set_capacity("1 MiB")
    assert heard == ["picture", "picture"]
    lab.run_simulated(1)
    assert lab.wait(60)
    assert heard[2:] == ["run", "run"]
    end()
    end()
    lab.set_level("level1")
    assert len(heard) == 4
    lab.close()


@pytest.mark.parametrize("work", ["run_simulated", "run_measured", "find_par"])
def test_a_run_can_be_stopped_and_keeps_nothing(work):
    lab = MemoryLab("stack", 2)
    lab.set_width(WIDTH)
    lab.set_capacity("1 GiB")
    getattr(lab, work)(*([] if work == "find_par" else [10**7]))
    assert work == "find_par" or not lab.wait(0.3)  # the search takes about a second
    lab.stop()
    assert lab.wait(60)
    run = lab.snapshot()["run"]
    assert run["state"] == "stopped" and run["can"] and run["error"] is None and lab.results == {} and lab.score.par is None
    lab.run_simulated(1)
    assert lab.wait(60) and lab.results["simulated"].equality.equal
    lab.close()
    close_all()


def test_a_defect_in_a_run_ends_it(monkeypatch):
    def broken(*_):
        raise ShapeError("no such thing")

    monkeypatch.setattr("parallel_lab.lab.memory_lab.counted", broken)
    lab = MemoryLab("stack", 2)
    lab.run_simulated(1)
    assert lab.wait(10)
    run = lab.snapshot()["run"]
    assert run["state"] == "failed" and "no such thing" in run["error"] and run["can"] and "The run failed" in lab.to_text()


# ---- forms ----


def test_the_kinds_are_those_of_the_cost_model():
    assert sorted(KINDS) == sorted(MEMORY_KINDS) and list(KINDS)[:4] == ["params", "grads", "optimizer", "activations"]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_snapshot_is_plain_data_that_adds_up(subject):
    lab = MemoryLab(subject, 4, level="level1")
    lab.set_threshold(0)
    shot = lab.snapshot()
    assert json.loads(json.dumps(shot, allow_nan=False)) == shot
    for held in (shot["off"], *shot["ranks_of"]["predicted"]):
        for moment in MOMENTS:
            assert sum(held[moment]["live"].values()) == held[moment]["total"]
    steps = shot["steps_of"]["predicted"]
    step = steps["steps"][steps["of"][0]]
    assert max(map(sum, step["live"])) == sum(step["live"][step["peak"]]) == shot["ranks_of"]["predicted"][0]["peak"]["total"]
    assert sum(p["count"] for p in step["phases"]) == len(step["live"])
    assert shot["parameter_count"] == sum(math.prod(p["shape"]) for p in shot["parameters"])
    rows = shot["traffic_of"]["predicted"][0]
    assert sum(r["messages"] for r in rows) == shot["ranks_of"]["predicted"][0]["messages"]


def test_what_changed_is_told_in_words():
    lab = MemoryLab("stack", 8, level="level1")
    changed = lab.snapshot()["changed"]
    saved = changed["off_peak_bytes"] - changed["peak_bytes"]
    assert saved > 0 and f"{saved / changed['off_peak_bytes']:.0%}" in changed["text"] and "traffic: the same, 8 more messages" in changed["text"]
    lab.set_level("off")
    assert lab.snapshot()["changed"]["text"] == "nothing has changed"
    assert lab.snapshot()["status"].startswith("Without optimizer parallel all 8 ranks hold everything.")
    assert "more than the 4 MiB it has" in lab.snapshot()["status"]


def test_the_text_has_every_part():
    lab = MemoryLab("stack", 2)
    lab.set_width(WIDTH)
    lab.set_threshold(0)
    lab.run_simulated(2)
    assert lab.wait(60)
    text = lab.to_text()
    for words in (
        "Bytes per rank",
        "Messages of rank 0",
        "7.64 B",
        "Every level",
        "layers.7.weight",
        "EQUAL: 17 of 17",
        "Largest model",
        "In MindSpore:",
    ):
        assert words in text
    assert 'parallel_optimizer_config={"parallel_optimizer_threshold": 0, "optimizer_level": "level1"}' in text
    assert "1/2 x 128 KiB = 64 KiB" in text  # eight weights of 16 KiB, scattered and gathered by two


def test_the_page_is_whole_and_asks_for_nothing():
    lab = MemoryLab("dense", 2)
    page = memory_page(lab.snapshot(), 'a <title> & "more"')
    assert "a &lt;title&gt;" in page and "<title> &" not in page
    assert "src=" not in page.replace('http-equiv="Content-Security-Policy"', "") and "import(" not in page and "@import" not in page


def test_states_of_the_optimizers_are_as_many_as_the_tests_say():
    for name, count in STATES.items():
        job = get_subject("stack").job(16)
        states = job.optimizer(name).initial_state(job.net.trainable_params()[0])
        assert sum(np.ndim(v.asnumpy() if hasattr(v, "asnumpy") else v) == 2 for v in states.values()) == count
