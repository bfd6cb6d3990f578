"""`recompute(fn, *args)`: run at once and keep the inputs alone; what lies between is recomputed for the gradient.

    y = recompute(block, x)          as block(x); its gradient runs block(x) a second time

The second run gives the same bits: random masks are drawn once and repeated, Parameters have the values of the first
time, and what fn assigns to Parameters is assigned once. Form: mindspore.recompute, for networks that run at once; a
compiled one has `Cell.recompute`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...base.checks import function
from ...base.dtypes import kind_of
from ...base.errors import TraceError
from ...base.hooks import current_tracer, on_tape
from ...base.seeds import Repeated, repeated
from ...ops.reduce import reduce_sum
from .own_gradient import OwnGradient
from .parameter import Parameter
from .tape import gradients, leaves_since
from .tensor import Tensor, _made


def recompute(fn: Callable, *args: Any, **kwargs: Any) -> Any:
    """fn(*args, **kwargs); what it computes on the way is not kept, but computed again when a gradient is asked for.

    fn  a Cell or function that returns a Tensor, or a tuple of them; what returns others keeps what it computes

    Raises TraceError within a compiled network.
    """
    function("A Cell or a function")("recompute", "fn", fn)
    if current_tracer.get() is not None:
        what, hint = "it is called in a compiled network", "Call cell.recompute() when the network is made"
        raise TraceError(what, where="recompute", allowed="A network that runs at once", hint=hint)
    return run_again(fn, args, kwargs)


def run_again(fn: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As `recompute`, without its checks."""
    start, first = _made(), Repeated(repeated.get())
    with _repeating(first):
        result = fn(*args, **kwargs)
    results = result if isinstance(result, tuple) else (result,)
    if not all(isinstance(x, Tensor) for x in results):
        return result
    leaves = leaves_since(results, start)
    if not leaves:
        return result

    def gradient(values: tuple[Any, ...], of_results: tuple[Any, ...]) -> list[Any]:
        before = {id(p): (p, value.array) for p, value in zip(leaves, values[len(results) :], strict=True)}
        old = before | first.written  # what a Parameter was, before anything was assigned to it
        again = [(p, array) for p, array in old.values() if isinstance(p, Parameter)]
        watching = on_tape.set(True)
        try:
            with _holding(again), _repeating(first.again()):
                since, outputs = _made(), fn(*args, **kwargs)
                outs = outputs if isinstance(outputs, tuple) else (outputs,)
                pairs = [(o, g) for o, g in zip(outs, of_results, strict=True) if kind_of(o.dtype) == "f"]
                output, seed = pairs[0]
                if len(pairs) > 1:
                    output, seed = sum(reduce_sum(o * Tensor(g.array)) for o, g in pairs), None
                gradients_of_leaves = gradients(output, leaves, None if seed is None else seed.array, since=since)
        finally:
            on_tape.reset(watching)
        return list(map(Tensor, gradients_of_leaves))

    name = getattr(fn, "__name__", type(fn).__name__)
    alone = tuple(Tensor(x.array) for x in results)  # without the memory of how they were made
    outputs = OwnGradient(f"recompute of {name}", gradient)(alone, tuple(leaves), several=isinstance(result, tuple))
    return outputs


@contextmanager
def _repeating(how: Repeated) -> Iterator[None]:
    token = repeated.set(how)
    try:
        yield
    finally:
        repeated.reset(token)


@contextmanager
def _holding(pairs: list[tuple[Parameter, np.ndarray]]) -> Iterator[None]:
    """Inside, Parameters have these values; afterwards those of before, whatever was assigned."""
    now = [(p, p._data) for p, _ in pairs]
    for p, array in pairs:
        p._data = array
    try:
        yield
    finally:
        for p, array in now:
            p._data = array
