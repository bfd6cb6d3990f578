"""A finished quickstart as one HTML page: no script, no network, light and dark, printable.

    Quickstart().run().to_html("report.html")

The story from top to bottom: what ran and whether it was right; who held which slice of which tensor; what had to move
and why; how the loss fell; where the time of one step went; what memory one rank needed; the proof of equality. Colour
is the slice, position is the rank; hatched is a partial sum of what is still to be added. Everything drawn is also
there as a number or a word.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

from ...base.errors import escape
from ...base.files import version, write_whole
from ...base.units import bytes_text, plural, time_text
from ...cost.memory import predict_memory
from ...graph.plan import Plan
from ..pictures.charts import round_ticks
from ..pictures.lanes import timeline_lanes
from ..pictures.picture import tensor_entries, tensor_picture
from .report_page import page
from .result import QuickstartResult, groups_text

PATTERNS = """<svg width="0" height="0" aria-hidden="true" focusable="false" style="position:absolute"><defs>
<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect class="stroke" width="2" height="6"/></pattern>
<pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse">
<circle class="stroke" cx="3" cy="3" r="1.1"/></pattern>
<pattern id="plus" width="7" height="7" patternUnits="userSpaceOnUse">
<path class="stroke" d="M2.9 1h1.2v1.9h1.9v1.2h-1.9v1.9h-1.2v-1.9h-1.9v-1.2h1.9z"/></pattern>
</defs></svg>"""


class QuickstartReport(QuickstartResult):
    """A finished run that can be written as a page."""

    @overload
    def to_html(self, path: None = None, title: str | None = None) -> str: ...
    @overload
    def to_html(self, path: str | os.PathLike[str], title: str | None = None) -> Path: ...
    def to_html(self, path: str | os.PathLike[str] | None = None, title: str | None = None) -> str | Path:
        """The page as text, or, with `path`, the file that was written (whole, or as it was before). DataFileError: it
        cannot be written, or is not a regular file.  title: of the page, instead of network and ranks
        """
        text = report_page(self, version(), title)
        return text if path is None else write_whole(path, text)


def report_page(result: QuickstartResult, version: str = "", title: str | None = None) -> str:
    """The page as text. version: of parallel_lab, for the list of what it ran on."""
    title = f"{result.net} on {plural(result.plan.device_num, 'rank')}" if title is None else title
    sections = [_headline(result), _pictures(result.plan), _messages(result)]
    sections += [f'<div class="two">{_loss(result)}{_timeline(result)}</div>', _memory(result), _equality(result)]
    sections.append(_ending(result, version))
    return page(title, "\n".join([PATTERNS, *sections]))


# ---- what ran ----


def _headline(result: QuickstartResult) -> str:
    plan, problem = result.plan, result.problem
    moved = [m for m in result.messages if m.groups]
    sent = sum(m.bytes_counted if m.bytes_counted is not None else m.bytes_predicted for m in moved)
    count, steps = plan.device_num, len(result.losses)
    one, many = ("simulated rank", "s") if result.executor == "simulator" else ("process", "es")
    facts = [
        (one + many * (count > 1), str(count)),
        (f"loss, {plural(steps, 'step')}", f"{result.losses[0]:.4g} → {result.losses[-1]:.4g}"),
        (f"message{'s' if len(moved) != 1 else ''} a step, {bytes_text(sent)} per rank", str(len(moved))),
    ]
    if result.steps_per_s is not None:
        facts.append(("steps per second, wall time", f"{result.steps_per_s:.0f}"))
    verdict, mark = ("good", "✓") if result.equal else ("bad", "✗")
    return (
        f'<header><p class="over">{escape(result.net)} · {escape(problem.label)}</p>\n'
        f'<h1 class="{verdict}">{mark} {escape(result.verdict)}</h1>\n'
        f'<p class="muted">{escape(problem.note[:1].upper() + problem.note[1:])}.</p>\n'
        f"{_facts(facts, 'facts')}</header>"
    )


# ---- slices ----

Box = tuple[float, float, float, float]

_COLUMN, _HEAD = 92, 20  # pixels of one rank's column, and of the line above it


def _section(title: str, about: str, *parts: str) -> str:
    """A section of the page, with a heading and what it is about."""
    return f"<section><h2>{title} <small>{about}</small></h2>{''.join(parts)}</section>"


def _rect(kind: str, x: float = 0, y: float = 0, width: float = 22, height: float = 14, title: str = "") -> str:
    """A rectangle; without measures, a swatch of a legend."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {place}><title>{title}</title></rect>' if title else f'<rect class="{kind}" {place}/>'


