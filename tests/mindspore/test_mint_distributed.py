"""mindspore.mint.distributed on ranks: what every function writes, against numpy on data that differ by rank."""

import contextlib
from datetime import timedelta

import numpy as np
import pytest
from parallel_lab.mindspore.mint import distributed as dist

from parallel_lab.base.errors import ArgumentError, ArgumentTypeError, NotBuiltYet, ShapeError, WorldError, WorldTimeout
from parallel_lab.mindspore import Tensor, ops
from parallel_lab.processes.shm import WorkerPool
from tests.ops.ranks import on_ranks

pytestmark = pytest.mark.timeout(90)

N = 4
X = np.random.default_rng(5).integers(1, 9, (N, 8, 3)).astype(np.float32)  # X[r] is rank r's
UNEVEN = [3, 1, 2, 2]  # rows of the ranks
ENDS = np.cumsum([0, *UNEVEN])
GROUP = [1, 3]
OBJECTS = [
    "test",
    {1: 2, (0, True): [b"\xff", 2.5]},
    None,
    (3, "\u00e9" * 300, {1, 2}, frozenset("a"), range(2, 9, 3), 1 + 2j),
]


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(N) as pool:
        yield pool


def zeros(*shape):
    return Tensor(np.zeros(shape, np.float32))


def collectives(world):
    r, found = world.rank, {}

    def note(name, *tensors):
        found[name] = [t.asnumpy().copy() for t in tensors]

    x = Tensor(X[r])
    assert dist.all_reduce(x) is None
    note("all_reduce", x)
    x = Tensor(X[r])
    dist.all_reduce(x, op="max", async_op=True).wait()
    note("max", x)
    x = Tensor(X[r])
    dist.broadcast(x, src=2)
    note("broadcast", x)
    x = Tensor(X[r])
    dist.reduce(x, 1, op="prod")
    note("reduce", x)
    out = zeros(32, 3)
    dist.all_gather_into_tensor(out, Tensor(X[r]))
    note("all_gather_into_tensor", out)
    out = zeros(2, 3)
    dist.reduce_scatter_tensor(out, Tensor(X[r]))
    note("reduce_scatter_tensor", out)
    out = zeros(2, 3)
    dist.scatter_tensor(out, Tensor(X[r]), src=3)
    note("scatter_tensor", out)
    out = zeros(32, 3)
    dist.gather_into_tensor(out, Tensor(X[r]), dst=3)
    note("gather_into_tensor", out)
    outs = [zeros(8, 3) for _ in range(N)]
    dist.all_gather(outs, Tensor(X[r]))
    note("all_gather", *outs)
    outs = [zeros(n, 3) for n in UNEVEN]
    dist.all_gather(outs, Tensor(X[r, : UNEVEN[r]]))
    note("all_gather uneven", *outs)
    out = zeros(8, 3)
    dist.all_gather_into_tensor_uneven(out, Tensor(X[r, : UNEVEN[r]]), UNEVEN)
    note("all_gather_into_tensor_uneven", out)
    out = zeros(3)
    dist.reduce_scatter(out, [Tensor(X[r, i]) for i in range(N)])
    note("reduce_scatter", out)
    out = zeros(UNEVEN[r], 3)
    dist.reduce_scatter_tensor_uneven(out, Tensor(X[r]), UNEVEN, op="max")
    note("reduce_scatter_tensor_uneven", out)
    out = zeros(3)
    dist.scatter(out, [Tensor(X[r, i]) for i in range(N)] if r == 2 else None, src=2)
    note("scatter", out)
    outs = [zeros(3) for _ in range(N)] if r == 1 else None
    dist.gather(Tensor(X[r, 0]), outs, dst=1)
    note("gather", *(outs or []))
    outs = [zeros(3) for _ in range(N)]
    dist.all_to_all(outs, [Tensor(X[r, i]) for i in range(N)])
    note("all_to_all", *outs)
    out = zeros(N * UNEVEN[r], 3)
    dist.all_to_all_single(out, Tensor(X[r]), [UNEVEN[r]] * N, UNEVEN)
    note("all_to_all_single", out)
    note("AllGatherV", ops.AllGatherV()(Tensor(X[r, : UNEVEN[r], 0]), UNEVEN))
    note("ReduceScatterV", ops.ReduceScatterV("max")(Tensor(X[r, :, 1]), Tensor(UNEVEN)))
    dist.barrier()
    return found


