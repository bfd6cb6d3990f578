"""The Memory Lab in words, and the lines that ask MindSpore for the same. Pure functions.

print(memory_text(lab.snapshot()))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...base.units import bytes_text
from .subjects import Settings

Snapshot = Mapping[str, Any]
BLOCKS = 48  # columns of the longest bar
LETTERS = {
    "params": "P",
    "grads": "g",
    "optimizer": "O",
    "activations": "a",
    "gathered": "+",
    "workspace": "w",
    "inputs": "d",
}


def export_line(settings: Settings) -> str:
    """Code for MindSpore with these settings.

    >>> print(export_line(Settings(level="off", parallel_mode="data_parallel")))  # doctest: +NORMALIZE_WHITESPACE
    mindspore.set_auto_parallel_context(parallel_mode="data_parallel", enable_parallel_optimizer=False,
    gradients_mean=True)
    """
    given = [f'parallel_mode="{settings.parallel_mode}"', f"enable_parallel_optimizer={settings.level != 'off'}"]
    if settings.parallel_mode == "data_parallel":
        given.append("gradients_mean=True")
    if settings.level.startswith("level"):
        config = [f'"parallel_optimizer_threshold": {settings.threshold_kb}', f'"optimizer_level": "{settings.level}"']
        if settings.shard_size > 0:
            config.append(f'"optimizer_weight_shard_size": {settings.shard_size}')
        if settings.accumulation > 1:
            config.insert(0, f'"gradient_accumulation_shard": {settings.accumulation_shard}')
        given.append(f"parallel_optimizer_config={{{', '.join(config)}}}")
    lines = [f"mindspore.set_auto_parallel_context({', '.join(given)})"]
    if settings.accumulation > 1:
        lines.append(f"net = nn.GradAccumulation(net_with_loss, {settings.accumulation})")
    return "\n".join(lines)


def changed_text(c: Mapping[str, Any]) -> str:
    """What the optimizer parallel has changed, in one sentence.  c: the snapshot's "changed"."""
    saved, added = c["off_peak_bytes"] - c["peak_bytes"], c["sent_bytes"] - c["off_sent_bytes"]
    kept = c["off_resident_bytes"] - c["resident_bytes"]
    if not (saved or added or kept or c["messages"] - c["off_messages"]):
        return "nothing has changed"
    memory = _difference("memory at the fullest moment", -saved, c["off_peak_bytes"])
    stays = _difference("kept between steps", -kept, c["off_resident_bytes"])
    traffic = _difference("traffic", added, c["off_sent_bytes"])
    more = c["messages"] - c["off_messages"]
    count = (
        f"{abs(more)} {'more' if more > 0 else 'fewer'} message{'s' if abs(more) != 1 else ''}"
        if more
        else "as many messages"
    )
    return f"{memory}; {stays}; {traffic}, {count}"


def _difference(what: str, change: int, of: int) -> str:
    if not change:
        return f"{what}: the same"
    share = f" ({abs(change) / of:.0%})" if of else ""
    return f"{what}: {bytes_text(abs(change))} {'more' if change > 0 else 'less'}{share}"


def status_text(s: Snapshot) -> str:
    """The picture in one sentence or two."""
    changed, capacity, level = s["changed"], s["capacity"]["bytes"], s["level"]["value"]
    now = f"A rank needs {bytes_text(changed['peak_bytes'])} at its fullest moment"
    if capacity:
        over = changed["peak_bytes"] - capacity
        now += (
            f", {bytes_text(over)} more than the {bytes_text(capacity)} it has"
            if over > 0
            else f" and has {bytes_text(capacity)}: it fits"
        )
    if level == "off":
        return f"Without optimizer parallel all {s['devices']['value']} ranks hold everything. {now} (predicted)."
    owned = sum(p["owner"] is not None for p in s["parameters"])
    cut, count = sum(p["ways"] > 1 for p in s["parameters"]), len(s["parameters"])
    what = (
        f"{owned} of {count} parameters are updated by one rank each"
        if owned
        else f"{cut} of {count} parameters are sharded"
    )
    return f"{level}: {what}. {now} (predicted). Against off: {changed['text']}."


def memory_text(s: Snapshot) -> str:
    """Everything the Memory Lab shows for a snapshot; the second line says the whole picture."""
    sections = (_head, _bars, _table, _traffic, _levels, _parameters, _equality, _puzzle, _zero, _export)
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section(s)))) + "\n"


