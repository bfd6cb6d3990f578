"""Places that call again take a shorter way: it still waits for everybody, is written down, and is compared."""

from __future__ import annotations

import random
import re
import time

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch, RankRaised, ShapeError
from parallel_lab.processes.shm.pool import WorkerPool

RANKS = 4


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(RANKS) as pool:
        yield pool


@pytest.mark.quick(1)
@pytest.mark.parametrize("sleeping", [False, True], ids=["yielding", "sleeping"])
def test_nobody_passes_before_all_have_come(pool, tmp_path, sleeping):
    """Each rank counts in a file how often it has come to each of several places, in one random order for all."""
    np.zeros((6, RANKS), np.int64).tofile(tmp_path / "counts")

    def program(comm, path, sleeping):
        n, rank = comm.world_size, comm.rank
        counts = np.memmap(path, np.int64, "r+", shape=(6, n))
        world, pair = tuple(range(n)), (0, 1) if rank < 2 else (2, 3)
        places = [
            (lambda members: comm.barrier(), [world]),
            (lambda members: comm.barrier(tag="a tag"), [world]),
            (lambda members: comm.barrier(tuple(range(n))), [world]),
            (lambda members: comm.barrier(list(members), tag="another"), [pair]),
            (lambda members: comm.barrier(members), [pair, world]),
            (lambda members: comm.barrier(members), [pair]),
        ]
        order, mine, early = random.Random(0), random.Random(rank), []
        for step in range(600):
            if sleeping:
                comm._loop.calm_until = float("inf")
            which = order.randrange(len(places))
            if mine.random() < 0.02:
                time.sleep(1e-3)
            call, groups = places[which]
            members = order.choice(groups)
            counts[which, rank] += 1
            call(members)
            if (counts[which, list(members)] < counts[which, rank]).any():
                early.append((step, which))
        comm._loop.calm_until = 0.0
        return early

    assert pool.run(program, str(tmp_path / "counts"), sleeping) == [[]] * RANKS


def test_each_is_in_the_flight_recorder_with_its_line(pool):
    cell = """
for tag in tags:
    comm.barrier(); check(3)
    comm.barrier(); comm.barrier(); check(4)
for tag in tags:
    comm.barrier(tag=tag); check(tag or 6)
"""

    def program(comm, cell):
        wrong, made = [], 0

        def check(line):
            nonlocal made, begin_s
            made += 1 + (line == 4)
            entry = comm._arena.last_entry(comm.rank)
            in_order = entry.end_s is not None and begin_s <= entry.start_s <= entry.end_s <= time.perf_counter()
            origin = line if type(line) is str else f"{name}:{line}"
            told = entry.kind, entry.index, entry.number, entry.origin
            if told != ("barrier", made - 1, made - 1, origin) or not in_order:
                wrong.append(entry)
            begin_s = entry.end_s

        for number in range(20):  # new code each time, in which calls are always the same instructions
            name, begin_s = f"cell{number}.py", time.perf_counter()
            exec(compile(cell, name, "exec"), {"comm": comm, "check": check, "tags": ("", "one", "", "", "two") * 5})
        return wrong, made

    assert pool.run(program, cell) == [([], 20 * 25 * 4)] * RANKS


def test_a_place_that_is_known_is_recorded_when_records_are_asked_for(pool):
    def program(comm):
        for step in range(9):
            comm.recording = 3 <= step < 7
            comm.barrier()
        comm.recording = False
        return [(index, kind, start_s < end_s, sent) for index, kind, start_s, end_s, sent, *_ in comm.records]

    assert pool.run(program) == [[(index, "barrier", True, 0) for index in range(3, 7)]] * RANKS


