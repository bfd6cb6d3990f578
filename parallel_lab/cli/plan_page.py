"""`parallel-lab plan` as one HTML page: step time against memory, the line, the winner number by number, and what was
refused. A pure function of what the search found; no script, no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..base.errors import escape
from ..base.units import bytes_text, time_text
from ..lab.pictures.charts import COMPUTE, HUES, MEMORY_HUES, Chart, Trace
from ..lab.quickstart.report_page import page
from .results import html_table

if TYPE_CHECKING:
    from ..cost.planner import Found, Prediction, RunReport, Verdict

GIB = 2**30  # bytes
DRAWN = 3  # times the fastest step: slower points stand in the tables only
_EACH = f"a point: one way to spend the devices, up to {DRAWN} times the fastest step"
MOST_DRAWN = 600  # refused points


def search_page(found: Found, bar: str = "") -> str:
    """The page of a search.  bar: the error bar in words. Raises ArgumentError where nothing fits."""
    best, cluster = found.winner, found.machine.cluster
    title = f"{found.model.name} on {best.point.devices} devices of {cluster.name}, batch {found.batch}"
    summary = f"{len(found.verdicts)} points looked at; at most {bytes_text(found.memory_bytes)} a rank; "
    summary += f"numbers as {found.precision}. All are predicted: no device was used. {bar}"
    chart = found_chart(found)
    rows = [("plan", "step", "MFU", "waiting", "memory")]
    for p in found.line:
        size = bytes_text(p.memory_bytes)
        rows.append((p.point.text(), time_text(p.step_s), f"{p.mfu:.1%}", f"{p.bubble:.1%}", size))
    refused = [("why", "nearest", "its reason", "points")]
    for kind, words, nearest in _nearest(found):
        refused.append((words, nearest.point.text(), nearest.reason, f"{found.counts[kind]:,}"))
    parts = [
        _head(title, summary, best),
        _section("Step against memory", chart.svg(760, 380), _EACH),
        _section("The line", html_table(rows), "no point is faster with as little memory, the fastest first"),
        _numbers(best, "The fastest, number by number"),
        _section("Refused", html_table(refused, left=3), "every other point, by the first reason that was found"),
    ]
    return page(title, "\n".join(parts))


def run_page(report: RunReport) -> str:
    """The page of a published run: what was printed, what is predicted, the terms one upon the other, what is off."""
    run, found = report.run, report.prediction
    title = f"{run.name}: {run.row['model']} on {run.row['devices']} x {run.row['hardware']}"
    source = f"{run.row.get('source', 'No source.')} ({run.row.get('confidence', '')})"
    facts = [("what", "value"), *report.facts()]
    parts = [f'<h1>{escape(title)}</h1>\n<p class="muted">{escape(source)}</p>']
    parts.append(_section("Printed and predicted", html_table(facts), report.error_bar_text))
    if found is not None:
        chart = waterfall_chart(report)
        parts.append(
            _section("Where a step goes", chart.svg(760, 380), "terms of the prediction, and what was printed")
        )
        parts.append(_numbers(found, "Number by number"))
    return page(title, "\n".join(parts))


def waterfall_chart(report: RunReport) -> Chart:
    """Each term as a step up from the one before it; the printed seconds as a dashed line."""
    traces, names = [], []
    for at, (name, seconds, begin) in enumerate(report.waterfall()):
        top, text = begin + seconds, f"{at + 1} {name}: {time_text(seconds)}"
        names.append(text)
        xy = (float(at), float(at), at + 1.0, at + 1.0), (begin, top, top, begin)
        traces.append(Trace(text, "line", *xy, HUES[at % len(HUES)]))
    measured = report.run.step_s
    if measured is not None:
        text = f"printed: {time_text(measured)}"
        traces.append(Trace(text, "line", (0.0, float(len(names))), (measured, measured), COMPUTE, dashed=True))
    alt = f"Predicted terms of a step: {', '.join(names)}."
    return Chart("Where a step goes", "predicted", "terms, one upon the other", "seconds", tuple(traces), alt)


def point_page(found: Prediction, bar: str = "") -> str:
    """The page of one prediction."""
    title = f"{found.model.name} on {found.point.devices} devices of {found.machine.cluster.name}"
    summary = f"{found.point.text()}; numbers as {found.precision}. All are predicted: no device was used. {bar}"
    return page(title, f"{_head(title, summary, found)}\n{_numbers(found, 'Number by number')}")


def found_chart(found: Found) -> Chart:
    """Every point that could be timed, by the bytes of the rank that holds most."""
    line, most = found.line, DRAWN * found.winner.step_s
    verdicts = found.verdicts
    places = verdicts.places("slower", most=most)
    slower = [verdicts[int(at)] for at in places[:: -(-len(places) // MOST_DRAWN) or 1]]
    places = verdicts.places("memory", most=most)
    places = places[verdicts.memory_bytes[places] <= 2 * found.memory_bytes]
    larger = [verdicts[int(at)] for at in places[:MOST_DRAWN]]
    fastest, cap = line[0], found.memory_bytes / GIB
    best = sorted((p for p in line if p.step_s <= most), key=lambda p: p.memory_bytes)
    xy = tuple(p.memory_bytes / GIB for p in best), tuple(p.step_s for p in best)
    traces = [
        _points("slower than another with no more memory; at least this step", slower, COMPUTE),
        _points("more memory than a rank has; at least this step", larger, MEMORY_HUES["grads"]),
        Trace("the line", "line", *xy, HUES[0]),
        Trace("its points", "points", *xy, HUES[0], tuple(f"{p.point.text()}: {_both(p)}" for p in best)),
    ]
    named = f"the fastest: {fastest.point.text()}"
    spot = (fastest.memory_bytes / GIB,), (fastest.step_s,), HUES[2], (f"{named}: {_both(fastest)}",)
    traces.append(Trace(named, "points", *spot))
    top, right = (max(v for t in traces for v in getattr(t, axis)) for axis in "yx")
    if right > cap / 3:  # otherwise it would be most of the picture
        limit = f"memory of a rank: {cap:.3g} GiB"
        traces.append(Trace(limit, "line", (cap, cap), (0.0, top), COMPUTE, dashed=True))
    alt = f"{len(line)} points on the line of time against memory: from {_both(fastest)} to {_both(line[-1])}."
    kept = tuple(trace for trace in traces if trace.x)
    return Chart("Step against memory", "predicted", "memory of a rank in GiB", "step in s", kept, alt)


def _points(name: str, verdicts: Iterable[Verdict], colour: str) -> Trace:
    listed = tuple(verdicts)
    texts = tuple(f"{v.point.text()}: {v.reason}" for v in listed)
    xy = tuple(v.memory_bytes / GIB for v in listed), tuple(v.least_s for v in listed)
    return Trace(name, "points", *xy, colour, texts)


def _both(found: Prediction) -> str:
    return f"{time_text(found.step_s)} and {bytes_text(found.memory_bytes)}"


def _nearest(found: Found) -> Iterator[tuple[str, str, Verdict]]:
    """(kind, in words, the point that is nearest to being taken) of each reason."""
    for kind, words in found.words.items():
        if nearest := found.verdicts.nearest(kind):
            yield kind, words, nearest


def _head(title: str, told: str, found: Prediction) -> str:
    facts = {
        "step": time_text(found.step_s),
        "MFU": f"{found.mfu:.1%}",
        "waiting": f"{found.bubble:.1%}",
        "memory of a rank": bytes_text(found.memory_bytes),
        "tokens per s": f"{found.tokens_per_s:,.0f}",
    }
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<h1>{escape(title)}</h1>\n<p class="muted">{escape(told)}</p>\n<dl class="facts">{cells}</dl>'


def _numbers(found: Prediction, title: str) -> str:
    rows = [("what", "how it is made", "value"), *((name.strip(), how, value) for name, value, how in found.rows())]
    table = html_table(rows, left=2)
    return _section(title, table, found.point.text())


def _section(title: str, body: str, small: str) -> str:
    return f"<section><h2>{escape(title)} <small>{escape(small)}</small></h2>\n{body}</section>"
