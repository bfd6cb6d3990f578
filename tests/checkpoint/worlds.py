"""A world for a test: this process as a rank, with a communicator that answers from what the test prepared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from parallel_lab.base.hooks import current_world, set_world
from parallel_lab.layout.tensor_layout import TensorLayout


@contextlib.contextmanager
def as_rank(
    rank: int, world_size: int, fulls: dict[str, tuple[np.ndarray, TensorLayout]] | None = None
) -> Iterator[list[str]]:
    """Within it this process is `rank`. Yields the tags of the collectives that were called.

    fulls  {end of a tag: (full array, layout)}: what an all_gather with such a tag puts together from the other ranks'
           slices
    """
    tags: list[str] = []

    def all_gather(mine, dim=0, group=None, *, tag=""):
        tags.append(tag)
        full, layout = next(found for name, found in (fulls or {}).items() if tag.endswith(name))
        slices = np.stack([full[layout.slice_index(full.shape, r)] for r in range(world_size)])
        assert dim == 0 and np.array_equal(np.asarray(mine)[0], slices[rank])
        return slices

    before = current_world()
    place = {"rank": rank, "world_size": world_size}
    set_world(SimpleNamespace(**place, comm=SimpleNamespace(all_gather=all_gather, **place)))
    try:
        yield tags
    finally:
        set_world(before)
