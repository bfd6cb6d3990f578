"""The operator behind a user's own operators (`nn/tensor/custom.py`): it has the shapes it is given, and stays whole.

Nobody knows how it could be split, so every rank has its operands and results whole (MindSpore: an operator without a
rule stands alone).
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import numpy as np

from ..base.dtypes import plain_array
from ..base.errors import ArgumentTypeError, NotBuiltYet, ShapeError
from .machine.registry import OPS, op
from .machine.signature import letters, more_letters

# What a traced call names by number, as attributes of a node are plain values: objects with `compute` and `gradient`,
# functions or None. Filled by the constructors of such operators, and empty again when they are gone.
MADE: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def _labelled(shapes):
    """A label for every dim, no two alike: [labels of a shape]."""
    count = sum(map(len, shapes))
    names = iter(letters(count) + more_letters(max(0, count - len(letters(count)))))
    return ["".join(itertools.islice(names, len(shape))) for shape in shapes]


def _labels(shapes, *, results, several, **_):
    labels = _labelled([*shapes, *results])
    ins, outs = labels[: len(shapes)], labels[len(shapes) :]
    return f"{','.join(ins)}->{','.join(outs)}{',' if several and len(outs) == 1 else ''}"


def _sizes(shapes, *, results, **_):
    outs = _labelled([*shapes, *results])[len(shapes) :]
    return {
        label: n for labels, shape in zip(outs, results, strict=True) for label, n in zip(labels, shape, strict=True)
    }


@op(
    _labels,
    sizes=_sizes,
    whole=lambda signature, **_: "".join(signature.labels),
    dtype=lambda _, *, dtypes, several, **__: dtypes if several else dtypes[0],
    flops=0,
)
def custom(*inputs, called, number, results, dtypes, several):
    """What the operator of this number computes.  inputs: any -> `results` of `dtypes`."""
    compute = getattr(MADE.get(number), "compute", None)
    if compute is None:
        hint = f"Give {called} a __call__(self, ...), and run it in this process while its network is there"
        raise NotBuiltYet(f"{called} says what its result looks like, and not how it is computed", hint=hint)
    values = compute(*inputs)
    arrays = tuple(plain_array(each, where=called) for each in (values if several else (values,)))
    facts = [(array.shape, str(array.dtype)) for array in arrays]
    if facts != list(zip(results, dtypes, strict=True)):
        computed = ", ".join(f"{dtype} {shape}" for shape, dtype in facts)
        declared = ", ".join(f"{dtype} {shape}" for shape, dtype in zip(results, dtypes, strict=True))
        raise ShapeError(f"it computes {computed}", where=called, allowed=f"What was inferred: {declared}")
    return arrays if several else arrays[0]


@custom.vjp
def _(g, out, *inputs, called, number, **_):
    gradient = getattr(MADE.get(number), "gradient", None)
    if gradient is None:
        hint = f"@bprop_getters.register({called}) names the function that gives bprop(*inputs, out, dout)"
        raise ArgumentTypeError(f"{called} has no gradient", hint=hint)
    gradients = gradient(*inputs, out, g)
    return gradients if isinstance(inputs[0], np.ndarray) else tuple(_filled(each, called) for each in gradients)


def _filled(gradient, called):
    """A gradient that its rule made of shapes alone (zeros_like), as an instruction; others as they are."""
    if not isinstance(gradient, (np.ndarray, np.generic, int, float)):
        return gradient
    array = np.asarray(gradient)
    number = array.flat[0] if array.size else np.zeros((), array.dtype)[()]
    if (array != number).any():
        allowed = "What it computes of x, out or dout, or one number everywhere"
        raise ArgumentTypeError("bprop gives an array of its own", where=called, allowed=allowed)
    return OPS["fill"](shape=array.shape, value=number.item(), dtype=str(array.dtype))


# ---- a gradient that a function says ----


def _first_labels(shapes, *, count, several, **_):
    labels = _labelled(shapes)
    return f"{','.join(labels)}->{','.join(labels[:count])}{',' if several and count == 1 else ''}"


@op(
    _first_labels,
    whole=lambda signature, **_: signature.labels,
    dtype=lambda dtypes, *, count, several, **_: tuple(dtypes[:count]) if several else dtypes[0],
    flops=0,
)
def own_gradient(*values, called, number, count, several):
    """The first `count` values, whose gradient a function makes that of the others, or, if there are no others, their
    own.  values: any -> the first ones.
    """
    return tuple(map(np.array, values[:count])) if several else np.array(values[0])


@own_gradient.vjp
def _(g, out, *values, called, number, count, several, total, **_):
    given = [
        OPS["fill"](shape=tuple(x.shape), value=0.0, dtype=str(x.dtype)) if each is None else each
        for each, x in zip(g if several else (g,), values, strict=False)
    ]
    totals = [total(each) for each in given]
    gradients = MADE[number].gradient(values, tuple(each for each, _ in totals))
    ranks = totals[0][1]
    if not isinstance(values[0], np.ndarray):
        gradients = [x if x is None else _filled(x, called) for x in gradients]
    gradients = [x if x is None or ranks == 1 else OPS["div"](x, float(ranks)) for x in gradients]
    return (*[None] * count, *gradients) if len(values) > count else tuple(gradients)
