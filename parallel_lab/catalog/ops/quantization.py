"""Numbers in 8 bits: rounded, turned back, and multiplied as they are.

    Quant, QuantV2 -> int8      round(scale x + offset), kept within int8
    DynamicQuantExt             the same with a scale of its own for each row
    AntiQuant, Dequant          scale (x + offset), scale x
    QuantBatchMatmul, WeightQuantBatchMatmul    products of int8, or of floats with weights of int8

As of floats, a split, contracted dim leaves sums, and all others may be split. MindSpore has no gradients here.
Forms: mindspore.ops.operations._inner_ops and _infer_ops; quant_info, dynamic_quant_ext_info, quant_batch_matmul_info.
"""

from __future__ import annotations

import numpy as np

from ...base.checks import SHAPE_ERRORS, choice, flag
from ...base.dtypes import as_dtype, kind_of
from ...ops.elementwise import a_dtype
from ...ops.machine.operand_checks import floats, ints
from ...ops.machine.registry import case, form, op
from ...ops.machine.signature import but_numbers, letters
from .flash_attention import optional_form, refuse_given, refuse_gradient

_ROUNDINGS = {"round": np.rint, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc}
_SCALED = {"strategy_labels": lambda signature: but_numbers(signature)[:2], "flops": 3}  # MindSpore reads two tuples


def _name(prim, dtype):
    return str(np.dtype(a_dtype(prim.name, "dtype", dtype)))


@op(
    "...,...,...->...",
    name="Quantize",
    attrs={"sqrt_mode": flag, "rounding": choice(*_ROUNDINGS)},
    check=lambda operands, **_: floats(operands[0]),
    dtype="int8",
    example=(case((8, 4), (4,), (4,)), case((8, 16), (), (), low=-200, high=200, rounding="floor", sqrt_mode=True)),
    **_SCALED,
)
def quantize(x, scale, offset, *, sqrt_mode=False, rounding="round"):
    """x scale + offset (sqrt_mode: x scale scale), rounded, from -128 to 127.  x: (...), others: like it -> (...)."""
    made = _ROUNDINGS[rounding](x * scale * (scale if sqrt_mode else 1) + offset)
    return np.clip(made, -128, 127).astype(np.int8)


@form(quantize, "Quant")
def _(self, x, *, scale, offset, sqrt_mode=False, round_mode="Round"):
    """round(scale x + offset) in int8.  x: (...) -> (...). See `quantize`."""
    choice("Round", "Floor", "Ceil", "Trunc")(self.name, "round_mode", round_mode, SHAPE_ERRORS)
    return self.run(x, float(scale), float(offset), sqrt_mode=sqrt_mode, rounding=round_mode.lower())


@form(quantize, "QuantV2", read=2)
def _(self, x, scale, offset, sqrt_mode=False, rounding_mode="ROUND", dst_type="int8"):
    """round(scale x + offset) in int8.  x: (..., n), scale, offset: (n,) or (1, ..., n) -> (...). See `quantize`."""
    choice("int8")(self.name, "dst_type", _name(self, dst_type), SHAPE_ERRORS)
    return self.run(x, scale, offset, sqrt_mode=sqrt_mode, rounding=str(rounding_mode).lower())


def _row_labels(shapes):
    names = letters(len(shapes[0]))
    return ",".join([names, *[names[-1]] * (len(shapes) - 1)]) + f"->{names},{names[:-1]}"


@op(
    _row_labels,
    name="DynamicQuantize",
    check=lambda operands: floats(operands[0]),
    dtype=("int8", "float32"),
    whole=lambda signature: signature.ins[0][-1],
    flops=4,
    example=(case((8, 4)), case((4, 2, 6), (6,))),
)
def dynamic_quantize(*operands):
    """round(127 x / m) in int8, where m is the largest magnitude of the row, and m / 127.

    x: (..., n), and smooth_scales: (n,), by which x is multiplied first -> (..., n) int8, (...) float32
    """
    x = operands[0].astype(np.result_type(operands[0], np.float32))
    x = x * operands[1] if operands[1:] else x
    scale = np.abs(x).max(axis=-1, keepdims=True) / 127
    made = np.divide(x, scale, out=np.zeros_like(x), where=scale > 0)
    return np.clip(np.rint(made), -128, 127).astype(np.int8), scale[..., 0].astype(np.float32)


@form(dynamic_quantize, "DynamicQuantExt")
def _(self, x, smooth_scales=None):
    """Each row in int8, and its scale.  x: (..., n), smooth_scales: (n,) -> (..., n) int8, (...) float32.

    The last dim stays whole. See `dynamic_quantize`.
    """
    return self.run(x) if smooth_scales is None else self.run(x, smooth_scales)


@op(
    "...,...,...->...",
    name="Rescale",
    attrs={"sqrt_mode": flag, "relu": flag},
    check=lambda operands, **_: ints(operands[0], "numbers"),
    dtype=lambda dtypes, *, dtype, **_: as_dtype(dtype),
    example=case((8, 16), (16,), (16,), ints={0: 9}, sqrt_mode=True),
    **_SCALED,
)
def rescale(x, scale, offset, *, sqrt_mode=False, relu=False, dtype="float32"):
    """scale (x + offset) (sqrt_mode: scale scale), with relu at least 0.  x: (...) ints, others: like it -> (...)."""
    made = (x + offset) * scale * (scale if sqrt_mode else 1)
    return (np.maximum(made, 0) if relu else made).astype(as_dtype(dtype))


