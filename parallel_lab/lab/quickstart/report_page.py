"""The frame and the style sheet of a page of results: no script, no network. Hues are those of the Strategy Lab: eight
of similar lightness, dark text on all of them.
"""

from ...base.errors import escape

HUES = ("#628de1", "#ca772b", "#4ac8a1", "#adacff", "#ccaf41", "#a97f99", "#b1e78a", "#4bedf8")

STYLE = """
:root { color-scheme: light dark; --fg: #1b1f24; --bg: #ffffff; --muted: #586069; --rule: #d9dde2; --soft: #f4f6f8;
  --ground: #e9ecef; --accent: #1a5fb4; --single: #c9ced4; --bad: #b3261e; --bad-tint: #fdeceb; --good: #1a6b3c;
  --compute: #9aa5b1; --ink: #11151a; }
@media (prefers-color-scheme: dark) { :root { --fg: #eceff2; --bg: #14171b; --muted: #a9b1ba; --rule: #3a4048;
  --soft: #1f242a; --ground: #2a2f36; --accent: #8ab8ff; --single: #59626c; --bad: #ff9d94; --bad-tint: #3a2422;
  --good: #7fd6a0; --compute: #6d7884; } }
@media print { :root { --fg: #000; --bg: #fff; --muted: #444; --rule: #ccc; --soft: #f4f6f8;
  --ground: #e9ecef; --accent: #1a5fb4; --single: #c9ced4; --bad: #b3261e; --bad-tint: #fdeceb; --good: #1a6b3c;
  --compute: #9aa5b1; }
  body { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .tensor, tr, section > svg { break-inside: avoid; } h2 { break-after: avoid; }
  .scroll { overflow: visible !important; } }
body { margin: 0; background: var(--bg); color: var(--fg);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial,
    sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 24px; line-height: 1.25; font-weight: 650; margin: 2px 0 6px; text-wrap: balance; }
h2 { font-size: 17px; font-weight: 650; margin: 0 0 8px; padding-top: 14px; border-top: 1px solid var(--rule); }
h2 small, .muted, .shape, dt { color: var(--muted); font-weight: 400; }
h2 small { font-size: 13px; margin-left: 4px; }
p { margin: 4px 0; max-width: 84ch; }
.over { color: var(--muted); }
.good { color: var(--good); } .bad { color: var(--bad); }
section { margin-top: 26px; }
code, pre, .shape { font: 12px/1.4 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { white-space: nowrap; } code.long { white-space: normal; overflow-wrap: anywhere; }
.tensor > div { min-width: 0; overflow-wrap: anywhere; }
.facts { display: flex; flex-wrap: wrap; gap: 12px 36px; margin: 18px 0 0; }
.facts > div { display: flex; flex-direction: column-reverse; }
dd { margin: 0; } .facts dd { font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums; }
.small { display: flex; flex-wrap: wrap; gap: 2px 24px; font-size: 12px; } .small > div { display: flex; gap: 6px; }
.scroll { overflow-x: auto; }
.key { display: flex; flex-wrap: wrap; gap: 4px 18px; max-width: none; color: var(--muted);
  font-size: 13px; }
.key svg, thead svg { vertical-align: -2px; }
.tensor { display: grid; grid-template-columns: 290px max-content; gap: 12px; align-items: center; width: max-content;
  padding: 6px 0; border-bottom: 1px solid var(--rule); font-size: 13px; line-height: 1.35; }
.tensor.ranks { padding: 0; border: 0; } .tensor svg { display: block; }
.ranks text, .tick { font-size: 12px; fill: var(--muted); }
.ranks text { text-anchor: middle; font-weight: 600; fill: var(--fg); }
.ground { fill: var(--ground); } .frame { fill: none; stroke: var(--muted); stroke-width: 1; }
.hatched { fill: url(#hatch); } .stroke { fill: var(--ink); opacity: 0.5; }
.number { fill: var(--ink); font-weight: 700; text-anchor: middle; dominant-baseline: central; }
.beside { fill: var(--fg); font-size: 11px; font-weight: 700; dominant-baseline: central; }
.sum { font-size: 11px; fill: var(--fg); text-anchor: middle; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--rule);
  font-weight: inherit; }
thead th { color: var(--muted); vertical-align: bottom; white-space: nowrap; } tbody th { font-weight: 600; }
.n { text-align: right; white-space: nowrap; } .c { text-align: center; border-bottom-color: var(--ground); }
.local td, .local th, .local b { color: var(--muted); font-weight: 400; }
.equality { width: auto; min-width: 60%; } .failed { background: var(--bad-tint); }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 0 36px; }
.wide { width: 100%; height: auto; display: block; }
.rule { stroke: var(--rule); } .end { text-anchor: end; dominant-baseline: central; } .mid { text-anchor: middle; }
.curve { fill: none; stroke-linejoin: round; stroke-linecap: round; }
.single { stroke: var(--single); stroke-width: 7; } .parallel { stroke: var(--accent); stroke-width: 1.8; }
.computing { fill: var(--fg); } .moving { fill: var(--single); }
.memory-0 { fill: var(--fg); } .memory-1, .memory-2 { fill: var(--compute); } .memory-3 { fill: var(--ground); }
.memory-4 { fill: var(--bg); stroke: var(--muted); }
.memory-0-over, .memory-2-over, .memory-4-over { fill: none; }
.memory-1-over { fill: url(#plus); } .memory-3-over { fill: url(#dots); }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--accent); }
pre { overflow-x: auto; background: var(--soft); padding: 10px 12px; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
""" + "\n".join(f".hue-{i} {{ fill: {hue}; }}" for i, hue in enumerate(HUES))

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
    return _FRAME.format(title=escape(title), style=STYLE + style, body=body)