def _pictures(plan: Plan) -> str:
    strategies = {n.name: str(n.strategy) for n in plan.graph.nodes if n.strategy is not None}
    rows = []
    for entry in tensor_entries(plan):
        picture, cards = tensor_picture(plan, entry, "forward")
        strategy = strategies.get(entry.owner, "") if entry.owner == entry.source else ""
        chosen = f'<br><code class="long">{escape(entry.owner)} {escape(strategy)}</code>' if strategy else ""
        count = f"{picture['slices']} slices" if picture["slices"] > 1 else "whole"
        shape = f'<span class="shape">{escape(tuple(picture["shape"]))}</span>'
        note = f'<span class="muted">{escape(count)}; {escape(entry.note)}</span>'
        words = f"<div><b>{escape(entry.label)}</b> {shape}{chosen}<br>{note}</div>"
        rows.append(f'<div class="tensor">{words}{_ranks_svg(entry.label, picture, cards)}</div>')
    halos = any(entry.base != entry.value for entry in tensor_entries(plan))
    names = "".join(f'<text x="{_COLUMN * (r + 0.5)}" y="14">rank {r}</text>' for r in range(plan.device_num))
    head = (
        f'<div class="tensor ranks" aria-hidden="true"><div></div>{_svg(_COLUMN * plan.device_num, _HEAD, names)}</div>'
    )
    halo = _rect("hue-0", y=3, height=8) + _rect("hue-1", height=3) + _rect("hue-2", y=11, height=3)
    keys = (
        (_rect("hue-0", width=11) + _rect("hue-1", 11, width=11), "colour and number: which slice"),
        (_rect("hue-0") + _rect("hatched"), "hatched, Σ: a partial sum; the others are still to be added"),
        (_rect("ground"), "lies on other ranks"),
        *(((halo, "strips: read from the neighbours (halo)"),) if halos else ()),
    )
    return _section(
        "Who holds what",
        "the tensors of forward, in the order of the step",
        "<p>Each frame is the whole tensor; what is coloured lies on that rank. Same colour, same data.</p>",
        _key(*keys),
        _scroll(head + "".join(rows), "Who holds what"),
    )


def _svg(width: float, height: float, content: str, alt: str = "", fluid: bool = False) -> str:
    """An inline picture; `said` is its text for a screen reader, without it the picture is decoration."""
    role = f'role="img" aria-label="{escape(alt)}"' if alt else 'aria-hidden="true"'
    size = 'class="wide"' if fluid else f'width="{width:.0f}" height="{height:.0f}"'
    return f'<svg {role} {size} viewBox="0 0 {width:.0f} {height:.0f}">{content}</svg>'


def _key(*entries: tuple[str, str]) -> str:
    """The legend of a picture: swatches (22 x 14) and what they mean."""
    spans = (f"<span>{_svg(22, 14, swatch)} {escape(text)}</span>" for swatch, text in entries)
    return f'<p class="key">{" ".join(spans)}</p>'


def _ranks_svg(label: str, picture: dict, cards: Sequence[dict]) -> str:
    """One tensor: a frame per rank, the block that the rank holds filled."""
    shape, drawn = picture["shape"], picture["drawn"]
    rows, columns = 1 if drawn["down"] is None else shape[drawn["down"]], shape[drawn["across"]] * drawn["parts"]
    width = min(70.0, max(34.0, 44.0 * columns / rows))
    height = 14.0 if rows == 1 else min(44.0, max(22.0, width * rows / columns))
    parts = []
    for card in cards:
        left = card["rank"] * _COLUMN + (_COLUMN - width) / 2
        frame = (left, 2, width, height)
        x, y, _, _ = box = _box(card["block"], shape, drawn, frame)
        parts += [_rect("ground", *frame), _rect(f"hue-{card['slice'] % 8}", *box)]
        if card["addend"]:
            text = f"Σ {card['addend']} of {card['addends']}"
            place = f'x="{left + width / 2:.1f}" y="{height + 13:.1f}"'
            parts += [_rect("hatched", *box), f'<text class="sum" {place}>{text}</text>']
        for strip in card.get("strips", ()):  # at least so thick that it can be seen
            sx, sy, sw, sh = _box(strip["block"], shape, drawn, frame)
            thick_w, thick_h = max(2.0, sw), max(2.0, sh)
            seen = (sx + sw - thick_w if sx < x else sx, sy + sh - thick_h if sy < y else sy, thick_w, thick_h)
            parts.append(_rect(f"hue-{strip['slice'] % 8}", *seen))
        parts += [_rect("frame", *frame), _number(card["slice"], box, left + width + 3, bool(card["addend"]))]
    addends = [f" partial sum {c['addend']} of {c['addends']}" if c["addend"] else "" for c in cards]
    alt = "; ".join(f"rank {c['rank']} {c['text']}{addend}" for c, addend in zip(cards, addends, strict=True))
    return _svg(_COLUMN * len(cards), height + (16 if picture["partial"] else 4), "".join(parts), f"{label}: {alt}")


