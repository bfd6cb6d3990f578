"""`parallel-lab site OUT`: the lessons as static pages, run, with labs that work; an index page; the reference.

Every notebook is run in a kernel of its own, three at once, and becomes one page: text, code, outputs, each lab as the
page that it is without a kernel (lab/shared/page.py), with all that it can replay. The pages need no network; a
Content-Security-Policy forbids every request. The reference (`reference.py`) is made from the docstrings, and left out
where pdoc is missing. OUT appears when all pages are there, or not at all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError, DataFileError, ParallelLabError, escape
from ..base.files import shipped_folder
from ..base.progress import UNATTENDED, Progress, shown
from ..lab.shared.page import FRONT_END
from .live_site import write_live_site
from .options import option, subcommand
from .reference import code_colours, has_pdoc, write_reference

NBCONVERT = FRONT_END / "shared" / "jupyter_nbconvert_config.json"
REFERENCE = "reference"
CELL_LIMIT_S, REFERENCE_CELLS = 600, 20  # the reference takes about as long as so many cells
AT_ONCE, LISTEN_S = 3, 0.1  # lessons: one often waits; how long an interrupt may not be heard
WIDE = 100  # characters of a line that a page may have no room for
VIEW = "application/vnd.jupyter.widget-view+json"
MARK = "<!-- a site of parallel-lab -->"  # in the index: such a folder may be replaced
FRAME = """<!doctype html>
{mark}
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; font-src data:;
               base-uri 'none'; form-action 'none'">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
STYLE = """
:root { color-scheme: light dark; --fg: #1b1f24; --bg: #fff; --soft: #f4f6f8; --rule: #d9dde2; --link: #1a5fb4;
  --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --fg: #eceff2; --bg: #14171b; --soft: #1f242a; --rule: #3a4048;
  --link: #8ab8ff; --bad: #ff9d94; } }
body { margin: 0; background: var(--bg); color: var(--fg);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial,
    sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 20px 60px; }
main > nav, p, ul, ol, h1, h2, h3 { max-width: 84ch; }
h1, h2, h3 { line-height: 1.25; }
a { color: var(--link); } .anchor-link { display: none; }
pre, code { font: 13px/1.45 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { overflow-x: auto; background: var(--soft); padding: 8px 12px; margin: 8px 0; }
.prompt, .jp-InputPrompt, .jp-OutputPrompt { display: none; }
.output_stderr pre, .output_error pre { border-left: 3px solid var(--bad); }
.output_error pre { white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; } th, td { padding: 3px 10px 3px 0; border-bottom: 1px solid var(--rule); }
.highlight, .highlight pre { background: none; } .input_area { background: var(--soft); } summary { line-height: 1.7; }
iframe { background: var(--bg); } img, svg { max-width: 100%; }
"""


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    subcommand(
        subparsers,
        "site",
        _site,
        (
            option("out", metavar="OUT", help="the folder to make; one that this command made before is replaced"),
            option("--lesson", nargs="+", metavar="NN", default=None, help="only these lessons, by number: 01 04"),
            option("--live", action="store_true", help="lessons that run in the browser (extra live, best alone)"),
            option("--pyodide", metavar="FOLDER", help="with --live: Pyodide and numpy from here, for no network"),
        ),
        help="write the lessons as static pages with working labs, and the reference",
        description="Runs the lessons, and writes each as a page that needs no kernel and no network, with an index. "
        "Labs on it keep the choices that were computed beforehand. Next to them lies the reference of all public "
        "names, with a search (pip install 'parallel-lab[docs]').",
        epilog="examples:\n  parallel-lab site public\n  parallel-lab site public --lesson 01 02\n"
        "  parallel-lab site --live public --pyodide ~/pyodide\n",
    )


def _site(args: argparse.Namespace) -> int:
    paths = chosen_lessons(args.lesson)
    if args.pyodide and not args.live:
        raise ArgumentError("--pyodide", where="site", allowed="It goes with --live")
    if args.live:
        place = write_live_site(Path(args.out), paths, Path(args.pyodide).expanduser() if args.pyodide else None)
        print(f"Live site: {place}; any web server shows it: {sys.executable} -m http.server -d {place}")
        return 0
    with shown("writing the site") as progress:
        place = write_site(Path(args.out), paths, tell=progress.say, reference=True, progress=progress)
    print(f"Site: {place}")
    return 0


