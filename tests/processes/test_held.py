"""Arrays of other members that a rank reads where they lie: when the run stops, a late reader gets an error and no
value.

Members that hear of a fault do not wait any more, and use their arrays for something else, while a slow one may still
read them.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from parallel_lab.base.errors import RankRaised
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.processes.shm.arena import ABORT
from parallel_lab.run.communicator import Request

pytestmark = pytest.mark.timeout(60)
LARGE, MEDIUM = 8 << 20, 16 << 10  # elements of float32: read in private memory too; of one step


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(3) as pool:
        yield pool


def late(comm, folder, request, memory, meeting, when):
    """Rank 2 fails while rank 0 is late: before it comes to this barrier of the collective, or before it reads."""
    if comm.rank == 2:
        end = time.monotonic() + 10
        while not (folder / "late").exists() and time.monotonic() < end:
            time.sleep(1e-3)
        raise ValueError("mine")
    size = request.pop("size")
    x = comm.empty(size) if memory == "heap" else np.empty(size, np.float32)
    x[...] = comm.rank + 1
    out = comm.empty(size) if memory == "heap" and request["kind"] == "all_reduce" else None
    silent = "root" in request and request["kind"] in ("broadcast", "scatter") and comm.rank != request["root"]
    asked = Request(group=(0, 1), value=None if silent else x, out=out, **request)
    comm.answer(asked)  # what is tried out and prepared the first time
    group = comm._groups[(0, 1), False]
    come, words = group.come, comm._words

    def wait_for(ready):
        end = time.monotonic() + 10
        while not ready():
            assert time.monotonic() < end
            time.sleep(1e-4)

    def slow(check, ring=True):
        slow.meeting += 1
        if slow.meeting != meeting:
            return come(check, ring)
        wait_for(lambda: words[group.reached[1]] > group.seq)
        there = come(check, ring) if when == "after" else None
        (folder / "late").touch()
        wait_for(lambda: words[ABORT])
        time.sleep(0.05)  # the other one has left
        return come(check, ring) if there is None else there

    slow.meeting = 0
    if comm.rank == 0:
        group.come = slow
    try:
        reply = comm.answer(asked)
        (folder / f"reply.{comm.rank}").write_text(f"{slow.meeting} meetings")
        return reply
    finally:
        x[...] = 7
        if comm.rank == 0:
            del group.come
            (folder / "meetings").write_text(str(slow.meeting))


CASES = {
    **{
        f"{kind}, heap, {size} elements": ({"kind": kind, "size": size}, "heap", 2, "before")
        for kind in ("all_reduce", "reduce_scatter", "all_to_all", "all_gather")
        for size in (LARGE, MEDIUM)
        if kind != "all_reduce" or size == LARGE
    },
    "reduce, heap": ({"kind": "reduce", "root": 0, "size": LARGE}, "heap", 2, "before"),
    "gather, heap": ({"kind": "gather", "root": 0, "size": LARGE}, "heap", 1, "after"),
    "broadcast, heap": ({"kind": "broadcast", "root": 1, "size": LARGE}, "heap", 1, "after"),
    "broadcast, heap, one step": (
        {"kind": "broadcast", "root": 1, "shape": (MEDIUM,), "dtype": "float32", "size": MEDIUM},
        "heap",
        1,
        "after",
    ),
    "scatter, heap": ({"kind": "scatter", "root": 1, "size": LARGE}, "heap", 1, "after"),
    **{
        f"{kind}, private, meeting {meeting}": ({"kind": kind, "size": LARGE}, "private", meeting, "before")
        for kind, meetings in (("all_reduce", (2, 3)), ("reduce_scatter", (2,)), ("all_to_all", (2,)))
        for meeting in meetings
    },
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("request_", "memory", "meeting", "when"), CASES.values(), ids=CASES)
def test_a_late_rank_gets_no_value_that_others_may_have_changed(pool, tmp_path, request_, memory, meeting, when):
    with pytest.raises(RankRaised, match=r"rank 2 .* raised ValueError: mine"):
        pool.run(late, tmp_path, dict(request_), memory, meeting, when)
    assert (tmp_path / "late").exists()
    assert not (tmp_path / "reply.0").exists()
