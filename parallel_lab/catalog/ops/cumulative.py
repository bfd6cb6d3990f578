"""Running results along a dim: products, extremes, logarithms of sums."""

from __future__ import annotations

import numpy as np

from ...ops.elementwise import UNARY, cast, float_result
from ...ops.machine.operand_checks import filled_dim, one_dim
from ...ops.machine.registry import case, form, gradient, op
from ...ops.machine.signature import along_axis
from ...ops.reduce import sum_dtype
from ...ops.shape import reshape
from ...ops.spellings import function, method


@op(result_shape=lambda shapes, *, shape, axis: shape, dtype=0)
def put_along(g, numbers, *, shape, axis):
    """Zeros, with g at the given numbers along `axis`, each at most once.  g, numbers: (..., k, ...) -> `shape`."""
    grad = np.zeros(shape, g.dtype)
    np.put_along_axis(grad, numbers.astype(np.int64, copy=False), g, axis)
    return grad


_ALONG = {"static": ("axis",), "attrs": {"axis": one_dim}, "whole": along_axis}
_LOGARITHMS = (case((16, 8), axis=0), case((4, 8, 2), axis=-2, reverse=True))


@op(UNARY, name="CumulativeLogsumexp", dtype=float_result, flops=6, example=_LOGARITHMS, **_ALONG)
def cumulative_logsumexp(x, axis, *, exclusive=False, reverse=False):
    """Logarithms of running sums of exp(x) along `axis`, which stays whole.  x: (..., n, ...) -> (..., n, ...).

    exclusive: without the element itself (the first is the dtype's lowest number); reverse: from the end
    """
    x = x.astype(float_result((str(x.dtype),)), copy=False)
    turned = np.flip(x, axis) if reverse else x
    made = np.logaddexp.accumulate(turned, axis=axis)
    if exclusive and x.shape[axis]:
        lowest = np.full_like(np.take(made, [0], axis), np.finfo(x.dtype).min)
        made = np.concatenate([lowest, np.delete(made, -1, axis)], axis)
    return np.array(np.flip(made, axis) if reverse else made, order="C")


@gradient(cumulative_logsumexp)
def cumulative_logsumexp_grad(g, out, x, *, axis, exclusive, reverse):
    """Gradient of cumulative_logsumexp: exp(x) times later g exp(-out), summed.  g, out, x: (..., n, ...) -> like g."""
    turned, sums, given = (np.moveaxis(np.flip(a, axis) if reverse else a, axis, -1) for a in (x, out, g))
    n = turned.shape[-1]
    reached = np.tri(n, k=-1 if exclusive else 0, dtype=bool)  # [j, i]: out j is made of x i
    shares = np.exp(np.where(reached, turned[..., None, :] - sums[..., :, None], -np.inf))
    made = np.moveaxis((given[..., None] * shares).sum(axis=-2), -1, axis)
    return np.array(np.flip(made, axis) if reverse else made, g.dtype, order="C")


@function(mint="logcumsumexp")
def logcumsumexp(input, dim):
    """Logarithms of running sums of exp(input) along `dim`.  input: (...) -> (...)."""
    return cumulative_logsumexp(input, dim)


def _running(x, axis, exclusive, reverse, of, first):
    """`of`: numpy's cumsum or cumprod; where `exclusive`, the first one is `first`."""
    turned = np.flip(x, axis) if reverse else x
    total = of(turned, axis=axis, dtype=sum_dtype((str(x.dtype),)))
    if exclusive:
        total = np.roll(total, 1, axis)
        total[(slice(None),) * (axis % x.ndim) + (slice(0, 1),)] = first
    return np.array(np.flip(total, axis) if reverse else total, order="C")


@op(
    UNARY,
    name="CumProd",
    dtype=sum_dtype,
    **_ALONG,
    example=(case((16, 8), axis=1), case((4, 8, 2), axis=0, exclusive=True), case((8, 4), axis=-1, reverse=True)),
)
def cumulative_product(x, axis, *, exclusive=False, reverse=False):
    """Products along `axis`, whole, up to each element; exclusive: without it; reverse: from its end.  x -> like x."""
    return _running(x, axis, exclusive, reverse, np.cumprod, 1)


