"""Weights: what one must follow from a few files, the lines of rooms and kernel, old habits of the texts.

A commit that raises one of these numbers changes it here and says why in its body; one that lowers a number lowers the
limit, too.
"""

import ast
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.house.kernel import KERNEL, called_and_not_shown, lines_of, nodes_of
from tests.house.source import PACKAGE, ROOT, _import_statements, all_modules, files, imports, nodes, tree

MODULES = all_modules()

# file: lines that one must follow from it, by imports that run when a file is imported; by all imports, those inside
# functions and for types included
CLOSURES = {
    "layout.tensor_layout": (873, 873),
    "run.simulator": (7_958, 8_493),
    "graph.trace": (10_856, 10_856),
    "graph.compiler": (21_994, 22_505),
    "train.session": (16_865, 27_261),
    "lab.costs.model": (7_003, 7_003),
}
LATE_IMPORTS = 80  # statements inside functions that import from the package

# room: lines of Python in the package; in the tests
PACKAGE_LINES = {
    "__init__.py": 377,
    "__main__.py": 8,
    "base": 5_012,
    "layout": 4_661,
    "ops": 13_447,
    "nn": 12_009,
    "catalog": 16_227,
    "graph": 10_956,
    "cost": 13_278,
    "run": 1_681,
    "processes": 14_220,
    "train": 11_422,
    "lab": 51_233,
    "mindspore": 10_845,
    "hyper_parallel": 2_364,
    "cli": 3_280,
}
MOST_OF_THE_KERNEL = 3_263  # of the parts in `kernel.py`
MOST_OF_A_FILE = 600  # a file near it has two subjects
INVENTORY = ("catalog", "mindspore", "hyper_parallel")
MOST_OF_THE_MAIN_HOUSE, MOST_OF_THE_PACKAGE, MOST_OF_TESTS = 141_584, 171_020, 125_405

# turns of phrase that stand for translated English; counted in the package, its scripts, the notebooks and the pages
# name: letters that every hit has (a file without them need not be searched), pattern
HABITS = {
    "for what ..., what is no ...": ("what", r"\b[Ff]or what\b|\b[Ww]hat (?:is|are|has|have) no\b"),
    "is no NOUN": ("is no ", r"\bis no (?!longer\b|more\b|less\b|fewer\b|other\b|such\b|need\b)[a-z]\w+"),
    "has none, is none": (" none", r"\b(?:has|have|had|is|are|was|were) none\b"),
    "is told": (" told", r"\b(?:is|are|was|were|be) told\b"),
    "of which": ("of which", r"\bof which\b"),
    "in place of": (" place of", r"\bin (?:the )?place of\b"),
    "who waits, who comes": ("ho ", r"\b[Ww]ho (?:waits|comes|asks|reads)\b"),
    "a sentence that begins with Of": ("Of ", r"(?:^\s*|[.!?:;]\s+|[\"#*]\s*)Of [a-z]\w*"),
    "beside": ("eside", r"\b[Bb]eside\b"),
    "whoever": ("whoever", r"\bwhoever\b"),
    "put together": ("put together", r"\bput together\b"),
}
MOST_HABITS, MOST_HABITS_OF_TESTS = 75, 90


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def closure(root: str, every: bool) -> set[str]:
    """Modules that one must follow from `root`: a package's `__init__` counts when it is imported by name."""
    reached: set[str] = set()
    to_read = [root]
    while to_read:
        module = to_read.pop()
        if module not in reached:
            reached.add(module)
            targets = imports(MODULES[module], frozenset(MODULES))
            to_read += [name for name, _, at_import in targets if name in MODULES and (every or at_import)]
    return reached


def weight(root: str, every: bool) -> int:
    return sum(lines(MODULES[module]) for module in closure(f"parallel_lab.{root}", every))


@pytest.mark.parametrize("root", CLOSURES)
def test_what_one_must_follow_from_a_file_stays_within_its_limits(root):
    counted = weight(root, every=False), weight(root, every=True)
    print(f"{root}: {counted[0]:,} lines by imports at the top, {counted[1]:,} by all; limits {CLOSURES[root]}")
    assert lines(MODULES[f"parallel_lab.{root}"]) < counted[0] <= counted[1]
    assert counted[0] <= CLOSURES[root][0] and counted[1] <= CLOSURES[root][1], counted


