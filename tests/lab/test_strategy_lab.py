"""The headless Strategy Lab: commands, refusals, snapshots, and training on real processes that can be paused, stopped, killed and left."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time

import numpy as np
import pytest

from parallel_lab.errors import ArgumentError, ParallelLabError
from parallel_lab.lab import strategy_lab
from parallel_lab.lab.networks import NETWORKS, apply_strategies, get_problem, problems_of
from parallel_lab.lab.strategy_lab import DEVICES, StrategyLab
from parallel_lab.run.session import Session
from parallel_lab.run.shm import close_all, get_pool
from parallel_lab.widgets import StrategyLabWidget

PATIENCE_S = 60


@pytest.fixture
def lab():
    """A lab on two ranks; at the end nothing of it is left, workers included."""
    made = StrategyLab(devices=2, steps=30)
    yield made
    made.close()
    close_all()


PAIRS = [(net, data) for net, network in NETWORKS.items() for data in problems_of(network.kind)]


def until(what, timeout_s: float = PATIENCE_S) -> bool:
    end = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def state(lab) -> str:
    return lab.progress()["run"]["state"]


def operator(lab, name: str) -> dict:
    return next(o for o in lab.snapshot()["operators"] if o["name"] == name)


def running_for_long(lab, steps: int = 1_000_000):
    """Start a run that does not end by itself within a test, and wait for its first losses."""
    lab._steps = steps
    lab.run()
    assert until(lambda: state(lab) == "running" and lab.progress()["loss"]["steps"] > 0), lab.progress()["run"]


# ---- choosing ----


@pytest.mark.parametrize(("net", "data"), PAIRS)
@pytest.mark.parametrize("devices", DEVICES)
def test_presets_are_the_networks_own_as_far_as_they_fit(net, devices, data):
    lab = StrategyLab(net, devices, data)
    given = NETWORKS[net].preset(devices)
    found = {o["name"]: (o["strategy"], o["source"]) for o in lab.snapshot()["operators"]}
    assert set(given) <= set(found)
    for name, (strategy, source) in found.items():
        assert source in ("preset", "default")
        if source == "preset":
            assert strategy == str(given[name])
    if data != "digits":
        assert all(source == "preset" for name, (_, source) in found.items() if name in given)


def test_the_quickstart_on_eight_begins_with_the_printed_strategies():
    assert [o["strategy"] for o in StrategyLab().snapshot()["operators"]] == ["((2, 4), (4, 1))", "((2, 4),)", "((2, 4), (4, 1))"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("net", "data"), PAIRS)
def test_every_offered_strategy_is_taken(net, data):
    """Of a long network, two of each operator's."""
    lab = StrategyLab(net, 4, data)
    shot = lab.snapshot()
    for o in shot["operators"]:
        for choice in o["choices"][:: len(o["choices"]) // 2 + 1 if shot["graph"].get("layers") else 1]:
            lab.set_strategy(o["name"], choice)
            shown = operator(lab, o["name"])
            assert (shown["strategy"], shown["error"]) == (choice, None)


def test_commands_change_what_they_name():
    lab = StrategyLab()
    lab.set_net("megatron")
    lab.set_devices(4)
    lab.set_data("digits")
    lab.select_tensor("w1")
    lab.select_phase("backward")
    lab.select_rank(3)
    shot = lab.snapshot()
    assert [shot[k]["value"] for k in ("net", "devices", "data")] == ["megatron", 4, "digits"]
    assert [shot[k] for k in ("tensor", "phase", "rank")] == ["w1", "backward", 3]
    assert shot["picture"]["label"] == "gradient of w1" and len(shot["cards"]) == 4


def test_a_network_of_another_kind_brings_its_data_and_one_of_the_same_kind_keeps_it():
    lab = StrategyLab(data="digits")
    lab.set_net("convnet")
    shot = lab.snapshot()
    assert shot["data"] == {"value": "pictures", "choices": [{"value": "pictures", "label": "colour digits"}]}
    lab.set_net("megatron")
    assert lab.snapshot()["data"]["value"] == "seed"
    lab.set_data("digits")
    lab.set_net("dense")
    assert lab.snapshot()["data"]["value"] == "digits"


def test_data_of_another_kind_is_refused_with_those_the_network_takes():
    with pytest.raises(ArgumentError, match=r"'pictures' for the network 'dense'.*One of seed, digits"):
        StrategyLab("dense").set_data("pictures")


@pytest.mark.parametrize(("net", "preset"), [(net, preset) for net, network in NETWORKS.items() for preset in network.presets])
def test_a_preset_sets_its_strategies_and_stays_when_devices_change(net, preset):
    lab = StrategyLab(net)
    lab.set_preset(preset)
    for devices in (8, 4):
        lab.set_devices(devices)
        given = NETWORKS[net].presets[preset](devices)
        found = {o["name"]: o["strategy"] for o in lab.snapshot()["operators"]}
        assert {name: found[name] for name in given} == {name: str(strategy) for name, strategy in given.items()}
        assert lab.snapshot()["preset"] == {"value": preset, "choices": [{"value": p, "label": p} for p in NETWORKS[net].presets]}


def test_a_changed_preset_says_so_until_it_is_chosen_again():
    lab = StrategyLab("megatron")
    lab.set_strategy("gelu", "((8, 1),)")
    assert lab.snapshot()["preset"]["value"] == "" and "Preset: changed by you" in lab.to_text()
    lab.set_preset("tensor parallel")
    assert lab.snapshot()["preset"]["value"] == "tensor parallel" and operator(lab, "gelu")["strategy"] == "((2, 4),)"


def test_an_operator_made_of_others_takes_one_strategy_for_all_of_them():
    lab = StrategyLab("convnet")
    shown = operator(lab, "bn1.batch_norm")
    assert (shown["op"], shown["strategy"], shown["source"]) == ("BatchNorm", "((2, 1, 4, 1), (1,), (1,), (1,), (1,))", "preset")
    assert shown["formula"] == "x (32, 8, 32, 32), scale, bias, mean, variance (8,) -> (32, 8, 32, 32)"
    lab.set_strategy("bn1.batch_norm", "((1, 8, 1, 1), (8,), (8,), (8,), (8,))")
    assert operator(lab, "bn1.batch_norm")["source"] == "user"
    assert lab.plan.value("bn1.batch_norm.batch_norm_sums").layout.splits == (1, 8)
    lab.set_strategy("bn1.batch_norm", None)
    shown = operator(lab, "bn1.batch_norm")
    assert (shown["strategy"], shown["source"]) == ("((8, 1, 1, 1), (1,), (1,), (1,), (1,))", "default")
    assert lab.plan.graph.node("bn1.batch_norm.batch_norm_apply").strategy[0] == (8, 1, 1, 1)
    lab.set_strategy("bn1.batch_norm", "((2, 3),)")
    assert "bn1.batch_norm" in operator(lab, "bn1.batch_norm")["error"]


@pytest.mark.parametrize(
    ("net", "preset", "tensor"),
    [
        ("convnet", "batch and height", "x for conv1.conv2d, with halo"),
        ("convnet", "batch and channels", "out of conv2.conv2d, addends"),
        ("transformer", "tensor parallel", "out of blocks.0.attention.out.matmul, addends"),
        ("embedding", "tables by columns", "deep_table"),
    ],
)
def test_a_preset_begins_with_what_it_is_there_to_show(net, preset, tensor):
    lab = StrategyLab(net)
    lab.set_preset(preset)
    assert lab.snapshot()["picture"]["label"] == tensor


def test_the_halo_stays_in_view_when_the_convolution_is_cut_otherwise():
    lab = StrategyLab("convnet")
    lab.set_strategy("conv1.conv2d", "((2, 1, 2, 2), (1, 1, 1, 1))")
    assert lab.snapshot()["picture"]["label"] == "x for conv1.conv2d, with halo" and len(lab.snapshot()["picture"]["halo"]) == 2
    assert "for dim 2 a rank reads 1 before and 1 after its own; for dim 3" in lab.snapshot()["status"]


def test_fewer_devices_keep_the_selected_rank_in_range_and_the_tensor_where_it_still_exists():
    lab = StrategyLab()
    lab.select_rank(7)
    lab.select_tensor("w2")
    lab.set_devices(2)
    assert lab.snapshot()["rank"] == 1 and lab.snapshot()["tensor"] == "w2"


def test_a_strategy_is_given_as_text_or_tuple_and_taken_back():
    lab = StrategyLab()
    lab.set_strategy("relu", "((8, 1),)")
    assert (operator(lab, "relu")["strategy"], operator(lab, "relu")["source"]) == ("((8, 1),)", "user")
    lab.set_strategy("relu", ((4, 2),))
    assert operator(lab, "relu")["strategy"] == "((4, 2),)"
    lab.set_strategy("relu", None)
    assert operator(lab, "relu")["source"] == "default"
    lab.set_strategy("relu", ((2, 4),))
    assert operator(lab, "relu")["source"] == "preset"


def test_the_picture_follows_a_strategy_that_ends_the_pending_sum():
    """The addends exist while k is cut; with k whole the same tensor's complete form is shown."""
    lab = StrategyLab()
    assert lab.snapshot()["tensor"] == "matmul.partial"
    lab.set_strategy("matmul", "((8, 1), (1, 1))")
    assert lab.snapshot()["tensor"] == "matmul" and lab.snapshot()["picture"]["slices"] == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("((2, 4), (2, 1))", "equally"),
        ("((3, 1), (1, 1))", "3"),
        ("((2, 4),)", "input"),
        ("((2, 4), (4, 1)", "cannot be read"),
        ("__import__('os').system('true')", "cannot be read"),
        ("((16, 1), (1, 1))", "8"),
        ("", "cannot be read"),
        ("(" * 150, "cannot be read"),
        ("1" * 201, "201 characters"),
        ("5", ""),
        ("{'a': 1}", ""),
        ("((0, 1), (1, 1))", "0"),
        ("((-2, 1), (1, 1))", "-2"),
        ("((2.0, 4), (4, 1))", "2.0"),
        ("((True, 4), (4, 1))", "True"),
        ("(('2', 4), (4, 1))", "'2'"),
    ],
)
def test_a_refused_strategy_is_kept_with_its_reason_and_the_picture_stays(text, words):
    lab = StrategyLab()
    before = lab.snapshot()
    lab.set_strategy("matmul", text)
    after = lab.snapshot()
    shown = operator(lab, "matmul")
    assert shown["typed"] == text and words in shown["error"] and shown["strategy"] == "((2, 4), (4, 1))"
    assert {k: v for k, v in after.items() if k != "operators"} == {k: v for k, v in before.items() if k != "operators"}
    lab.set_strategy("matmul", "((8, 1), (1, 1))")
    assert (operator(lab, "matmul")["typed"], operator(lab, "matmul")["error"]) == (None, None)


