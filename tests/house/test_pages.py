"""What README and the pages next to the notebooks say is so: links, contents, commands, options, examples."""

import os
import pydoc
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from parallel_lab.cli import main as cli
from tests.house.source import ROOT, short

NEXT_TO_NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / ".github" / "CONTRIBUTING.md", *NEXT_TO_NOTEBOOKS]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
PICTURE_LIMIT_BYTES = 200_000


def cases(found) -> list:
    """pytest's parameters for `found(text)` of every page, named after the page."""
    return [
        pytest.param(page, one, id=f"{page.stem}-{number}")
        for page in PAGES
        for number, one in enumerate(found(TEXTS[page]))
    ]


def prose(text: str) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)]+)\)", prose(text)) if "://" not in link]


def commands(text: str) -> list[str]:
    """The command's calls in code spans, indented lines and shell blocks."""
    shell = "\n".join(body for kind, body, _ in FENCE.findall(text) if kind == "sh")
    spans = re.findall(r"`(?:\w+=\S+ )?(parallel-lab(?: [^`]*)?)`", prose(text))
    return sorted({*spans, *re.findall(r"(?m)^(?: {4})?(parallel-lab(?: [^#\n&]*)?)", f"{shell}\n{prose(text)}")})


def options(text: str) -> list[tuple[str, str]]:
    """(subcommand that was named last before, option) for each option in a code span of its own."""
    spans = [(m.start(), m.group(1)) for m in re.finditer(r"`(--[a-z-]+)[ `]", text)]
    return [(re.findall(r"parallel-lab ([a-z-]+)", text[:at])[-1], option) for at, option in spans]


def examples(text: str) -> list[tuple[str, str | None]]:
    """(program, what it prints) of each Python block; None: whatever it prints."""
    return [(body, shown or None) for kind, body, shown in FENCE.findall(text) if kind == "python"]


def headings(text: str) -> dict[str, str]:
    """{anchor: heading} of a page's sections, as GitHub and JupyterLab make them."""
    found = re.findall(r"(?m)^##+ (.*)$", prose(text))
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-"): title for title in found}


def test_there_is_something_to_check():
    assert {page.stem for page in PAGES} == {"README", "CONTRIBUTING", "authors", "developers", "engineers", "teachers"}
    assert len(cases(links)) > 60 and len(cases(commands)) > 20 and len(cases(options)) > 5
    assert len(cases(examples)) >= 6
    assert headings("## One, two `x`\n```python\n## no\n```\n### A-b") == {"one-two-x": "One, two `x`", "a-b": "A-b"}


@pytest.mark.parametrize(("page", "link"), cases(links))
def test_a_link_leads_to_a_file_and_to_a_section_of_it(page, link):
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    assert target.is_file(), link
    assert not anchor or anchor in headings(TEXTS[target]), link


@pytest.mark.parametrize("page", NEXT_TO_NOTEBOOKS, ids=short)
def test_a_page_lists_its_sections(page):
    listed = re.findall(r"(?m)^- \[([^\]]+)\]\(#([^)]+)\)", TEXTS[page].partition("\n## ")[0])
    sections = {anchor: title for anchor, title in headings(TEXTS[page]).items() if f"\n## {title}\n" in TEXTS[page]}
    assert [(title, anchor) for anchor, title in sections.items()] == listed


@pytest.mark.quick(6)
@pytest.mark.parametrize(("page", "command"), cases(commands))
def test_a_command_that_is_named_exists(page, command):
    args = cli._parser().parse_args(shlex.split(command)[1:])
    assert callable(args.run)


@pytest.mark.quick(4)
@pytest.mark.parametrize(("page", "named"), cases(options))
def test_an_option_that_is_named_is_one_of_the_command_that_is_named_before_it(page, named):
    command, option = named
    (parsers,) = (action.choices for action in cli._parser()._actions if isinstance(action.choices, dict))
    assert option in {name for action in parsers[command]._actions for name in action.option_strings}


@pytest.mark.quick(1)
@pytest.mark.parametrize(("page", "example"), cases(examples))
def test_an_example_runs_and_prints_what_is_shown(page, example, tmp_path):
    program, shown = example
    printed = printed_by(program, tmp_path)
    assert shown is None or printed == shown


def printed_by(program: str, folder: Path) -> str:
    """Standard output of a program run as a script of its own in `folder`; it must end well and warn of nothing."""
    script = folder / "example.py"
    script.write_text(program, encoding="utf-8")
    start = (
        f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r}); runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", start],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("page", "link"), [case for case in cases(links) if case.values[1].endswith((".png", ".svg"))])
def test_a_picture_is_small_and_what_its_name_says(page, link):
    content = (page.parent / link).read_bytes()
    assert len(content) < PICTURE_LIMIT_BYTES
    assert content.startswith(b"\x89PNG\r\n\x1a\n" if link.endswith(".png") else b"<svg")


def helps(text: str) -> list[str]:
    """What a page calls `help` on."""
    return sorted({*re.findall(r"`help\(([\w.]+)\)`", prose(text))})


@pytest.mark.parametrize(("page", "name"), cases(helps))
def test_help_that_a_page_sends_to_is_shown(page, name):
    text = pydoc.plain(pydoc.render_doc(re.sub(r"^pl\b", "parallel_lab", name)))
    assert len(text.splitlines()) > 8, text