def _box(block: Sequence[Sequence[int]], shape: Sequence[int], drawn: dict, frame: Box) -> Box:
    """Where a block lies in the frame (x, y, width, height) of its tensor; panels of a third dim lie side by side."""
    left, top, width, height = frame
    (first, last), (start, stop) = (0, 1) if drawn["down"] is None else block[drawn["down"]], block[drawn["across"]]
    rows, columns = 1 if drawn["down"] is None else shape[drawn["down"]], shape[drawn["across"]] * drawn["parts"]
    if drawn["panels"] is not None:
        before = block[drawn["panels"]][0] * drawn["parts"] // shape[drawn["panels"]] * shape[drawn["across"]]
        start, stop = start + before, stop + before
    x, y = left + width * start / columns, top + height * first / rows
    return x, y, width * (stop - start) / columns, height * (last - first) / rows


def _number(number: int, block: Box, right: float, hatched: bool) -> str:
    """The number of a slice: in its block, on a plate if that is hatched, or next to the frame of a block too small."""
    x, y, w, h = block
    if min(w, h) < 9:
        return f'<text class="beside" x="{right:.1f}" y="{y + h / 2:.1f}">{number}</text>'
    at_x, at_y, size = x + w / 2, y + h / 2, min(12.0, h, w + 2)
    plate = f'<circle class="hue-{number % 8}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="{min(7.5, h / 2 - 0.5):.1f}"/>'
    plate = plate if hatched else ""
    return f'{plate}<text class="number" x="{at_x:.1f}" y="{at_y:.1f}" style="font-size:{size:.1f}px">{number}</text>'


# ---- messages ----


def _messages(result: QuickstartResult) -> str:
    title = ("What moves", "messages and slices of one step; bytes and times per rank")
    if not result.messages:
        return _section(*title, "<p>Nothing: every rank already holds what it needs.</p>")
    rows = []
    for m in result.messages:
        groups = f"<code>{escape(groups_text(m.groups))}</code>" if m.groups else "none: local"
        sizes = [bytes_text(n) if m.groups else "–" for n in (m.bytes_predicted, m.bytes_counted)]
        times = [escape(_micro(t)) for t in (m.time_predicted_s, m.time_measured_s)]
        where = f" <code>{escape(m.origin)}</code>" if m.origin else ""
        words = _cells([escape(m.phase), escape(m.operator), f"<b>{escape(m.collective)}</b>", groups])
        reason = _cells([f"{escape(m.reason)}{where}"])
        local = "" if m.groups else ' class="local"'
        rows.append(f'<tr{local}><th scope="row">#{m.number}</th>{words}{_cells(sizes + times, NUMBER)}{reason}</tr>')
    two = "".join(
        f'<th rowspan="2" scope="col">{word}</th>' for word in ("#", "phase", "operator", "collective", "groups")
    )
    pairs = "".join(f'<th colspan="2" scope="colgroup" class="c">{word}</th>' for word in ("bytes", "time"))
    under = _number_heads("predicted", "counted", "predicted", result.source)
    head = f'<tr>{two}{pairs}<th rowspan="2" scope="col">why it is here</th></tr><tr>{under}</tr>'
    counts, times = f"<p>{escape(result.counts_text)}.</p>", f'<p class="muted">{escape(result.times_text)}</p>'
    return _section(*title, counts, _table(head, rows, "Messages and slices"), times)


def _number_heads(*words: str) -> str:
    return "".join(f'<th scope="col"{NUMBER}>{word}</th>' for word in words)


def _table(head: str, rows: Iterable[str], label: str, kind: str = "") -> str:
    """A table that scrolls by itself where the page is narrow; `label` names it for a screen reader."""
    return _scroll(f"<table{kind}><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>", label)


def _scroll(body: str, label: str) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{body}</div>'


NUMBER = ' class="n"'


def _cells(cells: Iterable[str], kind: str = "") -> str:
    return "".join(f"<td{kind}>{cell}</td>" for cell in cells)


def _micro(time_s: float | None) -> str:
    return time_text(time_s).replace("us", "µs").replace("-", "–")


# ---- curves ----


