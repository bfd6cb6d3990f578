"""`mindspore.runtime`: streams, events and limits of a device. Here an operator has finished when its call returns.

s = Stream()
with StreamCtx(s):
    y = x + 1
s.synchronize()
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

from ..base.checks import checked, choice, flag, instance, integer
from ..base.errors import ArgumentError
from ._settings import gigabytes

# ---- the device ----


@checked(
    init_size=gigabytes(),
    increase_size=gigabytes(),
    max_size=gigabytes(),
    optimize_level=choice("O0", "O1"),
    huge_page_reserve_size=gigabytes(zero=True),
)
def set_memory(
    init_size: str = "2GB",
    increase_size: str = "2GB",
    max_size: str = "1024GB",
    optimize_level: str = "O0",
    huge_page_reserve_size: str = "0GB",
) -> None:
    """Limits of a memory pool, such as "28GB". Checked, and without effect: a rank takes memory as it needs it."""


def synchronize() -> None:
    """Wait until all is computed: it is, when a call returns."""


def launch_blocking() -> None:
    """Accepted: an operator has always finished when its call returns."""


@checked(threads_num=integer(1, kinds=int))
def dispatch_threads_num(threads_num: int) -> None:
    """Accepted: operators are run by the calling thread."""


def empty_cache() -> None:
    """Accepted: memory goes back when nothing uses it."""


# ---- streams and events ----


class Event:
    """A moment: `record()`, and with enable_timing the milliseconds between two of them."""

    @checked(enable_timing=flag, blocking=flag)
    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.enable_timing = enable_timing
        self.recorded_s: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Note the time: all that was called before has finished."""
        self.recorded_s = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """What is called next comes after the event anyway."""

    def synchronize(self) -> None:
        """As `wait`."""

    def query(self) -> bool:
        """True: what it stands for has finished."""
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds to another event (measured). Raises ArgumentError unless both were recorded, with their time."""
        ends = (self, end_event)
        if not all(each.enable_timing and each.recorded_s is not None for each in ends):
            allowed = "Two events with enable_timing=True, after record()"
            raise ArgumentError("an event without a time", where="elapsed_time", allowed=allowed)
        return 1e3 * (end_event.recorded_s - self.recorded_s)  # type: ignore[operator]


class Stream:
    """A queue of operators, which run in the order in which they are called, whatever the stream."""

    @checked(priority=integer())
    def __init__(self, priority: int = 0, **kwargs: Any) -> None:
        self.priority = priority

    def record_event(self, event: Event | None = None) -> Event:
        """An event at this moment."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        """All has finished."""

    def wait_event(self, event: Event) -> None:
        """As `Event.wait`."""

    def wait_stream(self, stream: Stream) -> None:
        """As `synchronize` of that stream."""

    def query(self) -> bool:
        """True: all has finished."""
        return True


_DEFAULT, _COMMUNICATION = Stream(), Stream()
_A_STREAM = instance(Stream, "A Stream") | None


class StreamCtx(AbstractContextManager):
    """`with StreamCtx(stream):` operators of this stream; None: of the one there is."""

    @checked(ctx_stream=_A_STREAM)
    def __init__(self, ctx_stream: Stream | None) -> None:
        self.stream = ctx_stream

    def __exit__(self, *error: object) -> None:
        """Nothing is left to be done."""


def default_stream() -> Stream:
    """The stream that is used where none is named."""
    return _DEFAULT


def current_stream() -> Stream:
    """The same: which stream an operator belongs to changes nothing."""
    return _DEFAULT


def communication_stream() -> Stream:
    """The stream of collectives."""
    return _COMMUNICATION


@checked(stream=_A_STREAM)
def set_cur_stream(stream: Stream | None) -> None:
    """Accepted: which stream an operator belongs to changes nothing."""
