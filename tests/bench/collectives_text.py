"""A `CollectivesReport` as text for a terminal and as one self-contained HTML page. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from parallel_lab.base.errors import escape
from parallel_lab.base.log_chart import Series, log_chart
from parallel_lab.base.units import bytes_text, time_text
from parallel_lab.cli.results import bench_page, html_table
from tests.bench.collectives import ARENA, BARRIER_ROUNDS, COPY, FUTEX, GLOO, OURS, OUT, CollectivesReport, Timing
from tests.bench.goals import collective_goals, goal_dicts, goal_rows
from tests.bench.page import quotient, ratio_text, tables_text


def _tables(report: CollectivesReport) -> dict[str, tuple[list[tuple[str, ...]], int]]:
    """Title -> (rows, number of left columns)."""
    return {
        "Times and ratios": (_time_rows(report), 2),
        "Barrier": (_barrier_rows(report), 1),
        "Goals": (goal_rows(collective_goals(report)), 2),
    }


def collectives_text(report: CollectivesReport) -> str:
    """All of it: times and ratios, barrier, goals, and what was missing."""
    return tables_text(_tables(report).values(), _notes(report))


def collectives_page(report: CollectivesReport, machine: Mapping[str, Any]) -> str:
    """The page as text (UTF-8 when written)."""
    charts = "".join(_chart(report, op) for op in dict.fromkeys(t.op for t in report.timings))
    sections = {"Time of one call, by size": f"<div class='charts'>{charts}</div>"}
    sections |= {title: html_table(rows, left=left) for title, (rows, left) in _tables(report).items()}
    sections["Notes"] = "".join(f"<p>{escape(line)}</p>" for line in _notes(report))
    body = "".join(f"<section><h2>{title}</h2>{content}</section>" for title, content in sections.items())
    return bench_page(f"Collectives of {report.ranks} ranks", machine, body)


def collectives_dict(report: CollectivesReport) -> dict[str, Any]:
    """Plain values for JSON: the report, its goals with their verdicts, and the bound of each all_reduce."""
    found = dataclasses.asdict(report)
    found["goals"] = goal_dicts(collective_goals(report))
    for shown, timing in zip(found["timings"], report.timings, strict=True):
        shown["median_s"] = {name: timing.median_s(name) for name, _ in timing.seconds}
        shown["bound_s"] = timing.bound_s(report.ranks)
    return found


def _time_rows(report: CollectivesReport) -> list[tuple[str, ...]]:
    head = ("", "size", OURS, OUT, ARENA, "MPI", "gloo", "out=/MPI", "arena/MPI", "out=/gloo", "bound", "arena/bound")
    rows = [head]
    for t in report.timings:
        ours, out, arena, gloo = (t.median_s(name) for name in (OURS, OUT, ARENA, GLOO))
        mpi, bound = t.mpi_s(), t.bound_s(report.ranks)
        times = map(time_text, (ours, out, arena, mpi, gloo))
        ratios = (ratio_text(quotient(a, b)) for a, b in ((out, mpi), (arena, mpi), (out, gloo)))
        over_bound = ratio_text(quotient(arena, bound))
        rows.append((t.op, bytes_text(t.size_bytes), *times, *ratios, time_text(bound), over_bound))
    rows += [(op, bytes_text(size), "left out", *[""] * 9) for op, size, _ in report.skipped]
    return rows


def _barrier_rows(report: CollectivesReport) -> list[tuple[str, ...]]:
    rows = [("barrier", "ours", "MPI", "gloo", FUTEX, "ours/MPI", "ours/futex")]
    busy = f"{report.busy} foreign busy process{'es' if report.busy != 1 else ''}"
    named: list[tuple[str, Timing | None]] = [("quiet", report.barrier_quiet), (busy, report.barrier_busy)]
    for name, t in named:
        if t is not None:
            ours, mpi, gloo, futex = t.median_s(OURS), t.mpi_s(), t.median_s(GLOO), t.median_s(FUTEX)
            ratios = (ratio_text(quotient(ours, other)) for other in (mpi, futex))
            rows.append((name, *map(time_text, (ours, mpi, gloo, futex)), *ratios))
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
