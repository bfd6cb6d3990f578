"""How the recordings of PyTorch's results are laid out: rows, the arrays they are called with, and the file that holds
what came out.

A row says how we are called and how PyTorch is, side by side, on the same arrays. `record_torch.py` runs PyTorch's side
and writes; the tests run ours and read. Nothing here imports torch: PyTorch's side is a function that is given the
module.

One member of the file per row: inputs, outputs and gradients one after the other, all as float64; `index` (JSON) has
their shapes. Gradients are those of the sum over all float outputs of output * `weights(output)`.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parallel_lab import ops

HERE = Path(__file__).parent
# inputs are odd multiples of 1 / (2 * GRID): exact in float32, all different, none at a whole number or a half
GRID = 1024


@dataclass(frozen=True)
class Spec:
    """One input: "floats" from low to high, "ints" below `high`, "bools", "given" numbers. fixed: without gradient."""

    shape: tuple[int, ...]
    kind: str = "floats"
    low: float = -2.0
    high: float = 2.0
    fixed: bool = False
    given: tuple = ()

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        if self.kind == "given":
            return np.array(self.given).reshape(self.shape)
        if self.kind != "floats":
            array = rng.integers(0, 2 if self.kind == "bools" else int(self.high), self.shape)
            return array.astype(bool if self.kind == "bools" else np.int32)
        places = np.arange(round(self.low * GRID), round(self.high * GRID))
        return np.asarray((rng.choice(places, self.shape, replace=False) + 0.5) / GRID)


def floats(*shape: int, low: float = -2.0, high: float = 2.0, fixed: bool = False) -> Spec:
    return Spec(shape, "floats", low, high, fixed)


def positive(*shape: int, fixed: bool = False) -> Spec:
    return floats(*shape, low=0.5, high=2.0, fixed=fixed)


def inside(*shape: int) -> Spec:
    """Between 0 and 1."""
    return floats(*shape, low=0.1, high=0.9)


def ints(bound: int, *shape: int) -> Spec:
    return Spec(shape, "ints", 0, bound)


def bools(*shape: int) -> Spec:
    return Spec(shape, "bools")


def given(*numbers: Any, fixed: bool = False) -> Spec:
    """Numbers written out; nested tuples for more dims."""
    return Spec(np.shape(numbers), "given", given=numbers, fixed=fixed)


@dataclass(frozen=True)
class Row:
    """One comparison.

    name    of our operator, function or layer; `label` tells rows of one name apart
    ours    how we are called where the name alone does not say: a function of the inputs; None: the operator `name`
            with `attrs`
    theirs  PyTorch: a function of (torch, *inputs)
    bound   largest difference over largest element, if not the dtype's: where PyTorch itself computes in float32
    """

    name: str
    theirs: Callable
    inputs: tuple[Spec, ...]
    label: str = ""
    attrs: dict[str, Any] = field(default_factory=dict)
    ours: Callable | None = None
    dtype: str = "float64"
    bound: float | None = None

    @property
    def key(self) -> str:
        return f"{self.name}-{self.label}" if self.label else self.name

    def draw(self) -> list[np.ndarray]:
        """The inputs, seeded with the row's name: a row keeps its inputs when others come and go."""
        rng = np.random.default_rng(zlib.crc32(self.key.encode()))
        return [self.typed(spec, spec.draw(rng)) for spec in self.inputs]

    def typed(self, spec: Spec, array: np.ndarray) -> np.ndarray:
        """An input in its dtype: the file holds all numbers as float64."""
        if spec.kind == "given":
            kind = np.array(spec.given).dtype
            return array.astype(self.dtype if kind.kind == "f" else np.int32 if kind.kind == "i" else kind)
        return array.astype({"floats": self.dtype, "ints": np.int32, "bools": bool}[spec.kind])

    def recorded_inputs(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The inputs as they were recorded: numpy's generators may draw other numbers in another version."""
        return [self.typed(spec, array) for spec, array in zip(self.inputs, arrays, strict=True)]

    def wanted(self, arrays: Sequence[np.ndarray]) -> list[int]:
        """Positions of the inputs whose gradients are compared."""
        return [
            i
            for i, (spec, a) in enumerate(zip(self.inputs, arrays, strict=True))
            if a.dtype.kind == "f" and not spec.fixed
        ]


def row(
    key: str, theirs: Callable, *inputs: Spec, ours: Callable | None = None, dtype: str = "float64", **attrs: Any
) -> Row:
    """A Row.  key: "name" or "name-label"; the other keywords are attributes of the operator."""
    name, _, label = key.partition("-")
    return Row(name, theirs, inputs, label, attrs, ours, dtype)


class Called:
    """Functions of a module that need not be imported yet: `T.roll(1, 0)` is a function of (torch, *inputs), which
    calls `torch.roll(*inputs, 1, 0)`. Ints are given to PyTorch as int64, which it asks for.

    path  of the module inside torch;  module: the module itself, whose functions are then functions of (*inputs)
    """

    def __init__(self, path: str = "", module: Any = None) -> None:
        self._path, self._module = path, module

    def __getattr__(self, name: str) -> Callable[..., Callable]:
        def given(*args: Any, **options: Any) -> Callable:
            def theirs(t: Any, *inputs: Any) -> Any:
                module = functools.reduce(getattr, self._path.split("."), t) if self._path else t
                inputs = [x.long() if x.dtype == t.int32 else x for x in inputs]
                return getattr(module, name)(*inputs, *args, **options)

            def ours(*inputs: Any) -> Any:
                return getattr(self._module, name)(*inputs, *args, **options)

            return theirs if self._module is None else ours

        return given


T, F, O = Called(), Called("nn.functional"), Called(module=ops)


def weights(shape: Sequence[int], dtype: Any = np.float64) -> np.ndarray:
    """What an output is multiplied with before the sum: 11 numbers from -1.25 to 1.25 in turn, on every machine."""
    count = int(np.prod(shape, dtype=np.int64))
    return ((7 * np.arange(count) % 11 - 5) / 4).reshape(shape).astype(dtype)


# ---- the file ----


def save(path: Path, results: dict[str, dict[str, list[np.ndarray]]], recipe: dict[str, str]) -> None:
    """Write {row: {"in": arrays, "out": arrays, "grad": arrays}}; `recipe`: versions and the like."""
    index = {
        key: {part: [list(a.shape) for a in arrays] for part, arrays in parts.items()} for key, parts in results.items()
    }
    members = {
        key: np.concatenate([np.ravel(a).astype(np.float64) for part in parts.values() for a in part])
        for key, parts in results.items()
    }
    text = json.dumps({"recipe": recipe, "rows": index})
    np.savez_compressed(path, index=np.frombuffer(text.encode(), np.uint8), **members)


class Recording:
    """A file of recorded results; `recording[row.key]["out"]` are the outputs of a row."""

    def __init__(self, name: str) -> None:
        self.path = HERE / name
        with np.load(self.path) as file:
            self.members = {key: file[key] for key in file.files if key != "index"}
            described = json.loads(bytes(file["index"]))
        self.recipe, self.index = described["recipe"], described["rows"]

    def __getitem__(self, key: str) -> dict[str, list[np.ndarray]]:
        flat, start, found = self.members[key], 0, {}
        for part, shapes in self.index[key].items():
            found[part] = []
            for shape in shapes:
                count = int(np.prod(shape, dtype=np.int64))
                found[part].append(flat[start : start + count].reshape(shape))
                start += count
        return found

    def keys(self) -> set[str]:
        return set(self.index)
