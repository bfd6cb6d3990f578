"""A Python played as a browser's (Pyodide): no threads, no processes, no sockets, no signals, none of the packages that
are not pure, two GiB of memory, and an event loop that goes on while a stack sleeps, as JavaScript's promises let it.

    python tests/portable/played_browser.py imports          # any function of this file's: one process each

What Pyodide 314 lacks was asked of it (its `sys.platform`, its modules, `can't start new thread`); mmap, which it has,
is missing here, too: nobody can share memory there. greenlet plays the switching of stacks.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import importlib
import json
import os
import pkgutil
import platform
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import comm
import greenlet

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
NOT_PURE = ("multiprocess", "safetensors", "ml_dtypes", "threadpoolctl", "mpi4py", "scipy", "torch", "jax", "psutil")
SERVERS = ("jupyterlab", "jupyter_server", "jupyter_client", "notebook", "nbgrader", "tornado", "zmq")
MODULES = ("mmap", "pwd", "grp", "_multiprocessing", "_posixsubprocess")
EMPTY = ("fcntl", "resource", "termios")  # as JupyterLite's kernel has them
OS_CALLS = (
    "memfd_create pidfd_open sched_getaffinity sched_setaffinity posix_fallocate fork forkpty posix_spawn eventfd"
)
SIGNAL_CALLS = "setitimer getitimer pthread_kill pthread_sigmask sigwait alarm pause"
MEMORY_BYTES, STACK_BYTES, DEEPEST = 2 << 30, 5 << 20, 1000  # wasm32 without more; -sSTACK_SIZE of Pyodide; its limit


class Loop(asyncio.SelectorEventLoop):
    """Each callback has a stack of its own, which may sleep (`run_sync`) while others run."""

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        return super().call_soon(self._on_a_stack, callback, args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, self._on_a_stack, callback, args, context=context)

    def _on_a_stack(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        stack = greenlet.greenlet(callback)
        stack.gr_context = contextvars.copy_context()
        stack.switch(*args)

    def wake(self, stack: greenlet.greenlet) -> None:
        """Let a stack that sleeps go on."""
        super().call_soon(stack.switch)


def can_run_sync() -> bool:
    """Whether this stack can sleep: it is a callback's."""
    return not PLAYED.one_piece and greenlet.getcurrent().parent is not None


def run_sync(awaitable: Awaitable[Any]) -> Any:
    """Wait for a result on this stack, while the loop goes on with others."""
    if not can_run_sync():
        raise RuntimeError("Cannot stack switch")
    here, loop = greenlet.getcurrent(), PLAYED.loop
    task = asyncio.current_task(loop)
    future = asyncio.ensure_future(awaitable, loop=loop)
    future.add_done_callback(lambda _: loop.wake(here))
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    here.parent.switch()
    if task is not None:
        asyncio.tasks._enter_task(loop, task)
    return future.result()


class Played:
    """one_piece: stacks cannot sleep, as in browsers without promises in WebAssembly"""

    loop: Loop
    one_piece = False


PLAYED = Played()


def no_thread(self: Any, *_: Any) -> None:
    raise RuntimeError("can't start new thread")


def no_process(*_: Any, **__: Any) -> None:
    raise OSError(138, "emscripten does not support processes.")


def become_browser(*, limited: bool = True) -> None:
    """Take away what a browser lacks.  limited: memory, stack and recursion, too"""
    if limited:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, resource.RLIM_INFINITY))
        sys.setrecursionlimit(DEEPEST)
        sys.setrecursionlimit = lambda depth: None
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    importlib.import_module("numpy")  # its own modules ask the real system
    importlib.import_module("ctypes.util")
    sysconfig.get_config_vars()
    PLAYED.loop = Loop()
    asyncio.set_event_loop(PLAYED.loop)
    for name in (*MODULES, *NOT_PURE, *SERVERS):
        for known in [key for key in sys.modules if key.partition(".")[0] == name]:
            del sys.modules[known]
        sys.modules[name] = None
    for name in EMPTY:
        sys.modules[name] = types.ModuleType(name)
    for module, names in ((os, OS_CALLS), (signal, SIGNAL_CALLS)):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    sys.platform, platform.system = "emscripten", lambda: "Emscripten"
    os.cpu_count = lambda: 1
    threading.Thread.start = no_thread
    subprocess.Popen.__init__ = no_process
    for name in ("bind", "listen", "accept", "connect"):
        setattr(socket.socket, name, no_process)
    socket.socketpair = no_process
    pyodide, ffi = types.ModuleType("pyodide"), types.ModuleType("pyodide.ffi")
    pyodide.__version__, pyodide.ffi = "played", ffi
    ffi.can_run_sync, ffi.run_sync = can_run_sync, run_sync
    sys.modules |= {"pyodide": pyodide, "pyodide.ffi": ffi}
    ipykernel, of_comms = types.ModuleType("ipykernel"), types.ModuleType("ipykernel.comm")  # as the page's kernel has
    ipykernel.__version__, ipykernel.comm, of_comms.Comm = "6.9.2", of_comms, comm.DummyComm
    ipykernel.version_info = (6, 9, 2)
    sys.modules |= {"ipykernel": ipykernel, "ipykernel.comm": of_comms}


