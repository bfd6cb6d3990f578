"""Large private values that ranks read in each other's memory: the bits of `answer`, and where it cannot be done."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import itertools
import os
import signal
import time

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch, ParallelLabError, RankDied, RankRaised, ShapeError
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.processes.shm.fast import call_sites, peer_memory
from parallel_lab.run.communicator import Request, answer, reply_shape
from tests.crossed import first
from tests.processes.drawn import DTYPES, assert_same, draw, placed
from tests.processes.processes import state_of

SEED = 20261122
KINDS = tuple(peer_memory.PEER_FROM_BYTES)

pytestmark = pytest.mark.timeout(60)


def lower(comm, from_bytes=1, run_bytes=1):
    """From now on this worker goes this way with small values too; each run tries it out again."""
    peer_memory.PEER_FROM_BYTES.update(dict.fromkeys(KINDS, from_bytes))
    peer_memory.RUN_BYTES = run_bytes
    call_sites.fits_one_step = lambda *_: False
    comm._collectives.small_bytes = 0


@pytest.fixture(scope="module", params=first(1, [3, 2, 4]))
def pool(request):
    with WorkerPool(request.param) as pool:
        pool.run(lower)
        yield pool


@pytest.fixture
def two(request):
    """A pool of a test's own: what is done to its workers stays in them."""
    with WorkerPool(2, timeout_s=5) as pool:
        pool.run(lower)
        yield pool


def requests_of(n: int, kind: str, dtype: str, shape: tuple[int, ...], rng, **fields) -> list[Request]:
    return [Request(kind, tuple(range(n)), draw(rng, shape, dtype), **fields) for _ in range(n)]


def forms(n: int, kind: str, large: bool) -> list[tuple[tuple[int, ...], dict]]:
    """Shapes and fields of a kind; `large`: several blocks of what is read at a time."""
    a, b, c = 2 * n, 3 * n, 132_004 // n**2 + 1 if large else 5
    if kind == "all_reduce":
        shapes = [(a * b * c + 7,)] if large else [(100,), (3, 41), (16,), (n * 16 + 1,)]
        return [(shape, {"reduce": reduce}) for shape in shapes for reduce in ("sum", "max", "min", "prod", "mean")]
    if kind == "reduce_scatter":
        return [((a, b, c), {"dim": dim, "reduce": reduce}) for dim in (0, 1, -2) for reduce in ("sum", "max")]
    return [((a, b, c), {"split_dim": split, "concat_dim": concat}) for split in (0, 1) for concat in (0, 1, 2, -1)]


def answered(comm, requests, places):
    """Replies, inputs afterwards, and reads in others' memory, by request.  places: (value, result) of each"""
    replies, values, reads, reader = [], [], [], comm._collectives.peers
    read = type(reader).read

    def counting(*where):
        reads[-1] += 1
        return read(reader, *where)

    reader.read = counting
    for request, (value_in, out_in) in zip(requests, places, strict=True):
        value, out = placed(comm, request.value, value_in == "heap"), None
        if out_in == "self":
            out = value
        elif out_in is not None:
            out = (comm.empty if out_in == "heap" else np.empty)(reply_shape(request), value.dtype)
        reads.append(0)
        replies.append(comm.answer(dataclasses.replace(request, value=value, out=out)))
        values.append(value)
        assert out is None or replies[-1] is out
    del reader.read
    return replies, values, reads


