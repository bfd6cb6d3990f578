"""A finished quickstart as one HTML page: no script, no network, light and dark, printable.

    write_report(result, "report.html")

The story from top to bottom: what ran and whether it was right; who held which slice of which tensor; what had to move and why; how the loss fell;
where the time of one step went; what memory one rank needed; the proof of equality. Colour is the slice, position is the rank; hatched is an addend
of a sum that is still pending. Everything drawn is also there as a number or a word.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..cost.memory import predict_memory
from ..errors import DataFileError, escape, message
from ..plan import Plan
from .picture import tensor_entries, tensor_picture, timeline_lanes
from .quickstart import QuickstartResult, groups_text, ranks_text
from .report_style import STYLE
from .words import bytes_text, time_text

__all__ = ["report_page", "write_report"]

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<svg width="0" height="0" aria-hidden="true" focusable="false" style="position:absolute"><defs>
<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="stroke" width="2" height="6"/></pattern>
<pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse"><circle class="stroke" cx="3" cy="3" r="1.1"/></pattern>
</defs></svg>
<main>
{body}
</main>
</body>
</html>
"""


def report_page(result: QuickstartResult, version: str = "") -> str:
    """The page as text. version: of parallel_lab, for the list of what it ran on."""
    title = f"{result.net} on {ranks_text(result.plan.device_num)}"
    sections = [_headline(result), _pictures(result.plan), _messages(result), _loss_and_timeline(result), _memory(result), _equality(result)]
    sections.append(_ending(result, version))
    return PAGE.format(title=escape(title), style=STYLE, body="\n".join(sections))


def write_report(result: QuickstartResult, path: str | os.PathLike[str], version: str = "") -> Path:
    """Write the page and return its path. Whoever looks sees the old file or the new one, never a part. Raises DataFileError."""
    path, content = Path(path), report_page(result, version).encode()
    try:
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)  # a rename is atomic within one file system only
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(part, 0o644)  # mkstemp makes files that only their owner may read
            os.replace(part, path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DataFileError(
            message(f"cannot be written: {error.strerror or error}", where=str(path), hint="Choose a folder that is there")
        ) from error
    return path


# ---- what ran ----


def _headline(result: QuickstartResult) -> str:
    plan, problem = result.plan, result.problem
    moved = [m for m in result.messages if m.groups]
    sent = sum(m.bytes_counted if m.bytes_counted is not None else m.bytes_predicted for m in moved)
    how = "processes" if result.executor == "processes" else "simulated ranks"
    facts = [
        (str(plan.device_num), how if plan.device_num > 1 else how.removesuffix("es" if how == "processes" else "s")),
        (f"{result.losses[0]:.4g} → {result.losses[-1]:.4g}", f"loss, {len(result.losses)} steps"),
        (str(len(moved)), f"message{'s' if len(moved) != 1 else ''} a step, {bytes_text(sent)} per rank"),
    ]
    if result.steps_per_s is not None:
        facts.append((f"{result.steps_per_s:.0f}", "steps per second, wall time"))
    cells = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for value, label in facts)
    return (
        f'<header><p class="over">{escape(result.net)} · {escape(problem.label)}</p>\n'
        f'<h1 class="{"good" if result.equal else "bad"}">{"✓" if result.equal else "✗"} {escape(result.verdict)}</h1>\n'
        f'<p class="muted">{escape(problem.note[:1].upper() + problem.note[1:])}.</p>\n<dl class="facts">{cells}</dl></header>'
    )


# ---- slices ----

_COLUMN, _HEAD = 92, 20  # pixels of one rank's column, and of the line above it


