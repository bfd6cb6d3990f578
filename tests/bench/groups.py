"""Competitors that are groups of ranks: long-lived, parked in a read without processor time, asked for short batches.

    notebook or command                       rank r of a group
    group.ask({"op": ..., "bytes": ...})  ->  serve_rank: makes the call, meets the others, times the
                                          batch  ->  {"seconds": ...}

A group's ranks are processes of their own (`python -m MODULE --rank r`), or mpirun's. Each holds a socket to this
process: it ends when the socket does, so a command that is killed leaves no process, and Ctrl-C, which does not reach
the ranks' own sessions, is answered here. mpirun belongs to a keeper (processes/mpi/keeper.py), which ends all.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, Protocol

from parallel_lab.base.errors import ParallelLabError, message

START_S = 90.0  # eight ranks that import torch on two busy cores took 20 s
ANSWER_S = 120.0  # a round, a batch or a start takes seconds; what is silent this long has hung
VARIABLE = "PARALLEL_LAB_BENCH_GROUP"  # JSON for the ranks: name and key of their socket, folder
END_S = 5.0
LOOK_S = 0.05  # how often a starting group is looked at
HELLO_S = 5.0  # for a rank that has connected to say which one it is
BATCH_S = 0.25  # a batch of steps is at least this long, so that timer and scheduler do not show
LONGEST_BATCH = 5000  # calls

Make = Callable[[Mapping[str, Any]], Callable[[], object]]


class BenchError(ParallelLabError, RuntimeError):
    """A competitor ended or did not answer."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its name: what fits into a table's legend."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


class Competing(Protocol):
    """What is timed in turns: this package's own pool, or a RankGroup."""

    name: str

    def batch(self, order: Mapping[str, Any], iterations: int) -> float:
        """Seconds of one call, of the slowest rank, in a batch of that many."""


def own_environment(threads: int = 1) -> dict[str, str]:
    """The environment for a process that imports this package as we do, with so many threads for matrix products."""
    from parallel_lab.processes.mpi.launch import rank_environment
    from parallel_lab.processes.shm.launch import BLAS_VARIABLES

    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    own = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    return {**rank_environment(), **dict.fromkeys(BLAS_VARIABLES, str(threads)), **own}


