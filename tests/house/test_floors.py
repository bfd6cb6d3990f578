"""Imports go to lower floors or, without cycles, within a floor."""

import os
import subprocess
import sys

import pytest

from tests.house.source import all_modules, imports, short

# what lies on which floor; a package stands for everything in it
FLOORS = {
    # facts
    0: (
        "errors",
        "allocator",
        "files",
        "shipped",
        "origin",
        "layout",
        "named_layout",
        "halo",
        "refinement",
        "redistribution",
        "redistribution_steps",
        "redistribution_cost",
        "cluster",
        "context",
        "plain_json",
        "slices",
        "context_tables",
        "parallel_config",
        "settings",
        "fusion",
        "units",
    ),
    1: ("ops",),
    2: ("arithmetic", "tensor", "autograd", "functional", "nn", "dataset", "models"),
    3: ("graph",),
    4: ("plan", "plan_verify", "plan_view", "graph_files", "schedule"),
    5: ("run", "cost", "events", "communication", "checkpoint", "strategy_file", "compiler", "train"),  # use
    6: ("lab", "bench", "launch", "magics"),
    7: ("widgets", "mindspore", "cli", "cli_bench", "cli_quickstart", "cli_run", "doctor", "workbench", "__main__"),  # face
}
FLOOR_OF = {name: floor for floor, names in FLOORS.items() for name in names}
ROOF = 6.5  # parallel_lab/__init__.py re-exports floors 0 to 6; nobody in the package imports it
FORBIDDEN_AT_IMPORT = ("ipywidgets", "plotly", "mpi4py", "multiprocess", "anywidget", "IPython")

MODULES = all_modules()


def floor(module: str) -> float:
    parts = module.split(".")
    return ROOF if len(parts) == 1 else FLOOR_OF[parts[1]]


def test_every_module_has_a_floor():
    homeless = sorted({name.split(".")[1] for name in MODULES if name.count(".")} - FLOOR_OF.keys())
    assert not homeless, f"give {homeless} a floor: in the table of this test, and in the design"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_down_or_stay(module):
    path = MODULES[module]
    if module != "parallel_lab":
        assert module.split(".")[1] in FLOOR_OF, f"{module} has no floor"
    upward = [
        f"{short(path)}:{line} (floor {floor(module):g}) imports {target} (floor {floor(target):g})"
        for target, line, _ in imports(path, frozenset(MODULES))
        if target == "parallel_lab" or target.split(".")[1] not in FLOOR_OF or floor(target) > floor(module)
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


def test_no_module_imports_itself_by_way_of_others():
    edges: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        # a package that re-exports its modules is no cycle: the modules import each other, not the package
        edges[module] = {target for target, _, at_import in imports(path, frozenset(MODULES)) if at_import and target in MODULES}
    cycle = find_cycle(edges)
    assert cycle is None, " -> ".join(cycle)


def test_importing_the_package_loads_nothing_heavy():
    code = f"""
import sys, time
start = time.perf_counter()
import parallel_lab
print(f"import parallel_lab: {{(time.perf_counter() - start) * 1000:.0f}} ms")
print("loaded:", *sorted({{name.split(".")[0] for name in sys.modules}} & set({FORBIDDEN_AT_IMPORT!r})))
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=MODULES["parallel_lab"].parents[1], env=os.environ
    )
    print(found.stdout)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1].strip() == "loaded:"
