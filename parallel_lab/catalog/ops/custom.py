"""The operator behind a user's own operators (`nn/custom.py`): it has the shapes it is given, and stays whole."""

import numpy as np

from ...base.dtypes import plain_array
from ...base.errors import ArgumentTypeError, NotBuiltYet, ShapeError
from ...ops.machine.registry import op
from ...ops.own_gradient import MADE, filled, labelled


def _labels(shapes, *, results, several, **_):
    labels = labelled([*shapes, *results])
    ins, outs = labels[: len(shapes)], labels[len(shapes) :]
    return f"{','.join(ins)}->{','.join(outs)}{',' if several and len(outs) == 1 else ''}"


def _sizes(shapes, *, results, **_):
    outs = labelled([*shapes, *results])[len(shapes) :]
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
    return gradients if isinstance(inputs[0], np.ndarray) else tuple(filled(each, called) for each in gradients)
