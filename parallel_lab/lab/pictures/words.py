"""The Strategy Lab in words: text and tables for a screen reader, a terminal or a notebook without widgets.

    print(to_text(lab.snapshot()))

A pure function of the snapshot: every rank, every message and every number of the picture is in it, each number with
its origin (predicted, simulated, counted or measured).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...base.units import bytes_text, table_lines, time_text

Snapshot = Mapping[str, Any]


def to_text(snapshot: Snapshot) -> str:
    """Everything the Strategy Lab shows, as plain text; the first line after the title is the picture in a sentence."""
    sections = [_head, _operators, _graph, _picture, _rank, _messages, _loss, _timeline]
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section(snapshot)))) + "\n"


def _head(s: Snapshot) -> Iterable[str]:
    net, data = (
        next((c["label"] for c in s[name]["choices"] if c["value"] == s[name]["value"]), s[name]["value"])
        for name in ("net", "data")
    )
    yield s["title"]
    yield s["status"]
    yield (
        f"Net {net} on {_count(s['devices']['value'], 'device')}, data {data}. Training: {s['run']['state']}, "
        f"{s['run']['text']}."
    )
    if s["run"].get("error"):
        yield f"The run failed: {s['run']['error']}"


def _operators(s: Snapshot) -> Iterable[str]:
    yield "OPERATORS AND STRATEGIES (slices per dim of each input)"
    preset = s.get("preset")
    if preset:
        others = ", ".join(c["label"] for c in preset["choices"])
        yield f"Preset: {preset['value'] or 'changed by you'} (there are: {others})"
    rows = [("operator", "type", "strategy", "set by", "shapes")]
    for o in s["operators"]:
        set_by = "you" if o["source"] == "user" else o["source"]
        rows.append((o["name"], o["op"], o["strategy"], set_by, o["formula"]))
    yield from table_lines(rows, indent="  ")
    for o in s["operators"]:
        if o["error"]:
            yield f"Refused for {o['name']}: {o['typed']}. {o['error']} Still in force: {o['strategy']}."


def _graph(s: Snapshot) -> Iterable[str]:
    labels = {n["id"]: n["label"] for n in s["graph"]["nodes"]}
    tensors = {t["id"]: t for t in s["tensors"]}
    if s["graph"].get("layers"):
        yield from _layers(s)
        return
    yield "OPERATOR GRAPH"
    for e in s["graph"]["edges"]:
        tensor = tensors.get(e["tensor"])
        what = f"{tensor['label']} {_shape(tensor['shape'])}" if tensor else e["tensor"]
        sent = ", ".join(f"#{n}" for n in e.get("messages") or ()) or "none"
        yield f"  {labels.get(e['from'], e['from'])} -> {labels.get(e['to'], e['to'])}: {what}; messages: {sent}"


def _layers(s: Snapshot) -> Iterable[str]:
    """The graph of a long network: a line per layer."""
    yield "LAYERS (split: slices per dim of the result)"
    edges = s["graph"]["edges"]
    rows = [("layer", "operators", "reads from", "split", "messages and slices")]
    for n in sorted(s["graph"]["nodes"], key=lambda n: (n["column"], n["row"])):
        sources = ", ".join(dict.fromkeys(e["from"] for e in edges if e["to"] == n["id"]))
        sent = " ".join(f"#{number}" for number in n["messages"]) or "none"
        rows.append((n["id"], n["detail"], sources or "-", _shape(n["cuts"]) if n["cuts"] is not None else "-", sent))
    yield from table_lines(rows, indent="  ")


def _picture(s: Snapshot) -> Iterable[str]:
    p = s["picture"]
    axes = " x ".join(f"{name} {size}" for name, size in zip(_axis_names(p), p["device_matrix"], strict=True))
    yield f"SLICES: {p['label']}, {s['phase']}"
    slices = len({card["slice"] for card in s["cards"]})
    pending = ""
    if p["partial"]:
        pending = (
            f", each a pending {p['partial']['reduce']} of {_count(p['partial']['count'], 'addend')} over "
            f"{', '.join(p['partial']['axes'])}"
        )
    yield f"Shape {_shape(p['shape'])} in {_count(slices, 'slice')}{pending}; device matrix {axes}." + (
        f" {p['note']}." if p.get("note") else ""
    )
    for h in p.get("halo", ()):
        yield f"Along dim {h['dim']} a rank reads up to {h['before']} before and {h['after']} after its own slice."
    rows = [("rank", "coordinates", "slice", "holds", "value", "same data on ranks")]
    for card in s["cards"]:
        addend = f"addend {card['addend']} of {card['addends']}" if card["addend"] else "complete"
        if card.get("strips"):
            addend = "; ".join(f"{strip['text']} from rank {strip['rank']}" for strip in card["strips"])
        where = " ".join(f"{name}={at}" for name, at in zip(_axis_names(p), card["coordinates"], strict=True))
        same = [c["rank"] for c in s["cards"] if all(c[k] == card[k] for k in ("slice", "block", "addend"))]
        copies = _ranks(rank for rank in same if rank != card["rank"]) or "none"
        mark = " <- selected" if card["rank"] == s["rank"] else ""
        rows.append((str(card["rank"]), where, str(card["slice"]), card["text"], addend, copies + mark))
    yield from table_lines(rows, indent="  ")


def _rank(s: Snapshot) -> Iterable[str]:
    detail = s.get("rank_detail")
    if not detail:
        return
    yield f"RANK {s['rank']} of {len(s['cards'])}"
    rows = [("tensor", "part", "shape", "bytes", "note")]
    rows += [
        (h["tensor"], h["text"], _shape(h["shape"]), bytes_text(h["bytes"]), h["note"] or "") for h in detail["holds"]
    ]
    yield from table_lines(rows, indent="  ")
    for g in detail["groups"]:
        yield f"  group {g['label']}: ranks {_ranks(g['ranks'])}; {g['use']}"
    parts = ", ".join(f"{m['kind']} {bytes_text(m['bytes'])}" for m in detail["memory"])
    yield f"  memory (predicted): {parts}; total {bytes_text(detail['memory_total'])}"


def _messages(s: Snapshot) -> Iterable[str]:
    yield "MESSAGES AND SLICES OF ONE STEP (bytes and time per rank)"
    if not s["messages"]:
        yield "  none: every rank already holds what it needs"
        return
    rows = [("#", "phase", "operator", "collective", "group", *AMOUNTS)]
    for m in s["messages"]:
        group = _ranks(m["group"]) or "none (local)"
        rows.append((f"#{m['number']}", m["phase"], m["operator"], m["collective"], group, *_amounts(m)))
    rows.append(("total", "", "", "", "", *_amounts(s.get("message_totals") or {})))
    yield from table_lines(rows, indent="  ")
    for m in s["messages"]:
        origin = f" ({m['origin']})" if m.get("origin") else ""
        yield f"  #{m['number']} is here because {m['reason']}{origin}."


def _loss(s: Snapshot) -> Iterable[str]:
    loss = s["loss"]
    yield "LOSS"
    if not loss["steps"]:
        yield "  no step has run yet"
        return
    for name, label in (("parallel", loss["label_parallel"]), ("single", loss["label_single"])):
        curve = loss.get(name)
        if curve is not None and len(curve):
            yield f"  {label}: {curve[0]:.6g} at step 1, {curve[-1]:.6g} at step {len(curve)}"
    if loss["largest_difference"] is not None:
        verdict = ""
        if loss.get("bound") is not None:
            verdict = (
                f", {'within' if loss['largest_difference'] <= loss['bound'] else 'BEYOND'} the rounding bound "
                f"{loss['bound']:.2g}"
            )
        at = f" at step {loss['at_step']}" if loss.get("at_step") is not None else ""
        yield f"  largest difference {loss['largest_difference']:.2g}{at}{verdict}"


def _timeline(s: Snapshot) -> Iterable[str]:
    timeline = s.get("timeline")
    if not timeline or not timeline["lanes"]:
        return
    unit = timeline["unit"]
    yield f"TIMELINE OF ONE STEP ({timeline['source']}), {timeline['end']:.4g} {unit}"
    for lane in timeline["lanes"]:
        spent: dict[str, float] = {}
        for bar in lane["bars"]:
            spent[bar["kind"]] = spent.get(bar["kind"], 0.0) + bar["end"] - bar["start"]
        yield f"  rank {lane['rank']}: " + (
            ", ".join(f"{kind} {time:.4g} {unit}" for kind, time in spent.items()) or "idle"
        )


AMOUNTS = ("bytes predicted", "bytes counted", "time predicted", "time measured")


def _amounts(m: Mapping[str, Any]) -> tuple[str, ...]:
    sizes = [bytes_text(m.get(key)) for key in ("bytes_predicted", "bytes_counted")]
    return *sizes, *(time_text(m.get(key)) for key in ("time_predicted_s", "time_measured_s"))


def _axis_names(picture: Mapping[str, Any]) -> list[str]:
    """One name per axis of the device matrix; a repeat axis that has none is called by its place."""
    names = list(picture["axis_names"])
    return [names[i] if i < len(names) else f"axis{i}" for i in range(len(picture["device_matrix"]))]


def _shape(shape: Sequence[int]) -> str:
    return str(tuple(shape))


def _ranks(ranks: Iterable[int]) -> str:
    return " ".join(map(str, ranks))


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"