def _labels(ticks: Sequence[float]) -> list[str]:
    """The ticks as text, with as many digits as tell them apart and give them truly.

    >>> _labels([1000.0001, 1000.0002])
    ['1000.0001', '1000.0002']
    """
    gap = min((b - a for a, b in itertools.pairwise(ticks)), default=abs(ticks[0]) if ticks else 0.0)
    for digits in range(4, 16):
        texts = [f"{y:.{digits}g}" for y in ticks]
        if all(abs(float(text) - y) <= gap / 100 for text, y in zip(texts, ticks, strict=True)):
            break
    return texts


def _text_width(text: str) -> float:
    """Units that a tick label takes at most: 12 units high (`.tick`); digits of wide fonts are 0.65 of that wide."""
    return 7.8 * len(text)


def _tick(kind: str, x: float, y: float, text: str) -> str:
    """Text of an axis; kind: "mid" or "end", where it is anchored."""
    return f'<text class="tick {kind}" x="{x:.1f}" y="{y:.1f}">{text}</text>'


def _loss(result: QuickstartResult) -> str:
    width, height, top, bottom = 520, 220, 8, 30  # top: half of a label that stands at the upper end
    curves = {"single": result.single_losses, "parallel": result.losses}
    finite = [y for c in curves.values() for y in c if math.isfinite(y)]
    title = ("Loss", f"{len(result.losses)} steps")
    if not finite:
        return _section(*title, "<p>No loss was a finite number.</p>")
    low, high = min(finite), max(finite)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = min(0.0, low) if high > 2 * low else low - margin, high + margin
    steps = max(1, len(result.losses) - 1)
    ticks = round_ticks(low, high, 8)
    labels = _labels(ticks)
    left = max(46.0, 10 + max(map(_text_width, labels), default=0))
    right = width - max(8.0, _text_width(str(len(result.losses))) / 2)

    def at(i: int, y: float) -> tuple[float, float]:
        return left + (right - left) * i / steps, top + (height - top - bottom) * (1 - (y - low) / (high - low))

    drawn = []
    for y, label in zip(ticks, labels, strict=True):
        row = at(0, y)[1]
        drawn.append(f'<line class="rule" x1="{left:.1f}" x2="{right:.1f}" y1="{row:.1f}" y2="{row:.1f}"/>')
        drawn.append(_tick("end", left - 6, row, label))
    for i in sorted({0, steps // 2, len(result.losses) - 1}):
        if i < len(result.losses):
            drawn.append(_tick("mid", at(i, low)[0], height - 15, str(i + 1)))
    drawn.append(_tick("mid", (left + right) / 2, height - 2, "step"))
    for name, curve in curves.items():
        points = [f"{x:.1f},{y:.1f}" for x, y in (at(i, y) for i, y in enumerate(curve) if math.isfinite(y))]
        points = points if len(points) > 1 else points * 2  # a round line end makes a dot of a single step
        drawn.append(f'<polyline class="curve {name}" points="{" ".join(points)}"/>')
    ranks, row = plural(result.plan.device_num, "rank"), result.equality.rows[0]
    alt = f"Loss from {result.losses[0]:.4g} at step 1 to {result.losses[-1]:.4g} at step {len(result.losses)}, on "
    alt += f"{ranks} and on one device"
    keys = [
        ('<line class="curve single" x2="22" y1="7" y2="7"/>', "one device"),
        ('<line class="curve parallel" x2="22" y1="7" y2="7"/>', ranks),
    ]
    gap = f'<p class="muted">Largest difference of the two: {row.largest_difference:.2g}.</p>'
    return _section(*title, _svg(width, height, "".join(drawn), alt, fluid=True), _key(*keys), gap)


def _timeline(result: QuickstartResult) -> str:
    data = timeline_lanes(result.plan, result.typical_step)
    scale, unit = (1e-3, "ms") if data["end"] >= 2000 else (1.0, "µs")
    width, left, lane, bottom = 520, 46, 23, 30
    end, height = (data["end"] or 1.0) * scale, len(data["lanes"]) * lane + bottom
    ticks = round_ticks(0, end, 5)
    labels = _labels(ticks)
    per_unit = (width - left - max(8.0, _text_width(labels[-1]) / 2)) / end
    drawn, shares = [], []
    for t, label in zip(ticks, labels, strict=True):
        x = left + t * per_unit
        drawn.append(f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - bottom}"/>')
        drawn.append(_tick("mid", x, height - 15, label))
    drawn.append(_tick("mid", (left + width) / 2, height - 2, unit))
    for i, row in enumerate(data["lanes"]):
        y = i * lane + 3
        drawn.append(_tick("end", left - 6, y + 8, f"rank {row['rank']}"))
        for bar in row["bars"]:
            long = bar["end"] - bar["start"]
            kind = "moving" if bar["kind"] == "communication" else "computing"
            start, length = left + bar["start"] * scale * per_unit, max(long * scale * per_unit, 0.5)
            drawn.append(_rect(kind, start, y, length, lane - 7, f"{escape(bar['label'])}, {long:.3g} µs"))
        shares.append(sum(b["end"] - b["start"] for b in row["bars"] if b["kind"] == "communication") * scale / end)
    share = sum(shares) / len(shares)
    alt = f"Timeline of one step, {data['source']}: {end:.3g} {unit}, {share:.0%} of it in messages"
    keys = (
        (_rect("computing"), "computing"),
        (_rect("moving"), f"in a message, waiting included: {share:.0%} of the time"),
    )
    picture = _svg(width, height, "".join(drawn), alt, fluid=True)
    return _section("One step", f"{data['source']}; the one of middle length of the last few", picture, _key(*keys))


# ---- memory, equality, the rest ----


def _memory_rect(kind: int, x: float, width: float, height: float) -> str:
    """A piece of a memory bar: its fill, and its pattern over it."""
    return "".join(_rect(f"memory-{kind}{over}", x, 0, width, height) for over in ("", "-over"))


def _memory(result: QuickstartResult) -> str:
    ranks = result.plan.device_num
    plans = ((f"one rank of {ranks}", result.plan), ("one device alone", result.single_plan))
    reports = []
    for name, plan in plans[ranks == 1 :]:
        report = predict_memory(plan)
        # inputs too: a rank keeps its slice of the batch as an activation, where one device reads the batch it was fed
        reports.append((name, {**report.parts, "inputs": report.inputs_bytes}))
    largest, rows = max(sum(parts.values()) for _, parts in reports), []
    for name, parts in reports:
        widths = [480 * size / largest for size in parts.values()]
        starts = itertools.accumulate(widths, initial=0.0)
        bars = "".join(_memory_rect(i, x, width, 20) for i, (x, width) in enumerate(zip(starts, widths, strict=False)))
        sizes = {kind: bytes_text(size) for kind, size in parts.items()}
        picture = _svg(480, 20, bars, f"{name}: " + ", ".join(f"{kind} {size}" for kind, size in sizes.items()))
        numbers = _cells([*sizes.values(), f"<b>{bytes_text(sum(parts.values()))}</b>"], NUMBER)
        rows.append(f'<tr><th scope="row">{escape(name)}</th><td>{picture}</td>{numbers}</tr>')
    marks = [(_svg(12, 12, _memory_rect(i, 0, 12, 12)), kind) for i, kind in enumerate(reports[0][1])]
    kinds = "".join(_number_heads(f"{mark} {escape(kind)}") for mark, kind in marks)
    head = f"<tr><td></td><td></td>{kinds}{_number_heads('total')}</tr>"
    return _section("Memory", "predicted from the shapes; the same on every rank", _table(head, rows, "Memory"))


def _equality(result: QuickstartResult) -> str:
    rows = []
    for r in result.equality.rows:
        failed, verdict, mark = ("", "good", "✓") if r.equal else (" class=failed", "bad", "✗")
        numbers = _cells([f"{r.largest_difference:.2g}", f"{r.bound:.2g}"], NUMBER)
        verdict = _cells([f"{mark} {escape(r.verdict)}"], f' class="{verdict}"')
        rows.append(f'<tr{failed}><th scope="row">{escape(r.tensor)}</th>{numbers}{verdict}</tr>')
    numbers = _number_heads("largest difference", "rounding bound")
    head = f'<tr><th scope="col">tensor</th>{numbers}<th scope="col">verdict</th></tr>'
    table, bound = _table(head, rows, "Equality", " class=equality"), escape(result.bound_text)
    bound = f'<p class="muted">{bound}</p>'
    return _section("Equal to one device?", "same network, same data, same start", table, bound)


def _ending(result: QuickstartResult, version: str) -> str:
    own = [("parallel_lab", version)] if version else []
    facts = _facts([*own, *result.environment, ("plan", result.plan.digest)], "small")
    program, losses = escape(result.plan.text(rank=0)), escape("\n".join(result.log_lines))
    text = f"<section><details><summary>The program of rank 0</summary><pre>{program}</pre></details>"
    return text + f"<details><summary>Every loss</summary><pre>{losses}</pre></details>{facts}</section>"


def _facts(facts: Iterable[tuple[str, str]], kind: str) -> str:
    """(name, value) pairs as a list."""
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="{kind}">{rows}</dl>'