def test_the_refusal_names_the_line_of_the_network_and_a_way_out():
    lab = StrategyLab()
    lab.set_strategy("matmul", "((2, 4), (2, 1))")
    assert "networks.py:" in operator(lab, "matmul")["error"] and "((2, 4), (4, 1))" in operator(lab, "matmul")["error"]


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        ("set_net", "resnet"),
        ("set_devices", 3),
        ("set_devices", True),
        ("set_data", "cifar"),
        ("set_data", "pictures"),
        ("set_preset", "pipeline"),
        ("select_tensor", "w9"),
        ("select_phase", "sideways"),
        ("select_rank", 8),
        ("select_rank", -1),
        ("select_rank", True),
        ("select_rank", "1"),
    ],
)
def test_a_refused_command_says_what_is_allowed_and_changes_nothing(command, argument):
    lab = StrategyLab()
    before = lab.snapshot()
    with pytest.raises(ArgumentError, match=r"One of|Ranks run from 0 to 7"):
        getattr(lab, command)(argument)
    assert lab.snapshot() == before


def test_an_unknown_operator_is_refused_with_the_list():
    with pytest.raises(ArgumentError, match="matmul, relu, matmul2"):
        StrategyLab().set_strategy("conv", "((1,),)")


@pytest.mark.parametrize("arguments", [("nonet",), ("dense", 7), ("dense", 8, "nodata"), ("convnet", 8, "seed")])
def test_a_lab_that_cannot_be_is_refused_when_it_is_made(arguments):
    with pytest.raises(ArgumentError, match="One of"):
        StrategyLab(*arguments)


