"""What ranks must agree on before and during training, told in messages: a difference is an error on all.

Outside a world, and with parallel_mode "stand_alone", where ranks train each for itself, nothing is sent.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..base.errors import WorldError, message
from ..base.hooks import current_world
from ..nn.tensor.initial_slices import is_on_another_stage
from ..nn.tensor.parameter import Parameter


def training_world(parallel_mode: str) -> Any:
    """The world whose ranks train together in this mode, or None if this process trains alone."""
    world = current_world()
    return world if world is not None and world.world_size > 1 and parallel_mode != "stand_alone" else None


def said_by_all(world: Any, value: Any) -> list[Any]:
    """What each rank gave as `value` (made of what JSON knows), in rank order. Collective."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = world.comm.all_gather(np.array([text.size], np.int64), tag="Model: agree").tolist()
    longest = max(lengths)
    padded = np.zeros(longest, np.uint8)
    padded[: text.size] = text
    joined = np.asarray(world.comm.all_gather(padded, tag="Model: agree"))
    return [json.loads(joined[i * longest : i * longest + n].tobytes()) for i, n in enumerate(lengths)]


def said_by_first(world: Any, value: bool) -> bool:
    """Rank 0's `value`, on every rank: for decisions by the clock. Collective."""
    return bool(world.comm.broadcast(np.array([value], np.uint8), root=0, tag="Model: rank 0 decides")[0])


def mean_over_ranks(value: float, parallel_mode: str) -> float:
    """The mean of the ranks' values; a process that trains alone gets its own back. Collective."""
    world = training_world(parallel_mode)
    if world is None:
        return float(value)
    total = world.comm.all_reduce(np.array([value], np.float64), tag="Model: mean over ranks")
    return float(total[0]) / world.world_size


def groups_of(values: list[Any]) -> dict[str, list[int]]:
    """{value as text: ranks that gave it}: how an error says who differs."""
    groups: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        groups.setdefault(value if isinstance(value, str) else json.dumps(value), []).append(rank)
    return groups


def broadcast_parameters(parameters: Iterable[Parameter], world: Any) -> None:
    """Give every rank rank 0's values, except of slices and layerwise_parallel parameters. Collective."""
    for p in parameters:
        if p.layout is None and not p.layerwise_parallel:
            p.set_data(world.comm.broadcast(p.asnumpy(), root=0, tag=f"parameter_broadcast of {p.name}"))


def agree_on_start(parameters: Iterable[Parameter], world: Any, *, broadcast: bool) -> None:
    """All ranks hold the same values, or WorldError on each, as copies would differ for ever; `broadcast`: rank 0's.

    What a program in pipeline stages has left on one of them is compared among those that have it.
    """
    whole = [p for p in parameters if p.layout is None]  # what is elsewhere too: all ranks come to the same collective
    if world is None or world.world_size == 1 or not whole:
        return
    if broadcast:
        broadcast_parameters(whole, world)
        return
    difference = _first_difference(whole, world)
    if difference:
        raise WorldError(difference)


def warn_of_other_starts(parameters: Iterable[Parameter], world: Any) -> None:
    """A RuntimeWarning on rank 0, as in MindSpore, where copies that are to stay equal begin unequal. Collective."""
    difference = _first_difference([p for p in parameters if p.layout is None and not p.layerwise_parallel], world)
    if difference and world.rank == 0:
        warnings.warn(f"{difference} Equal gradients keep the difference for ever.", RuntimeWarning, stacklevel=2)


def _first_difference(parameters: Iterable[Parameter], world: Any) -> str:
    """What to say of the first parameter that begins with other values on another rank, or "". Collective."""
    here = [p for p in parameters if not is_on_another_stage(p)]
    mine = {p.name: zlib.crc32(np.ascontiguousarray(p.asnumpy()).view(np.uint8)) for p in here}
    first: dict[str, tuple[int, int]] = {}  # name -> the first rank that has it, and its values' checksum
    for rank, theirs in enumerate(said_by_all(world, mine)):
        for name, value in theirs.items():
            first.setdefault(name, (rank, value))
        other = next((name for name, value in theirs.items() if value != first[name][1]), None)
        if other is not None:
            what = f"parameter {other!r} begins with other values on rank {rank} than on rank {first[other][0]}"
            hint = "Set one seed on all ranks before the network is made, or parameter_broadcast=True"
            return message(what, where="before step 1", allowed="The same initial values on all ranks", hint=hint)
    return ""
