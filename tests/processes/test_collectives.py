"""Worker processes' collectives give `communicator.answer`'s bits, in shared memory and (without buffers) over MPI."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch, RankRaised, ShapeError
from parallel_lab.ops.collectives.definitions import COLLECTIVES
from parallel_lab.processes.mpi.pool import MpiPool
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.processes.shm.fast.single_step import APART_FROM_BYTES
from parallel_lab.run.communicator import Request, answer
from tests.crossed import each_of
from tests.processes.drawn import DTYPES, SEED, assert_same_bits, cases, draw, off_root
from tests.processes.pools import NEEDS_MPI, assert_usable, lent, noted

ALL_TO_ALL_DIMS = [{"split_dim": a, "concat_dim": b} for a in (0, 1) for b in (0, 2)]


pytestmark = pytest.mark.timeout(60)  # nothing hangs: a wait without end fails here, with all stacks


def ways(**options):
    """Pools with the shorter ways of shm/fast/, and without: the bits are the same."""
    made = {"2": (2, True), "4": (4, True), "4 plain": (4, False), "8": (8, True)}
    exhaustive = {"8": pytest.mark.exhaustive}
    return [
        pytest.param((WorkerPool, {"world_size": n, "fast": fast, **options}), id=name, marks=exhaustive.get(name, ()))
        for name, (n, fast) in made.items()
    ]


OVER_MPI = pytest.param((MpiPool, {}), id="mpi", marks=NEEDS_MPI)
BUFFERS_OF_ONE_PAGE = ways(arena_bytes=1 << 16)  # nearly every value passes in many steps


@pytest.fixture(scope="module", params=BUFFERS_OF_ONE_PAGE)
def small_pool(request):
    make, options = request.param
    with lent(make, 3) if make is MpiPool else make(**options) as pool:
        assert make is MpiPool or pool._arena.map.buffer_bytes <= 8192
        yield pool


@pytest.fixture(scope="module", params=ways())
def pool(request):
    make, options = request.param
    with lent(make, 3) if make is MpiPool else make(**options) as pool:
        yield noted(pool)


with_mpi = pytest.mark.parametrize("pool", [*ways(), OVER_MPI], indirect=True)
small_with_mpi = pytest.mark.parametrize("small_pool", [*BUFFERS_OF_ONE_PAGE, OVER_MPI], indirect=True)


@pytest.mark.quick(1)
def test_without_the_fast_ways_nothing_of_their_folder_is_used(pool, request):
    def program(comm):
        kinds = [type(way).__module__ for way in (comm, comm._collectives, comm._started_collectives)]
        return ["fast" in kind for kind in kinds]

    fast = "plain" not in request.node.name
    assert pool.run(program) == [[fast] * 3] * pool.world_size


def dtypes_of(kind):
    # max and min of complex numbers are not defined in all numpy versions
    reducing = kind in ("all_reduce", "reduce", "reduce_scatter")
    return tuple(d for d in DTYPES if not (reducing and d == "complex64"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", COLLECTIVES)
def test_every_group_and_dtype_in_many_steps_equals_answer(small_pool, kind):
    assert_same_bits(small_pool, cases(kind, small_pool.world_size, dtypes_of(kind), big=small_pool.world_size < 8))


@pytest.mark.quick(0)
@pytest.mark.parametrize("pool", [OVER_MPI], indirect=True)
@pytest.mark.parametrize("kind", COLLECTIVES)
def test_every_group_and_dtype_over_mpi_equals_answer(pool, kind):
    assert_same_bits(pool, cases(kind, pool.world_size, dtypes_of(kind), big=False))


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", COLLECTIVES)
def test_every_group_through_the_default_arena_equals_answer(pool, kind):
    assert_same_bits(pool, cases(kind, pool.world_size, ("float32",), big=True))


@pytest.mark.quick(1)
@pytest.mark.portable
def test_value_larger_than_all_buffers_equals_answer(pool):
    rng = np.random.default_rng(SEED)
    n = pool.world_size
    values = [rng.standard_normal(1_000_003).astype("f4") for _ in range(n)]  # 4 MB, a prime: no border divides it
    requests = [Request("all_reduce", tuple(range(n)), v) for v in values]
    replies = pool.run_each(lambda comm, r: comm.answer(r), [(r,) for r in requests])
    want = answer(requests)[0].tobytes()
    assert [reply.tobytes() == want for reply in replies] == [True] * n


@pytest.mark.quick(1)
def test_only_border_strips_of_a_halo_pass_through_the_arena(small_pool):
    """A slice many times as large as all buffers, with strips of one row: one barrier, and the bits of `answer`."""
    n = small_pool.world_size
    rng = np.random.default_rng([SEED, 11])
    slices = [rng.standard_normal((4000, 33)) for _ in range(n)]
    requests = [Request("halo_exchange", tuple(range(n)), x, window=(4000, -1, 4002, 4000)) for x in slices]

    def program(comm, request):
        from parallel_lab.processes.shm.groups import Group

        barriers = []
        come = Group.come
        Group.come = lambda *given, **options: (barriers.append(1), come(*given, **options))[1]
        try:
            reply = comm.answer(request)
        finally:
            Group.come = come
        return reply, len(barriers)

    found = small_pool.run_each(program, [(r,) for r in requests])
    for (reply, barriers), want in zip(found, answer(requests), strict=True):
        assert reply.tobytes() == want.tobytes() and barriers == 1


def test_recorded_bytes_of_a_halo_are_those_of_the_strips(pool):
    n = pool.world_size

    def program(comm):
        comm.recording = True
        comm.halo_exchange(np.ones((4, 3)), (4, -1, 7, 4))
        comm.halo_reduce(np.ones((7, 3)), (4, -1, 7, 4))
        comm.recording = False
        return [record[4] for record in comm.records]

    # a rank gives 2 rows to the rank before it and 1 to the rank after it; of its window it gives 1 row back to the one
    # before, 2 to the one after
    row = 3 * 8
    want = [[row * (2 * (r > 0) + (r < n - 1)), row * ((r > 0) + 2 * (r < n - 1))] for r in range(n)]
    assert pool.run(program) == want


@pytest.mark.exhaustive
@pytest.mark.parametrize("size_bytes", [APART_FROM_BYTES - 4096, APART_FROM_BYTES, 600_000, 2 << 20, 5_000_000])
@pytest.mark.parametrize("kind", ["reduce_scatter", "all_to_all"])
def test_exchanges_of_any_size_give_every_piece_also_a_ranks_own(pool, kind, size_bytes):
    """Values of this size and the next larger one that divides, along each dim, twice (both buffers); and in place."""
    rng, n = np.random.default_rng([SEED, size_bytes]), pool.world_size
    shape = (n, 2 * n, -(-size_bytes // (8 * n * n)))
    dims = ALL_TO_ALL_DIMS
    if kind == "reduce_scatter":
        dims = [{"dim": d, "reduce": r} for d in (0, 1) for r in ("sum", "max")]
    dims = dims if size_bytes < 2 << 20 else [dims[0], dims[-1]]  # larger ones go through pipes for a while
    group = tuple(range(n))

    def case(fields):
        return {rank: Request(kind, group, draw(rng, shape, "float32"), **fields) for rank in group}

    assert_same_bits(pool, [case(fields) for fields in dims for _ in (0, 1)])

    def in_place(comm, values, fields):
        x = values[comm.rank].copy()
        out = x if kind == "all_to_all" else x[len(x) // n * comm.rank :][: len(x) // n]
        assert comm.answer(Request(kind, group, x, out=out, **fields)) is out
        return out.copy()

    values = [draw(rng, shape, "float32") for _ in group]
    fields = {"dim": 0} if kind == "reduce_scatter" else {"split_dim": 0, "concat_dim": 0}
    wanted = answer([Request(kind, group, value, **fields) for value in values])
    for found, want in zip(pool.run(in_place, values, fields), wanted, strict=True):
        assert found.tobytes() == want.tobytes()


@pytest.mark.quick(4)
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_foreign_byte_order_equals_answer(pool, kind):
    """Compared inside the workers: pickled arrays come back in the machine's byte order."""

    def program(comm):
        n = comm.world_size
        values = [(np.arange(2.0 * n) * (r + 0.1)).astype(">f4") for r in range(n)]
        requests = [Request(kind, tuple(range(n)), v) for v in values]
        got, want = comm.answer(requests[comm.rank]), answer(requests)[comm.rank]
        return requests[0].value.dtype.str, got.dtype.str == want.dtype.str, got.tobytes() == want.tobytes()

    assert pool.run(program) == [(">f4", True, True)] * pool.world_size


