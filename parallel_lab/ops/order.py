"""Operators that look at the elements of a row side by side: their order (sort, top_k, argmax, argmin) and running sums
(cumsum).

The dim they work along stays whole (MindSpore: TopK, CumSum), but for argmax and argmin, which are composed of several
operators where it is split; all others may be split. Of equal elements the earlier one comes first, in both directions.
Numbers of elements are int32, as in MindSpore, unless `output_type` says otherwise.
"""

from __future__ import annotations

import numpy as np

from ..base.checks import choice, is_int
from ..base.errors import shorten
from .elementwise import UNARY, cast, float_result
from .gather import gather_elements, gather_elements_grad
from .machine.composed import composed
from .machine.operand_checks import check_dim, filled_dim, one_dim
from .machine.registry import case, form, gradient, op
from .machine.signature import along_axis, letters, more_letters
from .reduce import reduce_max, reduce_min, spelling, sum_dtype
from .shape import as_array, reshape
from .spellings import function

# ---- the place of an extreme ----


def _arg_labels(shapes, *, axis, keep_dims, **_):
    names, place = letters(len(shapes[0])), axis % len(shapes[0])
    return f"{names}->{names[:place]}{'1' if keep_dims else ''}{names[place + 1 :]}"


def _beside_labels(shapes, **attrs):
    names, kept = _arg_labels(shapes, **attrs).split("->")
    return f"{names},{kept}->{kept}"


def _along(signature):
    return next(c for c in signature.ins[0] if c not in signature.out)


def _two_labels(shapes, **attrs):
    labels = _arg_labels(shapes, **attrs)
    return f"{labels},{labels.partition('->')[2]}"


def _output_type(dtypes, *, output_type, **_):
    return output_type


def _with_dim(x, axis, keep_dims):
    return x if keep_dims else np.expand_dims(x, axis)


@op(_beside_labels, offset=_along, reduce="min", dtype=_output_type)
def first_place(x, extreme, *, axis, keep_dims, output_type, offset=0):
    """Number of the first element along `axis` that is the extreme, the dtype's largest if none of the slice is.

    x: (..., n, ...), extreme: (...) or (..., 1, ...) -> like the extreme
    """
    extreme = _with_dim(extreme, axis, keep_dims)
    found = (x == extreme) | ((x != x) & (extreme != extreme))  # numpy's extreme of a row with a NaN is the NaN
    first = found.argmax(axis=axis, keepdims=keep_dims) + offset
    return np.where(found.any(axis=axis, keepdims=keep_dims), first, np.iinfo(output_type).max).astype(output_type)


@op(_beside_labels, offset=_along, held=lambda signature, **_: _along(signature), dtype=0)
def element_at(x, numbers, *, axis, keep_dims, offset=None):
    """Elements of x with these numbers along `axis`, zeros for those of other slices.

    x: (..., n, ...), numbers: (...) or (..., 1, ...) int -> like the numbers
    """
    found = gather_elements.fn(x, axis, _with_dim(numbers, axis, keep_dims), offset=offset)
    return found if keep_dims else found.squeeze(axis)


@gradient(element_at, part_size=lambda shapes, attrs: attrs["shape"][attrs["axis"]])
def element_at_grad(g, numbers, *, shape, axis, keep_dims, offset=None):
    """Gradient of element_at for x: g where its element came from.  g, numbers: (...) -> `shape`."""
    given = [_with_dim(x, axis, keep_dims) for x in (g, numbers)]
    return gather_elements_grad.fn(*given, shape=shape, dim=axis, offset=offset)


def _place(part, x, whole, reduction, **attrs):
    """The number of the extreme: by the operator `whole` where the dim is whole, by two messages where it is split."""
    names, axis, keep_dims = letters(len(x.shape)), attrs["axis"], attrs["keep_dims"]
    signature = _arg_labels((x.shape,), **attrs)
    if part.rule is None or dict(part.rule.cuts)[names[axis]] == 1:
        return part(whole, x, labels=signature, **attrs)
    extreme = part(reduction, x, labels=signature, axis=axis, keep_dims=keep_dims)
    return part(first_place, x, extreme, labels=_beside_labels((x.shape,), **attrs), **attrs)


