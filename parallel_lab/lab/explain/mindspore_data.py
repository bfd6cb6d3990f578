"""Datasets of MindSpore by the shapes of their columns: what `Model.train` and loops over batches are fed.

A dataset is an object of kind "dataset" whose `columns` are (shape, dtype) pairs; a loop over it takes one turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...nn.tensor.tensor import Tensor
from .front import Table
from .values import Class, Function, Instance, NotRead, needed

Columns = list[tuple[tuple[int, ...], str]]
FILES: dict[str, Columns] = {  # what a row holds: MindSpore's documents of these datasets
    "MnistDataset": [((28, 28, 1), "uint8"), ((), "uint32")],
    "FashionMnistDataset": [((28, 28, 1), "uint8"), ((), "uint32")],
    "Cifar10Dataset": [((32, 32, 3), "uint8"), ((), "uint32")],
}
# operations on pictures that keep the shape, and those that give it; which give float32
SAME = ("RandomHorizontalFlip", "RandomVerticalFlip", "RandomColorAdjust", "Rescale", "Normalize", "TypeCast")
SIZED = ("Resize", "RandomCrop", "CenterCrop", "RandomResizedCrop", "RandomCropDecodeResize")
FLOATS = ("Rescale", "Normalize")


def dataset(columns: Sequence[Any], names: Any = ()) -> Instance:
    """A dataset of these columns."""
    return Instance(None, {"columns": list(columns), "column_names": list(names or ())}, "dataset")


def columns_of(of: Any) -> Columns:
    """The columns of a dataset. Raises NotRead for something else, and where they are not known."""
    if not isinstance(of, Instance) or of.kind != "dataset":
        raise NotRead("the shapes of this dataset are not known")
    return of.names["columns"]


def column(front: Any, value: Any) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of what a row holds."""
    made = value if isinstance(value, Tensor) else Tensor(np.array(front.given(needed(value))))
    return tuple(made.shape), str(made.dtype)


def _row(front: Any, row: Any) -> Columns:
    return [column(front, part) for part in (row if isinstance(row, (tuple, list)) else (row,))]


def generator(front: Any, source: Any, column_names: Any = (), *args: Any, **kw: Any) -> Instance:
    """GeneratorDataset: of a function that yields rows, an object with __getitem__ or __iter__, a list of rows."""
    if isinstance(source, Function) or callable(source) and not isinstance(source, Instance):
        source = front.reader.call(source, [], {})
    if isinstance(source, Instance) and isinstance(source.of, Class):
        for name, given in (("__getitem__", [0]), ("__next__", []), ("__iter__", [])):
            if isinstance(method := source.of.find(name), Function):
                row = front.reader.run(method, [source, *given], {})
                return dataset(_row(front, front.reader.items(row)[0] if name == "__iter__" else row), column_names)
    return dataset(_row(front, front.reader.items(source)[0]), column_names)


def slices(front: Any, data: Any, column_names: Any = (), *args: Any, **kw: Any) -> Instance:
    """NumpySlicesDataset: rows of arrays."""
    several = list(data.values()) if isinstance(data, dict) else data if isinstance(data, tuple) else (data,)
    names = list(data) if isinstance(data, dict) else column_names
    return dataset([(shape[1:], dtype) for shape, dtype in (column(front, one) for one in several)], names)


def mapped(front: Any, of: Instance, operations: Any = (), input_columns: Any = (), *args: Any, **kw: Any) -> Instance:
    """dataset.map: what is known of its operations."""
    columns, names = columns_of(of), of.names["column_names"] or ["image", "label"]
    chosen = [input_columns] if isinstance(input_columns, str) else list(input_columns or ()) or names[:1]
    at = next((i for i, name in enumerate(names) if name == chosen[0]), None)
    for each in operations if isinstance(operations, (list, tuple)) else (operations,):
        made = needed(each)
        if at is None or not isinstance(made, Instance) or made.kind != "operation":
            raise NotRead("what this operation gives is not known")
        columns = [made.names["of"](one) if i == at else one for i, one in enumerate(columns)]
    return dataset(columns, of.names["column_names"])


def _operation(name: str) -> Callable[..., Any]:
    def make(front: Any, *args: Any, **kw: Any) -> Instance:
        given = args[0] if args else kw.get("size", kw.get("output_type", kw.get("data_type")))

        def run(column: tuple[tuple[int, ...], str]) -> tuple[tuple[int, ...], str]:
            shape, dtype = column
            if name in SIZED:
                shape = (*((given, given) if isinstance(given, int) else given), *shape[2:])
            if name in ("HWC2CHW", "ToTensor"):
                shape = (shape[2], *shape[:2])
            kind = str(front.given(given)) if name == "TypeCast" else dtype
            return tuple(shape), "float32" if name in (*FLOATS, "ToTensor") else kind

        return Instance(None, {"of": run}, "operation")

    return make


def batched(front: Any, of: Instance, batch_size: Any = None, *args: Any, **kw: Any) -> Instance:
    """dataset.batch"""
    rows = needed(batch_size if batch_size is not None else kw.get("batch_size"))
    if type(rows) is not int or rows < 1:
        raise NotRead("a batch of this size is not read")
    return dataset([((rows, *shape), dtype) for shape, dtype in columns_of(of)], of.names["column_names"])


def rows(front: Any, of: Instance, *args: Any, **kw: Any) -> Any:
    """What a loop over a dataset takes: one row."""
    made = [front.calls["numpy.zeros"](front, shape, dtype) for shape, dtype in columns_of(of)]
    return [tuple(made)]


def named_rows(front: Any, of: Instance, *args: Any, **kw: Any) -> Any:
    """The same of create_dict_iterator."""
    return [dict(zip(of.names["column_names"] or ["image", "label"], rows(front, of)[0], strict=False))]


DATA: Table = {
    "GeneratorDataset": generator,
    "NumpySlicesDataset": slices,
    **{name: lambda front, *args, columns=columns, **kw: dataset(columns) for name, columns in FILES.items()},
    **{name: _operation(name) for name in (*SAME, *SIZED, "HWC2CHW", "ToTensor")},
}
DATASET_METHODS: Table = {
    "batch": batched,
    "map": mapped,
    **dict.fromkeys(("shuffle", "repeat", "take", "skip", "project"), lambda front, of, *args, **kw: of),
    **dict.fromkeys(("iter", "create_tuple_iterator"), rows),
    "create_dict_iterator": named_rows,
    **dict.fromkeys(("get_dataset_size", "get_batch_size", "get_repeat_count"), lambda front, of, *args: 1),
}