def test_replies_own_their_memory(pool):
    """A reply that looked into the arena would change under the user's hands with the next collective."""

    def program(comm):
        first = comm.all_gather(np.full(2, comm.rank))
        kept = first.copy()
        for _ in range(4):
            comm.all_gather(np.full(2, -1))
        one = comm.all_reduce(np.ones(2))
        return bool((first == kept).all()), first.flags.owndata, one.flags.owndata

    assert pool.run(program) == [(True, True, True)] * pool.world_size


def test_value_that_is_not_contiguous_is_read_as_it_looks(pool):
    def program(comm):
        x = np.arange(12.0).reshape(3, 4).T * (comm.rank + 1)
        return comm.answer(Request("all_reduce", tuple(range(comm.world_size)), x))

    n = pool.world_size
    for reply in pool.run(program):
        np.testing.assert_array_equal(reply, np.arange(12.0).reshape(3, 4).T * n * (n + 1) / 2)


def test_a_group_and_a_value_given_as_lists_are_taken(pool):
    """A list as group used to be `TypeError: unhashable type`."""
    n = pool.world_size

    def program(comm):
        return comm.answer(Request("all_reduce", list(range(comm.world_size)), [1.0, float(comm.rank)])).tolist()

    assert pool.run(program) == [[n, n * (n - 1) / 2]] * n