@gradient(cumulative_product)
def cumulative_product_grad(g, x, *, axis, exclusive, reverse):
    """Gradient of cumulative_product, for zeros too.  g, x: (..., n, ...) -> (..., n, ...)."""
    given, factors = (np.moveaxis(np.flip(a, axis) if reverse else a, axis, 0) for a in (g, x))
    before = cumulative_product(factors, 0, exclusive=True)  # the factors before each one, which is not divided out
    grad, after = np.zeros_like(given), np.zeros_like(given[0])
    for i in range(len(factors) - 1, -1, -1):  # after: gradients of the later products, by the factors between
        if exclusive:
            grad[i], after = before[i] * after, given[i] + factors[i] * after
        else:
            after = given[i] + after
            grad[i], after = before[i] * after, factors[i] * after
    grad = np.moveaxis(grad, 0, axis)
    return np.array(np.flip(grad, axis) if reverse else grad, order="C")


@function(numpy="cumprod", mint="cumprod")
def cumprod(input, dim, dtype=None):
    """`cumulative_product`: products along `dim` up to each element.  input: (...) -> (...)."""
    return cumulative_product(input if dtype is None else cast(input, dtype=dtype), dim)


def _running_extreme(name, class_name, extreme, text):
    """Declare the extremes up to each element with their numbers. extreme: numpy's, of pairs."""

    def fn(x, *, axis):
        values = extreme.accumulate(x, axis=axis)
        shape = [1] * x.ndim
        shape[axis] = x.shape[axis]
        places = np.where(x == values, np.arange(x.shape[axis]).reshape(shape), 0)
        return values, np.maximum.accumulate(places, axis=axis).astype(np.int32)

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"""The {text} elements along `axis`, whole, up to each one, and their numbers, the last of equal ones.

    x: (..., n, ...) -> values, numbers int32, (..., n, ...).
    """
    made = op(
        "...->...,...",
        name=class_name,
        method=name,
        mint=name,
        attrs={"axis": filled_dim},
        dtype=(0, "int32"),
        whole=along_axis,
        example=(case((16, 8), axis=1), case((4, 8, 2), axis=0)),
    )(fn)

    @made.vjp
    def _(g, out, x, *, axis):
        return (None if g[0] is None else add_along(g[0], out[1], axis=axis),)

    return made


@op(result_shape=0, dtype=0)
def add_along(g, numbers, *, axis):
    """Zeros, to which g is added at the given numbers along `axis`.  g, numbers: (..., n, ...) -> (..., n, ...)."""
    g, numbers = np.moveaxis(g, axis, 0), np.moveaxis(numbers, axis, 0)
    grad = np.zeros_like(g)
    np.add.at(grad, (numbers, *np.indices(g.shape)[1:]), g)
    return np.array(np.moveaxis(grad, 0, axis), order="C")


cummax = _running_extreme("cummax", "Cummax", np.maximum, "largest")
cummin = _running_extreme("cummin", "Cummin", np.minimum, "smallest")


@op(
    UNARY,
    linear="x",
    name="CumSum",
    dtype=sum_dtype,
    **_ALONG,
    example=(
        case((16, 8), axis=1),
        case((4, 8, 2), axis=0, exclusive=True),
        case((16, 8), axis=-1, reverse=True, exclusive=True),
    ),
)
def cumsum(x, axis, *, exclusive=False, reverse=False):
    """Sums along `axis`, whole, up to each element; exclusive: without it; reverse: from the end.  x: (...) -> same."""
    return _running(x, axis, exclusive, reverse, np.cumsum, 0)


@cumsum.vjp
def _(g, out, x, *, axis, exclusive, reverse):
    return (cumsum(g, axis, exclusive=exclusive, reverse=not reverse),)


def _with_dtype(operator):
    @function(numpy="cumsum")
    def cumsum(x, axis, dtype=None, *, exclusive=False, reverse=False):
        """Sums along `axis` up to each element; exclusive: without it; reverse: from the end.  x: (...) -> (...).

        dtype  of the sums
        """
        return operator(x if dtype is None else cast(x, dtype=dtype), axis, exclusive=exclusive, reverse=reverse)


_with_dtype(cumsum)


@form(cumsum, "CumsumExt")
def _(self, input, dim, dtype=None):
    """Sums along `dim` up to each element.  input: (...) -> (...). dtype: that of the sums."""
    return self.run(input if dtype is None else self.before(cast, input, dtype=dtype), dim)


@method("cumsum")
def _(self, axis=None, dtype=None):
    """Sums of all elements along `axis` up to each one; None: of all elements, row by row. dtype: of the sums."""
    x = self if dtype is None else cast(self, dtype=dtype)
    return cumsum(reshape(x, (-1,)), 0) if axis is None else cumsum(x, axis)
