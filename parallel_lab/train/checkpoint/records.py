"""`TensorRecord`: one rank's part of one tensor, with everything that is needed to place it again.

    TensorRecord(array, (16, 32), TensorLayout((2, 4), (1, 0)), rank=5)

Every tensor in a checkpoint is one of these: it knows the shape of the whole, how the whole is split, and which rank
held this part. So files can be gathered or re-sliced for any other layout, without a strategy file.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.checks import Errors, path_text
from ...base.dtypes import plain_array
from ...base.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointTypeError,
    LayoutError,
    ParallelLabError,
    shorten,
)
from ...base.hooks import current_world
from ...layout.slices import is_split
from ...layout.tensor_layout import TensorLayout

CHECKPOINT = Errors(CheckpointTypeError, CheckpointError)
FILE = path_text("The name of a file, as str or path", empty=False, kinds=(str, os.PathLike))
FOLDER = path_text("The name of a folder, as str or path", kinds=(str, os.PathLike))
MAX_NAME_BYTES = 255  # as for file names: a name becomes one in tools that unpack checkpoints
MAX_AXES = 32  # dims of a tensor and of a device matrix; numpy's own limit was 32 for twenty years
MAX_DIM = 1 << 40
MAX_RANKS = 1 << 20
RESERVED = "__metadata__"  # safetensors keeps its own table under this name


def check_name(name: Any, where: str, error: type[ParallelLabError] = CheckpointError) -> str:
    """`name`, unless it leads out of a folder or hides something from a reader. Raises `error`."""
    plain = isinstance(name, str) and name.isprintable() and name not in ("", RESERVED)
    # isprintable has refused NUL, control characters and lone surrogates, so that the name can be encoded
    if not plain or len(name.encode()) > MAX_NAME_BYTES or any(part in name for part in ("/", "\\", "..")):
        allowed = f"1 to {MAX_NAME_BYTES} bytes of printable text without '/', '\\' and '..'"
        raise error(f"the name {shorten(name)} is not allowed", where=where, allowed=allowed)
    return name


def place_in(layout: TensorLayout | None, rank: int) -> int:
    """The place in a layout of `rank` of this process's world: a pipeline stage's layouts count its own ranks, from 0.

    A rank that the world does not have, or outside of one, is the place itself.
    """
    world = current_world()
    if not is_split(layout) or world is None or world.world_size % layout.device_num:
        return rank
    return rank % layout.device_num


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a stored tensor without reading its elements.

    dtype         numpy's name
    shape         of the part that is stored
    global_shape  of the whole tensor
    layout        how the whole is split; None: the part is the whole
    rank          the place in the layout that held the part (in a pipeline: in its stage); of a whole tensor, the rank
                  that wrote it
    """

    dtype: str
    shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    layout: TensorLayout | None
    rank: int

    def check(self, where: str, error: type[ParallelLabError]) -> None:
        """Raise `error` unless shape, global shape, layout and rank fit together."""
        for name, shape in (("shape", self.shape), ("global_shape", self.global_shape)):
            if len(shape) > MAX_AXES or any(type(n) is not int or not 0 <= n <= MAX_DIM for n in shape):
                allowed = f"At most {MAX_AXES} dims of 0 to {MAX_DIM} elements"
                raise error(f"{name} {shorten(shape)}", where=where, allowed=allowed)
        if type(self.rank) is not int or not 0 <= self.rank < MAX_RANKS:
            raise error(f"rank {shorten(self.rank)}", where=where, allowed=f"0 to {MAX_RANKS - 1}")
        if self.layout is None:
            if self.shape != self.global_shape:
                raise error(f"a part of shape {self.shape} of {self.global_shape}, and no layout", where=where)
            return
        if self.layout.partial:
            what, hint = f"{self.layout} has sums pending", "Reduce the tensor before it is saved"
            raise error(what, where=where, allowed="Complete values", hint=hint)
        try:
            part = self.layout.slice_shape(self.global_shape)
            self.layout.check_rank(self.rank)
        except LayoutError as found:
            raise error(str(found), where=where) from None
        if part != self.shape:
            allowed = f"{part}, by {self.layout} of {self.global_shape}"
            raise error(f"a part of shape {self.shape}", where=where, allowed=allowed)


@dataclass(frozen=True, eq=False)
class TensorRecord:
    """One rank's part of a tensor.

    array         the part; 0-d for a number
    global_shape  shape of the whole; default: the part is the whole
    layout        how the whole is split; None, or one that splits nothing: not at all;  rank: which holds the part
    own           other ranks that hold the same part may hold other values: statistics of a rank's own batches

    Raises CheckpointError if they do not fit together.
    """

    array: np.ndarray
    global_shape: tuple[int, ...] | None = None
    layout: TensorLayout | None = None
    rank: int = 0
    own: bool = False

    def __post_init__(self) -> None:
        array = plain_array(self.array, where="TensorRecord")
        object.__setattr__(self, "array", array)
        object.__setattr__(self, "global_shape", array.shape if self.global_shape is None else tuple(self.global_shape))
        self.info.check("TensorRecord", CheckpointError)

    @property
    def info(self) -> TensorInfo:
        """Everything but the elements."""
        return TensorInfo(str(self.array.dtype), self.array.shape, self.global_shape, self.layout, self.rank)

    @property
    def is_whole(self) -> bool:
        """Whether the part is the whole tensor."""
        return not is_split(self.layout)


def layout_to_plain(layout: TensorLayout | None) -> dict[str, Any] | None:
    """A layout as JSON holds it."""
    if layout is None:
        return None
    plain = {"device_matrix": list(layout.device_matrix), "tensor_map": [list(axes) for axes in layout.tensor_map]}
    return plain | ({"rows": list(layout.rows)} if layout.rows else {})


def layout_from_plain(data: Any, where: str) -> TensorLayout | None:
    """The layout that `layout_to_plain` wrote. Raises CheckpointCorrupt for anything else."""
    if data is None:
        return None
    what = f"layout {shorten(data)}"
    if not isinstance(data, dict) or set(data) - {"rows"} != {"device_matrix", "tensor_map"}:
        raise CheckpointCorrupt(what, where=where, allowed="device_matrix and tensor_map (uneven: and rows), or null")
    matrix, entries, rows = data["device_matrix"], data["tensor_map"], data.get("rows", [])
    lists = [matrix, rows, *entries] if isinstance(entries, list) else [None]
    are_ints = all(isinstance(one, list) and all(type(n) is int for n in one) for one in lists)
    if not are_ints or max(map(len, (entries, matrix, *entries))) > MAX_AXES:
        raise CheckpointCorrupt(what, where=where, allowed=f"Lists of ints, at most {MAX_AXES} axes")
    try:
        layout = TensorLayout(tuple(matrix), tuple(map(tuple, entries)), rows=tuple(rows))
    except LayoutError as found:
        raise CheckpointCorrupt(str(found), where=where) from None
    ranks = math.prod(layout.device_matrix)
    if ranks > MAX_RANKS:
        raise CheckpointCorrupt(f"a device matrix of {ranks} ranks", where=where, allowed=f"At most {MAX_RANKS}")
    return layout
