"""The Strategy Lab trains on real processes: paused, stopped, killed and left; its listeners, threads and widget."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError, ParallelLabError
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.shared.networks import NETWORKS, apply_strategies
from parallel_lab.lab.shared.problems import get_problem
from parallel_lab.lab.strategy import training
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.lab.widgets import StrategyLabWidget
from parallel_lab.processes.shm import close_all, get_pool
from parallel_lab.train.session import Session
from tests.processes.processes import gone

PATIENCE_S = 60


@pytest.fixture(scope="module", autouse=True)
def workers():
    """Two processes, for one lab after the other."""
    get_pool(2)
    yield
    close_all()


@pytest.fixture
def lab():
    """A lab on two ranks, in which nothing runs at the end."""
    made = StrategyLab(devices=2, steps=30)
    yield made
    made.stop()
    assert made.wait(PATIENCE_S)


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


# ---- training on real processes ----


def test_a_run_trains_and_equals_training_by_hand(lab):
    """The losses of a simulator session of the same plan, bit for bit; as many on one device within the bound."""
    problem = get_problem("seed")
    net = apply_strategies(NETWORKS["quickstart"].factory(problem), NETWORKS["quickstart"].preset(2))
    with Session(lab.plan, net, problem.optimizer(net.trainable_params())) as session:
        want = session.train(problem.batches, 30)
    lab.run()
    assert lab.wait(PATIENCE_S)
    shot = lab.snapshot()
    assert shot["run"]["state"] == "done" and shot["run"]["step"] == 30 and shot["run"]["error"] is None
    assert shot["loss"]["parallel"] == want and len(shot["loss"]["single"]) == 30 == shot["loss"]["steps"]
    found = shot["loss"]["largest_difference"]
    assert found == np.abs(np.subtract(shot["loss"]["parallel"], shot["loss"]["single"])).max()
    assert shot["loss"]["largest_difference"] <= shot["loss"]["bound"] < 1e-2
    arrays = lab.loss_arrays(10)
    assert arrays["parallel"].dtype == np.float32
    assert arrays["parallel"].tolist() == want[10:]
    assert len(arrays["single"]) == 20
    found = lab.recording
    assert found.losses.tolist() == [[loss, loss] for loss in want] and found.source == "measured"
    assert "Recorded: measured: steps 1 to 30 of 2 ranks" in lab.to_text() and shot["recording"] == found.shown


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


def test_run_returns_at_once_and_a_second_press_starts_nothing(lab):
    running_for_long(lab)
    thread = lab._run.thread
    lab.run()
    assert lab._run.thread is thread
    assert lab.wait(0) is False
    lab.stop()
    assert lab.wait(PATIENCE_S)


def test_a_page_that_is_published_shows_the_lab_once_it_has_run(lab):
    """A copy of it: the lab of the notebook has not run, and one that has is shown as it is."""
    shown = lab.trained()
    assert shown.recording.taken == 30 and "Recorded: measured: steps 1 to 30 of 2 ranks" in shown.to_text()
    assert state(lab) == "idle" and lab.recording is None and shown.trained() is shown
    empty = PipelineLab(stages=2, micro_batches=2)
    empty.clear()
    assert empty.trained() is empty  # what cannot run is shown as it is


def test_pause_holds_the_step_resume_goes_on_and_stop_keeps_what_was_measured(lab):
    running_for_long(lab)
    lab.pause()
    assert state(lab) == "paused"
    time.sleep(0.3)  # steps under way may still be reported
    held = lab.progress()["loss"]["steps"]
    time.sleep(0.3)
    assert lab.progress()["loss"]["steps"] == held and "paused" in lab.progress()["run"]["text"]
    assert lab.snapshot()["recording"]["taken"] == held  # while it waits one can look back
    lab.resume()
    assert state(lab) == "running" and until(lambda: lab.progress()["loss"]["steps"] > held)
    lab.stop()
    assert lab.wait(PATIENCE_S)
    shot = lab.snapshot()
    assert shot["run"]["state"] == "done" and shot["loss"]["steps"] > held and shot["timeline"]["source"] == "measured"
    assert len(shot["loss"]["parallel"]) == len(shot["loss"]["single"]) == shot["run"]["step"]


def test_a_slow_run_takes_so_many_steps_a_second_and_its_speed_and_steps_change_while_it_runs(lab):
    """Its losses are those of a run at full speed, bit for bit; a measured lane is there before the end."""
    lab.run()
    assert lab.wait(PATIENCE_S)
    want = lab.snapshot()["loss"]["parallel"]
    lab.set_speed("slow")
    began_s = time.monotonic()
    lab.run()
    assert until(lambda: lab.progress()["loss"]["steps"] == 5)
    assert time.monotonic() - began_s > 4 / 10  # 10 steps a second: the fifth begins after four tenths
    assert until(lambda: lab.snapshot()["timeline"]["source"] == "measured") and state(lab) == "running"
    lab.set_steps(12)
    lab.set_speed("full")
    assert lab.wait(PATIENCE_S)
    assert lab.snapshot()["loss"]["parallel"] == want[:12] and state(lab) == "done"


def test_a_run_s_curve_stays_when_settings_change_until_reset(lab):
    lab.set_steps(4)
    lab.run()
    assert lab.wait(PATIENCE_S) and lab.snapshot()["earlier"] == []
    losses = lab.snapshot()["loss"]["parallel"]
    lab.set_strategy("relu", "((1, 2),)")
    (kept,) = lab.snapshot()["earlier"]
    assert kept["losses"] == losses and kept["steps"] == 4 and "2 ranks" in kept["label"]
    assert "earlier run (quickstart" in lab.to_text()
    for _ in range(4):
        lab.run()
        assert lab.wait(PATIENCE_S)
    assert len(lab.snapshot()["earlier"]) == 3 and "relu ((1, 2),)" in lab.snapshot()["earlier"][-1]["label"]
    lab.reset()
    assert lab.snapshot()["earlier"] == []


@pytest.mark.quick(1)
@pytest.mark.parametrize("taker", ["main thread", "another thread"])
def test_waiting_can_be_interrupted_and_done_again(lab, taker):
    """Once, after an interrupt, the next wait returned at once during a run; one another thread took went unheard."""
    running_for_long(lab)
    main = threading.main_thread().ident
    timer = threading.Timer(
        0.3, lambda: signal.pthread_kill(main if taker == "main thread" else threading.get_ident(), signal.SIGINT)
    )
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
    old = lab._run.thread
    lab.reset()
    assert state(lab) == "idle" and lab.progress()["loss"]["steps"] == 0 and lab.events == ()
    old.join(PATIENCE_S)
    assert not old.is_alive() and state(lab) == "idle" and lab.progress()["loss"]["steps"] == 0


def test_another_strategy_in_the_middle_is_trained_with_from_the_next_step_on_and_says_so(lab):
    """The same run, with the losses of one device; what is measured is of the new plan; the text tells what moved."""
    lab.set_speed("medium")
    running_for_long(lab)
    thread = lab._run.thread
    lab.set_strategy("matmul", "((1, 2), (2, 1))")
    assert lab._run.thread is thread and state(lab) == "running" and lab.events == ()
    assert until(lambda: lab.events)
    sliced = lab.plan
    lab.set_strategy("matmul", "((2, 1), (1, 1))")
    assert until(lambda: lab.events)
    down, switch = lab.progress()["loss"]["switches"]
    assert down["bytes"] == 0 and "nothing moved" in down["text"]  # each rank had the whole, and keeps its half
    assert switch["change"] == "matmul as in the preset" and "moved between the 2 ranks" in switch["text"]
    # each rank lacks the other's half of w and of its moment
    have, want = sliced.value("w"), lab.plan.value("w")
    lacks = 0
    for rank in range(2):
        mask = np.zeros(have.shape, bool)
        mask[have.layout.slice_index(have.shape, rank)] = True
        lacks += int((~mask[want.layout.slice_index(want.shape, rank)]).sum()) * 4 * 2
    assert switch["bytes"] == lacks > 0
    found = {e.name for e in lab.events if e.kind == "communication"}
    assert found == {i.out for _, i in lab.plan.instructions() if i.is_communication}
    lab.stop()
    assert lab.wait(PATIENCE_S)
    shot = lab.snapshot()
    assert shot["loss"]["largest_difference"] <= shot["loss"]["bound"]
    found = lab.recording  # of the present plan alone
    assert (found.first, found.taken) == (switch["step"] + 1, shot["loss"]["steps"] - switch["step"])
    assert found.losses[:, 0].tolist() == shot["loss"]["parallel"][switch["step"] :]
    assert f"After step {switch['step']}: matmul as in the preset; parameters and optimizer states" in lab.to_text()


def test_a_change_while_paused_is_made_at_once_and_it_stays_paused(lab):
    lab.set_speed("medium")
    running_for_long(lab)
    lab.pause()
    lab.set_optimizer("sliced")
    assert until(lambda: lab.progress()["loss"]["switches"])
    held = lab.progress()["loss"]["steps"]
    time.sleep(0.3)
    assert state(lab) == "paused" and lab.progress()["loss"]["steps"] == held
    lab.resume()
    assert until(lambda: lab.progress()["loss"]["steps"] > held)
    lab.stop()
    assert lab.wait(PATIENCE_S)


def test_other_data_end_the_run_and_say_so_and_its_curve_stays(lab):
    lab.set_speed("medium")
    running_for_long(lab)
    lab.set_data("digits")
    assert state(lab) == "idle"
    assert "was ended after step" in lab.snapshot()["said"] and "its curve stays" in lab.to_text()
    assert "fixed batch" in lab.snapshot()["earlier"][-1]["label"]


def test_a_refused_strategy_does_not_disturb_the_run(lab):
    running_for_long(lab)
    lab.set_strategy("matmul", "((3, 1), (1, 1))")
    steps = lab.progress()["loss"]["steps"]
    assert state(lab) == "running" and until(lambda: lab.progress()["loss"]["steps"] > steps)
    lab.stop()
    lab.wait(PATIENCE_S)


def test_a_defect_in_the_thread_ends_as_failed_and_is_raised(lab, monkeypatch):
    """Wrong before: the lab said "starting" for ever."""

    class Broken:
        def __init__(self, *given, **options):
            raise OSError("no descriptors left")

    raised = []
    monkeypatch.setattr(training, "Session", Broken)
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))
    lab.run()
    assert lab.wait(PATIENCE_S)
    assert state(lab) == "failed" and "no descriptors left" in lab.progress()["run"]["error"] and raised == [OSError]


# ---- listeners and threads ----


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


# ---- through the widget ----


@pytest.fixture
def panel(lab):
    made = StrategyLabWidget(lab)
    yield made
    made.close()


def press(panel, command, *arguments):
    panel._handle_custom_msg({"command": command, "arguments": list(arguments), "number": 1}, [])


def test_a_command_publishes_one_snapshot(lab, panel, monkeypatch):
    """Once there were two, for the model's report and for the end of the command, each some 50 KB for the page."""
    taken, take = [], lab.snapshot
    monkeypatch.setattr(lab, "snapshot", lambda: taken.append(1) or take())
    press(panel, "select_rank", 0)
    assert len(taken) == 1 and panel.snapshot["rank"] == 0
    lab.select_rank(1)  # not through the panel: it hears of it
    assert len(taken) == 2 and panel.snapshot["rank"] == 1


