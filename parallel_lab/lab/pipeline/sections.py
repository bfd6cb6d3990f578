"""What the Pipeline Lab shows, as plain data: lanes, waits and runs for the picture, and sections for everything else
(`shared/sections.py`). Times are ticks of the schedule's clock where nothing ran; what ran is drawn on the same axis,
scaled so that its ranks compute as many ticks as the drawn ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...base.system import cores
from ...base.units import plural, time_text
from ...cost.schedules import Fault
from ..shared.earlier import EarlierRun, earlier_runs
from ..shared.equality import COLUMNS, rows_of
from ..shared.sections import Section, code, table
from ..shared.step_times import FAR
from . import drawing
from .code import our_code, torch_csv
from .puzzles import recognised
from .run import RunResult
from .settings import Settings, cells_of
from .waits import all_waits, gaps, name_of, number

SOURCES = ("predicted", "simulated", "measured")


def percent(part: float) -> str:
    """A part of a whole, short.

    >>> percent(3 / 11)
    '27 %'
    """
    return f"{100 * part:.0f} %" if part >= 0.0995 or not part else f"{100 * part:.1f} %"


def ticks(time: float) -> str:
    """A time of the schedule's clock."""
    return f"{number(time)} tick{'' if time == 1 else 's'}"


# ---- the picture ----


def schedule_view(settings: Settings) -> dict[str, Any]:
    """What follows from the schedule alone: a sentence, lanes, waits, and how long things take."""
    s, faults = settings, drawing.faults_of(settings, settings.schedule)
    return {
        "status": status_text(s, faults),
        "complete": s.timed.complete,
        "lanes": lanes_view(s, faults),
        "waits": waits_view(s),
        "span": s.timed.timing.makespan,
        "axis": max(s.timed.timing.makespan, s.named_span),
        "nominal": dict(zip("FBW", s.nominal, strict=True)),
        "again": list(s.recomputed),
        "parts": s.schedule.parts,
        "twice": s.two_copies,
    }


def lanes_view(settings: Settings, faults: list[Fault]) -> list[dict[str, Any]]:
    """Per rank: its cells that can run as [name, start, end], names of those that cannot, what it keeps over time, what
    it has left to do, and its faults as [cell, sentence]."""
    schedule, timed = settings.schedule, settings.timed
    caps = settings.caps
    lanes = []
    for rank, cells in enumerate(cells_of(schedule)):
        names = [name_of(cell) for cell in cells]
        spans = timed.spans[rank]
        first = [0]
        for cell in cells:
            first.append(first[-1] + len(cell))
        mine = [fault for fault in faults if fault.rank == rank]
        lanes.append(
            {
                "rank": rank,
                "parts": list(schedule.holds[rank]),
                "cells": [[name, *span] for name, span in zip(names, spans, strict=False)],
                "pending": names[len(spans) :],
                "kept": [list(point) for point in settings.kept(rank)],
                "peak": settings.peaks[rank],
                "cap": None if caps is None else settings.cap,
                "left": [f"{p}{k}{n}" for p, k, n in drawing.left_to_do(settings, rank)],
                "faults": [[_cell_at(first, fault.position), fault.text] for fault in mine],
            }
        )
    return lanes


def _cell_at(first: list[int], action: int) -> int:
    """The cell in which an action stands; first: the number of the first action of each cell."""
    return max(n for n, at in enumerate(first[:-1] or [0]) if at <= max(0, action))


def waits_view(settings: Settings) -> list[list[Any]]:
    """Every wait as [rank, position, start, end, sentence, [[rank, position], ...] of what it waits for]."""
    return [
        [w.rank, w.position, w.start, w.end, w.text, [[link.rank, link.position] for link in w.links]]
        for w in all_waits(settings)
    ]


def runs_view(settings: Settings, results: Mapping[str, RunResult]) -> dict[str, Any]:
    """What ran, in ticks: {source: {"tick_s": seconds of a tick, "lanes": per rank [[name, start, end], ...]}}."""
    work = sum(settings.timed.timing.work)
    views = {}
    for source, result in results.items():
        tick_s = result.work_s / work if work else 1.0
        lanes = [
            [[ran.name, round(ran.start_s / tick_s, 3), round(ran.end_s / tick_s, 3)] for ran in lane]
            for lane in result.lanes
        ]
        views[source] = {"tick_s": tick_s, "span": result.step_s / tick_s, "lanes": lanes}
    return views