@pytest.mark.quick(1)
@pytest.mark.portable
def test_random_mix_of_overlapping_groups_equals_answer(small_pool):
    """Buffers are used again by the next group while slow members of the last one still read."""
    rng = np.random.default_rng([SEED, 7])
    n, made = small_pool.world_size, []
    for _ in range(150):
        size = int(rng.integers(2, n + 1))
        group = tuple(sorted(int(r) for r in rng.choice(n, size, replace=False)))
        kind = str(rng.choice(["all_reduce", "all_gather", "broadcast", "all_to_all", "reduce_scatter", "barrier"]))
        shape = (size * int(rng.choice([1, 40, 700])),)
        root = group[int(rng.integers(size))] if kind == "broadcast" else None
        case = {}
        for rank in group:
            request = Request(kind, group, None if kind == "barrier" else draw(rng, shape, "float32"), root=root)
            case[rank] = off_root(request) if kind == "broadcast" and rank != root else request
        made.append(case)
    assert_same_bits(small_pool, made)


@pytest.mark.quick(3)
@small_with_mpi
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (40_000,), (400_000,)])
def test_send_and_recv_carry_any_size_around_the_ring_when_all_send_first(small_pool, shape):
    def program(comm, x):
        mine = np.asarray(x + comm.rank)
        comm.send(mine, (comm.rank + 1) % comm.world_size)
        mine[...] = -1  # a send has copied
        source = (comm.rank - 1) % comm.world_size
        return comm.recv(source, shape=x.shape, dtype=x.dtype), source

    x = np.arange(np.prod(shape, dtype=int), dtype="f4").reshape(shape)
    for got, source in small_pool.run(program, x):
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, x + source)


@pytest.mark.quick(1)
@pytest.mark.portable
@small_with_mpi
def test_messages_of_one_channel_arrive_in_order_and_both_ways(small_pool):
    def program(comm):
        if comm.rank > 1:
            return None
        other = 1 - comm.rank
        for i in range(50):
            comm.answer(Request("send", (comm.rank, other), np.full(i * 300, i)))
        found = [Request("recv", (other, comm.rank), shape=(i * 300,), dtype="int64") for i in range(50)]
        return [int(comm.answer(request).sum()) for request in found]

    assert small_pool.run(program)[:2] == [[i * i * 300 for i in range(50)]] * 2