def expected_of(r):
    rows = slice(ENDS[r], ENDS[r + 1])
    every = [X[i, : UNEVEN[i]] for i in range(N)]
    return {
        "all_reduce": [X.sum(0)],
        "max": [X.max(0)],
        "broadcast": [X[2]],
        "reduce": [X.prod(0) if r == 1 else X[r]],
        "all_gather_into_tensor": [X.reshape(32, 3)],
        "reduce_scatter_tensor": [X.sum(0)[2 * r : 2 * r + 2]],
        "scatter_tensor": [X[3, 2 * r : 2 * r + 2]],
        "gather_into_tensor": [X.reshape(32, 3) if r == 3 else np.zeros((32, 3))],
        "all_gather": list(X),
        "all_gather uneven": every,
        "all_gather_into_tensor_uneven": [np.concatenate(every)],
        "reduce_scatter": [X.sum(0)[r]],
        "reduce_scatter_tensor_uneven": [X.max(0)[rows]],
        "scatter": [X[2, r]],
        "gather": list(X[:, 0]) if r == 1 else [],
        "all_to_all": list(X[:, r]),
        "all_to_all_single": [X[:, rows].reshape(-1, 3)],
        "AllGatherV": [np.concatenate(every)[:, 0]],
        "ReduceScatterV": [X[:, :, 1].max(0)[rows]],
    }


@pytest.mark.exhaustive
def test_collectives_write_their_first_tensor(pool):
    for r, found in enumerate(on_ranks(pool, collectives)):
        expected = expected_of(r)
        assert list(found) == list(expected)
        for name, arrays in found.items():
            assert len(arrays) == len(expected[name]), name
            for got, wanted in zip(arrays, expected[name], strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-6, err_msg=f"{name} on rank {r}")


def messages(world):
    r, after, before = world.rank, (world.rank + 1) % N, (world.rank - 1) % N
    first, second, third = zeros(8, 3), zeros(8, 3), zeros(8, 3)
    asked = [dist.irecv(t, before) for t in (first, second)]  # before anything is sent
    dist.isend(Tensor(X[r]), after).wait()
    dist.send(Tensor(2 * X[r]), after)
    asked[1].wait()  # takes the first one, too
    asked[0].wait()
    dist.send(Tensor(3 * X[r]), after)
    assert dist.recv(third, before) == 0
    got, out = zeros(8, 3), Tensor(4 * X[r])
    listed = [dist.P2POp("isend", out, after), dist.P2POp(dist.irecv, got, before)]
    (handle,) = dist.batch_isend_irecv(listed)
    handle.wait()
    return [t.asnumpy() for t in (first, second, third, got)]


def test_messages_come_in_the_order_of_the_calls(pool):
    for r, found in enumerate(on_ranks(pool, messages)):
        for factor, got in enumerate(found, 1):
            np.testing.assert_array_equal(got, factor * X[r - 1])


def groups_and_objects(world):
    r = world.rank
    assert dist.is_available() and dist.is_initialized() and dist.get_backend() == "hccl"
    assert dist.new_group() == "hccl_world_group" and dist.get_process_group_ranks() == [0, 1, 2, 3]
    group = dist.new_group([3, 1])
    assert (group == "") == (r not in GROUP) and (dist.get_rank(), dist.get_world_size()) == (r, N)
    if group:
        assert dist.get_process_group_ranks(group) == GROUP and group.startswith("hccl_2_")
        assert dist.get_rank(group) == GROUP.index(r) and dist.get_world_size(group) == 2
        assert dist.get_global_rank(group, 1) == 3 and dist.get_group_rank(group, 3) == 1
        x = Tensor(X[r])
        dist.all_reduce(x, group=group)
        np.testing.assert_array_equal(x.asnumpy(), X[GROUP].sum(0))
        dist.broadcast(x := Tensor(X[r]), 3, group)
        np.testing.assert_array_equal(x.asnumpy(), X[3])
        other = GROUP[1 - GROUP.index(r)]
        listed = [
            dist.P2POp("isend", Tensor(X[r]), other, group),
            dist.P2POp("irecv", got := zeros(8, 3), other, group),
        ]
        dist.batch_isend_irecv(listed)
        np.testing.assert_array_equal(got.asnumpy(), X[other])
        dist.destroy_process_group(group)
    assert dist.get_rank("unknown") == dist.get_world_size("unknown") == -1
    own = OBJECTS[r]
    gathered, at_2, shared, part = [None] * N, [None] * N, [own, r], [None]
    dist.all_gather_object(gathered, own)
    dist.gather_object(own, at_2 if r == 2 else None, dst=2)
    dist.broadcast_object_list(shared, src=3)
    dist.scatter_object_list(part, [{"for": i} for i in range(N)] if r == 1 else None, src=1)
    with contextlib.suppress(ArgumentTypeError):
        dist.all_gather_object([None], own)  # refused on all before anything is sent
    with contextlib.suppress(ArgumentTypeError):
        dist.all_gather_object([None] * N, object())
    return gathered, at_2, shared, part