@cache
def late_imports() -> list[str]:
    """file:line of each statement inside a function that imports from the package; those for types are not counted."""
    found = []
    for path in MODULES.values():
        for_types = {
            id(node)
            for block in nodes(path)
            if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
            for node in ast.walk(block)
        }
        for node, at_import in _import_statements(tree(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            of_ours = getattr(node, "level", 0) or any(name.split(".")[0] == "parallel_lab" for name in names)
            if of_ours and not at_import and id(node) not in for_types:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_late_imports_do_not_become_more():
    late = late_imports()
    print(f"{len(late)} imports inside functions, of {LATE_IMPORTS}")
    assert 0 < len(late) <= LATE_IMPORTS, "\n".join(late)


def test_rooms_import_the_families_of_operators_that_they_need():
    """The package `ops` is for those who use the house: who imports it reads every family."""
    doors = ("parallel_lab", "parallel_lab.mindspore", "parallel_lab.catalog")
    readers = {
        name: line
        for name, path in MODULES.items()
        for target, line, _ in imports(path, frozenset(MODULES))
        if target == "parallel_lab.ops" and not (name == doors[0] or name.startswith(doors[1:]))
    }
    assert len(MODULES) > 500 and not readers


def room_lines(root: Path) -> Counter[str]:
    """{folder or file below `root`: lines of Python}."""
    counted: Counter[str] = Counter()
    for path in files(root, ".py"):
        counted[path.relative_to(root).parts[0]] += lines(path)
    return counted


def test_rooms_stay_within_their_lines():
    counted = room_lines(PACKAGE)
    main = sum(count for room, count in counted.items() if room not in INVENTORY)
    print(f"package: {counted.total():,} lines, {main:,} without {' and '.join(INVENTORY)}", dict(counted))
    assert set(counted) <= set(PACKAGE_LINES)
    more = {room: count for room, count in counted.items() if count > PACKAGE_LINES[room]}
    assert not more, f"set these in PACKAGE_LINES, in the same commit, and say why in its body: {more}"
    assert main <= MOST_OF_THE_MAIN_HOUSE and counted.total() <= MOST_OF_THE_PACKAGE


def test_tests_stay_within_their_lines():
    counted = room_lines(ROOT / "tests")
    print(f"tests: {counted.total():,} lines of {MOST_OF_TESTS:,}", dict(counted))
    assert 50_000 < counted.total() <= MOST_OF_TESTS


def test_the_kernel_is_read_in_an_evening():
    sizes = {stop.path: lines_of(stop) for stop in KERNEL}
    print(f"kernel: {sum(sizes.values()):,} lines of {MOST_OF_THE_KERNEL:,}", sizes)
    assert sum(sizes.values()) <= MOST_OF_THE_KERNEL
    assert {"graph/compiler.py", "ops/machine/opdef.py", "ops/machine/registry.py"} <= set(sizes)


@pytest.mark.parametrize("stop", KERNEL, ids=lambda stop: stop.path)
def test_what_a_shown_part_calls_is_shown_or_named(stop):
    assert called_and_not_shown(stop) == set()
    for part in stop.named:
        assert nodes_of(PACKAGE / stop.path, part)


def test_no_file_is_long():
    paths = [*files(PACKAGE, ".py", ".js"), *files(ROOT / "tests", ".py")]
    long = {str(path.relative_to(ROOT)): n for path in paths if (n := lines(path)) > MOST_OF_A_FILE}
    assert len(paths) > 600 and not long


def text_of(path: Path) -> str:
    """What a reader sees of a file: the cells of a notebook; the names of tests as words."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return re.sub(r"\bdef test_\w+", lambda name: name[0].replace("_", " "), text)


def habits(paths: list[Path]) -> dict[str, Counter[str]]:
    """{habit: how often in each file}."""
    texts = {path.relative_to(ROOT).as_posix(): text_of(path) for path in paths}
    return {
        name: Counter({path: len(hits) for path, text in texts.items() if (hits := hits_of(name, text))})
        for name in HABITS
    }


def hits_of(habit: str, text: str) -> list[str]:
    letters, pattern = HABITS[habit]
    return re.findall(pattern, text, re.MULTILINE) if letters in text else []


def test_every_habit_is_recognised():
    text = "# Of a rank\nfor what is no x, is no name, has none, is told, of which, in the place of, who waits, beside"
    text += ", whoever, put together"
    assert all(hits_of(habit, text) for habit in HABITS)
    text = "It is no longer beside the point: besides, of what use"
    assert not any(hits_of(habit, text) for habit in ("is no NOUN", "of which", "whoever"))


@pytest.mark.parametrize("which", ["texts", "tests"])
def test_texts_are_written_as_by_a_native_teacher(which):
    if which == "tests":
        paths, most = [p for p in files(ROOT / "tests", ".py") if p != Path(__file__)], MOST_HABITS_OF_TESTS
    else:
        pages = [ROOT / "README.md", *files(ROOT / "notebooks", ".md", ".ipynb")]
        paths, most = [*files(PACKAGE, ".py", ".js"), *pages], MOST_HABITS
    counted = habits(paths)
    total = sum(count.total() for count in counted.values())
    print(f"{total} of {most}", {name: count.total() for name, count in counted.items()})
    worst = sum(counted.values(), Counter()).most_common(12)
    assert len(paths) > 100 and total <= most, f"{total} of {most}; most of them in {worst}"