# ---- looking ----


@pytest.mark.exhaustive
@pytest.mark.parametrize(("net", "data"), PAIRS)
@pytest.mark.parametrize("devices", DEVICES)
def test_a_snapshot_is_plain_data_and_consistent_with_itself(net, devices, data):
    lab = StrategyLab(net, devices, data)
    for tensor in [t["id"] for t in lab.snapshot()["tensors"]]:
        lab.select_tensor(tensor)
        shot = lab.snapshot()
        assert json.loads(json.dumps(shot, allow_nan=False)) == shot
        assert [c["rank"] for c in shot["cards"]] == list(range(devices))
        assert shot["picture"]["slices"] == len({c["slice"] for c in shot["cards"]})
        sent = [m for m in shot["messages"] if m["group"]]
        if sent:
            assert shot["message_totals"]["bytes_predicted"] == sum(m["bytes_predicted"] for m in sent)
            assert f"{len(sent)} message" in shot["status"] and f"{shot['message_totals']['bytes_predicted']:,} bytes" in shot["status"]
        else:
            assert "no messages" in shot["status"]
    assert {o["tensor"] for o in shot["operators"]} <= {t["id"] for t in shot["tensors"]}


@pytest.mark.parametrize("net", NETWORKS)
def test_the_text_names_every_rank_and_every_message(net):
    lab = StrategyLab(net)
    shot, text = lab.snapshot(), lab.to_text()
    lines = text.splitlines()
    for card in shot["cards"]:
        assert any(line.split()[:1] == [str(card["rank"])] and card["text"] in line for line in lines), card
    for m in shot["messages"]:
        assert any(line.split()[:4] == [f"#{m['number']}", m["phase"], m["operator"], m["collective"]] for line in lines), m
        assert m["reason"] in text
    assert shot["status"] in text


