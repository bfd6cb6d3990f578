"""The operator behind operators of the user's own (`nn/tensor/custom.py`): it has the shapes it is told, and is whole.

Nobody knows how it could be split, so every rank has its operands and results whole (MindSpore: an operator without a
rule stands alone).
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from ..base.errors import ArgumentTypeError, NotBuiltYet
from .machine.registry import op
from .machine.signature import letters, more_letters

# What a traced call names by number, as attributes of a node are plain values: objects with `compute` and `gradient`,
# functions or None. Filled by the constructors of such operators, and empty again when they are gone.
MADE: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def _labels(shapes, *, results, several, **_):
    given, spare = iter(letters(sum(map(len, shapes)))), iter(more_letters(sum(map(len, results))))
    ins = ["".join(itertools.islice(given, len(shape))) for shape in shapes]
    outs = ["".join(itertools.islice(spare, len(shape))) for shape in results]
    return f"{','.join(ins)}->{','.join(outs)}{',' if several and len(outs) == 1 else ''}"


def _sizes(shapes, *, results, **_):
    extents = [n for shape in results for n in shape]
    return dict(zip(more_letters(len(extents)), extents, strict=True))


@op(
    _labels,
    sizes=_sizes,
    whole=lambda signature, **_: signature.labels,
    dtype=lambda _, *, dtypes, several, **__: dtypes if several else dtypes[0],
    flops=0,
)
def custom(*inputs, called, number, results, dtypes, several):
    """What the operator of this number computes.  inputs: any -> `results` of `dtypes`."""
    compute = getattr(MADE.get(number), "compute", None)
    if compute is None:
        hint = f"Give {called} a __call__(self, ...), and run it in this process while its network is there"
        raise NotBuiltYet(f"{called} says what its result looks like, and not how it is computed", hint=hint)
    return compute(*inputs)


@custom.vjp
def _(g, out, *inputs, called, number, **_):
    gradient = getattr(MADE.get(number), "gradient", None)
    if gradient is None:
        hint = f"@bprop_getters.register({called}) names the function that gives bprop(*inputs, out, dout)"
        raise ArgumentTypeError(f"{called} has no gradient", hint=hint)
    return gradient(*inputs, out, g)
