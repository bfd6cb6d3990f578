"""Differences, areas under curves and windows of signals."""

from __future__ import annotations

import numpy as np

from ...base.checks import flag, integer, is_int, number
from ...base.errors import ShapeError, shorten
from ...ops.elementwise import add, cast, mul, sub
from ...ops.join import concat, split_parts
from ...ops.machine.operand_checks import check_dim, own_dim
from ...ops.reduce import reduce_sum
from ...ops.shape import as_array, reshape
from ...ops.spellings import function, tensor_operand
from .dims import narrow

# ---- sums and distances ----


@function(mint="trapz")
def trapz(y, x=None, *, dx=1.0, dim=-1):
    """Area below points joined by lines.  y: (..., n, ...) -> (...).

    x   places of the points: (n,), or like y;  dx: the distance between them if x is missing
    """
    y = as_array(y)
    dim = own_dim("trapz", "dim", dim, y)
    n = y.shape[dim]
    if not n:
        raise ShapeError(f"a tensor of shape {tuple(y.shape)}", where="trapz", allowed="Points along dim")
    middle = mul(add(narrow(y, dim, 1, n - 1), narrow(y, dim, 0, n - 1)), 0.5)
    if x is None:
        return reduce_sum(mul(middle, number()("trapz", "dx", dx)), axis=dim)
    places = as_array(x)
    along = dim if len(places.shape) > 1 else 0
    if tuple(places.shape) not in ((n,), tuple(y.shape)):
        what = f"x of shape {tuple(places.shape)} for points of shape {tuple(y.shape)}, dim {dim}"
        raise ShapeError(what, where="trapz", allowed=f"({n},), or one place per point")
    widths = sub(narrow(places, along, 1, n - 1), narrow(places, along, 0, n - 1))
    if len(places.shape) == 1:
        widths = reshape(widths, tuple(n - 1 if d == dim else 1 for d in range(len(y.shape))))
    return reduce_sum(mul(middle, widths), axis=dim)


# ---- windows ----


def _window(name, terms):
    def window(window_length, periodic=True, *, dtype=None):
        n = integer(0, (1 << 31) - 1)(name, "window_length", window_length)
        steps = n if flag(name, "periodic", periodic) else n - 1
        angle = 2 * np.pi * np.arange(n) / max(steps, 1)
        made = sum(factor * np.cos(k * angle) for k, factor in enumerate(terms)) if n > 1 else np.ones(n)
        return cast(np.asarray(made, np.float32), dtype="float32" if dtype is None else dtype)

    window.__name__ = window.__qualname__ = name
    window.__doc__ = f"Weights of a window: {' + '.join(f'{f} cos({k} a)' for k, f in enumerate(terms))}.  -> (n,)."
    return window


hann_window = function(mint="hann_window")(_window("hann_window", (0.5, -0.5)))
blackman_window = function()(_window("blackman_window", (0.42, -0.5, 0.08)))


@function()
def diff(x, n=1, axis=-1, prepend=None, append=None):
    """Differences of neighbours along `axis`, n times.  x: (..., k, ...) -> (..., k - n, ...).

    prepend, append  tensors that are joined to x before and after it, along `axis`
    """
    around = [
        tensor_operand("diff", name, y) for name, y in (("prepend", prepend), ("append", append)) if y is not None
    ]
    if around:
        x = concat(*around[: prepend is not None], x, *around[prepend is not None :], axis=axis)
    shape = tuple(x.shape)
    axis = check_dim("diff", "axis", axis, len(shape), shape)
    if not is_int(n, 0, shape[axis] - 1):
        raise ShapeError(f"n={shorten(n)}", where="diff", allowed=f"An int from 0 to {shape[axis] - 1}")
    for left in range(shape[axis], shape[axis] - n, -1):
        first, _ = split_parts(x, axis=axis, sizes=(left - 1, 1))
        _, second = split_parts(x, axis=axis, sizes=(1, left - 1))
        x = sub(second, first)
    return x
