"""Results to look into, as data: what a chart shows, from fits and from snapshots of labs; and the static SVG of it.

    chart = zero_chart(lab.zero)
    chart.svg()                     one SVG element, without script
    plotted(chart)                  the same with hover and zoom (`plotted.py`), and this SVG where nothing runs

Colours are the labs' own. The title says whether the numbers are predicted, simulated or measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...base.errors import escape
from ...base.units import bytes_text, time_text

# as in lab.css, strategy_lab.css and memory_lab.css
HUES = ("#628de1", "#ca772b", "#4ac8a1", "#adacff", "#ccaf41", "#a97f99", "#b1e78a", "#4bedf8")
COMPUTE, SENT, WAITING = "#9aa5b1", "#1a5fb4", "#d9dde2"
MEMORY_HUES = {"params": HUES[0], "gathered": "#a9c0ee", "grads": HUES[1], "optimizer": HUES[3], "activations": HUES[2]}
MEMORY_HUES |= {"workspace": "#c9ced4", "inputs": "#e6eefa"}


@dataclass(frozen=True)
class Trace:
    """What is drawn under one name.

    kind    "line", "points", "area" (on top of the area before it) or "bars" (from x to `ends`, at the height y)
    said    what hovering over each point says
    dashed  what was computed and not measured
    """

    name: str
    kind: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    colour: str
    said: tuple[str, ...] = ()
    ends: tuple[float, ...] = ()
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart.  source: "predicted", "simulated", "measured";  x, y: names of the axes with their units;  alt: what it
    says, in a sentence;  log: axes with logarithmic scales ("", "x", "xy");  rows: names of heights 0, 1, ...;
    sizes: x is in bytes, written at powers of two
    """

    title: str
    source: str
    x: str
    y: str
    traces: tuple[Trace, ...]
    alt: str
    log: str = ""
    rows: tuple[str, ...] = ()
    sizes: bool = False

    @property
    def heading(self) -> str:
        """The title with the source."""
        return f"{self.title} ({self.source})"

    def svg(self, width: int = 640, height: int = 320) -> str:
        """The chart as one SVG element."""
        return _svg(self, width, height)


# ---- from fits and snapshots ----


def fit_chart(fit: Any) -> Chart:
    """The fit of alpha and beta: what was measured, and the line.  fit: as `fit_link` gives it"""
    first, last = max(fit.sizes_bytes[0], 1), fit.sizes_bytes[-1]
    steps = tuple(first * (last / first) ** (k / 60) for k in range(61))
    pairs = list(zip(fit.sizes_bytes, fit.median_s, fit.low_s, fit.high_s, fit.residuals, strict=True))
    said = tuple(
        f"{bytes_text(m)}: {time_text(t)} (quartiles {time_text(low)}, {time_text(high)}), the line is off {off:+.0%}"
        for m, t, low, high, off in pairs
    )
    parts = (("alpha + beta m", fit.time_s, HUES[1], False), ("alpha", lambda m: fit.alpha_s, COMPUTE, True))
    parts = (*parts, ("beta m", lambda m: fit.beta_s_per_byte * m, HUES[2], True))
    lines = [
        Trace(name, "line", steps, tuple(1e6 * of(m) for m in steps), colour, dashed=dashed)
        for name, of, colour, dashed in parts
        if min(of(m) for m in steps) > 0
    ]
    measured = Trace(
        "median of the repeats", "points", fit.sizes_bytes, tuple(1e6 * t for t in fit.median_s), HUES[0], said
    )
    line = f"alpha {time_text(fit.alpha_s)}, beta {fit.beta_s_per_byte * 1e9:.3g} ns per byte"
    title = f"{fit.kind}, {fit.world_size} ranks: {line}"
    alt = f"{title}. From {said[0]} to {said[-1]}."
    return Chart(
        title, "measured, line fitted", "message in bytes", "time in us", (measured, *lines), alt, "xy", sizes=True
    )


