"""The operator behind gradients that a function says (`nn/tensor/own_gradient.py`): its values stay whole.

Nobody knows how it could be split, so every rank has its operands and results whole (MindSpore: an operator without a
rule stands alone). Operators of the user's own are in `catalog/ops/custom.py`.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import numpy as np

from ..base.errors import ArgumentTypeError
from .machine.registry import OPS, op
from .machine.signature import letters, more_letters

# What a traced call names by number, as attributes of a node are plain values: objects with `compute` and `gradient`,
# functions or None. Filled by the constructors of such operators, and empty again when they are gone.
MADE: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def labelled(shapes):
    """A label for every dim, no two alike: [labels of a shape]."""
    count = sum(map(len, shapes))
    names = iter(letters(count) + more_letters(max(0, count - len(letters(count)))))
    return ["".join(itertools.islice(names, len(shape))) for shape in shapes]


def filled(gradient, called):
    """A gradient that its rule made of shapes alone (zeros_like), as an instruction; others as they are."""
    if not isinstance(gradient, (np.ndarray, np.generic, int, float)):
        return gradient
    array = np.asarray(gradient)
    number = array.flat[0] if array.size else np.zeros((), array.dtype)[()]
    if (array != number).any():
        allowed = "What it computes of x, out or dout, or one number everywhere"
        raise ArgumentTypeError("bprop gives an array of its own", where=called, allowed=allowed)
    return OPS["fill"](shape=array.shape, value=number.item(), dtype=str(array.dtype))


def _first_labels(shapes, *, count, several, **_):
    labels = labelled(shapes)
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
        gradients = [x if x is None else filled(x, called) for x in gradients]
    gradients = [x if x is None or ranks == 1 else OPS["div"](x, float(ranks)) for x in gradients]
    return (*[None] * count, *gradients) if len(values) > count else tuple(gradients)
