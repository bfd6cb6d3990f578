"""Jobs: functions that run on all ranks of a pool, watched from the notebook without blocking it."""

from __future__ import annotations

import importlib
import io
import pickle
import struct
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, Protocol

import dill
import numpy as np

from ..base.driver import DRIVER

_PACKAGE = __name__.partition(".")[0]
_BY_NAME = (_PACKAGE, "builtins", "numpy")
KEPT_MESSAGES = 10_000  # older messages of a job are dropped; a callback has seen them all
CALLBACK_WAIT_S = 5.0  # result() waits at most this long for callbacks that still run


ALIGN = 64  # bytes: where the memory of an array begins, as one cache line and the widest vector register want it
APART_BYTES = 4096  # of an array from which its memory is kept apart from the pickle
_HEAD = struct.Struct("<Q")  # size of the pickle, which follows


class _ArraysApart:
    """The memory of large arrays lies apart: `arrays`, with their places, counted from where all of them begin."""

    arrays: dict[int, tuple[int, np.ndarray]]
    size: int

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is not np.ndarray or obj.nbytes < APART_BYTES or obj.dtype.hasobject or not obj.flags.c_contiguous:
            return None
        if id(obj) not in self.arrays:
            self.arrays[id(obj)] = self.size, obj
            self.size += -(-obj.nbytes // ALIGN) * ALIGN
        return self.arrays[id(obj)][0], obj.shape, obj.dtype


class _Packer(_ArraysApart, dill.Pickler):
    """dill, but modules of this package go by name, as those of an editable install would be copied."""

    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out, recurse=True)
        self.arrays, self.size = {}, 0

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType) and obj.__name__.partition(".")[0] == _PACKAGE:
            return importlib.import_module, (obj.__name__,)
        return NotImplemented


class _QuickPacker(_ArraysApart, pickle.Pickler):
    """Python's own pickler, in C and more than ten times as fast as dill, for objects of this package and of numpy.
    Raises PicklingError for functions and classes from elsewhere, which travel as copies: only dill makes those.
    """

    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self.arrays, self.size = {}, 0

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType) and (obj.__module__ or "").partition(".")[0] not in _BY_NAME:
            raise pickle.PicklingError(obj)
        return NotImplemented


class _Unpacker(dill.Unpickler):
    """The other side: arrays that lie in `memory`, from `start` on, and keep it."""

    def __init__(self, pickled: bytes, memory: Any, start: int) -> None:
        super().__init__(io.BytesIO(pickled))
        self.memory, self.start, self.arrays = memory, start, {}

    def persistent_load(self, pid: tuple[int, tuple[int, ...], np.dtype]) -> np.ndarray:
        at, shape, dtype = pid
        if at not in self.arrays:
            self.arrays[at] = np.ndarray(shape, dtype, self.memory, self.start + at)
        return self.arrays[at]


def packed(obj: Any, room: Callable[[int], Any] = bytearray) -> Any:
    """`obj` as it is now, for workers, in the memory that `room(size)` gives; a function goes with the notebook's
    globals that it uses, and no others.

        size of the pickle | pickle | arrays of 4 KiB and more, which `unpacked` finds where they lie
    """
    out = io.BytesIO()
    packer: _QuickPacker | _Packer = _QuickPacker(out)
    try:
        packer.dump(obj)
    except Exception:  # what cannot be pickled by name raises anything
        out = io.BytesIO()
        packer = _Packer(out)
        packer.dump(obj)
    pickled, start = out.getbuffer(), _start(out.tell())
    memory = room(start + packer.size)
    view = memoryview(memory)
    _HEAD.pack_into(view, 0, len(pickled))
    view[_HEAD.size : _HEAD.size + len(pickled)] = pickled
    for at, array in packer.arrays.values():
        np.ndarray(array.shape, array.dtype, view, start + at)[...] = array
    return memory


def quick(obj: Any) -> Any:
    """`obj` as bytes for `pickle.loads`, ten times as fast as dill; itself, if it is large or only dill can do it."""
    out = io.BytesIO()
    packer = _QuickPacker(out)
    try:
        packer.dump(obj)
    except Exception:  # as in `packed`
        return obj
    return obj if packer.arrays else out.getvalue()


def read_quick(sent: Any) -> Any:
    """What `quick` was given, on the other side."""
    return pickle.loads(sent) if isinstance(sent, bytes) else sent


