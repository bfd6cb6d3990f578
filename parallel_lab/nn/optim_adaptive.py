"""Optimizers that give every element a rate of its own: Adam, AdamWeightDecay, RMSProp, Adagrad. The base is in `optim.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops
from ..errors import ArgumentError, message
from ..ops.scaling import descend
from .amp import LossScaler
from .clip import GradientClip
from .optim import Optimizer, Params, Rate, State
from .totals import Place

__all__ = ["Adagrad", "Adam", "AdamWeightDecay", "RMSProp"]


class MomentsBase(Optimizer):
    """What the two Adams share: betas, eps, and the running means m of the gradient and v of its square."""

    def _set_moments(self, beta1: float, beta2: float, eps: float) -> None:
        self.beta1 = self._number("beta1", beta1, above=0, below=1)
        self.beta2 = self._number("beta2", beta2, above=0, below=1)
        self.eps = self._number("eps", eps, above=0)

    def _moved(self, m: Any, v: Any, gradient: Any) -> tuple[Any, Any]:
        rest1, rest2 = rest_of(self.beta1, gradient), rest_of(self.beta2, gradient)
        return ops.add(ops.mul(m, self.beta1), ops.mul(gradient, rest1)), ops.add(ops.mul(v, self.beta2), ops.mul(ops.square(gradient), rest2))

    def _settings(self) -> dict[str, Any]:
        return {"beta1": self.beta1, "beta2": self.beta2, "eps": self.eps, **super()._settings()}


class Adam(MomentsBase):
    """Adam (Kingma and Ba 2015, the faster form at the end of section 2).

    g = gradient + weight_decay * p
    m = beta1 * m + (1 - beta1) * g,  v = beta2 * v + (1 - beta2) * g^2
    p = p - learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps)      in step t = 1, 2, ...

    use_locking   accepted for MindSpore's sake, without effect
    use_nesterov  beta1 * m + (1 - beta1) * g takes the place of m in the last line
    """

    state_names = ("moment1", "moment2")

    def __init__(
        self,
        params: Params,
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        use_locking: bool = False,
        use_nesterov: bool = False,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        *,
        clip: GradientClip | None = None,
        loss_scaler: LossScaler | None = None,
    ) -> None:
        super().__init__(params, learning_rate, weight_decay, loss_scale, clip=clip, loss_scaler=loss_scaler)
        self._set_moments(beta1, beta2, eps)
        self._flag("use_locking", use_locking)
        self.use_nesterov = self._flag("use_nesterov", use_nesterov)

    def scalar_state(self) -> dict[str, float]:
        return {"beta1_power": 1.0, "beta2_power": 1.0}

    def update_scalars(self, scalars: State) -> State:
        return {"beta1_power": ops.mul(scalars["beta1_power"], self.beta1), "beta2_power": ops.mul(scalars["beta2_power"], self.beta2)}

    def update(
        self, parameter: Any, gradient: Any, state: State, scalars: State, learning_rate: Any, place: Place | None = None
    ) -> tuple[Any, State]:
        gradient = self._decayed(parameter, gradient, place)
        m, v = self._moved(state["moment1"], state["moment2"], gradient)
        correction = ops.div(ops.sqrt(ops.sub(1.0, scalars["beta2_power"])), ops.sub(1.0, scalars["beta1_power"]))
        ahead = ops.add(ops.mul(m, self.beta1), ops.mul(gradient, rest_of(self.beta1, gradient))) if self.use_nesterov else m
        step = ops.div(ops.mul(ahead, ops.mul(learning_rate, correction)), ops.add(ops.sqrt(v), self.eps))
        return ops.sub(parameter, step), {"moment1": m, "moment2": v}

    def _settings(self) -> dict[str, Any]:
        return {"use_nesterov": self.use_nesterov, **super()._settings()}


class AdamWeightDecay(MomentsBase):
    """Adam without bias correction, with decoupled weight decay (Loshchilov and Hutter 2019; the form of BERT).

    m = beta1 * m + (1 - beta1) * gradient,  v = beta2 * v + (1 - beta2) * gradient^2
    p = p - learning_rate * (m / (sqrt(v) + eps) + weight_decay * p)
    """

    state_names = ("adam_m", "adam_v")
    can_be_grouped = True

    def __init__(
        self,
        params: Params,
        learning_rate: Rate = 1e-3,
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

    def update(
        self, parameter: Any, gradient: Any, state: State, scalars: State, learning_rate: Any, place: Place | None = None
    ) -> tuple[Any, State]:
        m, v = self._moved(state["adam_m"], state["adam_v"], gradient)
        step = ops.div(m, ops.add(ops.sqrt(v), self.eps))
        step = self._decayed(parameter, step, place)
        return descend(parameter, step, learning_rate), {"adam_m": m, "adam_v": v}


class RMSProp(Optimizer):
    """Gradients divided by a running root mean square (Hinton, lecture 6e of "Neural networks for machine learning").

    g = gradient + weight_decay * p
    s = decay * s + (1 - decay) * g^2, from s = 1
    m = momentum * m + learning_rate * g / sqrt(s + epsilon)
    p = p - m

    centered     divide by the standard deviation: a = decay * a + (1 - decay) * g, and sqrt(s - a^2 + epsilon) in the third line
    use_locking  accepted for MindSpore's sake, without effect
    """

    def __init__(
        self,
        params: Params,
        learning_rate: Rate = 0.1,
        decay: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        loss_scale: float = 1.0,
        weight_decay: float = 0.0,
        *,
        clip: GradientClip | None = None,
        loss_scaler: LossScaler | None = None,
    ) -> None:
        super().__init__(params, learning_rate, weight_decay, loss_scale, clip=clip, loss_scaler=loss_scaler)
        self.decay = self._number("decay", decay, least=0)
        if self.decay > 1:
            raise ArgumentError(message(f"decay={decay}", where="RMSProp", allowed="At most 1: the mean weighs the new value with 1 - decay"))
        self.momentum = self._number("momentum", momentum, least=0)
        self.epsilon = self._number("epsilon", epsilon, above=0)
        self._flag("use_locking", use_locking)
        self.centered = self._flag("centered", centered)
        self.state_names = (*(("mean_grad",) if self.centered else ()), "mean_square", "moment")

    def initial_state(self, parameter: Any) -> dict[str, np.ndarray]:
        state = super().initial_state(parameter)
        return {**state, "mean_square": np.ones_like(state["mean_square"])}

    def update(
        self, parameter: Any, gradient: Any, state: State, scalars: State, learning_rate: Any, place: Place | None = None
    ) -> tuple[Any, State]:
        gradient = self._decayed(parameter, gradient, place)
        rest, new = 1 - self.decay, {}
        new["mean_square"] = spread = ops.add(ops.mul(state["mean_square"], self.decay), ops.mul(ops.square(gradient), rest))
        if self.centered:
            new["mean_grad"] = mean = ops.add(ops.mul(state["mean_grad"], self.decay), ops.mul(gradient, rest))
            # a variance; of gradients that are all alike, rounding leaves it a little below 0
            spread = ops.maximum(ops.sub(spread, ops.square(mean)), 0.0)
        step = ops.div(ops.mul(gradient, learning_rate), ops.sqrt(ops.add(spread, self.epsilon)))
        new["moment"] = moment = ops.add(ops.mul(state["moment"], self.momentum), step)
        return ops.sub(parameter, moment), new

    def _settings(self) -> dict[str, Any]:
        own = {"decay": self.decay, "momentum": self.momentum, "epsilon": self.epsilon, "centered": self.centered}
        return {**own, **super()._settings()}


class Adagrad(Optimizer):
    """Gradients divided by the root of the sum of all squares so far (Duchi, Hazan and Singer 2011).

    g = gradient + weight_decay * p
    h = h + g^2, from h = accum
    p = p - learning_rate * g / (sqrt(h) + 1e-10)

    update_slots  False: h stays at accum
    """

    state_names = ("accum",)
    EPS = 1e-10  # only so that 0 / 0 is 0 with accum=0: MindSpore's formula has an epsilon, but no argument for it

    def __init__(
        self,
        params: Params,
        accum: float = 0.1,
        learning_rate: Rate = 0.001,
        update_slots: bool = True,
        loss_scale: float = 1.0,
        weight_decay: float = 0.0,
        *,
        clip: GradientClip | None = None,
        loss_scaler: LossScaler | None = None,
    ) -> None:
        super().__init__(params, learning_rate, weight_decay, loss_scale, clip=clip, loss_scaler=loss_scaler)
        self.accum = self._number("accum", accum, least=0)
        self.update_slots = self._flag("update_slots", update_slots)

    def initial_state(self, parameter: Any) -> dict[str, np.ndarray]:
        return {name: np.full_like(zeros, self.accum) for name, zeros in super().initial_state(parameter).items()}

    def update(
        self, parameter: Any, gradient: Any, state: State, scalars: State, learning_rate: Any, place: Place | None = None
    ) -> tuple[Any, State]:
        gradient = self._decayed(parameter, gradient, place)
        accum = ops.add(state["accum"], ops.square(gradient)) if self.update_slots else state["accum"]
        step = ops.div(ops.mul(gradient, learning_rate), ops.add(ops.sqrt(accum), self.EPS))
        return ops.sub(parameter, step), {"accum": accum}

    def _settings(self) -> dict[str, Any]:
        return {"accum": self.accum, "update_slots": self.update_slots, **super()._settings()}


def rest_of(beta: float, like: Any) -> float:
    """1 - beta, computed in the dtype of `like`.

    In float32, 1 - 0.999 is 4.7e-5 too large. The bias correction, which works on powers kept in that dtype, has the same error, and the two
    cancel; with the exact 0.001 here the first steps would be 2.3e-5 off.
    """
    dtype = np.dtype(str(like.dtype)).type
    return float(dtype(1) - dtype(beta))
