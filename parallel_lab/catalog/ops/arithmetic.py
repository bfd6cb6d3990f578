"""More arithmetic of two and three tensors, element by element: quotients that are rounded or meet 0, logarithms of
sums, weighted means, operations on bits. Operands broadcast like numpy's; any dim may be split, if it is not broadcast.
"""

from __future__ import annotations

import numpy as np

from ...base.checks import number
from ...base.dtypes import alike
from ...base.errors import ShapeError
from ...ops.elementwise import (
    BINARY,
    POSITIVE,
    POSITIVE_PAIR,
    SHAPE,
    add,
    binary,
    cast,
    div,
    div as quotient,
    float_result,
    maximum,
    minimum,
    mod,
    mul,
    neg,
    number_result,
    power,
    sub,
    unary,
)
from ...ops.logic import equal, select
from ...ops.machine.registry import case, form, op, unbroadcast
from ...ops.machine.signature import but_numbers, letters
from ...ops.quotients import truncate_div, zero_where
from ...ops.shape import as_array
from ...ops.spellings import function
from ...ops.unary import sign, square
from .elementary_functions import exp, exp2

# ---- two operands ----

_FRACTIONS = {"dtype": float_result}
_TENSORS = {"numbers": ""}  # two tensors, as in MindSpore, and no number


def _xdivy(x, y):
    return zero_where(x == 0, np.divide, x, y)


def _xlogy(x, y):
    return zero_where(x == 0, lambda x, y: x * np.log(y), x, y)


def _mul_no_nan(x, y):
    return zero_where(y == 0, np.multiply, x, y)


squared_difference = binary(
    "squared_difference", lambda x, y: np.square(x - y), "(x - y)^2", name="SquaredDifference", dtype=number_result
)


@squared_difference.vjp
def _(g, out, x, y):
    grad = mul(g, mul(sub(x, y), 2.0))
    return unbroadcast(grad, x), neg(unbroadcast(grad, y))


atan2 = binary(
    "atan2",
    np.arctan2,
    "Angle of the point with height x and width y, from -pi to pi",
    name="Atan2 Atan2Ext",
    also="arctan2",
    method="atan2(other) arctan2(other)",
    mint="atan2 arctan2",
    example=POSITIVE_PAIR,
    **_FRACTIONS,
)


@atan2.vjp
def _(g, out, x, y):
    share = quotient(g, add(square(x), square(y)))
    return unbroadcast(mul(share, y), x), neg(unbroadcast(mul(share, x), y))


xdivy = binary("xdivy", _xdivy, "x / y, and 0 where x is 0", example=POSITIVE_PAIR, **_FRACTIONS)


@xdivy.vjp
def _(g, out, x, y):
    some = select(equal(x, 0.0), 0.0, g)  # 0 / y is 0 whatever y is
    return unbroadcast(xdivy(some, y), x), neg(unbroadcast(xdivy(mul(some, out), y), y))


xlogy = binary("xlogy", _xlogy, "x * log(y), and 0 where x is 0", mint="xlogy", example=POSITIVE_PAIR, **_FRACTIONS)


@xlogy.vjp
def _(g, out, x, y):
    some = select(equal(x, 0.0), 0.0, g)
    return unbroadcast(xlogy(some, y), x), unbroadcast(xdivy(mul(some, x), y), y)


mul_no_nan = binary(
    "mul_no_nan", _mul_no_nan, "x * y, and 0 where y is 0, even if x is infinite or not a number", name="MulNoNan"
)


@mul_no_nan.vjp
def _(g, out, x, y):
    return unbroadcast(mul_no_nan(g, y), x), unbroadcast(mul_no_nan(x, g), y)


_WHOLE = {"dtype": number_result, "example": POSITIVE_PAIR[:2]}
truncate_mod = binary(
    "truncate_mod",
    np.fmod,
    "The remainder x - y * truncate_div(x, y), which has the sign of x",
    name="TruncateMod Mod",
    also="fmod",
    method="fmod(other)",
    mint="fmod",
    **_WHOLE,
)


@truncate_mod.vjp
def _(g, out, x, y):
    return unbroadcast(g, x), neg(unbroadcast(mul(g, truncate_div(x, y)), y))


