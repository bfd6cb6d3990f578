"""What the Fusion Lab shows, as sections (`shared/sections.py`): the lanes of a step, the three step times, fusion
golf, the messages, what one costs, and the lines that ask MindSpore for the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...base.cluster import Cluster, Link
from ...base.settings.config import FUSION_THRESHOLD_MB
from ...base.units import plural, time_text
from ..shared.earlier import earlier_runs
from ..shared.sections import Section, table
from .case import Case, Score, Settings
from .lanes import Lanes
from .run import RunResult


def fusion_sections(lab: Any, case: Case, lanes_of: Mapping[str, dict[str, Any]]) -> dict[str, Section]:
    """All sections of a `FusionLab`, in the order in which they are shown.  lanes_of: by source (`lanes_view`)."""
    lanes = {name: {"lanes": view, "title": _lanes_title(lab.said(name), view)} for name, view in lanes_of.items()}
    messages = {
        name: {"small": f"{lab.said(name)}; {SINCE}", "rows": _messages(view)} for name, view in lanes_of.items()
    }
    columns = {"no.": "hue", "size": "bytes", "ready": "time", "starts": "time", "ends": "time", "hidden": "time"}
    columns |= {"exposed": "late", "gradients": "why"}
    times = {"source": "name", "with this fusion": "time", "without any": "time", "messages": "count", "": "text"}
    score, results = lab.score, lab.results
    verdicts = [[_verdict(lab.said(name), result), result.equal] for name, result in results.items()]
    small = "par" if score.ratio <= 1 + 1e-9 else f"{score.ratio:.3g} x par"
    golf = "Fusion golf" if lab.plan is None else "Compared with par"
    return {
        "lanes": {"kind": "lanes", "by": ["source"], "of": lanes},
        "times": table("Step time", times, _times(lab, case, results), notes=verdicts),
        "golf": table(golf, {"": "name", " ": "time bar"}, _golf(case, score), small=small, on="yours"),
        "messages": table("Messages", columns, by=["source"], of=messages),
        **earlier_runs(lab.earlier),
        "cost": {
            "kind": "lines",
            "title": "Cost of a message",
            "small": "t = alpha + beta m",
            "notes": [lab.line_text()],
        },
    }


SINCE = "times since backward began"


def _lanes_title(source: str, lanes: Mapping[str, Any]) -> str:
    return f"Lanes, {source}: 0 to {time_text(lanes['step_s'])}"


def _messages(lanes: Mapping[str, Any]) -> list[list[Any]]:
    names, began_s = [box["name"] for box in lanes["boxes"]], lanes["forward_s"]
    rows = []
    for sent in lanes["messages"]:
        times = [max(0.0, sent[key] - began_s) for key in ("ready_s", "start_s", "end_s")]
        members = ", ".join(names[n] for n in sent["members"])
        rows.append([sent["number"], sent["size_bytes"], *times, sent["hidden_s"], sent["exposed_s"], members])
    return rows


def _times(lab: Any, case: Case, results: Mapping[str, RunResult]) -> list[list[Any]]:
    """The three step times, each with its source: [source, with fusion, without, messages, note]."""
    on_paper = lab.plan is None
    note = "formula" if on_paper else "cost model"
    rows: list[list[Any]] = [["predicted", lab.lanes.step_s, case.off.step_s, len(lab.lanes.messages), note]]
    for source in ("simulated", "measured"):
        if result := results.get(source):
            note = f"{'recorded: ' * (lab.said(source) != source)}median of {result.steps} steps"
            rows.append([source, result.step_s, result.unfused_s, result.sent, note])
        else:
            rows.append([source, None, None, None, "the puzzle is on paper" if on_paper else "not run yet"])
    return rows


def _verdict(source: str, result: RunResult) -> str:
    """Whether a run with fusion and one without it gave the same numbers."""
    if not result.equal:
        return f"{source}: {result.differs} differs from the run without fusion"
    compared = f"{result.compared - 1} parameters and the losses"
    return f"{source}: equal bit for bit with and without fusion ({compared}) after {result.taken} steps"


def _golf(case: Case, score: Score) -> list[list[Any]]:
    size_mb, best_size_s = score.best_size
    rows = [["nothing set", case.off.step_s], ["each alone", case.each.step_s]]
    best = f"best size, {size_mb} MiB" if size_mb else "best size: each alone"
    return [*rows, [best, best_size_s], ["yours", score.step_s], ["par", score.par_s]]


def tried_view(lanes: Lanes) -> dict[str, Any]:
    """The messages of the grouping that was tried before, and what its step takes."""
    sent = [
        {"number": number, "start_s": m.start_s, "end_s": m.end_s, "size_bytes": m.size_bytes}
        for number, m in enumerate(lanes.messages, 1)
    ]
    return {"step_s": lanes.step_s, "messages": sent}


def config_view(lab: Any, settings: Settings, mode: str, names: Sequence[str], last: int) -> dict[str, Any]:
    """What the mode's field says, and what it takes.  last: the last position that an index may name."""
    texts = {
        "size": str(settings.size_mb),
        "index": str(list(settings.indices)),
        "ids": " ".join(str(settings.ids.get(name, 1)) for name in names),
    }
    local = lab.parallel_mode == "data_parallel"
    counted = "optimizer's parameters" if local else "messages in the order they are sent"
    counted = counted if lab.plan else "gradients of the list"
    unit = "MindSpore's MB is 1048576 bytes here" if local else "MindSpore's MB is 262144 elements here"
    wordings = {"inclusive": "each ends a message.", "first_n": "that many come before it."}
    beyond = [str(k) for k in settings.indices if k > last]
    cut = f" {', '.join(beyond)} {'cuts' if len(beyond) == 1 else 'cut'} nothing: the last is {last}."
    hints = {
        "off": "Every gradient is sent by itself, once backward has ended.",
        "each": "Every gradient is sent by itself, as soon as it is ready.",
        "auto": f"The threshold is {FUSION_THRESHOLD_MB} MiB; {unit}.",
        "size": f"In MiB; {unit}.",
        "index": f"Positions among the {counted}, from 0; {wordings[settings.wording]}{cut if beyond else ''}",
        "ids": "comm_fusion of each parameter, in backward's order; equal ones travel in one message, 0 alone.",
    }
    return {"text": texts.get(mode, ""), "hint": hints[mode]}


