"""`import parallel_lab`: what it has, and what it leaves for later."""

import ast
import os
import subprocess
import sys

import pytest

import parallel_lab
from tests.house.source import PACKAGE, ROOT, tree

LATER = ("graph", "cost", "run", "processes", "train", "lab", "mindspore", "hyper_parallel", "cli")


@pytest.mark.parametrize("name", parallel_lab.__all__)
def test_a_public_name_is_there_and_listed(name):
    assert getattr(parallel_lab, name) is not None
    assert name in dir(parallel_lab)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"no attribute 'modle'\. Did you mean 'models' or 'Model'\?"):
        _ = parallel_lab.modle
    assert not hasattr(parallel_lab, "modle")


def test_importing_the_package_leaves_what_compiles_runs_and_saves_for_later():
    code = f"""
import sys
import parallel_lab
early = {{name.split(".")[1] for name in sys.modules if name.startswith("parallel_lab.")}}
print("early:", *sorted(early & set({LATER!r})))
parallel_lab.Model
print("then:", "parallel_lab.train.model" in sys.modules)
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, env=os.environ
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == ["early:", "then: True"]


def is_module(path: str) -> bool:
    return (PACKAGE / path.replace(".", "/")).is_dir() or (PACKAGE / (path.replace(".", "/") + ".py")).is_file()


def test_editors_know_the_same_places_as_python():
    """The imports under TYPE_CHECKING, which nothing runs, against the table that is used."""
    told = {}
    for node in tree(PACKAGE / "__init__.py").body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for line in node.body:
                for alias in line.names:
                    path = f"{line.module or ''}.{alias.name}".strip(".")
                    told[alias.asname or alias.name] = (path, "") if is_module(path) else (line.module, alias.name)
    assert told == parallel_lab._LATER
    assert set(told) <= set(parallel_lab.__all__)
