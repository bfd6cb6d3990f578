"""What a lab shows, as plain data: sections, each declared once. Here they become text; sections.js draws the same.

    levels = table("Every level", {"level": "name", "memory": "bytes bar"}, [("off", 2048), ("level1", 512)], on="off")
    print(snapshot_text({"title": "Memory Lab", "status": "...", "sections": {"levels": levels}}))

A section is a dict with a "kind" (one of `TEXTS`), a "title", a "small" text behind it, and "notes" below it: lines, or
pairs of a line and whether it is good news. What depends on choices of the learner is in "of", by the values of the
choices that "by" names: {"by": ["source", "rank"], "of": {"predicted|0": {"rows": ...}, ...}}.

    table   "columns": {head: format}, "rows", "on": the first cell of the row that is in force. A text stands for
            itself in every column; a row that ends early lets its last cell run on; "bar" draws a share of the column.
            Formats of texts only style them: "name", "text", "why". Those of values: "bytes", "time" (seconds), "late"
            (red above 0), "count" (thousands), "number" (as it is), "small" (an exponent), "shape", "hue" (a dot),
            "verdict" (a text and whether it is good), "share" (one of how many, a text), "form" (rosetta/section.py),
            "code" (a line of a program, and its number where a click on it is a "command"),
            "type" (codes of a value along the axes: graph/type_rules.py; a pending sum is hatched)
    bars    stacked bars: "kinds" from below, "bars" with "name", "live" (bytes per kind), "total", and "line" across
    lanes   what is computed ("boxes") and sent ("messages") over the time of one step
    loss    two curves, how far they are apart, and how far rounding may take them
    curves  times ("curves": pairs of a name and a list) over sizes in bytes ("x", named "axis"), both logarithmic;
            "marks": pairs of bytes and what is there
    lines   notes only;  code: lines to copy

A lab that has nothing but sections (plain_lab.js) shows all of them, those with "tab" behind tabs. Other labs have a
script of their own, which draws the sections it names: add the new one there (`section(s, "name", ui)`, or a tab,
`sectionTabs(s, ui, [["name", "Title"]])`).

A page without a kernel follows settings with `look=True` by itself, so what depends on one of them needs "by" and "of".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...base.errors import ArgumentError, escape, shorten
from ...base.units import bytes_text, time_text

Section = dict[str, Any]
BAR, LANE = 48, 60  # columns of the longest bar, and of a lane
LETTERS = {"params": "P", "grads": "g", "optimizer": "O", "activations": "a"}  # of the kinds of memory
LETTERS |= {"gathered": "+", "workspace": "w", "inputs": "d"}
FORMATS: dict[str, Callable[[Any], str]] = {
    "bytes": bytes_text,
    "time": time_text,
    "late": time_text,
    "small": lambda x: f"{x:.2e}",
    "shape": lambda shape: str(tuple(shape)),
    "verdict": lambda verdict: verdict[0],
    "share": lambda share: share[1],
    "count": lambda n: f"{n:,}",
    "number": lambda n: f"{n:g}" if isinstance(n, float) else str(n),
    "hue": str,
    "form": lambda form: form[1] or f"- {form[2]}",
    "code": lambda code: code[0],
    "type": lambda codes: " ".join(codes) or "-",
}
PAGE_ONLY = ("stack",)  # formats that only a page can show


# ---- declaring ----


def table(title: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]] = (), **more: Any) -> Section:
    """A table; `more` are further fields, such as small, on, notes, by and of."""
    return {"kind": "table", "title": title, "columns": dict(columns), "rows": [list(row) for row in rows], **more}


def code(title: str, text: str, **more: Any) -> Section:
    """Lines to copy."""
    return {"kind": "code", "title": title, "text": text, **more}


def curves(
    title: str,
    axis: str,
    x: Sequence[float],
    times_s: Mapping[str, Sequence[float]],
    within: Sequence[float],
    **more: Any,
) -> Section:
    """Times over sizes, to four digits: more cannot be seen.  within: the least and the most time that the axis shows,
    whatever is set"""
    rounded = [[name, [float(f"{time_s:.4g}") for time_s in curve]] for name, curve in times_s.items()]
    return {
        "kind": "curves",
        "title": title,
        "axis": axis,
        "x": list(x),
        "curves": rounded,
        "within": list(within),
        **more,
    }


def picked(section: Section, shot: Mapping[str, Any]) -> Section:
    """The section as it is chosen."""
    values = (shot[name]["value"] if isinstance(shot[name], Mapping) else shot[name] for name in section.get("by", ()))
    return {**section, **section["of"]["|".join(map(str, values))]} if "by" in section else section


# ---- as text ----


def snapshot_text(shot: Mapping[str, Any]) -> str:
    """Everything that a lab shows; the second line says the whole picture."""
    if covered := open_question(shot):
        return covered
    parts = [_head(shot), *(section_text(section, shot) for section in shot["sections"].values())]
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part))) + "\n"


def open_question(shot: Mapping[str, Any]) -> str:
    """The text of a lab that asks first, until that is answered; "" where nothing is open."""
    predict = shot.get("predict") or {}
    if not predict.get("open"):
        return ""
    lines = shot["title"], f"Predict first: {predict['open']['text']}", "The rest is shown when you answer or skip it."
    return "\n".join([*lines, *(last_answer(shot) if predict.get("then") else ())]) + "\n"


def last_answer(shot: Mapping[str, Any]) -> list[str]:
    """What was answered last, with what is right and why."""
    last = (shot.get("predict") or {}).get("last")
    if not last:
        return []

    def text(value: Any) -> str:
        return last["names"].get(value, value) if isinstance(value, str) else f"{value:.6g}"

    yours = "skipped" if last["yours"] is None else f"you said {text(last['yours'])}, {last['verdict']}"
    right = " or ".join(map(text, last["right"]))
    return [f"{last['text']} {right} {last['unit']}".rstrip() + f" ({yours}): {last['why']}."]


def _head(shot: Mapping[str, Any]) -> Iterable[str]:
    yield shot["title"]
    yield from filter(None, (shot["status"], shot.get("selected")))
    yield from last_answer(shot)
    fields = [f for f in shot.values() if isinstance(f, Mapping) and {"label", "choices"} <= f.keys()]
    labels = [{c["value"]: c["label"] for c in f["choices"] if isinstance(c, Mapping)} for f in fields]
    chosen = [f"{f['label']}: {known.get(f['value'], f['value'])}" for f, known in zip(fields, labels, strict=True)]
    yield "; ".join(chosen) + "."
    yield from shot.get("notes", ())
    if shot["run"]["error"]:
        yield f"The run failed: {shot['run']['error']}"


def section_text(section: Section, shot: Mapping[str, Any]) -> Iterable[str]:
    """One section as lines."""
    now = picked(section, shot)
    lines = list(TEXTS[now["kind"]](now))
    if lines or now.get("notes"):
        small = f", {now['small']}" if now.get("small") else ""
        yield f"{now['title']}{small}"
    yield from lines
    yield from (f"  {note if isinstance(note, str) else note[0]}" for note in now.get("notes", ()))


def _table(section: Section) -> Iterable[str]:
    formats = [how.split(" ")[0] for how in section["columns"].values()]
    seen = [i for i, how in enumerate(formats) if how not in PAGE_ONLY]
    rows = []
    for row in section["rows"]:
        cells = [*row, *[""] * (len(formats) - len(row))]
        mark = [">" if row[0] == section["on"] else ""] if "on" in section else []
        rows.append([*mark, *(cell_text(cells[i], formats[i]) for i in seen)])
    heads = list(section["columns"])
    head = [*([""] if "on" in section else []), *(heads[i].strip() for i in seen)]
    return _columns([head, *rows] if any(head) else rows)


def cell_text(value: Any, how: str) -> str:
    """One cell: "-" where it is not known, a text as it is, else by its format.

    Raises ArgumentError for a value without one: a page could not draw it.
    """
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if how not in FORMATS:
        hint = "Make it a text, or give its column one of these"
        raise ArgumentError(
            f"{shorten(value)} in a column of format {how!r}", where="table", allowed=", ".join(FORMATS), hint=hint
        )
    return FORMATS[how](value)


def _columns(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Rows in columns; a cell whose right neighbours are empty may be as long as it likes."""
    count = max(map(len, rows), default=0)
    alone = [{i for i in range(count) if row[i] and not any(row[i + 1 :])} for row in rows]
    widths = [
        max((len(row[i]) for row, free in zip(rows, alone, strict=True) if i not in free), default=0)
        for i in range(count)
    ]
    for row in rows:
        yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()


