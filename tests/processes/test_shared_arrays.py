"""Arrays in shared memory: where they lie, when memory comes back, and that collectives on them give the same bits."""

from __future__ import annotations

import errno
import gc
import itertools
import sys
import threading

import numpy as np
import pytest

from parallel_lab.base.errors import RankRaised, ShapeError, SharedMemoryTooSmall
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.processes.shm.arena import ARENA_BYTES, RING_BYTES, Arena, ArenaMap
from parallel_lab.processes.shm.arrays import SharedArrays
from parallel_lab.processes.shm.channels import HEAD_BYTES
from parallel_lab.processes.shm.shared_memory import PAGE, SPARSE, SharedBlock
from parallel_lab.processes.shm.slices import TURN_BYTES
from parallel_lab.run.communicator import Request, answer, reply_shape
from tests.crossed import each_of
from tests.processes.drawn import assert_same, draw, placed

SEED = 20261121

pytestmark = pytest.mark.timeout(60)  # nothing hangs: a wait without end fails here, with all stacks


@pytest.fixture
def heap():
    """The heap of rank 1 of 3, in this process."""
    layout = ArenaMap.for_budget(3, 1 << 16)
    arena = Arena(SharedBlock(layout.size_bytes), layout)
    yield SharedArrays(arena, 1)
    arena.close()


@pytest.fixture(scope="module", params=(2, 4))
def pool(request):
    with WorkerPool(request.param) as pool:
        yield pool


@pytest.fixture(scope="module")
def small_pool():
    """Buffers of one page: what is not on the heap passes in many steps."""
    with WorkerPool(3, arena_bytes=1 << 16) as pool:
        yield pool


# ---- memory ----


@pytest.mark.parametrize("n", [2, 8, 16])
def test_a_block_is_divided_into_buffers_and_rings(n):
    layout = ArenaMap.for_budget(n, 100 << 20)
    used = 2 * n * layout.buffer_bytes + n**2 * layout.ring_bytes
    assert 2 * n * layout.buffer_bytes <= 50 << 20
    assert layout.ring_bytes == RING_BYTES or 0 <= (100 << 20) - used < n**2 * PAGE


def test_each_pair_of_8_ranks_has_room_for_a_message_of_1_MiB():
    assert not SPARSE or ArenaMap.for_budget(8, ARENA_BYTES).ring_bytes >= HEAD_BYTES + (1 << 20)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 64])
def test_heaps_lie_one_after_the_other_and_differ_in_the_address_bits_that_caches_look_at(n):
    layout = ArenaMap.for_budget(n, 1 << 16)
    arena = Arena(SharedBlock(layout.size_bytes), layout)
    heaps = [arena.heap(rank) for rank in range(n)]
    end = arena.block.heaps_start + arena.block.heaps_bytes
    arena.close()
    assert heaps[0][1] > 0 and heaps[0][0] == arena.block.heaps_start and heaps[-1][0] + heaps[-1][1] <= end
    assert all(start + size == after for (start, size), (after, _) in itertools.pairwise(heaps))
    assert len({start >> 12 & 0xFFFF for start, _ in heaps}) == n


