"""What the Memory Lab shows, as sections (`shared/sections.py`): memory per rank, every level, traffic, parameters,
equality, the puzzle, the ZeRO paper's table, and the lines that ask MindSpore for the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from ...base.errors import ParallelLabError
from ...base.units import bytes_text
from ..shared.earlier import earlier_runs
from ..shared.equality import COLUMNS, rows_of
from ..shared.sections import Section, table
from .count import MOMENTS, PURPOSES, Count
from .facts import ParameterFact, formulas
from .puzzle import Score, fullest
from .run import RunResult
from .splits import split_text, splits_section
from .subjects import Settings

# In the order in which the bars are stacked, from below. The first four are what memory is discussed in
KINDS = {
    "params": ("parameters", "what a rank keeps of the weights"),
    "grads": ("gradients", "synchronised gradients"),
    "optimizer": ("optimizer states", "moments and the learning rate"),
    "activations": ("activations", "forward results that backward still needs"),
    "gathered": ("gathered weights", "sharded weights, gathered for use"),
    "workspace": (
        "working memory",
        "operands and sums in flight; during the update, a weight's new value next to its old one",
    ),
    "inputs": ("data", "this rank's rows of the batch"),
}
USES = {"gradients": "of gradients", "parameters": "of parameters", "network": "of the network itself"}


def memory_sections(lab: Any) -> dict[str, Section]:
    """All sections of a `MemoryLab`, in the order in which they are shown."""
    facts, off, settings = lab.facts, lab.ranks_without(), lab.settings
    ranks_of = {"predicted": lab.ranks(), **{source: result.ranks for source, result in lab.results.items()}}
    sections = {
        "memory": _memory(lab, ranks_of, off),
        "levels": _levels(lab),
        **_splits(lab),
        "traffic": _traffic(lab, ranks_of, off),
        **rooms_section(ranks_of, lab.said),
        "parameters": _parameters(facts, settings.level),
        **{f"equality_{source}": _equality(lab.said(source), result) for source, result in lab.results.items()},
        **({"puzzle": _puzzle(lab.score, lab.said(lab.score.source))} if lab.width and lab.capacity_bytes else {}),
        **_zero(lab.zero),
        **earlier_runs(lab.earlier),
    }
    return sections


# ---- memory ----


def _memory(lab: Any, ranks_of: Mapping[str, Sequence[Count]], off: Sequence[Count]) -> Section:
    """Bars of the fullest rank without optimizer parallel, and of every rank with it, per moment and source."""
    of = {}
    for source, counts in ranks_of.items():
        grown = [count.grown_bytes for count in counts if count.grown_bytes is not None]
        notes = [f"Worker processes grew by {bytes_text(min(grown))} to {bytes_text(max(grown))}."] if grown else []
        for moment, label in MOMENTS.items():
            bars = [_bar("off", fullest(off), moment), *(_bar(f"rank {c.rank}", c, moment) for c in counts)]
            small = f"{label}, {lab.said(source)} (off: predicted)"
            of[f"{moment}|{source}"] = {"small": small, "bars": bars, "notes": notes}
    kinds = [{"name": name, "label": label, "note": note} for name, (label, note) in KINDS.items()]
    bars = {"kind": "bars", "title": "Bytes per rank", "kinds": kinds, "line": lab.capacity_bytes}
    return {**bars, "by": ["moment", "source"], "of": of}


def _bar(name: str, count: Count, moment: str) -> dict[str, Any]:
    """Bytes by kind at a moment, in the order in which they are stacked; and where the moment is."""
    held = count.at(moment)
    point = count.point(moment)
    live, where = [held[kind] for kind in KINDS], f"{point.phase}: {point.name}" if point else ""
    return {"name": name, "live": live, "total": sum(live), "where": where, "grown_bytes": count.grown_bytes}


def steps_of(counts: Sequence[Count]) -> dict[str, Any]:
    """Memory over the step, once for ranks alike (`of`: rank -> number in `steps`): bytes by kind, and the phases."""
    known: dict[Any, int] = {}
    seen: dict[int, int] = {}  # timelines that ranks share
    steps: list[dict[str, Any]] = []
    of = []
    for count in counts:
        if id(count.timeline) in seen:
            of.append(seen[id(count.timeline)])
            continue
        key = tuple((p.phase, p.live) for p in count.timeline)
        if key not in known:
            known[key] = len(steps)
            live = [[p.by_kind[kind] for kind in KINDS] for p in count.timeline]
            peak = max(range(len(live)), key=lambda i: sum(live[i]), default=0)
            steps.append({"live": live, "phases": _phases(p.phase for p in count.timeline), "peak": peak})
        seen[id(count.timeline)] = known[key]
        of.append(known[key])
    return {"of": of, "steps": steps}


def _phases(phases: Iterable[str]) -> list[dict[str, Any]]:
    found, at = [], 0
    for phase, run in groupby(phases):
        count = len(list(run))
        found.append({"phase": phase, "first": at, "count": count})
        at += count
    return found


# ---- tables ----


def _levels(lab: Any) -> Section:
    """Every level of the mode; for an impossible one, the reason."""
    columns = {"level": "name", "between steps": "bytes", "fullest moment": "bytes bar", "sent per step": "bytes bar"}
    columns |= {"messages": "count", "": "verdict"}
    rows: list[list[Any]] = []
    for level, counts in lab.levels().items():
        if isinstance(counts, ParallelLabError):
            rows.append([level, f"refused: {counts}"])
            continue
        full, busy = fullest(counts), busiest(counts)
        fits = full.peak_bytes <= lab.capacity_bytes
        verdict = ["fits" if fits else "too much", fits] if lab.capacity_bytes else ""
        resident = sum(full.at("resident").values())
        rows.append([level, resident, full.peak_bytes, busy.sent_bytes, busy.messages, verdict])
    return table("Every level", columns, rows, small="fullest rank, predicted", on=lab.settings.level)


def _splits(lab: Any) -> dict[str, Section]:
    """Every split of a GPT."""
    found, settings = lab.splits(), lab.settings
    if not found:
        return {}
    samples = len(lab.job.batches[0][0]) // settings.accumulation
    return {"splits": splits_section(found, settings.split, lab.job.net, samples, settings.devices)}


def rooms_section(ranks_of: Mapping[str, Sequence[Count]], said: Callable[[str], str]) -> dict[str, Section]:
    """What messages of rows whose number a router decides have reserved, and used; {} without such a message."""
    columns = {"rank": "count", "result": "name", "reserved": "bytes", "rows that came": "bytes bar", "used": "why"}
    of = {}
    for source, counts in ranks_of.items():
        found = [(count.rank, name, *both) for count in counts for name, both in count.rooms.items()]
        rows = [[*row, f"{row[3] / row[2]:.0%}"] for row in found]
        of[source] = {"small": f"{said(source)}; memory is reserved for the most that can come", "rows": rows}
    some = any(part["rows"] for part in of.values())
    return {"rooms": table("Rows of experts", columns, by=["source"], of=of)} if some else {}


def busiest(counts: Sequence[Count]) -> Count:
    """The rank that sends most."""
    return max(counts, key=lambda c: c.sent_bytes)


def _traffic(lab: Any, ranks_of: Mapping[str, Sequence[Count]], off: Sequence[Count]) -> Section:
    """Messages of one rank by kind and purpose: with optimizer parallel, without, and what the formula says."""
    columns = {"message": "name", "count": "count", "sent": "bytes bar"}
    columns |= {"off: count": "count", "off: sent": "bytes bar"}
    columns |= {"formula": "why", "": "verdict"}
    plan, facts = lab.plan, lab.facts
    formula_of = {c.rank: formulas(plan, facts, c.rank) for c in off}
    of = {}
    for source, counts in ranks_of.items():
        for count in counts:
            without, rows = off[count.rank], []
            keys = {*count.traffic, *without.traffic, *formula_of[count.rank]}
            for key in sorted(keys, key=lambda k: (PURPOSES.index(k[0]), k[1])):
                (messages, sent), before = count.traffic.get(key, (0, 0)), without.traffic.get(key, (0, 0))
                row: list[Any] = [f"{key[1]} {USES[key[0]]}", messages, sent, *before, None, ""]
                if formula := formula_of[count.rank].get(key):
                    agrees = abs(formula.sent_bytes - sent) <= messages  # whole bytes per message
                    row[-2] = f"{formula.text} = {bytes_text(round(formula.sent_bytes))}"
                    row[-1] = ["as counted" if agrees else f"counted {bytes_text(sent)}", agrees]
                rows.append(row)
            note = f"{bytes_text(count.sent_bytes)} sent in {count.messages} messages; off: "
            note += f"{bytes_text(without.sent_bytes)} in {without.messages}"
            title = f"Messages of rank {count.rank} in one step"
            of[f"{source}|{count.rank}"] = {"title": title, "small": lab.said(source), "rows": rows, "notes": [note]}
    return table("Messages", columns, by=["source", "rank"], of=of)


def _parameters(facts: Sequence[ParameterFact], level: str) -> Section:
    columns = {"parameter": "name", "slice": "shape", "size": "bytes", "a rank keeps": "shape", "share": "share"}
    columns |= {"why not": "why"} if any(f.why for f in facts) else {}
    sharded, owned = sum(f.ways > 1 for f in facts), sum(f.owner is not None for f in facts)
    shared = f"{owned} of {len(facts)} have an owner" if owned else f"{sharded} of {len(facts)} are sharded"
    rows = []
    for alike in _alike(facts):
        f, count = alike[0], len(alike)
        owner = "whole" if f.owner is None else f"rank {f.owner} updates it"
        share = f"{f.ways} of {f.replicas} share it" if f.ways > 1 else owner
        name = f.name if count == 1 else f"{f.name} to {alike[-1].name}"
        shapes = [list(s) if count == 1 else f"{count} x {tuple(s)}" for s in (f.shape, f.kept_shape)]
        size = sum(one.size_bytes for one in alike)
        rows.append((name, shapes[0], size, shapes[1], [f.ways, share], *([f.why] if "why not" in columns else [])))
    return table("Parameters", columns, rows, small="nothing is sharded" if level == "off" else shared)


def _alike(facts: Sequence[ParameterFact]) -> Iterable[list[ParameterFact]]:
    """Parameters that follow each other and whose rows would differ in their names only."""

    def row(f: ParameterFact) -> tuple[Any, ...]:
        return f.shape, f.size_bytes, f.kept_shape, f.ways, f.replicas, f.owner, f.why

    return (list(run) for _, run in groupby(facts, key=row))


def _equality(source: str, result: RunResult) -> Section:
    equality = result.equality
    notes = [[f"{equality.verdict} after {result.steps} steps", equality.equal]]
    return table(f"{source}: {equality.title}", COLUMNS, rows_of(equality), notes=notes)


def _puzzle(score: Score, source: str) -> Section:
    rows = [("yours", score.parameters), *([("par", score.par.parameters)] if score.par else [])]
    verdict = f"{'fits' if score.fits else 'does not fit'}: {bytes_text(score.peak_bytes)}, {source}"
    notes: list[Any] = [[verdict, score.fits]]
    if score.par is None:
        notes.append("Par is not known yet; it is searched for on request.")
    small = "" if score.ratio is None else "par" if score.ratio >= 1 else f"{score.ratio:.3f} of par"
    return table(
        "Largest model under the cap", {"": "name", " ": "count bar"}, rows, small=small, on="yours", notes=notes
    )


def _zero(zero: Mapping[str, Any]) -> dict[str, Section]:
    """The paper's table for the learner's model: the stages on the chosen ranks, and GB per rank on more and fewer."""
    size = f"parameters in {zero['device_gb']} GB"
    stages = []
    for stage in zero["stages"]:
        total, sent = f"{_gb(stage['total_gb'])} GB", f"{stage['sent_elements'] / zero['parameters']:.3g} P"
        parts = [stage["params_gb"], stage["grads_gb"], stage["optimizer_gb"]]
        stages.append((f"{stage['stage']} {stage['cut']}", total, parts, sent, stage["largest_text"]))
    small = f"{zero['parameters_text']} parameters, {zero['degree']} ranks; bytes per parameter: 2 + 2 + K"
    columns = {"sharded": "name", "a rank holds": "number", "": "stack", "sends": "number", size: "number"}
    heads = ["nothing sharded", "+ states", "+ gradients", "+ parameters"]
    rows = [(str(row["ranks"]), *map(_gb, row["gb"])) for row in zero["rows"]]
    small, degrees = f"{small}, K = {zero['optimizer_bytes']:g}", {"ranks": "name", **dict.fromkeys(heads, "number")}
    return {
        "zero": table("Your model in the ZeRO paper's table", columns, stages, small=small),
        "degrees": table("GB (1e9) per rank", degrees, rows, on=str(zero["degree"])),
    }


def _gb(size: float) -> str:
    return f"{size:.3g}" if size < 1000 else f"{size:.0f}"


# ---- sentences ----


def export_line(settings: Settings) -> str:
    """Code for MindSpore with these settings.

    >>> print(export_line(Settings(level="off", parallel_mode="data_parallel")))  # doctest: +NORMALIZE_WHITESPACE
    mindspore.set_auto_parallel_context(parallel_mode="data_parallel", enable_parallel_optimizer=False,
    gradients_mean=True)
    """
    arguments = [f'parallel_mode="{settings.parallel_mode}"', f"enable_parallel_optimizer={settings.level != 'off'}"]
    if settings.parallel_mode == "data_parallel":
        arguments.append("gradients_mean=True")
    if settings.level.startswith("level"):
        config = [f'"parallel_optimizer_threshold": {settings.threshold_kb}', f'"optimizer_level": "{settings.level}"']
        if settings.shard_size > 0:
            config.append(f'"optimizer_weight_shard_size": {settings.shard_size}')
        if settings.accumulation > 1:
            config.insert(0, f'"gradient_accumulation_shard": {settings.accumulation_shard}')
        arguments.append(f"parallel_optimizer_config={{{', '.join(config)}}}")
    lines = [f"mindspore.set_auto_parallel_context({', '.join(arguments)})"]
    if settings.accumulation > 1:
        lines.append(f"net = nn.GradAccumulation(net_with_loss, {settings.accumulation})")
    return "\n".join(lines)


def changed_text(now: Sequence[Count], off: Sequence[Count]) -> str:
    """What the optimizer parallel has changed: the fullest rank with it and without, the rank that sends most."""
    (full, busy), (full_off, busy_off) = ((fullest(tuple(counts)), busiest(counts)) for counts in (now, off))
    kept, kept_off = (sum(count.at("resident").values()) for count in (full, full_off))
    more = busy.messages - busy_off.messages
    amounts = {"memory at the fullest moment": (full.peak_bytes, full_off.peak_bytes)}
    amounts |= {"kept between steps": (kept, kept_off), "traffic": (busy.sent_bytes, busy_off.sent_bytes)}
    if not more and all(one == other for one, other in amounts.values()):
        return "nothing has changed"
    parts = []
    for what, (one, other) in amounts.items():
        parts.append(f"{what}: {'the same' if one == other else _difference(one, other)}")
    count = f"{abs(more)} {'more' if more > 0 else 'fewer'} message{'s' if abs(more) != 1 else ''}"
    return f"{'; '.join(parts)}, {count if more else 'as many messages'}"


HOLDS = {"states": "of model states", "peak": "at its fullest moment"}
HOLDS |= {"training": "before the update", "resident": "between steps"}


def status_text(lab: Any, moment: str, source: str) -> str:
    """What the fullest rank holds at a moment, and sends, against no optimizer parallel (predicted)."""
    now, off, level = lab.ranks(source), lab.ranks_without(), lab.settings.level
    if level == "off" and (text := split_text(lab.splits(), lab.settings.split)):
        return text
    held, held_off = (most_held(counts, moment) for counts in (now, off))
    alike = lab.ranks() if now[0].rooms else now  # a router's rows are the same under each level: as predicted in both
    sent, sent_off = (busiest(counts).sent_bytes for counts in (alike, off))
    amount = f"{bytes_text(held)} {HOLDS[moment]} ({lab.said(source)})"
    if level == "off":
        own = any(lab.plan.value(p.name).slice_shape != p.shape for p in lab.plan.parameters)
        return f"Each of the {len(now)} ranks holds {'its experts and the rest' if own else 'everything'}: {amount}."
    if (held, sent) == (held_off, sent_off):
        return f"With {level} nothing changes: a rank holds {amount}."
    saved = "as much as" if held == held_off else f"{_difference(held, held_off)} than"
    traffic = "the same" if sent == sent_off else _difference(sent, sent_off)
    return f"With {level} a rank holds {amount}: {saved} without, with {traffic} traffic."


def fit_text(lab: Any, source: str) -> str:
    """Whether the fullest moment fits into a device; "" without a line."""
    peak, capacity = most_held(lab.ranks(source), "peak"), lab.capacity_bytes
    if not capacity:
        return ""
    fits = f"fits into the {bytes_text(capacity)} of a device"
    over = f"is {bytes_text(peak - capacity)} more than the {bytes_text(capacity)} of a device"
    return f"Its fullest moment, {bytes_text(peak)}, {fits if peak <= capacity else over}."


def most_held(counts: Sequence[Count], moment: str) -> int:
    """Bytes at a moment, of the rank that holds most then."""
    return max(sum(count.at(moment).values()) for count in counts)


def _difference(one: int, other: int) -> str:
    """How much more or less.

    >>> _difference(96, 128)
    '32 B (25%) less'
    """
    share = f" ({abs(one - other) / other:.0%})" if other else ""
    return f"{bytes_text(abs(one - other))}{share} {'more' if one > other else 'less'}"


def notes(lab: Any, note: str) -> list[str]:
    """What the chosen settings mean, in lines of their own."""
    settings = lab.settings
    size = "all that hold the same slice" if settings.shard_size < 0 else f"{settings.shard_size} ranks"
    kept = "kept in slices" if settings.accumulation_shard else "kept whole at level1"
    parts = f"Gradients of {settings.accumulation} micro-batches are added up, {kept}."
    width = f"width {lab.width}, " if lab.width else ""
    facts, now, off = lab.facts, lab.ranks(), lab.ranks_without()
    owned, sharded = sum(f.owner is not None for f in facts), sum(f.ways > 1 for f in facts)
    done = (
        f"{owned} of {len(facts)} parameters are updated by one rank each"
        if owned
        else (f"{sharded} of {len(facts)} parameters are sharded")
    )
    against = [] if settings.level == "off" else [f"{done}. Against off: {changed_text(now, off)}."]
    return [
        f"{note}; {width}{lab.parameter_count} parameters; threshold {settings.threshold_kb} KiB, shared by {size}.",
        parts if settings.accumulation > 1 else "No gradient accumulation.",
        *against,
    ]
