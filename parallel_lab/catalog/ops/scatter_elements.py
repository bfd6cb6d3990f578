"""Elements put where numbers along one dim say: the inverse of looking them up with `gather_elements`.

    data [[1, 2], [3, 4], [5, 6]],  indices [[2, 0]] along dim 0,  updates [[7, 8]]
    none:  [[1, 8], [3, 4], [7, 6]]          the last of equal numbers stays
    add:   [[1, 10], [3, 4], [12, 6]]

The dim with the numbers stays whole, and so do dims in which the indices are fewer than the data. No message is sent.
"""

from __future__ import annotations

import numpy as np

from ...base.checks import choice
from ...base.errors import ShapeError
from ...ops.elementwise import mul
from ...ops.machine.operand_checks import check_dim, ints, one_dim
from ...ops.machine.registry import case, op
from ...ops.machine.signature import letters
from ...ops.scattering import BY_COORDINATES, last_of
from ...ops.shape import as_array
from ...ops.slicing import strided_slice
from ...ops.spellings import function


def _labels(shapes, *, axis, reduction):
    dims = len(shapes[0])
    names, place = letters(2 * dims), axis % dims
    alike = [d != place and n == m for d, (n, m) in enumerate(zip(*shapes[:2], strict=True))]
    numbers = "".join(names[d if same else dims + d] for d, same in enumerate(alike))
    return f"{names[:dims]},{numbers},{numbers}->{names[:dims]}"


def _check(operands, *, axis, reduction):
    data, indices, updates = (o.shape for o in operands)
    if len(data) != len(indices) or any(m > n for d, (n, m) in enumerate(zip(data, indices, strict=True)) if d != axis):
        what = f"indices of shape {indices} for data of shape {data}"
        return what, "The same number of dims, and no more elements but in the dim with the numbers"
    if updates != indices:
        return f"updates of shape {updates} for indices of shape {indices}", "One for each of the indices"
    return ints(operands[1], "indices")


def _places(indices, size, axis):
    """Coordinates of the elements that the indices name; a negative one counts from the end."""
    if indices.size and not (indices.min() >= -size and indices.max() < size):
        worst = indices.min() if indices.min() < -size else indices.max()
        allowed = f"Indices from {-size} to {size - 1}"
        raise ShapeError(f"an index is {worst}", where="TensorScatterElements", allowed=allowed)
    places = list(np.indices(indices.shape, sparse=True))
    places[axis] = indices % size if size else indices
    return tuple(places)


def _different(signature, **_):
    """Labels that the data and the indices do not share."""
    data, indices = signature.ins[:2]
    return "".join(c for c in data + indices if c not in data or c not in indices)


@op(
    _labels,
    name="TensorScatterElements",
    attrs={"axis": one_dim, "reduction": choice("none", "add")},
    check=_check,
    axes=lambda signature: signature.ins[0],
    whole=_different,
    dtype=0,
    flops=0,
    example=(
        case((8, 6), (8, 4), (8, 4), ints={1: 6}, axis=1),
        case((5, 8, 4), (3, 8, 2), (3, 8, 2), ints={1: 5}, reduction="add"),
    ),
)
def tensor_scatter_elements(input_x, indices, updates, *, axis=0, reduction="none"):
    """Updates replace the elements that the indices number along `axis`, or are added to them ("add").

    input_x: (..., n, ...), indices: (..., k, ...) int, updates: (..., k, ...) -> (..., n, ...)
    """
    made, places = np.array(input_x), _places(indices, input_x.shape[axis], axis)
    if reduction == "add":
        np.add.at(made, places, updates.astype(made.dtype, copy=False))
    else:
        made[places] = updates
    return made


@op(result_shape=1, dtype=0)
def elements_grad(g, indices, *, axis, reduction):
    """Gradient of tensor_scatter_elements for its updates.  g: (..., n, ...), indices: (..., k, ...) -> like them."""
    places = _places(indices, g.shape[axis], axis)
    if reduction == "add":
        return g[places]
    numbers = np.ravel_multi_index(np.broadcast_arrays(*places), g.shape).reshape(-1)
    return g[places] * last_of(numbers, g.size).reshape(indices.shape)


@tensor_scatter_elements.vjp
def _(g, out, input_x, indices, updates, *, axis, reduction):
    attrs = {"axis": axis, "reduction": reduction}
    kept = g if reduction == "add" else tensor_scatter_elements(g, indices, mul(updates, 0.0), **attrs)
    return kept, None, elements_grad(g, indices, **attrs)


def _scattered(where, input, dim, index, src, reduction):
    """`tensor_scatter_elements` in PyTorch's form: src may be a number, or larger than the index."""
    shape, wanted = tuple(input.shape), tuple(index.shape)
    axis = check_dim(where, "dim", dim, len(shape), shape)
    if isinstance(src, np.ndarray) and not src.shape:  # a number of `scatter`
        src = np.full(wanted, src, str(input.dtype))
    elif tuple(src.shape) != wanted and len(src.shape) == len(wanted):
        src = strided_slice(src, (0,) * len(wanted), wanted)
    return tensor_scatter_elements(input, index, src, axis=axis, reduction=reduction)


@function(numbers="src")
def scatter(input, axis, index, src):
    """Elements of src put where `index` says along `axis`, in a new tensor.  input: (..., n, ...) -> (..., n, ...).

    index: (..., k, ...) int, src: a number, or at least as large as the index. The last of equal places counts.
    """
    return _scattered("scatter", input, axis, as_array(index), src, "none")


@function(method="scatter_add", mint="scatter_add")
def scatter_add_ext(input, dim=None, index=None, src=None, *, indices=None, updates=None):
    """Elements of src added where `index` says along `dim`, in a new tensor.  input: (..., n, ...) -> (..., n, ...).

    x.scatter_add(indices, updates) is `tensor_scatter_add`.
    """
    if src is None:
        places, rows = dim if indices is None else indices, index if updates is None else updates
        return BY_COORDINATES["add"](input, places, rows)
    return _scattered("scatter_add", input, dim, as_array(index), src, "add")
