"""Pass `loss_scale`: the scale of a loss scaler as a value of the program.

It stands before `differentiate`, which starts the chain of gradients with it; `update` divides by it, and lets it grow or shrink.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...layout import TensorLayout
from ...nn.amp import LOSS_SCALE
from ..ir import Draft, Value, fresh_name

__all__ = ["loss_scale_name", "scale_loss"]


def scale_loss(draft: Draft, scaler: Any) -> Draft:
    """Add the scalar states of `scaler` (an `nn.LossScaler`), float32 and equal on all ranks."""
    values, states = draft.value_table(), []
    for kind in scaler.scalar_state():
        label = fresh_name(kind, values)
        values[label] = Value((), "float32", TensorLayout.replicated(draft.config.device_num, 0))
        states.append((label, "", kind))
    done = replace(draft, values=tuple(sorted(values.items())), states=(*draft.states, *states))
    return done.noted("loss_scale", f"{scaler.rule}: gradients start from the scale instead of 1")


def loss_scale_name(draft: Draft) -> str | None:
    """Name of the value that scales the loss; None without a loss scaler."""
    return next((name for name, _, kind in draft.states if kind == LOSS_SCALE), None)
