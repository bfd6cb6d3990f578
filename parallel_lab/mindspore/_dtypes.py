"""MindSpore's dtypes are numpy's: `ms.float32 == x.dtype`, and any of them is a `dtype=` everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "bool_",
    "double",
    "dtype_to_nptype",
    "dtype_to_pytype",
    "float16",
    "float32",
    "float64",
    "float_",
    "half",
    "int16",
    "int32",
    "int64",
    "int8",
    "int_",
    "pytype_to_dtype",
    "short",
    "single",
    "uint",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
]

bool_ = np.dtype(np.bool_)
int8, int16, int32, int64 = (np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
uint8, uint16, uint32, uint64 = (np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
float16, float32, float64 = (np.dtype(t) for t in (np.float16, np.float32, np.float64))
int_, uint, float_, short, half, single, double = int64, uint64, float64, int16, float16, float32, float64


def dtype_to_nptype(type_: Any) -> type:
    """numpy's scalar type: np.float32 for ms.float32."""
    return np.dtype(type_).type


def dtype_to_pytype(type_: Any) -> type:
    """Python's type for elements of a dtype: bool, int or float."""
    return {"b": bool, "i": int, "u": int, "f": float}[np.dtype(type_).kind]


def pytype_to_dtype(obj: Any) -> np.dtype:
    """The dtype for bool, int (int64), float (float64), or for what numpy knows."""
    return np.dtype(obj)
