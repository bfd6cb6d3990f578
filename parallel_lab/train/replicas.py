"""Copies that are to stay equal, compared while ranks train: parameters and optimizer states that several ranks hold.

Each rank adds the same gradients to its copy, with the same settings. A rank with another learning rate, weights that
were set by hand or drawn from a seed of its own, one that does not take the mean of the gradients: all of them go on
without a word, and the copies drift apart. So the ranks tell each other a checksum of what they hold, in the first two
steps and every so many (`set_run_checks`), where they meet anyway: before a compiled step, before a
DistributedGradReducer adds gradients up, and after an update by gradients that ops.AllReduce has added up.

A loop that adds its gradients up with ops.AllReduce, one by one or joined, is known by the shapes between its
gradients and its update.

Not compared: slices that one rank alone holds, layerwise_parallel parameters, and what is not trained, such as the
batch statistics of data parallel ranks.
"""

from __future__ import annotations

import json
import math
import warnings
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.errors import WorldError, message
from ..base.hooks import current_world
from ..base.seeds import get_seed
from ..base.settings.checks import LOCAL_MODES
from ..base.settings.run_checks import run_checks
from ..graph.plan import Plan
from ..layout.slices import is_split
from ..nn.tensor.initial_slices import is_on_another_stage
from . import finite
from .agreement import groups_of

SEED = "seed"  # may differ: masks of dropout are each rank's own. The error says it where values differ


