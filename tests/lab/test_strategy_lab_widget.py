"""The Strategy Lab's widget without a browser: refused strategies stay next to their operator; progress is thinned."""

from __future__ import annotations

import threading
import time

import ipywidgets
import numpy as np
import pytest

from parallel_lab.lab.widgets import StrategyLabWidget

from .fake_lab import STEPS, FakeLab


@pytest.fixture
def lab() -> FakeLab:
    return FakeLab()


@pytest.fixture
def widget(lab):
    view = StrategyLabWidget(lab)
    sent: list = []
    view.send = lambda content, buffers=None: sent.append((content, buffers or []))
    view.sent = sent
    yield view
    view.close()


def tell(widget, command, *arguments, number=1):
    """What the page sends when a control is used."""
    widget._handle_custom_msg({"command": command, "arguments": list(arguments), "number": number}, [])


def test_a_new_strategy_changes_the_snapshot_before_the_answer(widget):
    before = widget.snapshot
    tell(widget, "set_strategy", "matmul", "((8, 1), (1, 1))")
    assert widget.snapshot != before
    assert [card["block"] for card in widget.snapshot["cards"]] == [[[2 * r, 2 * r + 2], [0, 16]] for r in range(8)]
    assert widget.snapshot["picture"]["partial"] is None


def test_a_refused_strategy_is_not_an_error_of_the_command_and_leaves_the_picture(widget):
    before = widget.snapshot["cards"]
    tell(widget, "set_strategy", "matmul", "((2, 4), (2, 1))")
    operator = widget.shown["operators"][0]
    assert widget.last_error is None
    assert operator["typed"] == "((2, 4), (2, 1))" and "equally" in operator["error"]
    assert operator["strategy"] == "((2, 4), (4, 1))"
    assert widget.snapshot["cards"] == before


def test_a_run_is_steered_by_commands(widget):
    """The other commands: test_lab_widgets.py."""
    for command, state in (("run", "running"), ("pause", "paused"), ("resume", "running"), ("stop", "done")):
        tell(widget, command)
        assert widget.last_error is None and widget.progress["run"]["state"] == state
    tell(widget, "reset")
    assert widget.progress["run"]["state"] == "idle"


def losses(sent) -> dict[str, np.ndarray]:
    """The curves a page has after the messages it received."""
    curves = {"parallel": np.zeros(0, "<f4"), "single": np.zeros(0, "<f4")}
    for content, buffers in sent:
        if content["kind"] == "loss":
            for name, buffer in zip(content["names"], buffers, strict=True):
                assert content["since"] <= len(curves[name])
                curves[name] = np.concatenate([curves[name][: content["since"]], np.frombuffer(buffer, "<f4")])
    return curves


def test_a_run_arrives_whole_although_fewer_messages_are_sent_than_steps(widget, lab):
    tell(widget, "run")
    start = time.monotonic()
    for _ in range(STEPS):
        lab.step()
        time.sleep(0.003)
    end = time.monotonic() + 5
    while widget.progress["loss"]["steps"] < STEPS and time.monotonic() < end:
        time.sleep(0.01)
    took_s = time.monotonic() - start
    curves = losses(widget.sent)
    np.testing.assert_array_equal(curves["parallel"], lab.parallel)
    np.testing.assert_array_equal(curves["single"], lab.single)
    messages = sum(content["kind"] == "loss" for content, _ in widget.sent)
    assert messages <= 30 * took_s + 3
    assert widget.progress["run"]["state"] == "done"
    # a view opened later starts from here
    np.testing.assert_array_equal(np.frombuffer(widget.loss_parallel, "<f4"), lab.parallel)


def test_a_second_run_of_the_same_length_replaces_the_first(widget, lab):
    tell(widget, "run")
    lab.step(10)
    tell(widget, "stop")
    lab.parallel = lab.parallel * 2
    tell(widget, "run")
    lab.step(10)
    tell(widget, "stop")
    np.testing.assert_array_equal(losses(widget.sent)["parallel"], lab.parallel[:10])


def test_a_view_that_missed_losses_gets_them(widget, lab):
    tell(widget, "run")
    lab.step(20)
    tell(widget, "pause")
    widget.sent.clear()
    widget._handle_custom_msg({"want_loss_since": 4}, [])
    [(content, buffers)] = [m for m in widget.sent if m[0]["kind"] == "loss"]
    assert content["since"] == 4
    np.testing.assert_array_equal(np.frombuffer(buffers[0], "<f4"), lab.parallel[4:20])


def test_progress_does_not_send_the_picture_again(widget, lab):
    tell(widget, "run")
    before = widget.snapshot
    lab.step()
    time.sleep(0.1)
    lab.step()
    time.sleep(0.1)
    assert widget.progress["run"]["step"] == 2
    assert widget.snapshot is before


def test_reports_from_many_threads_end_with_the_newest_state(widget, lab):
    def press(tensor):
        for rank in range(8):
            lab.select_rank(rank)
            lab.select_tensor(tensor)

    threads = [threading.Thread(target=press, args=(t,)) for t in ("x", "w", "matmul", "relu")]
    for thread in threads:
        thread.start()
    for _ in range(20):
        tell(widget, "select_phase", "backward")
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert widget.last_error is None
    now = lab.snapshot()
    assert (widget.snapshot["rank"], widget.snapshot["tensor"]) == (now["rank"], now["tensor"])


def test_close_leaves_no_widget_no_thread_and_no_subscription(lab):
    widgets, threads = set(ipywidgets.widget._instances), set(threading.enumerate())
    view = StrategyLabWidget(lab)
    view.command("run")
    lab.step()
    lab.step()
    view.close()
    view.close()
    assert lab._listeners == []
    assert set(ipywidgets.widget._instances) == widgets
    for thread in set(threading.enumerate()) - threads:
        thread.join(5)
        assert not thread.is_alive()
