"""Sizes, durations and tables as people read them: one form for charts, labs and reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def bytes_text(size_bytes: float | None) -> str:
    """A size with its unit, three significant digits of it; whole bytes are exact; `-` while it is unknown.

    >>> bytes_text(512), bytes_text(1536), bytes_text(1 << 24), bytes_text(4736), bytes_text(None)
    ('512 B', '1.5 KiB', '16 MiB', '4.63 KiB', '-')
    """
    if size_bytes is None:
        return "-"
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < (1024 if unit == "B" else 1023.5):  # from there on it would read 1024
            break
        size, unit = size / 1024, larger
    size *= 1 + 2**-50  # halves, common among bytes, are rounded up, as in the labs' JavaScript
    return f"{size:.0f} {unit}" if size >= 100 else f"{size:.3g} {unit}"


def time_text(time_s: float | None) -> str:
    """A duration with three digits, in the unit that suits it; `-` while it is unknown.

    >>> time_text(1e-5), time_text(0.0123), time_text(9.999e-4), time_text(21.0), time_text(None)
    ('10 us', '12.3 ms', '1 ms', '21 s', '-')
    """
    if time_s is None:
        return "-"
    for scale, unit in ((1e6, "us"), (1e3, "ms")):
        if 0 < time_s * scale < 999.5:  # from there on three digits round to 1000
            return f"{time_s * scale:.3g} {unit}"
    return f"{time_s:.3g} s"


def plural(count: int, word: str, ending: str = "s") -> str:
    """A count of things.

    >>> plural(1, "rank"), plural(8, "rank"), plural(0, "message")
    ('1 rank', '8 ranks', '0 messages')
    """
    return f"{count} {word}{'' if count == 1 else ending}"


def table_lines(rows: Sequence[Sequence[str]], right: Collection[int] = (), indent: str = "") -> list[str]:
    """Rows of equal length as lines with aligned columns; those numbered in `right` end together.

    >>> table_lines([("a", "b"), ("long", "1.5")], right=[1])
    ['a       b', 'long  1.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        lines.append(indent + "  ".join(cells).rstrip())
    return lines