def _head(s: Snapshot) -> Iterable[str]:
    yield s["title"]
    yield s["status"]
    subject = next(c["label"] for c in s["subject"]["choices"] if c["value"] == s["subject"]["value"])
    width = f", width {s['width']['value']}" if s["width"] else ""
    yield f"{subject[:1].upper()}{subject[1:]}{width}: {s['subject']['note']}; {s['parameter_count']} parameters."
    size = "all that hold the same slice" if s["shard_size"]["value"] < 0 else f"{s['shard_size']['value']} ranks"
    yield (
        f"{s['devices']['value']} devices, {s['parallel_mode']['value']}, {s['optimizer']['value']}; level "
        f"{s['level']['value']}, "
        f"threshold {s['threshold_kb']} KB, shared by {size}."
    )
    parts = s["accumulation"]["value"]
    kept = "kept in slices" if s["accumulation_shard"] else "kept whole at level1"
    yield f"Gradients of {parts} micro-batches are added up, {kept}." if parts > 1 else "No gradient accumulation."
    if s["run"]["error"]:
        yield f"The run failed: {s['run']['error']}"


def _bars(s: Snapshot) -> Iterable[str]:
    """The stacked bars as letters, the capacity as a |."""
    moment, source, capacity = s["moment"]["value"], s["source"]["value"], s["capacity"]["bytes"]
    bars = [("off", s["off"]), *((f"rank {r['rank']}", r) for r in s["ranks_of"][source])]
    most = max([capacity, *(r[moment]["total"] for _, r in bars)])
    if not most:
        return
    label = next(c["label"] for c in s["moment"]["choices"] if c["value"] == moment)
    yield f"Bytes per rank, {label}, {source} (off: predicted)"
    for name, held in bars:
        text, at = "", 0
        for kind, size in held[moment]["live"].items():
            at += size
            text += LETTERS[kind] * (round(at / most * BLOCKS) - len(text))
        text = text.ljust(BLOCKS + 1)
        if capacity:
            line = min(BLOCKS, round(capacity / most * BLOCKS))
            text = f"{text[:line]}|{text[line:]}"
        yield f"  {name:<7}{text.rstrip():<{BLOCKS + 2}} {bytes_text(held[moment]['total'])}"
    key = ", ".join(f"{LETTERS[k['name']]} {k['label']}" for k in s["kinds"])
    yield f"  {key}" + (f"; | the capacity, {bytes_text(capacity)}" if capacity else "")


def _table(s: Snapshot) -> Iterable[str]:
    moment, source = s["moment"]["value"], s["source"]["value"]
    names = [k["name"] for k in s["kinds"]]
    rows = [("", *(k["label"] for k in s["kinds"]), "together")]
    for name, held in (("off", s["off"]), *((f"rank {r['rank']}", r) for r in s["ranks_of"][source])):
        rows.append(
            (name, *(bytes_text(held[moment]["live"][kind]) for kind in names), bytes_text(held[moment]["total"]))
        )
    yield from _columns(rows)
    where = s["ranks_of"][source][s["rank"]][moment]["where"]
    if where:
        yield f"  Rank {s['rank']} is there in {where}."
    grown = [r["grown_bytes"] for r in s["ranks_of"][source] if r["grown_bytes"] is not None]
    if grown:
        span = f"{bytes_text(min(grown))} to {bytes_text(max(grown))}"
        yield f"  The processes of the workers grew by {span} (resident set; what they had freed before is used again)."


def _traffic(s: Snapshot) -> Iterable[str]:
    rank, source = s["rank"], s["source"]["value"]
    yield f"Messages of rank {rank} in one step, {source}"
    rows = [("for", "kind", "messages", "bytes sent", "without", "formula")]
    for row in s["traffic_of"][source][rank]:
        said = f"{row['formula']} = {bytes_text(round(row['formula_bytes']))}" if row["formula"] else "-"
        without = f"{row['off_messages']}, {bytes_text(row['off_sent_bytes'])}"
        rows.append((row["purpose"], row["kind"], str(row["messages"]), bytes_text(row["sent_bytes"]), without, said))
    yield from _columns(rows)


