"""`mindspore.communication.comm_func`: communication as functions, made of the operators of `ops`.

    total, handle = all_reduce(x, async_op=True)
    handle.wait()

Results are there when a call returns, so that a handle has nothing to wait for. Names and arguments: MindSpore 2.4 to
2.10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ops
from ..base.checks import choice, fitting, flag, instance, integer
from ..base.errors import ArgumentError, ArgumentTypeError, ShapeError
from ..nn.tensor.tensor import Tensor
from ..train.communication import get_group_size, get_rank
from ._communication import get_process_group_ranks
from ._forms import AlltoAllV, BatchISendIRecv, Receive

_SUM = ops.ReduceOp.SUM


class CommHandle:
    """What a call with async_op=True returns next to its result."""

    def wait(self) -> None:
        """The result is there already."""


def _handle(where: str, async_op: Any) -> CommHandle | None:
    return CommHandle() if flag(where, "async_op", async_op) else None


def _tensor(where: str, x: Any) -> Any:
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise ArgumentTypeError(f"tensor is {type(x).__name__}", where=where, allowed="A Tensor")
    return x


def all_reduce(tensor: Any, op: str = _SUM, group: str | None = None, async_op: bool = False) -> tuple[Any, Any]:
    """(`ops.AllReduce(op, group)(tensor)`, handle or None)."""
    handle = _handle("all_reduce", async_op)
    return ops.AllReduce(op, group)(_tensor("all_reduce", tensor)), handle


def all_gather_into_tensor(tensor: Any, group: str | None = None, async_op: bool = False) -> tuple[Any, Any]:
    """(`ops.AllGather(group)(tensor)`, handle or None)."""
    handle = _handle("all_gather_into_tensor", async_op)
    return ops.AllGather(group)(_tensor("all_gather_into_tensor", tensor)), handle


def reduce_scatter_tensor(
    tensor: Any, op: str = _SUM, group: str | None = None, async_op: bool = False
) -> tuple[Any, Any]:
    """(`ops.ReduceScatter(op, group)(tensor)`, handle or None)."""
    handle = _handle("reduce_scatter_tensor", async_op)
    return ops.ReduceScatter(op, group)(_tensor("reduce_scatter_tensor", tensor)), handle


def broadcast(tensor: Any, src: int = 0, group: str | None = None) -> Any:
    """`ops.Broadcast(src, group)(tensor)`."""
    return ops.Broadcast(src, group)(_tensor("broadcast", tensor))


def reduce(tensor: Any, dst: int, op: str = _SUM, group: str | None = None) -> Any:
    """The combination on `dst`, a rank of the world; the tensor itself on the others."""
    place = _place("reduce", "dst", dst, group)
    found = ops.Reduce(place, op, group)(_tensor("reduce", tensor))
    return found if get_rank() == dst else tensor


def gather_into_tensor(tensor: Any, dst: int = 0, group: str | None = None) -> Any:
    """`ops.CollectiveGather(dst, group)(tensor)`."""
    return ops.CollectiveGather(dst, group)(_tensor("gather_into_tensor", tensor))


def scatter_tensor(tensor: Any, src: int = 0, group: str | None = None) -> Any:
    """`ops.CollectiveScatter(src, group)(tensor)`."""
    return ops.CollectiveScatter(src, group)(_tensor("scatter_tensor", tensor))


def barrier(group: str | None = None) -> None:
    """`ops.Barrier(group)()`."""
    ops.Barrier(group)()


# ---- from rank to rank ----


def _place(where: str, name: str, rank: Any, group: str | None) -> int:
    """The place in the group of a rank of the world."""
    members = get_process_group_ranks(group)
    if integer(0)(where, name, rank) not in members:
        raise ArgumentError(f"{name}={rank}", where=where, allowed=f"A rank of the group {members}")
    return members.index(rank)


def send(tensor: Any, dst: int = 0, group: str | None = None, tag: int = 0) -> None:
    """Hand a tensor to rank `dst` of the world, which takes it with `recv`."""
    ops.Send(tag, _place("send", "dst", dst, group), group)(_tensor("send", tensor))


def recv(tensor: Any, src: int = 0, group: str | None = None, tag: int = 0) -> Any:
    """What rank `src` of the world sends.  tensor: any of its shape and dtype -> (...)."""
    given = _tensor("recv", tensor)
    return Receive(tag, _place("recv", "src", src, group), tuple(given.shape), given.dtype, group)()


def isend(tensor: Any, dst: int = 0, group: str | None = None, tag: int = 0) -> CommHandle:
    """`send`, with a handle."""
    send(tensor, dst, group, tag)
    return CommHandle()


def irecv(tensor: Any, src: int = 0, group: str | None = None, tag: int = 0) -> tuple[Any, CommHandle]:
    """(`recv`, handle)."""
    return recv(tensor, src, group, tag), CommHandle()


class P2POp:
    """One message of `batch_isend_irecv`.

    op      "isend" or "irecv", or the function
    tensor  what is sent; of irecv any tensor of its shape and dtype, or the shape
    peer    a rank of the world
    """

    @fitting
    def __init__(
        self,
        op: str | Callable,
        tensor: Any,
        peer: int,
        group: str | None = None,
        tag: int = 0,
        *,
        recv_dtype: Any = None,
    ) -> None:
        name = getattr(op, "__name__", op)
        self.op = choice("isend", "irecv")("P2POp", "op", name)
        is_shape = isinstance(tensor, (int, tuple, list))
        if is_shape and (self.op == "isend" or recv_dtype is None):
            what = f"op {self.op!r} with a shape" + (" and no recv_dtype" if self.op == "irecv" else "")
            raise ArgumentTypeError(what, where="P2POp", allowed="A Tensor; of irecv also a shape and recv_dtype")
        if is_shape:
            tensor = Tensor(np.zeros(tensor, np.dtype(str(np.dtype(recv_dtype)))))
        self.tensor, self.peer = _tensor("P2POp", tensor), integer(0)("P2POp", "peer", peer)
        self.group, self.tag, self.recv_dtype = group, integer(0)("P2POp", "tag", tag), recv_dtype


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> tuple[Any, ...]:
    """Carry out several messages: what each irecv receives, and a number without meaning for each isend."""
    where, allowed = "batch_isend_irecv", "A list of at least one P2POp, all of one group"
    if not isinstance(p2p_op_list, (list, tuple)) or not all(isinstance(each, P2POp) for each in p2p_op_list):
        raise ArgumentTypeError(f"p2p_op_list={p2p_op_list!r}", where=where, allowed=allowed)
    if len({each.group for each in p2p_op_list}) != 1:
        raise ArgumentTypeError(f"{len(p2p_op_list)} messages of several groups", where=where, allowed=allowed)
    received = [each for each in p2p_op_list if each.op == "irecv"]
    primitive = BatchISendIRecv(
        [each.op for each in p2p_op_list],
        [each.peer for each in p2p_op_list],
        [tuple(each.tensor.shape) for each in received],
        [each.recv_dtype or each.tensor.dtype for each in received],
        p2p_op_list[0].group,
    )
    return primitive(tuple(each.tensor for each in p2p_op_list if each.op == "isend"))


# ---- all to all ----


def _counts(where: str, name: str, sizes: Any, rows: int, ranks: int) -> list[int]:
    """Rows per rank, equal ones by default."""
    if sizes is None or not len(sizes):
        if rows % ranks:
            raise ShapeError(f"{rows} rows without {name}", where=where, allowed=f"Rows that divide by {ranks}")
        return [rows // ranks] * ranks
    sizes = [integer(0)(where, name, n) for n in instance((list, tuple), "A list of ints")(where, name, sizes)]
    if len(sizes) != ranks or sum(sizes) != rows:
        raise ArgumentError(f"{name}={sizes} for {rows} rows", where=where, allowed=f"{ranks} ints, together {rows}")
    return sizes


def all_to_all_single_with_output_shape(
    output_shape: Any,
    tensor: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: str | None = None,
    async_op: bool = False,
) -> tuple[Any, Any]:
    """(rows of all ranks for this one, handle or None): each rank is sent its rows of `tensor`.

    output_shape  of the result, a shape or a Tensor that has it;  output_split_sizes, input_split_sizes: rows per rank
    """
    where = "all_to_all_single_with_output_shape"
    handle, ranks = _handle(where, async_op), get_group_size(group)
    wanted = tuple(getattr(output_shape, "shape", output_shape))
    rest = tuple(_tensor(where, tensor).shape[1:])
    if not wanted or wanted[1:] != rest:
        raise ShapeError(f"output_shape {wanted} for rows of shape {rest}", where=where, allowed="Rows of that shape")
    width = int(np.prod(rest, dtype=np.int64))
    send_rows = _counts(where, "input_split_sizes", input_split_sizes, tensor.shape[0], ranks)
    receive_rows = _counts(where, "output_split_sizes", output_split_sizes, wanted[0], ranks)
    flat = ops.reshape(tensor, (-1,))
    got = AlltoAllV(group, max(width, 1))(flat, send_rows, receive_rows)
    return ops.reshape(got, wanted), handle


def all_to_all_with_output_shape(
    output_shape_list: Any, input_tensor_list: Any, group: str | None = None, async_op: bool = False
) -> tuple[tuple[Any, ...], Any]:
    """(a tensor from each rank, handle or None): each rank of the group is sent the tensor at its place.

    output_shape_list  shapes of what is received, or Tensors that have them
    """
    where = "all_to_all_with_output_shape"
    handle, ranks = _handle(where, async_op), get_group_size(group)
    shapes = [tuple(getattr(each, "shape", each)) for each in output_shape_list]
    if not len(shapes) == len(input_tensor_list) == ranks:
        what = f"{len(input_tensor_list)} tensors and {len(shapes)} output shapes"
        raise ArgumentError(what, where=where, allowed=f"{ranks} of each, one per rank of the group")
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
    send = [_tensor(where, each).size for each in input_tensor_list]
    flat = ops.concat([ops.reshape(each, (-1,)) for each in input_tensor_list], 0)
    got = AlltoAllV(group)(flat, send, sizes)
    ends = np.cumsum([0, *sizes]).tolist()
    parts = zip(ends, ends[1:], shapes, strict=False)
    return tuple(ops.reshape(got[a:b], shape) for a, b, shape in parts), handle
