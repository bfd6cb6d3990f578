"""A log-log chart of times over sizes as one SVG element: points, bands and lines. A pure function of its numbers.

    log_chart("all_reduce", [Series("ours", ((4096, 12e-6), (65536, 40e-6)))], alt="...")

No script, no style sheet: the text takes the page's colour (`currentColor`), a series is recognised by its mark and its
name as well as by its colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .errors import ArgumentError, escape
from .units import bytes_text, time_text

# of similar lightness, readable on white and on near-black
COLOURS = ("#3f7fd6", "#d0752a", "#2fa37c", "#a06fd8", "#a88a12", "#c65384", "#5f8f2e", "#2497b8")
_LEFT, _TOP, _BOTTOM, _MARK = 58, 34, 44, 3.6  # pixels


@dataclass(frozen=True)
class Series:
    """What is drawn under one name.

    points   (x, y) pairs, both above 0, in order of x
    spread   (low, high) of each y, drawn as a bar; () for none
    line     whether the points are joined
    marks    whether each point has a mark
    dashed   for a computed line, not a measured one
    """

    name: str
    points: tuple[tuple[float, float], ...]
    spread: tuple[tuple[float, float], ...] = ()
    line: bool = True
    marks: bool = True
    dashed: bool = False


def log_chart(
    title: str, series: Sequence[Series], *, x_name: str = "size", alt: str = "", width: int = 460, height: int = 300
) -> str:
    """The chart of times over sizes as `<svg ...>...</svg>`.

    series   x in bytes, y in seconds
    x_name   what the sizes are of
    alt      what the picture says, for those who do not see it; default: title and names

    x ticks lie at powers of 4, y ticks at powers of 10. Raises ArgumentError without a finite point above 0.
    """
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points] + [y for s in series for bounds in s.spread for y in bounds]
    if not xs or not all(math.isfinite(v) and v > 0 for v in (*xs, *ys)):
        allowed = "One or more, all finite and above 0"
        raise ArgumentError(f"{len(xs)} points", where=f"chart {title!r}", allowed=allowed)
    x_low, x_high = _bounds(xs, 2)
    y_low, y_high = _bounds(ys, 10)
    right = width - 24
    bottom = height - _BOTTOM - 15 * -(-len(series) // 2)

    at_x, at_y = _axis(x_low, x_high, _LEFT, right), _axis(y_low, y_high, bottom, _TOP)
    parts = [f'<text x="{_LEFT}" y="16" font-weight="600" font-size="13">{escape(title)}</text>']
    for y in _ticks(y_low, y_high, 10):
        parts.append(f'<path d="M{_LEFT} {at_y(y)}H{right}" stroke="currentColor" stroke-opacity=".18"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at_y(y) + 4}" text-anchor="end">{escape(time_text(y))}</text>')
    ticks = _ticks(x_low, x_high, 4)
    for x in ticks[:: -(-len(ticks) // 7)]:  # seven labels fit next to each other
        parts.append(f'<path d="M{at_x(x)} {_TOP}V{bottom}" stroke="currentColor" stroke-opacity=".1"/>')
        parts.append(f'<text x="{at_x(x)}" y="{bottom + 16}" text-anchor="middle">{escape(bytes_text(x))}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 31}" text-anchor="end" fill-opacity=".75">{escape(x_name)}</text>')
    parts.append(f'<text x="{_LEFT - 6}" y="{_TOP - 10}" text-anchor="end" fill-opacity=".75">time</text>')
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        dash = ' stroke-dasharray="5 4"' if one.dashed else ""
        placed = [(at_x(x), at_y(y)) for x, y in one.points]
        for (x, _), (low, high) in zip(placed, one.spread, strict=False):
            bar = f'd="M{x} {at_y(low)}V{at_y(high)}"'
            parts.append(f'<path {bar} stroke="{colour}" stroke-opacity=".55" stroke-width="3"/>')
        if one.line and len(placed) > 1:
            d = "M" + "L".join(f"{x} {y}" for x, y in placed)
            parts.append(f'<path d="{d}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
        if one.marks:
            parts += [_mark(number, x, y, colour) for x, y in placed]
        column, row = number % 2, number // 2
        lx, ly = _LEFT + column * (right - _LEFT) / 2, bottom + 46 + 15 * row
        parts.append(f'<path d="M{lx} {ly - 4}h18" stroke="{colour}" stroke-width="1.8"{dash}/>')
        if one.marks:
            parts.append(_mark(number, lx + 9, ly - 4, colour))
        parts.append(f'<text x="{lx + 24}" y="{ly}">{escape(one.name)}</text>')
    spoken = alt or f"{title}: time over {x_name} for {', '.join(s.name for s in series)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(spoken)}" font-family="system-ui, sans-serif" font-size="11" '
        f'fill="currentColor" style="max-width:100%;height:auto">{"".join(parts)}</svg>'
    )


def _axis(low: float, high: float, start: float, stop: float) -> Callable[[float], float]:
    """Where a value lies on a logarithmic axis that runs from `start` to `stop` pixels."""
    return lambda v: round(start + math.log(v / low) / math.log(high / low) * (stop - start), 1)


def _bounds(values: Sequence[float], base: int) -> tuple[float, float]:
    """The powers of `base` around `values`; one apart at least, so that there is something to divide by."""
    low = math.floor(math.log(min(values), base) + 1e-9)
    high = math.ceil(math.log(max(values), base) - 1e-9)
    return float(base) ** low, float(base) ** max(high, low + 1)


def _ticks(low: float, high: float, base: int) -> list[float]:
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    return [float(base) ** power for power in range(first, last + 1)] or [low]


def _mark(number: int, x: float, y: float, colour: str) -> str:
    """One of four shapes, filled or hollow: eight series can be distinguished without their colour."""
    r, hollow = _MARK, number % 8 >= 4
    shape = (
        f'circle cx="{x}" cy="{y}" r="{r}"',
        f'rect x="{round(x - r, 1)}" y="{round(y - r, 1)}" width="{2 * r}" height="{2 * r}"',
        f'path d="M{x} {round(y - r - 1, 1)}l{r + 1} {2 * r}h-{2 * (r + 1)}z"',
        f'path d="M{x} {round(y - r - 1, 1)}l{r + 1} {r + 1}l-{r + 1} {r + 1}l-{r + 1} -{r + 1}z"',
    )[number % 4]
    return f'<{shape} fill="{"none" if hollow else colour}" stroke="{colour}" stroke-width="1.4"/>'
