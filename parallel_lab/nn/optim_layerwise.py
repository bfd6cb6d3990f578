"""Optimizers with a rate per parameter, from norms of the whole parameter: Lamb, and LARS around another optimizer. The base is in `optim.py`.

On a rank that holds a slice the norms are sums over the ranks with the other slices (`place.total`), so a cut parameter moves as on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .. import ops
from ..errors import ArgumentTypeError, message, shorten
from ..layout import TensorLayout
from ..ops.scaling import norm_ratio
from .amp import LossScaler
from .clip import GradientClip
from .optim import Optimizer, Params, Rate, State
from .optim_adaptive import MomentsBase
from .totals import Place, in_dtype_of, norm
from .weight_groups import check_grouping_in_context

__all__ = ["LARS", "Lamb"]


class Lamb(MomentsBase):
    """Adam with decoupled weight decay whose step is as long as the parameter (You and others 2020, "Large batch optimization for deep learning").

    m = beta1 * m + (1 - beta1) * gradient,  v = beta2 * v + (1 - beta2) * gradient^2
    u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * p       in step t = 1, 2, ...
    p = p - learning_rate * |p| / |u| * u               |p| / |u| is 1 where one of these L2 norms is 0
    """

    state_names = ("lamb_m", "lamb_v")
    can_be_grouped = True

    def __init__(
        self,
        params: Params,
        learning_rate: Rate,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        clip: GradientClip | None = None,
        loss_scaler: LossScaler | None = None,
    ) -> None:
        super().__init__(params, learning_rate, weight_decay, clip=clip, loss_scaler=loss_scaler)
        self._set_moments(beta1, beta2, eps)

    def scalar_state(self) -> dict[str, float]:
        return {"beta1_power": 1.0, "beta2_power": 1.0}

    def update_scalars(self, scalars: State) -> State:
        return {"beta1_power": ops.mul(scalars["beta1_power"], self.beta1), "beta2_power": ops.mul(scalars["beta2_power"], self.beta2)}

    def update(
        self, parameter: Any, gradient: Any, state: State, scalars: State, learning_rate: Any, place: Place | None = None
    ) -> tuple[Any, State]:
        place = Place("", self.weight_decay) if place is None else place
        m, v = self._moved(state["lamb_m"], state["lamb_v"], gradient)
        mean, spread = ops.div(m, ops.sub(1.0, scalars["beta1_power"])), ops.div(v, ops.sub(1.0, scalars["beta2_power"]))
        step = self._decayed(parameter, ops.div(mean, ops.add(ops.sqrt(spread), self.eps)), place)
        ratio = norm_ratio(norm(parameter, place, f"{place.name!r} for Lamb's step"), norm(step, place, f"the step of {place.name!r} for Lamb"))
        return ops.sub(parameter, ops.mul(step, ops.mul(learning_rate, ratio))), {"lamb_m": m, "lamb_v": v}


class LARS(Optimizer):
    """Another optimizer whose gradients are brought to the size of their parameters (You, Gitman and Ginsburg 2017).

    rate     = coefficient * |p| / (|gradient| + weight_decay * |p| + epsilon)
    gradient = rate * (gradient + weight_decay * p)     with use_clip: min(rate / learning_rate, 1) in place of rate

    optimizer    the optimizer that then takes the step; its weight decay, groups, clipping and loss scale are used here, and its own rule runs
                 without weight decay. It is not changed
    lars_filter  function of a Parameter: whether this is done to it (default: not if its name contains "LayerNorm" or "bias"). The others keep their
                 gradient and have no weight decay

    A parameter that is all zeros stays so: leave such parameters out with the filter. Formula: MindSpore, nn.LARS, with epsilon in the denominator.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        epsilon: float = 1e-5,
        coefficient: float = 1e-3,
        use_clip: bool = False,
        lars_filter: Callable[[Any], bool] = lambda x: "LayerNorm" not in x.name and "bias" not in x.name,
    ) -> None:
        # the base's __init__ is for optimizers that are given parameters; this one shares those of the optimizer, and its rates
        if not isinstance(optimizer, Optimizer) or isinstance(optimizer, LARS):
            raise ArgumentTypeError(message(f"optimizer={shorten(optimizer)}", where="LARS", allowed="Another optimizer, such as nn.Momentum(...)"))
        if not callable(lars_filter):
            raise ArgumentTypeError(message(f"lars_filter={shorten(lars_filter)}", where="LARS", allowed="A function of a Parameter"))
        self.optimizer = optimizer
        self.epsilon = self._number("epsilon", epsilon, least=0)
        self.coefficient = self._number("coefficient", coefficient, above=0)
        self.use_clip = self._flag("use_clip", use_clip)
        for name in ("parameters", "weight_decay", "loss_scale", "clip", "loss_scaler", "state_names", "_rates", "_settings_by_name", "_groups"):
            setattr(self, name, getattr(optimizer, name))
        self.adapted = frozenset(p.name for p in self.parameters if lars_filter(p))
        self.global_step = 0
        self._states: list[State] | None = None
        self._scalars: dict[np.dtype, State] = {}
        self.state_layouts: dict[str, TensorLayout] = {}
        self.state_owners: dict[str, int] = {}
        check_grouping_in_context(self)

    def initial_state(self, parameter: Any) -> dict[str, np.ndarray]:
        return self.optimizer.initial_state(parameter)

    def scalar_state(self) -> dict[str, float]:
        return self.optimizer.scalar_state()

    def update_scalars(self, scalars: State) -> State:
        return self.optimizer.update_scalars(scalars)

    def update(
        self, parameter: Any, gradient: Any, state: State, scalars: State, learning_rate: Any, place: Place | None = None
    ) -> tuple[Any, State]:
        place = Place("", self.weight_decay) if place is None else place
        if not place.name or place.name in self.adapted:
            size = norm(parameter, place, f"{place.name!r} for LARS")
            slope = norm(gradient, place, f"the gradient of {place.name!r} for LARS")
            below = ops.add(ops.add(slope, ops.mul(size, place.weight_decay)), self.epsilon)
            rate = ops.div(ops.mul(size, self.coefficient), below)
            if self.use_clip:
                rate = ops.minimum(ops.div(rate, learning_rate), 1.0)
            gradient = ops.mul(self._decayed(parameter, gradient, place), in_dtype_of(gradient, rate))
        return self.optimizer.update(parameter, gradient, state, scalars, learning_rate, replace(place, weight_decay=0.0))

    def _settings(self) -> dict[str, Any]:
        left_out = [p.name for p in self.parameters if p.name not in self.adapted]
        own = {"epsilon": self.epsilon, "coefficient": self.coefficient, "use_clip": self.use_clip}
        return {**own, "left_out": f"({', '.join(left_out)})", "optimizer": self.optimizer.rule}

    @property
    def rule(self) -> str:
        """The rule in words; that of the optimizer inside names clipping, loss scaler and groups."""
        return f"LARS({', '.join(f'{k}={v}' for k, v in self._settings().items())})"

    def __repr__(self) -> str:
        shown = {**self._settings(), "optimizer": self.optimizer}
        return f"LARS({', '.join(f'{k}={v}' for k, v in shown.items())})"
