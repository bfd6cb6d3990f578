"""Which layers, losses, schedules and optimizers are taught, computed from what names them. The catalogue has the rest.

Taught is what a notebook, a page, a lab, a model, a pass or another room names, and what that is made of. A name is
found as an attribute (`nn.Dense`), in an import from `nn`, or in a text (programs that labs write).
"""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from parallel_lab import catalog, nn
from tests.house.source import PACKAGE, ROOT, files, tree

OF_NN = re.compile(r"\bnn\.([A-Za-z]\w*)")
# rooms below `nn`, and those whose names are no use of a layer: MindSpore's tables, the catalogue itself
NOT_COUNTED = {"base", "layout", "ops", "mindspore", "hyper_parallel", "catalog"}
MODULES_OF_NN = {"initializer", "utils"}


def named(node: ast.AST) -> set[str]:
    """Names of nn in a parsed file."""
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and "nn" in (getattr(each.value, "id", ""), getattr(each.value, "attr", "")):
            found.add(each.attr)
        elif isinstance(each, ast.ImportFrom) and "nn" in (each.module or "").split("."):
            found |= {alias.name for alias in each.names}
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            found |= set(OF_NN.findall(each.value))
    return found


def seeds() -> Iterator[str]:
    """What is named outside of `nn`, and by its models."""
    for path in files(PACKAGE, ".py"):
        room, *inside = path.relative_to(PACKAGE).parts
        if inside and room not in NOT_COUNTED and (room != "nn" or inside[0] == "models"):
            yield from named(tree(path)) if "nn" in path.read_text(encoding="utf-8") else ()
    for path in files(ROOT / "notebooks", ".ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            yield from OF_NN.findall("".join(cell["source"]))
    for path in [*files(ROOT / "notebooks", ".md"), ROOT / "README.md", *files(PACKAGE, ".jinja", ".j2", ".js")]:
        yield from OF_NN.findall(path.read_text(encoding="utf-8"))


def definitions(folder: Path) -> dict[str, list[ast.stmt]]:
    """{name: statements at the top of a file that define it}."""
    found = defaultdict(list)
    for path in files(folder, ".py"):
        for node in tree(path).body if path.name != "__init__.py" else ():
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                found[node.name].append(node)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    for each in ast.walk(target):
                        if isinstance(each, ast.Name):
                            found[each.id].append(node)
    return found


@cache
def taught() -> set[str]:
    """The names above, and those that their definitions refer to."""
    defined = definitions(PACKAGE / "nn")
    reached, to_read = set(), list(seeds())
    while to_read:
        name = to_read.pop()
        if name not in reached:
            reached.add(name)
            inner = (each for node in defined.get(name, ()) for each in ast.walk(node))
            to_read += [each.id for each in inner if isinstance(each, ast.Name) and each.id in defined]
    return reached


def test_what_is_taught_is_found():
    assert {"Dense", "ReLU", "GELU", "Momentum", "CrossEntropyLoss", "PipelineCell", "get_activation"} <= taught()
    assert len(taught()) > 80


@pytest.mark.parametrize("name", sorted({*nn.__all__} - {*catalog.nn.LAYERS} - MODULES_OF_NN))
def test_a_public_name_of_nn_is_taught(name):
    assert name in taught(), f"nothing taught names nn.{name}: it belongs to parallel_lab/catalog/nn"


@pytest.mark.parametrize("name", sorted(catalog.nn.LAYERS))
def test_a_name_of_the_catalogue_is_not_taught(name):
    assert name not in taught(), f"nn.{name} is named by a lesson, lab, model or room: it belongs to parallel_lab/nn"


def test_files_that_are_apart_give_nn_no_names():
    """As the docstring says; `arguments_of` was a public name because another file had imported its own first."""
    apart = set(re.findall(r"`(\w+)`", (catalog.nn.__doc__ or "").partition("Not among these")[2])) - {"initializer"}
    assert len(apart) == 6
    assert not [name for name, one in catalog.nn.LAYERS.items() if one.__module__.rpartition(".")[2] in apart]
