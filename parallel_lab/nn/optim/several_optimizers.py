"""`SeveralOptimizers`: several optimizers as one, for a function that lets each take a step.

    wide, deep = nn.FTRL(wide_params), nn.Adam(deep_params)

    def step(x, label):
        (loss, ...), grads = ...
        wide(grads_of_wide), deep(grads_of_deep)
        return loss

    Session(plan, net, [wide, deep])

A plan has one update, one list of states and one count of steps. Each of them asks this object, which asks the
optimizer that the Parameter belongs to. What an optimizer shares among its Parameters (rates, Adam's beta powers) gets
the optimizer's class in its name: "learning_rate.FTRL", "beta1_power.Adam"; "Adam2" is a second Adam.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...base.errors import ArgumentTypeError, NotBuiltYet, shorten
from ...layout.tensor_layout import TensorLayout
from ..tensor.parameter import Parameter
from .held_states import HeldStates, State
from .totals import Place, Totals


class SeveralOptimizers:
    """What a plan and those that run it ask of an `Optimizer`, answered by `members`, which share no Parameter.

    members  objects of `Optimizer`; only its base is imported here, so that `compile` need not know every rule

    Raises ArgumentTypeError for anything but a list of optimizers, NotBuiltYet for members with a loss scaler or a
    Parameter in common.
    """

    loss_scaler = None

    def __init__(self, members: Sequence[Any]) -> None:
        if not members or not all(isinstance(one, HeldStates) for one in members):
            allowed = "An nn.Optimizer, or a list of those that take a step"
            raise ArgumentTypeError(f"optimizer={shorten(members)}", where="optimizers", allowed=allowed)
        self.members = tuple(members)
        for one in self.members:
            if one.loss_scaler is not None:
                what = f"{type(one).__name__} with a loss_scaler and another optimizer in one step"
                hint = "Scale the loss by a number, and give it to both optimizers: loss_scale=1024.0"
                raise NotBuiltYet(what, where="optimizers", allowed="One loss scaler, of one optimizer", hint=hint)
        counts = Counter(map(id, self.parameters))
        twice = next((p.name for p in self.parameters if counts[id(p)] > 1), None)
        if twice is not None:
            what = f"{twice!r} has two optimizers in one step"
            raise NotBuiltYet(what, where="optimizers", allowed="Parameters of its own for each")
        self.tags: list[str] = []
        for one in self.members:
            kind = type(one).__name__
            number = 1 + sum(type(other).__name__ == kind for other in self.members[: len(self.tags)])
            self.tags.append(kind if number == 1 else f"{kind}{number}")

    # ---- whose is it ----

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(p for one in self.members for p in one.parameters)

    def _of(self, name: str) -> tuple[Any, str]:
        """The optimizer of the parameter that is called `name` now, and its tag."""
        pairs = zip(self.members, self.tags, strict=True)
        return next(pair for pair in pairs if any(p.name == name for p in pair[0].parameters))

    def _all(self, values: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What members share, each with its tag."""
        tagged = zip(self.tags, values, strict=True)
        return {f"{kind}.{tag}": value for tag, states in tagged for kind, value in states.items()}

    @staticmethod
    def _own(tag: str, values: dict[str, Any]) -> dict[str, Any]:
        """What the member with this tag shares, without the tag."""
        return {kind.removesuffix(f".{tag}"): v for kind, v in values.items() if kind.endswith(f".{tag}")}

    # ---- rates and scalars ----

    @property
    def steps_taken(self) -> int:
        """The steps of the first; setting it counts the same number of steps on for all."""
        return self.members[0].steps_taken

    @steps_taken.setter
    def steps_taken(self, value: int) -> None:
        taken = value - self.steps_taken
        for one in self.members:
            one.steps_taken += taken

    def rates(self, step: int) -> dict[str, float]:
        ahead = step - self.steps_taken
        return self._all([one.rates(one.steps_taken + ahead) for one in self.members])

    @property
    def has_schedule(self) -> bool:
        return any(one.has_schedule for one in self.members)

    def rate_name(self, name: str) -> str:
        one, tag = self._of(name)
        return f"{one.rate_name(name)}.{tag}"

    def scalar_state(self) -> dict[str, float]:
        return self._all([one.scalar_state() for one in self.members])

    def initial_scalars(self) -> dict[str, float]:
        return self._all([one.initial_scalars() for one in self.members])

    def update_scalars(self, scalars: State) -> State:
        return self._all(
            [one.update_scalars(self._own(t, scalars)) for one, t in zip(self.members, self.tags, strict=True)]
        )

    def shared_state(self, dtype: Any) -> State:
        return self._all([one.shared_state(dtype) for one in self.members])

    # ---- the rules ----

    def prepared(self, gradients: dict[str, Any], totals: Totals, scale: Any = None) -> dict[str, Any]:
        """As `Optimizer.prepared`: each clips the gradients of its own Parameters."""
        prepared: dict[str, Any] = {}
        for one in self.members:
            own = {p.name for p in one.parameters}
            mine = {name: gradient for name, gradient in gradients.items() if name in own}
            prepared |= one.prepared(mine, totals, scale) if mine else {}
        return prepared

    def initial_state(self, parameter: Parameter) -> dict[str, np.ndarray]:
        return self.starts_of(parameter.name, parameter)

    def starts_of(self, name: str, like: Any) -> dict[str, np.ndarray]:
        return self._of(name)[0].starts_of(name, like)

    def place(self, name: str, totals: Totals, scalar: Callable[[str], Any]) -> Place:
        one, tag = self._of(name)
        return one.place(name, totals, lambda kind: scalar(f"{kind}.{tag}"))

    def update(self, parameter, gradient, state, scalars, learning_rate, place):
        one, tag = self._of(place.name)
        return one.update(parameter, gradient, state, self._own(tag, scalars), learning_rate, place)

    @property
    def rule(self) -> str:
        return " and ".join(one.rule for one in self.members)

    def __repr__(self) -> str:
        return " and ".join(map(repr, self.members))

    # ---- states ----

    def take_states(
        self, slices: dict[str, Any], rank: int, owners: dict[str, int] | None = None
    ) -> dict[str, dict[str, Any]]:
        return {name: held for one in self.members for name, held in one.take_states(slices, rank, owners).items()}

    def keep_states(
        self,
        states: dict[str, State],
        layouts: dict[str, TensorLayout | None],
        scalars: dict[str, State],
        owners: dict[str, int] | None = None,
    ) -> None:
        """As `HeldStates.keep_states`: every member keeps those of its Parameters."""
        for one, tag in zip(self.members, self.tags, strict=True):
            mine = {dtype: own for dtype, values in scalars.items() if (own := self._own(tag, values))}
            one.keep_states(states, layouts, mine, owners)


def as_optimizer(given: Any) -> Any:
    """A list of optimizers as one; anything else as it is."""
    if not isinstance(given, (list, tuple)):
        return given
    return given[0] if len(given) == 1 else SeveralOptimizers(given)
