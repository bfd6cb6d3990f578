"""Networks for tests, each in a line.

chain("dense 8", "relu", "dense 4", inputs=6, stages=2)                   layers and operators in a row
chain("matmul 8 w", "add b", "tanh", "matmul 4 v", inputs=6, shard=(S, T))   `net.w`, `net.b`, `net.v`
chain("dense 8", residual("layernorm", "dense 8", "dropout 0.3"), inputs=8)  x + block(x)
chain(ops.ReLU().shard(s), (ops.TopK().shard(s), 2))                      an operator behind another
cell(lambda net, x: net.matmul(x, net.w), w=parameter("w", 16, 8), matmul=ops.MatMul())     anything else
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from parallel_lab import nn, ops
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.ops.machine.registry import PRIMITIVES

ACTIVATIONS = {name.lower(): name for name in PRIMITIVES}  # "relu": "ReLU"; any operator of one tensor


def parameter(name: str, *shape: int, seed: int = 0, dtype: Any = np.float64, **options: Any) -> Parameter:
    """A Parameter with normal numbers, of the size that keeps a product's result about as large as its input."""
    values = np.random.default_rng(seed).normal(size=shape) / np.sqrt(shape[0] if len(shape) > 1 else 1)
    return Parameter(values.astype(dtype), name=name, **options)


def cell(construct: Callable[..., Any], **parts: Any) -> nn.Cell:
    """A Cell with these parameters, operators and layers, which computes `construct(net, *inputs)`."""

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

    Net.construct = construct
    return Net()


# ---- parts in a row ----


@dataclasses.dataclass(frozen=True)
class Block:
    """Parts that are one layer of a chain; `around`: their input is added to their result."""

    parts: tuple[Any, ...]
    around: bool = False


def block(*parts: Any) -> Block:
    """Parts in a Cell of their own: on one stage, recomputed together."""
    return Block(parts)


def residual(*parts: Any) -> Block:
    """x + parts(x)."""
    return Block(parts, around=True)


def chain(
    *parts: Any,
    inputs: int = 0,
    shard: Iterable[Any] | dict[str, Any] = (),
    stages: int | Sequence[int] = 1,
    recompute: Iterable[Any] = (),
    dtype: Any = np.float64,
    seed: int = 0,
    **options: Any,
) -> nn.Cell:
    """Parts in a row. The layers are `net.l`, the operators `net.operators`, a named Parameter is `net.<name>`.

    parts      words: "dense N" (a third word is its activation), "matmul N", "add" (each with the name of its
               Parameter, if it needs one; M->N where the width is another than that of the part before), "conv N K",
               "layernorm", "batchnorm", "dropout P", "flatten", or an operator of one tensor ("relu"); a layer or an
               operator; a tuple of an operator and its further operands; a block, a residual
    inputs     width of the input: elements of its last dim; channels before a convolution
    shard      strategies of the products (dense, matmul, conv) in order, None for none; or {operator's class: strategy}
    stages     layers on so many stages, as evenly as possible; or the stage of each layer
    recompute  per layer whether it is recomputed; a dict is the options of `Cell.recompute`
    dtype      of all Parameters, whose numbers are drawn from `seed`
    options    of every Dense
    """
    how = _How(iter(()) if isinstance(shard, dict) else iter(shard), np.random.default_rng(seed), dtype, options)
    net = Chain(parts, inputs, how)
    if isinstance(shard, dict):
        for operator in net.operators:
            if operator.name in shard:
                operator.shard(shard[operator.name])
    if stages != 1:
        count = len(net.l)
        places = [i * stages // count for i in range(count)] if isinstance(stages, int) else stages
        for layer, stage in zip(net.l, places, strict=True):
            layer.pipeline_stage = stage
    for layer, again in itertools.zip_longest(net.l, recompute):
        if again or again == {}:
            layer.recompute(**(again if isinstance(again, dict) else {}))
    return net


@dataclasses.dataclass
class _How:
    """What all parts of a chain share."""

    strategies: Iterator[Any]
    rng: np.random.Generator
    dtype: Any
    options: dict[str, Any]

    def values(self, *shape: int) -> np.ndarray:
        drawn = self.rng.normal(size=shape)
        return (drawn / np.sqrt(shape[-1] if len(shape) > 1 else 1)).astype(self.dtype)

    def product(self, operator: Any) -> Any:
        strategy = next(self.strategies, None)
        if strategy is not None:
            operator.shard(strategy)
        return operator


class Chain(nn.Cell):
    """Parts, one after the other."""

    def __init__(self, parts: Iterable[Any], inputs: int, how: _How, around: bool = False) -> None:
        super().__init__()
        self.width, self.around, self.l = inputs, around, nn.CellList()
        self.operators: list[Any] = []
        self.calls: list[tuple[Any, ...]] = []
        for part in parts:
            call, *operands = part if isinstance(part, tuple) else (part,)
            if isinstance(call, str):
                call, *operands = self.made(call.split(), how)
            elif isinstance(call, Block):
                call = Chain(call.parts, self.width, how, call.around)
                self.width = call.width
            (self.l if isinstance(call, nn.Cell) else self.operators).append(call)
            self.calls.append((call, *operands))

    def construct(self, x: Any) -> Any:
        value = x
        for call, *operands in self.calls:
            value = call(value, *operands)
        return x + value if self.around else value

    def made(self, words: list[str], how: _How) -> tuple[Any, ...]:
        """A layer or an operator, with its further operands."""
        word, *rest = words
        match word:
            case "dense":
                m, n = self.widths(rest[0])
                options = {"activation": rest[1] if len(rest) > 1 else None, **how.options}
                layer = nn.Dense(m, n, how.values(n, m), dtype=how.dtype, **options)
                if layer.has_bias:
                    layer.bias.set_data(how.values(n))
                how.product(layer.matmul)
                return (layer,)
            case "conv":
                m, n = self.widths(rest[0])
                k = int(rest[1]) if len(rest) > 1 else 3
                layer = nn.Conv2d(m, n, k, dtype=how.dtype)
                layer.weight.set_data(how.values(n, m, k, k) / k)
                how.product(layer.conv2d)
                return (layer,)
            case "matmul":
                m, n = self.widths(rest[0])
                weight = self.named(rest[1:], how.values(n, m).T.copy())
                return how.product(ops.MatMul()), weight
            case "add":
                return ops.Add(), self.named(rest, how.values(self.width))
            case "layernorm":
                return (nn.LayerNorm((self.width,), dtype=how.dtype),)
            case "batchnorm":
                return (nn.BatchNorm1d(self.width, dtype=how.dtype),)
            case "dropout":
                return (nn.Dropout(p=float(rest[0])),)
            case "flatten":
                return (ops.Flatten(),)
            case _:
                return (getattr(ops, ACTIVATIONS[word])(),)

    def widths(self, text: str) -> tuple[int, int]:
        """Width of what comes in and goes out: of "8" or of "4->8"."""
        *before, after = map(int, text.split("->"))
        before = before[0] if before else self.width
        self.width = after
        return before, after

    def named(self, name: list[str], values: np.ndarray) -> Parameter:
        """A Parameter of the chain; without a name it is p0, p1, ..."""
        made = Parameter(values, name=name[0] if name else f"p{len(self._params)}")
        self.insert_param_to_cell(made.name, made)
        return made