def unpacked(memory: Any) -> Any:
    """What was packed in `memory`; its large arrays are views of it, writable if it is."""
    (size,) = _HEAD.unpack_from(memory)
    return _Unpacker(bytes(memory[_HEAD.size : _HEAD.size + size]), memory, _start(size)).load()


def _start(size: int) -> int:
    """Where the arrays begin, behind a pickle of `size` bytes."""
    return -(-(_HEAD.size + size) // ALIGN) * ALIGN


class Owner(Protocol):
    """What a job needs of its pool (`job_pool.py`)."""

    def _control_changed(self, job: Job) -> None:
        """The user has asked for a pause, for its end, or for a stop."""

    def _in_callback_thread(self) -> bool:
        """Whether the caller is an `on_message` callback."""


class Job:
    """Made by `submit` of a pool; methods may be called from any thread. `messages`: the last (rank, object) pairs that
    ranks reported, oldest first; `warnings`: texts about ranks that keep others waiting.
    """

    def __init__(self, pool: Owner, payloads: list, on_message: Callable[[tuple], object] | None) -> None:
        self.messages: deque[tuple[int, object]] = deque(maxlen=KEPT_MESSAGES)
        self.warnings: list[str] = []
        self.callback_errors: list[BaseException] = []
        self._pool, self._payloads, self._on_message = pool, payloads, on_message
        self._changed = threading.Condition()
        self._version = 0
        self._state = "queued"
        self._results: list | None = None
        self._error: BaseException | None = None
        self._control = "run"
        self._undelivered = 0
        self._reports: dict[int, tuple] = {}  # by rank, as the pool receives them
        self._interrupted = False

    def __repr__(self) -> str:
        return f"Job({self.state}, {len(self.messages)} messages)"

    @property
    def state(self) -> str:
        """ "queued", "running", "paused", "stopping", "done" or "failed"."""
        if self._state == "running" and self._control != "run":
            return {"pause": "paused", "stop": "stopping"}[self._control]
        return self._state

    def done(self) -> bool:
        """True when every rank has returned or the job has failed."""
        return self._state in ("done", "failed")

    def result(self, timeout: float | None = None) -> list:
        """What the function returned, by rank, or its error; TimeoutError after `timeout` seconds (the job goes on)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        warned, done = 0, False
        while not done:
            with self._changed:
                while not self.done() and warned == len(self.warnings):
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise TimeoutError(f"the job is still {self.state} after {timeout} s")
                    DRIVER.wait(self._changed, 0.5 if left is None else min(left, 0.5))
                done = self.done()
                if done:  # a callback that still runs may have to be warned about
                    self._changed.wait_for(self._callbacks_over, CALLBACK_WAIT_S)
            for text in self.warnings[warned:]:
                warnings.warn(text, RuntimeWarning, stacklevel=3)
                warned += 1
        if self._error is not None:
            raise self._error
        return self._results

    def _callbacks_over(self) -> bool:
        return not self._undelivered or self._pool._in_callback_thread()

    def wait_for_change(self, timeout: float | None = None) -> bool:
        """Block until a message comes or the state changes; False when `timeout` seconds pass first."""
        with self._changed:
            seen, end = self._version, None if timeout is None else time.monotonic() + timeout
            while not (changed := self._version != seen or self.done()) and (end is None or time.monotonic() < end):
                DRIVER.wait(self._changed, None if end is None else max(0.0, end - time.monotonic()))
            return changed

    def pause(self) -> None:
        """Let the ranks wait at their next `wait_if_paused` or `agree_to_continue`. No time limit runs meanwhile."""
        self._ask("pause")

    def resume(self) -> None:
        """Go on after `pause`."""
        self._ask("run")

    def stop(self) -> None:
        """Let `agree_to_continue` answer False on all ranks at the same step. A queued job does not start."""
        self._ask("stop")

    def _ask(self, control: str) -> None:
        with self._changed:
            if self.done() or self._control == "stop":
                return
            self._control = control
        self._pool._control_changed(self)
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        self._notify()

    def _finish(self, results: list | None, error: BaseException | None) -> None:
        with self._changed:
            self._results, self._error = results, error
            self._state = "failed" if error is not None else "done"
            self._payloads = []
        self._notify()
