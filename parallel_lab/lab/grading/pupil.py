"""The process in which a submission runs: its cells, then its functions, asked for one call at a time.

    python -m parallel_lab.lab.grading.pupil FD SCRATCH LIMITS

Nothing of the grader is in it. `check` only keeps what it is given: what is handed in. The grader, in another process,
judges by asking for calls; so whatever a submission does to `check`, to numpy or to its files, a mark comes from values
alone. It prints into nothing.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from ...base.errors import LimitTooLow, MissingPackage, NoProcesses, SharedMemoryTooSmall
from ...run.communicator import Request, Start
from .. import exercises
from ..exercises.running import Followed, deadline, fault_of, line_of, place_of
from ..exercises.verdict import Verdict
from .confine import Limits, confine
from .wire import Channel, Encoder, Lost, decode

LACKS = (MissingPackage, SharedMemoryTooSmall, LimitTooLow, NoProcesses)  # errors of ours about a poor machine
HAND_IN = "_hand_in"  # the name of `check` while an answer is asked for


class _Pupil:
    def __init__(self, channel: Channel, limits: Limits) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        self.channel, self.limits, self.own = channel, limits, os.getpid()
        self.encoder = Encoder()
        self.handed_in: list[tuple[Any, dict[str, Any]]] = []
        self.rooms: dict[int, np.ndarray] = {}  # per rank program: `out` of the request that waits
        config = Config()
        config.HistoryManager.enabled = False
        self.shell = InteractiveShell.instance(config=config)

    def serve(self) -> None:
        while True:
            told = self.channel.receive()
            reply = getattr(self, f"_do_{told.get('do')}")(told)
            if os.getpid() != self.own:  # a fork of the submission's that came back here
                os._exit(1)
            if reply is not None:
                self.channel.send({"id": told.get("id"), **reply})

    # ---- cells ----

    def _do_run(self, told: dict[str, Any]) -> dict[str, Any]:
        """Run a cell: {"fault", "machine"}, what went wrong, and what this machine lacks if that is the reason."""
        error = self._run(told["source"], self.limits.cell_s)
        if error is None:
            return {"fault": ""}
        fault = fault_of(error, seconds=self.limits.cell_s)
        machine = ""
        if isinstance(error, ModuleNotFoundError):
            machine = f"the package {(error.name or '').partition('.')[0]} is not installed here"
        elif isinstance(error, LACKS):
            machine = f"{type(error).__name__}: {error}"[:500]
        return {"fault": fault.text[:500], "machine": machine}

    def _run(self, source: str, seconds: float) -> BaseException | None:
        try:
            with deadline(seconds):
                result = self.shell.run_cell(source, store_history=False, silent=True)
        except BaseException as error:  # a deadline that rang between two lines of IPython's; sys.exit
            return error
        return result.error_before_exec or result.error_in_exec

    def _do_answer(self, told: dict[str, Any]) -> dict[str, Any]:
        """What a call of check hands in: {"answer", "given", "untouched"}, or {"fault"}."""
        call = ast.parse(told["call"], mode="eval").body
        assert isinstance(call, ast.Call)
        call.func = ast.Name(HAND_IN, ast.Load())
        self.handed_in.clear()
        self.shell.user_ns[HAND_IN] = self.hand_in
        error = self._run(ast.unparse(ast.fix_missing_locations(call)), self.limits.cell_s)
        if error is not None or not self.handed_in:
            return {"fault": f"{type(error).__name__}: {error}"[:500]}
        answer, given = self.handed_in[-1]
        try:
            untouched = exercises.get_exercise(told["number"]).untouched(answer, given)
        except Exception:  # an author's own exercise, whose start the grader knows; or a learner's object
            untouched = False
        told_given = {str(name): self.encoder.encode(value) for name, value in given.items()}
        return {"answer": self.encoder.encode(answer), "given": told_given, "untouched": untouched}

    def hand_in(self, number: Any = None, answer: Any = None, **given: Any) -> Verdict:
        """In the place of `check`."""
        self.handed_in.append((answer, given))
        return Verdict(str(number)[:50], "handed in", (), tried=False)

    # ---- functions ----

    def _do_call(self, told: dict[str, Any]) -> dict[str, Any]:
        function = self.encoder.kept[told["function"]]
        if isinstance(function, FunctionType):
            function = Followed(function)
        args = [decode(one) for one in told["args"]]
        reply = self._guarded(lambda: function(*args), told["seconds"])
        return {**reply, "place": place_of(function)}

    def _do_next(self, told: dict[str, Any]) -> dict[str, Any]:
        """The next value of a generator: of a rank program, its next request and the line that it stands in."""
        number = told["generator"]
        program, reply = self.encoder.kept[number], decode(told["value"])
        room = self.rooms.pop(number, None)
        if room is not None and reply is not None:
            np.copyto(room, reply)
            reply = room
        found = self._guarded(
            lambda: program.send(reply) if isinstance(program, Generator) else next(program), told["seconds"], number
        )
        return {**found, "place": line_of(program) if isinstance(program, Generator) else ""}

    def _guarded(self, run: Callable[[], Any], seconds: float, number: int = -1) -> dict[str, Any]:
        try:
            with deadline(seconds):
                value = run()
        except StopIteration as end:
            return {"ended": self.encoder.encode(end.value)}
        except BaseException as error:
            fault = fault_of(error, seconds=seconds)
            return {"fault": [fault.text[:2000], fault.place[:200], fault.code[:500]]}
        started = isinstance(value, Start)
        request = value.request if started else value
        if isinstance(request, Request) and request.out is not None:
            self.rooms[number] = request.out  # where the learner wants the reply
            request = replace(request, out=None)
        return {"value": self.encoder.encode(request), "started": started}


def main() -> None:
    """Serve one grader until it has heard enough."""
    link, scratch, limits = sys.argv[1:]
    bounds = Limits(**json.loads(limits))
    channel = Channel(socket.socket(fileno=int(link)))
    pupil = _Pupil(channel, bounds)
    exercises.check = pupil.hand_in  # type: ignore[assignment]  # before a lesson's names are imported
    channel.send({"safe": confine(bounds, Path(scratch))})
    with contextlib.suppress(Lost):
        pupil.serve()
    os._exit(0)  # no thread, and nothing that a submission wants to do at the end, keeps it


if __name__ == "__main__":
    main()