class Replicas:
    """The copies that some ranks hold of the same tensors.

    comm     this rank's communicator;  members: the ranks
    holders  {name: for each member the first member with the same part of it, or itself}; None: all hold all
    """

    def __init__(self, comm: Any, members: Sequence[int], holders: Mapping[str, Sequence[int]] | None = None) -> None:
        self.comm, self.members, self.steps, self.warned = comm, tuple(members), 0, False
        self.names = None if holders is None else tuple(holders)
        self.states: frozenset[str] = frozenset()  # those of the names that are no parameters
        self._first = np.zeros((len(self.members), 2), np.intp)
        if holders is not None:
            columns = [[0] * len(self.members), *holders.values()]
            self._first = np.asarray(columns, np.intp).T

    def due(self) -> bool:
        """Whether they are compared in this step; counts the steps."""
        self.steps += 1
        checks = run_checks()
        is_due = self.steps <= 2 or (self.steps - 1) % checks.replicas_every == 0
        return is_due and len(self.members) > 1 and checks.on_difference != "off" and not self.warned

    def compare(self, tensors: Mapping[str, np.ndarray], settings: Mapping[str, Any], steps: int) -> None:
        """Raise WorldError on every member, or warn on the first, where copies or settings differ. Collective.

        tensors   {name: what this rank holds};  settings: {name: value}, of what changes them
        steps     taken so far, for the message
        """
        sums = {name: checksum(array) for name, array in tensors.items()}
        own_settings = {name: str(value) for name, value in settings.items()}
        compared = [(name, value) for name, value in own_settings.items() if name != SEED]
        own = [zlib.crc32(repr(list(sums.items())).encode())] if self.names is None else map(sums.get, self.names)
        note = np.array([zlib.crc32(repr(compared).encode()), *(one or 0 for one in own)], np.uint32)
        table = self._told_by_all(note, "copies")
        if np.array_equal(table, table[self._first, np.arange(len(note))]):
            return
        text = json.dumps([sums, own_settings, [name for name in sums if name not in self.states]]).encode()
        lengths = self._told_by_all(np.array([len(text)]), "lengths of settings")[:, 0]
        padded = np.zeros(lengths.max(), np.uint8)
        padded[: len(text)] = np.frombuffer(text, np.uint8)
        rows = self._told_by_all(padded, "settings")
        reports = [json.loads(row[:n].tobytes()) for row, n in zip(rows, lengths, strict=True)]
        if self.names is None and any(parameters != reports[0][2] for *_, parameters in reports):
            return  # each rank trains parameters of its own
        self._differ([sums for sums, *_ in reports], [settings for _, settings, _ in reports], steps)

    def _told_by_all(self, note: np.ndarray, what: str) -> np.ndarray:
        return self.comm.told_by_all(note, self.members, tag=f"comparison of {what}")

    def _differ(self, sums: list[dict[str, int]], settings: list[dict[str, str]], steps: int) -> None:
        fault = ""
        for name in sums[0] if self.names is None else self.names:
            parts = self._parts_of(name)
            for first in sorted(set(parts)):
                alike = [at for at, part in enumerate(parts) if part == first]
                if len({sums[at].get(name) for at in alike}) > 1:
                    ranks = groups_of([str(sums[at].get(name)) for at in alike])
                    who = [self._ranks([alike[i] for i in places]) for places in ranks.values()]
                    what = "state" if name in self.states else "parameter"
                    fault = f"{what} {name!r} has other values on {who[1]} than on {who[0]}"
                    break
            if fault:
                break
        setting = self._first_setting(settings, with_seed=bool(fault))
        if not fault and not setting:
            return
        hint = setting if fault and setting else ""
        if fault and not setting:
            hint = "No setting differs: values were set by hand, or drawn or changed on some ranks only"
        when = "before step 1" if not steps else f"after {steps} steps"
        allowed = "Copies stay equal while all ranks add equal gradients to equal values, with equal settings"
        where = f"copies of {self._ranks(range(len(self.members)))}, {when}"
        text = message(fault or setting, where=where, allowed=allowed, hint=hint)
        if run_checks().on_difference == "error":
            raise WorldError(text)
        self.warned = True
        if self.comm.rank == self.members[0]:
            warnings.warn(text, RuntimeWarning, stacklevel=4)

    def _parts_of(self, name: str) -> Sequence[int]:
        return self._first[:, 1 if self.names is None else 1 + self.names.index(name)].tolist()

    def _first_setting(self, settings: list[dict[str, str]], *, with_seed: bool) -> str:
        """The first setting that differs, in words; "" if none does."""
        for name in settings[0]:
            ranks_by_value = groups_of([one.get(name, "missing") for one in settings])
            if len(ranks_by_value) > 1 and (with_seed or name != SEED):
                each = (f"{value} on {self._ranks(at)}" for value, at in ranks_by_value.items())
                return f"{name} is {', and '.join(each)}"
        return ""

    def _ranks(self, places: Sequence[int]) -> str:
        ranks = [self.members[at] for at in places]
        return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def checksum(array: Any) -> int:
    """32 bits of the elements."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def settings_of(optimizer: Any, **more: Any) -> dict[str, Any]:
    """What must be equal on all ranks besides the values: {name: value}, the optimizer's after `more`."""
    settings = dict(more)
    if optimizer is not None:
        for number, one in enumerate(optimizer.members):
            prefix = "" if len(optimizer.members) == 1 else f"optimizer {number + 1}: "
            own = {"optimizer": type(one).__name__, **one.rates(one.steps_taken), **one._shown(), "rule": one.rule}
            own |= {} if one.loss_scaler is None else {"scale": one.loss_scaler.scale_value}
            settings.update({prefix + name: value for name, value in own.items()})
    return settings | {SEED: get_seed()}


def dtypes_of(plan: Plan) -> dict[str, str]:
    """{"batch dtype": of the inputs} where each rank is given a batch of its own, whose rows may be more or fewer; {}
    where ranks run one program anyway, and where the network sends messages of its own: what it is given may depend on
    the rank.
    """
    if plan.config.parallel_mode not in LOCAL_MODES or any(i.by_hand for _, i in plan.instructions()):
        return {}
    return {"batch dtype": " and ".join(plan.value(data.name).dtype for data in plan.data_inputs)}


# ---- where ranks meet ----


def holders_of(plan: Plan, name: str) -> list[int]:
    """For each rank the first one with the same part of a value; itself, if it holds none."""
    value, first, holders = plan.value(name), {}, []
    for rank in range(plan.device_num):
        local, is_held = rank % plan.stages[0].count, plan.held_by(name, rank)
        part = str(value.layout.slice_index(value.shape, local)) if is_split(value.layout) else ""
        holders.append(first.setdefault(part, rank) if is_held else rank)
    return holders


