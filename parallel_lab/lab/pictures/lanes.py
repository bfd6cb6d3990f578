"""One step as lanes of bars: what views draw of measured events, or of the predicted timeline.

timeline_lanes(plan)                the predicted step
timeline_lanes(plan, events)        the last recorded one
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...base.cluster import Cluster, get_cluster
from ...base.events import Event, one_after_the_other
from ...cost.timeline import predict_timeline
from ...graph.plan import Plan

THIN = 1 / 200  # of a lane: thinner bars would look alike


def timeline_lanes(plan: Plan, events: Iterable[Event] = (), cluster: str | Cluster = "laptop") -> dict[str, Any]:
    """One lane of bars per rank, in microseconds: the last recorded step if there is one, else the predicted step.

    A measured message begins, for a rank, when it arrives; until the last member of its group has arrived it waits.
    That part is a bar of its own. Messages that travel while the rank computes are bars of the lane's `meanwhile`.
    """
    events, alike = list(events), (0,)  # ranks whose lanes are the first one's
    if events:
        last = max(e.step for e in events)
        events = [part for e in _arrivals(one_after_the_other(e for e in events if e.step == last)) for part in e]
    else:
        profile = get_cluster(cluster)
        one = predict_timeline(plan, profile, ranks=(0,))
        if one.symmetric and len(plan.stages) == 1:
            events, alike = list(one.log), tuple(range(plan.device_num))
        else:
            events = list(predict_timeline(plan, profile).log)
    start, end = min(e.start_s for e in events), max(e.end_s for e in events)  # all ranks' clocks are the machine's own
    by_rank: dict[int, list[Event]] = {}
    for e in sorted(events, key=lambda e: (e.rank, e.start_s)):
        by_rank.setdefault(e.rank, []).append(e)
    lanes = []
    for rank, own in sorted(by_rank.items()):
        rows = [
            [
                {
                    "start": (part[0].start_s - start) * 1e6,
                    "end": (part[-1].end_s - start) * 1e6,
                    "kind": part[0].kind,
                    "label": f"{part[0].op} ({part[0].name})" + (f" and {len(part) - 1} more" if len(part) > 1 else ""),
                }
                for part in _joined([e for e in own if e.overlapped is overlapped], THIN * (end - start))
            ]
            for overlapped in (False, True)
        ]
        lanes.append({"rank": rank, "bars": rows[0]} | ({"meanwhile": rows[1]} if rows[1] else {}))
    lanes += [{**lanes[0], "rank": rank} for rank in alike[1:]]
    return {"source": events[0].source, "unit": "us", "end": (end - start) * 1e6, "lanes": lanes}


def _joined(events: list[Event], thin_s: float) -> Iterable[list[Event]]:
    """Events of a lane in runs: neighbouring computations too thin to see, with no visible gap, are one bar."""
    run: list[Event] = []
    for e in events:
        thin = bool(run) and max(e.duration_s, run[-1].duration_s if len(run) == 1 else 0) < thin_s
        if thin and e.kind == run[-1].kind == "compute" and e.start_s - run[-1].end_s < thin_s / 4:
            run.append(e)
            continue
        if run:
            yield run
        run = [e]
    if run:
        yield run


def _arrivals(events: Sequence[Event]) -> Iterable[tuple[Event, ...]]:
    """Each event; one of a message split into (wait, communication) where this rank was not the last to arrive."""
    complete: dict[tuple[Any, ...], float] = {}
    for e in events:
        if e.group and e.kind == "communication" and not e.overlapped:
            key = (e.phase, e.name, e.group)
            complete[key] = max(complete.get(key, e.start_s), e.start_s)
    for e in events:
        began = e.start_s if e.overlapped else min(complete.get((e.phase, e.name, e.group), e.start_s), e.end_s)
        yield (e,) if began <= e.start_s else (replace(e, kind="wait", end_s=began, bytes=0), replace(e, start_s=began))
