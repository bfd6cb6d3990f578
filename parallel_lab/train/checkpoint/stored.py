"""Tensors whose parts lie in several files: what folders with a manifest and lists of rank files have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from ...base.errors import CheckpointCorrupt, CheckpointError, LayoutError, shorten
from ...layout.tensor_layout import TensorLayout
from .format import Checkpoint
from .records import TensorRecord, place_in
from .reslice import needed_ranks, reslice


@dataclass(frozen=True)
class StoredTensor:
    """A tensor's `layout` (None: every holder has the whole) and parts: `holders` (rank of layout, file number)."""

    dtype: str
    global_shape: tuple[int, ...]
    layout: TensorLayout | None
    holders: tuple[tuple[int, int], ...]

    def sources(self, layout: TensorLayout | None, rank: int, where: str) -> dict[int, int]:
        """{rank of this layout: number of its file} of the parts from which `rank` of `layout` can be made."""
        holders = dict(self.holders)
        try:
            ranks = needed_ranks(self.layout, layout, self.global_shape, rank, holders)
        except LayoutError as error:
            raise CheckpointError(f"it cannot be split as asked for: {error}", where=where) from None
        needed = {source: holders.get(source) for source in ranks}
        if self.layout is None:
            needed = {0: holders.get(rank, next(iter(holders.values()), None))}
        if None in needed.values():
            missing = next(source for source, file in needed.items() if file is None)
            have = f"there are the parts of ranks {shorten(sorted(holders))}"
            allowed = f"Every slice of {self.layout or 'the whole'}; {have}"
            raise CheckpointCorrupt(f"the part of rank {missing} is in none of the files", where=where, allowed=allowed)
        return needed


def load_parts(
    stored: Mapping[str, StoredTensor],
    read: Callable[[int, set[str]], Checkpoint],
    layouts: Mapping[str, TensorLayout | None],
    rank: int,
    names: Collection[str] | None,
    where: str,
) -> dict[str, TensorRecord]:
    """{name: `rank`'s part under `layouts`}, unnamed ones whole; `read` is called once per file with a needed part.
    Raises CheckpointError for an unknown name, CheckpointCorrupt if a part is missing.
    """
    unknown = sorted(({*(names or ())} | layouts.keys()) - stored.keys())
    if unknown:
        what = f"there is no tensor {unknown[0]!r}"
        raise CheckpointError(what, where=where, allowed=f"It holds {shorten(sorted(stored))}")
    wanted = [name for name in stored if names is None or name in names]
    places = {name: place_in(layouts.get(name), rank) for name in wanted}
    sources = {n: stored[n].sources(layouts.get(n), places[n], f"{where}, tensor {n!r}") for n in wanted}
    per_file: dict[int, set[str]] = {}
    for name in wanted:
        for file in sources[name].values():
            per_file.setdefault(file, set()).add(name)
    parts: dict[str, dict[int, np.ndarray]] = {name: {} for name in wanted}
    for file, needed in sorted(per_file.items()):
        for name, record in read(file, needed).tensors.items():
            parts[name].update({source: record.array for source, holder in sources[name].items() if holder == file})
    made = {}
    for name in wanted:
        one, layout = stored[name], layouts.get(name)
        part = reslice(parts[name], one.layout, layout, one.global_shape, places[name])
        made[name] = TensorRecord(part, one.global_shape, layout, places[name])
    return made