def _bars(section: Section) -> Iterable[str]:
    """The bars as letters, the line as a |; then the bytes."""
    kinds, bars, line = section["kinds"], section["bars"], section["line"]
    most = max([line, *(bar["total"] for bar in bars)])
    for bar in bars if most else ():
        text, at = "", 0
        for kind, size in zip(kinds, bar["live"], strict=True):
            at += size
            text += LETTERS[kind["name"]] * (round(at / most * BAR) - len(text))
        text = text.ljust(BAR + 1)
        if line:
            column = round(line / most * BAR)
            text = f"{text[:column]}|{text[column:]}"
        yield f"  {bar['name']:<7}{text.rstrip():<{BAR + 2}} {bytes_text(bar['total'])}"
    key = ", ".join(f"{LETTERS[kind['name']]} {kind['label']}" for kind in kinds)
    yield f"  {key}" + (f"; | the capacity, {bytes_text(line)}" if line else "")
    there = [i for i in range(len(kinds)) if any(bar["live"][i] for bar in bars)]
    head = ["", *(kinds[i]["label"] for i in there), "together"]
    rows = [[b["name"], *(bytes_text(b["live"][i]) for i in there), bytes_text(b["total"])] for b in bars]
    yield from _columns([head, *rows])


def _lanes(section: Section) -> Iterable[str]:
    """The two lanes as characters: b computes, digits send (the message's number), ~ is exposed."""
    lanes = section["lanes"]
    boxes, messages, step_s = lanes["boxes"], lanes["messages"], lanes["step_s"]
    if not boxes or not step_s:
        return
    above, below = [" "] * LANE, [" "] * LANE

    def draw(lane: list[str], start_s: float, end_s: float, sign: str) -> None:
        first, last = (min(LANE, max(0, round(time_s / step_s * LANE))) for time_s in (start_s, end_s))
        lane[first:last] = sign * (last - first)

    draw(above, 0, lanes["forward_s"], "f")
    for number, box in enumerate(boxes):
        draw(above, box["start_s"], box["end_s"], "bB"[number % 2])
    draw(above, boxes[-1]["end_s"], lanes["backward_s"], ".")
    for sent in messages:
        draw(below, sent["start_s"], sent["end_s"], str(sent["number"] % 10))
    over = round(lanes["backward_s"] / step_s * LANE)
    tail = "".join("~" if over <= column and sign != " " else " " for column, sign in enumerate(below))
    yield f"  backward       |{''.join(above)}|  f forward, b and B one gradient each"
    yield f"  communication  |{''.join(below)}|  the number of the message"
    yield f"  exposed        |{tail}|"


