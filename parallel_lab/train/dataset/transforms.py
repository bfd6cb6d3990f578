"""Operations on a sample's columns: `Transform`, `RandomTransform`, `Compose`, `TypeCast`; pictures: `vision.py`.

Anything that can be called works in `Dataset.map`: a function, a lambda, a Transform. What draws random numbers should
be a `RandomTransform`: the pipeline keys its generator by the sample: a picture is cropped alike on every rank.

    class RandomBrightness(RandomTransform):
        def apply(self, data, rng):
            return data * rng.uniform(0.8, 1.2)

    >>> TypeCast("int32")(np.array(7, np.uint32)).dtype.name
    'int32'
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...base.checks import checked, fitting
from ...base.dtypes import plain_array
from ...base.errors import ArgumentError, ArgumentTypeError, NotBuiltYet, shorten
from ...base.seeds import get_dataset_seed as get_seed
from ...nn.tensor.tensor import Tensor
from .checks import DTYPE

__all__ = ["Compose", "RandomTransform", "Transform", "TypeCast", "keyed_generator"]


def keyed_generator(seed: int, *key: int | str) -> np.random.Generator:
    """The random numbers of `key` under the global seed: equal in all processes, whatever was drawn before.

    >>> first, second = keyed_generator(1, "crop", 5), keyed_generator(1, "crop", 5)
    >>> first.random(3).tolist() == second.random(3).tolist()
    True
    """
    digest = hashlib.blake2b(repr((seed, *key)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def as_column(where: str, data: Any) -> np.ndarray:
    """What a Transform is called with as an array. Raises ArgumentTypeError."""
    try:
        return data.asnumpy() if isinstance(data, Tensor) else plain_array(data, where=where)
    except ArgumentTypeError:
        raise
    except ValueError:  # rows of different lengths
        raise ArgumentTypeError(f"data {shorten(data)}", where=where, allowed="An array, or what makes one") from None


class Transform:
    """One column in; one array, or a tuple of arrays, out. Subclasses write `apply(data)`."""

    @fitting
    def __call__(self, data: Any) -> Any:
        return self.apply(as_column(type(self).__name__, data))

    def apply(self, data: np.ndarray) -> Any:
        """The result for one array."""
        raise NotBuiltYet(f"{type(self).__name__} has no apply(data)", hint="A subclass writes it")


class RandomTransform(Transform):
    """A Transform that draws: subclasses write `apply(data, rng)` and draw from `rng` only.

    In a pipeline `rng` is keyed by (global seed, place of the operation in the pipeline, epoch, sample index). Called
    by hand without one, it is keyed by (global seed, class, how many times this object was called).
    """

    _calls = 0

    @fitting
    def __call__(self, data: Any, rng: np.random.Generator | None = None) -> Any:
        if rng is None:
            rng = keyed_generator(get_seed(), "call", type(self).__name__, self._calls)
            self._calls += 1
        return self.apply(as_column(type(self).__name__, data), rng)

    def apply(self, data: np.ndarray, rng: np.random.Generator) -> Any:
        """The result for one array, drawn from `rng`."""
        raise NotBuiltYet(f"{type(self).__name__} has no apply(data, rng)", hint="A subclass writes it")


def operations_of(where: str, operations: Any) -> tuple[Callable, ...]:
    """One operation or a sequence of them, each Compose replaced by its parts. Raises where one cannot be called."""
    if isinstance(operations, Compose):
        return operations.transforms
    if not isinstance(operations, Sequence):
        operations = [operations]
    if not operations:
        raise ArgumentError("no operation is given", where=where, allowed="A callable or a list of callables")
    flat: list[Callable] = []
    for operation in operations:
        if isinstance(operation, Compose):
            flat += operation.transforms
        elif isinstance(operation, type) and issubclass(operation, Transform):
            hint = f"Make one: {operation.__name__}(...)"
            what = f"operation {operation.__name__} is a class, not an operation"
            raise ArgumentTypeError(what, where=where, hint=hint)
        elif callable(operation):
            flat.append(operation)
        else:
            what = f"operation {shorten(operation)}"
            raise ArgumentTypeError(what, where=where, allowed="A callable or a list of callables")
    return tuple(flat)


def apply_operations(
    operations: Sequence[Callable], columns: tuple[Any, ...], generators: Callable[[int], np.random.Generator | None]
) -> tuple:
    """`columns` after the operations, each given the result of the one before; the i-th draws from `generators(i)`."""
    for i, operation in enumerate(operations):
        try:
            draws = {"rng": generators(i)} if isinstance(operation, RandomTransform) else {}
            result = operation(*columns, **draws)
        except Exception as error:
            found = ", ".join(f"{np.asarray(c).dtype} {np.shape(c)}" for c in columns)
            error.add_note(f"(in operation {i} of {len(operations)}, {operation_name(operation)}, given {found})")
            raise
        columns = result if isinstance(result, tuple) else (result,)
    return columns


def operation_name(operation: Any) -> str:
    """What to call an operation in a text: the name of a function, the class of an object."""
    return getattr(operation, "__name__", type(operation).__name__)


class Compose(Transform):
    """Several operations as one, each given what the one before returned.

    >>> double_then_cast = Compose([lambda x: x * 2, TypeCast("float32")])
    >>> double_then_cast(np.array([1, 2])).tolist()
    [2.0, 4.0]

    Raises ArgumentError for an empty list, ArgumentTypeError where something cannot be called.
    """

    @fitting
    def __init__(self, transforms: Sequence[Callable]) -> None:
        if not isinstance(transforms, Sequence):
            raise ArgumentTypeError(f"transforms={shorten(transforms)}", where="Compose", allowed="A list of callables")
        self.transforms = operations_of("Compose", transforms)

    def __call__(self, *columns: Any) -> Any:
        result = apply_operations(self.transforms, columns, lambda i: None)
        return result if len(result) > 1 else result[0]


class TypeCast(Transform):
    """Change the element type.  data: any shape -> the same shape, `data_type` (a numpy dtype or its name)."""

    @checked(data_type=DTYPE)
    def __init__(self, data_type: Any) -> None:
        self.data_type = data_type

    def apply(self, data: np.ndarray) -> np.ndarray:
        try:
            return data.astype(self.data_type)
        except (TypeError, ValueError) as error:  # a text that is not a number
            raise ArgumentError(f"{data.dtype} to {self.data_type}: {error}", where="TypeCast") from None