def assert_same_bits(pool, made: list[list[Request]], places: list[list[tuple]] | None = None) -> None:
    """made: per case the requests by rank; places: per case (value, out) by rank."""
    n = pool.world_size
    places = places or [[("own", None)] * n] * len(made)
    given = [([case[rank] for case in made], [where[rank] for where in places]) for rank in range(n)]
    found = pool.run_each(answered, given)
    for index, case in enumerate(made):
        want = answer(case)
        assert any(reads[index] for *_, reads in found) or all(value_in == "heap" for value_in, _ in places[index])
        for rank in range(n):
            replies, values, _ = found[rank]
            label = f"case {index}, rank {rank}: {case[rank].kind} {case[rank].value.dtype} {places[index][rank]}"
            assert_same(replies[index], want[rank], label)
            if places[index][rank][1] != "self":
                assert values[index].tobytes() == case[rank].value.tobytes(), f"{label}: the value has changed"


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_and_dtype_gives_the_bits_of_answer(pool, kind):
    rng, n, made = np.random.default_rng([SEED, 1]), pool.world_size, []
    for dtype in DTYPES:
        for shape, fields in forms(n, kind, False):
            if fields.get("reduce") != "mean" or np.dtype(dtype).kind in "fc":
                made.append(requests_of(n, kind, dtype, shape, rng, **fields))
    with np.errstate(all="ignore"):
        assert_same_bits(pool, made)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_values_of_many_blocks_give_the_bits_of_answer(pool, kind):
    rng, n = np.random.default_rng([SEED, 2]), pool.world_size
    made = [requests_of(n, kind, "float32", shape, rng, **fields) for shape, fields in forms(n, kind, True)]
    assert made[0][0].value.nbytes > n * peer_memory.BLOCK_BYTES
    assert_same_bits(pool, made)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_wherever_values_and_results_lie(pool, kind):
    """Some in their own memory, some in heaps, in place or not, on each rank another way."""
    rng, n, made, places = np.random.default_rng([SEED, 3]), pool.world_size, [], []
    where = list(itertools.product(("own", "heap"), (None, "own", "heap", *(["self"] if kind == "all_reduce" else []))))
    for shape, fields in forms(n, kind, False):
        for _ in range(12):
            made.append(requests_of(n, kind, "float64", shape, rng, **fields))
            given = [where[i] for i in rng.integers(len(where), size=n)]
            given[0] = ("own", given[0][1])  # one at least has it where only the system can read it
            places.append(given)
    assert_same_bits(pool, made, places)


def foreign_order(comm, kind, value_in, out_in):
    """Values in the other byte order; results, where they are given, are in the machine's, as the contract has it."""
    x = (np.arange(64 * 12) % 13 + comm.rank).astype(">f4")
    request = Request(kind, tuple(range(comm.world_size)), placed(comm, x, value_in == "heap"))
    given = out_in[comm.rank % 2]
    out = None if given is None else (comm.empty if given == "heap" else np.empty)(reply_shape(request), "f4")
    return comm.answer(dataclasses.replace(request, out=out)).tolist()


