"""The passes, in order, as data: each is named, pure, `Draft -> Draft`, and leaves a note.

A lesson can run a part of the list, put its own pass in, and compare what comes out:

    steps = run_passes(draft, PASSES)          # ((name, draft after it), ...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..ir import Draft
from .differentiate import differentiate
from .follow import follow_gradients
from .loss_scale import scale_loss
from .parallelize import parallelize
from .replicate import replicate
from .strategies import choose_strategies
from .update import update_parameters

__all__ = ["DATA_PARALLEL_PASSES", "PASSES", "Pass", "follow_gradients", "run_passes", "scale_loss", "update_parameters"]

Pass = tuple[str, Callable[[Draft], Draft]]

PASSES: tuple[Pass, ...] = (("strategies", choose_strategies), ("parallelize", parallelize), ("differentiate", differentiate))
DATA_PARALLEL_PASSES: tuple[Pass, ...] = (("strategies", choose_strategies), ("replicate", replicate), ("differentiate", differentiate))


def run_passes(draft: Draft, passes: Iterable[Pass]) -> tuple[tuple[str, Draft], ...]:
    """The draft after each pass, in order: what a step-through view shows."""
    steps = []
    for name, apply_pass in passes:
        draft = apply_pass(draft)
        steps.append((name, draft))
    return tuple(steps)
