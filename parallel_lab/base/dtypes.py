"""bfloat16 among numpy's dtypes: float32 without the lower half of its bits, so with 8 bits of precision.

numpy has it from `ml_dtypes`, which is imported when a bfloat16 is first asked for. There it is of kind "V", meets no
other dtype, and its sums add up in bfloat16. So nothing here computes in it: operators get float32, and what they
return is rounded (`OpDef.compute`), as matrix units with float32 accumulators do. Promotion is MindSpore's: with ints
bfloat16 stays, with float16 it becomes float32, and with wider floats it gives way to them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from .errors import ArgumentTypeError, MissingPackage, ShapeError, shorten

BFLOAT16, FLOAT32 = "bfloat16", np.dtype(np.float32)
LOSS_SCALE = "loss_scale"  # the optimizer state that holds the scale of a loss in half precision
HALF = ("float16", BFLOAT16)  # what is summed in float32 where gradient_fp32_sync says so
MOST_ELEMENTS = 2**59  # of a tensor: numpy counts bytes in 63 bits, and an element has up to 16
COMPUTE = (*HALF, "float32", "float64")  # what a network can compute in


def as_dtype(given: Any) -> np.dtype:
    """np.dtype(given), which knows "bfloat16" too. TypeError for anything else; MissingPackage without ml_dtypes."""
    if isinstance(given, str) and given == BFLOAT16:
        load_bfloat16()
    old = isinstance(given, str) and given.lstrip("<>=|").startswith("a")  # numpy's alias of bytes, with a warning
    if old or not isinstance(given, (str, type, np.dtype)):  # numpy reads the dtype of an array, and None as float64
        raise TypeError("no dtype")
    try:
        return np.dtype(given)
    except (RecursionError, ValueError) as error:
        raise TypeError(str(error)) from None


def load_bfloat16() -> np.dtype:
    """The dtype; numpy knows it by its name afterwards."""
    try:
        import ml_dtypes
    except ImportError as error:
        hint = "pip install ml_dtypes; environment.yml lists it"
        raise MissingPackage("the package ml_dtypes is missing", where="bfloat16", hint=hint) from error
    return np.dtype(ml_dtypes.bfloat16)


def is_bfloat16(dtype: np.dtype) -> bool:
    """Whether a dtype is bfloat16, without importing it."""
    return dtype.kind == "V" and dtype.name == BFLOAT16


def kind_of(dtype: Any) -> str:
    """numpy's letter for the kind of a dtype: "f" for all floats, bfloat16 too."""
    dtype = dtype if isinstance(dtype, np.dtype) else as_dtype(str(dtype))
    return "f" if is_bfloat16(dtype) else dtype.kind


def in_float32(x: Any) -> Any:
    """x, in float32 if it is a bfloat16 array."""
    return x.astype(FLOAT32) if isinstance(x, (np.ndarray, np.generic)) and is_bfloat16(x.dtype) else x


def is_masked(given: Any) -> bool:
    """Whether an array, or one in a list, has masked elements. numpy.ma is not imported for it."""
    masks = sys.modules.get("numpy.ma")
    if masks is None or type(given) is np.ndarray:
        return False
    if isinstance(given, masks.MaskedArray):
        return bool(masks.is_masked(given))
    if not isinstance(given, (list, tuple)):
        return False
    try:
        nested = any(issubclass(kind, (list, tuple, masks.MaskedArray)) for kind in set(map(type, given)))
        return nested and any(map(is_masked, given))
    except RecursionError:  # a list that contains itself
        return False


def plain_array(given: Any, dtype: Any = None, *, order: Any = None, where: str = "") -> np.ndarray:
    """np.asarray(given), no subclass. Raises ArgumentTypeError for masked elements, which would count again."""
    if is_masked(given):
        hint = "x.filled(0) puts numbers there, x.compressed() leaves them out; or give the mask as a tensor of its own"
        raise ArgumentTypeError(f"masked elements of {shorten(given)}", where=where, allowed=UNMASKED, hint=hint)
    return np.asarray(given, dtype, order)


UNMASKED = "Arrays without a mask: it would be lost, and what it hides count"


def scalar_dtype(dtype: Any) -> np.dtype:
    """The dtype of learning rates and the like for parameters of this one: in bfloat16, 0.999 would be 1."""
    dtype = as_dtype(dtype)
    return FLOAT32 if dtype.itemsize < 4 else dtype


UNPROMOTED = ("uint16", "uint32", "uint64")  # with bools and themselves only
_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2}


def promoted(dtypes: Sequence[Any], where: str = "arithmetic") -> str:
    """The dtype that operands of these dtypes take together, by MindSpore's rule: bools give way to ints, ints of any
    width to floats, and inside a category the widest counts. Raises ShapeError for pairs that MindSpore does not
    convert, those with unsigned ints of more than 8 bits.

    >>> promoted(("int32", "float16")), promoted(("int8", "uint8")), promoted((BFLOAT16, "float16"))
    ('float16', 'int16', 'float32')
    """
    return _promoted(tuple([str(d) for d in dtypes]), where)


