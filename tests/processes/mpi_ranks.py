"""What ranks under mpirun run: `mpirun -n 4 python tests/processes/mpi_ranks.py <what> [...]`. Rank 0 prints."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import tracemalloc
import warnings
from dataclasses import replace

import numpy as np

from parallel_lab.base.errors import CollectiveMismatch, CollectiveTimeout, DeadlockError, ParallelLabError
from parallel_lab.ops.collectives.definitions import COLLECTIVES, REDUCTIONS
from parallel_lab.processes.mpi import connect
from parallel_lab.run.communicator import Request, answer
from tests.processes.drawn import DTYPES, draw, fields_and_shape, groups_of, normal_dims, off_root

SEED = 20261203
REDUCING = ("all_reduce", "reduce", "reduce_scatter")


def say(text: str) -> None:
    """One write: the lines of different ranks do not mix on their way through mpirun."""
    os.write(1, f"{text}\n".encode())


def same_requests(world: int, count: int) -> list[dict[int, Request]]:
    """`count` requests, the same on every rank: every kind, drawn from all groups, dtypes, dims and shapes."""
    rng = np.random.default_rng([SEED, world])
    drawn = []
    for index in range(count):
        kind = COLLECTIVES[index % len(COLLECTIVES)]
        groups = groups_of(world)
        group = groups[int(rng.integers(len(groups)))]
        # max of complex numbers: not everywhere
        dtype = str(rng.choice([d for d in DTYPES if not (kind in REDUCING and d == "complex64")]))
        choices = fields_and_shape(kind, len(group), group[-1], True)
        fields, shape = choices[int(rng.integers(len(choices)))]
        case = {}
        for rank in group:
            request = Request(kind, group, None if kind == "barrier" else draw(rng, shape, dtype), **fields)
            case[rank] = off_root(request) if kind in ("broadcast", "scatter") and rank != request.root else request
        drawn.append(case)
    return [drawn[int(i)] for i in rng.permutation(count)]


def sum_bound(values: list[np.ndarray]) -> np.ndarray:
    """How far orders of adding may differ: 2 (n - 1) eps times the sum of magnitudes (Higham 2002, section 4.2)."""
    eps = float(np.finfo(values[0].dtype).eps)
    return 2 * (len(values) - 1) * eps * np.sum([np.abs(v).astype("f8") for v in values], axis=0)


def compare(comm, count: int, *, mixed: bool) -> None:
    """Random requests over many groups; every reply against `communicator.answer` on what all gave: bit for bit,
    or, where the library adds floats, to rounding.

    mixed  most of them are started, some with `out` or in place; each rank waits, asks and makes progress where its own
           dice say

    No rank can wait for ever in a right implementation: the members of a group start and call in one order, that of the
    list, and what a rank waits for stands before the place where it waits.
    """
    shared = np.random.default_rng([SEED, comm.world_size, 1])
    own = np.random.default_rng([SEED, comm.world_size, 2, comm.rank])
    np.seterr(all="ignore")  # what products overflow to is part of the comparison
    waiting, counts = [], {"replies": 0, "started": 0, "blocking": 0, "in place": 0, "out": 0}

    def check(got, request, out, case, label):
        group = request.group
        want = answer([normal_dims(case[rank]) for rank in group])[group.index(comm.rank)]
        assert (got is None) == (want is None), label
        if got is None:
            return
        counts["replies"] += 1
        assert (got.dtype, got.shape) == (want.dtype, want.shape), label
        assert got.flags.c_contiguous and got.flags.writeable, label
        assert got is out or (out is None and got.flags.owndata), label
        if comm.reproducible or request.kind not in REDUCING or got.tobytes() == want.tobytes():
            assert got.tobytes() == want.tobytes(), label
            return
        assert request.reduce in ("sum", "mean", "prod") and got.dtype.kind in "fc", label
        values = [case[rank].value for rank in group]
        if request.kind == "reduce_scatter":
            values = [np.split(v, len(group), axis=request.dim)[group.index(comm.rank)] for v in values]
        rounding = 2 * len(group) * float(np.finfo(want.dtype).eps) * np.abs(want)
        bound = rounding if request.reduce == "prod" else sum_bound(values)
        distance = np.abs(got.astype("c16") - want.astype("c16"))
        np.testing.assert_array_less(distance, bound + np.finfo(want.dtype).tiny, err_msg=label)

    def take(at):
        handle, *known = waiting.pop(at)
        check(handle.wait(), *known)
        assert handle.end_s is not None

    for index, drawn in enumerate(same_requests(comm.world_size, count)):
        start = mixed and shared.random() < 0.6
        first = next(iter(drawn.values()))
        fields = {}
        if mixed and first.kind in REDUCING:
            known = [r for r in REDUCTIONS if r != "mean" or first.value.dtype.kind in "fc"]
            fields["reduce"] = str(shared.choice(known))
        if comm.rank in drawn:
            case = {rank: replace(request, **fields) for rank, request in drawn.items()}
            mine = case[comm.rank]
            value = None if mine.value is None else mine.value.copy()
            out, how = None, own.integers(3) if mixed else 0
            replies = mine.kind != "barrier" and (mine.kind not in ("reduce", "gather") or mine.root == comm.rank)
            if how and replies and mine.group != (comm.rank,):
                in_place = how == 1 and mine.kind in ("all_reduce", "reduce")
                answers = answer([normal_dims(case[rank]) for rank in mine.group])
                out = value if in_place else np.empty_like(answers[mine.group.index(comm.rank)])
                counts["in place" if in_place else "out"] += 1
            request = replace(mine, value=value, out=out, origin=f"case {index}" if mixed else "")
            way = "started" if start else "blocking"
            label = f"rank {comm.rank}, {way} case {index}: {mine.kind} {mine.reduce} group {mine.group} {how}"
            counts[way] += 1
            if start:
                waiting.append((comm.begin(request), mine, out, case, label))
            else:
                check(comm.answer(request), mine, out, case, label)
        dice = own.random()
        if waiting and dice < 0.3:
            take(int(own.integers(len(waiting))))
        elif waiting and dice < 0.5 and waiting[0][0].done():
            take(0)
        elif dice < 0.6:
            comm.progress()
    while waiting:
        take(int(own.integers(len(waiting))))
    total = comm.all_gather(np.array([list(counts.values())]))
    replies, started, blocking, in_place, given = total.sum(axis=0)
    assert total[:, 0].min() > count // 8, total
    if mixed:
        assert min(started, blocking) > count // 3 and min(in_place, given) > count // 40, total
    if comm.rank == 0:
        say(f"compared {started + blocking if mixed else replies} replies")


def memory(comm) -> None:
    """What a collective with `out` takes besides it, by numpy: for sums the others' parts; for moves, nothing."""
    n, world = comm.world_size, tuple(range(comm.world_size))
    whole, part = np.ones(1_200_000), np.ones(1_200_000 // n)
    other, given = np.empty_like(whole), whole if comm.rank == 0 else None
    asked = {
        "all_reduce": (Request("all_reduce", world, whole, out=other), whole.nbytes),
        "all_reduce in place": (Request("all_reduce", world, whole, out=whole), whole.nbytes),
        "all_gather": (Request("all_gather", world, part, out=other), 0),
        "all_to_all": (Request("all_to_all", world, whole, out=other), 0),
        "reduce_scatter": (Request("reduce_scatter", world, whole, out=np.empty_like(part)), whole.nbytes),
        "broadcast": (Request("broadcast", world, given, root=0, shape=whole.shape, dtype="float64", out=other), 0),
        "scatter": (Request("scatter", world, given, root=0, out=np.empty_like(part)), 0),
    }
    for name, (request, allowed) in asked.items():
        for started in (False, True):
            comm.barrier()
            tracemalloc.start()
            reply = comm.begin(request).wait() if started else comm.answer(request)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert reply is request.out, name
            # 200 kB: everything else Python makes, line caches of tracebacks included
            assert peak < allowed + 200_000, (name, started, peak)
    if comm.rank == 0:
        say("no copies")


def large(comm) -> None:
    """4 MB, a prime number of elements: no border of the pieces divides it; and all orders of magnitude."""
    rng = np.random.default_rng(SEED)
    values = [
        (rng.standard_normal(1_000_003) * 10.0 ** rng.integers(-3, 4, 1_000_003)).astype("f4")
        for _ in range(comm.world_size)
    ]
    world = tuple(range(comm.world_size))
    requests = [Request("all_reduce", world, v) for v in values]
    assert comm.answer(requests[comm.rank]).tobytes() == answer(requests)[0].tobytes()
    got = comm.answer(Request("broadcast", world, values[1] if comm.rank == 1 else None, root=1))
    assert got.tobytes() == values[1].tobytes()
    if comm.rank == 0:
        say("equal")


def caught(comm) -> None:
    """A program that catches the mismatch on every rank goes on; the world is unusable, and says so each time."""
    errors = []
    for _ in range(2):
        try:
            comm.all_reduce(np.ones(3 + comm.rank % 2), tag="sum")
        except CollectiveMismatch as error:
            errors.append(str(error))
    assert len(errors) == 2 and all("(3,)" in text and "(4,)" in text for text in errors), errors
    say(f"rank {comm.rank} caught it")


def caught_late(comm) -> None:
    """As `caught`; rank 1 reads what the others told it long after they have read all that it told them."""
    leave = comm._handshake.leave

    def leave_and_pause(sent_to) -> None:
        leave(sent_to)
        time.sleep(0.5)

    if comm.rank == 1:
        comm._handshake.leave = leave_and_pause
    caught(comm)


def timeout(comm) -> None:
    """Rank 1 sleeps; the others name it, also those that do not wait for it themselves."""
    if comm.rank == 1:
        time.sleep(30)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            # rank 2 waits for rank 1, rank 0 waits for rank 2
            comm.all_reduce(np.ones(1), group=(1, 2) if comm.rank == 2 else (0, 2))
        except CollectiveTimeout as error:
            assert error.ranks == [1], error.ranks
            assert len(told) == 1 and "has waited" in str(told[0].message), told
            say(f"rank {comm.rank}: {error}")
            raise


def deadlock(comm) -> None:
    """Every rank receives from its neighbour before anybody sends."""
    try:
        comm.recv((comm.rank + 1) % comm.world_size)
    except DeadlockError as error:
        assert error.ranks == list(range(comm.world_size)), error.ranks
        say(f"rank {comm.rank}: {error}")


def in_thread(call) -> None:
    thread = threading.Thread(target=call, name="loader")
    thread.start()
    thread.join()


def fail() -> None:
    raise ValueError("rank one is broken")


def exit_and_catch() -> None:
    try:
        sys.exit(5)
    except SystemExit as ended:
        assert ended.code == 5


def fork_a_child_that_ends() -> None:
    child = os.fork()
    if child == 0:
        sys.exit(6)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6


def system_exit() -> None:
    raise SystemExit(4)


# what rank 1 does before the last barrier
ODD = {
    "raise": fail,
    "thread": lambda: in_thread(lambda: 1 / 0),
    "sys.exit": lambda: sys.exit(3),
    "sys.exit text": lambda: sys.exit("no data here"),
    "SystemExit": system_exit,
    "sys.exit caught": exit_and_catch,
    "thread exits": lambda: in_thread(lambda: sys.exit(6)),
    "forked child ends": fork_a_child_that_ends,
    "os._exit": lambda: os._exit(7),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def end(comm, what: str) -> None:
    """One of the ways in which a program ends; after a barrier, so that all have begun."""
    comm.barrier()
    odd = comm.rank == 1
    if what in ODD and odd:
        ODD[what]()
    if what == "return" and odd:
        return
    if what == "raise while handling":
        try:
            if odd:
                fail()
            comm.all_reduce(np.ones(2))
        except ParallelLabError:
            raise RuntimeError("a consequence") from None
    if what == "exit while others work":
        if not odd:
            time.sleep(1.0)
            say("worked on")
        return
    if what == "unread":
        if odd:
            comm.send(np.ones(200_000), 0)
        return
    if what == "kill while others wait for a handle":
        handle = comm.start("all_reduce", np.ones(400_000))
        if odd:
            os.kill(os.getpid(), signal.SIGKILL)
        handle.wait()
        comm.start("barrier").wait()
    if what == "not waited for":
        handle = comm.start("all_reduce", np.ones(400_000))
        if not odd:
            handle.wait()
        return
    if what == "started mismatch":
        comm.start("all_reduce", np.ones(3 + odd), tag="sum").wait()
    if what == "mismatch":
        comm.all_reduce(np.ones(3 + odd), tag="sum")
    comm.barrier()
    say(f"rank {comm.rank} is through")


def main() -> None:
    what = sys.argv[1]
    if "native" in what:
        os.environ["PARALLEL_LAB_MPI_REPRODUCIBLE"] = "0"
    warnings.simplefilter("error" if what not in ("timeout", "deadlock") else "ignore")
    limits = {"timeout": (1.5, 0.5), "deadlock": (20.0, 0.3)}.get(what, (20.0, 10.0))
    comm = connect(timeout_s=limits[0], warn_after_s=limits[1])
    assert connect() is comm
    assert comm.reproducible == ("native" not in what)
    if what in ("compare", "native", "mixed", "mixed native"):
        compare(comm, int(sys.argv[2]), mixed="mixed" in what)
    elif what in ("large", "memory", "caught", "caught_late", "timeout", "deadlock"):
        globals()[what](comm)
    else:
        end(comm, what)


if __name__ == "__main__":
    main()