def _beside_number(prim, *operands):
    """`prim`, whose strategy has one tuple, that of the tensor, with an empty one for the number."""
    if prim.in_strategy is not None and len(prim.in_strategy) == 1:
        prim.in_strategy = tuple(prim.in_strategy[0] if hasattr(x, "shape") else () for x in operands)
    return prim


def _of_tensors_or_numbers(of, names):
    @form(of, names)
    def _(self, first, other):
        """The operator of tensors, or of a tensor and a number.  first, other: (...) -> broadcast (...)."""
        return _beside_number(self, first, other).run(first, other)


_of_tensors_or_numbers(truncate_mod, "FmodTensor FmodScalar")
_of_tensors_or_numbers(mod, "RemainderTensorTensor RemainderTensorScalar RemainderScalarTensor")
_of_tensors_or_numbers(mul, "Muls")


@form(maximum, "ClampScalar")
def _(self, input, min=None, max=None):
    """input within numbers; None: no bound.  input: (...) -> (...)."""
    made = input if min is None else _beside_number(self, input, min).run(input, min)
    return made if max is None else _beside_number(self, made, max).run(made, max, of=minimum)


def _log_of_sum(numpys, class_name, power, base):
    """Declare log(base^x + base^y) to that base; `power` is base^x."""
    name = numpys.__name__
    text = f"Logarithm of {base}^x + {base}^y to base {base}, without overflow"
    spelled = {"name": class_name, "mint": name, "method": f"{name}(other)"}
    made = binary(name, numpys, text, **spelled, **_FRACTIONS, **_TENSORS)

    @made.vjp
    def _(g, out, x, y):
        return unbroadcast(mul(g, power(sub(x, out))), x), unbroadcast(mul(g, power(sub(y, out))), y)

    return made


logaddexp = _log_of_sum(np.logaddexp, "LogAddExp", exp, "e")
logaddexp2 = _log_of_sum(np.logaddexp2, "LogAddExp2", exp2, "2")
heaviside = binary(
    "heaviside",
    np.heaviside,
    "0 where x < 0, 1 where x > 0, y where x is 0; no gradient",
    mint="",
    method="heaviside(values)",
    **_FRACTIONS,
    **_TENSORS,
)
nextafter = binary(
    "nextafter", np.nextafter, "The float next to x towards y; no gradient", name="NextAfter", **_FRACTIONS, **_TENSORS
)
_INTS = {"example": (case(SHAPE, SHAPE, ints={0: 50, 1: 50}), case(SHAPE, (8,), ints={0: 50, 1: 50}))}
gcd = binary("gcd", np.gcd, "Greatest common divisor of ints; no gradient", method="gcd(other)", **_INTS, **_TENSORS)
lcm = binary("lcm", np.lcm, "Least common multiple of ints; no gradient", method="lcm(other)", **_INTS, **_TENSORS)


copysign = binary("copysign", np.copysign, "x with the sign of y", method="copysign(other)", dtype=float_result)


@copysign.vjp
def _(g, out, x, y):
    return unbroadcast(mul(g, copysign(sign(x), mul(y, sign(x)))), x), None


# ---- bits ----


def _check_bits(operands):
    if any(each.dtype.kind not in "biu" for each in operands):
        given = " and ".join(str(each.dtype) for each in operands)
        return f"the operands are {given}", "Ints or bools", "Convert them: x.astype('int32')"


def _on_bits(function, text, class_name, **facts):
    name = function.__name__
    declared = {"name": class_name, "method": f"{name}(other)", "mint": name, "check": _check_bits, **_INTS, **facts}
    return binary(name, function, f"{text}; no gradient", **declared)


