"""`mindspore.mint.distributed`: communication in PyTorch's words, in place on its first tensor, made of `ops`.

    init_process_group()
    all_reduce(x)                             # x holds the sum afterwards
    handle = irecv(x, src=0); isend(y, 1).wait(); handle.wait()

Results of collectives are there when a call returns; what `irecv` asks for comes with its handle's wait(). Ranks src
and dst are those of the world. Names, arguments, results: MindSpore 2.10; shapes and dtypes are checked before anything
is sent.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from .. import ops
from ..base import hooks
from ..base.checks import choice, fitting, instance, integer, text
from ..base.errors import ArgumentError, ArgumentTypeError, NotBuiltYet, ShapeError, WorldError, shorten
from ..base.settings.tables import WORLD_GROUPS as _WORLD_GROUPS
from ..nn.tensor.tensor import Tensor
from ..train import communication
from ._comm_func import (
    CommHandle,
    P2POp as _P2POp,
    _counts,
    _handle,
    _place,
    all_to_all_single_with_output_shape as _all_to_all_single,
    all_to_all_with_output_shape as _all_to_all,
    batch_isend_irecv as _batch_isend_irecv,
    isend as _isend,
    reduce as _reduce,
)
from ._communication import destroy_group, get_group_rank_from_world_rank, get_world_rank_from_group_rank
from ._forms import AlltoAllV, Receive
from ._tcp_store import TCPStore

_SUM = ops.ReduceOp.SUM
_Handle = CommHandle | None

# ---- ranks and groups ----


def init_process_group(
    backend: str = "hccl",
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    pg_options: Any = None,
    device_id: int | None = None,
) -> None:
    """`communication.init`. The ranks meet as their launcher says.

    init_method, store  an address or a TCPStore, checked only; with it world_size and rank: the launcher's
    timeout, pg_options, device_id  without effect, as in MindSpore
    """
    where = "init_process_group"
    (text | None)(where, "init_method", init_method)
    (instance(TCPStore, "A TCPStore") | None)(where, "store", store)
    if init_method is not None and store is not None:
        raise ArgumentError("init_method and store", where=where, allowed="One of the two")
    if (init_method is not None or store is not None) and (world_size < 1 or rank < 0):
        what = f"init_method or store with world_size={world_size}, rank={rank}"
        raise ArgumentError(what, where=where, allowed="Both: how many ranks there are, and which one this is")
    communication.init(backend)
    for name, given, known in (
        ("world_size", world_size, communication.get_group_size()),
        ("rank", rank, communication.get_rank()),
    ):
        if given not in (-1, known):
            raise ArgumentError(f"{name}={given}", where=where, allowed=f"-1, or {known}, as the launcher says")


def destroy_process_group(group: str | None = None) -> None:
    """Forget a group; None, or the group of all ranks: leave the world."""
    if group is None or (isinstance(group, str) and group in _WORLD_GROUPS.values()):
        communication.release()
    else:
        destroy_group(group)


def is_available() -> bool:
    """True: there is communication on every platform."""
    return True


def is_initialized() -> bool:
    """Whether this process is in a world."""
    return hooks.current_world() is not None


def _or_minus_one(ask: Callable[[str | None], int], group: str | None) -> int:
    try:
        return ask(group)
    except TypeError:
        raise
    except (WorldError, ValueError):
        return -1


def get_rank(group: str | None = None) -> int:
    """This process's number in `group` (its name; default: all ranks); -1 outside of it."""
    return _or_minus_one(communication.get_rank, group)


def get_world_size(group: str | None = None) -> int:
    """How many ranks `group` has (default: all); -1 where there is no such group."""
    return _or_minus_one(communication.get_group_size, group)


def new_group(
    ranks: list[int] | None = None,
    timeout: Any = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
) -> str:
    """The name of a group of `ranks`, made if needed; None: of all ranks. On ranks outside "".

    Only ranks and backend have an effect, on the name.
    """
    if ranks is None:
        return communication.GlobalComm.WORLD_COMM_GROUP
    where = "new_group"
    ranks = sorted(instance(list, "A list of ranks")(where, "ranks", ranks))
    if len(set(ranks)) < len(ranks):
        raise ArgumentTypeError(f"ranks={shorten(ranks)}", where=where, allowed="Each rank once")
    backend = "hccl" if backend is None else choice("hccl", "mccl")(where, "backend", backend)
    name = f"{backend}_{len(ranks)}_{hashlib.sha1('_'.join(map(str, ranks)).encode()).hexdigest()}"
    communication.create_group(name, ranks)
    return name if communication.get_rank() in ranks else ""