@pytest.mark.parametrize("net", ["convnet", "transformer", "embedding"])
def test_tensors_and_operators_of_a_long_network_are_in_its_layers(net):
    shot = StrategyLab(net).snapshot()
    layers = {n["id"] for n in shot["graph"]["nodes"] if n["kind"] == "operator"}
    assert {o["layer"] for o in shot["operators"]} == layers
    assert {t["layer"] for t in shot["tensors"]} - {""} == layers
    inputs = {n["id"] for n in shot["graph"]["nodes"] if n["kind"] == "input"}
    assert {t["id"].partition(".for.")[0] for t in shot["tensors"] if not t["layer"]} <= inputs


def test_the_text_names_the_strips_of_a_halo_and_the_cuts_of_every_layer():
    lines = StrategyLab("convnet").to_text().splitlines()
    assert "Along dim 2 a rank reads up to 1 before and 1 after its own slice." in lines
    assert any("[16:32, :, 7:17, :]" in line and "[16:32, :, 7:8, :] from rank 4; [16:32, :, 16:17, :] from rank 6" in line for line in lines)
    assert any(line.split()[:1] == ["conv2"] and "pool1" in line and "(2, 1, 4, 1)" in line for line in lines)


def test_frames_hold_what_selecting_would_show():
    lab = StrategyLab("megatron", 4)
    frames = lab.snapshot(frames=True)["frames"]
    for tensor, phase, rank in (("w1", "backward", 3), ("x", "forward", 0), ("mm2.partial", "forward", 2)):
        lab.select_tensor(tensor)
        lab.select_phase(phase)
        lab.select_rank(rank)
        shot = lab.snapshot()
        for key, names in ((f"{tensor}|{phase}", ("picture", "cards")), (f"*|*|{rank}", ("rank_detail", "messages", "message_totals"))):
            assert {n: frames[key][n] for n in names} == {n: shot[n] for n in names}
        assert f"{frames[f'{tensor}|{phase}']['status_tensor']} {frames[f'*|*|{rank}']['status_rank']}" == shot["status"]


