"""A MindSpore script as a rank program: what its ranks send is yielded, request by request, and the engine answers it.

    def script(x, y):
        from mindspore.communication import get_rank, init
        ...

    run_programs(on_ranks(script), ranks=4, values=[(x, y)] * 4)        # `check` does this

Each rank runs in a thread of its own, one at a time: a rank goes on until it asks for something, then it is the next
one's turn. What a process has once, its world, settings and seeds, each rank has for itself, as if it were a process;
`import mindspore` finds this package. Whoever runs the program sees, and counts, what is sent: the script's own word is
not needed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import fields
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import numpy as np

from ...base import hooks, seeds
from ...base.errors import NoProcesses
from ...base.settings import compat, current, run_checks
from ...base.system import IN_BROWSER
from ...processes.checked_calls import CheckedCalls, Named
from ...processes.launch.environment import as_mindspore_folder
from ...processes.one_caller import OneCaller
from ...processes.world.connect import played_rank
from ...run.communicator import Handle, Request, Start, Wait, delivered

END_S = 1.0  # for a rank that is left in the middle of a message to end its thread
_OF_A_PROCESS = (  # module, name, what it is when a process starts
    (hooks, "_world", None),
    (hooks, "_cell_runner", hooks._at_once),
    (seeds, "_seed", seeds.get_seed()),
    (seeds, "_draws", 0),
    (seeds, "_dataset_seed", None),
    (compat, "_compat", compat.get_compat()),
    (run_checks, "_checks", run_checks.RunChecks("warning")),  # of a script of MindSpore's
)


def on_ranks(script: Callable[..., Any]) -> Callable[..., Generator[Any, Any, Any]]:
    """The script, a function, as a rank program: program(rank, ranks, values), which calls script(*values).

    `init`, `get_rank`, collectives, `Model` and so on work in it as in a process of `parallel-lab run --as-mindspore`.
    """
    if not callable(script):
        return script  # the check says what is wrong with it

    @functools.wraps(script)
    def program(rank: int, ranks: int, values: Any) -> Generator[Any, Any, Any]:
        if IN_BROWSER:
            raise NoProcesses("a script's ranks are threads, which a browser lacks", where="on_ranks")
        played = _Rank(rank, ranks, lambda: script(*values))
        try:
            asked = played.go_on(None)
            while not played.ended:
                asked = played.go_on((yield asked))
            return asked
        finally:
            played.leave()

    return program


class _Left(BaseException):
    """Ends a rank whose run is over. No Exception, so that no script catches it."""


class _Rank:
    """One rank: a thread that runs only while `go_on` waits for it."""

    def __init__(self, rank: int, ranks: int, script: Callable[[], Any]) -> None:
        self.comm, self.ended = _Communicator(rank, ranks, self._ask), False
        self._script, self._settings = script, {name: {} for name in current._set}
        self._kept = [value for _, _, value in _OF_A_PROCESS]
        self._asked: SimpleQueue[Any] = SimpleQueue()
        self._replies: SimpleQueue[Any] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def go_on(self, reply: Any) -> Any:
        """Let it run with a reply until it asks for the next one, or has ended: its request or result. Raises what
        the script raises.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name=f"rank {self.comm.rank}")
            start = self._thread.start
        else:
            start = functools.partial(self._replies.put, reply)
        with self._own():
            start()
            what, value = self._asked.get()
        if what == "asks":
            return value
        self.ended = True
        if what == "raises":
            try:
                raise value
            finally:
                value = None  # or its traceback and this frame keep each other, and with them what other ranks wait in
        return value

    def leave(self) -> None:
        """End the thread, wherever it is."""
        if self._thread is not None and not self.ended:
            with self._own():
                self._replies.put(_Left())
                self._thread.join(END_S)

    @contextlib.contextmanager
    def _own(self) -> Iterator[None]:
        self._swap()
        try:
            with _mindspore_found():
                yield
        finally:
            self._swap()

    def _swap(self) -> None:
        """Exchange what this rank has for itself with what the process has now."""
        for place, (module, name, _) in enumerate(_OF_A_PROCESS):
            now = getattr(module, name)
            setattr(module, name, self._kept[place])
            self._kept[place] = now
        settings = dict(current._set)
        current._set.update(self._settings)
        self._settings = settings

    def _run(self) -> None:
        token = played_rank.set(self.comm)  # of this thread
        try:
            result = self._script()
            world = hooks.current_world()
            if world is not None:
                world.close()
            self._asked.put(("returns", result))
        except _Left:
            pass
        except BaseException as error:
            self._asked.put(("raises", error))
        finally:
            played_rank.reset(token)

    def _ask(self, item: Any) -> Any:
        self._asked.put(("asks", item))
        reply = self._replies.get()
        if isinstance(reply, _Left):
            raise reply
        return reply


@contextlib.contextmanager
def _mindspore_found() -> Iterator[None]:
    """Inside, `import mindspore` finds this package, as it does behind a rank's turn only where it did before."""
    if "mindspore" in sys.modules:
        yield
        return
    folder = str(as_mindspore_folder())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name in [name for name in tuple(sys.modules) if name.partition(".")[0] == "mindspore"]:
            del sys.modules[name]


class _Communicator(CheckedCalls):
    """What a rank calls; each call is handed to `ask`, which returns the reply."""

    control = "run"

    def __init__(self, rank: int, ranks: int, ask: Callable[[Any], Any]) -> None:
        super().__init__(rank, ranks)
        self.caller, self._to_engine, self._index = OneCaller(), ask, 0

    def empty(self, shape: int | tuple[int, ...], dtype: Any = "float32") -> np.ndarray:
        """A new array, contents arbitrary."""
        return np.empty(shape, dtype)

    def report(self, obj: object) -> None:
        """Nothing: no notebook waits for it."""

    def _answer(self, request: Request, explicit: bool, *, quiet: bool = False) -> np.ndarray | None:
        request = self._seen(request, explicit)
        return delivered(self._to_engine(_plain(request)), request)

    def _begin(self, request: Request, explicit: bool) -> Handle:
        request = self._seen(request, explicit)
        return _Started(self._to_engine, self._to_engine(Start(_plain(request))), request)

    def _seen(self, request: Request, explicit: bool) -> Request:
        request = self._complete(request)
        self._call(request, explicit)  # raises what is wrong with it
        self._index += 1
        return request


class _Started(Handle):
    """What a rank has started: the engine's handle, and where the reply goes."""

    def __init__(self, ask: Callable[[Any], Any], handle: Any, request: Request) -> None:
        self._ask, self._handle, self._request = ask, handle, request

    def wait(self) -> np.ndarray | None:
        """As `Handle.wait`."""
        reply = self._ask(Wait(self._handle))
        self.end_s = perf_counter()
        return delivered(reply, self._request)

    def done(self) -> bool:
        """Whether it was waited for: nothing happens while a rank runs."""
        return self.end_s is not None


def _plain(request: Request) -> Request:
    """The request without what is this rank's business; the name of a Parameter stands in its origin."""
    given = {field.name: getattr(request, field.name) for field in fields(Request)}
    if isinstance(request, Named):
        given["origin"] = f"{request.operand} at {request.origin}"
    return Request(**given | {"out": None, "number": None})