@pytest.mark.quick(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value_in", ["own", "heap"])
def test_values_in_the_other_byte_order(pool, kind, value_in):
    n = pool.world_size
    values = [(np.arange(64 * 12) % 13 + rank).astype("f4") for rank in range(n)]
    want = [reply.tolist() for reply in answer([Request(kind, tuple(range(n)), value) for value in values])]
    for out_in in itertools.product((None, "own", "heap"), repeat=2):
        assert pool.run(foreign_order, kind, value_in, out_in) == want, out_in


@pytest.mark.quick(2)
@pytest.mark.parametrize("dims", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_elements_larger_than_a_block(two, dims):
    def work(comm, dims):
        x = np.zeros((4, 2), f"V{peer_memory.BLOCK_BYTES + 8}")
        x.view(np.uint8).reshape(8, -1)[...] = np.arange(8)[:, None] + 10 * comm.rank
        reply = comm.all_to_all(x, *dims)
        return reply.shape, reply.view(np.uint8).reshape(8, -1).T[:: peer_memory.BLOCK_BYTES].tolist()

    values = [np.arange(8).reshape(4, 2) + 10 * rank for rank in (0, 1)]
    want = answer([Request("all_to_all", (0, 1), value, split_dim=dims[0], concat_dim=dims[1]) for value in values])
    assert two.run(work, dims) == [(reply.shape, [reply.reshape(-1).tolist()] * 2) for reply in want]


def overlapping(comm, kind):
    """What stands in memory that value and result share, for results that begin before, behind and within the value."""
    found = []
    rng, n = np.random.default_rng([SEED, 4, comm.rank]), comm.world_size
    size = n * 24
    for shift in (0, 1, 5, size // n * comm.rank, size // 2):
        memory = rng.standard_normal(3 * size)
        value = memory[size : 2 * size]
        small = size // n if kind == "reduce_scatter" else size
        out = memory[size + shift : size + shift + small]
        before = value.copy()
        assert comm.answer(Request(kind, tuple(range(n)), value, out=out)) is out
        found.append((before, out.copy()))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_results_that_overlap_their_values(pool, kind):
    n = pool.world_size
    by_rank = pool.run(overlapping, kind)
    for case in zip(*by_rank, strict=True):
        want = answer([Request(kind, tuple(range(n)), before) for before, _ in case])
        assert [out.tobytes() for _, out in case] == [reply.tobytes() for reply in want]


def test_reads_in_several_calls_to_the_system(pool):
    """More runs than one call takes, and runs longer than one call reads."""

    def limit(comm, runs, largest):
        peer_memory.MOST_RUNS, peer_memory.LARGEST_READ = runs, largest

    rng, n = np.random.default_rng([SEED, 5]), pool.world_size
    asked = [(kind, *form) for kind in KINDS for form in forms(n, kind, False)]
    made = [requests_of(n, kind, "float32", shape, rng, **fields) for kind, shape, fields in asked]
    pool.run(limit, 3, 24)
    try:
        assert_same_bits(pool, made)
    finally:
        pool.run(limit, peer_memory.MOST_RUNS, peer_memory.LARGEST_READ)


def test_groups_try_it_out_each_for_itself(pool):
    def work(comm):
        n = comm.world_size
        x, pair = np.arange(64.0) + comm.rank, (0, n - 1)
        total = comm.all_reduce(x)
        for _ in range(3):
            if comm.rank in pair:
                assert comm.all_reduce(x, group=pair).tolist() == (2 * np.arange(64.0) + n - 1).tolist()
            total = comm.all_reduce(x, out=total)
        return total.tolist(), sorted(members for (members, _), group in comm._groups.items() if group.reads_far)

    n = pool.world_size
    want = (n * np.arange(64.0) + n * (n - 1) / 2).tolist()
    for rank, (total, tried) in enumerate(pool.run(work)):
        assert total == want
        assert tried == sorted({tuple(range(n)), (0, n - 1)}) if rank in (0, n - 1) else [tuple(range(n))]


def test_started_collectives_and_small_or_short_values_take_the_buffers(two):
    def work(comm):
        lower(comm, 4096, 256)
        x = np.arange(1024.0)
        comm.all_reduce(x[:256])
        comm.start("all_reduce", x).wait()
        comm.answer(Request("all_to_all", (0, 1), x.reshape(64, 16), split_dim=1, concat_dim=0))  # runs of 64 bytes
        before = [group.reads_far for group in comm._groups.values()]
        comm.answer(Request("all_to_all", (0, 1), x.reshape(16, 64), split_dim=1, concat_dim=0))  # of 256
        return before, comm._groups[(0, 1), False].reads_far

    assert two.run(work) == [([None, None], True)] * 2


# ---- where it cannot be done ----


def refuse(comm, how):
    """Let this rank be one that the system, or what it finds, keeps from reading."""
    reader = comm._collectives.peers
    if how == "no such call":
        reader._call = None
    elif how == "refused":
        reader._call = lambda *_: -1
    else:
        reader._token[0] += 1  # what others find is not what they expect: the number belongs to another process


@pytest.mark.quick(2)
@pytest.mark.parametrize("how", ["no such call", "refused", "another process"])
def test_who_cannot_read_takes_all_to_the_buffers(two, how):
    def work(comm, how):
        x = np.arange(640.0).reshape(4, 160) * (comm.rank + 1)
        if comm.rank == 1:
            refuse(comm, how)
        found = [comm.answer(Request(kind, (0, 1), x)) for kind in KINDS * 2]
        return [reply.tolist() for reply in found], comm._groups[(0, 1), False].reads_far

    x = np.arange(640.0).reshape(4, 160)
    asked = [[Request(kind, (0, 1), value) for value in (x, 2 * x)] for kind in KINDS * 2]
    wants = [[reply.tolist() for reply in answer(requests)] for requests in asked]
    assert two.run(work, how) == [([want[rank] for want in wants], False) for rank in (0, 1)]


def test_all_report_a_rank_that_dies_while_it_is_read(tmp_path):
    """Rank 1 is killed when everybody reads: nobody gets a value."""

    def work(comm, folder):
        lower(comm)
        reader = comm._collectives.peers
        x = np.ones(4096)
        comm.all_reduce(x)  # tried out
        read = reader.read

        def killing(pid, *where):
            victim = reader.pid(1)
            if comm.rank == 0:
                os.kill(victim, signal.SIGKILL)
            while state_of(victim) != "Z":
                time.sleep(0.001)
            return read(victim, *where)

        reader.read = killing if comm.rank != 1 else lambda *_: time.sleep(30)
        try:
            comm.all_reduce(x)
        except ParallelLabError as error:
            (folder / f"{comm.rank}").write_text(f"{type(error).__name__}: {error}")
            raise

    with WorkerPool(3) as pool:
        start = time.monotonic()
        with pytest.raises(RankDied, match=r"rank 1 .* was killed by SIGKILL .* in all_reduce #1"):
            pool.run(work, tmp_path)
        assert time.monotonic() - start < 10
    for rank in (0, 2):
        assert (tmp_path / f"{rank}").read_text().startswith("RankDied: rank 1 ")


def test_a_rank_whose_memory_cannot_be_read_any_more_ends_the_run(two):
    """What fails after the first success is an error with its reason; nobody goes on with half a sum."""

    def work(comm, number):
        x, reader = np.ones(4096), comm._collectives.peers
        comm.all_reduce(x)

        def refusing(*_):
            ctypes.set_errno(number)
            return -1

        call = reader._call
        peer_memory.NEWS_S = 0.5
        if comm.rank == 0:
            reader._call = refusing
        try:
            comm.all_reduce(x)
        finally:
            reader._call = call

    # the second is also what one that has left the call would give: news of it are waited for
    for number in (errno.EPERM, errno.EFAULT):
        text = f"rank 0 cannot read the memory of rank 1 any more: {os.strerror(number)}"
        with pytest.raises(ParallelLabError, match=text):
            two.run(work, number)
        assert two.alive


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", KINDS)
def test_mismatches_are_reported_before_anything_is_read(two, kind):
    def work(comm, kind, sizes, shape):
        lower(comm, 64)
        comm.answer(Request(kind, (0, 1), np.ones(shape)))
        comm.answer(Request(kind, (0, 1), np.ones(sizes[comm.rank])))

    for sizes in ((128, 256), (2, 256), (256, 2)):
        with pytest.raises(CollectiveMismatch, match=r"they differ in shape"):
            two.run(work, kind, sizes, 64)
        with pytest.raises(CollectiveMismatch, match=r"they differ in shape"):
            two.run(work, kind, sizes, 2)  # this way not tried before


def test_what_does_not_divide_is_refused_as_ever(two):
    with pytest.raises((ShapeError, RankRaised), match="cannot be split into 2 equal pieces"):
        two.run(lambda comm: comm.reduce_scatter(np.ones((33, 4))))
    with pytest.raises((ShapeError, RankRaised), match=r"dim=2 of a value of shape \(64,\)"):
        two.run(lambda comm: comm.reduce_scatter(np.ones(64), dim=2))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_at_the_sizes_from_which_it_is_used(kind):
    """The limits as they are: just below and just at them, on four ranks."""

    def work(comm, kind, size):
        x = np.arange(size, dtype=np.float32) % 1000 + comm.rank
        reply = comm.answer(Request(kind, (0, 1, 2, 3), x))
        return reply[:: 1 << 15], comm._groups[(0, 1, 2, 3), False].reads_far

    elements = peer_memory.PEER_FROM_BYTES[kind] // 4
    with WorkerPool(4) as pool:
        for size, reads in ((elements - 64, None), (elements, True)):
            found = pool.run(work, kind, size)
            values = [np.arange(size, dtype=np.float32) % 1000 + rank for rank in range(4)]
            want = answer([Request(kind, (0, 1, 2, 3), value) for value in values])
            for (got, taken), reply in zip(found, want, strict=True):
                assert taken is reads
                assert got.tobytes() == reply[:: 1 << 15].tobytes()
