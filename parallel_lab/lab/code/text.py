"""Lines that programs for all libraries have: what they are, data, and initial values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .program import Program

WIDTH = 112  # of a line; longer calls have an argument a line


def block(lines: Iterable[str]) -> list[str]:
    """Lines one step further in."""
    return [f"    {line}" if line else "" for line in lines]


def call(head: str, arguments: Sequence[str], tail: str = "") -> str:
    """A call in a line, or an argument a line.

    >>> call("net = Net", ["1", "2"])
    'net = Net(1, 2)'
    """
    line = f"{head}({', '.join(arguments)}){tail}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{head}(", *(f"    {argument}," for argument in arguments), f"){tail}"])


def beginning(program: Program, how: str, imports: Iterable[str], notes: Iterable[str] = ()) -> str:
    """Docstring and imports.  how: a command that runs it"""
    said = "".join(f"\n{note}" for note in notes)
    return f'"""{program.title}.\n\n    {how}\n{said and said + chr(10)}"""\n\n' + "\n".join(imports) + "\n\n"


def initial_lines(program: Program) -> list[str]:
    """`batches`, a list of tuples of arrays, and `initial`, {parameter: array}."""
    drawn = [f'"{p.name}": {p.text},' for p in program.parameters]
    return [
        "# the lab's data, and the initial values that its parameters are drawn with",
        "rng = np.random.default_rng",
        *program.data.splitlines(),
        "initial = {",
        *block(drawn),
        "}",
        "initial = {name: values.astype(np.float32) for name, values in initial.items()}",
    ]