def test_a_snapshot_is_the_callers_own():
    lab = StrategyLab()
    before = json.dumps(lab.snapshot())
    lab.snapshot()["cards"][0]["block"][0][0] = 99
    lab.snapshot()["operators"][0]["choices"].clear()
    assert json.dumps(lab.snapshot()) == before


# ---- training on real processes ----


def test_a_run_trains_and_equals_training_by_hand(lab):
    """The same losses, bit for bit, as a session of the same plan in the simulator, and as many on one device within the bound."""
    problem = get_problem("seed")
    net = apply_strategies(NETWORKS["quickstart"].factory(problem), NETWORKS["quickstart"].preset(2))
    with Session(lab.plan, net, problem.optimizer(net.trainable_params())) as session:
        want = session.train(problem.batches, 30)
    lab.run()
    assert lab.wait(PATIENCE_S)
    shot = lab.snapshot()
    assert shot["run"]["state"] == "done" and shot["run"]["step"] == 30 and shot["run"]["error"] is None
    assert shot["loss"]["parallel"] == want and len(shot["loss"]["single"]) == 30 == shot["loss"]["steps"]
    assert shot["loss"]["largest_difference"] == np.abs(np.subtract(shot["loss"]["parallel"], shot["loss"]["single"])).max()
    assert shot["loss"]["largest_difference"] <= shot["loss"]["bound"] < 1e-2
    arrays = lab.loss_arrays(10)
    assert arrays["parallel"].dtype == np.float32 and arrays["parallel"].tolist() == want[10:] and len(arrays["single"]) == 20


def test_after_a_run_bytes_and_times_are_counted_and_the_timeline_is_measured(lab):
    assert lab.snapshot()["timeline"]["source"] == "predicted" and lab.events == ()
    lab.run()
    assert lab.wait(PATIENCE_S)
    shot = lab.snapshot()
    assert shot["timeline"]["source"] == "measured" and {e.step for e in lab.events} == {29}
    for rank in range(2):
        lab.select_rank(rank)
        for m in lab.snapshot()["messages"]:
            assert m["bytes_counted"] == m["bytes_predicted"] and m["time_measured_s"] > 0
    assert len(shot["timeline"]["lanes"]) == 2


@pytest.mark.parametrize("net", ["convnet", "transformer", "embedding"])
def test_a_long_network_trains_on_processes_and_equals_one_device(net):
    lab = StrategyLab(net, 2, steps=12)
    try:
        lab.run()
        assert lab.wait(PATIENCE_S)
        shot = lab.snapshot()
        assert shot["run"]["state"] == "done", shot["run"]["error"]
        assert shot["loss"]["largest_difference"] <= shot["loss"]["bound"] < 0.1 and shot["loss"]["parallel"][-1] < shot["loss"]["parallel"][0]
        assert all(m["bytes_counted"] == m["bytes_predicted"] for m in shot["messages"])
    finally:
        lab.close()
        close_all()


