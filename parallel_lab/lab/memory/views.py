"""The snapshot of the Memory Lab: what the model knows, as plain data in the order in which it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Protocol

from ...base.errors import ParallelLabError
from ...base.units import bytes_text
from .count import MOMENTS, PURPOSES, Count
from .facts import ParameterFact, formulas
from .puzzle import ACCUMULATIONS, fullest
from .run import EXECUTORS
from .subjects import LEVELS, OPTIMIZERS, SUBJECTS, WIDTHS, Subject
from .words import changed_text, export_line, status_text

# In the order in which the bars are stacked, from below. The first four are what memory is discussed in
KINDS = {
    "params": "parameters",
    "grads": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations",
    "gathered": "gathered weights",
    "workspace": "working memory",
    "inputs": "data",
}
NOTES = {
    "params": "what a rank keeps of the weights",
    "grads": "synchronised gradients",
    "optimizer": "moments and the learning rate",
    "activations": "forward results that backward still needs",
    "gathered": "sharded weights, gathered for use",
    "workspace": "operands and sums on their way; in the update, the new value of one weight beside the old",
    "inputs": "this rank's rows of the batch",
}
MOMENT_LABELS = {"peak": "fullest moment", "training": "before the update", "resident": "between steps"}


class Shown(Protocol):
    """What is needed of the lab here: see `MemoryLab`."""

    settings: Any
    facts: Sequence[ParameterFact]
    results: dict[str, Any]
    plan: Any
    width: int
    capacity_bytes: int
    score: Any

    def ranks(self) -> Sequence[Count]: ...

    def ranks_without(self) -> Sequence[Count]: ...

    def levels(self) -> dict[str, Any]: ...


def lab_snapshot(
    lab: Shown,
    *,
    subject: Subject,
    rank: int,
    moment: str,
    source: str,
    zero: dict[str, Any],
    run: dict[str, Any],
    devices: Sequence[int],
    shard_sizes: Sequence[int],
) -> dict[str, Any]:
    """Everything the views show. The keywords are the state of the lab that it keeps to itself."""
    settings, facts, off = lab.settings, lab.facts, lab.ranks_without()
    sources = {"predicted": lab.ranks(), **{name: result.ranks for name, result in lab.results.items()}}
    shot: dict[str, Any] = {
        "version": 1,
        "title": "Memory Lab",
        "subject": {
            "value": subject.name,
            "choices": [{"value": s.name, "label": s.label} for s in SUBJECTS.values()],
            "note": subject.note,
        },
        "width": {"value": lab.width, "least": WIDTHS[0], "most": WIDTHS[-1], "step": WIDTHS.step}
        if subject.width
        else None,
        "parameter_count": sum(_elements(f) for f in facts),
        "devices": {"value": settings.devices, "choices": list(devices)},
        "parallel_mode": {"value": settings.parallel_mode, "choices": list(LEVELS)},
        "optimizer": {"value": settings.optimizer, "choices": list(OPTIMIZERS)},
        "level": {
            "value": settings.level,
            "choices": [{"value": n, "label": text} for n, text in LEVELS[settings.parallel_mode].items()],
        },
        "threshold_kb": settings.threshold_kb,
        "shard_size": {"value": settings.shard_size, "choices": list(shard_sizes)},
        "accumulation": {"value": settings.accumulation, "choices": list(ACCUMULATIONS)},
        "accumulation_shard": settings.accumulation_shard,
        "capacity": {"bytes": lab.capacity_bytes, "text": bytes_text(lab.capacity_bytes) if lab.capacity_bytes else ""},
        "rank": rank,
        "moment": {"value": moment, "choices": [{"value": m, "label": MOMENT_LABELS[m]} for m in MOMENTS]},
        "source": {"value": source, "choices": list(sources)},
        "kinds": [{"name": name, "label": label, "note": NOTES[name]} for name, label in KINDS.items()],
        "off": _rank(fullest(off)),
        "ranks_of": {name: [_rank(c) for c in counts] for name, counts in sources.items()},
        "steps_of": {name: _steps(counts) for name, counts in sources.items()},
        "traffic_of": {
            name: [_traffic(lab, c, off[c.rank], facts) for c in counts] for name, counts in sources.items()
        },
        "levels": list(_levels(lab)),
        "parameters": [_parameter(f) for f in facts],
        "equality": [_equality(name, result) for name, result in lab.results.items()],
        "zero": zero,
        "puzzle": _puzzle(lab) if subject.width and lab.capacity_bytes else None,
        "export": export_line(settings),
        "run": {**run, "can": run["state"] != "running"},
    }
    shot["changed"] = _changed(lab.ranks(), off)
    shot["changed"]["text"] = changed_text(shot["changed"])
    shot["status"] = status_text(shot)
    return shot


def _elements(fact: ParameterFact) -> int:
    count = 1
    for n in fact.shape:
        count *= n
    return count


def _shown(live: dict[str, int]) -> dict[str, int]:
    return {kind: live[kind] for kind in KINDS}


def _rank(count: Count) -> dict[str, Any]:
    """One bar: bytes by kind at each moment, in the order in which they are stacked; and where the moment is."""
    held: dict[str, Any] = {"rank": count.rank, "grown_bytes": count.grown_bytes}
    for moment in MOMENTS:
        live, point = _shown(count.at(moment)), count.point(moment) if moment != "resident" else None
        held[moment] = {
            "live": live,
            "total": sum(live.values()),
            "where": f"{point.phase}: {point.name}" if point else "",
        }
    held |= {"messages": count.messages, "sent_bytes": count.sent_bytes}
    return held


def _steps(counts: Sequence[Count]) -> dict[str, Any]:
    """Memory over the step, once for ranks that are alike: bytes by kind per instruction, and which phase they belong
    to.

    of      per rank the number of its step in `steps`
    """
    steps: list[dict[str, Any]] = []
    known: dict[Any, int] = {}
    of = []
    for count in counts:
        key = tuple((p.phase, p.live) for p in count.timeline)
        if key not in known:
            known[key] = len(steps)
            live = [list(_shown(p.by_kind).values()) for p in count.timeline]
            peak = max(range(len(live)), key=lambda i: sum(live[i]), default=0)
            steps.append({"live": live, "phases": _phases(p.phase for p in count.timeline), "peak": peak})
        of.append(known[key])
    return {"of": of, "steps": steps}


def _phases(phases: Iterable[str]) -> list[dict[str, Any]]:
    found, at = [], 0
    for phase, run in groupby(phases):
        count = len(list(run))
        found.append({"phase": phase, "first": at, "count": count})
        at += count
    return found


def _traffic(lab: Shown, count: Count, off: Count, facts: Sequence[ParameterFact]) -> list[dict[str, Any]]:
    """Messages of one rank by purpose and kind: with optimizer parallel, without, and what the formula says."""
    formula = formulas(lab.plan, facts, count.rank)
    keys = {*count.traffic, *off.traffic, *formula}
    rows = []
    for key in sorted(keys, key=lambda k: (PURPOSES.index(k[0]), k[1])):
        messages, sent = count.traffic.get(key, (0, 0))
        off_messages, off_sent = off.traffic.get(key, (0, 0))
        said = formula.get(key)
        rows.append(
            {
                "purpose": key[0],
                "kind": key[1],
                "messages": messages,
                "sent_bytes": sent,
                "off_messages": off_messages,
                "off_sent_bytes": off_sent,
                "formula": said.text if said else "",
                "formula_bytes": said.sent_bytes if said else None,
            }
        )
    return rows


def _changed(now: Sequence[Count], off: Sequence[Count]) -> dict[str, Any]:
    """The fullest rank with optimizer parallel beside the fullest without, predicted; and what the rank that sends most
    sends.
    """
    full, full_off = fullest(tuple(now)), fullest(tuple(off))
    busy, busy_off = (max(counts, key=lambda c: c.sent_bytes) for counts in (now, off))
    return {
        "peak_bytes": full.peak_bytes,
        "off_peak_bytes": full_off.peak_bytes,
        "resident_bytes": sum(full.at("resident").values()),
        "off_resident_bytes": sum(full_off.at("resident").values()),
        "sent_bytes": busy.sent_bytes,
        "off_sent_bytes": busy_off.sent_bytes,
        "messages": busy.messages,
        "off_messages": busy_off.messages,
    }


def _levels(lab: Shown) -> Iterable[dict[str, Any]]:
    labels = LEVELS[lab.settings.parallel_mode]
    for level, counts in lab.levels().items():
        row: dict[str, Any] = {
            "value": level,
            "label": labels[level],
            "chosen": level == lab.settings.level,
            "refused": "",
        }
        if isinstance(counts, ParallelLabError):
            yield row | {"refused": str(counts)}
            continue
        full, busy = fullest(counts), max(counts, key=lambda c: c.sent_bytes)
        fits = full.peak_bytes <= lab.capacity_bytes if lab.capacity_bytes else None
        yield row | {
            "peak_bytes": full.peak_bytes,
            "resident_bytes": sum(full.at("resident").values()),
            "messages": busy.messages,
            "sent_bytes": busy.sent_bytes,
            "fits": fits,
        }


def _parameter(fact: ParameterFact) -> dict[str, Any]:
    return {
        "name": fact.name,
        "shape": list(fact.shape),
        "kept_shape": list(fact.kept_shape),
        "size_bytes": fact.size_bytes,
        "kept_bytes": fact.size_bytes // fact.ways,
        "ways": fact.ways,
        "replicas": fact.replicas,
        "owner": fact.owner,
        "why": fact.why,
    }


def _equality(source: str, result: Any) -> dict[str, Any]:
    return {
        "source": source,
        "steps": result.steps,
        "equal": result.equality.equal,
        "title": result.equality.title,
        "rows": [
            {
                "tensor": r.tensor,
                "largest_difference": r.largest_difference,
                "bound": r.bound,
                "verdict": r.verdict,
                "equal": r.equal,
            }
            for r in result.equality.rows
        ],
        "executor": EXECUTORS[source],
    }


def _puzzle(lab: Shown) -> dict[str, Any]:
    score = lab.score
    par = score.par
    return {
        "parameters": score.parameters,
        "fits": score.fits,
        "peak_bytes": score.peak_bytes,
        "source": score.source,
        "ratio": score.ratio,
        "par": None
        if par is None
        else {"parameters": par.parameters, "width": par.width, "peak_bytes": par.peak_bytes, "tried": par.tried},
    }
