"""A learner's functions in a process of their own: what does not end is ended with its process.

    with in_own_process({"line": my_line}, {}) as (answer, given):     # stand-ins for the functions
        with deadline(4.0):
            answer["line"](sizes, times)        # runs over there; raises Told with what went wrong

`check` makes one process for each answer that has functions, a fork of the server from which ranks come. In a notebook
that server starts when the cell that imports the exercises has ended, so that no check waits for it. `parallel-lab
grade` lets the process of a submission answer the same requests (`Calls`). Prints and pictures come back and appear in
the cell. The functions work on copies of what they use of the notebook: what one changes there, a list or a counter,
stays in its process and is gone after the check. Where no process can be made, or something that a function uses cannot
be copied, it runs in place, until it ends or the kernel is interrupted.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import linecache
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from ...base.errors import shorten
from ...processes.jobs import packed, unpacked
from ...processes.shm import context, start_processes, start_server
from ...run.communicator import Handle, Request, Start, Wait
from .running import STOPPED, Fault, Followed, Told, fault_of, line_of, place_in, time_left

START_LIMIT_S = 60.0  # of its process
GRACE_S = 2.0  # in which a process says where it was stopped, before it is ended without a word
LOOK_S = 0.02
MOST_AT_ONCE = 10_000  # values of a generator
MOST_PRINTED = 100_000  # characters of one check
MOST_CPU_S = 120  # of a process whose notebook is gone while compiled code holds the interpreter
SHOWING = (b"IPython", b"display", b"show", b"plotly", b"matplotlib")  # names in code that draws


class Opaque:
    """Stands for a value that cannot cross; its text is what is known of it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Kept:
    """Stands for a generator that stays in its process: its number there, and its text."""

    number: int
    text: str


@dataclass(frozen=True)
class HandleHere:
    """Stands, in the process of a program, for the handle of a message that it has started."""

    number: int


class NoProcess(Exception):
    """There is no other process: the call runs in place."""


# ---- in the notebook, or in the grader ----


