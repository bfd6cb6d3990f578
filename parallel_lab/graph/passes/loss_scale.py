"""Pass `loss_scale`: the scale of a loss scaler as a value of the program.

It stands before `differentiate`, which starts the chain of gradients with it; `update` divides by it, and lets it grow
or shrink.
"""

from __future__ import annotations

from dataclasses import replace

from ...layout.tensor_layout import TensorLayout
from ...ops.machine.state import LOSS_SCALE
from ..ir import Draft, Value, fresh_name


def scale_loss(draft: Draft) -> Draft:
    """Add the scalar states of the optimizer's loss scaler (an `nn.LossScaler`), float32 and equal on all ranks. Where
    the function multiplied its loss by the scale, an input holds it already.
    """
    scaler, by_hand = draft.training.optimizer.loss_scaler, draft.training.scale_input
    values, states = draft.value_table(), []
    for kind in scaler.scalar_state():
        label = by_hand if by_hand and kind == LOSS_SCALE else fresh_name(kind, values)
        values[label] = Value((), "float32", TensorLayout.replicated(draft.config.device_num, 0))
        states.append((label, "", kind))
    done = replace(draft, values=tuple(sorted(values.items())), states=(*draft.states, *states))
    by_function, by_chain = (
        "the loss is multiplied in the function itself",
        "gradients start from the scale instead of 1",
    )
    return done.noted("loss_scale", f"{scaler.rule}: {by_function if draft.graph.seeds else by_chain}")


def loss_scale_name(draft: Draft) -> str | None:
    """Name of the value that scales the loss; None without a loss scaler."""
    return next((name for name, _, kind in draft.states if kind == LOSS_SCALE), None)
