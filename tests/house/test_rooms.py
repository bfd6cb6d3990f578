"""Rooms import only from rooms below, no file itself by way of others; every import counts, also names in tables."""

import ast
import os
import subprocess
import sys

import pytest

from tests.house.source import PACKAGE, ROOT, all_modules, files, imports, nodes, short, tree

# from the ground up; each sentence stands in the room's own __init__.py
ROOMS = ("base", "layout", "ops", "nn", "catalog", "graph", "cost", "run", "processes", "train")
SAME_FLOOR = ("lab", "mindspore", "hyper_parallel")  # none of them imports another
ROOMS += (*SAME_FLOOR, "cli")
TABLES = {"parallel_lab.mindspore._tables", "parallel_lab.hyper_parallel._pages"}  # modules named as texts
INVENTORY = "catalog"  # found by name: what imports it would make its operators and layers taught
READS_THE_INVENTORY = {"", "catalog", "mindspore", "hyper_parallel"}
ABOVE_ALL = {"__init__", "__main__"}
FORBIDDEN_AT_IMPORT = ("ipywidgets", "plotly", "mpi4py", "multiprocess", "anywidget", "IPython", "ml_dtypes")

MODULES = all_modules()


def room(module: str) -> str:
    """The room of a module; "" for `parallel_lab` itself and `parallel_lab.__main__`, which stand above all."""
    parts = module.split(".")
    return "" if len(parts) == 1 or parts[1] in ABOVE_ALL else parts[1]


def named_in_texts(module: str) -> list[tuple[str, int]]:
    """(module of the package, line) for every text in the facade's tables that names one: "parallel_lab.train:jit"."""
    found = []
    for node in nodes(MODULES[module]):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("parallel_lab."):
            name = node.value.partition(":")[0]
            while name not in MODULES and "." in name:
                name = name.rpartition(".")[0]
            found.append((name, node.lineno))
    return found


def targets(module: str) -> list[tuple[str, int]]:
    """(module of the package, line) of everything that `module` imports, by statement or, in the facade, by name."""
    found = [(target, line) for target, line, _ in imports(MODULES[module], frozenset(MODULES))]
    return found + (named_in_texts(module) if module in TABLES else [])


def allowed(here: str, there: str) -> bool:
    """Whether a file of room `here` may import one of room `there`."""
    if not here or here == there:
        return True
    if there == INVENTORY and here not in READS_THE_INVENTORY:
        return False
    return bool(there) and ROOMS.index(there) < ROOMS.index(here) and not {here, there} <= {*SAME_FLOOR}


def test_the_folders_of_the_package_are_its_rooms():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))}
    assert folders == set(ROOMS)
    assert {path.stem for path in PACKAGE.glob("*.py")} == ABOVE_ALL


def test_imports_go_down_or_stay():
    upward = [
        f"{short(MODULES[module])}:{line} imports {target}, which lies above or in the catalogue"
        for module in MODULES
        for target, line in targets(module)
        if not (target == "parallel_lab" and room(module) == "mindspore") and not allowed(room(module), room(target))
    ]
    assert not upward, "\n".join(upward)


# floors inside a room: what the files of a folder may import of the others
LAB = "parallel_lab.lab."
LAB_FLOORS = {"pictures": (), "shared": ("pictures",), "code": ("shared", "pictures")}


@pytest.mark.parametrize("folder", LAB_FLOORS)
def test_what_labs_share_lies_below_them_and_pictures_below_that(folder):
    own = (f"{LAB}{folder}", *(f"{LAB}{other}" for other in LAB_FLOORS[folder]))
    upward = [
        f"{short(MODULES[module])}:{line} imports {target}"
        for module in MODULES
        if module.startswith(f"{LAB}{folder}.")
        for target, line in targets(module)
        if target.startswith(LAB) and not target.startswith(own)
    ]
    assert not upward, "\n".join(upward)


def find_cycle(edges: dict[str, set[str]]) -> list[str] | None:
    """One cycle of a directed graph as [a, b, ..., a], or None."""
    state: dict[str, int] = {}  # 1: on the way, 2: done
    trail: list[str] = []

    def visit(node: str) -> list[str] | None:
        state[node] = 1
        trail.append(node)
        for other in sorted(edges.get(node, ())):
            if state.get(other) == 1:
                return [*trail[trail.index(other) :], other]
            if other not in state and (found := visit(other)):
                return found
        state[node] = 2
        trail.pop()
        return None

    for node in sorted(edges):
        if node not in state and (found := visit(node)):
            return found
    return None


def test_find_cycle_finds_one_and_only_one_that_is_there():
    assert find_cycle({"a": {"b", "d"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) is None


def test_no_file_imports_itself_by_way_of_others():
    edges = {module: {target for target, _ in targets(module) if target in MODULES} for module in MODULES}
    cycle = find_cycle(edges)
    assert cycle is None, " -> ".join(cycle)


@pytest.mark.parametrize("folder", sorted({path.parent for path in files(PACKAGE, ".py")}), ids=short)
def test_a_folder_says_what_it_is_for(folder):
    """In its `__init__.py`; a room has a row in the table of the page for developers."""
    said = ast.get_docstring(tree(folder / "__init__.py"))
    assert said and len(said.split()) >= 6
    if folder.parent == PACKAGE:
        page = (ROOT / "notebooks" / "developers.md").read_text(encoding="utf-8")
        assert f"[{folder.name}/](../parallel_lab/{folder.name}/__init__.py)" in page


def test_importing_the_package_loads_nothing_heavy():
    code = f"""
import sys, time
start = time.perf_counter()
import parallel_lab
print(f"import parallel_lab: {{(time.perf_counter() - start) * 1000:.0f}} ms")
print("loaded:", *sorted({{name.split(".")[0] for name in sys.modules}} & set({FORBIDDEN_AT_IMPORT!r})))
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, env=os.environ
    )
    print(found.stdout)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1].strip() == "loaded:"
