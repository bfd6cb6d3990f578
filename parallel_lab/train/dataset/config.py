"""Settings of data pipelines: `ds.config.set_seed(1000)`.

Orders and augmentations are drawn on every rank alike (see `pipeline.py`). MindSpore's settings of worker threads are
checked and kept without effect, because rows are made in the calling process.
"""

from __future__ import annotations

from ...base.checks import checked, flag, integer
from ...base.seeds import get_dataset_seed, set_dataset_seed
from .checks import at_least

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


@checked("dataset.config.set_seed", seed=integer(0, LARGEST_SEED))
def set_seed(seed: int) -> None:
    """Draw with this seed (0 to 2^32 - 1), not the global one. Raises ArgumentTypeError, ArgumentError."""
    set_dataset_seed(seed)


def get_seed() -> int:
    """What datasets draw with: the seed given here, else the global one."""
    return get_dataset_seed()


@checked("dataset.config.set_num_parallel_workers", num=at_least(1))
def set_num_parallel_workers(num: int) -> None:
    """Checked, and without effect: rows are made in the calling process."""


def get_num_parallel_workers() -> int:
    """1: the calling process."""
    return 1


@checked("dataset.config.set_prefetch_size", size=at_least(1))
def set_prefetch_size(size: int) -> None:
    """Checked, and without effect: a row is made when it is asked for."""


def get_prefetch_size() -> int:
    """1: a row is made when it is asked for."""
    return 1


@checked("dataset.config.set_auto_num_workers", enable=flag)
def set_auto_num_workers(enable: bool) -> None:
    """Checked, and without effect."""


@checked("dataset.config.set_enable_shared_mem", enable=flag)
def set_enable_shared_mem(enable: bool) -> None:
    """Checked, and without effect."""
