"""From "go" to the first collective done on every rank: this package's workers, torch and mpirun; and what idle workers
take.

    results = measure_startup(ranks=8)
    print(startup_text(results))

ours, cold     a new Python process makes its first WorkerPool: the fork server starts too
ours, warm     the same process makes another one
torch spawn    torch.multiprocessing.spawn and gloo, from the call on (torch is imported in the parent already);  torch
               fork: with start by fork
mpirun         mpirun and mpi4py, from the start of mpirun on

"whole command" is from the start of the interpreter (for mpirun: of mpirun). One after the other, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import ArgumentError, MissingPackage, message
from ...base.units import time_text
from ...processes.measure.measure import cores, load
from .goals import Goal
from .groups import own_environment
from .machine import installed_version
from .page import aligned, quotient, ratio_text
from .workers import ANSWER_S, BenchError, first_line

COLD, WARM, TORCH_SPAWN, TORCH_FORK, MPIRUN = "ours, cold", "ours, warm", "torch spawn", "torch fork", "mpirun"
LIMIT = 1 / 8  # of torch spawn
IDLE_LIMIT = 0.001  # of one core: a worker that blocks takes nothing at all, the tenth of a percent is the clock's
IDLE_S = 1.0
KEEPER_S = 5.0  # for the keeper to end mpirun and its ranks; measured: 0.1 s
_SCRIPT = Path(__file__).with_name("first_collective.py")


def measure_startup(
    ranks: int = 8,
    rounds: int = 3,
    *,
    idle_s: float = IDLE_S,
    peers: bool = True,
    tell: Callable[[str], object] = lambda text: None,
) -> dict[str, Any]:
    """{"seconds": {name: of every round}, "whole": {...}, "idle": {...}, "missing": {name: why}, ...}.

    idle_s  how long idle workers are watched
    idle    workers_s, notebook_s: processor seconds of all workers, and of the process that started them, in watched_s;
            None where the system does not tell

    Raises ArgumentError, and BenchError when our own start fails.
    """
    if ranks < 2 or rounds < 1 or not idle_s > 0:
        raise ArgumentError(
            f"ranks={ranks}, rounds={rounds}", where="bench startup", allowed="2 ranks or more, 1 round or more"
        )
    before = load()
    wanted: list[str] = [COLD]
    missing: dict[str, str] = {}
    if peers and installed_version("torch") is None:
        missing |= dict.fromkeys((TORCH_SPAWN, TORCH_FORK), "PyTorch is not installed: pip install torch")
    elif peers:
        wanted += [TORCH_SPAWN, TORCH_FORK]
    wanted += [MPIRUN] if peers else []
    seconds: dict[str, list[float]] = {}
    whole: dict[str, list[float]] = {}
    idle: dict[str, Any] = {}
    for number in range(rounds):
        for name in wanted:
            if name in missing:
                continue
            tell(f"{name}, round {number + 1} of {rounds}")
            try:
                if name == COLD:
                    told, total = _start_ours(ranks, idle_s)
                    seconds.setdefault(WARM, []).append(told["warm_s"])
                    took = told["cold_s"]
                    idle = told["idle"]
                else:
                    took, total = (
                        _start_mpi(ranks)
                        if name == MPIRUN
                        else _start_torch("spawn" if name == TORCH_SPAWN else "fork", ranks)
                    )
            except (BenchError, MissingPackage) as error:
                if name == COLD:
                    raise
                missing[name] = first_line(error)
                continue
            seconds.setdefault(name, []).append(took)
            whole.setdefault(name, []).append(total)
    return {
        "ranks": ranks,
        "rounds": rounds,
        "cores": cores(),
        "load": [before, load()],
        "seconds": seconds,
        "whole": whole,
        "median_s": {name: statistics.median(times) for name, times in seconds.items()},
        "idle": idle,
        "missing": missing,
    }


def startup_goals(results: Mapping[str, Any]) -> tuple[Goal, ...]:
    """Eight workers in an eighth of torch's spawn; idle ones take no processor time."""
    ours, theirs = (results["median_s"].get(name) for name in (COLD, TORCH_SPAWN))
    idle = results["idle"]
    share = quotient(idle.get("workers_s"), idle.get("watched_s"))
    return (
        Goal(f"{results['ranks']} workers ready, cold", TORCH_SPAWN, LIMIT, quotient(ours, theirs)),
        Goal("idle workers, all together", "one core", IDLE_LIMIT, share, "blocked in a read"),
    )


def startup_text(results: Mapping[str, Any]) -> str:
    """Times, goals and the idle workers as text."""
    names = [name for name in (COLD, WARM, TORCH_SPAWN, TORCH_FORK, MPIRUN) if name in results["median_s"]]
    spawn = results["median_s"].get(TORCH_SPAWN)
    rows = [("", "ready after", "quickest to slowest", "whole command", "to torch spawn")]
    for name in names:
        times, total = results["seconds"][name], results["whole"].get(name)
        ratio = "" if spawn is None else ratio_text(results["median_s"][name] / spawn)
        span = f"{time_text(min(times))} to {time_text(max(times))}"
        rows.append(
            (
                name,
                time_text(results["median_s"][name]),
                span,
                "" if not total else time_text(statistics.median(total)),
                ratio,
            )
        )
    goals = [("goal", "at most", "reached", "")]
    for goal in startup_goals(results):
        percent = goal.against == "one core"
        reached = (
            "-" if goal.reached is None else f"{goal.reached:.2%} of a core" if percent else ratio_text(goal.reached)
        )
        limit = "no processor time" if percent else f"{ratio_text(goal.limit)} {goal.against}"
        goals.append((goal.what, limit, reached, goal.verdict))
    idle = results["idle"]
    lines = [aligned(rows), "", aligned(goals), ""]
    if idle.get("workers_s") is None:
        lines.append("idle workers: this system does not tell the processor time of a process")
    else:
        lines.append(
            f"idle for {idle['watched_s']:.1f} s: {idle['workers_s'] * 1e3:.2f} ms of processor time in "
            f"{results['ranks']} workers, "
            f"{idle['notebook_s'] * 1e3:.2f} ms in the process that started them"
        )
    lines.append(
        f"measured: {results['ranks']} ranks on {results['cores']} cores, medians of {results['rounds']} rounds "
        "in turns, "
        f"load {results['load'][0]:.1f} before, {results['load'][1]:.1f} after"
    )
    return "\n".join([*lines, *(f"{name} is missing: {why}" for name, why in results["missing"].items())])


