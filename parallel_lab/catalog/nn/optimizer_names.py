"""Further attributes of `Optimizer` that a `construct` written by hand reads, as MindSpore's base has them.

    self.hyper_map(partial(rule, self.get_lr()), self.weight_decay, self.parameters, self.moments1, gradients,
                   self.decay_flags, self.optim_filter)

Sources: MindSpore 1.9 and 2.6, nn/optim/optimizer.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...nn.optim.held_parameters import HeldParameters
from ...nn.tensor.tensor import Tensor
from ...ops.machine.registry import OPS
from .forms import HyperMap


def _each(value: Any) -> Callable[[Any], tuple[Any, ...]]:
    return lambda self: (value,) * len(self.parameters)


def _add(parameter: Any, value: Any) -> Any:
    return OPS["assign_add"](parameter, value)


HeldParameters.further |= {
    "param_length": lambda self: len(self.parameters),
    "decay_flags": lambda self: tuple(isinstance(s.weight_decay, str) or s.weight_decay > 0 for s in self._settings),
    "dynamic_weight_decay": lambda self: bool(self._decays),
    "params": lambda self: self.parameters,
    "_parameters": lambda self: self.parameters,
    "group_params": lambda self: list(self.parameters),
    "group_lr": lambda self: self.get_lr_parameter(list(self.parameters)),
    "group_weight_decay": lambda self: list(self._factors()),
    "weight_decay_tensor": lambda self: self.get_weight_decay(),
    "weight_decay_tensor_tuple": lambda self: tuple(Tensor(factor, np.float32) for factor in self._factors()),
    "exec_weight_decay": lambda self: any(self.decay_flags),
    "grad_centralization_flags": lambda self: tuple(setting.centralized for setting in self._settings),
    "need_scale": lambda self: self.loss_scale != 1,
    "reciprocal_scale": lambda self: Tensor(1 / self.loss_scale, np.float32),
    # which parameters this rank updates: all, since a step of its own is not shared out among ranks
    "optim_filter": _each(True),
    "ps_parameters": _each(False),
    "cache_enable": _each(False),
    "use_parallel": lambda self: False,
    "unique": lambda self: True,
    "map_": lambda self: HyperMap(),
    "hyper_map": lambda self: HyperMap(),
    "map_reverse": lambda self: HyperMap(reverse=True),
    "hyper_map_reverse": lambda self: HyperMap(reverse=True),
    "assignadd": lambda self: _add,
    "global_step_increase_tensor": lambda self: Tensor(1, np.int32),
    "broadcast_params": lambda self: lambda results: results,
    "_is_dynamic_lr_or_weight_decay": lambda self: lambda: self.has_schedule,
    "_grad_sparse_indices_deduplicate": lambda self: lambda gradients: gradients,
}