def _places(name, word, function, reduction):
    """Declare the number of the element that numpy's `function` finds, alone and beside the element."""

    def along_whole(x, *, axis, keep_dims, output_type):
        return function(x, axis=axis, keepdims=keep_dims).astype(output_type)

    def number(part, x, *, axis=-1, output_type="int32", keep_dims=False):
        return _place(part, x, whole, reduction, axis=axis, keep_dims=keep_dims, output_type=output_type)

    def both(part, x, *, axis=0, keep_dims=False):
        attrs = {"axis": axis, "keep_dims": keep_dims}
        numbers = _place(part, x, whole, reduction, output_type="int32", **attrs)
        # unlike the reduction's: the gradient goes to the element of this number
        return numbers, part(element_at, x, numbers, labels=_beside_labels((x.shape,), **attrs), **attrs)

    along_whole.__name__, number.__name__, both.__name__ = f"{name}_of_whole", name, f"{name}_with_value"
    along_whole.__doc__ = f"""The number of the {word} element along a whole dim.  x: (..., n, ...) -> (...) int."""
    number.__doc__ = f"""The number of the {word} element along `axis`, the first of equal ones. No gradient.

    x: (..., n, ...) -> (...) int, with size 1 there if keep_dims. A split `axis` costs an all_reduce for the {word}
    element and one for its first number.
    """
    both.__doc__ = f"""The number of the {word} element along `axis`, the first of equal ones, and the element.

    x: (..., n, ...) -> numbers (...) int32, elements (...), with size 1 there if keep_dims. The gradient is the first
    one's alone. A split `axis` gives what one device finds (MindSpore warns that its number may be another's), for
    three all_reduces: of the {word} element, its first number, and the element that has it.
    """
    whole = op(_arg_labels, whole=along_axis, dtype=_output_type)(along_whole)
    whole.class_name = name.title()  # in plans it is what it is a part of
    return (
        composed(
            _arg_labels,
            name=name.title(),
            numpy=name,
            mint=name,
            attrs={"axis": filled_dim, "output_type": choice("int32", "int64")},
            dtype=_output_type,
            example=(
                case((16, 8)),
                case((4, 8, 2), axis=0),
                case((16, 8), axis=1, keep_dims=True, output_type="int64"),
            ),
        )(number),
        composed(
            _two_labels,
            name=f"Arg{name[3:].title()}WithValue",
            method=both.__name__,
            attrs={"axis": filled_dim},
            dtype=("int32", 0),
            example=(case((16, 8)), case((4, 8, 2), axis=1, keep_dims=True), case((16, 8), axis=-1)),
        )(both),
    )


argmax, argmax_with_value = _places("argmax", "largest", np.argmax, reduce_max)
argmin, argmin_with_value = _places("argmin", "smallest", np.argmin, reduce_min)


# ---- order ----