def chosen_lessons(numbers: Iterable[str] | None) -> list[Path]:
    """The notebooks of the lessons, or of some. Raises ArgumentError for a number that does not exist."""
    by_number = {path.name[:2]: path for path in sorted(shipped_folder("notebooks").glob("*.ipynb"))}
    for number in numbers or ():
        if number not in by_number:
            raise ArgumentError(f"lesson {number!r}", where="site", allowed=f"One of {', '.join(by_number)}")
    return [by_number[number] for number in dict.fromkeys(by_number if numbers is None else numbers)]


def write_site(
    out: Path,
    paths: Iterable[Path],
    tell: Any = lambda text: None,
    *,
    reference: bool = False,
    progress: Progress | None = None,
) -> Path:
    """The pages of these notebooks, and `index.html`, in the folder `out`.

    tell       receives a line about what is done;  progress: counts cells of the lessons
    reference  also the pages of all public names, in `out/reference`; without pdoc a line says what is missing

    Raises DataFileError where something else is there or nothing can be written, ParallelLabError where a cell fails
    that must not.
    """
    import nbformat

    out = out.expanduser().resolve()
    index = out / "index.html"
    is_page = index.is_file() and index.stat().st_size < 8 << 20
    if out.exists() and not (is_page and MARK in index.read_text(encoding="utf-8", errors="replace")[:200]):
        what = "is there already, and was not made by parallel-lab site"
        raise DataFileError(what, where=str(out), hint="Name another folder")
    part = out.parent / f".{out.name}.{secrets.token_hex(8)}.part"
    try:
        part.mkdir(parents=True)
        try:
            books = {path: nbformat.read(path, as_version=4) for path in paths}
            count = progress or Progress()
            count.begin(sum(map(_cells, books.values())) + reference * REFERENCE_CELLS)

            async def lesson(path: Path) -> tuple[str, str, str]:
                tell(f"running {path.name}")
                count.step(0, path.stem)
                await _execute(books[path], path, part, count)
                page = path.with_suffix(".html").name
                (part / page).write_text(_lesson_page(books[path]), encoding="utf-8")
                return page, *_about(books[path])

            async def names() -> bool:
                return reference and await asyncio.to_thread(_write_reference, part / REFERENCE, tell)

            jobs = [(_cells(book), partial(lesson, path)) for path, book in books.items()]
            *lessons, with_reference = _together([*jobs, (REFERENCE_CELLS, names)])
            (part / "index.html").write_text(_index_page(lessons, with_reference), encoding="utf-8")
            _put(part, out)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise DataFileError(f"cannot be written: {error.strerror or error}", where=str(out)) from error
    return out


def _write_reference(folder: Path, tell: Any) -> bool:
    """Whether it is there: False without pdoc."""
    if not has_pdoc():
        tell("without the reference: pdoc is not installed (pip install 'parallel-lab[docs]')")
        return False
    tell("writing the reference")
    tell(f"{write_reference(folder)} names are in it")
    return True


