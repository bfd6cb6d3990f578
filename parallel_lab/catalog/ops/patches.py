"""Patches of pictures: what lies under each window as a column, and the sum of columns back at their places.

    columns = ops.unfold(x, 3, padding=1)               # (n, c, h, w) -> (n, c * 9, windows)
    ops.fold(columns, (h, w), 3, padding=1)             # elements under several windows count as often

Rules: MindSpore, Im2Col and Col2Im: samples and channels may be split.
"""

from __future__ import annotations

import math

import numpy as np

from ...base.checks import SHAPE_ERRORS, Check
from ...base.errors import ShapeError
from ...ops.kernels.windows import extents, padding as pads_of, taps, windows
from ...ops.machine.registry import case, op
from ...ops.pool import _picture_fault
from ...ops.shape import reshape
from ...ops.spellings import function, tensor_operand


def _listed(check: Check) -> Check:
    """The same check, which takes a list for a tuple."""
    return Check(check.allowed, lambda value: check.read(tuple(value) if isinstance(value, list) else value))


_PAIR, _PADS = _listed(extents(2)), _listed(pads_of(2)["pad"])
_SIZE = Check("(height, width), ints of at least 1", lambda size: _PAIR.read((1, 1, *size)))
_SETTINGS = {"axes": "nc", "whole": "hwkl", "dtype": 0, "flops": 0}


def _made(size, kernel_size, stride, dilation, padding):
    return windows(size, kernel_size, stride, dilation, pad_mode="pad", pad=padding)


def _of_picture(shape, *, ksizes, strides, dilations, pads):
    return _made(shape[2:], ksizes, strides, dilations, pads)


def _column_sizes(shapes, **window):
    made = _of_picture(shapes[0], **window)
    return {"k": math.prod(made.kernel), "l": math.prod(made.out_size)}


def _check_columns(operands, *, output_size, **window):
    made, shape = _made(output_size, **window), tuple(operands[0].shape)
    rows, columns = math.prod(made.kernel), math.prod(made.out_size)
    if len(shape) != 4 or shape[2:] != (rows, columns):
        return f"columns of shape {shape}", f"(n, c, {rows}, {columns}) for pictures of {output_size}"
    return made.fault()


@op(
    "nchw->nckl",
    name="Im2Col",
    attrs={"ksizes": _PAIR, "strides": _PAIR, "dilations": _PAIR, "pads": _PADS},
    check=lambda operands, **window: _picture_fault(operands) or _of_picture(operands[0].shape, **window).fault(),
    sizes=_column_sizes,
    example=(case((4, 2, 5, 6), ksizes=(2, 3), strides=2, pads=1), case((2, 4, 7, 5), ksizes=2, dilations=(3, 1))),
    **_SETTINGS,
)
def window_columns(x, *, ksizes, strides=1, dilations=1, pads=0):
    """What lies under each window, row by row.  x: (n, c, h, w) -> (n, c, kh * kw, windows)."""
    made = _of_picture(x.shape, ksizes=ksizes, strides=strides, dilations=dilations, pads=pads)
    columns = np.zeros((*x.shape[:2], *made.kernel, *made.out_size), x.dtype)
    for i, j, there, here in _places(made):
        columns[:, :, i, j, *there] = x[..., *here]
    return columns.reshape(*x.shape[:2], math.prod(made.kernel), -1)


@op(
    "nckl->nchw",
    name="Col2Im",
    static=("output_size",),
    attrs={"output_size": _SIZE, "kernel_size": _PAIR, "dilation": _PAIR, "padding": _PADS, "stride": _PAIR},
    check=_check_columns,
    sizes=lambda shapes, *, output_size, **_: dict(zip("hw", output_size, strict=True)),
    example=case((2, 4, 4, 20), output_size=(5, 6), kernel_size=2),
    **_SETTINGS,
)
def add_columns(x, output_size, *, kernel_size, dilation=1, padding=0, stride=1):
    """Elements under several windows are added up.  x: (n, c, kh * kw, windows) -> (n, c, h, w)."""
    made = _made(output_size, kernel_size, stride, dilation, padding)
    columns = x.reshape(*x.shape[:2], *made.kernel, *made.out_size)
    picture = np.zeros((*x.shape[:2], *output_size), x.dtype)
    for i, j, there, here in _places(made):
        picture[..., *here] += columns[:, :, i, j, *there]
    return picture


def _places(made):
    """Per element of the kernel: its row and column, the windows that have it in the picture, its elements there."""
    rows, columns = (
        list(taps(kernel, stride, dilation, before, size, count))
        for (size, kernel, stride, dilation, before, _), count in zip(
            map(made.along, (0, 1)), made.out_size, strict=True
        )
    )
    return [(i, j, (up, left), (y, x)) for i, up, y in rows for j, left, x in columns]


@window_columns.vjp
def _(g, out, x, *, ksizes, strides, dilations, pads):
    window = {"kernel_size": ksizes, "dilation": dilations, "padding": pads, "stride": strides}
    return (add_columns(g, tuple(x.shape[2:]), **window),)


@add_columns.vjp
def _(g, out, x, *, output_size, kernel_size, dilation, padding, stride):
    return (window_columns(g, ksizes=kernel_size, strides=stride, dilations=dilation, pads=padding),)


@function(mint="functional.unfold")
def unfold(input, kernel_size, dilation=1, padding=0, stride=1):
    """What lies under each window as a column.  input: (n, c, h, w) -> (n, c * kh * kw, windows)."""
    columns = window_columns(input, ksizes=kernel_size, strides=stride, dilations=dilation, pads=padding)
    return reshape(columns, (columns.shape[0], -1, columns.shape[3]))


@function(mint="functional.fold")
def fold(input, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """Columns added up at their windows' places.  input: (n, c * kh * kw, windows) -> (n, c, *output_size)."""
    shape, rows = tuple(input.shape), math.prod(_PAIR("fold", "kernel_size", kernel_size, SHAPE_ERRORS))
    if len(shape) != 3 or shape[1] % rows:
        raise ShapeError(f"input of shape {shape}", where="fold", allowed=f"(n, c * {rows}, windows)")
    if not isinstance(output_size, (tuple, list, int)):
        output_size = np.asarray(tensor_operand("fold", "output_size", output_size)).tolist()
    window = {"kernel_size": kernel_size, "dilation": dilation, "padding": padding, "stride": stride}
    size = (output_size,) * 2 if isinstance(output_size, int) else tuple(output_size)
    return add_columns(reshape(input, (shape[0], -1, rows, shape[2])), size, **window)
