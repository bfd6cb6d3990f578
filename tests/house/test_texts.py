"""What stands in files: docstrings, sizes, names, paths, bans. A rule's test names every file that breaks it."""

import ast
import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crossed import each_of
from tests.house.source import PACKAGE, ROOT, files, nodes, short, tree

TOP_LEVEL = {"parallel_lab", "notebooks", "tests", "data", "environment.yml", "README.md", "pyproject.toml", "LICENSE"}
CODE = files(PACKAGE, ".py")
TESTS = files(ROOT / "tests", ".py")
NOTEBOOKS = files(ROOT / "notebooks", ".ipynb") if (ROOT / "notebooks").is_dir() else []
# functions shipped to workers are dill bytes between two processes of one user; nothing else may unpickle
MAY_UNPICKLE = (
    "parallel_lab/processes/shm/",
    "parallel_lab/processes/mpi/",
    *(f"parallel_lab/processes/{name}.py" for name in ("jobs", "job_pool", "outcome", "faults")),
)
# the process of a rank runs the script that the user named, as python would; the cell that an exercise begins with is
# its author's, and is run to know it again
MAY_EXEC = ("parallel_lab/processes/launch/rank_main.py", "parallel_lab/lab/exercises/starts.py")
DEFINED = re.compile(r"^([ \t]*)(?:async[ \t]+def|def|class)[ \t]+(\w+)", re.MULTILINE)
TEXT, BEGINS = re.compile(r'"""(?:[^\\]|\\.)*?"""', re.DOTALL), re.compile(r"^([ \t]*)def test_\w+", re.MULTILINE)
UNPICKLERS = {"pickle", "dill", "cloudpickle", "marshal", "shelve"}


def offenders(paths: list[Path], look: Callable[[Path], list[str]]) -> str:
    """A line for each file in which `look` finds something: "path: what, what"."""
    return "\n".join(f"{short(path)}: {', '.join(map(str, found))}" for path in paths if (found := look(path)))


def test_offenders_are_all_named():
    paths = [PACKAGE / f"{name}.py" for name in "abc"]
    found = offenders(paths, lambda path: [path.stem] * "a.c".find(path.stem))
    assert found == "parallel_lab/c.py: c, c"


