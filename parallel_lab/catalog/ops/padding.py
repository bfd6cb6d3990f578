"""Operators that pad, flip or roll dims. A dim that is changed stays whole, all others may be split."""

from __future__ import annotations

import numpy as np

from ...base.checks import SHAPE_ERRORS, choice, instance, sequence_of
from ...base.errors import ShapeError, shorten
from ...ops.machine.registry import case, form, op
from ...ops.machine.signature import letters, more_letters
from ...ops.shape import changed_labels, int_tuple
from ...ops.slicing import strided_slice
from ...ops.spellings import function

_PAD_MODES = {
    "constant": "constant",
    "reflect": "reflect",
    "symmetric": "symmetric",
    "replicate": "edge",
    "circular": "wrap",
}


def _check_pad(operands, *, paddings, mode, value):
    shape = operands[0].shape
    given = f"paddings {shorten(paddings)} for a tensor of shape {shape}"
    if len(paddings) != len(shape) or any(len(pair) != 2 for pair in paddings):
        return given, "One pair (before, after) per dim"
    for dim, (pair, n) in enumerate(zip(paddings, shape, strict=True)):
        most = {"constant": None, "replicate": None, "reflect": n - 1}.get(mode, n)
        if most is not None and max(pair) > most or max(pair) and not n and mode != "constant":
            return given, f"mode {mode!r} copies elements of the tensor: at most {most} on each side of dim {dim}"


def _pad_labels(shapes, *, paddings, mode, value):
    names = letters(len(shapes[0]))
    dims = zip(names, more_letters(len(names)), paddings, strict=True)
    return f"{names}->" + "".join(s if any(p) else c for c, s, p in dims)


@op(
    _pad_labels,
    name="Pad",
    attrs={
        "paddings": sequence_of(int_tuple(0), "Pairs (before, after) of ints, none below 0", empty=True),
        "mode": choice(*_PAD_MODES),
        "value": instance((bool, int, float), "A number"),
    },
    check=_check_pad,
    sizes=lambda shapes, *, paddings, **_: {
        c: n + sum(p) for c, n, p in zip(more_letters(len(paddings)), shapes[0], paddings, strict=True)
    },
    whole=changed_labels,
    flops=0,
    linear="avg max min: x",  # the filling value is not a share of a sum
    example=(
        case((16, 4), paddings=((0, 0), (1, 3))),
        case((4, 8, 4), paddings=((2, 0), (0, 0), (1, 1)), value=0.5),
        case((8, 4), paddings=((0, 0), (2, 3)), mode="reflect"),
        case((8, 4), paddings=((0, 0), (4, 1)), mode="symmetric"),
        case((8, 4), paddings=((0, 0), (5, 1)), mode="replicate"),
        case((4, 8), paddings=((3, 2), (0, 0)), mode="circular"),
    ),
)
def pad_dims(x, *, paddings, mode="constant", value=0.0):
    """x with elements put before and after each dim, which stays whole if it grows.  x: (...) -> (...).

    paddings  (before, after) per dim
    mode      "constant": `value`; "reflect": mirrored at the edge element; "symmetric": mirrored with it;
              "replicate": the edge element; "circular": from the other end
    """
    fill_with = {"constant_values": np.asarray(value, x.dtype)} if mode == "constant" else {}
    return np.pad(x, paddings, _PAD_MODES[mode], **fill_with)


@op(result_shape=lambda shapes, *, shape, **_: shape, shown="PadV3Grad")
def pad_grad(g, *, shape, paddings, mode):
    """Gradient of pad_dims: every copy's gradient is added to its original's.  g: (...) -> `shape`."""
    for dim, (n, pair) in enumerate(zip(shape, paddings, strict=True)):
        if any(pair):
            originals = np.pad(np.arange(n), pair, _PAD_MODES[mode])
            total = np.zeros((n, *g.shape[:dim], *g.shape[dim + 1 :]), g.dtype)
            np.add.at(total, originals, np.moveaxis(g, dim, 0))
            g = np.moveaxis(total, 0, dim)
    return np.array(g, order="C")


@pad_dims.vjp
def _(g, out, x, *, paddings, mode, value):
    if mode != "constant":
        return (pad_grad(g, shape=tuple(x.shape), paddings=paddings, mode=mode),)
    begin = tuple(before for before, _ in paddings)
    return (strided_slice(g, begin, tuple(b + n for b, n in zip(begin, x.shape, strict=True))),)


def _numbers(value):
    """A Tensor of known numbers as Python's."""
    return value.asnumpy().tolist() if hasattr(value, "asnumpy") else value


@form(pad_dims, "PadV3", read=1)
def _(self, x, paddings, constant_value=None, *, mode="constant", paddings_contiguous=True):
    """`ops.pad`: x with elements put before and after its last dims.  x: (...) -> (...).

    paddings             ints, or a Tensor of ints: (before, after) of the last dim, then of the one before it, ...
    paddings_contiguous  False: all numbers before, then all numbers after
    mode                 "constant" (`constant_value`, default 0), "reflect", "edge", "circular"
    """
    flat, value = _numbers(paddings), 0.0 if constant_value is None else _numbers(constant_value)
    if not paddings_contiguous and isinstance(flat, (list, tuple)):
        half = len(flat) // 2
        flat = [n for pair in zip(flat[:half], flat[half:], strict=True) for n in pair] if len(flat) % 2 == 0 else flat
    return self.run(x, paddings=_pairs("PadV3", x, flat), mode={"edge": "replicate"}.get(mode, mode), value=value)


@form(pad_dims, "MirrorPad", read=1)
def _(self, x, paddings, *, mode="REFLECT"):
    """x mirrored at its edges.  x: (...), paddings: (dims, 2) ints -> (...). mode: "REFLECT" or "SYMMETRIC"."""
    known = choice("REFLECT", "SYMMETRIC")("MirrorPad", "mode", mode, SHAPE_ERRORS)
    return self.run(x, paddings=_numbers(paddings), mode=known.lower())


@function(numpy="pad")
def pad(x, padding, mode="constant", value=0.0):
    """`pad_dims` in PyTorch's and mindspore.ops' form.  x: (...) -> (...).

    padding  (before, after) of the last dim, then of the one before it, and so on
    """
    return pad_dims(x, paddings=_pairs("pad", x, padding), mode=mode, value=value)


def _pairs(where, x, padding):
    """(before, after) for every dim of x, the last one's given first. Raises ShapeError."""
    ndim, flat = len(x.shape), tuple(padding) if isinstance(padding, (list, tuple)) else (padding,)
    if len(flat) % 2 or len(flat) > 2 * ndim:
        what = f"padding {shorten(padding)}"
        raise ShapeError(what, where=where, allowed=f"Pairs of ints, at most {ndim}, the last dim's first")
    pairs = tuple(zip(flat[::2], flat[1::2], strict=True))[::-1]
    return ((0, 0),) * (ndim - len(pairs)) + pairs