@pytest.mark.quick(0)
@pytest.mark.parametrize("sleeping", [False, True], ids=["yielding", "sleeping"])
def test_sums_of_known_places_are_those_of_the_values_given_each_time(pool, sleeping):
    """Whole numbers, so that sums are exact; shapes, dtypes, groups, reductions and results in one random order."""

    def program(comm, sleeping):
        n, rank = comm.world_size, comm.rank
        world, pair = tuple(range(n)), (0, 1) if rank < 2 else (2, 3)
        order, mine, wrong = random.Random(0), random.Random(rank), []
        for step in range(800):
            if sleeping:
                comm._loop.calm_until = float("inf")
            if mine.random() < 0.02:
                time.sleep(1e-3)
            shape, dtype = order.choice([(3,), (3,), (2, 5), (), (700,)]), order.choice(["float32", "float32", "int64"])
            reduce, members = order.choice(["sum", "sum", "max"]), order.choice([None, world, pair])
            how = order.choice(["new", "out", "in place", "strided"])
            given = [np.full(shape, step % 50 + r, dtype) for r in range(n)]
            x = given[rank].copy()
            if how == "strided" and shape:
                x = np.repeat(x, 2, axis=-1)[..., ::2]
            out = {"out": np.empty(shape, dtype), "in place": x}.get(how)
            where = order.randrange(3)
            if where == 0:
                found = comm.all_reduce(x, reduce, members, out=out)
            elif where == 1:
                found = comm.all_reduce(x, reduce, members, out=out, tag="a tag")
            else:
                found = comm.all_reduce(x, reduce=reduce, group=members, out=out)
            values = [given[r] for r in members or world]
            want = np.sum(values, axis=0, dtype=dtype) if reduce == "sum" else np.max(values, axis=0)
            like = (found.dtype, found.shape) == (dtype, shape) and np.array_equal(found, want)
            if not like or (out is not None and found is not out):
                wrong.append((step, where, how, found, want))
            if how != "in place" and not np.array_equal(x, given[rank]):
                wrong.append((step, where, how, "its value was changed"))
        comm._loop.calm_until = 0.0
        return wrong

    assert pool.run(program, sleeping) == [[]] * RANKS


def test_known_places_of_every_kind_give_what_numpy_gives(pool):
    """Values of one step, small and not, along both dims, in groups whose buffers lie evenly and not."""

    def program(comm):
        order, wrong = random.Random(1), []
        calls = {
            "broadcast": lambda x, fields: comm.broadcast(x, root, **fields),
            "all_gather": lambda x, fields: comm.all_gather(x, dim, **fields),
            "all_to_all": lambda x, fields: comm.all_to_all(x, split, dim, **fields),
            "reduce_scatter": lambda x, fields: comm.reduce_scatter(x, "sum", dim, **fields),
            "reduce": lambda x, fields: comm.reduce(x, "sum", root, **fields),
        }
        for step in range(200):
            group = order.choice([(0, 1, 2, 3), (0, 2, 3), (1, 2), (0, 3)])
            kind, shape = order.choice(list(calls)), order.choice([(12, 24), (12, 24), (24, 12), (120, 60)])
            root, dim, split, how = order.choice(group), order.randrange(2), order.randrange(2), order.randrange(2)
            if comm.rank not in group:
                continue
            n, me = len(group), group.index(comm.rank)
            given = [np.arange(shape[0] * shape[1], dtype="f4").reshape(shape) + 1000 * r + step for r in group]
            want = {
                "broadcast": given[group.index(root)],
                "all_gather": np.concatenate(given, dim),
                "all_to_all": np.concatenate([np.split(value, n, split)[me] for value in given], dim),
                "reduce_scatter": np.split(sum(given), n, dim)[me],
                "reduce": sum(given) if comm.rank == root else None,
            }[kind]
            out = np.empty_like(want, order="C") if how and want is not None else None
            found = calls[kind](given[me].copy(), {"group": group, "out": out})
            if (want is None) != (found is None) or (want is not None and not np.array_equal(found, want)):
                wrong.append((step, kind, group, shape, how))
        return wrong

    assert pool.run(program) == [[]] * RANKS


@pytest.mark.parametrize("odd", [(0,), (1,), (1, 2, 3)], ids=["root", "one", "others"])
def test_a_swap_of_broadcasts_from_places_that_are_known_is_found(pool, odd):
    cell = (
        "calls = [\n" + "lambda: comm.broadcast(x, 0),\n" * 4 + "]"
    )  # on four lines: two of the root, two of the others

    def program(comm, odd, cell):
        space = {"comm": comm, "x": np.zeros(4)}
        exec(compile(cell, "cell.py", "exec"), space)
        mine = space["calls"][2:] if comm.rank else space["calls"][:2]
        for step in range(20):
            for call in mine[:: -1 if step == 19 and comm.rank in odd else 1]:
                call()

    with pytest.raises(CollectiveMismatch, match="#38"):
        pool.run(program, odd, cell)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather"])
