"""mindspore.communication.comm_func, AlltoAllV and BatchISendIRecv on ranks, at once and compiled."""

from __future__ import annotations

import numpy as np
import pytest
from parallel_lab.mindspore.communication import comm_func, create_group

import parallel_lab.mindspore as ms
from parallel_lab.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    ParallelLabError,
    ShapeError,
    WorldArgumentError,
    WorldTypeError,
)
from parallel_lab.mindspore import Tensor, ops
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.train.compiled import CompiledFunction
from tests.ops.ranks import on_ranks

pytestmark = pytest.mark.timeout(90)

N = 4
X = np.random.default_rng(11).integers(0, 9, (N, N, 3)).astype(np.float32)  # X[r] is rank r's
SEND = [1, 0, 2, 3]  # rows that every rank sends to ranks 0 to 3
ROWS = np.random.default_rng(12).integers(0, 9, (N, sum(SEND), 2)).astype(np.float32)
ENDS = np.cumsum([0, *SEND])


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(N) as pool:
        yield pool


def collectives(world):
    x = Tensor(X[world.rank])
    both = comm_func.all_reduce(x), comm_func.all_reduce(x, op=ops.ReduceOp.MAX, async_op=True)
    both[1][1].wait()
    found = [both[0][0], both[1][0], comm_func.all_gather_into_tensor(x)[0], comm_func.reduce_scatter_tensor(x)[0]]
    found += [comm_func.broadcast(x, src=1), comm_func.reduce(x, 2), comm_func.gather_into_tensor(x, dst=1)]
    found += [comm_func.scatter_tensor(x, src=3)]
    comm_func.barrier()
    return both[0][1] is None, [each.asnumpy() for each in found]


@pytest.mark.exhaustive
def test_collectives_give_what_numpy_gives(pool):
    total = X.sum(axis=0)
    for rank, (no_handle, found) in enumerate(on_ranks(pool, collectives)):
        assert no_handle
        expected = [total, X.max(axis=0), X.reshape(-1, 3), total[rank : rank + 1], X[1]]
        expected += [total if rank == 2 else X[rank], X.reshape(-1, 3) if rank == 1 else None, X[3, rank : rank + 1]]
        for got, wanted in zip(found, expected, strict=True):
            if wanted is not None:
                np.testing.assert_array_equal(got, wanted)


def from_rank_to_rank(world):
    x, after, before = Tensor(X[world.rank]), (world.rank + 1) % N, (world.rank - 1) % N
    comm_func.isend(x, after).wait()
    first, handle = comm_func.irecv(x, before)
    handle.wait()
    comm_func.send(x * 2, after, tag=3)
    second = comm_func.recv(x, before, tag=3)
    batch = [
        comm_func.P2POp("isend", x, after),
        comm_func.P2POp(comm_func.irecv, x, before),
        comm_func.P2POp("irecv", x.shape, before, recv_dtype=ms.float32),
        comm_func.P2POp(comm_func.isend, x * 3, after),
    ]
    sent, third, fourth, _ = comm_func.batch_isend_irecv(batch)
    assert sent.shape == ()
    (_, fifth) = ops.BatchISendIRecv(["isend", "irecv"], [after, before], [(N, 3)], (ms.float32,))((x,))
    return [each.asnumpy() for each in (first, second, third, fourth, fifth)]


def test_messages_from_rank_to_rank(pool):
    for rank, found in enumerate(on_ranks(pool, from_rank_to_rank)):
        for got, factor in zip(found, (1, 2, 1, 3, 1), strict=True):
            np.testing.assert_array_equal(got, X[rank - 1] * factor)


def pieces(world):
    x, count = Tensor(ROWS[world.rank]), SEND[world.rank]
    receive, flat = [count] * N, x.reshape(-1)
    first, handle = comm_func.all_to_all_single_with_output_shape((N * count, 2), x, receive, SEND)
    assert handle is None
    older = ops.AlltoAllV([2 * n for n in SEND], [2 * n for n in receive])
    second, third = older(flat), ops.AlltoAllV(block_size=2)(flat, Tensor(SEND), receive)
    each, _ = comm_func.all_to_all_with_output_shape([(1, 3)] * N, [Tensor(row[None]) for row in X[world.rank]])
    equal, _ = comm_func.all_to_all_single_with_output_shape(Tensor(X[0]), Tensor(X[world.rank]))
    create_group("even", [0, 2])
    group = ops.AlltoAllV([1, 2], [1, 1] if world.rank == 0 else [2, 2], "even") if world.rank in (0, 2) else None
    fourth = group(Tensor(X[world.rank, 0])).asnumpy() if group else None
    ms.set_auto_parallel_context(parallel_mode="data_parallel")
    compiled = CompiledFunction(older)(flat)
    back = CompiledFunction(ms.grad(lambda x: (older(x) * older(x)).sum()))(flat)
    found = (first, second, third, *each, equal, compiled, back)
    return [one.asnumpy() for one in found], fourth


