"""Objects of Python's own types that ranks share: those functions of `mindspore.mint.distributed`.

    dist.all_gather_object(found, {"rank": rank})

They travel as JSON in tensors of uint8, so that nothing that comes from elsewhere is run. Names and arguments:
MindSpore 2.10, which restricts what travels in the same way.
"""

from __future__ import annotations

import builtins
import json
from typing import Any

import numpy as np

from .. import ops
from ..base.errors import ArgumentError, ArgumentTypeError, shorten
from ..nn.tensor.tensor import Tensor
from ..train import communication
from ._comm_func import _place

_HOLDERS = {kind.__name__: kind for kind in (tuple, list, set, frozenset, dict)}
_NUMBERS = {"complex": ("real", "imag"), "range": ("start", "stop", "step"), "slice": ("start", "stop", "step")}


def _plain(value: Any) -> Any:
    """What JSON has for an object of Python's own types: itself, or [its type, its parts]."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is bytes:
        return ["bytes", value.decode("latin-1")]
    if kind in (complex, range, slice):
        return [kind.__name__, [_plain(getattr(value, part)) for part in _NUMBERS[kind.__name__]]]
    if kind not in _HOLDERS.values():
        allowed = "Numbers, texts, bytes, and tuples, lists, sets and dicts of them, as in MindSpore"
        raise ArgumentTypeError(f"an object of type {kind.__name__}", where="mint.distributed", allowed=allowed)
    return [kind.__name__, [_plain(each) for each in (value.items() if kind is dict else value)]]


def _made(plain: Any) -> Any:
    if not isinstance(plain, list):
        return plain
    kind, parts = plain
    if kind == "bytes":
        return parts.encode("latin-1")
    parts = [_made(part) for part in parts]
    return _HOLDERS[kind](parts) if kind in _HOLDERS else getattr(builtins, kind)(*parts)


def _packed(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(_plain(value)).encode(), np.uint8)


def _unpacked(array: Any) -> Any:
    return _made(json.loads(np.asarray(array).tobytes()))


def _of_all(value: Any, group: str | None) -> list[Any]:
    """The objects of all ranks, in order."""
    packed = _packed(value)
    sizes = ops.AllGather(group)(Tensor(np.array([packed.size], np.int64))).asnumpy().tolist()
    padded = np.zeros((1, max(sizes)), np.uint8)
    padded[0, : packed.size] = packed
    rows = ops.AllGather(group)(Tensor(padded)).asnumpy()
    return [_unpacked(row[:size]) for row, size in zip(rows, sizes, strict=True)]


def _of_one(where: str, value: Any, src: int, group: str | None) -> Any:
    """The object of rank `src`."""
    _place(where, "src", src, group)
    packed = _packed(value if communication.get_rank() == src else None)
    size = int(ops.Broadcast(src, group)(Tensor(np.array([packed.size], np.int64))).asnumpy()[0])
    return _unpacked(ops.Broadcast(src, group)(Tensor(np.resize(packed, size))).asnumpy())


def _list(where: str, name: str, values: Any, count: int | None = None) -> list[Any]:
    allowed = "A list that is not empty" if count is None else f"A list of {count}, one per rank of the group"
    if not isinstance(values, list) or not values or count not in (None, len(values)):
        raise ArgumentTypeError(f"{name}={shorten(values)}", where=where, allowed=allowed)
    return values


def all_gather_object(object_list: list[Any], obj: Any, group: str | None = None) -> None:
    """`object_list`, one place per rank, becomes the objects of all ranks."""
    _list("all_gather_object", "object_list", object_list, communication.get_group_size(group))
    object_list[:] = _of_all(obj, group)


def gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, dst: int = 0, group: str | None = None
) -> None:
    """On rank `dst` the list, one place per rank, becomes the objects of all ranks; elsewhere it stays."""
    where = "gather_object"
    _place(where, "dst", dst, group)
    here = communication.get_rank() == dst
    target = _list(where, "object_gather_list", object_gather_list, communication.get_group_size(group)) if here else []
    found = _of_all(obj, group)
    if here:
        target[:] = found


def broadcast_object_list(
    object_list: list[Any], src: int = 0, group: str | None = None, device: str | None = None
) -> None:
    """`object_list` becomes rank src's, of the same length.  device: without effect."""
    where = "broadcast_object_list"
    found = _of_one(where, _list(where, "object_list", object_list), src, group)
    if len(found) != len(object_list):
        what = f"object_list of {len(object_list)}"
        raise ArgumentError(what, where=where, allowed=f"{len(found)} places, as on rank {src}")
    object_list[:] = found


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None,
    src: int = 0,
    group: str | None = None,
) -> None:
    """The first place of the output list becomes what rank `src` has for this one in its input list."""
    where = "scatter_object_list"
    target = _list(where, "scatter_object_output_list", scatter_object_output_list)
    if communication.get_rank() == src:
        count = communication.get_group_size(group)
        _list(where, "scatter_object_input_list", scatter_object_input_list, count)
    target[0] = _of_one(where, scatter_object_input_list, src, group)[communication.get_rank(group)]
