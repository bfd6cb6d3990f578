"""`@update_rule`: an optimizer, declared by its formula.

    @update_rule(rate(0.1), real("momentum", AT_LEAST_0), WEIGHT_DECAY, LOSS_SCALE, states={"moments": 0.0})
    def Momentum(h, p, g, moments):
        \"\"\"Gradient descent with momentum. ...\"\"\"
        velocity = moments * h.momentum + g
        return descend(p, velocity, h.rate), velocity

The function becomes the public class, an `Optimizer`: the declared arguments are those of its constructor, in order,
after `params`, and attributes of its instances; the function's text is the class's.

The rule is pure: from the parameter `p`, its gradient `g` and its states, in the order of their declaration, it gives
the new parameter and the new states. `h` (`StepInputs`) has the hyperparameters and what holds for this step. Called
with arrays it computes, called with the values of a trace it is recorded, so it is written with operators.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.checks import Check, misfit
from ...base.dtypes import HALF
from .global_norm import centralized, in_dtype_of, mean, norm, wide
from .optimizer import Optimizer, State, plain_number
from .state_shapes import dims_of_state, shape_of_state
from .totals import Place


@dataclass(frozen=True)
class Argument:
    """An optimizer's argument. check: what it may be, None: the base does; kept False: accepted, without effect."""

    name: str
    kind: str
    default: Any = inspect.Parameter.empty
    check: Check | None = None
    kept: bool = True


WEIGHT_DECAY = Argument("weight_decay", "float", 0.0)
LOSS_SCALE = Argument("loss_scale", "float", 1.0)


class StepInputs:
    """What a rule receives besides parameter, gradient and states.

    rate       the learning rate, () in the parameter's dtype
    scalars    the shared values of this step by name, () each
    Hyperparameters are attributes: `h.momentum`.
    """

    def __init__(self, optimizer: Optimizer, rate: Any, scalars: State, place: Place) -> None:
        self.optimizer, self.rate, self.scalars, self.place = optimizer, rate, scalars, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)

    def decayed(self, parameter: Any, x: Any) -> Any:
        """x + weight_decay * parameter."""
        return self.place.decayed(parameter, x)

    def norm(self, x: Any, what: str) -> Any:
        """L2 norm of the whole parameter; `x` may be a rank's slice of it.  what: with "{}" for its name."""
        return norm(x, self.place, what.format(repr(self.place.name)))

    def mean(self, x: Any, what: str, over: Sequence[int] | None = None, dims: Sequence[int] | None = None) -> Any:
        """Mean of the whole parameter (`x` may be a rank's slice of it) along its dims `over` (default: all).

        what  with "{}" for the parameter's name;  dims: those of the parameter that x has, default: all
        """
        return mean(x, self.place, what.format(repr(self.place.name)), over, dims)