@form(rescale, "AntiQuant", read=2)
def _(self, x, scale, offset, *, sqrt_mode=False, dtype="float16"):
    """scale (x + offset).  x: (..., n) int8, scale, offset: (n,) -> (...) of `dtype`. See `rescale`."""
    return self.run(x, scale, offset, sqrt_mode=sqrt_mode, dtype=_name(self, dtype))


@form(rescale, "Dequant")
def _(self, x, deq_scale, *, sqrt_mode=False, relu_flag=False, dtype="float16"):
    """scale x.  x: (..., n) int32, deq_scale: (n,) or () floats -> (...) float16. See `rescale`."""
    return self.run(x, deq_scale, 0, sqrt_mode=sqrt_mode, relu=relu_flag, dtype="float16")


def _product_labels(shapes, *, given, transpose_a, transpose_b, **_):
    ins = ["...km" if transpose_a else "...mk", "...nk" if transpose_b else "...kn"]
    ins += ["1" if x == (1,) else "m" if name == "rows" else "n" for name, x in zip(given, shapes[2:], strict=True)]
    return f"{','.join(ins)}->...mn"


@op(
    _product_labels,
    name="QuantizedProduct",
    check=lambda operands, **_: ints(operands[1], "weights"),
    dtype=lambda dtypes, *, dtype, **_: as_dtype(dtype) if dtype else dtypes[0],
    strategy_labels=lambda signature: signature.ins[:2],
    axes=lambda signature: signature.outs[0][:-1] + "kn",
    localize=lambda attrs, cuts: {**attrs, "parts": cuts["k"]},
    flops=lambda s: 2 * s.m * s.k * s.n,
    example=(
        case((8, 4), (4, 8), (8,), (8,), (8,), ints={0: 9, 1: 9}, given=("scale", "offset", "bias"), dtype="float64"),
        case((2, 8, 4), (8, 4), (1,), (8,), ints={1: 9}, given=("scale", "rows"), transpose_b=True),
    ),
)
def quantized_product(*operands, given=(), transpose_a=False, transpose_b=False, first_bias=False, dtype="", parts=1):
    """a (b + offset) scale rows + bias; first_bias: before scale. Operands: a, b and those that `given` names.

    a: (..., m, k), b: (..., k, n) ints; scale, offset, bias: (n,) or (1,); rows: (m,) -> (..., m, n)
    parts  over how many ranks k is split: each adds its share of bias; set by the compiler
    """
    named = {"scale": np.ones(1), "rows": np.ones(1), "bias": np.zeros(1), "offset": 0}
    named |= dict(zip(given, operands[2:], strict=True))
    wide = np.result_type(operands[0], np.float32)
    a, b = (x.astype(wide) for x in operands[:2])
    made = (np.swapaxes(a, -1, -2) if transpose_a else a) @ (
        (np.swapaxes(b, -1, -2) if transpose_b else b) + named["offset"]
    )
    scale, share = named["scale"], named["bias"] / parts
    scale = scale if scale.dtype.kind == "f" else (scale & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    made = (made + share if first_bias else made) * scale * named["rows"][:, None]
    return (made if first_bias else made + share).astype(as_dtype(dtype) if dtype else operands[0].dtype)


_HINT = "Quantize the result by ops.QuantV2(), and weights column by column"


@optional_form(
    *(quantized_product, "QuantBatchMatmul", "x1 x2 scale offset? bias? pertokenScaleOptional?"),
    **{"read": 2, "transpose_x1": False, "transpose_x2": False, "dtype": "float16"},
)
def _(self, given):
    """Products of int8.  x1: (..., m, k), x2: (..., k, n), scale: (n,) or (1,) floats, or int64 with their bits;
    bias: (n,), of ints added before scale -> (..., m, n) of `dtype`. Two tuples of a strategy count.
    """
    names = "x1 x2 scale bias pertokenScaleOptional transpose_x1 transpose_x2 dtype"
    refuse_given(self.name, given, names, _HINT)
    dtype = choice("float16", "float32", "bfloat16")(self.name, "dtype", _name(self, given["dtype"]), SHAPE_ERRORS)
    further = {"scale": given["scale"], "bias": given["bias"], "rows": given["pertokenScaleOptional"]}
    early = given["bias"] is not None and kind_of(given["bias"].dtype) in "iu"
    return _multiply(self, [*given.values()], further, given["transpose_x1"], given["transpose_x2"], early, dtype)


@optional_form(
    *(quantized_product, "WeightQuantBatchMatmul"),
    "x weight antiquant_scale antiquant_offset? quant_scale? quant_offset? bias?",
    **{"read": 2, "transpose_x": False, "transpose_weight": False, "antiquant_group_size": 0},
)
def _(self, given):
    """Products of floats with weights of int8.  x: (m, k), weight: (k, n), scale, offset: (n,), bias: (n,) -> (m, n).

    The weight counts as scale (weight + offset). Two tuples of a strategy count. Groups of rows: NotBuiltYet.
    """
    names = "x weight antiquant_scale antiquant_offset bias transpose_x transpose_weight"
    refuse_given(self.name, given, names, _HINT)
    further = {"scale": given["antiquant_scale"], "offset": given["antiquant_offset"], "bias": given["bias"]}
    return _multiply(self, [*given.values()], further, given["transpose_x"], given["transpose_weight"])


def _multiply(self, operands, further, transpose_a, transpose_b, first_bias=False, dtype=""):
    further = {name: x for name, x in further.items() if x is not None}
    turned = {"transpose_a": transpose_a, "transpose_b": transpose_b, "first_bias": first_bias, "dtype": dtype}
    return self.run(*operands[:2], *further.values(), given=tuple(further), **turned)


refuse_gradient(quantize, dynamic_quantize, rescale, quantized_product)
