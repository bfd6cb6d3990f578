"""Sizes for the unknown dims of inputs that are only described: Tensor(shape=[None, 8]), Symbol.

    described    x: [?, 8], x + w with w: (16, 8)
    tried        (3, 8), which w does not fit; then (16, 8), which the error names

A program is made for known shapes. What is made up must fit the known sizes, and may not allow a split that MindSpore
refuses: an unknown dim may be split by what divides its Symbol (dynamic_shape.cc, GetRealDivisorSymbols), times the
ranks that feed parts of it (ParallelSymbolInfo).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..base.errors import ShapeError, StrategyError
from ..base.settings.checks import SHARDED_MODES
from ..base.settings.config import ParallelConfig
from ..graph.compiler import Compiled
from ..graph.passes.dataset_strategy import dataset_layouts
from ..layout.named_layout import strategy_counts
from ..nn.tensor.dynamic_shapes import Symbol, dynamic_shape_of, sized
from ..train.compiled import parts_named

MOST_TRIED = 24  # shapes of the inputs


def compiled_for_sizes(
    make: Callable, described: list[Any], inputs: list[Any], note: str, config: ParallelConfig
) -> Compiled:
    """What `make` makes of inputs; sizes that were made up give way to sizes that an error names.

    make       (inputs, note=) -> the program
    described  the inputs as they were given;  inputs: with sizes for them;  note: which these are, "" without any

    Raises what `make` raises for the first sizes, and StrategyError where an unknown dim is split more than it may be.
    """
    queue: list[tuple[list[Any], str]] = [(inputs, note)]
    seen: set[tuple[Any, ...]] = set()
    faults: list[ShapeError | StrategyError] = []
    while queue and len(seen) < MOST_TRIED:
        tensors, said = queue.pop(0)
        shapes = tuple(tuple(t.shape) for t in tensors)
        if shapes in seen:
            continue
        seen.add(shapes)
        try:
            with parts_named(tensors, config):
                compiled = make(tensors, note=said)
        except (ShapeError, StrategyError) as error:
            faults.append(error)
            if not note:
                raise
            if isinstance(error, ShapeError):
                queue += [sized(described, 1, other) for other in _other_sizes(described, shapes, config, str(error))]
        else:
            if note and config.parallel_mode in SHARDED_MODES:
                _check_cuts(compiled, described, shapes, config)
            return compiled
    hint = "A Symbol(divisor=n) says that an unknown dim can be split n ways"
    first = faults[0]
    first.args = (f"{str(first).removesuffix('.')}; {note}. {hint}.", *first.args[1:])
    raise first


def _other_sizes(described: list[Any], shapes: Any, config: ParallelConfig, text: str) -> Iterator[list[Any]]:
    """The shapes with one unknown dim of another size: one that stands in a shape which the text of an error names, or
    one with which there are as many elements as in it.
    """
    two = re.search(r"has (\d+) elements in dim .* is already (\d+)", text)  # they should be equal
    text = f"({two[1]}, {two[2]})" if two else text
    text = text.replace("(-1,", "(1,")  # a reshape that leaves one dim open
    named = [tuple(map(int, re.findall(r"\d+", one))) for one in re.findall(r"\((\d[\d, ]*)\)", text)]
    parts_of_dim = [int(n) for n in re.findall(r"output_num=(\d+)", text)]
    sizes = [n for n in dict.fromkeys(itertools.chain(*named)) if n > 1]
    for at, dim, symbol, parts in _unknown_dims(described, shapes, config):
        own, rest = shapes[at][dim] * parts, math.prod(shapes[at]) // shapes[at][dim]
        filled = [math.prod(one) // rest for one in named if math.prod(one) % rest == 0]
        tried = (*(sizes if own in sizes else ()), *filled, *(own * n for n in parts_of_dim), *sizes)
        for size in (n // parts for n in tried if n % parts == 0):
            if size != shapes[at][dim] and symbol.fits(size):
                yield [(*s[:dim], size, *s[dim + 1 :]) if i == at else s for i, s in enumerate(shapes)]


def _unknown_dims(described: list[Any], shapes: Any, config: ParallelConfig) -> Iterator[tuple[int, int, Symbol, int]]:
    """(input, dim, what is known of it, how many ranks feed parts of it) for the dims of unknown sizes."""
    config = replace(config, device_num=config.device_num // config.pipeline_stages)
    for at, layout in enumerate(dataset_layouts(config, shapes)):
        if (dynamic := dynamic_shape_of(described[at])) is not None:
            for dim, (symbol, parts) in enumerate(zip(dynamic.dims, layout.splits, strict=True)):
                if isinstance(symbol, Symbol):
                    yield at, dim, symbol, parts


def _check_cuts(compiled: Compiled, described: list[Any], shapes: Any, config: ParallelConfig) -> None:
    """Raise StrategyError where an operator that reads an input splits an unknown dim more than its Symbol allows: the
    size that was found for it may be split by chance.
    """
    plan = compiled.plan
    for at, dim, symbol, parts in _unknown_dims(described, shapes, config):
        name, ways = plan.data_inputs[at].name, math.gcd(symbol.divisor, symbol.remainder) * parts
        for node in plan.graph.nodes:
            counts = strategy_counts(node.strategy) if node.strategy_source == "user" and node.op != "tile" else ()
            for position, (operand, cuts) in enumerate(zip(node.ins, counts, strict=False)):
                if operand == name and ways % cuts[dim]:
                    what = f"strategy {node.strategy} splits dim {dim} of input {position}, whose size is unknown"
                    allowed, needed = f"A divisor of what is known of it, {ways}", cuts[dim] // parts or 1
                    hint = f"Describe it with Symbol(divisor={needed})"
                    raise StrategyError(what, where=node.where, allowed=allowed, hint=hint)
