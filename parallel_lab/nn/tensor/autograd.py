"""Functions that return gradients, in MindSpore's form: at once by the tape (`tape.py`), in a trace written down.

loss, grads = value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())(x, y)
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...base.checks import flag
from ...base.dtypes import kind_of
from ...base.errors import (
    ArgumentError,
    ArgumentTypeError,
    NotBuiltYet,
    ParallelLabError,
    ShapeError,
    TraceError,
    shorten,
)
from ...base.hooks import cell_runner, current_tracer, current_world, on_tape, open_catalog
from ...ops.elementwise import add, cast, mul
from ...ops.reduce import reduce_sum
from ...ops.shape import reshape
from .arithmetic import Arithmetic
from .parameter import Parameter
from .tape import alone, as_read, gradients, history
from .tensor import Tensor


def value_and_grad(
    fn: Callable,
    grad_position: int | tuple[int, ...] | None = 0,
    weights: Sequence[Parameter] | None = None,
    has_aux: bool = False,
    return_ids: bool = False,
    sens_param: bool = False,
) -> Callable:
    """A function that returns (fn's value, gradients).

    grad_position  which positional arguments to differentiate for; None: none of them
    weights        Parameters to differentiate for, or one
    has_aux        fn returns (loss, more...), and only the loss is differentiated
    return_ids     a gradient is the pair (number of the argument or name of the weight, Tensor): see `get_grad`
    sens_param     the function takes one more argument, at its end: the gradient of fn's value (of the loss alone with
                   has_aux), 1 for every element without it

    Gradients are Tensors: those of the arguments (one, or a tuple), of the weights (likewise), or the pair of both.
    On a rank, where Cells that are called run compiled, so does this function, and gradients are this rank's slices.
    Raises ArgumentError or ArgumentTypeError for arguments without gradient, TraceError unless the result is a Tensor.
    """
    where = "value_and_grad"
    flag(where, "has_aux", has_aux)
    flag(where, "return_ids", return_ids)
    if flag(where, "sens_param", sens_param):
        return _with_sens(fn, grad_position, weights, has_aux, return_ids)
    if not callable(fn):
        raise ArgumentTypeError(f"fn is {shorten(fn)}", where=where, allowed="A function or a Cell")
    if grad_position is None and weights is None:
        hint = "Give weights=net.trainable_params()"
        raise TraceError("neither grad_position nor weights is given", where=where, hint=hint)
    positions, weight_list = _positions(grad_position, where), _weights(weights, where)

    @_named_like(fn)
    def run(*args: Any) -> tuple[Any, Any]:
        if positions and max(positions) >= len(args):
            given = f"grad_position={grad_position} with {len(args)} argument{'s' if len(args) != 1 else ''}"
            allowed = f"Numbers of positional arguments, from 0 to {len(args) - 1}"
            raise ArgumentError(given, where=where, allowed=allowed)
        tracer = current_tracer.get()
        if tracer is None and not on_tape.get():
            compiled = cell_runner()(run, args, {})
            if compiled is not NotImplemented:
                return compiled
        again = tracer is None and on_tape.get()  # a function that is differentiated itself
        args = [_target(a, tracer, again) if i in positions else a for i, a in enumerate(args)]
        watching = on_tape.set(tracer is None)
        try:
            # of a trace's values copies: the function may give them other elements
            given = [copy.copy(a) if not isinstance(a, Tensor) and isinstance(a, Arithmetic) else a for a in args]
            value = fn(*given) if tracer is None else tracer.forward_of(fn, given)
        finally:
            on_tape.reset(watching)
        if has_aux and not isinstance(value, (tuple, list)):
            allowed = "With has_aux=True a tuple: (loss, more...)"
            hint = "Return loss, logits from the function, or omit has_aux"
            raise TraceError(f"the function returned {shorten(value)}", where=where, allowed=allowed, hint=hint)
        output = value[0] if has_aux else value
        if not isinstance(output, Tensor if tracer is None else Arithmetic):
            what, allowed = f"the function returned {shorten(output)}", "A Tensor to differentiate"
            raise TraceError(what, where=where, allowed=allowed)
        if kind_of(output.dtype) != "f":
            what = f"the function returned a Tensor of {output.dtype}"
            hint = "Comparisons, argmax and counts have no gradient: return the number that was compared"
            raise TraceError(what, where=where, allowed="Floats: the gradient of others is nothing", hint=hint)
        if tracer is None:
            args = [as_read(a) if i in positions else a for i, a in enumerate(args)]
        tensors = [args[i] for i in positions] + weight_list
        # in a trace the gradients are written down as values that the compiler will know how to make
        if getattr(output, "answers", False):
            grads = output.gradients(tensors)
        elif again:
            grads = recorded_gradients(output, tensors)
        else:
            grads = (
                [Tensor(g) for g in gradients(output, tensors)] if tracer is None else tracer.gradients(output, tensors)
            )
        if tracer is None and (world := current_world()) is not None:
            world.note_gradients()
        if return_ids:
            names = [*positions, *(weight.name for weight in weight_list)]
            grads = list(zip(names, grads, strict=True))
        by_position, by_weight = grads[: len(positions)], tuple(grads[len(positions) :])
        inputs = by_position[0] if isinstance(grad_position, int) else tuple(by_position)
        if weights is None:
            return value, inputs
        by_weight = by_weight[0] if isinstance(weights, Parameter) else by_weight
        return value, by_weight if grad_position is None else (inputs, by_weight)

    return run


def _with_sens(fn: Any, grad_position: Any, weights: Any, has_aux: bool, return_ids: bool) -> Callable:
    """`value_and_grad` of a function that is given the gradient of its result as its last argument."""

    def run(*args: Any) -> tuple[Any, Any]:
        if not args:
            allowed = "The inputs, and last the result's gradient"
            raise ArgumentError("no argument is given", where="value_and_grad", allowed=allowed)
        weighted_fn = weighted(fn, args[-1], loss_alone=has_aux)
        (_, result), grads = value_and_grad(weighted_fn, grad_position, weights, True, return_ids)(*args[:-1])
        return result, grads

    return run


def weighted(fn: Callable, sens: Any, loss_alone: bool = False) -> Callable:
    """A function of fn's inputs -> (what a gradient `sens` of its results is the gradient of, fn's results).

    loss_alone  `sens` is the gradient of the first result
    """

    @functools.wraps(fn, updated=())
    def run(*inputs: Any) -> tuple[Any, Any]:
        result = fn(*inputs)
        return weighted_sum(result[0] if loss_alone else result, sens), result

    return run


def weighted_sum(value: Any, sens: Any = None) -> Any:
    """sum(value * sens), whose gradient is that with `sens` for the results.  Tensors or tuples -> (...) or ().

    sens None and one tensor: the tensor itself, whose gradient starts with ones.
    """
    if isinstance(value, (tuple, list)):
        value = [v for v in value if v is not None]  # such as the mask of a Dropout
        each = sens if isinstance(sens, (tuple, list)) else [sens] * len(value)
        if len(each) != len(value):
            raise ShapeError(f"{len(each)} gradients for {len(value)} results", where="sens", allowed="One each")
        parts = [_total(weighted_sum(v, s)) for v, s in zip(value, each, strict=True)]
        if parts:
            return functools.reduce(add, parts)
    if not hasattr(value, "dtype"):
        raise ArgumentTypeError(f"a loss that is {shorten(value)}", where="gradients", allowed="A Tensor, or several")
    if kind_of(value.dtype) != "f":
        value = cast(value, "float32")  # truth values and numbers of elements: their gradient is 0
    if sens is None:
        return value
    if isinstance(sens, (bool, int, float)) and sens == 1:
        return value
    shape = tuple(getattr(sens, "shape", ()))
    if shape not in ((), (1,), tuple(value.shape)):
        what = f"a gradient of shape {shape} for a result of shape {tuple(value.shape)}"
        raise ShapeError(what, where="sens", allowed="The result's shape, or one number")
    if shape == (1,) != tuple(value.shape):
        sens = reshape(sens, ())
    if str(getattr(sens, "dtype", value.dtype)) != str(value.dtype):
        sens = cast(sens, str(value.dtype))
    return mul(value, sens)


def _total(value: Any) -> Any:
    return reduce_sum(value) if tuple(value.shape) else value


def _named_like(fn: Callable) -> Callable:
    """A decorator: the name and the arguments of `fn`, a function or a Cell, which a compiled program shows."""

    def named(run: Callable) -> Callable:
        run.__wrapped__ = getattr(fn, "construct", fn)  # type: ignore[attr-defined]
        run.__name__ = getattr(fn, "__name__", type(fn).__name__)
        return run

    return named


def grad(
    fn: Callable,
    grad_position: int | tuple[int, ...] | None = 0,
    weights: Sequence[Parameter] | None = None,
    has_aux: bool = False,
    return_ids: bool = False,
    sens_param: bool = False,
) -> Callable:
    """As `value_and_grad`, without the value (with has_aux: gradients, and a tuple of the rest)."""
    both = value_and_grad(fn, grad_position, weights, has_aux, return_ids, sens_param)

    def run(*args: Any) -> Any:
        value, grads = both(*args)
        return (grads, tuple(value[1:])) if has_aux else grads

    return run


def _positions(given: Any, where: str) -> tuple[int, ...]:
    """Numbers of the arguments to differentiate for."""
    positions = () if given is None else tuple(given) if isinstance(given, (tuple, list)) else (given,)
    allowed = "An int, or a tuple of different ints, counted from 0; or None"
    if any(isinstance(i, bool) or not isinstance(i, int) for i in positions):
        raise ArgumentTypeError(f"grad_position={shorten(given)}", where=where, allowed=allowed)
    if any(i < 0 for i in positions) or len(set(positions)) < len(positions):
        raise ArgumentError(f"grad_position={shorten(given)}", where=where, allowed=allowed)
    return positions


def _weights(given: Any, where: str) -> list[Parameter]:
    """The Parameters to differentiate for."""
    allowed = "A Parameter, or a list or tuple of them, for instance net.trainable_params()"
    given = [given] if isinstance(given, Parameter) else given
    if given is not None and (
        isinstance(given, (Tensor, str, np.ndarray, type, dict)) or not isinstance(given, Iterable)
    ):
        raise ArgumentTypeError(f"weights={shorten(given)}", where=where, allowed=allowed)
    weights = list(given or ())
    for i, weight in enumerate(weights):
        if not isinstance(weight, Tensor):
            raise ArgumentTypeError(f"weights[{i}] is {shorten(weight)}", where=where, allowed=allowed)
    return weights


def _target(value: Any, tracer: Any, again: bool) -> Any:
    """An argument whose gradient is asked for, as the function is given it."""
    if getattr(value, "answers", False):  # a DTensor
        return value.detach().requires_grad_()
    kept = again and isinstance(value, Tensor) and (value.node is not None or value.requires_grad)
    return value if tracer is not None or kept else _GradientTarget(value)


class _GradientTarget(Tensor):
    """An argument whose gradient is asked for."""

    __slots__ = ("hooks",)
    requires_grad = True

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.hooks: list[Callable] = []


def recorded_gradients(output: Tensor, wrt: Sequence[Tensor]) -> list[Tensor]:
    """As `gradients` of ones, on the tape: the rules run on Tensors, so that what they give can be differentiated.

    Raises NotBuiltYet where a rule works on arrays alone.
    """
    open_catalog()  # which has rules for operators that rules are made of
    targets, totals = {id(t) for t in wrt}, {id(output): Tensor(np.ones(output.shape, output.dtype))}
    for tensor in history(output):
        key, node = id(tensor), tensor.node
        g = totals.get(key) if key in targets else totals.pop(key, None)
        if g is None:
            continue
        operands, op = [as_read(x, node.order) for x in node.operands], node.op
        needed = [x.node is not None or x.requires_grad for x in operands]
        extra: dict[str, Any] = {"across": alone} if op.vjp_across else {}
        extra |= {"total": lambda value: (value, 1)} if op.vjp_total else {}
        extra |= {"needs": tuple(needed)} if op.vjp_needs else {}
        g = g if g.dtype == tensor.dtype else g.astype(str(tensor.dtype))
        watching = on_tape.set(2)
        try:
            if node.siblings is not None or node.hooks:
                raise TypeError("several results, or hooks")
            found = op.vjp_fn(g, tensor, *operands, **({} if op.plain else node.attrs), **extra)
            if any(x is not None and not isinstance(x, Tensor) for x in found):
                raise TypeError("arrays")
        except (TypeError, AttributeError, ValueError, ParallelLabError) as error:
            what = f"{op.class_name} is to be differentiated once more"
            hint = "Write the first derivative with operators yourself"
            raise NotBuiltYet(what, allowed="Rules made of operators that have one", hint=hint) from error
        finally:
            on_tape.reset(watching)
        for operand, needs_gradient, part in zip(operands, needed, found, strict=True):
            if part is not None and needs_gradient:
                totals[id(operand)] = part if id(operand) not in totals else totals[id(operand)] + part
    return [totals[id(t)] if id(t) in totals else Tensor(np.zeros(t.shape, t.dtype)) for t in wrt]