@lru_cache(maxsize=1024)
def _promoted(dtypes: tuple[str, ...], where: str) -> str:
    first, *others = dtypes
    return reduce(lambda one, other: _of_two(one, other, where), others, first)


def _of_two(one: str, other: str, where: str) -> str:
    if one == other:
        return one
    if {one, other} in ({"int8", "uint8"}, set(HALF)):  # neither holds the other's values
        return "int16" if "int8" in (one, other) else "float32"
    rank = {name: (_CATEGORY[kind_of(name)], as_dtype(name).itemsize, name == "int8") for name in (one, other)}
    low, high = sorted(rank, key=rank.__getitem__)
    if rank[low][0] and (low in UNPROMOTED or high in UNPROMOTED):
        raise _unconverted(f"{one} with {other}", [x for x in (one, other) if x in UNPROMOTED], where)
    return high


def _unconverted(what: str, names: Sequence[str], where: str = "arithmetic") -> ShapeError:
    allowed = f"MindSpore does not convert {' and '.join(names)} by itself"
    return ShapeError(what, where=where, allowed=allowed, hint="Convert: x.astype('int32')")


def float_result(dtypes: Sequence[Any], **_: object) -> np.dtype:
    """Result dtype of functions that have fractions: integers and bools give float32. Operands have it too."""
    found = as_dtype(promoted(dtypes))
    return found if kind_of(found) == "f" else FLOAT32


def number_result(dtypes: Sequence[Any], **_: object) -> str:
    """Result dtype: the promoted one. Raises ShapeError for bools."""
    found = promoted(dtypes)
    if found == "bool":
        what = "the operands are bool"
        raise ShapeError(what, where="arithmetic", allowed="Numbers", hint="Convert them: x.astype('int32')")
    return found


def beside_number(value: bool | int | float, dtypes: Sequence[Any]) -> np.dtype:
    """The dtype of a Python number among tensors: theirs, if it is of the number's category or of a higher one; else
    int64 for an int with bools, float32 for a float. Raises ShapeError with unsigned ints of more than 8 bits.

    >>> [str(beside_number(2.5, (d,))) for d in ("float16", "int32", "bool")], str(beside_number(2, ("bool",)))
    (['float16', 'float32', 'float32'], 'int64')
    """
    dtype = as_dtype(promoted(dtypes))
    own = "bool" if isinstance(value, bool) else "float32" if isinstance(value, float) else "int64"
    if str(dtype) in UNPROMOTED and own != "bool":
        raise _unconverted(f"the number {shorten(value)} with {dtype}", [str(dtype)])
    return np.dtype(own) if _CATEGORY[kind_of(own)] > _CATEGORY[kind_of(dtype)] else dtype


def scalar_operand(value: Any, others: Sequence[Any]) -> np.ndarray:
    """A Python number as a 0-d array, in the dtype that it takes among the `others`."""
    dtypes = [str(o.dtype) for o in others if hasattr(o, "dtype")]
    alone = np.float32 if isinstance(value, float) else None
    return _held(value, beside_number(value, dtypes) if dtypes else alone)


def _held(value: Any, dtype: Any) -> np.ndarray:
    """A value as an array of a dtype. Raises ShapeError for an int that it cannot hold."""
    try:
        return np.asarray(value, dtype)
    except (OverflowError, TypeError):  # of bfloat16
        raise ShapeError(f"the number {shorten(value)} with {dtype}", allowed=f"What {dtype} holds") from None


def check_taken_in(where: str, dtype: Any, given: Any) -> None:
    """Raise ShapeError unless a Parameter of `dtype` takes values of the dtype `given`: it is not converted itself."""
    if promoted((dtype, given), where) != str(dtype):
        allowed = f"What {dtype} takes in: a Parameter keeps its dtype"
        hint = f"Convert: x.astype('{dtype}')"
        raise ShapeError(f"values of {given} for a Parameter of {dtype}", where=where, allowed=allowed, hint=hint)


def alike(
    operands: Sequence[Any], where: str = "arithmetic", rule: Callable[..., Any] = promoted
) -> tuple[np.ndarray, ...]:
    """Arrays and Python numbers as arrays of one dtype, the `promoted` one, or what another rule says of it."""
    known = [x.dtype for x in operands if hasattr(x, "dtype")]
    if not known:
        return tuple(map(np.asarray, operands))
    dtypes = known + [beside_number(x, known) for x in operands if not hasattr(x, "dtype")]
    dtype = as_dtype(rule((promoted(dtypes, where),)))
    return tuple([_held(x, dtype) for x in operands])
