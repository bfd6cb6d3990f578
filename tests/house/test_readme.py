"""The README: short, two commands, ten lines of Python, four doors; the quickstart prints what its excerpt shows."""

import re
import subprocess
import sys
import tomllib

import pytest

from parallel_lab.lab import widgets
from tests.house.source import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
EXCERPT = (ROOT / "notebooks" / "engineers.md").read_text(encoding="utf-8")
LIMIT_BYTES = 9_000


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_two_commands_do_all_set_up():
    outside_fences = re.sub(r"^```.*?^```", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    shown = [line.strip() for line in outside_fences.splitlines() if line.startswith("    ")]
    assert shown == ['pip install -e ".[jupyter]" && parallel-lab', 'pip install -e ".[test]" && pytest']
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"]["parallel-lab"] == "parallel_lab.cli.main:main"
    assert "test" in project["optional-dependencies"]


def test_it_is_short_and_has_two_pictures_fifteen_labs_and_four_doors():
    assert len(TEXT.encode()) <= LIMIT_BYTES
    assert TEXT.count("![") == 2
    labs = TEXT.partition("## Fifteen labs")[2].partition("\n## ")[0]
    assert len(re.findall(r"(?m)^\d+\. \*\*", labs)) == len(widgets.LABS)
    doors = TEXT.partition("## Four doors")[2].partition("\n## ")[0]
    assert len(re.findall(r"(?m)^\*\*You ", doors)) == 4
    for page in [*(ROOT / "notebooks").glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]:
        assert f"(notebooks/{page.name})" in doors


def test_the_example_has_about_ten_lines():
    (example,) = blocks(TEXT, "python")  # test_pages runs it
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 12
    assert len(blocks(TEXT, "text")) == 1


def test_the_excerpt_is_what_the_quickstart_prints():
    excerpt = blocks(EXCERPT, "text")[0].splitlines()
    command = [sys.executable, "-W", "error", "-m", "parallel_lab", "quickstart"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    at = 0
    for line in excerpt:
        if line == "...":
            continue
        where = next((i for i in range(at, len(printed)) if same(printed[i], line)), None)
        assert where is not None, f"not printed, or not in this order: {line!r}"
        at = where + 1
    assert at > len(excerpt) - excerpt.count("...")


def same(printed: str, shown: str) -> bool:
    """Equal lines but for a loss's last digits of float32 (another BLAS) and line numbers of the package."""
    loss = "loss is "
    if loss in shown:
        have, want = printed.partition(loss), shown.partition(loss)
        return have[0] == want[0] and abs(float(have[2]) - float(want[2])) <= 1e-5 * float(want[2])
    number = re.compile(r"\.py:\d+")
    return number.sub(".py", printed) == number.sub(".py", shown)


@pytest.mark.parametrize(
    ("printed", "shown", "equal"),
    [("a 1", "a 1", True), ("a 1", "a 2", False), ("e 1, loss is 0.3", "e 1, loss is 0.31", False)],
)
def test_the_comparison_of_lines_can_fail(printed, shown, equal):
    assert same(printed, shown) is equal