def _order(x, axis, descending):
    """Numbers of the elements along `axis` in their order; equal ones stay in theirs."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # the ascending order of the row read from its end, read from its end
    return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


@op(result_shape=lambda shapes, *, shape, axis: shape, dtype=0)
def put_along(g, numbers, *, shape, axis):
    """Zeros, with g at the given numbers along `axis`, each at most once.  g, numbers: (..., k, ...) -> `shape`."""
    grad = np.zeros(shape, g.dtype)
    np.put_along_axis(grad, numbers.astype(np.int64, copy=False), g, axis)
    return grad


@op(
    "...->...,...",
    name="Sort",
    attrs={"axis": filled_dim},
    dtype=(0, "int32"),
    whole=along_axis,
    example=(case((16, 8)), case((8, 4, 2), axis=0, descending=True)),
)
def sort(x, *, axis=-1, descending=False):
    """Elements along `axis` in order, and their numbers.  x: (..., n, ...) -> values, numbers int32, (..., n, ...)."""
    order = _order(x, axis, descending)
    return np.take_along_axis(x, order, axis), order.astype(np.int32)


def _back_in_place(g, numbers, x, axis):
    """The gradient of values that were taken from x, each where its element was; their numbers have none."""
    return (None if g is None else put_along(g, numbers, shape=tuple(x.shape), axis=axis),)


@sort.vjp
def _(g, out, x, *, axis, descending):
    return _back_in_place(g[0], out[1], x, axis)


@function(method="argsort")
def argsort(x, axis=-1, descending=False):
    """The numbers that elements along `axis` have, in order, no gradient.  x: (..., n, ...) -> (..., n, ...) int32."""
    return sort(x, axis=axis, descending=descending)[1]


def _check_top_k(operands, *, k, sorted, dim, largest):
    shape = operands[0].shape
    if not is_int(k, 0, shape[dim]):
        what = f"k={shorten(k)} for dim {dim} of a tensor of shape {shape}"
        return what, f"An int from 0 to {shape[dim]}, the size of the dim"


def _top_k_labels(shapes, *, k, sorted, dim, largest):
    names, place = letters(len(shapes[0])), dim % len(shapes[0])
    made = names[:place] + more_letters(1) + names[place + 1 :]
    return f"{names}->{made},{made}"


@op(
    _top_k_labels,
    name="TopK",
    static=("k",),
    attrs={"dim": one_dim},
    check=_check_top_k,
    sizes=lambda shapes, *, k, **_: {more_letters(1): k},
    dtype=(0, "int32"),
    whole=lambda signature, *, dim, **_: signature.ins[0][dim],
    example=(case((16, 8), k=3), case((4, 2, 8), k=8), case((4, 8, 2), k=5, dim=1, largest=False)),
)
def top_k(x, k, *, sorted=True, dim=-1, largest=True):
    """The k largest (largest=False: smallest) along `dim`, in order (sorted=False too), and their numbers.

    x: (..., n, ...) -> two (..., k, ...)
    """
    numbers = np.take(_order(x, dim, largest), range(k), dim)
    return np.take_along_axis(x, numbers, dim), numbers.astype(np.int32)


@top_k.vjp
def _(g, out, x, *, k, sorted, dim, largest):
    return _back_in_place(g[0], out[1], x, dim)


def _extreme_along(name, class_name, place, text):
    """Declare the extreme elements along one dim with their numbers, which numpy's `place` finds."""

    def fn(x, dim, keepdim=False):
        numbers = np.expand_dims(place(x, axis=dim), dim)
        found = np.take_along_axis(x, numbers, dim), numbers.astype(np.int32)
        return found if keepdim else tuple(np.squeeze(each, dim) for each in found)

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"""The {text} elements along `dim`, which stays whole, and their numbers, the first of equal ones.

    x: (..., n, ...) -> values, numbers int32, (...) without that dim, or with size 1 there if keepdim.
    """
    made = op(
        lambda shapes, *, dim, keepdim: _two_labels(shapes, axis=dim, keep_dims=keepdim),
        name=class_name,
        static=("dim",),
        attrs={"dim": filled_dim},
        dtype=(0, "int32"),
        whole=lambda signature, *, dim, **_: signature.ins[0][dim],
        example=(case((16, 8), dim=1), case((4, 8, 2), dim=0, keepdim=True)),
    )(fn)

    @made.vjp
    def _(g, out, x, *, dim, keepdim):
        shape = tuple(x.shape)
        kept = (*shape[: dim % len(shape)], 1, *shape[dim % len(shape) + 1 :])
        return (None,) if g[0] is None else _back_in_place(reshape(g[0], kept), reshape(out[1], kept), x, dim)

    return made


max_dim = _extreme_along("max_dim", "MaxDim", np.argmax, "largest")
min_dim = _extreme_along("min_dim", "MinDim", np.argmin, "smallest")


@form(argmax, "ArgMaxExt")
@form(argmin, "ArgMinExt")
def _(self, input, dim=None, keepdim=False):
    """The number of the largest (ArgMinExt: smallest) element along `dim`, of None: of all.  input: (...) -> (...)."""
    x, axis = (input, dim) if dim is not None else (reshape(input, (-1,)), 0)
    return self.run(x, axis=axis, output_type="int64", keep_dims=keepdim)


@form(sort, "SortExt")
def _(self, input, dim=-1, descending=False, stable=False):
    """Elements along `dim` in order, equal ones always in theirs, and their numbers.  input: (...) -> two (...)."""
    return self.run(input, axis=dim, descending=descending)


@form(top_k, "TopkExt")
def _(self, input, k, dim=-1, largest=True, sorted=True):
    """The k largest (or smallest) elements along `dim` in order, and their numbers.  -> two (..., k, ...)."""
    return self.run(input, k, dim=dim, largest=largest)


# ---- running sums ----


@op(
    UNARY,
    name="CumSum",
    static=("axis",),
    attrs={"axis": one_dim},
    dtype=sum_dtype,
    whole=along_axis,
    example=(
        case((16, 8), axis=1),
        case((4, 8, 2), axis=0, exclusive=True),
        case((16, 8), axis=-1, reverse=True, exclusive=True),
    ),
)
def cumsum(x, axis, *, exclusive=False, reverse=False):
    """Sums along `axis`, whole, up to each element; exclusive: without it; reverse: from the end.  x: (...) -> same."""
    turned = np.flip(x, axis) if reverse else x
    total = np.cumsum(turned, axis=axis, dtype=sum_dtype((str(x.dtype),)))
    if exclusive:
        total = np.roll(total, 1, axis)
        total[(slice(None),) * (axis % x.ndim) + (slice(0, 1),)] = 0
    return np.array(np.flip(total, axis) if reverse else total, order="C")