def get_backend(group: str | None = None) -> str:
    """ "hccl" or "mccl", by the name of the group; of all ranks that of `init_process_group`."""
    (text | None)("get_backend", "group", group)
    named = [name for name in ("hccl", "mccl") if group is not None and name in group]
    return (named or [communication.GlobalComm.BACKEND or "hccl"])[0]


def get_global_rank(group: str | None, group_rank: int) -> int:
    """The world's rank of the one with this rank in `group`."""
    return get_world_rank_from_group_rank(_named(group), group_rank)


def get_group_rank(group: str | None, global_rank: int) -> int:
    """The rank in `group` of the world's rank `global_rank`."""
    return get_group_rank_from_world_rank(global_rank, _named(group))


def _named(group: str | None) -> str:
    return communication.GlobalComm.WORLD_COMM_GROUP if group is None else group


# ---- tensors that are written ----


def _tensor(where: str, name: str, value: Any) -> Any:
    return instance(Tensor, "A Tensor")(where, name, value)


def _tensors(where: str, name: str, values: Any, count: int | None = None) -> list[Any]:
    """A list of Tensors of one dtype, one per rank of the group."""
    values = list(instance((list, tuple), "A list of Tensors")(where, name, values))
    for i, value in enumerate(values):
        _tensor(where, f"{name}[{i}]", value)
    if count is not None and len(values) != count:
        raise ArgumentTypeError(f"{name} of {len(values)}", where=where, allowed=f"{count}, one per rank of the group")
    if len({str(value.dtype) for value in values}) > 1:
        raise ArgumentTypeError(f"{name} of several dtypes", where=where, allowed="Tensors of one dtype")
    return values


def _fits(where: str, name: str, target: Any, shape: Sequence[int], dtype: Any) -> Any:
    """`target`, a Tensor that can hold a result of this shape and dtype."""
    _tensor(where, name, target)
    if tuple(target.shape) != tuple(shape):
        raise ShapeError(f"{name} of shape {target.shape}", where=where, allowed=f"Shape {tuple(shape)}")
    if target.dtype != dtype:
        raise ArgumentTypeError(f"{name} of dtype {target.dtype}", where=where, allowed=f"dtype {dtype}")
    return target


def _hold(target: Any, value: Any) -> None:
    """`target` holds `value` from now on."""
    target._become(ops.reshape(value, tuple(target.shape)) if tuple(value.shape) != tuple(target.shape) else value)


def _row(x: Any) -> Any:
    return ops.reshape(x, (1, -1))


def _sizes(tensors: Sequence[Any]) -> list[int]:
    return [int(x.size) for x in tensors]


# ---- collectives ----


def all_reduce(tensor: Any, op: str = _SUM, group: str | None = None, async_op: bool = False) -> _Handle:
    """`tensor` becomes the combination of all ranks'."""
    handle = _handle("all_reduce", async_op)
    _hold(tensor, ops.AllReduce(op, group)(_tensor("all_reduce", "tensor", tensor)))
    return handle


def broadcast(tensor: Any, src: int, group: str | None = None, async_op: bool = False) -> _Handle:
    """`tensor` becomes that of rank `src`."""
    handle, _ = _handle("broadcast", async_op), _place("broadcast", "src", src, group)
    _hold(tensor, ops.Broadcast(src, group)(_tensor("broadcast", "tensor", tensor)))
    return handle


