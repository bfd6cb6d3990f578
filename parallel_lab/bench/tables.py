"""Tables in plain text, and the same as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import escape

__all__ = ["aligned", "html_table", "ratio_text", "seconds_text"]

Row = Sequence[str]


def aligned(rows: Sequence[Row], *, left: int = 1) -> str:
    """Rows of equal length as lines: the first `left` columns begin together, the others end together.

    >>> print(aligned([("a", "b"), ("long", "1.5")]))
    a       b
    long  1.5
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    )


def html_table(rows: Sequence[Row], *, left: int = 1, caption: str = "") -> str:
    """The same as an HTML table, the first row its head. Texts are escaped."""

    def cells(row: Row, tag: str) -> str:
        scope, number = (' scope="col"' if tag == "th" else ""), ' class="n"'
        return "".join(f"<{tag}{scope}{number if i >= left else ''}>{escape(cell)}</{tag}>" for i, cell in enumerate(row))

    head, *body = rows
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    lines = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in body)
    return f'<div class="scroll"><table>{named}<thead><tr>{cells(head, "th")}</tr></thead><tbody>{lines}</tbody></table></div>'


def seconds_text(time_s: float | None) -> str:
    """A duration with three digits and its unit; "-" where there is none.

    >>> seconds_text(12.345e-6), seconds_text(0.5), seconds_text(None)
    ('12.3 us', '500 ms', '-')
    """
    if time_s is None:
        return "-"
    for scale, unit in ((1e6, "us"), (1e3, "ms")):
        if time_s * scale < 999.5:
            return f"{time_s * scale:.3g} {unit}"
    return f"{time_s:.3g} s"


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