def test_a_run_through_the_panel_ends_with_all_its_losses_on_the_page(lab, panel):
    press(panel, "run")
    assert lab.wait(PATIENCE_S)
    assert until(lambda: panel.progress["run"]["state"] == "done" and panel.progress["loss"]["steps"] == 30)
    assert until(lambda: np.frombuffer(panel.loss_parallel, "<f4").tolist() == lab.snapshot()["loss"]["parallel"])
    assert panel.last_error is None and panel.shown["timeline"]["source"] == "measured"


def test_every_error_of_the_lab_is_one_of_the_family():
    assert issubclass(ArgumentError, ParallelLabError) and issubclass(ArgumentError, ValueError)


# ---- workers that start, or end, in the test: last, because all others of this file share two ----


@pytest.fixture
def ended():
    yield
    close_all()


@pytest.mark.usefixtures("ended")
def test_stop_before_the_workers_are_there(lab):
    lab.run()
    lab.stop()
    assert lab.wait(PATIENCE_S) and state(lab) == "done"


@pytest.mark.exhaustive
@pytest.mark.usefixtures("ended")
def test_a_change_of_network_while_the_workers_start_does_not_mix_two_networks(lab):
    """Wrong before: the thread compiled its one-device plan from what was chosen by then."""
    lab.run()
    thread = lab._run.thread
    lab.set_net("dense")
    lab.set_data("digits")
    lab.run()
    assert lab.wait(PATIENCE_S) and state(lab) == "done"
    thread.join(PATIENCE_S)
    loss = lab.snapshot()["loss"]
    assert loss["largest_difference"] <= loss["bound"] and loss["steps"] == 30


