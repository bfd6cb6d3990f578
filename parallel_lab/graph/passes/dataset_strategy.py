"""Where the data of a step lies: `dataset_strategy` for every input, and a program's other inputs."""

from __future__ import annotations

import math

from ...base.errors import ContextStrategyError, LayoutError, ShapeError
from ...base.settings.config import ParallelConfig
from ...layout.named_layout import Layout
from ...layout.tensor_layout import TensorLayout
from ..draft import Draft, at_compile
from ..instr import Value


def dataset_splits(config: ParallelConfig, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Splits of every data input: "full_batch" none, "data_parallel" rows among all devices, or the given tuple."""
    return tuple(layout.splits for layout in dataset_layouts(config, shapes))


def dataset_layouts(config: ParallelConfig, shapes: tuple[tuple[int, ...], ...]) -> tuple[TensorLayout, ...]:
    """Layout of every data input, as `dataset_strategy` says. ContextStrategyError: not for the inputs or devices."""
    strategy, device_num = config.dataset_strategy, config.device_num
    named = {i: x for i, x in enumerate(strategy) if isinstance(x, Layout)} if isinstance(strategy, tuple) else {}
    for wrong in named.values():
        if wrong.device_num != device_num:
            what = f"dataset_strategy has {wrong}, which is for {wrong.device_num} devices"
            raise at_compile(ContextStrategyError, what, f"A device_matrix of {device_num}, as many as there are")
    layouts = (TensorLayout.from_strategy(count, device_num) for count in _dataset_counts(config, shapes))
    return tuple(named[i].tensor_layout() if i in named else layout for i, layout in enumerate(layouts))


def _dataset_counts(config: ParallelConfig, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    strategy = config.dataset_strategy
    if strategy == "full_batch":
        return tuple((1,) * len(s) for s in shapes)
    if isinstance(strategy, str):  # "data_parallel"
        return tuple((config.device_num,) + (1,) * (len(s) - 1) if s else () for s in shapes)
    if len(strategy) != len(shapes):
        what = f"dataset_strategy {strategy} has {len(strategy)} tuples"
        raise at_compile(ContextStrategyError, what, f"One tuple per input; there are {len(shapes)} inputs")
    counts = tuple(x.splits if isinstance(x, Layout) else x for x in strategy)
    for position, (cuts, shape) in enumerate(zip(counts, shapes, strict=True)):
        if config.device_num % math.prod(cuts):
            slices = f"{math.prod(cuts)} slices of input {position}, but there are {config.device_num} devices"
            allowed = "The product of all counts must divide the number of devices"
            raise at_compile(ContextStrategyError, f"dataset_strategy {strategy} makes {slices}", allowed)
        if len(cuts) != len(shape):
            what = f"dataset_strategy {strategy} has {len(cuts)} counts for input {position} of shape {shape}"
            raise at_compile(ContextStrategyError, what, "One count per dim")
    if not any(isinstance(x, Layout) for x in strategy):
        _check_one_dim(strategy)
    return counts


def _check_one_dim(strategy: tuple[tuple[int, ...], ...]) -> None:
    """Raise ContextStrategyError for counts that MindSpore's documents exclude (tutorial `dataset_slice`).

    An input is split along one dim at most, and an input with the most dims into the most slices. Layouts may do more.
    """
    hint = "A Layout per input may split several dims: layout('dp', 'mp') for each"
    for position, cuts in enumerate(strategy):
        if sum(n > 1 for n in cuts) > 1:
            what = f"dataset_strategy {strategy} splits several dims of input {position}"
            raise at_compile(ContextStrategyError, what, "One dim of an input at most is split by counts", hint)
    slices = [math.prod(cuts) for cuts in strategy]
    most = max((len(cuts) for cuts in strategy), default=0)
    if max(slices) > max(n for n, cuts in zip(slices, strategy, strict=True) if len(cuts) == most):
        what = f"dataset_strategy {strategy} splits an input into {max(slices)} slices, but not those with more dims"
        raise at_compile(ContextStrategyError, what, "An input with the most dims has the most slices")


def input_values(draft: Draft) -> dict[str, Value]:
    """Inputs other than parameters: data by `dataset_strategy`, constants and numbers whole. Raises ShapeError."""
    graph, config = draft.graph, draft.config
    values: dict[str, Value] = {}
    data = [i for i in graph.inputs if i.role == "data"]
    for source, layout in zip(data, dataset_layouts(config, tuple(i.shape for i in data)), strict=True):
        cuts = layout.splits
        try:
            # in local modes the network was traced on one rank's shapes
            shape = tuple(n * c for n, c in zip(source.shape, cuts, strict=True)) if config.local else source.shape
            layout.check_shape(shape)
        except LayoutError as error:
            what = f"dataset_strategy splits input {source.name!r} of shape {source.shape} {cuts}: {error}"
            raise at_compile(ShapeError, what) from None
        values[source.name] = Value(shape, source.dtype, layout)
    for source in graph.inputs:
        if source.is_number or source.role == "constant":
            values[source.name] = source.whole(config.device_num)
    return values