# ---- the competitors ----


def _start_ours(ranks: int, idle_s: float) -> tuple[dict[str, Any], float]:
    begin = time.monotonic()
    command = [sys.executable, "-m", __name__, "--ranks", str(ranks), "--idle", str(idle_s)]
    output = _run(command, own_environment(), COLD)
    try:
        told = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        raise BenchError(message(f"{COLD}: said {output[-300:]!r}", where="bench startup")) from None
    return told, told["ready"] - begin


def _start_torch(how: str, ranks: int) -> tuple[float, float]:
    with _folder() as folder:
        begin = time.monotonic()
        _run(
            [sys.executable, "-P", str(_SCRIPT), how, "--ranks", str(ranks), folder], own_environment(), f"torch {how}"
        )
        go, ready = _times(folder, ranks)
    return ready - go, ready - begin


def _start_mpi(ranks: int) -> tuple[float, float]:
    from ...processes.mpi.launch import mpirun_command, require_mpi4py, session_folders

    require_mpi4py()
    with _folder() as folder:
        command = mpirun_command(ranks, [sys.executable, "-P", str(_SCRIPT), "mpi", folder])
        places = {"TMPDIR": folder, **session_folders(folder, folder), "OMPI_MCA_mpi_yield_when_idle": "1"}
        begin = time.monotonic()
        _run(
            [
                sys.executable,
                "-m",
                "parallel_lab.processes.mpi.keeper",
                json.dumps({"command": command, "folders": []}),
            ],
            {**own_environment(), **places},
            MPIRUN,
        )
        _, ready = _times(folder, ranks, go=False)
    return ready - begin, ready - begin


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="parallel-lab-bench-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _times(folder: str, ranks: int, *, go: bool = True) -> tuple[float, float]:
    """(when it began, when the last rank was ready)."""
    try:
        ready = max(float(Path(folder, f"ready.{rank}").read_text()) for rank in range(ranks))
        return float(Path(folder, "go").read_text()) if go else 0.0, ready
    except OSError as error:
        raise BenchError(message(f"a rank did not say that it was ready ({error})", where="bench startup")) from error


def _run(command: list[str], environment: Mapping[str, str], name: str) -> str:
    """Run to the end; what it printed. It and its children end with us, also at Ctrl-C. Raises BenchError with its last
    words.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # the keeper of mpirun ends everything when its standard input does; the others leave theirs alone
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=err, env=dict(environment), start_new_session=True
        )
        try:
            process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            raise BenchError(message(f"{name} was not ready within {ANSWER_S:g} s", where="bench startup")) from None
        finally:
            process.stdin.close()
            if process.poll() is None and name == MPIRUN:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(KEEPER_S)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output, errors = ((file.seek(0), file.read().decode(errors="replace"))[1] for file in (out, err))
    if process.returncode:
        last = next((line for line in reversed(errors.splitlines()) if line.strip()), "no message")
        raise BenchError(
            message(f"{name} ended with {process.returncode}: {last.strip()[:300]}", where="bench startup")
        )
    return output


# ---- our own start, in a process of its own ----


def cpu_seconds(pid: int) -> float | None:
    """Processor seconds that a process has used, all its threads; None where the system does not tell."""
    folder = Path("/proc", str(pid))
    try:  # nanoseconds on a core, thread by thread; not every kernel counts them
        return sum(int((task / "schedstat").read_text().split()[0]) for task in (folder / "task").iterdir()) / 1e9
    except (OSError, ValueError, IndexError):
        pass
    try:  # user and system time, in ticks of 10 ms
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _first(comm: Any) -> list[float]:
    return comm.all_reduce(np.ones(4, np.float32)).tolist()


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--idle", type=float, default=IDLE_S)
    args = parser.parse_args()
    from ...processes.shm import WorkerPool

    took, ready = [], 0.0
    for number in range(2):
        begin = time.perf_counter()
        with WorkerPool(args.ranks) as pool:
            assert pool.run(_first) == [[args.ranks] * 4] * args.ranks
            took.append(time.perf_counter() - begin)
            if number == 0:
                ready = time.monotonic()
                continue
            time.sleep(0.2)  # threads that were needed go to sleep
            pids = [*pool.pids, os.getpid()]
            before, start = [cpu_seconds(pid) for pid in pids], time.monotonic()
            time.sleep(args.idle)
            watched, after = time.monotonic() - start, [cpu_seconds(pid) for pid in pids]
    used = [None if a is None or b is None else b - a for a, b in zip(before, after, strict=True)]
    workers_s = None if None in used else sum(used[:-1])
    idle = {"watched_s": watched, "workers_s": workers_s, "notebook_s": used[-1]}
    print(json.dumps({"cold_s": took[0], "warm_s": took[1], "ready": ready, "idle": idle}))


if __name__ == "__main__":
    _main()