@pytest.mark.exhaustive
def test_pieces_of_different_sizes_arrive_in_the_order_of_ranks(pool):
    found = on_ranks(pool, pieces)
    for rank, (got, group) in enumerate(found):
        expected = np.concatenate([ROWS[r, ENDS[rank] : ENDS[rank + 1]] for r in range(N)])
        for same in (*got[:3], got[-2]):
            np.testing.assert_array_equal(same.reshape(expected.shape), expected)
        np.testing.assert_array_equal(np.concatenate(got[3 : 3 + N]), X[:, rank])
        np.testing.assert_array_equal(got[-3], X[:, rank])
        np.testing.assert_array_equal(got[-1], 2 * ROWS[rank].reshape(-1))
        if rank == 0:
            np.testing.assert_array_equal(group, [X[0, 0, 0], X[2, 0, 0]])
        if rank == 2:
            np.testing.assert_array_equal(group, [*X[0, 0, 1:], *X[2, 0, 1:]])


def mistakes(world):
    """The errors of calls that are all refused before anything is sent."""
    x, raised = Tensor(X[world.rank]), []
    for call in (
        lambda: comm_func.all_reduce(3),
        lambda: comm_func.all_reduce(x, op="avg"),
        lambda: comm_func.all_reduce(x, group=3),
        lambda: comm_func.all_reduce(x, group="unknown"),
        lambda: comm_func.all_reduce(x, async_op=1),
        lambda: comm_func.send(x, 99),
        lambda: comm_func.isend(x, world.rank),
        lambda: comm_func.P2POp("send", x, 1),
        lambda: comm_func.P2POp("irecv", (3,), 1),
        lambda: comm_func.batch_isend_irecv([]),
        lambda: comm_func.batch_isend_irecv([x]),
        lambda: comm_func.all_to_all_single_with_output_shape((N, 2), x),
        lambda: comm_func.all_to_all_single_with_output_shape((N, 3), x, [1] * N, [2] * N),
        lambda: comm_func.all_to_all_with_output_shape([(1,)], [x]),
        lambda: ops.AlltoAllV([1], [1])(x),
        lambda: ops.AlltoAllV([1]),
        lambda: ops.AlltoAllV([-1], [1]),
        lambda: ops.BatchISendIRecv(["isend"], [0, 1]),
        lambda: ops.BatchISendIRecv(["isend"], [(world.rank + 1) % N])(()),
    ):
        try:
            call()
        except Exception as error:
            raised.append(type(error))
        else:
            raised.append(None)
    return raised


def test_what_cannot_be_sent_is_refused(pool):
    world = [ArgumentTypeError, ArgumentError, WorldTypeError, WorldArgumentError, ArgumentTypeError]
    single = [ArgumentError, WorldArgumentError, ArgumentError, ArgumentTypeError, ArgumentTypeError, ArgumentTypeError]
    many = [ShapeError, ArgumentError, ArgumentError, ShapeError, ArgumentTypeError, ArgumentError]
    assert on_ranks(pool, mistakes)[1] == [*world, *single, *many, ArgumentError, ArgumentError]


# ---- a product beside its message ----

ROW, TALL = (
    np.float32(X.reshape(N * N, 3) - 4),
    np.random.default_rng(13).standard_normal((3 * N, 5)).astype(np.float32),
)
GROUP = "hccl_world_group"


def products(world):
    rows, part = Tensor(ROW[world.rank * N : (world.rank + 1) * N]), TALL[world.rank * 3 : (world.rank + 1) * 3]
    product, gathered = ops.all_gather_matmul(rows, Tensor(TALL[:3]), GROUP, N, bias=Tensor(TALL[3]))
    turned, nothing = ops.all_gather_matmul(
        rows, Tensor(np.ascontiguousarray(TALL[:3].T)), GROUP, N, gather_output=False, trans_x2=True
    )
    scattered = ops.matmul_reduce_scatter(Tensor(ROW * (world.rank + 1)), Tensor(part), GROUP, N)
    dx = ms.grad(lambda x: ops.all_gather_matmul(x, Tensor(TALL[:3]), GROUP, N)[0].sum())(rows)
    refused = []
    for call, options in (
        (ops.all_gather_matmul, {"world_size": N + 1}),
        (ops.all_gather_matmul, {"world_size": N, "gather_index": 1}),
        (ops.matmul_reduce_scatter, {"world_size": N, "reduce_op": "max"}),
    ):
        with pytest.raises(ParallelLabError) as error:
            call(rows, Tensor(TALL[:3]), GROUP, **options)
        refused.append(str(error.value))
    found = product, gathered, turned, scattered, dx
    return [each.asnumpy() for each in found], nothing.shape, refused


@pytest.mark.exhaustive
def test_products_with_gathered_rows_and_scattered_sums(pool):
    sums = sum((ROW * (rank + 1)) @ TALL[rank * 3 : (rank + 1) * 3] for rank in range(N))
    for rank, (found, nothing, refused) in enumerate(on_ranks(pool, products)):
        whole = ROW @ TALL[:3]
        expected = [whole + TALL[3], ROW, whole, sums[rank * N : (rank + 1) * N], N * np.tile(TALL[:3].sum(1), (N, 1))]
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
        assert nothing == (0,)
        assert "world_size=5. 4, the ranks of 'hccl_world_group'" in refused[0]
        assert "gather_index=1" in refused[1] and "reduce_op='max'" in refused[2]
