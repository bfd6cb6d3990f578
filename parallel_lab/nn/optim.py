"""Optimizers: one update rule each, for arrays, Tensors and traced values alike.

    optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.2, momentum=0.1)
    loss, grads = value_and_grad(forward, None, optimizer.parameters)(x, y)
    optimizer(grads)

`update(parameter, gradient, state, scalars, learning_rate)` is pure and made of operators: called with arrays it computes, called in a trace it is
recorded. Every state has the shape of its parameter and every rule works element by element, so a slice of a state belongs to the same slice of its
parameter, and a rank can update what it holds. Formulas and defaults: MindSpore, nn.SGD, nn.Momentum, nn.Adam, nn.AdamWeightDecay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from .. import ops
from ..context import current_tracer
from ..errors import ArgumentError, ArgumentTypeError, ShapeError, TraceError, message, shorten
from ..origin import caller
from ..tensor import Parameter, Tensor

__all__ = ["SGD", "Adam", "AdamWeightDecay", "Momentum", "Optimizer"]

State = dict[str, Any]


class Optimizer:
    """Base of optimizers.

    params         Parameters with different names; those without requires_grad are left out
    learning_rate  number, at least 0
    weight_decay   adds weight_decay * parameter to each gradient (AdamWeightDecay: see there)
    loss_scale     the loss was multiplied by this; gradients are divided by it

    Attributes: `parameters` (list), `learning_rate` (may be changed between steps), `states` and `scalars` (what the eager calls keep).
    Subclasses define `update` and, if they keep states, `state_names`.
    """

    state_names: tuple[str, ...] = ()

    def __init__(self, params: Iterable[Parameter], learning_rate: float, weight_decay: float = 0.0, loss_scale: float = 1.0) -> None:
        self.parameters = self._checked(params)
        self.learning_rate = learning_rate
        self.weight_decay = self._number("weight_decay", weight_decay, least=0)
        self.loss_scale = self._number("loss_scale", loss_scale, above=0)
        self._states: list[State] | None = None
        self._scalars: dict[np.dtype, State] = {}

    @property
    def learning_rate(self) -> float:
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._learning_rate = self._number("learning_rate", value, least=0)

    # ---- the rule ----

    def initial_state(self, parameter: Any) -> dict[str, np.ndarray]:
        """The states of a parameter before the first step: zeros of its shape. parameter: anything with `shape` and `dtype`."""
        return {name: np.zeros(tuple(parameter.shape), np.dtype(str(parameter.dtype))) for name in self.state_names}

    def scalar_state(self) -> dict[str, float]:
        """The values that all parameters share, before the first step."""
        return {}

    def update_scalars(self, scalars: State) -> State:
        """The shared values of this step from those of the last one. Called once per step, before the parameters."""
        return dict(scalars)

    def update(self, parameter: Any, gradient: Any, state: State, scalars: State, learning_rate: Any) -> tuple[Any, State]:
        """One step of one parameter: (new values, new states).

        parameter, gradient, states  arrays, Tensors or traced values of one shape and dtype
        scalars, learning_rate       0-d values of that dtype
        """
        raise NotImplementedError(f"{type(self).__name__} has no update rule")

    def _unscaled(self, gradient: Any) -> Any:
        return gradient if self.loss_scale == 1 else ops.mul(gradient, 1 / self.loss_scale)

    def _decayed(self, parameter: Any, gradient: Any) -> Any:
        """The gradient without loss scale, with weight decay."""
        gradient = self._unscaled(gradient)
        return gradient if self.weight_decay == 0 else ops.add(gradient, ops.mul(parameter, self.weight_decay))

    # ---- a step, at once ----

    def __call__(self, grads: Sequence[Any]) -> None:
        """Update every parameter in place with its gradient. grads: one Tensor or array per parameter, in the order of `parameters`."""
        where = type(self).__name__
        if current_tracer.get() is not None:
            raise TraceError(
                message("an optimizer is called while a network is traced", where=caller().place, hint="Call it outside, on the gradients")
            )
        if isinstance(grads, (Tensor, np.ndarray)) or not isinstance(grads, Sequence):
            raise ArgumentTypeError(message(f"gradients {shorten(grads)}", where=where, allowed="A list or tuple with one gradient per parameter"))
        if len(grads) != len(self.parameters):
            raise ShapeError(message(f"got {len(grads)} gradients", where=where, allowed=f"{len(self.parameters)}, one per parameter"))
        arrays = []
        for parameter, gradient in zip(self.parameters, grads, strict=True):
            array = np.asarray(gradient.asnumpy() if isinstance(gradient, Tensor) else gradient, parameter.dtype)
            if array.shape != parameter.shape:
                raise ShapeError(
                    message(f"the gradient of {parameter.name!r} has shape {array.shape}", where=where, allowed=f"Shape {parameter.shape}")
                )
            arrays.append(array)
        states = self._eager_states()
        for dtype in dict.fromkeys(p.dtype for p in self.parameters):
            self._scalars[dtype] = self.update_scalars(self._eager_scalars(dtype))
        for i, (parameter, array) in enumerate(zip(self.parameters, arrays, strict=True)):
            if not parameter.requires_grad:
                continue
            rate = np.asarray(self.learning_rate, parameter.dtype)
            new, states[i] = self.update(parameter.asnumpy(), array, states[i], self._scalars[parameter.dtype], rate)
            parameter.set_data(new)

    def _eager_states(self) -> list[State]:
        if self._states is None:
            self._states = [self.initial_state(p) for p in self.parameters]
        return self._states

    def _eager_scalars(self, dtype: np.dtype) -> State:
        return self._scalars.get(dtype) or {name: np.asarray(value, dtype) for name, value in self.scalar_state().items()}

    @property
    def states(self) -> dict[str, dict[str, np.ndarray]]:
        """{parameter name: {state name: array}} as the eager steps left them."""
        return {p.name: dict(state) for p, state in zip(self.parameters, self._eager_states(), strict=True)}

    @property
    def scalars(self) -> dict[str, float]:
        """{name: value} of the shared values as the eager steps left them, in the first parameter's dtype."""
        return {name: float(value) for name, value in self._eager_scalars(self.parameters[0].dtype).items()}

    # ---- checks ----

    def _checked(self, params: Any) -> list[Parameter]:
        where = type(self).__name__
        allowed = "Parameters, for instance net.trainable_params()"
        if isinstance(params, (Tensor, str)) or not isinstance(params, Iterable):
            raise ArgumentTypeError(message(f"params={shorten(params)}", where=where, allowed=f"A list of {allowed}"))
        names: dict[str, Parameter] = {}
        for i, parameter in enumerate(params):
            if not isinstance(parameter, Parameter):
                hint = "Groups with their own settings are not supported: make one optimizer per group" if isinstance(parameter, dict) else ""
                raise ArgumentTypeError(message(f"params[{i}] is {shorten(parameter)}", where=where, allowed=allowed, hint=hint))
            if parameter.name in names:
                same = "is given twice" if names[parameter.name] is parameter else "is the name of two parameters"
                raise ArgumentError(message(f"{parameter.name!r} {same}", where=where, allowed="Parameters with different names"))
            names[parameter.name] = parameter
        found = [p for p in names.values() if p.requires_grad]
        if not found:
            raise ArgumentError(message("there is nothing to train" if names else "params is empty", where=where, allowed=allowed))
        for p in found:
            if p.dtype.kind != "f":
                raise ArgumentTypeError(message(f"parameter {p.name!r} has dtype {p.dtype}", where=where, allowed="Parameters with a float dtype"))
        return found

    def _number(self, name: str, value: Any, *, least: float = -math.inf, above: float = -math.inf, below: float = math.inf) -> float:
        where = type(self).__name__
        limits = [f"{word} {n:g}" for word, n in (("at least", least), ("above", above), ("below", below)) if math.isfinite(n)]
        allowed = "A finite number" + (", " + " and ".join(limits) if limits else "")
        if isinstance(value, Tensor) and not value.shape:
            value = value.item()
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
            raise ArgumentTypeError(message(f"{name}={shorten(value)}", where=where, allowed=allowed))
        if not math.isfinite(value) or value < least or value <= above or value >= below:
            raise ArgumentError(message(f"{name}={shorten(value)}", where=where, allowed=allowed))
        return float(value)

    def _flag(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ArgumentTypeError(message(f"{name}={shorten(value)}", where=type(self).__name__, allowed="True or False"))
        return value

    def _settings(self) -> dict[str, Any]:
        """What `repr` shows after the learning rate."""
        return {"weight_decay": self.weight_decay, "loss_scale": self.loss_scale}

    @property
    def rule(self) -> str:
        """The update rule in words, without the learning rate, which may change from step to step. Optimizers with equal rules make equal plans."""
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self._settings().items())})"

    def __repr__(self) -> str:
        shown = {"learning_rate": self.learning_rate, **self._settings()}
        return f"{type(self).__name__}({len(self.parameters)} parameters, {', '.join(f'{k}={v}' for k, v in shown.items())})"


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if it is above 0.

    g = gradient + weight_decay * p
    v = g in the first step, then momentum * v + (1 - dampening) * g
    p = p - learning_rate * v           with nesterov: p - learning_rate * (g + momentum * v)

    Without momentum there is no v. nesterov needs momentum above 0 and no dampening.
    """

    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: float = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__(params, learning_rate, weight_decay, loss_scale)
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

    def update(self, parameter: Any, gradient: Any, state: State, scalars: State, learning_rate: Any) -> tuple[Any, State]:
        step = gradient = self._decayed(parameter, gradient)
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
        return ops.sub(parameter, ops.mul(step, learning_rate)), dict(state)

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
        params: Iterable[Parameter],
        learning_rate: float,
        momentum: float,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(params, learning_rate, weight_decay, loss_scale)
        self.momentum = self._number("momentum", momentum, least=0)
        self.use_nesterov = self._flag("use_nesterov", use_nesterov)

    def update(self, parameter: Any, gradient: Any, state: State, scalars: State, learning_rate: Any) -> tuple[Any, State]:
        gradient = self._decayed(parameter, gradient)
        step = velocity = ops.add(ops.mul(state["moments"], self.momentum), gradient)
        if self.use_nesterov:
            step = ops.add(gradient, ops.mul(velocity, self.momentum))
        return ops.sub(parameter, ops.mul(step, learning_rate)), {"moments": velocity}

    def _settings(self) -> dict[str, Any]:
        return {"momentum": self.momentum, "use_nesterov": self.use_nesterov, **super()._settings()}


class _Moments(Optimizer):
    """What the two Adams share: betas, eps, and the running means m of the gradient and v of its square."""

    def _set_moments(self, beta1: float, beta2: float, eps: float) -> None:
        self.beta1 = self._number("beta1", beta1, above=0, below=1)
        self.beta2 = self._number("beta2", beta2, above=0, below=1)
        self.eps = self._number("eps", eps, above=0)

    def _moved(self, m: Any, v: Any, gradient: Any) -> tuple[Any, Any]:
        rest1, rest2 = _rest(self.beta1, gradient), _rest(self.beta2, gradient)
        return ops.add(ops.mul(m, self.beta1), ops.mul(gradient, rest1)), ops.add(ops.mul(v, self.beta2), ops.mul(ops.square(gradient), rest2))

    def _settings(self) -> dict[str, Any]:
        return {"beta1": self.beta1, "beta2": self.beta2, "eps": self.eps, **super()._settings()}


class Adam(_Moments):
    """Adam (Kingma and Ba 2015, the faster form at the end of section 2).

    g = gradient + weight_decay * p
    m = beta1 * m + (1 - beta1) * g,  v = beta2 * v + (1 - beta2) * g^2
    p = p - learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps)      in step t = 1, 2, ...

    use_nesterov  beta1 * m + (1 - beta1) * g takes the place of m in the last line
    """

    state_names = ("moment1", "moment2")

    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        *,
        use_nesterov: bool = False,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__(params, learning_rate, weight_decay, loss_scale)
        self._set_moments(beta1, beta2, eps)
        self.use_nesterov = self._flag("use_nesterov", use_nesterov)

    def scalar_state(self) -> dict[str, float]:
        return {"beta1_power": 1.0, "beta2_power": 1.0}

    def update_scalars(self, scalars: State) -> State:
        return {"beta1_power": ops.mul(scalars["beta1_power"], self.beta1), "beta2_power": ops.mul(scalars["beta2_power"], self.beta2)}

    def update(self, parameter: Any, gradient: Any, state: State, scalars: State, learning_rate: Any) -> tuple[Any, State]:
        gradient = self._decayed(parameter, gradient)
        m, v = self._moved(state["moment1"], state["moment2"], gradient)
        correction = ops.div(ops.sqrt(ops.sub(1.0, scalars["beta2_power"])), ops.sub(1.0, scalars["beta1_power"]))
        ahead = ops.add(ops.mul(m, self.beta1), ops.mul(gradient, _rest(self.beta1, gradient))) if self.use_nesterov else m
        step = ops.div(ops.mul(ahead, ops.mul(learning_rate, correction)), ops.add(ops.sqrt(v), self.eps))
        return ops.sub(parameter, step), {"moment1": m, "moment2": v}

    def _settings(self) -> dict[str, Any]:
        return {"use_nesterov": self.use_nesterov, **super()._settings()}


class AdamWeightDecay(_Moments):
    """Adam without bias correction, with decoupled weight decay (Loshchilov and Hutter 2019; the form of BERT).

    m = beta1 * m + (1 - beta1) * gradient,  v = beta2 * v + (1 - beta2) * gradient^2
    p = p - learning_rate * (m / (sqrt(v) + eps) + weight_decay * p)
    """

    state_names = ("adam_m", "adam_v")

    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, learning_rate, weight_decay)
        self._set_moments(beta1, beta2, eps)

    def update(self, parameter: Any, gradient: Any, state: State, scalars: State, learning_rate: Any) -> tuple[Any, State]:
        m, v = self._moved(state["adam_m"], state["adam_v"], self._unscaled(gradient))
        step = ops.div(m, ops.add(ops.sqrt(v), self.eps))
        if self.weight_decay:
            step = ops.add(step, ops.mul(parameter, self.weight_decay))
        return ops.sub(parameter, ops.mul(step, learning_rate)), {"adam_m": m, "adam_v": v}


def _rest(beta: float, like: Any) -> float:
    """1 - beta, computed in the dtype of `like`.

    In float32, 1 - 0.999 is 4.7e-5 too large. The bias correction, which works on powers kept in that dtype, has the same error, and the two
    cancel; with the exact 0.001 here the first steps would be 2.3e-5 off.
    """
    dtype = np.dtype(str(like.dtype)).type
    return float(dtype(1) - dtype(beta))
