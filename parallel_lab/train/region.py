"""A sharded Cell in a program that runs at once (PyNative mode): this call runs compiled on all ranks.

Inputs and results are whole on every rank. Its gradient is a program too, of sum(result * g), called by the tape.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any

import numpy as np

from ..base.dtypes import kind_of
from ..base.errors import CollectiveMismatch
from ..nn.cell import ShardedCell
from ..nn.tensor.autograd import value_and_grad
from ..nn.tensor.parameter import Parameter
from ..nn.tensor.tensor import Node, RankTensor, Tensor
from ..ops.elementwise import add, mul
from ..ops.reduce import reduce_sum
from .compiled import CompiledFunction


class _Region:
    """The compiled forms of one sharded Cell."""

    def __init__(self, cell: ShardedCell) -> None:
        self.cell = cell
        # propagation inside any mode; a strategy may leave copies (MindSpore forces fully_use_devices to False)
        settings = {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation"}
        settings |= {"dataset_strategy": "full_batch", "fully_use_devices": False}
        self.settings = {**settings, "loss_repeated_mean": True, "gradients_mean": False}
        self.forward = CompiledFunction(cell, self.settings, parameters="whole")
        self.backward: dict[tuple[Any, ...], CompiledFunction] = {}

    def parameters(self) -> list[Parameter]:
        """The trained Parameters that the forward program used."""
        return [p for p in self.forward.last.compiled.parameters.values() if p.requires_grad]

    def gradients(
        self,
        step: int,
        inputs: list[Tensor],
        wanted: tuple[int, ...],
        weights: list[Parameter],
        seeds: dict[int, np.ndarray],
    ) -> list[Any]:
        """Gradients of the sum of result * seed, {number of the result: seed}, for inputs `wanted` and weights, whole;
        `step`: its masks.
        """
        key = (tuple(seeds), wanted, tuple(id(p) for p in weights))
        if key not in self.backward:
            numbers = tuple(seeds)

            def scalar(*given: Any) -> Any:
                xs, gs = given[: -len(numbers)], given[-len(numbers) :]
                found = self.cell(*xs)
                results = found if isinstance(found, (tuple, list)) else (found,)
                parts = [reduce_sum(mul(results[n], g)) for n, g in zip(numbers, gs, strict=True)]
                return functools.reduce(add, parts)

            both = value_and_grad(scalar, wanted or None, weights)

            def grads(*given: Any) -> list[Any]:
                by_input, by_weight = both(*given)[1] if wanted else ((), both(*given)[1])
                return [*by_input, *by_weight]

            # the forward call has kept running statistics; that they are computed again must not change them
            self.backward[key] = CompiledFunction(grads, self.settings, parameters="as they were")
        program, tensors = self.backward[key].prepare(*inputs, *map(Tensor, seeds.values()))
        return [g.full().asnumpy() for g in program(*tensors, step=step)]


class _RegionOp:
    """What the tape keeps of a call: its rule runs the gradient program, once for all results."""

    plain = vjp_across = vjp_needs = vjp_total = False

    def __init__(
        self, region: _Region, numbers: tuple[int, ...], step: int, count: int, weights: list[Parameter]
    ) -> None:
        self.region, self.numbers, self.step, self.count, self.weights = region, numbers, step, count, weights

    def vjp_fn(self, g: tuple[Any, ...], out: Any, *operands: np.ndarray) -> list[np.ndarray | None]:
        floats = tuple(i for i in range(self.count) if kind_of(operands[i].dtype) == "f")
        inputs = [Tensor(x) for x in operands[: self.count]]
        given = zip(self.numbers, g, strict=True)
        seeds = {n: np.ascontiguousarray(each) for n, each in given if each is not None}
        found = self.region.gradients(self.step, inputs, floats, self.weights, seeds)
        by_input = dict(zip(floats, found, strict=False))
        return [*(by_input.get(i) for i in range(self.count)), *found[len(floats) :]]


def run_region(cell: ShardedCell, inputs: tuple[Any, ...], world: Any) -> Any:
    """Whole results of a sharded Cell, by all ranks. Raises CollectiveMismatch on all if inputs differ."""
    region = cell.__dict__.get("_region")
    if region is None:
        region = cell.__dict__["_region"] = _Region(cell)
    tensors = [x if isinstance(x, Tensor) else Tensor(x) for x in inputs]
    _check_same(tensors, world, getattr(cell.fn, "__name__", type(cell.fn).__name__))
    step = region.forward.calls
    found = region.forward(*tensors)
    weights = region.parameters()
    several = isinstance(found, (tuple, list))
    results = [
        part.full().asnumpy() if isinstance(part, RankTensor) else part for part in (found if several else (found,))
    ]
    if weights or any(t.requires_grad for t in tensors):
        numbers = tuple(i for i, part in enumerate(results) if isinstance(part, (np.ndarray, Tensor)))
        op = _RegionOp(region, numbers, step, len(tensors), weights)
        made = Node(op, (*tensors, *weights), {}).results(tuple(results[i] for i in numbers))
        for number, tensor in zip(numbers, made, strict=True):
            results[number] = tensor
    results = [Tensor(part) if isinstance(part, np.ndarray) else part for part in results]
    return type(found)(results) if several else results[0]


def _check_same(tensors: list[Tensor], world: Any, what: str) -> None:
    mine = np.array([zlib.crc32(np.ascontiguousarray(t.asnumpy()).view(np.uint8)) for t in tensors], np.uint32)
    found = np.asarray(world.comm.all_gather(mine[None], dim=0, tag=f"inputs of {what}"))
    other = next((r for r in range(len(found)) if not np.array_equal(found[r], found[0])), None)
    if other is not None:
        hint = "Give every rank the whole batch: no num_shards in the dataset, one seed"
        what, allowed = f"rank {other} was given other inputs than rank 0", "The same inputs on all ranks"
        raise CollectiveMismatch(what, where="a sharded call", allowed=allowed, hint=hint)