def test_groups_and_objects(pool):
    for r, (gathered, at_2, shared, part) in enumerate(on_ranks(pool, groups_and_objects)):
        assert gathered == OBJECTS and at_2 == (OBJECTS if r == 2 else [None] * N)
        assert shared == [OBJECTS[3], 3] and part == [{"for": r}]


def refusals(world):
    def said(call, *args, **kwargs):
        try:
            call(*args, **kwargs)
        except Exception as error:
            return type(error)
        return None

    x, world_rank = zeros(8, 3), world.rank
    return [
        said(dist.all_reduce, X[0]),
        said(dist.all_gather_into_tensor, zeros(31, 3), x),
        said(dist.all_gather_into_tensor, Tensor(np.zeros((32, 3), np.int32)), x),
        said(dist.all_gather, [x], x),
        said(dist.reduce_scatter_tensor, zeros(2, 3), zeros(7, 3)),
        said(dist.send, x, world_rank),
        said(dist.P2POp, "isend", x, 0, None, 1),
        said(dist.P2POp, "send", x, 0),
        said(dist.new_group, [1, 1]),
        said(dist.init_process_group, world_size=3),
        said(dist.broadcast_object_list, []),
    ]


def test_wrong_tensors_are_refused_on_every_rank_before_anything_is_sent(pool):
    kinds = [ArgumentTypeError, ShapeError, ArgumentTypeError, ArgumentTypeError, ShapeError, ArgumentError]
    kinds += [NotBuiltYet, ArgumentTypeError, ArgumentTypeError, ArgumentError, ArgumentTypeError]
    assert on_ranks(pool, refusals) == [kinds] * N


def test_a_store_keeps_values_for_several_users():
    master = dist.TCPStore("127.0.0.1", 0, is_master=True)
    port = master._listener.address[1]
    worker = dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=0.05))
    master.set("first_key", "first_value")
    assert worker.get("first_key") == b"first_value" and worker.add("count", 2) == 2 and master.add("count", 3) == 5
    worker.set("bytes", bytes(range(256)))
    assert master.get("bytes") == bytes(range(256)) and worker.delete_key("bytes") and not master.delete_key("bytes")
    with pytest.raises(WorldError, match="does not hold a number"):
        worker.add("first_key", 1)
    short = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=0.05))
    with pytest.raises(WorldTimeout, match=r"no value of 'missing' within 0\.05 s"):
        short.get("missing")


def test_the_module_has_what_mindspore_documents_and_nothing_else():
    documented = """
        P2POp TCPStore all_gather all_gather_into_tensor all_gather_into_tensor_uneven all_gather_object all_reduce
        all_to_all all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list destroy_process_group
        distributed gather gather_into_tensor gather_object get_backend get_global_rank get_group_rank
        get_process_group_ranks get_rank get_world_size init_process_group irecv is_available is_initialized isend
        new_group recv reduce reduce_scatter reduce_scatter_tensor reduce_scatter_tensor_uneven scatter
        scatter_object_list scatter_tensor send
        """
    assert sorted(n for n in dir(dist) if n[0] != "_") == sorted(documented.split())
