"""Orders made by a clock: several lists of actions per rank become one, each action as early as it can run.

A rank that has to choose takes what can start first, then the backward, then what lies deepest in the network. Weight
gradients fill gaps, and make room before a forward that would exceed the cap.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...graph.actions import Action
from .order import Key, do, key_of


def merge(lists: Sequence[Sequence[Sequence[Action]]], parts: int, cap: int | None = None) -> list[list[Action]]:
    """The actions of each rank, from the lists (F and B, each kept in its order) that it has to merge.

    cap  micro-batches x parts that a rank may keep; with it backwards are divided, W is put where it fits

    Every action takes one unit of time. Raises RuntimeError where lists cannot run.
    """
    ended: dict[Key, int] = {}
    free, held = [0] * len(lists), [0] * len(lists)
    merged: list[list[Action]] = [[] for _ in lists]
    at = [[0] * len(mine) for mine in lists]
    late: list[list[Action]] = [[] for _ in lists]
    for _ in range(sum(len(one) for mine in lists for one in mine) * (2 if cap is None else 3) // 2):
        options: list[tuple[tuple[int, bool, int, int], int | None]] = []
        for rank, mine in enumerate(lists):
            ready = []
            for which, (one, position) in enumerate(zip(mine, at[rank], strict=True)):
                if position < len(one):
                    part, kind, n = key_of(one[position])
                    source = part - 1 if kind == "F" else part + 1
                    start = max(free[rank], ended.get((source, kind, n), -1)) if 0 <= source < parts else free[rank]
                    if not 0 <= source < parts or (source, kind, n) in ended:
                        ready.append(((start, kind == "F", -part, rank), which))
            first = min(ready, default=None)
            full = first is not None and first[0][1] and cap is not None and held[rank] >= cap
            if late[rank] and (first is None or full or first[0][0] > free[rank]):
                options.append(((free[rank], True, 1, rank), None))
            elif first is not None:
                options.append(first)
        if not options:
            raise RuntimeError("merge: these lists of actions cannot run")
        (start, _, _, rank), which = min(options)
        if which is None:
            action = late[rank].pop(0)
            held[rank] -= 1
        else:
            action = lists[rank][which][at[rank][which]]
            at[rank][which] += 1
            held[rank] += action.kind == "F"
            if action.kind == "B" and cap is not None:
                late[rank].append(do(action.stage, "W", action.micro_batch))
        merged[rank].append(action)
        free[rank] = ended[key_of(action)] = start + 1
    return merged