def start_ahead() -> None:
    """In a notebook, let the server from which processes come start when the cell that runs now has ended: the first
    check then finds it there, and no import waits for it.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:
        return

    def start(*_: Any) -> None:
        shell.events.unregister("post_run_cell", start)
        with contextlib.suppress(Exception):  # a check starts it itself, or runs in place
            start_server(__name__)

    shell.events.register("post_run_cell", start)


class StandIn(Followed):
    """Stands for a function of another process: `process.request` passes calls on."""

    def __init__(self, process: Any, number: int, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._process, self._number = process, number

    def __call__(self, *args: Any) -> Any:
        try:
            reply = self._process.request("call", self._number, args)
        except NoProcess:
            return super().__call__(*args)
        except Told as told:
            self.place = told.returned or self.place
            raise
        self.place = reply["place"]
        return reply["value"]


class StandInProgram(Generator[Any, Any, Any]):
    """Stands for a generator of another process."""

    def __init__(self, process: Any, number: int, text: str = "a generator") -> None:
        self._process, self._number, self._text, self.place = process, number, text, ""

    def __repr__(self) -> str:
        return self._text

    def send(self, value: Any) -> Any:
        reply = self._process.request("next", self._number, (value,))
        self.place = reply["place"]
        if "ended" in reply:
            raise StopIteration(reply["ended"])
        return Start(reply["value"]) if reply.get("started") is True else reply["value"]

    def __iter__(self) -> Iterator[Any]:
        """Its values, fetched many at a time."""
        count = 1
        while len(values := self._process.request("many", self._number, (count,))["value"]) == count:
            yield from values
            count = min(4 * count, MOST_AT_ONCE)
        yield from values

    def throw(self, *error: Any) -> Any:
        """Raises the error here: the generator over there is left as it is."""
        raise error[0]

    def close(self) -> None:
        """Nothing: it ends with its process."""


@contextlib.contextmanager
def in_own_process(answer: Any, given: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """An answer, and what was given with it, whose functions run in a process of their own as long as this lasts."""
    process = LearnerProcess()
    try:
        stand_in, stand_ins = process.with_stand_ins(answer), {k: process.with_stand_ins(v) for k, v in given.items()}
        process.start()  # before any call: its time is not taken from a call's
        yield stand_in, stand_ins
    finally:
        process.close()


class LearnerProcess:
    """A process with functions of the notebook's; after one that was ended the next call starts another."""

    def __init__(self) -> None:
        self._functions: list[Callable[..., Any]] = []
        self._handles: list[Handle] = []
        self._packed: bytes | None = None
        self._process: Any = None
        self._line: Any = None
        self._asked: Sequence[Any] = ()  # the arguments of the call that runs; it may call some of them

    def with_stand_ins(self, value: Any) -> Any:
        """The value with stand-ins for its functions: itself, or those in dicts, lists and tuples."""
        if type(value) is dict:
            return {key: self.with_stand_ins(each) for key, each in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.with_stand_ins(each) for each in value) if any(map(callable, value)) else value
        if not callable(value) or isinstance(value, Followed | type | BuiltinFunctionType | np.ufunc):
            return value
        self._functions.append(value)
        return StandIn(self, len(self._functions) - 1, value)

    def start(self) -> None:
        """Start it, if there are functions, and wait until it has them, however slow the machine is; without a process,
        or with functions that cannot be copied or read there (a module is missing), they stay.
        """
        if not self._functions:
            return
        try:
            if self._packed is None:
                self._packed = bytes(packed(tuple(self._functions)))
            start_processes(self._make, __name__)
            self._line.send_bytes(self._packed)
            with contextlib.suppress(EOFError):  # it has ended: the first call says how
                if self._line.poll(START_LIMIT_S) and unpacked(bytearray(self._line.recv_bytes()))["has them"]:
                    return
                raise NoProcess
        except Exception:  # what cannot be packed raises anything; a poor machine has no process for us
            self.close()
            self._packed = b""

    def _make(self, _parent: int) -> None:
        self.close()
        self._line, theirs = context().Pipe()
        self._process = context().Process(target=serve, args=(theirs,), daemon=True, name="learner")
        self._process.start()
        theirs.close()

    def close(self) -> str:
        """End the process, whatever it does. Returns how it had ended, where it had."""
        process, self._process = self._process, None
        if process is None:
            return ""
        self._line.close()
        process.join(0.05)
        code = process.exitcode
        process.kill()
        process.join()
        if code is not None and code < 0:
            return f"the system ended its process (signal {-code}): is the memory used up?"
        return f"the code ends its process (exit code {code})"

    def request(self, do: str, number: int, values: Sequence[Any]) -> dict[str, Any]:
        """The reply to a request, "value" or "ended" in it. Raises Told with what went wrong in the learner's code,
        NoProcess where the call can run in place.
        """
        left_s, limit_s = time_left()
        if left_s <= 0:
            raise Told(Fault(f"{STOPPED} {limit_s:g} s"))
        if self._packed == b"" or self._process is None:
            if do != "call":  # a generator of a process that was ended
                raise Told(Fault("its process has ended"))
            if self._packed != b"":
                self.start()
            if self._packed == b"":
                raise NoProcess
        self._asked = values
        own = tuple(self._here(each, place) for place, each in enumerate(values))
        end_s = time.monotonic() + left_s + GRACE_S
        try:
            self._line.send_bytes(_bytes({"do": do, "number": number, "values": own, "limit": (left_s, limit_s)}))
            while True:
                if not self._line.poll(max(0.0, end_s - time.monotonic())):
                    self.close()
                    raise Told(Fault(f"{STOPPED} {limit_s:g} s"))
                reply = self._read(self._line.recv_bytes())
                if "shown" in reply:
                    _show(*reply["shown"])
                elif "asked" in reply:
                    self._line.send_bytes(_bytes(self._called_back(*reply["asked"])))
                else:
                    break
        except (EOFError, OSError) as error:
            raise Told(Fault(self.close())) from error
        except KeyboardInterrupt:
            self.close()
            raise
        if (fault := reply.get("fault")) is not None:
            if fault.text.startswith(STOPPED):
                self.close()
            code = linecache.getline(*reply["at"]).strip() if reply["at"] else fault.code
            raise Told(replace(fault, code=code), reply["place"])
        return reply

    def _here(self, value: Any, place: int) -> Any:
        """What crosses for an argument: handles of started messages, and functions, stay here."""
        if isinstance(value, Handle):
            self._handles.append(value)
            return HandleHere(len(self._handles) - 1)
        return Callback(place) if callable(value) else value

    def _read(self, data: bytes) -> dict[str, Any]:
        reply = unpacked(bytearray(data))
        waits = reply.get("value")
        if isinstance(waits, Wait) and isinstance(waits.handle, HandleHere):
            reply["value"] = Wait(self._handles[waits.handle.number])
        return _each_in(reply, Kept, lambda kept: StandInProgram(self, kept.number, kept.text))

    def _called_back(self, place: int, args: Sequence[Any]) -> dict[str, Any]:
        try:
            return {"answer": self._asked[place](*args)}
        except Exception as error:
            return {"raised": error}


def _show(stream: str, what: Any) -> None:
    """A print, or a picture, of the other process in the cell."""
    if stream == "picture":
        publish = getattr(sys.modules.get("IPython.core.display_functions"), "publish_display_data", None)
        if publish is not None:
            publish(*what)
            return
        stream, what = "stdout", str(what[0].get("text/plain", "")) + "\n"
    getattr(sys, stream).write(what)


