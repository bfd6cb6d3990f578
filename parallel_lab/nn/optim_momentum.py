"""Optimizers that go down the gradient, with or without momentum: SGD and Momentum. Formulas and defaults: MindSpore, nn.SGD, nn.Momentum."""

from __future__ import annotations

from typing import Any

from .. import ops
from ..errors import ArgumentError, message
from ..ops.scaling import descend
from .amp import LossScaler
from .clip import GradientClip
from .optim import Optimizer, Params, Rate, State
from .totals import Place

__all__ = ["SGD", "Momentum"]


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if it is above 0.

    g = gradient + weight_decay * p
    v = g in the first step, then momentum * v + (1 - dampening) * g
    p = p - learning_rate * v           with nesterov: p - learning_rate * (g + momentum * v)

    Without momentum there is no v. nesterov needs momentum above 0 and no dampening.
    """

    def __init__(
        self,
        params: Params,
        learning_rate: Rate = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        loss_scale: float = 1.0,
        *,
        clip: GradientClip | None = None,
        loss_scaler: LossScaler | None = None,
    ) -> None:
        super().__init__(params, learning_rate, weight_decay, loss_scale, clip=clip, loss_scaler=loss_scaler)
        self.momentum = self._number("momentum", momentum, least=0)
        self.dampening = self._number("dampening", dampening, least=0)
        self.nesterov = self._flag("nesterov", nesterov)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ArgumentError(
                message(f"nesterov=True with momentum={momentum} and dampening={dampening}", where="SGD", allowed="Momentum above 0 and dampening 0")
            )
        self.state_names = ("accum",) if self.momentum else ()

    def scalar_state(self) -> dict[str, float]:
        return {"step": 0.0} if self.momentum and self.dampening else {}

    def update_scalars(self, scalars: State) -> State:
        return {name: ops.add(value, 1.0) for name, value in scalars.items()}

    def update(
        self, parameter: Any, gradient: Any, state: State, scalars: State, learning_rate: Any, place: Place | None = None
    ) -> tuple[Any, State]:
        step = gradient = self._decayed(parameter, gradient, place)
        if self.momentum:
            kept = gradient
            if self.dampening:
                # first: 1 in step 1 and 0 later; v starts at 0, so that an undampened gradient gives v = g there
                first = ops.maximum(ops.sub(2.0, scalars["step"]), 0.0)
                kept = ops.mul(gradient, ops.sub(1.0, ops.mul(ops.sub(1.0, first), self.dampening)))
            step = velocity = ops.add(ops.mul(state["accum"], self.momentum), kept)
            state = {"accum": velocity}
            if self.nesterov:
                step = ops.add(gradient, ops.mul(velocity, self.momentum))
        return descend(parameter, step, learning_rate), dict(state)

    def _settings(self) -> dict[str, Any]:
        return {"momentum": self.momentum, "dampening": self.dampening, "nesterov": self.nesterov, **super()._settings()}


class Momentum(Optimizer):
    """Gradient descent with momentum.

    g = gradient + weight_decay * p
    v = momentum * v + g
    p = p - learning_rate * v           with use_nesterov: p - learning_rate * (g + momentum * v)
    """

    state_names = ("moments",)

    def __init__(
        self,
        params: Params,
        learning_rate: Rate,
        momentum: float,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        use_nesterov: bool = False,
        *,
        clip: GradientClip | None = None,
        loss_scaler: LossScaler | None = None,
    ) -> None:
        super().__init__(params, learning_rate, weight_decay, loss_scale, clip=clip, loss_scaler=loss_scaler)
        self.momentum = self._number("momentum", momentum, least=0)
        self.use_nesterov = self._flag("use_nesterov", use_nesterov)

    def update(
        self, parameter: Any, gradient: Any, state: State, scalars: State, learning_rate: Any, place: Place | None = None
    ) -> tuple[Any, State]:
        gradient = self._decayed(parameter, gradient, place)
        step = velocity = ops.add(ops.mul(state["moments"], self.momentum), gradient)
        if self.use_nesterov:
            step = ops.add(gradient, ops.mul(velocity, self.momentum))
        return descend(parameter, step, learning_rate), {"moments": velocity}

    def _settings(self) -> dict[str, Any]:
        return {"momentum": self.momentum, "use_nesterov": self.use_nesterov, **super()._settings()}
