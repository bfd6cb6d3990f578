"""A drawer that runs every operator as it draws it, so that what cannot be compared is not drawn.

Two computations that add the same numbers in another order differ in the last bits. Most operators pass such a
difference on as it is; some make a jump of it: the largest of two elements that are equal but for the last bit, a step
function at its step, a normalisation of numbers that are all equal. The questions `away`, `distinct` and `varied` keep
programs from there. Values that grow are flattened by a Tanh.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from parallel_lab import Tensor, ops
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.ops.machine.legal_strategies import legal_strategies
from tests.graph.random_choices import Choices
from tests.graph.random_nets import TRAINING_STEP, Drawer, Ref, Step

GAP = 1e-7  # far above rounding (1e-13 for the values drawn here), far below the distance of random numbers
LARGE = 30.0  # elements beyond this are flattened
MANY = 2048  # elements beyond which a value is not made longer


def away(x: np.ndarray, *points: float) -> bool:
    """Whether no element lies at one of the points."""
    return all(bool(np.all(np.abs(x - p) > GAP)) for p in points)


def distinct(x: np.ndarray) -> bool:
    """Whether no two elements are nearly equal."""
    return x.size < 2 or float(np.diff(np.sort(x, axis=None)).min()) > GAP


def varied(x: np.ndarray, axes: tuple[int, ...]) -> bool:
    """Whether the elements along `axes` are apart from each other."""
    return math.prod(x.shape[a] for a in axes) > 1 and float(x.std(axis=axes).min()) > 0.05


def cut_dims(strategy: tuple[tuple[int, ...], ...]) -> int:
    """How many dims a strategy splits: of two strategies the one with more asks more of an operator."""
    return sum(count > 1 for counts in strategy for count in counts)


def one_result(primitive, number, *operands):
    """One of an operator's results; nobody reads the others."""
    return primitive(*operands)[number]


class CheckedDrawer(Drawer):
    """A Drawer whose values are known while it draws."""

    def __init__(self, choices: Choices, device_num: int) -> None:
        super().__init__(choices, device_num)
        self.values: list[np.ndarray] = []
        self.training_step = 0

    # ---- values ----

    def array(self, operand: Any) -> Any:
        """What an operand is on one device."""
        if isinstance(operand, Ref):
            return self.values[operand.number] if operand.number >= 0 else self.inputs[-1 - operand.number]
        if operand is TRAINING_STEP:
            return np.asarray(self.training_step)
        return operand.asnumpy() if isinstance(operand, Tensor) else operand

    def fresh(self, shape: tuple[int, ...], low: float = -1.0, high: float = 1.0, trained: bool = True) -> Parameter:
        """A Parameter of its own."""
        made = Parameter(self.choices.floats(low, high, shape), name=f"p{len(self.parameters)}", requires_grad=trained)
        self.parameters.append(made)
        return made

    def numbers(self, bound: int, shape: tuple[int, ...]) -> Any:
        """Ints from 0 to bound - 1: a further input, or a constant (a scalar is always an input)."""
        array = self.choices.ints(bound, shape)
        if shape and self.chance(0.4):
            return Tensor(array)
        self.inputs.append(array)
        return Ref(-len(self.inputs))

    # ---- operators ----

    def add(self, name, *operands, attrs=None, only=None, of_class=None, **_):
        """Append operator `name`, called with `operands`; gives its value(s).

        only      the one result that is read
        of_class  arguments of the Primitive that are no attributes of its operator
        """
        attrs = attrs or {}
        primitive = getattr(ops, name)(**attrs, **(of_class or {}))
        op = primitive.op
        if op.host_only:
            primitive.set_device("CPU")
        arrays = [self.array(o) for o in operands]
        given = {**op.default_attrs, **attrs}
        tensors = arrays
        if not op.variadic:
            tensors = [a for n, a in zip(op.positional, arrays, strict=False) if n in op.tensors]
            given |= {n: a for n, a in zip(op.positional, arrays, strict=False) if n not in op.tensors}
        shapes = tuple(np.shape(a) for a in tensors)
        strategy = None
        if not op.view and self.chance(0.8):
            legal = legal_strategies(op, shapes, given, self.device_num)
            strategy = max(self.pick(legal), self.pick(legal), key=cut_dims)
            primitive.shard(strategy)
        call, made = primitive, primitive(*arrays)
        if only is not None:
            call, made = partial(one_result, primitive, only), made[only]
        text = f"{name}{attrs or ''}" + ("" if only is None else f" result {only}") + f" strategy {strategy}"
        return self.put(text, call, operands, made)

    def call(self, text: str, function: Callable, *operands: Any) -> Any:
        """Append what a function of the operands does; its operators carry no strategy."""
        return self.put(text, function, operands, function(*(self.array(o) for o in operands)))

    def put(self, text: str, call: Callable, operands: tuple[Any, ...], made: Any) -> Any:
        several = isinstance(made, tuple)
        refs = []
        for array in made if several else (made,):
            array = np.asarray(array)
            assert np.isfinite(array).all(), f"{text} gives numbers that are not finite"
            refs.append(Ref(len(self.values)))
            self.values.append(array)
            self.shapes.append(array.shape)
            if array.dtype.kind != "f":
                self.bits.add(refs[-1].number)
        self.steps.append(Step(call, operands))
        shown, names = ", ".join(self.shown(o) for o in operands), ", ".join(f"v{r.number}" for r in refs)
        self.lines.append(f"{names} = {text} ({shown}) -> {', '.join(str(self.shape_of(r)) for r in refs)}")
        return tuple(refs) if several else refs[0]

    def shown(self, operand: Any) -> str:
        if isinstance(operand, Ref):
            name = f"v{operand.number}" if operand.number >= 0 else f"input{-1 - operand.number}"
            return f"{name}{self.shape_of(operand)}"
        if isinstance(operand, Parameter):
            return f"{operand.name}{operand.shape}"
        if operand is TRAINING_STEP:
            return "step"
        return f"const{operand.shape}" if isinstance(operand, Tensor) else repr(operand)

    def flatten_large(self) -> None:
        """A Tanh for every value of the last step that has grown."""
        for number in range(len(self.values) - 1, -1, -1):
            x = self.values[number]
            if number in self.bits or not x.size or np.abs(x).max() <= LARGE:
                break
            self.bits.add(number)  # not to be used again
            self.add("Tanh", Ref(number))

    # ---- small helpers of the kinds ----

    def some(self, ndim: int | None = None) -> tuple[Any, np.ndarray]:
        """A float value and its array; (None, empty) if no value has `ndim` dims."""
        x = self.value(ndim)
        return (None, np.empty(0)) if x is None else (x, self.array(x))

    def with_dims(self, least: int, most: int = 4) -> tuple[Any, np.ndarray]:
        """A float value that has from `least` to `most` dims, reshaped if necessary."""
        x, array = self.some()
        if least <= array.ndim <= most:
            return x, array
        wanted = self.pick([n for n in range(1, 5) if least <= n <= most])
        found, there = self.some(wanted)
        if found is not None:
            return found, there
        left, shape = array.size, []
        for _ in range(wanted - 1):
            shape.append(self.pick([d for d in (1, 2, 3, 4, 6, 8) if left % d == 0]))
            left //= shape[-1]
        x = self.add("Reshape", x, (*shape, left))
        return x, self.array(x)

    def combined(self, x: Any, other: Any) -> Any:
        """Two values that broadcast, in one."""
        return self.add(self.pick(("Add", "Sub", "Mul")), x, other)