bitwise_and = _on_bits(np.bitwise_and, "Bits that both have", "BitwiseAnd")
bitwise_or = _on_bits(np.bitwise_or, "Bits that one of them has, or both", "BitwiseOr")
bitwise_xor = _on_bits(np.bitwise_xor, "Bits that exactly one of them has", "BitwiseXor")
_SHIFT = {"mint": "", "example": case(SHAPE, (8,), ints={0: 50, 1: 5})}
left_shift = _on_bits(
    np.left_shift, "Bits moved y places to the left", "LeftShift", also="bitwise_left_shift", method="", **_SHIFT
)
right_shift = _on_bits(
    np.right_shift, "Bits moved y places to the right", "RightShift", also="bitwise_right_shift", method="", **_SHIFT
)
bitwise_invert = unary(
    "bitwise_invert",
    np.invert,
    "Every bit the other way",
    name="Invert BitwiseNot",
    also="bitwise_not invert",
    mint="bitwise_not",
    check=_check_bits,
    example=case(SHAPE, ints={0: 50}),
)
population_count = unary(
    "population_count",
    np.bitwise_count,
    "How many bits are 1",
    name="PopulationCount",
    ufunc="",
    check=_check_bits,
    dtype="uint8",
    example=case(SHAPE, ints={0: 50}),
)


# ---- a number between them, or a factor of one ----


def _check_alpha(operands, *, alpha):
    if isinstance(alpha, float) and not any(x.dtype.kind == "f" for x in operands):
        given = " and ".join(str(x.dtype) for x in operands)
        return f"alpha={alpha} for {given}", "An int: whole numbers have no fractions", "Convert: x.astype('float32')"


def _scaled(name, class_name, sign, text):
    """Declare x plus or minus alpha * y."""

    def fn(x, y, alpha=1):
        return x + np.asarray(sign * alpha, y.dtype) * y

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"{text}.  x, y: (...) -> broadcast (...). alpha: a number."
    made = op(
        BINARY,
        name=class_name,
        attrs={"alpha": number()},
        check=_check_alpha,
        dtype=number_result,
        flops=2,
        example=(case(SHAPE, SHAPE, alpha=0.5), case((8, 16, 4), (16, 1), alpha=-2.0)),
    )(fn)

    @made.vjp
    def _(g, out, x, y, *, alpha):
        return unbroadcast(g, x), unbroadcast(mul(g, float(sign * alpha)), y)

    return made


add_ext = _scaled("add_ext", "AddExt", 1, "x + alpha * y")
sub_ext = _scaled("sub_ext", "SubExt", -1, "x - alpha * y")


@op(
    "...,...,...->...",
    name="Lerp LerpScalar",
    strategy_labels=but_numbers,
    dtype=number_result,
    flops=3,
    example=(case(SHAPE, (8,), ()), case(SHAPE, SHAPE, (16, 1)), case((8, 1), (1, 16), (8, 16))),
)
def lerp(start, end, weight):
    """start + weight * (end - start).  start, end: (...), weight: (...) or a number -> broadcast (...).

    A strategy has a tuple for each tensor, and none for a number (MindSpore: Lerp).
    """
    start, end, weight = alike((start, end, weight), "Lerp")
    return start + weight * (end - start)


@lerp.vjp
def _(g, out, start, end, weight):
    far = mul(g, weight)
    return (unbroadcast(sub(g, far), start), unbroadcast(far, end), unbroadcast(mul(g, sub(end, start)), weight))


_THREE = {
    "strategy_labels": but_numbers,
    "dtype": number_result,
    "flops": 3,
    "example": (case(SHAPE, SHAPE, (8,), (), **POSITIVE), case((8, 4), (8, 1), (4,), (1,), **POSITIVE)),
}


@op("...,...,...,...->...", name="Addcmul", numbers="value", **_THREE)
def add_product(x, first, second, value):
    """x + value * first * second.  x, first, second: (...), value: (...) or a number -> broadcast (...)."""
    x, first, second, value = alike((x, first, second, value), "Addcmul")
    return x + value * first * second


@add_product.vjp
def _(g, out, x, first, second, value):
    scaled = mul(g, value)
    return (
        unbroadcast(g, x),
        unbroadcast(mul(scaled, second), first),
        unbroadcast(mul(scaled, first), second),
        unbroadcast(mul(g, mul(first, second)), value),
    )


@op("...,...,...,...->...", name="Addcdiv", numbers="value", **{**_THREE, **_FRACTIONS})
def add_quotient(x, first, second, value):
    """x + value * first / second.  x, first, second: (...), value: (...) or a number -> broadcast (...)."""
    return x + value * first / second


