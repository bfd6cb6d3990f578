"""Random layouts and tensors for the tests of checkpoints; every draw comes from the generator that is passed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from parallel_lab.base.dtypes import load_bfloat16
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.train.checkpoint import TensorRecord
from parallel_lab.train.checkpoint.strategy_file import ParameterStrategy, StrategyFile, save_strategy

load_bfloat16()
DTYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "bool",
    *(f"{kind}{n}" for kind in ("int", "uint") for n in (64, 32, 16, 8)),
)


def draw_layout(rng: np.random.Generator, ndim: int, device_num: int | None = None) -> TensorLayout:
    """A layout with up to four axes of 1 to 4 ranks, dims split by none, one or two of them, the rest replica axes."""
    if device_num is None:
        matrix = [int(n) for n in rng.integers(1, 5, rng.integers(1, 5))]
    else:
        matrix, rest = [], device_num
        while rest > 1:
            size = int(rng.choice([n for n in range(2, rest + 1) if rest % n == 0]))
            matrix.append(size)
            rest //= size
        matrix = matrix or [1]
    tensor_map: list[list[int]] = [[] for _ in range(ndim)]
    for axis in rng.permutation(len(matrix)):
        dim = int(rng.integers(-1, ndim))  # -1: a replica axis
        if dim >= 0 and len(tensor_map[dim]) < 2:
            tensor_map[dim].append(int(axis))
    return TensorLayout(tuple(matrix), tuple(map(tuple, tensor_map)))


def draw_shape(rng: np.random.Generator, *layouts: TensorLayout) -> tuple[int, ...]:
    """A shape that all these layouts divide, its dims different where that is possible."""
    sizes = [math.lcm(*(layout.splits[dim] for layout in layouts)) for dim in range(layouts[0].ndim)]
    return tuple(size * int(rng.integers(1, 4)) for size in sizes)


def draw_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Random bits of a dtype: NaN, infinities and denormals among them."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(size), dtype).reshape(shape).copy()


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal in dtype, shape and every bit (NaN too)."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def parts_of(full: np.ndarray, layout: TensorLayout | None, ranks: int) -> list[TensorRecord]:
    """Every rank's record of a tensor, split by numpy's own indexing."""
    if layout is None:
        return [TensorRecord(full, rank=rank) for rank in range(ranks)]
    return [
        TensorRecord(full[layout.slice_index(full.shape, rank)], full.shape, layout, rank)
        for rank in range(layout.device_num)
    ]


def strategy_file(
    path: Path, layouts: dict[str, TensorLayout], shapes: dict[str, tuple[int, ...]], device_num: int
) -> str:
    """A strategy file with these layouts of float32 parameters; its path."""
    found = tuple(ParameterStrategy(name, shapes[name], "float32", layout) for name, layout in layouts.items())
    return str(save_strategy(StrategyFile(device_num, found, (), ((0, device_num),)), path))


def names(folder: Path) -> list[str]:
    """The files below a folder, by their paths in it, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