# ---- in the other process ----


class Callback:
    """Stands, in the process of a function, for a function that it was given."""

    serving: Serving

    def __init__(self, place: int) -> None:
        self.place = place

    def __call__(self, *args: Any) -> Any:
        return self.serving.ask_back(self.place, args)


class Calls:
    """Answers requests for calls of the functions in `kept`, and for the next value of a generator in it.

    tell   sends a reply to the call that runs; called from a thread when its time is over, before the process ends
    """

    def __init__(self, kept: list[Any], tell: Callable[[dict[str, Any]], None]) -> None:
        self.kept, self._tell = kept, tell
        self._rooms: dict[int, np.ndarray] = {}  # per generator: `out` of the request that waits
        self._limit: tuple[float, float] | None = None  # of the call that runs: when it is over, and its seconds
        self._ending, self._main = threading.Lock(), threading.get_ident()

    def call(self, number: int, args: Sequence[Any], limit: tuple[float, float]) -> dict[str, Any]:
        """limit: seconds that are left, and of how many"""
        function = self.kept[number]
        if isinstance(function, FunctionType):
            function = Followed(function)
        reply = self._guarded(lambda: function(*args), limit)
        return {**reply, "place": getattr(function, "place", "")}

    def next(self, number: int, value: Any, limit: tuple[float, float]) -> dict[str, Any]:
        """The next request of a rank program, and the line where it makes it."""
        program = self.kept[number]
        room = self._rooms.pop(number, None)
        if room is not None and value is not None:
            np.copyto(room, value)
            value = room
        reply = self._guarded(lambda: program.send(value) if isinstance(program, Generator) else next(program), limit)
        request = reply.get("value")
        if isinstance(request, Start):
            reply["value"], reply["started"] = request.request, True
        request = reply.get("value")
        if isinstance(request, Request) and request.out is not None:
            self._rooms[number] = request.out  # where the learner wants the reply
            reply["value"] = replace(request, out=None)
        return {**reply, "place": line_of(program) if isinstance(program, Generator) else ""}

    def many(self, number: int, count: int, limit: tuple[float, float]) -> dict[str, Any]:
        """A list of the next values of a generator, fewer than `count` where it ends."""
        return {**self._guarded(lambda: list(islice(self.kept[number], count)), limit), "place": ""}

    def _guarded(self, run: Callable[[], Any], limit: tuple[float, float]) -> dict[str, Any]:
        self._limit = time.monotonic() + limit[0], limit[1]
        try:
            return {"value": run()}
        except StopIteration as end:
            return {"ended": end.value}
        except BaseException as error:  # SystemExit of an exit() too
            return {"fault": fault_of(error), "at": place_in(traceback.extract_tb(error.__traceback__))}
        finally:
            with self._ending:
                self._limit = None

    def watch(self, line: int, look: Callable[[], None] = lambda: None) -> None:
        """Start a thread that ends this process when a call's time is over, or nobody is left at the other end.

        line   the descriptor of the socket to the notebook or grader;  look: called now and then
        """
        threading.Thread(target=self._watch, args=(socket.socket(fileno=os.dup(line)), look), daemon=True).start()

    def _watch(self, line: socket.socket, look: Callable[[], None]) -> None:
        while True:
            if select.select([line], [], [], LOOK_S)[0]:
                with contextlib.suppress(OSError):
                    if not line.recv(1, socket.MSG_PEEK | getattr(socket, "MSG_DONTWAIT", 0)):
                        os._exit(0)
                time.sleep(LOOK_S)
            look()
            with self._ending:
                if self._limit is None or time.monotonic() < self._limit[0]:
                    continue
                with contextlib.suppress(Exception):
                    frames = traceback.extract_stack(sys._current_frames()[self._main])
                    fault = replace(fault_of(TimeoutError(), frames=frames), text=f"{STOPPED} {self._limit[1]:g} s")
                    self._tell({"fault": fault, "at": place_in(frames), "place": ""})
                os._exit(0)


