"""The largest and smallest elements along a dim with their places: argmax, argmin, and `max` and `min` with indices.

They are composed of several operators where the dim they work along is split; all others may be split. Of equal
elements the first one counts. Numbers of elements are int32, as in MindSpore, unless `output_type` says otherwise.
"""

from __future__ import annotations

import numpy as np

from ...base.checks import choice
from ...ops.gather import gather_elements, gather_elements_grad
from ...ops.machine.composed import composed
from ...ops.machine.operand_checks import check_dim, filled_dim
from ...ops.machine.registry import case, gradient, op
from ...ops.machine.signature import along_axis, letters
from ...ops.reduce import amax, amin, reduce_max, reduce_min, spelling
from ...ops.shape import as_array, reshape
from ...ops.spellings import function, method

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
    """Declare the number of the element that numpy's `function` finds, alone and together with the element."""

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


def _gradient_at(g, out, x, *, axis, keep_dims):
    return (element_at_grad(g[1], out[0], shape=tuple(x.shape), axis=axis, keep_dims=keep_dims),)


argmax, argmax_with_value = _places("argmax", "largest", np.argmax, reduce_max)
argmin, argmin_with_value = _places("argmin", "smallest", np.argmin, reduce_min)
for _both in (argmax_with_value, argmin_with_value):
    _both.vjp(_gradient_at)


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

    The first of equal elements counts, and the gradient is its alone. `{operator.name}` (or `a{name}`) gives the values
    only; there `axis` may be split.
    """
    return function()(extreme)


max_ = _extreme("max", "largest", reduce_max, argmax, argmax_with_value)
min_ = _extreme("min", "smallest", reduce_min, argmin, argmin_with_value)


# ---- methods of a Tensor in a form of their own ----


@method("max")
def _(self, axis=None, keep_dims=False, *, return_indices=False, **spelled):
    """The largest elements; with return_indices along one dim, and their numbers, as `ops.max`."""
    return (max_ if return_indices else amax)(self, axis, keep_dims, **spelled)


@method("min")
def _(self, axis=None, keep_dims=False, *, return_indices=False, **spelled):
    """The smallest elements; with return_indices along one dim, and their numbers, as `ops.min`."""
    return (min_ if return_indices else amin)(self, axis, keep_dims, **spelled)


@method("argmax")
def _(self, axis=None, keep_dims=False, **spelled):
    """The number (int64) of the largest element along `axis` (or `dim`); None: among all, in row-major order."""
    return _number_of_extreme(self, "argmax", argmax, axis, keep_dims, spelled)


@method("argmin")
def _(self, axis=None, keep_dims=False, **spelled):
    """The number (int64) of the smallest element along `axis` (or `dim`); None: among all, in row-major order."""
    return _number_of_extreme(self, "argmin", argmin, axis, keep_dims, spelled)


def _number_of_extreme(x, name, operator, axis, keep_dims, spelled):
    axis, keep_dims = spelling(name, axis, keep_dims, spelled)
    if axis is not None:
        return operator(x, axis=axis, keep_dims=keep_dims, output_type="int64")
    number = operator(reshape(x, (-1,)), output_type="int64")
    return reshape(number, (1,) * len(x.shape)) if keep_dims else number
