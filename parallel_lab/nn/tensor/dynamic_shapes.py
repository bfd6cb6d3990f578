"""Inputs of a dynamic shape: a dtype, and dims that may be unknown. A `Symbol` says what is known about a dim.

    rows = Symbol(divisor=8)
    net.set_inputs(Tensor(shape=[rows, None, 3], dtype="float32"))
    net.compile()     # for sizes that fit, (8, 8, 3) on 8 devices, as the plan says

Programs here are made for known shapes: one for each that a call brings. A Tensor with a dynamic shape has no values
and refuses to be read; where something is compiled for it, sizes that fit stand for it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...base.checks import flag, integer, is_int, kept
from ...base.errors import ArgumentError, ArgumentTypeError, ShapeError, TraceError, shorten


class Symbol:
    """What is known about an unknown dim.

    max, min            bounds of its size; a max that is not above min bounds nothing
    divisor, remainder  it is divisor * n + remainder
    unique              all dims with this Symbol have one size
    """

    @kept(max=integer(), min=integer(1), divisor=integer(1), remainder=integer(0), unique=flag)
    def __init__(
        self, max: int = 0, min: int = 1, divisor: int = 1, remainder: int = 0, unique: bool = False, **more: Any
    ) -> None:
        if remainder >= divisor:
            raise ShapeError(f"remainder={remainder}", where="Symbol", allowed=f"Below the divisor, {divisor}")

    def __repr__(self) -> str:
        return f"Symbol({', '.join(f'{name}={getattr(self, name)}' for name in self._kept)})"

    def fits(self, size: int) -> bool:
        """Whether a dim may have this size."""
        bounded = self.max <= self.min or size <= self.max
        return self.min <= size and bounded and size % self.divisor == self.remainder

    def size(self, devices: int) -> int:
        """A size that fits, and that may be split as MindSpore allows: by what divides the divisor and the remainder
        (dynamic_shape.cc, GetRealDivisorSymbols). It is the least above 1, if one is.
        """
        start = self.min + (self.remainder - self.min) % self.divisor
        sizes, common = (start + i * self.divisor for i in range(2 * devices)), math.gcd(self.divisor, self.remainder)
        return next((n for n in sizes if math.gcd(n // common, devices) == 1 < n and self.fits(n)), start)


ANY = Symbol()


class DynamicShape:
    """The dims of an input without values. Stands where an Initializer does, and refuses to draw."""

    def __init__(self, shape: Any) -> None:
        if not isinstance(shape, (list, tuple)):
            allowed = "A list or tuple of sizes, with None, -1 or a Symbol for unknown sizes"
            raise ArgumentTypeError(f"shape={shorten(shape)}", where="Tensor", allowed=allowed)
        unknown = (ANY if n is None or (is_int(n) and n == -1) else n for n in shape)
        self.dims = tuple(n if isinstance(n, Symbol) else integer(0)("Tensor", "shape", n) for n in unknown)
        self.shape = tuple(-1 if isinstance(n, Symbol) else n for n in self.dims)

    def draw(self, generator: Any, shape: Any) -> np.ndarray:
        hint = "Give values: Tensor(array), or a rule for them: Tensor(shape=..., dtype=..., init=Normal())"
        raise TraceError(f"a Tensor that is described by its shape, {self.shape}, has no values", hint=hint)

    def sizes(self, devices: int, chosen: dict[int, int]) -> tuple[int, ...]:
        """A shape that fits; `chosen` are the sizes of unique Symbols, by id."""
        sizes = []
        for n in self.dims:
            if isinstance(n, Symbol):
                size = n.size(devices)
                n = chosen.setdefault(id(n), size) if n.unique else size
            sizes.append(n)
        return tuple(sizes)

    def fits(self, shape: Sequence[int], chosen: dict[int, int]) -> bool:
        """Whether an input may have this shape. `chosen` gets the sizes of unique Symbols, by id."""
        return len(shape) == len(self.dims) and not any(
            n != size if not isinstance(n, Symbol) else not n.fits(size) or chosen.setdefault(id(n), size) != size
            for n, size in zip(self.dims, shape, strict=True)
            if not isinstance(n, Symbol) or n.unique or not n.fits(size)
        )


def dynamic_shape_of(value: Any) -> DynamicShape | None:
    """The dims of a Tensor that was made without values; None for any other."""
    rule = getattr(getattr(value, "draw", None), "__self__", None)
    return rule if isinstance(rule, DynamicShape) else None


Examples = Sequence[Any] | Mapping[str, Any]  # what the inputs of a call have to look like: all in order, or by name


def check_inputs_fit(
    where: str, fn: Callable, examples: Examples, args: Sequence[Any], named: Mapping[str, Any], by: str = "set_inputs"
) -> None:
    """Raise unless the inputs of a call to `fn` have the shapes and dtypes of those examples that are Tensors.

    by  where the examples come from: "set_inputs", or "input_signature" of `jit`. By MindSpore's documents a shape
        that does not fit is a ValueError (ShapeError) for the first, a TypeError (ArgumentTypeError) for the second
    """
    names = list(inspect.signature(fn).parameters)
    inputs: Sequence[Any] = [*args, *(named[name] for name in names if name in named)]
    if isinstance(examples, Mapping):
        by_name = {**dict(zip(names, args, strict=False)), **named}
        shared = [name for name in examples if name in by_name]
        examples, inputs = [examples[n] for n in shared], [by_name[n] for n in shared]
    elif examples and len(examples) != len(inputs):
        raise ArgumentError(f"{len(inputs)} inputs", where=where, allowed=f"As many as {by} was given: {len(examples)}")
    chosen: dict[int, int] = {}
    for example, value in zip(examples, inputs, strict=False):
        if not is_tensor(example) or dynamic_shape_of(value) is not None:
            continue
        if not is_tensor(value):
            raise ArgumentTypeError(f"the input {shorten(value)}", where=where, allowed=f"A Tensor, as {by} was given")
        expected = dynamic_shape_of(example) or DynamicShape(example.shape)
        if not expected.fits(tuple(value.shape), chosen):
            fault = ShapeError if by == "set_inputs" else ArgumentTypeError
            allowed = f"The shape that {by} was given: {list(expected.dims)}"
            raise fault(f"an input of shape {tuple(value.shape)}", where=where, allowed=allowed)
        if str(value.dtype) != str(example.dtype):
            allowed = f"That of {by}: {example.dtype}"
            raise ArgumentTypeError(f"an input of dtype {value.dtype}", where=where, allowed=allowed)


def is_tensor(value: Any) -> bool:
    """Whether it has a shape and a dtype, as Tensors, arrays and the values of a trace."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def sized(inputs: Sequence[Any], devices: int, shapes: Sequence[Any] = ()) -> tuple[list[Any], str]:
    """(the inputs, with zeros of `shapes` or sizes that fit where they have no values; which sizes, for notes)."""
    chosen: dict[int, int] = {}
    filled, notes = list(inputs), []
    for at, value in enumerate(inputs):
        if (dynamic := dynamic_shape_of(value)) is not None:
            shape = tuple(shapes[at]) if shapes else dynamic.sizes(devices, chosen)
            filled[at] = np.broadcast_to(np.zeros((), value.dtype), shape)
            if -1 in dynamic.shape:
                notes.append(f"{list(dynamic.shape)} as {list(shape)}")
    return filled, f"unknown sizes: {', '.join(notes)}; another size compiles again" if notes else ""