def reduce(tensor: Any, dst: int, op: str = _SUM, group: str | None = None, async_op: bool = False) -> _Handle:
    """On rank `dst` `tensor` becomes the combination of all ranks'; elsewhere it stays."""
    handle = _handle("reduce", async_op)
    _hold(tensor, _reduce(_tensor("reduce", "tensor", tensor), dst, op, group))
    return handle


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: str | None = None, async_op: bool = False
) -> _Handle:
    """`output_tensor` becomes all ranks' rows.  input_tensor: (n, ...), output_tensor: (ranks * n, ...)."""
    where = "all_gather_into_tensor"
    handle, n, shape = _handle(where, async_op), communication.get_group_size(group), _rows(where, input_tensor)
    _fits(where, "output_tensor", output_tensor, (n * shape[0], *shape[1:]), input_tensor.dtype)
    _hold(output_tensor, ops.AllGather(group)(input_tensor))
    return handle


def _rows(where: str, x: Any, divides: int = 1) -> tuple[int, ...]:
    """The shape of a Tensor with at least one dim, whose rows can be divided among so many ranks."""
    shape = tuple(_tensor(where, "input", x).shape)
    if not shape or shape[0] % divides:
        raise ShapeError(f"an input of shape {shape}", where=where, allowed=f"A count of rows that {divides} divides")
    return shape


