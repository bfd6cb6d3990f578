"""The process that grades one submission: it runs the exercises' graders, and asks the submission's process for calls.

    walls.command(...grader) < task.json > marks.json

Nothing of a submission runs here. Its functions are stood for by objects that pass calls on and take data back.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...base.errors import ParallelLabError
from ...processes.without import BLAS_VARIABLES
from .. import exercises
from ..exercises.own_process import StandIn, StandInProgram
from ..exercises.running import STOPPED, Fault, Told, time_left
from ..exercises.verdict import Part, Verdict
from . import walls
from .confine import Limits, Watch, end_all, guard, remove
from .submissions import Call, Cell, calls_of, imported_in, needed_cells, read_cells
from .wire import Channel, Encoder, Lost, decode, raised

READY_S = 60.0  # for a process to start on a machine that is busy
GRACE_S = 3.0  # after a call should have been stopped
MOST_STARTS = 12  # of processes for one submission: a cell that ends its process is left out the next time
WORKERS = """
import ml_dtypes, numpy as np, parallel_lab as pl
with pl.WorkerPool(8) as pool:
    pool.run(lambda comm: comm.all_reduce(np.ones(1 << 20, np.float32)))
"""  # as much as a lesson needs


class EnvironmentFault(ParallelLabError, RuntimeError):
    """Grading is not possible here; the submission is not to blame."""


def _named(name: str) -> Any:
    """Stands for a function that is known here only by its name."""

    def function(*args: Any) -> None:
        return None

    function.__name__ = name
    return function


def _missing(package: str, cell: Cell) -> str:
    """That a package which a cell imports is not installed here: looked at here, as anyone can raise the error."""
    if package not in imported_in(cell.source) or package in sys.modules or importlib.util.find_spec(package):
        return ""
    return f"the package {package} is not installed here"


def lacking(task: Mapping[str, Any]) -> str:
    """What workers need and this machine lacks, or "": found by a process that runs nothing of a submission."""
    given, usual = Limits(**task["limits"]).to_dict(), Limits().to_dict()
    limits = Limits(**{name: max(value, usual[name]) for name, value in given.items()})
    with _process(task, [Cell(0, WORKERS)], limits) as pupil:
        try:
            pupil.start()
        except (Told, EnvironmentFault, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return "".join(f"this machine lacks what workers need: {fault}" for fault, *_ in pupil.faults.values())


class Pupil:
    """The submission's process, from outside.

    cells   what it runs first
    walls   that it builds, as `walls.find` tells them;  files: what it may read
    reason  why it has ended; "" while it is there
    faults  per cell number: (what went wrong, a package that it imports and that is missing here, whether it claims
            that workers cannot run here)
    """

    def __init__(
        self, cells: Sequence[Cell], limits: Limits, watch: Watch, found: dict[str, Any], files: Sequence[str]
    ) -> None:
        self.cells, self.limits, self.watch = cells, limits, watch
        self.faults: dict[int, tuple[str, str, bool]] = {}
        self.reason, self._left_out, self._starts = "not started", set(), 0
        self.walls, self.files = found, files
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._asked = 0  # number of the last request
        self._encoder = Encoder()  # what stays here: functions that the submission's may call, handles of messages
        self._folder = watch.folder

    # ---- life ----

    def start(self) -> None:
        """Start it, unless it runs and listens, and run the cells; a cell in which it ends is left out and it starts
        again. Raises Told.
        """
        while self.reason:
            if self._starts == MOST_STARTS or self.watch.left_s < 0:
                raise Told(Fault(self.reason))
            self._starts += 1
            self._open()
            for cell in self.cells:
                if cell.number in self._left_out:
                    continue
                try:
                    reply = self._ask({"do": "run", "source": cell.source}, self.limits.cell_s + GRACE_S)
                except Lost:
                    stopped = [n for n, (fault, *_) in self.faults.items() if fault.startswith(STOPPED)]
                    blamed = cell.number
                    if self.watch.reason:  # what a stopped cell has left behind goes on while the next ones run
                        blamed = next((n for n in stopped if n not in self._left_out), blamed)
                    self._left_out.add(blamed)
                    self.faults[blamed] = self.reason, "", False
                    break
                if fault := str(reply.get("fault", "")):
                    missing = _missing(str(reply.get("missing", "")), cell)
                    self.faults[cell.number] = fault, missing, reply.get("lacks") is True

    def _open(self) -> None:
        self.close()
        remove(self._folder)  # what an earlier process of the submission has left
        self._folder.mkdir(exist_ok=True)
        scratch = str(self._folder)
        ours, theirs = socket.socketpair()
        few = {
            **dict.fromkeys(BLAS_VARIABLES, "1"),
            **dict.fromkeys(("HOME", "TMPDIR", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"), scratch),
            **{"MPLBACKEND": "Agg", "PYTHONDONTWRITEBYTECODE": "1", "USER": "learner", "LOGNAME": "learner"},
        }
        told = {"limits": self.limits.to_dict(), "walls": self.walls, "files": self.files}
        args = (f"{__package__}.pupil", str(theirs.fileno()), scratch, json.dumps(told))
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with theirs, self.watch.ending:
            self.watch.reason = ""
            self._process = subprocess.Popen(
                walls.command(*args, walls=self.walls, enter=(scratch, self.files)),
                cwd=scratch,
                env=walls.environment(few),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                **quiet,
            )
        self._channel, self.reason = Channel(ours), ""
        try:
            self._channel.receive(READY_S)
        except (Lost, TimeoutError) as error:
            self.close(self.watch.reason)
            if self.watch.reason and self._starts > 1:  # it has started before: the submission has used up its time
                raise Told(Fault(self.reason)) from error
            raise EnvironmentFault(f"the process of the submission does not start: {error}") from error

    def close(self, reason: str = "") -> None:
        """End it, and all that it has started."""
        if self._channel is not None:
            self._channel.link.close()
            self._channel = None
        end_all(os.getpid())
        if self._process is not None:
            self._process.wait()
            self._process = None
        self.reason = reason or self.reason or "not started"

    def remove(self) -> None:
        """Close, and remove its files."""
        self.close()
        remove(self._folder)

    # ---- words ----

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """A reply. Raises Lost, with `reason` set, when the process has ended or had to be ended."""
        if self._channel is None:
            raise Lost(self.reason)
        self._asked += 1
        end_s = time.monotonic() + seconds
        try:
            self._channel.send({**request, "id": self._asked})
            while True:
                reply = self._channel.receive(max(0.001, end_s - time.monotonic()))
                if reply.get("id") != self._asked:
                    if time.monotonic() > end_s:  # a thread of the submission's can say something all the time
                        raise TimeoutError
                    continue
                if "asked" in reply:
                    self._channel.send(self._called_back(*reply["asked"]))
                    continue
                if "stopped" in reply:  # it ends itself
                    self.close(str(reply["stopped"]))
                return reply
        except TimeoutError as error:
            self.close(self.watch.reason or f"stopped: still running after {seconds - GRACE_S:g} s")
            raise Lost(self.reason) from error
        except Lost as error:
            self.close(self.watch.reason or f"the code ends its process ({error})")
            raise

    def _called_back(self, number: int, args: Sequence[Any]) -> dict[str, Any]:
        """What a function that stays here gives, for the submission's function that was given it."""
        try:
            result = self._encoder.kept[int(number)](*map(self._decoded, args))
            return {"answer": self._encoder.encode(result)}
        except Exception as error:
            return {"raised": raised(error)}

    def request(self, do: str, number: int, values: Sequence[Any]) -> dict[str, Any]:
        """A reply with "value" or "ended" decoded. Raises Told with what went wrong in the learner's code."""
        left_s, limit_s = time_left()
        if left_s <= 0:
            raise Told(Fault(f"{STOPPED} {limit_s:g} s"))
        message = {"do": do, "number": number, "values": [self._encoder.encode(value) for value in values]}
        try:
            reply = self._ask({**message, "limit": [left_s, limit_s]}, left_s + GRACE_S)
            if "fault" in reply:
                text, place, code = map(str, reply["fault"])
                raise Told(Fault(text, place, code))
            name = "ended" if "ended" in reply else "value"
            return {**reply, name: self._decoded(reply.get(name)), "place": str(reply.get("place", ""))}
        except Lost as error:
            raise Told(Fault(self.reason)) from error
        except (ValueError, TypeError) as error:
            raise Told(Fault(f"a value that cannot be read: {error}")) from error

    def _decoded(self, data: Any) -> Any:
        return decode(
            data,
            lambda number, name: StandIn(self, number, _named(name)),
            lambda number: StandInProgram(self, number),
            self._encoder.kept.__getitem__,
        )

    def handed_in(self, test: Call) -> tuple[Any, dict[str, Any], bool]:
        """(answer, given, whether it is the start). Raises Told with the reason where nothing was handed in."""
        try:
            request = {"do": "answer", "call": test.call, "number": test.number}
            reply = self._ask(request, self.limits.cell_s + GRACE_S)
            if "fault" in reply:
                raise Told(Fault(str(reply["fault"])))
            given = {str(name): self._decoded(value) for name, value in dict(reply["given"]).items()}
            return self._decoded(reply["answer"]), given, reply.get("untouched") is True
        except Lost as error:
            raise Told(Fault(self.reason)) from error
        except (ValueError, TypeError, KeyError) as error:
            raise Told(Fault(f"an answer that cannot be read: {error}")) from error


