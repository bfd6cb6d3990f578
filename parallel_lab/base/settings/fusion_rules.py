"""Which messages travel together: MindSpore's grouping rules, as functions of sizes and positions.

Five gradients, each a message of its own, become three:

    >>> index_groups(5, [1, 3])  # the first message ends with number 1, the second with number 3
    (0, 0, 1, 1, 2)
    >>> size_groups_by_elements([262_144] * 5, threshold_mb=2)
    (0, 1, 1, 2, 2)
    >>> size_groups_by_bytes([1_048_576] * 5, threshold_mb=2)
    (0, 0, 0, 1, 1)

Every function returns one group number per message, in the order the messages were given in; equal numbers share a
bucket. Numbers count from 0. The fusion ids that MindSpore shows are these and a start: 1024 for index
(DistributedGradReducer), 1 for size and the cost model.

Why fuse at all: a message of m bytes costs alpha + beta m seconds, so n messages pay alpha n times, and one message
waits for its last gradient. `parallel_lab/cost/overlap.py` computes what a grouping makes of that.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from ..checks import choice
from ..errors import ContextConflictError, ContextError, shorten
from .checks import COST_MODEL_NUMBERS, FUSION_WORDINGS, SETTINGS, check_fusion_indices, cost_model_numbers

ELEMENTS_PER_MB = 262_144  # 1024 * 1024 bytes of float32; MindSpore multiplies the setting by it whatever the dtype
_BYTES_PER_MB = 1024 * 1024

Groups = tuple[int, ...]
Buckets = tuple[tuple[int, ...], ...]
_WORDING = choice(*FUSION_WORDINGS)


# ---- by position ----


def index_groups(count: int, indices: Iterable[int], wording: str = "inclusive") -> Groups:
    """Split `count` messages at positions.

    indices   rising positions, at least one; one that no message reaches splits nothing
    wording   "inclusive": a message ends with each index, so that [20, 35] gives 21, 15 and the rest (MindSpore,
              DistributedGradReducer); "first_n": as its documents put it, the first 20, then those up to the 35th, then
              the rest: 20, 15 and the rest

    >>> index_groups(5, [1, 2, 3])
    (0, 0, 1, 2, 3)
    >>> index_groups(5, [1, 2, 3], "first_n")
    (0, 1, 2, 3, 3)

    Raises ContextError (or ContextTypeError) for indices that `comm_fusion` refuses, a negative count, another wording.
    """
    if count < 0:
        raise ContextError(f"{shorten(count)} messages", where="index_groups", allowed="At least 0")
    _WORDING("index_groups", "fusion_index", wording, SETTINGS)
    plain = check_fusion_indices("index_groups", "indices", list(indices))
    passed = bisect_left if wording == "inclusive" else bisect_right
    return _consecutive(passed(plain, position) for position in range(count))


def indices_of(groups: Sequence[int], wording: str = "inclusive") -> tuple[int, ...] | None:
    """The index list that makes these groups; () for one group, which needs no list; None if no list can: a group that
    comes back after another.

    >>> indices_of((0, 0, 1, 1, 2))
    (1, 3)

    Raises ContextError for another wording.
    """
    _WORDING("indices_of", "fusion_index", wording, SETTINGS)
    starts = [place for place in range(1, len(groups)) if groups[place] != groups[place - 1]]
    if len(starts) + 1 > len(set(groups)) and groups:
        return None
    return tuple(start - 1 if wording == "inclusive" else start for start in starts)


def buckets_of(groups: Sequence[int]) -> Buckets:
    """The positions of each group, in the order of their first message: (0, 1, 0, 2) gives ((0, 2), (1,), (3,))."""
    positions: dict[int, list[int]] = {}
    for position, group in enumerate(groups):
        positions.setdefault(group, []).append(position)
    return tuple(tuple(bucket) for bucket in positions.values())


# ---- by size ----


def size_groups_by_elements(sizes_elements: Sequence[int], threshold_mb: int) -> Groups:
    """Split messages by a threshold, as in semi_auto_parallel and auto_parallel.

    sizes_elements  elements of each message, in the order in which MindSpore numbers them: the first layer first
    threshold_mb    of each group; counted as 262144 elements, 1 MB of float32, 2 MB of float64, half a MB of float16

    A group has room for the threshold. The first message takes from it, whatever its size. A later one joins if it is
    strictly smaller than the room that is left; otherwise it opens a group, which then has the whole threshold left:
    the one that opens it is not counted. (MindSpore, AllCommFusion::SetFusionBySize; recorded with 2.10.)

    >>> size_groups_by_elements([524_288, 32_768, 2_048, 2_048], 1)
    (0, 1, 1, 1)

    Raises ContextConflictError (also a RuntimeError) for a threshold not positive, ContextError for an invalid size.
    """
    _check_sizes(sizes_elements, "elements", "size_groups_by_elements")
    if threshold_mb <= 0:
        what = f"comm_fusion by size with a threshold of {shorten(threshold_mb)} MB"
        raise ContextConflictError(what, where="compile", allowed="In semi_auto_parallel and auto_parallel: above 0")
    threshold = threshold_mb * ELEMENTS_PER_MB
    groups: list[int] = []
    room = threshold
    for size in sizes_elements:
        if not groups:
            groups.append(0)
            room -= size
        elif size < room:
            groups.append(groups[-1])
            room -= size
        else:
            groups.append(groups[-1] + 1)
            room = threshold
    return tuple(groups)


def size_groups_by_bytes(sizes_bytes: Sequence[int], threshold_mb: int) -> Groups:
    """Split messages by a threshold, as in data_parallel and hybrid_parallel.

    sizes_bytes   bytes of each message, in the order of the optimizer's parameters
    threshold_mb  1 MB is 1024 * 1024 bytes; 0: every message travels alone

    Sizes are added up; the message with which the sum gets above the threshold is the last of its group. (MindSpore,
    CommunicationOpFusion. Its code compares bytes with a threshold multiplied by 262144, a quarter of what was asked
    for; here MB means what its documents say.)

    >>> size_groups_by_bytes([1_048_576] * 3, 1)  # 1 MB is not above 1 MB, 2 MB are
    (0, 0, 1)

    Raises ContextError for a negative threshold, or an invalid size.
    """
    _check_sizes(sizes_bytes, "bytes", "size_groups_by_bytes")
    if threshold_mb < 0:
        what = f"a threshold of {shorten(threshold_mb)} MB"
        raise ContextError(what, where="size_groups_by_bytes", allowed="At least 0")
    if threshold_mb == 0:
        return tuple(range(len(sizes_bytes)))
    threshold = threshold_mb * _BYTES_PER_MB
    groups: list[int] = []
    group, total = 0, 0
    for size in sizes_bytes:
        groups.append(group)
        total += size
        if total > threshold:
            group, total = group + 1, 0
    return tuple(groups)


# ---- by the cost model ----


def distances_from_loss(costs: Sequence[float], readers: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """How much computation lies between the loss and each operator, its own included: the order of parameters.

    costs     computation cost of each operator, inputs first (bytes of its slices, in MindSpore's cost model)
    readers   per operator the later operators that read its result; none: it ends at the loss

    A parameter lies as far as the operator that reads it; if several do, as far as the furthest. Among several ways to
    the loss the longest counts. (MindSpore's walk adds the ways up, which for a chain is the same, and in a network
    with shortcuts grows with the number of ways.)

    >>> distances_from_loss([5.0, 3.0, 1.0], [[1], [2], []])
    (9.0, 4.0, 1.0)

    Raises ContextError if an operator is read by itself or an earlier one.
    """
    distances = [0.0] * len(costs)
    for at in reversed(range(len(costs))):
        later = readers[at]
        if any(not at < reader < len(costs) for reader in later):
            what, allowed = f"operator {at} is read by {shorten(tuple(later))}", f"{at + 1} to {len(costs) - 1}"
            raise ContextError(what, where="distances_from_loss", allowed=f"Numbers from {allowed}")
        distances[at] = costs[at] + max((distances[reader] for reader in later), default=0.0)
    return tuple(distances)


def cost_model_groups_by_times(distances: Sequence[float], times: int, tail_percent: float) -> Groups:
    """costmodel_allreduce_fusion_algorithm 1: split by equal shares of the backward computation.

    distances     of each message's parameter from the loss, see `distances_from_loss`; in any order
    times         costmodel_allreduce_fusion_times, groups there may be, at least 2
    tail_percent  costmodel_allreduce_fusion_tail_percent, from 0 up to, not including, 1: the share of the furthest
                  group, whose gradients come last

    The way from the loss to the furthest parameter is split into `times` intervals: the furthest is tail_percent of it,
    the others are equal. A parameter on a border belongs to the interval nearer the loss. Group 0 is the furthest;
    MindSpore shows the number and 1.

    >>> cost_model_groups_by_times([1, 2, 3, 4], times=2, tail_percent=0.5)
    (1, 1, 0, 0)

    Raises ContextError for a value out of range.
    """
    where = "cost_model_groups_by_times"
    _check_distances(distances, where)
    count, tail_percent = cost_model_numbers(where, "times", (times, tail_percent))
    times = int(count)
    if not distances:
        return ()
    tail = max(distances) * (1 - tail_percent)  # where the furthest interval begins
    borders = [tail * number / (times - 1) for number in range(1, times)]
    return tuple(times - 1 - bisect_left(borders, distance) for distance in distances)


def cost_model_groups_by_hiding(
    distances: Sequence[float],
    sizes_elements: Sequence[int],
    *,
    tail_time_s: float,
    inherent_time_s: float,
    time_s_per_element: float,
    computation_s_per_unit: float,
) -> Groups:
    """costmodel_allreduce_fusion_algorithm 2: each group as large as what the computation behind it can hide.

    distances, sizes_elements   of each message's parameter from the loss, and elements of its slice; in any order
    tail_time_s                 costmodel_allreduce_fusion_tail_time, for the last message, after the computation
    inherent_time_s             costmodel_allreduce_fusion_allreduce_inherent_time, of every message
    time_s_per_element          costmodel_allreduce_fusion_allreduce_bandwidth (a time, despite its name)
    computation_s_per_unit      costmodel_allreduce_fusion_computation_time_parameter, seconds per unit of distance

    Groups are filled from the far end, where gradients come last. The first takes parameters until they fill
    tail_time_s; the next until they fill the computation of the distance that the first one covered; and so on.
    Parameters of one distance are not parted. Where nothing can be hidden, the group takes all that is left. In every
    group but the first the furthest parameters are counted once more, though they stay where they are: so does the
    version of MindSpore whose groups its test_allreduce_fusion.py states. Group 0 is the furthest; MindSpore shows the
    number and 1.

    Raises ContextError for times that are not positive, tail_time_s not above inherent_time_s, lists of two lengths.
    """
    where = "cost_model_groups_by_hiding"
    _check_distances(distances, where)
    _check_sizes(sizes_elements, "elements", where)
    if len(distances) != len(sizes_elements):
        what = f"{len(distances)} distances and {len(sizes_elements)} sizes"
        raise ContextError(what, where=where, allowed="One of each per message")
    cost_model_numbers(where, "hiding", (tail_time_s, inherent_time_s, time_s_per_element, computation_s_per_unit))
    if not distances:
        return ()
    at: dict[float, int] = {}  # elements per distance
    for distance, size in zip(distances, sizes_elements, strict=True):
        at[distance] = at.get(distance, 0) + size
    levels = sorted(at, reverse=True)
    group_at: dict[float, int] = {}
    room = (tail_time_s - inherent_time_s) / time_s_per_element
    first, group = 0, 0
    while first < len(levels):
        total = at[levels[0]] if group else 0
        stop = first
        while stop < len(levels) and (stop == first or room <= 0 or total < room):
            total += at[levels[stop]]
            group_at[levels[stop]] = group
            stop += 1
        covered = (levels[first - 1] if first else levels[0]) - levels[stop - 1]
        room = (covered * computation_s_per_unit - inherent_time_s) / time_s_per_element
        first, group = stop, group + 1
    return tuple(group_at[distance] for distance in distances)


def cost_model_groups(setting: tuple[Any, ...], distances: Sequence[float], sizes_elements: Sequence[int]) -> Groups:
    """The groups of `ParallelConfig.cost_model_fusion`: ("times", ...) or ("hiding", ...), with the arguments above."""
    kind, *values = setting
    if kind == "times":
        return cost_model_groups_by_times(distances, *values)
    named = dict(zip(COST_MODEL_NUMBERS["hiding"], values, strict=True))
    return cost_model_groups_by_hiding(distances, sizes_elements, **named)


# ---- checks ----


def _check_sizes(sizes: Sequence[int], unit: str, where: str) -> None:
    for at, size in enumerate(sizes):
        if size < 0:
            raise ContextError(f"message {at} has {shorten(size)} {unit}", where=where, allowed="At least 0")


def _check_distances(distances: Sequence[float], where: str) -> None:
    for at, distance in enumerate(distances):
        if not 0 < distance < math.inf:
            what = f"the parameter of message {at} has distance {shorten(distance)} from the loss"
            raise ContextError(what, where=where, allowed="Above 0")


def _consecutive(keys: Iterable[int]) -> Groups:
    """Numbers from 0 in the order of the keys: a group that nobody is in takes no number."""
    listed = list(keys)
    number = {key: n for n, key in enumerate(sorted(set(listed)))}
    return tuple(number[key] for key in listed)
