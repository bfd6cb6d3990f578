"""Halos: windows against whole tensors, exchange against reduce, and what is refused before it is sent."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab import Session, compile, nn, ops
from parallel_lab.base.errors import CollectiveMismatch, ShapeError
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.ops.collectives.definitions import MESSAGES
from parallel_lab.ops.collectives.halo import HALOS, Halo
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.run.communicator import Request, answer, check_request
from parallel_lab.run.simulator import simulate
from tests.crossed import each_of
from tests.run.halos import any_window, draw_windows, filled_by_neighbours, take

SEED = 20261122
MEMBERS = (1, 2, 3, 4, 8)


def slices_and_windows(rng, members, window, dtype="f8"):
    """A whole tensor, its slices, and one random array per window, along a random dim of three."""
    _, _, length, part = window
    dim = int(rng.integers(0, 3))
    shape, other = [2, 3, 2], [2, 3, 2]
    shape[dim], other[dim] = part * members, length
    full = rng.integers(-9, 10, shape).astype(dtype)
    given = [rng.integers(-9, 10, other).astype(dtype) for _ in range(members)]
    return dim, full, np.split(full, members, axis=dim), given


def ask(kind, members, values, dim, window):
    group = tuple(range(members))
    return answer([Request(kind, group, np.ascontiguousarray(v), dim=dim, window=window) for v in values])


@pytest.mark.quick(1)
@pytest.mark.parametrize("members", MEMBERS)
def test_exchange_gives_each_member_its_window_of_the_whole(members):
    rng = np.random.default_rng([SEED, members])
    for window in draw_windows(rng, members, 40):
        step, origin, length, _ = window
        dim, full, slices, _ = slices_and_windows(rng, members, window)
        got = ask("halo_exchange", members, slices, dim, window)
        for i, reply in enumerate(got):
            want = take(full, dim, step * i + origin, step * i + origin + length)
            np.testing.assert_array_equal(reply, want, err_msg=f"{window}, member {i}")
            assert reply.flags.c_contiguous and reply.flags.owndata


@pytest.mark.quick(2)
@pytest.mark.parametrize("members", MEMBERS)
def test_reduce_sums_what_all_windows_say_about_a_slice(members):
    rng = np.random.default_rng([SEED, members, 1])
    for window in draw_windows(rng, members, 40):
        step, origin, length, part = window
        dim, full, _, given = slices_and_windows(rng, members, window)
        total = np.zeros_like(full)
        for i, value in enumerate(given):
            for k in range(length):
                e = step * i + origin + k
                if 0 <= e < part * members:
                    np.moveaxis(total, dim, 0)[e] += np.moveaxis(value, dim, 0)[k]
        got = ask("halo_reduce", members, given, dim, window)
        for reply, want in zip(got, np.split(total, members, axis=dim), strict=True):
            np.testing.assert_array_equal(reply, want, err_msg=str(window))


@pytest.mark.quick(3)
@pytest.mark.parametrize("members", MEMBERS)
def test_reduce_is_the_adjoint_of_exchange(members):
    """<exchange(x), y> = <x, reduce(y)>, exactly: the numbers are small integers."""
    rng = np.random.default_rng([SEED, members, 2])
    for window in draw_windows(rng, members, 40):
        dim, _, x, y = slices_and_windows(rng, members, window)
        forward, backward = ask("halo_exchange", members, x, dim, window), ask("halo_reduce", members, y, dim, window)
        left = sum(float((a * b).sum()) for a, b in zip(forward, y, strict=True))
        right = sum(float((a * b).sum()) for a, b in zip(x, backward, strict=True))
        assert left == right, window


def test_overlaps_are_added_in_group_order():
    """Rank 1's element gets ((0 + 1e16) + 1) - 1e16 = 0; any other order of the same addends gives 1."""
    values = [np.array([0.0, 1e16]), np.array([0.0, 1.0, 0.0]), np.array([-1e16, 0.0])]
    values = [np.pad(v, p) for v, p in zip(values, ((1, 0), (0, 0), (0, 1)), strict=True)]
    got = ask("halo_reduce", 3, values, 0, (1, -1, 3, 1))
    assert got[1].tolist() == [((0.0 + 1e16) + 1.0) - 1e16] == [0.0]
    assert (1e16 - 1e16) + 1.0 == 1.0


