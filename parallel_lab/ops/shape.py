"""Operators that move or rename dims, and constants."""

from __future__ import annotations

import math

import numpy as np

from ..errors import ShapeError, message, shorten
from .registry import case, check_dim, op
from .signature import letters

__all__ = ["fill", "flatten", "reshape", "transpose"]


def _target(shapes, *, shape):
    """The target shape with its -1 worked out."""
    total, shape = math.prod(shapes[0]), (shape,) if isinstance(shape, int) else tuple(shape)
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known and total % known == 0:
        shape = tuple(total // known if n == -1 else n for n in shape)
    if -1 in shape or math.prod(shape) != total:
        raise ShapeError(message(f"shape {shape} for a tensor of shape {shapes[0]}", where="Reshape", allowed=f"A shape with {total} elements"))
    return {"shape": shape}


def _check_reshape(where, operands, *, shape):
    entries = shape if isinstance(shape, tuple) else (shape,)
    if any(isinstance(n, bool) or not isinstance(n, int) or n < -1 for n in entries):
        raise ShapeError(message(f"shape {shorten(shape)}", where=where, allowed="A tuple of ints; one of them may be -1"))
    _target((operands[0].shape,), shape=shape)


@op(
    lambda shapes, *, shape: f"{letters(len(shapes[0]))}->",
    name="Reshape",
    static=("shape",),
    check=_check_reshape,
    sizes=_target,
    view=True,
    flops=lambda s: 0,
)
def reshape(x, shape):
    """The same elements in row-major order under another shape; one entry may be -1.  x: (...) -> `shape`.

    Takes no strategy: in a parallel program it passes from its producer's layout to the one its consumer wants, by redistribution.
    """
    return x.reshape(shape)


@reshape.vjp
def _(g, out, x, *, shape):
    return (reshape(g, tuple(x.shape)),)


def _check_flatten(where, operands):
    if not operands[0].shape:
        raise ShapeError(message("a tensor of shape ()", where=where, allowed="At least one dim"))


@op(
    lambda shapes: f"{letters(len(shapes[0]))}->az",
    name="Flatten",
    check=_check_flatten,
    whole=lambda signature: signature.ins[0][1:] + "z",
    sizes=lambda shapes: {"z": math.prod(shapes[0][1:])},
    flops=lambda s: 0,
    example=(case((16, 2, 4)), case((8, 1, 2, 2))),
)
def flatten(x):
    """All dims but the first joined.  x: (a, ...) -> (a, product of the rest). Only the first dim may be cut."""
    return x.reshape(x.shape[0], -1)


@flatten.vjp
def _(g, out, x):
    return (reshape(g, tuple(x.shape)),)


def _permuted(shapes, *, perm):
    names = letters(len(shapes[0]))
    return f"{names}->{''.join(names[p] for p in perm)}"


def _check_transpose(where, operands, *, perm):
    shape = operands[0].shape
    given, allowed = f"perm {shorten(perm)} for a tensor of shape {shape}", f"A permutation of {tuple(range(len(shape)))}"
    if not isinstance(perm, tuple) or len(perm) != len(shape):
        raise ShapeError(message(given, where=where, allowed=allowed))
    if len({check_dim(where, "an entry of perm", p, len(shape), shape) for p in perm}) < len(shape):
        raise ShapeError(message(given, where=where, allowed=allowed))


@op(
    _permuted,
    name="Transpose",
    static=("perm",),
    check=_check_transpose,
    flops=lambda s: 0,
    example=(case((16, 8), perm=(1, 0)), case((4, 8, 2), perm=(2, 0, 1))),
)
def transpose(x, perm):
    """Dims in the order `perm`.  x: (...) -> (...), dim i of the result is dim perm[i] of x."""
    return np.array(np.transpose(x, perm), order="C")  # ascontiguousarray would give a 0-d array a dim


@transpose.vjp
def _(g, out, x, *, perm):
    inverse = [0] * len(perm)
    for i, p in enumerate(perm):
        inverse[p % len(perm)] = i
    return (transpose(g, tuple(inverse)),)


@op(infer_fn=lambda shapes, *, shape, value, dtype: shape, dtype=lambda dtypes, *, shape, value, dtype: dtype)
def fill(*, shape, value, dtype):
    """A constant.  -> `shape` of `dtype`, every element `value`."""
    return np.full(shape, value, dtype)


@op(infer_fn=lambda shapes, *, shape, dim: shape, part_size=lambda shapes, attrs: shapes[0][attrs["dim"]])
def strided_slice_grad(g, *, shape, dim, offset=0):
    """Gradient of keeping one part of a tensor along `dim`: zeros, with g at `offset`.  g: (...) -> `shape`."""
    grad = np.zeros(shape, g.dtype)
    grad[(slice(None),) * dim + (slice(offset, offset + g.shape[dim]),)] = g
    return grad