def _pictures(plan: Plan) -> str:
    strategies = {n.name: str(n.strategy) for n in plan.graph.nodes if n.strategy is not None}
    rows = []
    for entry in tensor_entries(plan):
        picture, cards = tensor_picture(plan, entry, "forward")
        strategy = strategies.get(entry.owner, "") if entry.owner == entry.source else ""
        chosen = f"<br><code>{escape(entry.owner)} {escape(strategy)}</code>" if strategy else ""
        count = f"{picture['slices']} slice{'s' if picture['slices'] > 1 else ''}" if picture["slices"] > 1 else "whole"
        rows.append(
            f'<div class="tensor"><div><b>{escape(entry.label)}</b> <span class="shape">{escape(tuple(picture["shape"]))}</span>{chosen}'
            f'<br><span class="muted">{escape(count)}; {escape(entry.note)}</span></div>{_ranks_svg(entry.label, picture, cards)}</div>'
        )
    names = "".join(f'<text x="{_COLUMN * (r + 0.5)}" y="14">rank {r}</text>' for r in range(plan.device_num))
    width = _COLUMN * plan.device_num
    head = f'<div class="tensor ranks" aria-hidden="true"><div></div><svg viewBox="0 0 {width} {_HEAD}" width="{width}" height="{_HEAD}">{names}</svg></div>'
    key = (
        '<p class="key"><svg width="22" height="14" aria-hidden="true"><rect class="hue-0" width="11" height="14"/><rect class="hue-1" x="11" width="11" '
        'height="14"/></svg> colour and number: which slice <svg width="22" height="14" aria-hidden="true"><rect class="hue-0" width="22" height="14"/>'
        '<rect class="hatched" width="22" height="14"/></svg> hatched, Σ: an addend; the sum is still pending <svg width="22" height="14" aria-hidden="true">'
        '<rect class="ground" width="22" height="14"/></svg> lies on other ranks</p>'
    )
    intro = "Each frame is the whole tensor; what is coloured lies on that rank. Same colour, same data."
    return f'<section><h2>Who holds what <small>the tensors of forward, in the order of the step</small></h2><p>{intro}</p>{key}<div class="scroll">{head}{"".join(rows)}</div></section>'


def _ranks_svg(label: str, picture: dict, cards: Sequence[dict]) -> str:
    shape = picture["shape"]
    rows, columns = (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])
    width = min(76.0, max(34.0, 44.0 * columns / rows))
    height = 14.0 if rows == 1 else min(44.0, max(22.0, width * rows / columns))
    below = 14 if picture["partial"] else 2
    parts = []
    for card in cards:
        left = card["rank"] * _COLUMN + (_COLUMN - width) / 2
        (top, bottom), (start, stop) = ((0, 1), card["block"][0]) if len(shape) == 1 else card["block"][:2]
        x, y = left + width * start / columns, 2 + height * top / rows
        w, h = width * (stop - start) / columns, height * (bottom - top) / rows
        block = f'x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}"'
        parts.append(
            f'<rect class="ground" x="{left:.1f}" y="2" width="{width:.1f}" height="{height:.1f}"/><rect class="hue-{card["slice"] % 8}" {block}/>'
        )
        if card["addend"]:
            parts.append(
                f'<rect class="hatched" {block}/><text class="sum" x="{left + width / 2:.1f}" y="{height + 13:.1f}">Σ {card["addend"]} of {card["addends"]}</text>'
            )
        parts.append(f'<rect class="frame" x="{left:.1f}" y="2" width="{width:.1f}" height="{height:.1f}"/>')
        parts.append(_number(card["slice"], x + w / 2, y + h / 2, w, h, bool(card["addend"])))
    said = "; ".join(f"rank {c['rank']} {c['text']}" + (f" addend {c['addend']} of {c['addends']}" if c["addend"] else "") for c in cards)
    total = _COLUMN * len(cards)
    return f'<svg role="img" aria-label="{escape(f"{label}: {said}")}" viewBox="0 0 {total} {height + below + 2:.0f}" width="{total}" height="{height + below + 2:.0f}">{"".join(parts)}</svg>'