@add_quotient.vjp
def _(g, out, x, first, second, value):
    share = quotient(g, second)
    scaled = mul(share, value)
    return (
        unbroadcast(g, x),
        unbroadcast(scaled, first),
        neg(unbroadcast(mul(scaled, quotient(first, second)), second)),
        unbroadcast(mul(share, first), value),
    )


@form(add_product, "AddcmulExt")
@form(add_quotient, "AddcdivExt")
def _(self, input, tensor1, tensor2, value=1):
    """input + value * tensor1 * tensor2 (AddcdivExt: / tensor2).  tensors: (...) -> broadcast (...)."""
    return self.run(input, tensor1, tensor2, value)


@function(mint="addcmul")
def addcmul(input, tensor1, tensor2, value=1):
    """input + value * tensor1 * tensor2.  tensors: (...), value: (...) or a number -> broadcast (...)."""
    return add_product(input, tensor1, tensor2, value)


@function(mint="addcdiv")
def addcdiv(input, tensor1, tensor2, value=1):
    """input + value * tensor1 / tensor2.  tensors: (...), value: (...) or a number -> broadcast (...)."""
    return add_quotient(input, tensor1, tensor2, value)


@function(numbers="input exponent", mint="float_power")
def float_power(input, exponent):
    """input to the power `exponent`, in float64.  input, exponent: (...) -> broadcast (...)."""
    exponent = cast(exponent, dtype="float64") if hasattr(exponent, "dtype") else exponent
    return power(cast(as_array(input), dtype="float64"), exponent)


# ---- lengths, sums of many, bounds, quotients ----


@op(BINARY, name="Hypot", numbers="", ufunc="hypot", method="hypot(other)", dtype=float_result, example=POSITIVE_PAIR)
def hypot(x, y):
    """sqrt(x^2 + y^2), without overflow in between.  x, y: (...) -> broadcast (...)."""
    return np.hypot(x, y)


@hypot.vjp
def _(g, out, x, y):
    return unbroadcast(div(mul(g, x), out), x), unbroadcast(div(mul(g, y), out), y)


@op(
    lambda shapes: ",".join([letters(len(shapes[0]))] * len(shapes)) + "->" + letters(len(shapes[0])),
    name="AddN AccumulateNV2",
    example=case((16, 8), (16, 8), (16, 8)),
)
def addn(*inputs):
    """Sum of any number of tensors of one shape, from the first to the last.  inputs: each (...) -> (...)."""
    total = np.array(inputs[0])
    for x in inputs[1:]:
        total += x
    return total


@addn.vjp
def _(g, out, *inputs):
    return (g,) * len(inputs)


@function(lists="x", numpy="clip")
def clip_by_value(x, clip_value_min=None, clip_value_max=None):
    """x within bounds; None: no bound.  x, bounds: (...) -> broadcast (...). Lists and tuples of tensors: one by one.

    The gradient is 0 where x was changed and passes where x equals a bound.
    """
    if isinstance(x, (list, tuple)):
        return tuple(clip_by_value(each, clip_value_min, clip_value_max) for each in x)
    if clip_value_min is None and clip_value_max is None:
        raise ShapeError("no bound is given", where="clip_by_value", allowed="clip_value_min, clip_value_max, or both")
    if clip_value_min is not None:
        x = maximum(x, clip_value_min)
    return x if clip_value_max is None else minimum(x, clip_value_max)


@function(also="clamp", mint="clamp")
def clip(x, min=None, max=None):  # the argument names of numpy, PyTorch and mindspore.ops.clip
    """`clip_by_value` under numpy's name.  x, bounds: (...) -> broadcast (...)."""
    return clip_by_value(x, min, max)


clamp = clip


def _div_no_nan(x, y):
    return zero_where(y == 0, np.divide, x, y)


div_no_nan = binary(
    "div_no_nan",
    _div_no_nan,
    "x / y, and 0 where y is 0",
    name="DivNoNan",
    also="divide_no_nan",
    example=POSITIVE_PAIR,
    dtype=float_result,
)


@div_no_nan.vjp
def _(g, out, x, y):
    return unbroadcast(div_no_nan(g, y), x), neg(unbroadcast(div_no_nan(mul(g, out), y), y))
