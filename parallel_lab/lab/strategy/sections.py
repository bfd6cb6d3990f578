"""The Strategy Lab in words: what the picture says, as sections (`shared/sections.py`) and sentences.

    print(strategy_text(lab.snapshot()))

Pure functions of the snapshot: every rank, every message and every number of the picture is in the text, each number
with its origin (predicted, simulated, counted or measured).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...base.units import bytes_text, plural
from ...ops.machine.opdef import OpDef
from ..pictures.moves import move_lines
from ..pictures.numbers import number_text
from ..rosetta.section import type_note, types_text
from ..shared.sections import Section, loss_text, open_question, snapshot_text, table

Snapshot = Mapping[str, Any]
AMOUNTS = {"bytes predicted": "bytes", "bytes counted": "bytes", "time predicted": "time"}


def strategy_text(s: Snapshot) -> str:
    """Everything the Strategy Lab shows; the second line says the whole picture in one sentence."""
    preset = {**s["preset"], "value": s["preset"]["value"] or "changed by you"}
    if covered := open_question(s):
        return covered
    run = f"Training: {s['run']['state']}, {s['run']['text']}."
    return snapshot_text({**s, "preset": preset, "notes": [run], "sections": sections(s)})


def sections(s: Snapshot) -> dict[str, Section]:
    """What is shown, section by section."""
    return {
        "operators": _operators(s),
        "graph": _layers(s) if s["graph"].get("layers") else _graph(s),
        "picture": _picture(s),
        "rank": _rank(s),
        **_numbers_of(s),
        "messages": _messages(s),
        **_moves(s),
        "loss": {"kind": "loss", "title": "Loss", "loss": s["loss"], "notes": _told(s)},
        "timeline": _timeline(s),
        **s["sections"],
    }


def _operators(s: Snapshot) -> Section:
    columns = dict.fromkeys(("operator", "type", "strategy", "set by", "shapes", "type of the result"), "text")
    rows, notes = [], []
    for o in s["operators"]:
        set_by = "you" if o["source"] == "user" else o["source"]
        types = types_text(o["types"]) + ("; not checked" if o["unchecked"] else "")
        rows.append((o["name"], o["op"], o["strategy"], set_by, o["formula"], types))
        if o["error"]:
            notes.append(f"Refused for {o['name']}: {o['typed']}. {o['error']} Still in force: {o['strategy']}.")
    return table("Operators and strategies", columns, rows, small="slices per dim of each input", notes=notes)


def _graph(s: Snapshot) -> Section:
    labels = {n["id"]: n["label"] for n in s["graph"]["nodes"]}
    tensors = {t["id"]: f"{t['label']} {_shape(t['shape'])}" for t in s["tensors"]}
    rows = [
        (labels[e["from"]], labels[e["to"]], tensors.get(e["tensor"], e["tensor"]), _numbers(e["messages"]))
        for e in s["graph"]["edges"]
    ]
    return table("Operator graph", dict.fromkeys(("from", "to", "tensor", "messages"), "text"), rows)


def _layers(s: Snapshot) -> Section:
    """The graph of a long network: a line per layer."""
    edges, rows = s["graph"]["edges"], []
    for n in sorted(s["graph"]["nodes"], key=lambda n: (n["column"], n["row"])):
        sources = ", ".join(dict.fromkeys(e["from"] for e in edges if e["to"] == n["id"]))
        rows.append((n["id"], n["detail"], sources or None, n["cuts"], _numbers(n["messages"])))
    columns = {"layer": "text", "operators": "text", "reads from": "text"}
    columns |= {"slices": "shape", "messages and slices": "text"}
    return table("Layers", columns, rows, small="slices per dim of the result")


def _numbers(numbers: Sequence[int]) -> str:
    return " ".join(f"#{n}" for n in numbers) or "none"


def _picture(s: Snapshot) -> Section:
    p = s["picture"]
    names = [*p["axis_names"], *(f"axis{i}" for i in range(len(p["axis_names"]), len(p["device_matrix"])))]
    pending = ""
    if p["partial"]:
        addends = f"{p['partial']['count']} partial sums over {', '.join(p['partial']['axes'])}"
        pending = f", each a pending {p['partial']['reduce']} of {addends}"
    matrix = " x ".join(f"{name} {size}" for name, size in zip(names, p["device_matrix"], strict=True))
    slices = f"{plural(p['slices'], 'slice')}{pending}"
    notes = [f"Shape {_shape(p['shape'])} in {slices}; device matrix {matrix}; {p['note']}."]
    reach = "Along dim {dim} a rank reads up to {before} before and {after} after its own slice."
    notes += [reach.format_map(halo) for halo in p["halo"]]
    if p["types"]:
        notes.append(type_note(p["types"]))
    rows = []
    for card in s["cards"]:
        value = f"partial sum {card['addend']} of {card['addends']}" if card["addend"] else "complete"
        if card.get("strips"):
            value = "; ".join(f"{strip['text']} from rank {strip['rank']}" for strip in card["strips"])
        where = " ".join(f"{name}={at}" for name, at in zip(names, card["coordinates"], strict=False))
        alike = [c for c in s["cards"] if all(c[k] == card[k] for k in ("slice", "block", "addend"))]
        copies = " ".join(str(c["rank"]) for c in alike if c is not card) or "none"
        mark = " <- selected" if card["rank"] == s["rank"] else ""
        rows.append((str(card["rank"]), where, str(card["slice"]), card["text"], value, f"{copies}{mark}"))
    columns = dict.fromkeys(("rank", "coordinates", "slice", "holds", "value", "same data on ranks"), "text")
    return table(f"Slices of {p['label']}", columns, rows, small=s["phase"], notes=notes)


def _rank(s: Snapshot) -> Section:
    detail = s["rank_detail"]
    columns = {"tensor": "text", "part": "text", "shape": "shape", "size": "bytes", "note": "text"}
    rows = [(h["tensor"], h["text"], h["shape"], h["bytes"], h["note"] or "") for h in detail["holds"]]
    notes = [f"group {g['label']}: ranks {' '.join(map(str, g['ranks']))}; {g['use']}" for g in detail["groups"]]
    parts = ", ".join(f"{m['kind']} {bytes_text(m['bytes'])}" for m in detail["memory"])
    notes.append(f"memory (predicted): {parts}; total {bytes_text(detail['memory_total'])}")
    return table(f"Rank {s['rank']} of {len(s['cards'])}", columns, rows, notes=notes)


def _numbers_of(s: Snapshot) -> dict[str, Section]:
    """The numbers in the slice that is looked at, if they are asked for."""
    if not s.get("numbers"):
        return {}
    return {"numbers": numbers_section(s["numbers"], f"Numbers of rank {s['rank']} in {s['picture']['label']}")}


def _messages(s: Snapshot) -> Section:
    rows, notes = [], []
    for m in s["messages"]:
        number, origin = f"#{m['number']}", f" ({m['origin']})" if m["origin"] else ""
        rows.append((number, m["phase"], m["operator"], m["collective"], _group(m["group"]), *_amounts(m)))
        dual = f" {m['dual_text'][0].upper()}{m['dual_text'][1:]}." if m.get("dual_text") else ""
        notes.append(f"{number} is here because {m['reason']}{origin}.{dual}")
    rows.append(("total", "", "", "", "", *_amounts(s["message_totals"])))
    ran = "simulated" if s["timeline"]["source"].startswith("simulated") else "measured"
    columns = dict.fromkeys(("#", "phase", "operator", "collective", "group"), "text")
    columns |= {**AMOUNTS, f"time {ran}": "time"}
    if not notes:
        rows, notes = [], ["none: every rank already holds what it needs"]
    small = "bytes and time per rank"
    if s["timeline"]["source"].endswith("(recorded)"):
        small += f"; counted and {ran}: recorded"
    return table("Messages and slices of one step", columns, rows, small=small, notes=notes)


def _moves(s: Snapshot) -> dict[str, Section]:
    """What moves in the redistribution of the selected message."""
    if not s.get("moves"):
        return {}
    lines = move_lines(s["moves"])
    return {"moves": {"kind": "lines", "title": "Moves", "small": s["moves"]["label"], "notes": lines}}


def _group(ranks: Sequence[int]) -> str:
    return " ".join(map(str, ranks)) or "none (local)"


def _amounts(m: Mapping[str, Any]) -> Iterable[Any]:
    return (m[key] for key in ("bytes_predicted", "bytes_counted", "time_predicted_s", "time_measured_s"))


def _told(s: Snapshot) -> list[str]:
    """What was changed while it trained, what ended the run before, and the earlier runs."""
    switches = [f"After step {one['step']}: {one['change']}; {one['text']}." for one in s["loss"]["switches"]]
    recording = s.get("recording")
    told = [f"Recorded: {recording['said']}.", f"Recorded: {recording['verdict']}."] if recording else []
    return [
        *switches,
        *told,
        *([s["said"][:1].upper() + s["said"][1:] + "."] if s["said"] else []),
        *map(_earlier, s["earlier"]),
    ]


def _earlier(run: Mapping[str, Any]) -> str:
    return f"earlier run ({run['label']}): {loss_text(run['losses'][-1])} near step {run['steps']}"


def _timeline(s: Snapshot) -> Section:
    timeline, rows = s["timeline"], []
    for lane in timeline["lanes"]:
        spent: dict[str, float] = {}
        for bar in lane["bars"]:
            spent[bar["kind"]] = spent.get(bar["kind"], 0.0) + bar["end"] - bar["start"]
        parts = [f"{kind} {time:.4g} {timeline['unit']}" for kind, time in spent.items()]
        rows.append((f"rank {lane['rank']}", ", ".join(parts) or "idle"))
    small = f"{timeline['source']}: {timeline['end']:.4g} {timeline['unit']}"
    notes = [s["gap"]["text"]] if s.get("gap") and s["gap"]["text"] else []
    if s["fit"]["text"]:
        notes.append(s["fit"]["text"])
    return table("Timeline of one step", {"": "text", " ": "text"}, rows, small=small, notes=notes)


def _shape(shape: Sequence[int]) -> str:
    return str(tuple(shape))


# ---- the picture in a sentence ----


def tensor_status(picture: Mapping[str, Any], devices: int) -> str:
    """Where the slices of the chosen tensor lie."""
    slices, partial = picture["slices"], picture["partial"]
    lies = "whole on every rank" if devices > 1 else "whole on the only rank"
    if partial:  # which its label says
        lies = f"{slices} slices, each" if slices > 1 else "not split, but"
        lies += f" still {partial['count']} addends on different ranks"
    elif slices > 1:
        lies = f"{slices} slices, each held by {plural(devices // slices, 'rank')}"
    beyond = "".join(f"; for dim {h['dim']} a rank reads {_reach(h)} its own" for h in picture["halo"])
    return f"{picture['label']} {tuple(picture['shape'])}: {lies}{beyond}."


def _reach(halo: Mapping[str, Any]) -> str:
    parts = [f"{halo[side]} {side}" for side in ("before", "after") if halo[side]]
    return " and ".join(parts) or "no neighbouring element"


def rank_status(rank: int, messages: Iterable[Mapping[str, Any]], devices: int) -> str:
    """What the chosen rank sends."""
    if devices == 1:
        return "One device sends no messages."
    sent = [m for m in messages if m["group"]]
    if not sent:
        return "A step sends no messages."
    count = bytes_text(sum(m["bytes_predicted"] for m in sent))
    return f"{plural(len(sent), 'message')} a step, with {count} from rank {rank} (predicted)."


def pair_status(m: Mapping[str, Any]) -> str:
    """The selected message and its partner in a sentence."""
    what = f"{m['phase']}, {m['collective']} of {m['operator']}, {bytes_text(m['bytes_predicted'])} per rank"
    return f"#{m['number']} ({what}): {m['dual_text']}."


def shapes_text(op: OpDef, shapes: tuple[tuple[int, ...], ...]) -> str:
    """ "(2, 3) x (3, 4)"; of many operands each shape once: "x (32, 8, 4, 4), scale, bias, mean, variance (8,)"."""
    if len(shapes) < 4 or len(op.tensors) != len(shapes):
        return " x ".join(map(str, shapes))
    names: dict[tuple[int, ...], list[str]] = {}
    for name, shape in zip(op.tensors, shapes, strict=True):
        names.setdefault(shape, []).append(name)
    return ", ".join(f"{', '.join(those)} {shape}" for shape, those in names.items())


def numbers_section(numbers: Mapping[str, Any], title: str) -> Section:
    """The map as a table: a row per row of cells."""

    def span(ends: Sequence[int]) -> str:
        first, stop = ends
        return str(first) if stop == first + 1 else f"{first}:{stop}"

    heads = ["", *map(span, numbers["columns"])]
    rows = [
        [span(ends), *map(number_text, values)] for ends, values in zip(numbers["rows"], numbers["values"], strict=True)
    ]
    return table(title, dict.fromkeys(heads, "text"), rows, small=f"{numbers['source']}; {numbers['rule']}")