def play(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a page's coroutine."""
    return PLAYED.loop.run_until_complete(main)


# ---- what is played ----


OF_RANKS = (".rank_main", ".keeper", ".worker", ".server_preload", ".__main__", ".nbgrader_config")  # never run here


def imports() -> dict[str, Any]:
    """{"count": modules that can be imported, "faults": {module: why not}}"""
    faults: dict[str, str] = {}
    count = 0
    for found in pkgutil.walk_packages([str(ROOT / "parallel_lab")], "parallel_lab."):
        if not found.name.endswith(OF_RANKS) and "._path" not in found.name:
            try:
                importlib.import_module(found.name)
                count += 1
            except ImportError as error:
                faults[found.name] = str(error)
    return {"count": count, "faults": faults}


async def run_labs(*names: str) -> dict[str, Any]:
    """{lab: {run: its state, its text, the longest turn in seconds of processor time, turns}}, each lab's page made."""
    from tests.lab.labs import LABS

    found: dict[str, Any] = {}
    for name in names or LABS:
        lab = LABS[name]()
        if name == "fusion":
            lab.set_subject("chain")
        found[name] = {"page": len(lab.to_html(limits=Limits(3)))}
        for run in ("run", "run_simulated", "run_measured"):
            if hasattr(lab, run):
                getattr(lab, run)()
                turns, longest_s, last_s = 0, 0.0, time.process_time()
                while lab._run.goes_on and not PLAYED.one_piece:
                    await asyncio.sleep(0)
                    turns, now_s = turns + 1, time.process_time()
                    longest_s, last_s = max(longest_s, now_s - last_s), now_s
                lab.wait()
                found[name][run] = {**lab._run.to_dict(), "longest_s": longest_s, "turns": turns}
        found[name]["words"] = lab.to_text()
        lab.close()
    return found


async def first_interaction(state: str, command: str) -> float:
    """Seconds of processor time from the start of Python until what is behind a page (lab/live.py) has answered a first
    command, and shown what it changed.  state: of a lab;  command: its name and arguments, as JSON
    """
    from parallel_lab.lab.live import Live

    posts: list[str] = []
    behind = Live(posts.append, state)
    begun = len(posts)
    name, *arguments = json.loads(command)
    behind.receive(json.dumps({"command": name, "arguments": arguments, "number": 1}))
    answers: list[dict[str, Any]] = []
    while not (any("message" in one for one in answers) and any("traits" in one for one in answers)):
        await asyncio.sleep(0.001)
        answers = list(map(json.loads, posts[begun:]))
    (answer,) = [one["message"] for one in answers if "message" in one]
    assert answer["kind"] == "answered" and not answer.get("refused"), answer
    return time.process_time()


async def turns_given() -> dict[str, list[int]]:
    """Turns that a page has while a plan is compiled, and while its session begins, in the background and by a command;
    passes that have a note in the plan, and slices of parameters.
    """
    from parallel_lab.base import driver
    from parallel_lab.lab.fusion.subjects import get_subject
    from parallel_lab.train.session import Session

    driver.SLICE_S = 0.0
    job, ended = get_subject("dense").job(), threading.Event()
    seen: list[int] = []

    def work() -> None:
        before = turns
        plan = job.compile(devices=4, parallel_mode="data_parallel", comm_fusion={})
        compiled = turns
        Session(plan, job.net, job.optimizer)
        seen[:] = [compiled - before, turns - compiled, len(plan.notes), 4 * len(plan.parameters)]
        ended.set()

    found = {}
    for where in ("background", "command"):
        ended.clear()
        turns = 0
        if where == "background":
            DRIVER.start(work, "a test")
        else:
            PLAYED.loop.call_soon(work)
        while not ended.is_set():
            await asyncio.sleep(0)
            turns += 1
        found[where] = list(seen)
    return found


async def stop_and_pause() -> dict[str, Any]:
    """What a Strategy Lab's run does that is paused, goes on, and is stopped, all by controls that come meanwhile."""
    from parallel_lab.lab.strategy.model import StrategyLab

    lab, seen = StrategyLab(devices=4), []
    lab.set_steps(100_000)
    lab.run()

    async def until(state: str, steps: int = 0) -> None:
        end_s = time.monotonic() + 60
        while (lab._run.state != state or len(lab._run.parallel) < steps) and time.monotonic() < end_s:
            await asyncio.sleep(0.01)
        seen.append([lab._run.state, len(lab._run.parallel)])

    await until("running", 3)
    lab.pause()
    await until("paused")
    await asyncio.sleep(0.3)  # its present step ends
    at = len(lab._run.parallel)
    await asyncio.sleep(0.2)
    stood = len(lab._run.parallel) - at
    lab.resume()
    await until("running", at + 5)
    lab.stop()
    await until("done")
    return {"seen": seen, "while paused": stood, "words": lab.to_text(), "form": DRIVER.form}


def endless() -> dict[str, Any]:
    """The verdicts on answers that do not end: a function, and a rank program."""
    from parallel_lab.lab.exercises import check

    source = "def loops(*args):\n    while True:\n        pass\ndef program(rank, ranks, chunks):\n    while True:\n"
    source += "        rank = rank\n    yield\n"
    place: dict[str, Any] = {}
    exec(compile(source, str(ROOT / "answer.py"), "exec"), place)
    found = {}
    for number, answer in (("01.1", place["loops"]), ("02.1", place["program"])):
        begun_s = time.monotonic()
        found[number] = [str(check(number, answer)), time.monotonic() - begun_s]
    return found


def reload(folder: str) -> dict[str, Any]:
    """What a second desk knows of a first one, whose kernel has ended: hints, tries, verdicts."""
    from parallel_lab.lab.exercises.book import Desk

    os.chdir(folder)
    desk, found = Desk(), {}
    for again in ("first", "second"):
        desk.learner("Ada")
        desk.check("01.1", None)
        desk.hint("01.1")
        if again == "first":
            desk.spend("12.1", [("a", ((1, 2), 3)), ("b", ())])
            desk.hint("02.1")  # writes it
        tries = [list(map(repr, tries)) for tries in desk.tried.values()]
        found[again] = {"attempts": [one["attempts"] for one in desk.said()], "seen": desk.seen, "tries": tries}
        desk = Desk()
        if again == "second":
            desk.check("01.1", None)
            found["name"] = desk.name
    Path("progress.json").write_text("[1]", encoding="utf-8")
    desk = Desk()
    desk.hint("03.1")
    return {**found, "damaged": desk.seen, "aside": Path("progress.damaged.json").read_text(encoding="utf-8")}


def plans(first: str, last: str) -> dict[str, str]:
    """{seed: checksum of losses, parameters and states of that drawn plan (tests/graph/drawn_plans.py)}, "bfloat16" for
    one that needs ml_dtypes.
    """
    from parallel_lab.base.errors import MissingPackage
    from tests.graph.drawn_plans import draw, trained

    found = {}
    for seed in range(int(first), int(last)):
        digest = hashlib.sha256()
        try:
            for name, value in sorted(trained(draw(seed)).items()):
                digest.update(name.encode() + np.ascontiguousarray(value).tobytes())
            found[str(seed)] = digest.hexdigest()
        except MissingPackage as error:
            found[str(seed)] = str(error).partition(":")[0]
    return found


async def cell_of(shell: Any, source: str) -> Any:
    """The result of a notebook's cell."""
    return await shell.run_cell_async(source, transformed_cell=shell.transform_cell(source), store_history=True)


async def run_lesson(name: str) -> dict[str, Any]:
    """A notebook's cells, then those of its exercises with right answers.

    -> {"faults": {cell: error}, "points": {grade_id: [points, at most]}, "cells": how many, "tagged": those that fail,
    "handed in": what the page has written for the teacher}
    """
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from tests.notebooks.answers import ANSWERS, OWN

    os.chdir(tempfile.mkdtemp(prefix="lesson-"))  # the test's, which removes it
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.display_pub.publish = lambda *_, **__: None
    book = json.loads((ROOT / "notebooks" / name).read_text(encoding="utf-8"))
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    ran: dict[str, Any] = {"faults": {}, "points": {}, "cells": len(cells), "tagged": []}
    for cell in cells:
        result = await cell_of(shell, "".join(cell["source"]))
        if error := result.error_before_exec or result.error_in_exec:
            ran["faults"][cell["id"]] = f"{type(error).__name__}: {error}"
        if "raises-exception" in cell["metadata"].get("tags", ()):
            ran["tagged"].append(cell["id"])
    for cell in cells:
        source, role = "".join(cell["source"]), cell["metadata"].get("nbgrader", {})
        if role.get("solution"):
            _, lesson, place = role["grade_id"].split("-")
            check = re.search(r"(?m)^check\(.*$", source)
            source = f"{(ANSWERS | OWN)[f'{lesson}.{place}']}\n\n{check[0]}"
        elif not role.get("grade"):
            continue
        result = await cell_of(shell, source)
        if error := result.error_before_exec or result.error_in_exec:
            ran["faults"][f"answered {role['grade_id']}"] = f"{type(error).__name__}: {error}"
        if role.get("grade"):
            ran["points"][role["grade_id"]] = [result.result, role["points"]]
    return {**ran, "handed in": Path("checks.json").read_text(encoding="utf-8")}


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    if given[:1] == ["in-one-piece"]:
        PLAYED.one_piece = bool(given.pop(0))
    if given[:1] == ["here"]:  # the same on this system, to compare with
        given.pop(0)
    else:
        become_browser()
    import numpy as np

    from parallel_lab.base.driver import DRIVER
    from parallel_lab.lab.shared.replay import Limits

    warnings.simplefilter("ignore")
    found = globals()[what](*given)
    print("FOUND", json.dumps(play(found) if isinstance(found, Coroutine) else found))
