"""The quick and the exhaustive tests (tests/conftest.py) are all tests, and none is in both."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.exhaustive  # every test starts pytests of its own

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
BODY = """
import pytest

slow = pytest.param(7, marks=pytest.mark.exhaustive)

def test_plain(): pass

@pytest.mark.exhaustive
def test_long(): pass

@pytest.mark.quick(2)
@pytest.mark.parametrize("a", [*range(5), slow])
def test_drawn(a): pass

@pytest.mark.quick(0)
@pytest.mark.parametrize("a", range(3))
def test_never(a): pass

@pytest.mark.quick(9)
@pytest.mark.parametrize("a", range(3))
def test_always(a): pass

@pytest.mark.parametrize("a", [1, slow])
def test_by_case(a): pass

class TestOfAClass:
    @pytest.mark.quick(1)
    @pytest.mark.parametrize("a", range(3))
    def test_drawn(self, a): pass
"""


def collected(folder: Path, marks: str, *names: str) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        "-c",
        os.devnull,
    ]
    command += ["--collect-only", "-m", marks, *names, *([] if "::" in "".join(names) else [str(folder)])]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PARALLEL_LAB"))}
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, cwd=folder)
    return [line for line in found.stdout.splitlines() if line.startswith("test_it.py::")]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_it.py").write_text(BODY)
    return tmp_path


def test_every_case_is_either_quick_or_exhaustive(folder):
    quick, exhaustive = collected(folder, "not exhaustive"), collected(folder, "exhaustive")
    assert sorted(quick + exhaustive) == sorted(collected(folder, "exhaustive or not exhaustive"))
    assert len({*quick, *exhaustive}) == len(quick) + len(exhaustive) == 1 + 1 + 6 + 3 + 3 + 2 + 3
    of = {
        name: [case for case in quick if case.startswith(f"test_it.py::{name}[")]
        for name in ("test_drawn", "test_never", "test_always")
    }
    assert {name: len(cases) for name, cases in of.items()} == {"test_drawn": 2, "test_never": 0, "test_always": 3}
    assert len([case for case in quick if "TestOfAClass" in case]) == 1
    assert not [case for case in quick if "test_long" in case or "[7]" in case]


def test_an_exhaustive_case_that_is_named_is_found(folder):
    assert collected(folder, "exhaustive", "test_it.py::test_never[1]") == ["test_it.py::test_never[1]"]
    quick = collected(folder, "not exhaustive", "test_it.py::test_never[1]", "test_it.py::test_plain")
    assert quick == ["test_it.py::test_plain"]


def test_shares_together_are_all_cases_and_none_is_in_two(folder):
    shares = [collected(folder, "exhaustive", "--share", f"{k}/3") for k in range(3)]
    assert all(shares)
    assert sorted(itertools.chain(*shares)) == sorted(collected(folder, "exhaustive"))


def test_every_other_process_reads_the_files_from_the_last_one_on(tmp_path):
    """On a fresh checkout each compiles half of them; xdist runs nothing where the two differ in their order."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST.read_text())
    names = ["a/test_one.py", "a/test_two.py", "b/test_one.py", "test_last.py"]
    log = "import os\nprint(os.environ['PYTEST_XDIST_WORKER'], __file__, file=open({log!r}, 'a', buffering=1))\n"
    for name in names:
        (tmp_path / "tests" / name).parent.mkdir(exist_ok=True)
        text = log.format(log=str(tmp_path / "log")) + "def test_it(): pass\ndef test_further(): pass\n"
        (tmp_path / "tests" / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--import-mode=importlib"]
    command += ["--rootdir", str(tmp_path), "-c", os.devnull, "tests"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PARALLEL_LAB"))}
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, cwd=tmp_path)
    assert run.returncode == 0 and "8 passed" in run.stdout, run.stdout + run.stderr
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    read = {who: [path.partition("/tests/")[2] for by, path in lines if by == who] for who in ("gw0", "gw1")}
    assert read == {"gw0": names, "gw1": names[::-1]}