def lanes_view(lanes: Lanes, case: Case) -> dict[str, Any]:
    """The lanes of one step: seconds, gradients as boxes, and messages with the places of their gradients."""
    place = {box.name: n for n, box in enumerate(lanes.boxes)}
    least = 1e-9 * lanes.step_s  # below: sums of floats, no time

    def seconds(time_s: float) -> float:
        return time_s if time_s > least else 0.0

    boxes = [{"name": b.name, "size_bytes": b.size_bytes, "start_s": b.start_s, "end_s": b.end_s} for b in lanes.boxes]
    messages = [
        {
            "number": n,
            "members": sorted(place[name] for name in m.members),
            "size_bytes": m.size_bytes,
            "ready_s": m.ready_s,
            "start_s": m.start_s,
            "end_s": m.end_s,
            "exposed_s": seconds(lanes.exposed(m)),
            "hidden_s": seconds(m.end_s - m.start_s - lanes.exposed(m)),
        }
        for n, m in enumerate(lanes.messages, start=1)
    ]
    times = {"forward_s": lanes.forward_s, "backward_s": lanes.backward_s, "step_s": lanes.step_s}
    return {**times, "exposed_s": seconds(lanes.exposed_s), "boxes": boxes, "messages": messages}


def export_line(mode: str, comm_fusion: Mapping[str, Any], ids: Mapping[str, int], parallel_mode: str) -> str:
    """Code for MindSpore: the context's key in data_parallel, the method of AutoParallel in semi_auto_parallel.

    >>> export_line("index", {"allreduce": {"mode": "index", "config": [0, 3, 5]}}, {}, "data_parallel")
    'mindspore.set_auto_parallel_context(comm_fusion={"allreduce": {"mode": "index", "config": [0, 3, 5]}})'
    """
    if mode == "ids":
        numbers = ", ".join(f'"{name}": {number}' for name, number in ids.items())
        return f"for parameter in net.trainable_params():\n    parameter.comm_fusion = {{{numbers}}}[parameter.name]"
    inside = ", ".join(
        f'"{kind}": {{"mode": "{part["mode"]}", "config": {part["config"]}}}' for kind, part in comm_fusion.items()
    )
    config = f"{{{inside}}}" if inside else '{"openstate": False}'
    if parallel_mode == "data_parallel":
        return f"mindspore.set_auto_parallel_context(comm_fusion={config})"
    return f"net = AutoParallel(net)\nnet.comm_fusion({config})"


def line_text(line: Link, cluster: Cluster | None, devices: int) -> str:
    """What a message costs, in words.  cluster: where a network runs; None: the puzzle"""
    start, per_mib = time_text(line.alpha_s), time_text(line.beta_s_per_byte * 1024 * 1024)
    text = f"A message takes alpha + beta m: alpha {start} to start, beta {per_mib} per MiB (m: its size)."
    if cluster is None:
        return text
    hops = f"{2 * (devices - 1)} hops of {time_text(cluster.link.alpha_s)} on profile {cluster.name!r}"
    return f"{text} An all_reduce of {devices} ranks has {hops}."


def status_text(lanes: Lanes, score: Score) -> str:
    """The predicted step in one sentence or two."""
    exposed_s = lanes.exposed_s
    sent = f"{plural(len(lanes.messages), 'message')} for {len(lanes.boxes)} gradients"
    sending = time_text(lanes.communication_s)
    tail = f"All {sending} of sending overlap with backward"
    if exposed_s > 1e-9 * lanes.step_s:
        part = "All" if exposed_s > (1 - 1e-9) * lanes.communication_s else f"{time_text(exposed_s)} of the"
        tail = f"{part} {sending} of sending {'are' if part == 'All' else 'is'} exposed: nothing is left to compute"
    par = "which is par" if score.ratio <= 1 + 1e-9 else f"{score.ratio:.3g} x par ({time_text(score.par_s)})"
    return f"{sent}: a step of {time_text(score.step_s)} (predicted), {par}. {tail}."