class RankGroup:
    """`ranks` processes that run `module`, whose main calls `serve_rank`; `name` as in tables; `arguments` come before
    --rank and --ranks; `over_mpi`: None, or mpirun's with this environment; `threads` for matrix products, each.
    Raises BenchError with a group's last words at start, MissingPackage without mpirun or mpi4py.
    """

    def __init__(
        self,
        name: str,
        ranks: int,
        module: str,
        arguments: Sequence[str] = (),
        *,
        over_mpi: Mapping[str, str] | None = None,
        threads: int = 1,
    ) -> None:
        self.name, self.ranks = name, ranks
        self.folder = Path(tempfile.mkdtemp(prefix="parallel-lab-bench-"))
        self._processes: list[subprocess.Popen] = []
        self._pipes: dict[int, connection.Connection] = {}
        self._ending = contextlib.ExitStack()
        self._ending.callback(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            self._start([module, *arguments], own_environment(threads), over_mpi)
        except BaseException:
            self.close()
            raise

    # start and end

    def _start(self, arguments: list[str], environment: dict[str, str], over_mpi: Mapping[str, str] | None) -> None:
        key, name = secrets.token_hex(32), f"{self.folder.name}-{secrets.token_hex(4)}"
        told = json.dumps({"name": name, "key": key, "folder": str(self.folder)})
        command = [sys.executable, "-m", *arguments, "--ranks", str(self.ranks)]
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{name}")  # abstract: a path may have 108 characters, and the folder may lie deep
            listener.listen(self.ranks)
            listener.settimeout(LOOK_S)
            self._start_processes(command, {**environment, VARIABLE: told}, over_mpi)
            end = time.monotonic() + START_S
            while len(self._pipes) < self.ranks:
                self._accept(listener, key)
                if any(p.poll() is not None for p in self._processes):
                    raise self._error("ended while starting", "start")
                if time.monotonic() > end:
                    raise self._error(f"did not start within {START_S:g} s", "start")

    def _start_processes(
        self, command: list[str], environment: dict[str, str], over_mpi: Mapping[str, str] | None
    ) -> None:
        from parallel_lab.processes.mpi.launch import KeptMpirun

        with open(self.folder / "stderr", "ab") as stderr:
            streams = {"stdout": stderr, "stderr": stderr}
            if over_mpi is not None:
                mpirun = self._ending.enter_context(KeptMpirun("parallel-lab-bench-"))
                variables = {**environment, "TMPDIR": str(mpirun.folder), **over_mpi}
                self._processes.append(mpirun.start(self.ranks, command, variables, **streams))
                return
            for rank in range(self.ranks):
                options = {"stdin": subprocess.DEVNULL, "env": environment, "start_new_session": True, **streams}
                process = subprocess.Popen([*command, "--rank", str(rank)], **options)
                self._processes.append(process)
                self._ending.callback(process.wait)
                self._ending.callback(process.kill)  # it may wait in a collective for a rank that has gone

    def _accept(self, listener: socket.socket, key: str) -> None:
        """Take the socket of a rank, if one comes within LOOK_S."""
        try:
            accepted, _ = listener.accept()
        except TimeoutError:
            return
        accepted.setblocking(True)
        pipe = connection.Connection(accepted.detach())
        try:
            told = json.loads(pipe.recv_bytes()) if pipe.poll(HELLO_S) else {}
        except (EOFError, OSError, ValueError):
            told = {}
        if isinstance(told, dict) and hmac.compare_digest(str(told.get("key")), key):
            self._pipes[told["rank"]] = pipe
        else:  # a stranger, or a rank that died
            pipe.close()

    def close(self) -> None:
        """End all ranks and remove the group's folder. Called again, does nothing."""
        while self._pipes:
            self._pipes.popitem()[1].close()  # a parked rank reads the end and goes
        self._ending.close()

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # asking

    def ask(self, order: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What every rank answers to `order`, by rank. Where one fails, the group is ended: raises BenchError."""
        data = json.dumps(order).encode()
        found: dict[int, dict[str, Any]] = {}
        what = " ".join(str(value) for value in order.values())
        if not self._pipes:
            raise BenchError(message(f"{self.name}: has ended before", where=f"bench {what}"))
        try:
            for pipe in self._pipes.values():
                pipe.send_bytes(data)
            end = time.monotonic() + ANSWER_S
            waiting = {pipe: rank for rank, pipe in self._pipes.items()}
            while waiting:
                ready = connection.wait(list(waiting), max(0.0, end - time.monotonic()))
                if not ready:
                    raise self._error(f"did not answer within {ANSWER_S:g} s", what)
                for pipe in ready:
                    rank = waiting.pop(pipe)
                    found[rank] = json.loads(pipe.recv_bytes())
                    if "error" in found[rank]:
                        raise self._error(f"rank {rank}: {found[rank]['error']}", what)
        except (EOFError, OSError) as error:
            raise self._error("ended", what) from error
        except BaseException:
            self.close()
            raise
        return [found[rank] for rank in sorted(found)]

    def batch(self, order: Mapping[str, Any], iterations: int) -> float:
        """Seconds of one call, of the slowest rank."""
        return max(answer["seconds"] for answer in self.ask({**order, "iterations": iterations}))

    def _error(self, what: str, case: str) -> BenchError:
        for process in self._processes:  # so that their last words are written
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        with contextlib.suppress(OSError):
            lines = [line for line in (self.folder / "stderr").read_text(errors="replace").splitlines() if line.strip()]
            what += f": {lines[-1].strip()[:300]}" if lines else ""
        self.close()
        return BenchError(message(f"{self.name}: {what}", where=f"bench {case}"))


# ---- a rank's side ----


def rank_arguments(*who: str) -> argparse.Namespace:
    """The command line of a rank: `rank`, `ranks` and, where a module has several kinds of them, `who`."""
    parser = argparse.ArgumentParser()
    if who:
        parser.add_argument("who", choices=who)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, required=True)
    return parser.parse_args()


def connect_rank(rank: int) -> tuple[connection.Connection, Path]:
    """(socket to the process that started the group, the group's folder), for a rank that `RankGroup` started."""
    told = json.loads(os.environ.pop(VARIABLE))
    line = socket.socket(socket.AF_UNIX)
    line.connect(f"\0{told['name']}")
    pipe = connection.Connection(line.detach())
    pipe.send_bytes(json.dumps({"rank": rank, "key": told["key"]}).encode())
    return pipe, Path(told["folder"])


def serve_rank(pipe: connection.Connection, make: Make, meet: Callable[[], object]) -> None:
    """Answer batches until the socket ends, then end this process. `make`: from an order to its checked, timed call."""
    made: tuple[dict[str, Any], Callable[[], object]] | None = None
    try:
        while True:
            order = json.loads(pipe.recv_bytes())
            count = order.pop("iterations", 1)
            try:
                if made is None or made[0] != order:
                    made = None  # the last case's memory first
                    made = (dict(order), make(order))
                pipe.send_bytes(json.dumps(timed(made[1], count, meet)).encode())
            except (EOFError, OSError):
                break
            except Exception as error:
                pipe.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)  # libraries' own endings wait for peers that are gone


def timed(call: Callable[[], object], count: int, meet: Callable[[], object]) -> dict[str, Any]:
    """{"seconds": of one call} between two meetings, and what the last call returned, if that is a dict. One more call
    goes before: it finds cores and caches as another library has left them.
    """
    told: object = call()
    meet()
    start = time.perf_counter()
    for _ in range(count):
        told = call()
    meet()
    return {"seconds": (time.perf_counter() - start) / count, **(told if isinstance(told, dict) else {})}


# ---- in turns ----


def interleaved_batches(
    competitors: Sequence[Competing], order: Mapping[str, Any], rounds: int, batch_s: float, least: int = 1
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of one call by competitor, `rounds` times in turns A B C A B C, and errors by competitor, then left out.
    `batch_s`: a batch has the calls that fill it, from `least` to LONGEST_BATCH.
    """
    seconds: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    estimate: dict[str, float] = {}

    def run(competitor: Competing, iterations: int) -> float | None:
        try:
            return competitor.batch(order, iterations)
        except BenchError as error:
            failed[competitor.name] = first_line(error)
            seconds.pop(competitor.name, None)
            return None

    for competitor in competitors:
        first = run(competitor, 2)  # compiled, allocated, warm
        again = None if first is None else run(competitor, 2)
        if again is not None:
            estimate[competitor.name], seconds[competitor.name] = again, []
    for _ in range(rounds):
        for competitor in competitors:
            if competitor.name in seconds:
                count = int(min(LONGEST_BATCH, max(least, batch_s / max(estimate[competitor.name], 1e-7))))
                found = run(competitor, count)
                if found is not None:
                    seconds[competitor.name].append(found)
                    estimate[competitor.name] = min(estimate[competitor.name], found)
    return seconds, failed
