"""The classroom wall: what a class has handed in (roll.py), as one page that needs no server and no network.

    wall_page(read_class("collected"))

Plans as points of time and memory; a click on a learner's point or name shows that lab, as it was handed in, with what
its page replays. Predictions as histograms, with the right answer behind a button. Misconceptions with how many came
upon each. The page is a page of labs (lab/shared/page.py) with these sections above them, and forbids every request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...base.errors import escape
from ...base.units import bytes_text, time_text
from ..exercises import MISCONCEPTIONS
from ..pictures.charts import round_ticks
from ..shared.page import lab_page
from ..shared.replay import Limits
from .roll import Layout, Roll, amounts, by_count

HERE = Path(__file__).parent
SHOWN = Limits(states=1)  # of a lab: as it was handed in
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 260, 74, 40, 14  # of a plot, in px


def wall_page(roll: Roll, title: str = "Classroom wall") -> str:
    """The page of a class."""
    count = len(roll.learners)
    head = f"<h1>{escape(title)}</h1><p>{count} learner{'' if count == 1 else 's'}, {len(roll.layouts)} labs. "
    head += '<button type="button" class="wall-names" aria-pressed="false">Hide names</button></p>'
    parts = [head, _plots(roll), _predictions(roll), _misconceptions(roll), _exercises(roll), _refused(roll)]
    words = (
        f'<details class="pl-words"><summary>The wall in words</summary><pre>{escape(roll.to_text())}</pre></details>'
    )
    labs = '<h2 id="wall-shown" tabindex="-1">Choose a learner above to see a layout</h2>'
    above = f'<div class="wall">{"".join(parts)}{words}{labs}</div>\n'
    pages = [layout.lab.on_page(limits=SHOWN) for layout in roll.layouts]
    script, style = ((HERE / name).read_text(encoding="utf-8") for name in ("wall.js", "wall.css"))
    return lab_page(pages, title, above=(above, script, style))


def _name(roll: Roll, learner: str) -> str:
    """A name that the button hides: its number stays."""
    number = roll.learners.index(learner) + 1
    return f'<span class="wall-name" data-number="learner {number}">{escape(learner)}</span>'


def _button(roll: Roll, n: int, layout: Layout) -> str:
    return f'<button type="button" data-lab="{n}">{_name(roll, layout.learner)}</button>'


def _plots(roll: Roll) -> str:
    """A plot for each kind of lab and network: others are not compared."""
    groups: dict[str, list[tuple[int, Layout]]] = {}
    for n, layout in enumerate(roll.layouts, 1):
        groups.setdefault(layout.title, []).append((n, layout))
    found = ["<h2>Layouts</h2>"] if groups else []
    for title, ones in groups.items():
        plotted = [(n, layout) for n, layout in ones if layout.time_s is not None]
        found.append(f"<h3>{escape(title)}</h3>")
        if plotted:
            found.append(_plot(roll, title, plotted))
        rows = [(_button(roll, n, layout), *map(escape, amounts(layout))) for n, layout in ones]
        found.append(_table(("learner", "step (predicted)", "fullest rank (predicted)"), rows))
    return "".join(found)


def _plot(roll: Roll, title: str, ones: Sequence[tuple[int, Layout]]) -> str:
    most_s, most_bytes = max(one.time_s for _, one in ones), max(one.memory_bytes for _, one in ones)

    def place(layout: Layout) -> tuple[float, float]:
        across = layout.time_s / most_s if most_s else 0
        up = layout.memory_bytes / most_bytes if most_bytes else 0
        return LEFT + across * (WIDTH - LEFT - 90), HEIGHT - BOTTOM - up * (HEIGHT - BOTTOM - TOP - 14)

    points, used = [], {}
    for n, layout in ones:
        x, y = place(layout)
        same = used[x, y] = used.get((x, y), -1) + 1  # learners with the same plan stand next to each other
        said = f"{layout.learner}: {', '.join(amounts(layout))}"
        points.append(
            f'<g role="button" tabindex="0" data-lab="{n}" aria-label="{escape(said)}" class="wall-point">'
            f'<rect x="{x + 14 * same - 7:.1f}" y="{y - 20:.1f}" width="14" height="27" fill="transparent"/>'
            f'<circle cx="{x + 14 * same:.1f}" cy="{y:.1f}" r="6"/>'
            f'<text x="{x + 14 * same:.1f}" y="{y - 10:.1f}" text-anchor="middle">{n}</text></g>'
        )
    floor = HEIGHT - BOTTOM
    axes = f'<path d="M{LEFT} {TOP}V{floor}H{WIDTH - 10}" class="wall-axis"/>'
    axes += f'<text x="{WIDTH - 10}" y="{HEIGHT - 4}" text-anchor="end">time of a step (predicted)</text>'
    axes += f'<text x="{LEFT}" y="{TOP - 3}">memory of the fullest rank (predicted)</text>'
    for time_s in round_ticks(0, most_s, 4) if most_s else ():
        x = LEFT + time_s / most_s * (WIDTH - LEFT - 90)
        axes += f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{escape(time_text(time_s))}</text>'
    unit = 1024 ** math.floor(math.log(max(1, most_bytes), 1024))
    for size in round_ticks(0, most_bytes / unit, 4) if most_bytes else ():
        y, text = floor - size * unit / most_bytes * (floor - TOP - 14), escape(bytes_text(round(size * unit)))
        axes += f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    alt = f"{title}: {len(ones)} plans by time of a step and memory"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="{escape(alt)}">{axes}{"".join(points)}</svg>'


def _predictions(roll: Roll) -> str:
    found = ["<h2>Predictions</h2>"] if roll.answers else []
    for question in roll.answers:
        bars = roll.histogram(question)
        rows = []
        for answer, count in bars:
            right = ' class="wall-right"' if answer in roll.right[question] else ""
            rows.append((f"<span{right}>{escape(answer)}</span>", _bar(count, bars[0][1])))
        missing = [answer for answer in roll.right[question] if answer not in dict(bars)]
        told = f"Right: {' or '.join(roll.right[question])}." + (" Nobody answered that." if missing and not any(
            answer in dict(bars) for answer in roll.right[question]) else "")  # fmt: skip
        found.append(
            f'<section class="wall-question"><h3>{escape(question)}</h3>{_table(("answer", "learners"), rows)}'
        )
        found.append('<button type="button" class="wall-reveal" aria-expanded="false">Reveal</button>')
        found.append(f'<p class="wall-told" hidden>{escape(told)}</p></section>')
    return "".join(found)


def _bar(count: int, most: int) -> str:
    return f'<span class="wall-bar" style="width: {220 * count / most:.0f}px"></span> {count}'


def _misconceptions(roll: Roll) -> str:
    found = by_count(roll.ideas)
    rows = []
    for idea, who in found:
        names = ", ".join(f"{_name(roll, name)} ({escape(', '.join(numbers))})" for name, numbers in who.items())
        rows.append((escape(idea), _bar(len(who), len(found[0][1])), names, escape(MISCONCEPTIONS.get(idea, ""))))
    return (
        "<h2>Misconceptions</h2>" + _table(("idea", "learners", "whose (exercises)", "why not"), rows) if rows else ""
    )


def _exercises(roll: Roll) -> str:
    if not roll.points:
        return ""
    numbers = sorted(roll.points)
    rows = []
    for learner in roll.learners:
        cells = [roll.points[number].get(learner) for number in numbers]
        rows.append((_name(roll, learner), *("-" if cell is None else f"{cell[0]} of {cell[1]}" for cell in cells)))
    return "<h2>Exercises</h2>" + _table(("learner", *numbers), rows)


def _refused(roll: Roll) -> str:
    lines = "".join(f"<li>{escape(path)}: {escape(why)}</li>" for path, why in roll.refused)
    return f"<h2>Not read</h2><ul>{lines}</ul>" if lines else ""


def _table(titles: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """rows: of HTML"""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