def _levels(s: Snapshot) -> Iterable[str]:
    yield "Every level, fullest rank, predicted"
    rows = [("", "level", "between steps", "fullest moment", "messages", "bytes sent", "fits")]
    for row in s["levels"]:
        mark = ">" if row["chosen"] else ""
        if row["refused"]:
            rows.append((mark, row["value"], f"refused: {row['refused']}", "", "", "", ""))
            continue
        fits = "-" if row["fits"] is None else "yes" if row["fits"] else "no"
        sizes = [bytes_text(row[key]) for key in ("resident_bytes", "peak_bytes")]
        rows.append((mark, row["value"], *sizes, str(row["messages"]), bytes_text(row["sent_bytes"]), fits))
    yield from _columns(rows)


def _parameters(s: Snapshot) -> Iterable[str]:
    yield "Parameters: slice in the network, what a rank keeps of it"
    rows = [("parameter", "slice", "size", "keeps", "shared by", "")]
    for p in s["parameters"]:
        note = p["why"] or (f"updated by rank {p['owner']}" if p["owner"] is not None else "")
        shared = f"{p['ways']} of {p['replicas']}" if p["ways"] > 1 else "-"
        rows.append((p["name"], _shape(p["shape"]), bytes_text(p["size_bytes"]), _shape(p["kept_shape"]), shared, note))
    yield from _columns(rows)


def _equality(s: Snapshot) -> Iterable[str]:
    for found in s["equality"]:
        yield f"{found['source']}: {found['title']}, {found['steps']} steps"
        rows = [("tensor", "largest difference", "rounding bound", "verdict")]
        rows += [
            (r["tensor"], f"{r['largest_difference']:.2e}", f"{r['bound']:.2e}", r["verdict"]) for r in found["rows"]
        ]
        yield from _columns(rows)
        equal = sum(r["equal"] for r in found["rows"])
        yield f"  {'EQUAL' if found['equal'] else 'DIFFERENT'}: {equal} of {len(found['rows'])} tensors"


def _puzzle(s: Snapshot) -> Iterable[str]:
    puzzle = s["puzzle"]
    if puzzle is None:
        return
    fits = "fits" if puzzle["fits"] else "does not fit"
    yield (
        f"Largest model under the cap: {puzzle['parameters']} parameters, which {fits} "
        f"({bytes_text(puzzle['peak_bytes'])}, {puzzle['source']})."
    )
    if puzzle["par"] is None:
        yield "  Par is not known yet: it is searched for when asked."
    elif puzzle["ratio"] is not None:
        yield f"  Par {puzzle['par']['parameters']} parameters; yours is {puzzle['ratio']:.3f} of par."
    else:
        yield f"  Par {puzzle['par']['parameters']} parameters."


def _zero(s: Snapshot) -> Iterable[str]:
    zero = s["zero"]
    yield (
        f"The ZeRO paper's table: {zero['parameters_text']} parameters, 2 bytes each, gradients 2, optimizer states K "
        f"= {zero['optimizer_bytes']:g}; "
        "GB (1e9) per device"
    )
    rows = [("", "ranks", "nothing sharded", "+ states", "+ gradients", "+ parameters")]
    rows += [(">" if r["chosen"] else "", str(r["ranks"]), *(f"{gb:.4g}" for gb in r["gb"])) for r in zero["rows"]]
    yield from _columns(rows)
    for stage in zero["stages"]:
        sent = f"a rank sends {stage['sent_elements'] / zero['parameters']:.3g} x the parameters per step"
        yield (
            f"  stage {stage['stage']}, {stage['cut']}: {sent}; {zero['device_gb']} GB hold {stage['largest_text']} "
            "parameters"
        )


def _export(s: Snapshot) -> Iterable[str]:
    yield "In MindSpore:"
    yield from (f"  {line}" for line in s["export"].splitlines())


def _shape(shape: Sequence[int]) -> str:
    return str(tuple(shape))


def _columns(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Rows in columns; a cell whose right neighbours are empty may be as long as it likes."""
    count = len(rows[0])
    alone = [{i for i in range(count) if row[i] and not any(row[i + 1 :])} for row in rows]
    widths = [
        max((len(row[i]) for row, free in zip(rows, alone, strict=True) if i not in free), default=0)
        for i in range(count)
    ]
    for row in rows:
        yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
