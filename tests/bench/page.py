"""Tables and numbers of benchmarks as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from parallel_lab.base.units import table_lines
from parallel_lab.cli.results import Row


def aligned(rows: Sequence[Row], *, left: int = 1) -> str:
    """Rows of equal length as lines: the first `left` columns begin together, the others end together.

    >>> print(aligned([("a", "b"), ("long", "1.5")]))
    a       b
    long  1.5
    """
    return "\n".join(table_lines(rows, right=range(left, len(rows[0]))))


def tables_text(tables: Iterable[tuple[Sequence[Row], int]], lines: Iterable[str]) -> str:
    """A report for a terminal: tables, each with its number of left columns, then lines."""
    return "\n".join([*(f"{aligned(rows, left=left)}\n" for rows, left in tables), *lines])


def quotient(a: float | None, b: float | None) -> float | None:
    """a / b; None where one of them was not measured."""
    return None if a is None or b is None else a / b


def ratio_text(ratio: float | None) -> str:
    """A ratio of times; below 1/10, and where it is one part of a few, as a fraction.

    >>> ratio_text(0.5), ratio_text(0.004), ratio_text(0.25), ratio_text(None)
    ('0.50x', '1/250', '1/4', '-')
    """
    if ratio is None:
        return "-"
    if ratio in (1 / 4, 1 / 8):
        return f"1/{1 / ratio:.0f}"
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"1/{1 / ratio:.0f}"


def percent_text(share: float | None) -> str:
    """A share of a whole.

    >>> percent_text(0.0234), percent_text(None)
    ('2.34%', '-')
    """
    return "-" if share is None else f"{100 * share:.3g}%"
