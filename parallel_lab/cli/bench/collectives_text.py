"""A `CollectivesReport` as text for a terminal and as one HTML page without network or script. Pure functions of the
report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ...base.errors import escape
from ...base.log_chart import Series, log_chart
from ...base.units import bytes_text, time_text
from .collectives import ARENA, BARRIER_ROUNDS, COPY, FUTEX, GLOO, OURS, OUT, CollectivesReport, Timing
from .goals import Goal, collective_goals
from .page import aligned, bench_page, html_table, quotient, ratio_text


def collectives_text(report: CollectivesReport) -> str:
    """All of it: times and ratios, barrier, goals, and what was not there."""
    parts = [
        aligned(_time_rows(report), left=2),
        "",
        aligned(_barrier_rows(report)),
        "",
        aligned(goal_rows(collective_goals(report)), left=2),
        "",
    ]
    return "\n".join([*parts, *_notes(report)])


def collectives_page(report: CollectivesReport, machine: Mapping[str, Any]) -> str:
    """The page as text (UTF-8 when written)."""
    charts = "".join(_chart(report, op) for op in dict.fromkeys(t.op for t in report.timings))
    notes = "".join(f"<p>{escape(line)}</p>" for line in _notes(report))
    body = (
        f"<section><h2>Time of one call, by size</h2><div class='charts'>{charts}</div></section>"
        f"<section><h2>Times and ratios</h2>{html_table(_time_rows(report), left=2)}{notes}</section>"
        f"<section><h2>Barrier</h2>{html_table(_barrier_rows(report))}</section>"
        f"<section><h2>Goals</h2>{html_table(goal_rows(collective_goals(report)), left=2)}</section>"
    )
    return bench_page(f"Collectives of {report.ranks} ranks", machine, body)


def collectives_dict(report: CollectivesReport) -> dict[str, Any]:
    """Plain values for JSON: the report, its goals with their verdicts, and the bound of each all_reduce."""
    found = dataclasses.asdict(report)
    found["goals"] = [goal.to_dict() for goal in collective_goals(report)]
    for shown, timing in zip(found["timings"], report.timings, strict=True):
        shown["median_s"] = {name: timing.median_s(name) for name, _ in timing.seconds}
        shown["bound_s"] = timing.bound_s(report.ranks)
    return found


def goal_rows(goals: Sequence[Goal]) -> list[tuple[str, ...]]:
    """The goals as a table with its head."""
    rows = [("goal", "against", "at most", "reached", "new array", "", "")]
    for goal in goals:
        limit = f"{goal.limit:.0%}" if goal.against == "the call" else ratio_text(goal.limit)
        reached = (
            f"{goal.reached:.1%}"
            if goal.against == "the call" and goal.reached is not None
            else ratio_text(goal.reached)
        )
        beside = "" if goal.beside is None else ratio_text(goal.beside)
        rows.append((goal.what, goal.against, limit, reached, beside, goal.verdict, goal.note))
    return rows


def _time_rows(report: CollectivesReport) -> list[tuple[str, ...]]:
    head = ("", "size", OURS, OUT, ARENA, "MPI", "gloo", "out=/MPI", "arena/MPI", "out=/gloo", "bound", "arena/bound")
    rows = [head]
    for t in report.timings:
        ours, out, arena, mpi, gloo, bound = (
            *(t.median_s(n) for n in (OURS, OUT, ARENA)),
            t.mpi_s(),
            t.median_s(GLOO),
            t.bound_s(report.ranks),
        )
        times = tuple(map(time_text, (ours, out, arena, mpi, gloo)))
        ratios = tuple(ratio_text(quotient(a, b)) for a, b in ((out, mpi), (arena, mpi), (out, gloo)))
        rows.append(
            (t.op, bytes_text(t.size_bytes), *times, *ratios, time_text(bound), ratio_text(quotient(arena, bound)))
        )
    rows += [(op, bytes_text(size), "left out", *[""] * 9) for op, size, _ in report.skipped]
    return rows


def _barrier_rows(report: CollectivesReport) -> list[tuple[str, ...]]:
    rows = [("barrier", "ours", "MPI", "gloo", FUTEX, "ours/MPI", "ours/futex")]
    busy = f"{report.busy} foreign busy process{'es' if report.busy != 1 else ''}"
    named: list[tuple[str, Timing | None]] = [("quiet", report.barrier_quiet), (busy, report.barrier_busy)]
    for name, t in named:
        if t is not None:
            ours, mpi, gloo, futex = t.median_s(OURS), t.mpi_s(), t.median_s(GLOO), t.median_s(FUTEX)
            rows.append(
                (
                    name,
                    *map(time_text, (ours, mpi, gloo, futex)),
                    ratio_text(quotient(ours, mpi)),
                    ratio_text(quotient(ours, futex)),
                )
            )
    return rows


def _notes(report: CollectivesReport) -> list[str]:
    lines = [
        f"measured: {report.ranks} ranks on {report.cores} cores, medians of {report.rounds} rounds in turns "
        f"({BARRIER_ROUNDS * report.rounds} of "
        f"barriers), float32, slowest rank; load {report.load_before:.1f} before, {report.load_after:.1f} after",
        f"{OURS}: gives an array, gets a new one; {OUT}: into an array made before, as MPI and gloo; {ARENA}: in "
        "memory all ranks see (comm.empty)",
        "bound: p N / (copy bandwidth of two processes), measured in the same run; goals are judged on 'ours out=', "
        "'new array' is 'ours'",
        "every competitor's results were compared with a formula once per case before it was timed",
        *(f"{name}: {what}" for name, what in report.competitors),
        *(f"{name} is missing: {why}" for name, why in report.missing),
        *(f"{op} of {bytes_text(size)} was left out: {why}" for op, size, why in report.skipped),
    ]
    timings = [*report.timings, report.barrier_quiet, *([report.barrier_busy] if report.barrier_busy else [])]
    lines += dict.fromkeys(
        f"{name} failed in {t.op} {bytes_text(t.size_bytes)}: {words}" for t in timings for name, words in t.failed
    )
    if report.checks is not None:
        alone, whole = time_text(report.checks.checks_s), time_text(report.checks.call_s)
        lines.append(
            f"checks: {alone} of {whole} in an all_reduce of 256 KiB (checks, record and the call itself, on all "
            "ranks at once)"
        )
    return lines


def _chart(report: CollectivesReport, op: str) -> str:
    timings = [t for t in report.timings if t.op == op]
    names = dict.fromkeys(name for t in timings for name, _ in t.seconds if name != COPY)
    series = [
        Series(name, tuple((t.size_bytes, m) for t in timings if (m := t.median_s(name)) is not None)) for name in names
    ]
    bound = tuple((t.size_bytes, b) for t in timings if (b := t.bound_s(report.ranks)) is not None)
    if bound:
        series.append(Series("memory bound", bound, marks=len(bound) == 1, dashed=True))
    shown = [s for s in series if s.points]
    return log_chart(f"{op}, {report.ranks} ranks", shown, alt=_alt(report, op)) if shown else ""


def _alt(report: CollectivesReport, op: str) -> str:
    rows = [row for row in _time_rows(report)[1:] if row[0] == op]
    return f"{op}: " + "; ".join(
        f"{row[1]}: ours {row[2]}, out= {row[3]}, arena {row[4]}, MPI {row[5]}, gloo {row[6]}" for row in rows
    )