def _put(part: Path, out: Path) -> None:
    """The new folder replaces the old one, which goes last."""
    old = part.with_suffix(".old")
    if out.exists():
        out.rename(old)
    try:
        part.rename(out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _cells(book: Any) -> int:
    return sum(cell.cell_type == "code" for cell in book.cells)


def _together(jobs: Sequence[tuple[int, Callable[[], Awaitable[Any]]]]) -> list[Any]:
    """The results of these (cells, job), AT_ONCE of them at a time, those with most cells first: the last ones to end
    are short. The first error ends all of them, as an interrupt does, and their kernels. In a thread of its own: where
    this is called another loop may be running.
    """
    known: dict[str, Any] = {}

    async def every() -> list[Any]:
        known["loop"], known["task"], gate = (
            asyncio.get_running_loop(),
            asyncio.current_task(),
            asyncio.Semaphore(AT_ONCE),
        )

        async def one(job: Callable[[], Awaitable[Any]]) -> Any:
            async with gate:
                return await job()

        longest_first = sorted(range(len(jobs)), key=lambda at: -jobs[at][0])
        async with asyncio.TaskGroup() as group:
            tasks = {at: group.create_task(one(jobs[at][1])) for at in longest_first}
        return [tasks[at].result() for at in range(len(jobs))]

    before = os.environ.get(UNATTENDED)
    os.environ[UNATTENDED] = "1"
    try:
        with ThreadPoolExecutor(1) as pool:
            results = pool.submit(asyncio.run, every())
            try:
                while not wait([results], LISTEN_S).done:  # without end it would not hear the interrupt
                    pass
            except KeyboardInterrupt:
                known["loop"].call_soon_threadsafe(known["task"].cancel)
                raise
        return results.result()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        if before is None:
            del os.environ[UNATTENDED]
        else:
            os.environ[UNATTENDED] = before


async def _execute(book: Any, path: Path, place: Path, count: Progress) -> None:
    """Give the notebook its outputs; it runs in a folder that goes away."""
    from nbconvert.preprocessors import CellExecutionError, ExecutePreprocessor

    work = place / f"work.{path.stem}"
    work.mkdir()
    run = ExecutePreprocessor(timeout=CELL_LIMIT_S, kernel_name="python3", extra_arguments=["--log-level=CRITICAL"])
    run.nb, run.resources, run.on_cell_executed = book, {"metadata": {"path": str(work)}}, lambda **_: count.step()
    try:
        await run.async_execute()
    except CellExecutionError as error:
        raise ParallelLabError(f"{path.name}: a cell failed: {error.ename}: {error.evalue}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _lesson_page(book: Any) -> str:
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    config = Config(json.loads(NBCONVERT.read_text(encoding="utf-8")))
    exporter = HTMLExporter(config=config, template_name="basic", exclude_anchor_links=True)
    body, _ = exporter.from_notebook_node(_without_widgets(book))
    home = '<nav><a href="index.html">All lessons</a></nav>\n'
    body = home + _accessible(_pages_only(body))
    dark = f"@media (prefers-color-scheme: dark) {{ {code_colours('.highlight', 'monokai')} }}"
    style = "\n".join([code_colours(".highlight"), dark, STYLE])
    return FRAME.format(mark=MARK, title=escape(_about(book)[0]), style=style, body=body)


def _without_widgets(book: Any) -> Any:
    """Widgets have their page of their own, or a line that says why nothing is there."""
    for data in (o["data"] for cell in book.cells for o in cell.get("outputs", ()) if VIEW in o.get("data", {})):
        del data[VIEW]
        data.setdefault("text/html", "<p><em>What is shown here needs a kernel: open the notebook.</em></p>")
    return book


def _pages_only(body: str) -> str:
    """Links between notebooks as links between pages."""
    return re.sub(r'href="([\w./-]+)\.ipynb(#[^"]*)?"', r'href="\1.html\2"', body)


def _accessible(body: str) -> str:
    """Long lines can be scrolled by keys, and the empty head of a column is a cell."""

    def reached(found: re.Match[str]) -> str:
        lines = unescape(re.sub(r"<[^>]*>", "", found[1])).splitlines()
        return f'<pre tabindex="0">{found[1]}</pre>' if max(map(len, lines), default=0) > WIDE else found[0]

    body = re.sub(r"<pre>(.*?)</pre>", reached, body, flags=re.DOTALL)
    return re.sub(r"<th\b[^>]*></th>", "<td></td>", body)


def _about(book: Any) -> tuple[str, str]:
    """Title and first paragraph."""
    text = next((cell.source for cell in book.cells if cell.cell_type == "markdown"), "")
    title, _, rest = text.strip().partition("\n")
    first = re.sub(r"[*`]|\[([^]]*)\]\([^)]*\)", r"\1", rest.strip().split("\n\n")[0])
    return title.lstrip("# ").strip(), " ".join(first.split())


def _index_page(lessons: Iterable[tuple[str, str, str]], with_reference: bool = False) -> str:
    items = (f'<li><a href="{page}">{escape(title)}</a><br>{escape(first)}</li>' for page, title, first in lessons)
    body = "<h1>parallel_lab</h1>\n<p>Lessons with labs that work on the page: no kernel, no network.</p>\n<ul>\n"
    link = f'\n<p><a href="{REFERENCE}/index.html">The reference</a>: every public name.</p>' if with_reference else ""
    return FRAME.format(mark=MARK, title="parallel_lab", style=STYLE, body=f"{body}{chr(10).join(items)}\n</ul>{link}")
