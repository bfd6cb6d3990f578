"""The classroom wall: what a class has handed in (roll.py), as one page that needs no server and no network.

    wall_page(read_class("collected"))

Plans as points of time and memory; a click on a learner's point or name shows that lab, as it was handed in, with what
its page replays. Predictions as histograms, with the right answer behind a button. Misconceptions with how many came
upon each. The page is a page of labs (lab/shared/page.py) with these sections above them, and forbids every request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ...base.errors import escape
from ...base.units import bytes_text, plural, table_lines, time_text
from ..exercises import MISCONCEPTIONS
from ..pictures.charts import round_ticks
from ..shared.page import lab_page
from ..shared.replay import Limits
from .items import FEWEST, HEAD, analysed
from .live import LiveClass
from .roll import Layout, Roll, amounts, by_count

HERE = Path(__file__).parent
SHOWN = Limits(states=1)  # of a lab: as it was handed in
EXPLAINED = (
    "Difficulty: the mean share of its points; 0.9 is easy, 0.2 hard. Discrimination: how the share goes with that of "
    f"all other exercises, -1 to 1 (from {FEWEST} learners on); below 0.2, look at the exercise before the learners."
)
SELF_REPORTED = (
    "This is what learners' notebooks say of themselves, and nothing of it is checked here. For marks, collect the "
    "notebooks and run parallel-lab grade."
)
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 260, 74, 40, 14  # of a plot, in px


def wall_page(roll: Roll, title: str = "Classroom wall") -> str:
    """The page of a class."""
    head = f"<h1>{escape(title)}</h1><p>{plural(len(roll.learners), 'learner')}, {plural(len(roll.layouts), 'lab')}. "
    head += '<button type="button" class="wall-names" aria-pressed="false">Hide names</button></p>'
    parts = [head, _plots(roll), _predictions(roll), *_of_exercises(roll), _refused(roll)]
    told = escape(wall_text(roll))
    words = f'<details class="pl-words"><summary>The wall in words</summary><pre>{told}</pre></details>'
    labs = '<h2 id="wall-shown" tabindex="-1">Choose a learner above to see a layout</h2>'
    above = f'<div class="wall">{"".join(parts)}{words}{labs}</div>\n'
    pages = [layout.lab.on_page(limits=SHOWN) for layout in roll.layouts]
    script, style = ((HERE / name).read_text(encoding="utf-8") for name in ("wall.js", "wall.css"))
    return lab_page(pages, title, above=(above, script, style))


def live_wall(live: LiveClass, joining: str) -> str:
    """What the teacher's page shows of a live class (server.py, live.js): HTML, and only from `live.shown`."""
    roll = live.shown()
    told = escape(wall_text(roll))
    names = f'<button type="button" data-do="names" data-on="{int(live.hide_names)}" data-key="names">'
    names += "Show names</button>" if live.hide_names else "Hide names</button>"
    learners = "".join(
        f'<li>{escape(name)} <button type="button" data-do="remove" data-on="{n}" data-key="remove{n}" '
        f'aria-label="remove {escape(name)}">remove</button></li>'
        for n, name in enumerate(roll.learners, 1)
    )
    return "".join(
        [
            f'<h1>Live class</h1><p>To take part, in a notebook: <code class="wall-join">{escape(joining)}</code></p>',
            f'<p>{plural(len(roll.learners), "learner")}, <span id="wall-here">{live.here}</span> heard from in the ',
            f"last half minute. {names} ",
            '<button type="button" data-do="csv" data-key="csv">Save the table (CSV)</button></p>',
            f'<p class="wall-small">{escape(SELF_REPORTED)}</p>',
            _predictions(roll, live) or "<h2>Predictions</h2><p>None yet.</p>",
            *_of_exercises(roll),
            f'<details data-key="who"><summary>Learners</summary><ul>{learners}</ul></details>',
            f'<details data-key="words"><summary>The wall in words</summary><pre>{told}</pre></details>',
        ]
    )


def _of_exercises(roll: Roll) -> Iterator[str]:
    yield _misconceptions(roll)
    items = analysed(roll)
    if items:
        yield "<h2>Exercises: item analysis</h2>" + _table(HEAD, (map(escape, item.cells()) for item in items))
        yield f'<p class="wall-small">{escape(EXPLAINED)}</p>'
    yield _exercises(roll)


def wall_text(roll: Roll, *, reveal: bool = False) -> str:
    """The wall in words.  reveal: says which predictions are right"""
    told = roll.to_text(reveal=reveal)
    rows = [item.cells() for item in analysed(roll)]
    return "\n".join([told, "", "Item analysis", *table_lines([HEAD, *rows]), EXPLAINED]) if rows else told


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
        said = f"{n}, {layout.learner}: {', '.join(amounts(layout))}"  # it begins with what is seen
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


def _predictions(roll: Roll, live: LiveClass | None = None) -> str:
    """live: has in it what is right only of what was revealed; on a page that is handed on a button uncovers it"""
    found = ["<h2>Predictions</h2>"] if roll.answers else []
    shown = live.revealed if live else set(roll.ids.values())
    # live, those that are still covered first, and of those the ones that most have answered
    order = sorted(roll.answers, key=lambda one: (roll.ids[one] in shown, -len(roll.answers[one]))) if live else ()
    for question in order or roll.answers:
        ident = roll.ids[question]
        bars, is_shown = roll.histogram(question), ident in shown
        rows = []
        for answer, count in bars:
            marked = ' class="wall-right"' if is_shown and answer in roll.right[question] else ""
            rows.append((f"<span{marked}>{escape(answer)}</span>", _bar(count, bars[0][1])))
        right = roll.right[question]
        told = f"Right: {' or '.join(right)}." if right else "What is right is known once a notebook has compared it."
        if right and not any(answer in dict(bars) for answer in right):
            told += " Nobody answered that."
        open_now = " wall-revealed" if live and is_shown else ""
        found.append(f'<section class="wall-question{open_now}"><h3>{escape(question)}</h3>')
        found.append(_table(("answer", "learners"), rows))
        if live is None:
            found.append('<button type="button" class="wall-reveal" aria-expanded="false">Reveal</button>')
            found.append(f'<p class="wall-told" hidden>{escape(told)}</p></section>')
            continue
        word = "cover" if is_shown else "reveal"
        found.append(f'<button type="button" data-do="{word}" data-on="{ident}" data-key="{ident}" ')
        found.append(f'aria-label="{word}: {escape(question)}">{word.capitalize()}</button>')
        found.append(f"<p>{escape(told)}</p></section>" if is_shown else "</section>")
    return "".join(found)


def _bar(count: int, most: int) -> str:
    width = f"{220 * count / most:.0f}"
    rect = f'<rect width="{width}" height="11"/>'
    return f'<svg class="wall-bar" width="{width}" height="11" aria-hidden="true">{rect}</svg> {count}'


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
    return "<h2>Exercises: points</h2>" + _table(("learner", *numbers), rows)


def _refused(roll: Roll) -> str:
    lines = "".join(f"<li>{escape(path)}: {escape(why)}</li>" for path, why in roll.refused)
    return f"<h2>Not read</h2><ul>{lines}</ul>" if lines else ""


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """rows: of HTML"""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
