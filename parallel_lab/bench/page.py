"""The frame of a benchmark's page: one file of HTML that needs no network and no script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import escape
from ..lab.report_style import STYLE
from .machine import machine_text

__all__ = ["bench_page"]

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<title>{title}</title>
<style>{style}
.charts {{ display: flex; flex-wrap: wrap; gap: 18px 28px; }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="muted">{machine}</p>
{body}
</main>
</body>
</html>
"""


def bench_page(title: str, machine: Mapping[str, Any], body: str) -> str:
    """A page of this package's benchmarks around `body` (HTML)."""
    return PAGE.format(title=escape(title), machine=escape(machine_text(machine)), style=STYLE, body=body)