def timeline_chart(timeline: Mapping[str, Any]) -> Chart:
    """The lanes of ranks over one step, every event with its times.  timeline: as of a Strategy Lab's snapshot"""
    kinds: dict[str, list[tuple[float, float, int, str]]] = {}
    scale, unit, places = (1e-3, "ms", 3) if timeline["end"] >= 1000 else (1, "us", 1)
    for row, lane in enumerate(timeline["lanes"]):
        for bar in (*lane["bars"], *lane.get("meanwhile", ())):
            start, end = bar["start"] * scale, bar["end"] * scale
            said = f"rank {lane['rank']}: {bar['label']}, {start:.{places}f} to {end:.{places}f} {unit}"
            kinds.setdefault(bar["kind"], []).append((start, end, row, said))
    hues = {"compute": COMPUTE, "communication": SENT, "wait": WAITING}
    hues |= {kind: HUES[n % len(HUES)] for n, kind in enumerate(k for k in kinds if k not in hues)}
    traces = tuple(
        Trace(kind, "bars", *(tuple(column) for column in (starts, rows)), hues[kind], said, ends)
        for kind, bars in kinds.items()
        for starts, ends, rows, said in [zip(*bars, strict=True)]
    )
    lanes = tuple(f"rank {lane['rank']}" for lane in timeline["lanes"])
    spent = ", ".join(f"{kind} {sum(e - s for s, e, *_ in bars):.4g} {unit}" for kind, bars in kinds.items())
    took = f"{timeline['end'] * scale:.4g} {unit}"
    title = "Timeline of one step"
    alt = f"{title}, {timeline['source']}: {took} on {len(lanes)} ranks; over all ranks {spent}."
    return Chart(title, timeline["source"], f"time in {unit}", "", traces, alt, rows=lanes)


def loss_chart(
    runs: Sequence[tuple[str, Sequence[float], int]], title: str = "Loss", source: str = "measured"
) -> Chart:
    """Losses of several runs over their steps.  runs: (name, losses, how many steps lie between two of them)"""
    traces = tuple(
        Trace(name, "line", tuple(1 + every * k for k in range(len(losses))), tuple(map(float, losses)), HUES[n % 8])
        for n, (name, losses, every) in enumerate(runs)
    )
    ends = [f"{t.name}: {t.y[0]:.6g} at step 1, {t.y[-1]:.6g} at step {t.x[-1]}" for t in traces if t.y]
    return Chart(title, source, "step", "loss", traces, f"{title}. {'; '.join(ends) or 'no step has run yet'}.")


def memory_chart(step: Mapping[str, Any], kinds: Sequence[Mapping[str, Any]], rank: int, source: str) -> Chart:
    """Memory of a rank from instruction to instruction, by kind.  step: one of a Memory Lab's `steps_of`"""
    live = step["live"]
    phases = [part["phase"] for part in step["phases"] for _ in range(part["count"])]
    places = tuple(range(len(live)))
    traces = []
    for n, kind in enumerate(kinds):
        sizes = tuple(row[n] / 2**20 for row in live)
        said = tuple(f"{phases[k]}, instruction {k}: {kind['label']} {bytes_text(live[k][n])}" for k in places)
        traces.append(Trace(kind["label"], "area", places, sizes, MEMORY_HUES.get(kind["name"], HUES[n % 8]), said))
    peak, title = step["peak"], f"Memory of rank {rank} over one step"
    most = bytes_text(sum(live[peak])) if live else "nothing"
    where = f"at instruction {peak} of {len(live)} ({phases[peak]})" if phases else "nothing runs"
    alt = f"{title}, {source}: at most {most}, {where}."
    return Chart(title, source, "instruction", "MiB", tuple(traces), alt)


def bar_chart(title: str, source: str, values: Mapping[str, float], x: str, y: str = "") -> Chart:
    """A bar for each name.  x: what its length is, with the unit;  y: what the names are"""
    count, words = len(values), tuple(f"{name}: {value:.4g}" for name, value in values.items())
    bars = Trace(x, "bars", (0.0,) * count, tuple(range(count)), HUES[0], words, tuple(values.values()))
    return Chart(title, source, x, y, (bars,), f"{title}, {source}, {x}. {'; '.join(words)}.", rows=tuple(values))


