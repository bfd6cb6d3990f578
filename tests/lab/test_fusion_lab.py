"""The Fusion Lab without a widget: the compiled plan's groups, times that add up, the puzzle, harmless refusals."""

import json
import random
import re
from itertools import pairwise

import pytest

from parallel_lab.base.cluster import Cluster, Device, Link, get_cluster
from parallel_lab.base.errors import ArgumentError, ContextError
from parallel_lab.base.settings import fusion_rules
from parallel_lab.base.units import time_text
from parallel_lab.cost import predict_timeline
from parallel_lab.lab.fusion.case import MODES
from parallel_lab.lab.fusion.lanes import event_lanes, plan_lanes
from parallel_lab.lab.fusion.model import DEVICES, PARALLEL_MODES, FusionLab
from parallel_lab.lab.fusion.subjects import GOLF, SUBJECTS, Job
from parallel_lab.lab.shared.sections import picked
from parallel_lab.processes.shm import close_all

NETWORKS = [name for name, subject in SUBJECTS.items() if subject.job is not None]
each_network = pytest.mark.parametrize("subject", NETWORKS)
each_mode = pytest.mark.parametrize("parallel_mode", PARALLEL_MODES)
MB = 1024 * 1024


def state(lab):
    shot = lab.snapshot()
    shot.pop("run")
    return shot


def joined(groups):
    """Which belong together, whatever their numbers."""
    return sorted(fusion_rules.buckets_of(groups))


# ---- golf ----


def test_golf_from_its_naive_ends_to_par():
    """The published puzzle: 28.0 unfused and in one bucket, 24.75 by the best threshold, par 22.0 by [0, 3, 5]."""
    lab = FusionLab("golf")
    lab.set_mode("each")
    assert lab.score.step_s * 1e3 == pytest.approx(28.0)
    lab.set_cuts([])
    assert lab.score.step_s * 1e3 == pytest.approx(28.0)
    size_mb, step_s = lab.score.best_size
    lab.set_size(size_mb)
    assert lab.score.step_s * 1e3 == pytest.approx(24.75) == step_s * 1e3
    lab.set_index([0, 3, 5])
    assert lab.score.ratio == pytest.approx(1.0) and lab.score.par_s * 1e3 == pytest.approx(22.0)
    assert '"config": [0, 3, 5]' in lab.export()


def test_the_solution_is_shown_after_a_try_of_ones_own_that_beats_both_extremes():
    """One message and each alone take 28 ms, [4] is shorter."""
    lab = FusionLab("golf")
    before = lab.score
    for extreme in ("each", "auto"):
        lab.set_mode(extreme)
        with pytest.raises(ArgumentError, match="no grouping of your own yet"):
            lab.show_best()
    lab.set_index([4])
    lab.show_best()
    assert before.ratio == pytest.approx(28 / 22) and lab.score.ratio == pytest.approx(1.0)
    assert lab.comm_fusion == {"allreduce": {"mode": "index", "config": [0, 3, 5]}}


def test_off_sends_after_backward():
    lab = FusionLab("golf")
    lab.set_mode("off")
    sent = sum(1e-3 + 0.25e-3 * g.size_bytes / MB for g in GOLF)
    assert lab.lanes.step_s == pytest.approx(10e-3 + sent)
    assert lab.lanes.exposed_s == pytest.approx(sent) and lab.comm_fusion == {}