# ---- marks ----


def grade(task: dict[str, Any]) -> dict[str, Any]:
    """The marks of one submission: {"exercises": [{"number", "status", "reason", "verdict"}, ...], "cells"}.

    status is "graded", "no answer" (0 points, with the reason) or "error" (no mark: the machine's fault, or that of
    the exercise)
    """
    limits = Limits(**task["limits"])
    own = _own_exercises(task.get("exercises"))
    exercises.add(*own)
    lesson = str(task.get("lesson", ""))
    cells = read_cells(Path(task["path"]), lesson)
    released = read_cells(Path(task["release"])) if task.get("release") else None
    tests = calls_of(released if released is not None else cells)
    # a page's file holds what was run: of an exercise that was not checked not even the start is in it
    checked = {call.number for call in (calls_of(cells) if lesson else tests)}
    name, seed = str(task.get("learner", "")), int(task["seed"])
    known = {exercise.number: exercise.of(name) for exercise in (*exercises.all_exercises(), *own)}
    with _process(task, needed_cells(cells, released, tests), limits) as pupil:
        marks = [_marked(known.get(test.number), test, pupil, seed, test.number in checked) for test in tests]
    unmarked = [mark for mark in marks if mark["status"] == "no answer"]
    if unmarked and any(claims for *_, claims in pupil.faults.values()) and (reason := lacking(task)):
        for mark in unmarked:
            mark |= {"status": "error", "reason": reason}
    faults = [{"cell": number, "fault": fault} for number, (fault, *_) in sorted(pupil.faults.items())]
    return {"exercises": marks, "cells": faults}


