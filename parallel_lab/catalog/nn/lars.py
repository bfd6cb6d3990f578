"""`LARS`: a rate per parameter, from norms of the whole parameter (`place.total`), around another optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...base.checks import flag, function, number
from ...base.errors import ArgumentTypeError, shorten
from ...nn.cell import Cell
from ...nn.optim.global_norm import in_dtype_of, norm
from ...nn.optim.optimizer import Optimizer, State, plain_number
from ...ops.elementwise import add, div, minimum, mul


class LARS(Optimizer):
    """Another optimizer whose gradients are brought to the size of their parameters (You, Gitman and Ginsburg 2017).

    rate     = coefficient * |p| / (|gradient| + weight_decay * |p| + epsilon)
    gradient = rate * (gradient + weight_decay * p)     with use_clip: min(rate / learning_rate, 1) instead of rate

    optimizer    the optimizer that then takes the step; its weight decay, groups, clipping and loss scale are used
                 here, and its own rule runs without weight decay. It is not changed
    lars_filter  function of a Parameter: whether this is done to it (default: not if its name contains "LayerNorm" or
                 "bias"). The others keep their gradient and have no weight decay

    A parameter that is all zeros stays so: omit such parameters with the filter. Formula: MindSpore, nn.LARS.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        epsilon: float = 1e-5,
        coefficient: float = 1e-3,
        use_clip: bool = False,
        lars_filter: Callable[[Any], bool] = lambda x: "LayerNorm" not in x.name and "bias" not in x.name,
    ) -> None:
        # not the base's __init__, which takes parameters: this one shares the optimizer's, and its rates
        if not isinstance(optimizer, Optimizer) or isinstance(optimizer, LARS):
            allowed = "Another optimizer, such as nn.Momentum(...)"
            raise ArgumentTypeError(f"optimizer={shorten(optimizer)}", where="LARS", allowed=allowed)
        function("A function of a Parameter")("LARS", "lars_filter", lars_filter)
        Cell.__init__(self, auto_prefix=False)
        self.optimizer = optimizer
        self.epsilon = number(0)("LARS", "epsilon", plain_number(epsilon))
        self.coefficient = number(0, above=True)("LARS", "coefficient", plain_number(coefficient))
        self.use_clip = flag("LARS", "use_clip", use_clip)
        given = ("parameters", "weight_decay", "_decay", "loss_scale", "clip", "loss_scaler", "state_names")
        for name in (*given, "_rates", "_decays", "_settings", "_groups"):
            self.__dict__[name] = getattr(optimizer, name)
        # by position: a Cell that takes the network later changes the names
        self.adapted = frozenset(i for i, p in enumerate(self.parameters) if lars_filter(p))
        self._begin()

    def initial_state(self, parameter: Any) -> dict[str, np.ndarray]:
        return self.optimizer.initial_state(parameter)

    def scalar_state(self) -> dict[str, float]:
        return self.optimizer.scalar_state()

    def update_scalars(self, scalars: State) -> State:
        return self.optimizer.update_scalars(scalars)

    def update(self, parameter, gradient, state, scalars, learning_rate, place=None):
        place = self.own_place() if place is None else place
        if not place.name or self._number(place.name) in self.adapted:
            size = norm(parameter, place, f"{place.name!r} for LARS")
            slope = norm(gradient, place, f"the gradient of {place.name!r} for LARS")
            below = add(add(slope, mul(size, place.weight_decay)), self.epsilon)
            rate = div(mul(size, self.coefficient), below)
            if self.use_clip:
                rate = minimum(div(rate, learning_rate), 1.0)
            gradient = mul(self._decayed(parameter, gradient, place), in_dtype_of(gradient, rate))
        place = replace(place, weight_decay=0.0)
        return self.optimizer.update(parameter, gradient, state, scalars, learning_rate, place)

    def _shown(self) -> dict[str, Any]:
        left_out = [p.name for i, p in enumerate(self.parameters) if i not in self.adapted]
        own = {"epsilon": self.epsilon, "coefficient": self.coefficient, "use_clip": self.use_clip}
        return {**own, "left_out": f"({', '.join(left_out)})", "optimizer": self.optimizer.rule}

    @property
    def rule(self) -> str:
        """The rule in words; that of the optimizer inside names clipping, loss scaler and groups."""
        return f"LARS({', '.join(f'{k}={v}' for k, v in self._shown().items())})"

    def __repr__(self) -> str:
        shown = {**self._shown(), "optimizer": self.optimizer}
        return f"LARS({', '.join(f'{k}={v}' for k, v in shown.items())})"
