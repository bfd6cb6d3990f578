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
from ..nn.sharded_cell import ShardedCell
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
        trained_inputs: tuple[int, ...],
        weights: list[Parameter],
        seeds: dict[int, np.ndarray],
    ) -> list[Any]:
        """Gradients of the sum of result * seed, {number of the result: seed}, for inputs `trained_inputs` and weights,
        whole; `step`: its masks.
        """
        key = (tuple(seeds), trained_inputs, tuple(id(p) for p in weights))
        if key not in self.backward:
            numbers = tuple(seeds)

            def scalar(*operands: Any) -> Any:
                xs, gs = operands[: -len(numbers)], operands[-len(numbers) :]
                outputs = self.cell(*xs)
                results = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
                parts = [reduce_sum(mul(results[n], g)) for n, g in zip(numbers, gs, strict=True)]
                return functools.reduce(add, parts)

            both = value_and_grad(scalar, trained_inputs or None, weights)

            def grads(*operands: Any) -> list[Any]:
                by_input, by_weight = both(*operands)[1] if trained_inputs else ((), both(*operands)[1])
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
        pairs = zip(self.numbers, g, strict=True)
        seeds = {n: np.ascontiguousarray(each) for n, each in pairs if each is not None}
        gradients = self.region.gradients(self.step, inputs, floats, self.weights, seeds)
        by_input = dict(zip(floats, gradients, strict=False))
        return [*(by_input.get(i) for i in range(self.count)), *gradients[len(floats) :]]


def run_region(cell: ShardedCell, inputs: tuple[Any, ...], world: Any) -> Any:
    """Whole results of a sharded Cell, by all ranks. Raises CollectiveMismatch on all if inputs differ."""
    region = cell.__dict__.get("_region")
    if region is None:
        region = cell.__dict__["_region"] = _Region(cell)
    tensors = [x if isinstance(x, Tensor) else Tensor(x) for x in inputs]
    _check_same(tensors, world, getattr(cell.fn, "__name__", type(cell.fn).__name__))
    step = region.forward.calls
    outputs = region.forward(*tensors)
    weights = region.parameters()
    several = isinstance(outputs, (tuple, list))
    results = [
        part.full().asnumpy() if isinstance(part, RankTensor) else part for part in (outputs if several else (outputs,))
    ]
    if weights or any(t.requires_grad for t in tensors):
        numbers = tuple(i for i, part in enumerate(results) if isinstance(part, (np.ndarray, Tensor)))
        op = _RegionOp(region, numbers, step, len(tensors), weights)
        tensors_on_tape = Node(op, (*tensors, *weights), {}).results(tuple(results[i] for i in numbers))
        for number, tensor in zip(numbers, tensors_on_tape, strict=True):
            results[number] = tensor
    results = [Tensor(part) if isinstance(part, np.ndarray) else part for part in results]
    return type(outputs)(results) if several else results[0]


def _check_same(tensors: list[Tensor], world: Any, what: str) -> None:
    mine = np.array([zlib.crc32(np.ascontiguousarray(t.asnumpy()).view(np.uint8)) for t in tensors], np.uint32)
    checksums = np.asarray(world.comm.all_gather(mine[None], dim=0, tag=f"inputs of {what}"))
    other = next((r for r in range(len(checksums)) if not np.array_equal(checksums[r], checksums[0])), None)
    if other is not None:
        hint = "Give every rank the whole batch: no num_shards in the dataset, one seed"
        what, allowed = f"rank {other} was given other inputs than rank 0", "The same inputs on all ranks"
        raise CollectiveMismatch(what, where="a sharded call", allowed=allowed, hint=hint)