def test_exchange_copies_bits():
    """-0.0 and NaN arrive as they were: nothing is added to anything."""
    got = ask("halo_exchange", 2, [np.array([-0.0]), np.array([np.nan])], 0, (1, -1, 3, 1))
    assert np.signbit(got[0][1]) and np.signbit(got[1][0]) and np.isnan(got[0][2])


@pytest.mark.parametrize("members", MEMBERS)
def test_windows_that_neighbours_cannot_fill_have_a_fault(members):
    rng = np.random.default_rng([SEED, members, 3])
    verdicts = set()
    for _ in range(300):
        window = any_window(rng)
        verdicts.add(filled_by_neighbours(window, members))
        assert (Halo(*window, members=members).fault() == "") == filled_by_neighbours(window, members), window
    assert verdicts == ({True, False} if members > 2 else {True})


@pytest.mark.parametrize("kind", HALOS)
@pytest.mark.parametrize("members", MEMBERS)
def test_what_is_sent_is_received_and_is_what_the_windows_share(kind, members):
    rng = np.random.default_rng([SEED, members, 4])
    for window in draw_windows(rng, members, 40):
        step, origin, length, part = window
        halo = Halo(*window, members=members)
        own = [set(range(part * i, part * (i + 1))) for i in range(members)]
        seen = [set(range(step * i + origin, step * i + origin + length)) for i in range(members)]
        for i in range(members):
            for j in halo.neighbours(i):
                shared = len(seen[j] & own[i]) if kind == "halo_exchange" else len(seen[i] & own[j])
                (a, b), (c, d) = halo.given(kind, i, j), halo.taken(kind, j, i)
                assert b - a == d - c == shared, (window, i, j)
        extent = part if kind == "halo_exchange" else length
        ranges = [[halo.given(kind, i, j) for j in halo.neighbours(i)] for i in range(members)]
        sizes = [sum(stop - start for start, stop in given) for given in ranges]
        payload_bytes = MESSAGES[kind].payload_bytes
        assert [payload_bytes(12 * extent, members, window, i) for i in range(members)] == [12 * s for s in sizes]
        assert payload_bytes(12 * extent, members, window) == 12 * max(sizes)


def test_a_rank_program_can_ask_for_a_halo():
    """A hand-written 3-point sum on 4 ranks equals the undivided one."""
    x = np.arange(12.0) ** 2
    whole = np.convolve(np.pad(x, 1), np.ones(3), "valid")

    def program(rank):
        wide = yield Request("halo_exchange", (0, 1, 2, 3), x[3 * rank : 3 * rank + 3], window=(3, -1, 5, 3))
        return wide[:-2] + wide[1:-1] + wide[2:]

    np.testing.assert_array_equal(np.concatenate(simulate([program(r) for r in range(4)])), whole)


# ---- training ----


@pytest.fixture(scope="module")
def workers():
    with WorkerPool(8) as pool:
        yield pool


class Pictures(nn.Cell):
    """Two convolutions over pictures split in height and width; the second has a stride."""

    def __init__(self, first, second):
        super().__init__()
        rng = np.random.default_rng(SEED)
        self.weight = Parameter(rng.standard_normal((4, 3, 3, 3)) / 5, name="w")
        self.weight2 = Parameter(rng.standard_normal((2, 4, 3, 3)) / 6, name="w2")
        self.conv = ops.Conv2D(pad_mode="same").shard(first)
        self.conv2 = ops.Conv2D(pad_mode="pad", pad=(1, 0, 1, 0), stride=2).shard(second)

    def construct(self, x):
        return self.conv2(self.conv(x, self.weight), self.weight2)