def test_a_result_that_cannot_be_written_is_refused_at_a_known_place_too(pool, kind):
    def program(comm, kind):
        x, call, said = np.ones(4), getattr(comm, kind), []
        outs = [np.empty(4 if kind == "all_reduce" else 16) for _ in range(6)]
        outs[4].flags.writeable = False
        for out in outs:
            try:
                call(x, out=out)
            except ShapeError as error:
                said.append(str(error))
        return said

    for said in pool.run(program, kind):
        assert len(said) == 1 and "can be written" in said[0]


def test_a_result_of_another_byte_order_is_refused_at_a_known_place_too(pool):
    """Into memory that is given the reply comes in the machine's order."""

    def program(comm):
        x, said = np.ones(3, ">f4"), []
        for out in [None, None, None, np.empty(3, ">f4"), np.empty(3, "f4")]:
            try:
                said.append(str(comm.all_reduce(x, out=out).dtype))
            except ShapeError as error:
                said.append("out is >f4" in str(error))
        return said

    assert pool.run(program) == [[">f4"] * 3 + [True, "float32"]] * RANKS


def test_structured_values_meet_whatever_like_them_was_seen_before(pool):
    """numpy holds aligned and packed fields for equal, and calls them differently."""

    def program(comm):
        aligned, packed = np.dtype([("a", "i4"), ("b", "f4")], align=True), np.dtype([("a", "i4"), ("b", "f4")])
        if comm.rank == 0:
            comm.all_gather(np.zeros(2, aligned), group=(0,))
        return comm.all_gather(np.full(2, comm.rank, packed))["b"].tolist()

    assert pool.run(program) == [[rank for rank in range(RANKS) for _ in (0, 1)]] * RANKS


def test_groups_of_any_form_are_read_anew_each_time(pool):
    """Also those whose members change while the object stays the same."""

    class Team:
        def __iter__(self):
            return iter(self.members)

    def program(comm):
        team, found, pair = Team(), [], (0, 1) if comm.rank < 2 else (2, 3)
        for members in (pair, pair, np.arange(comm.world_size), list(pair), range(comm.world_size)):
            team.members = members
            found.append([float(comm.all_reduce(np.ones(1), group=g)[0]) for g in (team, members)])
            found.append([comm.all_gather(np.ones(1), group=g).size for g in (team, members)])
        return found

    assert pool.run(program) == [[[size, size] for size in (2, 2, 4, 2, 4) for _ in (0, 1)]] * RANKS


def test_a_place_is_remembered_once_though_it_is_recorded(pool):
    def program(comm):
        comm.recording = True
        for _ in range(50):
            comm.all_gather(np.ones(2))
        comm.recording, comm.records = False, []
        return len(comm._sites)

    assert pool.run(program) == [1] * RANKS


@pytest.mark.quick(0)
@pytest.mark.parametrize("call", ["comm.all_reduce(x)", "comm.barrier()"])
def test_what_a_rank_does_for_started_calls_is_not_lost_to_others(pool, call):
    def program(comm, call):
        code, lost, loop = compile(call, "lost.py", "exec"), [], comm._loop
        given = {"comm": comm, "x": np.ones(3)}
        for _ in range(3):
            exec(code, given)
        move_on, loop.lost_time = comm._move_on, lambda now, lost_s: lost.append(lost_s)
        try:
            for _ in range(10):
                handle = comm.start("all_reduce", np.ones(3), tag="started")
                comm._move_on = lambda: [time.sleep(0.2), move_on()][1]
                exec(code, given)
                comm._move_on = move_on
                handle.wait()
        finally:
            del loop.lost_time
            comm._move_on = move_on
        return max(lost, default=0.0)

    assert max(pool.run(program, call)) < 0.2


