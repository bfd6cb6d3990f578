"""A model that runs one thing at a time: a waiter gets the end of its run, whatever listeners do meanwhile."""

from __future__ import annotations

import threading
import time

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.shared.running import RunsOneThing

PATIENCE_S = 30.0


class Runs(RunsOneThing):
    def go(self, work) -> None:
        self._start("going", work, "it failed")

    @property
    def run(self) -> dict:
        return self._run.to_dict()


def test_listeners_hear_when_a_run_begins_and_ends():
    runs, heard = Runs(), []
    runs.on_change(lambda kind: heard.append((kind, runs.run["state"])))
    runs.go(lambda: "fine")
    assert runs.wait(PATIENCE_S) and heard == [("run", "running"), ("run", "done"), ("picture", "done")]
    assert runs.run == {"state": "done", "text": "fine", "error": None, "share": None}


def test_a_refusal_is_the_text_of_the_run():
    def refuse() -> str:
        raise ArgumentError("no such thing")

    runs = Runs()
    runs.go(refuse)
    failed = {"state": "failed", "text": "it failed", "error": "no such thing", "share": None}
    assert runs.wait(PATIENCE_S) and runs.run == failed


def test_a_run_that_nobody_wants_any_more_ends_and_the_next_is_wanted_again():
    def work() -> str:
        while True:
            runs._go_on()
            time.sleep(0.001)

    runs = Runs()
    runs.stop()  # nothing goes on
    runs.go(work)
    assert not runs.wait(0.05)
    runs.stop()
    assert runs.wait(PATIENCE_S) and runs.run["state"] == "stopped" and runs.run["error"] is None
    runs.go(lambda: "fine")
    assert runs.wait(PATIENCE_S) and runs.run["text"] == "fine"


def test_nothing_else_is_begun_while_a_run_goes_on():
    runs, gate = Runs(), threading.Event()
    runs.go(lambda: gate.wait(PATIENCE_S) and "first")
    runs.go(lambda: "second")
    assert not runs.wait(0.05)
    gate.set()
    assert runs.wait(PATIENCE_S) and runs.run["text"] == "first"


def test_a_run_that_a_listener_begins_is_waited_for_too():
    """The first run's thread is still telling its end when the second has begun: its end is not the second's."""
    runs, gate, told = Runs(), threading.Event(), threading.Event()

    def listener(_: str) -> None:
        if runs.run["text"] == "first":
            runs.go(lambda: gate.wait(PATIENCE_S) and "second")
            told.set()

    runs.on_change(listener)
    runs.go(lambda: "first")
    first = runs._run.thread
    assert told.wait(PATIENCE_S)
    first.join(PATIENCE_S)
    assert not runs.wait(0.1)
    gate.set()
    assert runs.wait(PATIENCE_S) and runs.run["text"] == "second"


def test_a_listener_may_close_the_model_in_the_runs_own_thread():
    runs = Runs()
    runs.on_change(lambda _: runs.close() if runs.run["state"] == "done" else None)
    runs.go(lambda: "fine")
    thread = runs._run.thread
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and runs.wait(PATIENCE_S)


def test_closing_waits_for_a_run_and_tells_it_to_stop():
    runs = Runs()
    runs.go(lambda: "stopped" if runs._run.stop.wait(PATIENCE_S) else "not told")
    runs.close()
    assert runs.run["text"] == "stopped"