@pytest.mark.parametrize("wording", ["inclusive", "first_n"])
def test_golf_by_the_rules(wording):
    lab = FusionLab("golf")
    lab.set_wording(wording)
    lab.set_index([2, 6])
    assert joined(lab.groups) == joined(fusion_rules.index_groups(10, [2, 6], wording))
    lab.set_size(5)
    assert joined(lab.groups) == joined(fusion_rules.size_groups_by_bytes([g.size_bytes for g in GOLF], 5))
    lab.set_parallel_mode("semi_auto_parallel")
    assert joined(lab.groups) == joined(fusion_rules.size_groups_by_elements([g.size_bytes // 4 for g in GOLF], 5))
    lab.set_ids({"g0": 7, "g3": 7, "g4": 0, "g5": 0})
    groups = dict(zip((g.name for g in GOLF), lab.groups, strict=True))
    assert groups["g0"] == groups["g3"] and len({groups[g] for g in ("g0", "g4", "g5")}) == 3


@pytest.mark.parametrize("wording", ["inclusive", "first_n"])
@pytest.mark.parametrize("seed", range(10))
def test_cuts_are_what_they_were_set_to(seed, wording):
    rng = random.Random(seed)
    lab = FusionLab("golf")
    lab.set_wording(wording)
    cuts = sorted(rng.sample(range(1, 10), rng.randrange(0, 10)))
    lab.set_cuts(cuts)
    assert list(lab.cuts) == cuts and lab.snapshot()["cuts"] == cuts
    asked = json.loads(re.search(r"\[.*?\]", lab.export()).group())  # MindSpore's positions are inclusive
    assert joined(fusion_rules.index_groups(10, asked)) == joined(lab.groups)


def test_cuts_move_come_and_go():
    lab = FusionLab("golf")
    lab.set_cuts([2, 5])
    lab.move_cut(5, 6)
    assert lab.cuts == (2, 6)
    lab.add_cut(4)
    assert lab.cuts == (2, 4, 6)
    lab.move_cut(4, 2)  # onto another one
    assert lab.cuts == (2, 6)
    lab.remove_cut(2)
    assert lab.cuts == (6,)


def test_a_line_of_its_own_changes_par_and_can_be_given_up():
    lab = FusionLab("golf")
    lab.set_mode("each")
    lab.set_line(0.0, 0.25e-3 / MB)  # without a start-up time nothing beats sending each alone
    assert lab.score.ratio == pytest.approx(1.0)
    lab.reset_line()
    assert lab.score.ratio == pytest.approx(28 / 22)


# ---- networks ----


@pytest.mark.quick(1)
@each_network
@each_mode
@pytest.mark.parametrize("mode", MODES)
def test_lanes_are_the_predicted_timeline_of_the_plan(subject, parallel_mode, mode):
    lab = FusionLab(subject, devices=2, parallel_mode=parallel_mode)
    lab.set_mode(mode)
    lanes = lab.lanes
    assert lanes.step_s == pytest.approx(predict_timeline(lab.plan, get_cluster("laptop")).end_s, rel=1e-12)
    names = [box.name for box in lanes.boxes]
    assert sorted(names) == sorted(p.name for p in lab.plan.parameters if p.trainable)
    assert sorted(name for m in lanes.messages for name in m.members) == sorted(names)
    for before, after in pairwise(lanes.boxes):
        assert before.end_s == after.start_s
    for before, after in pairwise(lanes.messages):
        assert after.start_s >= before.end_s * (1 - 1e-12)
    ends = {box.name: box.end_s for box in lanes.boxes}
    for sent in lanes.messages:
        assert sent.ready_s == max(ends[name] for name in sent.members) <= sent.start_s
    behind = (
        lanes.communication_s
        if mode == "off"
        else max(0.0, lanes.messages[-1].end_s - max(lanes.backward_s, lanes.messages[0].start_s))
    )
    assert lanes.exposed_s == pytest.approx(behind, abs=1e-12)


@pytest.mark.quick(1)
@each_network
@each_mode
@pytest.mark.parametrize("seed", range(4))
def test_the_search_counts_what_the_plan_costs(subject, parallel_mode, seed):
    """Any contiguous grouping: par's quick model and the compiled plan give the same step; none of them beats par."""
    rng = random.Random(seed)
    lab = FusionLab(subject, devices=4, parallel_mode=parallel_mode)
    case = lab._case
    count = len(case.names)
    lab.set_cuts(rng.sample(range(1, count), rng.randrange(0, count)))
    assert case.around_s + case.overlap(lab.groups).step_s == pytest.approx(lab.lanes.step_s, rel=1e-9)
    assert lab.score.ratio >= 1 - 1e-9
    lab.show_best()
    assert lab.score.ratio == pytest.approx(1.0, rel=1e-9)


@pytest.mark.quick(1)
@each_network
@each_mode
@pytest.mark.parametrize("mode", ["size", "index", "auto"])
def test_the_plan_groups_as_the_rules_do(subject, parallel_mode, mode):
    lab = FusionLab(subject, devices=2, parallel_mode=parallel_mode)
    count = len(lab._case.names)
    if mode == "index":
        lab.set_index([0, count // 2])
    elif mode == "size":
        lab.set_size(1)
    assert joined(lab.groups) == joined(lab._case.groups(lab._mode, parallel_mode, lab._settings))


def test_positions_behind_the_last_gradient_are_reported():
    """MindSpore cuts nothing there either, and says so. Ten gradients: the last position is 9; the first 10 are all."""
    assert len(GOLF) == 10
    lab = FusionLab("golf")
    lab.set_index([0, 9, 10, 99])
    assert lab.snapshot()["config"]["hint"].endswith(" 10, 99 cut nothing: the last is 9.")
    assert lab.cuts == (1,)
    lab.set_wording("first_n")
    assert lab.snapshot()["config"]["hint"].endswith(" 99 cuts nothing: the last is 10.")
    lab.set_index([1, 10])
    assert "nothing" not in lab.snapshot()["config"]["hint"]


@pytest.mark.quick(1)
@each_mode
def test_cuts_that_no_index_list_makes_become_ids(parallel_mode):
    lab = FusionLab("transformer", devices=2, parallel_mode=parallel_mode)
    for cuts in ([1], [7], [3, 12]):
        lab.set_cuts(cuts)
        assert list(lab.cuts) == cuts
    lab.set_mode("ids")
    first = lab._case.names[0]
    lab.set_ids({first: 0})
    assert "parameter.comm_fusion" in lab.export() and lab.groups.count(lab.groups[0]) == 1


def test_ids_are_forgotten_with_the_mode():
    lab = FusionLab("dense", devices=2)
    lab.set_cuts([2])
    lab.set_mode("ids")
    assert lab.cuts == (2,)
    lab.set_mode("off")
    assert len(lab.lanes.messages) == 4 and not lab.comm_fusion
    lab.set_mode("auto")
    assert len(lab.lanes.messages) == 1


@pytest.mark.quick(1)
@each_network
@each_mode
def test_simulated_steps_count_the_messages_and_are_equal_bit_for_bit(subject, parallel_mode):
    lab = FusionLab(subject, devices=2, parallel_mode=parallel_mode)
    lab.set_cuts([1, 3])
    lab.run_simulated(steps=2)
    assert lab.wait(120)
    result = lab.results["simulated"]
    assert lab.snapshot()["run"]["error"] is None
    assert result.equal and result.compared == 1 + len(lab.plan.parameters)
    assert result.sent == 3 == len(lab.lanes.messages)
    assert [m.members for m in result.lanes.messages] == [m.members for m in lab.lanes.messages]
    lab.show_source("simulated")
    shown = picked(lab.snapshot()["sections"]["lanes"], lab.snapshot())["lanes"]
    assert 0 < shown["step_s"] <= result.step_s * (1 + 1e-9)  # rank 0 may be done before the last


def test_a_run_with_ids_is_compared_with_one_without_any():
    lab = FusionLab("dense", devices=2)
    lab.set_mode("ids")
    lab.set_ids(dict.fromkeys(lab._case.names, 3))
    lab.run_simulated(steps=1)
    assert lab.wait(60) and lab.results["simulated"].equal and lab.results["simulated"].sent == 1


@pytest.fixture
def workers():
    yield
    close_all()


def test_measured_steps_on_workers(workers):
    lab = FusionLab("dense", devices=2)
    lab.set_cuts([2])
    lab.run_measured(steps=3)
    assert lab.wait(120)
    shot = lab.snapshot()
    assert shot["run"]["error"] is None and shot["run"]["state"] == "done"
    times = shot["sections"]["times"]
    assert times["rows"][2][3] == 2 and times["notes"][0][1] is True
    lanes = lab.results["measured"].lanes
    assert 0 < lanes.forward_s < lanes.backward_s <= lanes.step_s


def test_a_profile_of_ones_own_is_used_for_prediction_and_simulation():
    slow = Cluster("slow", Device(1e9, 10**9, 1e9), Link(1e-2, 1e-6), devices_per_node=2)
    lab = FusionLab("dense", devices=2, cluster=slow)
    assert lab.lanes.step_s == pytest.approx(predict_timeline(lab.plan, slow).end_s)
    lab.run_simulated(steps=1)
    assert lab.wait(60)
    # one message of S bytes between two ranks takes 2 alpha + beta S at least
    assert lab.results["simulated"].step_s >= 2e-2 + 1e-6 * sum(g.size_bytes for g in lab._case.gradients)
    assert lab.snapshot()["cluster"]["choices"] == ["laptop", "gpu_node", "two_nodes", "slow"]
    assert lab.snapshot()["cluster"]["value"] == "slow"


@pytest.mark.exhaustive
def test_what_was_run_before_a_new_setting_is_listed_as_earlier():
    lab = FusionLab("dense", devices=2)
    for size_mb in range(1, 6):
        lab.set_size(size_mb)
        lab.run_simulated(steps=1)
        lab.wait(60)
        step = time_text(lab.results["simulated"].step_s)
        lab.show_source("simulated")
    lab.set_mode("off")
    assert lab.results == {} and lab.snapshot()["source"]["value"] == "predicted"
    named = [run.settings.rsplit(", ", 1)[1] for run in lab.earlier]
    assert named == ["fusion size 3", "fusion size 4", "fusion size 5"]
    [(source, found)] = lab.earlier[-1].rows
    assert source == "simulated" and found.startswith(f"{step} a step, ")
    assert lab.snapshot()["sections"]["earlier"]["rows"] == [[run.label, *run.rows[0]] for run in lab.earlier]


def test_event_lanes_need_events():
    lab = FusionLab("dense", devices=2)
    with pytest.raises(ArgumentError, match="record"):
        event_lanes(lab.plan, [])
    with pytest.raises(ArgumentError):
        plan_lanes(lab.plan, Cluster("one", Device(1e9, 10**9, 1e9), Link(1e-3, 1e-9), devices_per_node=1))


# ---- commands and forms ----


def test_size_zero_is_refused_where_the_plan_refuses_it():
    lab = FusionLab("dense", devices=2, parallel_mode="semi_auto_parallel")
    before = state(lab)
    with pytest.raises(ContextError):
        lab.set_size(0)
    assert state(lab) == before
    lab.set_parallel_mode("data_parallel")
    lab.set_size(0)
    assert len(lab.lanes.messages) == 4


def test_typed_settings():
    lab = FusionLab("golf")
    lab.set_mode("index")
    lab.set_config(" [0, 3,5] ")
    assert lab.comm_fusion["allreduce"]["config"] == [0, 3, 5]
    lab.set_mode("size")
    lab.set_config("12")
    assert lab.comm_fusion == {"allreduce": {"mode": "size", "config": 12}}
    lab.set_mode("ids")
    lab.set_config("1 1 1 2 2 2 2 0 0 3")
    assert [len(m.members) for m in lab.lanes.messages] == [3, 4, 1, 1, 1]
    lab.set_mode("auto")
    with pytest.raises(ArgumentError, match="no setting"):
        lab.set_config("3")


@pytest.mark.quick(1)
@pytest.mark.parametrize("devices", DEVICES)
def test_the_same_code_for_mindspore_gives_the_same_plan(devices):
    """What the lab exports for the context is what the compiler is given."""
    lab = FusionLab("chain", devices=devices)
    lab.set_cuts([1, 4, 6])
    found = {}
    fake = type("mindspore", (), {"set_auto_parallel_context": staticmethod(lambda **given: found.update(given))})
    exec(lab.export(), {"mindspore": fake})
    assert found == {"comm_fusion": lab.comm_fusion}
    # the optimizer's order is that of the layers, the other way round than backward: [1, 4, 6] of 10 from the end
    assert lab.comm_fusion["allreduce"]["config"] == [10 - 6 - 1, 10 - 4 - 1, 10 - 1 - 1]


def test_words_say_every_message_and_every_source():
    lab = FusionLab("dense", devices=2)
    lab.set_cuts([2])
    text = lab.to_text()
    for name in lab._case.names:
        assert name in text
    for word in ("predicted", "simulated", "measured", "par", "exposed", "alpha", "set_auto_parallel_context"):
        assert word in text
    assert "equal bit for bit" not in text
    lab.run_simulated(steps=1)
    lab.wait(60)
    assert "simulated: equal bit for bit with and without fusion (4 parameters and the losses)" in lab.to_text()


def test_the_time_axis_is_that_of_nothing_set_whatever_is_tried_and_the_last_try_stays():
    """Golf: 10 ms of backward, then ten messages of 1 ms + 0.25 ms per MiB of 68 MiB: 37 ms."""
    lab = FusionLab("golf")
    unfused_s = 10e-3 + 10 * 1e-3 + 68 * 0.25e-3
    assert lab.snapshot()["tried"] is None
    for cuts in ([4], [1, 4, 6], [2, 5]):
        before = lab.snapshot()["sections"]["lanes"]["of"]["predicted"]["lanes"]
        lab.set_cuts(cuts)
        shot = lab.snapshot()
        assert shot["axis_s"] == pytest.approx(unfused_s)
        assert [m["end_s"] for m in shot["tried"]["messages"]] == [m["end_s"] for m in before["messages"]]
        assert f"Before: {len(before['messages'])} message" in lab.to_text()
    lab.set_subject("dense")
    assert lab.snapshot()["tried"] is None


def test_settings_that_were_there_before_and_other_costs_compile_nothing(monkeypatch):
    compiled, compile_job = [], Job.compile
    monkeypatch.setattr(Job, "compile", lambda job, **how: compiled.append(how) or compile_job(job, **how))
    lab = FusionLab("dense", 2)
    assert len(compiled) == 3  # without fusion, each alone, and the setting
    lab.set_mode("size")
    first = lab.plan
    assert len(compiled) == 4
    lab.set_cluster("gpu_node")
    lab.set_line(1e-3, 1e-9)
    lab.set_mode("auto")
    lab.set_mode("size")
    assert len(compiled) == 4 and lab.plan is first
    lab.set_ids({"dense1.weight": 2})
    grouped = lab.groups
    lab.set_mode("size")
    assert lab.plan is first and lab.groups != grouped
    lab.set_mode("ids")
    assert len(compiled) == 5 and lab.groups == grouped


def test_what_is_compared_with_par_has_the_name_of_what_it_is():
    """Golf is the puzzle. A bound of 0 MiB fuses nothing: it was "best size, 0 MiB"."""
    chain, golf = (FusionLab(name).snapshot()["sections"]["golf"] for name in ("chain", "golf"))
    assert (chain["title"], golf["title"]) == ("Compared with par", "Fusion golf")
    times = dict(chain["rows"])
    assert times["best size: each alone"] == times["each alone"]
