"""Competitors in processes of their own, timed in turns: A B A B, so that whatever else the machine does hits all of
them alike.

A competitor is a module that calls `serve({case: make_step})`. It waits for lines "case iterations" on its standard
input, makes the step of a case at its first use, runs it, and answers one line of JSON: {"seconds": per iteration}.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from ...base.errors import ParallelLabError, message

ANSWER_S = 120.0  # a round, a batch or a start takes seconds; what is silent this long has hung
SHORTEST_S = 0.25  # a round is at least this long, so that timer and scheduler do not show


class BenchError(ParallelLabError, RuntimeError):
    """A competitor ended or did not answer."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its name: what fits into a table's legend."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


class Competitor:
    """One process. `ask(case, iterations)` -> its answer as a dict.

    name     as the tables show it
    module   what `python -m` runs;  arguments: what it is given
    threads  for BLAS and for torch
    """

    def __init__(self, name: str, module: str, arguments: Sequence[str] = (), *, threads: int = 1) -> None:
        from ...processes.shm.launch import BLAS_VARIABLES  # here: competitors import this module, and need no workers

        self.name = name
        count = str(threads)
        env = {**os.environ, **dict.fromkeys(BLAS_VARIABLES, count), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", module, *arguments, f"--threads={threads}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )

    def ask(self, case: str, iterations: int) -> dict:
        """Run `case` that often. Raises BenchError with the competitor's last words when it has none."""
        with contextlib.suppress(BrokenPipeError):  # its end is told below
            self._process.stdin.write(f"{case} {iterations}\n")
            self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
        line = self._process.stdout.readline() if ready else ""
        if not line.startswith("{"):
            self.close()
            words = (
                "did not answer"
                if not ready
                else "ended: " + (self._process.stderr.read().strip().splitlines() or ["no message"])[-1]
            )
            raise BenchError(message(f"{self.name} {words}", where=f"bench {case}"))
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def __enter__(self) -> Competitor:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        self._process.stderr.close()


def interleaved(competitors: Sequence[Competitor], case: str, rounds: int) -> dict[str, list[float]]:
    """Seconds per iteration of every competitor, `rounds` times in turns. Each round runs as many iterations as fill a
    quarter of a second.
    """
    counts = {}
    for competitor in competitors:
        competitor.ask(case, 1)  # compiled, allocated, warm
        counts[competitor.name] = max(1, round(SHORTEST_S / max(competitor.ask(case, 2)["seconds"], 1e-6)))
    seconds: dict[str, list[float]] = {c.name: [] for c in competitors}
    for _ in range(rounds):
        for competitor in competitors:
            seconds[competitor.name].append(competitor.ask(case, counts[competitor.name])["seconds"])
    return seconds


def serve(cases: Mapping[str, Callable[[], Callable[[], dict | None]]]) -> None:
    """A competitor's main loop: answers until its standard input ends. A step may return a dict, which is added to the
    answer.
    """
    steps: dict[str, Callable[[], dict | None]] = {}
    for line in sys.stdin:
        case, count = line.split()
        if case not in steps:
            steps[case] = cases[case]()
        step, told, start = steps[case], None, time.perf_counter()
        for _ in range(int(count)):
            told = step()
        seconds = (time.perf_counter() - start) / int(count)
        print(json.dumps({"seconds": seconds, **(told if isinstance(told, dict) else {})}), flush=True)
