"""How a rank computes: on one BLAS thread, without warnings where an overflow is expected; what the BLAS keeps."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from ..base.dtypes import BFLOAT16, LOSS_SCALE, load_bfloat16
from ..graph.plan import Plan


@lru_cache(maxsize=1)
def _controller() -> Any:
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Compute with one BLAS thread: the number of threads changes bits, and ranks would compete for cores."""
    with _controller().limit(limits=1, user_api="blas"):
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


def rows_keep_their_bits(blocks: Sequence[int], keys: int, size: int, dtype: str = "float32") -> bool:
    """Whether the BLAS of this machine gives rows of attention in these blocks the bits that it gives them all at once.

    blocks  how many rows are in each;  keys: of a tile;  size: elements of a head

    Probed with random numbers, on one thread, in the two products of attention: (rows, size) (keys, size)', and then
    (rows, keys) (keys, size). Many a BLAS has another kernel for a block's last rows, which adds in another order.
    """
    rng, rows = np.random.default_rng(0), sum(blocks)
    q, k, weights = (rng.standard_normal(s).astype(dtype) for s in ((rows, size), (keys, size), (rows, keys)))
    with one_blas_thread():
        for x, y in ((q, k.T), (weights, k)):
            parts = np.split(x, np.cumsum(blocks)[:-1])
            if not np.array_equal(x @ y, np.concatenate([part @ y for part in parts])):
                return False
    return True