@contextlib.contextmanager
def _process(task: Mapping[str, Any], cells: Sequence[Cell], limits: Limits) -> Iterator[Pupil]:
    """The process for these cells, watched; then nothing is left of it."""
    watch = Watch(limits, Path(tempfile.mkdtemp(prefix="parallel-lab-grade-")))
    pupil = Pupil(cells, limits, watch, task["walls"], task["files"])
    try:
        yield pupil
    finally:
        watch.close()
        pupil.remove()


def _own_exercises(path: str | None) -> Sequence[exercises.Exercise]:
    if not path:
        return ()
    spec = importlib.util.spec_from_file_location("own_exercises", path)
    if spec is None or spec.loader is None:
        raise EnvironmentFault(f"{path} is not a Python file")
    sys.path.append(os.path.dirname(path))  # it may import files next to it
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return tuple(module.EXERCISES)


def _marked(exercise: exercises.Exercise | None, test: Call, pupil: Pupil, seed: int, checked: bool) -> dict[str, Any]:
    if exercise is None:
        return {"number": test.number, "status": "error", "reason": "there is no exercise with this number"}
    parts = tuple(Part(name, None, points=points) for name, points in exercise.parts)
    nothing = Verdict(exercise.number, exercise.title, parts, tried=False)
    mark = {"number": exercise.number, "status": "graded", "reason": "", "verdict": nothing.to_dict()}
    if not checked:
        return mark
    try:
        pupil.start()
        answer, given, untouched = pupil.handed_in(test)
        if not untouched:
            mark["verdict"] = exercises.judge_drawn(exercise, answer, given, seed).to_dict()
    except Told as told:
        for cell in needed_cells(pupil.cells, pupil.cells, [test]):
            if missing := pupil.faults.get(cell.number, ("", ""))[1]:
                return {**mark, "status": "error", "reason": missing}
        first = next((f"cell {n}: {fault}" for n, (fault, *_) in sorted(pupil.faults.items())), "")
        return {**mark, "status": "no answer", "reason": f"{told.fault.text}" + (f" ({first})" if first else "")}
    except (EnvironmentFault, exercises.GradingError, OSError) as error:
        return {**mark, "status": "error", "reason": f"{type(error).__name__}: {error}"}
    return mark


def main() -> None:
    """Read a task, write its marks."""
    guard()
    try:
        marks = grade(json.load(sys.stdin))
    except Exception as error:
        marks = {"error": f"{type(error).__name__}: {error}"}
    finally:
        end_all(os.getpid())
    json.dump(marks, sys.stdout)


if __name__ == "__main__":
    main()
