"""Costs of algorithms as straight lines: a value of S bytes takes a alpha + b beta S, with a and b by the formula.

    lines = lines_of("all_reduce", 8)
    fastest(lines, 5e-6, 1e-10)     # [Part(0.0, Line(recursive_doubling)), Part(120000.0, Line(halving_doubling))]

The fastest algorithm is the lowest line; where two of them cross, another one takes over.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from ..collectives.algorithms.table import algorithm_names, recipe_of, text_for


class Line(NamedTuple):
    """Algorithms that cost the same, called by the first one's name.  sent: S times this the busiest rank sends;
    formula: of the time, as a text
    """

    names: tuple[str, ...]
    a: int
    b: Fraction
    sent: Fraction
    formula: str

    @property
    def name(self) -> str:
        return self.names[0]

    def parts_s(self, size_bytes: float, alpha_s: float, beta_s_per_byte: float) -> tuple[float, float]:
        """Seconds to start messages, and to send bytes."""
        return self.a * alpha_s, float(self.b) * beta_s_per_byte * size_bytes

    def time_s(self, size_bytes: float, alpha_s: float, beta_s_per_byte: float) -> float:
        return sum(self.parts_s(size_bytes, alpha_s, beta_s_per_byte))


class Part(NamedTuple):
    """From so many bytes on this line is the lowest."""

    from_bytes: float
    line: Line


def lines_of(kind: str, ranks: int) -> list[Line]:
    """The algorithms in the table's order, those with equal costs on one line; adding up (gamma) takes no time.

    >>> [(line.names, line.a, str(line.b)) for line in lines_of("all_gather", 4)]
    [(('ring', 'direct'), 3, '3/4'), (('recursive_doubling', 'bruck'), 2, '3/4'), (('tree',), 4, '11/4')]
    """
    lines: dict[tuple[int, Fraction], Line] = {}
    for name in algorithm_names(kind, ranks):
        f = recipe_of(kind, name).formula
        a, b, sent = int(f.alphas(ranks, ranks)), Fraction(f.betas(ranks, ranks)), Fraction(f.sent(ranks, ranks))
        line = lines.get((a, b), Line((), a, b, sent, text_for(f.time_text, ranks)))
        lines[a, b] = line._replace(names=(*line.names, name))
    return list(lines.values())


def fastest(lines: Sequence[Line], alpha_s: float, beta_s_per_byte: float) -> list[Part]:
    """The lowest lines over S, from 0 bytes on."""

    def crossing_bytes(before: Line, after: Line) -> float:
        """Where alphas that are paid in addition are made good by bytes that are saved."""
        return (after.a - before.a) * alpha_s / (float(before.b - after.b) * beta_s_per_byte)

    parts = [Part(0.0, min(lines, key=lambda line: (line.a, line.b)))]
    while flatter := [line for line in lines if line.b < parts[-1].line.b]:
        before = parts[-1].line
        line = min(flatter, key=lambda after: (crossing_bytes(before, after), after.b))
        parts.append(Part(crossing_bytes(before, line), line))
    return parts


def line_at(parts: Sequence[Part], size_bytes: float) -> Line:
    """The lowest line at a size."""
    return next(part for part in reversed(parts) if part.from_bytes <= size_bytes).line