def status_text(settings: Settings, faults: list[Fault]) -> str:
    """The schedule in a sentence or two."""
    s, schedule = settings, settings.schedule
    if faults:
        return f"This schedule cannot run: {faults[0].text}."
    if not s.timed.complete:
        missing = drawing.still_missing(schedule)
        drawn = sum(map(len, schedule.ranks))
        if not drawn:
            return f"Nothing is drawn yet: {missing} actions are left to draw. Rank 0 can begin with 0F0."
        stuck = sum(len(cells) - n for cells, n in zip(cells_of(schedule), s.timed.counts, strict=True))
        text = f"{plural(drawn, 'action')} {'is' if drawn == 1 else 'are'} drawn, {missing} still to do"
        return f"{text}; {stuck} of the drawn ones cannot run yet." if stuck else f"{text}."
    timing = s.timed.timing
    most = max(s.peaks)
    ranks = [rank for rank, peak in enumerate(s.peaks) if peak == most]
    who = "Every rank keeps at most" if len(ranks) == s.stages else f"Rank {ranks[0]} keeps the most,"
    waits = "no rank waits" if s.bubble < 1e-9 else f"ranks wait {percent(s.bubble)} of it"
    text = f"A step of {ticks(timing.makespan)}; {waits} (predicted). "
    unit = "micro-batches" if schedule.parts == s.stages else "micro-batches x parts"
    text += f"{who} {number(most)} {unit if most != 1 else unit.replace('batches', 'batch', 1)}"
    text = f"{text}, of {s.cap} that fit." if s.cap is not None else f"{text}."
    return f"{text} {recognised(schedule)}".strip() if s.drawn is not None else text


# ---- the sections ----


def pipeline_sections(
    settings: Settings, results: Mapping[str, RunResult], earlier: Sequence[EarlierRun] = (), recorded: bool = False
) -> dict[str, Section]:
    """All sections of a `PipelineLab`.

    earlier   runs with other settings;  recorded: the results were read from a file
    """
    s, how = settings, " (recorded)" if recorded else ""
    sections = {
        "picture": code("Lanes (predicted): actions in order, waits in brackets", _lanes_text(s)),
        "bubble": table(
            "Step",
            {"source": "name", "step": "text", "bubble": "text", "": "text"},
            _times(s, results, recorded),
            on=None,
        ),
        "actions": table(
            "Actions",
            {"no.": "number", "action": "name", "starts": "text", "ends": "text", "waits": "text", "kept": "text"},
            by=["rank"],
            of={str(rank): _actions(s, rank) for rank in range(s.stages)},
        ),
        "messages": table("Messages", MESSAGES, _messages(s), small="predicted: counted in the schedule"),
        "memory": table("Memory", MEMORY, _memory(s, results), small=KEPT + "; counted ones are recorded" * recorded),
    }
    sections |= earlier_runs(earlier, EARLIER_RUNS)
    if equality := next((r.equality for r in results.values() if r.equality is not None), None):
        title, notes = f"Equality: {equality.title}", [_verdict(equality, how), *_apart(results)]
        sections["equality"] = table(title, COLUMNS, rows_of(equality), notes=notes)
    if not s.timed.complete:
        left = [f"rank {rank}: {', '.join(names)}" for rank, names in drawing.next_missing(s).items()]
        sections["left"] = {"kind": "lines", "title": "Still to do, next of each kind", "notes": left}
    return {
        **sections,
        "text": code("The schedule as text", s.schedule.text()),
        "ours": code("The same in parallel_lab", our_code(s)),
        "torch": code("For PyTorch's pipeline runtime (CSV)", torch_csv(s)),
    }


KEPT = "results of forward that backward reads; predicted: micro-batches x parts"
EARLIER_RUNS = {"schedule": "name", "source": "text", "step": "text", "bubble": "text", "loss": "text"}
MESSAGES = {"border": "name", "ranks": "text", "activations": "count", "gradients": "count", "together": "count"}
MEMORY = {"rank": "name", "kept at most, predicted": "text", "counted, simulated": "bytes", "measured": "bytes"}
MEMORY |= {"parts": "text", "recompute": "text", "cap": "text"}


def _verdict(equality: Any, how: str) -> list[Any]:
    same = sum(row.verdict == "identical" for row in equality.rows)
    if same == len(equality.rows):
        return [f"measured{how}: all {same} tensors are equal bit for bit", True]
    return [f"measured{how}: {equality.verdict}, {same} bit for bit", equality.equal]


def found_rows(results: Mapping[str, RunResult], losses: Sequence[float]) -> tuple[tuple[str | None, ...], ...]:
    """Rows of `EARLIER_RUNS` behind the schedule: one for each source, and one for a training that was ended."""
    loss = f"{losses[-1]:.4g} at step {len(losses)}" if losses else None
    rows: list[tuple[str | None, ...]] = [
        (source, time_text(one.step_s), percent(one.bubble), loss if source == "measured" else None)
        for source, one in results.items()
    ]
    if losses and "measured" not in results:
        rows.append((f"ended after {plural(len(losses), 'step')}", None, None, loss))
    return tuple(rows)