def test_run_returns_at_once_and_a_second_press_starts_nothing(lab):
    running_for_long(lab)
    thread = lab._training.thread
    lab.run()
    assert lab._training.thread is thread
    assert lab.wait(0) is False
    lab.stop()
    assert lab.wait(PATIENCE_S)


def test_pause_holds_the_step_resume_goes_on_and_stop_keeps_what_was_measured(lab):
    running_for_long(lab)
    lab.pause()
    assert state(lab) == "paused"
    time.sleep(0.3)  # steps under way may still be reported
    held = lab.progress()["loss"]["steps"]
    time.sleep(0.3)
    assert lab.progress()["loss"]["steps"] == held and "paused" in lab.progress()["run"]["text"]
    lab.resume()
    assert state(lab) == "running" and until(lambda: lab.progress()["loss"]["steps"] > held)
    lab.stop()
    assert lab.wait(PATIENCE_S)
    shot = lab.snapshot()
    assert shot["run"]["state"] == "done" and shot["loss"]["steps"] > held and shot["timeline"]["source"] == "measured"
    assert len(shot["loss"]["parallel"]) == len(shot["loss"]["single"]) == shot["run"]["step"]


@pytest.mark.parametrize("taker", ["main thread", "another thread"])
def test_waiting_can_be_interrupted_and_done_again(lab, taker):
    """Wrong before: after an interrupt the next wait came back at once although the run went on; one that another thread took went unheard."""
    running_for_long(lab)
    main = threading.main_thread().ident
    timer = threading.Timer(0.3, lambda: signal.pthread_kill(main if taker == "main thread" else threading.get_ident(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        lab.wait(PATIENCE_S)
    timer.join()
    assert state(lab) == "running"
    lab.stop()
    assert lab.wait(PATIENCE_S) and state(lab) == "done"


def test_stop_ends_a_paused_run_too(lab):
    running_for_long(lab)
    lab.pause()
    lab.stop()
    assert lab.wait(PATIENCE_S) and state(lab) == "done"


def test_stop_before_the_workers_are_there(lab):
    lab.run()
    lab.stop()
    assert lab.wait(PATIENCE_S) and state(lab) == "done"


def test_what_the_buttons_may_do_follows_the_state(lab):
    def can() -> set[str]:
        return {name for name, on in lab.progress()["run"]["can"].items() if on}

    assert can() == {"run"}
    running_for_long(lab)
    assert can() == {"pause", "stop", "reset"}
    lab.pause()
    assert can() == {"pause", "stop", "reset"}  # the second is drawn as Resume
    lab.stop()
    lab.wait(PATIENCE_S)
    assert can() == {"run", "reset"}
    lab.reset()
    assert can() == {"run"}


@pytest.mark.parametrize("command", ["pause", "resume", "stop", "reset"])
def test_a_control_that_has_nothing_to_do_does_nothing(lab, command):
    getattr(lab, command)()
    assert state(lab) == "idle"


def test_reset_forgets_the_run_at_once_even_in_the_middle(lab):
    running_for_long(lab)
    old = lab._training.thread
    lab.reset()
    assert state(lab) == "idle" and lab.progress()["loss"]["steps"] == 0 and lab.events == ()
    old.join(PATIENCE_S)
    assert not old.is_alive() and state(lab) == "idle" and lab.progress()["loss"]["steps"] == 0


def test_another_strategy_in_the_middle_ends_the_run_and_the_next_one_uses_it(lab):
    running_for_long(lab)
    old = lab._training.thread
    lab.set_strategy("matmul", "((1, 2), (2, 1))")
    assert state(lab) == "idle"
    lab._steps = 5
    lab.run()
    assert lab.wait(PATIENCE_S) and state(lab) == "done" and lab.progress()["loss"]["steps"] == 5
    old.join(PATIENCE_S)
    assert {e.name for e in lab.events if e.kind == "communication"} == {i.out for _, i in lab.plan.instructions() if i.is_communication}


def test_a_refused_strategy_does_not_disturb_the_run(lab):
    running_for_long(lab)
    lab.set_strategy("matmul", "((3, 1), (1, 1))")
    steps = lab.progress()["loss"]["steps"]
    assert state(lab) == "running" and until(lambda: lab.progress()["loss"]["steps"] > steps)
    lab.stop()
    lab.wait(PATIENCE_S)


def test_a_change_of_network_while_the_workers_start_does_not_mix_two_networks(lab):
    """Wrong before: the thread compiled its one-device plan from what was chosen by then."""
    lab.run()
    thread = lab._training.thread
    lab.set_net("dense")
    lab.set_data("digits")
    lab.run()
    assert lab.wait(PATIENCE_S) and state(lab) == "done"
    thread.join(PATIENCE_S)
    loss = lab.snapshot()["loss"]
    assert loss["largest_difference"] <= loss["bound"] and loss["steps"] == 30


@pytest.mark.faults
def test_a_killed_worker_fails_the_run_with_its_reason_and_the_next_run_works(lab):
    running_for_long(lab)
    os.kill(get_pool(2).pids[1], signal.SIGKILL)
    assert until(lambda: state(lab) == "failed")
    run = lab.progress()["run"]
    assert "rank 1" in run["error"] and "SIGKILL" in run["error"] and run["can"]["run"]
    assert run["error"] in lab.to_text()
    lab._steps = 10
    lab.run()
    assert lab.wait(PATIENCE_S) and state(lab) == "done" and lab.progress()["run"]["error"] is None


def test_a_defect_in_the_thread_ends_as_failed_and_is_raised(lab, monkeypatch):
    """Wrong before: the lab said "starting" for ever."""

    class Broken:
        def __init__(self, *given, **options):
            raise OSError("no descriptors left")

    raised = []
    monkeypatch.setattr(strategy_lab, "Session", Broken)
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))
    lab.run()
    assert lab.wait(PATIENCE_S)
    assert state(lab) == "failed" and "no descriptors left" in lab.progress()["run"]["error"] and raised == [OSError]


def test_close_in_the_middle_ends_the_run(lab):
    running_for_long(lab)
    thread, heard = lab._training.thread, []
    lab.on_change(heard.append)
    lab.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and not heard
    close_all()


# ---- listeners and threads ----


def test_listeners_hear_what_changed_until_they_unsubscribe():
    lab, heard = StrategyLab(), []
    unsubscribe = lab.on_change(heard.append)
    lab.select_rank(1)
    lab.set_strategy("relu", "((1, 1),)")
    assert heard == ["picture", "picture"]
    unsubscribe()
    unsubscribe()
    lab.select_rank(2)
    assert heard == ["picture", "picture"]


def test_a_run_is_heard_as_run_loss_and_in_the_end_picture(lab):
    heard = []
    lab.on_change(heard.append)
    lab.run()
    assert lab.wait(PATIENCE_S)
    assert set(heard) == {"run", "loss", "picture"} and heard[0] == "run" and heard[-1] == "picture"


def test_a_listener_may_look_and_command(lab):
    seen = []
    lab.on_change(lambda kind: seen.append(lab.progress()["run"]["state"]) or (lab.stop() if kind == "loss" else None))
    lab._steps = 1_000_000
    lab.run()
    assert lab.wait(PATIENCE_S) and state(lab) == "done" and "running" in seen


@pytest.mark.exhaustive
def test_commands_from_four_threads_while_it_trains(lab):
    """Seeded commands against each other and the run: no exception, no deadlock, and a consistent end."""
    failed, shots = [], []
    end = time.monotonic() + 3.0

    def hammer(seed: int) -> None:
        rng = random.Random(seed)
        acts = [
            lambda: lab.set_devices(rng.choice((1, 2))),
            lambda: lab.set_data(rng.choice(("seed", "digits"))),
            lambda: lab.set_net(rng.choice(tuple(NETWORKS))),
            lambda: lab.set_strategy(lab.snapshot()["operators"][0]["name"], rng.choice(("((1, 2), (2, 1))", "((3, 1), (1, 1))", None))),
            lambda: lab.select_rank(rng.randrange(2)),
            lambda: lab.select_phase(rng.choice(("forward", "backward"))),
            lambda: lab.select_tensor(rng.choice(lab.snapshot()["tensors"])["id"]),
            *[lambda name=name: getattr(lab, name)() for name in ("run", "run", "run", "pause", "resume", "stop", "reset", "snapshot", "to_text")],
        ]
        came_round = False
        while time.monotonic() < end or (not came_round and time.monotonic() < end + PATIENCE_S / 2):
            try:
                rng.choice(acts)()
                shots.append((seed, lab.snapshot()))
                came_round = True
            except ArgumentError:
                continue  # what was looked up is gone: another thread chose another network
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE_S)
    assert not failed and not any(t.is_alive() for t in threads) and {seed for seed, _ in shots} == {0, 1, 2, 3}
    assert all(len(s["cards"]) == s["devices"]["value"] and s["rank"] < s["devices"]["value"] for _, s in shots)
    lab.set_net("quickstart")
    lab.set_data("seed")
    lab.set_devices(2)
    lab.run()
    assert lab.wait(PATIENCE_S) and state(lab) == "done", lab.progress()["run"]


