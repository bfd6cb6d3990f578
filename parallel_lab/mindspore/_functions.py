"""Functions of mindspore.ops that begin with other defaults, or take more, than the operator they are made of.

ops.gelu(x)                      by the normal distribution itself; the class ops.GeLU and nn.GELU by tanh
ops.leaky_relu(x)                slope 0.2; mint's has 0.01
ops.softmax(x, 1, dtype=ms.float64)

Defaults, names and places: MindSpore 2.10.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops
from ..base.checks import choice, flag, integer, number, sequence_of
from ..base.errors import ArgumentError, NotBuiltYet, shorten
from ..nn.tensor.tensor import Tensor
from ..ops.spellings import tensor_operand
from ._communication import get_group_size

DIMS = sequence_of(integer(1), "A tuple of ints of at least 1")


def in_place_is_refused(where: str, inplace: Any) -> None:
    """Refuse inplace=True: a tensor may be read by the tape and by others, and no function here changes it."""
    if flag(where, "inplace", inplace):
        name = where.rpartition(".")[2]
        hint = f"x = {name}(x)" if name.islower() else "x = layer(x)"
        raise NotBuiltYet("inplace=True", where=name, allowed="False: no tensor is changed by a function", hint=hint)


def _cast(input: Any, dtype: Any) -> Any:
    return input if dtype is None else ops.cast(input, dtype)


def _with_group(where: str, group: Any, world_size: Any, **unbuilt: Any) -> None:
    """Refuse a world_size that is not the group's, and what MindSpore's kernel does not take either."""
    size = get_group_size(group)
    if integer(1)(where, "world_size", world_size) != size:
        raise ArgumentError(f"world_size={world_size}", where=where, allowed=f"{size}, the ranks of {group!r}")
    for name, value in unbuilt.items():
        if value:
            raise NotBuiltYet(f"{name}={shorten(value)}", where=where, allowed="The default")


def all_gather_matmul(
    input: Any,
    x2: Any,
    group: str,
    world_size: int,
    *,
    bias: Any = None,
    gather_index: int = 0,
    gather_output: bool = True,
    comm_turn: int = 0,
    trans_input: bool = False,
    trans_x2: bool = False,
) -> tuple[Any, Any]:
    """The rows of all ranks of the group, one after the other, times x2; and these rows, unless gather_output=False.

    input: (m, k), x2: (k, n), or (n, k) with trans_x2 -> (world_size m, n), (world_size m, k) or (0,)
    """
    where = "all_gather_matmul"
    _with_group(where, group, world_size, gather_index=gather_index, comm_turn=comm_turn, trans_input=trans_input)
    rows = ops.AllGather(group)(input)
    product = ops.matmul(rows, x2, transpose_b=flag(where, "trans_x2", trans_x2))
    kept = rows if flag(where, "gather_output", gather_output) else rows[:0, 0]
    return product if bias is None else ops.add(product, bias), kept


def matmul_reduce_scatter(
    input: Any,
    x2: Any,
    group: str,
    world_size: int,
    *,
    reduce_op: str = "sum",
    bias: Any = None,
    comm_turn: int = 0,
    trans_input: bool = False,
    trans_x2: bool = False,
) -> Any:
    """This rank's rows of the sum of input @ x2 over the group.

    input: (m, k), x2: (k, n), or (n, k) with trans_x2 -> (m / world_size, n)
    """
    where = "matmul_reduce_scatter"
    _with_group(where, group, world_size, bias=bias, comm_turn=comm_turn, trans_input=trans_input)
    product = ops.matmul(input, x2, transpose_b=flag(where, "trans_x2", trans_x2))
    return ops.ReduceScatter(choice("sum")(where, "reduce_op", reduce_op), group)(product)


def gelu(input: Any, approximate: str = "none") -> Any:
    """`parallel_lab.ops.gelu`, by default by the normal distribution itself.  input: (...) -> (...).

    approximate  "none" or "tanh"
    """
    return ops.gelu(input, approximate=approximate)


def leaky_relu(input: Any, alpha: float = 0.2) -> Any:
    """input where it is above 0, alpha * input elsewhere.  input: (...) -> (...)."""
    return ops.leaky_relu(input, negative_slope=alpha)


def relu(input: Any, inplace: bool = False) -> Any:
    """The larger of each element and 0.  input: (...) -> (...). inplace: False."""
    in_place_is_refused("ops.relu", inplace)
    return ops.relu(input)


def softmax(input: Any, axis: int = -1, *, dtype: Any = None) -> Any:
    """exp(x) / sum of exp(x) along `axis`.  input: (...) -> (...). dtype: that of the result."""
    return ops.softmax(_cast(input, dtype), axis=axis)


def roll(input: Any, shifts: Any, dims: Any = None) -> Any:
    """Elements moved along `dims`, those that leave at one end come in at the other; None: of all, row by row.

    input: (...) -> (...)
    """
    if dims is not None:
        return ops.roll(input, shifts, dims)
    x = tensor_operand("roll", "input", input)
    return ops.reshape(ops.roll(ops.reshape(x, (-1,)), shifts, 0), tuple(x.shape))


def norm(A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """`Tensor.norm`.  A: (...) -> (...) without `dim`."""
    x = tensor_operand("norm", "A", A)
    return (Tensor(x) if isinstance(x, (np.ndarray, np.generic)) else x).norm(ord, dim, keepdim, dtype=dtype)


def pad(input_x: Any, padding: Any = None, mode: str = "constant", value: Any = None, *, paddings: Any = None) -> Any:
    """`parallel_lab.ops.pad`.  input_x: (...) -> (...). padding, in the form of 1.x paddings: a pair for every dim."""
    given = padding if paddings is None else paddings
    pairs = isinstance(given, (tuple, list)) and bool(given) and all(isinstance(each, (tuple, list)) for each in given)
    if paddings is None and not pairs:
        padding = np.asarray(given).tolist() if isinstance(given, Tensor) else given
        return ops.pad(input_x, padding, mode, 0.0 if value is None else value)
    paddings = tuple(map(tuple, given)) if pairs else given
    return ops.pad_dims(input_x, paddings=paddings, mode=mode, value=0.0 if value is None else value)


def prod(input: Any, axis: Any = None, keep_dims: bool = False, dtype: Any = None) -> Any:
    """The product over `axis`, None: of all.  input: (...) -> (...). dtype: input is converted to it first."""
    return ops.prod(_cast(input, dtype), axis, keep_dims)


def subtract(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """input - alpha * other, broadcast."""
    return ops.sub(input, other) if type(alpha) is int and alpha == 1 else ops.sub_ext(input, other, alpha)


def scatter_nd(indices: Any, updates: Any, shape: Any) -> Any:
    """Zeros of `shape` with `updates` added at `indices`.  indices: (..., m), updates: (..., *shape[m:]) -> shape."""
    updates = tensor_operand("scatter_nd", "updates", updates)
    zeros = Tensor(np.zeros(DIMS("scatter_nd", "shape", shape), updates.dtype))
    return ops.tensor_scatter_add(zeros, indices, updates)


def igamma(input: Any, other: Any) -> Any:
    """The regularised lower incomplete gamma function of order `input` at `other`, broadcast."""
    return ops.igamma(input, other)


def igammac(input: Any, other: Any) -> Any:
    """The regularised upper incomplete gamma function of order `input` at `other`, broadcast."""
    return ops.igammac(input, other)


def scalar_to_array(input_x: Any) -> Any:
    """A number as a tensor.  -> ()."""
    return Tensor(number()("scalar_to_array", "input_x", input_x))
