"""Which MindSpore is followed where its versions differ: `get_compat()`, "seeds" or "2.10"."""

from __future__ import annotations

from ..checks import choice
from .checks import SETTINGS

_compat = "seeds"


def set_compat(version: str) -> None:
    """Choose where the seeds' documents and MindSpore 2.10 differ: "seeds" (the default) or "2.10". Settings that were
    set keep their values.

    With "2.10", search_mode is recursive_programming, fully_use_devices and gradient_accumulation_shard are False
    by default; a kind of message set after comm_fusion's openstate False is fused again; a dataset_strategy of
    tuples reads as lists, and full_batch leaves it as it is; device_num may be above 4096; comm_fusion takes a
    config next to mode "auto"; a global_rank beyond device_num and counts below 1 are refused when a network is
    compiled, not before; `get_rank` and `get_group_size` answer before `init`; a search needs no operator with a
    strategy; sums of a look-up in split rows are scattered, where they can be; a transformation of checkpoints
    names whole groups of ranks. Raises ContextError for another version.
    """
    global _compat
    _compat = choice("seeds", "2.10")("set_compat", "compat", version, SETTINGS)


def get_compat() -> str:
    """ "seeds" or "2.10"."""
    return _compat
