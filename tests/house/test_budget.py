"""Sizes: the core fits a budget, its kernel an evening, and no file holds two subjects."""

import re

from tests.house.source import PACKAGE, ROOT, files

CORE = ("layout", "ops/machine", "graph", "run")  # and the hooks, by which low rooms reach higher ones
MOST_OF_CORE, MOST_OF_KERNEL, MOST_OF_A_FILE = 14_000, 4_800, 600  # lines of at most 120 columns


def lines(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def core_files():
    return [path for room in CORE for path in files(PACKAGE / room, ".py")] + [PACKAGE / "base" / "hooks.py"]


def kernel_files():
    """The files that the README names under "One evening for the kernel"."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("One evening for the kernel")[2].partition("\n## ")[0]
    return [ROOT / link for link in re.findall(r"\]\((parallel_lab/[\w/]+\.py)\)", section)]


def test_the_core_keeps_its_budget():
    sizes = {room: sum(map(lines, files(PACKAGE / room, ".py"))) for room in CORE}
    total = sum(map(lines, core_files()))
    print(f"core: {total:,} lines of {MOST_OF_CORE:,}", sizes)
    assert total > sum(sizes.values()) > 0
    assert total <= MOST_OF_CORE


def test_the_kernel_is_read_in_an_evening():
    kernel = kernel_files()
    total = sum(map(lines, kernel))
    print(f"kernel: {total:,} lines of {MOST_OF_KERNEL:,} in {len(kernel)} files")
    assert len(kernel) >= 12 and PACKAGE / "graph" / "kinds.py" in kernel
    assert total <= MOST_OF_KERNEL


def test_no_file_is_long():
    paths = [*files(PACKAGE, ".py"), *files(ROOT / "tests", ".py")]
    long = {str(path.relative_to(ROOT)): lines(path) for path in paths if lines(path) > MOST_OF_A_FILE}
    assert len(paths) > 600 and not long
