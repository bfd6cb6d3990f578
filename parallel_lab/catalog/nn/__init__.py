"""Layers, losses, schedules and optimizer rules: what a file here defines under a public name is a name of `nn`.

Not among these: `pytorch_optimizers`, those of `mindspore.mint.optim`; `custom`, operators of one's own; `forms`, what
layers are made with; `cell_state`, methods of Cell; `optimizer_names`, attributes of Optimizer; `initial_values`, rules
of `initializer`.
"""

from types import ModuleType as _ModuleType
from typing import Any as _Any

from . import (  # noqa: F401
    activations,
    cell_state,
    clipping,
    convolutions,
    dropout,
    embedding,
    forms,
    initial_values,
    lars,
    losses,
    lr_schedules,
    margin_losses,
    normalization,
    optimizer_names,
    optimizer_rules,
    padding,
    pooling,
    recurrent,
    small_layers,
    transformer,
    wrap,
)

# second names, which MindSpore has for a class and an object of other rooms
_ALSO = {"GradAccumulationCell": wrap.GradAccumulationCell, "Pipeline": wrap.Pipeline}

_APART = (cell_state, forms, initial_values, optimizer_names)  # no names of `nn`
LAYERS: dict[str, _Any] = _ALSO | {
    name: value
    for file in [value for value in globals().values() if isinstance(value, _ModuleType) and value not in _APART]
    for name, value in vars(file).items()
    if not name.startswith("_") and getattr(value, "__module__", "") == file.__name__
}