@small_with_mpi
def test_messages_of_different_tags_are_received_in_any_order(small_pool):
    """Each tag is a queue of its own; what comes before it is asked for is kept, large or empty."""
    order = [1, 0, 2, 1, 0, 2, 2, 1, 0]  # tags as rank 1 asks for them; rank 0 sends all of tag 0, then 2, then 1

    def program(comm):
        if comm.rank == 0:
            for sr_tag in (0, 2, 1):
                for number in range(3):
                    comm.send(np.full((number * 900, 2), 10 * sr_tag + number, "f4"), 1, sr_tag=sr_tag)
        if comm.rank != 1:
            return None
        out = np.empty((1800, 2), "f4")
        last = [comm.recv(0, sr_tag=sr_tag) for sr_tag in order[:-1]]
        return [(x.shape[0], x[:1, 0].tolist()) for x in (*last, comm.recv(0, sr_tag=order[-1], out=out))]

    seen = {sr_tag: iter(range(3)) for sr_tag in range(3)}
    wanted = [(900 * n, [10.0 * sr_tag + n] if n else []) for sr_tag in order for n in [next(seen[sr_tag])]]
    assert small_pool.run(program)[1] == wanted


@small_with_mpi
def test_a_message_under_a_tag_that_nobody_asks_for_is_not_received(small_pool):
    def program(comm):
        if comm.rank == 0:
            comm.send(np.ones(3), 1, sr_tag=4)
            comm.send(np.ones(2), 1)
        return comm.recv(0).shape if comm.rank == 1 else None

    with pytest.raises(CollectiveMismatch, match="rank 0 sent 2 messages to rank 1, which received 1"):
        small_pool.run(program)


def test_broadcast_and_scatter_need_no_shape_off_the_root(pool):
    def program(comm):
        n = comm.world_size
        x = np.arange(6.0 * n).reshape(3, 2 * n) if comm.rank == n - 1 else None
        return comm.broadcast(x, root=n - 1), comm.scatter(x, dim=1, root=n - 1)

    n = pool.world_size
    full = np.arange(6.0 * n).reshape(3, 2 * n)
    for rank, (whole, part) in enumerate(pool.run(program)):
        np.testing.assert_array_equal(whole, full)
        np.testing.assert_array_equal(part, full[:, 2 * rank : 2 * rank + 2])