def test_sums_are_in_the_flight_recorder_with_their_line(pool):
    def program(comm):
        x, seen, begin_s = np.ones(5, np.float32), [], time.perf_counter()
        for step in range(30):
            comm.all_reduce(x, tag="twice" if step % 7 == 0 else "")
            entry = comm._arena.last_entry(comm.rank)
            in_order = entry.end_s is not None and begin_s <= entry.start_s <= entry.end_s <= time.perf_counter()
            begin_s = entry.end_s
            seen.append((entry.kind, entry.index, entry.number, entry.origin.partition(":")[0], in_order))
        return seen

    wanted = [("all_reduce", i, i, "twice" if i % 7 == 0 else "test_call_sites.py", True) for i in range(30)]
    assert pool.run(program) == [wanted] * RANKS


@pytest.mark.parametrize("other", ["comm.all_reduce(x)", "comm.all_gather(x)", "comm.broadcast(x)"])
def test_a_known_barrier_does_not_meet_another_call(pool, other):
    """Rank 1 leaves out one barrier, after many."""
    text = f"""
for step in range(100):
    if comm.rank != 1 or step != 90:
        comm.barrier(group)
    {other}
"""

    def program(comm, text):
        given = {"comm": comm, "x": np.ones(8), "group": tuple(range(comm.world_size))}
        exec(compile(text, "places.py", "exec"), given)

    with pytest.raises(CollectiveMismatch) as caught:
        pool.run(program, text)
    assert re.search(r"rank [023] called barrier #180 .*places.py:4", str(caught.value)), caught.value
    assert re.search(rf"rank 1 called {other[5:-3]} #180 .*places.py:5", str(caught.value)), caught.value


def test_a_known_sum_does_not_meet_one_of_another_shape(pool):
    def program(comm):
        x = np.ones(8)
        for step in range(100):
            comm.all_reduce(x[:7] if (step, comm.rank) == (90, 1) else x)

    with pytest.raises(CollectiveMismatch, match=r"rank 1 called all_reduce #90 float64 \(7,\)") as caught:
        pool.run(program)
    assert re.search(r"rank [023] called all_reduce #90 float64 \(8,\)", str(caught.value))  # whichever came first


def test_barriers_of_different_lines_meet_tags_have_to_be_equal(pool):
    def program(comm, steps, tags):
        for step in range(steps):
            if comm.rank == 0:
                comm.barrier()
            else:
                comm.barrier()
            comm.barrier(tag=tags[step == 90 and comm.rank == 2])

    pool.run(program, 90, ("one", "two"))
    with pytest.raises(CollectiveMismatch, match=r"rank 2 called barrier #181 .* two"):
        pool.run(program, 100, ("one", "two"))


@pytest.mark.parametrize("call", [lambda comm, x: comm.barrier(), lambda comm, x: comm.all_reduce(x, out=x)])
def test_a_rank_that_fails_ends_the_calls_of_the_others(pool, call):
    def program(comm):
        x = np.ones(3)
        for step in range(1000):
            if comm.rank == 2 and step == 500:
                raise ValueError("enough")
            call(comm, x)

    with pytest.raises(RankRaised, match=r"rank 2 .*enough"):
        pool.run(program)


@pytest.mark.parametrize("group", [3, 1.5, ({},), ([0, 1],), (0.5,), "ab", (), (0, 0), (0, 9)], ids=repr)
@pytest.mark.parametrize(
    "call",
    ["barrier(group)", "all_reduce(x, group=group)", "reduce(x, group=group)", "start('all_reduce', x, group=group)"],
)
def test_anything_but_a_group_is_refused_where_it_is_given(pool, call, group):
    def program(comm, call, group):
        said = []
        for _ in range(2):
            try:
                exec(compile(f"comm.{call}", "groups.py", "exec"), {"comm": comm, "x": np.ones(4), "group": group})
            except CollectiveMismatch as error:
                said.append(str(error))
        return said, comm.rank

    for said, rank in pool.run(program, call, group):
        assert len(said) == 2 and all(f"rank {rank} called " in text and "groups.py:1" in text for text in said), said