def _curves(section: Section) -> Iterable[str]:
    """Every fourth size as a row; then what is marked."""
    shown = range(0, len(section["x"]), 4)
    rows = [[bytes_text(section["x"][i]), *(time_text(curve[i]) for _, curve in section["curves"])] for i in shown]
    yield from _columns([[section["axis"], *(name for name, _ in section["curves"])], *rows])
    yield from (f"  {text}" for _, text in section.get("marks", ()))


def _loss(section: Section) -> Iterable[str]:
    loss = section["loss"]
    if not loss["steps"]:
        yield "  no step has run yet"
        return
    for name in ("parallel", "single"):
        curve = loss[name]
        first, last = (loss_text(curve[n]) for n in (0, -1))
        yield f"  {loss[f'label_{name}']}: {first} at step 1, {last} at step {len(curve)}"
    apart, bound = loss["largest_difference"], loss["bound"]
    if apart is None or bound is None:
        yield "  no largest difference: a loss is not a number"
        return
    verdict = "within" if apart <= bound else "BEYOND"
    yield f"  largest difference {apart:.2g} at step {loss['at_step']}, {verdict} the rounding bound {bound:.2g}"


def loss_text(loss: float | None) -> str:
    """A loss; None stands for NaN and infinity."""
    return "no number" if loss is None or loss != loss else f"{loss:.6g}"


TEXTS: dict[str, Callable[[Section], Iterable[str]]] = {
    "table": _table,
    "bars": _bars,
    "lanes": _lanes,
    "loss": _loss,
    "curves": _curves,
    "lines": lambda section: (),
    "code": lambda section: (f"  {line}" for line in section["text"].splitlines()),
}


# ---- as a table in a notebook ----


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], styles: Sequence[str] = ()) -> str:
    """A table for `_repr_html_`, all texts escaped.  styles: CSS of each column, besides being left-aligned."""
    styles = [f"text-align:left{style}" for style in styles or [""] * len(head)]
    titles = "".join(f"<th scope='col' style='text-align:left'>{escape(text)}</th>" for text in head)
    cells = ([f"<td style='{s}'>{escape(cell)}</td>" for s, cell in zip(styles, row, strict=True)] for row in rows)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