def update_rule(
    *arguments: Argument,
    states: dict[str, Any] | Callable[[Any], dict[str, Any]],
    shared: Callable[[Any], dict[str, tuple[float, Callable]]] = lambda h: {},
    decoupled: bool = False,
    decays_by_name: bool = True,
    can_be_grouped: bool = False,
    on_host: bool = False,
    offloads: bool = False,
    check: Callable[[Optimizer, dict[str, Any]], None] = lambda optimizer, given: None,
) -> Callable[[Callable], Any]:
    """Declare an optimizer by its rule: see the text of this file.

    states          {state: number that every element starts with}, or a function of the optimizer that gives them;
                    the rule is given None for a state that such a parameter does not have (`dims_of_state`)
    shared          function of the optimizer -> {value that all parameters share: (its start, function from one step's
                    to the next's)}
    decoupled       the rule adds weight decay where it wants it (`h.decayed`), not to the gradient
    decays_by_name  without groups, weight decay spares parameters by name, as `Optimizer` says
    can_be_grouped  it works in weight groups, MindSpore's optimizer parallel in data_parallel mode
    on_host         it may be given a `target`, as in MindSpore
    offloads        states lie on the host (`Optimizer.use_offload`)
    check           function of (optimizer, its arguments by name): what they must fulfil together
    """
    of_base = ("clip", "loss_scaler", *(a.name for a in arguments if a.name in ("weight_decay", "loss_scale")))
    its_rate = next(a.name for a in arguments if a.kind.startswith("Rate"))
    own = [a for a in arguments if a.check is not None]
    positional, named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature(
        [
            inspect.Parameter("self", positional),
            inspect.Parameter("params", positional, annotation="Params"),
            *[inspect.Parameter(a.name, positional, default=a.default, annotation=a.kind) for a in arguments],
            inspect.Parameter("clip", named, default=None, annotation="GradientClip | None"),
            inspect.Parameter("loss_scaler", named, default=None, annotation="LossScaler | None"),
        ],
        return_annotation=None,
    )

    def declare(rule: Callable) -> type[Optimizer]:
        class Declared(Optimizer):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                try:
                    bound = signature.bind(self, *args, **kwargs)
                except TypeError:
                    raise misfit(rule.__name__, signature, (self, *args), kwargs) from None  # type: ignore[misc]
                bound.apply_defaults()
                given = bound.arguments
                rate = given[its_rate]
                if rate is None and signature.parameters[its_rate].default is None:
                    rate = 0.0  # the rule has one of its own
                super().__init__(given["params"], rate, **{name: given[name] for name in of_base})
                for a in own:
                    value = a.check(rule.__name__, a.name, plain_number(given[a.name]))
                    if a.kept:
                        setattr(self, a.name, value)
                check(self, given)
                self._starts = states(self) if callable(states) else states
                self.state_names = tuple(self._starts)

            def initial_state(self, parameter: Any) -> dict[str, np.ndarray]:
                shape, dtype = tuple(parameter.shape), np.dtype(str(parameter.dtype))
                ndim, kinds = len(shape), self._starts
                kept_states = [s for s in kinds.items() if dims_of_state(s[0], ndim, kinds) is not None]
                dtypes = {name: self.state_dtypes.get(name, dtype) for name, _ in kept_states}
                return {name: np.full(shape_of_state(name, shape), start, dtypes[name]) for name, start in kept_states}

            def scalar_state(self) -> dict[str, float]:
                return {name: start for name, (start, _) in shared(self).items()}

            def update_scalars(self, scalars: State) -> State:
                return {name: step(scalars[name]) for name, (_, step) in shared(self).items()}

            def update(self, parameter, gradient, state, scalars, learning_rate, place=None):
                place = self.own_place() if place is None else place
                h, given = StepInputs(self, learning_rate, scalars, place), (parameter, state)
                if half := str(parameter.dtype) in HALF:  # worked out in float32, and rounded once
                    parameter, gradient = wide(parameter), wide(gradient)
                    state = {name: wide(value) for name, value in state.items()}
                if not decoupled:
                    gradient = h.decayed(parameter, gradient)
                if place.centralized:
                    gradient = centralized(gradient, place)
                new, *kept = rule(h, parameter, gradient, *(state.get(name) for name in self.state_names))
                named = zip(self.state_names, kept, strict=True)
                new_state = {name: _as_operand(value) for name, value in named if value is not None}
                if half:
                    parameter, state = given
                    new = in_dtype_of(parameter, new)
                    new_state = {name: in_dtype_of(state[name], value) for name, value in new_state.items()}
                return new, new_state

            def _shown(self) -> dict[str, Any]:
                return {**{a.name: getattr(self, a.name) for a in own if a.kept}, **super()._shown()}

        Declared.__init__.__signature__ = signature
        Declared.__name__, Declared.__qualname__ = rule.__name__, rule.__name__
        Declared.__doc__, Declared.__module__ = rule.__doc__, rule.__module__
        Declared.updates_on_host, Declared.use_offload = on_host, offloads
        Declared.decays_by_name = decays_by_name
        Declared.can_be_grouped, Declared.state_names = can_be_grouped, () if callable(states) else tuple(states)
        return Declared

    return declare


def _as_operand(value: Any) -> Any:
    """numpy's operators make a number of 0-d arrays; a state stays an array."""
    return np.asarray(value) if isinstance(value, np.generic) else value
