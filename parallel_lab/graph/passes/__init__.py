"""The passes, in order, as data: each is named, pure, `Draft -> Draft`, and leaves a note.

A lesson can run a part of the list, put its own pass in, and compare what comes out:

    steps = run_passes(draft, PASSES)          # ((name, draft after it), ...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..ir import Draft
from .differentiate import differentiate
from .follow import follow_gradients
from .fuse import fuse_messages
from .loss_scale import scale_loss
from .optimizer_group import group_updates
from .optimizer_shard import regather_parameters, shard_parameters
from .parallelize import parallelize
from .replicate import replicate
from .strategies import choose_strategies
from .update import update_parameters

__all__ = [
    "DATA_PARALLEL_PASSES",
    "PASSES",
    "Pass",
    "follow_gradients",
    "group_updates",
    "run_passes",
    "scale_loss",
    "update_parameters",
    "with_optimizer_shard",
]

Pass = tuple[str, Callable[[Draft], Draft]]

_FROM_GRADIENTS: tuple[Pass, ...] = (("differentiate", differentiate), ("fuse", fuse_messages))
PASSES: tuple[Pass, ...] = (("strategies", choose_strategies), ("parallelize", parallelize), *_FROM_GRADIENTS)
DATA_PARALLEL_PASSES: tuple[Pass, ...] = (("strategies", choose_strategies), ("replicate", replicate), *_FROM_GRADIENTS)


def with_optimizer_shard(passes: Iterable[Pass], *, level: str) -> tuple[Pass, ...]:
    """The passes with those of the optimizer parallel around `differentiate`.  level: "level1", "level2" or "level3"."""
    found: list[Pass] = []
    for one in passes:
        found += [("optimizer_shard", shard_parameters), one] if one[0] == "differentiate" else [one]
        if one[0] == "differentiate" and level == "level3":
            found.append(("regather", regather_parameters))
    return tuple(found)


def run_passes(draft: Draft, passes: Iterable[Pass]) -> tuple[tuple[str, Draft], ...]:
    """The draft after each pass, in order: what a step-through view shows."""
    steps = []
    for name, apply_pass in passes:
        draft = apply_pass(draft)
        steps.append((name, draft))
    return tuple(steps)
