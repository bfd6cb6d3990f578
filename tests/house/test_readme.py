"""What the README says is so: commands exist, the example prints what is shown, links lead somewhere."""

import re
import subprocess
import sys
import tomllib

import pytest

from parallel_lab.cli import main as cli
from tests.house.source import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PICTURE_LIMIT_BYTES = 200_000
LINKS = re.findall(r"\]\(([^)]+)\)", TEXT)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = sorted(set(re.findall(r"`(parallel-lab(?: [^`]*)?)`", TEXT)))


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def run(*command: str) -> str:
    """Standard output of a command run in the checkout; it must end well and complain about nothing."""
    found = subprocess.run(
        [sys.executable, "-W", "error", *command], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_two_commands_do_all_set_up():
    outside_fences = re.sub(r"^```.*?^```", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    shown = [line.strip() for line in outside_fences.splitlines() if line.startswith("    ")]
    assert shown == ["pip install -e . && parallel-lab", 'pip install -e ".[test]" && pytest']
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"]["parallel-lab"] == "parallel_lab.cli.main:main"
    assert "test" in project["optional-dependencies"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_named_exists(command):
    args = cli._parser().parse_args(command.split()[1:])
    assert callable(args.run)


@pytest.mark.parametrize("option", sorted(set(re.findall(r"`(--[a-z]+)[ `]", TEXT))))
def test_an_option_that_is_named_is_one_of_the_command_that_is_named_before_it(option):
    before = TEXT[: re.search(rf"`{option}[ `]", TEXT).start()]
    *_, command = re.findall(r"parallel-lab ([a-z-]+)", before)
    (commands,) = (action.choices for action in cli._parser()._actions if isinstance(action.choices, dict))
    assert option in {name for action in commands[command]._actions for name in action.option_strings}


def test_the_example_has_about_ten_lines_and_prints_what_is_shown(tmp_path):
    (example,) = blocks("python")
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 12
    script = tmp_path / "example.py"
    script.write_text(example, encoding="utf-8")
    command = (
        f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r}); runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    assert run("-c", command) == blocks("text")[0]


def test_the_excerpt_is_what_the_quickstart_prints():
    excerpt = blocks("text")[1].splitlines()
    printed = run("-m", "parallel_lab", "quickstart").splitlines()
    at = 0
    for line in excerpt:
        if line == "...":
            continue
        where = next((i for i in range(at, len(printed)) if same(printed[i], line)), None)
        assert where is not None, f"not printed, or not in this order: {line!r}"
        at = where + 1


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


def test_there_are_links_and_commands_to_check():
    assert len(LINKS) >= 5
    assert {"parallel-lab doctor", "parallel-lab quickstart"} <= set(COMMANDS)
    assert len(blocks("python")) == 1
    assert len(blocks("text")) == 2


@pytest.mark.parametrize("link", [link for link in LINKS if "://" not in link])
def test_a_link_leads_to_a_file_of_the_repository(link):
    assert (ROOT / link).is_file()


@pytest.mark.parametrize("link", [link for link in LINKS if link.endswith((".png", ".svg"))])
def test_a_picture_is_small_and_what_its_name_says(link):
    content = (ROOT / link).read_bytes()
    assert len(content) < PICTURE_LIMIT_BYTES
    assert content.startswith(b"\x89PNG\r\n\x1a\n" if link.endswith(".png") else b"<svg")