def trained(first, second, pool=None, devices=8, steps=4):
    """(losses, parameters, plan) of a few steps."""
    rng = np.random.default_rng(SEED + 1)
    data = [(rng.standard_normal((2, 3, 16, 8)), rng.standard_normal((2, 2, 8, 4))) for _ in range(2)]
    net = Pictures(first, second)
    rule = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    plan = compile(net, *data[0], loss=nn.MSELoss(), optimizer=rule, device_num=devices, dataset_strategy="full_batch")
    with Session(plan, net, rule, executor="simulator" if pool is None else "processes", pool=pool) as session:
        return session.train(data, steps=steps), session.parameters(), plan


WHOLE = ((1, 1, 1, 1), (1, 1, 1, 1))
CUTS = [
    (((1, 1, 8, 1), (1, 1, 1, 1)), ((1, 1, 4, 2), (1, 1, 1, 1))),
    (((2, 1, 2, 2), (1, 1, 1, 1)), ((1, 2, 2, 2), (1, 2, 1, 1))),
    (((1, 1, 2, 2), (2, 1, 1, 1)), ((1, 1, 8, 1), (1, 1, 1, 1))),
]


@pytest.mark.exhaustive
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("first", "second"), CUTS)
def test_pictures_cut_in_space_train_as_on_one_device_with_the_same_bits_everywhere(workers, first, second):
    losses, parameters, plan = trained(first, second)
    assert {i.kind for _, i in plan.instructions()} >= set(HALOS)
    again, on_processes, _ = trained(first, second, workers)
    assert losses == again
    alone, undivided, _ = trained(WHOLE, WHOLE, devices=1)
    np.testing.assert_allclose(losses, alone, rtol=1e-12)
    for name, array in undivided.items():
        assert np.array_equal(parameters[name], on_processes[name])
        np.testing.assert_allclose(parameters[name], array, rtol=1e-10, atol=1e-13)


# ---- refusals ----


@each_of(
    ("kind", "size", "window", "match"),
    ("halo_exchange", 4, None, "window=None"),
    ("halo_exchange", 4, (4, -1, 6), "Four ints"),
    ("halo_exchange", 4, (4, -1, 6.0, 4), "Four ints"),
    ("halo_exchange", 3, (4, -1, 6, 4), "dim 0 has 3 elements.*A slice of 4"),
    ("halo_reduce", 4, (4, -1, 6, 4), "dim 0 has 4 elements.*A window of 6"),
    ("halo_exchange", 2, (2, -3, 8, 2), r"slice 0 needs .*\[0, 5\), but .* hold \[0, 4\).*no further than"),
    ("halo_exchange", 2, (2, 0, 0, 2), "not all at least 1"),
)
def test_a_halo_that_cannot_be_is_refused(kind, size, window, match):
    with pytest.raises(ShapeError, match=f"(?s){match}") as caught:
        check_request(Request(kind, (0, 1, 2, 3), np.ones(size), window=window, origin="lesson.py:3"), 0, range(4))
    assert "rank 0" in str(caught.value) and "lesson.py:3" in str(caught.value)


def test_a_dim_that_is_not_there_is_refused():
    with pytest.raises(ShapeError, match="dim=1"):
        check_request(Request("halo_exchange", (0, 1), np.ones(4), dim=1, window=(4, -1, 6, 4)), 0, range(2))


def test_text_cannot_be_added():
    with pytest.raises(ShapeError, match="cannot be sent"):
        check_request(Request("halo_reduce", (0, 1), np.array([0], "M8[s]"), window=(1, 0, 1, 1)), 0, range(2))


def test_ranks_with_different_windows_get_an_error():
    def program(rank):
        yield Request("halo_exchange", (0, 1), np.ones(4), window=(4, -1, 6 - rank, 4))

    with pytest.raises(CollectiveMismatch, match=r"window \(4, -1, 6, 4\).*window \(4, -1, 5, 4\)"):
        simulate([program(0), program(1)])


def test_processes_with_different_windows_get_an_error(workers):
    def program(comm):
        comm.halo_exchange(np.ones(4), (4, -1, 6 - comm.rank // 7, 4), tag="border")

    with pytest.raises(CollectiveMismatch, match=r"they differ in detail") as caught:
        workers.run(program)
    assert "window (4, -1, 6, 4)" in str(caught.value) and "window (4, -1, 5, 4)" in str(caught.value)
