"""A learner's functions in a process of their own: what they print, draw, change, and how they end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import multiprocess
import numpy as np
import pytest

from parallel_lab.lab.exercises import own_process
from parallel_lab.lab.exercises.own_process import MOST_PRINTED, Opaque, Serving, in_own_process
from parallel_lab.lab.exercises.running import Told, attempt, deadline
from parallel_lab.processes.jobs import unpacked
from tests.crossed import each_of

PROMISED_S = 5.0


def called(function, *args):
    with in_own_process(function, {}) as (stand_in, _):
        return attempt(stand_in, *args)


def test_what_a_function_prints_appears_where_the_notebook_prints(capsys):
    def loud(n):
        print("n is", n)
        print("a warning", file=sys.stderr)
        return n

    assert called(loud, 3).value == 3
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("n is 3\n", "a warning\n")


def test_what_two_threads_hand_over_keeps_its_order_and_comes_before_the_reply():
    """On a busy machine "a warning" was lost, and its end of line came: one thread had taken it out of the list, the
    other sent the rest and the reply.
    """
    sent, replied = [], threading.Event()

    class Line:
        def send_bytes(self, data):
            sent.append(unpacked(bytearray(data)))

    class Printed(list):
        def pop(self, place):
            shown = super().pop(place)
            if threading.current_thread() is watcher:
                replied.wait(0.2)
            return shown

    serving = Serving(Line())
    serving._printed = Printed([("stderr", "a warning"), ("stderr", "\n")])
    watcher = threading.Thread(target=serving.flush)
    watcher.start()
    while len(serving._printed) == 2:
        time.sleep(0.001)
    serving.tell({"value": 1})
    replied.set()
    watcher.join()
    assert sent == [{"shown": ("stderr", "a warning")}, {"shown": ("stderr", "\n")}, {"value": 1}]


def test_a_huge_print_is_cut(capsys):
    def huge():
        for _ in range(50):
            print("x" * 10_000)

    assert called(huge).fault is None
    printed = capsys.readouterr().out
    assert "the rest is left out" in printed and len(printed) < MOST_PRINTED + 100


def test_a_picture_of_a_function_appears_in_the_cell(monkeypatch):
    from IPython.core import display_functions

    shown = []
    monkeypatch.setattr(display_functions, "publish_display_data", lambda data, metadata: shown.append(data))

    def draws():
        from IPython.display import HTML, display

        display(HTML("<b>drawn</b>"))

    assert called(draws).fault is None
    assert [data["text/html"] for data in shown] == ["<b>drawn</b>"]


def test_a_function_works_on_copies_that_stay_for_one_check():
    seen, scale = [], np.arange(3.0)

    def counts(n):
        seen.append(n)
        return len(seen) * scale

    with in_own_process({"f": counts}, {}) as (answer, _):
        assert [answer["f"](n)[1] for n in (5, 6)] == [1.0, 2.0]
    assert seen == []


class Slow:
    """Takes a second to arrive in another process, as a start does on a slow machine."""

    def __reduce__(self):
        return time.sleep, (1.0,)


def test_a_slow_start_takes_no_time_from_a_call(monkeypatch):
    """Wrong before: a right answer was "stopped" where its process needed longer to start than a call may take."""
    monkeypatch.setattr(own_process, "GRACE_S", 0.1)
    slow = Slow()
    with in_own_process({"f": lambda n: (n, slow)}, {}) as (answer, _), deadline(0.2):
        assert answer["f"](3) == (3, None)


def test_functions_in_an_answer_and_outside_it_have_one_process():
    with in_own_process({"f": lambda: os.getpid(), "n": 3}, {"g": [lambda: os.getpid()]}) as (answer, given):
        pids = {answer["f"](), given["g"][0]()}
        assert answer["n"] == 3 and len(pids) == 1 and os.getpid() not in pids
    assert multiprocess.active_children() == []


def test_a_function_calls_back_what_it_was_given_and_catches_what_that_raises():
    asked = []

    def game(text):
        asked.append(text)
        return {"a": 1}[text]

    def plays(ask):
        try:
            ask("b")
        except KeyError:
            return ask("a")

    assert called(plays, game).value == 1 and asked == ["b", "a"]


def test_generators_stay_and_are_asked_for_one_value_after_the_other():
    def two(n):
        yield from ((i for i in range(n)) for _ in range(2))

    with in_own_process(two, {}) as (stand_in, _):
        assert [list(inner) for inner in stand_in(3)] == [[0, 1, 2], [0, 1, 2]]


def test_a_value_that_cannot_cross_is_known_by_its_text():
    value = called(lambda: memoryview(b"x")).value
    assert isinstance(value, Opaque) and "memory at" in repr(value)


def asks_for_keys():
    return input("n: ")


def ends_its_process():
    os._exit(3)


def is_deep():
    return is_deep()


def takes_all():
    return bytearray(1 << 50)


@each_of(
    ("function", "words"),
    (asks_for_keys, "nobody types during a check"),
    (ends_its_process, "the code ends its process (exit code 3)"),
    (is_deep, "maximum recursion depth exceeded"),
    (takes_all, "MemoryError"),
)
def test_what_a_check_cannot_do_is_said_plainly(function, words):
    fault = called(function).fault
    assert words in fault.text
    assert function is ends_its_process or fault.place.startswith("test_own_process.py:")


def test_after_an_end_the_next_call_has_a_new_process():
    with in_own_process(lambda n: os._exit(0) if n else 7, {}) as (stand_in, _):
        assert attempt(stand_in, 1).fault is not None and attempt(stand_in, 0).value == 7


def test_what_cannot_be_copied_runs_in_place():
    letters = iter(letter for letter in "ab")
    assert called(lambda: (next(letters), os.getpid())).value == ("a", os.getpid())


def test_an_interrupt_stops_the_call_and_leaves_no_process():
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), in_own_process(time_asleep, {}) as (stand_in, _):
        stand_in(0)  # now the process is there
        timer.start()
        stand_in(60)
    assert time.monotonic() - begin < 2 * PROMISED_S and multiprocess.active_children() == []


def time_asleep(seconds):
    time.sleep(seconds)


def ends(pid: int) -> bool:
    """Whether a process is gone within PROMISED_S."""
    begin = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() - begin < PROMISED_S:
            os.kill(pid, 0)
            time.sleep(0.02)
    return time.monotonic() - begin < PROMISED_S


def test_a_process_does_not_outlive_its_notebook(tmp_path):
    script = f"""
        from pathlib import Path
        from parallel_lab.lab.exercises.own_process import in_own_process

        def loops():
            import os
            Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
            while True:
                pass

        with in_own_process(loops, {{}}) as (stand_in, _):
            stand_in()
    """
    notebook = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text()):
        assert notebook.poll() is None
        time.sleep(0.02)
    notebook.kill()
    notebook.wait()
    assert ends(int(pid.read_text()))


@pytest.mark.exhaustive
def test_in_a_notebook_the_server_starts_once_the_import_is_over_and_ends_with_it():
    script = """
        import os
        from IPython.core.interactiveshell import InteractiveShell
        from multiprocess.forkserver import _forkserver as server

        shell = InteractiveShell.instance()
        shell.kernel = "what a notebook's shell has"
        callbacks = shell.events.callbacks["post_run_cell"]
        before = list(callbacks)
        shell.push({"server": server})
        shell.run_cell("from parallel_lab.lab.exercises import check; pid = server._forkserver_pid")
        assert shell.user_ns["pid"] is None and callbacks == before
        os.kill(server._forkserver_pid, 0)
        print("server", server._forkserver_pid)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert ends(int(done.stdout.split()[-1]))


def test_errors_keep_the_learners_line():
    def wrong(n):
        half = n / 0
        return half

    with in_own_process(wrong, {}) as (stand_in, _), pytest.raises(Told) as caught:
        stand_in(1)
    fault, line = caught.value.fault, wrong.__code__.co_firstlineno + 1
    assert (fault.text, fault.place) == ("ZeroDivisionError: division by zero", f"test_own_process.py:{line}")
    assert fault.code == "half = n / 0"
