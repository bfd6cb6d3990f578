"""The Fusion Lab in words, and the lines that ask MindSpore for the same messages. Pure functions.

print(fusion_text(lab.snapshot()))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...base.units import bytes_text, time_text

Snapshot = Mapping[str, Any]
BLOCKS = 60  # columns of the drawn lanes


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


def status_text(s: Snapshot) -> str:
    """The picture in one sentence or two."""
    lanes, golf = s["lanes"], s["golf"]
    count = len(lanes["messages"])
    sent = f"{count} message{'s' if count != 1 else ''} for {len(lanes['boxes'])} gradients"
    tail = (
        f"{time_text(lanes['exposed_s'])} of {time_text(lanes['communication_s'])} of sending come after backward, "
        "with nothing left to compute"
    )
    if not lanes["exposed_s"]:
        tail = f"all of the {time_text(lanes['communication_s'])} of sending travel beside backward"
    par = "which is par" if golf["ratio"] <= 1 + 1e-9 else f"{golf['ratio']:.2f} x par ({time_text(golf['par_s'])})"
    return f"{sent}: a step of {time_text(golf['step_s'])} (predicted), {par}. {_capital(tail)}."


def verdict_text(result: Mapping[str, Any]) -> str:
    """Whether a run with fusion and one without it gave the same numbers."""
    if result["equal"]:
        return (
            f"{result['source']}: equal bit for bit with and without fusion ({result['compared'] - 1} parameters "
            "and the losses)"
        )
    return f"{result['source']}: {result['differs']} differs from the run without fusion"


def fusion_text(s: Snapshot) -> str:
    """Everything the Fusion Lab shows for a snapshot; the second line says the whole picture."""
    sections = (_head, _drawn, _buckets, _times, _golf, _export)
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section(s)))) + "\n"


def _head(s: Snapshot) -> Iterable[str]:
    yield s["title"]
    yield s["status"]
    chosen = {
        key: next(c["label"] for c in s[key]["choices"] if c["value"] == s[key]["value"]) for key in ("subject", "mode")
    }
    setting = f" {s['config']['text']}" if s["config"]["text"] else ""
    yield f"{_capital(chosen['subject'])}: {s['subject']['note']}."
    yield f"{s['devices']['value']} devices, {s['parallel_mode']['value']}. Fusion {chosen['mode']}{setting}."
    yield s["line"]["text"]
    if s["run"]["error"]:
        yield f"The run failed: {s['run']['error']}"


def _drawn(s: Snapshot) -> Iterable[str]:
    """The two lanes as characters: b computes, digits send (the message's number), ~ is exposed."""
    lanes = s["lanes"]
    if not lanes["boxes"] or not lanes["step_s"]:
        return
    scale = BLOCKS / lanes["step_s"]

    def place(time_s: float) -> int:
        return min(BLOCKS, max(0, round(time_s * scale)))

    above, below = [" "] * BLOCKS, [" "] * BLOCKS
    for column in range(place(lanes["forward_s"])):
        above[column] = "f"
    for number, box in enumerate(lanes["boxes"]):
        for column in range(place(box["start_s"]), place(box["end_s"])):
            above[column] = "bB"[number % 2]
    for column in range(place(lanes["boxes"][-1]["end_s"]), place(lanes["backward_s"])):
        above[column] = "."
    for sent in lanes["messages"]:
        for column in range(place(sent["start_s"]), place(sent["end_s"])):
            below[column] = str(sent["number"] % 10)
    tail = "".join(
        "~" if place(lanes["backward_s"]) <= column and below[column] != " " else " " for column in range(BLOCKS)
    )
    yield f"Lanes, {s['source']}: 0 to {time_text(lanes['step_s'])}"
    yield f"  backward       |{''.join(above)}|  f forward, b and B one gradient each"
    yield f"  communication  |{''.join(below)}|  the number of the message"
    yield f"  exposed        |{tail}|"


def _buckets(s: Snapshot) -> Iterable[str]:
    names = [box["name"] for box in s["lanes"]["boxes"]]
    rows = [("message", "size", "ready", "starts", "ends", "hidden", "exposed", "gradients")]
    for sent in s["lanes"]["messages"]:
        times = (time_text(sent[key]) for key in ("ready_s", "start_s", "end_s", "hidden_s", "exposed_s"))
        rows.append(
            (str(sent["number"]), bytes_text(sent["size_bytes"]), *times, ", ".join(names[n] for n in sent["members"]))
        )
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    for row in rows:
        yield "  ".join(text.rjust(width) for text, width in zip(row[:7], widths, strict=True)) + "  " + row[7]


def _times(s: Snapshot) -> Iterable[str]:
    yield "Step time        with this fusion    without any    messages of gradients"
    for row in s["times"]:
        if row["step_s"] is None:
            yield f"  {row['source']:<14} {'-':>16}    {'-':>11}    {row['note']}"
        else:
            yield (
                f"  {row['source']:<14} {time_text(row['step_s']):>16}    {time_text(row['unfused_s']):>11}    "
                f"{row['sent']} ({row['note']})"
            )
    yield from (verdict_text(result) for result in s["equality"])


def _golf(s: Snapshot) -> Iterable[str]:
    golf = s["golf"]
    yield f"Fusion golf: {time_text(golf['step_s'])}, par {time_text(golf['par_s'])}, ratio {golf['ratio']:.3f}."
    yield (
        f"Nothing set {time_text(golf['off_s'])}; each alone {time_text(golf['each_s'])}; "
        f"best size, {golf['best_size_mb']} MB, {time_text(golf['best_size_s'])}."
    )


def _export(s: Snapshot) -> Iterable[str]:
    yield "In MindSpore:"
    yield from (f"  {line}" for line in s["export"].splitlines())


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
