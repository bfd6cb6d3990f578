"""The learner's own objects as the values of a compiled program.

A Parameter holds this rank's slice between calls, the optimizer the slices of its states. So several programs
(training, evaluation, another batch size) share them, a checkpoint finds them where it looks, and a program that wants
a parameter laid out differently brings it there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph.compiler import Compiled
from ..graph.kinds import Env
from ..layout.slices import gather_full, is_split
from ..layout.tensor_layout import TensorLayout
from ..nn.tensor.initial_slices import OnAnotherStage, is_on_another_stage
from ..nn.tensor.tensor import Initial


class LearnerValues:
    """Parameters and an optimizer, from which a rank's step takes its values and to which it gives the new ones.

    compiled    the plan and the objects
    rank        this process's
    parameters  what Parameters are afterwards: "slices", this rank's; "whole", what the program gave them a value for
                is gathered (for code around it that runs at once); "as they were", nothing is kept of what the program
                did (it computes again what another has kept)
    """

    def __init__(self, compiled: Compiled, rank: int, parameters: str) -> None:
        plan = compiled.plan
        self.plan, self.rank, self.kept = plan, rank, parameters
        self.local = rank % plan.stages[0].count  # layouts count the ranks of a pipeline stage
        self.parameters, self.optimizer, self.scaler = compiled.parameters, compiled.optimizer, compiled.scaler
        self._assigned = {name for name, _ in (*plan.assignments, *plan.forward_assignments)}
        self._layouts: dict[str, TensorLayout] = {
            one.name: plan.value(one.name).layout for one in plan.parameters if plan.held_by(one.name, rank)
        }
        self._elsewhere: dict[str, str] = {}  # those of other pipeline stages: which ranks hold them
        for one in plan.parameters if len(plan.stages) > 1 else ():
            there = [f"stage {n}" for n, stage in enumerate(plan.stages) if plan.held_by(one.name, stage.first)]
            if there and one.name not in self._layouts:
                self._elsewhere[one.name] = f"the ranks of {' and '.join(there)}"
        self._shared: dict[str, dict[str, str]] = {}  # {dtype: {kind: value}} of states that all parameters share

    def put_into(self, env: Env) -> None:
        """Give `env` this rank's slices of Parameters and optimizer states, learning rates and loss scale."""
        env.update(
            (name, self.parameters[name].slice_for(layout, self.local)) for name, layout in self._layouts.items()
        )
        if self.scaler is not None:
            scaler, name = self.scaler
            env[name] = np.asarray(scaler.scale_value, np.float32)
        self._shared, optimizer, plan = {}, self.optimizer, self.plan
        if optimizer is None:
            return
        names = [s.parameter for s in plan.states if s.parameter in self._layouts]
        shapes = {name: (plan.value(name).shape, self._layouts[name]) for name in names}
        held = optimizer.take_states(shapes, self.local, dict(plan.owners))
        rates = optimizer.rates(optimizer.steps_taken)
        scales = optimizer.loss_scaler.scalar_state() if optimizer.loss_scaler is not None else {}
        for state in plan.states:
            dtype = plan.value(state.name).dtype
            if not plan.held_by(state.name, self.rank):
                continue
            if state.parameter:
                value = held[state.parameter][state.kind]
            elif state.kind in rates:
                value = rates[state.kind]
            elif state.kind in scales:
                value = scales[state.kind]
            else:
                value = optimizer.shared_state(dtype)[state.kind]
                self._shared.setdefault(dtype, {})[state.kind] = state.name
            env[state.name] = np.asarray(value, dtype)

    def take_from(self, env: Env) -> None:
        """Keep the new values after a step, and count it; they leave `env`."""
        owners = {id(p.owner): p.owner for p in self.parameters.values() if hasattr(p, "owner")}.values()
        before = [one.steps_taken for one in owners]
        for name, layout in self._layouts.items():
            array, p = env.pop(name), self.parameters[name]
            is_new = name in self._assigned or (is_split(layout) and p.layout is not layout)
            if self.kept == "slices" and is_new:
                p.hold(array, layout)
            elif self.kept == "whole" and name in self._assigned:
                p.set_data(gather_full(array, p.full_shape, layout, tag=f"new value of {name}"))
        for name, holders in self._elsewhere.items() if self.kept == "slices" else ():
            p = self.parameters[name]
            if not is_on_another_stage(p):
                p.set_data(Initial(OnAnotherStage(name, holders), p.full_shape, p.dtype))
        if self.optimizer is not None:
            self._take_states(env)
        # optimizers whose own construct reads their rate: a step of theirs is done, which it may have counted itself
        for one, taken in zip(owners, before, strict=True):
            one.steps_taken = max(one.steps_taken, taken + 1)

    def _take_states(self, env: Env) -> None:
        optimizer = self.optimizer
        states: dict[str, dict[str, np.ndarray]] = {}
        scales: dict[str, Any] = {}
        for state in self.plan.states:
            if not self.plan.held_by(state.name, self.rank):
                continue
            if state.parameter:
                states.setdefault(state.parameter, {})[state.kind] = env.pop(state.name)
            elif optimizer.loss_scaler is not None and state.kind in optimizer.loss_scaler.scalar_state():
                scales[state.kind] = env[state.name]
        scalars = {dtype: {k: env[n] for k, n in kinds.items()} for dtype, kinds in self._shared.items()}
        optimizer.keep_states(states, self._layouts, scalars, dict(self.plan.owners))
        if scales:
            optimizer.loss_scaler.take(scales)
        optimizer.steps_taken += 1