def zero_chart(zero: Mapping[str, Any]) -> Chart:
    """The ZeRO paper's table as lines: GB of a rank on more and more ranks.  zero: as of a Memory Lab's snapshot"""
    ranks = tuple(row["ranks"] for row in zero["rows"])
    heads = ("nothing sharded", "+ states", "+ gradients", "+ parameters")
    traces = []
    for n, name in enumerate(heads):
        sizes = tuple(row["gb"][n] for row in zero["rows"])
        said = tuple(f"{name}, {count} ranks: {size:.3g} GB per rank" for count, size in zip(ranks, sizes, strict=True))
        traces.append(Trace(name, "line", ranks, sizes, HUES[n], said))
    title = f"{zero['parameters_text']} parameters: memory of a rank"
    ends = [f"{t.name} {t.y[0]:.3g} GB on {ranks[0]} and {t.y[-1]:.3g} GB on {ranks[-1]} ranks" for t in traces]
    return Chart(title, "predicted", "ranks", "GB (1e9 bytes)", tuple(traces), f"{title}. {'; '.join(ends)}.", "xy")


# ---- as SVG ----

LEFT, TOP, BOTTOM = 62, 30, 40  # pixels around the plot


def _svg(chart: Chart, width: int, height: int) -> str:
    names = 16 * len(chart.traces) if len(chart.traces) > 1 else 0
    height += names
    low_x, high_x = _range([v for t in chart.traces for v in (*t.x, *t.ends)], "x" in chart.log)
    tops = _stacked(chart)
    values = [v for one in tops for v in (*one[0], *one[1])]
    low_y, high_y = (len(chart.rows), 0.0) if chart.rows else _range(values, "y" in chart.log)
    right, floor = width - 14, height - BOTTOM - names

    def x(value: float) -> float:
        return LEFT + _share(value, low_x, high_x, "x" in chart.log) * (right - LEFT)

    def y(value: float) -> float:
        return floor - _share(value, low_y, high_y, "y" in chart.log) * (floor - TOP)

    parts = [f'<text x="{LEFT}" y="16" font-weight="600">{escape(chart.heading)}</text>']
    parts.append(f'<path d="M{LEFT} {TOP}V{floor}H{right}" fill="none" stroke="currentColor" stroke-opacity=".5"/>')
    for value, text in size_ticks(low_x, high_x) if chart.sizes else _written(low_x, high_x, "x" in chart.log):
        parts.append(f'<text x="{x(value):.1f}" y="{floor + 14}" text-anchor="middle">{text}</text>')
    parts.append(f'<text x="{(LEFT + right) / 2:.0f}" y="{floor + 30}" text-anchor="middle">{escape(chart.x)}</text>')
    for row, name in enumerate(chart.rows):
        parts.append(f'<text x="{LEFT - 6}" y="{y(row + 0.6):.1f}" text-anchor="end">{escape(name)}</text>')
    for value in [] if chart.rows else _ticks(low_y, high_y, "y" in chart.log):
        parts.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    if chart.y:
        turned = f'transform="translate(12 {(TOP + floor) / 2:.0f}) rotate(-90)" text-anchor="middle"'
        parts.append(f"<text {turned}>{escape(chart.y)}</text>")
    for n, (trace, (below, above)) in enumerate(zip(chart.traces, tops, strict=True)):
        parts += _marks(trace, below, above, x, y)
        at = floor + 34 + 16 * (n + 1)
        if not names:
            continue
        parts.append(f'<rect x="{LEFT}" y="{at - 9}" width="10" height="10" fill="{trace.colour}"/>')
        parts.append(f'<text x="{LEFT + 16}" y="{at}">{escape(trace.name)}</text>')
    style = 'font-family="system-ui, sans-serif" font-size="11" fill="currentColor" style="max-width:100%"'
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg {size} role="img" aria-label="{escape(chart.alt)}" {style}>{"".join(parts)}</svg>'


