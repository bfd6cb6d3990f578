"""Which signals end what a launcher has started, also where they were ignored when it began."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import pytest

from parallel_lab.processes.launch.processes import ending_on_signals
from tests.crossed import each_of


@pytest.fixture
def handlers():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


@each_of(
    ("number", "ignored", "ends"),
    (signal.SIGTERM, False, True),
    (signal.SIGTERM, True, True),
    (signal.SIGHUP, False, True),
    (signal.SIGHUP, True, False),  # nohup: a launch ended with the terminal
    (signal.SIGINT, False, True),
    (signal.SIGINT, True, True),  # a job in the background of a script: it went on for ever
)
def test_a_launcher_ends_on_signals_that_were_ignored_and_lives_on_after_nohup(handlers, number, ignored, ends):
    class Ended(BaseException):
        pass

    def end(came, _frame):
        raise Ended(came)

    for one in handlers:  # whatever this process was started with
        signal.signal(one, signal.default_int_handler if one == signal.SIGINT else signal.SIG_DFL)
    if ignored:
        signal.signal(number, signal.SIG_IGN)
    before = [signal.getsignal(one) for one in handlers]
    expected = KeyboardInterrupt if number == signal.SIGINT else Ended
    with pytest.raises(expected) if ends else contextlib.nullcontext(), ending_on_signals(end):
        os.kill(os.getpid(), number)
    assert [signal.getsignal(one) for one in handlers] == before


def test_elsewhere_than_in_the_main_thread_signals_are_left_alone(handlers):
    before, seen = [signal.getsignal(one) for one in handlers], []

    def look():
        with ending_on_signals(print):
            seen.extend(signal.getsignal(one) for one in handlers)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == before