def reduce_scatter_tensor(
    output: Any, input: Any, op: str = _SUM, group: str | None = None, async_op: bool = False
) -> _Handle:
    """`output` becomes this rank's rows of the combination.  input: (ranks * n, ...), output: (n, ...)."""
    where, n = "reduce_scatter_tensor", communication.get_group_size(group)
    handle, shape = _handle(where, async_op), _rows(where, input, n)
    _fits(where, "output", output, (shape[0] // n, *shape[1:]), input.dtype)
    _hold(output, ops.ReduceScatter(op, group)(input))
    return handle


def scatter_tensor(
    output_tensor: Any, input_tensor: Any, src: int = 0, group: str | None = None, async_op: bool = False
) -> _Handle:
    """`output_tensor` becomes this rank's rows of rank src's tensor.  input_tensor: (ranks * n, ...)."""
    where, n = "scatter_tensor", communication.get_group_size(group)
    handle, _, shape = _handle(where, async_op), _place(where, "src", src, group), _rows(where, input_tensor, n)
    _fits(where, "output_tensor", output_tensor, (shape[0] // n, *shape[1:]), input_tensor.dtype)
    _hold(output_tensor, ops.CollectiveScatter(src, group)(input_tensor))
    return handle


def gather_into_tensor(
    output_tensor: Any, input_tensor: Any, dst: int = 0, group: str | None = None, async_op: bool = False
) -> _Handle:
    """On rank `dst` `output_tensor` becomes all ranks' rows; elsewhere it stays.  output_tensor: (ranks * n, ...)."""
    where, n = "gather_into_tensor", communication.get_group_size(group)
    handle, _, shape = _handle(where, async_op), _place(where, "dst", dst, group), _rows(where, input_tensor)
    if communication.get_rank() == dst:
        _fits(where, "output_tensor", output_tensor, (n * shape[0], *shape[1:]), input_tensor.dtype)
    found = ops.CollectiveGather(dst, group)(input_tensor)
    if communication.get_rank() == dst:
        _hold(output_tensor, found)
    return handle


def barrier(group: str | None = None, async_op: bool = False, device_ids: Any = None) -> _Handle:
    """Wait until all ranks of the group are here."""
    handle = _handle("barrier", async_op)
    ops.Barrier(group)()
    return handle


# ---- lists of tensors, one per rank ----


def all_gather(tensor_list: list[Any], tensor: Any, group: str | None = None, async_op: bool = False) -> _Handle:
    """The tensors of `tensor_list` become those of all ranks.  tensor: the shape of this rank's place in the list."""
    where, n = "all_gather", communication.get_group_size(group)
    handle, targets = _handle(where, async_op), _tensors(where, "tensor_list", tensor_list, n)
    _tensor(where, "tensor", tensor)
    _fits(where, "tensor_list at this rank", targets[communication.get_rank(group)], tensor.shape, tensor.dtype)
    if len(set(sizes := _sizes(targets))) == 1:
        parts = ops.AllGather(group)(_row(tensor))
        found = [parts[i] for i in range(n)]
    else:
        flat = ops.concat([ops.reshape(tensor, (-1,))] * n, 0)
        found = _pieces(AlltoAllV(group)(flat, [int(tensor.size)] * n, sizes), sizes)
    for target, value in zip(targets, found, strict=True):
        _hold(target, value)
    return handle


def _pieces(flat: Any, sizes: Sequence[int]) -> list[Any]:
    return [flat[a:b] for a, b in itertools.pairwise(np.cumsum([0, *sizes]).tolist())]


def reduce_scatter(
    output: Any, input_list: list[Any], op: str = _SUM, group: str | None = None, async_op: bool = False
) -> _Handle:
    """`output` becomes the combination of what all ranks have for this one in `input_list`."""
    where, n = "reduce_scatter", communication.get_group_size(group)
    handle, given = _handle(where, async_op), _tensors(where, "input_list", input_list, n)
    own = communication.get_rank(group)
    _fits(where, "output", output, given[own].shape, given[own].dtype)
    if len(set(sizes := _sizes(given))) == 1:
        found = ops.ReduceScatter(op, group)(ops.concat([_row(x) for x in given], 0))
    else:
        flat = ops.concat([ops.reshape(x, (-1,)) for x in given], 0)
        found = _pieces(ops.AllReduce(op, group)(flat), sizes)[own]
    _hold(output, found)
    return handle


def _parts(where: str, name: str, sizes: Any, rows: int, group: str | None) -> list[int]:
    return _counts(where, name, sizes, rows, communication.get_group_size(group))


def all_gather_into_tensor_uneven(
    output: Any, input: Any, output_split_sizes: Any = None, group: str | None = None, async_op: bool = False
) -> _Handle:
    """`output` becomes all ranks' rows, as many as each has.  output_split_sizes: rows per rank."""
    where = "all_gather_into_tensor_uneven"
    shape = _rows(where, output)
    parts = ops.split(output, _parts(where, "output_split_sizes", output_split_sizes, shape[0], group), 0)
    handle = all_gather(list(parts), input, group, async_op)
    _hold(output, ops.concat(parts, 0))
    return handle


def reduce_scatter_tensor_uneven(
    output: Any,
    input: Any,
    input_split_sizes: Any = None,
    op: str = _SUM,
    group: str | None = None,
    async_op: bool = False,
) -> _Handle:
    """`output` becomes this rank's rows of the combination.  input_split_sizes: rows per rank."""
    where = "reduce_scatter_tensor_uneven"
    counts = _parts(where, "input_split_sizes", input_split_sizes, _rows(where, input)[0], group)
    return reduce_scatter(output, list(ops.split(input, counts, 0)), op, group, async_op)


def scatter(
    tensor: Any, scatter_list: list[Any] | None, src: int = 0, group: str | None = None, async_op: bool = False
) -> _Handle:
    """`tensor` becomes what rank `src` has for this one in its list.  scatter_list: of its shape, read on src alone."""
    where, n = "scatter", communication.get_group_size(group)
    handle, _ = _handle(where, async_op), _place(where, "src", src, group)
    given = [Tensor(np.zeros(_tensor(where, "tensor", tensor).shape, tensor.dtype))] * n
    if communication.get_rank() == src:
        given = _tensors(where, "scatter_list", scatter_list, n)
        for i, each in enumerate(given):
            _fits(where, f"scatter_list[{i}]", each, tensor.shape, tensor.dtype)
    _hold(tensor, ops.CollectiveScatter(src, group)(ops.concat([_row(x) for x in given], 0)))
    return handle


def gather(
    tensor: Any, gather_list: list[Any] | None, dst: int = 0, group: str | None = None, async_op: bool = False
) -> _Handle:
    """On rank `dst` the tensors of `gather_list` become those of all ranks; elsewhere they stay."""
    where, n = "gather", communication.get_group_size(group)
    handle, _, targets = _handle(where, async_op), _place(where, "dst", dst, group), []
    _tensor(where, "tensor", tensor)
    if communication.get_rank() == dst:
        targets = _tensors(where, "gather_list", gather_list, n)
        for i, each in enumerate(targets):
            _fits(where, f"gather_list[{i}]", each, tensor.shape, tensor.dtype)
    found = ops.CollectiveGather(dst, group)(_row(tensor))
    for i, target in enumerate(targets):
        _hold(target, found[i])
    return handle


def all_to_all(
    output_tensor_list: list[Any], input_tensor_list: list[Any], group: str | None = None, async_op: bool = False
) -> _Handle:
    """Each tensor of the input list goes to the rank of its place; those of the output list become what came."""
    where, n = "all_to_all", communication.get_group_size(group)
    targets = _tensors(where, "output_tensor_list", output_tensor_list, n)
    given = _tensors(where, "input_tensor_list", input_tensor_list, n)
    found, handle = _all_to_all(targets, given, group, async_op)
    for target, value in zip(targets, found, strict=True):
        _hold(target, value)
    return handle


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: str | None = None,
    async_op: bool = False,
) -> _Handle:
    """Each rank is sent its rows of `input`; `output` becomes the rows that came.  Split sizes: rows per rank."""
    where = "all_to_all_single"
    dtype, shape = _tensor(where, "input", input).dtype, _tensor(where, "output", output).shape
    _fits(where, "output", output, shape, dtype)
    found, handle = _all_to_all_single(
        tuple(output.shape), input, output_split_sizes, input_split_sizes, group, async_op
    )
    _hold(output, found)
    return handle


# ---- from rank to rank ----


class _ReceiveHandle(CommHandle):
    """Of `irecv`: the message is taken when it is waited for, in the order of the calls for one sender."""

    def __init__(self, tensor: Any, place: int, group: str | None, tag: int) -> None:
        self.tensor, self.arguments = tensor, (tag, place, tuple(tensor.shape), tensor.dtype, group)
        self.line = (
            vars(communication.known_world("irecv")).setdefault("_asked", {}).setdefault((place, group, tag), [])
        )
        self.line.append(self)

    def wait(self) -> None:
        while self in self.line:
            first = self.line.pop(0)
            _hold(first.tensor, Receive(*first.arguments)())


def _other_rank(where: str, name: str, rank: Any, group: str | None) -> int:
    place = _place(where, name, rank, group)
    if rank == communication.get_rank():
        raise ArgumentError(f"{name}={rank}", where=where, allowed="Another rank than this one")
    return place


def isend(tensor: Any, dst: int = 0, group: str | None = None, tag: int = 0) -> CommHandle:
    """Hand a tensor to rank `dst`, which takes it with `recv` or `irecv`."""
    _other_rank("isend", "dst", dst, group)
    return _isend(_tensor("isend", "tensor", tensor), dst, group, tag)


def send(tensor: Any, dst: int = 0, group: str | None = None, tag: int = 0) -> None:
    """`isend`, without a handle."""
    isend(tensor, dst, group, tag)


def irecv(tensor: Any, src: int = 0, group: str | None = None, tag: int = 0) -> CommHandle:
    """When its handle is waited for, `tensor` becomes what rank `src` sends."""
    place = _other_rank("irecv", "src", src, group)
    return _ReceiveHandle(_tensor("irecv", "tensor", tensor), place, group, integer(0)("irecv", "tag", tag))


def recv(tensor: Any, src: int = 0, group: str | None = None, tag: int = 0) -> int:
    """`tensor` becomes what rank `src` sends. Returns 0."""
    irecv(tensor, src, group, tag).wait()
    return 0


class P2POp(_P2POp):
    """One message of `batch_isend_irecv`.  op: "isend", "irecv" or the function; peer: a rank of the world; tag: 0."""

    @fitting
    def __init__(self, op: str | Callable, tensor: Any, peer: int, group: str | None = None, tag: int = 0) -> None:
        if getattr(op, "__name__", op) not in ("isend", "irecv"):
            raise ArgumentTypeError(f"op={shorten(op)}", where="P2POp", allowed="isend or irecv")
        if tag != 0:
            raise NotBuiltYet(f"tag={shorten(tag)}", where="P2POp", allowed="0, as in MindSpore")
        super().__init__(op, _tensor("P2POp", "tensor", tensor), peer, group)


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[CommHandle]:
    """Carry out several messages of one group; tensors of irecv become what came."""
    found = _batch_isend_irecv(p2p_op_list)
    for each, value in zip(p2p_op_list, found, strict=True):
        if each.op == "irecv":
            _hold(each.tensor, value)
    return [CommHandle()]