def _marks(trace: Trace, below: Sequence[float], above: Sequence[float], x: Any, y: Any) -> list[str]:
    if trace.kind == "bars":
        return [
            f'<rect x="{x(start):.2f}" y="{y(row + 0.15):.1f}" width="{max(0.4, x(end) - x(start)):.2f}" '
            f'height="{y(row + 0.85) - y(row + 0.15):.1f}" fill="{trace.colour}"><title>{escape(said)}</title></rect>'
            for start, end, row, said in zip(trace.x, trace.ends, trace.y, trace.said, strict=True)
        ]
    if trace.kind == "points":
        said = trace.said or ("",) * len(trace.x)
        fill = f'r="3.4" fill="{trace.colour}"'
        return [
            f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" {fill}><title>{escape(text)}</title></circle>'
            for a, b, text in zip(trace.x, trace.y, said, strict=True)
        ]
    line = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(trace.x, above, strict=True))
    if trace.kind == "area":
        back = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in reversed(list(zip(trace.x, below, strict=True))))
        return [f'<polygon points="{line} {back}" fill="{trace.colour}"/>'] if line else []
    dashes = ' stroke-dasharray="5 4"' if trace.dashed else ""
    return [f'<polyline points="{line}" fill="none" stroke="{trace.colour}" stroke-width="1.8"{dashes}/>']


def _stacked(chart: Chart) -> list[tuple[list[float], list[float]]]:
    """Lower and upper edge of every trace: areas lie on each other."""
    floor: list[float] = []
    edges = []
    for trace in chart.traces:
        if trace.kind == "area":
            floor = floor or [0.0] * len(trace.y)
            above = [a + b for a, b in zip(floor, trace.y, strict=True)]
            edges.append((floor, above))
            floor = above
        else:
            edges.append(([], list(trace.y)))
    return edges


def _range(values: Sequence[float], log: bool) -> tuple[float, float]:
    kept = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    low, high = (min(kept), max(kept)) if kept else (0.0, 1.0)
    if log:
        return low / 1.3 or 0.1, high * 1.3
    return min(low, 0.0) if low < 0.3 * high else low, high if high > low else low + 1


def _share(value: float, low: float, high: float, log: bool) -> float:
    if log:
        return math.log(max(value, low) / low) / math.log(high / low)
    return (value - low) / (high - low)


def _ticks(low: float, high: float, log: bool) -> list[float]:
    """Round values: powers of 10, or about five steps of 1, 2 or 5."""
    if log:
        first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
        every = max(1, (last - first) // 6)
        return [10.0**power for power in range(first, last + 1, every)]
    return round_ticks(low, high, 5)


def _written(low: float, high: float, log: bool) -> list[tuple[float, str]]:
    return [(value, f"{value:g}") for value in _ticks(low, high, log)]


def size_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Powers of two from low to high, about six of them, as people write bytes.

    >>> size_ticks(800, 70_000)
    [(1024.0, '1 KiB'), (4096.0, '4 KiB'), (16384.0, '16 KiB'), (65536.0, '64 KiB')]
    """
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    every = next(n for n in (1, 2, 4, 10, 20) if (last - first) / n <= 5.5)
    first += -first % every
    return [(2.0**power, bytes_text(2**power)) for power in range(first, last + 1, every)]


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from low to high, in steps of 1, 2 or 5 times a power of ten: at most about `most` steps.

    >>> round_ticks(0.3311, 0.3319, 4)
    [0.3312, 0.3314, 0.3316, 0.3318]
    """
    least = (high - low) / most or 1.0
    power = 10.0 ** math.floor(math.log10(least))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))
    return [float(f"{k * step:.12g}") for k in range(math.ceil(low / step), math.floor(high / step * (1 + 1e-9)) + 1)]