@pytest.mark.quick(8)
@each_of("size_bytes", 1000, (1 << 20) - 8, 1 << 20, (1 << 20) + 8, 1_500_000, (2 << 20) - 256, 2 << 20, 5_000_000)
def test_broadcast_of_any_size_comes_to_ranks_that_know_it_and_to_those_that_do_not(pool, size_bytes):
    """Some take the prepared way and some the general one: they must meet equally often."""

    def program(comm, size_bytes):
        wrong = 0
        for step in range(3):
            known = None if comm.rank % 2 else np.empty(size_bytes // 8)
            x = np.full(size_bytes // 8, step + 1.0) if comm.rank == 0 else known
            wrong += int((comm.broadcast(x) != step + 1).sum())
            wrong += int((comm.all_reduce(np.ones(3)) != comm.world_size).sum())
        return wrong

    assert pool.run(program, size_bytes) == [0] * pool.world_size


@pytest.mark.portable
@with_mpi
def test_named_methods_equal_the_formulas(pool):
    def program(comm):
        n, r = comm.world_size, comm.rank
        x = np.arange(2.0 * n) + 100 * r
        return (
            *(comm.all_reduce(x, "max"), comm.all_gather(x[:2]), comm.reduce_scatter(x), comm.all_to_all(x)),
            *(comm.reduce(x, root=1), comm.gather(x[:1], root=1), comm.barrier()),
        )

    n = pool.world_size
    x = np.arange(2.0 * n)
    for r, (top, gathered, piece, exchanged, reduced, collected, nothing) in enumerate(pool.run(program)):
        np.testing.assert_array_equal(top, x + 100 * (n - 1))
        np.testing.assert_array_equal(gathered, np.concatenate([[100 * i, 100 * i + 1] for i in range(n)]))
        np.testing.assert_array_equal(piece, (n * x + 100 * n * (n - 1) / 2)[2 * r : 2 * r + 2])
        np.testing.assert_array_equal(exchanged, np.concatenate([x[2 * r : 2 * r + 2] + 100 * i for i in range(n)]))
        assert nothing is None and (reduced is None) == (r != 1) and (collected is None) == (r != 1)
        if r == 1:
            np.testing.assert_array_equal(reduced, n * x + 100 * n * (n - 1) / 2)
            np.testing.assert_array_equal(collected, 100.0 * np.arange(n))


REFUSED = {
    "0-d gather": (lambda comm: comm.all_gather(np.float32(1)), ShapeError),
    "uneven pieces": (lambda comm: comm.reduce_scatter(np.ones(2 * comm.world_size + 1)), ShapeError),
    "objects": (lambda comm: comm.all_reduce(np.array([object()])), ShapeError),
    "text": (lambda comm: comm.all_gather(np.array(["text"])), ShapeError),
    "unknown reduce": (lambda comm: comm.all_reduce(np.ones(1), "average"), CollectiveMismatch),
    "root outside": (lambda comm: comm.broadcast(np.ones(1), root=99), CollectiveMismatch),
    "two roots": (lambda comm: comm.broadcast(np.ones(1), root=np.array([0, 1])), CollectiveMismatch),
    "pieces of two roots": (lambda comm: comm.scatter(np.ones(4), root=np.array([0, 1])), CollectiveMismatch),
    "a list as root": (lambda comm: comm.reduce(np.ones(1), root=[0]), CollectiveMismatch),
    "a list as reduction": (lambda comm: comm.all_reduce(np.ones(1), ["sum"]), CollectiveMismatch),
    "a list as dim": (lambda comm: comm.all_gather(np.ones(1), [0]), ShapeError),
    "group outside": (lambda comm: comm.barrier(group=(0, 99)), CollectiveMismatch),
    "send to itself": (lambda comm: comm.send(np.ones(1), comm.rank), CollectiveMismatch),
}


@pytest.mark.quick(8)
@with_mpi
@pytest.mark.parametrize(("call", "cause"), REFUSED.values(), ids=REFUSED)
def test_call_that_cannot_work_is_refused_with_the_rank_named(pool, call, cause):
    with pytest.raises(RankRaised, match=r"rank \d+ \(pid \d+\) raised") as caught:
        pool.run(call)
    assert isinstance(caught.value.__cause__, cause)
    assert_usable(pool)


@with_mpi
def test_records_hold_index_kind_times_bytes_group_and_line(pool):
    def program(comm):
        comm.recording = True
        comm.all_reduce(np.ones(1000))
        comm.all_gather(np.ones(10, "f4"), group=tuple(range(comm.world_size)))
        comm.barrier()
        comm.recording = False
        return comm.records, comm.sent()

    n = pool.world_size
    for records, sent in pool.run(program):
        assert {r.group for r in records} == {tuple(range(n))}
        assert all(r.origin.startswith("test_collectives.py:") and r.step == 0 for r in records)
        wanted = [(0, "all_reduce", 2 * (n - 1) * 8000 // n), (1, "all_gather", (n - 1) * 40), (2, "barrier", 0)]
        assert [(r.index, r.kind, r.size_bytes) for r in records] == wanted
        assert list(sent) == (records[:2] if n > 1 else [])  # a barrier carries no bytes
        times = [t for r in records for t in (r.start_s, r.end_s)]
        assert times == sorted(times)
    for entries in pool.flight_record().values():
        assert [entry.kind for entry in entries] == ["all_reduce", "all_gather", "barrier"]


def test_numbers_of_numpy_on_some_ranks_are_the_same_call(pool):
    n = pool.world_size

    def program(comm):
        number, name = (np.int64, np.str_) if comm.rank % 2 else (int, str)
        ranks = tuple(map(number, range(comm.world_size)))
        x = np.arange(4.0).reshape(2, 2) + comm.rank
        found = []
        for _ in range(2):  # the second time the place is known
            found.append(comm.all_reduce(x, name("max"), group=ranks).tolist())
            found.append(comm.all_gather(x, dim=number(1)).shape)
            found.append(comm.broadcast(x if comm.rank == 1 else None, root=number(1)).tolist())
            summed = comm.reduce(x, root=number(0))
            found.append(comm.rank == 0 or summed is None)
            found.append(comm.begin(Request("all_reduce", ranks, x)).wait().tolist())
        return found

    base = np.arange(4.0).reshape(2, 2)
    every = [(base + n - 1).tolist(), (2, 2 * n), (base + 1).tolist(), True, (n * base + n * (n - 1) / 2).tolist()]
    assert pool.run(program) == [every * 2] * n
