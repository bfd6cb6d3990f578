"""bfloat16 among numpy's dtypes: float32 without the lower half of its bits, so with 8 bits of precision.

numpy has it from `ml_dtypes`, which is imported when a bfloat16 is first asked for. There it is of kind "V", meets no
other dtype, and its sums add up in bfloat16. So nothing here computes in it: operators get float32, and what they
return is rounded (`OpDef.compute`), as matrix units with float32 accumulators do. Promotion is MindSpore's: beside ints
bfloat16 stays, beside float16 it becomes float32, and beside wider floats it gives way to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .errors import MissingPackage

BFLOAT16, FLOAT32 = "bfloat16", np.dtype(np.float32)
HALF = ("float16", BFLOAT16)  # what is summed in float32 where gradient_fp32_sync says so
COMPUTE = (*HALF, "float32", "float64")  # what a network can be told to compute in


def as_dtype(given: Any) -> np.dtype:
    """np.dtype(given), which knows "bfloat16" too. TypeError as numpy's; MissingPackage without ml_dtypes."""
    if isinstance(given, str) and given == BFLOAT16:
        load_bfloat16()
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


def scalar_dtype(dtype: Any) -> np.dtype:
    """The dtype of learning rates and the like beside parameters of this one: in bfloat16, 0.999 would be 1."""
    dtype = as_dtype(dtype)
    return FLOAT32 if is_bfloat16(dtype) else dtype


def by_rule(rule: Callable[[tuple[str, ...]], str], dtypes: Sequence[str]) -> str:
    """rule(dtypes), a result's dtype by numpy's promotion, where some are bfloat16.

    >>> add = lambda dtypes: str(np.result_type(*dtypes))
    >>> [by_rule(add, (BFLOAT16, other)) for other in ("int32", "float16", "float64")]
    ['bfloat16', 'float32', 'float64']
    """
    dtypes = tuple(dtypes)
    if BFLOAT16 not in dtypes:
        return rule(dtypes)

    def found(stand_in: str, others: dict[str, str]) -> str:
        return rule(tuple(stand_in if d == BFLOAT16 else others.get(d, d) for d in dtypes))

    # the result is bfloat16 if it goes with what stands for it
    beside = {"float16": "float32", **dict.fromkeys(("int16", "int32", "int64", "uint8", "uint16", "uint32"), "int8")}
    narrow = found("float16", beside)
    return BFLOAT16 if narrow != found("float32", beside) else found("float32", {})
