"""Operators that only optimizers use: a step down, is a gradient finite, keep the old value, the ratio of two norms.

They work on one rank's slice, have no gradient and take no strategy; the pass `update` totals what they find over the ranks.
"""

from __future__ import annotations

import numpy as np

from .registry import op

__all__: list[str] = []

PIECE = 1 << 15  # elements that are worked on at a time: what is in between stays in cache


@op(infer_fn=lambda shapes: shapes[0], dtype=lambda dtypes: dtypes[0])
def descend(parameter, step, rate):
    """parameter - step * rate, without an array in between.  parameter, step: (...), rate: () -> (...)."""
    if parameter.size <= PIECE or not (parameter.flags.c_contiguous and step.flags.c_contiguous and parameter.shape == step.shape):
        down = np.asarray(np.multiply(step, rate, dtype=parameter.dtype))
        return np.subtract(parameter, down, out=down)
    new = np.empty_like(parameter)
    flat, steps, out = parameter.reshape(-1), step.reshape(-1), new.reshape(-1)
    for start in range(0, flat.size, PIECE):
        part = slice(start, start + PIECE)
        down = np.multiply(steps[part], rate, out=out[part], dtype=parameter.dtype)
        np.subtract(flat[part], down, out=down)
    return new


@op(infer_fn=lambda shapes: (), dtype="float32")
def count_nonfinite(x):
    """How many elements are infinite or not a number.  x: (...) -> () float32."""
    return np.float32(x.size - np.count_nonzero(np.isfinite(x)))


@op(infer_fn=lambda shapes: shapes[1], dtype=lambda dtypes: dtypes[1])
def choose(flag, new, old):
    """`new` if the flag is true, else `old`, untouched.  flag: (), new, old: (...) -> (...). Nothing is computed with the one left out."""
    return new if flag else old


@op(infer_fn=lambda shapes: shapes[0])
def norm_ratio(top, bottom):
    """top / bottom where both norms are above 0, else 1.  top, bottom: () -> ()."""
    return np.divide(top, bottom) if top > 0 and bottom > 0 else np.ones((), top.dtype)
