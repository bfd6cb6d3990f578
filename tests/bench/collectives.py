"""Collectives of our workers compared with torch gloo and MPI: equal values, equal numbers of ranks, timed in turns.

    report = measure_collectives(ranks=8)
    print(collectives_text(report))            # collectives_text.py

Ours is timed in three forms: "ours" gives an array and gets a new one, "ours out=" gets the result in an array made
before (as MPI and gloo do), and "ours arena" has both in memory that all ranks see (`comm.empty`), all_reduce and
broadcast in place. Memory bound of p ranks from 1 MiB on: p N / (bandwidth of two processes that copy); of messages
one copy each, two at a time, among as many arrays.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_lab.base.errors import ArgumentError, MissingPackage, ParallelLabError, message
from parallel_lab.base.system import cores, free_memory_bytes
from parallel_lab.cli.results import installed_version
from parallel_lab.processes.measure.measure import load
from parallel_lab.processes.mpi.launch import find_mpirun, mpirun_version
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.processes.shm.arena import ARENA_BYTES
from tests.bench.cases import OPS, POINT_TO_POINT, Case, check_results, given
from tests.bench.checks import CheckCost, measure_checks
from tests.bench.groups import BenchError, Competing, RankGroup, first_line, interleaved_batches, timed
from tests.bench.peers import paired_call, without_torch

OURS, OUT, ARENA = "ours", "ours out=", "ours arena"
GLOO, COPY, FUTEX, BARE = "torch gloo", "copy by 2 processes", "futex barrier", "bare Python"
BARE_OPS = ("broadcast", *POINT_TO_POINT)
SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
BOUND_FROM_BYTES = 1 << 20  # smaller arrays are copied within a cache, and say nothing of the memory
BATCH_S = 0.03
BARRIER_ROUNDS = 5  # times as many: one takes a fifth of a second and shows on which cores the ranks are just then
LEAST = 3  # calls in a batch
_PEERS = "tests.bench.peers"
_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(200_000):\n        pass\n"


@dataclass(frozen=True)
class Timing:
    """One case. seconds: (competitor, seconds of one call in each round); failed: (competitor, its words)."""

    op: str
    size_bytes: int
    seconds: tuple[tuple[str, tuple[float, ...]], ...]
    failed: tuple[tuple[str, str], ...] = ()
    load: float = 0.0

    def median_s(self, name: str) -> float | None:
        """The median of a competitor; None if it was not timed."""
        times = dict(self.seconds).get(name)
        return float(np.median(times)) if times else None

    def mpi_s(self) -> float | None:
        """The best MPI, of each in the better of its configurations: each is some user's default."""
        found = [self.median_s(name) for name, times in self.seconds if "MPI" in name and times]
        return min(found, default=None)

    def bound_s(self, ranks: int) -> float | None:
        """Seconds that the memory alone needs for an all_reduce, or messages, of that many ranks; None: no copy."""
        copy = self.median_s(COPY)
        if copy is None or self.op not in POINT_TO_POINT:
            return None if copy is None else ranks * copy / 2
        return (2 if self.op == "ping_pong" else 1) * max(ranks // 2 / 2, 1) * copy


@dataclass(frozen=True)
class CollectivesReport:
    """What one run measured: `competitors` (name, version), those `missing` (name, why), `timings` of collectives,
    `barrier_quiet`, `barrier_busy` (None, or with `busy` computing processes), `skipped` (op, bytes, why), cost of
    `checks` of a 256 KiB all_reduce or None, `load_before`, `load_after` (1-minute averages).
    """

    ranks: int
    cores: int
    rounds: int
    competitors: tuple[tuple[str, str], ...]
    missing: tuple[tuple[str, str], ...]
    timings: tuple[Timing, ...]
    barrier_quiet: Timing
    barrier_busy: Timing | None
    busy: int
    checks: CheckCost | None
    skipped: tuple[tuple[str, int, str], ...]
    load_before: float
    load_after: float

    def timing(self, op: str, size_bytes: int) -> Timing | None:
        """The case, or None if it was not measured."""
        return next((t for t in self.timings if (t.op, t.size_bytes) == (op, size_bytes)), None)


def measure_collectives(
    ranks: int = 8,
    ops: Sequence[str] = OPS,
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    rounds: int = 7,
    *,
    busy: int = 2,
    batch_s: float = BATCH_S,
    peers: bool = True,
    mpis: Sequence[str] = ("",),
    tell: Callable[[str], object] = lambda text: None,
) -> CollectivesReport:
    """Time every op at every size, by all competitors that are installed, in turns: `rounds` times (barriers
    BARRIER_ROUNDS times as often), in batches that fill `batch_s`; the barrier again next to `busy` computing processes
    (0: not). `peers` False: this package alone, with futex barrier and copy; `mpis`: folders of installed MPIs, with
    bin/mpirun, "" being the one of PATH; `tell`: gets a line about what is measured now. Raises ArgumentError for
    impossible cases, and what starting workers raises. A failed competitor is a line.
    """
    cases = [Case(op, size, ranks) for op in ops for size in sizes_bytes]
    if rounds < 1 or busy < 0 or not batch_s > 0:
        what = f"rounds={rounds}, busy={busy}, batch_s={batch_s}"
        raise ArgumentError(what, where="bench collectives", allowed="1, 0 and above 0")
    load_before = load()
    with contextlib.ExitStack() as stack:
        tell(f"starting {ranks} ranks of each competitor")
        # addresses for two arrays per rank of the largest size, besides the collectives'; pages are taken when written
        arena_bytes = ARENA_BYTES + 3 * ranks * max(sizes_bytes, default=0)
        pool = stack.enter_context(WorkerPool(ranks, timeout_s=120.0, warn_after_s=60.0, arena_bytes=arena_bytes))
        ours: list[Competing] = [OwnRanks(pool, name) for name in (OURS, OUT, ARENA)]
        others, missing, versions = _start_peers(stack, ranks, peers, mpis)
        timings, skipped = [], []
        for case in cases:
            bound = case.op in ("all_reduce", *POINT_TO_POINT) and case.size_bytes >= BOUND_FROM_BYTES
            # the copy along with the arena, which it bounds: memory is quicker at one time than at another
            copy = [c for c in others if bound and c.name == COPY]
            without = (COPY, FUTEX) if case.op in BARE_OPS else (COPY, FUTEX, BARE)
            competitors = [*ours, *copy, *(c for c in others if c.name not in without)]
            reason = _too_large(case, len(competitors))
            if reason:
                skipped.append((case.op, case.size_bytes, reason))
                continue
            tell(f"{case.op} of {case.size_bytes} bytes")
            timings.append(_timing(case.op, case.size_bytes, ranks, competitors, rounds, batch_s))
            pool.run(_own_end)
        meeting = [ours[0], *(c for c in others if c.name not in (COPY, BARE))]
        tell("barrier")
        quiet = _timing("barrier", 0, ranks, meeting, BARRIER_ROUNDS * rounds, batch_s)
        loaded = None
        if busy:
            tell(f"barrier with {busy} foreign busy processes")
            with busy_processes(busy):
                loaded = _timing(
                    "barrier", 0, ranks, [c for c in meeting if c.name != GLOO], BARRIER_ROUNDS * rounds, batch_s
                )
        tell("what the checks cost")
        checks = measure_checks(pool, rounds)
    return CollectivesReport(
        ranks=ranks,
        cores=cores(),
        rounds=rounds,
        competitors=tuple(versions),
        missing=tuple(missing),
        timings=tuple(timings),
        barrier_quiet=quiet,
        barrier_busy=loaded,
        busy=busy,
        checks=checks,
        skipped=tuple(skipped),
        load_before=load_before,
        load_after=load(),
    )


# ---- competitors ----


class OwnRanks:
    """This package's workers under one of the names OURS, OUT, ARENA; between batches they block on their pipe."""

    def __init__(self, pool: WorkerPool, name: str) -> None:
        self.pool, self.name = pool, name

    def batch(self, order: Mapping[str, Any], iterations: int) -> float:
        """Seconds of one call, of the slowest rank. Raises BenchError."""
        try:
            return max(self.pool.run(_own_batch, dict(order), self.name, iterations))
        except ParallelLabError as error:
            raise BenchError(message(f"{self.name}: {first_line(error)}", where=f"bench {order['op']}")) from error


def _start_peers(
    stack: contextlib.ExitStack, ranks: int, peers: bool, mpis: Sequence[str]
) -> tuple[list[RankGroup], list[tuple[str, str]], list[tuple[str, str]]]:
    """(groups, missing, versions); each group is closed with `stack`."""
    groups, missing = [], []
    versions = [("ours", f"parallel-lab {installed_version('parallel-lab') or ''}".strip())]
    # name, kind of rank (peers.py), ranks, MPI's environment, version
    wanted: list[tuple[str, str, int, Mapping[str, str] | None, str]] = []
    wanted += [(FUTEX, "futex", ranks, None, ""), (COPY, "copy", 2, None, "")]
    wanted += [(BARE, "bare", ranks, None, "")] if peers else []
    if peers and without_torch():
        missing.append((GLOO, without_torch()))
    elif peers:
        wanted.append((GLOO, "gloo", ranks, None, f"torch {installed_version('torch')}"))
    for folder in mpis if peers else ():
        prefix = os.path.abspath(folder)
        found = {"PATH": f"{prefix}/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": f"{prefix}/lib"} if folder else {}
        for name, settings in mpi_configurations(found.get("PATH")).items():
            shown = " ".join(f"{k}={v}" for k, v in settings.items()) or "as it is"
            wanted.append((name, "mpi", ranks, found | settings, f"{find_mpirun(found.get('PATH'))}; {shown}"))
    for name, who, count, settings, version in wanted:
        try:
            groups.append(stack.enter_context(RankGroup(name, count, _PEERS, [who], over_mpi=settings)))
            versions += [(name, version)] if version else []
        except (BenchError, MissingPackage) as error:
            missing.append((name, first_line(error)))
    return groups, missing, versions


def mpi_configurations(path: str | None = None) -> dict[str, dict[str, str]]:
    """{name: environment} of the MPI in the folders of `path` (default: PATH); the better counts. Idle ranks yield, or
    sleep; Open MPI's transport or shared memory.
    """
    text = mpirun_version(path)
    number = re.search(r"\d+\.\d+[.\d]*", text)
    names = {"Open MPI": "Open MPI", "OpenRTE": "Open MPI", "Intel": "Intel MPI", "HYDRA": "MPICH"}
    product = next((name for sign, name in names.items() if sign in text), "MPI")
    name = f"{product} {number[0]}" if number else product
    yielding = {"OMPI_MCA_mpi_yield_when_idle": "1"}
    shared_memory = "vader" if " 4." in name else "sm"  # its name in Open MPI 4; in 5
    plain = {**yielding, "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": f"self,{shared_memory}"}
    intel = {"I_MPI_FABRICS": "shm", "I_MPI_PIN": "0"}
    known = {
        "Open MPI": {"": yielding, " ob1": plain},
        "Intel MPI": {"": {**intel, "I_MPI_THREAD_YIELD": "3"}, " asleep": {**intel, "I_MPI_WAIT_MODE": "1"}},
    }
    return {name + more: found for more, found in known.get(product, {"": {}}).items()}


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """That many processes that compute all the time, and end with this one."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", _BUSY], start_new_session=True))
            stack.callback(process.kill)
        yield


# ---- one case ----


def _timing(
    op: str, size_bytes: int, ranks: int, competitors: Sequence[Competing], rounds: int, batch_s: float
) -> Timing:
    order = {"op": op, "bytes": size_bytes, "ranks": ranks}
    seconds, failed = interleaved_batches(competitors, order, rounds, batch_s, LEAST)
    timed = tuple((name, tuple(times)) for name, times in seconds.items())
    return Timing(op, size_bytes, timed, tuple(failed.items()), load())


def _too_large(case: Case, competitors: int) -> str:
    """Why a case is left out: all ranks of all competitors hold their two arrays at the same time."""
    needed, free = 2 * case.size_bytes * case.ranks * competitors, free_memory_bytes()
    if free is not None and needed > 0.7 * free:
        return f"needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
    return ""


# ---- what our workers run ----


def _own_end(comm: Any) -> None:
    comm.state.pop("bench", None)


def _own_batch(comm: Any, order: dict[str, Any], name: str, iterations: int) -> float:
    calls, op = comm.state.setdefault("bench", {}), order["op"]
    if op == "barrier":
        return timed(comm.barrier, iterations, comm.barrier)["seconds"]
    if name not in calls:
        calls[name] = _own_call(comm, Case(op, order["bytes"], comm.world_size), name)
    return timed(calls[name], iterations, comm.barrier)["seconds"]


def _own_call(comm: Any, case: Case, name: str) -> Callable[[], object]:
    """The call of a case in one of the three forms, checked once."""
    values = given(case, comm.rank)
    if name == ARENA:
        x = comm.empty(case.given_elements)
        if x.base is None:  # an array of its own: correct, and not what this column is about
            raise MemoryError(f"comm.empty has no shared memory for {x.nbytes} bytes per rank")
        x[...] = values
    else:
        x = values
    out = None
    if name != OURS and (case.op == "broadcast" or (name == ARENA and case.op == "all_reduce")):
        out = x  # in place
    elif name != OURS:
        out = comm.empty(case.result_elements) if name == ARENA else np.empty(case.result_elements, np.float32)
        out.fill(0)
    if case.op in POINT_TO_POINT:
        call = paired_call(
            case, comm.rank, x, out, lambda other: comm.send(x, other), lambda other: comm.recv(other, out=out)
        )
        check_results(case, comm.rank, call())
        return call
    call = {
        "all_reduce": lambda: comm.all_reduce(x, out=out),
        "broadcast": lambda: comm.broadcast(x, 0, out=out),
        "all_gather": lambda: comm.all_gather(x, out=out),
        "reduce_scatter": lambda: comm.reduce_scatter(x, out=out),
        "all_to_all": lambda: comm.all_to_all(x, out=out),
    }[case.op]
    check_results(case, comm.rank, call())
    x.fill(0)  # sums in place would grow from call to call
    return call
