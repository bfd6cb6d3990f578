"""A rank's slice of a Parameter, before anything is compiled: `Parameter.init_data` and `Tensor.init_data`.

    w = Parameter(initializer("normal", [64, 32]), "w")
    w.init_data(([2, 4], [1, -1], [32, 32], 0, True, ""))       # rank 5 of 8 holds rows 32 to 63 of the whole

A layout is (device matrix, tensor map, slice shape, field size, whether slices are equal, group of an optimizer shard),
as `Cell.parameter_layout_dict` has it. Form and errors: MindSpore, Parameter.init_data. There every slice is
drawn by itself; here it is part of the whole draw, so that values do not depend on how many ranks there are.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from ...base.checks import instance, integer, is_int
from ...base.errors import ArgumentError, ArgumentTypeError, LayoutError, WorldError, shorten
from ...base.hooks import current_world
from ...base.origin import caller
from ...base.seeds import get_seed
from ...base.settings.current import frozen
from ...layout.slices import cut
from ...layout.tensor_layout import TensorLayout, canonical_axes, ranks_along

FORM = "(device matrix, tensor map, slice shape, field size, uniform split, optimizer shard group)"


def parameter_key(name: str) -> list[int]:
    """The seed of a parameter's initial values: (global seed, a number from its name)."""
    return [get_seed(), int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")]


def parameter_generator(name: str) -> np.random.Generator:
    """The generator of a parameter's initial values."""
    return np.random.default_rng(parameter_key(name))


def rule_of(parameter: Any) -> Any:
    """What draws a parameter's first values, with `draw(generator, shape)`; None: it was made from values."""
    return parameter._initial


class OnAnotherStage:
    """The rule of a Parameter whose values this rank does not have, because it lies on another pipeline stage: drawing
    raises.

    holders  the ranks that have them, for the error
    """

    def __init__(self, name: str, holders: str) -> None:
        self.name, self.holders = name, holders

    def __call__(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        hint = "Read it there, or load a checkpoint of all stages in a process of its own"
        what, allowed = f"parameter {self.name!r} is not on this rank", f"It lies on {self.holders}"
        raise WorldError(what, where=caller().place, allowed=allowed, hint=hint)


def is_on_another_stage(parameter: Any) -> bool:
    """Whether a Parameter's values are on ranks of another pipeline stage alone."""
    return parameter.has_init and isinstance(parameter._initial.draw, OnAnotherStage)


def drawn_slice(initial: Any, index: int | None, shape: Any) -> np.ndarray:
    """What `initial` draws for the slice of this number, of the whole's shape if none is given."""
    where = "init_data"
    number = 0 if index is None else integer(0)(where, "slice_index", index)
    shape = initial.shape if shape is None else instance((list, tuple), "A list of ints")(where, "shape", shape)
    sizes = tuple(integer(0)(where, "shape", n) for n in shape)
    return np.array(initial.draw(parameter_generator(f"slice {number}"), sizes), initial.dtype, order="C")


def hold_slice(parameter: Any, layout: Any) -> None:
    """Let a Parameter hold this rank's slice by a layout in this form. Raises ArgumentTypeError, ArgumentError."""
    rank = frozen().global_rank if current_world() is None else current_world().rank
    tensor_layout = _layout_of(layout, parameter.full_shape, rank)
    parameter.hold(cut(parameter.full().asnumpy(), tensor_layout, rank), tensor_layout)


def _layout_of(form: Any, shape: tuple[int, ...], rank: int) -> TensorLayout:
    """The TensorLayout of a form."""
    where, allowed = "Parameter.init_data", f"A tuple {FORM}"
    if not isinstance(form, tuple) or len(form) < 6:
        error = ArgumentError if isinstance(form, tuple) else ArgumentTypeError
        raise error(f"layout={shorten(form)}", where=where, allowed=allowed)
    matrix, entries, part, _, uniform, group = form[:6]
    lists = all(isinstance(each, (list, tuple)) for each in (matrix, entries, part))
    if not lists or not all(is_int(n) for n in (*matrix, *part)) or not isinstance(group, str):
        raise ArgumentTypeError(f"layout={shorten(form)}", where=where, allowed=allowed)
    if not uniform:
        raise ArgumentError("layout of a split in unequal parts", where=where, allowed="uniform_split=True")
    try:
        layout = TensorLayout(tuple(matrix), tuple(tuple(e) if isinstance(e, list) else e for e in entries))
        layout.check_rank(rank)
        stored = _shared(layout, group, rank) if group else layout
        parts = layout.slice_shape(shape), stored.slice_shape(shape)
    except (LayoutError, TypeError, ValueError) as error:
        hint = f"The whole has shape {shape}, this is rank {rank}"
        raise ArgumentError(f"layout={shorten(form)}: {error}", where=where, hint=hint) from None
    if tuple(part) not in parts:
        raise ArgumentError(f"slice shape {list(part)} of layout={shorten(form)}", where=where, allowed=f"{parts}")
    return stored


def _shared(layout: TensorLayout, group: str, rank: int) -> TensorLayout:
    """A slice's rows divided among its holders: "0-2-4-6", "4-" and the hash of this text, or the world's group."""
    copies = ranks_along(*canonical_axes(layout.device_matrix, layout.replica_axes), rank)
    whole = group.endswith("world_group") and len(copies) == layout.device_num
    ranks = copies if whole else tuple(map(int, group.split("-")))
    hashed = len(ranks) == 2 and ranks[0] == len(copies) and ranks[1] >= 2**32
    if (ranks != copies and not hashed) or not layout.ndim:
        raise LayoutError(f"group {group!r}", allowed=f"All ranks with the same slice: {layout.replicas(rank)}")
    first = layout.tensor_map[0] + tuple(sorted(layout.replica_axes, reverse=True))
    return TensorLayout(layout.device_matrix, (first, *layout.tensor_map[1:]))
