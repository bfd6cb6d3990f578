"""Functions of functions: `vmap`, `vjp`, `jvp`, `jacrev`, `jacfwd`, choice by type, the helpers of `ops.functional`.

    output, vjp_fn = vjp(fn, x, y)          vjp_fn(v): the gradients, weighted by v
    jacrev(fn)(x)                           (..., of the result, ..., of x)
    vmap(fn, in_axes=(0, None))(xs, y)      fn of every x, stacked

    add = MultitypeFuncGraph("add")
    @add.register("Tensor", "Tensor")
    def _(total, grad): return ops.assign_add(total, grad)
    HyperMap()(add, totals, grads)

Made of gradients and of one call after the other. Names, arguments, forms of results: MindSpore 2.10.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from typing import Any

import numpy as np

from .. import ops
from ..base.checks import checked, fitting, flag, function, instance, integer, kept, text
from ..base.errors import ArgumentError, ArgumentTypeError, ShapeError, TraceError, shorten
from ..base.hooks import current_tracer, on_tape
from ..catalog.nn.forms import HyperMap
from ..nn.tensor.arithmetic import Arithmetic
from ..nn.tensor.autograd import grad
from ..nn.tensor.own_gradient import OwnGradient
from ..nn.tensor.parameter import Parameter
from ..nn.tensor.tensor import Tensor

A_FUNCTION = function("A function or a Cell")


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def vjp(fn: Callable, *inputs: Any, weights: Any = None, has_aux: bool = False) -> tuple[Any, ...]:
    """(fn's result, function of its weights v), and with has_aux the further results, which are not differentiated.

    The function gives the gradients for the inputs, of one input alone it; with `weights` the pair (those, theirs).
    """
    A_FUNCTION("vjp", "fn", fn)
    value = fn(*inputs)
    if flag("vjp", "has_aux", has_aux) and not isinstance(value, tuple):
        raise ArgumentTypeError("has_aux=True with one result", where="vjp", allowed="A tuple: (result, more...)")
    first = (lambda *given: fn(*given)[0]) if has_aux else fn
    places = tuple(range(len(inputs)))

    def vjp_fn(*v: Any) -> Any:
        found = grad(first, places, weights, sens_param=True)(*inputs, v[0] if len(v) == 1 else v)
        of_inputs, of_weights = found if weights is not None else (found, None)
        of_inputs = of_inputs[0] if len(_several(of_inputs)) == 1 else of_inputs
        return of_inputs if weights is None else (of_inputs, of_weights)

    return (value[0], vjp_fn, tuple(value[1:])) if has_aux else (value, vjp_fn)


def _jacobians(fn: Callable, places: tuple[int, ...], inputs: Sequence[Any]) -> tuple[Any, list[list[Any]]]:
    """(fn's result, for each of its tensors a list: per place the Jacobian)."""
    value, rows = fn(*inputs), []
    for number, result in enumerate(_several(value)):
        one = (lambda *given, number=number: fn(*given)[number]) if isinstance(value, (tuple, list)) else fn
        size, shape, gradient = int(np.prod(result.shape)), tuple(result.shape), grad(one, places, sens_param=True)
        seeds = np.eye(size, dtype=str(result.dtype)).reshape(size, *shape)
        parts = [_several(gradient(*inputs, Tensor(seed))) for seed in seeds]
        stacked = (ops.stack([part[at] for part in parts], 0) for at in range(len(places)))
        rows.append([ops.reshape(s, (*shape, *inputs[p].shape)) for s, p in zip(stacked, places, strict=True)])
    return value, rows


def jacrev(fn: Callable, grad_position: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable:
    """The function that gives fn's Jacobian for one input, or a tuple for several: (dims of the result, of the input).

    has_aux  fn returns (result, more...): (Jacobian, more)
    """
    A_FUNCTION("jacrev", "fn", fn)
    flag("jacrev", "has_aux", has_aux)
    places = tuple(integer(0)("jacrev", "grad_position", at) for at in _several(grad_position))

    def run(*inputs: Any) -> Any:
        aux: list[Any] = []

        def first(*given: Any) -> Any:
            value = fn(*given)
            aux[:] = value[1:] if has_aux else ()
            return value[0] if has_aux else value

        value, rows = _jacobians(first, places, inputs)
        found = [row[0] if isinstance(grad_position, int) else tuple(row) for row in rows]
        jacobian = tuple(found) if isinstance(value, (tuple, list)) else found[0]
        return (jacobian, aux[0] if len(aux) == 1 else tuple(aux)) if has_aux else jacobian

    return fitting(run, "jacrev")


jacfwd = jacrev  # the same numbers, made in another order there


def jvp(fn: Callable, inputs: Any, v: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """(fn's result, its change per change of the inputs along v), and with has_aux the further results.

    inputs, v  a tensor each, or tuples
    """
    A_FUNCTION("jvp", "fn", fn)
    inputs, along = _several(inputs), _several(v)
    if [tuple(x.shape) for x in inputs] != [tuple(x.shape) for x in along]:
        raise ShapeError(f"{len(along)} vectors for {len(inputs)} inputs", where="jvp", allowed="One of each shape")
    aux = tuple(fn(*inputs)[1:]) if flag("jvp", "has_aux", has_aux) else ()
    value, rows = _jacobians((lambda *g: fn(*g)[0]) if has_aux else fn, tuple(range(len(inputs))), inputs)
    changes = []
    for row in rows:
        both = zip(row, along, strict=True)
        parts = [ops.tensordot(j, x, len(x.shape)) if x.shape else ops.mul(j, x) for j, x in both]
        changes.append(parts[0] if len(parts) == 1 else ops.addn(parts))
    change = tuple(changes) if isinstance(value, (tuple, list)) else changes[0]
    return (value, change, aux) if has_aux else (value, change)


def vmap(fn: Callable, in_axes: Any = 0, out_axes: Any = 0) -> Callable:
    """The function that calls fn for every element along a dim of its inputs, and stacks what it gives.

    in_axes   the dim of every input, or one per input, nested as they are; None: the whole input
    out_axes  where the new dim of every result is, or one per result; None: of the first element
    """
    A_FUNCTION("vmap", "fn", fn)

    def sizes(x: Any, axis: Any) -> list[int]:
        if isinstance(x, (tuple, list)):
            return [n for one, at in zip(x, _each(axis, x), strict=True) for n in sizes(one, at)]
        return [] if axis is None else [x.shape[axis]]

    def element(x: Any, axis: Any, i: int) -> Any:
        if isinstance(x, (tuple, list)):
            return type(x)(element(one, at, i) for one, at in zip(x, _each(axis, x), strict=True))
        return x if axis is None else x[(*(slice(None),) * (axis % len(x.shape)), i)]

    def joined(parts: list[Any], axis: Any) -> Any:
        if isinstance(parts[0], (tuple, list)):
            columns = zip(zip(*parts, strict=True), _each(axis, parts[0]), strict=True)
            return tuple(joined(list(column), at) for column, at in columns)
        return parts[0] if axis is None else ops.stack(parts, axis)

    def run(*inputs: Any) -> Any:
        counts = set(sizes(inputs, in_axes))
        if len(counts) != 1:
            what = f"inputs with {sorted(counts)} elements along in_axes={shorten(in_axes)}"
            raise ArgumentError(what, where="vmap", allowed="One count, of one input at least")
        return joined([fn(*element(inputs, in_axes, i)) for i in range(counts.pop())], out_axes)

    return fitting(run, "vmap")


def _each(axis: Any, values: Sequence[Any]) -> Sequence[Any]:
    if not isinstance(axis, (tuple, list)):
        return [axis] * len(values)
    if len(axis) != len(values):
        raise ArgumentError(f"{len(axis)} axes for {len(values)} values", where="vmap", allowed="One per value")
    return axis


def get_grad(gradients: Any, identifier: int | Parameter) -> Tensor:
    """The gradient of an argument, by its number, or of a Parameter among what return_ids=True gives."""
    name = identifier.name if isinstance(identifier, Parameter) else identifier
    parts = [gradients]
    while parts:
        part = parts.pop()
        if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], (int, str)):
            if part[0] == name:
                return part[1]
        elif isinstance(part, (tuple, list)):
            parts.extend(part)
    allowed = "The number of an argument, or a Parameter, with a gradient made with return_ids=True"
    raise ArgumentError(f"no gradient for {shorten(identifier)}", where="get_grad", allowed=allowed)


# ---- ops.composite, beside gradients and `HyperMap` ----


@checked(fn=instance(Callable, "A function"))
def partial(fn: Callable, *args: Any, **kwargs: Any) -> Callable:
    """`fn` with its first arguments given (functools.partial)."""
    return functools.partial(fn, *args, **kwargs)


def depend(value: Any, expr: Any) -> Any:
    """`value`. It says that `expr` is done before; here what is written first is done first anyway."""
    return value


class Map(HyperMap):
    """`HyperMap` that takes only the outermost tuples apart."""

    deep = False


class MultitypeFuncGraph:
    """One function for several types of arguments: `register("Tensor", "Number")` says for which a function is.

    Type names: Tensor, Number, Bool, String, Tuple, List, Dictionary, Function, None_.
    """

    @kept(name=text, read_value=flag)
    def __init__(self, name: str, read_value: bool = False) -> None:
        self._functions: dict[tuple[str, ...], Callable] = {}

    def register(self, *type_names: Any) -> Callable[[Callable], Callable]:
        """Decorator: the function is called for arguments of these types, one name each."""
        names = tuple(str(getattr(n, "__name__", n)) for n in type_names)

        def keep(fn: Callable) -> Callable:
            self._functions[names] = fn
            return fn

        return keep

    def __call__(self, *args: Any) -> Any:
        kinds = [_kinds(a) for a in args]
        for names, fn in self._functions.items():
            if len(names) == len(args) and all(n in k for n, k in zip(names, kinds, strict=True)):
                return fn(*args)
        signatures = "; ".join(", ".join(names) for names in self._functions) or "none yet"
        given = ", ".join(k[0] for k in kinds)
        what, where = f"no function is registered for ({given})", f"MultitypeFuncGraph {self.name!r}"
        raise ArgumentTypeError(what, where=where, allowed=f"Registered: {signatures}")

    def __repr__(self) -> str:
        return f"MultitypeFuncGraph({self.name!r})"


def _kinds(value: Any) -> tuple[str, ...]:
    """The type names an argument goes by, the most exact first."""
    if isinstance(value, (Arithmetic, np.ndarray)):
        return ("Tensor",)
    for kind, names in (
        (bool, ("Bool", "Number")),
        ((int, float, np.number), ("Number",)),
        (str, ("String",)),
        (tuple, ("Tuple",)),
        (list, ("List",)),
        (dict, ("Dictionary",)),
        (type(None), ("None_", "None")),
    ):
        if isinstance(value, kind):
            return names
    return ("Function", type(value).__name__) if callable(value) else (type(value).__name__,)


# ---- ops.functional, up to 1.10 ----


class Partial:
    """`Partial()(fn, *args)`: fn with its first arguments given. `Partial(fn, *args)` too."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls) if not args and not kwargs else _partial(*args, **kwargs)

    def __call__(self, fn: Callable, *args: Any, **kwargs: Any) -> Callable:
        return _partial(fn, *args, **kwargs)


def _partial(fn: Callable, *args: Any, **kwargs: Any) -> Callable:
    return functools.partial(A_FUNCTION("Partial", "fn", fn), *args, **kwargs)


class _no_grad(ContextDecorator):
    """`with _no_grad():`, or over a function: what is computed inside is a constant to the gradient that is being made.
    Outside such a function it changes nothing. Raises TraceError in a trace, as a plan has `ops.stop_gradient` for it.
    """

    def _recreate_cm(self) -> _no_grad:
        return type(self)()

    def __enter__(self) -> None:
        if current_tracer.get() is not None:
            raise TraceError("_no_grad in what is compiled", where="_no_grad", hint="Use ops.stop_gradient(value)")
        self._before = on_tape.set(-1 if on_tape.get() else on_tape.get())

    def __exit__(self, *error: object) -> None:
        on_tape.reset(self._before)


def make_tuple(*values: Any) -> tuple[Any, ...]:
    """A tuple of the arguments."""
    return values


def make_range(start: int, stop: int | None = None, step: int = 1) -> tuple[int, ...]:
    """The ints from start (0) to below stop."""
    bounds = [integer()("make_range", "start", start), None if stop is None else integer()("make_range", "stop", stop)]
    first, last = (0, bounds[0]) if stop is None else bounds
    if not integer()("make_range", "step", step):
        raise ArgumentError("step=0", where="make_range", allowed="Another int")
    integer(0, 2**20)("make_range", "how many", max(0, (last - first + step - (1 if step > 0 else -1)) // step))
    return tuple(range(first, last, step))


def tuple_setitem(x: Any, index: int, value: Any) -> tuple[Any, ...]:
    """The tuple with another element."""
    place = integer(-len(x), len(x) - 1)("tuple_setitem", "index", index) % len(x)
    return (*x[:place], value, *x[place + 1 :])


def mixed_precision_cast(dtype: Any, x: Any) -> Any:
    """Float tensors, also in tuples, in another dtype; anything else as it is."""
    if isinstance(x, (tuple, list)):
        return type(x)(mixed_precision_cast(dtype, each) for each in x)
    return ops.cast(x, dtype) if getattr(getattr(x, "dtype", None), "kind", "") == "f" else x


def control_depend(src_operators: Any, dst_operators: Any, depend_mode: int = 0) -> Any:
    """What is written first is done first anyway."""
    return dst_operators


# Python's own operators, under the names of `ops.functional`
_OF_PYTHON: dict[str, Callable] = {
    **{f"scalar_{name}": getattr(operator, name) for name in ("add", "sub", "mul", "mod", "floordiv")},
    **{f"scalar_{name}": getattr(operator, name) for name in ("eq", "ne", "ge", "gt", "le", "lt")},
    **{"scalar_div": operator.truediv, "scalar_usub": operator.neg, "string_eq": operator.eq},
    **{"bool_not": operator.not_, "bool_and": operator.and_, "bool_or": operator.or_, "bool_eq": operator.eq},
    **{"is_": operator.is_, "is_not": operator.is_not, "tuple_getitem": operator.getitem},
    **{"tuple_len": len, "list_len": len, "dict_len": len, "shape_mul": math.prod},
}
globals().update({name: fitting(function, name) for name, function in _OF_PYTHON.items()})
tuple_setitem = fitting(tuple_setitem, "tuple_setitem")


class _Context:
    """What `forward` of a `_Function` leaves for its `backward`: attributes, and tensors of `save_for_backward`.

    needs_input_grad  per argument whether it is a tensor
    """

    saved_tensors: tuple[Any, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Tensors that `saved_tensors` gives back."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Without effect: `backward` says which gradients there are."""

    mark_dirty = mark_non_differentiable


class _Function:
    """A function with a gradient of its own, run at once: static `forward(ctx, *args)` and `backward(ctx, *gradients)`,
    one gradient or None per argument. `apply(*args)` calls it.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """Its results; a subclass defines it."""
        raise ArgumentTypeError("it has no forward", where="_Function", allowed="@staticmethod forward(ctx, *args)")

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """A gradient per argument; a subclass defines it."""
        raise ArgumentTypeError("it has no backward", where="_Function", allowed="@staticmethod backward(ctx, *grads)")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """The results of `forward`, whose gradients go through `backward`."""
        if current_tracer.get() is not None:
            raise TraceError(f"{cls.__name__}.apply in what is compiled", where="_Function", hint="Use a Cell's bprop")
        ctx, places = _Context(), [i for i, x in enumerate(args) if isinstance(x, Tensor)]
        ctx.needs_input_grad = tuple(i in places for i in range(len(args)))
        with _no_grad():
            result = cls.forward(ctx, *args, **kwargs)
        several = isinstance(result, tuple)
        results = result if several else (result,)
        if not places or not all(isinstance(x, Tensor) for x in results):
            return result

        def gradient(_: Any, gradients: tuple[Any, ...]) -> list[Any]:
            given = cls.backward(ctx, *gradients)
            given = given if isinstance(given, tuple) else (given,)
            if len(given) != len(args):
                what = f"backward gives {len(given)} gradients"
                raise ArgumentTypeError(what, where=cls.__name__, allowed=f"{len(args)}, one per argument of forward")
            return [given[i] for i in places]

        return OwnGradient(f"{cls.__name__}.backward", gradient)(
            results, tuple(args[i] for i in places), several=several
        )