def _number(number: int, x: float, y: float, width: float, height: float, hatched: bool) -> str:
    """The number of a slice in the middle of its block, smaller where the block is low; on a plate where it would lie on hatching."""
    size = max(8.0, min(12.0, height - 0.5, width))
    plate = (
        f'<circle class="hue-{number % 8}" cx="{x:.1f}" cy="{y:.1f}" r="{min(7.0, size / 2 + 1):.1f}"/>'
        if hatched and min(width, height) > 12
        else ""
    )
    return f'{plate}<text class="number" x="{x:.1f}" y="{y:.1f}" style="font-size:{size:.1f}px">{number}</text>'


# ---- messages ----


def _messages(result: QuickstartResult) -> str:
    title = "<h2>What moves <small>messages of one step, and slices the compiler inserted; bytes and times per rank</small></h2>"
    if not result.messages:
        return f"<section>{title}<p>Nothing: every rank already holds what it needs.</p></section>"
    rows = []
    for m in result.messages:
        groups = f"<code>{escape(groups_text(m.groups))}</code>" if m.groups else "none: local"
        counted, predicted = (bytes_text(n) if m.groups else "–" for n in (m.bytes_counted, m.bytes_predicted))
        where = f" <code>{escape(m.origin)}</code>" if m.origin else ""
        local = "" if m.groups else ' class="local"'
        rows.append(
            f'<tr{local}><th scope="row">#{m.number}</th><td>{escape(m.phase)}</td><td>{escape(m.operator)}</td><td><b>{escape(m.collective)}</b></td>'
            f'<td>{groups}</td><td class="n">{predicted}</td><td class="n">{counted}</td><td class="n">{escape(_micro(m.time_predicted_s))}</td>'
            f'<td class="n">{escape(_micro(m.time_measured_s))}</td><td>{escape(m.reason)}{where}</td></tr>'
        )
    head = (
        '<tr><th rowspan="2" scope="col">#</th><th rowspan="2" scope="col">phase</th><th rowspan="2" scope="col">operator</th><th rowspan="2" scope="col">collective</th>'
        '<th rowspan="2" scope="col">groups</th><th colspan="2" scope="colgroup" class="c">bytes</th><th colspan="2" scope="colgroup" class="c">time</th>'
        '<th rowspan="2" scope="col">why it is here</th></tr><tr><th scope="col" class="n">predicted</th><th scope="col" class="n">counted</th>'
        f'<th scope="col" class="n">predicted</th><th scope="col" class="n">{result.source}</th></tr>'
    )
    return f'<section>{title}<div class="scroll"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div><p class="muted">{escape(result.times_text)}</p></section>'


def _micro(time_s: float | None) -> str:
    return time_text(time_s).replace("us", "µs").replace("-", "–")


# ---- curves ----


