"""How a rank computes: on one BLAS thread, without warnings where an overflow is expected."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np

from ..base.dtypes import BFLOAT16, LOSS_SCALE, load_bfloat16
from ..graph.plan import Plan


@lru_cache(maxsize=1)
def _controller() -> Any:
    return importlib.import_module("threadpoolctl").ThreadpoolController()


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Compute with one BLAS thread: the number of threads changes bits, and ranks would compete for cores."""
    with nullcontext() if sys.platform == "emscripten" else _controller().limit(limits=1, user_api="blas"):
        yield


@contextmanager
def computing(plan: Plan) -> Generator[None]:
    """One BLAS thread; no numpy warnings of overflow in a plan with a loss scale, which handles overflow.

    A plan with bfloat16 may have come to a process in which numpy does not know it yet.
    """
    if any(value.dtype == BFLOAT16 for value in plan.value_table.values()):
        load_bfloat16()
    scaled = any(state.kind == LOSS_SCALE for state in plan.states)
    quiet: dict[str, Any] = dict.fromkeys(("over", "invalid", "divide"), "ignore") if scaled else {}
    with one_blas_thread(), np.errstate(**quiet):
        yield