def of_plan(plan: Plan, comm: Any, optimizer_parameters: Mapping[str, Any] | None = None) -> Replicas | None:
    """The copies that ranks of a compiled plan hold of what it trains; None where there is nothing to compare.

    optimizer_parameters  {name: Parameter}: layerwise_parallel ones are each rank's own
    """
    own = {name for name, p in (optimizer_parameters or {}).items() if p.layerwise_parallel}
    trained = [parameter.name for parameter in plan.parameters if parameter.trainable and parameter.name not in own]
    states = [state.name for state in plan.states if state.parameter in trained]
    ranks = range(plan.device_num)
    holders = {name: at for name in (*trained, *states) if (at := holders_of(plan, name)) != list(ranks)}
    if not holders or not plan.states:
        return None
    copies = Replicas(comm, ranks, holders)
    copies.states = frozenset(states)
    return copies


def before_sum(reducer: Any, members: tuple[int, ...], gradients: Sequence[Any], settings: Mapping[str, Any]) -> None:
    """Gradients are about to be added up by hand: look whether they are finite, and compare the parameters that they
    are of, and their optimizer's states.
    """
    world = current_world()
    copies = world.copies.get(reducer)
    if copies is None or copies.members != members:
        copies = world.copies[reducer] = Replicas(world.comm, members)
    optimizer = getattr(reducer.parameters, "optimizer", None)
    steps = copies.steps if optimizer is None else optimizer.steps_taken
    if finite.wanted(optimizer):
        names = [p.name for p in reducer.parameters]
        finite.check_all("the gradient of parameter", zip(names, gradients, strict=True), steps)
    if not copies.due():
        return
    trained = [p for p in reducer.parameters if _is_copy(p)]
    copies.compare(*_told(copies, trained, optimizer, **settings), steps)


def after_update(optimizer: Any) -> None:
    """An optimizer has taken a step: if ops.AllReduce has added up a gradient of each parameter before, compare the
    parameters and their states.
    """
    world = current_world()
    world.updates, world.has_gradients = world.updates + 1, False
    if not world.summed:
        return
    summed, world.summed = world.summed, []
    trained = [p for p in optimizer.parameters if _is_copy(p)]
    groups = dict.fromkeys(m for _, m in summed)
    members = next((m for m in groups if _hold(trained, [s for s, at in summed if at == m])), None)
    if not trained or members is None or optimizer.state_owners:
        return
    copies = world.copies.get(optimizer)
    if copies is None or copies.members != members:
        copies = world.copies[optimizer] = Replicas(world.comm, members)
    if copies.due():
        copies.compare(*_told(copies, trained, optimizer), optimizer.steps_taken)


def _hold(trained: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether sums of these shapes can be those of a gradient of each parameter: one each, or some of them joined
    in messages that have as many elements. One more number may be the loss.
    """
    needed, sent = Counter(p.shape for p in trained), Counter(shapes)
    together = sum(math.prod(shape) * count for shape, count in (needed - sent).items())
    left = sum(math.prod(shape) * count for shape, count in (sent - needed).items() if math.prod(shape) > 1)
    return together in (0, left)


def _told(
    copies: Replicas, trained: Sequence[Any], optimizer: Any, **settings: Any
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What `compare` takes: parameters and the states that the optimizer keeps of them; settings."""
    tensors = {p.name: p.asnumpy() for p in trained}
    if optimizer is not None and not optimizer.state_owners:
        states = {name: kinds for name, kinds in optimizer.states.items() if name in tensors}
        kept = {f"{kind}.{name}": array for name, kinds in states.items() for kind, array in kinds.items()}
        copies.states = frozenset(kept)
        tensors |= kept
    return tensors, settings_of(optimizer, **settings)


def _is_copy(parameter: Any) -> bool:
    """Whether all ranks hold the whole of it, and train it together."""
    alone = parameter.layerwise_parallel or parameter.layout is not None or is_on_another_stage(parameter)
    return parameter.requires_grad and not alone