def _ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers between low and high, about `count` of them."""
    span = (high - low) or 1.0
    power = 10.0 ** (len(str(int(1e12 * span / count))) - 13)
    step = next((m * power for m in (1, 2, 5, 10) if m * power >= span / count), 10 * power)
    first = -int(-low // step)
    return [k * step for k in range(first, first + 20) if low <= k * step <= high * (1 + 1e-9)]


def _loss_and_timeline(result: QuickstartResult) -> str:
    return f'<div class="two">{_loss(result)}{_timeline(result)}</div>'


def _loss(result: QuickstartResult) -> str:
    width, height, left, bottom = 520, 220, 46, 28
    curves = {"single": result.single_losses, "parallel": result.losses}
    finite = [y for c in curves.values() for y in c if abs(y) < float("inf")]
    title = f"<h2>Loss <small>{len(result.losses)} steps</small></h2>"
    if not finite:
        return f"<section>{title}<p>No loss was a number.</p></section>"
    low, high = min(finite), max(finite)
    low, high = (min(0.0, low), high) if high > 2 * low else (low - 0.05 * (high - low), high + 0.05 * (high - low))
    steps = max(1, len(result.losses) - 1)

    def at(i: int, y: float) -> str:
        return f"{left + (width - left - 8) * i / steps:.1f},{8 + (height - bottom - 8) * (1 - (y - low) / ((high - low) or 1)):.1f}"

    drawn = []
    for y in _ticks(low, high):
        y_at = at(0, y).split(",")[1]
        drawn.append(
            f'<line class="rule" x1="{left}" x2="{width - 8}" y1="{y_at}" y2="{y_at}"/><text class="tick end" x="{left - 6}" y="{y_at}">{y:.4g}</text>'
        )
    for i in sorted({0, steps // 2, steps} if len(result.losses) > 1 else {0}):
        drawn.append(f'<text class="tick mid" x="{at(i, low).split(",")[0]}" y="{height - 14}">{i + 1}</text>')
    for name, curve in curves.items():
        points = " ".join(at(i, y) for i, y in enumerate(curve) if abs(y) < float("inf"))
        drawn.append(f'<polyline class="curve {name}" points="{points}"/>')
    ranks = ranks_text(result.plan.device_num)
    said = f"Loss from {result.losses[0]:.4g} at step 1 to {result.losses[-1]:.4g} at step {len(result.losses)}; {ranks} and one device lie on each other"
    largest = max(abs(a - b) for a, b in zip(result.losses, result.single_losses, strict=True))
    key = (
        f'<p class="key"><svg width="26" height="10" aria-hidden="true"><line class="curve single" x2="26" y1="5" y2="5"/></svg> one device '
        f'<svg width="26" height="10" aria-hidden="true"><line class="curve parallel" x2="26" y1="5" y2="5"/></svg> {escape(ranks)}, {result.executor}; '
        f"largest difference {largest:.2g}</p>"
    )
    axis = f'<text class="tick mid" x="{(left + width) / 2:.0f}" y="{height - 1}">step</text>'
    return f'<section>{title}<svg class="wide" role="img" aria-label="{escape(said)}" viewBox="0 0 {width} {height}">{"".join(drawn)}{axis}</svg>{key}</section>'


def _timeline(result: QuickstartResult) -> str:
    data = timeline_lanes(result.plan, result.events)
    width, left, lane, bottom = 520, 46, 22, 30
    end, height = data["end"] or 1.0, len(data["lanes"]) * lane + bottom
    scale = (width - left - 8) / end
    drawn = []
    for t in _ticks(0, end, 5):
        x = left + t * scale
        drawn.append(
            f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - bottom}"/><text class="tick mid" x="{x:.1f}" y="{height - 16}">{t:g}</text>'
        )
    communicating = []
    for i, row in enumerate(data["lanes"]):
        y = i * lane + 3
        drawn.append(f'<text class="tick end" x="{left - 6}" y="{y + 8}">rank {row["rank"]}</text>')
        for bar in row["bars"]:
            w = max((bar["end"] - bar["start"]) * scale, 0.4)
            kind = "moving" if bar["kind"] == "communication" else "computing"
            place = f'x="{left + bar["start"] * scale:.2f}" y="{y}" width="{w:.2f}" height="{lane - 6}"'
            said = f"{bar['label']}, {bar['end'] - bar['start']:.3g} µs"
            drawn.append(f'<rect class="{kind}" {place}><title>{escape(said)}</title></rect>')
        communicating.append(sum(b["end"] - b["start"] for b in row["bars"] if b["kind"] == "communication") / end)
    share = sum(communicating) / max(1, len(communicating))
    said = f"Timeline of the last step, {data['source']}: {end:.4g} µs, of which {share:.0%} in messages and waiting"
    key = (
        '<p class="key"><svg width="22" height="12" aria-hidden="true"><rect class="computing" width="22" height="12"/></svg> computing '
        f'<svg width="22" height="12" aria-hidden="true"><rect class="moving" width="22" height="12"/></svg> in a message, waiting included: {share:.0%} of the time</p>'
    )
    axis = f'<text class="tick mid" x="{(left + width) / 2:.0f}" y="{height - 2}">µs</text>'
    title = f"<h2>One step <small>{data['source']}, the last one</small></h2>"
    return f'<section>{title}<svg class="wide" role="img" aria-label="{escape(said)}" viewBox="0 0 {width} {height}">{"".join(drawn)}{axis}</svg>{key}</section>'


# ---- memory, equality, the rest ----


def _memory(result: QuickstartResult) -> str:
    reports = [
        (f"one rank of {result.plan.device_num}", predict_memory(result.plan).parts),
        ("one device alone", predict_memory(result.single_plan).parts),
    ]
    largest = max(sum(parts.values()) for _, parts in reports)
    rows = []
    for name, parts in reports:
        x, bars = 0.0, []
        for i, (kind, size) in enumerate(parts.items()):
            w = 560 * size / largest
            bars.append(
                f'<rect class="memory-{i}" x="{x:.1f}" width="{w:.1f}" height="20"/>'
                + (f'<rect class="memory-{i}-over" x="{x:.1f}" width="{w:.1f}" height="20"/>')
            )
            x += w
        said = f"{name}: " + ", ".join(f"{kind} {bytes_text(size)}" for kind, size in parts.items())
        picture = f'<svg role="img" aria-label="{escape(said)}" viewBox="0 0 560 20" width="560" height="20">{"".join(bars)}</svg>'
        numbers = "".join(f'<td class="n">{bytes_text(size)}</td>' for size in parts.values())
        rows.append(
            f'<tr><th scope="row">{escape(name)}</th><td>{picture}</td>{numbers}<td class="n"><b>{bytes_text(sum(parts.values()))}</b></td></tr>'
        )
    kinds = reports[0][1]
    head = "".join(
        f'<th scope="col" class="n"><svg width="12" height="12" aria-hidden="true"><rect class="memory-{i}" width="12" height="12"/><rect class="memory-{i}-over" width="12" height="12"/></svg> {kind}</th>'
        for i, kind in enumerate(kinds)
    )
    return (
        '<section><h2>Memory <small>predicted from the shapes; the same on every rank</small></h2><div class="scroll"><table><thead><tr><th></th><th></th>'
        f'{head}<th scope="col" class="n">total</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div></section>'
    )


def _equality(result: QuickstartResult) -> str:
    rows = "".join(
        f'<tr class="{"" if d.ok else "failed"}"><th scope="row">{escape(d.name)}</th><td class="n">{d.largest:.2g}</td><td class="n">{d.bound:.2g}</td>'
        f'<td class="n">{d.size:.2g}</td><td class="{"good" if d.ok else "bad"}">{"✓ equal within rounding" if d.ok else "✗ different"}</td></tr>'
        for d in result.differences
    )
    head = "".join(
        f'<th scope="col"{style}>{text}</th>'
        for text, style in (
            ("tensor", ""),
            *((t, ' class="n"') for t in ("largest difference", "rounding bound", "largest element")),
            ("verdict", ""),
        )
    )
    return (
        f"<section><h2>Equal to one device? <small>same network, same data, same start</small></h2>"
        f'<div class="scroll"><table class="equality"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f'<p class="muted">{escape(result.bound_text)}</p></section>'
    )


def _ending(result: QuickstartResult, version: str) -> str:
    facts: Iterable[tuple[str, str]] = ((("parallel_lab", version),) if version else ()) + result.environment + (("plan", result.plan.digest),)
    cells = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    return (
        f"<section><details><summary>The program of rank 0</summary><pre>{escape(result.plan.text(rank=0))}</pre></details>"
        f'<details><summary>Every loss</summary><pre>{escape(_losses_text(result))}</pre></details><dl class="small">{cells}</dl></section>'
    )


def _losses_text(result: QuickstartResult) -> str:
    n = result.problem.steps_per_epoch
    return "\n".join(f"epoch: {i // n + 1} step: {i % n + 1}, loss is {y}" for i, y in enumerate(result.losses))