@pytest.mark.usefixtures("ended")
@pytest.mark.quick(0)
@pytest.mark.parametrize("net", ["convnet", "transformer", "embedding"])
def test_a_long_network_trains_on_processes_and_equals_one_device(net):
    lab = StrategyLab(net, 2, steps=12)
    try:
        lab.run()
        assert lab.wait(PATIENCE_S)
        shot = lab.snapshot()
        assert shot["run"]["state"] == "done", shot["run"]["error"]
        assert shot["loss"]["largest_difference"] <= shot["loss"]["bound"] < 0.1
        assert shot["loss"]["parallel"][-1] < shot["loss"]["parallel"][0]
        assert all(m["bytes_counted"] == m["bytes_predicted"] for m in shot["messages"])
    finally:
        lab.close()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("ended")
def test_devices_fusion_and_optimizer_parallel_change_while_it_trains_and_the_curve_does_not_bend(lab):
    lab.set_speed("medium")
    running_for_long(lab)
    for change in (
        lambda: lab.set_devices(4),
        lambda: lab.set_optimizer("sliced"),
        lambda: lab.set_fusion("fused"),
        lambda: lab.set_preset("data parallel"),
        lambda: lab.set_devices(1),
    ):
        before = lab.progress()["loss"]["steps"]
        change()
        assert until(lambda before=before: lab.progress()["loss"]["steps"] > before + 1 and lab.events)
    lab.stop()
    assert lab.wait(PATIENCE_S)
    shot = lab.snapshot()
    assert shot["run"]["state"] == "done" and shot["loss"]["steps"] == len(shot["loss"]["single"])
    assert shot["loss"]["largest_difference"] <= shot["loss"]["bound"]
    steps = [one["step"] for one in shot["loss"]["switches"]]
    assert len(steps) == 5 and steps == sorted(steps)
    assert "from 2 to 4 ranks" in shot["loss"]["switches"][0]["text"]
    assert lab.recording.ranks == 1 and lab.recording.steps[-1] == shot["loss"]["steps"]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("ended")
