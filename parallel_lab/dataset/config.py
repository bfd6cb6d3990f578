"""Settings of data pipelines: `ds.config.set_seed(1000)`.

Orders and augmentations are drawn from (seed, place in the pipeline, epoch, sample index), on every rank alike: see `pipeline.py`. What MindSpore
tunes its worker threads with is checked, kept, and has no effect, because rows are made in the calling process.
"""

from __future__ import annotations

from typing import Any

from ..context import get_dataset_seed, set_dataset_seed
from ..errors import ArgumentError, ArgumentTypeError, message, shorten

__all__ = [
    "get_num_parallel_workers",
    "get_prefetch_size",
    "get_seed",
    "set_auto_num_workers",
    "set_enable_shared_mem",
    "set_num_parallel_workers",
    "set_prefetch_size",
    "set_seed",
]

LARGEST_SEED = 2**32 - 1  # MindSpore's datasets take 32 bits


def set_seed(seed: int) -> None:
    """Draw orders and augmentations with this seed instead of the global one.

    seed  int from 0 to 2^32 - 1. Raises ArgumentTypeError (a TypeError), ArgumentError (a ValueError).
    """
    allowed = f"An int from 0 to {LARGEST_SEED}"
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ArgumentTypeError(message(f"seed={shorten(seed)}", where="dataset.config.set_seed", allowed=allowed))
    if not 0 <= seed <= LARGEST_SEED:
        raise ArgumentError(message(f"seed={seed}", where="dataset.config.set_seed", allowed=allowed))
    set_dataset_seed(seed)


def get_seed() -> int:
    """What datasets draw with: the seed given here, else the global one."""
    return get_dataset_seed()


def _checked_count(where: str, name: str, value: Any) -> int:
    allowed = "An int, at least 1"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(message(f"{name}={shorten(value)}", where=where, allowed=allowed))
    if value < 1:
        raise ArgumentError(message(f"{name}={value}", where=where, allowed=allowed))
    return value


def _checked_flag(where: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ArgumentTypeError(message(f"enable={shorten(value)}", where=where, allowed="True or False"))


def set_num_parallel_workers(num: int) -> None:
    """Checked, and without effect: rows are made in the calling process."""
    _checked_count("dataset.config.set_num_parallel_workers", "num", num)


def get_num_parallel_workers() -> int:
    """1: the calling process."""
    return 1


def set_prefetch_size(size: int) -> None:
    """Checked, and without effect: a row is made when it is asked for."""
    _checked_count("dataset.config.set_prefetch_size", "size", size)


def get_prefetch_size() -> int:
    """1: a row is made when it is asked for."""
    return 1


def set_auto_num_workers(enable: bool) -> None:
    """Checked, and without effect."""
    _checked_flag("dataset.config.set_auto_num_workers", enable)


def set_enable_shared_mem(enable: bool) -> None:
    """Checked, and without effect."""
    _checked_flag("dataset.config.set_enable_shared_mem", enable)