class Serving:
    """A process of `LearnerProcess`, from inside."""

    def __init__(self, line: Any) -> None:
        self._line, self._sending = line, threading.Lock()
        self.kept: list[Any] = []
        self.calls = Calls(self.kept, self.tell)
        self._printed, self._room = [], MOST_PRINTED

    def serve(self) -> None:
        """Read the functions, then answer requests. Raises EOFError when the notebook hangs up."""
        data = self._line.recv_bytes()
        try:
            self.kept += unpacked(data)
        except Exception:
            self._line.send_bytes(_bytes({"has them": False}))
            return
        if any(word in data for word in SHOWING):
            self._draw()
        self._line.send_bytes(_bytes({"has them": True}))
        while True:
            request = unpacked(bytearray(self._line.recv_bytes()))
            values, number, limit = request["values"], request["number"], request["limit"]
            if request["do"] == "call":
                reply = self.calls.call(number, values, limit)
            else:
                reply = getattr(self.calls, request["do"])(number, *values, limit)
            self.tell(reply)

    def tell(self, reply: dict[str, Any]) -> None:
        """Send a reply, after what was printed."""
        self.flush()
        data = _bytes(reply, self.kept)
        with self._sending:
            self._line.send_bytes(data)

    def ask_back(self, place: int, args: Sequence[Any]) -> Any:
        """Call the function that is argument number `place` of the call that runs; raises what it raises."""
        self.tell({"asked": (place, args)})
        reply = unpacked(bytearray(self._line.recv_bytes()))
        if "raised" in reply:
            raise reply["raised"]
        return reply["answer"]

    def write(self, stream: str, text: str) -> None:
        """Note what is printed, up to MOST_PRINTED characters in all."""
        if self._room > 0:
            shown = text[: self._room]
            self._room -= len(text)
            if self._room <= 0:
                shown += f"\n... more than {MOST_PRINTED} characters: the rest is left out\n"
            self._printed.append((stream, shown))

    def flush(self) -> None:
        """Hand over what was printed. Who takes a part out sends it before anybody else sends: the thread that looks
        now and then would come after the reply otherwise, when nobody reads any more.
        """
        with self._sending:
            while self._printed:
                self._line.send_bytes(_bytes({"shown": self._printed.pop(0)}))

    def _draw(self) -> None:
        """Let `display` send its pictures to the notebook."""
        with contextlib.suppress(ImportError):
            from IPython.core.displaypub import DisplayPublisher
            from IPython.core.interactiveshell import InteractiveShell
            from IPython.display import display
            from traitlets.config import Config

            serving = self

            class Publisher(DisplayPublisher):
                def publish(self, data: Any, metadata: Any = None, **_: Any) -> None:
                    serving._printed.append(("picture", (data, metadata)))

            config = Config()
            config.HistoryManager.enabled = False
            shell = InteractiveShell.instance(config=config)
            shell.display_pub = Publisher(shell=shell)
            builtins.display = display  # as in a notebook


class _Stream(io.TextIOBase):
    def __init__(self, serving: Serving, name: str) -> None:
        self._serving, self._name = serving, name

    def write(self, text: str) -> int:
        self._serving.write(self._name, str(text))
        return len(text)

    def writable(self) -> bool:
        return True


def _no_input(*_: Any) -> str:
    raise RuntimeError("input() waits for keys, and nobody types during a check: use the function's arguments")


def serve(line: Any) -> None:
    """Answer the notebook's requests until it hangs up."""
    Callback.serving = serving = Serving(line)
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limits, macOS not all
        import resource

        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        for kind, most in ((resource.RLIMIT_DATA, memory // 2), (resource.RLIMIT_CPU, MOST_CPU_S)):
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
    builtins.input = _no_input
    sys.stdout, sys.stderr = _Stream(serving, "stdout"), _Stream(serving, "stderr")
    serving.calls.watch(line.fileno(), serving.flush)
    with contextlib.suppress(EOFError, OSError):
        serving.serve()
    os._exit(0)


def _bytes(value: dict[str, Any], kept: list[Any] | None = None) -> bytes:
    """What crosses: generators stay, in `kept`, and their numbers cross; another value that cannot cross is Opaque."""

    def number_of(each: Any) -> Kept:
        kept.append(each)
        return Kept(len(kept) - 1, text_of(each))

    try:
        return bytes(packed(value if kept is None else _each_in(value, Generator, number_of)))
    except Exception:  # whatever a learner's object does
        name = next(name for name in ("value", "ended", "answer", "raised", "values", "asked") if name in value)
        return _bytes({**value, name: Opaque(text_of(value[name]))}, kept)


def _each_in(value: Any, kind: type, change: Callable[[Any], Any], deep: int = 4) -> Any:
    """The value with what is of that kind changed, in dicts, lists and tuples, down to some depth; itself where nothing
    is.
    """
    if isinstance(value, kind):
        return change(value)
    if not _holds(value, kind, deep):
        return value
    if deep and type(value) is dict:
        return {key: _each_in(each, kind, change, deep - 1) for key, each in value.items()}
    if deep and type(value) in (list, tuple):
        return type(value)(_each_in(each, kind, change, deep - 1) for each in value)
    return value


def _holds(value: Any, kind: type, deep: int) -> bool:
    if type(value) is dict:
        value = list(value.values())
    inside = value if deep and type(value) in (list, tuple) else ()
    return isinstance(value, kind) or any(_holds(each, kind, deep - 1) for each in inside)


def text_of(value: Any) -> str:
    """What is known of a value that cannot cross."""
    try:
        return shorten(value)
    except Exception:  # the same
        return f"a {type(value).__name__}"
