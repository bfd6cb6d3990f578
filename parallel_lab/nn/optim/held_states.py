"""`HeldStates`: where an optimizer's states lie, whole or a rank's slices, and how they get from one form to another.

    optimizer.states["w"]["moments"]     after steps at once: as the parameter lies
    optimizer.take_states(...)           for a program that wants them as slices of another layout
    optimizer.keep_states(...)           what that program's step made of them

Every state has the dims of its parameter, or some of them (`dims_of_state`); the scalars are shared by all parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.dtypes import scalar_dtype
from ...base.errors import WorldError
from ...base.hooks import current_world
from ...layout.slices import cut, gather_full, is_split, same_slices
from ...layout.tensor_layout import TensorLayout
from .state_shapes import ShapeAndDtype, layout_of_state, shape_of_state

State = dict[str, Any]


class HeldStates:
    """What an `Optimizer` keeps from step to step: `states` per parameter, `scalars` for all. With optimizer parallel
    in data_parallel mode a rank keeps the states of the parameters that it updates; `state_owners` names the others.
    """

    parameters: Any
    _states: list[State] | None
    _scalars: dict[np.dtype, State]
    _layouts: list[TensorLayout | None]
    _owners: list[int | None]

    def _states_as_parameters(self, owners: dict[str, int], rank: int) -> list[State]:
        """The states of the slices that the parameters hold. Where a state is held in another layout or by another
        rank, every rank has to call this.

        owners  {parameter: the only rank that needs its states}
        """
        layouts = {p.name: p.layout for p in self.parameters}
        places = {p.name: (p.full_shape, p.layout) for p in self.parameters}
        self.keep_states(self.take_states(places, rank, owners), layouts, {}, owners)
        return self._states

    def _gathered(self, i: int) -> State:
        """The whole states of parameter number i, whose slices the ranks hold: every rank has to call this."""
        p = self.parameters[i]
        states, have = self._states[i].items(), self._layouts[i]

        def whole(kind: str, mine: np.ndarray) -> np.ndarray:
            shape, layout = shape_of_state(kind, p.full_shape), layout_of_state(kind, have)
            return gather_full(mine, shape, layout, tag=f"{kind} of {p.name}")

        return {kind: whole(kind, mine) for kind, mine in states}

    # ---- states that one rank alone holds ----

    @property
    def state_layouts(self) -> dict[str, TensorLayout]:
        """{parameter name: which slices its states are}, without those that are whole."""
        return {p.name: layout for p, layout in zip(self.parameters, self._layouts, strict=True) if layout is not None}

    @property
    def state_owners(self) -> dict[str, int]:
        """{parameter name: the only rank that holds its states}, without those that every rank holds."""
        return {p.name: owner for p, owner in zip(self.parameters, self._owners, strict=True) if owner is not None}

    def _note_owner(self, i: int, owner: int | None) -> None:
        """From now on `owner` alone holds the states of parameter number i; None: every rank does."""
        before, self._owners[i] = self._owners[i], owner
        if owner is not None:
            moved = owner != before and self._states is not None and current_world() is not None
            if moved and self._held_elsewhere(i):
                self._states[i] = {}

    def _held_elsewhere(self, i: int) -> bool:
        owner, world = self._owners[i], current_world()
        return owner is not None and (world is None or world.rank != owner)

    def _shared_by(self, owner: int, i: int) -> State:
        """The states of parameter number i, from the rank with them: every rank calls this. May raise WorldError."""
        parameter, world = self.parameters[i], current_world()
        mine = {} if self._states is None else self._states[i]
        if world is None or owner >= world.world_size:
            if mine:
                return mine
            what = f"the states of {parameter.name!r} are held by rank {owner} alone"
            raise WorldError(what, where=type(self).__name__, hint="Call it in the run that trained, on every rank")
        # what the states look like, on a rank that does not hold them
        like = self.initial_state(ShapeAndDtype(parameter.full_shape, parameter.dtype))
        return {
            kind: world.comm.broadcast(mine.get(kind, start), root=owner, tag=f"{kind} of {parameter.name}")
            for kind, start in like.items()
        }

    # ---- what a compiled step keeps here ----

    def take_states(
        self,
        slices: dict[str, tuple[tuple[int, ...], TensorLayout | None]],
        rank: int,
        owners: dict[str, int] | None = None,
    ) -> dict[str, State]:
        """The states of parameters as `rank` holds them: {name: {state: slice}}.

        slices  {parameter: (its whole shape, the layout wanted; None: the whole)}
        owners  {parameter: the only rank that needs its states}: the others get none

        States that are held in another layout are gathered first, those that another rank alone holds are sent: every
        rank of the world has to call this.
        """
        states: dict[str, State] = {}
        owners = owners or {}
        for i, parameter in enumerate(self.parameters):
            if parameter.name not in slices:
                continue
            shape, want = slices[parameter.name]
            have = self._layouts[i]
            had, needs = self._owners[i], owners.get(parameter.name)
            mine = {} if self._states is None else self._states[i]
            if had is not None and had != needs:
                mine, have = self._shared_by(had, i), None
            elif mine and have is not None and not same_slices(have, want):
                mine, have = self._gathered(i), None
            if needs is not None and needs != rank:
                continue
            if not mine:
                # what a state starts as does not depend on where it lies
                shape = shape if want is None else want.slice_shape(shape)
                mine = self.initial_state(ShapeAndDtype(shape, parameter.dtype))
            elif have is None and is_split(want):
                mine = {k: cut(v, layout_of_state(k, want), rank) for k, v in mine.items()}
            states[parameter.name] = dict(mine)
        return states

    def keep_states(
        self,
        states: dict[str, State],
        layouts: dict[str, TensorLayout | None],
        scalars: dict[str, State],
        owners: dict[str, int] | None = None,
    ) -> None:
        """States after a step, per parameter and (shared) per dtype. owners: {parameter: the only rank with them}."""
        if self._states is None:
            self._states = [{} for _ in self.parameters]
        owners = owners or {}
        for i, name in enumerate(p.name for p in self.parameters):
            if name in owners or name in states:
                self._note_owner(i, owners.get(name))
            if name in states:
                self._states[i] = states[name]
                self._layouts[i] = layouts[name] if is_split(layouts[name]) else None
        for dtype, state in scalars.items():
            self._scalars[np.dtype(dtype)] = state

    def shared_state(self, dtype: Any) -> State:
        """The values that all parameters share, as the last step left them, for parameters of this dtype."""
        dtype = scalar_dtype(dtype)
        initial = self.scalar_state().items()
        return self._scalars.get(dtype) or {name: np.asarray(value, dtype) for name, value in initial}

    @property
    def states(self) -> dict[str, dict[str, np.ndarray]]:
        """{parameter name: {state name: array}} of the eager steps, without those of other ranks alone."""
        states = {}
        for i, p in enumerate(self.parameters):
            held = self._states[i] if self._states else {}
            if held or not self._held_elsewhere(i):
                states[p.name] = dict(held or self.initial_state(p))
        return states

    @property
    def scalars(self) -> dict[str, float]:
        """{name: value} of the shared values as the eager steps left them, in the first parameter's dtype."""
        return {name: float(value) for name, value in self.shared_state(self.parameters[0].dtype).items()}