def tracked() -> list[Path]:
    """Files of the repository: what git knows or would add; without git, everything that is not hidden."""
    try:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
        paths = [ROOT / name for name in listed.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        hidden = re.compile(r"\..*|__pycache__").fullmatch
        paths = [path for path in ROOT.rglob("*") if not any(map(hidden, path.relative_to(ROOT).parts))]
    return sorted(path for path in paths if path.is_file())


def public(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_")


def without_docstring(path: Path) -> list[str]:
    """Public functions and classes of a module, and public methods longer than three lines, that lack a docstring."""
    missing = [] if ast.get_docstring(tree(path)) or not tree(path).body else ["the module itself"]
    for node in filter(public, tree(path).body):
        if not ast.get_docstring(node) and not any("overload" in ast.dump(mark) for mark in node.decorator_list):
            missing.append(f"{node.name} (line {node.lineno})")
        if isinstance(node, ast.ClassDef):
            for method in filter(public, node.body):
                inherits = bool(node.bases)  # an override is described where it is first declared
                if not ast.get_docstring(method) and not inherits and method.end_lineno - method.lineno > 3:
                    missing.append(f"{node.name}.{method.name} (line {method.lineno})")
    return missing


def test_public_names_have_docstrings():
    assert not offenders(CODE, without_docstring)


def repeated_names(path: Path) -> list[str]:
    """Functions and classes of a file that hide another of the same name."""
    twice = []
    begun = DEFINED.findall(path.read_text(encoding="utf-8"))  # those of one scope stand under each other
    for scope in nodes(path) if len({*begun}) < len(begun) else ():
        if isinstance(scope, ast.Module | ast.ClassDef):
            names = Counter(
                node.name
                for node in scope.body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            )
            twice += [name for name, count in names.items() if count > 1]
    return twice


def test_no_test_hides_another_of_the_same_name():
    assert not offenders(TESTS, repeated_names)


def _checks(function: ast.FunctionDef, helpers: set[str]) -> bool:
    """Whether a function asserts, expects an error or warning, or calls one of `helpers` or a name like a check's."""
    named = re.compile(r"assert|check|verify|raises|warns|fail|expect|compare|agree|same|equal", re.I)
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Raise):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in helpers or named.search(name):
                return True
    return False


def all_assert(text: str) -> bool:
    """Whether each test of a file has a line of its own that asserts or raises, outside of texts: then the file need
    not be parsed, which takes many times as long.
    """
    if text.count('"""') % 2 or '\'"""' in text:
        return False
    code = TEXT.sub("", text)
    for test in BEGINS.finditer(code):
        body, indent = code[test.end() :], test[1]
        end = re.search(rf"^{indent}(?:async def|def|class|@|\w+ =)", body, re.MULTILINE)
        line = rf"^{indent}[ \t]+(?:assert\b|raise\b|with pytest\.(?:raises|warns)\()"
        if not re.search(line, body[: end.start() if end else None], re.MULTILINE):
            return False
    return True


def without_check(path: Path) -> list[str]:
    """Tests of a file that assert nothing."""
    if all_assert(path.read_text(encoding="utf-8")):
        return []
    functions = [node for node in nodes(path) if isinstance(node, ast.FunctionDef)]
    helpers = {node.name for node in functions if _checks(node, set())}
    return [node.name for node in functions if node.name.startswith("test_") and not _checks(node, helpers)]


@each_of(
    ("text", "found"),
    ('def test_a():\n    """x\n    assert y"""\n    f()\n', ["test_a"]),
    ("def test_a():\n    f()\n\n\nassert 1\n\n\ndef test_b():\n    assert 2\n", ["test_a"]),
    ("def test_a():\n    f()\n\n\ndef g():\n    assert 2\n", ["test_a"]),
    ("class A:\n    def test_c(self):\n        f()\n\n    def h(self):\n        assert 1\n", ["test_c"]),
    ('def test_a():\n    s = """\n    assert 1\n    """\n    f(s)\n', ["test_a"]),
    ("def test_a(\n    x,\n):\n    assert x\n", []),
)
def test_a_test_without_a_check_is_found(tmp_path, text, found):
    (tmp_path / "a.py").write_text(text)
    assert without_check(tmp_path / "a.py") == found and all_assert(text) == (not found)


def test_no_test_is_without_a_check():
    assert not offenders(TESTS, without_check)


def test_the_top_level_holds_only_what_the_design_names():
    names = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert {name for name in names if not name.startswith(".")} - TOP_LEVEL == set()


def test_no_file_names_a_place_on_somebodys_machine():
    # a home folder, a mounted workplace, a scratch folder that is not the system's plain /tmp
    place = re.compile(
        r"(?<![\w.~/:-])/(?:work|root|home/(?!jenkins|miniconda3|me\b|you\b|user\b)\w+|Users/\w+|tmp/dev|opt/\w+|mnt/\w+)(?:/|\b)"
    )
    found = []
    for path in tracked():
        if path.suffix in {".py", ".js", ".md", ".toml", ".yml", ".ipynb", ".json", ".html", ".css", ""} and short(
            path
        ) != short(Path(__file__)):
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                if hit := place.search(line):
                    found.append(f"{short(path)}:{number}: {hit.group()}")
    assert not found, "\n".join(found)


def forbidden(path: Path) -> list[str]:
    """Places in a module that run foreign data as code: unpickling, eval, exec, numpy files that may hold pickles."""
    found = []
    text = path.read_text(encoding="utf-8")
    may = any(word in text for word in (*UNPICKLERS, "eval", "exec", "allow_pickle"))
    for node in nodes(path) if may else ():
        what = ""
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            hit = {name.split(".")[0] for name in names} & UNPICKLERS
            if hit and not short(path).startswith(MAY_UNPICKLE):
                what = f"imports {', '.join(sorted(hit))}"
        elif isinstance(node, ast.Call):
            if (
                isinstance(node.func, ast.Name)
                and node.func.id in {"eval", "exec"}
                and not short(path).startswith(MAY_EXEC)
            ):
                what = f"calls {node.func.id}"
            if any(
                keyword.arg == "allow_pickle" and getattr(keyword.value, "value", True) for keyword in node.keywords
            ):
                what = "sets allow_pickle"
        if what:
            found.append(f"{path.name}:{node.lineno} {what}")
    return found


def test_no_module_runs_foreign_data():
    assert not offenders(CODE, forbidden)


def test_the_search_for_forbidden_things_finds_them(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.house.source.ROOT", tmp_path)
    path = tmp_path / "bad.py"
    path.write_text(
        "import dill\nfrom pickle import loads\nx = eval('1')\nnp.load(p, allow_pickle=True)\nnp.load(p, "
        "allow_pickle=False)\nliteral_eval('1')\n"
    )
    assert [text.split()[0] for text in forbidden(path)] == ["bad.py:1", "bad.py:2", "bad.py:3", "bad.py:4"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=short)
def test_a_notebook_is_stored_without_outputs(path):
    # what git keeps, where there is git: a learner who has worked with a lesson has saved its outputs
    kept = subprocess.run(["git", "show", f":./{path.name}"], cwd=path.parent, capture_output=True, check=False)
    cells = json.loads(kept.stdout if kept.returncode == 0 else path.read_bytes())["cells"]
    stored = [
        number
        for number, cell in enumerate(cells)
        if cell["cell_type"] == "code" and (cell["outputs"] or cell["execution_count"])
    ]
    assert not stored, f"cells {stored} hold outputs: clear them before committing"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=short)
def test_a_notebook_holds_no_helper_longer_than_ten_lines(path):
    long = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            lines = [line for line in "".join(cell["source"]).splitlines() if not line.lstrip().startswith(("%", "!"))]
            for node in ast.walk(ast.parse("\n".join(lines))):
                if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 10:
                    long += [node.name] if not node.name.startswith("script_") else []  # a script is to be repaired
    assert not long, f"{long}: longer than ten lines belong in the package"
