"""The page for developers lists every hook, registry, `__getattr__` and late import: what calls alone do not show."""

import ast
import re

import pytest

from tests.house.source import PACKAGE, ROOT, files, nodes, tree
from tests.house.test_weights import late_imports

PAGE = (ROOT / "notebooks" / "developers.md").read_text(encoding="utf-8")
EMPTY_TABLE = re.compile(r"(\{\}|\[\]|(dict|list|set|WeakValueDictionary|WeakKeyDictionary|WeakSet|Table)\(\))$")


def listed(heading: str, column: int = 0) -> set[str]:
    """What stands in backticks in a column of the table under a heading."""
    section = PAGE.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][2:]
    assert rows, heading
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row[column])}


def where(path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def hooks() -> set[str]:
    """The ContextVars of base/hooks.py, and its functions that set the other hooks."""
    body = tree(PACKAGE / "base" / "hooks.py").body
    variables = {n.target.id for n in body if isinstance(n, ast.AnnAssign) and "ContextVar(" in ast.unparse(n)}
    return variables | {n.name for n in body if isinstance(n, ast.FunctionDef) and n.name.startswith("set_")}


def registries() -> set[str]:
    """Tables in capital letters that begin empty, in all modules."""
    found = set()
    for path in files(PACKAGE, ".py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in tree(path).body:
            if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                name, ends = getattr(target, "id", ""), lines[node.end_lineno - 1].encode()[: node.end_col_offset]
                empty = ends.endswith((b"{}", b"[]", b"()")) and EMPTY_TABLE.search(ast.unparse(node.value))
                if re.fullmatch(r"[A-Z][A-Z_]*", name) and empty:
                    found.add(name)
    return found


def with_getattr() -> set[str]:
    """Files in which a class or the module itself has `__getattr__`."""
    defined = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        where(path)
        for path in files(PACKAGE, ".py")
        if "__getattr__" in path.read_text(encoding="utf-8")
        and any(isinstance(node, defined) and node.name == "__getattr__" for node in nodes(path))
    }


def importing_late() -> set[str]:
    return {line.partition(":")[0].removeprefix("parallel_lab/") for line in late_imports()}


@pytest.mark.parametrize(
    ("heading", "found"),
    [("Hooks", hooks), ("Registries", registries), ("`__getattr__`", with_getattr), ("Late imports", importing_late)],
)
def test_the_page_lists_all_of_them_and_nothing_else(heading, found):
    there, said = found(), listed(heading)
    assert len(there) >= 5
    missing, gone = sorted(there - said), sorted(said - there)
    assert not missing and not gone, f"'{heading}' of developers.md: add {missing}, remove {gone}"


def test_files_that_are_named_exist():
    section = PAGE.partition("\n## What happens behind your back\n")[2].partition("\n## ")[0]
    paths = {path for path in re.findall(r"`([\w/]+\.py)`", section) if not path.startswith("tests/")}
    missing = [path for path in paths if not any((folder / path).is_file() for folder in (PACKAGE, ROOT))]
    missing = [path for path in missing if "NN" not in path]
    assert len(paths) > 30 and not missing
