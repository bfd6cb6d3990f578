"""The frame of a page of results, with its style sheet (report.css): no script, no network. Hues are those of the labs:
eight of similar lightness, dark text on all of them.
"""

from pathlib import Path

from ...base.errors import escape
from ..pictures.charts import HUES

_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def page(title: str, body: str, style: str = "") -> str:
    """A page around `body` (HTML). style: more rules for it."""
    hues = "\n".join(f".hue-{i} {{ fill: {hue}; }}" for i, hue in enumerate(HUES))
    sheet = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return _FRAME.format(title=escape(title), style=f"\n{sheet}{hues}{style}", body=body)
