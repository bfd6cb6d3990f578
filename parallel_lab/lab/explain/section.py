"""A program that was read, as sections for any lab: its own lines, what each of them sends and holds, and why.

    sections |= program_sections(explain("train.py"))       "program", "line", "messages", "unread"

"program" is a table of the program's lines; lines that do nothing are folded (`lines`), a click on another one chooses
what "line" says of it. A lab that offers both has settings of these names (`model.py`); elsewhere `line` is fixed.
All is bounded, whatever the program is: lines of a table, rows of a line, characters of a text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from ..shared.sections import Section, table
from .explanation import Explanation, Row

NEAR = 1  # lines around one that does something which are not folded
MOST_LINES, MOST_OF_A_LINE, MOST_MESSAGES = 400, 12, 200  # rows of the tables
LONGEST = 160  # characters of a line, and of what is said of it
FOLDED = {"busy": "busy", "all": "all"}


def cut(text: str) -> str:
    """A text as long as a view shows it."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


class ByLine:
    """What happens at the lines of a program.

    rows    {line: what happens there};  unread: {line: reason};  busy: the numbers of all of these, in order
    sent    {line: bytes that rank 0 gives};  memory: {line: bytes of results on rank 0}, of one turn of a loop
    """

    def __init__(self, found: Explanation) -> None:
        self.lines = found.lines
        self.rows: dict[int, list[Row]] = defaultdict(list)
        for row in found.rows:
            self.rows[row.line].append(row)
        self.unread = dict(found.unread)
        self.sent = {at: sum(r.size_bytes * r.times for r in rows) for at, rows in self.rows.items()}
        self.memory = {at: sum(r.memory_bytes for r in rows) for at, rows in self.rows.items()}
        self.busy = sorted(self.rows.keys() | self.unread.keys())

    @property
    def heaviest(self) -> int:
        """The line that sends most; the first that does something, where none sends; 0: no line does."""
        return max(self.busy, key=lambda at: self.sent.get(at, 0), default=0)

    def text(self, line: int) -> str:
        """A line as it is shown."""
        return cut(self.lines[line - 1] if 0 < line <= len(self.lines) else "")

    def said(self, line: int) -> Any:
        """What is sent there, in words: "2 all_gather; backward 1 all_reduce"; or why it was not read, and False."""
        if line in self.unread:
            return f"not read: {cut(self.unread[line])}", False
        words = []
        for backward in (False, True):
            kinds: Counter[str] = Counter()
            for row in self.rows.get(line, ()):
                if row.message and (row.what == "backward") == backward:
                    kinds[row.message.partition(" ")[0]] += row.times
            counts = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
            words += [f"backward {counts}" if backward else counts] if counts else []
        return "; ".join(words)


def program_sections(found: Explanation, by: ByLine | None = None, **more: Any) -> dict[str, Section]:
    """The sections of a program.  more: further fields of the first, such as the command that chooses a line"""
    by = by or ByLine(found)
    sections = {"program": _program(by, **more), "line": _line(by), "messages": _messages(found)}
    if by.unread:
        rows = [[str(line), by.text(line).strip(), cut(why)] for line, why in by.unread.items()]
        head = {"line": "name", "program": "text", "why it was not read": "why"}
        sections["unread"] = table("Not read", head, rows[:MOST_LINES], tab=True)
    return sections


def _program(by: ByLine, **more: Any) -> Section:
    columns = {"": "name", "program": "code", "rank 0 sends": "verdict", "bytes": "bytes bar", "holds": "bytes"}

    def row(line: int) -> list[Any]:
        number = line if line in by.rows or line in by.unread else None
        sizes = [of.get(line) or "" for of in (by.sent, by.memory)]
        return [str(line), [by.text(line), number], by.said(line), *sizes]

    near = {
        line + step for line in by.busy for step in range(-NEAR, NEAR + 1) if not step or by.text(line + step).strip()
    }
    shown = {
        "busy": _folded([line in near for line in range(1, len(by.lines) + 1)]),
        "all": range(1, len(by.lines) + 1),
    }
    of = {}
    for name, lines in shown.items():
        rows = [row(at) if isinstance(at, int) else [f"{at[0]}-{at[1]}", ["...", None]] for at in lines[:MOST_LINES]]
        left = f"{len(by.lines)} lines: only the first are shown"
        of[name] = {"rows": rows + ([["", [left, None]]] if len(lines) > MOST_LINES else [])}
    return table("Program", columns, by=["lines"], of=of, **more)


def _folded(kept: Sequence[bool]) -> list[int | tuple[int, int]]:
    """Numbers of lines, and (first, last) of those between that are not kept; a line alone is kept.

    >>> _folded([False, False, True, False, True])
    [(1, 2), 3, 4, 5]
    """
    found: list[int | tuple[int, int]] = []
    for line, keep in enumerate(kept, 1):
        last = found[-1] if found else None
        if keep:
            found.append(line)
        elif isinstance(last, tuple):
            found[-1] = last[0], line
        else:
            found.append((line, line))
    return [one if isinstance(one, int) or one[0] < one[1] else one[0] for one in found]


def _line(by: ByLine) -> Section:
    """What happens at one line, for each that does something."""
    columns = {
        "what": "name", "layouts": "text", "message of rank 0": "text", "gives": "bytes", "holds": "bytes",
        "why": "why",
    }  # fmt: skip
    of: dict[str, Any] = {"0": {"rows": [], "title": "Line", "notes": ["No line places, computes or sends anything."]}}
    for line in by.busy[:MOST_LINES]:
        rows = [_cells(row) for row in by.rows.get(line, ())]
        notes = [f"... and {len(rows) - MOST_OF_A_LINE} more"] if len(rows) > MOST_OF_A_LINE else []
        notes = [(f"Not read: {cut(by.unread[line])}", False)] if line in by.unread else notes
        of[str(line)] = {
            "rows": rows[:MOST_OF_A_LINE],
            "title": f"Line {line}",
            "small": by.text(line).strip(),
            "notes": notes,
        }
    return table("Line", columns, by=["line"], of=of)


def _cells(row: Row) -> list[Any]:
    times = f" (x {row.times})" if row.times > 1 else ""
    sizes = [row.size_bytes if row.message else "", row.memory_bytes or ""]
    return [cut(row.what) + times, row.layouts, row.message, *sizes, cut(row.reason)]


def _messages(found: Explanation) -> Section:
    columns = {
        "": "name",
        "line": "number",
        "message": "text",
        "over": "text",
        "gives": "shape",
        "bytes": "bytes",
        "phase": "text",
        "why": "why",
    }
    sent = found.messages
    rows = [
        [str(n), m.line, m.kind, m.over, m.shape, m.size_bytes, m.phase, cut(m.reason)]
        for n, m in enumerate(sent[:MOST_MESSAGES], 1)
    ]
    notes = [f"... and {len(sent) - MOST_MESSAGES} more: lab.found.messages"] if len(sent) > MOST_MESSAGES else []
    return table("Messages", columns, rows, small="of rank 0, in order", notes=notes, tab=True)
