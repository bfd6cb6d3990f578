"""Batches that reach a network by themselves: `DatasetHelper`, `connect_network_with_dataset`, `data_sink`, `GetNext`.

    helper = DatasetHelper(dataset, dataset_sink_mode=True, sink_size=10)
    step = connect_network_with_dataset(train_network, helper)
    for inputs in helper:                 # one turn, without inputs
        loss = step(*inputs)              # takes 10 batches, and trains with each

Forms: MindSpore 2.6, which wants a device of type Ascend or GPU for sinking; here any will do. Batches are read when
they are asked for: nothing runs in the background, so `stop_send`, `continue_send` and `release` have nothing to end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..base.checks import flag, function, instance, integer, text
from ..base.errors import ArgumentError, ContextConflictError, DatasetError
from ..base.hooks import current_tracer
from ..base.settings.context import PYNATIVE_MODE, get_context
from ..catalog.nn.custom import PrimitiveWithInfer
from ..nn.cell import Cell
from ..nn.tensor.tensor import Tensor
from ..train.dataset import Dataset
from ..train.run_cell import jit
from ._context import JitConfig, _get_device_num, _get_pipeline_stages, _need_to_full, _to_full_shapes

A_DATASET = instance(Dataset, "A dataset")


class _Queue(str):
    """The name of what a dataset sends to, and its batches, one epoch after the other."""

    batches: Iterator[tuple[Tensor, ...]]
    queue_name = property(lambda self: self)


def _sent(dataset: Dataset, epochs: int) -> _Queue:
    """The queue of a dataset, which is made only once: `dataset.__transfer_dataset__`, as there."""
    if (queue := getattr(dataset, "__transfer_dataset__", None)) is not None:
        return queue
    queue = _Queue(f"queue {id(dataset)}")
    queue.batches = dataset.create_tuple_iterator(num_epochs=epochs)
    dataset.__transfer_dataset__ = queue  # type: ignore[attr-defined]
    return queue


def _next_batch(where: str, queue: _Queue) -> tuple[Tensor, ...]:
    """The next batch; after an epoch the first one of the next."""
    for _ in range(2):  # an iterator ends with every epoch, and goes on with the next
        if (batch := next(queue.batches, None)) is not None:
            return tuple(batch)
    raise DatasetError("there are no batches", where=where)


class _Iteration:
    """`helper.iter`: the dataset, and one epoch at a time."""

    def __init__(self, dataset: Dataset, queue: _Queue | None, turns: int) -> None:
        self.dataset, self.queue, self.turns = dataset, queue, turns

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        if self.queue is None:
            yield from self.dataset
        elif get_context("mode") == PYNATIVE_MODE:
            yield from (_next_batch("DatasetHelper", self.queue) for _ in range(self.turns))
        else:
            yield ()


class DatasetHelper:
    """A dataset, one epoch at a time: `for batch in helper`.

    dataset_sink_mode  False: an epoch is its batches, tuples of Tensors. True: in graph mode one turn without a batch,
                       for a network connected with `connect_network_with_dataset`; in PyNative mode sink_size batches
    sink_size          batches of such an epoch; -1: as many as the dataset has
    epoch_num          how often the dataset is passed through at most, with dataset_sink_mode
    """

    def __init__(
        self, dataset: Dataset, dataset_sink_mode: bool = True, sink_size: int = -1, epoch_num: int = 1
    ) -> None:
        where = "DatasetHelper"
        A_DATASET(where, "dataset", dataset)
        flag(where, "dataset_sink_mode", dataset_sink_mode)
        if integer(-1)(where, "sink_size", sink_size) == 0:
            raise ArgumentError("sink_size=0", where=where, allowed="-1, or a number from 1 on")
        integer(-1)(where, "epoch_num", epoch_num)
        self._size = dataset.get_dataset_size() if sink_size == -1 else sink_size
        passes = -1 if sink_size != -1 or epoch_num == -1 else epoch_num
        queue = _sent(dataset, passes) if dataset_sink_mode else None
        self.iter = _Iteration(dataset, queue, self._size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return iter(self.iter)

    def sink_size(self) -> int:
        """Batches of an epoch."""
        return self._size

    def types_shapes(self) -> tuple[list[np.dtype], list[list[int]]]:
        """(dtypes, shapes) of the columns of a batch; where full_batch has ranks share it, of all ranks' together."""
        types, shapes = self.iter.dataset.output_types(), self.iter.dataset.output_shapes()
        if self.iter.queue is None or not _need_to_full():
            return types, shapes
        return types, [list(shape) for shape in _to_full_shapes(shapes, _get_device_num() // _get_pipeline_stages())]

    get_data_info = types_shapes

    def dynamic_min_max_shapes(self) -> tuple[list[list[int]], list[list[int]]]:
        """The least and the greatest length of every dim of every column, in one pass."""
        seen = [[list(column.shape) for column in batch] for batch in self.iter.dataset]
        columns = list(zip(*seen, strict=True))
        least, most = ([[pick(n) for n in zip(*shapes, strict=True)] for shapes in columns] for pick in (min, max))
        return least, most

    def stop_send(self) -> None:
        """Nothing is sent ahead."""

    continue_send = release = stop_send


class _WithDataset(Cell):
    """A network that takes its batches itself: `sink_size` calls, and the last one's result."""

    def __init__(self, network: Cell, helper: DatasetHelper) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.__dict__["helper"] = helper

    def __call__(self) -> Any:
        result = None
        for _ in range(self.helper.sink_size()):
            result = self.network(*_next_batch("connect_network_with_dataset", self.helper.iter.queue))
        return result


def connect_network_with_dataset(network: Cell, dataset_helper: DatasetHelper) -> Cell:
    """A Cell to call without inputs: it trains with the helper's next `sink_size` batches. In PyNative mode `network`.

    Raises ContextConflictError (a RuntimeError) for a helper without sink mode, ArgumentError (a ValueError) for one
    that another network has.
    """
    where = "connect_network_with_dataset"
    instance(Cell, "A Cell")(where, "network", network)
    iteration = instance(DatasetHelper, "A DatasetHelper")(where, "dataset_helper", dataset_helper).iter
    if iteration.queue is None:
        raise ContextConflictError("a helper without dataset_sink_mode", where=where, allowed="dataset_sink_mode=True")
    if vars(iteration).setdefault("network", network) is not network:
        raise ArgumentError("the dataset is connected with another network", where=where, allowed="One network")
    return network if get_context("mode") == PYNATIVE_MODE else _WithDataset(network, dataset_helper)


class GetNext:
    """`GetNext(types, shapes, count, queue_name)()`: the next batch of a dataset that a DatasetHelper sends.

    types, shapes  of the columns, as `helper.types_shapes()` gives them; a batch has to be like that
    shared_name    `dataset.__transfer_dataset__.queue_name`. With another text a network can be compiled and not run
    """

    def __init__(self, types: Sequence[Any], shapes: Sequence[Any], output_num: int, shared_name: str) -> None:
        instance((list, tuple), "A list of dtypes")("GetNext", "types", types)
        instance((list, tuple), "A list of shapes")("GetNext", "shapes", shapes)
        if not len(types) == len(shapes) == integer(1)("GetNext", "output_num", output_num):
            given = f"{len(types)} types, {len(shapes)} shapes, output_num={output_num}"
            raise ArgumentError(given, where="GetNext", allowed="One number")
        text("GetNext", "shared_name", shared_name)
        self.queue, self.expected = shared_name, list(zip(types, map(tuple, shapes), strict=True))
        self.columns = _Columns(self.expected)

    def __call__(self) -> tuple[Tensor, ...]:
        if not isinstance(self.queue, _Queue):
            if current_tracer.get() is not None:
                return self.columns(0)  # an operator has an operand
            what, hint = f"no dataset sends to {self.queue!r}", "dataset.__transfer_dataset__.queue_name"
            raise ArgumentError(what, where="GetNext", allowed="The queue of a dataset in sink mode", hint=hint)
        batch = _next_batch("GetNext", self.queue)
        _check_batch("GetNext", batch, self.expected)
        return batch


class _Columns(PrimitiveWithInfer):
    """What a batch looks like, in a network that is compiled while no dataset sends one."""

    def __init__(self, expected: Sequence[tuple[Any, tuple[int, ...]]]) -> None:
        super().__init__("GetNext")
        self.expected = expected

    def __infer__(self, *_: Any) -> dict[str, Any]:
        return {"shape": [list(shape) for _, shape in self.expected], "dtype": [dtype for dtype, _ in self.expected]}


def _check_batch(where: str, batch: Sequence[Tensor], expected: Sequence[tuple[Any, tuple[int, ...]]]) -> None:
    found = [(x.dtype, tuple(x.shape)) for x in batch]
    if found != list(expected):
        raise ArgumentError(f"a batch of {found}", where=where, allowed=f"Columns like {list(expected)}")


def data_sink(
    fn: Callable,
    dataset: Dataset,
    sink_size: int = 1,
    jit_config: Any = None,
    input_signature: Any = None,
    *,
    steps: int | None = None,
) -> Callable:
    """The function without arguments that calls `fn` with the dataset's next `sink_size` batches, and gives the last
    result.

    steps            of the form before MindSpore 2.0: calls of `fn` in all; None: the dataset begins again for ever
    jit_config       a JitConfig: `fn` is compiled
    input_signature  Tensors, one per column, like which the columns have to be
    """
    function("A function")("data_sink", "fn", fn)
    A_DATASET("data_sink", "dataset", dataset)
    (integer(1) | None)("data_sink", "steps", steps)
    integer(1)("data_sink", "sink_size", sink_size)
    (instance(JitConfig, "A JitConfig") | None)("data_sink", "jit_config", jit_config)
    if input_signature is not None:
        given = input_signature if isinstance(input_signature, (list, tuple)) else [input_signature]
        _check_batch("data_sink", next(iter(dataset)), [(x.dtype, tuple(x.shape)) for x in given])
    if hasattr(dataset, "__transfer_dataset__"):
        raise ArgumentError("the dataset has been used with a network", where="data_sink", allowed="Another dataset")
    queue = _sent(dataset, -1 if steps is None else -(-steps // dataset.get_dataset_size()))
    called = fn if jit_config is None else jit(fn)

    @functools.wraps(fn)
    def sink_process(*args: Any, **kwargs: Any) -> Any:
        result = None
        for _ in range(sink_size):
            result = called(*_next_batch("data_sink", queue))
        return result

    return sink_process