def test_close_ends_the_workers_and_a_later_run_has_new_ones_and_the_same_losses(lab):
    """Wrong before: they stayed, with their memory, until the notebook ended."""
    lab.set_steps(5)
    lab.run()
    assert lab.wait(PATIENCE_S) and state(lab) == "done"
    losses, pids = list(lab._run.parallel), get_pool(2).pids
    lab.close()
    assert gone(pids, PATIENCE_S) is not None
    lab.run()
    assert lab.wait(PATIENCE_S) and state(lab) == "done"
    assert lab._run.parallel == losses and len(losses) == 5


@pytest.mark.usefixtures("ended")
@pytest.mark.faults("ranks at work")
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


@pytest.mark.usefixtures("ended")
def test_close_in_the_middle_ends_the_run(lab):
    running_for_long(lab)
    thread, heard = lab._run.thread, []
    lab.on_change(heard.append)
    lab.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and not heard


@pytest.mark.usefixtures("ended")
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
            lambda: lab.set_strategy(
                lab.snapshot()["operators"][0]["name"], rng.choice(("((1, 2), (2, 1))", "((3, 1), (1, 1))", None))
            ),
            lambda: lab.select_rank(rng.randrange(2)),
            lambda: lab.select_phase(rng.choice(("forward", "backward"))),
            lambda: lab.select_tensor(rng.choice(lab.snapshot()["tensors"])["id"]),
            *[
                lambda name=name: getattr(lab, name)()
                for name in ("run", "run", "run", "pause", "resume", "stop", "reset", "snapshot", "to_text")
            ],
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
