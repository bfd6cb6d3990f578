"""Pass `update`: the optimizer's rule, traced on one rank's slices.

Optimizer states are cut as their parameter is, so the update needs no communication. Learning rate and scalar states (such as Adam's beta powers) are
values of the program too, so that they can change without compiling again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...layout import TensorLayout
from ...origin import Origin
from ..ir import Draft, Value
from .differentiate import LocalRecorder

__all__ = ["LEARNING_RATE", "update_parameters"]

LEARNING_RATE = "learning_rate"


def update_parameters(draft: Draft, optimizer: Any, parameters: dict[str, Any]) -> Draft:
    """Add the update program.

    optimizer   an `nn.Optimizer`: `update(parameter, gradient, state, scalars, learning_rate)`, `initial_state`, `scalar_state`
    parameters  the network's Parameters by name
    """
    values = draft.value_table()
    rec = LocalRecorder(values, {})
    rec.suffix = ".update"
    device_num = draft.config.device_num
    kind = type(optimizer).__name__
    rec.origin = Origin(scope=f"Default/optimizer-{kind}", made_by="update")
    assignments: list[tuple[str, str]] = []
    states: list[tuple[str, str, str]] = []
    scalars: dict[tuple[str, str], Any] = {}

    def scalar(name: str, dtype: str) -> Any:
        """A scalar state in the dtype of the parameters that use it; one program value per dtype."""
        label = f"{name}:{dtype}"
        if label not in values:
            values[label] = Value((), dtype, TensorLayout.replicated(device_num, 0))
            states.append((label, "", name))
        return rec.value(label)

    with rec:
        for name, gradient in draft.gradients:
            parameter = parameters[name]
            dtype, layout, shape = values[name].dtype, values[name].layout, values[name].shape
            rec.name = name
            if not any(d == dtype for _, d in scalars):
                given = {s: scalar(s, dtype) for s in optimizer.scalar_state()}
                rec.name = "optimizer"
                stepped = optimizer.update_scalars(given) if given else {}
                rec.name = name
                for s, new in stepped.items():
                    scalars[s, dtype] = new
                    if new.name != given[s].name:
                        assignments.append((given[s].name, new.name))
                scalars["", dtype] = None
            state = {}
            for s, initial in optimizer.initial_state(parameter).items():
                label = f"{s}.{name}"
                values[label] = Value(shape, str(np.asarray(initial).dtype), layout)
                states.append((label, name, s))
                state[s] = rec.value(label)
            rate = scalar(LEARNING_RATE, dtype)
            known = {s: v for (s, d), v in scalars.items() if s and d == dtype}
            new_parameter, new_state = optimizer.update(rec.value(name), rec.value(gradient), state, known, rate)
            for target, new in [(name, new_parameter), *((f"{s}.{name}", v) for s, v in new_state.items())]:
                if new.name != target:
                    values[new.name] = Value(shape, values[new.name].dtype, layout)
                    assignments.append((target, new.name))
    done = draft.with_program("update", tuple(rec.instrs), values, assignments=tuple(assignments), states=tuple(states))
    return done.noted("update", f"{kind}: {len(rec.instrs)} instructions, {len(states)} states")