# ---- through the widget ----


@pytest.fixture
def panel(lab):
    made = StrategyLabWidget(lab)
    yield made
    made.close()


def press(panel, command, *arguments):
    panel._handle_custom_msg({"command": command, "arguments": list(arguments), "number": 1}, [])


def test_controls_reach_the_lab_and_no_error_is_left(lab, panel):
    press(panel, "set_devices", 4)
    press(panel, "set_strategy", "matmul", "((4, 1), (1, 1))")
    press(panel, "select_rank", 2)
    press(panel, "select_tensor", "w")
    press(panel, "select_phase", "backward")
    assert panel.last_error is None
    shot = lab.snapshot()
    assert (shot["devices"]["value"], shot["rank"], shot["tensor"], shot["phase"]) == (4, 2, "w", "backward")
    assert operator(lab, "matmul")["strategy"] == "((4, 1), (1, 1))"
    assert panel.snapshot["picture"]["label"] == "gradient of w"


def test_a_command_publishes_one_snapshot(lab, panel, monkeypatch):
    """Wrong before: one for what the model reported and one for the end of the command, each some 50 KB for the page."""
    taken, take = [], lab.snapshot
    monkeypatch.setattr(lab, "snapshot", lambda: taken.append(1) or take())
    press(panel, "select_rank", 0)
    assert len(taken) == 1 and panel.snapshot["rank"] == 0
    lab.select_rank(1)  # not through the panel: it hears of it
    assert len(taken) == 2 and panel.snapshot["rank"] == 1


def test_a_refused_command_is_shown_and_the_next_clears_it(lab, panel):
    press(panel, "select_rank", 7)
    assert "Ranks run from 0 to 1" in panel.last_error and lab.snapshot()["rank"] == 1
    press(panel, "select_rank", 0)
    assert panel.last_error is None and lab.snapshot()["rank"] == 0


def test_a_run_through_the_panel_ends_with_all_its_losses_on_the_page(lab, panel):
    press(panel, "run")
    assert lab.wait(PATIENCE_S)
    assert until(lambda: panel.progress["run"]["state"] == "done" and panel.progress["loss"]["steps"] == 30)
    assert until(lambda: np.frombuffer(panel.loss_parallel, "<f4").tolist() == lab.snapshot()["loss"]["parallel"])
    assert panel.last_error is None and panel.snapshot["timeline"]["source"] == "measured"


def test_every_error_of_the_lab_is_one_of_the_family():
    assert issubclass(ArgumentError, ParallelLabError) and issubclass(ArgumentError, ValueError)