@pytest.mark.quick(3)
@each_of("shape, dtype", ((3, 5), "f4"), (7, "int8"), ((2, 0, 3), "f8"), ((), "complex64"), ((1000, 1000), "float16"))
def test_array_has_shape_and_dtype_is_aligned_and_known_by_its_address(heap, shape, dtype):
    x = heap.empty(shape, dtype)
    want = np.empty(shape, dtype)
    assert (x.shape, x.dtype, x.flags.c_contiguous, x.flags.writeable) == (want.shape, want.dtype, True, True)
    if x.size:
        at = heap.position(x)
        assert at >= heap.start and at % 64 == 0 and x.ctypes.data % 64 == 0
        assert heap.position(x.reshape(-1)[x.size // 2 :]) == at + x.size // 2 * x.itemsize
    assert heap.position(want) == -1


@pytest.mark.exhaustive
def test_memory_comes_back_when_the_last_view_is_gone(heap):
    x = heap.empty(1000, "f8")
    view = x.reshape(10, 100)[3:].T
    used = heap.used_bytes
    del x
    gc.collect()
    assert used == heap.used_bytes == 8000
    y = heap.empty(1000, "f8")
    assert not np.shares_memory(y, view)
    del view
    gc.collect()
    assert heap.used_bytes == 8000
    del y
    assert heap.used_bytes == 0


@pytest.mark.exhaustive
def test_random_arrays_never_overlap_keep_their_contents_and_leave_nothing(heap):
    rng = np.random.default_rng(SEED)
    print(f"seed {SEED}")
    live = []
    for step in range(600):
        if live and rng.random() < 0.45:
            array, mark = live.pop(int(rng.integers(len(live))))
            assert (array == mark).all()
        else:
            array = heap.empty(int(rng.integers(1, 40_000)), "int32")
            array[:] = step
            live.append((array, step))
    del array  # it may be one that was taken out
    spans = sorted((heap.position(a), heap.position(a) + a.nbytes) for a, _ in live)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(spans))
    assert all((a == mark).all() for a, mark in live)
    assert heap.used_bytes == sum(-(-a.nbytes // 64) * 64 for a, _ in live)
    live.clear()
    gc.collect()
    assert heap.used_bytes == 0


@pytest.mark.exhaustive
def test_threads_that_ask_at_once_get_places_of_their_own(heap):
    """Each of four had its numbers overwritten by another's hundreds of times."""
    wrong, start, interval = [], threading.Barrier(4), sys.getswitchinterval()

    def work(thread):
        start.wait()
        kept = []
        for turn in range(200):
            array = heap.empty(1000 + turn % 50 * 100, np.float64)
            array[...] = 1000 * thread + turn
            kept.append((1000 * thread + turn, array))
            if turn % 7 == 6:
                kept.pop(0)
        wrong.extend(value for value, array in kept if not (array == value).all())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    try:
        sys.setswitchinterval(1e-6)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    gc.collect()
    assert heap.used_bytes == 0


@pytest.mark.exhaustive
def test_much_memory_goes_back_to_the_system(heap):
    x = heap.empty(200 << 20, "uint8")
    held = heap.committed_bytes
    del x
    assert heap.used_bytes == 0
    assert held >= 200 << 20 > 64 << 20 >= heap.committed_bytes
    y = heap.empty(100 << 20, "uint8")  # what was given back can be had again
    y[:: 1 << 20] = 1
    assert int(y.sum()) == 100


def test_system_without_memory_is_a_named_error_and_not_a_signal(heap, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    with pytest.raises(SharedMemoryTooSmall, match=r"rank 1.*10485760 bytes.*No space left"):
        heap.empty(10 << 20, "uint8")
    monkeypatch.undo()
    assert heap.position(heap.empty(10 << 20, "uint8")) >= 0


def test_heap_that_is_full_gives_ordinary_arrays(heap):
    heap.size_bytes = 1 << 20
    inside, outside = heap.empty(900_000, "uint8"), heap.empty(900_000, "uint8")
    assert heap.position(inside) >= 0 > heap.position(outside)


# ---- collectives ----

PLACES = {
    "all on the heap": lambda rank: True,
    "some on the heap": lambda rank: rank % 2 == 0,
    "one on the heap": lambda rank: rank == 1,
}
KINDS = {
    "all_reduce": ({"reduce": "sum"}, (4099, 12)),
    "reduce": ({"reduce": "max", "root": 1}, (4099, 12)),
    "all_gather": ({"dim": 1}, (257, 12)),
    "all_gather of rows": ({"dim": 0}, (257, 12)),
    "gather": ({"dim": 0, "root": 1}, (257, 12)),
    "reduce_scatter": ({"reduce": "sum", "dim": 0}, (12 * 257, 7)),
    "reduce_scatter of columns": ({"reduce": "min", "dim": 1}, (257, 36)),
    "all_to_all": ({"split_dim": 0, "concat_dim": 1}, (12 * 30, 12)),
    "all_to_all of columns": ({"split_dim": 1, "concat_dim": 1}, (257, 36)),
    "broadcast": ({"root": 1}, (4099, 3)),
    "scatter": ({"root": 1, "dim": 0}, (12 * 257, 5)),
    "scatter of columns": ({"root": 1, "dim": 1}, (257, 36)),
}


def on_rank(comm, requests, near, out):
    """Answer each request with its value on the heap where `near` says so; `out`: "", "heap" or "private"."""
    replies = []
    for request in requests:
        value = None if request.value is None else placed(comm, request.value, near)
        place = None
        if out and (request.root is None or request.root == comm.rank or request.kind in ("broadcast", "scatter")):
            like = (request.shape, request.dtype) if value is None else (reply_shape(request), value.dtype)
            place = (comm.empty if out == "heap" else np.empty)(*like)
        before = None if value is None else value.copy()
        reply = comm.answer(Request(**{**vars(request), "value": value, "out": place}))
        assert place is None or reply is place
        assert value is None or value.tobytes() == before.tobytes(), "a value was changed"
        replies.append(reply)
        del reply, value, place
    return [None if r is None else np.array(r) for r in replies]


def requests_of(name: str, n: int, dtype: str, rng: np.random.Generator) -> list[Request]:
    fields, shape = KINDS[name]
    kind, group = name.split()[0], tuple(range(n))
    made = []
    for rank in group:
        value = draw(rng, shape, dtype)
        request = Request(kind, group, value, **fields)
        if kind in ("broadcast", "scatter") and rank != request.root:
            dim = fields.get("dim", 0)
            part = shape if kind == "broadcast" else tuple(s // n if d == dim else s for d, s in enumerate(shape))
            request = Request(kind, group, shape=part, dtype=str(value.dtype), **fields)
        made.append(request)
    return made


@pytest.mark.exhaustive
@pytest.mark.parametrize("out", ["", "heap", "private"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", KINDS)
def test_values_on_the_heap_give_the_bits_of_answer(pool, small_pool, name, place, out):
    for current in (pool, small_pool):
        n, rng = current.world_size, np.random.default_rng([SEED, len(name), len(place)])
        dtypes = ("float32", "float64", "float16", "int8", "bool")
        dtypes = dtypes if name in ("all_reduce", "reduce_scatter") else ("float32", "int16")
        cases = [requests_of(name, n, dtype, rng) for dtype in dtypes]
        replies = current.run_each(on_rank, [([case[r] for case in cases], PLACES[place](r), out) for r in range(n)])
        for index, case in enumerate(cases):
            for rank, want in enumerate(answer(case)):
                assert_same(replies[rank][index], want, (rank, dtypes[index]))


@pytest.mark.quick(1)
@pytest.mark.parametrize("near", [True, False], ids=["heap", "private"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "prod"])
def test_all_reduce_in_place(pool, small_pool, near, reduce):
    def program(comm, x, near, reduce):
        value = placed(comm, x, near)
        for size in (5, 20_000, len(x)):
            value[:] = x
            assert comm.all_reduce(value[:size], reduce, out=value[:size]).base is not None
        return value.copy()

    for current in (pool, small_pool):
        rng = np.random.default_rng(SEED)
        values = [draw(rng, (150_001,), "f4") for _ in range(current.world_size)]
        want = answer([Request("all_reduce", tuple(range(current.world_size)), v, reduce=reduce) for v in values])[0]
        for got in current.run_each(program, [(v, near, reduce) for v in values]):
            assert got.tobytes() == want.tobytes()


@pytest.mark.exhaustive
@pytest.mark.parametrize("near", [True, False], ids=["heap", "private"])
def test_reduce_in_place_at_every_root(pool, small_pool, near):
    """Guards against: the sum is made in the root's array while that is still an addend."""

    def program(comm, x, root, near):
        value, out = placed(comm, x, near), None
        if comm.rank == root:
            out = value
        reply = comm.answer(Request("reduce", tuple(range(comm.world_size)), value, root=root, out=out))
        assert (reply is value) == (comm.rank == root)
        return value.copy()

    for current in (pool, small_pool):
        n, rng = current.world_size, np.random.default_rng(SEED)
        values = [draw(rng, (150_001,), "f4") for _ in range(n)]
        for root in range(n):
            want = list(values)
            want[root] = answer([Request("reduce", tuple(range(n)), v, root=root) for v in values])[root]
            got = current.run_each(program, [(v, root, near) for v in values])
            assert [g.tobytes() for g in got] == [w.tobytes() for w in want]


# kind, and (value, out) in a rank's room
OVERLAPS = {
    "sum ahead": ("all_reduce", lambda room, n, rank: (room[:6000], room[3000:9000])),
    "sum behind": ("all_reduce", lambda room, n, rank: (room[3000:9000], room[:6000])),
    "gather in place": ("all_gather", lambda room, n, rank: (room[rank * 3000 : (rank + 1) * 3000], room[: n * 3000])),
    "gather over": ("all_gather", lambda room, n, rank: (room[100:3100], room[: n * 3000])),
    "scatter in place": (
        "reduce_scatter",
        lambda room, n, rank: (room[: n * 3000], room[rank * 3000 : (rank + 1) * 3000]),
    ),
    "scatter over": ("reduce_scatter", lambda room, n, rank: (room[: n * 3000], room[50:3050])),
    "all_to_all in place": ("all_to_all", lambda room, n, rank: (room[: n * 3000], room[: n * 3000])),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("near", [True, False], ids=["heap", "private"])
@pytest.mark.parametrize(("kind", "of_out"), OVERLAPS.values(), ids=OVERLAPS)
def test_out_that_overlaps_the_value_gives_the_same(pool, small_pool, kind, of_out, near):
    def program(comm, room, kind, of_out, near):
        value, out = of_out(placed(comm, room, near), comm.world_size, comm.rank)
        return comm.answer(Request(kind, tuple(range(comm.world_size)), value, out=out)).copy()

    for current in (pool, small_pool):
        n, rng = current.world_size, np.random.default_rng(SEED)
        rooms = [draw(rng, (13_000,), "f8") for _ in range(n)]
        want = answer([Request(kind, tuple(range(n)), of_out(rooms[r], n, r)[0]) for r in range(n)])
        got = current.run_each(program, [(rooms[r], kind, of_out, near) for r in range(n)])
        assert [g.tobytes() for g in got] == [w.tobytes() for w in want]


@pytest.mark.quick(1)
@pytest.mark.parametrize("out", ["", "own", "given"])
@pytest.mark.parametrize("near", ["heap", "private", "mixed"])
def test_one_line_that_calls_again_and_again_gives_the_bits_of_answer(pool, small_pool, near, out):
    """From the second time on a line takes a short way; values, sizes and memory may be others each time."""

    def program(comm, near, out, seed):
        n, wrong = comm.world_size, []
        group, heap = tuple(range(n)), near == "heap" or (near == "mixed" and comm.rank % 2 == 0)

        def array(shape, dtype):
            return (comm.empty if heap else np.empty)(shape, dtype)

        for step in range(10):
            rng = np.random.default_rng([seed, step])
            rows, dtype = (12, 12 * 40, 12 * 600)[step // 2 % 3], ("f4", "f8")[step % 2 if step > 7 else 0]
            values = [rng.standard_normal((rows, 6)).astype(dtype) for _ in group]
            x, root = array((rows, 6), dtype), step % n
            x[...] = values[comm.rank]
            places = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"))
            if out == "own":
                places["all_reduce"] = places["broadcast"] = x
            elif out == "given":
                shapes = {
                    "all_gather": (rows, 6 * n),
                    "reduce_scatter": (rows // n, 6),
                    "all_to_all": (rows // n, 6 * n),
                }
                places = {name: array(shapes.get(name, (rows, 6)), dtype) for name in places}
            calls = {
                "all_gather": (lambda x, root, places: comm.all_gather(x, dim=1, out=places["all_gather"]), {"dim": 1}),
                "reduce_scatter": (
                    lambda x, root, places: comm.reduce_scatter(x, "max", out=places["reduce_scatter"]),
                    {"reduce": "max"},
                ),
                "all_to_all": (
                    lambda x, root, places: comm.all_to_all(x, 0, 1, out=places["all_to_all"]),
                    {"split_dim": 0, "concat_dim": 1},
                ),
                "broadcast": (
                    lambda x, root, places: comm.broadcast(x, root=root, out=places["broadcast"]),
                    {"root": root},
                ),
                "all_reduce": (lambda x, root, places: comm.all_reduce(x, out=places["all_reduce"]), {}),
            }
            for name, (call, fields) in calls.items():
                want = answer([Request(name, group, v, **fields) for v in values])[comm.rank]
                got = call(x, root, places)
                if got.tobytes() != want.tobytes() or (places[name] is not None and got is not places[name]):
                    wrong.append((name, step))
                if name == "broadcast" and out == "own":
                    values = [values[root]] * n
        return wrong

    for current in (pool, small_pool):
        assert current.run(program, near, out, SEED) == [[]] * current.world_size


def test_nothing_is_copied_in_for_values_on_the_heap(small_pool):
    """Buffers of 4 KiB, values of 4 MB: two meetings where private values need a thousand."""

    def program(comm, near):
        from parallel_lab.processes.shm.groups import Group

        x = (comm.empty if near else np.empty)(1_000_000, "f4")
        x[:] = comm.rank
        comm.barrier()
        barriers, come = [], Group.come
        Group.come = lambda *given: (barriers.append(1), come(*given))[1]
        try:
            comm.all_reduce(x, out=x)
        finally:
            Group.come = come
        return len(barriers), float(x[0]), float(x[-1])

    assert small_pool.run(program, True) == [(2, 3.0, 3.0)] * 3
    assert all(barriers > 900 and sums == [3.0, 3.0] for barriers, *sums in small_pool.run(program, False))


@pytest.mark.quick(2)
@each_of("kind", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "gather", "scatter", "reduce")
def test_a_rank_may_change_its_value_as_soon_as_it_has_its_reply(pool, kind):
    """Others read it where it lies: a reply that came too early would let them read what is written next."""

    def program(comm, kind):
        n, group = comm.world_size, tuple(range(comm.world_size))
        x, wrong = comm.empty((4 * n, 4096), "f4"), 0
        rooted = {"root": n - 1} if kind in ("broadcast", "gather", "scatter", "reduce") else {}
        for step in range(40):
            x[:] = step
            silent = kind in ("broadcast", "scatter") and comm.rank != n - 1
            shape = {"shape": x.shape if kind == "broadcast" else (4, 4096), "dtype": "float32"} if silent else {}
            reply = comm.answer(Request(kind, group, None if silent else x, **rooted, **shape))
            x[:] = -1e6
            if reply is not None:
                wrong += int((reply != step * (n if "reduce" in kind else 1)).sum())
        return wrong

    assert pool.run(program, kind) == [0] * pool.world_size


def test_full_heap_changes_nothing_but_the_speed(pool):
    def program(comm):
        comm._arrays.size_bytes = 1 << 16
        values = [comm.empty(100_000, "f4") for _ in range(3)]
        for i, x in enumerate(values):
            x[:] = comm.rank + i
            comm.all_reduce(x, out=x)
        handle = comm.start("all_reduce", np.ones(100_000, "f4"))
        return [comm._arrays.position(x) for x in values], [float(x[-1]) for x in values], float(handle.wait()[-1])

    n = pool.world_size
    with WorkerPool(n) as own:
        for places, sums, started in own.run(program):
            assert places == [-1] * 3
            assert sums == [n * (n - 1) / 2 + n * i for i in range(3)] and started == n


def test_received_and_broadcast_values_that_do_not_fit_out_are_refused(pool):
    def program(comm):
        comm.broadcast(np.ones(5), root=0, group=(0, 1)) if comm.rank == 0 else comm.answer(
            Request("broadcast", (0, 1), root=0, out=np.empty(4))
        )

    with pytest.raises(RankRaised, match=r"float64 \(5,\) arrived, out is float64 \(4,\)") as caught:
        pool.run(lambda comm: program(comm) if comm.rank < 2 else None)
    assert isinstance(caught.value.__cause__, ShapeError)


def test_recv_lands_in_out(pool):
    def program(comm):
        if comm.rank == 0:
            comm.send(np.arange(70_000.0), 1)
        if comm.rank == 1:
            out = np.empty(70_000)
            return comm.recv(0, out=out) is out and bool((out == np.arange(70_000.0)).all())

    assert pool.run(program)[1] is True


@pytest.mark.exhaustive
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("kind", ["all_gather", "broadcast", "scatter", "all_to_all"])
def test_values_of_several_turns_arrive_whole(pool, kind, strided):
    """They are copied TURN_BYTES at a time. Every number says whose it is and where it stood; compared on the ranks."""

    def program(comm, kind, strided, turn_bytes):
        n, rank = comm.world_size, comm.rank
        group, count = tuple(range(n)), turn_bytes // 8 * 2 + 5  # numbers of a piece
        cut = {"broadcast": 1, "all_gather": 1}.get(kind, n)
        shape = (2, cut * count) if strided else (cut * count, 1)
        values = [np.arange(shape[0] * shape[1], dtype="f8").reshape(shape) + r / n for r in group]
        mine = comm.empty(shape, "f8")
        mine[...] = values[rank]
        dim = int(strided)
        pieces = [np.split(v, n, axis=dim)[rank] for v in values] if cut == n else values
        if kind == "all_gather":
            found, want = comm.all_gather(mine, dim=dim), np.concatenate(pieces, axis=dim)
        elif kind == "broadcast":
            found, want = comm.broadcast(mine if rank == 1 else None, root=1), values[1]
        elif kind == "scatter":
            found, want = comm.scatter(mine if rank == 1 else None, root=1, dim=dim), pieces[1]
        else:
            found, want = comm.all_to_all(mine, dim, dim), np.concatenate(pieces, axis=dim)
        return found.shape == want.shape and bool((found == want).all())

    assert all(pool.run(program, kind, strided, TURN_BYTES))