@cumsum.vjp
def _(g, out, x, *, axis, exclusive, reverse):
    return (cumsum(g, axis, exclusive=exclusive, reverse=not reverse),)


def _with_dtype(operator):
    @function(method="cumsum", numpy="cumsum")
    def cumsum(x, axis, dtype=None, *, exclusive=False, reverse=False):
        """Sums along `axis` up to each element; exclusive: without it; reverse: from the end.  x: (...) -> (...).

        dtype  of the sums
        """
        return operator(x if dtype is None else cast(x, dtype=dtype), axis, exclusive=exclusive, reverse=reverse)


_with_dtype(cumsum)


@op(
    UNARY,
    name="CumulativeLogsumexp",
    static=("axis",),
    attrs={"axis": one_dim},
    whole=along_axis,
    dtype=float_result,
    flops=6,
    example=(case((16, 8), axis=0), case((4, 8, 2), axis=-2, reverse=True)),
)
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


@function(method="logcumsumexp", mint="logcumsumexp")
def logcumsumexp(input, dim):
    """Logarithms of running sums of exp(input) along `dim`.  input: (...) -> (...)."""
    return cumulative_logsumexp(input, dim)


@form(cumsum, "CumsumExt")
def _(self, input, dim, dtype=None):
    """Sums along `dim` up to each element.  input: (...) -> (...). dtype: that of the sums."""
    return self.run(input if dtype is None else self.before(cast, input, dtype=dtype), dim)


@op(
    UNARY,
    name="CumProd",
    static=("axis",),
    attrs={"axis": one_dim},
    dtype=sum_dtype,
    whole=along_axis,
    example=(case((16, 8), axis=1), case((4, 8, 2), axis=0, exclusive=True), case((8, 4), axis=-1, reverse=True)),
)
def cumulative_product(x, axis, *, exclusive=False, reverse=False):
    """Products along `axis`, whole, up to each element; exclusive: without it; reverse: from its end.  x -> like x."""
    turned = np.flip(x, axis) if reverse else x
    total = np.cumprod(turned, axis=axis, dtype=sum_dtype((str(x.dtype),)))
    if exclusive:
        total = np.roll(total, 1, axis)
        total[(slice(None),) * (axis % x.ndim) + (slice(0, 1),)] = 1
    return np.array(np.flip(total, axis) if reverse else total, order="C")


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


@function(method="cumprod", numpy="cumprod", mint="cumprod")
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


# ---- extremes with their places, in every spelling ----


def _extreme(name, largest, operator, place, both):
    """Publish `ops.<name>`: the extreme elements along one dim, and their places."""

    def extreme(input, axis=None, keep_dims=False, **spelled):
        x = as_array(input)
        axis, keep_dims = spelling(name, axis, keep_dims, spelled)
        shape = tuple(x.shape)
        if axis is None:
            return operator(x), place(reshape(x, (-1,)))
        axis = check_dim(name, "axis", axis, len(shape), shape)
        return both(x, axis=axis, keep_dims=keep_dims)[::-1]

    extreme.__name__ = extreme.__qualname__ = name
    extreme.__doc__ = f"""The {largest} elements along one dim and their numbers, as in mindspore.ops.

    input: (..., n, ...) -> values (...), numbers (...) int32

    axis  an int, or None: the {largest} of all elements, (), and its number among them in row-major order (MindSpore
          gives 0 then)

    Of equal elements the first counts, and the gradient is its alone. `{operator.name}` (or `a{name}`) gives the values
    only; there `axis` may be split.
    """
    return function()(extreme)


max_ = _extreme("max", "largest", reduce_max, argmax, argmax_with_value)
min_ = _extreme("min", "smallest", reduce_min, argmin, argmin_with_value)


@function(method="topk", mint="topk")
def topk(input, k, dim=None, largest=True, sorted=True):
    """The k largest or smallest elements along `dim` (None: the last), in order, and their numbers.

    input: (..., n, ...) -> values (..., k, ...), numbers (..., k, ...) int32. `sorted=False` changes nothing.
    """
    return top_k(as_array(input), k, dim=-1 if dim is None else dim, largest=largest)
