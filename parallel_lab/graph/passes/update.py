"""Pass `update`: the optimizer's rule, traced on one rank's slices.

Optimizer states are cut as their parameter is, so the update needs no communication. Learning rate and scalar states (such as Adam's beta powers) are
values of the program too, so that they can change without compiling again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import TraceError, message
from ...layout import TensorLayout
from ...origin import Origin
from ..ir import Draft, Value, fresh_name
from .differentiate import LocalRecorder

__all__ = ["LEARNING_RATE", "update_parameters"]

LEARNING_RATE = "learning_rate"


def update_parameters(draft: Draft, optimizer: Any, parameters: dict[str, Any]) -> Draft:
    """Add the update program.

    optimizer   an `nn.Optimizer`: `parameters`, `update(parameter, gradient, state, scalars, learning_rate)`, `initial_state`, `scalar_state`
    parameters  the network's Parameters by name

    Only the optimizer's own parameters are updated. Raises TraceError if none of them has a gradient.
    """
    own = {p.name for p in optimizer.parameters}
    if not any(name in own for name, _ in draft.gradients):
        trained = ", ".join(name for name, _ in draft.gradients)
        raise TraceError(message(f"the optimizer has {', '.join(sorted(own))}", where="compile", allowed=f"The network's parameters: {trained}"))
    values = draft.value_table()
    rec = LocalRecorder(values, {})
    rec.suffix = ".update"
    device_num = draft.config.device_num
    kind = type(optimizer).__name__
    rec.origin = Origin(scope=f"Default/optimizer-{kind}", made_by="update")
    assignments: list[tuple[str, str]] = []
    states: list[tuple[str, str, str]] = []
    scalars: dict[tuple[str, str], Any] = {}
    labels: dict[tuple[str, str], str] = {}

    def scalar(name: str, dtype: str) -> Any:
        """A scalar state in the dtype of the parameters that use it; one program value per dtype."""
        if (name, dtype) not in labels:
            label = labels[name, dtype] = fresh_name(f"{name}:{dtype}", values)
            values[label] = Value((), dtype, TensorLayout.replicated(device_num, 0))
            states.append((label, "", name))
        return rec.value(labels[name, dtype])

    with rec:
        for name, gradient in draft.gradients:
            if name not in own:
                continue
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
            state, targets = {}, {}
            for s, initial in optimizer.initial_state(parameter).items():
                # a parameter may itself be called "moments.w"
                label = targets[s] = fresh_name(f"{s}.{name}", values)
                values[label] = Value(shape, str(np.asarray(initial).dtype), layout)
                states.append((label, name, s))
                state[s] = rec.value(label)
            rate = scalar(LEARNING_RATE, dtype)
            known = {s: v for (s, d), v in scalars.items() if s and d == dtype}
            new_parameter, new_state = optimizer.update(rec.value(name), rec.value(gradient), state, known, rate)
            for target, new in [(name, new_parameter), *((targets[s], v) for s, v in new_state.items())]:
                if new.name != target:
                    values[new.name] = Value(shape, values[new.name].dtype, layout)
                    assignments.append((target, new.name))
    done = draft.with_program("update", tuple(rec.instrs), values, assignments=tuple(assignments), states=tuple(states), optimizer=optimizer.rule)
    return done.noted("update", f"{kind}: {len(rec.instrs)} instructions, {len(states)} states")
