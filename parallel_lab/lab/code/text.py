"""Programs as text: each is a template (`templates/*.jinja`) that reads like the program it makes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .program import Program

WIDTH = 112  # of a line; longer calls have an argument a line


@cache
def _templates() -> Any:
    from jinja2 import (
        Environment,
        FileSystemLoader,
        StrictUndefined,
    )  # comes with JupyterLab; loaded when code is shown

    folder = FileSystemLoader(Path(__file__).with_name("templates"))
    return Environment(
        loader=folder, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )


def render(
    name: str, program: Program, how: str, imports: Iterable[str], notes: Sequence[str] = (), **values: Any
) -> str:
    """A whole program: docstring, imports, data and initial values, then the template `name`.

    how      the command that runs it;  notes: lines of the docstring on what the program lacks
    imports  its import lines; "{words}" in one stands for the names of DTensor's module that the text uses
    """
    body = _templates().get_template(f"{name}.jinja").render(program=program, **values)
    words = ", ".join(word for word in ("DTensor", "Replicate", "Shard") if word in body)
    lines = [line.replace("{words}", f"{words}, " if words else "") for line in imports]
    frame = _templates().get_template("program.jinja")
    return frame.render(program=program, how=how, imports=lines, notes=notes, body=body)


def call(head: str, arguments: Sequence[str], tail: str = "") -> str:
    """A call in a line, or an argument a line.

    >>> call("net = Net", ["1", "2"])
    'net = Net(1, 2)'
    """
    line = f"{head}({', '.join(arguments)}){tail}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{head}(", *(f"    {argument}," for argument in arguments), f"){tail}"])
