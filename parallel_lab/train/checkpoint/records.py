"""`TensorRecord`: one rank's part of one tensor, with everything that is needed to put it back where it belongs.

    TensorRecord(array, (16, 32), TensorLayout((2, 4), (1, 0)), rank=5)

Every tensor in a checkpoint is one of these: it knows the shape of the whole, how the whole is cut, and which rank held
this part. A set of files can therefore be gathered, or re-sliced for any other layout and number of ranks, without a
strategy file beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.checks import Errors
from ...base.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointTypeError,
    LayoutError,
    ParallelLabError,
    message,
    shorten,
)
from ...layout.slices import is_cut
from ...layout.tensor_layout import TensorLayout

CHECKPOINT = Errors(CheckpointTypeError, CheckpointError)
MAX_NAME_BYTES = 255  # as for file names: a name becomes one in tools that unpack checkpoints
MAX_AXES = 32  # dims of a tensor and of a device matrix; numpy's own limit was 32 for twenty years
MAX_DIM = 1 << 40
MAX_RANKS = 1 << 20
RESERVED = "__metadata__"  # safetensors keeps its own table under this name


def check_name(name: Any, where: str, error: type[ParallelLabError] = CheckpointError) -> str:
    """`name`, if a tensor in a checkpoint may be called so. Raises `error`: a name may not lead out of a folder, nor
    hide anything from a reader.
    """
    allowed = f"1 to {MAX_NAME_BYTES} bytes of printable text without '/', '\\' and '..'"
    if not isinstance(name, str) or not name or name == RESERVED or not name.isprintable():
        raise error(message(f"the name {shorten(name)} is not allowed", where=where, allowed=allowed))
    # isprintable has refused NUL, control characters and lone surrogates, so that the name can be encoded
    if len(name.encode()) > MAX_NAME_BYTES or "/" in name or "\\" in name or ".." in name:
        raise error(message(f"the name {shorten(name)} is not allowed", where=where, allowed=allowed))
    return name


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a stored tensor without reading its elements.

    dtype         numpy's name
    shape         of the part that is stored
    global_shape  of the whole tensor
    layout        how the whole is cut; None: the part is the whole
    rank          the rank of the layout that held the part; of a whole tensor, the rank that wrote it
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
                raise error(
                    message(
                        f"{name} {shorten(shape)}",
                        where=where,
                        allowed=f"At most {MAX_AXES} dims of 0 to {MAX_DIM} elements",
                    )
                )
        if type(self.rank) is not int or not 0 <= self.rank < MAX_RANKS:
            raise error(message(f"rank {shorten(self.rank)}", where=where, allowed=f"0 to {MAX_RANKS - 1}"))
        if self.layout is None:
            if self.shape != self.global_shape:
                raise error(message(f"a part of shape {self.shape} of {self.global_shape}, and no layout", where=where))
            return
        if self.layout.partial:
            what = f"{self.layout} has sums pending"
            what = message(what, where=where, allowed="Complete values", hint="Reduce the tensor before it is saved")
            raise error(what)
        try:
            part = self.layout.slice_shape(self.global_shape)
            self.layout.check_rank(self.rank)
        except LayoutError as found:
            raise error(message(str(found), where=where)) from None
        if part != self.shape:
            raise error(
                message(
                    f"a part of shape {self.shape}",
                    where=where,
                    allowed=f"{part}, by {self.layout} of {self.global_shape}",
                )
            )


@dataclass(frozen=True, eq=False)
class TensorRecord:
    """One rank's part of a tensor.

    array         the part; 0-d for a number
    global_shape  shape of the whole; default: the part is the whole
    layout        how the whole is cut; None, or a layout that cuts nothing: not at all
    rank          the rank that holds the part

    Raises CheckpointError if they do not fit together.
    """

    array: np.ndarray
    global_shape: tuple[int, ...] | None = None
    layout: TensorLayout | None = None
    rank: int = 0

    def __post_init__(self) -> None:
        array = np.asarray(self.array)
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
        return not is_cut(self.layout)


def layout_to_plain(layout: TensorLayout | None) -> dict[str, Any] | None:
    """A layout as JSON holds it."""
    return (
        None
        if layout is None
        else {"device_matrix": list(layout.device_matrix), "tensor_map": [list(axes) for axes in layout.tensor_map]}
    )


def layout_from_plain(data: Any, where: str, error: type[ParallelLabError] = CheckpointCorrupt) -> TensorLayout | None:
    """The layout that `layout_to_plain` wrote. Raises `error` for anything else."""
    if data is None:
        return None
    if not isinstance(data, dict) or set(data) != {"device_matrix", "tensor_map"}:
        what = message(f"layout {shorten(data)}", where=where, allowed="A device_matrix and a tensor_map, or null")
        raise error(what)
    matrix, entries = data["device_matrix"], data["tensor_map"]
    if (
        not _is_ints(matrix)
        or len(matrix) > MAX_AXES
        or not isinstance(entries, list)
        or not all(_is_ints(axes) for axes in entries)
    ):
        raise error(message(f"layout {shorten(data)}", where=where, allowed=f"Lists of ints, at most {MAX_AXES} axes"))
    try:
        layout = TensorLayout(tuple(matrix), tuple(map(tuple, entries)))
    except LayoutError as found:
        raise error(message(str(found), where=where)) from None
    if math.prod(layout.device_matrix) > MAX_RANKS:
        raise error(
            message(
                f"a device matrix of {math.prod(layout.device_matrix)} ranks",
                where=where,
                allowed=f"At most {MAX_RANKS}",
            )
        )
    return layout


def _is_ints(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int for n in value)
