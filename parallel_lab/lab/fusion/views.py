"""What the Fusion Lab's snapshot says of its setting, of the three step times and of the lanes. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...base.settings.config import FUSION_THRESHOLD_MB
from .case import Case, Settings
from .lanes import Lanes
from .run import RunResult


def config_view(
    mode: str, parallel_mode: str, given: Settings, names: Sequence[str], last_position: int, *, on_paper: bool
) -> dict[str, Any]:
    """What the mode's field says, and what it takes."""
    texts = {
        "size": str(given.size_mb),
        "index": str(list(given.indices)),
        "ids": " ".join(str(given.ids.get(n, 1)) for n in names),
    }
    counted = "optimizer's parameters" if parallel_mode == "data_parallel" else "messages in the order they are sent"
    counted = "gradients of the list" if on_paper else counted
    unit = "1 MB = 1048576 bytes" if parallel_mode == "data_parallel" else "1 MB = 262144 elements"
    hints = {
        "off": "Every gradient is sent by itself, once backward has ended.",
        "each": "Every gradient is sent by itself, as soon as it is ready.",
        "auto": f"The threshold is {FUSION_THRESHOLD_MB} MB; {unit}.",
        "size": f"MB; {unit}.",
        "index": f"Positions among the {counted}, from 0; "
        + {"inclusive": "each ends a message.", "first_n": "so many come before."}[given.wording]
        + _without_effect(given, last_position),
        "ids": "comm_fusion of each parameter, in the order of backward; equal ones travel together, 0 alone.",
    }
    return {"text": texts.get(mode, ""), "hint": hints[mode]}


def _without_effect(given: Settings, last_position: int) -> str:
    """What the hint adds for positions that there are no gradients for: MindSpore warns of them, and goes on."""
    last = last_position + (given.wording == "first_n")
    beyond = [str(k) for k in given.indices if k > last]
    return (
        f" {', '.join(beyond)} {'cuts' if len(beyond) == 1 else 'cut'} nothing: the last is {last}." if beyond else ""
    )


def times_view(case: Case, lanes: Lanes, results: Mapping[str, RunResult], *, on_paper: bool) -> list[dict[str, Any]]:
    """The three step times, each with its source."""
    rows = [
        {
            "source": "predicted",
            "step_s": lanes.step_s,
            "unfused_s": case.off.step_s,
            "sent": len(lanes.messages),
            "note": "formula" if on_paper else "cost model",
        }
    ]
    for source in ("simulated", "measured"):
        found = results.get(source)
        note = "the puzzle is on paper" if on_paper else "not run yet"
        row = {"source": source, "step_s": None, "unfused_s": None, "sent": None, "note": note}
        if found is not None:
            note = f"median of {found.steps} steps"
            row |= {"step_s": found.step_s, "unfused_s": found.unfused_s, "sent": found.sent, "note": note}
        rows.append(row)
    return rows


def lanes_view(lanes: Lanes, case: Case) -> dict[str, Any]:
    """The lanes of one step: seconds, gradients as boxes, and messages with the places of their gradients."""
    place = {box.name: n for n, box in enumerate(lanes.boxes)}
    least = 1e-9 * lanes.step_s  # below: sums of floats, no time
    positions = dict(zip(case.names, case.positions, strict=True))
    return {
        "forward_s": lanes.forward_s,
        "backward_s": lanes.backward_s,
        "step_s": lanes.step_s,
        "exposed_s": lanes.exposed_s if lanes.exposed_s > least else 0.0,
        "communication_s": lanes.communication_s,
        "boxes": [
            {
                "name": b.name,
                "size_bytes": b.size_bytes,
                "start_s": b.start_s,
                "end_s": b.end_s,
                "position": positions[b.name],
            }
            for b in lanes.boxes
        ],
        "messages": [
            {
                "number": n,
                "members": sorted(place[name] for name in m.members),
                "size_bytes": m.size_bytes,
                "ready_s": m.ready_s,
                "start_s": m.start_s,
                "end_s": m.end_s,
                "exposed_s": lanes.exposed(m) if lanes.exposed(m) > least else 0.0,
                "hidden_s": hidden if (hidden := m.end_s - m.start_s - lanes.exposed(m)) > least else 0.0,
            }
            for n, m in enumerate(lanes.messages, start=1)
        ],
    }
