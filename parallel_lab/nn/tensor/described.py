"""Inputs that are only described, by a dtype and a shape with dims that may be unknown; `Symbol` says more of a dim.

    rows = Symbol(divisor=8)
    net.set_inputs(Tensor(shape=[rows, None, 3], dtype="float32"))
    net.compile()     # for sizes that fit, (8, 8, 3) on 8 devices, as the plan says

Programs here are made for known shapes: one for each that a call brings. A description is refused where values are
asked for, and stands for sizes that fit it where something is compiled for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...base.checks import flag, integer, is_int, kept
from ...base.errors import ArgumentError, ArgumentTypeError, ShapeError, TraceError, shorten


class Symbol:
    """What is known of an unknown dim.

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
        """A size that fits: one that all devices may split, if there is one; else the least."""
        start = self.min + (self.remainder - self.min) % self.divisor
        sizes = (start + i * self.divisor for i in range(devices))  # after `devices` of them remainders repeat
        return next((n for n in sizes if n % devices == 0 and self.fits(n)), start)


ANY = Symbol()


class Description:
    """The dims of a described input. Stands where an Initializer does, and refuses to draw."""

    def __init__(self, shape: Any) -> None:
        if not isinstance(shape, (list, tuple)):
            allowed = "A list or tuple of sizes, with None, -1 or a Symbol for what is unknown"
            raise ArgumentTypeError(f"shape={shorten(shape)}", where="Tensor", allowed=allowed)
        unknown = (ANY if n is None or (is_int(n) and n == -1) else n for n in shape)
        self.dims = tuple(n if isinstance(n, Symbol) else integer(0)("Tensor", "shape", n) for n in unknown)
        self.shape = tuple(-1 if isinstance(n, Symbol) else n for n in self.dims)

    def draw(self, generator: Any, shape: Any) -> np.ndarray:
        hint = "Give values: Tensor(array), or a rule for them: Tensor(shape=..., dtype=..., init=Normal())"
        raise TraceError(f"a Tensor that is described by its shape, {self.shape}, has no values", hint=hint)

    def sizes(self, devices: int, chosen: dict[int, int]) -> tuple[int, ...]:
        """A shape that fits; `chosen` are the sizes of unique Symbols, by id."""
        made = []
        for n in self.dims:
            if isinstance(n, Symbol):
                size = n.size(devices)
                n = chosen.setdefault(id(n), size) if n.unique else size
            made.append(n)
        return tuple(made)

    def fits(self, shape: Sequence[int], chosen: dict[int, int]) -> bool:
        """Whether an input may have this shape. `chosen` gets the sizes of unique Symbols, by id."""
        return len(shape) == len(self.dims) and not any(
            n != size if not isinstance(n, Symbol) else not n.fits(size) or chosen.setdefault(id(n), size) != size
            for n, size in zip(self.dims, shape, strict=True)
            if not isinstance(n, Symbol) or n.unique or not n.fits(size)
        )


def description_of(value: Any) -> Description | None:
    """The Description that a Tensor was made from; None of others."""
    rule = getattr(getattr(value, "draw", None), "__self__", None)
    return rule if isinstance(rule, Description) else None


Told = Sequence[Any] | Mapping[str, Any]  # the inputs of a call that were told before it: all in order, or some by name


def check_described(
    where: str, fn: Callable, told: Told, args: Sequence[Any], named: Mapping[str, Any], by: str = "set_inputs"
) -> None:
    """Raise unless the inputs of a call to `fn` fit what was told of them, where that is a Tensor: shape and dtype.

    by  what told them: "set_inputs", or "input_signature" of `jit`. By MindSpore's documents a shape that does not fit
        is a ValueError (ShapeError) for the first, a TypeError (ArgumentTypeError) for the second
    """
    names = list(inspect.signature(fn).parameters)
    given: Sequence[Any] = [*args, *(named[name] for name in names if name in named)]
    if isinstance(told, Mapping):
        every = {**dict(zip(names, args, strict=False)), **named}
        known_names = [name for name in told if name in every]
        told, given = [told[n] for n in known_names], [every[n] for n in known_names]
    elif told and len(told) != len(given):
        raise ArgumentError(f"{len(given)} inputs", where=where, allowed=f"As many as {by} was given: {len(told)}")
    chosen: dict[int, int] = {}
    for known, value in zip(told, given, strict=False):
        if not is_tensor(known) or description_of(value) is not None:
            continue
        if not is_tensor(value):
            raise ArgumentTypeError(f"the input {shorten(value)}", where=where, allowed=f"A Tensor, as {by} was given")
        description = description_of(known) or Description(known.shape)
        if not description.fits(tuple(value.shape), chosen):
            fault = ShapeError if by == "set_inputs" else ArgumentTypeError
            allowed = f"The shape that {by} was given: {list(description.dims)}"
            raise fault(f"an input of shape {tuple(value.shape)}", where=where, allowed=allowed)
        if str(value.dtype) != str(known.dtype):
            raise ArgumentTypeError(
                f"an input of dtype {value.dtype}", where=where, allowed=f"That of {by}: {known.dtype}"
            )


def is_tensor(value: Any) -> bool:
    """Whether it has a shape and a dtype, as Tensors, arrays and the values of a trace."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def sized(inputs: Sequence[Any], devices: int) -> tuple[list[Any], str]:
    """(the inputs, with zeros of sizes that fit for described ones; what was done, for notes)."""
    chosen: dict[int, int] = {}
    made, told = list(inputs), []
    for at, value in enumerate(inputs):
        if (description := description_of(value)) is not None:
            shape = description.sizes(devices, chosen)
            made[at] = np.broadcast_to(np.zeros((), value.dtype), shape)
            if -1 in description.shape:
                told.append(f"{list(description.shape)} as {list(shape)}")
    return made, f"unknown sizes: {', '.join(told)}; another size compiles again" if told else ""
