"""Placement of experts with copies: the busiest experts get copies, and copies are packed so that devices are alike.

    placed = place_experts([90, 60, 40, 25, 18, 12, 7, 4], replicas=12, devices=4)
    placed.copies, placed.max_over_mean

Greedy, in two steps (DeepSeek's expert-parallelism load balancer, EPLB): a copy more for the expert with the largest
load per copy, until there are enough; then the copies, heaviest first, each to the lightest device with room. In groups
and nodes: groups are packed to nodes first, and both steps are taken inside each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..base.errors import ArgumentError


@dataclass(frozen=True)
class ExpertPlacement:
    """Where the copies of experts lie.

    copies          of each expert
    devices         the experts of each device
    max_over_mean   load of the busiest device over the mean: how much longer than balanced a layer takes
    before          the same with one copy each, experts in order
    """

    copies: tuple[int, ...]
    devices: tuple[tuple[int, ...], ...]
    max_over_mean: float
    before: float


def with_copies(load: Sequence[float], replicas: int) -> list[int]:
    """Copies of each expert: one more for the largest load per copy, the lower index of equal ones, until enough."""
    copies = np.ones(len(load), int)
    for _ in range(replicas - len(load)):
        copies[np.argmax(np.asarray(load, float) / copies)] += 1
    return copies.tolist()


def packed(weights: Sequence[float], packs: int) -> list[list[int]]:
    """Items in `packs` packs of equal count: heaviest first, each to the lightest pack with room."""
    room, loads = len(weights) // packs, [0.0] * packs
    made: list[list[int]] = [[] for _ in range(packs)]
    for item in np.argsort(-np.asarray(weights, float), kind="stable").tolist():
        pack = min((p for p in range(packs) if len(made[p]) < room), key=lambda p: loads[p])
        made[pack].append(item)
        loads[pack] += weights[item]
    return made


def place_experts(
    load: Sequence[float], replicas: int, devices: int, *, groups: int = 1, nodes: int = 1
) -> ExpertPlacement:
    """Copies of experts on devices, by their loads.

    load       rows of each expert;  replicas: copies in all, a multiple of `devices`
    groups, nodes   hierarchical where groups % nodes == 0: groups of experts stay within a node; otherwise one of each

    Raises ArgumentError where counts do not fit.
    """
    experts = len(load)
    if groups % nodes:
        groups = nodes = 1
    faults = {
        f"replicas={replicas} of {experts} experts": replicas >= experts,
        f"replicas={replicas} on {devices} devices": replicas % devices == 0,
        f"{experts} experts in {groups} groups": experts % groups == 0,
        f"{devices} devices and {replicas} replicas in {nodes} nodes": devices % nodes == replicas % nodes == 0,
    }
    for fault, fits in faults.items():
        if not fits:
            allowed = "A copy of each expert at least, and equal counts per device, group and node"
            raise ArgumentError(fault, where="place_experts", allowed=allowed)
    size = experts // groups
    in_groups = [sum(load[g * size : (g + 1) * size]) for g in range(groups)]
    copies, placed, loads = [0] * experts, [], []
    for own_groups in packed(in_groups, nodes):
        own = [g * size + i for g in own_groups for i in range(size)]
        counts = with_copies([load[e] for e in own], replicas // nodes)
        for expert, count in zip(own, counts, strict=True):
            copies[expert] = count
        slots = [expert for expert, count in zip(own, counts, strict=True) for _ in range(count)]
        shares = [load[e] / copies[e] for e in slots]
        for pack in packed(shares, devices // nodes):
            placed.append(tuple(slots[i] for i in pack))
            loads.append(sum(shares[i] for i in pack))
    in_order = np.array_split(np.asarray(load, float), devices)
    return ExpertPlacement(tuple(copies), tuple(placed), _over_mean(loads), _over_mean([p.sum() for p in in_order]))


def _over_mean(loads: Sequence[float]) -> float:
    return float(max(loads) / np.mean(loads)) if max(loads) else 1.0
