"""The process in which a submission runs: its cells, then its functions, asked for one call at a time.

    pupil FD SCRATCH JSON      # started by walls.py, with the limits, the walls and the readable files

Nothing of the grader is in it. `check` only keeps what it is given: what is handed in. The grader, in another process,
judges by asking for calls; so whatever a submission does to `check`, to numpy or to its files, a mark comes from values
alone. It prints into nothing.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ...base.errors import LimitTooLow, MissingPackage, NoProcesses, SharedMemoryTooSmall
from ...base.system import SYSTEM
from .. import exercises
from ..exercises.own_process import Calls, HandleHere
from ..exercises.running import STOPPED, fault_of
from ..exercises.verdict import Verdict
from .confine import Limits, confine
from .wire import Channel, Encoder, Lost, decode, error_of

LACKS = (MissingPackage, SharedMemoryTooSmall, LimitTooLow, NoProcesses)  # errors of ours about a poor machine
HAND_IN = "_hand_in"  # the name of `check` while an answer is asked for


class CellStopped(BaseException):
    """The time of a cell is over. No Exception, so that its `except Exception` does not catch it."""


@contextlib.contextmanager
def _stopped_after(seconds: float) -> Iterator[None]:
    """End a cell, so that what it has defined stays; one that goes on ends with its process, by the grader's clock."""

    def ring(*_: Any) -> None:
        raise CellStopped(f"{STOPPED} {seconds:g} s")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class _Pupil:
    def __init__(self, channel: Channel, limits: Limits) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        self.channel, self.limits, self.own = channel, limits, os.getpid()
        self.encoder = Encoder()
        self.handed_in: list[tuple[Any, dict[str, Any]]] = []
        self.calls = Calls(self.encoder.kept, self.stopped)
        self.calls.watch(channel.link.fileno())
        self.asked = 0  # number of the request that is answered
        config = Config()
        config.HistoryManager.enabled = False
        self.shell = InteractiveShell.instance(config=config)

    def serve(self) -> None:
        while True:
            request = self.channel.receive()
            self.asked = request.get("id")
            reply = getattr(self, f"_do_{request.get('do')}")(request)
            if os.getpid() != self.own:  # a fork of the submission's that came back here
                os._exit(1)
            if reply is not None:
                self.channel.send({"id": request.get("id"), **reply})

    # ---- cells ----

    def _do_run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a cell: {"fault", "missing", "lacks"}: what went wrong, and where the grader is to look whether the
        machine is to blame, at a package or at what workers need.
        """
        error = self._run(request["source"], self.limits.cell_s)
        if error is None:
            return {"fault": ""}
        text = str(error) if isinstance(error, CellStopped) else fault_of(error).text
        missing = str(error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        return {"fault": text[:500], "missing": missing, "lacks": isinstance(error, LACKS)}

    def _run(self, source: str, seconds: float) -> BaseException | None:
        try:
            with _stopped_after(seconds):
                result = self.shell.run_cell(source, store_history=False, silent=True)
        except BaseException as error:  # an alarm that rang between two lines of IPython's; sys.exit
            return error
        return result.error_before_exec or result.error_in_exec

    def _do_answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What a call of check hands in: {"answer", "given", "untouched"}, or {"fault"}."""
        call = ast.parse(request["call"], mode="eval").body
        assert isinstance(call, ast.Call)
        call.func = ast.Name(HAND_IN, ast.Load())
        self.handed_in.clear()
        self.shell.user_ns[HAND_IN] = self.hand_in
        error = self._run(ast.unparse(ast.fix_missing_locations(call)), self.limits.cell_s)
        if error is not None or not self.handed_in:
            return {"fault": f"{type(error).__name__}: {error}"[:500]}
        answer, given = self.handed_in[-1]
        try:
            untouched = exercises.get_exercise(request["number"]).untouched(answer, given)
        except Exception:  # an author's own exercise, whose start the grader knows; or a learner's object
            untouched = False
        more = {str(name): self.encoder.encode(value) for name, value in given.items()}
        return {"answer": self.encoder.encode(answer), "given": more, "untouched": untouched}

    def hand_in(self, number: Any = None, answer: Any = None, **given: Any) -> Verdict:
        """Instead of `check`: it keeps the answer."""
        self.handed_in.append((answer, given))
        return Verdict(str(number)[:50], "handed in", (), tried=False)

    # ---- functions ----

    def _do_call(self, request: dict[str, Any]) -> dict[str, Any]:
        values = [self._decoded(value) for value in request["values"]]
        return self._encoded(self.calls.call(request["number"], values, tuple(request["limit"])))

    def _do_next(self, request: dict[str, Any]) -> dict[str, Any]:
        (value,) = request["values"]
        return self._encoded(self.calls.next(request["number"], self._decoded(value), tuple(request["limit"])))

    def _do_many(self, request: dict[str, Any]) -> dict[str, Any]:
        (count,) = request["values"]
        return self._encoded(self.calls.many(request["number"], decode(count), tuple(request["limit"])))

    def _decoded(self, data: Any) -> Any:
        return decode(data, self._asking, handle=HandleHere)

    def _asking(self, number: int, name: str) -> Callable[..., Any]:
        """Stands for a function of the grader's, which it is asked to call."""

        def function(*args: Any) -> Any:
            self.channel.send({"id": self.asked, "asked": [number, [self.encoder.encode(each) for each in args]]})
            reply = self.channel.receive()
            if "raised" in reply:
                raise error_of(*reply["raised"])
            return self._decoded(reply["answer"])

        function.__name__ = name
        return function

    def _encoded(self, reply: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"place": reply["place"], "started": reply.get("started", False)}
        if (fault := reply.get("fault")) is not None:
            return {"fault": [fault.text[:2000], fault.place[:200], fault.code[:500]]}
        name = "ended" if "ended" in reply else "value"
        return {**message, name: self.encoder.encode(reply[name])}

    def stopped(self, reply: dict[str, Any]) -> None:
        """The time of a call is over, and this process ends: say where it was."""
        self.channel.send({"id": self.asked, "stopped": reply["fault"].text, **self._encoded(reply)})


def main() -> None:
    """Serve one grader until it has heard enough."""
    link, scratch, told = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    bounds, found = Limits(**told["limits"]), told["walls"]
    channel = Channel(socket.socket(fileno=int(link)))
    sys.path.append(scratch)  # files that the submission writes, behind what is installed
    if found["seccomp"] and not found["namespaces"]:  # no sockets with names, such as a fork server's
        object.__setattr__(SYSTEM, "fork_server", False)
    confine(bounds, scratch, found, told["files"])
    pupil = _Pupil(channel, bounds)
    exercises.check = pupil.hand_in  # type: ignore[assignment]  # before a lesson's names are imported
    channel.send({"ready": True})
    with contextlib.suppress(Lost):
        pupil.serve()
    os._exit(0)  # no thread, and nothing that a submission wants to do at the end, keeps it


if __name__ == "__main__":
    main()
