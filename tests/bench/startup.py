"""From "go" to the first collective on all ranks: our workers, torch, mpirun; and what idle workers take.

    results = measure_startup(ranks=8)
    print(startup_text(results))

ours, cold     a new Python process makes its first WorkerPool: the fork server starts too
ours, warm     the same process makes another one
torch spawn    torch.multiprocessing.spawn and gloo, from the call on (torch is imported);  torch fork: by fork
mpirun         mpirun and mpi4py, from the start of mpirun on

"whole command" is from the start of the interpreter (for mpirun: of mpirun). One after the other, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parallel_lab.base.errors import ArgumentError, MissingPackage
from parallel_lab.base.system import cores
from parallel_lab.base.units import time_text
from parallel_lab.processes.measure.measure import load
from parallel_lab.processes.mpi.launch import KeptMpirun
from tests.bench.goals import Goal, goal_rows
from tests.bench.groups import ANSWER_S, BenchError, first_line, own_environment
from tests.bench.page import quotient, ratio_text, tables_text
from tests.bench.peers import without_torch

COLD, WARM, TORCH_SPAWN, TORCH_FORK, MPIRUN = "ours, cold", "ours, warm", "torch spawn", "torch fork", "mpirun"
LIMIT = 1 / 8  # of torch spawn
IDLE_LIMIT = 0.001  # of one core: a worker that blocks takes nothing at all, the tenth of a percent is the clock's
IDLE_S = 1.0
WHERE = "bench startup"
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
    `idle`: processor seconds of workers and starter in `watched_s` (None: unknown), watched for `idle_s`.
    Raises ArgumentError, and BenchError when our own start fails.
    """
    if ranks < 2 or rounds < 1 or not idle_s > 0:
        what = f"ranks={ranks}, rounds={rounds}, idle_s={idle_s}"
        raise ArgumentError(what, where=WHERE, allowed="2 ranks or more, 1 round or more, seconds above 0")
    before = load()
    starts = {
        COLD: lambda: _start_ours(ranks, idle_s),
        TORCH_SPAWN: lambda: _start_torch("spawn", ranks),
        TORCH_FORK: lambda: _start_torch("fork", ranks),
        MPIRUN: lambda: _start_mpi(ranks),
    }
    wanted = list(starts) if peers else [COLD]
    missing = dict.fromkeys((TORCH_SPAWN, TORCH_FORK), without_torch()) if peers and without_torch() else {}
    seconds: dict[str, list[float]] = {}
    whole: dict[str, list[float]] = {}
    idle: dict[str, Any] = {}
    for number in range(rounds):
        for name in wanted:
            if name in missing:
                continue
            tell(f"{name}, round {number + 1} of {rounds}")
            try:
                took, total, *more = starts[name]()
            except (BenchError, MissingPackage) as error:
                if name == COLD:
                    raise
                missing[name] = first_line(error)
                continue
            if name == COLD:
                warm_s, idle = more
                seconds.setdefault(WARM, []).append(warm_s)
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
        median_s, times, total = results["median_s"][name], results["seconds"][name], results["whole"].get(name)
        span = f"{time_text(min(times))} to {time_text(max(times))}"
        whole = time_text(statistics.median(total)) if total else ""
        rows.append((name, time_text(median_s), span, whole, "" if spawn is None else ratio_text(median_s / spawn)))
    ranks, idle, loads = results["ranks"], results["idle"], results["load"]
    if idle.get("workers_s") is None:
        line = "idle workers: this system does not tell the processor time of a process"
    else:
        line = (
            f"idle for {idle['watched_s']:.1f} s: {idle['workers_s'] * 1e3:.2f} ms of processor time in {ranks} "
            f"workers, {idle['notebook_s'] * 1e3:.2f} ms in the process that started them"
        )
    lines = [
        line,
        f"measured: {ranks} ranks on {results['cores']} cores, medians of {results['rounds']} rounds in turns, "
        f"load {loads[0]:.1f} before, {loads[1]:.1f} after",
        *(f"{name} is missing: {why}" for name, why in results["missing"].items()),
    ]
    return tables_text([(rows, 1), (goal_rows(startup_goals(results)), 2)], lines)


# ---- the competitors: (seconds until all are ready, seconds of the whole command) ----


def _start_ours(ranks: int, idle_s: float) -> tuple[float, float, float, dict[str, Any]]:
    """As the others, then the seconds of a warm start, and what idle workers take."""
    begin = time.monotonic()
    output = _run(COLD, "-m", __name__, "--ranks", str(ranks), "--idle", str(idle_s))
    try:
        told = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        raise BenchError(f"{COLD}: said {output[-300:]!r}", where=WHERE) from None
    return told["cold_s"], told["ready"] - begin, told["warm_s"], told["idle"]


def _start_torch(how: str, ranks: int) -> tuple[float, float]:
    with _folder() as folder:
        begin = time.monotonic()
        _run(f"torch {how}", "-P", str(_SCRIPT), how, "--ranks", str(ranks), folder)
        return _ready(folder, ranks) - _time(folder, "go"), _ready(folder, ranks) - begin


def _start_mpi(ranks: int) -> tuple[float, float]:
    with _folder() as folder, KeptMpirun("parallel-lab-bench-") as mpirun:
        command = [sys.executable, "-P", str(_SCRIPT), "mpi", folder]
        variables = {**own_environment(), "TMPDIR": str(mpirun.folder), "OMPI_MCA_mpi_yield_when_idle": "1"}
        begin = time.monotonic()
        _finish(MPIRUN, lambda **streams: mpirun.start(ranks, command, variables, **streams), mpirun.end)
        took = _ready(folder, ranks) - begin
        return took, took


def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="parallel-lab-bench-", ignore_cleanup_errors=True)


def _ready(folder: str, ranks: int) -> float:
    """When the last rank was ready."""
    return max(_time(folder, f"ready.{rank}") for rank in range(ranks))


def _time(folder: str, name: str) -> float:
    try:
        return float(Path(folder, name).read_text())
    except OSError as error:
        raise BenchError(f"a rank did not say that it was ready ({error})", where=WHERE) from error


def _run(name: str, *words: str) -> str:
    """Run Python with these words to the end; what it printed. It and its children end with us, also at Ctrl-C."""
    started: list[subprocess.Popen] = []

    def start(**streams: Any) -> subprocess.Popen:
        options = {"stdin": subprocess.DEVNULL, "env": own_environment(), "start_new_session": True, **streams}
        started.append(subprocess.Popen([sys.executable, *words], **options))
        return started[0]

    def end() -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(started[0].pid, signal.SIGKILL)
        started[0].wait()

    return _finish(name, start, end)


def _finish(name: str, start: Callable[..., subprocess.Popen], end: Callable[[], object]) -> str:
    """Start a process, wait for it, end all of it; what it printed. Raises BenchError with its last words."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(stdout=out, stderr=err)
        try:
            process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{name} was not ready within {ANSWER_S:g} s", where=WHERE) from None
        finally:
            code = process.poll()
            end()
        output, errors = ((file.seek(0), file.read().decode(errors="replace"))[1] for file in (out, err))
    if code:
        last = next((line for line in reversed(errors.splitlines()) if line.strip()), "no message")
        raise BenchError(f"{name} ended with {code}: {last.strip()[:300]}", where=WHERE)
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
    except (OSError, ValueError, IndexError):
        return None


def _first(comm: Any) -> list[float]:
    return comm.all_reduce(np.ones(4, np.float32)).tolist()


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--idle", type=float, default=IDLE_S)
    args = parser.parse_args()
    from parallel_lab.processes.shm import WorkerPool

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
