"""Nothing is silently wrong: each kind of mismatch, in each collective, as a call, started, by a named algorithm and in
messages, with each rank odd once; and no false alarm in programs that are right. Prints how many errors came.
"""

from __future__ import annotations

import random
import time
from collections import Counter

import numpy as np
import pytest

from parallel_lab.base.errors import ParallelLabError
from parallel_lab.lab.collectives.algorithms.algorithm import run_algorithm
from parallel_lab.lab.collectives.algorithms.rounds import KINDS
from parallel_lab.lab.collectives.algorithms.table import algorithm_names
from parallel_lab.ops.collectives.definitions import COLLECTIVES, MESSAGES
from tests.processes.pools import RARELY_OVER_MPI, assert_usable, noted

RANKS = 8
SEED = 20261127
PARTS = 10  # in which the cases of 2 and of 3 ranks are tried; of more ranks every seventh case

pytestmark = [pytest.mark.faults("mismatches"), pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", params=RARELY_OVER_MPI)  # MPI is exhaustive
def pool(request):
    """Eight ranks; cases with fewer are those of a group."""
    with request.param(RANKS, timeout_s=20) as pool:
        yield noted(pool)


# ---- one collective, made from two lines ----


def at_a(comm, kind, x, fields, way):
    if way == "called":
        return getattr(comm, kind)(*x, **fields)
    if way == "started":
        return comm.start(kind, *x, **fields).wait()
    return run_algorithm(comm, kind, way, *x, **fields)


def at_b(comm, kind, x, fields, way):
    if way == "called":
        return getattr(comm, kind)(*x, **fields)
    if way == "started":
        return comm.start(kind, *x, **fields).wait()
    return run_algorithm(comm, kind, way, *x, **fields)


def given(kind, rank, n, fields, shape=None, dtype="f4", fill=1.0):
    """The arguments before the keywords: a value where this rank gives one."""
    if kind == "barrier" or (kind == "scatter" and rank != fields["root"]):
        return () if kind == "barrier" else (None,)
    return (np.full((2 * n, 3 * n) if shape is None else shape, fill, dtype),)


def usual_fields(kind, n):
    definition, fields = MESSAGES[kind], {"group": tuple(range(n))}
    if definition.rooted:
        fields["root"] = 0
    if definition.reducing:
        fields["reduce"] = "sum"
    if "window" in definition.attributes:
        fields["window"] = (2 * n, 0, 2 * n, 2 * n)
    return fields


def mismatches_of(kind, n, odd):
    """{what differs: what the odd rank calls instead, (kind, its own fields, options of `given`)}"""
    definition = MESSAGES[kind]
    found = {"kind": ("all_gather" if kind != "all_gather" else "all_reduce", {}, {}), "missing": None}
    if n > 2:
        found["group"] = kind, {"group": tuple(r for r in range(n) if r != (odd + 1) % n)}, {}
        root = usual_fields(kind, n).get("root")
        if root is not None and root not in found["group"][1]["group"]:
            found["group"][1]["root"] = odd
    if definition.sender and kind != "scatter":  # only the root of a scatter says what it is like
        found["shape"] = kind, {}, {"shape": (3 * n, 2 * n)}
        found["dtype"] = kind, {}, {"dtype": "i4"}
    if definition.reducing:
        found["reduction"] = kind, {"reduce": "max"}, {}
    for name in ("dim", "split_dim"):
        if name in definition.attributes and "window" not in definition.attributes:
            found["dim"] = kind, {name: 1}, {}
    if definition.rooted:
        found["root"] = kind, {"root": 1}, {}
    if definition.sender:
        found["order"] = "swapped"
    return found


def one_case(comm, kind, n, odd, what, way):
    """Two calls; the odd rank makes one of them otherwise."""
    fields, rank = usual_fields(kind, n), comm.rank
    if rank >= n:
        return
    instead = mismatches_of(kind, n, odd)[what] if rank == odd else None
    places = [(at_a, 1.0), (at_b, 2.0)]
    if instead == "swapped":
        places.reverse()
    if rank == odd and what == "missing":
        places.pop()
    for place, fill in places:
        if rank == odd and isinstance(instead, tuple):
            other, own, options = instead
            mine = {k: v for k, v in {**usual_fields(other, n), **fields, **own}.items() if k in allowed(other)}
            place(comm, other, given(other, rank, n, mine, **options), mine, way)
        else:
            place(comm, kind, given(kind, rank, n, fields, fill=fill), fields, way)


def allowed(kind):
    return {"group", "root", "reduce", "dim", "split_dim", "concat_dim", "window"} & {
        "group",
        *MESSAGES[kind].attributes,
    }


def ways_of(kind, n):
    names = algorithm_names(kind, n) if kind in KINDS else ()
    return "called", "started", *(name for name in names[:2])


def messages_case(comm, n, odd, what, tagged, started):
    """Every rank sends two messages to the next, and receives two from the one before."""
    rank, tags = comm.rank, (5, 6) if tagged else (0, 0)
    if rank >= n:
        return
    after, before, is_odd = (rank + 1) % n, (rank - 1) % n, rank == odd
    for i, tag in enumerate(tags):
        if is_odd and what == "missing send" and i:
            continue
        value = np.ones((3, 2) if is_odd and what == "shape" else (2, 3), "i4" if is_odd and what == "dtype" else "f4")
        tag = 9 if is_odd and what == "tag of a send" and i else tag
        if started:
            comm.start("send", value, (rank, after), sr_tag=tag).wait()
        else:
            comm.send(value, after, sr_tag=tag)
    for i, tag in enumerate(tags):
        if is_odd and what == "missing recv" and i:
            continue
        tag = 9 if is_odd and what == "tag of a recv" and i else tag
        source = rank - 2 if is_odd and what == "source" else before
        if started:
            fields = {"shape": (2, 3), "dtype": "float32", "sr_tag": tag}
            comm.start("recv", None, (source % n, rank), **fields).wait()
        else:
            comm.recv(source % n, (2, 3), "f4", sr_tag=tag)


MESSAGE_FAULTS = ("missing send", "missing recv", "shape", "dtype", "tag of a send", "tag of a recv", "source")


def all_cases(n):
    """(call, what differs, program, arguments) of `n` ranks."""
    for odd in range(n):
        for kind in COLLECTIVES:
            for way in ways_of(kind, n):
                for what in mismatches_of(kind, n, odd):
                    if way not in ("called", "started") and what == "kind":
                        continue  # another kind may have no algorithm of that name
                    yield (
                        f"{kind}, {'algorithm' if way not in ('called', 'started') else way}",
                        what,
                        one_case,
                        (*(kind, n, odd, what, way),),
                    )
        for what in MESSAGE_FAULTS[: None if n > 2 else -1]:
            for tagged in (False, True):
                for started in (False, True):
                    call = f"send and recv, {'started' if started else 'called'}"
                    yield call, what, messages_case, (n, odd, what, tagged, started)


def outcome(pool, program, arguments):
    try:
        pool.run(program, *arguments)
    except ParallelLabError as error:
        return "told", str(error)
    return "silent", ""


@pytest.mark.parametrize(
    ("n", "part"),
    [
        pytest.param(n, part, marks=[] if n == 3 and not part else pytest.mark.exhaustive, id=f"ranks{n}-part{part}")
        for n in range(2, RANKS + 1)
        for part in range(PARTS if n < 4 else 1)
    ],
)
def test_every_mismatch_is_reported(pool, n, part):
    found, silent = Counter(), []
    for call, what, program, arguments in list(all_cases(n))[part :: PARTS if n < 4 else 7]:
        how, _ = outcome(pool, program, arguments)
        found[call, what, how] += 1
        if how == "silent":
            silent.append((call, what, arguments))
    assert_usable(pool)
    for (call, what, how), count in sorted(found.items()):
        print(f"{call:30} {what:14} {how} {count}")
    print(f"{sum(found.values())} cases of {n} ranks, {len(silent)} silent")
    assert not silent


# ---- right programs ----


def matched(comm, seed, count):
    """Drawn calls, the same on all ranks, from lines that differ as they may; each rank waits as its own dice say."""
    draws, own = random.Random(seed), random.Random(seed * 100 + comm.rank)
    world, calls = tuple(range(comm.world_size)), 0
    for _ in range(count):
        group = world[: draws.randrange(2, len(world) + 1)]
        root, form, size = draws.choice(group), draws.randrange(11), draws.choice((1, 7, 700))
        if own.random() < 0.05:
            time.sleep(own.random() * 2e-3)
        if comm.rank not in group:
            continue
        calls += 1
        x = np.full(size, comm.rank + 1.0)
        total, at_root = sum(r + 1.0 for r in group), comm.rank == root
        if form == 0:  # the idiom
            if at_root:  # noqa: SIM108 (two lines)
                got = comm.broadcast(x, root, group)
            else:
                got = comm.broadcast(None, root, group)
            want = root + 1.0
        elif form == 1:  # the root loops, the others have a line for each
            if at_root:
                for value in (x, x + 1):
                    got = comm.broadcast(value, root, group)
            else:
                comm.broadcast(None, root, group)
                got = comm.broadcast(None, root, group)
            want = root + 2.0
        elif form == 2:  # the others loop
            if at_root:
                comm.broadcast(x, root, group)
                got = comm.broadcast(x + 1, root, group)
            else:
                for _ in range(2):
                    got = comm.broadcast(None, root, group)
            want = root + 2.0
        elif form == 3:
            got, want = comm.reduce(x, "sum", root, group), total if at_root else None
        elif form == 4:
            if at_root:
                got, want = comm.reduce(x, "max", root, group), group[-1] + 1.0
            else:
                got, want = comm.reduce(x, "max", root, group), None
        elif form == 5:
            if at_root:
                got, want = comm.gather(x, 0, root, group)[:size], group[0] + 1.0
            else:
                got, want = comm.gather(x, 0, root, group), None
        elif form == 6:
            if at_root:
                got = comm.scatter(np.full(size * len(group), 3.0), 0, root, group)
            else:
                got = comm.scatter(None, 0, root, group)
            want = 3.0
        elif form == 7:  # a tag declares any two lines to be one
            if comm.rank == group[-1]:
                got = comm.all_reduce(x, "sum", group, tag="total")
            else:
                got = comm.all_reduce(x, "sum", group, tag="total")
            want = total
        elif form == 8:
            if at_root:
                got = comm.start("broadcast", x, group, root=root).wait()
            else:
                got = comm.start("broadcast", None, group, root=root).wait()
            want = root + 1.0
        elif form == 9:
            comm.barrier(group)
            got, want = run_algorithm(comm, "all_reduce", "ring", x, group=group), total
        else:
            if at_root:
                got = run_algorithm(comm, "broadcast", "tree", x, group=group, root=root)
            else:
                got = run_algorithm(comm, "broadcast", "tree", x, group=group, root=root)
            want = root + 1.0
        assert (got is None) == (want is None) and (got is None or set(got.tolist()) == {want}), (form, got, want)
    return calls


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "count", [300, pytest.param(10_000, marks=pytest.mark.exhaustive)], ids=["few", "ten_thousand"]
)
def test_right_programs_raise_no_false_alarm(pool, count):
    print(f"seed {SEED}: {pool.run(matched, SEED, count)} calls per rank, 0 false alarms")
    assert_usable(pool)
