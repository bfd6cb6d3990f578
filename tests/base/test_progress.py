"""A counter of work: what it says, when it says it, and where a bar appears."""

from __future__ import annotations

import io
import sys

import pytest

from parallel_lab.base import progress as module
from parallel_lab.base.progress import LEAST_S, SILENT_S, UNATTENDED, Progress, shown


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_seconds_left_follow_from_what_is_done():
    clock = Clock()
    progress = Progress("steps", 40, clock=clock)
    assert (progress.share, progress.left_s, progress.text()) == (0.0, None, "0 of 40")
    clock.now = 5.0
    progress.step(10)  # 2 steps a second: 30 more take 15 s
    assert (progress.share, progress.left_s, progress.text()) == (0.25, 15.0, "10 of 40, 15 s left")
    progress.step(29)
    assert progress.text() == "39 of 40, under 1 s left"
    progress.step()
    assert progress.text() == "40 of 40"
    assert Progress("no total").text() == "" and Progress("no total").share is None


def test_readers_hear_of_new_words_at_once_and_of_numbers_seldom():
    clock, heard = Clock(), []
    progress = Progress(heard=lambda: heard.append(progress.done), clock=clock)
    progress.begin(1000)
    progress.step(0, "words")
    assert not heard  # within the first second
    clock.now += SILENT_S
    for _ in range(500):
        clock.now += LEAST_S / 100
        progress.step()
    assert 5 <= len(heard) <= 6  # 500 steps in the time of five
    progress.step(what="next")
    assert heard[-1] == 501


@pytest.mark.parametrize(("terminal", "silent_s", "unattended"), [(1, 0, 0), (1, 9, 0), (0, 0, 0), (1, 0, 1)])
def test_a_bar_appears_in_a_terminal_alone_and_never_within_a_second(monkeypatch, terminal, silent_s, unattended):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module, "SILENT_S", silent_s)
    monkeypatch.setattr(module, "LEAST_S", 0.0)
    if unattended:
        monkeypatch.setenv(UNATTENDED, "1")
    with shown("looking at plans", 4) as progress:
        for _ in range(4):
            progress.step()
    drawn = "looking at plans:" in stream.getvalue() and "left" in stream.getvalue()
    assert drawn is bool(terminal and not silent_s and not unattended)
    assert stream.getvalue().rsplit("\r", 1)[-1].strip() == ""  # and goes
