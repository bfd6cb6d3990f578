"""A chain of twelve uneven layers whose memory can be counted in results of one size, on paper and where it runs.

    choice = predict_choice(LAYERS, again)              # results at the peak, and products recomputed, by formula
    counts = count(again)                               # the same, counted on a simulated rank
    counts.peak, counts.extra, counts.equal

A layer of c products keeps 2c + 2 results for its backward, its input among them: two sines in front, and a sine behind
each product; the gradients of sine and product read their operands. Recomputed, it keeps its input and makes its c
products again. In the numbers of the course's puzzle: layers of 4, 6 and 8 results, with 1, 2 and 3 products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ... import nn
from ...base.settings.current import default_settings
from ...cost.recompute import Layer
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...nn.tensor.parameter import Parameter
from ...nn.tensor.tensor import Tensor
from ...ops.reduce import reduce_mean
from ...ops.unary import sin
from ...train.session import Session, initial_values
from ..memory.count import Count, simulated_ranks

PRODUCTS = (1, 1, 2, 2, 3, 3, 3, 3, 2, 2, 1, 1)
LAYERS = tuple(Layer(c, 2 * c, 2 * c + 2, 1) for c in PRODUCTS)  # seconds are products, bytes are results
ROWS, WIDTH = 1024, 4  # results are much larger than weights, so that these do not matter
RESULT_BYTES = ROWS * WIDTH * 4
AT_WORK = 2  # results at work in backward: the gradient that comes, and the one made of it
STEPS = 3


class UnevenLayer(nn.Cell):
    """Two sines, and `products` products with a sine behind each.  x: (rows, width) -> (rows, width)."""

    def __init__(self, products: int) -> None:
        super().__init__()
        self.dense = nn.CellList([nn.Dense(WIDTH, WIDTH, has_bias=False) for _ in range(products)])

    def construct(self, x: Any) -> Any:
        x = sin(sin(x))
        for dense in self.dense:
            x = sin(dense(x))
        return x


class UnevenChain(nn.Cell):
    """The twelve layers, behind a factor for each column: so the first layer's input has a gradient, too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Parameter(np.ones(WIDTH, np.float32), name="scale")
        self.layers = nn.CellList([UnevenLayer(products) for products in PRODUCTS])
        draw = np.random.default_rng(12)
        for parameter in self.layers.trainable_params():
            parameter.set_data(Tensor(draw.normal(size=(WIDTH, WIDTH)).astype(np.float32)))

    def construct(self, x: Any) -> Any:
        x = x * self.scale
        for layer in self.layers:
            x = layer(x)
        return x


class Projection(nn.Cell):
    """A loss whose gradient reads nothing of the network: the mean of its result times given numbers."""

    def construct(self, found: Any, direction: Any) -> Any:
        return reduce_mean(found * direction)


@dataclass(frozen=True)
class Counted:
    """A step on a simulated rank.  peak: results; extra: products recomputed; equal: the bits of `STEPS` steps of
    training are those without recomputing
    """

    peak: int
    extra: int
    equal: bool
    count: Count


def compiled(again: Sequence[bool], **settings: Any) -> tuple[Plan, UnevenChain, nn.Optimizer]:
    """The chain on one device, with these layers recomputed. settings: further fields of ParallelConfig."""
    with default_settings():
        net = UnevenChain()
        for layer, recomputed in zip(net.layers, again, strict=True):
            if recomputed:
                layer.recompute()
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        how = {
            "loss": Projection(),
            "optimizer": optimizer,
            "device_num": 1,
            "dataset_strategy": "full_batch",
        } | settings
        return compile_network(net, *_batch(), **how), net, optimizer


@lru_cache(maxsize=1)
def _batch() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(13)
    x, direction = (draw.normal(size=(ROWS, WIDTH)).astype(np.float32) for _ in range(2))
    return x, direction


@lru_cache(maxsize=64)
def count(again: tuple[bool, ...]) -> Counted:
    """Count a step of the chain on a simulated rank, and compare its training with one that keeps everything."""
    plan, net, optimizer = compiled(again)
    counts = simulated_ranks(plan, initial_values(plan, net, optimizer), _batch())[0]
    others = sum(counts.at("resident").values()) + AT_WORK * RESULT_BYTES
    peak = sum(counts.at("training").values()) - others
    products = sum(i.op == "matmul" for _, i in plan.instructions("backward"))
    extra = products - 2 * sum(PRODUCTS)  # two products make the gradients of one
    return Counted(peak // RESULT_BYTES, extra, _trained(again) == _trained((False,) * len(LAYERS)), counts)


@lru_cache(maxsize=64)
def _trained(again: tuple[bool, ...]) -> tuple[bytes, ...]:
    """Losses and parameters after some steps, bit for bit."""
    plan, net, optimizer = compiled(again)
    with Session(plan, net, optimizer, check_finite=False) as session:
        losses = session.train([_batch()], STEPS)
        return np.array(losses).tobytes(), *(value.tobytes() for value in session.parameters().values())


@dataclass(frozen=True)
class Moment:
    """A layer's forward or backward: results that are in memory then, those that it makes again included."""

    phase: str
    layer: int
    live: int

    @property
    def name(self) -> str:
        """ "F3" or "B3"."""
        return f"{self.phase[0].upper()}{self.layer}"


def moments(again: Sequence[bool]) -> list[Moment]:
    """Memory over a step, by formula: after the forward of every layer, and during the backward of every layer."""
    live, timeline = 0, []
    for number, (layer, recomputed) in enumerate(zip(LAYERS, again, strict=True)):
        live += layer.input_bytes if recomputed else layer.inside_bytes
        timeline.append(Moment("forward", number, live))
    for number in reversed(range(len(LAYERS))):
        layer, recomputed = LAYERS[number], again[number]
        timeline.append(Moment("backward", number, live + (layer.inside_bytes - layer.input_bytes) * recomputed))
        live -= layer.input_bytes if recomputed else layer.inside_bytes
    return timeline