def _lanes_text(settings: Settings) -> str:
    """Per rank its cells, with what it waits before them: "F0 F1 (2) B0"."""
    waits = {(rank, position): end - start for rank, position, start, end in gaps(settings)}
    lines = []
    for rank, cells in enumerate(cells_of(settings.schedule)):
        words = []
        for position, cell in enumerate(cells):
            if (rank, position) in waits and position < settings.timed.counts[rank]:
                words.append(f"({number(waits[rank, position])})")
            words.append(name_of(cell) if position < settings.timed.counts[rank] else f"{name_of(cell)}?")
        end = waits.get((rank, len(cells)))
        lines.append(f"rank {rank}: {' '.join([*words, *([f'({number(end)})'] if end else [])]) or 'empty'}")
    unit = "(n): waits n ticks"
    stuck = any(n < len(c) for n, c in zip(settings.timed.counts, cells_of(settings.schedule), strict=True))
    return "\n".join([*lines, f"{unit}; ?: cannot run yet" if stuck else unit])


def _times(settings: Settings, results: Mapping[str, RunResult], recorded: bool) -> list[list[Any]]:
    """Step and bubble of each source."""
    whole = settings.timed.complete
    step = ticks(settings.timed.timing.makespan) if whole else None
    rows: list[list[Any]] = [
        ["predicted", step, percent(settings.bubble) if whole else None, "the schedule's clock, nothing runs"]
    ]
    notes = {
        "simulated": f"ranks share {plural(settings.cores, 'core')}" if settings.cores else "a core for each rank",
        "measured": f"workers on {plural(cores(), 'core')}",
    }
    for source in SOURCES[1:]:
        if result := results.get(source):
            note = f"{'recorded' if recorded else notes[source]}; median of {result.steps}"
            rows.append([source, time_text(result.step_s), percent(result.bubble), note])
        else:
            rows.append([source, None, None, "not run yet"])
    return rows


def _apart(results: Mapping[str, RunResult]) -> list[str]:
    """From FAR on, how far the measured step is from the simulated one, and what makes it so."""
    both = [results[source] for source in SOURCES[1:] if source in results and results[source].step_s > 0]
    ratio = both[1].step_s / both[0].step_s if len(both) == 2 else 1.0
    if max(ratio, 1 / ratio) < FAR:
        return []
    waits, work = ([of.bubble * of.step_s for of in both], [(1 - of.bubble) * of.step_s for of in both])
    name, (there, here) = max(("waits", waits), ("work", work), key=lambda term: abs(term[1][0] - term[1][1]))
    takes = f"{name} {'take' if name == 'waits' else 'takes'} {time_text(here)}, simulated {time_text(there)}"
    return [f"A step takes {ratio:.2g} x the simulated one: a rank's {takes}."]


def _actions(settings: Settings, rank: int) -> dict[str, Any]:
    """The cells of a rank, row by row."""
    waits = {position: end - start for r, position, start, end in gaps(settings) if r == rank}
    cells = cells_of(settings.schedule)[rank]
    points = settings.kept(rank)
    rows: list[list[Any]] = []
    for position, cell in enumerate(cells):
        if position >= settings.timed.counts[rank]:
            rows.append([position, name_of(cell), "cannot run yet"])
            continue
        start, end = settings.timed.spans[rank][position]
        kept = [value for time, value in points if time <= start][-1]
        wait = number(waits[position]) if position in waits else ""
        rows.append([position, name_of(cell), number(start), number(end), wait, number(kept)])
    return {"rows": rows, "small": f"rank {rank}, predicted, in ticks"}


def _messages(settings: Settings) -> list[list[Any]]:
    """Messages between parts: one per micro-batch and direction, none where both parts lie on one rank."""
    schedule, rows = settings.schedule, []
    counts: dict[tuple[int, int, int, str], int] = {}
    for rank, lane in enumerate(schedule.ranks):
        for action in lane:
            for part, kind, n in schedule.readers(action):
                other = schedule.where.get((part, kind, n))
                if other is None:  # not drawn yet
                    continue
                border = (min(action.stage, part), max(action.stage, part))
                pair = (rank, other) if kind == "F" else (other, rank)
                key = (*border, pair[0] * len(schedule) + pair[1], kind)
                counts[key] = counts.get(key, 0) + 1
    for low, high, pair in sorted({key[:3] for key in counts}):
        source, target = divmod(pair, len(schedule))
        forward, back = (counts.get((low, high, pair, kind), 0) for kind in "FB")
        if source == target:
            rows.append([f"{low} to {high}", f"both on rank {source}: no message"])
        else:
            rows.append([f"{low} to {high}", f"{source} and {target}", forward, back, forward + back])
    return rows


def _memory(settings: Settings, results: Mapping[str, RunResult]) -> list[list[Any]]:
    rows = []
    for rank, parts in enumerate(settings.schedule.holds):
        counted = [results[source].kept_bytes[rank] if source in results else None for source in SOURCES[1:]]
        again = "yes" if set(parts) & set(settings.recomputed) else ""
        cap = "" if settings.cap is None else str(settings.cap)
        rows.append([f"rank {rank}", number(settings.peaks[rank]), *counted, ", ".join(map(str, parts)), again, cap])
    return rows
